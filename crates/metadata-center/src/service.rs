//! From a request to its reply, whatever the connection.

use std::{
    fmt,
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::Router;
use bytes::Bytes;
use futures::FutureExt;
use http::{HeaderValue, Method, Request, Version, header, request::Parts};
use http_body_util::{BodyExt, Full};
use http_service::{Bodies, BodyError, BodyLimits, Connection, Handler, Tokens};
use hyper::body::{Body, Incoming};
use metadata::Fault;
use tokio::{
    runtime::Handle,
    task::JoinSet,
    time::{Instant, timeout_at},
};
use tower::ServiceExt;
use tracing::{debug, error};

use crate::{
    call::{self, Accepts},
    engine::{BootId, Engine},
    metrics::Metrics,
    openapi::DOCUMENT,
    query::Query,
    reply::{Reply, X_METADATA_BOOT, document, page, refusal, success},
    route::{self, Call, Found},
    trace_id::{TraceId, X_TRACE_ID},
};

/// For one request, from its head to its reply. Callers wait for 500 ms at most.
const DEADLINE: Duration = Duration::from_secs(2);

/// The largest body: a batch of 256 changes takes some 40 KiB, a prompt of 8192 chunks 170 KiB, a full batch of 20,000
/// charges 2 MiB.
const BODIES: BodyLimits = BodyLimits {
    max: 4 << 20,
    small: 16 << 10,
    together: 64 << 20,
};

/// The service without its port. Cheap to clone.
pub struct Service<E>(Arc<Inner<E>>);

/// What a service is made of beside its state.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Take hashes of chunks joined by commas, as some clients send.
    pub accept_joined_hashes: bool,
    /// `/metrics`, `/healthz` and `/readyz`.
    pub probes: Router,
    /// Where requests are counted.
    pub metrics: Metrics,
    /// Callers need one of these.
    pub tokens: Option<Tokens>,
}

struct Inner<E> {
    engine: Arc<E>,
    accepts: Accepts,
    probes: Router,
    metrics: Metrics,
    tokens: Option<Tokens>,
    /// Where probes are answered: a page of metrics takes longer than thousands of calls.
    aside: Handle,
    bodies: Bodies,
    closing: AtomicBool,
}

/// The service for one connection, so that its requests share nothing that changes with those of others.
#[derive(Debug)]
pub struct OneConnection<E> {
    service: Service<E>,
    boot: (BootId, HeaderValue),
}

// === impl Service ===

impl<E: Engine> Service<E> {
    /// A service of this state. To be called in the runtime that answers probes.
    pub fn new(engine: Arc<E>, settings: Settings) -> Self {
        let Settings {
            accept_joined_hashes: joined_hashes,
            probes,
            metrics,
            tokens,
        } = settings;
        Self(Arc::new(Inner {
            engine,
            accepts: Accepts { joined_hashes },
            probes,
            metrics,
            tokens,
            aside: Handle::current(),
            bodies: Bodies::new(BODIES),
            closing: AtomicBool::new(false),
        }))
    }
}

impl<E: Engine> Handler for Service<E> {
    type Connection = OneConnection<E>;

    fn connection(&self) -> OneConnection<E> {
        let boot = self.0.engine.boot();
        OneConnection {
            service: self.clone(),
            boot: (boot, header_of(boot)),
        }
    }

    fn close(&self) {
        self.0.closing.store(true, Ordering::Relaxed);
    }
}

impl<E> Clone for Service<E> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<E> fmt::Debug for Service<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").finish_non_exhaustive()
    }
}

// === impl OneConnection ===

impl<E: Engine> Connection for OneConnection<E> {
    type Body = Full<Bytes>;

    async fn answer(&self, request: Request<Incoming>) -> Reply {
        let begun = Instant::now();
        let deadline = begun + DEADLINE;
        let (head, body) = request.into_parts();
        let trace_id = TraceId::of(&head.headers);
        let has_body = !body.is_end_stream();
        let found = route::find(&head.method, head.uri.path());
        let route = self.service.0.metrics.route(found.as_ref().ok());
        let replied = match found {
            Ok(found) => {
                let query = Query::of(head.uri.query());
                let replying = self.reply(&head, &found, query, body, &trace_id, deadline);
                let replied = AssertUnwindSafe(replying).catch_unwind().await;
                replied.unwrap_or_else(|_| {
                    error!(trace_id = trace_id.as_str(), call = ?found.call, "a call panicked");
                    Err(Fault::Internal)
                })
            }
            Err(fault) => Err(fault),
        };
        let mut reply = replied.unwrap_or_else(|fault| {
            let reason = fault.reason();
            debug!(trace_id = trace_id.as_str(), reason, error = %fault, "refused");
            let mut reply = refusal(&fault, &trace_id);
            if head.version < Version::HTTP_2 && ends_connection(&fault, has_body) {
                let close = HeaderValue::from_static("close");
                reply.headers_mut().insert(header::CONNECTION, close);
            }
            reply
        });
        let headers = reply.headers_mut();
        headers.insert(X_TRACE_ID, trace_id.to_header());
        headers.insert(X_METADATA_BOOT, self.boot());
        route.replied(reply.status(), begun.elapsed());
        reply
    }
}

impl<E: Engine> OneConnection<E> {
    async fn reply(
        &self,
        head: &Parts,
        found: &Found<'_>,
        query: Query<'_>,
        body: Incoming,
        trace_id: &TraceId,
        deadline: Instant,
    ) -> Result<Reply, Fault> {
        let service = &*self.service.0;
        let path = match found.call {
            Call::Metrics => "/metrics",
            Call::Healthz => "/healthz",
            Call::Readyz => "/readyz",
            Call::OpenApi => return Ok(document(DOCUMENT)),
            _ => {
                if let Some(tokens) = &service.tokens {
                    tokens
                        .check(&head.headers)
                        .map_err(|_| Fault::Unauthorized)?;
                }
                if service.closing.load(Ordering::Relaxed) {
                    return Err(Fault::ShuttingDown);
                }
                let none = body.is_end_stream();
                let whole = if none {
                    None
                } else {
                    let reading = timeout_at(deadline, service.bodies.read(body)).await;
                    Some(reading.map_err(|_| late_body())?.map_err(of_body)?)
                };
                let empty = Bytes::new();
                let body = whole.as_ref().map_or(&empty, |whole| &whole.bytes);
                let request = call::Request { found, query, body };
                let running = request.run(&*service.engine, service.accepts, &service.metrics);
                let data = timeout_at(deadline, running).await;
                let data = data.map_err(|_| {
                    service.metrics.engine_failed();
                    late_engine()
                })??;
                return Ok(success(&data, trace_id));
            }
        };
        self.probe(&head.method, path).await
    }

    /// Aside, so that calls on this thread do not wait for the page.
    async fn probe(&self, method: &Method, path: &'static str) -> Result<Reply, Fault> {
        let service = &*self.service.0;
        let mut request = Request::new(axum::body::Body::empty());
        *request.method_mut() = method.clone();
        *request.uri_mut() = http::Uri::from_static(path);
        let answering = service.probes.clone().oneshot(request);
        let mut aside = JoinSet::new();
        aside.spawn_on(
            async {
                let Ok(reply) = answering.await;
                let (head, body) = reply.into_parts();
                let body = body.collect().await.ok()?.to_bytes();
                Some((head, body))
            },
            &service.aside,
        );
        let answered = aside.join_next().await.and_then(Result::ok).flatten();
        let (mut head, body) = answered.ok_or(Fault::Internal)?;
        let kind = head.headers.remove(header::CONTENT_TYPE);
        Ok(page(head.status, kind, body))
    }

    fn boot(&self) -> HeaderValue {
        let (known, header) = &self.boot;
        let boot = self.service.0.engine.boot();
        if boot == *known {
            header.clone()
        } else {
            header_of(boot)
        }
    }
}

/// Whether the rest of the request is not read, or no other one is to come.
fn ends_connection(fault: &Fault, has_body: bool) -> bool {
    match fault {
        Fault::TooLarge { .. } | Fault::ShuttingDown => true,
        Fault::NotFound(_) | Fault::Method { .. } | Fault::Unauthorized => has_body,
        _ => *fault == late_body(),
    }
}

fn of_body(error: BodyError) -> Fault {
    match error {
        BodyError::TooLarge { limit } => Fault::TooLarge { limit },
        BodyError::Broken => Fault::invalid("body", "it ended early"),
    }
}

fn late_body() -> Fault {
    Fault::invalid("body", format!("it was not there within {DEADLINE:?}"))
}

fn late_engine() -> Fault {
    Fault::BackendUnavailable(format!("nothing within {DEADLINE:?}"))
}

fn header_of(boot: BootId) -> HeaderValue {
    let text = boot.to_string();
    HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static(""))
}
