//! TCP connections become connections that can be served: with a TLS handshake, or as they are.

use std::{
    collections::BTreeMap,
    io,
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use authority::AnyAuthority;
use futures::{Stream, StreamExt, future::ready};
use parking_lot::Mutex;
use rustls::{CertificateError, Error, PeerMisbehaved, pki_types::CertificateDer};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::Semaphore,
    time::{Instant, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tracing::{debug, warn};

use super::{Served, metrics::PortTls};

/// What holds unless a port says something else: a handshake is two round trips and a signature, and this is for one with a
/// client on the other side of a slow link. Many clients may have one address.
const LIMITS: HandshakeLimits = HandshakeLimits {
    deadline: Duration::from_secs(10),
    of_address: None,
};

/// Handshakes in progress: some 20 KiB each, so 20 MiB. More connections wait, as sockets.
const HANDSHAKES: usize = 1024;

/// Between two warnings about the server names of clients.
const WARN_EVERY: Duration = Duration::from_mins(1);

/// Makes connections of a port ready to be served. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Acceptor(Option<Secure>);

/// With TLS.
#[derive(Clone, Debug)]
struct Secure {
    served: Served,
    /// Those in progress, of all clones.
    handshakes: Arc<Semaphore>,
    limits: HandshakeLimits,
    /// Handshakes in progress by source address.
    sources: Sources,
    /// When the last warning about a server name was logged.
    warned: Arc<Mutex<Option<Instant>>>,
    metrics: PortTls,
}

/// What clients may do before anything is known of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeLimits {
    /// Time from the connection to the end of its handshake.
    pub deadline: Duration,
    /// Handshakes in progress with one source address; further connections are closed. None: as many as there may be at all.
    pub of_address: Option<usize>,
}

/// Handshakes in progress by source address.
type Sources = Arc<Mutex<BTreeMap<IpAddr, usize>>>;

/// A handshake that is in progress, counted for its source.
struct Place {
    sources: Sources,
    address: IpAddr,
}

/// A connection, with TLS or without. Over HTTP/2 any authority is read, as [`AnyAuthority`] says.
#[derive(Debug)]
pub enum MaybeTls {
    /// Without TLS.
    Plain(AnyAuthority<TcpStream>),
    /// With.
    Tls(Box<AnyAuthority<TlsStream<TcpStream>>>),
}

/// Why a connection was not made.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The client took too long.
    #[error("no TLS handshake within {0:?}")]
    Timeout(Duration),
    /// Its address has begun too many others.
    #[error("{0} handshakes with this address are in progress")]
    Crowded(usize),
    /// The client's certificate, or what it says, was refused.
    #[error("{0}")]
    Refused(#[source] Error),
    /// The client went away.
    #[error("{0}")]
    Closed(#[source] io::Error),
}

// === impl Acceptor ===

impl Acceptor {
    /// Of a port without TLS.
    pub fn plaintext() -> Self {
        Self(None)
    }

    pub(super) fn tls(served: Served, metrics: PortTls) -> Self {
        Self(Some(Secure {
            served,
            handshakes: Arc::new(Semaphore::new(HANDSHAKES)),
            limits: LIMITS,
            sources: Sources::default(),
            warned: Arc::default(),
            metrics,
        }))
    }

    /// The same with other limits; without TLS there are none.
    #[must_use]
    pub fn with_limits(self, limits: HandshakeLimits) -> Self {
        Self(self.0.map(|secure| Secure { limits, ..secure }))
    }

    /// Does the handshake, if there is to be one, with what is served now.
    ///
    /// # Errors
    /// [`HandshakeError`] when the client did not, may not or cannot speak TLS; it is counted.
    pub async fn accept(&self, tcp: TcpStream) -> Result<MaybeTls, HandshakeError> {
        let Some(secure) = &self.0 else {
            return Ok(MaybeTls::plain(tcp));
        };
        let metrics = &secure.metrics;
        let peer = tcp.peer_addr().ok();
        let outcome = match secure.handshake(tcp).await {
            Ok(stream) => return Ok(MaybeTls::Tls(Box::new(AnyAuthority::new(stream)))),
            Err(outcome) => outcome,
        };
        metrics.failed(&outcome);
        let (port, reason) = (metrics.port(), outcome.reason());
        debug!(port, ?peer, reason, error = %outcome, "no connection");
        if outcome.is_server_name() && is_due(&mut secure.warned.lock(), Instant::now()) {
            warn!(
                port,
                ?peer,
                "a client's TLS server name is no host name, as that of Istio's gateways where the DestinationRule of this \
                 Service has no `sni`: set `sni` there to the host name of the Service"
            );
        }
        Err(outcome)
    }

    /// Handshakes that can be begun.
    #[cfg(test)]
    pub(super) fn turns(&self) -> usize {
        let secure = self.0.as_ref().unwrap();
        secure.handshakes.available_permits()
    }

    /// These connections with what belongs to each, as they become ready. A client that is slow holds up no other.
    pub fn incoming<T: Send>(
        self,
        tcp: impl Stream<Item = io::Result<(TcpStream, T)>> + Send,
    ) -> impl Stream<Item = io::Result<(MaybeTls, T)>> + Send {
        tcp.map(move |accepted| {
            let acceptor = self.clone();
            async move {
                match accepted {
                    Ok((tcp, with)) => {
                        let ready = acceptor.accept(tcp).await.ok()?;
                        Some(Ok((ready, with)))
                    }
                    Err(error) => Some(Err(error)),
                }
            }
        })
        .buffer_unordered(HANDSHAKES)
        .filter_map(ready)
    }
}

/// Whether there is to be another warning now, after the last one.
fn is_due(last: &mut Option<Instant>, now: Instant) -> bool {
    let due = last.is_none_or(|last| now.saturating_duration_since(last) >= WARN_EVERY);
    if due {
        *last = Some(now);
    }
    due
}

// === impl Secure ===

impl Secure {
    async fn handshake(&self, tcp: TcpStream) -> Result<TlsStream<TcpStream>, HandshakeError> {
        let HandshakeLimits {
            deadline,
            of_address,
        } = self.limits;
        let _place = match (of_address, tcp.peer_addr()) {
            (Some(most), Ok(peer)) => Some(
                Place::take(&self.sources, peer.ip(), most).ok_or(HandshakeError::Crowded(most))?,
            ),
            _ => None,
        };
        let handshake = async {
            // never closed
            let _turn = self.handshakes.acquire().await.ok();
            let acceptor = TlsAcceptor::from(self.served.load());
            acceptor.accept(tcp).await
        };
        match timeout(deadline, handshake).await {
            Ok(done) => done.map_err(HandshakeError::from),
            Err(_) => Err(HandshakeError::Timeout(deadline)),
        }
    }
}

// === impl Place ===

impl Place {
    fn take(sources: &Sources, address: IpAddr, most: usize) -> Option<Self> {
        // an IPv4 client of a port of both families is one and the same
        let address = address.to_canonical();
        let mut counts = sources.lock();
        let count = counts.entry(address).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(Self {
            sources: Arc::clone(sources),
            address,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.sources.lock();
        if let Some(count) = counts.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
    }
}

// === impl MaybeTls ===

impl MaybeTls {
    /// A connection without TLS, of which nothing has been read yet.
    pub fn plain(tcp: TcpStream) -> Self {
        Self::Plain(AnyAuthority::new(tcp))
    }

    /// The socket.
    pub fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(plain) => plain.get_ref(),
            Self::Tls(tls) => tls.get_ref().get_ref().0,
        }
    }

    /// The certificate that the client has shown and that was verified, where one was requested.
    pub fn client_certificate(&self) -> Option<&CertificateDer<'static>> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(tls) => tls.get_ref().get_ref().1.peer_certificates()?.first(),
        }
    }
}

impl AsyncRead for MaybeTls {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(plain) => Pin::new(plain).poll_read(cx, buf),
            Self::Tls(tls) => Pin::new(tls).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for MaybeTls {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(plain) => Pin::new(plain).poll_write(cx, buf),
            Self::Tls(tls) => Pin::new(tls).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(plain) => Pin::new(plain).poll_write_vectored(cx, bufs),
            Self::Tls(tls) => Pin::new(tls).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(plain) => plain.is_write_vectored(),
            Self::Tls(tls) => tls.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(plain) => Pin::new(plain).poll_flush(cx),
            Self::Tls(tls) => Pin::new(tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(plain) => Pin::new(plain).poll_shutdown(cx),
            Self::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }
}

// === impl HandshakeError ===

impl HandshakeError {
    /// Stable: metric label and log field.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Timeout(_) => "timeout",
            Self::Crowded(_) => "too_many",
            Self::Refused(Error::NoCertificatesPresented) => "no_certificate",
            Self::Refused(Error::InvalidCertificate(
                CertificateError::ApplicationVerificationFailure,
            )) => "name",
            Self::Refused(Error::InvalidCertificate(_)) => "certificate",
            Self::Refused(Error::AlertReceived(_)) => "refused_by_client",
            Self::Refused(_) if self.is_server_name() => "server_name",
            Self::Refused(_) => "protocol",
            Self::Closed(_) => "closed",
        }
    }

    /// Whether it is the name that the client says it connects to.
    fn is_server_name(&self) -> bool {
        let misbehaved = PeerMisbehaved::ServerNameMustContainOneHostName;
        matches!(self, Self::Refused(Error::PeerMisbehaved(found)) if *found == misbehaved)
    }
}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> Self {
        let refused = error.get_ref().and_then(|inner| inner.downcast_ref());
        match refused.cloned() {
            Some(refused) => Self::Refused(refused),
            None => Self::Closed(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_due_once_a_minute() {
        let (start, mut last) = (Instant::now(), None);
        let after = [0, 1, 59, 60, 61, 119, 120];
        let due = after.map(|seconds| is_due(&mut last, start + Duration::from_secs(seconds)));
        assert_eq!(due, [true, false, false, true, false, false, true]);
    }
}
