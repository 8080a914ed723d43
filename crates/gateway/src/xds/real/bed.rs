//! One Envoy at our ADS server, pods and EPPs on loopback addresses around it.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use crd::networks::Cidr;
use tls::Acceptor;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

use crate::fixture::{
    add_route, add_slice, key, mk_import, mk_options, mk_ref, mk_route, mk_rule, mk_selection,
    mk_settings, mk_world,
};
use crate::metrics::AdsMetrics;
use crate::model::{GatewayModel, Settings, build};
use crate::select::Selection;
use crate::world::{Endpoints, World};
use crate::xds::ads::budget::{Budgets, Limits};
use crate::xds::ads::connections::{Trust, serve};
use crate::xds::ads::proxies::Proxies;
use crate::xds::ads::server::{AdsServer, Snapshots};
use crate::xds::proto::listener::Listener;
use crate::xds::{Options, Resource, Snapshot, assign, names, translate};
use moment::Clock;

use crate::xds::tests::find_envoy;

use super::credentials::Credentials;
use super::envoy::Envoy;
use super::epp::{Behaviour, Epp};
use super::pod::{self, STREAM, Seen};

/// Local pods, the remote pod, and where no pod may be.
pub(super) const POD_A: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 11);
pub(super) const POD_B: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 12);
pub(super) const REMOTE_POD: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 13);
pub(super) const FORBIDDEN: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 14);
pub(super) const OUTSIDE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 18);
const CLOSING_POD: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 16);
const DYING_POD: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 17);
const UPGRADING_POD: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 19);
pub(super) const EPP: Ipv4Addr = Ipv4Addr::new(127, 0, 1, 1);
pub(super) const REMOTE_EPP: Ipv4Addr = Ipv4Addr::new(127, 0, 1, 2);
pub(super) const SECOND_EPP: Ipv4Addr = Ipv4Addr::new(127, 0, 1, 3);

/// How long anything may take; most takes milliseconds.
pub(super) const LIMIT: Duration = Duration::from_secs(20);

/// One Envoy with everything around it; all ends with this value.
pub(super) struct Bed {
    tasks: JoinSet<()>,
    pub(super) envoy: Envoy,
    snapshots: watch::Sender<Snapshots>,
    ads: (SocketAddr, AbortHandle),
    /// Of a bed with TLS.
    pub(super) credentials: Option<Credentials>,
    pub(super) edges: Edges,
    pub(super) proxies: Proxies,
    pub(super) metrics: AdsMetrics,
    pub(super) world: World,
    pub(super) endpoints: Endpoints,
    pub(super) settings: Settings,
    pub(super) options: Options,
    /// How imports are shared; none: equally.
    pub(super) selection: Option<Selection>,
    /// What no world of a test can lead to.
    pub(super) remodel: fn(&mut GatewayModel),
    /// Requests as the pods read them.
    pub(super) seen: Seen,
    pub(super) edge: u16,
    pub(super) pods: u16,
    picker: u16,
}

/// How Envoy and its configuration meet.
pub(super) enum Channel {
    /// Without TLS, where nobody else reads it.
    Private,
    /// Without TLS.
    Shared,
    /// Mutual TLS with these credentials.
    Secure(Credentials),
}

/// The edges that Envoy is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Edges {
    Good,
    /// Envoy refuses all edges.
    Spoiled,
    /// It refuses that of this port.
    SpoiledOf(u16),
}

/// What a client got.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) body: String,
}

// === impl Bed ===

impl Bed {
    pub(super) async fn start(change: impl FnOnce(&mut World)) -> Self {
        let bed = Self::launch(change, Channel::Private, Edges::Good).await;
        bed.wait("the edge answers", || async {
            let edge = (Ipv4Addr::LOCALHOST, bed.edge);
            TcpStream::connect(edge).await.is_ok()
        })
        .await;
        bed
    }

    /// The same, but Envoy need not serve anything yet.
    pub(super) async fn launch(
        change: impl FnOnce(&mut World),
        channel: Channel,
        edges: Edges,
    ) -> Self {
        let (credentials, is_private) = match channel {
            Channel::Private => (None, true),
            Channel::Shared => (None, false),
            Channel::Secure(credentials) => (Some(credentials), false),
        };
        let binary = find_envoy();
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

        let only_pod = vec![Cidr::host(REMOTE_POD.into())];
        let settings = Settings {
            deny_cidrs: Vec::new(),
            pod_cidrs: ["east", "south"]
                .map(|name| (name.to_owned(), only_pod.clone()))
                .into(),
            ..mk_settings()
        };

        let mut tasks = JoinSet::new();
        let seen = Seen::default();
        for ip in [POD_A, POD_B, REMOTE_POD, FORBIDDEN, OUTSIDE] {
            let listener = TcpListener::bind((ip, pods)).await.unwrap();
            tasks.spawn(pod::serve(listener, seen.clone()));
        }
        let (snapshots, newest) = watch::channel(Arc::default());
        let proxies = Proxies::default();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let ads = listener.local_addr().unwrap();
        let metrics = AdsMetrics::default();
        let server = mk_server(newest, proxies.clone(), metrics.clone(), is_private);
        let serving = tasks.spawn(serve_on(listener, server, credentials.clone()));
        let bed = Self {
            envoy: Envoy::start(&binary, ads, credentials.as_ref()).await,
            tasks,
            snapshots,
            ads: (ads, serving),
            credentials,
            edges,
            proxies,
            metrics,
            world,
            endpoints,
            settings,
            options: Options {
                bind_address: Ipv4Addr::LOCALHOST.into(),
                ..mk_options()
            },
            selection: None,
            remodel: |_| {},
            seen,
            edge,
            pods,
            picker,
        };
        bed.publish();
        bed
    }

    /// Ends the ADS server, and starts another at the same address, with the credentials of now.
    pub(super) async fn restart_ads(&mut self) {
        let (address, serving) = &self.ads;
        serving.abort();
        let listener = bind(*address).await;
        let server = mk_server(
            self.snapshots.subscribe(),
            self.proxies.clone(),
            self.metrics.clone(),
            false,
        );
        let serving = serve_on(listener, server, self.credentials.clone());
        self.ads.1 = self.tasks.spawn(serving);
    }

    /// What Envoys refuse of what they were sent last.
    pub(super) fn refused(&self) -> usize {
        let snapshots = self.snapshots.borrow().clone();
        self.proxies
            .refused(&snapshots)
            .values()
            .map(BTreeMap::len)
            .sum()
    }

    /// Another Envoy of the same Gateway.
    pub(super) async fn another_envoy(&self) -> Envoy {
        Envoy::start(&find_envoy(), self.ads.0, self.credentials.as_ref()).await
    }

    /// The status of a probe; none without an answer in a second, as a kubelet waits for it.
    pub(super) async fn probe(&self) -> Option<u16> {
        self.envoy.probe().await
    }

    pub(super) fn publish(&self) {
        let (mut models, wanted) = build(&self.world, &self.settings);
        models.iter_mut().for_each(self.remodel);
        let equal = || mk_selection(&wanted);
        let selection = self.selection.clone().unwrap_or_else(equal);
        let made: BTreeMap<_, Arc<Snapshot>> = models
            .iter()
            .map(|model| {
                let plan = translate(model, &self.options);
                let mut snapshot = assign(&plan, &self.endpoints, &selection);
                let listeners = snapshot.listeners.iter_mut();
                listeners
                    .filter(|(name, _)| self.edges.is_spoiled(name))
                    .for_each(spoil);
                (model.key.clone(), Arc::new(snapshot))
            })
            .collect();
        self.snapshots.send_replace(Arc::new(made));
    }

    /// The route tables that Envoys were sent last.
    pub(super) fn routes(&self) -> BTreeMap<String, Arc<Resource>> {
        self.snapshots.borrow()[&key("gw")].routes.clone()
    }

    /// The clusters that Envoys were sent last.
    pub(super) fn clusters(&self) -> BTreeMap<String, Arc<Resource>> {
        self.snapshots.borrow()[&key("gw")].clusters.clone()
    }

    /// Starts an EPP that picks among these; one at this address that was stopped may still end.
    pub(super) async fn epp(&mut self, ip: Ipv4Addr, behaviour: Behaviour) -> Epp {
        let listener = bind(SocketAddr::from((ip, self.picker))).await;
        let epp = Epp::new(behaviour);
        let service = epp.service();
        let stop = epp.stop.clone();
        self.tasks.spawn(async move {
            let incoming = TcpListenerStream::new(listener);
            let server = Server::builder().add_service(service);
            // Open connections end as well.
            let serve = server.serve_with_incoming_shutdown(incoming, stop.cancelled_owned());
            serve.await.unwrap();
        });
        epp
    }

    /// Starts a pod at an address where there is none yet.
    pub(super) async fn pod(&mut self, ip: Ipv4Addr) {
        let listener = TcpListener::bind((ip, self.pods)).await.unwrap();
        self.tasks.spawn(pod::serve(listener, self.seen.clone()));
    }

    /// Starts a pod that closes each connection at its second request.
    pub(super) async fn closing_pod(&mut self) -> Ipv4Addr {
        let listener = TcpListener::bind((CLOSING_POD, self.pods)).await.unwrap();
        self.tasks.spawn(pod::serve_one_each(listener));
        CLOSING_POD
    }

    /// Starts a pod that crashes at each POST, and returns the number of those it has read.
    pub(super) async fn dying_pod(&mut self) -> (Ipv4Addr, Arc<AtomicUsize>) {
        let listener = TcpListener::bind((DYING_POD, self.pods)).await.unwrap();
        let posts = Arc::default();
        self.tasks
            .spawn(pod::serve_no_posts(listener, Arc::clone(&posts)));
        (DYING_POD, posts)
    }

    /// Starts a pod that upgrades each connection.
    pub(super) async fn upgrading_pod(&mut self) -> Ipv4Addr {
        let listener = TcpListener::bind((UPGRADING_POD, self.pods)).await.unwrap();
        self.tasks.spawn(pod::serve_upgrades(listener));
        UPGRADING_POD
    }

    /// Where EPPs listen at this address.
    pub(super) fn picker_at(&self, ip: Ipv4Addr) -> SocketAddr {
        (ip, self.picker).into()
    }

    pub(super) fn at(&self, ip: Ipv4Addr) -> Behaviour {
        Behaviour::Pick(format!("{ip}:{}", self.pods))
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, "", 0).await
    }

    pub(super) async fn post(&self, path: &str, bytes: usize) -> Answer {
        self.send("POST", path, "", bytes).await
    }

    pub(super) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &str,
        bytes: usize,
    ) -> Answer {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: any\r\nconnection: close\r\n{headers}content-length: {bytes}\r\n\r\n"
        );
        self.exchange(&head, &vec![b'x'; bytes]).await
    }

    /// Sends the bytes over a connection that ends with the answer.
    pub(super) async fn exchange(&self, head: &str, body: &[u8]) -> Answer {
        let exchange = async {
            let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.edge))
                .await
                .unwrap();
            let (mut reader, mut writer) = stream.into_split();
            // An early answer ends the request, and both may see the connection reset.
            let write = async {
                writer.write_all(head.as_bytes()).await?;
                writer.write_all(body).await
            };
            let mut answer = Vec::new();
            let _ = tokio::join!(write, reader.read_to_end(&mut answer));
            String::from_utf8(answer).unwrap()
        };
        let text = timeout(LIMIT, exchange).await.expect("an answer in time");
        Answer::read(&text)
    }

    /// Sends a request for an answer in so many pieces, one each 50 ms, over a connection that is kept, and returns that answer.
    pub(super) async fn stream_over(connection: &mut TcpStream, pieces: u32) -> String {
        let request = format!("GET {STREAM}?{pieces} HTTP/1.1\r\nhost: any\r\n\r\n");
        let exchange = async {
            connection.write_all(request.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            while !answer.ends_with(b"\r\n0\r\n\r\n") {
                let read = connection.read_buf(&mut answer).await.unwrap();
                let so_far = String::from_utf8_lossy(&answer);
                assert!(read > 0, "cut: {so_far}");
            }
            String::from_utf8(answer).unwrap()
        };
        timeout(LIMIT, exchange).await.expect("an answer in time")
    }

    pub(super) async fn connect(&self) -> TcpStream {
        let edge = (Ipv4Addr::LOCALHOST, self.edge);
        TcpStream::connect(edge).await.unwrap()
    }

    /// Until the path answers with that status: health checks and updates take their time.
    pub(super) async fn until(&self, path: &str, status: u16) -> Answer {
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

    pub(super) async fn wait<F: Future<Output = bool>>(&self, what: &str, holds: impl Fn() -> F) {
        let started = Instant::now();
        while !holds().await {
            assert!(started.elapsed() < LIMIT, "not in time: {what}");
            sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Once the address is free.
async fn bind(address: SocketAddr) -> TcpListener {
    let free = async {
        loop {
            match TcpListener::bind(address).await {
                Ok(listener) => break listener,
                Err(_) => sleep(Duration::from_millis(20)).await,
            }
        }
    };
    let listener = timeout(LIMIT, free).await;
    listener.expect("the address is free in time")
}

// === impl Answer ===

impl Answer {
    /// From what a connection brought until its end.
    pub(super) fn read(text: &str) -> Self {
        let (head, mut body) = text.split_once("\r\n\r\n").unwrap_or((text, ""));
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|s| s.parse().ok())
            .unwrap_or(0);
        if head.contains("transfer-encoding: chunked") {
            body = body.split("\r\n").nth(1).unwrap_or(""); // pods answer in one chunk
        }
        Self {
            status,
            head: head.to_owned(),
            body: body.to_owned(),
        }
    }
}

// === impl Edges ===

impl Edges {
    fn is_spoiled(self, listener: &str) -> bool {
        match self {
            Self::Good => false,
            Self::Spoiled => listener.starts_with("edge/"),
            Self::SpoiledOf(port) => listener == names::edge(port),
        }
    }
}

fn mk_server(
    snapshots: watch::Receiver<Snapshots>,
    proxies: Proxies,
    metrics: AdsMetrics,
    private_channel: bool,
) -> AdsServer {
    AdsServer {
        snapshots,
        proxies,
        metrics,
        clock: Clock::start(),
        removal_delay: Duration::from_millis(200),
        budgets: Budgets::new(Limits::default()),
        drain: CancellationToken::new(),
        private_channel,
    }
}

async fn serve_on(listener: TcpListener, server: AdsServer, credentials: Option<Credentials>) {
    let (acceptor, trust) = match credentials {
        Some(credentials) => (credentials.acceptor(), Trust::Cluster("west".into())),
        None => (Acceptor::plaintext(), Trust::Anyone),
    };
    let never = std::future::pending();
    let served = serve(server, listener, acceptor, trust, never).await;
    served.unwrap();
}

/// A listener becomes one that Envoy refuses.
fn spoil((name, resource): (&String, &mut Arc<Resource>)) {
    let listener = Listener {
        name: name.clone(),
        ..Listener::default()
    };
    *resource = Resource::new(&listener, false);
}

/// A port that no other test of this process gets. It is below those that the system gives to connections, which would take it
/// before it is bound.
pub(super) async fn free_port() -> u16 {
    const FIRST: u32 = 20_000;
    const COUNT: u32 = 12_000;
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    for _ in 0..COUNT {
        let nth = GIVEN.fetch_add(1, Ordering::Relaxed);
        // Processes that run at the same time begin at different places.
        let offset = std::process::id().wrapping_mul(37).wrapping_add(nth) % COUNT;
        let port = u16::try_from(FIRST + offset).unwrap();
        if TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))
            .await
            .is_ok()
        {
            return port;
        }
    }
    panic!("all ports are taken");
}
