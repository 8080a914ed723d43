//! The gRPC ports.
//!
//! ```text
//!  listener ─ accept ─► Turns ─┬─ queue ─► thread: (TLS) ─► Connection ─► Gather ─► tonic ─► ExtProc, health
//!                              └─ queue ─► thread: …
//! ```
//!
//! A connection stays on the thread that got it, with all its streams: these share nothing with another thread's for
//! which they would have to wait.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, TcpStream as StdTcpStream},
    num::NonZeroUsize,
    pin::pin,
    time::Duration,
};

use futures::{Stream, StreamExt, TryStreamExt, stream::FuturesUnordered};
use process::{OwnThread, Panicked};
use tls::{Acceptor, MaybeTls};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{mpsc, watch},
    time::sleep,
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Error, Server, server::TcpIncoming};
use tracing::warn;

use crate::{
    connection::{Connection, Live},
    extproc::ExtProc,
    gather::Gather,
    health::Readiness,
};

/// 4 MiB: the body of a million-token prompt is on its way at once.
const STREAM_WINDOW: u32 = 4 * 1024 * 1024;

/// 64 MiB: sixteen such bodies on one connection.
const CONNECTION_WINDOW: u32 = 64 * 1024 * 1024;

/// h2's own limit of 20 turns a burst of client aborts into a GOAWAY for all streams of a proxy.
const PENDING_RESETS: usize = 10_000;

/// A proxy that vanished without a word is noticed after both, and its streams end.
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Connections on their way to a thread, which takes one in each turn of its loop. What finds no place waits in the
/// kernel's queue.
const QUEUE: usize = 16;

/// After an error of the listener that is none of a connection: files of the process have run out, and may be free again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// After the stop, for handshakes that are in progress: a few round trips.
const LAST_HANDSHAKES: Duration = Duration::from_secs(1);

/// The port that Envoy speaks to.
pub struct ExtProcServer {
    /// Handles its streams.
    pub service: ExtProc,
    /// Told to probes that come the same way.
    pub readiness: Readiness,
    /// With TLS or without.
    pub acceptor: Acceptor,
    /// Streams of one connection.
    pub max_streams: u32,
    /// Threads that connections are handed out to.
    pub threads: NonZeroUsize,
}

/// Why the port is served no more.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The server of a thread failed.
    #[error(transparent)]
    Server(#[from] Error),
    /// No thread could be started.
    #[error("cannot start a thread for streams: {0}")]
    Thread(#[source] io::Error),
    /// One that served panicked.
    #[error(transparent)]
    Panicked(#[from] Panicked),
    /// One that served ended, while connections were to come.
    #[error("a thread for streams ended")]
    Ended,
}

/// Hands connections out.
struct Turns(Vec<Place>);

/// One thread, as the listener sees it.
struct Place {
    queue: mpsc::Sender<Accepted>,
    live: Live,
}

/// A connection that no thread has yet, and no runtime.
struct Accepted {
    tcp: StdTcpStream,
    live: Live,
}

// === impl ExtProcServer ===

impl ExtProcServer {
    /// Serves until `stop`; then takes no new connection or stream, and returns when the last one ended. Dropping the
    /// future ends all at once, and waits for the threads.
    ///
    /// # Errors
    /// When a thread cannot be started, or ends early.
    pub async fn serve(
        self,
        listener: TcpListener,
        stop: CancellationToken,
    ) -> Result<(), ServeError> {
        let Self {
            service,
            readiness,
            acceptor,
            max_streams,
            threads,
        } = self;
        let server = Server::builder()
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_concurrent_streams(max_streams)
            .http2_max_pending_accept_reset_streams(Some(PENDING_RESETS))
            .http2_keepalive_interval(Some(KEEPALIVE))
            .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT));
        let (stopping, stopped) = watch::channel(false);
        let (mut turns, running) = (Turns(Vec::new()), FuturesUnordered::new());
        for index in 0..threads.get() {
            let (queue, accepted) = mpsc::channel(QUEUE);
            let (server, service) = (server.clone(), service.on_thread());
            let (readiness, stopped) = (readiness.clone(), stopped.clone());
            let connections = incoming_of(accepted, acceptor.clone(), stopped.clone());
            let serve = move || serve_queue(server, service, readiness, stopped, connections);
            let thread = OwnThread::start(&format!("ext-proc-{index}"), serve);
            running.push(thread.map_err(ServeError::Thread)?.output());
            turns.0.push(Place {
                queue,
                live: Live::default(),
            });
        }
        let handing_out = turns.hand_out(listener, stop.clone());
        run(running, handing_out, stop, stopping).await
    }
}

// === impl Turns ===

impl Turns {
    /// Accepts connections until `stop`, and then those that are in the kernel's queue: to their clients they are open, and
    /// closing the port would reset them.
    async fn hand_out(self, listener: TcpListener, stop: CancellationToken) {
        while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
            match accepted.and_then(|(tcp, _)| tcp.into_std()) {
                Ok(tcp) => self.hand(tcp).await,
                Err(error) if is_of_connection(&error) => {}
                Err(error) => {
                    warn!(%error, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        // An error: there is no way to ask the kernel any more.
        let Ok(listener) = listener.into_std() else {
            return;
        };
        loop {
            match listener.accept() {
                Ok((tcp, _)) => self.hand(tcp).await,
                Err(error) if is_of_connection(&error) => {}
                Err(_) => return, // none is left
            }
        }
    }

    async fn hand(&self, tcp: StdTcpStream) {
        let ready = tcp.set_nodelay(true).and(tcp.set_nonblocking(true));
        // An error: the peer has left already.
        let (Ok(()), Some(place)) = (ready, self.next()) else {
            return;
        };
        let live = Live::clone(&place.live);
        // An error: the thread ended, which ends the server, or takes none so long after the stop.
        let _ = place.queue.send(Accepted { tcp, live }).await;
    }

    /// The thread with the fewest live connections, among those that take one at once if there are any.
    fn next(&self) -> Option<&Place> {
        let places = self.0.iter();
        places.min_by_key(|place| (place.queue.capacity() == 0, Live::strong_count(&place.live)))
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

/// Serves until `stop` and then until all threads ended.
async fn run(
    mut running: FuturesUnordered<impl Future<Output = Result<Result<(), Error>, Panicked>>>,
    handing_out: impl Future<Output = ()>,
    stop: CancellationToken,
    stopping: watch::Sender<bool>,
) -> Result<(), ServeError> {
    let mut handing_out = pin!(handing_out);
    tokio::select! {
        biased; // an end that the stop led to is none that came early
        () = stop.cancelled() => {}
        () = &mut handing_out => return Err(ServeError::Ended),
        Some(ended) = running.next() => {
            ended??;
            return Err(ServeError::Ended);
        }
    }
    stopping.send_replace(true);
    let served = async {
        let mut result = Ok(());
        while let Some(ended) = running.next().await {
            let ended = ended.map_err(Into::into);
            result = result.and(ended.and_then(|served| served.map_err(Into::into)));
        }
        result
    };
    // The last connections are handed out, then the port closes: each thread serves what is in its queue.
    tokio::join!(served, handing_out).0
}

/// Serves the connections of a queue, on this thread, until the queue has ended and the last of them.
async fn serve_queue(
    mut server: Server,
    service: ExtProc,
    readiness: Readiness,
    stopped: watch::Receiver<bool>,
    connections: impl Stream<Item = io::Result<Gather<Connection<MaybeTls>>>>,
) -> Result<(), Error> {
    // Its end is that of the queue: else a connection in the queue would be cut instead of told to go away.
    let never = std::future::pending();
    let served = server
        .add_service(service.clone())
        .add_service(readiness.service(stopped))
        .serve_with_incoming_shutdown(connections, never);
    tokio::select! {
        served = served => served,
        () = service.watch() => Ok(()),
    }
}

/// The connections of a thread, ready to be served, until the queue ends, or a second after `stopped`: handshakes that are
/// not done by then must not keep those who are served from being told to go away. TLS comes between the socket and [`Connection`]: so what a turn
/// sends is gathered before it is encrypted, and an alert of TLS is not held back.
fn incoming_of(
    accepted: mpsc::Receiver<Accepted>,
    acceptor: Acceptor,
    mut stopped: watch::Receiver<bool>,
) -> impl Stream<Item = io::Result<Gather<Connection<MaybeTls>>>> {
    let accepted = ReceiverStream::new(accepted)
        .map(|Accepted { tcp, live }| Ok((TcpStream::from_std(tcp)?, live)));
    acceptor
        .incoming(accepted)
        .map_ok(|(stream, live)| Gather::new(Connection::new(stream, live)))
        .take_until(Box::pin(async move {
            // An error: the server is gone, which is a stop.
            let _ = stopped.wait_for(|stopped| *stopped).await;
            sleep(LAST_HANDSHAKES).await;
        }))
}

/// Serves health in plaintext until the future is dropped.
///
/// # Errors
/// When the server ends by itself.
pub async fn serve_health(listener: TcpListener, readiness: Readiness) -> Result<(), Error> {
    let (_never, stopped) = watch::channel(false);
    let incoming = incoming(listener).then(async |accepted| {
        if let Err(error) = &accepted
            && !is_of_connection(error)
        {
            sleep(ACCEPT_PAUSE).await;
        }
        accepted.map(|tcp| Connection::new(MaybeTls::plain(tcp), Live::default()))
    });
    Server::builder()
        .add_service(readiness.service(stopped))
        .serve_with_incoming(incoming)
        .await
}

/// Listens on `port` of all addresses, of both families where there are both.
///
/// # Errors
/// When the port is taken or may not be used.
pub async fn listen(port: u16) -> io::Result<TcpListener> {
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await
        }
        bound => bound,
    }
}

fn incoming(listener: TcpListener) -> TcpIncoming {
    TcpIncoming::from(listener).with_nodelay(Some(true))
}

#[cfg(test)]
mod tests;
