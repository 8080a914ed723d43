//! The metrics port: over TLS or not, for everyone or for those whom the API server knows.

mod readers;
mod review;

use std::{io, net::SocketAddr, time::Duration};

use axum::{Router, serve::Listener};
use futures::{StreamExt, stream::BoxStream};
use tls::{Acceptor, MaybeTls};
use tokio::{net::TcpListener, time::sleep};
use tonic::transport::server::TcpIncoming;
use tracing::warn;

pub(crate) use readers::Readers;
pub(crate) use review::Reviewer;

/// After an error that is no connection's own, such as too many open files.
const ACCEPT_AGAIN: Duration = Duration::from_secs(1);

/// The port's server.
pub(crate) struct AdminServer {
    /// All its paths.
    pub(crate) router: Router,
    /// With TLS or without.
    pub(crate) acceptor: Acceptor,
    /// Who may read; absent: everyone.
    pub(crate) readers: Option<Readers>,
}

struct Accepting {
    connections: BoxStream<'static, io::Result<MaybeTls>>,
    address: SocketAddr,
}

// === impl AdminServer ===

impl AdminServer {
    /// Serves until the future is dropped.
    ///
    /// # Errors
    /// When the listener is of no use.
    pub(crate) async fn serve(self, listener: TcpListener) -> io::Result<()> {
        let Self {
            router,
            acceptor,
            readers,
        } = self;
        let router = match readers {
            Some(readers) => readers.guard(router),
            None => router,
        };
        let address = listener.local_addr()?;
        let accepted = TcpIncoming::from(listener).map(|tcp| Ok((tcp?, ())));
        let ready = acceptor.incoming(accepted);
        let connections = ready.map(|ready| Ok(ready?.0)).boxed();
        let accepting = Accepting {
            connections,
            address,
        };
        axum::serve(accepting, router).await
    }
}

// === impl Accepting ===

impl Listener for Accepting {
    type Io = MaybeTls;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            match self.connections.next().await {
                // nobody asks for the peer's address
                Some(Ok(connection)) => return (connection, self.address),
                Some(Err(error)) => {
                    warn!(%error, "a connection to the metrics port cannot be accepted");
                    sleep(ACCEPT_AGAIN).await;
                }
                // a listener has no end
                None => std::future::pending().await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        Ok(self.address)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::routing::get;
    use prometheus_client::registry::Registry;
    use rustls::{ClientConfig, RootCertStore};
    use tls::{Alpn, TlsFiles, TlsMetrics, TlsVersion};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
        task::JoinSet,
        time::timeout,
    };
    use tokio_rustls::TlsConnector;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn the_port_can_be_served_over_tls() {
        let dir = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        std::fs::write(dir.path().join("tls.crt"), made.cert.pem()).unwrap();
        std::fs::write(dir.path().join("tls.key"), made.signing_key.serialize_pem()).unwrap();
        let files = TlsFiles {
            cert_dir: Some(dir.path().to_owned()),
            client_ca: None,
            client_sans: Vec::new(),
            min_version: TlsVersion::Tls12,
            alpn: Alpn::Http1,
        };
        let metrics = TlsMetrics::register(&mut Registry::default(), "epp");
        let (acceptor, _) = files.begin(metrics.port("metrics")).unwrap();
        let server = AdminServer {
            router: Router::new().route("/metrics", get(async || "a page")),
            acceptor,
            readers: None,
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(server.serve(listener));

        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let client = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let tcp = TcpStream::connect(address).await.unwrap();
        let name = "localhost".try_into().unwrap();
        let connector = TlsConnector::from(Arc::new(client));
        let mut connection = connector.connect(name, tcp).await.unwrap();
        let request = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        connection.write_all(request).await.unwrap();
        let mut answer = String::new();
        let reading = connection.read_to_string(&mut answer);
        timeout(LIMIT, reading).await.expect("in time").unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        assert!(answer.ends_with("a page"), "{answer}");
    }
}
