//! What the simulator publishes of its KV cache, against what it does.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use clap::Parser;
use kv_events::{ConnectionError, Engine, Observer, Received, ReplayResult, follow};
use kv_router::{Limits, Overlap, Seed, Slot, StreamState, WorkerBlocks, Workers, chain};
use libzmq::{Kind, Peer};
use model_server_sim::{Args, ServeError, serve};
use parking_lot::Mutex;
use process::Shutdown;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

const BLOCK: usize = 4;
const LIMIT: Duration = Duration::from_secs(20);

/// A server on ports of its own, and a router's view of its cache.
struct Served {
    address: SocketAddr,
    engine: Engine,
    workers: Arc<Workers>,
    slot: Slot,
    seen: Arc<Mutex<Seen>>,
    _server: JoinSet<Result<(), ServeError>>,
    _follower: JoinSet<WorkerBlocks>,
}

#[derive(Clone, Debug, Default)]
struct Seen {
    number: Option<u64>,
    state: Option<StreamState>,
    gap: u64,
    replays: Vec<ReplayResult>,
}

struct Watcher(Arc<Mutex<Seen>>);

fn ids(name: u32, len: u32) -> Vec<u32> {
    (0..len).map(|id| name * 1000 + id).collect()
}

// === impl Served ===

impl Served {
    async fn start(flags: &str) -> Self {
        let flags = format!(
            "sim --model m --pod-name p --bind 127.0.0.1 --port 0 --kv-events-port 0 --kv-replay-port 0 --block-size {BLOCK} {flags}"
        );
        let settings = Args::try_parse_from(flags.split_whitespace()).expect("valid flags");
        let settings = settings.settings().expect("valid settings").remove(0);
        let listener = TcpListener::bind(settings.address).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let mut server = JoinSet::new();
        server.spawn(serve(listener, settings, Shutdown::manual()));
        let report = call(address, "GET", "/admin/kv-events", None).await;
        let at = |name: &str| report[name].as_str().and_then(|at| at.parse().ok());
        let engine = Engine {
            events: at("events").expect("a port of events"),
            replay: at("replay"),
        };
        let limits = Limits {
            block_size: BLOCK,
            ..Limits::default()
        };
        let workers = Arc::new(Workers::new(limits, 1 << 20));
        let blocks = workers.add().expect("a place");
        let (slot, seen) = (blocks.slot(), Arc::<Mutex<Seen>>::default());
        let mut follower = JoinSet::new();
        follower.spawn(follow(
            engine,
            blocks,
            workers.clone(),
            Watcher(seen.clone()),
            CancellationToken::new(),
        ));
        let served = Self {
            address,
            engine,
            workers,
            slot,
            seen,
            _server: server,
            _follower: follower,
        };
        served.is_subscribed_to().await;
        served
    }

    async fn is_subscribed_to(&self) {
        let start = Instant::now();
        loop {
            let report = call(self.address, "GET", "/admin/kv-events", None).await;
            if report["subscribers"] == 1 {
                return;
            }
            assert!(start.elapsed() < LIMIT, "not subscribed: {report}");
        }
    }

    async fn sees(&self, what: &str, is: impl Fn(&Seen) -> bool) {
        let start = Instant::now();
        loop {
            let seen = self.seen.lock().clone();
            if is(&seen) {
                return;
            }
            assert!(start.elapsed() < LIMIT, "not so: {what}; seen: {seen:?}");
            sleep(Duration::from_millis(2)).await;
        }
    }

    /// Until all that was published has come.
    async fn is_level(&self) {
        let report = call(self.address, "GET", "/admin/kv-events", None).await;
        let last = report["next_sequence"]
            .as_u64()
            .expect("a number")
            .checked_sub(1);
        self.sees(&format!("number {last:?}"), |seen| {
            seen.number == last && seen.state != Some(StreamState::Replaying)
        })
        .await;
    }

    /// Sends a prompt; how many ids of it were cached.
    async fn prompt(&self, model: &str, ids: &[u32], salt: &str) -> usize {
        let body = json!({"model": model, "prompt": ids, "max_tokens": 1, "cache_salt": salt});
        let answer = call(self.address, "POST", "/v1/completions", Some(body)).await;
        let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
        usize::try_from(cached.as_u64().unwrap_or_else(|| panic!("{answer}"))).expect("small")
    }

    /// How many of its ids the router believes to be cached.
    fn known(&self, ids: &[u32], seed: Seed) -> usize {
        let mut names = Vec::new();
        chain(ids, BLOCK, seed, &mut names);
        let mut out = [Overlap::default()];
        self.workers.index.matches(&names, &[self.slot], &mut out);
        usize::try_from(out[0].gpu).expect("small") * BLOCK
    }

    async fn fault(&self, fault: Value) {
        let report = call(self.address, "POST", "/admin/kv-events", Some(fault)).await;
        assert!(report["next_sequence"].is_u64(), "{report}");
    }
}

impl Observer for Watcher {
    fn state(&self, state: StreamState, _reason: Option<&str>) {
        self.0.lock().state = Some(state);
    }

    fn disconnected(&self, _: &ConnectionError) {
        self.0.lock().number = None;
    }

    fn received(&self, received: &Received) {
        self.0.lock().number = Some(received.number);
    }

    fn malformed(&self, reason: &'static str) {
        panic!("malformed: {reason}");
    }

    fn gap(&self, missing: u64) {
        self.0.lock().gap += missing;
    }

    fn forgotten(&self) {}

    fn replayed(&self, result: ReplayResult) {
        self.0.lock().replays.push(result);
    }
}

/// One request; the JSON of its answer.
async fn call(address: SocketAddr, method: &str, path: &str, body: Option<Value>) -> Value {
    let body = text(address, method, path, body).await;
    serde_json::from_str(&body).unwrap_or(Value::Null)
}

async fn text(address: SocketAddr, method: &str, path: &str, body: Option<Value>) -> String {
    let body = body.map(|body| body.to_string()).unwrap_or_default();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: sim\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a head");
    body.to_owned()
}

/// The cache has room for 16 blocks, so that most of this is given up again.
#[rstest]
#[case::array("array")]
#[case::map("map")]
#[tokio::test]
async fn what_is_published_is_what_the_cache_has(#[case] form: &str) {
    let flags = format!("--kv-cache-size 16 --kv-events-form {form} --lora-modules sql");
    let served = Served::start(&flags).await;
    let (mut hits, mut draw) = (0, 7_u32);
    for _ in 0..150 {
        draw = draw.wrapping_mul(1_103_515_245).wrapping_add(12_345);
        let (name, len) = (draw >> 16 & 3, 1 + (draw >> 18 & 31));
        let (model, lora) =
            [("m", None), ("sql", Some("sql"))][usize::from((draw >> 24).is_multiple_of(8))];
        let salt = ["", "tenant"][usize::from((draw >> 27).is_multiple_of(4))];
        let ids = ids(name, len);
        served.is_level().await;
        let known = served.known(&ids, Seed::new(lora, Some(salt)));
        let cached = served.prompt(model, &ids, salt).await;
        // the last token is always computed
        let most = (ids.len() - 1) / BLOCK * BLOCK;
        assert_eq!(known.min(most), cached, "{model} {salt} {name} {len}");
        hits += usize::from(cached > 0);
    }
    assert!((30..120).contains(&hits), "{hits} of 150 say little");
}

#[tokio::test]
async fn blocks_of_a_text_are_those_of_its_tokens() {
    let served = Served::start("").await;
    let text = "nineteen bytes long, or more";
    let body = json!({"model": "m", "prompt": text, "max_tokens": 1});
    let tokens = call(served.address, "POST", "/tokenize", Some(body.clone())).await;
    let tokens: Vec<u32> = serde_json::from_value(tokens["tokens"].clone()).expect("ids");
    call(served.address, "POST", "/v1/completions", Some(body)).await;
    served.is_level().await;
    assert_eq!(tokens.len(), 7);
    assert_eq!(served.known(&tokens, Seed::PLAIN), BLOCK);
}

#[tokio::test]
async fn a_dropped_batch_is_replayed_and_a_gap_is_not() {
    let served = Served::start("").await;
    let (one, two, three) = (ids(1, 8), ids(2, 8), ids(3, 8));
    served.prompt("m", &one, "").await;
    served.is_level().await;
    served.fault(json!({"drop": 1, "duplicate": 1})).await;
    served.prompt("m", &two, "").await;
    // sent twice
    served.prompt("m", &three, "").await;
    served.is_level().await;
    for prompt in [&one, &two, &three] {
        assert_eq!(served.known(prompt, Seed::PLAIN), 8);
    }
    // the first one is that of the subscription
    assert_eq!(served.seen.lock().replays, [ReplayResult::Complete; 2]);

    served.fault(json!({"gap": 3})).await;
    let four = ids(4, 8);
    served.prompt("m", &four, "").await;
    served.is_level().await;
    let known = |prompt: &[u32]| served.known(prompt, Seed::PLAIN);
    assert_eq!((known(&one), known(&four)), (0, 8));
    let seen = served.seen.lock().clone();
    assert_eq!((seen.gap, seen.replays.len()), (4, 3), "{seen:?}");
}

#[tokio::test]
async fn after_a_restart_nothing_is_cached_and_nothing_matches() {
    let served = Served::start("").await;
    let (one, two) = (ids(1, 9), ids(2, 9));
    served.prompt("m", &one, "").await;
    served.is_level().await;
    served.fault(json!({"restart": true})).await;
    served
        .sees("the end of the connection", |seen| seen.number.is_none())
        .await;
    served.is_subscribed_to().await;
    served.prompt("m", &two, "").await;
    served.is_level().await;
    assert_eq!(
        (
            served.known(&one, Seed::PLAIN),
            served.known(&two, Seed::PLAIN)
        ),
        (0, 8)
    );
    assert_eq!(served.prompt("m", &one, "").await, 0);
}

#[tokio::test]
async fn requests_under_way_end_with_a_restart() {
    let served = Served::start("--time-to-first-token 1h").await;
    let address = served.address;
    let mut waiting = JoinSet::new();
    waiting.spawn(async move {
        let body = json!({"model": "m", "prompt": ids(1, 8), "max_tokens": 1});
        call(address, "POST", "/v1/completions", Some(body)).await
    });
    let start = Instant::now();
    while !is_running(address).await {
        assert!(start.elapsed() < LIMIT, "it does not run");
    }
    served.fault(json!({"restart": true})).await;
    let answer = waiting
        .join_next()
        .await
        .expect("a task")
        .expect("an answer");
    assert!(answer["error"]["message"].is_string(), "{answer}");
    assert!(!is_running(address).await);
}

async fn is_running(address: SocketAddr) -> bool {
    let page = text(address, "GET", "/metrics", None).await;
    page.contains("num_requests_running{model_name=\"m\",engine=\"0\"} 1")
}

#[tokio::test]
async fn a_reset_of_the_cache_clears_the_index() {
    let served = Served::start("").await;
    let one = ids(1, 8);
    served.prompt("m", &one, "").await;
    served.is_level().await;
    assert_eq!(served.known(&one, Seed::PLAIN), 8);
    call(served.address, "POST", "/reset_prefix_cache", None).await;
    served.is_level().await;
    assert_eq!(served.known(&one, Seed::PLAIN), 0);
    assert_eq!(served.prompt("m", &one, "").await, 0);
}

/// Subscribes as the examples in vLLM's documentation do, both the current ones and those before 0.26.
#[rstest]
#[case::map("map", 4)]
#[case::array("array", 3)]
#[tokio::test(flavor = "multi_thread")]
async fn subscribers_of_real_zeromq_are_served(#[case] form: &str, #[case] frames: usize) {
    let served = Served::start(&format!("--kv-events-form {form}")).await;
    let mut peer = Peer::start().unwrap();
    let subscriber = peer
        .connect(Kind::Sub, served.engine.events.port())
        .unwrap();
    let replay = served.engine.replay.expect("a port for replays");
    let dealer = peer.connect(Kind::Dealer, replay.port()).unwrap();
    let mut received = None;
    for name in 0..1000 {
        // until it has subscribed
        served.prompt("m", &ids(name, 8), "").await;
        received = peer
            .receive(&subscriber, Duration::from_millis(20))
            .unwrap();
        if received.is_some() {
            break;
        }
    }
    let received = received.expect("a message");
    let [topic, number, batch] = &received[..] else {
        panic!("{received:?}");
    };
    assert!(
        topic.starts_with(b"kv@127.0.0.1:") && topic.ends_with(b"@m"),
        "{topic:?}"
    );
    peer.send(&dealer, &[b"", &0_u64.to_be_bytes()]).unwrap();
    let mut replayed = Vec::new();
    loop {
        let message = peer.receive(&dealer, LIMIT).unwrap().expect("a batch");
        assert_eq!((message[0].len(), message.len()), (0, frames));
        let [.., topic_or_nothing, end, last] = &message[..] else {
            panic!("{message:?}");
        };
        if end[..] == [0xff; 8] {
            assert!(topic_or_nothing.is_empty() && last.is_empty());
            break;
        }
        let is_topic = frames == 4;
        assert_eq!(topic_or_nothing == topic, is_topic);
        replayed.push((end.clone(), last.clone()));
    }
    assert_eq!(replayed[0].0, 0_u64.to_be_bytes());
    let at = usize::try_from(u64::from_be_bytes(number[..].try_into().unwrap())).unwrap();
    assert_eq!((&replayed[at].0, &replayed[at].1), (number, batch));
}
