//! TLS of connections that a program makes: whom it trusts, what it is known by, and how both change while it runs.

use std::{fmt, path::PathBuf, sync::Arc};

use arc_swap::ArcSwap;
use futures::Stream;
use reread::{Content, read_at_most, reread};
use rustls::{ClientConfig, RootCertStore, sign::SingleCertAndKey};
use tracing::{error, info};

use super::{
    Alpn, TlsVersion,
    clients::{CaError, roots},
    files::{MAX_BYTES, parse_pair, read_pair},
    pair::{PairError, PairPem},
    provider,
};

/// Whom a program trusts that connects, and what it is known by.
#[derive(Clone, Debug)]
pub struct ClientFiles {
    /// CAs in PEM. Absent: those of the system, read once.
    pub ca_file: Option<PathBuf>,
    /// Directory with `tls.crt` and `tls.key`. Absent: it is not known.
    pub cert_dir: Option<PathBuf>,
    /// What is spoken over it.
    pub alpn: Alpn,
}

/// What new connections are made with; those that are open keep what they have. Cheap to clone.
#[derive(Clone)]
pub struct ClientTls(Arc<ArcSwap<ClientConfig>>);

/// Why a program cannot connect over TLS.
#[derive(Debug, thiserror::Error)]
pub enum ClientTlsError {
    /// There is no CA to verify servers against.
    #[error(transparent)]
    Ca(CaError),
    /// The system has none.
    #[error("the system has no CAs: {0}")]
    SystemCas(String),
    /// The program's own certificate cannot be used.
    #[error(transparent)]
    Pair(PairError),
    /// All is there and cannot be used together.
    #[error("no TLS with these files: {0}")]
    Unusable(#[source] rustls::Error),
}

/// Reads the files again and again, and connects with what they hold.
#[derive(Debug)]
pub struct ClientReload {
    files: ClientFiles,
    last: Readings,
    tls: ClientTls,
}

/// What the files held at one time; none for one that is not there to be read.
#[derive(Clone, PartialEq, Eq)]
struct Readings {
    ca: Option<Content<Vec<u8>>>,
    pair: Option<Content<PairPem>>,
}

// === impl ClientFiles ===

impl ClientFiles {
    /// Reads the files for the first time: what connections are made with, and what keeps it up to date.
    ///
    /// # Errors
    /// [`ClientTlsError`] for files that cannot be used.
    pub fn begin(self) -> Result<(ClientTls, ClientReload), ClientTlsError> {
        let last = self.read();
        let config = self.config(&last)?;
        let tls = ClientTls(Arc::new(ArcSwap::from_pointee(config)));
        let reload = ClientReload {
            files: self,
            last,
            tls: tls.clone(),
        };
        Ok((tls, reload))
    }

    fn read(&self) -> Readings {
        let ca = self.ca_file.as_deref();
        Readings {
            ca: ca.map(|path| read_at_most(path, MAX_BYTES)),
            pair: self.cert_dir.as_deref().map(read_pair),
        }
    }

    fn config(&self, readings: &Readings) -> Result<ClientConfig, ClientTlsError> {
        let roots = match &readings.ca {
            Some(Ok(pem)) => roots(pem).map_err(ClientTlsError::Ca)?,
            Some(Err(error)) => return Err(ClientTlsError::Ca(CaError::Read(error.clone()))),
            None => system_roots()?,
        };
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(TlsVersion::Tls12.and_newer())
            .map_err(ClientTlsError::Unusable)?
            .with_root_certificates(roots);
        let pair = readings.pair.as_ref().map(parse_pair).transpose();
        let mut config = match pair.map_err(ClientTlsError::Pair)? {
            Some(pair) => {
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(pair.key())))
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = self.alpn.protocols();
        Ok(config)
    }
}

/// Those of the system. A file among them that cannot be read matters only where there is no other.
fn system_roots() -> Result<RootCertStore, ClientTlsError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let errors: Vec<_> = found.errors.iter().map(ToString::to_string).collect();
        return Err(ClientTlsError::SystemCas(errors.join(", ")));
    }
    Ok(roots)
}

// === impl ClientTls ===

impl ClientTls {
    /// What a connection is made with now.
    pub fn load(&self) -> Arc<ClientConfig> {
        self.0.load_full()
    }
}

impl fmt::Debug for ClientTls {
    /// Without the key that is in it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientTls").finish_non_exhaustive()
    }
}

// === impl ClientReload ===

impl ClientReload {
    /// Whether there are any files.
    pub fn is_needed(&self) -> bool {
        self.last.ca.is_some() || self.last.pair.is_some()
    }

    /// Reads the files every 5 s and at each of `hangups`. Never returns.
    pub async fn run(mut self, hangups: impl Stream<Item = ()> + Unpin) {
        let files = self.files.clone();
        reread(
            move || files.read(),
            hangups,
            |readings, _| {
                self.judge(readings);
            },
        )
        .await;
    }

    /// Connects with what the files hold if it has changed and can be used.
    fn judge(&mut self, readings: Readings) {
        if readings == self.last {
            return;
        }
        match self.files.config(&readings) {
            Ok(config) => {
                self.tls.0.store(Arc::new(config));
                info!("new connections are made with the changed files of TLS");
            }
            Err(error) => {
                error!(%error, "the changed files of TLS cannot be used: connections are made with the former ones");
            }
        }
        self.last = readings;
    }
}

// === impl Readings ===

impl fmt::Debug for Readings {
    /// Without what was read: there is a key in it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Readings").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;
    use crate::test_pki::{Ca, write_pair};

    fn mk_files(dir: &Path) -> ClientFiles {
        write_pair(dir);
        fs::write(dir.join("ca.crt"), Ca::new("a").pem()).unwrap();
        ClientFiles {
            ca_file: Some(dir.join("ca.crt")),
            cert_dir: Some(dir.to_owned()),
            alpn: Alpn::H2,
        }
    }

    #[test]
    fn changed_files_are_used_if_they_can_be() {
        let dir = tempfile::tempdir().unwrap();
        let files = mk_files(dir.path());
        let (tls, mut reload) = files.clone().begin().unwrap();
        assert!(reload.is_needed());
        let first = tls.load();
        assert!(first.client_auth_cert_resolver.has_certs());
        reload.judge(files.read());
        assert!(Arc::ptr_eq(&first, &tls.load()), "nothing changed");
        fs::write(dir.path().join("ca.crt"), Ca::new("b").pem()).unwrap();
        reload.judge(files.read());
        let second = tls.load();
        assert!(!Arc::ptr_eq(&first, &second));
        fs::write(dir.path().join("tls.key"), "half").unwrap();
        reload.judge(files.read());
        assert!(Arc::ptr_eq(&second, &tls.load()), "it cannot be used");
    }

    #[test]
    fn what_cannot_be_used_says_which_file() {
        let dir = tempfile::tempdir().unwrap();
        let files = mk_files(dir.path());
        let refused = || files.clone().begin().map(|_| ()).unwrap_err();
        fs::write(dir.path().join("ca.crt"), "").unwrap();
        assert!(matches!(refused(), ClientTlsError::Ca(CaError::Empty)));
        fs::remove_file(dir.path().join("ca.crt")).unwrap();
        assert!(matches!(refused(), ClientTlsError::Ca(CaError::Read(_))));
        fs::write(dir.path().join("ca.crt"), Ca::new("a").pem()).unwrap();
        fs::remove_file(dir.path().join("tls.crt")).unwrap();
        assert!(matches!(refused(), ClientTlsError::Pair(_)));
    }
}
