//! Certificates for servers that speak TLS, made anew for each run.

use std::{net::Ipv4Addr, sync::Arc};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

/// An authority that the servers of a fleet share.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// No key or certificate could be made.
    #[error("cannot make a certificate: {0}")]
    Make(#[from] rcgen::Error),
    /// The certificate cannot be served.
    #[error("cannot serve the certificate: {0}")]
    Serve(#[from] rustls::Error),
}

/// HTTP/2, as TLS negotiates it.
pub(crate) const H2: &[u8] = b"h2";

// === impl Authority ===

impl Authority {
    /// # Errors
    /// [`PkiError::Make`] when there is no randomness.
    pub fn make() -> Result<Self, PkiError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = name("sim-ca");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        Ok(Self { issuer })
    }

    /// The certificate that clients trust.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    pub(crate) fn server(&self, address: Ipv4Addr) -> Result<Arc<rustls::ServerConfig>, PkiError> {
        let mut params = CertificateParams::new([address.to_string()])?;
        params.distinguished_name = name("kube-apiserver");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?.der().clone();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)?;
        config.alpn_protocols = vec![H2.to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

fn name(common: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common);
    name
}
