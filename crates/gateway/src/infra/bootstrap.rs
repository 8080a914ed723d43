//! What an Envoy knows before it asks: who to ask, and how to show that it is ready.

use std::net::IpAddr;

use serde_json::{Value, json};

use crate::xds::ads::ready::{ADMIN, READY};

use super::READY_PORT;

/// Where Envoys find what they show and whom they trust: the files of their Gateway's Secret.
pub(crate) const CREDENTIALS: &str = "/var/run/isthmus/ads";

/// Names of the two SDS secrets, which are those of their documents as well.
const CLIENT: &str = "client";
const AUTHORITY: &str = "authority";

/// Envoy's bootstrap; Envoys find ADS at `host`, a name or an address. With `credentials`, the directory of their files, they
/// use TLS, show their certificate and verify that of `host`.
pub(crate) fn make(host: &str, port: u16, credentials: Option<&str>) -> Value {
    let discovery = match host.parse::<IpAddr>() {
        Ok(_) => "STATIC",
        Err(_) => "STRICT_DNS",
    };
    let ads = json!({ "ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "0s" });
    let mut bootstrap = json!({
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
                    "name": ADMIN,
                    "type": "STATIC",
                    "connect_timeout": "1s",
                    "load_assignment": hosts(ADMIN, "127.0.0.1", 19_000),
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
    });
    if let Some(directory) = credentials {
        bootstrap["static_resources"]["clusters"][0]["transport_socket"] = tls(host, directory);
    }
    bootstrap
}

/// The files beside a certificate by which Envoy finds it: a secret each in the form of an SDS response. Envoy watches the
/// directory, and reads the certificate again when a kubelet has renewed what is in it.
pub(crate) fn documents(directory: &str) -> [(&'static str, String); 2] {
    let file = |name: &str| json!({ "filename": format!("{directory}/{name}") });
    let watched = json!({ "path": directory });
    let document = |name: &str, kind: &str, content: Value| {
        let secret = json!({
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret",
            "name": name,
            kind: content,
        });
        json!({ "resources": [secret] }).to_string()
    };
    let own = json!({
        "certificate_chain": file("tls.crt"),
        "private_key": file("tls.key"),
        "watched_directory": watched,
    });
    let trusted = json!({ "trusted_ca": file("ca.crt"), "watched_directory": watched });
    [
        ("client.json", document(CLIENT, "tls_certificate", own)),
        (
            "authority.json",
            document(AUTHORITY, "validation_context", trusted),
        ),
    ]
}

fn tls(host: &str, directory: &str) -> Value {
    let secret = |name: &str| {
        json!({
            "name": name,
            "sds_config": {
                "resource_api_version": "V3",
                "path_config_source": {
                    "path": format!("{directory}/{name}.json"),
                    "watched_directory": { "path": directory },
                },
            },
        })
    };
    let is_address = host.parse::<IpAddr>().is_ok();
    let kind = if is_address { "IP_ADDRESS" } else { "DNS" };
    let server = json!({ "san_type": kind, "matcher": { "exact": host } });
    let mut context = json!({
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
        "common_tls_context": {
            "tls_params": {
                "tls_minimum_protocol_version": "TLSv1_3",
                "tls_maximum_protocol_version": "TLSv1_3",
            },
            "alpn_protocols": ["h2"],
            "tls_certificate_sds_secret_configs": [secret(CLIENT)],
            "combined_validation_context": {
                "default_validation_context": { "match_typed_subject_alt_names": [server] },
                "validation_context_sds_secret_config": secret(AUTHORITY),
            },
        },
    });
    if !is_address {
        context["sni"] = host.into();
    }
    json!({ "name": "envoy.transport_sockets.tls", "typed_config": context })
}

/// Two pages of the admin interface, which itself is not reachable from outside. Its route table comes by ADS, last: Envoy
/// starts its listeners, and is ready, only when it has the table, which it is not sent while it refuses all its edges.
fn ready_listener() -> Value {
    json!({
        "name": READY,
        "address": address("0.0.0.0", READY_PORT),
        "filter_chains": [{
            "filters": [{
                "name": "envoy.filters.network.http_connection_manager",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                    "stat_prefix": READY,
                    "rds": {
                        "route_config_name": READY,
                        "config_source": {
                            "ads": {},
                            "resource_api_version": "V3",
                            "initial_fetch_timeout": "0s",
                        },
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
        let kind = |host: &str| {
            make(host, 18_000, None)["static_resources"]["clusters"][0]["type"].clone()
        };
        assert_eq!(kind("10.1.0.5"), "STATIC");
        assert_eq!(kind("fd00::5"), "STATIC");
        assert_eq!(kind("isthmus-gateway.isthmus-system.svc"), "STRICT_DNS");
    }

    #[test]
    fn envoy_accepts_the_bootstrap() {
        let envoy = find_envoy();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_str().unwrap();
        for (name, text) in documents(path) {
            std::fs::write(directory.path().join(name), text).unwrap();
        }
        for (host, credentials) in [
            ("10.1.0.5", None),
            ("isthmus-gateway.isthmus-system.svc", None),
            ("10.1.0.5", Some(path)),
            ("isthmus-gateway.isthmus-system.svc", Some(path)),
        ] {
            let output = Command::new(&envoy)
                .args(["--mode", "validate", "--log-level", "warning"])
                .args([
                    "--service-node",
                    "n",
                    "--service-cluster",
                    "ns/gw",
                    "--config-yaml",
                ])
                .arg(make(host, 18_000, credentials).to_string())
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{said}");
        }
    }
}
