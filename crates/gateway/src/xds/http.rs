//! How clusters speak HTTP to their hosts.

use std::collections::HashMap;

use crate::model::ParentMode;

use super::proto::{any, core, google, hcm, seconds, upstream_http};

use upstream_http::http_protocol_options::{
    AutoHttpConfig, ExplicitHttpConfig, UpstreamProtocolOptions,
};

/// Where a cluster's HTTP options stand.
const KEY: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";

pub(crate) type Protocol =
    upstream_http::http_protocol_options::explicit_http_config::ProtocolConfig;

fn http1() -> Protocol {
    Protocol::HttpProtocolOptions(core::Http1ProtocolOptions::default())
}

fn http2() -> Protocol {
    Protocol::Http2ProtocolOptions(core::Http2ProtocolOptions::default())
}

/// HTTP/2 that notices a dead peer in 7 s: pings each 5 s, answered within 2.
pub(crate) fn http2_alive() -> Protocol {
    Protocol::Http2ProtocolOptions(alive())
}

fn alive() -> core::Http2ProtocolOptions {
    core::Http2ProtocolOptions {
        connection_keepalive: Some(core::KeepaliveSettings {
            interval: Some(seconds(5)),
            timeout: Some(seconds(2)),
            ..core::KeepaliveSettings::default()
        }),
        ..core::Http2ProtocolOptions::default()
    }
}

/// Connections to model servers that are idle for this long are closed, in seconds. Most of the servers run in uvicorn, which
/// closes them after 5 s, as Node.js does: a request that is sent at that moment is lost. Below those, for the way there and back
/// and for clocks that run apart, and far above the time between requests under load.
const SERVER_IDLE: i64 = 4;

pub(crate) fn options(
    protocol: Protocol,
    filters: Vec<hcm::HttpFilter>,
) -> HashMap<String, google::Any> {
    wrapped(protocol, None, filters)
}

/// The protocol options for connections to model servers.
pub(crate) fn of_servers(
    http2_wanted: bool,
    filters: Vec<hcm::HttpFilter>,
) -> HashMap<String, google::Any> {
    let idle = core::HttpProtocolOptions {
        idle_timeout: Some(seconds(SERVER_IDLE)),
        ..core::HttpProtocolOptions::default()
    };
    let protocol = if http2_wanted { http2() } else { http1() };
    wrapped(protocol, Some(idle), filters)
}

/// Load balancers in front of Gateways seldom close connections that are idle for less than 60 s, in seconds.
const PARENT_IDLE: i64 = 50;

/// The protocol options for connections to Gateways of other clusters. With TLS they choose between HTTP/2 and HTTP/1.1, and show
/// a certificate for the host of the request, which is also the name that Envoy asks for, unless a policy names another.
pub(crate) fn of_parents(
    mode: &ParentMode,
    http2_wanted: bool,
    filters: Vec<hcm::HttpFilter>,
) -> HashMap<String, google::Any> {
    let idle = core::HttpProtocolOptions {
        idle_timeout: Some(seconds(PARENT_IDLE)),
        ..core::HttpProtocolOptions::default()
    };
    let by_host = mode.tls && mode.verification.is_none();
    let verified = core::UpstreamHttpProtocolOptions {
        auto_sni: true,
        auto_san_validation: true,
        ..core::UpstreamHttpProtocolOptions::default()
    };
    let protocol = match (mode.tls, http2_wanted) {
        (true, _) => UpstreamProtocolOptions::AutoConfig(AutoHttpConfig {
            http_protocol_options: Some(core::Http1ProtocolOptions::default()),
            http2_protocol_options: Some(alive()),
            ..AutoHttpConfig::default()
        }),
        (false, true) => explicit(http2_alive()),
        (false, false) => explicit(http1()),
    };
    keyed(&upstream_http::HttpProtocolOptions {
        common_http_protocol_options: Some(idle),
        http_filters: filters,
        upstream_http_protocol_options: by_host.then_some(verified),
        upstream_protocol_options: Some(protocol),
        ..upstream_http::HttpProtocolOptions::default()
    })
}

fn wrapped(
    protocol: Protocol,
    common: Option<core::HttpProtocolOptions>,
    filters: Vec<hcm::HttpFilter>,
) -> HashMap<String, google::Any> {
    keyed(&upstream_http::HttpProtocolOptions {
        common_http_protocol_options: common,
        http_filters: filters,
        upstream_protocol_options: Some(explicit(protocol)),
        ..upstream_http::HttpProtocolOptions::default()
    })
}

fn explicit(protocol: Protocol) -> UpstreamProtocolOptions {
    UpstreamProtocolOptions::ExplicitHttpConfig(ExplicitHttpConfig {
        protocol_config: Some(protocol),
    })
}

/// One entry, so that the encoding is always the same.
fn keyed(options: &upstream_http::HttpProtocolOptions) -> HashMap<String, google::Any> {
    HashMap::from([(KEY.to_owned(), any(options))])
}
