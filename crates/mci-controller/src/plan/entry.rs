//! One exporter's pool as an entry of its imports (spec 4.1).

use crd::{
    Condition, EndpointPicker, ImportedCluster, Parent, PortRef, RoutingMode, SecretReference,
    ServiceEndpoints, ServicePort, ServiceType, TargetPort,
    conditions::{self, Status},
};

use super::{
    Policy,
    address::{self, Rejection},
    export::{ExportRequest, PortOverride, PortSelector, SecretSelector},
    parent,
};
use crate::{
    index::{
        facts::{EppRef, PoolFacts, PortFacts, ServiceFacts},
        member::{Member, PoolRecord, Reach},
    },
    name::{ClusterName, Key},
};

/// An entry, and what was left out of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Derived {
    pub(crate) entry: ImportedCluster,
    pub(crate) rejected: Vec<Rejection>,
    /// Bytes of JSON.
    pub(crate) size: usize,
}

/// Largest entry, in bytes of JSON: 256 of them stay under what etcd takes with the rest (spec 4.1).
const MAX_ENTRY_BYTES: usize = 8 * 1024;
/// Left for what the cut itself adds: the condition that tells of it, and the times of four conditions.
const CUT_RESERVE: usize = 512;
/// As many addresses as the CRD admits.
const MAX_ADDRESSES: usize = 64;
/// Ready EPP pods, as many as the CRD admits.
const MAX_ENDPOINTS: usize = 100;
/// What is left of the addresses of an entry that is too large.
const FEW_ADDRESSES: usize = 4;

/// What became of the EPP reference, or in ParentMode of the parents.
struct Resolution {
    mode: RoutingMode,
    /// EndpointMode only.
    picker: Option<EndpointPicker>,
    /// ParentMode only.
    parents: Vec<Parent>,
    /// Blocks `Accepted`: reason and message.
    refused: Option<(&'static str, String)>,
    /// Blocks `ResolvedRefs`.
    unresolved: Option<(&'static str, String)>,
    /// Blocks `Ready`.
    unready: Option<(&'static str, String)>,
    rejected: Vec<Rejection>,
    truncated: bool,
}

/// Derives the entry of a pool that is exported from `exporter`.
pub(crate) fn derive_entry(
    policy: &Policy,
    exporter: &ClusterName,
    member: &Member,
    record: &PoolRecord,
    request: &ExportRequest,
    reach: Reach,
) -> Derived {
    let pool = &record.facts;
    let mode = request.mode.unwrap_or(member.default_mode);
    let mut resolution = match mode {
        RoutingMode::EndpointMode => resolve(policy, member, pool, request),
        RoutingMode::ParentMode => Resolution::of_parents(parent::publish(member, pool)),
    };
    // no parent has a health or metrics port
    let asides = [&request.health, &request.metrics];
    let cross_namespace = mode == RoutingMode::EndpointMode
        && asides
            .iter()
            .any(|aside| aside.secret == Some(SecretSelector::CrossNamespace));
    let target_ports: Vec<TargetPort> = pool
        .target_ports
        .iter()
        .take(8)
        .map(|&number| TargetPort { number })
        .collect();
    let mut entry = ImportedCluster {
        name: exporter.to_string(),
        routing_mode: mode,
        target_port_number: pool.target_ports.first().copied().unwrap_or_default(),
        target_ports,
        app_protocol: pool.app_protocol.clone(),
        labels: member.origin.labels.clone(),
        drain_until: None,
        endpoint_picker: resolution.picker.take(),
        parents: std::mem::take(&mut resolution.parents),
        conditions: Vec::new(),
    };
    entry.conditions = resolution.conditions(pool, cross_namespace);
    set_reach(&mut entry, reach, record.is_crd_missing());
    let (cut, size) = shed(&mut entry);
    if cut && !resolution.truncated {
        resolution.truncated = true;
        entry.conditions = resolution.conditions(pool, cross_namespace);
        set_reach(&mut entry, reach, record.is_crd_missing());
    }
    Derived {
        entry,
        rejected: resolution.rejected,
        size,
    }
}

/// Marks an entry with the contact to its exporter: `Reachable`, and `Ready=Unknown` once it is stale. A pool whose
/// CRD vanished keeps its readiness.
pub(crate) fn set_reach(entry: &mut ImportedCluster, reach: Reach, crd_missing: bool) {
    let generation = entry
        .conditions
        .first()
        .and_then(|condition| condition.observed_generation);
    let (status, reason, message) = match reach {
        Reach::Reachable if crd_missing => (
            Status::False,
            "CRDMissing",
            "the InferencePool CRD of the exporting cluster is missing or new: this is the last known state",
        ),
        Reach::Reachable => (
            Status::True,
            "Reachable",
            "in contact with the exporting cluster",
        ),
        Reach::Lost(fault) | Reach::Stale(fault) => (
            Status::False,
            fault.reason(),
            "no contact with the exporting cluster: this is the last known state",
        ),
    };
    put(
        &mut entry.conditions,
        conditions::make(conditions::REACHABLE, status, reason, message, generation),
    );
    if let Reach::Stale(_) = reach {
        let message =
            "no contact with the exporting cluster for so long that its readiness is unknown";
        put(
            &mut entry.conditions,
            conditions::make(
                conditions::READY,
                Status::Unknown,
                "Stale",
                message,
                generation,
            ),
        );
    }
}

/// Replaces the condition of the same type, or adds it.
pub(super) fn put(conditions: &mut Vec<Condition>, wanted: Condition) {
    match conditions
        .iter_mut()
        .find(|condition| condition.type_ == wanted.type_)
    {
        Some(condition) => *condition = wanted,
        None => conditions.push(wanted),
    }
}

/// Cuts an entry that is too large until it is not, what is missed least first (spec 4.1); returns whether it did, and
/// the size that it has now, in bytes.
fn shed(entry: &mut ImportedCluster) -> (bool, usize) {
    let cuts: [fn(&mut ImportedCluster); 7] = [
        |entry| {
            if let Some(picker) = &mut entry.endpoint_picker {
                picker.endpoints.clear();
            }
        },
        |entry| entry.labels.clear(),
        |entry| entry.parents.iter_mut().for_each(parent::shed_hostnames),
        |entry| cut_services(entry, |service| service.addresses.truncate(FEW_ADDRESSES)),
        |entry| {
            cut_services(entry, |service| {
                for port in &mut service.ports {
                    port.app_protocol = None;
                    port.protocol = None;
                    port.name = None;
                }
            });
        },
        |entry| entry.app_protocol = None,
        // their ports tell enough
        |entry| {
            for parent in &mut entry.parents {
                parent.listeners.clear();
            }
        },
    ];
    let measure = |entry: &ImportedCluster| serde_json::to_vec(entry).map_or(0, |json| json.len());
    let mut cut = false;
    let mut size = measure(entry);
    for step in cuts {
        if size <= MAX_ENTRY_BYTES - CUT_RESERVE {
            break;
        }
        step(entry);
        size = measure(entry);
        cut = true;
    }
    // those that can be used come first
    while entry.parents.len() > 1 && size > MAX_ENTRY_BYTES - CUT_RESERVE {
        entry.parents.pop();
        size = measure(entry);
        cut = true;
    }
    (cut, size)
}

fn cut_services(entry: &mut ImportedCluster, cut: impl FnMut(&mut ServiceEndpoints)) {
    services_of(entry).for_each(cut);
}

/// All that an entry says of addresses, in either mode.
pub(super) fn services_of(
    entry: &mut ImportedCluster,
) -> impl Iterator<Item = &mut ServiceEndpoints> {
    let picker = entry.endpoint_picker.iter_mut();
    let parents = entry.parents.iter_mut();
    picker
        .flat_map(|picker| &mut picker.service)
        .chain(parents.flat_map(|parent| &mut parent.service))
}

fn resolve(
    policy: &Policy,
    member: &Member,
    pool: &PoolFacts,
    request: &ExportRequest,
) -> Resolution {
    let Some(epp) = &pool.epp else {
        return Resolution::unresolved(
            "EndpointPickerRefMissing",
            "the pool names no endpoint picker".to_owned(),
        );
    };
    if !epp.group.is_empty() || epp.kind != "Service" {
        return Resolution::unresolved(
            "InvalidKind",
            format!(
                "the endpoint picker is a {}/{}: only a core Service can be exported",
                epp.group, epp.kind
            ),
        );
    }
    let key = Key::new(&pool.key.namespace, &epp.name);
    let Some(service) = member.services.items.get(&key) else {
        return Resolution::unresolved("BackendNotFound", format!("Service {key} does not exist"));
    };
    if service.type_ == ServiceType::ExternalName {
        return Resolution::external_name(epp, &key);
    }
    let wanted = epp.port.unwrap_or_default();
    let Some(port) = service.ports.iter().find(|port| port.number == wanted) else {
        return Resolution::unresolved(
            "PortNotFound",
            format!("Service {key} has no port {wanted}"),
        );
    };
    publish(policy, member, epp, request, &key, service, port)
}

/// The entry's view of a Service that resolves.
fn publish(
    policy: &Policy,
    member: &Member,
    epp: &EppRef,
    request: &ExportRequest,
    key: &Key,
    service: &ServiceFacts,
    port: &PortFacts,
) -> Resolution {
    let ready: Vec<String> = {
        let mut ips: Vec<_> = member
            .slices_of(key)
            .flat_map(|slice| slice.ready.iter().copied())
            .collect();
        ips.sort_unstable();
        ips.dedup();
        ips.iter().map(ToString::to_string).collect()
    };
    let (type_, candidates) = match service.type_ {
        _ if service.headless => (ServiceType::ClusterIP, &ready),
        ServiceType::LoadBalancer => (ServiceType::LoadBalancer, &service.ingress),
        ServiceType::ClusterIP | ServiceType::NodePort | ServiceType::ExternalName => {
            (ServiceType::ClusterIP, &service.cluster_ips)
        }
    };
    let (mut addresses, rejected) = address::sanitise(
        candidates.iter().map(String::as_str),
        &member.origin.allowed,
    );
    let truncated = addresses.len() > MAX_ADDRESSES;
    addresses.truncate(MAX_ADDRESSES);

    let refused = (addresses.is_empty() && !rejected.is_empty()).then(|| {
        let message = format!("Service {key} has no address that another cluster could use");
        ("InvalidAddress", message)
    });
    let unready = if ready.is_empty() {
        Some((
            "NoReadyEndpoint",
            format!("Service {key} has no ready endpoint"),
        ))
    } else {
        None
    };
    let unready = if addresses.is_empty() && !service.headless {
        Some((
            "AddressNotAssigned",
            format!("Service {key} has no address yet"),
        ))
    } else {
        unready
    };
    let number = if service.headless {
        slice_port(member, key, &port.name).unwrap_or(port.number)
    } else {
        port.number
    };
    let published = ServicePort {
        number,
        name: Some(port.name.clone()).filter(|name| !name.is_empty()),
        protocol: port.protocol.clone(),
        app_protocol: port.app_protocol.clone(),
    };
    let aside = |wanted: &PortOverride, names: [&str; 2]| {
        aside_port(member, key, service, wanted, names).map(|port| PortRef {
            port,
            secret_ref: local_secret(wanted),
        })
    };
    let endpoints = if policy.epp_endpoints {
        ready.iter().take(MAX_ENDPOINTS).cloned().collect()
    } else {
        Vec::new()
    };
    Resolution {
        mode: RoutingMode::EndpointMode,
        parents: Vec::new(),
        picker: Some(EndpointPicker {
            name: epp.name.clone(),
            service: vec![ServiceEndpoints {
                type_,
                addresses,
                ports: vec![published],
            }],
            health: aside(&request.health, ["health", "grpc-health"]),
            metrics: aside(&request.metrics, ["metrics", "http-metrics"]),
            failure_mode: epp.failure_mode,
            endpoints,
        }),
        refused,
        unresolved: None,
        unready,
        rejected,
        truncated,
    }
}

/// The health or metrics port: what the annotation says if it fits the Service, else the port of a usual name.
fn aside_port(
    member: &Member,
    key: &Key,
    service: &ServiceFacts,
    wanted: &PortOverride,
    names: [&str; 2],
) -> Option<u16> {
    let number_of = |port: &PortFacts| {
        if service.headless {
            slice_port(member, key, &port.name).unwrap_or(port.number)
        } else {
            port.number
        }
    };
    let by_name = |name: &str| {
        let port = service.ports.iter().find(|port| port.name == name);
        port.map(number_of)
    };
    let chosen = match &wanted.port {
        None => None,
        Some(PortSelector::Number(number)) => {
            let known = service.ports.iter().any(|port| port.number == *number);
            (known || service.headless).then_some(*number)
        }
        Some(PortSelector::Name(name)) => by_name(name),
    };
    chosen.or_else(|| names.into_iter().find_map(by_name))
}

fn slice_port(member: &Member, service: &Key, name: &str) -> Option<u16> {
    member
        .slices_of(service)
        .flat_map(|slice| &slice.ports)
        .find(|port| port.name == name)
        .map(|port| port.number)
}

fn local_secret(wanted: &PortOverride) -> Option<SecretReference> {
    match &wanted.secret {
        Some(SecretSelector::Local(name)) => Some(SecretReference {
            name: Some(name.clone()),
            namespace: None,
        }),
        Some(SecretSelector::CrossNamespace) | None => None,
    }
}

// === impl Resolution ===

impl Resolution {
    fn unresolved(reason: &'static str, message: String) -> Self {
        Self {
            mode: RoutingMode::EndpointMode,
            picker: None,
            parents: Vec::new(),
            refused: None,
            unresolved: Some((reason, message)),
            unready: None,
            rejected: Vec::new(),
            truncated: false,
        }
    }

    /// In ParentMode nothing refers to an EPP.
    fn of_parents(published: parent::Published) -> Self {
        let parent::Published {
            parents,
            refused,
            unready,
            rejected,
            truncated,
        } = published;
        Self {
            mode: RoutingMode::ParentMode,
            picker: None,
            parents,
            refused,
            unresolved: None,
            unready,
            rejected,
            truncated,
        }
    }

    /// An ExternalName could point anywhere (CVE-2021-25740): its type is told, no address ever.
    fn external_name(epp: &EppRef, key: &Key) -> Self {
        Self {
            mode: RoutingMode::EndpointMode,
            parents: Vec::new(),
            picker: Some(EndpointPicker {
                name: epp.name.clone(),
                service: vec![ServiceEndpoints {
                    type_: ServiceType::ExternalName,
                    addresses: Vec::new(),
                    ports: Vec::new(),
                }],
                health: None,
                metrics: None,
                failure_mode: epp.failure_mode,
                endpoints: Vec::new(),
            }),
            refused: Some((
                "UnsupportedServiceType",
                format!("Service {key} is an ExternalName, which is never exported"),
            )),
            unresolved: None,
            unready: None,
            rejected: Vec::new(),
            truncated: false,
        }
    }

    /// `Accepted`, `ResolvedRefs` and `Ready`, in this order.
    fn conditions(&self, pool: &PoolFacts, cross_namespace: bool) -> Vec<Condition> {
        let generation = Some(pool.generation);
        let accepted = match (&self.refused, self.truncated) {
            (Some((reason, message)), _) => (Status::False, *reason, message.as_str()),
            (None, true) => (
                Status::True,
                "Truncated",
                "the entry was too large: some of it is left out",
            ),
            (None, false) => (Status::True, "Accepted", "the exported pool is valid"),
        };
        let resolved = match (&self.unresolved, cross_namespace) {
            (Some((reason, message)), _) => (Status::False, *reason, message.as_str()),
            (None, true) => (
                Status::False,
                "RefNotPermitted",
                "a Secret of another namespace is not passed on",
            ),
            (None, false) => (
                Status::True,
                "ResolvedRefs",
                match self.mode {
                    RoutingMode::EndpointMode => "the endpoint picker's Service exists",
                    RoutingMode::ParentMode => "ParentMode refers to no endpoint picker",
                },
            ),
        };
        let blocking = self
            .refused
            .as_ref()
            .or(self.unresolved.as_ref())
            .or(self.unready.as_ref());
        let ready = match blocking {
            Some((reason, message)) => (Status::False, *reason, message.as_str()),
            None => (
                Status::True,
                "Ready",
                match self.mode {
                    RoutingMode::EndpointMode => {
                        "the endpoint picker has an address and a ready endpoint"
                    }
                    RoutingMode::ParentMode => "a Gateway is programmed and has an address",
                },
            ),
        };
        [
            (conditions::ACCEPTED, accepted),
            (conditions::RESOLVED_REFS, resolved),
            (conditions::READY, ready),
        ]
        .into_iter()
        .map(|(type_, (status, reason, message))| {
            conditions::make(type_, status, reason, message, generation)
        })
        .collect()
    }
}

#[cfg(test)]
mod tests;
