//! Assignments: which hosts a cluster has. The part that pods change.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use crate::model::HealthPort;
use crate::world::{Endpoints, Key};

use super::proto::{address, core, endpoint, internal_address, socket_address, uint32};
use super::{Plan, Resource, Snapshot};

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
    /// Internal listeners with their weights; without one the listener drains.
    Hops(Vec<(String, Option<u32>)>),
}

/// The snapshot that Envoys of the Gateway shall have.
pub(crate) fn assign(plan: &Plan, endpoints: &Endpoints) -> Snapshot {
    let assignments = plan.assignments.iter().map(|(cluster, source)| {
        let message = endpoint::ClusterLoadAssignment {
            cluster_name: cluster.clone(),
            endpoints: vec![endpoint::LocalityLbEndpoints {
                lb_endpoints: hosts(source, endpoints),
                ..endpoint::LocalityLbEndpoints::default()
            }],
            ..endpoint::ClusterLoadAssignment::default()
        };
        (cluster.clone(), Resource::new(&message, false))
    });
    Snapshot {
        uid: plan.uid.clone(),
        clusters: plan.clusters.clone(),
        endpoints: assignments.collect(),
        secrets: plan.secrets.clone(),
        listeners: plan.listeners.clone(),
        routes: plan.routes.clone(),
    }
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
        Assignment::Hops(hops) => hops
            .iter()
            .map(|(listener, weight)| {
                let status = match weight {
                    Some(_) => core::HealthStatus::Unknown,
                    None => core::HealthStatus::Draining,
                };
                endpoint::LbEndpoint {
                    health_status: status.into(),
                    load_balancing_weight: weight.map(uint32),
                    ..host(internal_address(listener.clone()), None)
                }
            })
            .collect(),
    }
}

/// For clusters that resolve names themselves.
pub(crate) fn of_hosts(
    cluster: &str,
    hosts: &[(String, u16)],
    health: Option<u16>,
) -> endpoint::ClusterLoadAssignment {
    let hosts = hosts
        .iter()
        .map(|(name, port)| host(address(name.clone(), *port), health));
    endpoint::ClusterLoadAssignment {
        cluster_name: cluster.to_owned(),
        endpoints: vec![endpoint::LocalityLbEndpoints {
            lb_endpoints: hosts.collect(),
            ..endpoint::LocalityLbEndpoints::default()
        }],
        ..endpoint::ClusterLoadAssignment::default()
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
