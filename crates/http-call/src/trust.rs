//! TLS of the calls: whom to believe, and who the caller is; from files that are read again while the program runs.

use std::{path::PathBuf, sync::Arc};

use arc_swap::ArcSwap;
use futures::Stream;
use reread::{Content, read_at_most, reread};
use rustls::{
    ClientConfig, ConfigBuilder, RootCertStore, WantsVerifier,
    crypto::aws_lc_rs,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
};
use tracing::{error, info};

/// 1 MiB: a bundle of some hundred CAs.
const MAX_BYTES: usize = 1024 * 1024;

/// Where certificates come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustFiles {
    /// CAs of peers, in PEM. Absent: those of the system.
    pub ca_file: Option<PathBuf>,
    /// Directory with `tls.crt` and `tls.key`, the caller's own. Absent: it shows no certificate.
    pub cert_dir: Option<PathBuf>,
}

/// What new connections are made with; those that are open keep what they have. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Trust(Arc<ArcSwap<ClientConfig>>);

/// Why there is no TLS with these files. No variant repeats what they hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrustError {
    /// The CAs cannot be used.
    #[error("the file of CAs: {0}")]
    Authorities(String),
    /// The caller's own certificate cannot be used.
    #[error("the directory of the client certificate: {0}")]
    Certificate(String),
}

/// Reads the files again and again.
#[derive(Debug)]
pub struct TrustReload {
    files: TrustFiles,
    last: Readings,
    trust: Trust,
}

/// What all files held at one time; none for one that is not there to be read.
#[derive(Clone, Default, PartialEq, Eq)]
struct Readings {
    authorities: Option<Content<Vec<u8>>>,
    /// The chain and its key.
    pair: Option<Content<(Vec<u8>, Vec<u8>)>>,
}

// === impl TrustFiles ===

impl TrustFiles {
    /// Reads the files for the first time: what connections are made with, and what keeps it up to date.
    ///
    /// # Errors
    /// [`TrustError`] when there is nothing to begin with.
    pub fn begin(self) -> Result<(Trust, TrustReload), TrustError> {
        let last = self.read();
        let trust = Trust(Arc::new(ArcSwap::from_pointee(last.config()?)));
        let reload = TrustReload {
            files: self,
            last,
            trust: trust.clone(),
        };
        Ok((trust, reload))
    }

    fn read(&self) -> Readings {
        let authorities = self.ca_file.as_deref();
        let pair = self.cert_dir.as_deref().map(|dir| {
            let read = |name: &str| {
                let content = read_at_most(&dir.join(name), MAX_BYTES);
                content.map_err(|error| format!("{name} cannot be read: {error}"))
            };
            Ok((read("tls.crt")?, read("tls.key")?))
        });
        Readings {
            authorities: authorities.map(|path| read_at_most(path, MAX_BYTES)),
            pair,
        }
    }
}

// === impl Trust ===

impl Trust {
    /// The CAs of the system, and no certificate of the caller's own.
    pub fn system() -> Self {
        let config = builder()
            .with_root_certificates(system_authorities())
            .with_no_client_auth();
        Self(Arc::new(ArcSwap::from_pointee(config)))
    }

    pub(crate) fn config(&self) -> Arc<ClientConfig> {
        self.0.load_full()
    }
}

// === impl TrustReload ===

impl TrustReload {
    /// Whether there are any files.
    pub fn is_needed(&self) -> bool {
        self.files != TrustFiles::default()
    }

    /// Reads the files every 5 s and at each of `hangups`. Never returns.
    pub async fn run(mut self, hangups: impl Stream<Item = ()> + Unpin) {
        let files = self.files.clone();
        reread(
            move || files.read(),
            hangups,
            |readings, _| self.judge(readings),
        )
        .await;
    }

    /// Uses what the files hold, if it has changed and can be used.
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
                error!(%error, "the changed files of TLS cannot be used: the former ones are");
            }
        }
        self.last = readings;
    }
}

// === impl Readings ===

impl Readings {
    fn config(&self) -> Result<ClientConfig, TrustError> {
        let roots = match &self.authorities {
            None => system_authorities(),
            Some(Err(error)) => return Err(TrustError::Authorities(error.clone())),
            Some(Ok(pem)) => authorities(pem).map_err(TrustError::Authorities)?,
        };
        let builder = builder().with_root_certificates(roots);
        let (chain, key) = match &self.pair {
            None => return Ok(builder.with_no_client_auth()),
            Some(Err(error)) => return Err(TrustError::Certificate(error.clone())),
            Some(Ok(pair)) => pair,
        };
        let chain = certificates(chain)
            .map_err(|error| TrustError::Certificate(format!("tls.crt: {error}")))?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| {
            TrustError::Certificate(format!("tls.key: {}", pem_problem(&error)))
        })?;
        builder
            .with_client_auth_cert(chain, key)
            .map_err(|error| TrustError::Certificate(error.to_string()))
    }
}

impl std::fmt::Debug for Readings {
    /// Without what was read: there is a key in it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Readings").finish_non_exhaustive()
    }
}

fn builder() -> ConfigBuilder<ClientConfig, WantsVerifier> {
    ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the default provider has the default versions of TLS")
}

fn system_authorities() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

fn authorities(pem: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem)? {
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    Ok(roots)
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| pem_problem(&error))?;
    if found.is_empty() {
        return Err("it holds no certificate in PEM".to_owned());
    }
    Ok(found)
}

/// What is wrong with a PEM, without the bytes that its own message quotes.
fn pem_problem(error: &pem::Error) -> String {
    match error {
        pem::Error::MissingSectionEnd { .. } => "an END line is missing, as in half a file".into(),
        pem::Error::NoItemsFound => "it holds none in PEM".into(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rstest::rstest;
    use tls::test_pki::{Ca, write_pair};

    use super::*;

    #[rstest]
    #[case::no_file(|_: &TrustFiles| {}, "the file of CAs")]
    #[case::no_pem(|files: &TrustFiles| fs::write(files.ca_file.as_ref().unwrap(), "x").unwrap(), "no certificate")]
    #[case::no_pair(|files: &TrustFiles| fs::write(files.ca_file.as_ref().unwrap(), Ca::new("a").pem()).unwrap(), "tls.crt cannot be read")]
    fn files_that_cannot_be_used_are_named(
        #[case] prepare: fn(&TrustFiles),
        #[case] expected: &str,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let files = TrustFiles {
            ca_file: Some(dir.path().join("ca.crt")),
            cert_dir: Some(dir.path().to_owned()),
        };
        prepare(&files);
        let error = files.begin().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn changed_files_are_used_and_broken_ones_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let ca_file = dir.path().join("ca.crt");
        fs::write(&ca_file, Ca::new("a").pem()).unwrap();
        let files = TrustFiles {
            ca_file: Some(ca_file.clone()),
            cert_dir: Some(dir.path().to_owned()),
        };
        write_pair(dir.path());
        let (trust, mut reload) = files.clone().begin().unwrap();
        let first = trust.config();
        reload.judge(files.read());
        assert!(Arc::ptr_eq(&first, &trust.config()), "nothing has changed");
        fs::write(&ca_file, "-----BEGIN CERTIFICATE-----").unwrap();
        reload.judge(files.read());
        assert!(Arc::ptr_eq(&first, &trust.config()), "half a file");
        fs::write(&ca_file, Ca::new("b").pem()).unwrap();
        reload.judge(files.read());
        assert!(!Arc::ptr_eq(&first, &trust.config()), "another CA");
    }
}
