//! Connections to one address of the service, over TLS where that is wanted.

use std::{
    future::{Ready, ready},
    io, iter,
    net::SocketAddr,
    task::{Context, Poll},
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use http::{Uri, uri::Scheme};
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::{
    client::legacy::connect::{HttpConnector, dns::Name},
    rt::TokioIo,
};
use tls::{Alpn, Trust};
use tokio::{net::TcpStream, time::timeout};
use tower::Service;

const CONNECT: Duration = Duration::from_millis(100);
/// Of the connection and its TLS: who asks for it waits no longer than its own deadline, but the attempt may outlive it.
const HANDSHAKE: Duration = Duration::from_secs(2);
const TCP_KEEPALIVE: Duration = Duration::from_secs(10);
/// What was sent and is not acknowledged for so long ends the connection: else calls would wait on a dead one until TCP
/// gives up, which takes it a quarter of an hour.
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED: Duration = Duration::from_secs(2);

/// Connects to one address, whatever host it is asked for; that host is whose certificate is wanted.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    tcp: HttpConnector<Fixed>,
    alpn: Alpn,
    /// Absent: plaintext.
    trust: Option<Trust>,
}

/// Answers with one address for any name.
#[derive(Clone, Copy, Debug)]
struct Fixed(SocketAddr);

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Stream = MaybeHttpsStream<TokioIo<TcpStream>>;

// === impl Connector ===

impl Connector {
    pub(crate) fn new(address: SocketAddr, alpn: Alpn, trust: Option<Trust>) -> Self {
        let mut tcp = HttpConnector::new_with_resolver(Fixed(address));
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT));
        tcp.set_keepalive(Some(TCP_KEEPALIVE));
        #[cfg(target_os = "linux")]
        tcp.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
        Self { tcp, alpn, trust }
    }
}

/// Of the URLs that are asked for.
pub(crate) fn scheme(trust: Option<&Trust>) -> Scheme {
    match trust {
        Some(_) => Scheme::HTTPS,
        None => Scheme::HTTP,
    }
}

impl Service<Uri> for Connector {
    type Response = Stream;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Stream, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.tcp.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let Some(trust) = &self.trust else {
            let connecting = self.tcp.call(uri);
            return async move { Ok(MaybeHttpsStream::Http(connecting.await?)) }.boxed();
        };
        let connecting =
            HttpsConnector::from((self.tcp.clone(), trust.config(self.alpn))).call(uri);
        async move {
            let late = |_| BoxError::from(format!("no TLS within {HANDSHAKE:?}"));
            timeout(HANDSHAKE, connecting).await.map_err(late)?
        }
        .boxed()
    }
}

// === impl Fixed ===

impl Service<Name> for Fixed {
    type Response = iter::Once<SocketAddr>;
    type Error = io::Error;
    type Future = Ready<io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Name) -> Self::Future {
        ready(Ok(iter::once(self.0)))
    }
}
