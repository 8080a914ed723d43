//! `POST /process` as an endpoint picker calls it, over loopback on an idle machine: a chat of 1 KB, one call after the
//! other. Prints its figures.
//!
//! `cargo bench -p processor`

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a benchmark reads the clock, prints, and fails where it stands"
)]

use std::{
    fmt::Write as _,
    io::{Read, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    num::NonZeroUsize,
    sync::Arc,
    time::{Duration, Instant},
};

use http_service::{Acceptor, Server};
use processor::{
    Encoders, Metrics, Models, Router, Service, Settings, Shared, Steps, TokenTransfer, Transfer,
};
use prometheus_client::metrics::counter::Counter;
use tempfile::TempDir;
use token_cache::{Endpoint, Store};
use tokenization::{Catalogue, EncodeOptions, SegmentCache, sample};
use tokio::{net::TcpListener, runtime::Builder, task::JoinSet};
use tokio_util::sync::CancellationToken;

/// Bytes of a chat.
const BODY: usize = 1024;
const WARM_UP: usize = 1000;
const CALLS: usize = 10_000;
/// p50 at most.
const GOAL: Duration = Duration::from_millis(1);

fn main() {
    // `cargo test --benches` passes no `--bench`.
    if std::env::args().all(|it| it != "--bench") {
        return;
    }
    let base = TempDir::new().unwrap();
    sample::write(&base.path().join("tiny")).unwrap();
    let runtime = Builder::new_multi_thread().enable_all().build().unwrap();
    let (address, running) = runtime.block_on(serve(&base));
    // turns that nobody has seen, and turns that were seen
    for (name, is_new) in [("new", true), ("seen", false)] {
        let mut times = calls(address, is_new);
        times.sort_unstable();
        let at = |per_mille: usize| times[(times.len() - 1) * per_mille / 1000];
        let (p50, p99) = (at(500), at(990));
        println!(
            "process-http, {BODY} bytes, {name}, {} calls: p50 {p50:.1?}, p99 {p99:.1?}; goal p50 <= {GOAL:?}: {}",
            times.len(),
            if p50 <= GOAL {
                "holds"
            } else {
                "does not hold"
            }
        );
    }
    drop(running);
}

/// A Processor, as long as its tasks are kept.
async fn serve(base: &TempDir) -> (SocketAddr, JoinSet<()>) {
    let models = "models: [{name: tiny, path: tiny}]";
    let catalogue = Catalogue::load(models, base.path(), &Catalogue::default(), || 1).unwrap();
    let (store, _) = Store::open(Endpoint::Memory, token_cache::Settings::default()).unwrap();
    let shared = Shared {
        models: Models::fixed(catalogue),
        options: EncodeOptions {
            cache: SegmentCache::new(512 << 20, 1),
            verify_sample: 0.001,
        },
        max_prompt_bytes: 16 << 20,
        metrics: Metrics::default(),
    };
    let steps = Steps {
        encoders: Arc::new(Encoders::start(NonZeroUsize::new(2).unwrap(), 256).unwrap()),
        shared: Arc::new(shared),
        router: None::<Router>,
        tokens: Some(store),
        transfer: Transfer {
            mode: TokenTransfer::Auto,
            threshold: 64 << 10,
        },
        route_timeout: Duration::from_millis(100),
        store_timeout: Duration::from_millis(200),
        spans: None,
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server {
        handler: Service::new(Settings {
            steps,
            tokens: None,
        }),
        acceptor: Acceptor::plaintext(),
        threads: NonZeroUsize::new(2).unwrap(),
        refused: Counter::default(),
    };
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let serving = server.serve(listener, CancellationToken::new());
        serving.await.unwrap();
    });
    (address, tasks)
}

fn calls(address: SocketAddr, is_new: bool) -> Vec<Duration> {
    let mut tcp = TcpStream::connect(address).unwrap();
    tcp.set_nodelay(true).unwrap();
    let mut times = Vec::new();
    for number in 0..WARM_UP + CALLS {
        let message = message(if is_new { number } else { 0 });
        let begun = Instant::now();
        tcp.write_all(message.as_bytes()).unwrap();
        read_reply(&mut tcp);
        if number >= WARM_UP {
            times.push(begun.elapsed());
        }
    }
    times
}

fn message(number: usize) -> String {
    let mut content = String::new();
    while content.len() < BODY - 100 {
        write!(
            content,
            "What of request {number} is in the cache of a worker? "
        )
        .unwrap();
    }
    let body = format!(
        r#"{{"request_body":{{"model":"tiny","messages":[{{"role":"user","content":"{content}"}}]}}}}"#
    );
    let length = body.len();
    format!("POST /process HTTP/1.1\r\nhost: p\r\ncontent-length: {length}\r\n\r\n{body}")
}

/// To its end.
fn read_reply(tcp: &mut TcpStream) {
    let mut read = Vec::new();
    let mut more = [0; 16 << 10];
    let (end, head) = loop {
        let count = tcp.read(&mut more).unwrap();
        assert!(count > 0);
        read.extend_from_slice(&more[..count]);
        if let Some(end) = read.windows(4).position(|it| it == b"\r\n\r\n") {
            break (end + 4, String::from_utf8_lossy(&read[..end]).into_owned());
        }
    };
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let length = head
        .lines()
        .find_map(|it| it.strip_prefix("content-length: "));
    let length: usize = length.unwrap().parse().unwrap();
    while read.len() < end + length {
        let count = tcp.read(&mut more).unwrap();
        assert!(count > 0);
        read.extend_from_slice(&more[..count]);
    }
}
