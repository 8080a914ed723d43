//! A TLS client that trusts everyone, and certificates to rotate.

use std::{fs, net::SocketAddr, path::Path, sync::Arc};

use hyper_util::rt::TokioIo;
use rustls::pki_types::CertificateDer;
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};
use tonic::transport::{Channel, Endpoint};

/// Connects, whatever certificate the server has.
pub(crate) async fn connect(address: SocketAddr) -> TlsStream<TcpStream> {
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let mut config = rustls::ClientConfig::builder_with_provider(Arc::new(provider.clone()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(TrustAll(provider)))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let tcp = TcpStream::connect(address).await.unwrap();
    let connector = TlsConnector::from(Arc::new(config));
    let name = "localhost".try_into().unwrap();
    connector.connect(name, tcp).await.unwrap()
}

/// The certificate that a new connection sees.
pub(crate) async fn served(address: SocketAddr) -> CertificateDer<'static> {
    let connection = connect(address).await;
    let seen = connection.get_ref().1.peer_certificates();
    seen.unwrap()[0].clone().into_owned()
}

/// One connection for gRPC.
pub(crate) async fn channel(address: SocketAddr) -> Channel {
    let connector = tower::service_fn(move |_| async move {
        Ok::<_, std::io::Error>(TokioIo::new(connect(address).await))
    });
    let endpoint = Endpoint::from_static("http://localhost");
    endpoint.connect_with_connector(connector).await.unwrap()
}

/// Writes a new pair, and returns its certificate.
pub(crate) fn write_pair(dir: &Path) -> CertificateDer<'static> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    fs::write(dir.join("tls.crt"), made.cert.pem()).unwrap();
    fs::write(dir.join("tls.key"), made.signing_key.serialize_pem()).unwrap();
    made.cert.der().clone()
}

#[derive(Debug)]
struct TrustAll(rustls::crypto::CryptoProvider);

impl rustls::client::danger::ServerCertVerifier for TrustAll {
    fn verify_server_cert(
        &self,
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &[rustls::pki_types::CertificateDer<'_>],
        _: &rustls::pki_types::ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &rustls::pki_types::CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(
            message,
            certificate,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &rustls::pki_types::CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
