//! How much memory it takes to keep what a member says. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use crd::{
    Condition, ControllerStatus, EndpointPicker, Hostname, ImportedCluster,
    InferencePoolImportStatus, Listener, Parent, ServiceEndpoints, ServicePort,
};

use super::{
    facts::{
        EppRef, GatewayFacts, ListenerFacts, LiveImport, NamespaceFacts, PoolFacts, PortFacts,
        RouteFacts, RouteParent, ServiceFacts, SliceFacts,
    },
    member::{PoolRecord, Remembered},
};
use crate::name::Key;

/// What something takes besides its own size, in bytes, about: its texts and lists.
pub trait Heap {
    fn heap(&self) -> usize;
}

/// What each allocation costs besides what is asked for: two words of most allocators.
pub(super) const ALLOCATION: usize = 16;

fn sum(parts: &[&dyn Heap]) -> usize {
    parts.iter().map(|part| part.heap()).sum()
}

// === what things are made of ===

impl Heap for String {
    fn heap(&self) -> usize {
        match self.capacity() {
            0 => 0,
            bytes => bytes + ALLOCATION,
        }
    }
}

impl Heap for u16 {
    fn heap(&self) -> usize {
        0
    }
}

impl Heap for IpAddr {
    fn heap(&self) -> usize {
        0
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

impl Heap for Key {
    fn heap(&self) -> usize {
        self.namespace.heap() + self.name.heap()
    }
}

impl Heap for Condition {
    fn heap(&self) -> usize {
        sum(&[&self.type_, &self.status, &self.reason, &self.message])
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

// === impl InferencePoolImportStatus ===

impl<E: Heap> Heap for InferencePoolImportStatus<E> {
    fn heap(&self) -> usize {
        sum(&[&self.conditions, &self.controllers, &self.clusters])
    }
}

impl Heap for ControllerStatus {
    fn heap(&self) -> usize {
        // of the parents, which are others', none are kept
        sum(&[&self.name, &self.exporting_clusters, &self.conditions])
    }
}

impl Heap for crd::ClusterName {
    fn heap(&self) -> usize {
        self.name.heap()
    }
}

impl Heap for ImportedCluster {
    fn heap(&self) -> usize {
        let ports = self.target_ports.capacity() * size_of::<crd::TargetPort>();
        let parts: [&dyn Heap; 6] = [
            &self.name,
            &self.app_protocol,
            &self.labels,
            &self.endpoint_picker,
            &self.parents,
            &self.conditions,
        ];
        ports + sum(&parts)
    }
}

impl Heap for EndpointPicker {
    fn heap(&self) -> usize {
        let refs = [&self.health, &self.metrics].into_iter().flatten();
        let secrets = refs.filter_map(|port| port.secret_ref.as_ref());
        let secrets = secrets.map(|secret| sum(&[&secret.name, &secret.namespace]));
        secrets.sum::<usize>() + sum(&[&self.name, &self.service, &self.endpoints])
    }
}

impl Heap for ServiceEndpoints {
    fn heap(&self) -> usize {
        sum(&[&self.addresses, &self.ports])
    }
}

impl Heap for ServicePort {
    fn heap(&self) -> usize {
        sum(&[&self.name, &self.protocol, &self.app_protocol])
    }
}

impl Heap for Parent {
    fn heap(&self) -> usize {
        let parts: [&dyn Heap; 6] = [
            &self.name,
            &self.namespace,
            &self.service,
            &self.hostnames,
            &self.listeners,
            &self.conditions,
        ];
        sum(&parts)
    }
}

impl Heap for Listener {
    fn heap(&self) -> usize {
        sum(&[&self.name, &self.hostname])
    }
}

// === facts ===

impl Heap for LiveImport {
    /// Whole, though most of it is shared with other members where it is not forged.
    fn heap(&self) -> usize {
        let owned = &*self.owned_entries;
        self.status.heap() + sum(&[&self.key, &self.uid, &self.resource_version, owned])
    }
}

impl Heap for Remembered {
    fn heap(&self) -> usize {
        sum(&[&self.uid, &self.entries])
    }
}

impl Heap for PoolRecord {
    fn heap(&self) -> usize {
        self.facts.heap()
    }
}

impl Heap for PoolFacts {
    fn heap(&self) -> usize {
        let parts: [&dyn Heap; 8] = [
            &self.key,
            &self.uid,
            &self.annotations,
            &self.epp,
            &self.target_ports,
            &self.app_protocol,
            &self.exported,
            &self.parents,
        ];
        sum(&parts)
    }
}

impl Heap for EppRef {
    fn heap(&self) -> usize {
        sum(&[&self.group, &self.kind, &self.name])
    }
}

impl Heap for ServiceFacts {
    fn heap(&self) -> usize {
        sum(&[&self.key, &self.cluster_ips, &self.ingress, &self.ports])
    }
}

impl Heap for PortFacts {
    fn heap(&self) -> usize {
        sum(&[&self.name, &self.protocol, &self.app_protocol])
    }
}

impl Heap for SliceFacts {
    fn heap(&self) -> usize {
        sum(&[&self.key, &self.service, &self.ready, &self.ports])
    }
}

impl Heap for NamespaceFacts {
    fn heap(&self) -> usize {
        self.name.heap()
    }
}

impl Heap for GatewayFacts {
    fn heap(&self) -> usize {
        sum(&[&self.key, &self.addresses, &self.listeners])
    }
}

impl Heap for ListenerFacts {
    fn heap(&self) -> usize {
        sum(&[&self.name, &self.hostname])
    }
}

impl Heap for RouteFacts {
    fn heap(&self) -> usize {
        let parts: [&dyn Heap; 5] = [
            &self.key,
            &self.parents,
            &self.hostnames,
            &self.pools,
            &self.imports,
        ];
        sum(&parts)
    }
}

impl Heap for RouteParent {
    fn heap(&self) -> usize {
        sum(&[&self.gateway, &self.section])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::mk_service;

    #[test]
    fn texts_and_lists_weigh_what_they_take() {
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
    fn a_usual_service_weighs_little() {
        let service = mk_service(crd::ServiceType::LoadBalancer, "192.0.2.1");
        let weight = service.heap() + size_of::<ServiceFacts>();
        assert!((100..1500).contains(&weight), "{weight}");
    }
}
