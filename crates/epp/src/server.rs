//! The gRPC ports.

use std::{io, net::Ipv4Addr, net::Ipv6Addr, time::Duration};

use futures::TryStreamExt;
use tokio::{net::TcpListener, sync::watch};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Error, Server, server::TcpIncoming};

use crate::{extproc::ExtProc, gather::Gather, health::Readiness, tls::Acceptor};

/// 4 MiB: the body of a million-token prompt is on its way at once.
const STREAM_WINDOW: u32 = 4 * 1024 * 1024;

/// 64 MiB: sixteen such bodies on one connection.
const CONNECTION_WINDOW: u32 = 64 * 1024 * 1024;

/// h2's own limit of 20 turns a burst of client aborts into a GOAWAY for all streams of a proxy.
const PENDING_RESETS: usize = 10_000;

/// A proxy that vanished without a word is noticed after both, and its streams end.
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

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
}

// === impl ExtProcServer ===

impl ExtProcServer {
    /// Serves until `stop`; then takes no new connection or stream, and returns when the last one ended.
    ///
    /// # Errors
    /// When no connection can be accepted any more.
    pub async fn serve(self, listener: TcpListener, stop: CancellationToken) -> Result<(), Error> {
        let Self {
            service,
            readiness,
            acceptor,
            max_streams,
        } = self;
        let (stopping, stopped) = watch::channel(false);
        let mut server = Server::builder()
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_concurrent_streams(max_streams)
            .http2_max_pending_accept_reset_streams(Some(PENDING_RESETS))
            .http2_keepalive_interval(Some(KEEPALIVE))
            .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT));
        let stop = async move {
            stop.cancelled().await;
            stopping.send_replace(true);
        };
        let accepted = incoming(listener).map_ok(|tcp| (tcp, ()));
        let ready = acceptor.incoming(accepted);
        let gathered = ready.map_ok(|(connection, ())| Gather::new(connection));
        server
            .add_service(service)
            .add_service(readiness.service(stopped))
            .serve_with_incoming_shutdown(gathered, stop)
            .await
    }
}

/// Serves health in plaintext until the future is dropped.
///
/// # Errors
/// When the server ends by itself.
pub async fn serve_health(listener: TcpListener, readiness: Readiness) -> Result<(), Error> {
    let (_never, stopped) = watch::channel(false);
    let incoming = incoming(listener);
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
