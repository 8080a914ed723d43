//! Who may call.

use std::{fs, sync::Arc};

use axum::{Router, routing::get};
use metadata_center::{Settings, Tokens};
use prometheus_client::registry::Registry;
use rcgen::CertificateParams;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tls::{Alpn, TlsFiles, TlsMetrics, TlsVersion, test_pki::Ca};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::client::{Served, memory};

#[tokio::test]
async fn calls_need_a_token_where_there_are_any_and_probes_do_not() {
    let settings = Settings {
        tokens: Some(Tokens::new(vec!["secret".to_owned()])),
        probes: Router::new().route("/readyz", get(async || "ready")),
        ..Settings::default()
    };
    let served = Served::with(memory(), settings).await;
    let mut client = served.client().await;
    let reply = client.ask("GET /v1/clusters", "").await;
    let refused = concat!(
        r#"{"status":"ERROR","error":{"code":40101001,"message":"this service needs a bearer token","#,
        r#""reason":"unauthorized"},"data":null,"trace_id":"t"}"#
    );
    assert_eq!((reply.status, &*reply.body), (401, refused));
    assert_eq!(reply.headers["www-authenticate"], "Bearer");
    let authorized = "Authorization: Bearer secret\r\n";
    let reply = client.ask_with("GET /v1/clusters", authorized, "").await;
    assert_eq!(reply.status, 200);
    assert_eq!(client.ask("GET /readyz", "").await.status, 200);
}

/// A connection of a client that knows the servers' CA, and has a certificate or none.
async fn connect(
    served: &Served,
    servers: &Ca,
    own: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
    alpn: &[u8],
) -> TlsStream<TcpStream> {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(&servers.pem()).unwrap())
        .unwrap();
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let client = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut client = match own {
        Some((chain, key)) => client.with_client_auth_cert(chain, key).unwrap(),
        None => client.with_no_client_auth(),
    };
    client.alpn_protocols = vec![alpn.to_vec()];
    let tcp = TcpStream::connect(served.address).await.unwrap();
    let connector = TlsConnector::from(Arc::new(client));
    connector
        .connect("localhost".try_into().unwrap(), tcp)
        .await
        .unwrap()
}

#[tokio::test]
async fn over_tls_a_client_with_a_certificate_of_the_ca_is_served_by_the_protocol_that_it_speaks() {
    let dir = tempfile::tempdir().unwrap();
    let (servers, clients) = (Ca::new("servers"), Ca::new("clients"));
    let mk = |ca: &Ca, name: &str| ca.sign(CertificateParams::new(vec![name.to_owned()]).unwrap());
    let (certificate, key) = mk(&servers, "localhost");
    fs::write(dir.path().join("tls.crt"), certificate.pem()).unwrap();
    fs::write(dir.path().join("tls.key"), key.serialize_pem()).unwrap();
    fs::write(dir.path().join("ca.crt"), clients.pem()).unwrap();
    let files = TlsFiles {
        cert_dir: Some(dir.path().to_owned()),
        client_ca: Some(dir.path().join("ca.crt")),
        client_sans: Vec::new(),
        min_version: TlsVersion::Tls12,
        alpn: Alpn::Http,
    };
    let metrics = TlsMetrics::register(&mut Registry::default(), "metadata_center");
    let (acceptor, _) = files.begin(metrics.port("http")).unwrap();
    let served = Served::over(acceptor, memory(), Settings::default()).await;

    let (certificate, key) = mk(&clients, "epp-0");
    let own = || {
        let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
        Some((vec![certificate.der().clone()], key))
    };
    let request = b"GET /v1/clusters HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let mut connection = connect(&served, &servers, own(), b"http/1.1").await;
    connection.write_all(request).await.unwrap();
    let mut reply = String::new();
    connection.read_to_string(&mut reply).await.unwrap();
    assert!(reply.starts_with("HTTP/1.1 200 OK"), "{reply}");

    let connection = connect(&served, &servers, own(), b"h2").await;
    assert_eq!(connection.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));

    let mut stranger = connect(&served, &servers, None, b"http/1.1").await;
    // The refusal comes after the handshake as the client sees it.
    let _ = stranger.write_all(request).await;
    let mut reply = String::new();
    assert!(
        stranger.read_to_string(&mut reply).await.is_err(),
        "{reply}"
    );
}
