//! Connections to what other clusters name.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crd::networks::Cidr;
use futures::StreamExt;
use futures::future::join_all;
use futures::stream::FuturesUnordered;
use rustls::CertificateError;
use rustls::pki_types::ServerName;
use tls::{Alpn, Trust};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::select::is_allowed;

use super::resolve::Resolver;

/// Names of one cluster that are resolved.
const MAX_NAMES: usize = 16;

/// Hosts with their ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Targets {
    /// IP addresses, checked by who names them, and names.
    pub(crate) hosts: Vec<(String, u16)>,
    /// What a name must not lead to.
    denied: Arc<[Cidr]>,
    /// The target that answered last: of several endpoint pickers one may be the leader.
    pub(super) first: Option<SocketAddr>,
    /// Where the next observation begins: of many targets, each has its turn.
    next: usize,
}

/// How the targets of an observation are tried.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Targets that begin at the same time.
    pub(super) at_once: usize,
    /// How often as many begin.
    pub(super) batches: u32,
    /// Time of the observation. Batches begin at equal distances in it, or once all before have failed.
    pub(super) time: Duration,
}

/// Why there is no connection with TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DialError {
    /// The server answers, with a certificate that is not trusted under this name.
    Certificate,
    /// The server answers, with a certificate that breaks a rule of how certificates are made, such as that of an authority in the
    /// place of a server's. Envoy is less strict.
    UnusualCertificate,
    Failed(&'static str),
}

// === impl Targets ===

impl Targets {
    pub(crate) fn new(hosts: Vec<(String, u16)>, denied: Arc<[Cidr]>) -> Self {
        Self {
            hosts,
            denied,
            first: None,
            next: 0,
        }
    }

    /// The result of the first target of which there is one, and the error of the last that failed. The target that answered
    /// last begins. One that does not answer takes no time from those that follow it: they begin while it is still tried.
    pub(super) async fn race<T, F>(
        &mut self,
        resolver: &Resolver,
        pace: Pace,
        observe: impl Fn(String, SocketAddr) -> F,
    ) -> Result<T, &'static str>
    where
        F: Future<Output = Result<T, &'static str>>,
    {
        let step = pace.time / pace.batches.max(1);
        let all = self.resolve(resolver, step).await;
        let mut waiting = self.turn(all, pace).into_iter();
        let mut running = FuturesUnordered::new();
        let mut last = "it has no address that may be dialled";
        while waiting.len() > 0 {
            for (host, at) in waiting.by_ref().take(pace.at_once) {
                let observed = observe(host, at);
                running.push(async move { (at, observed.await) });
            }
            let over = sleep(step);
            tokio::pin!(over);
            loop {
                tokio::select! {
                    ended = running.next() => match ended {
                        Some((at, Ok(value))) => {
                            self.first = Some(at);
                            return Ok(value);
                        }
                        Some((_, Err(why))) => last = why,
                        None => break,
                    },
                    () = &mut over, if waiting.len() > 0 => break,
                }
            }
        }
        Err(last)
    }

    /// Where the hosts are now, each address once; those of names only as far as they are allowed. Names that take longer than
    /// `limit` are left out this time.
    async fn resolve(&self, resolver: &Resolver, limit: Duration) -> Vec<(String, SocketAddr)> {
        let mut found: Vec<(String, SocketAddr)> = Vec::new();
        let mut names = Vec::new();
        for (host, port) in &self.hosts {
            match host.parse::<IpAddr>() {
                Ok(ip) => found.push((host.clone(), SocketAddr::new(ip, *port))),
                Err(_) => names.push((host, *port)),
            }
        }
        names.truncate(MAX_NAMES);
        let lookups = names.into_iter().map(|(host, port)| async move {
            let addresses = timeout(limit, resolver.addresses(host)).await;
            let addresses = addresses.unwrap_or_default().into_iter();
            let allowed = addresses.filter(|ip| is_allowed(*ip, &self.denied, &[]));
            let named = allowed.map(|ip| (host.clone(), SocketAddr::new(ip, port)));
            named.collect::<Vec<_>>()
        });
        found.extend(join_all(lookups).await.into_iter().flatten());
        found.sort_unstable_by_key(|(_, at)| *at);
        found.dedup_by_key(|(_, at)| *at);
        found
    }

    /// Those of this observation, in order. The next one begins with the others.
    fn turn(
        &mut self,
        mut all: Vec<(String, SocketAddr)>,
        pace: Pace,
    ) -> Vec<(String, SocketAddr)> {
        let most = pace.at_once * pace.batches as usize;
        if let Some(start) = self.next.checked_rem(all.len()) {
            all.rotate_left(start);
            self.next = start + most.min(all.len());
        }
        // It is set again only if it answers again.
        let first = self.first.take();
        all.sort_by_key(|(_, at)| Some(*at) != first);
        all.truncate(most);
        all
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
            Some(rustls::Error::InvalidCertificate(CertificateError::Other(_))) => {
                DialError::UnusualCertificate
            }
            Some(rustls::Error::InvalidCertificate(_)) => DialError::Certificate,
            _ => DialError::Failed("the TLS handshake failed"),
        }
    })
}

// === impl DialError ===

impl DialError {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Certificate | Self::UnusualCertificate => "its certificate is not trusted",
            Self::Failed(why) => why,
        }
    }
}
