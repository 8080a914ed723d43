//! Connections of the ADS port: who is at the other end, and how many there may be.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::{BoxFuture, ready};
use futures::{FutureExt as _, Stream, StreamExt as _};
use tls::{Acceptor, CertificateInfo, HandshakeLimits, MaybeTls};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tracing::debug;

use crate::metrics::{AdsMetrics, Denied};
use crate::pki::{Former, Identity};
use crate::world::Key;
use crate::xds::proto::discovery::aggregated_discovery_service_server::AggregatedDiscoveryServiceServer;

use super::budget::{Budget, Budgets, Counted, Full, MAX_REQUEST, Share, WINDOW};
use super::server::AdsServer;

/// An Envoy that says nothing for this long is asked, and gone after [`PING_LIMIT`] more.
const PING: Duration = Duration::from_secs(20);
const PING_LIMIT: Duration = Duration::from_secs(10);

/// An Envoy has one.
const STREAMS_OF_CONNECTION: u32 = 4;

/// Where no connection can be accepted, as where all descriptors are in use.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A handshake is two round trips within the cluster. Who says nothing in this time makes room for others.
const HANDSHAKE: HandshakeLimits = HandshakeLimits {
    deadline: Duration::from_secs(2),
    // a node that hides the addresses of its pods has as many Envoys that connect at the same time
    of_address: Some(128),
};

/// The status of a denied stream is sent in this time. Then the connection ends: on the next one an Envoy shows the certificate
/// that it has by then.
const GOODBYE: Duration = Duration::from_millis(500);

/// How clients of the port are told apart.
#[derive(Clone, Debug)]
pub(crate) enum Trust {
    /// Not at all: the port is plaintext, and on a loopback address.
    Anyone,
    /// By the certificate, whose identity is of this cluster.
    Cluster(Arc<str>),
}

/// Who is at the other end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) who: Who,
    /// That of its Gateway; none without TLS.
    pub(super) budget: Option<Arc<Budget>>,
    /// Ends the connection.
    pub(super) close: CancellationToken,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// Without TLS: whoever it says it is.
    Anyone,
    /// An Envoy of this Gateway, by its certificate.
    Gateway(Identity),
    /// The certificate is one that Envoys of a Gateway had before.
    Former(Former),
    /// The certificate is of no Gateway of this cluster.
    Nobody,
}

/// A connection with its place among all others.
pub(crate) struct Connection {
    io: MaybeTls,
    peer: Peer,
    /// Comes back when the connection is to end; none when it has.
    closing: Option<BoxFuture<'static, ()>>,
    _places: (OwnedSemaphorePermit, Option<Share>),
}

/// Serves ADS until `stop`, then ends as the last stream has.
pub(crate) async fn serve(
    server: AdsServer,
    listener: TcpListener,
    acceptor: Acceptor,
    trust: Trust,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let (budgets, metrics) = (server.budgets.clone(), server.metrics.clone());
    let incoming = incoming(listener, acceptor, trust, budgets, metrics);
    let service = AggregatedDiscoveryServiceServer::new(server);
    Server::builder()
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .http2_keepalive_interval(Some(PING))
        .http2_keepalive_timeout(Some(PING_LIMIT))
        .max_concurrent_streams(STREAMS_OF_CONNECTION)
        .add_service(Counted(service.max_decoding_message_size(MAX_REQUEST)))
        .serve_with_incoming_shutdown(incoming, stop)
        .await
}

fn incoming(
    listener: TcpListener,
    acceptor: Acceptor,
    trust: Trust,
    budgets: Budgets,
    metrics: AdsMetrics,
) -> impl Stream<Item = io::Result<Connection>> + Send {
    let all = Arc::new(Semaphore::new(budgets.limits().connections));
    let refused = metrics.clone();
    let accepted = futures::stream::unfold(listener, move |listener| {
        let (all, refused) = (Arc::clone(&all), refused.clone());
        async move {
            let accepted = accept(&listener, &all, &refused).await;
            Some((Ok(accepted), listener))
        }
    });
    let acceptor = acceptor.with_limits(HANDSHAKE);
    acceptor.incoming(accepted).filter_map(move |ready_one| {
        let connection = ready_one.map(|(io, permit)| {
            let who = who(&io, &trust);
            let budget = match &who {
                Who::Gateway(identity) => Some(budgets.of(&identity.gateway)),
                // all together they have what a Gateway has, which no Gateway is called
                Who::Former(_) | Who::Nobody => Some(budgets.of(&Key::default())),
                Who::Anyone => None,
            };
            let place = budget.as_ref().map(|budget| budget.connection());
            let close = CancellationToken::new();
            let closing = close.clone().cancelled_owned();
            Ok(Connection {
                io,
                peer: Peer { who, budget, close },
                closing: Some(closing.then(|()| tokio::time::sleep(GOODBYE)).boxed()),
                _places: (permit, place.transpose()?),
            })
        });
        ready(match connection {
            Ok(Ok(connection)) => Some(Ok(connection)),
            Ok(Err(Full::Own)) => {
                debug!("too many connections of one Gateway");
                metrics.denied(Denied::Connections);
                None
            }
            Ok(Err(Full::Common)) => {
                debug!("no memory for a connection: Gateways have it all");
                metrics.denied(Denied::Memory);
                None
            }
            Err(error) => Some(Err(error)),
        })
    })
}

/// The next connection that there is a place for; others are closed.
async fn accept(
    listener: &TcpListener,
    all: &Arc<Semaphore>,
    metrics: &AdsMetrics,
) -> (TcpStream, OwnedSemaphorePermit) {
    loop {
        let (tcp, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                debug!(%error, "no connection accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(all).try_acquire_owned() else {
            debug!(%peer, "too many connections");
            metrics.denied(Denied::Connections);
            continue;
        };
        // a socket that refuses this is served all the same, with a delay
        let _ = tcp.set_nodelay(true);
        return (tcp, permit);
    }
}

fn who(io: &MaybeTls, trust: &Trust) -> Who {
    let Trust::Cluster(cluster) = trust else {
        return Who::Anyone;
    };
    let certificate = io.client_certificate();
    let info = certificate.and_then(|certificate| CertificateInfo::of(certificate).ok());
    let uris = info.map(|info| info.uris).unwrap_or_default();
    match Identity::of_uris(&uris) {
        Some(identity) if *identity.cluster == **cluster => Who::Gateway(identity),
        _ => Former::of_uris(&uris).map_or(Who::Nobody, Who::Former),
    }
}

// === impl Connection ===

impl Connection {
    /// Whether the connection is at its end. HTTP/2 reads nothing while it cannot write, so that both have to ask.
    fn poll_closing(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let closing = self.closing.as_mut();
        if closing.is_none_or(|closing| closing.poll_unpin(cx).is_ready()) {
            self.closing = None;
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(())
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.poll_closing(cx)?;
        Pin::new(&mut this.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.poll_closing(cx)?;
        Pin::new(&mut this.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.poll_closing(cx)?;
        Pin::new(&mut this.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.poll_closing(cx)?;
        Pin::new(&mut this.io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}
