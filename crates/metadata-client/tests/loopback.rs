//! The client over real sockets, against a server that records what comes.
#![cfg(test)]

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::future::join_all;
use http::{HeaderMap, HeaderValue, Request, Response, Version};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use metadata::{
    Address,
    wire::pick::{Candidate, Params, Pick, Picks},
};
use metadata_client::{Api, Asked, Client, Http, Settings, TaskDied, Trace, Unavailable};
use moment::Clock;
use parking_lot::Mutex;
use rstest::rstest;
use tls::{
    Acceptor, Alpn, TlsFiles, TlsMetrics, TlsVersion, TrustFiles,
    test_pki::{Ca, write_pair_of},
};
use tokio::{net::TcpListener, task::JoinSet, time::sleep};
use tokio_util::sync::CancellationToken;

type Clients = Client<Http>;

/// What came, and how many connections it came over.
#[derive(Default)]
struct Seen {
    requests: Mutex<Vec<(Version, String, HeaderMap)>>,
    accepted: AtomicUsize,
    open: AtomicUsize,
}

/// A server on a port of its own.
struct Server {
    address: SocketAddr,
    seen: Arc<Seen>,
    tasks: JoinSet<()>,
}

/// A client whose tasks run.
struct Running {
    client: Clients,
    stop: CancellationToken,
    tasks: JoinSet<Result<(), TaskDied>>,
}

fn ip() -> Address {
    "10.0.0.1:8000".parse().unwrap()
}

fn mk_pick() -> Pick {
    Pick {
        cluster: "c".parse().unwrap(),
        request_id: "r".parse().unwrap(),
        prompt_hash: vec![1].into(),
        prompt_length: 1.try_into().unwrap(),
        count: 1,
        reserve_ms: 1000,
        candidates: vec![Candidate {
            ip: ip(),
            bias: 0.0,
        }],
        params: Params::default(),
    }
}

fn answer(path: &str) -> String {
    let data = match path {
        "/v1/pick" => {
            r#"{"picks":[{"ip":"10.0.0.1:8000","score":1,"matched":1,"queued_req_num":0,"prompt_length":0}],"charge":1,"candidates":1}"#
        }
        "/v1/load/batch" => r#"{"resync":false,"lease_ms":15000}"#,
        "/v1/load/stats" => {
            r#"[{"ip":"10.0.0.1:8000","queued_req_num":4,"prompt_length":5,"updated_time":1}]"#
        }
        _ => "null",
    };
    format!(r#"{{"status":"OK","error":null,"data":{data},"trace_id":"t"}}"#)
}

/// Waits for something that is to come about by itself.
async fn eventually(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..500 {
        if is_so() {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("{what}: not within 5 s");
}

impl Server {
    /// Answers each call after `delay`, with `padding` more bytes than it needs.
    async fn start(delay: Duration, padding: usize) -> Self {
        Self::at("127.0.0.1:0".parse().unwrap(), delay, padding).await
    }

    async fn at(address: SocketAddr, delay: Duration, padding: usize) -> Self {
        Self::behind(Acceptor::plaintext(), address, delay, padding).await
    }

    async fn behind(
        acceptor: Acceptor,
        address: SocketAddr,
        delay: Duration,
        padding: usize,
    ) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Seen::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(
            listener,
            acceptor,
            Arc::clone(&seen),
            delay,
            padding,
        ));
        Self {
            address,
            seen,
            tasks,
        }
    }

    fn accepted(&self) -> usize {
        self.seen.accepted.load(Relaxed)
    }

    fn versions(&self) -> Vec<Version> {
        let requests = self.seen.requests.lock();
        let mut versions: Vec<_> = requests.iter().map(|(version, _, _)| *version).collect();
        versions.dedup();
        versions
    }

    /// Header fields of the last call of a path.
    fn headers(&self, path: &str) -> Option<HeaderMap> {
        let requests = self.seen.requests.lock();
        let last = requests.iter().rev().find(|(_, it, _)| it == path);
        last.map(|(_, _, headers)| headers.clone())
    }
}

async fn accept(
    listener: TcpListener,
    acceptor: Acceptor,
    seen: Arc<Seen>,
    delay: Duration,
    padding: usize,
) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        seen.accepted.fetch_add(1, Relaxed);
        seen.open.fetch_add(1, Relaxed);
        let (acceptor, seen) = (acceptor.clone(), Arc::clone(&seen));
        connections.spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else {
                return;
            };
            let service = service_fn(|request| serve(request, Arc::clone(&seen), delay, padding));
            let builder = auto::Builder::new(TokioExecutor::new());
            let _ = builder
                .serve_connection(TokioIo::new(stream), service)
                .await;
            seen.open.fetch_sub(1, Relaxed);
        });
    }
}

async fn serve(
    request: Request<Incoming>,
    seen: Arc<Seen>,
    delay: Duration,
    padding: usize,
) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let (head, body) = request.into_parts();
    body.collect().await?;
    let path = head.uri.path().to_owned();
    let answer = answer(&path) + &" ".repeat(padding);
    seen.requests
        .lock()
        .push((head.version, path, head.headers));
    sleep(delay).await;
    let mut response = Response::new(Full::from(answer));
    let boot = HeaderValue::from_static("00000000000000ff");
    response.headers_mut().insert("x-metadata-boot", boot);
    Ok(response)
}

impl Running {
    async fn start(address: SocketAddr, api: Api) -> Self {
        Self::of(
            Http::new("127.0.0.1", address.port(), api, None).unwrap(),
            api,
        )
        .await
    }

    async fn of(transport: Http, api: Api) -> Self {
        let settings = Settings {
            api,
            caches: true,
            timeout: Duration::from_secs(5),
            async_timeout: Duration::from_secs(5),
            queue_size: 1000,
            workers: 2,
            instance: "epp-0".parse().unwrap(),
            epoch: 1,
            lease: Duration::from_secs(15),
            flush: Duration::from_secs(2),
        };
        let (client, tasks) = Client::new(settings, transport, Clock::start());
        let stop = CancellationToken::new();
        let mut running = JoinSet::new();
        running.spawn(tasks.run(stop.clone()));
        let running = Self {
            client,
            stop,
            tasks: running,
        };
        // It looks for the address first.
        eventually("an address is known", || {
            running.page().contains("breaker_state{")
        })
        .await;
        running
    }

    fn page(&self) -> String {
        let mut registry = prometheus_client::registry::Registry::default();
        registry.register_collector(Box::new(self.client.collector()));
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, &registry).unwrap();
        page
    }

    async fn pick(&self) -> Result<Picks, Unavailable> {
        let trace = Trace {
            id: Some(HeaderValue::from_static("trace-7")),
            parent: Some(HeaderValue::from_static("00-ab-cd-01")),
        };
        self.client.pick(&mk_pick(), &trace).await
    }

    async fn end(&mut self) {
        self.stop.cancel();
        self.tasks.join_next().await.unwrap().unwrap().unwrap();
    }
}

#[tokio::test]
async fn picks_and_batches_share_two_connections_of_http2() {
    let server = Server::start(Duration::from_millis(20), 0).await;
    let mut running = Running::start(server.address, Api::Isthmus).await;
    let charges = running.client.charges(&"c".parse().unwrap()).unwrap();
    charges.put("r".parse().unwrap(), ip(), 1.try_into().unwrap(), false);
    for picks in join_all((0..100).map(|_| running.pick())).await {
        assert_eq!(picks.unwrap().picks[0].ip, ip());
    }
    let is_sent = || server.headers("/v1/load/batch").is_some();
    eventually("the put is sent", is_sent).await;
    assert_eq!(
        (server.accepted(), server.versions()),
        (2, vec![Version::HTTP_2])
    );
    let headers = server.headers("/v1/pick").unwrap();
    let text = |name: &str| headers.get(name).map(|it| it.to_str().unwrap().to_owned());
    assert_eq!(text("traceid").as_deref(), Some("trace-7"));
    assert_eq!(text("traceparent").as_deref(), Some("00-ab-cd-01"));
    assert_eq!(text("content-type").as_deref(), Some("application/json"));
    running.end().await;
    assert!(server.headers("/v1/leases/epp-0").is_some());
    let is_closed = || server.seen.open.load(Relaxed) == 0;
    eventually("the connections are closed", is_closed).await;
}

#[tokio::test]
async fn the_former_service_is_asked_over_at_most_32_connections_of_http1() {
    let server = Server::start(Duration::from_millis(20), 0).await;
    let running = Running::start(server.address, Api::Compat).await;
    let charges = running.client.charges(&"c".parse().unwrap()).unwrap();
    let asked = Asked {
        ips: &[ip()],
        load: true,
        prompt: None,
    };
    let view = || async {
        let trace = Trace::default();
        let view = running.client.view(&charges, &asked, &trace).await;
        view.load.unwrap()[0].requests
    };
    assert_eq!(join_all((0..100).map(|_| view())).await, [4; 100]);
    assert_eq!(server.versions(), [Version::HTTP_11]);
    assert!(
        (2..=32).contains(&server.accepted()),
        "{}",
        server.accepted()
    );
}

#[tokio::test]
async fn a_service_that_comes_back_is_connected_to_again() {
    let mut server = Server::start(Duration::ZERO, 0).await;
    let running = Running::start(server.address, Api::Isthmus).await;
    running.pick().await.unwrap();
    server.tasks.shutdown().await;
    let mut failed = 0;
    while let Err(error) = running.pick().await {
        assert!(["connect", "broken"].contains(&error.reason()), "{error}");
        failed += 1;
        if failed == 3 {
            server = Server::at(server.address, Duration::ZERO, 0).await;
        }
        assert!(failed < 10, "{error}");
    }
    assert!(failed >= 3);
}

#[tokio::test]
async fn an_answer_without_end_is_not_read() {
    let server = Server::start(Duration::ZERO, 5 << 20).await;
    let running = Running::start(server.address, Api::Isthmus).await;
    let error = running.pick().await.unwrap_err();
    assert_eq!(error.reason(), "too-large");
}

#[tokio::test]
async fn the_token_of_now_is_sent() {
    let server = Server::start(Duration::ZERO, 0).await;
    let port = server.address.port();
    let transport = Http::new("127.0.0.1", port, Api::Isthmus, None).unwrap();
    let token = transport.token();
    let running = Running::of(transport, Api::Isthmus).await;
    let sent = || async {
        running.pick().await.unwrap();
        let headers = server.headers("/v1/pick").unwrap();
        let sent = headers.get("authorization");
        sent.map(|it| it.to_str().unwrap().to_owned())
    };
    assert_eq!(sent().await, None);
    token.set(Some("s3cret")).unwrap();
    assert_eq!(sent().await.as_deref(), Some("Bearer s3cret"));
    assert!(token.set(Some("two\nlines")).is_err());
    token.set(None).unwrap();
    assert_eq!(sent().await, None);
}

#[rstest]
#[case(Api::Isthmus, Version::HTTP_2)]
#[case(Api::Compat, Version::HTTP_11)]
#[tokio::test]
async fn over_tls_each_side_is_verified(#[case] api: Api, #[case] version: Version) {
    let (ours, theirs) = (Ca::new("ours"), Ca::new("theirs"));
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name);
    for (name, ca) in [("ours", &ours), ("theirs", &theirs)] {
        std::fs::create_dir(file(name)).unwrap();
        write_pair_of(ca, &file(name));
        std::fs::write(file(name).join("ca.crt"), ca.pem()).unwrap();
    }
    let files = TlsFiles {
        cert_dir: Some(file("ours")),
        client_ca: Some(file("ours").join("ca.crt")),
        client_sans: Vec::new(),
        min_version: TlsVersion::Tls12,
        alpn: Alpn::Http,
    };
    let registry = &mut prometheus_client::registry::Registry::default();
    let port = TlsMetrics::register(registry, "test").port("test");
    let (acceptor, _reload) = files.begin(port).unwrap();
    let address = "127.0.0.1:0".parse().unwrap();
    let server = Server::behind(acceptor, address, Duration::ZERO, 0).await;
    for (trusted, own, is_good) in [
        ("ours", "ours", true),
        ("theirs", "ours", false),
        ("ours", "theirs", false),
    ] {
        let files = TrustFiles {
            ca_file: Some(file(trusted).join("ca.crt")),
            cert_dir: Some(file(own)),
        };
        let (trust, _reload) = files.begin().unwrap();
        let port = server.address.port();
        let transport = Http::new("localhost", port, api, Some(trust)).unwrap();
        let running = Running::of(transport, api).await;
        let error = running.pick().await.err();
        assert_eq!(error.is_none(), is_good, "{trusted} {own}: {error:?}");
    }
    assert_eq!(server.versions(), [version]);
}

#[test]
fn hosts_are_names_or_addresses() {
    let is_host = |host: &str| Http::new(host, 80, Api::Isthmus, None).is_ok();
    for host in [
        "localhost",
        "mc.llm.svc",
        "10.0.0.1",
        "fd00::1",
        "[fd00::1]",
    ] {
        assert!(is_host(host), "{host}");
    }
    for host in ["", "a b", "http://mc", "mc/x", "me@mc"] {
        assert!(!is_host(host), "{host}");
    }
}
