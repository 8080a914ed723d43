//! The files of a port's TLS, and how they change.

use std::{path::Path, path::PathBuf, sync::Arc};

use futures::Stream;
use reread::{Content, read_at_most, reread};
use rustls::{pki_types::UnixTime, server::danger::ClientCertVerifier};
use tracing::{error, info};

use super::{
    Acceptor, Alpn, Fixed, Served, TlsVersion,
    clients::{CaError, San, verifier},
    metrics::PortTls,
    pair::{Pair, PairError, PairPem},
};

/// 1 MiB: a bundle of some hundred CAs.
pub(super) const MAX_BYTES: usize = 1024 * 1024;

/// Where the certificate of a port comes from, and who its clients may be.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// Directory with `tls.crt` and `tls.key`. Absent: a certificate that signs itself is made.
    pub cert_dir: Option<PathBuf>,
    /// The CAs of clients. Absent: clients need no certificate.
    pub client_ca: Option<PathBuf>,
    /// One of these is in the certificate of each client. Empty: any client of the CAs is let in.
    pub client_sans: Vec<San>,
    /// The oldest version that is spoken.
    pub min_version: TlsVersion,
    /// What is spoken over it.
    pub alpn: Alpn,
}

/// Why a port cannot serve TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// There is no certificate to serve.
    #[error(transparent)]
    Pair(PairError),
    /// There is no CA to verify clients against.
    #[error(transparent)]
    ClientCa(CaError),
    /// Both are there and cannot be used together.
    #[error("no TLS with this certificate: {0}")]
    Unusable(#[source] rustls::Error),
}

/// Reads the files of a port again and again, and serves what they hold.
#[derive(Debug)]
pub struct TlsReload {
    files: TlsFiles,
    /// The last reading, so that each change is judged, counted and logged once.
    last: Readings,
    pair: Pair,
    clients: Option<Arc<dyn ClientCertVerifier>>,
    served: Served,
    metrics: PortTls,
}

/// Something that is read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Item {
    Certificate,
    ClientCa,
}

/// What a change came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Replaced,
    Kept,
}

/// What all files held at one time; none for one that is not there to be read.
#[derive(Clone, PartialEq, Eq)]
struct Readings {
    pair: Option<Content<PairPem>>,
    client_ca: Option<Content<Vec<u8>>>,
}

// === impl TlsFiles ===

impl TlsFiles {
    /// Reads the files for the first time: what accepts connections with them, and what keeps it up to date. A
    /// certificate that has expired is served all the same, as there is no other.
    ///
    /// # Errors
    /// [`TlsError`] when there is nothing to begin with.
    pub fn begin(self, metrics: PortTls) -> Result<(Acceptor, TlsReload), TlsError> {
        let last = self.read();
        let pair = match &last.pair {
            Some(content) => parse_pair(content),
            None => Pair::self_signed(),
        }
        .map_err(TlsError::Pair)?;
        if let Err(error) = pair.check_expiry(now()) {
            error!(port = metrics.port(), %error, "clients that verify it will refuse it");
        }
        let clients = last.client_ca.as_ref();
        let clients = clients.map(|content| self.parse_clients(content));
        let clients = clients.transpose().map_err(TlsError::ClientCa)?;
        let config = self.fixed().config(&pair, clients.as_ref());
        let served = Served::new(config.map_err(TlsError::Unusable)?);
        metrics.serves_until(pair.not_after());
        let acceptor = Acceptor::tls(served.clone(), metrics.clone());
        let reload = TlsReload {
            files: self,
            last,
            pair,
            clients,
            served,
            metrics,
        };
        Ok((acceptor, reload))
    }

    fn fixed(&self) -> Fixed {
        Fixed {
            min_version: self.min_version,
            alpn: self.alpn,
        }
    }

    fn read(&self) -> Readings {
        Readings {
            pair: self.cert_dir.as_deref().map(read_pair),
            client_ca: self
                .client_ca
                .as_deref()
                .map(|path| read_at_most(path, MAX_BYTES)),
        }
    }

    fn parse_clients(
        &self,
        content: &Content<Vec<u8>>,
    ) -> Result<Arc<dyn ClientCertVerifier>, CaError> {
        let pem = content.as_ref();
        let pem = pem.map_err(|error| CaError::Read(error.clone()))?;
        verifier(pem, &self.client_sans)
    }
}

pub(super) fn read_pair(dir: &Path) -> Content<PairPem> {
    let read = |name: &str| {
        let content = read_at_most(&dir.join(name), MAX_BYTES);
        content.map_err(|error| format!("{name} cannot be read: {error}"))
    };
    Ok(PairPem {
        chain: read("tls.crt")?,
        key: read("tls.key")?,
    })
}

pub(super) fn parse_pair(content: &Content<PairPem>) -> Result<Pair, PairError> {
    let pem = content.as_ref();
    Pair::parse(pem.map_err(|error| PairError::Read(error.clone()))?)
}

/// Seconds since 1970.
fn now() -> i64 {
    i64::try_from(UnixTime::now().as_secs()).unwrap_or(i64::MAX)
}

// === impl TlsReload ===

impl TlsReload {
    /// Whether there are any files.
    pub fn is_needed(&self) -> bool {
        self.last.pair.is_some() || self.last.client_ca.is_some()
    }

    /// Reads the files every 5 s and at each of `hangups`. Never returns.
    pub async fn run(mut self, hangups: impl Stream<Item = ()> + Unpin) {
        let given = [
            (Item::Certificate, self.last.pair.is_some()),
            (Item::ClientCa, self.last.client_ca.is_some()),
        ];
        for (item, _) in given.iter().filter(|(_, given)| *given) {
            self.metrics.reloads(*item);
        }
        let files = self.files.clone();
        let judge = |readings, asked| {
            let changed = self.judge(readings, now());
            if asked && !changed {
                let port = self.metrics.port();
                info!(port, "SIGHUP: the files of TLS have not changed");
            }
        };
        reread(move || files.read(), hangups, judge).await;
    }

    /// Serves what the files hold, each part if it has changed and can be used. Returns whether there was a change.
    fn judge(&mut self, readings: Readings, now: i64) -> bool {
        if readings == self.last {
            return false;
        }
        let last = std::mem::replace(&mut self.last, readings);
        if last.pair != self.last.pair
            && let Some(content) = &self.last.pair
        {
            let outcome = self.replace_pair(&parse_pair(content), now);
            self.metrics.reloaded(Item::Certificate, outcome);
        }
        if last.client_ca != self.last.client_ca
            && let Some(content) = &self.last.client_ca
        {
            let clients = self.files.parse_clients(content);
            let outcome = self.replace_clients(clients);
            self.metrics.reloaded(Item::ClientCa, outcome);
        }
        true
    }

    fn replace_pair(&mut self, pair: &Result<Pair, PairError>, now: i64) -> Outcome {
        let port = self.metrics.port();
        let usable = pair
            .as_ref()
            .map_err(|error| (error.reason(), error.to_string()));
        let usable = usable.and_then(|pair| {
            let current = pair.check_expiry(now);
            current.map_err(|error| (error.reason(), error.to_string()))?;
            let config = self.files.fixed().config(pair, self.clients.as_ref());
            Ok((
                pair,
                config.map_err(|error| ("unusable", error.to_string()))?,
            ))
        });
        match usable {
            Ok((pair, config)) => {
                self.pair = pair.clone();
                self.served.replace(config);
                self.metrics.serves_until(pair.not_after());
                info!(port, "new connections are served the changed certificate");
                Outcome::Replaced
            }
            Err((reason, error)) => {
                error!(
                    port,
                    reason,
                    error,
                    "the changed certificate cannot be used: the former one is served"
                );
                Outcome::Kept
            }
        }
    }

    fn replace_clients(
        &mut self,
        clients: Result<Arc<dyn ClientCertVerifier>, CaError>,
    ) -> Outcome {
        let port = self.metrics.port();
        let usable = clients.map_err(|error| (error.reason(), error.to_string()));
        let usable = usable.and_then(|clients| {
            let config = self.files.fixed().config(&self.pair, Some(&clients));
            Ok((
                clients,
                config.map_err(|error| ("unusable", error.to_string()))?,
            ))
        });
        match usable {
            Ok((clients, config)) => {
                self.clients = Some(clients);
                self.served.replace(config);
                info!(port, "new clients are verified against the changed CAs");
                Outcome::Replaced
            }
            Err((reason, error)) => {
                error!(
                    port,
                    reason, error, "the changed CAs of clients cannot be used: the former ones are"
                );
                Outcome::Kept
            }
        }
    }
}

// === impl Item ===

impl Item {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Certificate => "certificate",
            Self::ClientCa => "client_ca",
        }
    }
}

// === impl Outcome ===

impl Outcome {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Replaced => "success",
            Self::Kept => "failure",
        }
    }
}

// === impl Readings ===

impl std::fmt::Debug for Readings {
    /// Without what was read: there is a key in it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Readings").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
