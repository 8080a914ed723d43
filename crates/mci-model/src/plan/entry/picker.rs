//! EndpointMode: the endpoint picker that an entry names, by its Service.

use crd::{
    EndpointPicker, PortRef, RoutingMode, SecretReference, ServiceEndpoints, ServicePort,
    ServiceType,
    annotations::{HEALTH_PORT, METRICS_PORT},
};

use super::{Resolution, pods::Pods};
use crate::export::{ExportRequest, PortOverride, PortSelector, SecretSelector};
use crate::{
    index::{
        facts::{EppRef, PoolFacts, PortFacts, ServiceFacts},
        member::Member,
    },
    name::Key,
    plan::{Policy, address},
};

/// Maximum number of addresses in the CRD.
const MAX_ADDRESSES: usize = 64;
/// Maximum number of ready EPP pods in the CRD.
const MAX_ENDPOINTS: usize = 100;

/// The health or metrics port of a Service.
struct AuxiliaryPort<'a> {
    port: Option<Auxiliary<'a>>,
    /// The annotation names a port that the Service lacks, and is treated as absent.
    unmet: bool,
}

#[derive(Clone, Copy)]
enum Auxiliary<'a> {
    /// The number in the annotation.
    Number(u16),
    /// A port of the Service.
    Named(&'a PortFacts),
}

/// The picker of a pool, or why there is none.
pub(super) fn resolve(
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
                "the endpoint picker is of kind {}/{}: only a core Service can be exported",
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

/// The picker of a Service that was found.
fn publish(
    policy: &Policy,
    member: &Member,
    epp: &EppRef,
    request: &ExportRequest,
    key: &Key,
    service: &ServiceFacts,
    port: &PortFacts,
) -> Resolution {
    let health = auxiliary_port(service, &request.health, ["health", "grpc-health"]);
    let metrics = auxiliary_port(service, &request.metrics, ["metrics", "http-metrics"]);
    let pods = if service.headless {
        let named = [&health, &metrics].map(AuxiliaryPort::named);
        let named: Vec<&PortFacts> = named.into_iter().flatten().collect();
        Pods::alike(member, key, port, &named)
    } else {
        Pods::behind(member, key, port)
    };
    let ready: Vec<String> = pods.addresses.iter().map(ToString::to_string).collect();
    let (type_, candidates) = match service.type_ {
        _ if service.headless => (ServiceType::ClusterIP, &ready),
        ServiceType::LoadBalancer => (ServiceType::LoadBalancer, &service.ingress),
        ServiceType::ClusterIP | ServiceType::NodePort | ServiceType::ExternalName => {
            (ServiceType::ClusterIP, &service.cluster_ips)
        }
    };
    let (mut addresses, mut rejected) = address::sanitise(
        candidates.iter().map(String::as_str),
        &member.origin.allowed,
    );
    let truncated = addresses.len() > MAX_ADDRESSES;
    addresses.truncate(MAX_ADDRESSES);

    let refused = (addresses.is_empty() && !rejected.is_empty()).then(|| {
        let message = format!("Service {key} has no address that another cluster could use");
        ("InvalidAddress", message)
    });
    let unready = if addresses.is_empty() && !service.headless {
        let message = format!("Service {key} has no address yet");
        Some(("AddressNotAssigned", message))
    } else if ready.is_empty() {
        Some(("NoReadyEndpoint", no_ready_endpoint(member, key, port)))
    } else {
        None
    };
    let published = ServicePort {
        number: pods.number_of(port),
        name: Some(port.name.clone()).filter(|name| !name.is_empty()),
        protocol: port.protocol.clone(),
        app_protocol: port.app_protocol.clone(),
    };
    let mut ignored = Vec::new();
    let mut reference = |annotation, found: AuxiliaryPort<'_>, wanted: &PortOverride| {
        if found.unmet {
            ignored.push(annotation);
        }
        found.port.map(|port| PortRef {
            port: match port {
                Auxiliary::Number(number) => number,
                Auxiliary::Named(port) => pods.number_of(port),
            },
            secret_ref: local_secret(wanted),
        })
    };
    let health = reference(HEALTH_PORT, health, &request.health);
    let metrics = reference(METRICS_PORT, metrics, &request.metrics);
    let mut endpoints = Vec::new();
    if policy.epp_endpoints {
        let ready = ready.iter().map(String::as_str);
        let (kept, dropped) = address::sanitise(ready, &member.origin.allowed);
        endpoints = kept;
        endpoints.truncate(MAX_ENDPOINTS);
        // those of a headless Service are its addresses, which are counted already
        if !service.headless {
            rejected.extend(dropped);
        }
    }
    Resolution {
        picker: Some(EndpointPicker {
            name: epp.name.clone(),
            service: vec![ServiceEndpoints {
                type_,
                addresses,
                ports: vec![published],
            }],
            health,
            metrics,
            failure_mode: epp.failure_mode,
            endpoints,
        }),
        refused,
        unready,
        rejected,
        ignored,
        truncated,
        other_ports: pods.left_out,
        ..Resolution::empty(RoutingMode::EndpointMode)
    }
}

fn no_ready_endpoint(member: &Member, key: &Key, port: &PortFacts) -> String {
    if member.slices_of(key).all(|slice| slice.ready.is_empty()) {
        return format!("Service {key} has no ready endpoint");
    }
    let number = port.number;
    format!(
        "no ready endpoint of Service {key} has its port {number}: its targetPort must be a port of the pods"
    )
}

/// The health or metrics port: the annotation's if the Service has it, else the port of a usual name.
fn auxiliary_port<'a>(
    service: &'a ServiceFacts,
    wanted: &PortOverride,
    names: [&str; 2],
) -> AuxiliaryPort<'a> {
    let by_name = |name: &str| {
        let port = service.ports.iter().find(|port| port.name == name);
        port.map(Auxiliary::Named)
    };
    let chosen = wanted.port.as_ref().and_then(|asked| match asked {
        PortSelector::Number(number) => {
            let known = service.ports.iter().any(|port| port.number == *number);
            (known || service.headless).then_some(Auxiliary::Number(*number))
        }
        PortSelector::Name(name) => by_name(name),
    });
    AuxiliaryPort {
        port: chosen.or_else(|| names.into_iter().find_map(by_name)),
        unmet: wanted.port.is_some() && chosen.is_none(),
    }
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

// === impl AuxiliaryPort ===

impl<'a> AuxiliaryPort<'a> {
    fn named(&self) -> Option<&'a PortFacts> {
        match self.port {
            Some(Auxiliary::Named(port)) => Some(port),
            Some(Auxiliary::Number(_)) | None => None,
        }
    }
}

// === impl Resolution ===

impl Resolution {
    fn unresolved(reason: &'static str, message: String) -> Self {
        Self {
            unresolved: Some((reason, message)),
            ..Self::empty(RoutingMode::EndpointMode)
        }
    }

    /// An ExternalName could point anywhere (CVE-2021-25740): only its type is exported, never an address.
    fn external_name(epp: &EppRef, key: &Key) -> Self {
        Self {
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
            ..Self::empty(RoutingMode::EndpointMode)
        }
    }
}
