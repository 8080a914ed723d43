//! From a request on the port to its reply.

use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::FutureExt;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version, header,
    request::Parts,
};
use http_body_util::Full;
use http_service::{Bodies, BodyError, BodyLimits, Connection, Handler, Tokens};
use hyper::body::{Body, Incoming};
use processor_api::{
    API_HEADER, API_VERSION, DEADLINE_HEADER, ErrorBody, Keepalive, PrefillComplete, ROUTE_PATH,
    RouteRequest, TOKENS_TYPE, WireError, budget,
};
use serde::Serialize;
use tokio::time::timeout;
use tracing::{debug, error};

use crate::{fault::Fault, service::Service, spans::Spans};

#[cfg(test)]
mod tests;

/// Answers the calls of the port. Cheap to clone.
#[derive(Clone)]
pub struct Calls(Arc<Inner>);

/// Answers the calls of one connection.
#[derive(Clone)]
pub struct OneConnection(Arc<Inner>);

struct Inner {
    service: Service,
    tokens: Option<Tokens>,
    spans: Option<Spans>,
    bodies: Bodies,
    closing: AtomicBool,
    /// Others answer now: callers are to connect anew.
    turns_away: AtomicBool,
}

/// What is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call<'a> {
    Route,
    Keepalive,
    PrefillComplete(&'a str),
    Free(&'a str),
}

/// What is sent.
type Reply = Response<Full<Bytes>>;

/// Four million ids in the binary form, and more than two in JSON; models of today take one.
const BODIES: BodyLimits = BodyLimits {
    max: 16 << 20,
    small: 48 << 10,
    together: 256 << 20,
};

/// For a body. Callers wait for 100 ms.
const DEADLINE: Duration = Duration::from_secs(2);

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const API: HeaderName = HeaderName::from_static(API_HEADER);

// === impl Calls ===

impl Calls {
    /// Calls of this service, by those who have one of the tokens, if there are any. Prompts have spans, if these are
    /// wanted.
    pub fn new(service: Service, tokens: Option<Tokens>, spans: Option<Spans>) -> Self {
        Self(Arc::new(Inner {
            service,
            tokens,
            spans,
            bodies: Bodies::new(BODIES),
            closing: AtomicBool::new(false),
            turns_away: AtomicBool::new(false),
        }))
    }

    /// Whether replies end their connections, so that callers find who answers now.
    pub(crate) fn turn_away(&self, is_so: bool) {
        self.0.turns_away.store(is_so, Relaxed);
    }
}

impl Handler for Calls {
    type Connection = OneConnection;

    fn connection(&self) -> OneConnection {
        OneConnection(Arc::clone(&self.0))
    }

    fn close(&self) {
        self.0.closing.store(true, Relaxed);
    }
}

// === impl OneConnection ===

impl Connection for OneConnection {
    type Body = Full<Bytes>;

    async fn answer(&self, request: Request<Incoming>) -> Reply {
        self.0.answer(request).await
    }
}

// === impl Inner ===

impl Inner {
    async fn answer<B>(&self, request: Request<B>) -> Reply
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let (head, body) = request.into_parts();
        let has_body = !body.is_end_stream();
        let replied = AssertUnwindSafe(self.reply(&head, body))
            .catch_unwind()
            .await;
        let replied = replied.unwrap_or_else(|_| {
            error!(path = head.uri.path(), "a call panicked");
            Err(Fault::Internal)
        });
        let mut ends = self.turns_away.load(Relaxed);
        let mut reply = replied.unwrap_or_else(|fault| {
            debug!(reason = fault.reason(), error = %fault, "refused");
            self.service.metrics().refused(&fault);
            ends |= ends_connection(&fault, has_body);
            refusal(&fault)
        });
        let headers = reply.headers_mut();
        headers.insert(API, HeaderValue::from_static(API_VERSION));
        if ends && head.version < Version::HTTP_2 {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        reply
    }

    async fn reply<B>(&self, head: &Parts, body: B) -> Result<Reply, Fault>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let call = Call::find(&head.method, head.uri.path())?;
        if let Some(tokens) = &self.tokens {
            tokens
                .check(&head.headers)
                .map_err(|_| Fault::Unauthorized)?;
        }
        if self.closing.load(Relaxed) {
            return Err(Fault::ShuttingDown);
        }
        let left = head.headers.get(DEADLINE_HEADER);
        let left = budget(DEADLINE, left.map(HeaderValue::as_bytes));
        let reading = timeout(left, self.bodies.read(body)).await;
        let whole = reading.map_err(|_| Fault::LateBody)??;
        self.run(call, &head.headers, &whole.bytes)
    }

    fn run(&self, call: Call<'_>, headers: &HeaderMap, body: &[u8]) -> Result<Reply, Fault> {
        let service = &self.service;
        let now = service.clock().now();
        match call {
            Call::Route => {
                let routed = parse(headers, body)
                    .and_then(|request| service.route(&request, now, &mut rand::rng()));
                if let Some(spans) = &self.spans {
                    let took = service.clock().now().since(now);
                    spans.routed(headers, &routed, took);
                }
                return Ok(json(StatusCode::OK, &routed?));
            }
            Call::Keepalive => {
                let message = Keepalive::parse(body)?;
                service.keepalive(&message, now)?;
            }
            Call::PrefillComplete(id) => {
                let message: PrefillComplete =
                    serde_json::from_slice(body).map_err(|error| WireError::Json {
                        line: error.line(),
                        column: error.column(),
                    })?;
                service.prefill_complete(id, &message.worker_address, now)?;
            }
            Call::Free(id) => service.free(id, now)?,
        }
        let mut reply = Reply::default();
        *reply.status_mut() = StatusCode::NO_CONTENT;
        Ok(reply)
    }
}

/// The prompt, in the form that the content type names; JSON if it names neither.
fn parse<'a>(headers: &HeaderMap, body: &'a [u8]) -> Result<RouteRequest<'a>, Fault> {
    let kind = headers.get(header::CONTENT_TYPE);
    let kind = kind.and_then(|it| it.to_str().ok()?.split(';').next());
    // a byte each at least: what there is room for bounds the ids
    let most = body.len();
    if kind.is_some_and(|kind| kind.trim().eq_ignore_ascii_case(TOKENS_TYPE)) {
        return Ok(RouteRequest::parse_binary(body, most)?);
    }
    let text =
        str::from_utf8(body).map_err(|_| Fault::BadRequest("the body is no UTF-8".to_owned()))?;
    Ok(RouteRequest::parse_json(text, most)?)
}

fn refusal(fault: &Fault) -> Reply {
    let status = StatusCode::from_u16(fault.status());
    let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut reply = json(status, &ErrorBody::from(fault));
    let header = match fault {
        Fault::Method(allowed) => (header::ALLOW, *allowed),
        Fault::Unauthorized => (header::WWW_AUTHENTICATE, "Bearer"),
        _ if status == StatusCode::TOO_MANY_REQUESTS => (header::RETRY_AFTER, "1"),
        _ => return reply,
    };
    let value = HeaderValue::from_static(header.1);
    reply.headers_mut().insert(header.0, value);
    reply
}

fn json(status: StatusCode, value: &impl Serialize) -> Reply {
    let body = serde_json::to_vec(value);
    debug_assert!(body.is_ok(), "no wire type fails");
    let mut reply = Response::new(Full::new(body.unwrap_or_default().into()));
    *reply.status_mut() = status;
    reply.headers_mut().insert(header::CONTENT_TYPE, JSON);
    reply
}

/// Whether the rest of the request is not read, or no other one is to come.
fn ends_connection(fault: &Fault, has_body: bool) -> bool {
    match fault {
        Fault::TooLarge(_) | Fault::ShuttingDown | Fault::LateBody => true,
        Fault::NotFound | Fault::Method(_) | Fault::Unauthorized => has_body,
        _ => false,
    }
}

// === impl Call ===

impl<'a> Call<'a> {
    fn find(method: &Method, path: &'a str) -> Result<Self, Fault> {
        let rest = path.strip_prefix(ROUTE_PATH).ok_or(Fault::NotFound)?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (call, expected) = match rest.strip_prefix('/') {
            None if rest.is_empty() => (Self::Route, Method::POST),
            None => return Err(Fault::NotFound),
            Some("keepalive") => (Self::Keepalive, Method::POST),
            Some(rest) => match rest.split_once('/') {
                None => (Self::Free(rest), Method::DELETE),
                Some((id, "prefill_complete")) => (Self::PrefillComplete(id), Method::POST),
                Some(_) => return Err(Fault::NotFound),
            },
        };
        if *method == expected {
            Ok(call)
        } else if expected == Method::POST {
            Err(Fault::Method("POST"))
        } else {
            Err(Fault::Method("DELETE"))
        }
    }
}

// === impl Fault ===

impl From<BodyError> for Fault {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::TooLarge { limit } => Self::TooLarge(limit),
            BodyError::Broken => Self::BadRequest(error.to_string()),
        }
    }
}
