//! Clients against the real service over sockets.
#![cfg(test)]

use std::{collections::BTreeMap, net::SocketAddr, num::NonZeroUsize, sync::Arc, time::Duration};

use futures::future::join_all;
use metadata::{
    Address, Cluster, Limits, Sum,
    wire::{
        cache::{PromptHash, Save},
        load::PromptLength,
        pick::{Candidate, Params, Pick, Picks},
    },
};
use metadata_center::{Engine, Memory, Server, Service};
use metadata_client::{Api, Asked, Charges, Client, Degraded, Http, Settings, TaskDied, Trace};
use moment::Clock;
use prometheus_client::metrics::counter::Counter;
use tls::Acceptor;
use tokio::{
    net::TcpListener,
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

/// The service with its state in memory.
struct Served {
    address: SocketAddr,
    engine: Arc<Memory>,
    tasks: JoinSet<()>,
}

/// One endpoint picker.
struct Picker {
    client: Client<Http>,
    charges: Charges,
    stop: CancellationToken,
    tasks: JoinSet<Result<(), TaskDied>>,
}

fn cluster() -> Cluster {
    "ns/pool".parse().unwrap()
}

fn ip(last: usize) -> Address {
    format!("10.0.0.{last}").parse().unwrap()
}

fn length(length: i64) -> PromptLength {
    length.try_into().unwrap()
}

/// Until two values are the same.
async fn eventually<V: PartialEq + std::fmt::Debug>(
    limit: Duration,
    found: impl AsyncFn() -> V,
    expected: V,
) {
    let start = Instant::now();
    loop {
        let now = found().await;
        if now == expected {
            return;
        }
        assert!(
            start.elapsed() < limit,
            "{now:?} instead of {expected:?} after {limit:?}"
        );
        sleep(Duration::from_millis(10)).await;
    }
}

impl Served {
    async fn start() -> Self {
        Self::at("127.0.0.1:0".parse().unwrap()).await
    }

    async fn at(address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let engine = Arc::new(Memory::new(Limits::default(), Clock::start()));
        let server = Server {
            handler: Service::new(Arc::clone(&engine), metadata_center::Settings::default()),
            acceptor: Acceptor::plaintext(),
            threads: NonZeroUsize::MIN,
            refused: Counter::default(),
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let serving =
                server.serve(listener, CancellationToken::new(), CancellationToken::new());
            serving.await.unwrap();
        });
        Self {
            address,
            engine,
            tasks,
        }
    }

    /// Requests and prefill of each endpoint that has some.
    async fn loads(&self) -> BTreeMap<String, (i32, i32)> {
        let loads = self.engine.loads(&cluster()).await.unwrap();
        let loads = loads.unwrap_or_default().into_iter();
        let loads = loads.filter(|it| it.queued_req_num > 0);
        loads
            .map(|it| (it.ip.to_string(), (it.queued_req_num, it.prompt_length)))
            .collect()
    }

    async fn leases(&self) -> usize {
        let clusters = self.engine.clusters().await.unwrap();
        clusters.iter().map(|it| it.leases.len()).sum()
    }
}

impl Picker {
    async fn start(name: &str, served: &Served, api: Api) -> Self {
        let port = served.address.port();
        let transport = Http::new("127.0.0.1", port, api, None).unwrap();
        let settings = Settings {
            api,
            caches: true,
            timeout: Duration::from_secs(5),
            async_timeout: Duration::from_secs(5),
            queue_size: 1000,
            workers: 10,
            instance: name.parse().unwrap(),
            epoch: 1,
            // A picker without requests finds a restart after a third of it.
            lease: Duration::from_secs(3),
            flush: Duration::from_secs(2),
        };
        let (client, tasks) = Client::new(settings, transport, Clock::start());
        let stop = CancellationToken::new();
        let mut running = JoinSet::new();
        running.spawn(tasks.run(stop.clone()));
        let picker = Self {
            charges: client.charges(&cluster()).unwrap(),
            client,
            stop,
            tasks: running,
        };
        // The service is reached.
        let asked = async || picker.view(None).await.degraded();
        eventually(Duration::from_secs(5), asked, None).await;
        picker
    }

    async fn view(&self, prompt: Option<&PromptHash>) -> metadata_client::View {
        let asked = Asked {
            ips: &[ip(0), ip(1)],
            load: true,
            prompt,
        };
        let trace = Trace::default();
        self.client.view(&self.charges, &asked, &trace).await
    }

    async fn pick(&self, id: &str, endpoints: usize) -> Picks {
        let candidate = |last| Candidate {
            ip: ip(last),
            bias: 0.0,
        };
        let pick = Pick {
            cluster: cluster(),
            request_id: id.parse().unwrap(),
            prompt_hash: PromptHash::default(),
            prompt_length: length(1000),
            count: 1,
            reserve_ms: 10_000,
            candidates: (0..endpoints).map(candidate).collect(),
            params: Params::default(),
        };
        let picks = self.client.pick(&pick, &Trace::default()).await;
        let picks = picks.unwrap();
        let charge = length(picks.charge);
        self.charges
            .put(pick.request_id, picks.picks[0].ip, charge, true);
        picks
    }

    async fn end(mut self) {
        self.stop.cancel();
        self.tasks.join_next().await.unwrap().unwrap().unwrap();
    }
}

#[tokio::test]
async fn three_pickers_that_pick_at_once_spread_evenly() {
    let served = Served::start().await;
    let mut pickers = Vec::new();
    for name in ["a", "b", "c"] {
        pickers.push(Picker::start(name, &served, Api::Isthmus).await);
    }
    let pickers = &pickers;
    let pick = |number: usize| async move {
        let id = format!("r{number}");
        pickers[number % 3].pick(&id, 10).await
    };
    let picks = join_all((0..100).map(pick)).await;
    let mut counts = [0; 10];
    for picks in &picks {
        let at = (0..10).find(|last| ip(*last) == picks.picks[0].ip);
        counts[at.unwrap()] += 1;
    }
    let spread = counts.iter().max().unwrap() - counts.iter().min().unwrap();
    assert!(spread <= 2, "{counts:?}");
    // Each request counts once, by its reservation or by its batch, and not at all after its end.
    let requests = async || served.loads().await.values().map(|it| it.0).sum::<i32>();
    let limit = Duration::from_secs(5);
    eventually(limit, requests, 100).await;
    for number in 0..100 {
        let id = format!("r{number}").parse().unwrap();
        pickers[number % 3].charges.end(&id, true);
    }
    eventually(limit, requests, 0).await;
}

#[tokio::test]
async fn a_restarted_service_has_all_requests_again() {
    let mut served = Served::start().await;
    let first = Picker::start("a", &served, Api::Isthmus).await;
    let second = Picker::start("b", &served, Api::Isthmus).await;
    for number in 0..500 {
        let (picker, endpoint) = if number % 2 == 0 {
            (&first, 0)
        } else {
            (&second, 1)
        };
        let id = format!("r{number}").parse().unwrap();
        picker.charges.put(id, ip(endpoint), length(3), false);
    }
    let all = |of_first: i32| {
        let loads = [(ip(0), of_first), (ip(1), 250)];
        let loads = loads.map(|(ip, count)| (ip.to_string(), (count, 3 * count)));
        BTreeMap::from(loads)
    };
    let limit = Duration::from_secs(5);
    eventually(limit, async || served.loads().await, all(250)).await;
    served.tasks.shutdown().await;
    // Requests go on meanwhile.
    for number in 0..100 {
        let id = format!("r{}", number * 2).parse().unwrap();
        first.charges.end(&id, false);
    }
    let is_failing = async || {
        first
            .client
            .degraded()
            .any(|it| it == (Degraded::Writes, true))
    };
    eventually(limit, is_failing, true).await;
    let served = Served::at(served.address).await;
    eventually(limit, async || served.loads().await, all(150)).await;
    first.end().await;
    second.end().await;
    assert_eq!((served.leases().await, served.loads().await.len()), (0, 0));
}

#[tokio::test]
async fn our_service_serves_clients_of_the_former_one() {
    let served = Served::start().await;
    let picker = Picker::start("a", &served, Api::Compat).await;
    let other = Picker::start("b", &served, Api::Compat).await;
    let id = |number: usize| format!("r{number}").parse().unwrap();
    picker.charges.put(id(1), ip(0), length(7), false);
    other.charges.put(id(2), ip(0), length(50), false);
    let prompt = PromptHash::from(vec![1, 2, 3]);
    picker.client.save(Save {
        cluster: cluster(),
        prompt_hash: vec![1, 2].into(),
        ip: ip(1),
        ttl_s: None,
        capacity: None,
    });
    let limit = Duration::from_secs(5);
    let zero = Sum::default();
    let sum = |requests, prefill| Sum { requests, prefill };
    let view = async || {
        let view = picker.view(Some(&prompt)).await;
        (view.load.unwrap(), view.matched.unwrap().unwrap())
    };
    eventually(limit, view, (vec![sum(2, 57), zero], vec![0, 2])).await;
    picker.charges.prompt_done(&id(1));
    other.charges.end(&id(2), false);
    eventually(limit, view, (vec![sum(1, 0), zero], vec![0, 2])).await;
    let of_one = BTreeMap::from([(ip(0).to_string(), (1, 0))]);
    eventually(limit, async || served.loads().await, of_one).await;
    picker.charges.end(&id(1), false);
    picker.end().await;
    assert_eq!(served.loads().await.len(), 0);
}
