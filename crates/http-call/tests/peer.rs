//! Calls to scripted peers over real sockets.
#![cfg(test)]

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, uri::PathAndQuery};
use http_call::{Call, CallError, Hop, LITTLE, Outcome, Sender, Settings};
use prometheus_client::metrics::counter::Counter;
use rstest::rstest;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi";
const LONG: Duration = Duration::from_secs(10);

/// Answers each request by a script, and says what came.
struct Peer {
    address: SocketAddr,
    requests: mpsc::Receiver<Seen>,
    _tasks: JoinSet<()>,
}

/// A request as it came, and the connection that it came over.
struct Seen {
    connection: usize,
    text: String,
    answer: oneshot::Sender<Vec<u8>>,
}

impl Peer {
    /// The test answers each request itself.
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, requests) = mpsc::channel(64);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            for connection in 0.. {
                let (tcp, _) = listener.accept().await.unwrap();
                connections.spawn(serve(tcp, connection, sender.clone()));
            }
        });
        Self {
            address,
            requests,
            _tasks: tasks,
        }
    }

    fn hop(&self, settings: Settings) -> Hop {
        let base = format!("http://{}/base", self.address);
        Hop::new(base.parse().unwrap(), settings)
    }

    async fn next(&mut self) -> Seen {
        let seen = timeout(LONG, self.requests.recv()).await;
        seen.expect("no request came").unwrap()
    }

    /// Answers one request, and returns it with the number of its connection.
    async fn answer(&mut self, answer: &str) -> (usize, String) {
        let seen = self.next().await;
        seen.answer.send(answer.into()).unwrap();
        (seen.connection, seen.text)
    }
}

/// Reads requests with a content length, or without a body. An empty answer closes the connection.
async fn serve<S>(mut stream: S, connection: usize, requests: mpsc::Sender<Seen>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    loop {
        let mut text = Vec::new();
        while !is_whole(&text) {
            if stream.read_buf(&mut text).await.unwrap_or(0) == 0 {
                return;
            }
        }
        let text = String::from_utf8(text).unwrap();
        let (answer, wanted) = oneshot::channel();
        let seen = Seen {
            connection,
            text,
            answer,
        };
        if requests.send(seen).await.is_err() {
            return;
        }
        let mut rest = [0];
        let answer = tokio::select! {
            answer = wanted => answer.unwrap_or_default(),
            // given up
            _ = stream.read(&mut rest) => return,
        };
        if answer.is_empty() || stream.write_all(&answer).await.is_err() {
            return;
        }
    }
}

fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request);
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    length.map_or(0, |length| length.parse().unwrap()) == body.len()
}

fn get() -> Call {
    Call {
        method: Method::GET,
        path: PathAndQuery::from_static("/x?y=1"),
        headers: HeaderMap::new(),
        body: Vec::new(),
    }
}

#[tokio::test]
async fn parts_go_as_one_body_with_the_headers_of_ours() {
    let mut peer = Peer::start().await;
    let hop = peer.hop(Settings::default());
    let mut call = get();
    call.method = Method::POST;
    call.body = ["ab", "", "cde"].map(Bytes::from).to_vec();
    call.headers
        .insert("x-request-id", HeaderValue::from_static("r1"));
    let (reply, (_, text)) = tokio::join!(
        hop.call(call, Duration::from_millis(4321)),
        peer.answer("HTTP/1.1 201 Created\r\nx-a: b\r\ncontent-length: 2\r\n\r\nhi")
    );
    let reply = reply.unwrap();
    assert_eq!(reply.status, StatusCode::CREATED);
    assert_eq!(reply.headers["x-a"], "b");
    assert_eq!(&reply.body[..], b"hi");
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert_eq!(body, "abcde");
    let mut lines: Vec<&str> = head.lines().collect();
    lines[1..].sort_unstable();
    let host = format!("host: {}", peer.address);
    let expected = [
        "POST /base/x?y=1 HTTP/1.1",
        "content-length: 5",
        &host,
        "x-isthmus-api: 1",
        "x-isthmus-deadline-ms: 4321",
        "x-request-id: r1",
    ];
    assert_eq!(lines, expected);
}

#[tokio::test]
async fn an_engine_gets_no_headers_of_ours() {
    let mut peer = Peer::start().await;
    let hop = peer.hop(Settings {
        isthmus: false,
        ..Settings::default()
    });
    let (reply, (_, text)) = tokio::join!(hop.call(get(), LONG), peer.answer(OK));
    reply.unwrap();
    assert!(!text.contains("isthmus"), "{text}");
    assert!(!text.contains("content-length"), "{text}");
}

#[tokio::test]
async fn connections_are_kept() {
    let mut peer = Peer::start().await;
    let hop = peer.hop(Settings::default());
    for _ in 0..3 {
        let (reply, (connection, _)) = tokio::join!(hop.call(get(), LONG), peer.answer(OK));
        reply.unwrap();
        assert_eq!(connection, 0);
    }
}

#[rstest]
#[case::closed("", "broken")]
#[case::no_http("SSH-2.0-OpenSSH\r\n\r\n", "broken")]
#[case::cut_off("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhi\r\n", "timeout")]
#[case::said_too_large("HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\nhi", "reply-too-large")]
#[case::too_large(
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nb\r\nhello world\r\n",
    "reply-too-large"
)]
#[tokio::test]
async fn a_peer_that_does_not_answer_is_told_apart(#[case] answer: &str, #[case] reason: &str) {
    let mut peer = Peer::start().await;
    let hop = peer.hop(Settings {
        max_reply: 10,
        ..Settings::default()
    });
    let within = Duration::from_millis(300);
    let (reply, _) = tokio::join!(hop.call(get(), within), peer.answer(answer));
    assert_eq!(reply.map_err(|error| error.reason()).unwrap_err(), reason);
}

#[tokio::test]
async fn a_call_without_time_says_nothing_of_its_peer() {
    let peer = Peer::start().await;
    let hop = peer.hop(Settings::default());
    for _ in 0..6 {
        let late = hop
            .call(get(), LITTLE / 2)
            .await
            .map_err(|error| error.reason());
        assert_eq!(late.unwrap_err(), "timeout");
    }
    assert!(!hop.is_open());
}

#[tokio::test]
async fn a_redirect_is_a_reply() {
    let mut peer = Peer::start().await;
    let hop = peer.hop(Settings::default());
    let answer = "HTTP/1.1 307 Moved\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n";
    let (reply, _) = tokio::join!(hop.call(get(), LONG), peer.answer(answer));
    let reply = reply.unwrap();
    assert_eq!(reply.status, StatusCode::TEMPORARY_REDIRECT);
    assert_eq!(reply.outcome(), Outcome::Failure);
}

#[rstest]
#[case(200, Outcome::Success)]
#[case(404, Outcome::Success)]
#[case(429, Outcome::Failure)]
#[case(500, Outcome::Failure)]
#[case(503, Outcome::Failure)]
fn a_status_tells_whose_fault_it_is(#[case] status: u16, #[case] outcome: Outcome) {
    let reply = http_call::Reply {
        status: StatusCode::from_u16(status).unwrap(),
        headers: HeaderMap::new(),
        body: Bytes::new(),
    };
    assert_eq!(reply.outcome(), outcome);
}

#[tokio::test]
async fn more_calls_than_may_be_in_flight_are_refused_at_once() {
    let mut peer = Peer::start().await;
    let hop = peer.hop(Settings {
        max_in_flight: 1,
        ..Settings::default()
    });
    let refused = async {
        let seen = peer.next().await;
        assert_eq!(hop.call(get(), LONG).await.unwrap_err(), CallError::Busy);
        seen.answer.send(OK.into()).unwrap();
    };
    let (reply, ()) = tokio::join!(hop.call(get(), LONG), refused);
    reply.unwrap();
    let (reply, _) = tokio::join!(hop.call(get(), LONG), peer.answer(OK));
    reply.unwrap();
}

#[tokio::test]
async fn a_peer_that_nobody_listens_at_is_left_alone_after_five_calls() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let hop = Hop::new(base.parse().unwrap(), Settings::default());
    for _ in 0..5 {
        assert!(!hop.is_open());
        let error = hop.call(get(), LONG).await.unwrap_err();
        assert!(matches!(error, CallError::Connect(_)), "{error:?}");
    }
    assert!(hop.is_open());
    assert_eq!(hop.call(get(), LONG).await.unwrap_err(), CallError::Open);
}

#[tokio::test]
async fn a_reply_that_the_caller_cannot_read_counts_as_it_says() {
    let mut peer = Peer::start().await;
    let hop = peer.hop(Settings::default());
    for _ in 0..5 {
        let call = hop.call_judged(get(), LONG, |_| Outcome::Failure);
        let (reply, _) = tokio::join!(call, peer.answer(OK));
        reply.unwrap();
    }
    assert!(hop.is_open());
}

#[tokio::test]
async fn a_call_that_is_given_up_ends_its_connection_and_frees_its_place() {
    let mut peer = Peer::start().await;
    let hop = peer.hop(Settings {
        max_in_flight: 1,
        ..Settings::default()
    });
    for connection in 0..6 {
        let mut seen = tokio::select! {
            _ = hop.call(get(), LONG) => unreachable!("nothing is answered"),
            next = peer.next() => next,
        };
        assert_eq!(seen.connection, connection);
        timeout(LONG, seen.answer.closed()).await.unwrap();
    }
    assert!(!hop.is_open(), "it tells nothing of the peer");
}

#[tokio::test]
async fn calls_that_nobody_waits_for_are_made_and_counted_where_they_fail() {
    let mut peer = Peer::start().await;
    let dropped = Counter::default();
    let (sender, sending) = Sender::new(peer.hop(Settings::default()), dropped.clone());
    for _ in 0..4100 {
        sender.send(get());
    }
    assert_eq!(dropped.get(), 4, "the queue holds 4096");
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    tasks.spawn(sending.run(stop.clone()));
    for _ in 0..4095 {
        peer.answer(OK).await;
    }
    peer.answer("").await;
    drop(sender);
    timeout(LONG, tasks.join_next()).await.unwrap();
    assert_eq!(dropped.get(), 5);
}

#[tokio::test]
async fn calls_that_wait_at_the_end_have_one_second() {
    let mut peer = Peer::start().await;
    let (sender, sending) = Sender::new(peer.hop(Settings::default()), Counter::default());
    sender.send(get());
    sender.send(get());
    let stop = CancellationToken::new();
    stop.cancel();
    let mut tasks = JoinSet::new();
    tasks.spawn(sending.run(stop));
    peer.answer(OK).await;
    let unanswered = peer.next().await;
    timeout(LONG, tasks.join_next()).await.unwrap();
    drop(unanswered);
}

mod tls {
    use std::{fs, path::Path};

    use ::tls::test_pki::Ca;
    use futures::stream::pending;
    use http_call::{Trust, TrustFiles};
    use rcgen::CertificateParams;
    use rustls::{
        RootCertStore, ServerConfig,
        pki_types::{CertificateDer, PrivatePkcs8KeyDer, pem::PemObject},
        server::WebPkiClientVerifier,
    };
    use tokio_rustls::TlsAcceptor;

    use super::*;

    /// Lets in clients of `ca` alone, and says OK to each of them.
    async fn start(server: &Ca, ca: &Ca) -> (SocketAddr, JoinSet<()>) {
        let names = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let (certificate, key) = server.sign(names);
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(&ca.pem()).unwrap())
            .unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let clients =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
                .build()
                .unwrap();
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(clients)
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
            )
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                connections.spawn(greet(acceptor.clone(), tcp));
            }
        });
        (address, tasks)
    }

    async fn greet(acceptor: TlsAcceptor, tcp: TcpStream) {
        let Ok(mut tls) = acceptor.accept(tcp).await else {
            return;
        };
        let mut request = vec![0; 4096];
        let _read = tls.read(&mut request).await;
        let closing = OK.replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n");
        let _written = tls.write_all(closing.as_bytes()).await;
        let _closed = tls.shutdown().await;
    }

    fn write_pair(dir: &Path, ca: &Ca) {
        let (certificate, key) = ca.sign(CertificateParams::default());
        fs::write(dir.join("tls.crt"), certificate.pem()).unwrap();
        fs::write(dir.join("tls.key"), key.serialize_pem()).unwrap();
    }

    fn hop(address: SocketAddr, tls: Option<Trust>) -> Hop {
        let base = format!("https://localhost:{}", address.port());
        let settings = Settings {
            tls,
            ..Settings::default()
        };
        Hop::new(base.parse().unwrap(), settings)
    }

    #[tokio::test]
    async fn peers_are_verified_and_changed_files_are_used_for_new_connections() {
        let (server, clients, stranger) = (Ca::new("server"), Ca::new("clients"), Ca::new("other"));
        let (address, _tasks) = start(&server, &clients).await;
        let dir = tempfile::tempdir().unwrap();
        let files = TrustFiles {
            ca_file: Some(dir.path().join("ca.crt")),
            cert_dir: Some(dir.path().to_owned()),
        };
        fs::write(dir.path().join("ca.crt"), stranger.pem()).unwrap();
        write_pair(dir.path(), &clients);
        let (trust, reload) = files.begin().unwrap();
        let refused = hop(address, None).call(get(), LONG).await.unwrap_err();
        assert!(matches!(refused, CallError::Connect(_)), "{refused:?}");
        let refused = hop(address, Some(trust.clone())).call(get(), LONG).await;
        let refused = refused.unwrap_err();
        assert!(matches!(refused, CallError::Connect(_)), "{refused:?}");
        fs::write(dir.path().join("ca.crt"), server.pem()).unwrap();
        let reply = tokio::select! {
            () = reload.run(pending::<()>()) => unreachable!("it never returns"),
            reply = retried(address, &trust) => reply,
        };
        assert_eq!(&reply.body[..], b"hi");
    }

    /// The files are read again at once, by a task. Each hop has its own breaker.
    async fn retried(address: SocketAddr, trust: &Trust) -> http_call::Reply {
        let until = tokio::time::Instant::now() + LONG;
        loop {
            match hop(address, Some(trust.clone())).call(get(), LONG).await {
                Ok(reply) => return reply,
                Err(error) => assert!(tokio::time::Instant::now() < until, "{error}"),
            }
        }
    }

    #[tokio::test]
    async fn a_client_without_its_certificate_is_not_let_in() {
        let (server, clients) = (Ca::new("server"), Ca::new("clients"));
        let (address, _tasks) = start(&server, &clients).await;
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("ca.crt"), server.pem()).unwrap();
        let files = TrustFiles {
            ca_file: Some(dir.path().join("ca.crt")),
            cert_dir: None,
        };
        let (trust, _) = files.begin().unwrap();
        let error = hop(address, Some(trust)).call(get(), LONG).await;
        let error = error.unwrap_err();
        let text = error.to_string();
        assert!(
            matches!(error, CallError::Broken(_) | CallError::Connect(_)),
            "{text}"
        );
    }
}
