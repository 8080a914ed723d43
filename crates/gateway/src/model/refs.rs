//! Following a backend reference.

use crate::text::quoted;
use crate::world::{BackendRef, InferencePool, Key, Service, ServicePort, World};

use super::{Backend, TlsPolicies};

pub(crate) const POOL_GROUP: &str = "inference.networking.k8s.io";
pub(crate) const IMPORT_GROUP: &str = "inference.networking.x-k8s.io";
pub(crate) const GATEWAY_GROUP: &str = "gateway.networking.k8s.io";

/// `appProtocol` of servers that would take plaintext for a broken handshake.
const WITH_TLS: [&str; 2] = ["https", "kubernetes.io/wss"];

/// Why a backend reference leads nowhere; its share of the requests gets 500.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadRef {
    #[error(
        "{} is not a kind of backend: use {}",
        kind_of(group, kind),
        instead_of(kind)
    )]
    InvalidKind { group: String, kind: String },
    #[error("{kind} {key} is in another namespace: a ReferenceGrant there must allow it")]
    NotPermitted { kind: String, key: Key },
    #[error("{kind} {key} does not exist")]
    NotFound { kind: String, key: Key },
    #[error("Service {key} is of type ExternalName, which cannot be a backend")]
    ExternalName { key: Key },
    #[error("Service {key} has no TCP port {port}")]
    NoSuchPort { key: Key, port: u16 },
    #[error("the reference to Service {key} names no port")]
    PortMissing { key: Key },
    #[error(
        "port {port} of Service {key} has the appProtocol {protocol}, which needs TLS: a BackendTLSPolicy for it has to say how its certificate is verified"
    )]
    NeedsTls {
        key: Key,
        port: u16,
        protocol: &'static str,
    },
}

impl BadRef {
    /// Stable: the reason of condition `ResolvedRefs`.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::InvalidKind { .. } => "InvalidKind",
            Self::NotPermitted { .. } => "RefNotPermitted",
            Self::NotFound { .. }
            | Self::ExternalName { .. }
            | Self::NoSuchPort { .. }
            | Self::PortMissing { .. } => "BackendNotFound",
            Self::NeedsTls { .. } => "UnsupportedProtocol",
        }
    }
}

pub(crate) fn resolve(
    world: &World,
    tls: &TlsPolicies<'_>,
    route_namespace: &str,
    backend: &BackendRef,
) -> Result<Backend, BadRef> {
    let namespace = backend.namespace.as_deref().unwrap_or(route_namespace);
    let key = Key::new(namespace, &backend.name);
    let (group, kind) = (backend.group.as_str(), backend.kind.as_str());
    let known = matches!(
        (group, kind),
        ("", "Service") | (POOL_GROUP, "InferencePool") | (IMPORT_GROUP, "InferencePoolImport")
    );
    if !known {
        return Err(BadRef::InvalidKind {
            group: group.into(),
            kind: kind.into(),
        });
    }
    let referrer = Referrer {
        group: GATEWAY_GROUP,
        kind: "HTTPRoute",
        namespace: route_namespace,
    };
    if namespace != route_namespace && !is_granted(world, &referrer, group, kind, &key) {
        return Err(BadRef::NotPermitted {
            kind: kind.into(),
            key,
        });
    }
    let not_found = || BadRef::NotFound {
        kind: kind.into(),
        key: key.clone(),
    };
    match kind {
        "Service" => {
            let service = world.services.get(&key).ok_or_else(not_found)?;
            if service.external_name {
                return Err(BadRef::ExternalName { key });
            }
            let Some(port) = backend.port else {
                return Err(BadRef::PortMissing { key });
            };
            let Some(found) = find_port(service, port) else {
                return Err(BadRef::NoSuchPort { key, port });
            };
            let protocol = found.app_protocol.as_deref();
            let is_named =
                |name: &str| protocol.is_some_and(|said| said.eq_ignore_ascii_case(name));
            let with_tls = WITH_TLS.into_iter().find(|name| is_named(name));
            match with_tls.filter(|_| tls.of_service(&key, &found.name).is_none()) {
                Some(protocol) => Err(BadRef::NeedsTls {
                    key,
                    port,
                    protocol,
                }),
                None => Ok(Backend::Service(key, port)),
            }
        }
        "InferencePool" if world.pools.contains_key(&key) => Ok(Backend::Pool(key)),
        "InferencePoolImport" if world.imports.contains_key(&key) => Ok(Backend::Import(key)),
        _ => Err(not_found()),
    }
}

pub(crate) fn find_port(service: &Service, number: u16) -> Option<&ServicePort> {
    service
        .ports
        .iter()
        .find(|port| port.tcp && port.port == number)
}

/// Why a pool's `endpointPickerRef` cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadPicker {
    #[error(
        "endpointPickerRef is of {}: only a Service of the core group can be one",
        kind_of(group, kind)
    )]
    NotAService { group: String, kind: String },
    #[error("Service {0} of endpointPickerRef does not exist")]
    NoService(Key),
    #[error("Service {0} of endpointPickerRef is of type ExternalName, which is not allowed")]
    ExternalName(Key),
    #[error("Service {service} of endpointPickerRef has no TCP port {port}")]
    NoSuchPort { service: Key, port: u16 },
    #[error("endpointPickerRef names no port of Service {0}: set port.number")]
    PortMissing(Key),
}

/// The name of a kind for messages.
pub(crate) fn kind_of(group: &str, kind: &str) -> String {
    if group.is_empty() {
        format!("kind {} of the core group", quoted(kind))
    } else {
        format!("kind {} of group {}", quoted(kind), quoted(group))
    }
}

/// The correct reference for a kind. Pools and imports have had several groups, and a reference without one means the
/// core group: so the kind may be right and the group wrong.
fn instead_of(kind: &str) -> String {
    match kind {
        "InferencePool" => format!("{POOL_GROUP}/InferencePool (group: {POOL_GROUP})"),
        "InferencePoolImport" => {
            format!("{IMPORT_GROUP}/InferencePoolImport (group: {IMPORT_GROUP})")
        }
        "Service" => "a Service of the core group (no group, or group: \"\")".to_owned(),
        _ => format!(
            "a Service of the core group, {POOL_GROUP}/InferencePool or {IMPORT_GROUP}/InferencePoolImport"
        ),
    }
}

/// The EPP Service and port of the pool; `None`: the pool names no EPP.
pub(crate) fn picker<'a>(
    world: &'a World,
    key: &Key,
    pool: &InferencePool,
) -> Option<Result<(Key, &'a Service, &'a ServicePort), BadPicker>> {
    let picker = pool.picker.as_ref()?;
    let service_key = Key::new(&key.namespace, &picker.name);
    if !picker.group.is_empty() || picker.kind != "Service" {
        return Some(Err(BadPicker::NotAService {
            group: picker.group.clone(),
            kind: picker.kind.clone(),
        }));
    }
    let Some(service) = world.services.get(&service_key) else {
        return Some(Err(BadPicker::NoService(service_key)));
    };
    if service.external_name {
        return Some(Err(BadPicker::ExternalName(service_key)));
    }
    let Some(number) = picker.port else {
        return Some(Err(BadPicker::PortMissing(service_key)));
    };
    Some(match find_port(service, number) {
        Some(port) => Ok((service_key, service, port)),
        None => Err(BadPicker::NoSuchPort {
            service: service_key,
            port: number,
        }),
    })
}

/// Objects that name others.
pub(crate) struct Referrer<'a> {
    pub(crate) group: &'a str,
    pub(crate) kind: &'a str,
    pub(crate) namespace: &'a str,
}

/// Whether a `ReferenceGrant` in the target's namespace lets `from` name it.
pub(crate) fn is_granted(
    world: &World,
    from: &Referrer<'_>,
    group: &str,
    kind: &str,
    to: &Key,
) -> bool {
    let here = world
        .grants
        .iter()
        .filter(|(grant, _)| grant.namespace == to.namespace);
    here.map(|(_, grant)| grant).any(|grant| {
        grant
            .from
            .iter()
            .any(|(g, k, ns)| g == from.group && k == from.kind && ns == from.namespace)
            && grant.to.iter().any(|(g, k, name)| {
                g == group && k == kind && name.as_ref().is_none_or(|name| *name == to.name)
            })
    })
}
