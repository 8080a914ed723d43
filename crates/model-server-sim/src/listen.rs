//! Connections: HTTP/1.1 and HTTP/2 without TLS on one port, and how they end.

use std::{convert::Infallible, io, time::Duration};

use axum::{Router, http::Request, response::Response};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use process::Shutdown;
use tokio::{
    net::{TcpListener, TcpStream},
    task::{JoinError, JoinSet},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tower::util::{MapRequest, MapResult};

/// Connections at a time; more wait in the kernel's backlog. Twice what all waiting and running requests
/// of the defaults (1005) would take with a connection each, rounded up to a power of two.
const MAX_CONNECTIONS: usize = 2048;

/// Requests at a time on one HTTP/2 connection: the queue of the defaults fits through one proxy.
const MAX_STREAMS: u32 = 2048;

/// 100 ms: a pause after a failed accept, so that a lack of file descriptors does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Marks a response that must not be sent: its connection (with HTTP/2 its stream) ends without headers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reset;

/// The number of the connection that a request came on, from 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionNumber(pub(crate) usize);

/// What hyper is told of such a response.
#[derive(Debug, thiserror::Error)]
#[error("reset, as /admin/config says")]
struct ToldToReset;

/// How long connections may last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// How long an HTTP/1.1 connection may be idle after a response before it is closed. The headers of a request may
    /// take as long. None means no limit.
    pub keep_alive: Option<Duration>,
    /// How long open connections may take to finish their requests in a drain.
    pub drain: Duration,
}

/// Serves connections until `shutdown.drain`; then refuses new ones and lets the open ones finish their
/// requests for `limits.drain` or until `shutdown.now`, and cuts the rest.
pub async fn listen(
    listener: TcpListener,
    router: Router,
    shutdown: &Shutdown,
    limits: ConnectionLimits,
) {
    let mut connections = JoinSet::new();
    let mut numbers = (0_usize..).map(ConnectionNumber);
    loop {
        tokio::select! {
            () = shutdown.drain.cancelled() => break,
            Some(ended) = connections.join_next() => log_panic(ended),
            accepted = listener.accept(), if connections.len() < MAX_CONNECTIONS => match accepted {
                Ok((stream, _)) => {
                    let drain = shutdown.drain.clone();
                    let number = numbers.next().unwrap_or(ConnectionNumber(0));
                    let router = router.clone();
                    connections.spawn(connection(stream, router, number, limits.keep_alive, drain));
                }
                Err(error) => accept_failed(&error).await,
            },
        }
    }
    drop(listener);
    let finished = async {
        while let Some(ended) = connections.join_next().await {
            log_panic(ended);
        }
    };
    tokio::select! {
        result = timeout(limits.drain, finished) => if result.is_ok() { return },
        () = shutdown.now.cancelled() => {}
    }
    tracing::warn!(
        connections = connections.len(),
        "cutting connections that are still open"
    );
    connections.shutdown().await;
}

/// One connection's panic must not end the others, but it is a bug that somebody should see.
fn log_panic(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a connection's task failed");
    }
}

async fn accept_failed(error: &io::Error) {
    tracing::warn!(%error, "a connection could not be accepted");
    sleep(ACCEPT_PAUSE).await;
}

fn send_or_reset(result: Result<Response, Infallible>) -> Result<Response, ToldToReset> {
    match result {
        Ok(response) if response.extensions().get::<Reset>().is_some() => Err(ToldToReset),
        Ok(response) => Ok(response),
        Err(never) => match never {},
    }
}

async fn connection(
    stream: TcpStream,
    router: Router,
    number: ConnectionNumber,
    keep_alive: Option<Duration>,
    drain: CancellationToken,
) {
    // Tokens are small and must leave at once; without the option they only come later.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY could not be set");
    }
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(keep_alive);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS);
    // not a layer of the router, which would make all its routes anew for each connection
    let numbered = MapRequest::new(router, move |mut request: Request<_>| {
        request.extensions_mut().insert(number);
        request
    });
    let service = TowerToHyperService::new(MapResult::new(numbered, send_or_reset));
    let serving = builder.serve_connection(TokioIo::new(stream), service);
    let mut serving = std::pin::pin!(serving);
    let result = tokio::select! {
        result = serving.as_mut() => result,
        () = drain.cancelled() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended with an error");
    }
}

// === impl ToldToReset ===

impl From<Infallible> for ToldToReset {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}
