//! What an Envoy knows before it asks: who to ask, and how to show that it is ready.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::READY_PORT;

/// Envoy's bootstrap; Envoys find ADS at `host`, a name or an address.
pub(crate) fn make(host: &str, port: u16) -> Value {
    let discovery = match host.parse::<IpAddr>() {
        Ok(_) => "STATIC",
        Err(_) => "STRICT_DNS",
    };
    let ads = json!({ "ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "0s" });
    json!({
        "admin": { "address": address("127.0.0.1", 19_000) },
        "dynamic_resources": {
            "ads_config": {
                "api_type": "DELTA_GRPC",
                "transport_api_version": "V3",
                "set_node_on_first_message_only": true,
                "grpc_services": [{ "envoy_grpc": { "cluster_name": "ads" } }],
            },
            "cds_config": ads,
            "lds_config": ads,
        },
        "static_resources": {
            "listeners": [ready_listener()],
            "clusters": [
                {
                    "name": "ads",
                    "type": discovery,
                // one query where there is IPv4; by default the answer for IPv6 is waited for first
                "dns_lookup_family": "V4_PREFERRED",
                    "connect_timeout": "5s",
                    "load_assignment": hosts("ads", host, port),
                    "typed_extension_protocol_options": {
                        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                            "explicit_http_config": {
                                "http2_protocol_options": {
                                    "connection_keepalive": { "interval": "10s", "timeout": "5s" },
                                },
                            },
                        },
                    },
                },
                {
                    "name": "admin",
                    "type": "STATIC",
                    "connect_timeout": "1s",
                    "load_assignment": hosts("admin", "127.0.0.1", 19_000),
                },
            ],
        },
        // Without it no hop can be reached.
        "bootstrap_extensions": [{
            "name": "envoy.bootstrap.internal_listener",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.bootstrap.internal_listener.v3.InternalListener",
            },
        }],
    })
}

/// Two pages of the admin interface, which itself is not reachable from outside.
fn ready_listener() -> Value {
    let pages = ["/ready", "/stats/prometheus"]
        .map(|path| json!({ "match": { "path": path }, "route": { "cluster": "admin" } }));
    json!({
        "name": "ready",
        "address": address("0.0.0.0", READY_PORT),
        "filter_chains": [{
            "filters": [{
                "name": "envoy.filters.network.http_connection_manager",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                    "stat_prefix": "ready",
                    "route_config": {
                        "virtual_hosts": [{ "name": "*", "domains": ["*"], "routes": pages }],
                    },
                    "http_filters": [{
                        "name": "envoy.filters.http.router",
                        "typed_config": {
                            "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
                        },
                    }],
                },
            }],
        }],
    })
}

fn hosts(cluster: &str, host: &str, port: u16) -> Value {
    json!({
        "cluster_name": cluster,
        "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": address(host, port) } }] }],
    })
}

fn address(host: &str, port: u16) -> Value {
    json!({ "socket_address": { "address": host, "port_value": port } })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::xds::tests::find_envoy;

    #[test]
    fn addresses_are_not_resolved_and_names_are() {
        let kind =
            |host: &str| make(host, 18_000)["static_resources"]["clusters"][0]["type"].clone();
        assert_eq!(kind("10.1.0.5"), "STATIC");
        assert_eq!(kind("fd00::5"), "STATIC");
        assert_eq!(kind("isthmus-gateway.isthmus-system.svc"), "STRICT_DNS");
    }

    #[test]
    fn envoy_accepts_the_bootstrap() {
        let envoy = find_envoy();
        for host in ["10.1.0.5", "isthmus-gateway.isthmus-system.svc"] {
            let output = Command::new(&envoy)
                .args(["--mode", "validate", "--log-level", "warning"])
                .args([
                    "--service-node",
                    "n",
                    "--service-cluster",
                    "ns/gw",
                    "--config-yaml",
                ])
                .arg(make(host, 18_000).to_string())
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{said}");
        }
    }
}
