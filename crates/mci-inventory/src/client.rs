//! The HTTP client of one member, built so that neither a dead link nor a hostile server can hold it, or anybody else,
//! for long.
//!
//! ```text
//!  kube::Client ─┬─ base URL ─ token ─► Guard ─────────────► pool ─► TLS (HTTP/2, else 1.1) ─► TCP
//!  Direct ───────┘                      turns of lists,               pings                    keepalive,
//!                                       deadlines, size limits                                 user timeout
//! ```
//! With HTTP/2 one connection carries all: watches, probes and any number of writes, with one handshake. An API server
//! offers it; one that does not gets connections as they are needed.

mod certificate;
mod connector;
mod guard;
mod turns;

use std::{ops::Range, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};
use hyper_util::{
    client::legacy,
    rt::{TokioExecutor, TokioTimer},
};
use kube::{
    Client, Config,
    client::{Body, ConfigExt},
};
use rand::RngExt;
use tower::{BoxError, ServiceBuilder, ServiceExt, service_fn, util::BoxCloneSyncService};

pub use self::certificate::{CertificateProblem, certificate_problem};
pub use self::turns::{MemberTurns, Turns};
use self::{connector::connector, guard::Guard};
use watch::Config as WatchConfig;

/// Two ways to send to one member, over the same connections. Cheap to clone.
#[derive(Clone)]
pub struct Ways {
    /// For watches, lists and probes.
    pub kube: Client,
    /// For writes.
    pub direct: Direct,
}

/// Sends at once what a [`Client`] first hands to a task of its own: a thousand writes to a thousand members are as many
/// tasks less to wake.
#[derive(Clone)]
pub struct Direct(BoxCloneSyncService<Request<Body>, Response<AnswerBody>, Unanswered>);

type AnswerBody = UnsyncBoxBody<Bytes, Unanswered>;

/// Why an answer did not come, or broke off; its text is that of the cause.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct Unanswered(BoxError);

/// No client can be made: certificates or keys do not decode. The cause is left out, it may quote them.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("certificates or keys do not decode")]
pub struct BadMaterial;

/// No watch of [`watch_config`] is open for longer before the server ends it.
pub const MAX_WATCH: Duration = Duration::from_secs(40);
/// How long the server keeps one watch open, in seconds. A proxy that buffers shows within this and 5 s more; the
/// watcher's own 290 s would hide it.
const WATCH_SECONDS: Range<u32> = 30..40;
/// A connection without a frame for this long is pinged.
const PING_AFTER: Duration = Duration::from_secs(5);
/// A ping without an answer ends the connection: a silent link is seen within 10 s, whatever keeps its TCP alive.
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// Received and not yet read, per stream: a second of a page at 250 KB/s, and more at any shorter round trip.
const STREAM_WINDOW: u32 = 256 * 1024;
/// The same of a connection: eight watches that wait for the index leave half to probes and writes.
const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;
/// Buffer of an HTTP/1.1 connection, so the longest head of an answer, in bytes.
const HEAD: usize = 128 * 1024;
/// HTTP/1.1 connections kept for the next writes, once a burst is over.
const SPARE_CONNECTIONS: usize = 4;

/// Lists in pages of 500, and watches that the server ends after 30 to 40 s, a different time at each call.
pub fn watch_config() -> WatchConfig {
    WatchConfig::default().timeout(rand::rng().random_range(WATCH_SECONDS))
}

/// Makes a client. Redirects are not followed, proxies not used, answers not decompressed.
/// # Errors
/// When certificates or keys do not decode.
pub(crate) fn make(config: &Config, turns: MemberTurns) -> Result<Ways, BadMaterial> {
    make_with(config, turns, PING_AFTER, PING_TIMEOUT).map_err(|_| BadMaterial)
}

fn make_with(
    config: &Config,
    turns: MemberTurns,
    ping_after: Duration,
    ping_timeout: Duration,
) -> Result<Ways, kube::Error> {
    let connector = connector(config)?;
    let pool = legacy::Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_max_idle_per_host(SPARE_CONNECTIONS)
        .http1_max_buf_size(HEAD)
        .http2_initial_stream_window_size(STREAM_WINDOW)
        .http2_initial_connection_window_size(CONNECTION_WINDOW)
        .http2_keep_alive_interval(ping_after)
        .http2_keep_alive_timeout(ping_timeout)
        .http2_keep_alive_while_idle(true)
        .build::<_, Body>(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .service(Guard::new(pool, turns));
    let direct = service
        .clone()
        .map_response(|answer: Response<_>| answer.map(boxed))
        .map_err(Unanswered);
    Ok(Ways {
        kube: Client::new(service, config.default_namespace.clone()),
        direct: Direct(BoxCloneSyncService::new(direct)),
    })
}

fn boxed<B>(body: B) -> AnswerBody
where
    B: BodyExt<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let body = body.map_err(|error| Unanswered(error.into()));
    body.boxed_unsync()
}

// === impl Ways ===

#[cfg(any(test, feature = "fixtures"))]
impl From<Client> for Ways {
    fn from(kube: Client) -> Self {
        Self {
            direct: kube.clone().into(),
            kube,
        }
    }
}

// === impl Direct ===

impl Direct {
    /// Sends a request and waits for the head of the answer: 10 s at most, where [`Credentials`](crate::Credentials) made the
    /// client.
    /// # Errors
    /// When no answer begins.
    pub async fn send(&self, request: Request<Body>) -> Result<Response<AnswerBody>, Unanswered> {
        self.0.clone().oneshot(request).await
    }
}

#[cfg(any(test, feature = "fixtures"))]
impl Direct {
    /// Requests that a test answers itself.
    pub fn answered_by<A>(
        answer: impl Fn(Request<Body>) -> A + Clone + Send + Sync + 'static,
    ) -> Self
    where
        A: Future<Output = Result<Response<Bytes>, BoxError>> + Send + 'static,
    {
        Self(BoxCloneSyncService::new(service_fn(move |request| {
            let answer = answer(request);
            async move {
                let answer = answer.await.map_err(Unanswered)?;
                Ok(answer.map(|body| boxed(http_body_util::Full::new(body))))
            }
        })))
    }
}

impl From<Client> for Direct {
    /// By way of a client that there is.
    fn from(client: Client) -> Self {
        Self(BoxCloneSyncService::new(service_fn(move |request| {
            let client = client.clone();
            async move {
                match client.send(request).await {
                    Ok(answer) => Ok(answer.map(boxed)),
                    Err(error) => Err(Unanswered(error.into())),
                }
            }
        })))
    }
}

#[cfg(test)]
mod tests;
