//! The metrics port: over TLS or not, for everyone or for those whom the API server knows.

mod readers;
mod review;

use std::{io, net::SocketAddr, time::Duration};

use axum::{Router, serve::Listener};
use futures::{StreamExt, stream::BoxStream};
use tokio::{net::TcpListener, time::sleep};
use tonic::transport::server::TcpIncoming;
use tracing::warn;

pub(crate) use readers::Readers;
pub(crate) use review::Reviewer;

use crate::tls::{Acceptor, MaybeTls};

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
