//! Connections to what other clusters name.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crd::networks::Cidr;
use rustls::pki_types::ServerName;
use tls::{Alpn, Trust};
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::select::is_allowed;

/// Addresses that are tried at the same time.
pub(crate) const AT_ONCE: usize = 4;

/// Addresses that one observation tries at most.
const MOST: usize = 16;

/// Hosts with their ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Targets {
    /// IP addresses, checked by who names them, and names.
    pub(crate) hosts: Vec<(String, u16)>,
    /// What a name must not lead to.
    pub(crate) denied: Arc<[Cidr]>,
}

/// Why there is no connection with TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DialError {
    /// The server answers, with a certificate that is not trusted under this name.
    Certificate,
    Failed(&'static str),
}

// === impl Targets ===

impl Targets {
    /// Where the hosts are now, each address once and not too many; those of names only as far as they are allowed.
    pub(crate) async fn resolve(&self) -> Vec<(String, SocketAddr)> {
        let mut found: Vec<(String, SocketAddr)> = Vec::new();
        for (host, port) in &self.hosts {
            if let Ok(ip) = host.parse::<IpAddr>() {
                found.push((host.clone(), SocketAddr::new(ip, *port)));
            } else if let Ok(addresses) = lookup_host((host.as_str(), *port)).await {
                let allowed = addresses.filter(|at| is_allowed(at.ip(), &self.denied, &[]));
                found.extend(allowed.map(|at| (host.clone(), at)));
            }
            if found.len() >= MOST {
                break;
            }
        }
        found.sort_unstable_by_key(|(_, at)| *at);
        found.dedup_by_key(|(_, at)| *at);
        found.truncate(MOST);
        found
    }
}

pub(crate) async fn tcp(at: SocketAddr) -> Result<TcpStream, &'static str> {
    TcpStream::connect(at)
        .await
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::ConnectionRefused => "the connection is refused",
            _ => "no connection",
        })
}

/// A connection with TLS, of a server that `trust` knows under this name.
pub(crate) async fn tls(
    at: SocketAddr,
    name: &str,
    trust: &Trust,
    alpn: Alpn,
) -> Result<TlsStream<TcpStream>, DialError> {
    let name = ServerName::try_from(name.to_owned());
    let name = name.map_err(|_| DialError::Failed("its name is no server's"))?;
    let stream = tcp(at).await.map_err(DialError::Failed)?;
    let connector = TlsConnector::from(trust.config(alpn));
    let connected = connector.connect(name, stream).await;
    connected.map_err(|error| {
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
        match cause {
            Some(rustls::Error::InvalidCertificate(_)) => DialError::Certificate,
            _ => DialError::Failed("the TLS handshake failed"),
        }
    })
}

// === impl DialError ===

impl DialError {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Certificate => "its certificate is not trusted",
            Self::Failed(why) => why,
        }
    }
}
