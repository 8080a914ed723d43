//! Against real sockets on loopback: what the layers below us make of TLS, HTTP/2 and silence.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use http::{Request, Response, Version};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Service;
use kube::{
    Api,
    api::{ListParams, WatchParams},
};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, date_time_ymd};
use rustls::pki_types::PrivateKeyDer;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Instant, timeout},
};
use tokio_rustls::TlsAcceptor;

use super::*;

/// An API server over TLS and HTTP/2 that lists nothing and watches for ever.
struct Server {
    address: SocketAddr,
    certificate: Vec<u8>,
    connections: Arc<AtomicUsize>,
    others: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

const LIMIT: Duration = Duration::from_secs(20);
const EMPTY_LIST: &str = r#"{"kind": "ServiceList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []}"#;

async fn start() -> Server {
    start_with(mk_certificate()).await
}

/// What a server's certificate is made of: it is of this machine, and valid now.
fn mk_certificate() -> CertificateParams {
    CertificateParams::new(["127.0.0.1".to_owned()]).expect("a name")
}

async fn start_with(certificate: CertificateParams) -> Server {
    let signing_key = KeyPair::generate().expect("a key");
    let cert = certificate
        .self_signed(&signing_key)
        .expect("a certificate");
    let key = PrivateKeyDer::Pkcs8(signing_key.serialize_der().into());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .expect("a server");
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let (connections, others) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let mut tasks = JoinSet::new();
    let (connected, odd) = (connections.clone(), others.clone());
    tasks.spawn(async move {
        let mut open = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            connected.fetch_add(1, Ordering::SeqCst);
            let (acceptor, odd) = (acceptor.clone(), odd.clone());
            open.spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else {
                    return;
                };
                let answer = service_fn(move |request: Request<_>| {
                    if request.version() != Version::HTTP_2 {
                        odd.fetch_add(1, Ordering::SeqCst);
                    }
                    std::future::ready(Ok::<_, Infallible>(respond(&request)))
                });
                let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                let _ = http.serve_connection(TokioIo::new(stream), answer).await;
            });
        }
    });
    Server {
        address,
        certificate: cert.der().to_vec(),
        connections,
        others,
        _tasks: tasks,
    }
}

fn respond<B>(request: &Request<B>) -> Response<UnsyncBoxBody<Bytes, Infallible>> {
    let watching = request
        .uri()
        .query()
        .unwrap_or_default()
        .contains("watch=true");
    let body = if watching {
        UnsyncBoxBody::new(StreamBody::new(stream::pending::<Result<Frame<Bytes>, _>>()))
    } else {
        let list = Frame::data(Bytes::from_static(EMPTY_LIST.as_bytes()));
        UnsyncBoxBody::new(StreamBody::new(stream::iter([Ok(list)])))
    };
    Response::new(body)
}

fn connect(server: &Server, address: SocketAddr, ping: Duration) -> Ways {
    let url = format!("https://{address}").parse().expect("a URL");
    let mut config = Config::new(url);
    config.root_cert = Some(vec![server.certificate.clone()]);
    make_with(&config, Turns::default().member(), ping, ping).expect("a client")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_and_writes_share_one_connection() {
    let server = start().await;
    let Ways { kube, direct } = connect(&server, server.address, PING_AFTER);
    let services: Api<Service> = Api::all(kube);
    services.list(&ListParams::default()).await.expect("a list");
    let mut calls = JoinSet::new();
    for _ in 0..7 {
        let services = services.clone();
        calls.spawn(async move {
            let watch = services.watch(&WatchParams::default(), "1").await;
            std::mem::forget(watch.expect("a watch").boxed());
        });
    }
    for _ in 0..32 {
        let direct = direct.clone();
        calls.spawn(async move {
            let request = Request::patch("/api/v1/services").body(Body::empty());
            let answer = direct.send(request.expect("a request")).await;
            let body = answer.expect("an answer").into_body().collect().await;
            assert_eq!(body.expect("complete").to_bytes(), EMPTY_LIST);
        });
    }
    timeout(LIMIT, calls.join_all())
        .await
        .expect("all answered");
    assert_eq!(server.connections.load(Ordering::SeqCst), 1);
    assert_eq!(server.others.load(Ordering::SeqCst), 0);
}

/// Passes bytes both ways until it has to fall silent; never closes.
async fn link(target: SocketAddr, silent: Arc<AtomicBool>) -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut open = JoinSet::new();
        while let Ok((near, _)) = listener.accept().await {
            let far = TcpStream::connect(target).await.expect("the server");
            let (near_read, near_write) = near.into_split();
            let (far_read, far_write) = far.into_split();
            for (mut from, mut to) in [(near_read, far_write), (far_read, near_write)] {
                let silent = silent.clone();
                open.spawn(async move {
                    let mut buffer = vec![0; 16 * 1024];
                    while let Ok(count @ 1..) = from.read(&mut buffer).await {
                        // what arrives while it is silent is lost, and the kernel goes on acknowledging it
                        if !silent.load(Ordering::SeqCst)
                            && to.write_all(&buffer[..count]).await.is_err()
                        {
                            return;
                        }
                    }
                    // the end is not passed on either
                    std::future::pending::<()>().await;
                });
            }
        }
    });
    (address, tasks)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_on_a_link_that_falls_silent_ends_and_the_next_call_has_a_new_link() {
    let server = start().await;
    let silent = Arc::<AtomicBool>::default();
    let (address, _link) = link(server.address, silent.clone()).await;
    // a hundredth of the real ones
    let client = connect(&server, address, PING_AFTER / 25);
    let services: Api<Service> = Api::all(client.kube);
    let mut watch = services
        .watch(&WatchParams::default(), "1")
        .await
        .expect("a watch")
        .boxed();
    let quiet = timeout(Duration::from_secs(1), watch.try_next()).await;
    assert!(quiet.is_err(), "pings are answered: {quiet:?}");
    silent.store(true, Ordering::SeqCst);
    let start = Instant::now();
    let ended = timeout(LIMIT, watch.try_next()).await.expect("ends");
    assert!(!matches!(ended, Ok(Some(_))), "{ended:?}");
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
    silent.store(false, Ordering::SeqCst);
    services.list(&ListParams::default()).await.expect("a list");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handshake_that_hangs_is_given_up() {
    let server = start().await;
    let silent = Arc::new(AtomicBool::new(true));
    let (address, _link) = link(server.address, silent).await;
    let client = connect(&server, address, PING_AFTER);
    let services: Api<Service> = Api::all(client.kube);
    let start = Instant::now();
    let list = timeout(LIMIT, services.list(&ListParams::default())).await;
    let error = list.expect("ends").expect_err("no TLS");
    assert!(
        start.elapsed() <= Duration::from_secs(8),
        "{:?}",
        start.elapsed()
    );
    let text = anyhow::Error::from(error).root_cause().to_string();
    assert!(text.contains("no connection within"), "{text}");
}

/// What is wrong with a server of this certificate, for a client that trusts `root`, or the certificate itself.
async fn problem(
    certificate: CertificateParams,
    root: Option<&Server>,
) -> Option<CertificateProblem> {
    let mut server = start_with(certificate).await;
    if let Some(root) = root {
        server.certificate.clone_from(&root.certificate);
    }
    let Ways { kube, .. } = connect(&server, server.address, PING_AFTER);
    let answer = timeout(LIMIT, kube.apiserver_version()).await;
    let error = answer.expect("an answer").err()?;
    certificate_problem(&error)
}

#[tokio::test]
async fn a_rejected_certificate_is_told_apart_from_a_server_that_does_not_answer() {
    let other = start().await;
    let untrusted = Some(CertificateProblem::Untrusted);
    // an authority of the same name, and one of another
    assert_eq!(problem(mk_certificate(), Some(&other)).await, untrusted);
    let mut certificate = mk_certificate();
    certificate.distinguished_name = DistinguishedName::new();
    certificate
        .distinguished_name
        .push(DnType::CommonName, "another authority");
    assert_eq!(problem(certificate, Some(&other)).await, untrusted);
    let expired = Some(CertificateProblem::Expired);
    let mut certificate = mk_certificate();
    certificate.not_after = date_time_ymd(2020, 1, 1);
    assert_eq!(problem(certificate, None).await, expired);
    let mut certificate = mk_certificate();
    certificate.not_before = date_time_ymd(4000, 1, 1);
    assert_eq!(problem(certificate, None).await, expired);
    let certificate = CertificateParams::new(["10.0.0.1".to_owned()]).expect("a name");
    let mismatch = Some(CertificateProblem::NameMismatch);
    assert_eq!(problem(certificate, None).await, mismatch);
    assert_eq!(problem(mk_certificate(), None).await, None);
}

#[tokio::test]
async fn a_server_that_is_not_there_has_no_certificate() {
    let mut server = start().await;
    let closed = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    server.address = closed.local_addr().expect("bound");
    drop(closed);
    let Ways { kube, .. } = connect(&server, server.address, PING_AFTER);
    let error = kube.apiserver_version().await.expect_err("nobody listens");
    assert_eq!(certificate_problem(&error), None);
}
