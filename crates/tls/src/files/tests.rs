use std::fs;

use futures::StreamExt;
use prometheus_client::{encoding::text::encode, registry::Registry};
use rcgen::{CertificateParams, SanType, date_time_ymd};
use rstest::rstest;
use rustls::{
    ClientConfig, ClientConnection, HandshakeKind, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    version::TLS12,
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    join,
    net::{TcpListener, TcpStream},
    time::{Duration, timeout},
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tonic::transport::server::TcpIncoming;
use tracing::subscriber::set_default;

use super::*;
use crate::{
    HandshakeError, HandshakeLimits, MaybeTls, TlsMetrics, provider,
    test_pki::{Ca, mk_pair},
};

const LIMIT: Duration = Duration::from_secs(10);
const SPIFFE: &str = "spiffe://west/ns/gateways/sa/envoy";

/// A port with its files, and the CA that signed its certificate.
struct Port {
    dir: TempDir,
    ca: Ca,
    registry: Registry,
    acceptor: Acceptor,
    reload: TlsReload,
}

impl Port {
    fn begin(clients: Option<&Ca>, sans: &[&str]) -> Self {
        Self::begin_with(clients, |files| {
            files.client_sans = sans.iter().map(|san| san.parse().unwrap()).collect();
        })
    }

    fn begin_with(clients: Option<&Ca>, adapt: impl FnOnce(&mut TlsFiles)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let ca = Ca::new("servers");
        write(&dir, &mk_pair(&ca, 2040));
        let client_ca = clients.map(|ca| {
            let path = dir.path().join("ca.crt");
            fs::write(&path, ca.pem()).unwrap();
            path
        });
        let mut registry = Registry::default();
        let metrics = TlsMetrics::register(&mut registry, "epp").port("ext_proc");
        let mut files = mk_files(&dir);
        files.client_ca = client_ca;
        adapt(&mut files);
        let (acceptor, reload) = files.begin(metrics).unwrap();
        Self {
            dir,
            ca,
            registry,
            acceptor,
            reload,
        }
    }

    /// What the next look makes of the files.
    fn look(&mut self) -> bool {
        let readings = self.reload.files.read();
        self.reload.judge(readings, now())
    }

    fn client(&self) -> ClientConfig {
        self.client_with(None)
    }

    /// A client that verifies the port, with this pair of its own.
    fn client_with(&self, pair: Option<PairPem>) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(&self.ca.pem()).unwrap())
            .unwrap();
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        match pair {
            Some(pair) => {
                let chain = CertificateDer::pem_slice_iter(&pair.chain);
                let chain = chain.collect::<Result<_, _>>().unwrap();
                let key = PrivateKeyDer::from_pem_slice(&pair.key).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
            None => builder.with_no_client_auth(),
        }
    }

    /// Connects: what either side has.
    async fn connect(
        &self,
        client: ClientConfig,
    ) -> (
        Result<MaybeTls, HandshakeError>,
        std::io::Result<TlsStream<TcpStream>>,
    ) {
        let (server, client_side) = mk_link().await;
        let connector = TlsConnector::from(Arc::new(client));
        let connecting = connector.connect("localhost".try_into().unwrap(), client_side);
        join!(self.acceptor.accept(server), connecting)
    }

    /// Until when the certificate is valid that a new connection sees, as year.
    async fn served_until(&self) -> i32 {
        let (server, client) = self.connect(self.client()).await;
        server.unwrap();
        let client = client.unwrap();
        let certificate = &client.get_ref().1.peer_certificates().unwrap()[0];
        let (_, parsed) = x509_parser::parse_x509_certificate(certificate).unwrap();
        parsed.validity().not_after.to_datetime().year()
    }

    /// The lines of a metric.
    fn page(&self, name: &str) -> Vec<String> {
        let mut page = String::new();
        encode(&mut page, &self.registry).unwrap();
        let lines = page.lines().filter(|line| line.starts_with(name));
        lines.map(str::to_owned).collect()
    }

    /// How many changes of an item ended so.
    fn reloads(&self, item: &str, result: &str) -> u32 {
        let labels = format!("port=\"ext_proc\",item=\"{item}\",result=\"{result}\"");
        let name = format!("epp_certificate_reloads_total{{{labels}}} ");
        let lines = self.page(&name);
        let count = lines.first().and_then(|line| line.rsplit(' ').next());
        count.map_or(0, |count| count.parse().unwrap())
    }
}

fn mk_files(dir: &TempDir) -> TlsFiles {
    TlsFiles {
        cert_dir: Some(dir.path().to_owned()),
        client_ca: None,
        client_sans: Vec::new(),
        min_version: TlsVersion::Tls12,
        alpn: Alpn::H2,
    }
}

fn write(dir: &TempDir, pair: &PairPem) {
    fs::write(dir.path().join("tls.crt"), &pair.chain).unwrap();
    fs::write(dir.path().join("tls.key"), &pair.key).unwrap();
}

/// A connection: the server's side, the client's.
async fn mk_link() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap());
    let (server, client) = join!(listener.accept(), client);
    (server.unwrap().0, client.unwrap())
}

/// A client's certificate.
fn mk_client(ca: &Ca, uri: &str, until: i32) -> PairPem {
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::URI(uri.try_into().unwrap())];
    params.not_after = date_time_ymd(until, 1, 1);
    let (certificate, key) = ca.sign(params);
    PairPem {
        chain: certificate.pem().into_bytes(),
        key: key.serialize_pem().into_bytes(),
    }
}

/// Which client comes, of a port that wants one of the CA with a SPIFFE id.
enum Comes {
    WithoutCertificate,
    OfAnotherCa,
    Named(&'static str),
    Expired,
}

#[rstest]
#[case(Comes::Named(SPIFFE), None)]
#[case(Comes::Named("spiffe://west/ns/gateways/sa/other"), Some("name"))]
#[case(Comes::WithoutCertificate, Some("no_certificate"))]
#[case(Comes::OfAnotherCa, Some("certificate"))]
#[case(Comes::Expired, Some("certificate"))]
#[tokio::test]
async fn only_named_clients_of_the_ca_are_let_in(
    #[case] comes: Comes,
    #[case] refused: Option<&'static str>,
) {
    let ca = Ca::new("clients");
    let port = Port::begin(Some(&ca), &["absent.example", SPIFFE]);
    let pair = match comes {
        Comes::WithoutCertificate => None,
        // of the same name, so that only its signature tells
        Comes::OfAnotherCa => Some(mk_client(&Ca::new("clients"), SPIFFE, 2040)),
        Comes::Named(uri) => Some(mk_client(&ca, uri, 2040)),
        Comes::Expired => Some(mk_client(&ca, SPIFFE, 2020)),
    };
    let (server, _client) = port.connect(port.client_with(pair)).await;
    assert_eq!(server.err().map(|error| error.reason()), refused);
    let counted = refused.map(|reason| {
        format!("epp_tls_handshake_failures_total{{port=\"ext_proc\",reason=\"{reason}\"}} 1")
    });
    let counted: Vec<_> = counted.into_iter().collect();
    assert_eq!(port.page("epp_tls_handshake_failures_total"), counted);
}

#[tokio::test]
async fn without_names_every_client_of_the_ca_is_let_in() {
    let ca = Ca::new("clients");
    let port = Port::begin(Some(&ca), &[]);
    let pair = mk_client(&ca, "urn:anything", 2040);
    let (server, client) = port.connect(port.client_with(Some(pair))).await;
    assert!(server.is_ok() && client.is_ok());
}

#[tokio::test]
async fn a_resumed_session_would_not_be_verified_so_there_is_none() {
    let port = Port::begin(None, &[]);
    let client = port.client();
    for _ in 0..2 {
        let (server, opened) = port.connect(client.clone()).await;
        let (mut server, mut opened) = (server.unwrap(), opened.unwrap());
        let kind = opened.get_ref().1.handshake_kind();
        assert_eq!(kind, Some(HandshakeKind::Full));
        // by then the client has a ticket, if there is one
        server.write_all(b"x").await.unwrap();
        server.flush().await.unwrap();
        assert_eq!(opened.read_u8().await.unwrap(), b'x');
    }
}

#[tokio::test]
async fn a_client_that_speaks_only_an_older_version_is_refused() {
    let port = Port::begin_with(None, |files| files.min_version = TlsVersion::Tls13);
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(&port.ca.pem()).unwrap())
        .unwrap();
    let old = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS12])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let (server, _client) = port.connect(old.clone()).await;
    assert_eq!(server.unwrap_err().reason(), "protocol");
    let lenient = Port::begin(None, &[]);
    let (server, _client) = lenient.connect(old).await;
    // that one is spoken to; the CA is another
    assert_eq!(server.unwrap_err().reason(), "refused_by_client");
}

#[tokio::test]
async fn what_is_no_tls_and_who_leaves_is_counted() {
    let port = Port::begin(None, &[]);
    let (server, mut client) = mk_link().await;
    client.write_all(b"PRI * HTTP/2.0\r\n\r\n").await.unwrap();
    let refused = port.acceptor.accept(server).await.unwrap_err();
    assert_eq!(refused.reason(), "protocol");
    let (server, client) = mk_link().await;
    drop(client);
    let closed = port.acceptor.accept(server).await.unwrap_err();
    assert_eq!(closed.reason(), "closed");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_says_nothing_has_ten_seconds_or_what_its_port_says() {
    let port = Port::begin(None, &[]);
    let limits = HandshakeLimits {
        deadline: Duration::from_secs(2),
        of_address: None,
    };
    let shorter = port.acceptor.clone().with_limits(limits);
    for (acceptor, seconds) in [(&port.acceptor, 10), (&shorter, 2)] {
        let (server, _client) = mk_link().await;
        let started = tokio::time::Instant::now();
        let refused = acceptor.accept(server).await.unwrap_err();
        assert_eq!(refused.reason(), "timeout");
        assert_eq!(started.elapsed().as_secs(), seconds);
    }
}

#[tokio::test]
async fn a_client_that_says_nothing_holds_up_no_other() {
    let port = Port::begin(None, &[]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let _silent = TcpStream::connect(address).await.unwrap();
    let accepted = TcpIncoming::from(listener).map(|tcp| Ok((tcp?, ())));
    let mut incoming = Box::pin(port.acceptor.clone().incoming(accepted));
    let connector = TlsConnector::from(Arc::new(port.client()));
    let connecting = async {
        let tcp = TcpStream::connect(address).await.unwrap();
        connector
            .connect("localhost".try_into().unwrap(), tcp)
            .await
    };
    let both = async { join!(incoming.next(), connecting) };
    let (accepted, client) = timeout(LIMIT, both).await.expect("in time");
    assert!(matches!(accepted, Some(Ok((MaybeTls::Tls(_), ())))));
    client.unwrap();
}

/// How a client is refused whose server name is a cluster's, as Istio's gateways send it where a `DestinationRule` has no `sni`.
async fn refuse_cluster_name(port: &Port) -> HandshakeError {
    let (sent, cluster) = (
        "outboundx9002xxllama-epp.llm.svc",
        "outbound|9002||llama-epp.llm.svc",
    );
    let config = Arc::new(port.client());
    let mut client = ClientConnection::new(config, sent.try_into().unwrap()).unwrap();
    let mut hello = Vec::new();
    client.write_tls(&mut hello).unwrap();
    let at = hello
        .windows(sent.len())
        .position(|bytes| bytes == sent.as_bytes());
    let at = at.expect("the name is in the first message");
    hello[at..at + sent.len()].copy_from_slice(cluster.as_bytes());
    let (server, mut client) = mk_link().await;
    client.write_all(&hello).await.unwrap();
    port.acceptor.accept(server).await.unwrap_err()
}

#[tokio::test]
async fn a_server_name_that_is_no_host_name_has_a_reason_of_its_own() {
    let port = Port::begin(None, &[]);
    let refused = refuse_cluster_name(&port).await;
    assert_eq!(refused.reason(), "server_name", "{refused}");
}

#[tokio::test]
async fn the_log_warns_once_of_server_names_that_are_no_host_names() {
    let port = Port::begin(None, &[]);
    let path = port.dir.path().join("log");
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(Arc::new(fs::File::create(&path).unwrap()))
        .finish();
    let _logged = set_default(subscriber);
    let logged = || fs::read_to_string(&path).unwrap();
    let (server, mut client) = mk_link().await;
    client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    port.acceptor.accept(server).await.unwrap_err();
    assert_eq!(logged(), "", "another failure is none of a server name");
    refuse_cluster_name(&port).await;
    refuse_cluster_name(&port).await;
    let log = logged();
    assert_eq!(log.lines().count(), 1, "{log}");
    assert!(
        log.contains("WARN") && log.contains("set `sni` there"),
        "{log}"
    );
    assert!(log.contains("port=\"ext_proc\""), "{log}");
}

#[tokio::test]
async fn a_handshake_takes_one_of_a_number_of_turns_and_gives_it_back() {
    let port = Port::begin(None, &[]);
    let free = port.acceptor.turns();
    let (server, client) = mk_link().await;
    let mut silent = Box::pin(port.acceptor.accept(server));
    assert!(futures::poll!(&mut silent).is_pending());
    assert_eq!(port.acceptor.turns(), free - 1);
    drop(client);
    assert!(matches!(silent.await, Err(HandshakeError::Closed(_))));
    let (server, _client) = port.connect(port.client()).await;
    assert!(server.is_ok());
    assert_eq!(port.acceptor.turns(), free);
}

/// Many silent connections of one address leave room for those of others.
#[tokio::test]
async fn one_address_has_some_of_the_handshakes() {
    let port = Port::begin(None, &[]);
    let limits = HandshakeLimits {
        deadline: LIMIT,
        of_address: Some(1),
    };
    let acceptor = port.acceptor.clone().with_limits(limits);
    let (server, client) = mk_link().await;
    let mut silent = Box::pin(acceptor.accept(server));
    assert!(futures::poll!(&mut silent).is_pending());
    let (server, _client) = mk_link().await;
    let refused = acceptor.accept(server).await.unwrap_err();
    assert_eq!(refused.reason(), "too_many");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let (server, other) = join!(
        listener.accept(),
        socket.connect(listener.local_addr().unwrap())
    );
    let _other = other.unwrap();
    let mut of_another = Box::pin(acceptor.accept(server.unwrap().0));
    assert!(futures::poll!(&mut of_another).is_pending());
    // the place is free again with the end of the handshake
    drop(client);
    assert!(silent.await.is_err());
    let (server, _client) = mk_link().await;
    let mut next = Box::pin(acceptor.accept(server));
    assert!(futures::poll!(&mut next).is_pending());
}

#[tokio::test]
async fn a_changed_pair_is_for_new_connections_and_old_ones_go_on() {
    let mut port = Port::begin(None, &[]);
    let (server, client) = port.connect(port.client()).await;
    let (mut server, mut client) = (server.unwrap(), client.unwrap());
    write(&port.dir, &mk_pair(&port.ca, 2041));
    assert!(port.look());
    assert_eq!(port.served_until().await, 2041);
    server.write_all(b"old").await.unwrap();
    server.flush().await.unwrap();
    let mut seen = [0; 3];
    client.read_exact(&mut seen).await.unwrap();
    assert_eq!(&seen, b"old");
    // 2041-01-01
    assert_eq!(
        port.page("epp_certificate_not_after_seconds"),
        ["epp_certificate_not_after_seconds{port=\"ext_proc\"} 2240611200"]
    );
    assert_eq!(port.reloads("certificate", "success"), 1);
    assert!(!port.look(), "nothing has changed since");
}

#[rstest]
#[case::half_written(|dir: &TempDir, ca: &Ca| {
    let pair = mk_pair(ca, 2041);
    let (half, _) = pair.chain.split_at(pair.chain.len() / 2);
    fs::write(dir.path().join("tls.crt"), half).unwrap();
    fs::write(dir.path().join("tls.key"), &pair.key).unwrap();
})]
#[case::mismatched(|dir: &TempDir, ca: &Ca| {
    fs::write(dir.path().join("tls.crt"), &mk_pair(ca, 2041).chain).unwrap();
})]
#[case::expired(|dir: &TempDir, ca: &Ca| write(dir, &mk_pair(ca, 2020)))]
#[case::gone(|dir: &TempDir, _: &Ca| fs::remove_file(dir.path().join("tls.key")).unwrap())]
#[tokio::test]
async fn a_pair_that_cannot_be_used_changes_nothing_and_counts_once(
    #[case] spoil: fn(&TempDir, &Ca),
) {
    let mut port = Port::begin(None, &[]);
    spoil(&port.dir, &port.ca);
    assert!(port.look());
    assert!(!port.look(), "it is judged once");
    assert_eq!(port.served_until().await, 2040);
    assert_eq!(port.reloads("certificate", "failure"), 1);
    write(&port.dir, &mk_pair(&port.ca, 2042));
    port.look();
    assert_eq!(port.served_until().await, 2042, "the next good one is used");
}

#[tokio::test]
async fn a_changed_ca_is_for_new_clients_and_a_bad_one_changes_nothing() {
    let (old, new) = (Ca::new("old"), Ca::new("new"));
    let mut port = Port::begin(Some(&old), &[]);
    let path = port.dir.path().join("ca.crt");
    let comes = async |port: &Port, ca: &Ca| {
        let pair = mk_client(ca, SPIFFE, 2040);
        let (server, _client) = port.connect(port.client_with(Some(pair))).await;
        server.is_ok()
    };
    fs::write(&path, [old.pem(), new.pem()].concat()).unwrap();
    port.look();
    assert!(comes(&port, &old).await && comes(&port, &new).await);
    fs::write(&path, new.pem()).unwrap();
    port.look();
    assert!(!comes(&port, &old).await && comes(&port, &new).await);
    fs::write(&path, "").unwrap();
    port.look();
    assert!(comes(&port, &new).await);
    assert_eq!(port.reloads("client_ca", "success"), 2);
    assert_eq!(port.reloads("client_ca", "failure"), 1);
}

#[tokio::test]
async fn a_bad_ca_does_not_hold_up_a_good_pair() {
    let ca = Ca::new("clients");
    let mut port = Port::begin(Some(&ca), &[]);
    write(&port.dir, &mk_pair(&port.ca, 2041));
    fs::remove_file(port.dir.path().join("ca.crt")).unwrap();
    port.look();
    assert_eq!(port.reloads("certificate", "success"), 1);
    assert_eq!(port.reloads("client_ca", "failure"), 1);
    let pair = mk_client(&ca, SPIFFE, 2040);
    let (server, _client) = port.connect(port.client_with(Some(pair))).await;
    assert!(server.is_ok(), "the former CA is still good");
    let (server, _client) = port.connect(port.client()).await;
    assert_eq!(server.unwrap_err().reason(), "no_certificate");
}

#[test]
fn an_expired_certificate_is_served_where_there_is_no_other() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir, &mk_pair(&Ca::new("a"), 2020));
    let metrics = TlsMetrics::register(&mut Registry::default(), "epp").port("ext_proc");
    assert!(mk_files(&dir).begin(metrics).is_ok());
}

#[test]
fn without_files_there_is_a_certificate_and_nothing_to_read_again() {
    let metrics = TlsMetrics::register(&mut Registry::default(), "epp").port("ext_proc");
    let files = TlsFiles {
        cert_dir: None,
        ..mk_files(&tempfile::tempdir().unwrap())
    };
    let (_acceptor, reload) = files.begin(metrics).unwrap();
    assert!(!reload.is_needed());
}
