//! TCP and TLS to the peer.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::Uri;
use hyper_rustls::{DefaultServerNameResolver, HttpsConnector, MaybeHttpsStream};
use hyper_util::{client::legacy::connect::HttpConnector, rt::TokioIo};
use tls::{Alpn, Trust};
use tokio::{net::TcpStream, time::timeout};
use tower::{BoxError, Service};

/// How long a TCP and TLS handshake may take, whatever time the call has: a peer within one network answers in
/// milliseconds, and a lost first packet is sent again after one second.
const CONNECT: Duration = Duration::from_millis(1500);
/// Silence before the first probe of a connection.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// What was sent and is not acknowledged for so long ends the connection: else calls would be made on a dead one until TCP
/// gives up, which takes it a quarter of an hour.
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED: Duration = Duration::from_secs(2);

/// Connects in bounded time, with the TLS that is in force at that moment.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    tcp: HttpConnector,
    /// None: no TLS is spoken.
    trust: Option<Trust>,
}

// === impl Connector ===

impl Connector {
    pub(crate) fn new(trust: Option<Trust>) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT));
        tcp.set_keepalive(Some(KEEPALIVE));
        #[cfg(target_os = "linux")]
        tcp.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
        Self { tcp, trust }
    }
}

impl Service<Uri> for Connector {
    type Response = MaybeHttpsStream<TokioIo<TcpStream>>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.tcp.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let tcp = self.tcp.clone();
        let trust = self.trust.clone();
        Box::pin(async move {
            let connecting = async {
                let Some(trust) = trust else {
                    let mut tcp = tcp;
                    return Ok(MaybeHttpsStream::Http(tcp.call(uri).await?));
                };
                let name = Arc::new(DefaultServerNameResolver::default());
                HttpsConnector::new(tcp, trust.config(Alpn::Http1), true, name)
                    .call(uri)
                    .await
            };
            match timeout(CONNECT, connecting).await {
                Ok(connected) => connected,
                Err(_) => Err(format!("no connection within {CONNECT:?}").into()),
            }
        })
    }
}
