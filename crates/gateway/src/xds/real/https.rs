//! HTTPS on the real Envoy: certificates and hosts by server name, rotation, and certificates that are missing.

use std::net::Ipv4Addr;
use std::sync::Arc;

use ::tls::test_pki::Ca;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::fixture::{key, mk_https_listener};
use crate::world::secrets::mk_certificate;
use crate::world::{BadSecret, World};

use super::bed::{Answer, Bed, Channel, Edges, LIMIT, free_port};

/// A client that trusts one authority alone.
struct Client {
    port: u16,
    connector: TlsConnector,
}

impl Client {
    fn new(port: u16, ca: &Ca) -> Self {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(&ca.pem()).unwrap())
            .unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider);
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Self {
            port,
            connector: TlsConnector::from(Arc::new(config)),
        }
    }

    async fn connect(&self, name: &str) -> std::io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let connect = async {
            let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).await?;
            self.connector.connect(name, stream).await
        };
        timeout(LIMIT, connect).await.expect("an end in time")
    }

    /// The answer, or why there is no connection.
    async fn get(&self, name: &str, host: &str) -> Result<Answer, String> {
        let connection = self.connect(name).await;
        let mut connection = connection.map_err(|error| error.to_string())?;
        let request = format!("GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        connection.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let read = timeout(LIMIT, connection.read_to_end(&mut answer)).await;
        read.expect("an answer in time")
            .map_err(|error| error.to_string())?;
        Ok(Answer::read(&String::from_utf8(answer).unwrap()))
    }

    async fn status(&self, name: &str, host: &str) -> Result<u16, String> {
        self.get(name, host).await.map(|answer| answer.status)
    }
}

fn set_certificate(world: &mut World, name: &str, ca: &Ca, host: &str) {
    let certificate = mk_certificate(name, ca, host);
    world.certificates.insert(key(name), Ok(certificate));
}

/// Two listeners, of `a.test` and `*.b.test`, with certificates of two authorities.
fn listen(world: &mut World, port: u16, cas: [&Ca; 2]) {
    let gateway = world.gateways.get_mut(&key("gw")).unwrap();
    gateway.listeners.extend([
        mk_https_listener("a", port, Some("a.test"), &["a"]),
        mk_https_listener("b", port, Some("*.b.test"), &["b"]),
    ]);
    set_certificate(world, "a", cas[0], "a.test");
    set_certificate(world, "b", cas[1], "*.b.test");
}

async fn until(bed: &Bed, client: &Client, name: &str, expected: u16) {
    bed.wait(&format!("{name} answers {expected}"), || async {
        client.status(name, name).await == Ok(expected)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn server_name_chooses_certificate_and_hosts() {
    let (port, cas) = (free_port().await, [Ca::new("a"), Ca::new("b")]);
    let bed = Bed::start(|world| listen(world, port, [&cas[0], &cas[1]])).await;
    let [a, b] = cas.each_ref().map(|ca| Client::new(port, ca));
    until(&bed, &a, "a.test", 200).await;
    until(&bed, &b, "x.b.test", 200).await;
    // each certificate is of its own listener
    assert!(a.status("x.b.test", "x.b.test").await.is_err());
    assert!(b.status("a.test", "a.test").await.is_err());
    // a server name of no listener has none, and the case of one does not matter
    assert!(a.status("c.test", "c.test").await.is_err());
    assert_eq!(a.status("A.test", "a.TEST").await, Ok(200));
    for (host, status, kind) in [
        ("x.b.test", 421, "misdirected-request"),
        ("c.test", 404, "route-not-found"),
    ] {
        let answer = a.get("a.test", host).await.unwrap();
        assert_eq!(answer.status, status, "{answer:?}");
        assert!(answer.body.contains(kind), "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rotated_certificate_is_for_new_connections_and_ends_no_old_one() {
    let (port, cas) = (free_port().await, [Ca::new("a"), Ca::new("b")]);
    let mut bed = Bed::start(|world| listen(world, port, [&cas[0], &cas[1]])).await;
    let (old, next) = (Client::new(port, &cas[0]), Ca::new("next"));
    until(&bed, &old, "a.test", 200).await;
    let mut connection = old.connect("a.test").await.unwrap();
    let has_of = |bed: &Bed| {
        let envoys = bed.proxies.connected();
        envoys[0].acknowledged["lds"].clone()
    };
    let before = has_of(&bed);
    set_certificate(&mut bed.world, "a", &next, "a.test");
    bed.publish();
    until(&bed, &Client::new(port, &next), "a.test", 200).await;
    assert!(old.connect("a.test").await.is_err());
    assert_eq!(has_of(&bed), before);
    let request = "GET / HTTP/1.1\r\nhost: a.test\r\nconnection: close\r\n\r\n";
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let read = connection.read_to_end(&mut answer);
    timeout(LIMIT, read)
        .await
        .expect("an answer in time")
        .unwrap();
    let answer = Answer::read(&String::from_utf8(answer).unwrap());
    assert_eq!(answer.status, 200, "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn listener_without_a_certificate_does_not_disturb_its_neighbours() {
    let (port, cas) = (free_port().await, [Ca::new("a"), Ca::new("b")]);
    let none = |world: &mut World| {
        listen(world, port, [&cas[0], &cas[1]]);
        world
            .certificates
            .insert(key("b"), Err(BadSecret::NotFound));
    };
    let mut bed = Bed::start(none).await;
    let [a, b] = cas.each_ref().map(|ca| Client::new(port, ca));
    until(&bed, &a, "a.test", 200).await;
    assert_eq!(bed.get("/").await.status, 200);
    assert!(b.status("x.b.test", "x.b.test").await.is_err());
    assert_eq!(a.status("a.test", "x.b.test").await, Ok(421));
    // it comes, and goes again
    let connection = a.connect("a.test").await.unwrap();
    set_certificate(&mut bed.world, "b", &cas[1], "*.b.test");
    bed.publish();
    until(&bed, &b, "x.b.test", 200).await;
    let gone = bed.world.certificates.remove(&key("b"));
    assert!(gone.is_some());
    bed.publish();
    bed.wait("x.b.test is gone", || async {
        b.status("x.b.test", "x.b.test").await.is_err()
    })
    .await;
    until(&bed, &a, "a.test", 200).await;
    drop(connection);
}

#[tokio::test(flavor = "multi_thread")]
async fn key_is_not_sent_where_others_can_read_it() {
    let (port, cas) = (free_port().await, [Ca::new("a"), Ca::new("b")]);
    let listens = |world: &mut World| listen(world, port, [&cas[0], &cas[1]]);
    let bed = Bed::launch(listens, Channel::Shared, Edges::Good).await;
    let client = Client::new(port, &cas[0]);
    bed.wait("Envoy has the listener", || async {
        let envoys = bed.proxies.connected();
        let name = format!("edge/{port}");
        // before its first report nothing is known of an Envoy
        envoys.iter().any(|one| {
            let listeners = one.acknowledged.get("lds");
            listeners.is_some_and(|known| known.contains_key(&name)) && one.current
        })
    })
    .await;
    let acknowledged = &bed.proxies.connected()[0].acknowledged;
    assert!(acknowledged["sds"].is_empty(), "{acknowledged:?}");
    assert!(client.status("a.test", "a.test").await.is_err());
    assert_eq!(bed.get("/").await.status, 200);
}
