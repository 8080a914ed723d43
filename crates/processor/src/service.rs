//! From a request of the port to its response.

use std::{
    fmt,
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::FutureExt;
use http::{Request, StatusCode, Version, request::Parts};
use http_body_util::Full;
use http_call::CallError;
use http_service::{Bodies, BodyError, BodyLimits, Connection, Handler, Tokens, Whole};
use hyper::body::{Body, Incoming};
use processor_api::{DEADLINE_HEADER, Keepalive, PrefillComplete, ProcessReply, Refusal, budget};
use token_cache::Store;
use tokenization::Api;
use tokio::time::{Instant, timeout_at};
use tracing::{debug, error};

use crate::{
    metrics::{Metrics, Outcome, Relayed},
    path::Path,
    reply::{Fault, Reply, empty, json},
    router::{LifeMessage, Router},
    steps::{Failure, Steps},
};

/// For one call, from its head to its reply, unless its caller has less.
const DEADLINE: Duration = Duration::from_secs(5);

/// For a message of a booking's life, likewise.
const LIFE_DEADLINE: Duration = Duration::from_secs(1);

/// What comes with the client's body in a call: 1024 candidates and the client's headers.
const BESIDE_BODY: usize = 1 << 20;

/// A body of up to so many bytes is read without asking: 160 MiB for the most connections that there can be.
const SMALL_BODY: usize = 16 << 10;

/// Larger ones: so many of the largest at once.
const LARGE_BODIES: usize = 16;

/// The service without its port. Cheap to clone.
#[derive(Clone)]
pub struct Service(Arc<Inner>);

/// What a service is made of.
#[derive(Debug)]
pub struct Settings {
    /// What answers calls.
    pub steps: Steps<Router, Store>,
    /// Callers need one of these.
    pub tokens: Option<Tokens>,
}

struct Inner {
    steps: Steps<Router, Store>,
    tokens: Option<Tokens>,
    bodies: Bodies,
    closing: AtomicBool,
}

/// A call that is counted whatever becomes of it.
struct Counted<'a> {
    metrics: &'a Metrics,
    outcome: Outcome,
}

// === impl Service ===

impl Service {
    /// A service of these steps.
    pub fn new(settings: Settings) -> Self {
        let Settings { steps, tokens } = settings;
        let max = steps.shared.max_prompt_bytes.saturating_add(BESIDE_BODY);
        let limits = BodyLimits {
            max,
            small: SMALL_BODY,
            together: max.saturating_mul(LARGE_BODIES),
        };
        Self(Arc::new(Inner {
            steps,
            tokens,
            bodies: Bodies::new(limits),
            closing: AtomicBool::new(false),
        }))
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").finish_non_exhaustive()
    }
}

impl Handler for Service {
    type Connection = Self;

    fn connection(&self) -> Self {
        self.clone()
    }

    fn close(&self) {
        self.0.closing.store(true, Relaxed);
    }
}

impl Connection for Service {
    type Body = Full<Bytes>;

    async fn answer(&self, request: Request<Incoming>) -> Reply {
        let (head, body) = request.into_parts();
        let has_body = !body.is_end_stream();
        let answering = AssertUnwindSafe(self.0.answer(&head, body)).catch_unwind();
        let answered = answering.await.unwrap_or_else(|_| {
            error!("a call panicked");
            Err(Fault::Internal)
        });
        answered.unwrap_or_else(|fault| {
            // its message may repeat what the client sent, and a path may have a key of the other port
            debug!(reason = fault.reason(), "refused");
            let unread =
                has_body && !matches!(fault, Fault::Refused(_) | Fault::UnknownReservation);
            let ends = unread || self.0.closing.load(Relaxed);
            fault.reply(ends && head.version < Version::HTTP_2)
        })
    }
}

// === impl Inner ===

impl Inner {
    async fn answer(&self, head: &Parts, body: Incoming) -> Result<Reply, Fault> {
        let begun = Instant::now();
        let path = Path::find(&head.method, head.uri.path())?;
        if let Some(tokens) = &self.tokens {
            let allowed = tokens.check(&head.headers);
            allowed.map_err(|_| Fault::Unauthorized)?;
        }
        let counted = match path {
            Path::Process | Path::Render(_) => Some(Counted::begin(&self.steps.shared.metrics)),
            _ => None,
        };
        let own = if counted.is_some() {
            DEADLINE
        } else {
            LIFE_DEADLINE
        };
        let left = head.headers.get(DEADLINE_HEADER);
        let deadline = begun + budget(own, left.map(http::HeaderValue::as_bytes));
        let answered = self.answer_by(path, body, deadline).await;
        if let Some(counted) = counted {
            counted.end(&answered);
        }
        answered.map(|(reply, _)| reply)
    }

    /// The response, and whether it is all that was asked for.
    async fn answer_by(
        &self,
        path: Path,
        body: Incoming,
        deadline: Instant,
    ) -> Result<(Reply, bool), Fault> {
        if self.closing.load(Relaxed) {
            return Err(Refusal::NotReady.into());
        }
        let whole = self.body(body, deadline).await?;
        let body = whole.bytes.clone();
        match path {
            Path::Process => {
                let reply = self.steps.process(body, deadline).await?;
                Ok((of_reply(&reply), reply.degraded.is_empty()))
            }
            Path::Render(api) => {
                let ids = self.steps.render(api, body, deadline).await?;
                // as vLLM: a completion may have several prompts there
                let body = match api {
                    Api::Chat => format!("{{\"token_ids\":{ids}}}"),
                    Api::Completions => format!("[{{\"token_ids\":{ids}}}]"),
                };
                Ok((json(StatusCode::OK, body.into()), true))
            }
            Path::PrefillComplete(id) => {
                let parsed = serde_json::from_slice::<PrefillComplete>(&body);
                parsed.map_err(|_| bad("expected worker_address"))?;
                let message = LifeMessage::PrefillComplete(id, body);
                self.pass_on(message, deadline).await
            }
            Path::End(id) => self.pass_on(LifeMessage::End(id), deadline).await,
            Path::Keepalive => {
                let parsed = Keepalive::parse(&body);
                parsed.map_err(|error| bad(&error.to_string()))?;
                self.pass_on(LifeMessage::Keepalive(body), deadline).await
            }
        }
    }

    /// To the Router. Without one there are no bookings.
    async fn pass_on(
        &self,
        message: LifeMessage,
        deadline: Instant,
    ) -> Result<(Reply, bool), Fault> {
        let passed = match &self.steps.router {
            Some(router) => {
                let within = deadline.duration_since(Instant::now());
                router.pass_on(message, within).await
            }
            None => Ok(StatusCode::NOT_FOUND),
        };
        let (how, answer) = match passed {
            Ok(status) if status.is_success() => {
                (Relayed::Ok, Ok((empty(StatusCode::NO_CONTENT), true)))
            }
            Ok(StatusCode::NOT_FOUND) => (Relayed::Unknown, Err(Fault::UnknownReservation)),
            Err(CallError::Late) => (Relayed::Failed, Err(Fault::LateRouter)),
            Ok(_) | Err(_) => (Relayed::Failed, Err(Fault::NoRouter)),
        };
        self.steps.shared.metrics.relayed(how);
        answer
    }

    async fn body(&self, body: Incoming, deadline: Instant) -> Result<Whole<'_>, Fault> {
        let reading = timeout_at(deadline, self.bodies.read(body)).await;
        match reading {
            Ok(Ok(whole)) => Ok(whole),
            Ok(Err(BodyError::TooLarge { .. })) => {
                let limit = self.steps.shared.max_prompt_bytes;
                let flag = "--max-prompt-bytes";
                Err(Refusal::TooLarge { limit, flag }.into())
            }
            Ok(Err(BodyError::Broken)) | Err(_) => Err(Fault::LateBody),
        }
    }
}

fn of_reply(reply: &ProcessReply) -> Reply {
    json(StatusCode::OK, reply.encode())
}

fn bad(message: &str) -> Fault {
    Refusal::BadRequest(message.to_owned()).into()
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(refusal) => Self::Refused(refusal),
            Failure::Internal => Self::Internal,
        }
    }
}

// === impl Counted ===

impl<'a> Counted<'a> {
    fn begin(metrics: &'a Metrics) -> Self {
        Self {
            metrics,
            outcome: Outcome::GivenUp,
        }
    }

    fn end(mut self, answered: &Result<(Reply, bool), Fault>) {
        self.outcome = match answered {
            Ok((_, true)) => Outcome::Ok,
            Ok((_, false)) => Outcome::Degraded,
            Err(Fault::Refused(refusal)) => Outcome::Refused(refusal.reason()),
            Err(Fault::LateBody) => Outcome::LateBody,
            Err(_) => Outcome::Internal,
        };
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.metrics.ended(self.outcome);
    }
}
