//! Errors that Envoy itself answers with, as the JSON objects that clients of models parse: in the form of OpenAI's API, like
//! those of endpoint pickers.
//!
//! What endpoint pickers and model servers answer is left as it is, and gRPC clients get Envoy's own text as `grpc-message`.

use super::names::FAILOVER;
use super::proto::{accesslog, any, cel, core, hcm, header, matcher, route, uint32};

use accesslog::access_log_filter::FilterSpecifier;

/// One kind of error.
struct Error {
    /// Prefixes of `response.code_details`, the reasons for answers that Envoy itself makes.
    details: &'static [&'static str],
    /// Only answers with this status of Envoy.
    of: Option<u32>,
    /// The status where it is not Envoy's own.
    status: Option<u32>,
    /// Envoy's status at a hop, where the error means that another cluster is to be tried.
    at_hop: Option<u32>,
    /// The object's `type`.
    kind: &'static str,
    /// The object's `message`. It begins with Envoy's words, where users and runbooks know these, and needs no escapes in JSON;
    /// `%` begins a variable of Envoy.
    message: &'static str,
}

/// The base of all entries: no field is set.
const BASE: Error = Error {
    details: &[],
    of: None,
    status: None,
    at_hop: None,
    kind: "",
    message: "",
};

/// Envoy's status for a pick that it refuses. A picker's own answers may have it as well.
const REFUSED_PICK: u32 = 403;

/// Statuses of answers at a hop that are always marked: this cluster cannot serve the request, whichever program
/// answers.
const MARKED: [u32; 2] = [503, LOOP];

/// For a host that connections with another server name are for.
pub(crate) const MISDIRECTED: u32 = 421;

/// For a request that one cluster has sent to another already, and that could go on only to a third.
pub(crate) const LOOP: u32 = 508;

const ERRORS: [Error; 12] = [
    // Envoy's 403 reads like a rejected key. Clients that try WebSocket first use HTTP at once after 426, and only
    // then.
    Error {
        details: &["upgrade_failed"],
        status: Some(426),
        kind: "upgrade-not-served",
        message: "WebSocket is not served here, nor any other upgrade: send the request by HTTP",
        ..BASE
    },
    Error {
        details: &["route_not_found"],
        kind: "route-not-found",
        message: "no route of this gateway has the host, path, method and headers of the request",
        ..BASE
    },
    Error {
        details: &["direct_response"],
        of: Some(MISDIRECTED),
        kind: "misdirected-request",
        message: "this connection is for other hosts than that of the request: open one for it",
        ..BASE
    },
    Error {
        details: &["direct_response"],
        of: Some(LOOP),
        at_hop: Some(LOOP),
        kind: "loop-refused",
        message: "another cluster has sent this request here, and only a third one is left that could take it",
        ..BASE
    },
    Error {
        details: &["direct_response", "cluster_not_found"],
        kind: "route-not-usable",
        message: "the route of this request cannot be served: it has no backend with a weight above 0, or a backend or filter \
                  that cannot be used, as the conditions of its HTTPRoute say",
        ..BASE
    },
    Error {
        // No answer; then an answer that Envoy does not know or expect, and one with headers that it does not take.
        details: &[
            "ext_proc_error",
            "unhandled_message",
            "spurious_message",
            "header_mutation_",
        ],
        at_hop: Some(503),
        kind: "endpoint-picker-failed",
        message: "the endpoint picker of this model does not answer, or its answer cannot be used",
        ..BASE
    },
    Error {
        details: &["no_healthy_upstream"],
        at_hop: Some(503),
        kind: "no-endpoint",
        message: "no healthy upstream: there is no endpoint that can take the request",
        ..BASE
    },
    Error {
        details: &["upstream_reset_before_response_started"],
        at_hop: Some(503),
        kind: "endpoint-failed",
        message: "upstream connect error or disconnect before headers (%RESPONSE_FLAGS_LONG%): the model server is not \
                  reached, or it closed the connection before it answered",
        ..BASE
    },
    Error {
        details: &["rbac_access_denied"],
        of: None,
        status: Some(502),
        at_hop: Some(REFUSED_PICK),
        kind: "endpoint-not-allowed",
        message: "another cluster named an endpoint or a Gateway of this model that requests may not go to",
    },
    Error {
        details: &[
            "response_timeout",
            "upstream_per_try_timeout",
            "upstream_response_timeout",
            "stream_idle_timeout",
            "max_duration_timeout",
            "request_overall_timeout",
            "request_header_timeout",
        ],
        kind: "timeout",
        message: "request timeout: the time limit of the route is over, or nothing was sent for too long",
        ..BASE
    },
    Error {
        details: &[
            "request_payload_too_large",
            "request_payload_exceeded_retry_buffer_limit",
        ],
        kind: "body-too-large",
        message: "the body of the request is larger than can be taken",
        ..BASE
    },
    Error {
        details: &[
            "missing_host_header",
            "missing_path",
            "absolute_path_rejected",
            "path_normalization_failed",
            "request_headers_too_large",
            "http1.",
            "http2.",
        ],
        kind: "bad-request",
        message: "the request is not valid HTTP, or its headers are too large",
        ..BASE
    },
];

/// The configuration for listeners that clients reach.
pub(crate) fn edge() -> hcm::LocalReplyConfig {
    let mappers = ERRORS.iter().map(|error| as_json(error, None));
    hcm::LocalReplyConfig {
        mappers: mappers.collect(),
        ..hcm::LocalReplyConfig::default()
    }
}

/// For hops, whose own answers that another cluster may spare the client get the mark that they are not the model's. With
/// `picks_are_checked` a pick that was refused is one of them: it has the status of endpoint pickers that refuse the client.
pub(crate) fn hop(picks_are_checked: bool) -> hcm::LocalReplyConfig {
    let refused = |error: &Error| picks_are_checked && error.at_hop == Some(REFUSED_PICK);
    let is_marked = |error: &&Error| {
        MARKED.iter().any(|status| error.at_hop == Some(*status)) || refused(error)
    };
    let (json, mut plain): (Vec<_>, Vec<_>) = ERRORS
        .iter()
        .filter(is_marked)
        .map(|error| (as_json(error, error.at_hop), as_json(error, None)))
        .unzip();
    // Of the kinds above, those with a status that is final, such as 502 where a server does not speak HTTP.
    let of_refused = ERRORS.iter().filter(|error| refused(error));
    let of_refused = of_refused.map(|error| mark(by_details(error, error.at_hop), error.status));
    let marks = MARKED.map(|status| mark(has_status(status), None));
    plain.splice(0..0, marks.into_iter().chain(of_refused));
    hcm::LocalReplyConfig {
        mappers: json.into_iter().chain(plain).collect(),
        ..hcm::LocalReplyConfig::default()
    }
}

/// The answer to other than gRPC clients, where it may have a body; with `at_hop` marked, and for that status alone.
fn as_json(error: &Error, at_hop: Option<u32>) -> hcm::ResponseMapper {
    let Error {
        details: _,
        of: _,
        status,
        at_hop: _,
        kind,
        message,
    } = error;
    let both = FilterSpecifier::AndFilter(accesslog::AndFilter {
        filters: vec![
            filter(not_grpc()),
            filter(not_head()),
            filter(by_details(error, at_hop)),
        ],
    });
    let body =
        format!(r#"{{"error":{{"code":%RESPONSE_CODE%,"message":"{message}","type":"{kind}"}}}}"#);
    let body = core::substitution_format_string::Format::TextFormatSource(core::DataSource {
        specifier: Some(core::data_source::Specifier::InlineString(body)),
        ..core::DataSource::default()
    });
    hcm::ResponseMapper {
        filter: Some(filter(both)),
        status_code: status.map(uint32),
        body_format_override: Some(core::SubstitutionFormatString {
            content_type: "application/json".to_owned(),
            format: Some(body),
            ..core::SubstitutionFormatString::default()
        }),
        headers_to_add: at_hop.map(|_| marking()).into_iter().collect(),
        ..hcm::ResponseMapper::default()
    }
}

/// Envoy's own answers of this kind, of the status `at_hop` where there is one.
fn by_details(error: &Error, at_hop: Option<u32>) -> FilterSpecifier {
    let beginnings = error
        .details
        .iter()
        .map(|text| format!("response.code_details.startsWith('{text}')"));
    let beginnings: Vec<_> = beginnings.collect();
    // Redirects are answers of Envoy as well.
    let code = at_hop.or(error.of).map_or_else(
        || "response.code >= 400".to_owned(),
        |status| format!("response.code == {status}"),
    );
    let expression = cel::ExpressionFilter {
        expression: format!("{code} && ({})", beginnings.join(" || ")),
        ..cel::ExpressionFilter::default()
    };
    FilterSpecifier::ExtensionFilter(accesslog::ExtensionFilter {
        name: "envoy.access_loggers.extension_filters.cel".to_owned(),
        config_type: Some(accesslog::extension_filter::ConfigType::TypedConfig(any(
            &expression,
        ))),
    })
}

fn has_status(status: u32) -> FilterSpecifier {
    let comparison = accesslog::ComparisonFilter {
        op: accesslog::comparison_filter::Op::Eq.into(),
        value: Some(core::RuntimeUInt32 {
            default_value: status,
            runtime_key: format!("isthmus.mark.{status}"),
        }),
    };
    FilterSpecifier::StatusCodeFilter(accesslog::StatusCodeFilter {
        comparison: Some(comparison),
    })
}

/// Marks these answers as not the model server's, and sets their status to `to` where it is given.
fn mark(such: FilterSpecifier, to: Option<u32>) -> hcm::ResponseMapper {
    hcm::ResponseMapper {
        filter: Some(filter(such)),
        status_code: to.map(uint32),
        headers_to_add: vec![marking()],
        ..hcm::ResponseMapper::default()
    }
}

fn marking() -> core::HeaderValueOption {
    use core::header_value_option::HeaderAppendAction::OverwriteIfExistsOrAdd;
    header(FAILOVER, "1", OverwriteIfExistsOrAdd)
}

/// Matches requests that are neither gRPC nor gRPC-Web.
fn not_grpc() -> FilterSpecifier {
    use route::header_matcher::HeaderMatchSpecifier::StringMatch;
    let grpc = matcher::string_matcher::MatchPattern::Prefix("application/grpc".to_owned());
    FilterSpecifier::HeaderFilter(accesslog::HeaderFilter {
        header: Some(route::HeaderMatcher {
            name: "content-type".to_owned(),
            invert_match: true,
            // Without it a request without the header would match neither way.
            treat_missing_header_as_empty: true,
            header_match_specifier: Some(StringMatch(matcher::StringMatcher {
                match_pattern: Some(grpc),
                ..matcher::StringMatcher::default()
            })),
        }),
    })
}

/// An answer to HEAD has no body, and clients read the empty text as JSON where its type says so.
fn not_head() -> FilterSpecifier {
    use route::header_matcher::HeaderMatchSpecifier::StringMatch;
    let head = matcher::string_matcher::MatchPattern::Exact("HEAD".to_owned());
    FilterSpecifier::HeaderFilter(accesslog::HeaderFilter {
        header: Some(route::HeaderMatcher {
            name: ":method".to_owned(),
            invert_match: true,
            // A request that cannot be read has none.
            treat_missing_header_as_empty: true,
            header_match_specifier: Some(StringMatch(matcher::StringMatcher {
                match_pattern: Some(head),
                ..matcher::StringMatcher::default()
            })),
        }),
    })
}

fn filter(specifier: FilterSpecifier) -> accesslog::AccessLogFilter {
    accesslog::AccessLogFilter {
        filter_specifier: Some(specifier),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use prost::Message as _;

    use super::*;

    /// One line for each answer: the condition, then the resulting answer.
    fn show(config: &hcm::LocalReplyConfig) -> String {
        let lines = config.mappers.iter().map(|mapper| {
            let filter = mapper.filter.as_ref().unwrap();
            let when = when(filter.filter_specifier.as_ref().unwrap());
            let status = mapper
                .status_code
                .map(|status| format!(" {}", status.value));
            let marked = mapper
                .headers_to_add
                .iter()
                .map(|one| one.header.as_ref().unwrap());
            let marked = marked.map(|one| format!(" {}: {}", one.key, one.value));
            let marked: Vec<_> = marked.collect();
            let marked = marked.concat();
            let body = mapper.body_format_override.as_ref().map(|format| {
                let Some(core::substitution_format_string::Format::TextFormatSource(text)) =
                    &format.format
                else {
                    panic!("{format:?}");
                };
                let Some(core::data_source::Specifier::InlineString(text)) = &text.specifier else {
                    panic!("{format:?}");
                };
                format!("\n  {} {text}", format.content_type)
            });
            format!(
                "{when} =>{}{marked}{}",
                status.unwrap_or_default(),
                body.unwrap_or_default()
            )
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    fn when(specifier: &FilterSpecifier) -> String {
        match specifier {
            FilterSpecifier::AndFilter(and) => {
                let all = and
                    .filters
                    .iter()
                    .map(|one| when(one.filter_specifier.as_ref().unwrap()));
                all.collect::<Vec<_>>().join(" and ")
            }
            FilterSpecifier::HeaderFilter(_) if *specifier == not_head() => "not HEAD".to_owned(),
            FilterSpecifier::HeaderFilter(_) => {
                assert_eq!(*specifier, not_grpc());
                "not gRPC".to_owned()
            }
            FilterSpecifier::StatusCodeFilter(one) => {
                let value = one.comparison.as_ref().unwrap().value.as_ref().unwrap();
                format!("status {}", value.default_value)
            }
            FilterSpecifier::ExtensionFilter(one) => {
                let Some(accesslog::extension_filter::ConfigType::TypedConfig(config)) =
                    &one.config_type
                else {
                    panic!("{one:?}");
                };
                cel::ExpressionFilter::decode(&config.value[..])
                    .unwrap()
                    .expression
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn errors_of_edges_are_objects() {
        insta::assert_snapshot!(show(&edge()));
    }

    #[test]
    fn errors_of_hops_are_marked_objects_and_of_other_answers_those_of_a_marked_status() {
        insta::assert_snapshot!(show(&hop(true)));
    }

    #[test]
    fn messages_need_no_escapes_and_kinds_are_told_apart() {
        let mut kinds = BTreeSet::new();
        for error in &ERRORS {
            let texts = [error.kind, error.message].into_iter();
            for text in texts.chain(error.details.iter().copied()) {
                assert!(
                    !text.is_empty() && !text.contains(['"', '\'', '\\', '\n']),
                    "{text}"
                );
            }
            assert_eq!(
                error.message.matches('%').count() % 2,
                0,
                "{}",
                error.message
            );
            assert!(kinds.insert(error.kind), "{}", error.kind);
        }
    }
}
