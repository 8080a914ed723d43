//! What goes into and comes out of an exchange, in our words.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use scheduling::{Booking, Endpoint, Subset};
use smallvec::SmallVec;
use transcode::Transcoder;

use crate::{
    body::{Api, BodyError, Parsed},
    director::{Learned, NamedSession},
    edit::Edit,
    external::Reservation,
    llm::LlmRequest,
    reject::Reject,
    tap::{ResponseTap, Usage},
};

/// How the proxy sends a body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum BodyMode {
    /// Not at all.
    None,
    /// In chunks, each answered by itself.
    Streamed,
    /// In one message, when complete.
    Buffered,
    /// In one message, cut off at the proxy's limit.
    BufferedPartial,
    /// In chunks; answers come when and how we like.
    #[default]
    FullDuplexStreamed,
}

/// What the proxy says about its body modes in the first message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Modes {
    /// Of the request.
    pub request: BodyMode,
    /// Of the response.
    pub response: BodyMode,
    /// In [`BodyMode::Streamed`]: chunks come before the headers are answered.
    pub body_before_headers_reply: bool,
}

/// Something happened.
#[derive(Debug)]
pub(super) enum Input {
    /// Attributes that came with the next message; before the message itself.
    Context(Context),
    /// The first message named a mode that this EPP does not speak; its number.
    UnknownMode(i32),
    /// Request headers.
    RequestHeaders(RequestHead),
    /// A part of the request body.
    RequestBody(Chunk),
    /// The request's trailers, which end it.
    RequestTrailers,
    /// Response headers.
    ResponseHeaders(ResponseHead),
    /// A part of the response body.
    ResponseBody(Chunk),
    /// The response's trailers, which end it.
    ResponseTrailers,
    /// The answer to [`Output::Read`].
    Read(Result<Parsed, BodyError>),
    /// The answer to [`Output::Decide`] will take a while: it waits in the queue, or for others.
    Queued,
    /// The answer to [`Output::Decide`].
    Decided(Result<Box<Answer>, Reject>),
    /// The moment of [`super::exchange::Exchange::deadline`] is here.
    Timer,
    /// The peer closed its side, reset the stream, or is gone.
    PeerClosed,
    /// The drain is over: this stream must end now.
    Drain,
}

/// Attributes beside a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Context {
    /// The endpoints the proxy allows.
    pub subset: Option<Subset>,
    /// The endpoint that served the response.
    pub served: Option<SocketAddr>,
}

/// What matters of the request headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestHead {
    /// Path with query, as it came: it may be no text.
    pub path: Bytes,
    /// Declared size of the body, in bytes.
    pub content_length: Option<u64>,
    /// Whether `x-request-id` is there.
    pub has_request_id: bool,
    /// All fields, names in lower case.
    pub fields: Vec<(Bytes, Bytes)>,
    /// No body and no trailers follow.
    pub end: bool,
    /// Only in the first message of a stream; else the default mode holds. Of a [`Query`], those that hold.
    pub modes: Option<Modes>,
}

/// What matters of the response headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ResponseHead {
    /// HTTP status; 0 when absent or no number.
    pub status: u16,
    /// It is a stream of events; false where nobody asked.
    pub is_sse: bool,
    /// No body and no trailers follow.
    pub end: bool,
    /// As in [`RequestHead::modes`].
    pub modes: Option<Modes>,
}

/// A part of a body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Chunk {
    /// Its bytes; may be none.
    pub bytes: Bytes,
    /// Nothing follows, not even trailers.
    pub end: bool,
}

/// Something must be done.
#[derive(Debug)]
pub(super) enum Output {
    /// Send this to the proxy.
    Reply(Reply),
    /// Read this body beside the stream's thread, and come back with [`Input::Read`].
    Read(Api, Bytes),
    /// Decide where the request goes, and come back with [`Input::Decided`].
    Decide(Box<Query>),
    /// Count this.
    Observe(Event),
    /// End the stream. The last output ever.
    Close(Close),
}

/// One half of an HTTP exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Client to server.
    Request,
    /// Server to client.
    Response,
}

/// A message for the proxy.
#[derive(Debug, PartialEq)]
pub(super) enum Reply {
    /// To headers.
    Headers(Phase, Option<Box<Route>>),
    /// To a part of a body.
    Body {
        /// Whose.
        phase: Phase,
        /// The pick, in the mode where it comes with the body.
        route: Option<Box<Route>>,
        /// What becomes of the part.
        part: Part,
    },
    /// To trailers.
    Trailers(Phase),
    /// Instead of passing the request on.
    Immediate(Reject),
    /// To none: the answer that the proxy waits for may take so long.
    Wait(Duration),
}

/// What becomes of a part of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The proxy passes on what it has.
    Kept,
    /// It passes on this instead.
    Replaced(Bytes),
    /// It passes on this, in full-duplex mode.
    Streamed(Streamed),
}

/// Bytes to pass on in full-duplex mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Streamed {
    /// At most [`super::exchange::MAX_STREAMED`].
    pub bytes: Bytes,
    /// Nothing follows.
    pub end: bool,
}

/// What the proxy is to do with the headers of a request, or of its response.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Route {
    /// `ip:port[,ip:port]`, best first; only of a request.
    pub destination: Option<Bytes>,
    /// Scores of all candidates, by address; empty where nobody wants them.
    pub scores: Vec<(String, f64)>,
    /// What else changes.
    pub edit: Edit,
}

/// Everything a decision needs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Query {
    /// The request's headers.
    pub head: RequestHead,
    /// The endpoints the proxy allows.
    pub subset: Option<Subset>,
    /// How many endpoints the proxy can try in order.
    pub list: u8,
    /// What the body says; absent: it was not seen, or is not to be read.
    pub parsed: Option<Parsed>,
    /// The path is one whose bodies are read, also where this one was not.
    pub is_inference: bool,
    /// The body, or what of it is held.
    pub body: Bytes,
}

/// A decision.
#[derive(Debug)]
pub(crate) struct Answer {
    /// For the proxy.
    pub route: Route,
    /// The endpoints in it, best first.
    pub endpoints: SmallVec<[Arc<Endpoint>; 1]>,
    /// The request's place at the first of them.
    pub booking: Booking,
    /// Reads the response, and may change its body.
    pub tap: Option<ResponseTap>,
    /// In the place of the tap: the server speaks another protocol than the client.
    pub transcoder: Option<Box<dyn Transcoder>>,
    /// The session that the endpoint serves from now on.
    pub session: Option<NamedSession>,
    /// What of the prompt the endpoint is believed to have cached; absent: nobody looked.
    pub prefix: Option<PrefixMatch>,
    /// What the endpoint will have cached.
    pub learned: Option<Learned>,
    /// Under the LLM filter.
    pub llm: Option<Box<LlmRequest>>,
    /// Of a request that a Processor was asked about.
    pub staged: Option<Box<StagedAnswer>>,
    /// How long the choice took.
    pub scheduling: Duration,
}

/// What the external stage leaves for the time of the response.
#[derive(Debug)]
pub(crate) struct StagedAnswer {
    /// What the Router booked; absent: its worker is not used.
    pub reservation: Option<Reservation>,
    /// Tokens of the prompt, as they were counted.
    pub tokens: Option<u32>,
}

/// What of a prompt is believed to be cached, in tokens as they are estimated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PrefixMatch {
    /// Cached.
    pub cached: u32,
    /// All of the prompt.
    pub prompt: u32,
}

/// Something to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The response that begins is a stream of events.
    Streaming,
    /// The response began, with this status.
    Responding(u16),
    /// The prompt must be computed by now, or is.
    Prefilled,
    /// The first byte of its body came.
    FirstByte,
    /// What it says of its tokens.
    Usage(Usage),
    /// It began well, and turned out to be an error of this status.
    Failed(u16),
    /// The response was served by another endpoint than the first of the list.
    ServedElsewhere {
        /// By which.
        address: SocketAddr,
        /// Whether it is in the list.
        in_list: bool,
    },
    /// The exchange is complete.
    Complete,
}

/// How the gRPC stream ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Close {
    /// In order.
    Done,
    /// The peer broke the protocol; says how.
    InvalidArgument(String),
    /// This EPP goes away before a pick, in the middle of a body or of a response, which cuts its client.
    Unavailable,
}

// === impl RequestHead ===

impl RequestHead {
    /// Whether the method is POST, which comes with a body.
    pub(crate) fn is_post(&self) -> bool {
        self.field(&[":method"]) == Some("POST")
    }

    /// The value of the first of these fields that has one.
    pub(crate) fn field(&self, names: &[&str]) -> Option<&str> {
        let value = |wanted: &&str| {
            let mut fields = self.fields.iter();
            let (_, value) = fields.find(|(name, _)| name == wanted.as_bytes())?;
            std::str::from_utf8(value).ok()
        };
        let mut values = names.iter().filter_map(value);
        values.find(|value| !value.is_empty())
    }
}

// === impl Modes ===

impl Modes {
    /// The same mode both ways.
    pub(super) fn both(mode: BodyMode) -> Self {
        Self {
            request: mode,
            response: mode,
            body_before_headers_reply: false,
        }
    }
}
