//! Calls: bounded, under a deadline, and not at all while the peer does not work.

use std::{fmt, sync::Arc, time::Duration};

use http::{HeaderName, HeaderValue, Request};
use hyper_util::{
    client::legacy::{Client, Error},
    rt::{TokioExecutor, TokioTimer},
};
use moment::Clock;
use parking_lot::Mutex;
use processor_api::{API_HEADER, API_VERSION, DEADLINE_HEADER, deadline_value};
use tls::Trust;
use tokio::{sync::Semaphore, time::timeout};

use crate::{
    body::{Parts, chain, read},
    breaker::{Admission, Breaker, Outcome},
    call::{Call, CallError, Reply},
    connect::Connector,
    url::BaseUrl,
};

/// Connections that are kept while no call uses them.
const KEPT: usize = 64;
/// How long: less than peers keep them, so that a call rarely meets one that is being closed.
const IDLE: Duration = Duration::from_secs(30);

/// A late call that had less time than this says nothing of the peer: its caller had none left.
pub const LITTLE: Duration = Duration::from_millis(20);

/// What bounds the calls of a hop.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Calls at once; each has a connection. More are refused.
    pub max_in_flight: usize,
    /// Bytes of a reply.
    pub max_reply: usize,
    /// TLS of an https URL. Absent: [`Trust::system`].
    pub tls: Option<Trust>,
    /// Each call has the headers `x-isthmus-api` and `x-isthmus-deadline-ms`.
    pub isthmus: bool,
}

/// Calls one base URL. Cheap to clone; clones share the connections, the bounds and the breaker.
#[derive(Clone)]
pub struct Hop(Arc<Shared>);

struct Shared {
    base: BaseUrl,
    client: Client<Connector, Parts>,
    places: Semaphore,
    max_reply: usize,
    isthmus: bool,
    /// Held for some nanoseconds a call, as the client's own lock of its connections is.
    breaker: Mutex<Breaker>,
    clock: Clock,
}

/// A call that was admitted. Its end is recorded in any case: one that is dropped tells nothing of the peer.
struct Admitted<'a> {
    hop: &'a Shared,
    admission: Admission,
    outcome: Outcome,
}

// === impl Settings ===

impl Default for Settings {
    /// 1024 calls, replies of 16 MiB, headers of ours.
    fn default() -> Self {
        Self {
            max_in_flight: 1024,
            max_reply: 16 << 20,
            tls: None,
            isthmus: true,
        }
    }
}

// === impl Hop ===

impl Hop {
    /// Nothing is connected to yet.
    pub fn new(base: BaseUrl, settings: Settings) -> Self {
        let Settings {
            max_in_flight,
            max_reply,
            tls,
            isthmus,
        } = settings;
        let trust = base.is_https().then(|| tls.unwrap_or_else(Trust::system));
        let client = Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(KEPT)
            .build(Connector::new(trust));
        Self(Arc::new(Shared {
            base,
            client,
            places: Semaphore::new(max_in_flight.min(Semaphore::MAX_PERMITS)),
            max_reply,
            isthmus,
            breaker: Mutex::new(Breaker::new()),
            clock: Clock::start(),
        }))
    }

    /// Where it leads.
    pub fn base(&self) -> &BaseUrl {
        &self.0.base
    }

    /// Whether a call now would be refused with [`CallError::Open`].
    pub fn is_open(&self) -> bool {
        let now = self.0.clock.now();
        self.0.breaker.lock().is_open(now)
    }

    /// Makes one call, once.
    ///
    /// # Errors
    /// [`CallError`] when there is no reply `within` that time. A reply of any status is none.
    pub async fn call(&self, call: Call, within: Duration) -> Result<Reply, CallError> {
        self.call_judged(call, within, Reply::outcome).await
    }

    /// As [`call`](Self::call), for a caller who sees by more than the status whether the peer works.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn call_judged(
        &self,
        call: Call,
        within: Duration,
        judge: impl FnOnce(&Reply) -> Outcome,
    ) -> Result<Reply, CallError> {
        let hop = &*self.0;
        if within.is_zero() {
            return Err(CallError::Late);
        }
        let Ok(_place) = hop.places.try_acquire() else {
            return Err(CallError::Busy);
        };
        let request = hop.request(call, within);
        let request = request.map_err(|error| CallError::Broken(error.to_string()))?;
        let mut admitted = hop.admit()?;
        let exchange = async {
            let response = hop.client.request(request).await.map_err(of_client)?;
            read(response, hop.max_reply).await
        };
        let result = timeout(within, exchange)
            .await
            .unwrap_or(Err(CallError::Late));
        admitted.outcome = match &result {
            Ok(reply) => judge(reply),
            Err(CallError::Late) if within < LITTLE => Outcome::Unknown,
            Err(_) => Outcome::Failure,
        };
        result
    }
}

impl fmt::Debug for Hop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hop")
            .field("base", &self.0.base)
            .finish_non_exhaustive()
    }
}

// === impl Shared ===

impl Shared {
    fn request(&self, call: Call, within: Duration) -> Result<Request<Parts>, http::Error> {
        let Call {
            method,
            path,
            headers,
            body,
        } = call;
        let mut request = Request::new(Parts::from(body));
        *request.method_mut() = method;
        *request.uri_mut() = self.base.join(&path)?;
        *request.headers_mut() = headers;
        if self.isthmus {
            let headers = request.headers_mut();
            let version = HeaderValue::from_static(API_VERSION);
            headers.insert(HeaderName::from_static(API_HEADER), version);
            let left = HeaderValue::from(deadline_value(within));
            headers.insert(HeaderName::from_static(DEADLINE_HEADER), left);
        }
        Ok(request)
    }

    fn admit(&self) -> Result<Admitted<'_>, CallError> {
        let now = self.clock.now();
        match self.breaker.lock().admit(now) {
            Admission::Refused => Err(CallError::Open),
            admission => Ok(Admitted {
                hop: self,
                admission,
                outcome: Outcome::Unknown,
            }),
        }
    }
}

fn of_client(error: Error) -> CallError {
    if error.is_connect() {
        CallError::Connect(chain(&error))
    } else {
        CallError::Broken(chain(&error))
    }
}

// === impl Admitted ===

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        let now = self.hop.clock.now();
        let mut breaker = self.hop.breaker.lock();
        breaker.record(self.admission, self.outcome, now, &mut rand::rng());
    }
}
