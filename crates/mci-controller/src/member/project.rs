//! Reduces Kubernetes objects to the facts that we keep. Pure; names are checked here, where they enter.

use std::{collections::BTreeMap, net::IpAddr};

use crd::{
    FailureMode, ServiceType,
    annotations::{
        CLUSTERSET, CONTROLLER_INSTANCE, IMPORT_GROUP, IMPORT_KIND, MANAGED_BY,
        MANAGED_BY_CONTROLLER, MCI_CONTROLLER,
    },
    inference_pool::{
        InferencePool, InferencePoolAppProtocol, InferencePoolEndpointPickerRef,
        InferencePoolEndpointPickerRefFailureMode,
    },
};
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        core::v1::{Namespace, Service},
        discovery::v1::{EndpointConditions, EndpointSlice},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::core::PartialObjectMeta;
use serde_json::value::RawValue;

use super::Interner;
use crate::{
    export::parse_export,
    index::{
        digest::LiveStatus,
        entry::{Entry, ImportStatus},
        facts::{
            Claim, EppRef, LiveImport, NamespaceFacts, PoolFacts, PortFacts, ServiceFacts,
            SliceFacts,
        },
    },
    name::{Key, is_label, opaque},
    write::pool_status::MAX_PARENTS,
};

mod bounds;
mod imported;
mod parents;
mod slim;

pub(crate) use self::imported::ImportObject;
use self::imported::Managed;
pub(super) use self::parents::{gateway, route};

/// What makes an import, or an entry in a pool's status, ours.
#[derive(Clone, Debug)]
pub(crate) struct Ours {
    pub(crate) clusterset: String,
    pub(crate) instance: String,
    pub(crate) controller_name: String,
}

const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Lengths that the import's CRD admits, in characters: one field past them would have the API server refuse the whole
/// import, with every other exporter's entry.
const MAX_PORT_NAME: usize = 63;
const MAX_PROTOCOL: usize = 16;
const MAX_APP_PROTOCOL: usize = 253;

/// The key of an object, if its names may enter a URL.
pub(super) fn key_of(meta: &ObjectMeta) -> Option<Key> {
    Key::checked(meta.namespace.as_deref()?, meta.name.as_deref()?)
}

/// A pool; none if the CRD would not admit it: it then counts as unreadable, not as absent.
pub(crate) fn pool(object: InferencePool, ours: &Ours) -> Option<PoolFacts> {
    let key = key_of(&object.metadata)?;
    let target_ports: Vec<u16> = object
        .spec
        .target_ports
        .iter()
        .filter_map(|port| port_number(port.number))
        .take(bounds::MAX_TARGET_PORTS)
        .collect();
    if target_ports.is_empty() {
        return None;
    }
    let listed = object.status.and_then(|status| status.parents);
    let parents = listed.unwrap_or_default();
    let gateways = parents::accepting_gateways(&parents, &key.namespace);
    let no_place = parents.len() >= MAX_PARENTS;
    let exported = parents
        .into_iter()
        .find(|parent| {
            parent.controller_name.as_deref() == Some(&ours.controller_name)
                && parent.parent_ref.kind.as_deref() == Some(IMPORT_KIND)
                && parent.parent_ref.group.as_deref() == Some(IMPORT_GROUP)
        })
        .map(|parent| bounds::conditions(parent.conditions.unwrap_or_default()));
    let export = parse_export(&object.metadata.annotations.unwrap_or_default());
    let epp = match object.spec.endpoint_picker_ref {
        None => None,
        Some(epp) => Some(picker(epp)?),
    };
    Some(PoolFacts {
        key,
        uid: opaque(object.metadata.uid).unwrap_or_default(),
        // a negative one would have the API server refuse the import
        generation: object.metadata.generation.unwrap_or_default().max(0),
        created: object
            .metadata
            .creation_timestamp
            .map_or(Timestamp::UNIX_EPOCH, |time| time.0),
        export,
        epp,
        target_ports,
        app_protocol: object.spec.app_protocol.map(|protocol| {
            let text = match protocol {
                InferencePoolAppProtocol::Http => "http",
                InferencePoolAppProtocol::KubernetesIoH2c => "kubernetes.io/h2c",
            };
            text.to_owned()
        }),
        status_full: no_place && exported.is_none(),
        exported,
        parents: gateways,
    })
}

/// A reference to an endpoint picker; none if the CRD would not admit it.
fn picker(epp: InferencePoolEndpointPickerRef) -> Option<EppRef> {
    let group = epp.group.unwrap_or_default();
    let kind = epp.kind.unwrap_or_else(|| "Service".to_owned());
    let long = group.len() > bounds::MAX_NAME
        || kind.len() > bounds::MAX_KIND
        || epp.name.len() > bounds::MAX_NAME;
    if long {
        return None;
    }
    Some(EppRef {
        group,
        kind,
        name: epp.name,
        port: epp.port.and_then(|port| port_number(port.number)),
        failure_mode: epp.failure_mode.map(|mode| match mode {
            InferencePoolEndpointPickerRefFailureMode::FailOpen => FailureMode::FailOpen,
            InferencePoolEndpointPickerRefFailureMode::FailClose => FailureMode::FailClose,
        }),
    })
}

/// A Service.
pub(crate) fn service(object: Service) -> Option<ServiceFacts> {
    let key = key_of(&object.metadata)?;
    let spec = object.spec.unwrap_or_default();
    let headless = spec.cluster_ip.as_deref() == Some("None");
    let mut cluster_ips = spec.cluster_ips.unwrap_or_default();
    if cluster_ips.is_empty() {
        cluster_ips.extend(spec.cluster_ip);
    }
    cluster_ips.retain(|ip| ip != "None" && !ip.is_empty());
    let cluster_ips = cluster_ips.into_iter().map(bounds::address);
    let ingress = object
        .status
        .and_then(|status| status.load_balancer)
        .and_then(|balancer| balancer.ingress)
        .unwrap_or_default()
        .into_iter()
        .filter_map(|ingress| ingress.ip.or(ingress.hostname))
        .map(bounds::address);
    let ports = spec
        .ports
        .unwrap_or_default()
        .into_iter()
        .filter_map(|port| {
            Some(PortFacts {
                number: port_number(port.port)?,
                name: within(port.name, MAX_PORT_NAME).unwrap_or_default(),
                protocol: within(port.protocol, MAX_PROTOCOL),
                app_protocol: within(port.app_protocol, MAX_APP_PROTOCOL),
            })
        });
    Some(ServiceFacts {
        key,
        type_: match spec.type_.as_deref() {
            Some("LoadBalancer") => ServiceType::LoadBalancer,
            Some("NodePort") => ServiceType::NodePort,
            Some("ExternalName") => ServiceType::ExternalName,
            _ => ServiceType::ClusterIP,
        },
        cluster_ips: bounds::few(cluster_ips, bounds::MAX_CLUSTER_IPS),
        headless,
        ingress: bounds::few(ingress, bounds::MAX_INGRESS),
        ports: bounds::few(ports, bounds::MAX_PORTS),
    })
}

/// An EndpointSlice; none without the name of a Service.
pub(crate) fn slice(object: EndpointSlice) -> Option<SliceFacts> {
    let key = key_of(&object.metadata)?;
    let service = object.metadata.labels.as_ref()?.get(SERVICE_NAME)?.as_str();
    if !is_label(service) {
        return None;
    }
    let that = |hold: fn(&EndpointConditions) -> bool| -> Vec<IpAddr> {
        let unset = EndpointConditions::default();
        let found = object
            .endpoints
            .iter()
            .filter(|endpoint| hold(endpoint.conditions.as_ref().unwrap_or(&unset)));
        let addresses = found.filter_map(|endpoint| endpoint.addresses.first()?.parse().ok());
        let mut addresses: Vec<IpAddr> = addresses.take(bounds::MAX_ENDPOINTS).collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    };
    // an endpoint whose conditions are unset is ready, serves and does not terminate
    let ready = that(|conditions| conditions.ready.unwrap_or(true));
    let terminating = that(|conditions| {
        conditions.ready == Some(false)
            && conditions.serving.unwrap_or(true)
            && conditions.terminating == Some(true)
    });
    let ports = object
        .ports
        .unwrap_or_default()
        .into_iter()
        .filter_map(|port| {
            Some(PortFacts {
                number: port_number(port.port?)?,
                name: within(port.name, MAX_PORT_NAME).unwrap_or_default(),
                protocol: within(port.protocol, MAX_PROTOCOL),
                app_protocol: within(port.app_protocol, MAX_APP_PROTOCOL),
            })
        });
    Some(SliceFacts {
        service: service.into(),
        key,
        ready,
        terminating,
        ports: bounds::few(ports, bounds::MAX_PORTS),
    })
}

/// A Namespace; none if its name may not enter a URL.
pub(crate) fn namespace(object: PartialObjectMeta<Namespace>) -> Option<NamespaceFacts> {
    let meta = object.metadata;
    Some(NamespaceFacts {
        name: meta.name.filter(|name| is_label(name))?.into(),
        terminating: meta.deletion_timestamp.is_some(),
    })
}

/// An import; none if its names may not enter a URL.
///
/// # Errors
/// When its status is none.
pub(crate) fn import(
    object: &ImportObject,
    ours: &Ours,
    interner: &Interner,
) -> Result<Option<LiveImport>, serde_json::Error> {
    let meta = &object.metadata;
    let Some(key) = key_of(meta) else {
        return Ok(None);
    };
    let claim = claim(meta.labels.as_ref(), &object.managed, ours);
    // the status of an import that is not ours is not needed, and may be large
    let ours_alone = object.status.as_deref().filter(|_| claim != Claim::Foreign);
    let status = interner.status(ours_alone.map_or("{}", RawValue::get), |text| {
        let status: Option<ImportStatus<&RawValue>> = serde_json::from_str(text)?;
        // before its digest is taken
        let status = bounds::import_status(status.unwrap_or_default(), &ours.controller_name);
        let read = |text: &str| serde_json::from_str(text).map(Entry::new);
        let entry = |entry: &&RawValue| interner.entry(entry.get(), read);
        let status = ImportStatus {
            clusters: status
                .clusters
                .iter()
                .map(entry)
                .collect::<Result<_, _>>()?,
            observed_generation: status.observed_generation,
            conditions: status.conditions,
            controllers: status.controllers,
        };
        Ok::<_, serde_json::Error>(LiveStatus::new(status, &ours.controller_name))
    })?;
    Ok(Some(LiveImport {
        key,
        uid: opaque(meta.uid.clone()).unwrap_or_default(),
        resource_version: opaque(meta.resource_version.clone()).unwrap_or_default(),
        generation: meta.generation.unwrap_or(1).max(0),
        claim,
        owned_entries: interner.names(owned_entries(&object.managed)),
        status,
    }))
}

fn claim(labels: Option<&BTreeMap<String, String>>, managed: &[Managed], ours: &Ours) -> Claim {
    let wanted = [
        (MANAGED_BY, MANAGED_BY_CONTROLLER),
        (CLUSTERSET, &ours.clusterset),
        (CONTROLLER_INSTANCE, &ours.instance),
    ];
    let found = |label: &str| labels.and_then(|labels| labels.get(label));
    if wanted
        .iter()
        .all(|(label, value)| found(label).is_some_and(|found| found == value))
    {
        return Claim::Ours;
    }
    let unlabelled = wanted.iter().all(|(label, _)| found(label).is_none());
    let written_by_others = managed
        .iter()
        .filter(|entry| entry.manager.as_deref() != Some(MCI_CONTROLLER))
        .any(|entry| owns_our_status(entry, &ours.controller_name));
    if unlabelled && !written_by_others {
        Claim::Unclaimed
    } else {
        Claim::Foreign
    }
}

/// Whether a manager owns `status.clusters`, `status.conditions` or our entry of `status.controllers`.
fn owns_our_status(entry: &Managed, controller_name: &str) -> bool {
    let owned = &entry.owned;
    let mut controllers = owned.controllers.iter();
    owned.clusters.is_some() || owned.conditions || controllers.any(|name| name == controller_name)
}

/// Names of the entries that our apply owns.
fn owned_entries(managed: &[Managed]) -> Vec<String> {
    managed
        .iter()
        .filter(|entry| {
            entry.manager.as_deref() == Some(MCI_CONTROLLER)
                && entry.operation.as_deref() == Some("Apply")
        })
        .flat_map(|entry| entry.owned.clusters.iter().flatten())
        .filter(|name| name.len() <= bounds::MAX_NAME)
        .take(bounds::MAX_ENTRIES)
        .cloned()
        .collect()
}

/// A text from outside, unless it is too long to be passed on.
fn within(text: Option<String>, max: usize) -> Option<String> {
    text.filter(|text| text.chars().count() <= max)
}

fn port_number(number: i32) -> Option<u16> {
    u16::try_from(number).ok().filter(|number| *number > 0)
}

#[cfg(test)]
mod tests;
