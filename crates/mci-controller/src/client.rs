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

mod connector;
mod guard;
mod turns;

use std::time::Duration;

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
use tower::{BoxError, ServiceBuilder, ServiceExt, service_fn, util::BoxCloneSyncService};

pub(crate) use self::turns::{MemberTurns, Turns};
use self::{connector::connector, guard::Guard};

/// The ways to one member, over the same connections.
#[derive(Clone)]
pub(crate) struct Ways {
    /// Watches, lists and probes.
    pub(crate) kube: Client,
    /// Writes.
    pub(crate) direct: Direct,
}

/// Sends at once what a [`Client`] first hands to a task of its own: a thousand writes to a thousand members are as many
/// tasks less to wake.
#[derive(Clone)]
pub(crate) struct Direct(BoxCloneSyncService<Request<Body>, Response<AnswerBody>, Unanswered>);

type AnswerBody = UnsyncBoxBody<Bytes, Unanswered>;

/// Why an answer did not come, or broke off.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(crate) struct Unanswered(BoxError);

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

/// Makes a client. Redirects are not followed, proxies not used, answers not decompressed.
/// # Errors
/// When certificates or keys do not decode.
pub(crate) fn make(config: &Config, turns: MemberTurns) -> Result<Ways, kube::Error> {
    make_with(config, turns, PING_AFTER, PING_TIMEOUT)
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

#[cfg(test)]
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
    /// # Errors
    /// When no answer begins.
    pub(crate) async fn send(
        &self,
        request: Request<Body>,
    ) -> Result<Response<AnswerBody>, Unanswered> {
        self.0.clone().oneshot(request).await
    }
}

#[cfg(test)]
impl Direct {
    /// Requests that a test answers itself.
    pub(crate) fn answered_by<A>(
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
                let answer = client.send(request).await;
                let answer = answer.map_err(|error| Unanswered(error.into()))?;
                Ok(answer.map(boxed))
            }
        })))
    }
}

#[cfg(test)]
mod tests;
