//! The port: connections, handed out to threads.
//!
//! ```text
//!  listener ─ accept ─► Turns ─┬─ queue ─► thread: connection ─► TLS or not ─► HTTP/1.1 or HTTP/2 ─► Handler
//!                              └─ queue ─► thread: …
//! ```
//!
//! A connection stays on its thread, with all its requests: these wait for no other thread.

use std::{
    convert::Infallible,
    error::Error,
    io,
    net::TcpStream as StdTcpStream,
    num::NonZeroUsize,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::{FutureExt, StreamExt, stream::FuturesUnordered};
use http::{HeaderValue, Request, Response, Version, header};
use hyper::{
    body::{Body, Incoming},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
};
use process::{OwnThread, Panicked};
use prometheus_client::metrics::counter::Counter;
use tls::{Acceptor, MaybeTls};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

/// Some 16 KiB each while they are idle: 160 MB.
const MAX_CONNECTIONS: usize = 10_000;

/// A connection without a request for so long is closed.
const IDLE: Duration = Duration::from_mins(5);

/// After the stop: calls that are on their way then are refused with a reply, which a client can tell from a lost one.
const LAST_REFUSALS: Duration = Duration::from_millis(500);

/// For a connection that is to end: for the requests in progress and what is left of their replies.
const LAST_REPLIES: Duration = Duration::from_secs(5);

/// The head of a request; those between our own programs take less than 1 KiB.
const MAX_HEAD: usize = 64 << 10;

/// Requests at once on one connection of HTTP/2. The most that come are from an endpoint picker that writes to a
/// Metadata-Center: 64 shards on two connections.
const MAX_STREAMS: u32 = 256;

/// h2's own limit of 20 turns a burst of calls that were given up into a GOAWAY for all calls of a client.
const PENDING_RESETS: usize = 10_000;

/// Connections on their way to a thread. What finds no place waits in the kernel's queue.
const QUEUE: usize = 16;

/// After an error of the listener that is none of a connection: files of the process have run out, and may be free again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Answers the requests of a port.
pub trait Handler: Clone + Send + Sync + 'static {
    /// Answers those of one connection.
    type Connection: Connection;

    /// For one connection, so that its requests share nothing that changes with those of others.
    fn connection(&self) -> Self::Connection;

    /// From now on requests are to be refused: the port is about to close. Connections get no new ones.
    fn close(&self);
}

/// Answers the requests of a connection.
pub trait Connection: Send + Sync + 'static {
    /// What is sent.
    type Body: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static;

    /// Never fails: what goes wrong is in the response. Dropped when the client gives up.
    fn answer(
        &self,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Self::Body>> + Send;
}

/// The port that requests come to.
#[derive(Debug)]
pub struct Server<H> {
    /// Answers them.
    pub handler: H,
    /// With TLS or without.
    pub acceptor: Acceptor,
    /// Threads that connections are handed out to, each with a runtime of its own.
    pub threads: NonZeroUsize,
    /// Connections that were closed at once: there are too many.
    pub refused: Counter,
}

/// Why the port is served no more.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// No thread could be started.
    #[error("cannot start a thread for connections: {0}")]
    Thread(#[source] io::Error),
    /// One that served panicked.
    #[error(transparent)]
    Panicked(#[from] Panicked),
    /// One that served ended, while connections were to come.
    #[error("a thread for connections ended")]
    Ended,
}

/// Hands connections out.
struct Turns {
    places: Vec<Place>,
    /// Connections of all places.
    most: usize,
    refused: Refused,
}

/// Connections over the limit, reported once a second.
#[derive(Default)]
struct Refused {
    count: Counter,
    reported: Option<Instant>,
}

/// One thread, as the listener sees it.
struct Place {
    queue: mpsc::Sender<Accepted>,
    live: Live,
}

/// Held by each connection of a thread.
type Live = Arc<()>;

/// A connection that no thread has yet, and no runtime.
struct Accepted {
    tcp: StdTcpStream,
    live: Live,
}

/// When connections are to end.
#[derive(Clone, Debug)]
struct Ends {
    /// With their next reply.
    leaving: CancellationToken,
    /// At once.
    stop: CancellationToken,
}

/// When a connection was last used.
#[derive(Debug)]
struct Activity {
    start: Instant,
    in_progress: AtomicU32,
    /// Milliseconds from the start to the end of the last request.
    last: AtomicU64,
}

/// One request of a connection.
#[derive(Debug)]
struct InProgress<'a>(&'a Activity);

// === impl Server ===

impl<H: Handler> Server<H> {
    /// Serves until `stop`; then takes no new connection or request, and returns when the last one ended. From `leaving` on
    /// each HTTP/1 connection ends with its next reply, so that no client finds many that are dead at the stop. Dropping
    /// the future ends all at once.
    ///
    /// # Errors
    /// When a thread cannot be started, or ends early.
    pub async fn serve(
        self,
        listener: TcpListener,
        leaving: CancellationToken,
        stop: CancellationToken,
    ) -> Result<(), ServeError> {
        let Self {
            handler,
            acceptor,
            threads,
            refused,
        } = self;
        // Of the connections: it follows the handler's, so that a call which comes late is refused and not cut off.
        let closed = CancellationToken::new();
        let mut running = FuturesUnordered::new();
        let mut places = Vec::new();
        for index in 0..threads.get() {
            let (queue, accepted) = mpsc::channel(QUEUE);
            // Of its own: connections of a thread do not share it with those of others.
            let handler = handler.clone();
            let ends = Ends {
                leaving: leaving.child_token(),
                stop: closed.child_token(),
            };
            let acceptor = acceptor.clone();
            let serve = move || serve_queue(handler, acceptor, accepted, ends);
            let thread = OwnThread::start(&format!("http-{index}"), serve);
            running.push(thread.map_err(ServeError::Thread)?.output());
            let live = Live::default();
            places.push(Place { queue, live });
        }
        let turns = Turns {
            places,
            most: MAX_CONNECTIONS,
            refused: Refused {
                count: refused,
                reported: None,
            },
        };
        let mut handing_out = pin!(turns.hand_out(listener, stop.clone()));
        tokio::select! {
            biased; // an end that the stop led to is none that came early
            () = stop.cancelled() => {}
            () = &mut handing_out => return Err(ServeError::Ended),
            Some(ended) = running.next() => {
                ended?;
                return Err(ServeError::Ended);
            }
        }
        handler.close();
        closed.cancel();
        let ended = async {
            let mut result = Ok(());
            while let Some(ended) = running.next().await {
                result = result.and(ended.map_err(ServeError::from));
            }
            result
        };
        // The last connections are handed out, then the port closes.
        tokio::join!(ended, handing_out).0
    }
}

// === impl Turns ===

impl Turns {
    /// Accepts connections until `stop`, and then those that are in the kernel's queue: closing the port would reset them.
    async fn hand_out(mut self, listener: TcpListener, stop: CancellationToken) {
        while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
            match accepted {
                Ok((tcp, _)) => self.hand(tcp).await,
                Err(error) if is_of_connection(&error) => {}
                Err(error) => {
                    warn!(%error, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        while let Some(accepted) = listener.accept().now_or_never() {
            match accepted {
                Ok((tcp, _)) => self.hand(tcp).await,
                Err(error) if is_of_connection(&error) => {}
                Err(_) => return,
            }
        }
    }

    async fn hand(&mut self, tcp: TcpStream) {
        let live = |place: &Place| Live::strong_count(&place.live) - 1;
        if self.places.iter().map(live).sum::<usize>() >= self.most {
            self.refused.report(self.most);
            return;
        }
        // The thread with the fewest, among those that take one at once if there are any.
        let places = self.places.iter();
        let place = places.min_by_key(|place| (place.queue.capacity() == 0, live(place)));
        let tcp = tcp.set_nodelay(true).and_then(|()| tcp.into_std());
        // An error: the peer has left already.
        if let (Ok(tcp), Some(place)) = (tcp, place) {
            let live = Live::clone(&place.live);
            // An error: the thread ended, which ends the server.
            let _ = place.queue.send(Accepted { tcp, live }).await;
        }
    }
}

// === impl Refused ===

impl Refused {
    fn report(&mut self, most: usize) {
        self.count.inc();
        let now = Instant::now();
        if self
            .reported
            .is_none_or(|it| now - it >= Duration::from_secs(1))
        {
            self.reported = Some(now);
            let refused = self.count.get();
            warn!(refused, "no more than {most} connections");
        }
    }
}

/// Whether an error of the listener is that of one connection: the next one may be in order.
fn is_of_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
    )
}

/// Serves the connections of a queue, on this thread, until the queue has ended and the last of them.
async fn serve_queue<H: Handler>(
    handler: H,
    acceptor: Acceptor,
    mut accepted: mpsc::Receiver<Accepted>,
    ends: Ends,
) {
    let http = http();
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            next = accepted.recv() => {
                let Some(Accepted { tcp, live }) = next else {
                    break;
                };
                let (http, service) = (http.clone(), handler.connection());
                let (acceptor, ends) = (acceptor.clone(), ends.clone());
                connections.spawn(async move {
                    // An error: the peer has left already.
                    if let Ok(tcp) = TcpStream::from_std(tcp)
                        && let Some(stream) = open(&acceptor, tcp, &ends.stop).await
                    {
                        serve_connection(&http, stream, service, ends).await;
                    }
                    drop(live);
                });
            }
            Some(ended) = connections.join_next() => report(ended),
        }
    }
    while let Some(ended) = connections.join_next().await {
        report(ended);
    }
}

fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        error!(%error, "a connection panicked");
    }
}

fn http() -> Builder<TokioExecutor> {
    let mut http = Builder::new(TokioExecutor::new());
    http.http1().max_buf_size(MAX_HEAD);
    http.http2()
        .max_concurrent_streams(MAX_STREAMS)
        .max_pending_accept_reset_streams(PENDING_RESETS);
    http
}

/// With the handshake, if there is to be one; after the stop none is waited for.
async fn open(acceptor: &Acceptor, tcp: TcpStream, stop: &CancellationToken) -> Option<MaybeTls> {
    tokio::select! {
        biased;
        opened = acceptor.accept(tcp) => opened.ok(),
        () = stop.cancelled() => None,
    }
}

/// Serves one connection until its client closes it, it is idle for long, or `stop`.
async fn serve_connection<C: Connection>(
    http: &Builder<TokioExecutor>,
    stream: MaybeTls,
    service: C,
    ends: Ends,
) {
    let Ends { leaving, stop } = ends;
    let connection = Arc::new((service, Activity::new(), leaving));
    let used = Arc::clone(&connection);
    let service = service_fn(move |request| answer(Arc::clone(&used), request));
    let mut serving = pin!(http.serve_connection(TokioIo::new(stream), service));
    let mut idle = pin!(sleep(IDLE));
    let ended = loop {
        tokio::select! {
            biased;
            ended = serving.as_mut() => break Some(ended),
            () = stop.cancelled() => {
                if let Ok(ended) = timeout(LAST_REFUSALS, serving.as_mut()).await {
                    break Some(ended);
                }
            }
            () = idle.as_mut() => {
                let over = connection.1.idle_at();
                if over > Instant::now() {
                    idle.set(sleep_until(over));
                    continue;
                }
            }
        }
        serving.as_mut().graceful_shutdown();
        break timeout(LAST_REPLIES, serving).await.ok();
    };
    if let Some(Err(error)) = ended {
        debug!(%error, "a connection broke");
    }
}

async fn answer<C: Connection>(
    connection: Arc<(C, Activity, CancellationToken)>,
    request: Request<Incoming>,
) -> Result<Response<C::Body>, Infallible> {
    let (service, activity, leaving) = &*connection;
    let _in_progress = activity.begin();
    let is_http1 = request.version() < Version::HTTP_2;
    let mut response = service.answer(request).await;
    if is_http1 && leaving.is_cancelled() {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(header::CONNECTION, close);
    }
    Ok(response)
}

// === impl Activity ===

impl Activity {
    fn new() -> Self {
        Self {
            start: Instant::now(),
            in_progress: AtomicU32::new(0),
            last: AtomicU64::new(0),
        }
    }
    /// A request, until what is returned is dropped.
    fn begin(&self) -> InProgress<'_> {
        self.in_progress.fetch_add(1, Ordering::Relaxed);
        InProgress(self)
    }

    /// When the connection will have been unused for long.
    fn idle_at(&self) -> Instant {
        if self.in_progress.load(Ordering::Relaxed) > 0 {
            return Instant::now() + IDLE;
        }
        self.start + Duration::from_millis(self.last.load(Ordering::Relaxed)) + IDLE
    }
}

// === impl InProgress ===

impl Drop for InProgress<'_> {
    fn drop(&mut self) {
        let Activity {
            start,
            in_progress,
            last,
        } = self.0;
        let now = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
        last.store(now, Ordering::Relaxed);
        in_progress.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
