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

/// Frames of all requests of one size; made once, so that making them does not take the load's time.
pub struct Script {
    /// One set for each body.
    requests: Vec<RequestBody>,
    response_headers: Bytes,
    events: Vec<Body>,
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

/// Different prompts: what is kept of one is found again now and then.
const BODIES: usize = 150;
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
    pub fn new(size: usize, chunks: Chunks) -> Result<Self> {
        let requests = (0..BODIES).map(|number| RequestBody::new(prompt(number, size), chunks));
        let mut events: Vec<Vec<u8>> = (0..EVENTS).map(event).collect();
        events.push(USAGE.into());
        events.push(b"data: [DONE]\n\n".into());
        events.push(Vec::new());
        let last = events.len() - 1;
        let events = events.into_iter().enumerate();
        let events = events.map(|(at, bytes)| Body::response(bytes, at == last));
        let response = [(":status", "200"), ("content-type", "text/event-stream")];
        Ok(Self {
            requests: requests.collect::<Result<_>>()?,
            response_headers: grpc_frame(&message(Request::ResponseHeaders(headers(&response))))?,
            events: events.collect::<Result<_>>()?,
        })
    }

    /// The body of a request.
    pub(super) fn request(&self, number: usize) -> Option<&RequestBody> {
        self.requests.get(number % self.requests.len().max(1))
    }

    pub(super) fn response_headers(&self) -> Bytes {
        self.response_headers.clone()
    }

    /// Bodies of the response, in order; the last is the end.
    pub(super) fn events(&self) -> &[Body] {
        &self.events
    }
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

/// A chat of exactly this many bytes, or of the fewest that are a chat; no two begin the same prompt.
fn prompt(number: usize, size: usize) -> Vec<u8> {
    let head = format!(
        r#"{{"model":"m","stream":true,"messages":[{{"role":"user","content":"{number:04} "#
    );
    let tail = r#""}]}"#;
    let words = "the quick brown fox jumps over the lazy dog "
        .bytes()
        .cycle();
    let filling = size.saturating_sub(head.len() + tail.len());
    let text = head.bytes().chain(words.take(filling));
    text.chain(tail.bytes()).collect()
}

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
            let script = Script::new(size, chunks).unwrap();
            let frames = script.request(0).unwrap().frames.iter();
            let bodies = frames.map(|frame| match decoded(frame).request {
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
    fn bodies_are_different_chats_and_have_their_size() {
        let (first, second) = (prompt(0, 1000), prompt(1, 1000));
        assert_eq!((first.len(), second.len()), (1000, 1000));
        assert_ne!(first, second);
        let chat: serde_json::Value = serde_json::from_slice(&first).unwrap();
        assert_eq!(chat["model"], "m");
        assert_eq!(event(7).len(), EVENT);
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
