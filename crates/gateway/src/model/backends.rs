//! Pools, imports and Services that rules name, as Envoy needs them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::select::{self, Ineligible, Policy};
use crate::world::{ImportedCluster, InferencePoolImport, Key, ServicePort};

use super::refs::{find_port, picker};
use super::{
    Backend, Epp, EppAddresses, GatewayModel, HealthPort, Import, Imported, Mode, NotSecured, Pool,
    Readiness, Security, ServiceBackend, Settings, TlsPolicies, security,
};

/// `appProtocol` of plaintext HTTP/2.
const H2C: &str = "kubernetes.io/h2c";

/// `appProtocol` of HTTP that may become WebSocket, without TLS and with it.
const WEBSOCKETS: [&str; 2] = ["kubernetes.io/ws", "kubernetes.io/wss"];

/// Names of a Service port that serves gRPC health, as charts have them.
const HEALTH_PORT_NAMES: [&str; 2] = ["health", "grpc-health"];

/// Adds what `backend` needs to the model, once.
pub(crate) fn include(
    model: &mut GatewayModel,
    tls: &TlsPolicies<'_>,
    settings: &Settings,
    imports: &BTreeMap<Key, Arc<Import>>,
    backend: &Backend,
) {
    let world = tls.world();
    match backend {
        Backend::Service(key, port) => {
            let found = world.services.get(key).and_then(|s| find_port(s, *port));
            if let Some(found) = found {
                let service = ServiceBackend {
                    port_name: found.name.clone(),
                    http2: is_h2c(found.app_protocol.as_deref()),
                    websocket: WEBSOCKETS
                        .into_iter()
                        .any(|name| found.app_protocol.as_deref() == Some(name)),
                    security: match tls.of_service(key, &found.name) {
                        Some(policy) => policy.ok().map(Security::Verified),
                        None => Some(Security::Plaintext),
                    },
                };
                model.services.insert((key.clone(), *port), service);
            }
        }
        Backend::Pool(key) => {
            if !model.pools.contains_key(key)
                && let Some(pool) = make_pool(tls, settings, key)
            {
                model.pools.insert(key.clone(), Arc::new(pool));
            }
        }
        Backend::Import(key) => {
            if let Some(import) = imports.get(key) {
                model.imports.insert(key.clone(), Arc::clone(import));
                for (_, mode) in import.hops() {
                    if let Mode::Local(pool) = mode {
                        let pool = Backend::Pool(pool.clone());
                        include(model, tls, settings, imports, &pool);
                    }
                }
            }
        }
        Backend::Invalid => {}
    }
}

fn make_pool(tls: &TlsPolicies<'_>, settings: &Settings, key: &Key) -> Option<Pool> {
    let world = tls.world();
    let pool = world.pools.get(key)?;
    let found = picker(world, key, pool).and_then(Result::ok);
    let security = found
        .as_ref()
        .map(|(service, _, port)| epp_security(tls, settings, service, port));
    // It is there and may not be asked: its pods get nothing without it.
    let is_barred = matches!(security, Some(Err(_)));
    let security = security.and_then(Result::ok);
    let epp = found
        .zip(security)
        .map(|((service_key, service, port), security)| {
            let named = |wanted: &dyn Fn(&str) -> bool| {
                let found = service.ports.iter().find(|port| wanted(&port.name));
                found.map(|port| HealthPort::Named(port.name.clone()))
            };
            let health = match &pool.health_port {
                Some(text) => match text.parse::<u16>() {
                    Ok(number) if number > 0 => Some(HealthPort::Number(number)),
                    _ => named(&|name| name == text),
                },
                None => named(&|name| HEALTH_PORT_NAMES.contains(&name)),
            };
            Epp {
                authority: format!("{}.{}.svc", service_key.name, service_key.namespace),
                security,
                grpc_health: health.is_some(),
                addresses: EppAddresses::Slices {
                    port_name: port.name.clone(),
                    health,
                    service: service_key,
                },
            }
        });
    let fail_open = pool.picker.as_ref().is_some_and(|picker| picker.fail_open);
    Some(Pool {
        key: key.clone(),
        http2: is_h2c(pool.app_protocol.as_deref()),
        fail_open: fail_open && !is_barred,
        target_ports: pool.target_ports.clone(),
        epp,
    })
}

/// How the endpoint picker at a port of a Service is connected to.
pub(crate) fn epp_security(
    tls: &TlsPolicies<'_>,
    settings: &Settings,
    service: &Key,
    port: &ServicePort,
) -> Result<Security, NotSecured> {
    let policy = tls.of_service(service, &port.name);
    security(settings, port.app_protocol.as_deref(), policy)
}

pub(crate) fn make_import(
    tls: &TlsPolicies<'_>,
    settings: &Settings,
    key: &Key,
    import: &InferencePoolImport,
    policy: Option<&Policy>,
) -> Import {
    let world = tls.world();
    let imported = |entry: &ImportedCluster| {
        let policy = tls.of_import(key, &entry.name);
        select::imported(key, entry, settings, &world.own_networks, policy)
    };
    let entries = import.clusters.iter().map(imported);
    let is_included = policy.is_some_and(|policy| policy.include_local);
    let local = is_included.then(|| local(tls, settings, key));
    // The sort is stable: before an entry that has this cluster's name.
    let mut clusters: Vec<Imported> = local.flatten().into_iter().chain(entries).collect();
    clusters.sort_by(|a, b| a.name.cmp(&b.name));
    clusters.dedup_by(|a, b| a.name == b.name);
    let formers = clusters.iter().filter_map(|cluster| {
        let former = world.formers.of(key, &cluster.name)?;
        let is_local = is_included && cluster.name == settings.cluster_name;
        let former = (!is_local && takes_former(cluster)).then(|| imported(former))?;
        former.mode.is_ok().then_some(former)
    });
    Import {
        key: key.clone(),
        ordered: policy.is_some_and(|policy| policy.order().is_some()),
        formers: formers.collect(),
        clusters,
    }
}

/// Whether requests may go to the cluster in its former mode: it wants some, and may be used, if not yet.
fn takes_former(cluster: &Imported) -> bool {
    let may_be_used = match &cluster.mode {
        Ok(Mode::Endpoint(_) | Mode::Parent(_)) => true,
        Ok(Mode::Local(_)) => false,
        Err(why) => why.may_pass(),
    };
    may_be_used && !matches!(cluster.readiness, Readiness::Draining { .. })
}

/// The pool of this cluster as one of those of its import.
fn local(tls: &TlsPolicies<'_>, settings: &Settings, key: &Key) -> Option<Imported> {
    let world = tls.world();
    let pool = world.pools.get(key)?;
    let mode = match picker(world, key, pool) {
        Some(Ok((service, _, port))) => match epp_security(tls, settings, &service, port) {
            Ok(_) => Ok(Mode::Local(key.clone())),
            Err(why) => Err(Ineligible::NotSecured(why)),
        },
        Some(Err(_)) | None => Err(Ineligible::EndpointPickerMissing),
    };
    Some(Imported {
        name: settings.cluster_name.clone(),
        mode,
        readiness: Readiness::Ready,
        http2: is_h2c(pool.app_protocol.as_deref()),
        fail_open: pool.picker.as_ref().is_some_and(|picker| picker.fail_open),
        metrics: None,
    })
}

pub(crate) fn is_h2c(app_protocol: Option<&str>) -> bool {
    app_protocol == Some(H2C)
}
