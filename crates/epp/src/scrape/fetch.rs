//! How a page is asked for: protocol, port, path, and whom to believe.

use std::{net::SocketAddr, sync::Arc};

use http::Uri;
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
};
use tokio_rustls::TlsConnector;

use super::plan::{Files, bad_file};
use crate::config::{MetricsSource, Refusal};

/// The same for all endpoints.
#[derive(Clone)]
pub(super) struct Fetch {
    pub(super) path: Uri,
    /// Absent: each endpoint's own.
    port: Option<u16>,
    /// Absent: plain HTTP.
    pub(super) tls: Option<TlsConnector>,
}

/// Believes every server, as scrapers in clusters do: certificates of model servers mostly sign themselves.
#[derive(Debug)]
struct TrustAll(Arc<CryptoProvider>);

// === impl Fetch ===

impl Fetch {
    /// # Errors
    /// [`Refusal`] that names the key whose file cannot be used.
    pub(super) fn new(source: &MetricsSource, files: &Files) -> Result<Self, Refusal> {
        let path = source.path.parse().map_err(|error| Refusal {
            item: "parameters.path of metrics-data-source".to_owned(),
            line: None,
            problem: format!("{:?}: {error}", source.path),
            expected: "a path of a URL".to_owned(),
            example: "path: /metrics".to_owned(),
        })?;
        let tls = source
            .uses_tls()
            .then(|| client_config(source, files))
            .transpose()?;
        Ok(Self {
            path,
            port: source.port,
            tls: tls.map(|config| TlsConnector::from(Arc::new(config))),
        })
    }

    /// Where the page of an endpoint is.
    pub(super) fn address(&self, endpoint: SocketAddr) -> SocketAddr {
        SocketAddr::new(endpoint.ip(), self.port.unwrap_or(endpoint.port()))
    }
}

impl Default for Fetch {
    fn default() -> Self {
        Self {
            path: Uri::from_static("/metrics"),
            port: None,
            tls: None,
        }
    }
}

impl std::fmt::Debug for Fetch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fetch")
            .field("path", &self.path)
            .field("port", &self.port)
            .field("tls", &self.tls.is_some())
            .finish()
    }
}

fn client_config(source: &MetricsSource, files: &Files) -> Result<ClientConfig, Refusal> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(source, "caCertPath", &error.to_string()))?;
    let builder = if source.insecure_skip_verify {
        let trust_all = Arc::new(TrustAll(provider));
        builder
            .dangerous()
            .with_custom_certificate_verifier(trust_all)
    } else {
        builder.with_root_certificates(authorities(source, files.authorities.as_deref())?)
    };
    let (Some(certificate), Some(key)) = (&files.certificate, &files.key) else {
        return Ok(builder.with_no_client_auth());
    };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate).collect();
    let chain = chain
        .ok()
        .filter(|chain| !chain.is_empty())
        .ok_or_else(|| unusable(source, "clientCertPath", "it holds no certificate in PEM"))?;
    let key = PrivateKeyDer::from_pem_slice(key)
        .map_err(|error| unusable(source, "clientKeyPath", &error.to_string()))?;
    builder
        .with_client_auth_cert(chain, key)
        .map_err(|error| unusable(source, "clientKeyPath", &error.to_string()))
}

/// Those of the file, else those of the system.
fn authorities(source: &MetricsSource, pem: Option<&[u8]>) -> Result<RootCertStore, Refusal> {
    let mut roots = RootCertStore::empty();
    let Some(pem) = pem else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return Ok(roots);
    };
    for certificate in CertificateDer::pem_slice_iter(pem) {
        certificate
            .map_err(|error| error.to_string())
            .and_then(|certificate| roots.add(certificate).map_err(|error| error.to_string()))
            .map_err(|error| unusable(source, "caCertPath", &error))?;
    }
    if roots.is_empty() {
        let problem = "it holds no certificate in PEM";
        return Err(unusable(source, "caCertPath", problem));
    }
    Ok(roots)
}

fn unusable(source: &MetricsSource, key: &'static str, problem: &str) -> Refusal {
    let pair = source.client_cert.as_ref();
    let path = match key {
        "caCertPath" => source.ca_cert_path.as_deref(),
        "clientCertPath" => pair.map(|pair| &*pair.cert_path),
        _ => pair.map(|pair| &*pair.key_path),
    };
    bad_file(key, path.unwrap_or("".as_ref()), problem)
}

// === impl TrustAll ===

impl ServerCertVerifier for TrustAll {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
