//! TLS of connections that a program makes: whom it trusts, what it is known by, and how both change while it runs.

use std::{fmt, path::PathBuf, sync::Arc};

use arc_swap::ArcSwap;
use futures::Stream;
use reread::{Content, read_at_most, reread};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, WantsVerifier, sign::SingleCertAndKey};
use tracing::{error, info};

use super::{
    Alpn, TlsVersion,
    clients::{CaError, roots},
    files::{MAX_BYTES, parse_pair, read_pair},
    pair::{PairError, PairPem},
    provider,
};

/// Whom a program trusts that connects, and what it is known by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustFiles {
    /// CAs in PEM. Absent: those of the system, read once.
    pub ca_file: Option<PathBuf>,
    /// Directory with `tls.crt` and `tls.key`. Absent: it is not known.
    pub cert_dir: Option<PathBuf>,
}

/// What new connections are made with; those that are open keep what they have. Cheap to clone.
#[derive(Clone)]
pub struct Trust(Arc<ArcSwap<ClientConfig>>);

/// Why a program cannot connect over TLS.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// There is no CA to verify servers against.
    #[error(transparent)]
    Ca(CaError),
    /// The system has none.
    #[error("the system has no CAs: {0}")]
    SystemCas(String),
    /// The program's own certificate cannot be used.
    #[error(transparent)]
    Pair(PairError),
}

/// Reads the files again and again, and connects with what they hold.
#[derive(Debug)]
pub struct TrustReload {
    files: TrustFiles,
    last: Readings,
    trust: Trust,
}

/// What the files held at one time; none for one that is not there to be read.
#[derive(Clone, PartialEq, Eq)]
struct Readings {
    ca: Option<Content<Vec<u8>>>,
    pair: Option<Content<PairPem>>,
}

// === impl TrustFiles ===

impl TrustFiles {
    /// Reads the files for the first time: what connections are made with, and what keeps it up to date.
    ///
    /// # Errors
    /// [`TrustError`] for files that cannot be used.
    pub fn begin(self) -> Result<(Trust, TrustReload), TrustError> {
        let last = self.read();
        let config = last.config()?;
        let trust = Trust(Arc::new(ArcSwap::from_pointee(config)));
        let reload = TrustReload {
            files: self,
            last,
            trust: trust.clone(),
        };
        Ok((trust, reload))
    }

    fn read(&self) -> Readings {
        let ca = self.ca_file.as_deref();
        Readings {
            ca: ca.map(|path| read_at_most(path, MAX_BYTES)),
            pair: self.cert_dir.as_deref().map(read_pair),
        }
    }
}

fn builder() -> ConfigBuilder<ClientConfig, WantsVerifier> {
    ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(TlsVersion::Tls12.and_newer())
        .expect("the provider has both versions")
}

/// Those of the system. A file among them that cannot be read matters only where there is no other.
fn system_roots() -> Result<RootCertStore, TrustError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let errors: Vec<_> = found.errors.iter().map(ToString::to_string).collect();
        return Err(TrustError::SystemCas(errors.join(", ")));
    }
    Ok(roots)
}

// === impl Trust ===

impl Trust {
    /// The CAs of the system, and no certificate of the program's own.
    pub fn system() -> Self {
        // Without any CA no server is trusted, and each connection says so.
        let roots = system_roots().unwrap_or_else(|_| RootCertStore::empty());
        let config = builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Self(Arc::new(ArcSwap::from_pointee(config)))
    }

    /// CAs in PEM, absent those of the system, and the program's own `tls.crt` and `tls.key`.
    ///
    /// # Errors
    /// [`TrustError`] for what cannot be used.
    pub fn of_pem(
        ca: Option<Vec<u8>>,
        pair: Option<(Vec<u8>, Vec<u8>)>,
    ) -> Result<Self, TrustError> {
        let given = Readings {
            ca: ca.map(Ok),
            pair: pair.map(|(chain, key)| Ok(PairPem { chain, key })),
        };
        Ok(Self(Arc::new(ArcSwap::from_pointee(given.config()?))))
    }

    /// What a connection is made with now, to speak this.
    pub fn config(&self, alpn: Alpn) -> Arc<ClientConfig> {
        let mut config = ClientConfig::clone(&self.0.load());
        config.alpn_protocols = alpn.protocols();
        Arc::new(config)
    }
}

impl fmt::Debug for Trust {
    /// Without the key that is in it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trust").finish_non_exhaustive()
    }
}

// === impl TrustReload ===

impl TrustReload {
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
        match readings.config() {
            Ok(config) => {
                self.trust.0.store(Arc::new(config));
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

impl Readings {
    fn config(&self) -> Result<ClientConfig, TrustError> {
        let roots = match &self.ca {
            Some(Ok(pem)) => roots(pem).map_err(TrustError::Ca)?,
            Some(Err(error)) => return Err(TrustError::Ca(CaError::Read(error.clone()))),
            None => system_roots()?,
        };
        let builder = builder().with_root_certificates(roots);
        let pair = self.pair.as_ref().map(parse_pair).transpose();
        Ok(match pair.map_err(TrustError::Pair)? {
            Some(pair) => {
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(pair.key())))
            }
            None => builder.with_no_client_auth(),
        })
    }
}

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

    fn mk_files(dir: &Path) -> TrustFiles {
        write_pair(dir);
        fs::write(dir.join("ca.crt"), Ca::new("a").pem()).unwrap();
        TrustFiles {
            ca_file: Some(dir.join("ca.crt")),
            cert_dir: Some(dir.to_owned()),
        }
    }

    #[test]
    fn changed_files_are_used_if_they_can_be() {
        let dir = tempfile::tempdir().unwrap();
        let files = mk_files(dir.path());
        let (trust, mut reload) = files.clone().begin().unwrap();
        assert!(reload.is_needed());
        let first = trust.0.load_full();
        assert!(first.client_auth_cert_resolver.has_certs());
        reload.judge(files.read());
        assert!(Arc::ptr_eq(&first, &trust.0.load_full()), "nothing changed");
        fs::write(dir.path().join("ca.crt"), Ca::new("b").pem()).unwrap();
        reload.judge(files.read());
        let second = trust.0.load_full();
        assert!(!Arc::ptr_eq(&first, &second));
        fs::write(dir.path().join("tls.key"), "half").unwrap();
        reload.judge(files.read());
        assert!(
            Arc::ptr_eq(&second, &trust.0.load_full()),
            "it cannot be used"
        );
    }

    #[test]
    fn what_cannot_be_used_says_which_file() {
        let dir = tempfile::tempdir().unwrap();
        let files = mk_files(dir.path());
        let refused = || files.clone().begin().map(|_| ()).unwrap_err();
        fs::write(dir.path().join("ca.crt"), "").unwrap();
        assert!(matches!(refused(), TrustError::Ca(CaError::Empty)));
        fs::remove_file(dir.path().join("ca.crt")).unwrap();
        assert!(matches!(refused(), TrustError::Ca(CaError::Read(_))));
        fs::write(dir.path().join("ca.crt"), Ca::new("a").pem()).unwrap();
        fs::remove_file(dir.path().join("tls.crt")).unwrap();
        assert!(matches!(refused(), TrustError::Pair(_)));
    }
}
