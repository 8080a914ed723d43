//! `POST /route` as a Processor calls it, over loopback: 8,600 ids in the binary form, 1000 calls a second. Prints its
//! figures.
//!
//! `cargo bench -p router`

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark reads the clock, prints, and fails where it stands"
)]

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    num::NonZeroUsize,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use discovery::Update;
use futures::{StreamExt, stream};
use http_service::{Acceptor, Server};
use kv_router::{Limits, Policy, Preset, Workers};
use moment::Clock;
use process::Health;
use processor_api::{ReservationId, RouteRequest, TOKENS_TYPE};
use prometheus_client::metrics::counter::Counter;
use rand::{SeedableRng, rngs::StdRng};
use router::{Calls, Membership, Metrics, Parts, Pool, Service, Warm};
use scheduling::{EndpointId, Member};
use tokio::{net::TcpListener, runtime::Builder, task::JoinSet};
use tokio_util::sync::CancellationToken;

const IDS: u32 = 8600;
/// Of them, those that a prompt shares with one in sixty others.
const SHARED: u32 = 5000;
const WORKERS: u8 = 8;
const CONNECTIONS: u32 = 16;
const PER_SECOND: u32 = 1000;
const WARM_UP: Duration = Duration::from_secs(2);
const MEASURED: Duration = Duration::from_secs(20);
/// p99 at most.
const GOAL: Duration = Duration::from_millis(1);

fn main() {
    // `cargo test --benches` passes no `--bench`.
    if std::env::args().all(|it| it != "--bench") {
        return;
    }
    let served = Builder::new_multi_thread().enable_all().build().unwrap();
    let (address, running) = served.block_on(serve());
    let mut times = load(address);
    drop(running);
    times.sort_unstable();
    let at = |per_mille: usize| times[(times.len() - 1) * per_mille / 1000];
    let (p50, p99, p999) = (at(500), at(990), at(999));
    println!(
        "router-http, {IDS} ids, {PER_SECOND} a second, {} calls: p50 {p50:.1?}, p99 {p99:.1?}, p99.9 {p999:.1?}; goal p99 < {GOAL:?}: {}",
        times.len(),
        if p99 < GOAL { "holds" } else { "does not hold" }
    );
}

fn mk_member(at: u8) -> Member {
    Member {
        id: EndpointId {
            namespace: "default".into(),
            pod: format!("vllm-{at}").into(),
            rank: 0,
            uid: "1".into(),
        },
        address: SocketAddr::from(([10, 0, 0, at], 8000)),
        engine: "vllm".into(),
        labels: Arc::default(),
    }
}

/// A Router with its workers, as long as its tasks are kept.
async fn serve() -> (SocketAddr, JoinSet<()>) {
    let service = Service::new(Parts {
        pool: Arc::new(Pool::new(Workers::new(Limits::default(), 2 << 30))),
        policy: Policy {
            weights: Preset::Isthmus.weights(),
            temperature: 0.0,
            busy_tokens: None,
        },
        clock: Clock::start(),
        metrics: Metrics::default(),
        follows_events: false,
        routes: None,
    });
    let health = Health::new(&[]);
    let members = Update::Members((0..WORKERS).map(mk_member).collect());
    let membership = Membership {
        updates: stream::iter([members]).chain(stream::pending()).boxed(),
        service: service.clone(),
        events: None,
        ranks: 1,
        warm: Warm::new(health.clone()),
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server {
        handler: Calls::new(service, None, None),
        acceptor: Acceptor::plaintext(),
        threads: NonZeroUsize::new(2).unwrap(),
        refused: Counter::default(),
    };
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let serving = server.serve(listener, CancellationToken::new());
        serving.await.unwrap();
    });
    tasks.spawn(async move { membership.run().await.unwrap() });
    while !health.is_ready() {
        tokio::task::yield_now().await;
    }
    (address, tasks)
}

/// From when each call was to be sent to its reply. Threads, because timers of a runtime are a millisecond late.
fn load(address: SocketAddr) -> Vec<Duration> {
    let begin = Instant::now() + Duration::from_millis(100);
    thread::scope(|scope| {
        let start = |number| scope.spawn(move || calls(address, number, begin));
        let all: Vec<_> = (0..CONNECTIONS).map(start).collect();
        all.into_iter().flat_map(|it| it.join().unwrap()).collect()
    })
}

fn calls(address: SocketAddr, connection: u32, begin: Instant) -> Vec<Duration> {
    let mut tcp = TcpStream::connect(address).unwrap();
    tcp.set_nodelay(true).unwrap();
    let mut rng = StdRng::seed_from_u64(connection.into());
    let mut times = Vec::new();
    let each = Duration::from_secs(1) / PER_SECOND;
    for number in 0.. {
        let call = number * CONNECTIONS + connection;
        let due = begin + each * call;
        if due > begin + WARM_UP + MEASURED {
            break;
        }
        let id = ReservationId::random(&mut rng);
        let token_id = |at: u32| {
            let whose = if at < SHARED { call % 60 } else { 100 + call };
            whose.wrapping_mul(48_271) ^ at
        };
        let request = RouteRequest {
            token_ids: (0..IDS).map(token_id).collect(),
            reservation_id: Some(id),
            model: Some("llama-instruct".into()),
            ..RouteRequest::default()
        };
        let frame = request.encode_binary();
        let head = format!(
            "POST /route HTTP/1.1\r\nhost: r\r\ncontent-type: {TOKENS_TYPE}\r\ncontent-length: {}\r\n\r\n",
            frame.len()
        );
        let message = [head.as_bytes(), &frame].concat();
        thread::sleep(due.saturating_duration_since(Instant::now()));
        tcp.write_all(&message).unwrap();
        assert_eq!(reply(&mut tcp), 200);
        if due >= begin + WARM_UP {
            times.push(due.elapsed());
        }
        let end = format!("DELETE /route/{id} HTTP/1.1\r\nhost: r\r\n\r\n");
        tcp.write_all(end.as_bytes()).unwrap();
        assert_eq!(reply(&mut tcp), 204);
    }
    times
}

/// Reads a reply to its end.
fn reply(tcp: &mut TcpStream) -> u16 {
    let mut read = Vec::new();
    let mut more = [0; 4096];
    let (end, head) = loop {
        let count = tcp.read(&mut more).unwrap();
        assert!(count > 0);
        read.extend_from_slice(&more[..count]);
        if let Some(end) = read.windows(4).position(|it| it == b"\r\n\r\n") {
            break (end + 4, String::from_utf8_lossy(&read[..end]).into_owned());
        }
    };
    let length = head
        .lines()
        .find_map(|it| it.strip_prefix("content-length: "));
    let length: usize = length.map_or(0, |it| it.parse().unwrap());
    while read.len() < end + length {
        let count = tcp.read(&mut more).unwrap();
        assert!(count > 0);
        read.extend_from_slice(&more[..count]);
    }
    head.split(' ').nth(1).unwrap().parse().unwrap()
}
