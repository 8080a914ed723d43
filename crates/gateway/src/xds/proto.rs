//! Envoy's protobuf types, by short names, and how to wrap them. The one place that names them.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

pub(crate) use envoy_types::pb::envoy::config::accesslog::v3 as accesslog;
#[cfg(test)]
pub(crate) use envoy_types::pb::envoy::config::bootstrap::v3 as bootstrap;
pub(crate) use envoy_types::pb::envoy::config::cluster::v3 as cluster;
pub(crate) use envoy_types::pb::envoy::config::common::mutation_rules::v3 as mutation_rules;
pub(crate) use envoy_types::pb::envoy::config::core::v3 as core;
pub(crate) use envoy_types::pb::envoy::config::endpoint::v3 as endpoint;
pub(crate) use envoy_types::pb::envoy::config::listener::v3 as listener;
pub(crate) use envoy_types::pb::envoy::config::rbac::v3 as rbac;
pub(crate) use envoy_types::pb::envoy::config::route::v3 as route;
pub(crate) use envoy_types::pb::envoy::extensions::access_loggers::filters::cel::v3 as cel;
pub(crate) use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3 as ext_proc;
pub(crate) use envoy_types::pb::envoy::extensions::filters::http::header_mutation::v3 as header_mutation;
pub(crate) use envoy_types::pb::envoy::extensions::filters::http::header_to_metadata::v3 as header_to_metadata;
pub(crate) use envoy_types::pb::envoy::extensions::filters::http::rbac::v3 as http_rbac;
pub(crate) use envoy_types::pb::envoy::extensions::filters::http::router::v3 as router;
pub(crate) use envoy_types::pb::envoy::extensions::filters::http::upstream_codec::v3 as upstream_codec;
pub(crate) use envoy_types::pb::envoy::extensions::filters::listener::tls_inspector::v3 as tls_inspector;
pub(crate) use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3 as hcm;
pub(crate) use envoy_types::pb::envoy::extensions::http::early_header_mutation::header_mutation::v3 as early_header_mutation;
pub(crate) use envoy_types::pb::envoy::extensions::load_balancing_policies::least_request::v3 as least_request;
pub(crate) use envoy_types::pb::envoy::extensions::load_balancing_policies::override_host::v3 as override_host;
pub(crate) use envoy_types::pb::envoy::extensions::load_balancing_policies::subset::v3 as subset;
pub(crate) use envoy_types::pb::envoy::extensions::rbac::matchers::upstream_ip_port::v3 as upstream_ip_port;
pub(crate) use envoy_types::pb::envoy::extensions::retry::host::previous_hosts::v3 as previous_hosts;
pub(crate) use envoy_types::pb::envoy::extensions::retry::priority::previous_priorities::v3 as previous_priorities;
pub(crate) use envoy_types::pb::envoy::extensions::transport_sockets::raw_buffer::v3 as raw_buffer;
pub(crate) use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3 as tls;
pub(crate) use envoy_types::pb::envoy::extensions::upstreams::http::v3 as upstream_http;
pub(crate) use envoy_types::pb::envoy::service::discovery::v3 as discovery;
pub(crate) use envoy_types::pb::envoy::r#type::matcher::v3 as matcher;
pub(crate) use envoy_types::pb::envoy::r#type::metadata::v3 as metadata;
pub(crate) use envoy_types::pb::envoy::r#type::v3 as kinds;
pub(crate) use envoy_types::pb::google::protobuf as google;

pub(crate) fn any<M: prost::Name>(message: &M) -> google::Any {
    google::Any {
        type_url: M::type_url(),
        value: message.encode_to_vec(),
    }
}

/// A named extension.
pub(crate) fn extension<M: prost::Name>(name: &str, message: &M) -> core::TypedExtensionConfig {
    core::TypedExtensionConfig {
        name: name.to_owned(),
        typed_config: Some(any(message)),
    }
}

pub(crate) fn duration(duration: Duration) -> google::Duration {
    google::Duration {
        seconds: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        // Below 10^9, which an i32 holds.
        nanos: i32::try_from(duration.subsec_nanos()).unwrap_or(0),
    }
}

pub(crate) const fn seconds(seconds: i64) -> google::Duration {
    google::Duration { seconds, nanos: 0 }
}

pub(crate) const fn uint32(value: u32) -> google::UInt32Value {
    google::UInt32Value { value }
}

pub(crate) const fn boolean(value: bool) -> google::BoolValue {
    google::BoolValue { value }
}

pub(crate) fn ads() -> core::ConfigSource {
    core::ConfigSource {
        resource_api_version: core::ApiVersion::V3.into(),
        config_source_specifier: Some(core::config_source::ConfigSourceSpecifier::Ads(
            core::AggregatedConfigSource {},
        )),
        ..core::ConfigSource::default()
    }
}

pub(crate) fn address(host: String, port: u16) -> core::Address {
    core::Address {
        address: Some(core::address::Address::SocketAddress(core::SocketAddress {
            address: host,
            port_specifier: Some(core::socket_address::PortSpecifier::PortValue(port.into())),
            ..core::SocketAddress::default()
        })),
    }
}

pub(crate) fn socket_address(at: &SocketAddr) -> core::Address {
    address(at.ip().to_string(), at.port())
}

/// Hosts of one listener that have other `id`s are different ones.
pub(crate) fn internal_address(listener: String, id: &str) -> core::Address {
    let name = core::envoy_internal_address::AddressNameSpecifier::ServerListenerName(listener);
    core::Address {
        address: Some(core::address::Address::EnvoyInternalAddress(
            core::EnvoyInternalAddress {
                address_name_specifier: Some(name),
                endpoint_id: id.to_owned(),
            },
        )),
    }
}

pub(crate) fn cidr(address: IpAddr, length: u8) -> core::CidrRange {
    core::CidrRange {
        address_prefix: address.to_string(),
        prefix_len: Some(uint32(length.into())),
    }
}

/// `{key: envoy.lb, path: [{key: <key>}]}`
pub(crate) fn lb_metadata(key: &str) -> metadata::MetadataKey {
    let segment = metadata::metadata_key::path_segment::Segment::Key(key.to_owned());
    metadata::MetadataKey {
        key: super::names::LB_NAMESPACE.to_owned(),
        path: vec![metadata::metadata_key::PathSegment {
            segment: Some(segment),
        }],
    }
}

pub(crate) fn header(
    name: &str,
    value: &str,
    action: core::header_value_option::HeaderAppendAction,
) -> core::HeaderValueOption {
    core::HeaderValueOption {
        header: Some(core::HeaderValue {
            key: name.to_owned(),
            value: value.to_owned(),
            ..core::HeaderValue::default()
        }),
        append_action: action.into(),
        ..core::HeaderValueOption::default()
    }
}

pub(crate) fn exactly(text: &str) -> matcher::StringMatcher {
    matcher::StringMatcher {
        match_pattern: Some(matcher::string_matcher::MatchPattern::Exact(
            text.to_owned(),
        )),
        ..matcher::StringMatcher::default()
    }
}

/// Matches values that the expression matches from their beginning to their end.
pub(crate) fn matching(regex: String) -> matcher::StringMatcher {
    let regex = matcher::RegexMatcher {
        regex,
        ..matcher::RegexMatcher::default()
    };
    matcher::StringMatcher {
        match_pattern: Some(matcher::string_matcher::MatchPattern::SafeRegex(regex)),
        ..matcher::StringMatcher::default()
    }
}
