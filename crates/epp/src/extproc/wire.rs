//! Envoy's messages to ours and back.

use std::collections::HashMap;

use bytes::Bytes;
use prost::Message;
use scheduling::Subset;
use smallvec::SmallVec;

use super::message::{
    BodyMode, Chunk, Context, Input, Modes, Part, Phase, Reply, RequestHead, ResponseHead, Route,
    Streamed,
};
use crate::{
    edit::HeaderName,
    llm::TraceId,
    proto::{
        BodyMutation, BodySendMode, CommonResponse, Duration, HeaderMutation, HeaderValue,
        HeaderValueOption, HttpBody, HttpHeaders, HttpStatus, HttpTrailers, ImmediateResponse,
        Kind, Metadata, Mutation, OVERWRITE_OR_ADD, PartResponse, ProcessingRequest,
        ProcessingResponse, ProtocolConfiguration, Request, Response, StreamedBodyResponse, Struct,
        Value,
    },
    reject::Reject,
};

const DESTINATION: &str = "x-gateway-destination-endpoint";
const SERVED: &str = "x-gateway-destination-endpoint-served";
const SCORES: &str = "x-gateway-destination-endpoint-scores";
const SUBSET: &str = "x-gateway-destination-endpoint-subset";
const NS_LB: &str = "envoy.lb";
const NS_SUBSET: &str = "envoy.lb.subset_hint";
pub(crate) const REQUEST_ID: &str = "x-request-id";
const DROPPED_REASON: &str = "x-llm-d-request-dropped-reason";
/// Headers that steer routing or scheduling: whoever sent them, no model server may see them.
const STRIPPED: [&str; 12] = [
    SUBSET,
    SERVED,
    SCORES,
    "x-llm-d-inference-objective",
    "x-gateway-inference-objective",
    "x-llm-d-inference-fairness-id",
    "x-gateway-inference-fairness-id",
    "x-llm-d-model-name-rewrite",
    "x-gateway-model-name-rewrite",
    "x-prefiller-host-port",
    "x-encoder-hosts-ports",
    "x-data-parallel-host-port",
];

/// What of a message somebody needs beside what all do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) attributes: bool,
    /// Whether a response is a stream of events.
    pub(super) content_type: bool,
}

/// What one message says: its attributes, if any are there and they are wanted, then the message.
pub(super) fn inputs(message: ProcessingRequest, wanted: Wanted) -> SmallVec<[Input; 2]> {
    let ProcessingRequest {
        metadata_context,
        protocol_config,
        request,
        ..
    } = message;
    let mut inputs = SmallVec::new();
    let modes = match protocol_config.map(modes).transpose() {
        Ok(modes) => modes,
        Err(UnknownMode(mode)) => {
            inputs.push(Input::UnknownMode(mode));
            return inputs;
        }
    };
    let metadata = metadata_context.filter(|_| wanted.attributes);
    // Attributes that cannot be read say nothing; the message beside them may be in order.
    let metadata = metadata.and_then(|bytes| Metadata::decode(bytes).ok());
    if let Some(context) = metadata.map(context)
        && context != Context::default()
    {
        inputs.push(Input::Context(context));
    }
    inputs.extend(request.map(|request| match request {
        Request::RequestHeaders(headers) => Input::RequestHeaders(request_head(headers, modes)),
        Request::RequestBody(body) => Input::RequestBody(chunk(body)),
        Request::RequestTrailers(_) => Input::RequestTrailers,
        Request::ResponseHeaders(headers) => {
            let mut head = response_head(&headers, modes);
            head.is_sse = wanted.content_type && is_sse(&headers);
            Input::ResponseHeaders(head)
        }
        Request::ResponseBody(body) => Input::ResponseBody(chunk(body)),
        Request::ResponseTrailers(_) => Input::ResponseTrailers,
    }));
    inputs
}

/// The message for a reply.
pub(super) fn message(
    reply: Reply,
    clear_route_cache: bool,
    trace_id: Option<&TraceId>,
) -> ProcessingResponse {
    let mut message = ProcessingResponse::default();
    let common = |route: Option<Box<Route>>,
                  body_mutation: Option<BodyMutation>,
                  message: &mut ProcessingResponse| {
        let mut routed = false;
        let header_mutation = route.map(|route| {
            let destination = route.destination.as_ref();
            // Another path must not choose another route.
            routed = destination.is_some() && !route.edit.sets(":path");
            message.dynamic_metadata =
                destination.map(|destination| destination_metadata(destination, &route.scores));
            header_mutation(*route)
        });
        (header_mutation.is_some() || body_mutation.is_some()).then(|| CommonResponse {
            header_mutation,
            body_mutation,
            clear_route_cache: routed && clear_route_cache,
        })
    };
    let response = match reply {
        Reply::Headers(phase, route) => {
            let response = PartResponse {
                response: common(route, None, &mut message),
            };
            match phase {
                Phase::Request => Response::RequestHeaders(response),
                Phase::Response => Response::ResponseHeaders(response),
            }
        }
        Reply::Body { phase, route, part } => {
            let response = PartResponse {
                response: common(route, body_mutation(part), &mut message),
            };
            match phase {
                Phase::Request => Response::RequestBody(response),
                Phase::Response => Response::ResponseBody(response),
            }
        }
        Reply::Trailers(Phase::Request) => Response::RequestTrailers(HttpTrailers::default()),
        Reply::Trailers(Phase::Response) => Response::ResponseTrailers(HttpTrailers::default()),
        Reply::Immediate(reject) => Response::ImmediateResponse(immediate(&reject, trace_id)),
        Reply::Wait(limit) => {
            message.override_message_timeout = Some(duration(limit));
            return message;
        }
    };
    message.response = Some(response);
    message
}

fn duration(limit: std::time::Duration) -> Duration {
    Duration {
        seconds: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(limit.subsec_nanos()).unwrap_or(0),
    }
}

struct UnknownMode(i32);

fn modes(config: ProtocolConfiguration) -> Result<Modes, UnknownMode> {
    let mode = |number: i32| match BodySendMode::try_from(number) {
        Ok(BodySendMode::None) => Ok(BodyMode::None),
        Ok(BodySendMode::Streamed) => Ok(BodyMode::Streamed),
        Ok(BodySendMode::Buffered) => Ok(BodyMode::Buffered),
        Ok(BodySendMode::BufferedPartial) => Ok(BodyMode::BufferedPartial),
        Ok(BodySendMode::FullDuplexStreamed) => Ok(BodyMode::FullDuplexStreamed),
        Ok(BodySendMode::Grpc) | Err(_) => Err(UnknownMode(number)),
    };
    Ok(Modes {
        request: mode(config.request_body_mode)?,
        response: mode(config.response_body_mode)?,
        body_before_headers_reply: config.send_body_without_waiting_for_header_response,
    })
}

fn context(mut metadata: Metadata) -> Context {
    let mut take = |namespace: &str, key: &str| {
        metadata
            .filter_metadata
            .get_mut(namespace)?
            .fields
            .remove(key)
    };
    let served = match take(NS_LB, SERVED).and_then(|value| value.kind) {
        Some(Kind::StringValue(address)) => address.trim().parse().ok(),
        _ => None,
    };
    Context {
        subset: take(NS_SUBSET, SUBSET).map(subset),
        served,
    }
}

/// A list of strings, or one comma-separated string. Anything else is a subset without entries.
fn subset(value: Value) -> Subset {
    let mut subset = Subset::default();
    match value.kind {
        Some(Kind::StringValue(list)) => subset.extend_from_list(&list),
        Some(Kind::ListValue(list)) => {
            for entry in list.values {
                if let Some(Kind::StringValue(entry)) = entry.kind {
                    subset.extend_from_list(&entry);
                }
            }
        }
        _ => {}
    }
    subset
}

fn request_head(headers: HttpHeaders, modes: Option<Modes>) -> RequestHead {
    let mut head = RequestHead {
        end: headers.end_of_stream,
        modes,
        ..RequestHead::default()
    };
    let all = headers.headers.map(|map| map.headers).unwrap_or_default();
    head.fields.reserve_exact(all.len());
    for header in all {
        match &*header.key {
            b":path" => head.path = bytes(&header).clone(),
            b"content-length" => head.content_length = value(&header).parse().ok(),
            key if key == REQUEST_ID.as_bytes() => head.has_request_id = !bytes(&header).is_empty(),
            _ => {}
        }
        let value = bytes(&header).clone();
        head.fields.push((header.key, value));
    }
    head
}

fn response_head(headers: &HttpHeaders, modes: Option<Modes>) -> ResponseHead {
    let all = headers.headers.iter().flat_map(|map| &map.headers);
    let status = all
        .into_iter()
        .find(|header| header.key == ":status")
        .and_then(|header| value(header).parse().ok());
    ResponseHead {
        status: status.unwrap_or(0),
        is_sse: false,
        end: headers.end_of_stream,
        modes,
    }
}

fn is_sse(headers: &HttpHeaders) -> bool {
    let mut all = headers.headers.iter().flat_map(|map| &map.headers);
    let content_type = all.find(|header| header.key == "content-type");
    content_type.is_some_and(|header| {
        let kind = value(header).split(';').next().unwrap_or_default();
        kind.trim().eq_ignore_ascii_case("text/event-stream")
    })
}

/// Envoy fills `raw_value` and leaves `value` empty; older proxies do the reverse.
fn bytes(header: &HeaderValue) -> &Bytes {
    if header.raw_value.is_empty() {
        &header.value
    } else {
        &header.raw_value
    }
}

fn value(header: &HeaderValue) -> &str {
    std::str::from_utf8(bytes(header)).unwrap_or_default()
}

fn chunk(body: HttpBody) -> Chunk {
    Chunk {
        bytes: body.body,
        end: body.end_of_stream,
    }
}

fn header_mutation(route: Route) -> HeaderMutation {
    let Route {
        destination, edit, ..
    } = route;
    let stripped: &[&'static str] = if destination.is_some() {
        &STRIPPED
    } else {
        &[]
    };
    let set = edit.headers_to_set().iter();
    let set_headers = destination
        .map(|destination| set_header(Bytes::from_static(DESTINATION.as_bytes()), destination))
        .into_iter()
        .chain(set.map(|(name, value)| set_header(name_bytes(name), value.clone())));
    let stripped = stripped
        .iter()
        .map(|name| Bytes::from_static(name.as_bytes()));
    let removed = edit.headers_to_remove().iter().map(name_bytes);
    HeaderMutation {
        set_headers: set_headers.collect(),
        remove_headers: stripped.chain(removed).collect(),
    }
}

fn name_bytes(name: &HeaderName) -> Bytes {
    match name {
        HeaderName::Borrowed(name) => Bytes::from_static(name.as_bytes()),
        HeaderName::Owned(name) => Bytes::from(name.clone()),
    }
}

fn set_header(key: Bytes, value: Bytes) -> HeaderValueOption {
    HeaderValueOption {
        header: Some(HeaderValue {
            key,
            value: Bytes::new(),
            raw_value: value,
        }),
        append_action: OVERWRITE_OR_ADD,
    }
}

fn destination_metadata(destination: &Bytes, scores: &[(String, f64)]) -> Struct {
    let value = |kind| Value { kind: Some(kind) };
    let destination = String::from_utf8_lossy(destination).into_owned();
    let destination = value(Kind::StringValue(destination));
    let mut fields = HashMap::from([(DESTINATION.to_owned(), destination)]);
    if !scores.is_empty() {
        let scores = scores
            .iter()
            .map(|(address, score)| (address.clone(), value(Kind::NumberValue(*score))));
        let scores = Struct {
            fields: scores.collect(),
        };
        fields.insert(SCORES.to_owned(), value(Kind::StructValue(scores)));
    }
    let inner = value(Kind::StructValue(Struct { fields }));
    Struct {
        fields: HashMap::from([(NS_LB.to_owned(), inner)]),
    }
}

fn body_mutation(part: Part) -> Option<BodyMutation> {
    let mutation = match part {
        Part::Kept => return None,
        Part::Replaced(bytes) if bytes.is_empty() => Mutation::ClearBody(true),
        Part::Replaced(bytes) => Mutation::Body(bytes),
        Part::Streamed(Streamed { bytes, end }) => {
            Mutation::StreamedResponse(StreamedBodyResponse {
                body: bytes,
                end_of_stream: end,
            })
        }
    };
    Some(BodyMutation {
        mutation: Some(mutation),
    })
}

fn immediate(reject: &Reject, trace_id: Option<&TraceId>) -> ImmediateResponse {
    let fixed = |name: &'static str, value: &'static str| {
        let bytes = |text: &'static str| Bytes::from_static(text.as_bytes());
        set_header(bytes(name), bytes(value))
    };
    let mut set_headers = vec![fixed("content-type", "application/json")];
    let dropped = reject.dropped_reason();
    set_headers.extend(dropped.map(|reason| {
        let name = Bytes::from_static(DROPPED_REASON.as_bytes());
        set_header(name, reason.into())
    }));
    set_headers.extend(
        reject
            .retry_after()
            .map(|after| fixed("retry-after", after)),
    );
    ImmediateResponse {
        status: Some(HttpStatus {
            code: i32::from(reject.status()),
        }),
        headers: Some(HeaderMutation {
            set_headers,
            remove_headers: Vec::new(),
        }),
        body: reject.body(trace_id).into(),
        details: reject.reason().to_owned(),
    }
}

#[cfg(any(test, feature = "fuzzing"))]
pub(super) mod fuzz;
#[cfg(test)]
mod tests;
