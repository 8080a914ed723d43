use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crd::networks::Cidr;
use prometheus_client::registry::Registry;
use rcgen::CertificateParams;
use rstest::rstest;
use rustls::pki_types::PrivatePkcs8KeyDer;
use tls::Trust;
use tls::test_pki::Ca;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;

use super::dial::Pace;
use super::*;
use crate::fixture::key;
use crate::select::PoolLoad;
use crate::world::credentials::mk_credential;

const LIMIT: Duration = Duration::from_secs(20);

const PAGE: &str = "llm_d_epp_ready_endpoints{name=\"llm\"} 3\nllm_d_epp_average_queue_size{name=\"llm\"} 1.5\n\
    llm_d_epp_average_kv_cache_utilization{name=\"llm\"} 0.25\n";

fn mk_targets(at: &[SocketAddr]) -> Targets {
    let hosts = at.iter().map(|at| (at.ip().to_string(), at.port()));
    Targets::new(hosts.collect(), Arc::new([]))
}

fn mk_probe(at: &[SocketAddr], method: Method) -> Probe {
    Probe {
        targets: mk_targets(at),
        method,
        interval: Duration::from_millis(10),
        timeout: Duration::from_secs(5),
    }
}

fn mk_grpc() -> Method {
    Method::Grpc {
        service: "picker".to_owned(),
    }
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let at = listener.local_addr().unwrap();
    (listener, at)
}

/// An address where nobody listens.
async fn nobody() -> SocketAddr {
    listen().await.1
}

/// gRPC health of the service `picker`.
async fn health(tasks: &mut JoinSet<()>, serving: bool) -> SocketAddr {
    let (listener, at) = listen().await;
    let (reporter, service) = tonic_health::server::health_reporter();
    let status = if serving {
        tonic_health::ServingStatus::Serving
    } else {
        tonic_health::ServingStatus::NotServing
    };
    reporter.set_service_status("picker", status).await;
    tasks.spawn(async move {
        let incoming = TcpListenerStream::new(listener);
        let serving = Server::builder().add_service(service);
        serving.serve_with_incoming(incoming).await.unwrap();
    });
    at
}

/// Answers each request of one connection after the other with the same bytes, and hands on what it was asked.
async fn page(tasks: &mut JoinSet<()>, answer: Vec<u8>) -> (SocketAddr, mpsc::Receiver<String>) {
    let (listener, at) = listen().await;
    let (seen, asked) = mpsc::channel(16);
    tasks.spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let request = read_head(&mut stream).await;
            // What is too large is not read to its end.
            let _ = stream.write_all(&answer).await;
            let _ = seen.send(request).await;
        }
    });
    (at, asked)
}

/// The same over TLS, by its address, with a certificate of this authority.
async fn serve_tls(
    tasks: &mut JoinSet<()>,
    ca: &Ca,
    answer: Vec<u8>,
) -> (SocketAddr, mpsc::Receiver<String>) {
    let params = CertificateParams::new(vec![Ipv4Addr::LOCALHOST.to_string()]).unwrap();
    let (certificate, key) = ca.sign(params);
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key.into())
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let (listener, at) = listen().await;
    let (seen, asked) = mpsc::channel(16);
    tasks.spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            // A client may not trust it, or end the connection after the handshake.
            if let Ok(mut stream) = acceptor.accept(stream).await {
                let request = read_head(&mut stream).await;
                let _ = stream.write_all(&answer).await;
                let _ = stream.shutdown().await;
                if !request.is_empty() {
                    let _ = seen.send(request).await;
                }
            }
        }
    });
    (at, asked)
}

async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8(head).unwrap()
}

fn ok(body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}").into_bytes()
}

async fn probe(at: &[SocketAddr], method: Method) -> Result<(), &'static str> {
    let mut probe = mk_probe(at, method);
    run(&mut probe, &Trust::system()).await
}

async fn run(probe: &mut Probe, system: &Trust) -> Result<(), &'static str> {
    timeout(LIMIT, probe.run(system, &Resolver::system()))
        .await
        .expect("an end in time")
}

async fn scrape(scrape: &mut Scrape) -> Result<PoolLoad, &'static str> {
    timeout(LIMIT, scrape.run("llm", LIMIT, &Resolver::system()))
        .await
        .expect("an end in time")
}

#[tokio::test]
async fn grpc_health_is_believed_and_one_of_several_pickers_is_enough() {
    let mut tasks = JoinSet::new();
    let (up, down) = (
        health(&mut tasks, true).await,
        health(&mut tasks, false).await,
    );
    let gone = nobody().await;
    assert_eq!(probe(&[up], mk_grpc()).await, Ok(()));
    assert_eq!(probe(&[gone, down, up], mk_grpc()).await, Ok(()));
    let stopped = probe(&[down], mk_grpc()).await.unwrap_err();
    assert!(stopped.contains("does not serve"), "{stopped}");
    let other = Method::Grpc {
        service: "other".to_owned(),
    };
    let unknown = probe(&[up], other).await.unwrap_err();
    assert!(unknown.contains("an error"), "{unknown}");
    assert_eq!(probe(&[gone], mk_grpc()).await, Err("no connection"));
}

#[tokio::test]
async fn a_connection_is_enough_where_there_is_no_health_port() {
    let (_listener, at) = listen().await;
    let gone = nobody().await;
    assert_eq!(probe(&[gone, at], Method::Tcp).await, Ok(()));
    let refused = probe(&[gone], Method::Tcp).await;
    assert_eq!(refused, Err("the connection is refused"));
}

#[tokio::test]
async fn gateway_with_tls_is_healthy_with_a_certificate_that_envoys_trust() {
    let mut tasks = JoinSet::new();
    let tls = |name: &str| Method::Tls {
        name: name.to_owned(),
        signed: SignedBy::System,
    };
    let (ours, other) = (Ca::new("a"), Ca::new("b"));
    let (at, _asked) = serve_tls(&mut tasks, &ours, ok("")).await;
    let not_trusted = Err("its certificate is not trusted");
    for (ca, name, expected) in [
        (&ours, "127.0.0.1", Ok(())),
        (&ours, "llm.east.example", not_trusted),
        (&other, "127.0.0.1", not_trusted),
    ] {
        let system = Trust::of_pem(Some(ca.pem()), None).unwrap();
        let result = run(&mut mk_probe(&[at], tls(name)), &system).await;
        assert_eq!(result, expected, "{name}");
    }
    let plain = health(&mut tasks, true).await;
    assert_eq!(
        probe(&[plain], tls("127.0.0.1")).await,
        Err("the TLS handshake failed")
    );
}

/// What the system trusts has no part in it.
#[tokio::test]
async fn what_a_policy_verifies_is_healthy_with_a_certificate_of_its_authorities() {
    let mut tasks = JoinSet::new();
    let (ours, other) = (Ca::new("a"), Ca::new("b"));
    let (at, _asked) = serve_tls(&mut tasks, &ours, ok("")).await;
    for (ca, expected) in [
        (&ours, Ok(())),
        (&other, Err("its certificate is not trusted")),
    ] {
        let bundle = crate::world::authorities::mk_bundle("ca", ca);
        let method = Method::Tls {
            name: "127.0.0.1".to_owned(),
            signed: SignedBy::Authorities(Authorities::new(bundle)),
        };
        assert_eq!(probe(&[at], method).await, expected);
    }
}

/// `localhost` is a name that leads to a denied address, as one of another cluster may.
#[tokio::test]
async fn a_name_is_dialled_only_where_its_address_is_allowed() {
    let (_listener, at) = listen().await;
    let system = Trust::system();
    let hosts = vec![("localhost".to_owned(), at.port())];
    let mut one = mk_probe(&[], Method::Tcp);
    one.targets = Targets::new(hosts.clone(), Arc::new([]));
    assert_eq!(run(&mut one, &system).await, Ok(()));
    let denied: [Cidr; 2] = ["127.0.0.0/8", "::1/128"].map(|text| text.parse().unwrap());
    one.targets = Targets::new(hosts, denied.into());
    let result = run(&mut one, &system).await;
    assert_eq!(result, Err("it has no address that may be dialled"));
}

/// Of a local endpoint picker that may not be dialled it is known that there is one, and no more.
#[tokio::test]
async fn what_may_not_be_dialled_is_healthy() {
    assert_eq!(probe(&[], Method::Assumed).await, Ok(()));
    assert!(probe(&[], Method::Tcp).await.is_err());
}

/// Targets at ports 1 to `count`, of which only that at the port `up` answers; the others hang.
async fn race(targets: &mut Targets, pace: Pace, up: u16) -> (Option<u16>, Vec<u16>) {
    let tried = parking_lot::Mutex::new(Vec::new());
    let one = |_host, at: SocketAddr| {
        tried.lock().push(at.port());
        async move {
            if at.port() != up {
                std::future::pending::<()>().await;
            }
            Ok(at.port())
        }
    };
    let resolver = Resolver::system();
    let result = timeout(pace.time, targets.race(&resolver, pace, one)).await;
    let result = result.ok().map(|port| port.unwrap());
    (result, tried.into_inner())
}

fn mk_ports(count: u16) -> Targets {
    let hosts = (1..=count).map(|port| ("10.2.0.9".to_owned(), port));
    Targets::new(hosts.collect(), Arc::new([]))
}

#[tokio::test(start_paused = true)]
async fn target_that_hangs_does_not_keep_the_next_from_being_tried_and_the_last_that_answers_is_first()
 {
    let pace = Pace {
        at_once: 4,
        batches: 2,
        time: Duration::from_secs(1),
    };
    let mut targets = mk_ports(6);
    let found = race(&mut targets, pace, 6).await;
    assert_eq!(found, (Some(6), vec![1, 2, 3, 4, 5, 6]));
    let (found, tried) = race(&mut targets, pace, 6).await;
    assert_eq!((found, tried[0]), (Some(6), 6));
    // It hangs now, and is not tried first for ever.
    assert_eq!(race(&mut targets, pace, 0).await.0, None);
    let (_, tried) = race(&mut targets, pace, 0).await;
    assert_ne!(tried[0], 6, "{tried:?}");
}

#[tokio::test(start_paused = true)]
async fn of_many_targets_each_has_its_turn() {
    let pace = Pace {
        at_once: 1,
        batches: 4,
        time: Duration::from_millis(800),
    };
    let mut targets = mk_ports(10);
    let mut all = Vec::new();
    for _ in 0..3 {
        all.extend(race(&mut targets, pace, 0).await.1);
    }
    assert_eq!(all, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2]);
}

#[tokio::test]
async fn a_page_is_asked_for_at_the_next_target_where_the_first_fails() {
    let mut tasks = JoinSet::new();
    let (at, mut asked) = page(&mut tasks, ok(PAGE)).await;
    let gone = nobody().await;
    let mut one = Scrape::new(mk_targets(&[gone, at]), None);
    let expected = PoolLoad {
        ready: 3.0,
        queue: 1.5,
        kv: 0.25,
    };
    assert_eq!(scrape(&mut one).await, Ok(expected));
    assert_eq!(one.targets.first, Some(at));
    let request = asked.recv().await.unwrap();
    assert!(
        request.starts_with("GET /metrics HTTP/1.1\r\n"),
        "{request}"
    );
    assert!(!request.contains("authorization"), "{request}");
    assert!(request.contains(&format!("host: {at}\r\n")), "{request}");
}

#[rstest]
#[case::no_such_page(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_vec(), "not 200")]
#[case::moved(b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1/\r\ncontent-length: 0\r\n\r\n".to_vec(), "not 200")]
#[case::refused(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n".to_vec(), "credential")]
#[case::of_another_program(ok("go_goroutines 7\n"), "ready endpoints")]
#[case::no_http(b"SSH-2.0\r\n".to_vec(), "")]
#[case::cut_off(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nx".to_vec(), "within the page")]
#[case::endless([b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), vec![b'#'; scrape::MAX_PAGE + 1]].concat(), "larger")]
#[tokio::test]
async fn what_is_no_page_says_why(#[case] answer: Vec<u8>, #[case] said: &str) {
    let mut tasks = JoinSet::new();
    let (at, _asked) = page(&mut tasks, answer).await;
    let error = scrape(&mut Scrape::new(mk_targets(&[at]), None))
        .await
        .unwrap_err();
    assert!(error.contains(said), "{error}");
}

#[tokio::test]
async fn the_token_is_sent_to_servers_of_the_ca_under_the_name_that_the_secret_has() {
    let mut tasks = JoinSet::new();
    let (ours, other) = (Ca::new("a"), Ca::new("b"));
    let (at, mut asked) = serve_tls(&mut tasks, &ours, ok(PAGE)).await;
    for (trusted, name, expected) in [
        (&ours, None, true),
        (&ours, Some("127.0.0.1"), true),
        (&ours, Some("epp.east.example"), false),
        (&other, None, false),
    ] {
        let credential = mk_credential(Some("s3cret"), trusted.pem(), name);
        let mut one = Scrape::new(mk_targets(&[at]), Some(credential));
        let result = scrape(&mut one).await;
        assert_eq!(result.is_ok(), expected, "{name:?}: {result:?}");
        if expected {
            let request = asked.recv().await.unwrap();
            let header = "authorization: Bearer s3cret\r\n";
            assert!(request.contains(header), "{request}");
        }
    }
    assert!(asked.try_recv().is_err(), "nothing is sent to others");
}

#[tokio::test]
async fn observations_come_until_they_are_not_wanted_any_more() {
    let mut tasks = JoinSet::new();
    let up = health(&mut tasks, true).await;
    let (facts, mut seen) = mpsc::channel(1);
    let metrics = ObserveMetrics::register(&mut Registry::default());
    let mut observers = Observers::new(facts, metrics);
    let cluster = ClusterId {
        import: key("llm"),
        cluster: "east".to_owned(),
    };
    let id = (cluster.clone(), Kind::Probe);
    let of = |at| Jobs::from([(id.clone(), Job::Probe(mk_probe(&[at], mk_grpc())))]);
    observers.sync(of(up));
    for _ in 0..3 {
        let fact = timeout(LIMIT, seen.recv()).await.expect("a fact in time");
        let cluster = cluster.clone();
        assert_eq!(
            fact,
            Some(Fact::Probed {
                cluster,
                result: Ok(())
            })
        );
    }
    // Another target replaces the task: at most what it had sent still comes.
    observers.sync(of(nobody().await));
    let failed =
        async { while let Some(Fact::Probed { result: Ok(()), .. }) = seen.recv().await {} };
    timeout(LIMIT, failed)
        .await
        .expect("the new target is probed");
    observers.sync(Jobs::new());
    while timeout(LIMIT, observers.tasks.join_next())
        .await
        .expect("an end in time")
        .is_some()
    {}
    assert!(observers.running.is_empty());
}
