//! The real Envoy at our ADS server, with scripted EPPs and pods on loopback addresses: only this
//! shows that the resources do what they shall.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

use crate::fixture::{
    add_route, add_slice, key, mk_import, mk_options, mk_ref, mk_route, mk_rule, mk_settings,
    mk_world,
};
use crate::infra::bootstrap;
use crate::metrics::AdsMetrics;
use crate::model::{Settings, build};
use crate::moment::Clock;
use crate::world::{Endpoints, World};
use crate::xds::ads::server::{AdsServer, Proxies, Snapshots};
use crate::xds::proto::discovery::aggregated_discovery_service_server::AggregatedDiscoveryServiceServer;
use crate::xds::{Options, Snapshot, assign, translate};

use super::tests::find_envoy;

mod epp;

use epp::{Behaviour, Epp};

/// Local pods, the remote pod, and where no pod may be.
const POD_A: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 11);
const POD_B: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 12);
const REMOTE_POD: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 13);
const FORBIDDEN: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 14);
const EPP: Ipv4Addr = Ipv4Addr::new(127, 0, 1, 1);
const REMOTE_EPP: Ipv4Addr = Ipv4Addr::new(127, 0, 1, 2);
const SECOND_EPP: Ipv4Addr = Ipv4Addr::new(127, 0, 1, 3);

/// How long anything may take; most takes milliseconds.
const LIMIT: Duration = Duration::from_secs(20);

/// One Envoy with everything around it; all ends with this value.
struct Bed {
    tasks: JoinSet<()>,
    envoy: Envoy,
    snapshots: watch::Sender<Snapshots>,
    proxies: Proxies,
    world: World,
    endpoints: Endpoints,
    edge: u16,
    pods: u16,
    picker: u16,
}

struct Envoy {
    child: Child,
    _directory: tempfile::TempDir,
}

/// What a client got.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

// === impl Bed ===

impl Bed {
    /// None without an Envoy binary.
    async fn start(change: impl FnOnce(&mut World)) -> Option<Self> {
        let Some(binary) = find_envoy() else {
            eprintln!("skipped: no Envoy by ENVOY_BIN, on PATH or in target/tools");
            return None;
        };
        let (edge, pods, picker) = (free_port().await, free_port().await, free_port().await);
        let mut world = mk_world();
        let gateway = world.gateways.get_mut(&key("gw")).unwrap();
        gateway.listeners[0].port = edge;
        world.pools.get_mut(&key("llm")).unwrap().target_ports = vec![pods];
        world
            .services
            .get_mut(&key("epp"))
            .unwrap()
            .ports
            .truncate(1);
        let mut import = mk_import(&[("east", &REMOTE_EPP.to_string())]);
        for cluster in &mut import.clusters {
            cluster.target_ports = vec![pods];
            cluster.picker.as_mut().unwrap().port = Some(picker);
        }
        world.imports.insert(key("llm"), import);
        for (name, kind) in [("pool", "pool"), ("import", "import")] {
            let rule = mk_rule(&format!("/{name}"), vec![mk_ref(kind, "llm", 1)]);
            add_route(&mut world, mk_route(name, vec![rule]));
        }
        change(&mut world);
        let mut endpoints = Endpoints::default();
        add_slice(&mut endpoints, "epp", &EPP.to_string(), &[("grpc", picker)]);
        add_slice(&mut endpoints, "web", &POD_A.to_string(), &[("http", pods)]);
        let local = [("a", POD_A), ("b", POD_B)].map(|(name, ip)| (name.to_owned(), ip.into()));
        endpoints
            .pods
            .insert(key("llm"), local.into_iter().collect());

        let mut tasks = JoinSet::new();
        for ip in [POD_A, POD_B, REMOTE_POD, FORBIDDEN] {
            let listener = TcpListener::bind((ip, pods)).await.unwrap();
            tasks.spawn(serve_pod(listener));
        }
        let (snapshots, newest) = watch::channel(Arc::default());
        let proxies = Proxies::default();
        let server = AdsServer {
            snapshots: newest,
            proxies: proxies.clone(),
            metrics: AdsMetrics::default(),
            clock: Clock::start(),
            removal_delay: Duration::from_millis(200),
            drain: CancellationToken::new(),
        };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let ads = listener.local_addr().unwrap();
        tasks.spawn(async move {
            let service = AggregatedDiscoveryServiceServer::new(server);
            let incoming = TcpListenerStream::new(listener);
            let serve = Server::builder()
                .add_service(service)
                .serve_with_incoming(incoming);
            serve.await.unwrap();
        });
        let bed = Self {
            envoy: Envoy::start(&binary, ads),
            tasks,
            snapshots,
            proxies,
            world,
            endpoints,
            edge,
            pods,
            picker,
        };
        bed.publish();
        bed.wait("the edge answers", || async {
            TcpStream::connect((Ipv4Addr::LOCALHOST, edge))
                .await
                .is_ok()
        })
        .await;
        Some(bed)
    }

    fn publish(&self) {
        let settings = Settings {
            deny_cidrs: Vec::new(),
            pod_cidrs: ["east", "south"]
                .map(|name| {
                    (
                        name.to_owned(),
                        vec![format!("{REMOTE_POD}/32").parse().unwrap()],
                    )
                })
                .into_iter()
                .collect(),
            ..mk_settings()
        };
        let options = Options {
            bind_address: Ipv4Addr::LOCALHOST.into(),
            deny_cidrs: Vec::new(),
            ..mk_options()
        };
        let (models, _) = build(&self.world, &settings);
        let made: BTreeMap<_, Arc<Snapshot>> = models
            .iter()
            .map(|model| {
                let snapshot = assign(&translate(model, &options), &self.endpoints);
                (model.key.clone(), Arc::new(snapshot))
            })
            .collect();
        self.snapshots.send_replace(Arc::new(made));
    }

    /// Starts an EPP that picks among these.
    async fn epp(&mut self, ip: Ipv4Addr, behaviour: Behaviour) -> Epp {
        let listener = TcpListener::bind((ip, self.picker)).await.unwrap();
        let epp = Epp::new(behaviour);
        let service = epp.service();
        let stop = epp.stop.clone();
        self.tasks.spawn(async move {
            let incoming = TcpListenerStream::new(listener);
            let serve = Server::builder()
                .add_service(service)
                .serve_with_incoming(incoming);
            tokio::select! {
                served = serve => served.unwrap(),
                () = stop.cancelled() => {}
            }
        });
        epp
    }

    fn at(&self, ip: Ipv4Addr) -> Behaviour {
        Behaviour::Pick(format!("{ip}:{}", self.pods))
    }

    async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, "", 0).await
    }

    async fn post(&self, path: &str, bytes: usize) -> Answer {
        self.send("POST", path, "", bytes).await
    }

    async fn send(&self, method: &str, path: &str, headers: &str, bytes: usize) -> Answer {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: any\r\nconnection: close\r\n{headers}content-length: {bytes}\r\n\r\n"
        );
        let exchange = async {
            let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.edge))
                .await
                .unwrap();
            let (mut reader, mut writer) = stream.into_split();
            // An early answer ends the request, and both may see the connection reset.
            let write = async {
                writer.write_all(request.as_bytes()).await?;
                writer.write_all(&vec![b'x'; bytes]).await
            };
            let mut answer = Vec::new();
            let _ = tokio::join!(write, reader.read_to_end(&mut answer));
            String::from_utf8(answer).unwrap()
        };
        let text = timeout(LIMIT, exchange).await.expect("an answer in time");
        let (head, mut body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|s| s.parse().ok())
            .unwrap_or(0);
        if head.contains("transfer-encoding: chunked") {
            body = body.split("\r\n").nth(1).unwrap_or(""); // pods answer in one chunk
        }
        Answer {
            status,
            head: head.to_owned(),
            body: body.to_owned(),
        }
    }

    /// Until the path answers with that status: health checks and updates take their time.
    async fn until(&self, path: &str, status: u16) -> Answer {
        let started = Instant::now();
        loop {
            let answer = self.get(path).await;
            if answer.status == status {
                return answer;
            }
            assert!(
                started.elapsed() < LIMIT,
                "{path}: {answer:?}, expected {status}"
            );
            sleep(Duration::from_millis(20)).await;
        }
    }

    async fn wait<F: Future<Output = bool>>(&self, what: &str, holds: impl Fn() -> F) {
        let started = Instant::now();
        while !holds().await {
            assert!(started.elapsed() < LIMIT, "not in time: {what}");
            sleep(Duration::from_millis(20)).await;
        }
    }
}

// === impl Envoy ===

impl Envoy {
    fn start(binary: &std::path::Path, ads: SocketAddr) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut config = bootstrap::make(&ads.ip().to_string(), ads.port());
        // Several run at once on this machine: no fixed ports.
        config["admin"]["address"]["socket_address"]["port_value"] = 0.into();
        config["static_resources"]["listeners"] = serde_json::json!([]);
        let log = directory.path().join("envoy.log");
        let child = Command::new(binary)
            .args([
                "--use-dynamic-base-id",
                "--concurrency",
                "1",
                "--log-level",
                "warning",
            ])
            .args([
                "--service-node",
                "test",
                "--service-cluster",
                "ns/gw",
                "--config-yaml",
            ])
            .arg(config.to_string())
            .arg("--log-path")
            .arg(log)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self {
            child,
            _directory: directory,
        }
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    listener.local_addr().unwrap().port()
}

/// Answers with its own address, after reading the whole body.
async fn serve_pod(listener: TcpListener) {
    let name = listener.local_addr().unwrap().ip().to_string();
    let app = axum::Router::new().fallback(move |body: axum::body::Bytes| {
        let answer = format!("{name} {}", body.len());
        async move { answer }
    });
    let app = app.layer(axum::extract::DefaultBodyLimit::disable());
    axum::serve(listener, app).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn pool_goes_where_its_epp_says() {
    let Some(mut bed) = Bed::start(|_| {}).await else {
        return;
    };
    let pick = bed.at(POD_B);
    let epp = bed.epp(EPP, pick).await;
    bed.until("/pool", 200).await;
    for bytes in [0, 1000, 300_000] {
        let answer = bed.post("/pool", bytes).await;
        assert_eq!(
            (answer.status, answer.body.as_str()),
            (200, format!("{POD_B} {bytes}").as_str())
        );
    }
    let served = epp.served();
    assert_eq!(
        served.last().map(String::as_str),
        Some(format!("{POD_B}:{}", bed.pods).as_str())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn import_goes_through_its_hop_where_the_remote_epp_says() {
    let Some(mut bed) = Bed::start(|_| {}).await else {
        return;
    };
    let pick = bed.at(REMOTE_POD);
    let epp = bed.epp(REMOTE_EPP, pick).await;
    bed.until("/import", 200).await;
    let answer = bed.post("/import", 100_000).await;
    assert_eq!(
        answer.body,
        format!("{REMOTE_POD} 100000"),
        "{}",
        answer.head
    );
    assert!(
        !answer
            .head
            .contains("x-gateway-destination-endpoint-served"),
        "{}",
        answer.head
    );
    assert!(!answer.head.contains("x-isthmus"), "{}", answer.head);
    let served = epp.served();
    assert_eq!(
        served.last().map(String::as_str),
        Some(format!("{REMOTE_POD}:{}", bed.pods).as_str())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn pick_outside_the_exporters_pods_is_refused() {
    let Some(mut bed) = Bed::start(|_| {}).await else {
        return;
    };
    let pick = bed.at(FORBIDDEN);
    let epp = bed.epp(REMOTE_EPP, pick).await;
    bed.wait("the EPP is asked", || async {
        bed.get("/import").await;
        epp.asked() > 0
    })
    .await;
    let answer = bed.get("/import").await;
    assert_eq!(answer.status, 502, "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn client_headers_do_not_choose_the_endpoint() {
    let Some(mut bed) = Bed::start(|_| {}).await else {
        return;
    };
    let pick = bed.at(POD_B);
    let epp = bed.epp(EPP, pick).await;
    let pick = bed.at(REMOTE_POD);
    let remote = bed.epp(REMOTE_EPP, pick).await;
    bed.until("/pool", 200).await;
    bed.until("/import", 200).await;
    let forged = format!(
        "x-gateway-destination-endpoint: {FORBIDDEN}:{0}\r\nx-gateway-destination-endpoint-subset: {FORBIDDEN}:{0}\r\n\
         x-isthmus-failover: 1\r\nx-gateway-destination-endpoint-served: x\r\n",
        bed.pods
    );
    for (path, pod) in [("/pool", POD_B), ("/import", REMOTE_POD)] {
        let answer = bed.send("GET", path, &forged, 0).await;
        assert_eq!(answer.body, format!("{pod} 0"), "{path}");
    }
    for seen in epp.headers().into_iter().chain(remote.headers()) {
        assert!(
            !seen.contains("x-gateway-") && !seen.contains("x-isthmus"),
            "{seen}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pool_that_fails_closed_reaches_no_pod_without_its_epp() {
    let Some(mut bed) = Bed::start(|_| {}).await else {
        return;
    };
    assert_eq!(bed.until("/pool", 503).await.status, 503);
    assert_eq!(bed.post("/pool", 3_000_000).await.status, 503);
    // An EPP that picks nothing, or what is no pod of the pool, opens nothing either.
    let epp = bed.epp(EPP, Behaviour::Nothing).await;
    bed.wait("the EPP is asked", || async {
        bed.get("/pool").await;
        epp.asked() > 0
    })
    .await;
    assert_eq!(bed.get("/pool").await.status, 503);
    epp.set(bed.at(FORBIDDEN));
    assert_eq!(bed.get("/pool").await.status, 503);
}

#[tokio::test(flavor = "multi_thread")]
async fn pool_that_fails_open_reaches_pods_without_its_epp() {
    let open = |world: &mut World| {
        let pool = world.pools.get_mut(&key("llm")).unwrap();
        pool.picker.as_mut().unwrap().fail_open = true;
    };
    let Some(mut bed) = Bed::start(open).await else {
        return;
    };
    bed.until("/pool", 200).await;
    for bytes in [0, 1000, 3_000_000] {
        assert_eq!(bed.post("/pool", bytes).await.status, 200, "{bytes} bytes");
    }
    let pick = bed.at(POD_B);
    let epp = bed.epp(EPP, pick).await;
    bed.wait("the EPP is asked", || async {
        bed.get("/pool").await;
        epp.asked() > 0
    })
    .await;
    for _ in 0..10 {
        assert_eq!(bed.get("/pool").await.body, format!("{POD_B} 0"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn weights_split_and_each_epp_sees_its_own_share() {
    let Some(mut bed) = Bed::start(|_| {}).await else {
        return;
    };
    let (local, remote) = (bed.at(POD_A), bed.at(REMOTE_POD));
    let (epp, remote_epp) = (bed.epp(EPP, local).await, bed.epp(REMOTE_EPP, remote).await);
    bed.until("/pool", 200).await;
    bed.until("/import", 200).await;
    let before = (epp.asked(), remote_epp.asked());
    let mut local = 0;
    for _ in 0..10 {
        let batch = join_all((0..20).map(|_| bed.post("/v1/chat", 200))).await;
        for answer in batch {
            assert_eq!(answer.status, 200);
            local += usize::from(answer.body.starts_with(&POD_A.to_string()));
        }
    }
    // 200 requests at one half: 5 standard deviations are 35.
    assert!((65..=135).contains(&local), "{local} of 200");
    let asked = (epp.asked() - before.0, remote_epp.asked() - before.1);
    assert_eq!(asked, (local, 200 - local));
}

#[tokio::test(flavor = "multi_thread")]
async fn import_tries_the_other_cluster_and_takes_a_refusal_as_final() {
    let two = |world: &mut World| {
        let import = world.imports.get_mut(&key("llm")).unwrap();
        let mut south = import.clusters[0].clone();
        south.name = "south".into();
        south.picker.as_mut().unwrap().addresses = vec![SECOND_EPP.to_string()];
        import.clusters.push(south);
    };
    let Some(mut bed) = Bed::start(two).await else {
        return;
    };
    let pick = bed.at(REMOTE_POD);
    let second = bed.epp(SECOND_EPP, pick).await;
    bed.until("/import", 200).await;
    // The other EPP is down.
    for bytes in [0, 1000, 300_000] {
        assert_eq!(
            bed.post("/import", bytes).await.status,
            200,
            "{bytes} bytes"
        );
    }
    // It is up and has nothing to offer.
    let first = bed.epp(REMOTE_EPP, Behaviour::Refuse(503)).await;
    bed.wait("the first EPP is asked", || async {
        assert_eq!(bed.post("/import", 100).await.status, 200);
        first.asked() > 0
    })
    .await;
    // It says that the client sends too much: that is the answer.
    first.set(Behaviour::Refuse(429));
    second.set(Behaviour::Refuse(429));
    assert_eq!(bed.post("/import", 100).await.status, 429);
}

#[tokio::test(flavor = "multi_thread")]
async fn time_limit_ends_a_hung_epp() {
    let limited = |world: &mut World| {
        for name in ["pool", "import"] {
            let route = world.routes.get_mut(&key(name)).unwrap();
            route.rules[0].request_timeout = Some("500ms".into());
        }
    };
    let Some(mut bed) = Bed::start(limited).await else {
        return;
    };
    for (path, epp, pod) in [("/pool", EPP, POD_A), ("/import", REMOTE_EPP, REMOTE_POD)] {
        let pick = bed.at(pod);
        let epp = bed.epp(epp, pick).await;
        bed.until(path, 200).await;
        epp.set(Behaviour::Hang);
        let started = Instant::now();
        let answer = bed.post(path, 100).await;
        assert_eq!(
            answer.status,
            504,
            "{path} {answer:?} {:?}",
            started.elapsed()
        );
        assert!(
            started.elapsed() < Duration::from_secs(2),
            "{path}: {:?}",
            started.elapsed()
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_reach_envoy_and_lose_no_request() {
    let Some(mut bed) = Bed::start(|_| {}).await else {
        return;
    };
    let pick = bed.at(POD_A);
    let _epp = bed.epp(EPP, pick).await;
    let pick = bed.at(REMOTE_POD);
    let _remote = bed.epp(REMOTE_EPP, pick).await;
    bed.until("/pool", 200).await;
    bed.until("/import", 200).await;
    let mut slowest = Duration::ZERO;
    for round in 0..10 {
        // A path of its own leads to a cluster of its own, which is new each time.
        let name = format!("web{round}");
        let service = bed.world.services[&key("web")].clone();
        bed.world.services.insert(key(&name), service);
        add_slice(
            &mut bed.endpoints,
            &name,
            &POD_B.to_string(),
            &[("http", bed.pods)],
        );
        let rule = mk_rule("/moving", vec![mk_ref("service", &name, 1)]);
        add_route(&mut bed.world, mk_route("moving", vec![rule]));
        bed.publish();
        let started = Instant::now();
        if round == 0 {
            bed.wait("the new path answers", || async {
                bed.get("/moving").await.body == format!("{POD_B} 0")
            })
            .await;
        }
        bed.wait("Envoy has it all", || async {
            assert_eq!(bed.get("/moving").await.status, 200, "round {round}");
            bed.proxies.connected().iter().all(|proxy| proxy.current)
        })
        .await;
        slowest = slowest.max(started.elapsed());
    }
    // Far below the 2 s that a step waits for an ACK, and the 15 s of a missed assignment.
    assert!(slowest < Duration::from_millis(1500), "{slowest:?}");
    // An import that goes answers 500, not by a hang.
    bed.world.imports.clear();
    bed.publish();
    bed.until("/import", 500).await;
    assert_eq!(bed.post("/pool", 100).await.status, 200);
    assert!(bed.envoy.child.try_wait().unwrap().is_none(), "Envoy runs");
}
