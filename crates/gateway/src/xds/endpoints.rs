//! Assignments: which hosts a cluster has. The part that pods change.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::model::HealthPort;
use crate::select::{Assigned, Health, Selection};
use crate::world::{Endpoints, Key};

use super::Resource;
use super::proto::{address, core, endpoint, internal_address, socket_address, uint32};

/// Where the hosts of an EDS cluster come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Assignment {
    Service {
        service: Key,
        port_name: String,
    },
    Pool {
        pool: Key,
        ports: Vec<u16>,
    },
    /// EPP pods behind a Service port, with the port of their health checks.
    Epp {
        service: Key,
        port_name: String,
        health: Option<HealthPort>,
    },
    Fixed {
        addresses: Vec<SocketAddr>,
        health: Option<u16>,
    },
    /// The cluster has one host, the internal listener of this name.
    Hop(String),
    /// The internal listener of each cluster of an import; those that get requests, and their shares, are the selection's.
    Hops {
        import: Key,
        hops: Vec<Hop>,
        /// Those of former modes.
        formers: Vec<Hop>,
    },
}

/// The way to one cluster of an import.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hop {
    pub(crate) listener: String,
    pub(crate) cluster: String,
}

/// Envoy's number for priorities that are strict: by default those below get requests as soon as fewer than 72 % of the hosts
/// above are healthy. In percent, and multiplied by the number of hosts, of which one is enough then.
const ONE_HOST: u32 = 100;

/// Makes the hop of a cluster another host while its former mode is there as well. Envoy may have set aside that host for what the
/// new mode could not serve. When the former mode goes, the hop begins anew.
const HAS_FORMER: &str = "has-former";

/// The snapshot that Envoys of the Gateway shall have.
#[cfg(test)]
pub(crate) fn assign(
    plan: &super::Plan,
    endpoints: &Endpoints,
    selection: &Selection,
) -> super::Snapshot {
    let assignments = plan.assignments.iter().map(|(cluster, source)| {
        let made = assignment(cluster, source, endpoints, selection);
        (cluster.clone(), made)
    });
    super::Snapshot {
        uid: plan.uid.clone(),
        clusters: plan.clusters.clone(),
        endpoints: assignments.collect(),
        secrets: plan.secrets.clone(),
        listeners: plan.listeners.clone(),
        routes: plan.routes.clone(),
    }
}

/// The hosts of one cluster.
pub(super) fn assignment(
    cluster: &str,
    source: &Assignment,
    endpoints: &Endpoints,
    selection: &Selection,
) -> Arc<Resource> {
    let message = match source {
        Assignment::Hops {
            import,
            hops,
            formers,
        } => of_hops(cluster, import, hops, formers, selection),
        _ => of_one_priority(cluster, hosts(source, endpoints)),
    };
    Resource::new(&message, false)
}

fn hosts(source: &Assignment, endpoints: &Endpoints) -> Vec<endpoint::LbEndpoint> {
    match source {
        Assignment::Service { service, port_name } => {
            let found = endpoints.of_service(service, port_name);
            found
                .iter()
                .map(|at| host(socket_address(at), None))
                .collect()
        }
        Assignment::Pool { pool, ports } => {
            let found = endpoints.of_pool(pool, ports);
            found
                .iter()
                .map(|at| host(socket_address(at), None))
                .collect()
        }
        Assignment::Epp {
            service,
            port_name,
            health,
        } => {
            let named: BTreeMap<IpAddr, u16> = match health {
                Some(HealthPort::Named(name)) => {
                    let found = endpoints.of_service(service, name);
                    found.iter().map(|at| (at.ip(), at.port())).collect()
                }
                Some(HealthPort::Number(_)) | None => BTreeMap::new(),
            };
            let found = endpoints.of_service(service, port_name);
            let with_health = found.iter().map(|at| {
                let port = match health {
                    Some(HealthPort::Number(port)) => Some(*port),
                    Some(HealthPort::Named(_)) | None => named.get(&at.ip()).copied(),
                };
                host(socket_address(at), port)
            });
            with_health.collect()
        }
        Assignment::Fixed { addresses, health } => addresses
            .iter()
            .map(|at| host(socket_address(at), *health))
            .collect(),
        Assignment::Hop(listener) => vec![hop_host(listener.clone(), "", 1)],
        Assignment::Hops { .. } => Vec::new(),
    }
}

/// A cluster that gets nothing new is left out: what is under way there goes on, and Envoy, which counts all hosts to spare the
/// last one, counts those that serve. Its priorities begin at 0 and have no gaps. Hops of former modes have the last one.
fn of_hops(
    cluster: &str,
    import: &Key,
    hops: &[Hop],
    formers: &[Hop],
    selection: &Selection,
) -> endpoint::ClusterLoadAssignment {
    let mut by_priority: BTreeMap<u32, Vec<endpoint::LbEndpoint>> = BTreeMap::new();
    let mut count = 0;
    for hop in hops {
        let assigned = selection.of(import, &hop.cluster);
        if let Some(assigned) = assigned.filter(|one| gets_requests(*one)) {
            let hosts = by_priority.entry(assigned.priority).or_default();
            let has_former = formers.iter().any(|former| former.cluster == hop.cluster);
            let id = if has_former { HAS_FORMER } else { "" };
            hosts.push(hop_host(hop.listener.clone(), id, assigned.weight));
            count += 1;
        }
    }
    if !formers.is_empty() {
        let last = by_priority.keys().next_back().copied();
        let last = last.map_or(0, |last| last.saturating_add(1));
        let hosts = formers.iter();
        let hosts = hosts.map(|former| hop_host(former.listener.clone(), "", 1));
        by_priority.insert(last, hosts.collect());
    }
    count += u32::try_from(formers.len()).unwrap_or(u32::MAX);
    if by_priority.len() < 2 {
        let hosts = by_priority.into_values().next().unwrap_or_default();
        return of_one_priority(cluster, hosts);
    }
    let endpoints = (0..).zip(by_priority.into_values());
    let endpoints = endpoints.map(|(priority, lb_endpoints)| endpoint::LocalityLbEndpoints {
        lb_endpoints,
        priority,
        ..endpoint::LocalityLbEndpoints::default()
    });
    endpoint::ClusterLoadAssignment {
        cluster_name: cluster.to_owned(),
        endpoints: endpoints.collect(),
        policy: Some(endpoint::cluster_load_assignment::Policy {
            overprovisioning_factor: Some(uint32(ONE_HOST * count)),
            ..endpoint::cluster_load_assignment::Policy::default()
        }),
        ..endpoint::ClusterLoadAssignment::default()
    }
}

fn gets_requests(assigned: Assigned) -> bool {
    match assigned.health {
        Health::Healthy => assigned.weight > 0,
        Health::Unhealthy | Health::Draining => false,
    }
}

fn hop_host(listener: String, id: &str, weight: u32) -> endpoint::LbEndpoint {
    endpoint::LbEndpoint {
        load_balancing_weight: Some(uint32(weight)),
        ..host(internal_address(listener, id), None)
    }
}

fn of_one_priority(
    cluster: &str,
    hosts: Vec<endpoint::LbEndpoint>,
) -> endpoint::ClusterLoadAssignment {
    endpoint::ClusterLoadAssignment {
        cluster_name: cluster.to_owned(),
        endpoints: vec![endpoint::LocalityLbEndpoints {
            lb_endpoints: hosts,
            ..endpoint::LocalityLbEndpoints::default()
        }],
        ..endpoint::ClusterLoadAssignment::default()
    }
}

/// For clusters that resolve names themselves: as absolute ones, without the search domains of Envoy's pod.
pub(crate) fn of_hosts(
    cluster: &str,
    hosts: &[(String, u16)],
    health: Option<u16>,
) -> endpoint::ClusterLoadAssignment {
    let hosts = hosts
        .iter()
        .map(|(name, port)| host(address(absolute(name), *port), health));
    of_one_priority(cluster, hosts.collect())
}

fn absolute(name: &str) -> String {
    if name.parse::<IpAddr>().is_ok() || name.ends_with('.') {
        name.to_owned()
    } else {
        format!("{name}.")
    }
}

fn host(address: core::Address, health: Option<u16>) -> endpoint::LbEndpoint {
    let health_check_config = health.map(|port| endpoint::endpoint::HealthCheckConfig {
        port_value: port.into(),
        ..endpoint::endpoint::HealthCheckConfig::default()
    });
    endpoint::LbEndpoint {
        host_identifier: Some(endpoint::lb_endpoint::HostIdentifier::Endpoint(
            endpoint::Endpoint {
                address: Some(address),
                health_check_config,
                ..endpoint::Endpoint::default()
            },
        )),
        ..endpoint::LbEndpoint::default()
    }
}
