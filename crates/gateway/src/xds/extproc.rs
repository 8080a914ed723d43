//! The ext_proc filter: off by default, on where a route or weighted cluster names an EPP.

use std::collections::HashMap;

use crate::model::Epp;

use super::filters;
use super::names::LB_NAMESPACE;
use super::proto::{
    any, boolean, core, ext_proc, google, hcm, kinds, matcher, mutation_rules, uint32,
};

/// Name of the filter, and of its overrides.
const NAME: &str = "envoy.filters.http.ext_proc";

/// Metadata that only the EPP may see: which endpoints a client wants.
const SUBSET_NAMESPACE: &str = "envoy.lb.subset_hint";

/// gRPC metadata that tells an EPP how many endpoints it may name.
const MAX_ENDPOINTS: &str = "x-isthmus-max-endpoints";

/// The cluster whose EPP is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Picker {
    /// The EPP of a pool of this cluster.
    Local,
    /// The EPP of another cluster: it may choose an endpoint and may change nothing else of where a request is sent.
    Remote,
}

/// Disabled until an override enables it.
pub(crate) fn filter(picker: Picker) -> hcm::HttpFilter {
    use ext_proc::processing_mode::{BodySendMode, HeaderSendMode};
    let (send, full_duplex) = (
        i32::from(HeaderSendMode::Send),
        i32::from(BodySendMode::FullDuplexStreamed),
    );
    let config = ext_proc::ExternalProcessor {
        grpc_service: Some(core::GrpcService {
            target_specifier: Some(envoy_grpc("none", "")),
            ..core::GrpcService::default()
        }),
        processing_mode: Some(ext_proc::ProcessingMode {
            request_header_mode: send,
            request_body_mode: full_duplex,
            request_trailer_mode: send,
            response_header_mode: send,
            response_body_mode: full_duplex,
            response_trailer_mode: send,
        }),
        route_cache_action: ext_proc::external_processor::RouteCacheAction::Retain.into(),
        status_on_error: Some(kinds::HttpStatus {
            code: kinds::StatusCode::ServiceUnavailable.into(),
        }),
        mutation_rules: Some(mutation_rules::HeaderMutationRules {
            disallow_expression: Some(matcher::RegexMatcher {
                regex: untouchable(picker),
                ..matcher::RegexMatcher::default()
            }),
            ..mutation_rules::HeaderMutationRules::default()
        }),
        // Without receiving_namespaces Envoy drops picks.
        metadata_options: Some(ext_proc::MetadataOptions {
            forwarding_namespaces: Some(namespaces(&[LB_NAMESPACE, SUBSET_NAMESPACE])),
            receiving_namespaces: Some(namespaces(&[LB_NAMESPACE])),
            ..ext_proc::MetadataOptions::default()
        }),
        ..ext_proc::ExternalProcessor::default()
    };
    hcm::HttpFilter {
        disabled: true,
        ..filters::http_filter(NAME, &config)
    }
}

/// The headers that an EPP may not change, as a regular expression: those that identify the caller, those of Isthmus
/// itself, and those that change how the receiver reads a message. The EPP of another cluster may not change the path
/// either, else it could read any page of any server at an address that it may name. Envoy itself protects method,
/// scheme and authority, and keeps `content-length` right, which an EPP that changes bodies may name. Envoy accepts no
/// expression above a program size of 100, which this one nearly has: other headers of a connection, such as
/// `keep-alive`, do no harm.
fn untouchable(picker: Picker) -> String {
    let path = match picker {
        Picker::Local => "",
        Picker::Remote => ":path|",
    };
    format!(
        "^({path}authorization|cookie|x-(forwarded|isthmus)-.*|connection|expect|te|trailer|transfer-encoding|upgrade)$"
    )
}

/// Asks the EPP behind `cluster`. With `fail_open` a request goes on when it does not answer,
/// which holds until the first body byte was sent to it. The route makes up to `attempts`, each at the next endpoint that the
/// EPP named.
pub(crate) fn enabled(
    cluster: &str,
    epp: &Epp,
    fail_open: bool,
    attempts: u32,
) -> HashMap<String, google::Any> {
    let retry = core::RetryPolicy {
        retry_on: "connect-failure,refused-stream,reset,unavailable".to_owned(),
        num_retries: Some(uint32(1)),
        retry_host_predicate: vec![core::retry_policy::RetryHostPredicate {
            name: filters::OTHER_HOST.to_owned(),
            config_type: Some(
                core::retry_policy::retry_host_predicate::ConfigType::TypedConfig(
                    filters::other_host(),
                ),
            ),
        }],
        host_selection_retry_max_attempts: 3,
        ..core::RetryPolicy::default()
    };
    let overrides = ext_proc::ExtProcOverrides {
        failure_mode_allow: Some(boolean(fail_open)),
        grpc_service: Some(core::GrpcService {
            target_specifier: Some(envoy_grpc(cluster, &epp.authority)),
            retry_policy: Some(retry),
            initial_metadata: list_of(attempts),
            ..core::GrpcService::default()
        }),
        ..ext_proc::ExtProcOverrides::default()
    };
    let per_route = ext_proc::ExtProcPerRoute {
        r#override: Some(ext_proc::ext_proc_per_route::Override::Overrides(overrides)),
    };
    HashMap::from([(NAME.to_owned(), any(&per_route))])
}

/// One endpoint is what an EPP names unless told otherwise.
fn list_of(attempts: u32) -> Vec<core::HeaderValue> {
    let list = (attempts > 1).then(|| core::HeaderValue {
        key: MAX_ENDPOINTS.to_owned(),
        value: attempts.to_string(),
        ..core::HeaderValue::default()
    });
    list.into_iter().collect()
}

/// Without an authority Envoy sends the cluster's name, whose slashes HTTP/2 servers refuse.
fn envoy_grpc(cluster: &str, authority: &str) -> core::grpc_service::TargetSpecifier {
    core::grpc_service::TargetSpecifier::EnvoyGrpc(core::grpc_service::EnvoyGrpc {
        cluster_name: cluster.to_owned(),
        authority: authority.to_owned(),
        ..core::grpc_service::EnvoyGrpc::default()
    })
}

fn namespaces(names: &[&str]) -> ext_proc::metadata_options::MetadataNamespaces {
    ext_proc::metadata_options::MetadataNamespaces {
        untyped: names.iter().map(ToString::to_string).collect(),
        ..ext_proc::metadata_options::MetadataNamespaces::default()
    }
}
