//! How clusters speak HTTP to their hosts.

use std::collections::HashMap;

use super::proto::{any, core, google, hcm, seconds, upstream_http};

/// Where a cluster's HTTP options stand.
const KEY: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";

pub(crate) type Protocol =
    upstream_http::http_protocol_options::explicit_http_config::ProtocolConfig;

pub(crate) fn http1() -> Protocol {
    Protocol::HttpProtocolOptions(core::Http1ProtocolOptions::default())
}

pub(crate) fn http2() -> Protocol {
    Protocol::Http2ProtocolOptions(core::Http2ProtocolOptions::default())
}

/// HTTP/2 that notices a dead peer in 7 s: pings each 5 s, answered within 2.
pub(crate) fn http2_alive() -> Protocol {
    Protocol::Http2ProtocolOptions(core::Http2ProtocolOptions {
        connection_keepalive: Some(core::KeepaliveSettings {
            interval: Some(seconds(5)),
            timeout: Some(seconds(2)),
            ..core::KeepaliveSettings::default()
        }),
        ..core::Http2ProtocolOptions::default()
    })
}

/// One entry, so that the encoding is always the same.
pub(crate) fn options(
    protocol: Protocol,
    filters: Vec<hcm::HttpFilter>,
) -> HashMap<String, google::Any> {
    use upstream_http::http_protocol_options::{ExplicitHttpConfig, UpstreamProtocolOptions};
    let options = upstream_http::HttpProtocolOptions {
        http_filters: filters,
        upstream_protocol_options: Some(UpstreamProtocolOptions::ExplicitHttpConfig(
            ExplicitHttpConfig {
                protocol_config: Some(protocol),
            },
        )),
        ..upstream_http::HttpProtocolOptions::default()
    };
    HashMap::from([(KEY.to_owned(), any(&options))])
}

pub(crate) fn of_app(http2_wanted: bool) -> Protocol {
    if http2_wanted { http2() } else { http1() }
}
