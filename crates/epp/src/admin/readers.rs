//! Who may read the metrics port, by the bearer token of each request.

use std::{collections::HashMap, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{Request, State},
    http::{HeaderMap, StatusCode, header},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
};
use parking_lot::Mutex;
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};
use tracing::warn;

use super::review::{Question, Reviewer, Verdict};

/// Probes have no token.
const OPEN_PATHS: [&str; 2] = ["/healthz", "/readyz"];

/// One answer takes two calls. A scrape waits 10 s at most.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(5);

/// Reviews at once: with more, a flood of invented tokens becomes one of the API server.
const REVIEWS: usize = 8;

/// How long a reader is let in without being asked for again: four scrapes of a common interval.
const ALLOWED_FOR: Duration = Duration::from_mins(1);

/// How long one is refused without being asked for again; short, as rights are often given after the first refusal.
const REFUSED_FOR: Duration = Duration::from_secs(10);

/// Verdicts of each kind that are remembered: more than there are readers.
const REMEMBERED: usize = 256;

/// 8 KiB: several times the longest token that Kubernetes issues.
const MAX_TOKEN: usize = 8 * 1024;

/// Lets in readers who the API server says may read, and remembers that for a while. Without an answer nobody is let in.
pub(crate) struct Readers {
    reviewer: Reviewer,
    reviews: Semaphore,
    verdicts: Mutex<Verdicts>,
}

/// What was said lately. Those let in and those refused are apart, so that strangers push out no reader.
#[derive(Debug, Default)]
struct Verdicts {
    allowed: Remembered<()>,
    refused: Remembered<Verdict>,
}

/// At most [`REMEMBERED`] values, each until its time.
#[derive(Debug)]
struct Remembered<T>(HashMap<Question, (T, Instant)>);

/// Why a request is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// No token, or one that is nobody's.
    Unauthenticated,
    /// Its owner may not read this.
    Forbidden,
    /// Nobody can say.
    Unavailable,
}

// === impl Readers ===

impl Readers {
    pub(crate) fn new(reviewer: Reviewer) -> Self {
        Self {
            reviewer,
            reviews: Semaphore::new(REVIEWS),
            verdicts: Mutex::default(),
        }
    }

    /// The same paths, for those who may read them. Paths that are not served are nobody's secret.
    pub(crate) fn guard(self, router: Router) -> Router {
        router.route_layer(from_fn_with_state(Arc::new(self), check))
    }

    async fn judge(&self, question: Question) -> Result<(), Refusal> {
        let known = self.verdicts.lock().get(&question, Instant::now());
        let verdict = match known {
            Some(verdict) => verdict,
            None => self.review(question).await?,
        };
        match verdict {
            Verdict::Allowed => Ok(()),
            Verdict::Unknown => Err(Refusal::Unauthenticated),
            Verdict::Forbidden => Err(Refusal::Forbidden),
        }
    }

    /// Asks the API server, once it is this question's turn.
    async fn review(&self, question: Question) -> Result<Verdict, Refusal> {
        let asking = async {
            // never closed
            let _turn = self.reviews.acquire().await.ok();
            self.reviewer.ask(&question).await
        };
        match timeout(REVIEW_TIMEOUT, asking).await {
            Ok(Ok(verdict)) => {
                let now = Instant::now();
                self.verdicts.lock().insert(question, verdict, now);
                Ok(verdict)
            }
            Ok(Err(error)) => {
                warn!(path = question.path, %error, "a reader of metrics is refused");
                Err(Refusal::Unavailable)
            }
            Err(_) => {
                warn!(
                    path = question.path,
                    "a reader of metrics is refused: the API server does not answer"
                );
                Err(Refusal::Unavailable)
            }
        }
    }
}

async fn check(State(readers): State<Arc<Readers>>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    if OPEN_PATHS.contains(&path) {
        return next.run(request).await;
    }
    let judged = match token(request.headers()) {
        Some(token) => {
            let question = Question {
                token: token.to_owned(),
                verb: request.method().as_str().to_ascii_lowercase(),
                path: path.to_owned(),
            };
            readers.judge(question).await
        }
        None => Err(Refusal::Unauthenticated),
    };
    match judged {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

/// The token of `authorization: Bearer TOKEN`, if it can be one.
fn token(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    let good = scheme.eq_ignore_ascii_case("bearer") && !token.is_empty();
    (good && token.len() <= MAX_TOKEN).then_some(token)
}

// === impl Verdicts ===

impl Verdicts {
    fn get(&self, question: &Question, now: Instant) -> Option<Verdict> {
        match self.allowed.get(question, now) {
            Some(()) => Some(Verdict::Allowed),
            None => self.refused.get(question, now),
        }
    }

    fn insert(&mut self, question: Question, verdict: Verdict, now: Instant) {
        match verdict {
            Verdict::Allowed => self.allowed.insert(question, (), now, ALLOWED_FOR),
            _ => self.refused.insert(question, verdict, now, REFUSED_FOR),
        }
    }
}

// === impl Remembered ===

impl<T> Default for Remembered<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T: Copy> Remembered<T> {
    fn get(&self, question: &Question, now: Instant) -> Option<T> {
        let (value, until) = self.0.get(question)?;
        (now < *until).then_some(*value)
    }

    fn insert(&mut self, question: Question, value: T, now: Instant, time: Duration) {
        self.0.retain(|_, (_, until)| now < *until);
        if self.0.len() >= REMEMBERED {
            let oldest = self.0.iter().min_by_key(|(_, (_, until))| *until);
            let oldest = oldest.map(|(question, _)| question.clone());
            oldest.and_then(|question| self.0.remove(&question));
        }
        self.0.insert(question, (value, now + time));
    }
}

// === impl Refusal ===

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        match self {
            Self::Unauthenticated => (
                StatusCode::UNAUTHORIZED,
                [(header::WWW_AUTHENTICATE, "Bearer")],
                "a bearer token that the API server knows is needed\n",
            )
                .into_response(),
            Self::Forbidden => (
                StatusCode::FORBIDDEN,
                "the owner of this token may not read this path\n",
            )
                .into_response(),
            Self::Unavailable => (
                StatusCode::SERVICE_UNAVAILABLE,
                "the API server does not say who may read this\n",
            )
                .into_response(),
        }
    }
}

#[cfg(test)]
mod tests;
