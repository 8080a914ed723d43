//! The approximate size in memory of a member's facts: what the allocator is asked for by their texts and lists. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use crd::{
    Condition, ControllerStatus, EndpointPicker, Hostname, ImportedCluster,
    InferencePoolImportStatus, Listener, Parent, PortRef, SecretReference, ServiceEndpoints,
    ServicePort,
};

use super::{
    facts::{
        EppRef, GatewayFacts, ListenerFacts, LiveImport, NamespaceFacts, PoolFacts, PortFacts,
        RouteFacts, RouteParent, ServiceFacts, SliceFacts,
    },
    member::{PoolRecord, Remembered},
};
use crate::{
    export::{Export, ExportRequest, PortOverride, PortSelector, SecretSelector},
    name::Key,
};

/// The approximate size of a value on the heap.
pub trait Heap {
    /// Bytes on the heap, without `size_of` the value itself; shared parts count whole.
    fn heap(&self) -> usize;
}

/// Overhead of each allocation: two machine words in most allocators.
pub(super) const ALLOCATION: usize = 16;

/// Each type with those of its fields that have something on the heap.
macro_rules! heap_of_fields {
    ($($type:ty { $($field:ident),* })*) => {
        $(impl Heap for $type {
            fn heap(&self) -> usize {
                0 $(+ self.$field.heap())*
            }
        })*
    };
}

heap_of_fields! {
    // nothing
    u16 {}
    IpAddr {}
    crd::TargetPort {}
    &'static str {}
    Key { namespace, name }
    // of imports
    Condition { type_, status, reason, message }
    // `parents` are written by others and not kept
    ControllerStatus { name, exporting_clusters, conditions }
    crd::ClusterName { name }
    ImportedCluster { name, target_ports, app_protocol, labels, pod_cidrs, endpoint_picker, parents, conditions }
    EndpointPicker { name, service, endpoints, health, metrics }
    PortRef { secret_ref }
    SecretReference { name, namespace }
    ServiceEndpoints { addresses, ports }
    ServicePort { name, protocol, app_protocol }
    Parent { name, namespace, service, hostnames, listeners, conditions }
    Listener { name, hostname }
    // facts
    LiveImport { key, uid, resource_version, owned_entries, status }
    Remembered { uid, entries }
    PoolRecord { facts }
    PoolFacts { key, uid, export, epp, target_ports, app_protocol, exported, parents }
    ExportRequest { health, metrics, ignored }
    PortOverride { port, secret }
    EppRef { group, kind, name }
    ServiceFacts { key, cluster_ips, ingress, ports }
    PortFacts { name, protocol, app_protocol }
    SliceFacts { key, service, ready, terminating, ports }
    NamespaceFacts { name }
    GatewayFacts { key, addresses, listeners }
    ListenerFacts { name, hostname }
    RouteParent { gateway, section }
}

impl Heap for Export {
    fn heap(&self) -> usize {
        match self {
            Self::NotRequested { .. } => 0,
            Self::Invalid(invalid) => invalid.value.heap(),
            Self::Requested(request) => size_of::<ExportRequest>() + ALLOCATION + request.heap(),
        }
    }
}

impl Heap for PortSelector {
    fn heap(&self) -> usize {
        match self {
            Self::Number(_) => 0,
            Self::Name(name) => name.heap(),
        }
    }
}

impl Heap for SecretSelector {
    fn heap(&self) -> usize {
        match self {
            Self::Local(name) => name.heap(),
            Self::CrossNamespace => 0,
        }
    }
}

impl Heap for String {
    fn heap(&self) -> usize {
        match self.capacity() {
            0 => 0,
            bytes => bytes + ALLOCATION,
        }
    }
}

impl Heap for Arc<str> {
    fn heap(&self) -> usize {
        self.len() + 2 * ALLOCATION
    }
}

impl<T: Heap> Heap for Option<T> {
    fn heap(&self) -> usize {
        self.as_ref().map_or(0, Heap::heap)
    }
}

impl<T: Heap> Heap for Vec<T> {
    fn heap(&self) -> usize {
        let own = match self.capacity() {
            0 => 0,
            items => items * size_of::<T>() + ALLOCATION,
        };
        own + self.iter().map(Heap::heap).sum::<usize>()
    }
}

impl<T: Heap> Heap for BTreeSet<T> {
    fn heap(&self) -> usize {
        let items = self.iter().map(|item| size_of::<T>() + item.heap());
        items.sum()
    }
}

impl<K: Heap, V: Heap> Heap for BTreeMap<K, V> {
    fn heap(&self) -> usize {
        let items = self
            .iter()
            .map(|(key, value)| size_of::<(K, V)>() + key.heap() + value.heap());
        items.sum()
    }
}

impl<T: Heap> Heap for Arc<Vec<T>> {
    /// The whole size, though it may be shared.
    fn heap(&self) -> usize {
        size_of::<Vec<T>>() + 2 * ALLOCATION + (**self).heap()
    }
}

impl Heap for Hostname {
    fn heap(&self) -> usize {
        match self {
            Self::Exact(name) | Self::Suffix(name) => name.heap(),
            Self::Any => 0,
        }
    }
}

impl<E: Heap> Heap for InferencePoolImportStatus<E> {
    fn heap(&self) -> usize {
        self.conditions.heap() + self.controllers.heap() + self.clusters.heap()
    }
}

impl Heap for RouteFacts {
    /// With its place under each of its targets.
    fn heap(&self) -> usize {
        let targets = self.pools.len() + self.imports.len();
        targets * (2 * size_of::<Key>() + 2 * ALLOCATION)
            + self.key.heap()
            + self.parents.heap()
            + self.hostnames.heap()
            + self.pools.heap()
            + self.imports.heap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::mk_service;

    #[test]
    fn texts_and_lists_take_what_they_hold() {
        assert_eq!(String::new().heap(), 0);
        assert_eq!("x".repeat(1000).heap(), 1000 + ALLOCATION);
        let list = vec!["x".repeat(1000); 10];
        let item = size_of::<String>() + 1000 + ALLOCATION;
        assert_eq!(list.heap(), 10 * item + ALLOCATION);
        assert_eq!(Some(list.clone()).heap(), list.heap());
    }

    #[test]
    fn every_text_of_an_import_counts() {
        let long = "x".repeat(100);
        let full = serde_json::json!({
            "conditions": [{"type": long, "status": long, "reason": long, "message": long,
                "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            "controllers": [{"name": long, "exportingClusters": [{"name": long}]}],
            "clusters": [{
                "name": long, "routingMode": "EndpointMode", "targetPortNumber": 8000,
                "appProtocol": long, "labels": {&long: long},
                "endpointPicker": {"name": long, "endpoints": [long],
                    "service": [{"type": "LoadBalancer", "addresses": [long], "ports": [
                        {"number": 1, "name": long, "protocol": long, "appProtocol": long}]}],
                    "health": {"port": 1, "secretRef": {"name": long, "namespace": long}},
                    "metrics": {"port": 1, "secretRef": {"name": long, "namespace": long}}},
                "parents": [{"name": long, "namespace": long, "service": [{"type": "LoadBalancer"}],
                    "hostnames": [long], "listeners": [{"name": long, "port": 80, "protocol": "HTTP", "hostname": long}]}],
            }],
        });
        let texts = full.to_string().matches(&long).count();
        let full: InferencePoolImportStatus = serde_json::from_value(full).expect("a status");
        let heap = full.heap();
        assert!(
            heap >= texts * (100 + ALLOCATION),
            "{heap} for {texts} texts"
        );
        assert!(heap < texts * 400, "{heap} for {texts} texts");
    }

    #[test]
    fn a_usual_service_takes_little() {
        let service = mk_service(crd::ServiceType::LoadBalancer, "192.0.2.1");
        let bytes = service.heap() + size_of::<ServiceFacts>();
        assert!((100..1500).contains(&bytes), "{bytes}");
    }
}
