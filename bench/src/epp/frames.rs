//! What Envoy 1.40 sends on one stream of ext_proc in `FULL_DUPLEX_STREAMED`.

use anyhow::Result;
use bytes::Bytes;
use envoy_types::pb::envoy::{
    config::core::v3::{HeaderMap, HeaderValue},
    extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode,
    service::ext_proc::v3::{
        HttpBody, HttpHeaders, ProcessingRequest, ProtocolConfiguration,
        processing_request::Request,
    },
};

use crate::grpc::grpc_frame;

/// How the proxy cuts a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunks {
    /// A buffer of 1 MiB: one chunk, and an empty one with the end.
    Whole,
    /// Buffers of 32 KiB.
    Buffers,
}

/// What prompts share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prompts {
    /// 150 long beginnings with five short ends each, again and again.
    Groups,
    /// Nothing: no two have a first block in common.
    Unique,
}

/// Requests of one size, and the responses to them.
pub struct Script {
    size: usize,
    chunks: Chunks,
    prompts: Prompts,
    streamed: Response,
    whole: Response,
}

/// A response in its messages.
pub(super) struct Response {
    pub(super) headers: Bytes,
    /// Bodies in order; the last is the end.
    pub(super) bodies: Vec<Body>,
}

/// A body, as it is sent and as it must come back.
pub(super) struct Body {
    pub(super) bytes: Bytes,
    pub(super) frame: Bytes,
    pub(super) end: bool,
}

/// A request body in its chunks; the last is empty and the end.
pub(super) struct RequestBody {
    pub(super) bytes: Bytes,
    pub(super) frames: Vec<Bytes>,
    pub(super) end: Bytes,
}

/// Beginnings, and the ends of each.
const GROUPS: usize = 150;
const ENDS: usize = 5;
/// One request in so many wants its answer whole.
const WHOLE_EACH: usize = 5;
/// Envoy fills its buffers up to here.
const BUFFER: usize = 32_600;
/// A stream of server-sent events: so many of these bytes, then usage and the end.
const EVENTS: usize = 20;
const EVENT: usize = 141;

// === impl Script ===

impl Script {
    /// Requests with bodies of this many bytes.
    /// # Errors
    /// When a message cannot be encoded.
    pub fn new(size: usize, chunks: Chunks, prompts: Prompts) -> Result<Self> {
        let mut events: Vec<Vec<u8>> = (0..EVENTS).map(event).collect();
        events.push(USAGE.into());
        events.push(b"data: [DONE]\n\n".into());
        Ok(Self {
            size,
            chunks,
            prompts,
            streamed: Response::new("text/event-stream", events)?,
            whole: Response::new("application/json", vec![ANSWER.into()])?,
        })
    }

    /// The body of a request; made when it is sent, for a few of 4 MB are all that fits into memory.
    pub(super) fn request(&self, number: usize) -> Result<RequestBody> {
        let (group, end) = match self.prompts {
            Prompts::Groups => (number % GROUPS, number / GROUPS % ENDS),
            Prompts::Unique => (number, 0),
        };
        let prompt = prompt(group, end, wants_events(number), self.size);
        RequestBody::new(prompt, self.chunks)
    }

    /// The response to a request.
    pub(super) fn response(&self, number: usize) -> &Response {
        if wants_events(number) {
            &self.streamed
        } else {
            &self.whole
        }
    }
}

// === impl Response ===

impl Response {
    fn new(content_type: &str, mut bodies: Vec<Vec<u8>>) -> Result<Self> {
        bodies.push(Vec::new());
        let last = bodies.len() - 1;
        let bodies = bodies.into_iter().enumerate();
        let bodies = bodies.map(|(at, bytes)| Body::response(bytes, at == last));
        let head = [(":status", "200"), ("content-type", content_type)];
        Ok(Self {
            headers: grpc_frame(&message(Request::ResponseHeaders(headers(&head))))?,
            bodies: bodies.collect::<Result<_>>()?,
        })
    }
}

/// Whether a request wants its answer as events, as four in five do.
fn wants_events(number: usize) -> bool {
    !number.is_multiple_of(WHOLE_EACH)
}

/// The first message of a stream; no two are the same.
pub(super) fn request_headers(number: usize) -> Result<Bytes> {
    let id = format!("5f6c0a52-7d1e-4a3b-9c00-{number:012x}");
    let mut all = vec![("x-request-id", id.as_str())];
    all.extend(HEADERS);
    let mode = BodySendMode::FullDuplexStreamed.into();
    let protocol_config = Some(ProtocolConfiguration {
        request_body_mode: mode,
        response_body_mode: mode,
        ..ProtocolConfiguration::default()
    });
    grpc_frame(&ProcessingRequest {
        protocol_config,
        ..message(Request::RequestHeaders(headers(&all)))
    })
}

/// With the request id 20, as a proxy passes them on.
const HEADERS: [(&str, &str); 19] = [
    (":authority", "models.example.com"),
    (":path", "/v1/chat/completions"),
    (":method", "POST"),
    (":scheme", "https"),
    ("accept", "text/event-stream"),
    ("accept-encoding", "gzip, deflate, br"),
    ("accept-language", "en"),
    ("authorization", "Bearer 0123456789abcdef0123456789abcdef"),
    ("content-type", "application/json"),
    ("user-agent", "OpenAI/Python 1.99.0"),
    ("x-envoy-expected-rq-timeout-ms", "300000"),
    ("x-envoy-external-address", "203.0.113.9"),
    ("x-forwarded-for", "203.0.113.9"),
    ("x-forwarded-proto", "https"),
    ("x-stainless-arch", "x64"),
    ("x-stainless-lang", "python"),
    ("x-stainless-os", "Linux"),
    ("x-stainless-retry-count", "0"),
    ("x-stainless-runtime", "CPython"),
];

const USAGE: &[u8] = b"data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"model\":\"m\",\"choices\":[],\"usage\":{\"prompt_tokens\":256,\"completion_tokens\":20,\"total_tokens\":276}}\n\n";
const ANSWER: &[u8] = b"{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion\",\"model\":\"m\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"The dog sleeps, and the fox is quick: what one of them saw of the other nobody knows.\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":256,\"completion_tokens\":20,\"total_tokens\":276}}";

// === impl RequestBody ===

impl RequestBody {
    fn new(bytes: Vec<u8>, chunks: Chunks) -> Result<Self> {
        let most = match chunks {
            Chunks::Whole => bytes.len().max(1),
            Chunks::Buffers => BUFFER,
        };
        let frame = |chunk: &[u8], end| {
            let body = body(chunk.to_vec(), end);
            grpc_frame(&message(Request::RequestBody(body)))
        };
        let frames = bytes.chunks(most).map(|chunk| frame(chunk, false));
        Ok(Self {
            frames: frames.collect::<Result<_>>()?,
            end: frame(&[], true)?,
            bytes: bytes.into(),
        })
    }
}

// === impl Body ===

impl Body {
    fn response(bytes: Vec<u8>, end: bool) -> Result<Self> {
        let message = message(Request::ResponseBody(body(bytes.clone(), end)));
        Ok(Self {
            bytes: bytes.into(),
            frame: grpc_frame(&message)?,
            end,
        })
    }
}

fn message(request: Request) -> ProcessingRequest {
    ProcessingRequest {
        request: Some(request),
        ..ProcessingRequest::default()
    }
}

fn headers(all: &[(&str, &str)]) -> HttpHeaders {
    let header = |(key, value): &(&str, &str)| HeaderValue {
        key: (*key).to_owned(),
        raw_value: (*value).into(),
        ..HeaderValue::default()
    };
    let headers = all.iter().map(header).collect();
    HttpHeaders {
        headers: Some(HeaderMap { headers }),
        ..HttpHeaders::default()
    }
}

fn body(body: Vec<u8>, end_of_stream: bool) -> HttpBody {
    HttpBody {
        body,
        end_of_stream,
        ..HttpBody::default()
    }
}

/// A chat of exactly this many bytes, or of the fewest that are a chat: the beginning of its group, filling, its own end.
fn prompt(group: usize, end: usize, stream: bool, size: usize) -> Vec<u8> {
    let head = format!(
        r#"{{"model":"m","stream":{stream},"messages":[{{"role":"user","content":"{group:08} "#
    );
    let tail = format!(r#" {end}"}}]}}"#);
    let filling = size.saturating_sub(head.len() + tail.len());
    let mut all = Vec::with_capacity(size);
    all.extend_from_slice(head.as_bytes());
    while all.len() < head.len() + filling {
        let left = head.len() + filling - all.len();
        all.extend_from_slice(&WORDS[..WORDS.len().min(left)]);
    }
    all.extend_from_slice(tail.as_bytes());
    all
}

const WORDS: &[u8] = b"the quick brown fox jumps over the lazy dog ";

fn event(number: usize) -> Vec<u8> {
    let mut event = format!(
        r#"data: {{"id":"chatcmpl-1","object":"chat.completion.chunk","model":"m","choices":[{{"index":0,"delta":{{"content":"{number:03}"#
    )
    .into_bytes();
    let tail = b"\"}}]}\n\n";
    event.resize(EVENT - tail.len(), b'.');
    event.extend_from_slice(tail);
    event
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    fn decoded(frame: &Bytes) -> ProcessingRequest {
        ProcessingRequest::decode(frame.slice(5..)).unwrap()
    }

    #[test]
    fn chunks_are_those_of_the_proxy() {
        let sizes = |size, chunks| -> Vec<usize> {
            let script = Script::new(size, chunks, Prompts::Groups).unwrap();
            let request = script.request(0).unwrap();
            let bodies = request
                .frames
                .iter()
                .map(|frame| match decoded(frame).request {
                    Some(Request::RequestBody(body)) => body.body.len(),
                    _ => 0,
                });
            bodies.collect()
        };
        assert_eq!(sizes(40_028, Chunks::Buffers), [32_600, 7428]);
        assert_eq!(sizes(220_000, Chunks::Buffers).len(), 7);
        assert_eq!(sizes(400_000, Chunks::Whole), [400_000]);
    }

    #[test]
    fn groups_share_all_but_the_end_and_unique_prompts_nothing() {
        let content = |prompts, number| {
            let script = Script::new(1000, Chunks::Whole, prompts).unwrap();
            let bytes = script.request(number).unwrap().bytes;
            assert_eq!(bytes.len(), 1000);
            let chat: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
            assert_eq!(chat["model"], "m");
            chat["messages"][0]["content"].as_str().unwrap().to_owned()
        };
        let shared = |one: &str, other: &str| {
            let pairs = one.bytes().zip(other.bytes());
            pairs.take_while(|(one, other)| one == other).count()
        };
        let group = |number| content(Prompts::Groups, number);
        assert!(shared(&group(1), &group(1 + GROUPS)) > 900);
        assert!(shared(&group(1), &group(2)) < 10);
        assert_eq!(group(2), group(2 + GROUPS * ENDS));
        let unique = |number| content(Prompts::Unique, number);
        assert!(shared(&unique(1), &unique(1 + GROUPS * ENDS)) < 10);
        assert_eq!(event(7).len(), EVENT);
    }

    #[test]
    fn one_request_in_five_wants_its_answer_whole_and_gets_it_so() {
        let script = Script::new(500, Chunks::Whole, Prompts::Groups).unwrap();
        let whole = (0..100).filter(|number| {
            let body = script.request(*number).unwrap().bytes;
            let chat: serde_json::Value = serde_json::from_slice(&body).unwrap();
            let bodies = script.response(*number).bodies.len();
            assert_eq!(
                bodies,
                if chat["stream"] == true {
                    EVENTS + 3
                } else {
                    2
                }
            );
            chat["stream"] == false
        });
        assert_eq!(whole.count(), 20);
        assert!(serde_json::from_slice::<serde_json::Value>(ANSWER).is_ok());
    }

    #[test]
    fn the_first_message_has_20_headers_in_raw_values_and_the_modes() {
        let (first, second) = (request_headers(1).unwrap(), request_headers(2).unwrap());
        assert_ne!(first, second);
        let message = decoded(&first);
        assert!(message.protocol_config.is_some());
        let Some(Request::RequestHeaders(headers)) = message.request else {
            panic!("no headers")
        };
        assert!(!headers.end_of_stream);
        let headers = headers.headers.unwrap().headers;
        assert_eq!(headers.len(), 20);
        assert!(headers.iter().all(|header| header.value.is_empty()));
    }
}
