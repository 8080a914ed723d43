//! The certificate of the ext_proc port.

use std::{fs, io, path::Path};

use tonic::transport::{Identity, ServerTlsConfig};

/// What a self-signed certificate is for; the proxy does not check it.
const SELF_SIGNED_NAMES: [&str; 2] = ["localhost", "epp"];

/// A certificate chain and its key, in PEM.
#[derive(Clone)]
pub struct Certificate(Identity);

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file cannot be read.
    #[error("cannot read {0}: {1}")]
    Read(String, #[source] io::Error),
    /// The files hold no usable pair.
    #[error("{0} holds no certificate and key that fit together: {1}")]
    Unusable(String, #[source] tonic::transport::Error),
    /// No key could be made.
    #[error("cannot make a self-signed certificate: {0}")]
    Make(#[source] rcgen::Error),
}

// === impl Certificate ===

impl Certificate {
    /// Reads `tls.crt` and `tls.key` from a directory, such as a mounted Secret.
    ///
    /// # Errors
    /// [`CertificateError`] when a file is missing, or the two do not make a pair.
    pub fn read(dir: &Path) -> Result<Self, CertificateError> {
        let read = |name: &str| {
            let path = dir.join(name);
            fs::read(&path)
                .map_err(|error| CertificateError::Read(path.display().to_string(), error))
        };
        let certificate = Self(Identity::from_pem(read("tls.crt")?, read("tls.key")?));
        let checked = tonic::transport::Server::builder().tls_config(certificate.server_config());
        checked.map_err(|error| CertificateError::Unusable(dir.display().to_string(), error))?;
        Ok(certificate)
    }

    /// Makes a P-256 key and a certificate that signs itself.
    ///
    /// # Errors
    /// [`CertificateError::Make`] when there is no randomness.
    pub fn self_signed() -> Result<Self, CertificateError> {
        let names = SELF_SIGNED_NAMES.map(str::to_owned).to_vec();
        let made = rcgen::generate_simple_self_signed(names).map_err(CertificateError::Make)?;
        Ok(Self(Identity::from_pem(
            made.cert.pem(),
            made.signing_key.serialize_pem(),
        )))
    }

    /// For tonic's server, which adds ALPN `h2`.
    pub fn server_config(&self) -> ServerTlsConfig {
        ServerTlsConfig::new().identity(self.0.clone())
    }
}

// === impl CertificateError ===

impl CertificateError {
    /// Stable: metric label and log field.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Read(..) => "read",
            Self::Unusable(..) => "unusable",
            Self::Make(_) => "make",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write_pair(dir: &Path) {
        let made = rcgen::generate_simple_self_signed(vec!["x".to_owned()]).unwrap();
        fs::write(dir.join("tls.crt"), made.cert.pem()).unwrap();
        fs::write(dir.join("tls.key"), made.signing_key.serialize_pem()).unwrap();
    }

    #[test]
    fn a_mounted_pair_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        write_pair(dir.path());
        assert!(Certificate::read(dir.path()).is_ok());
    }

    #[test]
    fn a_missing_file_and_a_foreign_key_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let reason = |dir: &Path| Certificate::read(dir).err().map(|error| error.reason());
        assert_eq!(reason(dir.path()), Some("read"));
        write_pair(dir.path());
        let other = tempfile::tempdir().unwrap();
        write_pair(other.path());
        fs::copy(other.path().join("tls.key"), dir.path().join("tls.key")).unwrap();
        assert_eq!(reason(dir.path()), Some("unusable"));
    }

    #[test]
    fn a_self_signed_pair_can_serve() {
        let certificate = Certificate::self_signed().unwrap();
        assert!(
            tonic::transport::Server::builder()
                .tls_config(certificate.server_config())
                .is_ok()
        );
    }
}
