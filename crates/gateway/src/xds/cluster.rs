//! Clusters, one maker per kind of backend.

use std::time::Duration;

use crate::model::{
    EndpointMode, Epp, EppAddresses, ParentAddresses, ParentMode, Pool, Security, ServiceBackend,
};

use super::http;
use super::names::{PICK, SERVED};
use super::proto::{
    any, boolean, cluster, core, duration, extension, google, lb_metadata, least_request,
    override_host, raw_buffer, seconds, subset, uint32,
};
use super::route::ATTEMPTS;
use super::{Options, endpoints, filters, upstream_tls};

use cluster::cluster::{ClusterDiscoveryType, CommonLbConfig, DiscoveryType, LbConfig, LbPolicy};

/// A connection that is not there after this long will not come: all endpoints are near.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Gateways of other clusters may be far away, and a TLS handshake is part of it.
const PARENT_CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Connection pools of a cluster of Gateways with TLS, which has one for each host of requests: where the Gateways have a wildcard,
/// clients choose those. Far above what the hosts that are published need.
const PARENT_POOLS: u32 = 4096;

/// No default limit binds: Envoy's own are 1024 requests and 3 concurrent retries.
const NO_LIMIT: u32 = 1_000_000;

/// Concurrent retries per cluster, enough for all that an EPP's death sets free.
const MAX_RETRIES: u32 = 1024;

/// Selects the plaintext socket for health checks of an EPP that speaks TLS.
const HEALTH_SOCKET: &str = "isthmus.health";

pub(crate) fn service(
    name: String,
    service: &ServiceBackend,
    security: &Security,
    options: &Options,
) -> cluster::Cluster {
    let http2 = service.http2;
    cluster::Cluster {
        lb_policy: LbPolicy::LeastRequest.into(),
        transport_socket: socket(security, http2, options),
        typed_extension_protocol_options: http::of_servers(http2, filters::of_model_servers()),
        ..eds(name)
    }
}

/// Without hosts: requests get 503.
pub(crate) fn nowhere(name: String) -> cluster::Cluster {
    let kind = ClusterDiscoveryType::Type(DiscoveryType::Static.into());
    cluster::Cluster {
        cluster_discovery_type: Some(kind),
        load_assignment: Some(endpoints::of_hosts(&name, &[], None)),
        ..base(name)
    }
}

/// `None`: without TLS.
fn socket(security: &Security, http2: bool, options: &Options) -> Option<core::TransportSocket> {
    match security {
        Security::Plaintext => None,
        Security::Unverified => Some(upstream_tls::unverified()),
        Security::Verified(how) => Some(upstream_tls::verified(how, http2, options)),
    }
}

/// The pods of a local pool: only what the EPP picked, or with `fail_open` any when it picked none.
pub(crate) fn pool(name: String, pool: &Pool) -> cluster::Cluster {
    let least_request = extension(
        "envoy.load_balancing_policies.least_request",
        &least_request::LeastRequest::default(),
    );
    let fallback = if pool.fail_open {
        least_request
    } else {
        // No endpoint has this metadata: whoever gets here gets 503.
        let nobody = subset::Subset {
            fallback_policy: subset::subset::LbSubsetFallbackPolicy::NoFallback.into(),
            subset_selectors: vec![subset::subset::LbSubsetSelector {
                keys: vec!["isthmus-none".to_owned()],
                ..subset::subset::LbSubsetSelector::default()
            }],
            subset_lb_policy: Some(policy(least_request)),
            ..subset::Subset::default()
        };
        extension("envoy.load_balancing_policies.subset", &nobody)
    };
    let source = override_host::override_host::OverrideHostSource {
        metadata: Some(lb_metadata(PICK)),
        ..override_host::override_host::OverrideHostSource::default()
    };
    // The list of each source goes after that of the one before, and each attempt takes the next endpoint. So where the EPP
    // named fewer than there are attempts, it begins again: a single endpoint whose connection just closed has another one.
    // A pool that fails open goes on to any other pod then.
    let times = if pool.fail_open {
        1
    } else {
        usize::from(ATTEMPTS)
    };
    let picks = override_host::OverrideHost {
        override_host_sources: vec![source; times],
        selected_host_key: Some(lb_metadata(SERVED)),
        fallback_policy: Some(policy(fallback)),
    };
    let picks = extension("envoy.load_balancing_policies.override_host", &picks);
    cluster::Cluster {
        load_balancing_policy: Some(policy(picks)),
        typed_extension_protocol_options: http::of_servers(pool.http2, filters::of_model_servers()),
        ..eds(name)
    }
}

/// When an EPP counts as dead.
struct Detection {
    reuse_connection: bool,
    /// So many connections in a row that fail.
    failures: u32,
    max_ejection_percent: u32,
}

/// Each host is one pod: it may be given up at once, and the last as well.
const PODS: Detection = Detection {
    reuse_connection: true,
    failures: 1,
    max_ejection_percent: 100,
};

/// A host may be a Service with several pods, of which connections to come reach another: so each health check makes one,
/// and the last host is not set aside. Hosts that fail their health checks count as hosts there, so of two the one that is left
/// is not the last: a single connection that fails must not set it aside.
const REMOTE: Detection = Detection {
    reuse_connection: false,
    failures: 3,
    max_ejection_percent: 99,
};

/// The EPPs of a pool: a dead one is known before a body is sent to it.
pub(crate) fn epp(name: String, epp: &Epp, options: &Options) -> cluster::Cluster {
    // Pods or Services, all of other clusters are treated alike: else a change of one into the other were another cluster.
    let detection = match &epp.addresses {
        EppAddresses::Slices { .. } => PODS,
        EppAddresses::Ips { .. } | EppAddresses::Dns { .. } => REMOTE,
    };
    let base = match &epp.addresses {
        EppAddresses::Slices { .. } | EppAddresses::Ips { .. } => eds(name),
        EppAddresses::Dns { hosts, health } => dns(name, hosts, *health),
    };
    let health_checker = if epp.grpc_health {
        core::health_check::HealthChecker::GrpcHealthCheck(core::health_check::GrpcHealthCheck {
            service_name: options.health_service.clone(),
            authority: epp.authority.clone(),
            ..core::health_check::GrpcHealthCheck::default()
        })
    } else {
        core::health_check::HealthChecker::TcpHealthCheck(
            core::health_check::TcpHealthCheck::default(),
        )
    };
    // Health is plaintext, also of EPPs that speak TLS.
    let plain_health = epp.security != Security::Plaintext && epp.grpc_health;
    let check = core::HealthCheck {
        timeout: Some(seconds(1)),
        interval: Some(seconds(2)),
        no_traffic_interval: Some(seconds(2)),
        // One that is late or refused proves nothing; an answer that it does not serve counts at once, whatever stands here.
        unhealthy_threshold: Some(uint32(2)),
        healthy_threshold: Some(uint32(1)),
        // Absent: true.
        reuse_connection: (!detection.reuse_connection).then(|| boolean(false)),
        transport_socket_match_criteria: plain_health.then(health_criteria),
        health_checker: Some(health_checker),
        ..core::HealthCheck::default()
    };
    cluster::Cluster {
        lb_policy: LbPolicy::LeastRequest.into(),
        common_lb_config: Some(no_panic()),
        health_checks: vec![check],
        outlier_detection: Some(cluster::OutlierDetection {
            split_external_local_origin_errors: true,
            consecutive_local_origin_failure: Some(uint32(detection.failures)),
            enforcing_consecutive_local_origin_failure: Some(uint32(100)),
            max_ejection_percent: Some(uint32(detection.max_ejection_percent)),
            base_ejection_time: Some(seconds(5)),
            interval: Some(seconds(1)),
            ..cluster::OutlierDetection::default()
        }),
        transport_socket: socket(&epp.security, true, options),
        transport_socket_matches: if plain_health {
            vec![plaintext_for_health()]
        } else {
            Vec::new()
        },
        typed_extension_protocol_options: http::options(http::http2_alive(), Vec::new()),
        ..base
    }
}

/// The exporting clusters of an import, each behind its own internal listener. Without `detects_outliers` none is set aside for its
/// answers: a local pool that fails open answers 503 by itself before the last attempt. It does not depend on how many clusters there
/// are, since Envoy makes a cluster that changes anew.
pub(crate) fn import(name: String, detects_outliers: bool) -> cluster::Cluster {
    cluster::Cluster {
        lb_policy: LbPolicy::RoundRobin.into(),
        common_lb_config: Some(no_panic()),
        outlier_detection: detects_outliers.then(|| cluster::OutlierDetection {
            consecutive_gateway_failure: Some(uint32(5)),
            enforcing_consecutive_gateway_failure: Some(uint32(100)),
            enforcing_consecutive_5xx: Some(uint32(0)),
            enforcing_success_rate: Some(uint32(0)),
            interval: Some(seconds(1)),
            base_ejection_time: Some(seconds(10)),
            max_ejection_time: Some(seconds(30)),
            max_ejection_percent: Some(uint32(99)),
            ..cluster::OutlierDetection::default()
        }),
        typed_extension_protocol_options: http::options(http::http2_alive(), Vec::new()),
        ..eds(name)
    }
}

/// The way to one internal listener.
pub(crate) fn hopped(name: String) -> cluster::Cluster {
    cluster::Cluster {
        lb_policy: LbPolicy::RoundRobin.into(),
        typed_extension_protocol_options: http::options(http::http2_alive(), Vec::new()),
        ..eds(name)
    }
}

/// Wherever the remote EPP says, within its networks and ports.
pub(crate) fn pods(name: String, mode: &EndpointMode, http2: bool) -> cluster::Cluster {
    let by_pick = cluster::cluster::OriginalDstLbConfig {
        metadata_key: Some(lb_metadata(PICK)),
        ..cluster::cluster::OriginalDstLbConfig::default()
    };
    let filters = vec![
        filters::pods_only(&mode.cidrs, &mode.ports, &mode.denied),
        filters::upstream_codec(),
    ];
    cluster::Cluster {
        cluster_discovery_type: Some(ClusterDiscoveryType::Type(
            DiscoveryType::OriginalDst.into(),
        )),
        lb_policy: LbPolicy::ClusterProvided.into(),
        lb_config: Some(LbConfig::OriginalDstLbConfig(by_pick)),
        typed_extension_protocol_options: http::of_servers(http2, filters),
        ..base(name)
    }
}

/// Gateways of one exporting cluster. As those of EPPs its hosts may be load balancers, and the last is not set aside. Answers
/// are those of a model, also where they are errors: only a connection that fails says something of a Gateway.
pub(crate) fn parent(
    name: String,
    mode: &ParentMode,
    http2: bool,
    options: &Options,
) -> cluster::Cluster {
    let (base, filters) = match &mode.addresses {
        ParentAddresses::Ips(_) => (eds(name), Vec::new()),
        ParentAddresses::Dns(hosts) => {
            let filters = vec![filters::nowhere(), filters::upstream_codec()];
            (dns(name, hosts, None), filters)
        }
    };
    let mut limits = limits();
    let by_host = mode.tls && mode.verification.is_none();
    limits.max_connection_pools = by_host.then(|| uint32(PARENT_POOLS));
    let transport_socket = match &mode.verification {
        Some(how) => Some(upstream_tls::verified_any(how, options)),
        None if mode.tls => Some(upstream_tls::verified_by_host(mode.host(), options)),
        None => None,
    };
    let check = core::HealthCheck {
        timeout: Some(seconds(2)),
        interval: Some(seconds(2)),
        no_traffic_interval: Some(seconds(2)),
        unhealthy_threshold: Some(uint32(2)),
        healthy_threshold: Some(uint32(1)),
        reuse_connection: Some(boolean(false)),
        health_checker: Some(core::health_check::HealthChecker::TcpHealthCheck(
            core::health_check::TcpHealthCheck::default(),
        )),
        ..core::HealthCheck::default()
    };
    cluster::Cluster {
        connect_timeout: Some(duration(PARENT_CONNECT_TIMEOUT)),
        circuit_breakers: Some(breakers(limits)),
        lb_policy: LbPolicy::LeastRequest.into(),
        common_lb_config: Some(no_panic()),
        health_checks: vec![check],
        outlier_detection: Some(cluster::OutlierDetection {
            split_external_local_origin_errors: true,
            consecutive_local_origin_failure: Some(uint32(REMOTE.failures)),
            enforcing_consecutive_local_origin_failure: Some(uint32(100)),
            enforcing_consecutive_5xx: Some(uint32(0)),
            enforcing_success_rate: Some(uint32(0)),
            enforcing_local_origin_success_rate: Some(uint32(0)),
            max_ejection_percent: Some(uint32(REMOTE.max_ejection_percent)),
            base_ejection_time: Some(seconds(5)),
            interval: Some(seconds(1)),
            ..cluster::OutlierDetection::default()
        }),
        transport_socket,
        typed_extension_protocol_options: http::of_parents(mode, http2, filters),
        ..base
    }
}

/// It resolves names itself.
fn dns(name: String, hosts: &[(String, u16)], health: Option<u16>) -> cluster::Cluster {
    let kind = ClusterDiscoveryType::Type(DiscoveryType::StrictDns.into());
    cluster::Cluster {
        cluster_discovery_type: Some(kind),
        load_assignment: Some(endpoints::of_hosts(&name, hosts, health)),
        ..base(name)
    }
}

fn base(name: String) -> cluster::Cluster {
    cluster::Cluster {
        name,
        connect_timeout: Some(duration(CONNECT_TIMEOUT)),
        circuit_breakers: Some(breakers(limits())),
        ..cluster::Cluster::default()
    }
}

fn limits() -> cluster::circuit_breakers::Thresholds {
    cluster::circuit_breakers::Thresholds {
        priority: core::RoutingPriority::Default.into(),
        max_connections: Some(uint32(NO_LIMIT)),
        max_pending_requests: Some(uint32(NO_LIMIT)),
        max_requests: Some(uint32(NO_LIMIT)),
        max_retries: Some(uint32(MAX_RETRIES)),
        ..cluster::circuit_breakers::Thresholds::default()
    }
}

fn breakers(limits: cluster::circuit_breakers::Thresholds) -> cluster::CircuitBreakers {
    cluster::CircuitBreakers {
        thresholds: vec![limits],
        ..cluster::CircuitBreakers::default()
    }
}

fn eds(name: String) -> cluster::Cluster {
    cluster::Cluster {
        cluster_discovery_type: Some(ClusterDiscoveryType::Type(DiscoveryType::Eds.into())),
        eds_cluster_config: Some(cluster::cluster::EdsClusterConfig {
            eds_config: Some(super::proto::ads()),
            ..cluster::cluster::EdsClusterConfig::default()
        }),
        ..base(name)
    }
}

/// Envoy would else use dead hosts once half of them are.
fn no_panic() -> CommonLbConfig {
    CommonLbConfig {
        healthy_panic_threshold: Some(super::proto::kinds::Percent { value: 0.0 }),
        ..CommonLbConfig::default()
    }
}

fn policy(extension: core::TypedExtensionConfig) -> cluster::LoadBalancingPolicy {
    cluster::LoadBalancingPolicy {
        policies: vec![cluster::load_balancing_policy::Policy {
            typed_extension_config: Some(extension),
        }],
    }
}

fn plaintext_for_health() -> cluster::cluster::TransportSocketMatch {
    let raw = any(&raw_buffer::RawBuffer::default());
    cluster::cluster::TransportSocketMatch {
        name: HEALTH_SOCKET.to_owned(),
        r#match: Some(health_criteria()),
        transport_socket: Some(core::TransportSocket {
            name: "envoy.transport_sockets.raw_buffer".to_owned(),
            config_type: Some(core::transport_socket::ConfigType::TypedConfig(raw)),
        }),
    }
}

fn health_criteria() -> google::Struct {
    let yes = google::Value {
        kind: Some(google::value::Kind::BoolValue(true)),
    };
    google::Struct {
        fields: [(HEALTH_SOCKET.to_owned(), yes)].into_iter().collect(),
    }
}

/// Whether Envoy waits for an assignment of this cluster.
pub(crate) fn needs_endpoints(cluster: &cluster::Cluster) -> bool {
    cluster.eds_cluster_config.is_some()
}
