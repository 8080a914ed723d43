//! The port on which workers fetch ids by key.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use http_service::{Bodies, BodyError, BodyLimits, Connection, Handler, Tokens};
use hyper::body::Incoming;
use processor_api::{DEADLINE_HEADER, Refusal, budget};
use token_cache::{Operation, Store, TokenService};
use tokio::time::{Instant, timeout_at};

use crate::{
    reply::{Fault, Reply},
    steps::{NotKept, Tokens as TokenCache},
};

/// For one request, from its head to its reply, unless its caller has less: workers wait for 200 ms.
const DEADLINE: Duration = Duration::from_secs(2);

/// A body of up to so many bytes is read without asking: 160 MiB for the most connections that there can be.
const SMALL_BODY: usize = 16 << 10;

/// Larger ones: so many of the largest at once.
const LARGE_BODIES: usize = 8;

/// Answers the requests of the port. Cheap to clone.
#[derive(Clone)]
pub struct TokenPort(Arc<Inner>);

struct Inner {
    service: TokenService,
    tokens: Option<Tokens>,
    bodies: Bodies,
    closing: AtomicBool,
}

// === impl TokenPort ===

impl TokenPort {
    /// The port of a token cache in memory. Callers need one of `tokens`.
    pub fn new(store: Store, tokens: Option<Tokens>) -> Self {
        let max = Operation::max_body();
        let limits = BodyLimits {
            max,
            small: SMALL_BODY,
            together: max.saturating_mul(LARGE_BODIES),
        };
        Self(Arc::new(Inner {
            service: TokenService::new(store, DEADLINE),
            tokens,
            bodies: Bodies::new(limits),
            closing: AtomicBool::new(false),
        }))
    }
}

impl fmt::Debug for TokenPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenPort").finish_non_exhaustive()
    }
}

impl Handler for TokenPort {
    type Connection = Self;

    fn connection(&self) -> Self {
        self.clone()
    }

    fn close(&self) {
        self.0.closing.store(true, Relaxed);
    }
}

impl Connection for TokenPort {
    type Body = Full<Bytes>;

    async fn answer(&self, request: Request<Incoming>) -> Reply {
        let answered = self.0.answer(request).await;
        match answered {
            Ok(response) => response.map(Full::new),
            Err(fault) => fault.reply(false),
        }
    }
}

// === impl Inner ===

impl Inner {
    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Bytes>, Fault> {
        let begun = Instant::now();
        let (head, body) = request.into_parts();
        if let Some(tokens) = &self.tokens {
            let allowed = tokens.check(&head.headers);
            allowed.map_err(|_| Fault::Unauthorized)?;
        }
        if self.closing.load(Relaxed) {
            return Err(Refusal::NotReady.into());
        }
        let operation = match self.service.begin(&head) {
            Ok(operation) => operation,
            Err(refused) => return Ok(refused.response()),
        };
        if !operation.reads_body() {
            return Ok(self.service.run(operation, &[]).await);
        }
        let left = head.headers.get(DEADLINE_HEADER);
        let deadline = begun + budget(DEADLINE, left.map(http::HeaderValue::as_bytes));
        match timeout_at(deadline, self.bodies.read(body)).await {
            Ok(Ok(whole)) => Ok(self.service.run(operation, &whole.bytes).await),
            Ok(Err(BodyError::TooLarge { .. })) => Ok(self.service.too_large()),
            Ok(Err(BodyError::Broken)) | Err(_) => Err(Fault::LateBody),
        }
    }
}

// === impl Store ===

impl TokenCache for Store {
    async fn put(
        &self,
        key: processor_api::TokenKey,
        entry: token_cache::Entry,
        within: Duration,
    ) -> Result<(), NotKept> {
        let put = Self::put(self, key, entry, within).await;
        put.map(|_| ()).map_err(|error| {
            tracing::debug!(reason = error.reason(), "the ids of a prompt are not kept");
            NotKept
        })
    }
}
