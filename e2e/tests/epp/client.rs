//! A client of Envoy: either version of HTTP, bodies whole or in parts, with trailers, and requests that are given up.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use futures::stream;
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use http_body_util::{BodyExt, Empty, Full, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper_util::client::legacy::{self, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use parking_lot::Mutex;
use testbed::Answer;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use crate::stand::Way;

/// One request, answer included: a hang is a failure, not a wait.
pub(crate) const LIMIT: Duration = Duration::from_mins(1);
/// The model's chats.
pub(crate) const CHAT: &str = "/v1/chat/completions";

type Body = BoxBody<Bytes, Infallible>;

/// Sends requests over kept connections. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Client {
    http1: legacy::Client<HttpConnector, Body>,
    http2: legacy::Client<HttpConnector, Body>,
}

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Payload,
    pub(crate) http2: bool,
}

/// Parts of a body that are still to come.
pub(crate) type Parts = Arc<Mutex<Option<mpsc::Receiver<Bytes>>>>;

/// The body of a request.
#[derive(Clone, Debug)]
pub(crate) enum Payload {
    /// None at all.
    Absent,
    /// Of known length.
    Whole(Bytes),
    /// In parts, of a length that nobody is told.
    Chunked(Vec<Bytes>),
    /// In one part, and trailers behind it.
    WithTrailers(Bytes),
    /// In parts as they come; can be sent once.
    Fed(Parts),
}

// === impl Client ===

impl Client {
    pub(crate) fn new() -> Self {
        let builder = || legacy::Client::builder(TokioExecutor::new());
        Self {
            http1: builder().build_http(),
            http2: builder().http2_only(true).build_http(),
        }
    }

    /// The answer's head; its body is still coming.
    pub(crate) async fn open(&self, way: Way, ask: Ask) -> Result<Response<Incoming>> {
        let Ask {
            method,
            path,
            headers,
            body,
            http2,
        } = ask;
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", way.url()))
            .body(body.into_body())?;
        request.headers_mut().extend(headers);
        let client = if http2 { &self.http2 } else { &self.http1 };
        let response = timeout(LIMIT, client.request(request));
        Ok(response.await.context("no answer in a minute")??)
    }

    pub(crate) async fn send(&self, way: Way, ask: Ask) -> Result<Answer> {
        let begin = Instant::now();
        let (head, body) = self.open(way, ask).await?.into_parts();
        let body = timeout(LIMIT, body.collect());
        let body = body.await.context("no end of the answer in a minute")?;
        Ok(Answer {
            status: head.status,
            headers: head.headers,
            body: body.context("the answer broke off")?.to_bytes(),
            latency: begin.elapsed(),
        })
    }
}

// === impl Ask ===

impl Ask {
    pub(crate) fn get(path: &'static str) -> Self {
        Self {
            method: Method::GET,
            path,
            headers: HeaderMap::new(),
            body: Payload::Absent,
            http2: false,
        }
    }

    pub(crate) fn post(path: &'static str, body: Payload) -> Self {
        Self {
            method: Method::POST,
            body,
            ..Self::get(path)
        }
    }

    pub(crate) fn header(mut self, name: &'static str, value: &str) -> Self {
        let value = HeaderValue::from_str(value).unwrap();
        self.headers.insert(name, value);
        self
    }
}

// === impl Payload ===

impl Payload {
    /// A body whose parts are sent one by one; it ends when the sender is dropped.
    pub(crate) fn fed() -> (mpsc::Sender<Bytes>, Self) {
        let (sender, receiver) = mpsc::channel(4);
        (sender, Self::Fed(Arc::new(Mutex::new(Some(receiver)))))
    }

    /// All bytes of it.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Absent | Self::Fed(_) => Vec::new(),
            Self::Whole(bytes) | Self::WithTrailers(bytes) => bytes.to_vec(),
            Self::Chunked(parts) => parts.concat(),
        }
    }

    fn into_body(self) -> Body {
        let frames = |frames: Vec<Frame<Bytes>>| {
            StreamBody::new(stream::iter(frames.into_iter().map(Ok))).boxed()
        };
        match self {
            Self::Absent => Empty::new().boxed(),
            Self::Whole(bytes) => Full::new(bytes).boxed(),
            Self::Chunked(parts) => frames(parts.into_iter().map(Frame::data).collect()),
            Self::WithTrailers(bytes) => {
                let mut trailers = HeaderMap::new();
                trailers.insert("x-checksum", HeaderValue::from_static("none"));
                frames(vec![Frame::data(bytes), Frame::trailers(trailers)])
            }
            Self::Fed(parts) => {
                let parts = parts.lock().take();
                let parts = stream::unfold(parts, |parts| async {
                    let mut parts = parts?;
                    let part = parts.recv().await?;
                    Some((Ok(Frame::data(part)), Some(parts)))
                });
                StreamBody::new(parts).boxed()
            }
        }
    }
}
