//! Clusters, one maker per kind of backend.

use std::time::Duration;

use crate::model::{EndpointMode, Epp, EppAddresses, Pool};

use super::http;
use super::names::{PICK, SERVED};
use super::proto::{
    any, boolean, cluster, core, duration, extension, google, lb_metadata, least_request,
    override_host, raw_buffer, seconds, subset, tls, uint32,
};
use super::route::ATTEMPTS;
use super::{Options, endpoints, filters};

use cluster::cluster::{ClusterDiscoveryType, CommonLbConfig, DiscoveryType, LbConfig, LbPolicy};

/// A connection that is not there after this long will not come: all endpoints are near.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// No default limit binds: Envoy's own are 1024 requests and 3 concurrent retries.
const NO_LIMIT: u32 = 1_000_000;

/// Concurrent retries per cluster, enough for all that an EPP's death sets free.
const MAX_RETRIES: u32 = 1024;

/// Selects the plaintext socket for health checks of an EPP that speaks TLS.
const HEALTH_SOCKET: &str = "isthmus.health";

pub(crate) fn service(name: String, http2: bool) -> cluster::Cluster {
    cluster::Cluster {
        lb_policy: LbPolicy::LeastRequest.into(),
        typed_extension_protocol_options: http::of_servers(http2, filters::of_model_servers()),
        ..eds(name)
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
    max_ejection_percent: u32,
}

/// Each host is one pod: it may be given up at once, and the last as well.
const PODS: Detection = Detection {
    reuse_connection: true,
    max_ejection_percent: 100,
};

/// A host may be a Service with several pods, of which connections to come reach another: so each health check makes one,
/// and the last host is not set aside.
const REMOTE: Detection = Detection {
    reuse_connection: false,
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
        EppAddresses::Dns { hosts, health } => cluster::Cluster {
            cluster_discovery_type: Some(ClusterDiscoveryType::Type(
                DiscoveryType::StrictDns.into(),
            )),
            load_assignment: Some(endpoints::of_hosts(&name, hosts, *health)),
            ..base(name)
        },
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
    let plain_health = epp.tls && epp.grpc_health;
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
            consecutive_local_origin_failure: Some(uint32(1)),
            enforcing_consecutive_local_origin_failure: Some(uint32(100)),
            max_ejection_percent: Some(uint32(detection.max_ejection_percent)),
            base_ejection_time: Some(seconds(5)),
            interval: Some(seconds(1)),
            ..cluster::OutlierDetection::default()
        }),
        transport_socket: epp.tls.then(unverified_tls),
        transport_socket_matches: if plain_health {
            vec![plaintext_for_health()]
        } else {
            Vec::new()
        },
        typed_extension_protocol_options: http::options(http::http2_alive(), Vec::new()),
        ..base
    }
}

/// The exporting clusters of an import, each behind its own internal listener.
pub(crate) fn import(name: String) -> cluster::Cluster {
    cluster::Cluster {
        lb_policy: LbPolicy::RoundRobin.into(),
        common_lb_config: Some(no_panic()),
        outlier_detection: Some(cluster::OutlierDetection {
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

fn base(name: String) -> cluster::Cluster {
    let thresholds = cluster::circuit_breakers::Thresholds {
        priority: core::RoutingPriority::Default.into(),
        max_connections: Some(uint32(NO_LIMIT)),
        max_pending_requests: Some(uint32(NO_LIMIT)),
        max_requests: Some(uint32(NO_LIMIT)),
        max_retries: Some(uint32(MAX_RETRIES)),
        ..cluster::circuit_breakers::Thresholds::default()
    };
    cluster::Cluster {
        name,
        connect_timeout: Some(duration(CONNECT_TIMEOUT)),
        circuit_breakers: Some(cluster::CircuitBreakers {
            thresholds: vec![thresholds],
            ..cluster::CircuitBreakers::default()
        }),
        ..cluster::Cluster::default()
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

fn unverified_tls() -> core::TransportSocket {
    let context = tls::UpstreamTlsContext {
        common_tls_context: Some(tls::CommonTlsContext {
            alpn_protocols: vec!["h2".to_owned()],
            ..tls::CommonTlsContext::default()
        }),
        ..tls::UpstreamTlsContext::default()
    };
    transport_socket("envoy.transport_sockets.tls", any(&context))
}

fn plaintext_for_health() -> cluster::cluster::TransportSocketMatch {
    let raw = any(&raw_buffer::RawBuffer::default());
    cluster::cluster::TransportSocketMatch {
        name: HEALTH_SOCKET.to_owned(),
        r#match: Some(health_criteria()),
        transport_socket: Some(transport_socket("envoy.transport_sockets.raw_buffer", raw)),
    }
}

fn transport_socket(name: &str, config: google::Any) -> core::TransportSocket {
    core::TransportSocket {
        name: name.to_owned(),
        config_type: Some(core::transport_socket::ConfigType::TypedConfig(config)),
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
