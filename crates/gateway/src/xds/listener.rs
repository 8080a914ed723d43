//! Listeners: the edge that clients reach, and hops, internal listeners for one backend.

use std::time::Duration;

use crate::model::{Chain, Hostname, PortModel, Protocol};
use crate::world::Key;

use super::extproc::Picker;
use super::names::{self, FAILOVER, PICK, SERVED, SUBSET};
use super::proto::{
    address, ads, any, boolean, cidr, core, duration, early_header_mutation, extension, hcm,
    listener, mutation_rules, tls, tls_inspector,
};
use super::{Options, errors, extproc, filters};

use hcm::http_connection_manager::{
    InternalAddressConfig, RouteSpecifier, ServerHeaderTransformation,
};
use listener::listener::{InternalListenerConfig, ListenerSpecifier};

/// Seldom enough that new connections cost nothing, beside answers that take seconds.
const CONNECTION_LIMIT: Duration = Duration::from_secs(15);

/// Far above what the handshake of a client far away takes; one that ends none holds a connection for nothing.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

/// What a hop's answer becomes when Envoy itself made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hop {
    /// In front of pods that only the EPP knows: also tells the EPP where requests went.
    UnknownPods,
    /// In front of a local pool.
    Pool,
    /// In front of Gateways of another cluster, which have the pick made.
    Parent,
}

pub(crate) fn edge(number: u16, port: &PortModel, options: &Options) -> listener::Listener {
    let chains = port.chains.iter();
    let chains = chains.map(|chain| edge_chain(number, port, chain, options));
    let mut is_tls = port.chains.iter().map(|chain| &chain.protocol);
    let is_tls = is_tls.any(|protocol| *protocol != Protocol::Http);
    listener::Listener {
        name: names::edge(number),
        address: Some(address(options.bind_address.to_string(), port.bind)),
        listener_filters: is_tls.then(read_server_name).into_iter().collect(),
        filter_chains: chains.collect(),
        ..listener::Listener::default()
    }
}

fn edge_chain(
    number: u16,
    port: &PortModel,
    of: &Chain,
    options: &Options,
) -> listener::FilterChain {
    let manager = hcm::HttpConnectionManager {
        use_remote_address: Some(boolean(true)),
        // Nobody counts as internal, else clients with private addresses could send x-envoy-*.
        internal_address_config: Some(InternalAddressConfig {
            cidr_ranges: vec![cidr(std::net::Ipv4Addr::BROADCAST.into(), 32)],
            ..InternalAddressConfig::default()
        }),
        normalize_path: Some(boolean(true)),
        // A host name with a trailing dot means the same, and would match no route.
        strip_trailing_host_dot: true,
        // By default nginx uses HTTP/1.0 to its upstreams.
        http_protocol_options: Some(core::Http1ProtocolOptions {
            accept_http_10: true,
            ..core::Http1ProtocolOptions::default()
        }),
        local_reply_config: Some(errors::edge()),
        early_header_mutation_extensions: vec![strip()],
        common_http_protocol_options: short_lived(port.drain),
        http1_safe_max_connection_duration: true,
        http_filters: vec![extproc::filter(Picker::Local), filters::router()],
        // Chains of one port are counted together: clients' server names make no statistics of their own.
        stat_prefix: names::edge(number),
        ..manager(&names::table(number, &of.protocol), options)
    };
    match &of.protocol {
        Protocol::Http => chain(&manager),
        Protocol::Https {
            hostname,
            certificates,
        } => listener::FilterChain {
            name: hostname.to_string(),
            filter_chain_match: server_name(hostname),
            transport_socket: Some(downstream_tls(certificates)),
            transport_socket_connect_timeout: Some(duration(HANDSHAKE_LIMIT)),
            ..chain(&manager)
        },
    }
}

/// `None`: all, also clients that send none.
fn server_name(hostname: &Hostname) -> Option<listener::FilterChainMatch> {
    (*hostname != Hostname::Any).then(|| listener::FilterChainMatch {
        server_names: vec![hostname.to_string()],
        ..listener::FilterChainMatch::default()
    })
}

fn downstream_tls(certificates: &[Key]) -> core::TransportSocket {
    use tls::tls_parameters::TlsProtocol;
    let by_sds = certificates.iter().map(|secret| tls::SdsSecretConfig {
        name: names::certificate(secret),
        sds_config: Some(ads()),
    });
    let context = tls::DownstreamTlsContext {
        common_tls_context: Some(tls::CommonTlsContext {
            tls_params: Some(tls::TlsParameters {
                tls_minimum_protocol_version: TlsProtocol::TlSv12.into(),
                tls_maximum_protocol_version: TlsProtocol::TlSv13.into(),
                ..tls::TlsParameters::default()
            }),
            tls_certificate_sds_secret_configs: by_sds.collect(),
            alpn_protocols: vec!["h2".to_owned(), "http/1.1".to_owned()],
            ..tls::CommonTlsContext::default()
        }),
        ..tls::DownstreamTlsContext::default()
    };
    core::TransportSocket {
        name: "envoy.transport_sockets.tls".to_owned(),
        config_type: Some(core::transport_socket::ConfigType::TypedConfig(any(
            &context,
        ))),
    }
}

/// Chains are chosen by the server name of TLS, which is read first.
fn read_server_name() -> listener::ListenerFilter {
    let inspector = any(&tls_inspector::TlsInspector::default());
    listener::ListenerFilter {
        name: "envoy.filters.listener.tls_inspector".to_owned(),
        config_type: Some(listener::listener_filter::ConfigType::TypedConfig(
            inspector,
        )),
        ..listener::ListenerFilter::default()
    }
}

/// A client that keeps its connection would stay with an Envoy that is stopped until that ends, and lose the request that it
/// sends then. So connections are renewed, without a loss: this one ends no answer, the client learns with the next one, or by
/// a GOAWAY, to take another connection. They are soon, so that most of the time in which a stopped Envoy serves on is left
/// to the answers that are under way.
fn short_lived(drain: Duration) -> Option<core::HttpProtocolOptions> {
    (!drain.is_zero()).then(|| core::HttpProtocolOptions {
        max_connection_duration: Some(duration((drain / 4).min(CONNECTION_LIMIT))),
        ..core::HttpProtocolOptions::default()
    })
}

pub(crate) fn hop(name: &str, hop: Hop, options: &Options) -> listener::Listener {
    let mut http_filters = match hop {
        Hop::UnknownPods => vec![extproc::filter(Picker::Remote)],
        Hop::Pool => vec![extproc::filter(Picker::Local)],
        Hop::Parent => Vec::new(),
    };
    if hop == Hop::UnknownPods {
        http_filters.extend(filters::served());
    }
    http_filters.push(filters::router());
    let manager = hcm::HttpConnectionManager {
        generate_request_id: Some(boolean(false)),
        skip_xff_append: true,
        local_reply_config: Some(errors::hop(hop != Hop::Pool)),
        http_filters,
        ..manager(name, options)
    };
    listener::Listener {
        name: name.to_owned(),
        listener_specifier: Some(ListenerSpecifier::InternalListener(
            InternalListenerConfig::default(),
        )),
        filter_chains: vec![chain(&manager)],
        ..listener::Listener::default()
    }
}

fn manager(name: &str, options: &Options) -> hcm::HttpConnectionManager {
    hcm::HttpConnectionManager {
        stat_prefix: name.to_owned(),
        stream_idle_timeout: Some(duration(options.stream_idle_timeout)),
        server_header_transformation: ServerHeaderTransformation::PassThrough.into(),
        route_specifier: Some(RouteSpecifier::Rds(hcm::Rds {
            config_source: Some(ads()),
            route_config_name: name.to_owned(),
        })),
        ..hcm::HttpConnectionManager::default()
    }
}

fn chain(manager: &hcm::HttpConnectionManager) -> listener::FilterChain {
    listener::FilterChain {
        filters: vec![listener::Filter {
            name: "envoy.filters.network.http_connection_manager".to_owned(),
            config_type: Some(listener::filter::ConfigType::TypedConfig(any(manager))),
        }],
        ..listener::FilterChain::default()
    }
}

/// Clients cannot steer: what only EPPs and we may say is removed before anything reads it.
fn strip() -> core::TypedExtensionConfig {
    let mutations = [PICK, SUBSET, SERVED, FAILOVER].map(|name| mutation_rules::HeaderMutation {
        action: Some(mutation_rules::header_mutation::Action::Remove(
            name.to_owned(),
        )),
    });
    let strip = early_header_mutation::HeaderMutation {
        mutations: mutations.to_vec(),
    };
    extension("envoy.http.early_header_mutation.header_mutation", &strip)
}
