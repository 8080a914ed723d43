//! Connections of the ADS port: who is at the other end, and how many there may be.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::ready;
use futures::{Stream, StreamExt as _};
use parking_lot::Mutex;
use tls::{Acceptor, CertificateInfo, MaybeTls};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tracing::debug;

use crate::metrics::{AdsMetrics, Denied};
use crate::pki::Identity;
use crate::world::Key;
use crate::xds::proto::discovery::aggregated_discovery_service_server::AggregatedDiscoveryServiceServer;

use super::server::AdsServer;

/// An Envoy that says nothing for this long is asked, and gone after [`PING_LIMIT`] more.
const PING: Duration = Duration::from_secs(20);
const PING_LIMIT: Duration = Duration::from_secs(10);

/// An Envoy that reconnects names each resource twice, once with its version: 10,000 of a type with names of 100 bytes are
/// 2.3 MB, and 10,000 with names of 190 bytes fit.
const MAX_REQUEST: usize = 4 << 20;

/// An Envoy has one.
const STREAMS_OF_CONNECTION: u32 = 4;

/// Where no connection can be accepted, as where all descriptors are in use.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How many there may be at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Connections with their handshake done or in progress, each an open file.
    pub(crate) connections: usize,
    /// Connections, and also streams, of one Gateway: it has at most 1000 Envoys, and as many that end.
    pub(crate) of_gateway: usize,
}

/// How clients of the port are told apart.
#[derive(Clone, Debug)]
pub(crate) enum Trust {
    /// Not at all: the port is plaintext, and on a loopback address.
    Anyone,
    /// By the certificate, whose identity is of this cluster.
    Cluster(Arc<str>),
}

/// Who is at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    /// Of the connection, in this process.
    pub(crate) connection: u64,
    pub(crate) who: Who,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// Without TLS: whoever it says it is.
    Anyone,
    /// An Envoy of this Gateway, by its certificate.
    Gateway(Key),
    /// The certificate is of no Gateway of this cluster.
    Nobody,
}

/// A connection with its place among all others.
pub(crate) struct Connection {
    io: MaybeTls,
    peer: Peer,
    _places: (OwnedSemaphorePermit, Option<Place>),
}

/// One of a Gateway's connections.
struct Place {
    gateway: Key,
    taken: Taken,
}

/// Connections by Gateway.
type Taken = Arc<Mutex<BTreeMap<Key, usize>>>;

/// Serves ADS until `stop`, then ends as the last stream has.
pub(crate) async fn serve(
    server: AdsServer,
    listener: TcpListener,
    acceptor: Acceptor,
    trust: Trust,
    limits: Limits,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let incoming = incoming(listener, acceptor, trust, limits, server.metrics.clone());
    let service = AggregatedDiscoveryServiceServer::new(server);
    Server::builder()
        .http2_keepalive_interval(Some(PING))
        .http2_keepalive_timeout(Some(PING_LIMIT))
        .max_concurrent_streams(STREAMS_OF_CONNECTION)
        .add_service(service.max_decoding_message_size(MAX_REQUEST))
        .serve_with_incoming_shutdown(incoming, stop)
        .await
}

fn incoming(
    listener: TcpListener,
    acceptor: Acceptor,
    trust: Trust,
    limits: Limits,
    metrics: AdsMetrics,
) -> impl Stream<Item = io::Result<Connection>> + Send {
    let (all, taken) = (
        Arc::new(Semaphore::new(limits.connections)),
        Taken::default(),
    );
    let (next, refused) = (AtomicU64::new(0), metrics.clone());
    let accepted = futures::stream::unfold(listener, move |listener| {
        let (all, refused) = (Arc::clone(&all), refused.clone());
        async move {
            let accepted = accept(&listener, &all, &refused).await;
            Some((Ok(accepted), listener))
        }
    });
    acceptor.incoming(accepted).filter_map(move |ready_one| {
        let connection = ready_one.map(|(io, permit)| {
            let peer = Peer {
                connection: next.fetch_add(1, Ordering::Relaxed),
                who: who(&io, &trust),
            };
            let place = match &peer.who {
                Who::Gateway(gateway) => Some(Place::take(&taken, gateway, limits.of_gateway)?),
                Who::Anyone | Who::Nobody => None,
            };
            Some(Connection {
                io,
                peer,
                _places: (permit, place),
            })
        });
        ready(match connection {
            Ok(Some(connection)) => Some(Ok(connection)),
            Ok(None) => {
                debug!("too many connections of one Gateway");
                metrics.denied(Denied::Connections);
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
    let identity = info.and_then(|info| Identity::of_uris(&info.uris));
    match identity {
        Some(identity) if *identity.cluster == **cluster => Who::Gateway(identity.gateway),
        _ => Who::Nobody,
    }
}

// === impl Limits ===

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 4_000,
            of_gateway: 2_000,
        }
    }
}

// === impl Place ===

impl Place {
    fn take(taken: &Taken, gateway: &Key, limit: usize) -> Option<Self> {
        let mut counts = taken.lock();
        let count = counts.entry(gateway.clone()).or_default();
        if *count >= limit {
            return None;
        }
        *count += 1;
        Some(Self {
            gateway: gateway.clone(),
            taken: Arc::clone(taken),
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.taken.lock();
        if let Some(count) = counts.get_mut(&self.gateway) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.gateway);
            }
        }
    }
}

// === impl Connection ===

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
        Pin::new(&mut self.get_mut().io).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}
