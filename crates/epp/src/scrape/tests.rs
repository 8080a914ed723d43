//! Against real sockets on loopback, with tiny servers that do what the test needs.

use std::net::SocketAddr;

use prometheus_client::registry::Registry;
use rstest::rstest;
use scheduling::{Freshness, Member, Moment, Quality, Registry as Endpoints, Snapshot, Values};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{mpsc::error::TryRecvError, watch},
};

use super::{
    pace::{SLOW, SLOW_AFTER},
    *,
};
use crate::fixtures::mk_member;

mod configured;

const PAGE: &str = "vllm:num_requests_waiting 7\nvllm:num_requests_running 2\nvllm:kv_cache_usage_perc 0.5\n\
                    vllm:lora_requests_info{running_lora_adapters=\"a\",max_lora=\"4\"} 1.7e9\n\
                    vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"900\"} 1\n";

/// What [`PAGE`] says.
const FULL: Values<Option<f64>> = Values {
    waiting: Some(7.0),
    running: Some(2.0),
    kv: Some(0.5),
};

fn mk_snapshot(addresses: &[SocketAddr]) -> Arc<Snapshot> {
    mk_labelled_snapshot(addresses, &[])
}

fn mk_labelled_snapshot(addresses: &[SocketAddr], labels: &[(&str, &str)]) -> Arc<Snapshot> {
    let labels = labels
        .iter()
        .map(|(key, value)| ((*key).into(), (*value).into()));
    let labels: Arc<scheduling::Labels> = Arc::new(labels.collect());
    let members = addresses.iter().enumerate().map(|(index, address)| Member {
        labels: Arc::clone(&labels),
        ..mk_member(&format!("pod-{index}"), *address)
    });
    Arc::new(Endpoints::default().update(members.collect(), Moment::START))
}

/// A scraper under test; its task ends with it.
struct Running {
    snapshots: watch::Sender<Option<Arc<Snapshot>>>,
    readiness: Readiness,
    clock: Clock,
    metrics: Metrics,
    _task: JoinSet<anyhow::Result<()>>,
}

fn start(snapshot: Option<Arc<Snapshot>>) -> Running {
    start_with(snapshot, watch::channel(Plan::default()).1)
}

fn start_with(snapshot: Option<Arc<Snapshot>>, plans: watch::Receiver<Plan>) -> Running {
    start_every(Duration::from_millis(10), snapshot, plans)
}

fn start_every(
    interval: Duration,
    snapshot: Option<Arc<Snapshot>>,
    plans: watch::Receiver<Plan>,
) -> Running {
    let (snapshots, members) = watch::channel(snapshot);
    let clock = Clock::start();
    let readiness = Readiness::new();
    let metrics = Metrics::register(&mut Registry::default());
    let scraper = Scraper {
        interval,
        clock,
        metrics: metrics.clone(),
        readiness: readiness.clone(),
        plans,
        on_scraped: OnScraped(Arc::new(|| {})),
    };
    let mut task = JoinSet::new();
    task.spawn(scraper.run(members));
    Running {
        snapshots,
        readiness,
        clock,
        metrics,
        _task: task,
    }
}

impl Running {
    /// Waits until the endpoint's load looks as it should.
    async fn until(&self, endpoint: &Endpoint, looks: impl Fn(&scheduling::Reading) -> bool) {
        let watching = async {
            while !looks(&endpoint.load().read(self.clock.now(), Freshness::default())) {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(10), watching)
            .await
            .expect("the load changes in time");
    }
}

/// Serves each connection by `handle`; tells the address.
async fn serve<F, Fut>(tasks: &mut JoinSet<()>, handle: F) -> SocketAddr
where
    F: Fn(TcpStream) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = ()> + Send,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tasks.spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            handle(stream).await;
        }
    });
    address
}

/// Serves [`PAGE`] as often as it is asked for.
async fn serve_page(servers: &mut JoinSet<()>) -> SocketAddr {
    serve(servers, async |mut stream| {
        while read_request(&mut stream).await {
            answer(&mut stream, "200 OK", PAGE).await;
        }
    })
    .await
}

/// Reads up to the end of a request's head; false when the peer is gone.
async fn read_request(stream: &mut TcpStream) -> bool {
    let Some(head) = read_head(stream).await else {
        return false;
    };
    assert!(head.starts_with("GET /metrics HTTP/1.1\r\n"), "{head}");
    true
}

/// A request's head; none when the peer is gone.
async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte).await {
            Ok(1) => head.push(byte[0]),
            _ => return None,
        }
    }
    Some(String::from_utf8_lossy(&head).into_owned())
}

async fn answer(stream: &mut (impl AsyncWrite + Unpin), status: &str, page: &str) {
    let text = format!(
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{page}",
        page.len()
    );
    let _ = stream.write_all(text.as_bytes()).await;
}

#[tokio::test]
async fn pages_reach_the_load_over_one_connection() {
    let mut servers = JoinSet::new();
    let (connections, mut seen) = mpsc::channel(64);
    let address = serve(&mut servers, move |mut stream| {
        let connections = connections.clone();
        async move {
            let _ = connections.try_send(());
            while read_request(&mut stream).await {
                answer(&mut stream, "200 OK", PAGE).await;
            }
        }
    })
    .await;
    let snapshot = mk_snapshot(&[address]);
    let running = start(Some(Arc::clone(&snapshot)));
    let endpoint = &snapshot.members()[0].endpoint;
    running
        .until(endpoint, |reading| reading.scraped == FULL)
        .await;
    let first = running.clock.now();
    // A second page, by the age of the first.
    let fresh = Freshness {
        fresh_for: Duration::ZERO,
        stale_for: Duration::from_mins(1),
    };
    timeout(Duration::from_secs(10), async {
        while endpoint.load().read(first, fresh).quality != Quality::Fresh {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("another scrape follows");
    seen.recv().await.unwrap();
    assert_eq!(
        seen.try_recv().err(),
        Some(TryRecvError::Empty),
        "the connection is kept"
    );
}

#[tokio::test]
async fn a_server_that_closes_after_each_page_is_still_scraped() {
    let mut servers = JoinSet::new();
    let address = serve(&mut servers, async |mut stream| {
        if read_request(&mut stream).await {
            let text = format!("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{PAGE}");
            let _ = stream.write_all(text.as_bytes()).await;
        }
    })
    .await;
    let snapshot = mk_snapshot(&[address]);
    let running = start(Some(Arc::clone(&snapshot)));
    running
        .until(&snapshot.members()[0].endpoint, |reading| {
            reading.scraped == FULL
        })
        .await;
}

#[tokio::test]
async fn a_kept_connection_that_was_closed_is_replaced_and_does_not_hang() {
    let mut servers = JoinSet::new();
    let (closed, mut closes) = mpsc::channel(8);
    let address = serve(&mut servers, move |mut stream| {
        let closed = closed.clone();
        async move {
            if read_request(&mut stream).await {
                answer(&mut stream, "200 OK", PAGE).await;
            }
            drop(stream);
            closed.send(()).await.unwrap();
        }
    })
    .await;
    let mut page = Page::new(address, Arc::default());
    let mut scanner = Scanner::new(Arc::clone(EngineTable::default().engine("")));
    for round in 0..3 {
        let read = timeout(Duration::from_secs(10), page.read(&mut scanner)).await;
        assert!(matches!(read, Ok(Ok(()))), "round {round}: {read:?}");
        assert_eq!(scanner.finish().waiting, Some(7.0), "round {round}");
        closes.recv().await.unwrap();
    }
}

#[tokio::test]
async fn a_page_without_our_metrics_counts_as_useless() {
    let mut servers = JoinSet::new();
    let (asked, mut asks) = mpsc::channel(8);
    let address = serve(&mut servers, move |mut stream| {
        let asked = asked.clone();
        async move {
            while read_request(&mut stream).await {
                answer(&mut stream, "200 OK", "go_goroutines 7\n").await;
                let _ = asked.send(()).await;
            }
        }
    })
    .await;
    let snapshot = mk_snapshot(&[address]);
    let running = start(Some(Arc::clone(&snapshot)));
    // When the third is asked for, the first two are counted.
    for _ in 0..3 {
        asks.recv().await.unwrap();
    }
    assert!(running.metrics.scrapes("useless").get() >= 2);
    assert_eq!(running.metrics.scrapes("ok").get(), 0);
}

#[tokio::test]
async fn an_error_status_never_makes_a_suspect_but_a_closed_port_does() {
    let mut servers = JoinSet::new();
    let (asked, mut asks) = mpsc::channel(8);
    let failing = serve(&mut servers, move |mut stream| {
        let asked = asked.clone();
        async move {
            if read_request(&mut stream).await {
                answer(&mut stream, "500 Oops", "").await;
                let _ = asked.send(()).await;
            }
        }
    })
    .await;
    let closed = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    let snapshot = mk_snapshot(&[failing, closed]);
    let running = start(Some(Arc::clone(&snapshot)));
    for _ in 0..5 {
        asks.recv().await.unwrap();
    }
    running
        .until(&snapshot.members()[1].endpoint, |reading| {
            reading.quality == Quality::Suspect
        })
        .await;
    let reading = snapshot.members()[0]
        .endpoint
        .load()
        .read(running.clock.now(), Freshness::default());
    assert_eq!(reading.quality, Quality::Unknown);
}

#[rstest]
#[case::an_error_status("404 Not Found", "no such page\n")]
#[case::a_useless_page("200 OK", "go_goroutines 7\n")]
#[tokio::test]
async fn failures_with_an_answer_slow_the_scraper_and_keep_the_connection(
    #[case] status: &'static str,
    #[case] page: &'static str,
) {
    let mut servers = JoinSet::new();
    let (asked, mut asks) = mpsc::channel(8);
    let (connected, mut connections) = mpsc::channel(64);
    let address = serve(&mut servers, move |mut stream| {
        let (asked, connected) = (asked.clone(), connected.clone());
        async move {
            let _ = connected.try_send(());
            while read_request(&mut stream).await {
                let _ = asked.send(tokio::time::Instant::now()).await;
                answer(&mut stream, status, page).await;
            }
        }
    })
    .await;
    let snapshot = mk_snapshot(&[address]);
    let _running = start(Some(snapshot));
    let mut last = asks.recv().await.unwrap();
    for _ in 1..SLOW_AFTER {
        last = asks.recv().await.unwrap();
    }
    let slow = asks.recv().await.unwrap();
    let waited = slow.duration_since(last);
    // The server may see one request a little later after it was sent than the other.
    assert!(waited > SLOW.mul_f64(0.5), "after {waited:?}");
    connections.recv().await.unwrap();
    assert_eq!(
        connections.try_recv().err(),
        Some(TryRecvError::Empty),
        "the connection is kept"
    );
}

#[tokio::test]
async fn an_error_whose_body_does_not_come_is_no_timeout() {
    let mut servers = JoinSet::new();
    let address = serve(&mut servers, async |mut stream| {
        read_request(&mut stream).await;
        let head = b"HTTP/1.1 503 Busy\r\ncontent-length: 9\r\n\r\n";
        let _ = stream.write_all(head).await;
        let _stream = stream;
        std::future::pending::<()>().await;
    })
    .await;
    let mut page = Page::new(address, Arc::default());
    let mut scanner = Scanner::new(Arc::clone(EngineTable::default().engine("")));
    let read = timeout(Duration::from_secs(10), page.read(&mut scanner)).await;
    assert!(matches!(read, Ok(Err(PageError::Status(503)))), "{read:?}");
}

#[rstest]
#[case::a_page("200 OK")]
#[case::an_error("500 Oops")]
#[tokio::test]
async fn a_body_without_end_costs_the_connection_but_not_more(#[case] status: &'static str) {
    let mut servers = JoinSet::new();
    let (closed, mut closes) = mpsc::channel(8);
    let address = serve(&mut servers, move |mut stream| {
        let closed = closed.clone();
        async move {
            read_request(&mut stream).await;
            let head = format!("HTTP/1.1 {status}\r\n\r\n{PAGE}");
            let _ = stream.write_all(head.as_bytes()).await;
            let filler = b"# filler, filler, filler\n".repeat(4096);
            while stream.write_all(&filler).await.is_ok() {}
            closed.send(()).await.unwrap();
        }
    })
    .await;
    let mut page = Page::new(address, Arc::default());
    let mut scanner = Scanner::new(Arc::clone(EngineTable::default().engine("")));
    for _ in 0..2 {
        let read = timeout(Duration::from_secs(10), page.read(&mut scanner)).await;
        let reason = read.expect("bounded").unwrap_err().reason();
        assert!(matches!(reason, "too-large" | "status"), "{reason}");
        closes.recv().await.unwrap();
    }
}

#[tokio::test]
async fn adapters_and_cache_reach_the_load_even_after_a_useless_page() {
    let mut servers = JoinSet::new();
    let address = serve(&mut servers, async |mut stream| {
        // The load takes nothing of a page without load.
        let (_, useless) = PAGE.split_once("vllm:lora").unwrap();
        let useless = format!("vllm:lora{useless}");
        read_request(&mut stream).await;
        answer(&mut stream, "200 OK", &useless).await;
        while read_request(&mut stream).await {
            answer(&mut stream, "200 OK", PAGE).await;
        }
    })
    .await;
    let snapshot = mk_snapshot(&[address]);
    let running = start(Some(Arc::clone(&snapshot)));
    let load = snapshot.members()[0].endpoint.load();
    running
        .until(&snapshot.members()[0].endpoint, |reading| {
            reading.scraped == FULL
        })
        .await;
    let lora = load
        .lora(Moment::START, Freshness::default())
        .expect("the page has it");
    assert_eq!((&*lora.running, lora.max), (&["a".into()][..], 4));
    let cache = load.cache().expect("the page has it");
    assert_eq!((cache.block_tokens, cache.blocks), (16, 900));
}

#[tokio::test]
async fn readiness_waits_for_the_first_round() {
    let mut servers = JoinSet::new();
    let address = serve_page(&mut servers).await;
    let running = start(None);
    running.readiness.set(Part::Discovery, true);
    assert!(!running.readiness.is_ready(), "members are not known");
    let snapshot = mk_snapshot(&[address]);
    running.snapshots.send_replace(Some(Arc::clone(&snapshot)));
    timeout(Duration::from_secs(10), async {
        while !running.readiness.is_ready() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("ready in time");
    let reading = snapshot.members()[0]
        .endpoint
        .load()
        .read(running.clock.now(), Freshness::default());
    assert_eq!(
        reading.quality,
        Quality::Fresh,
        "scraped before it was ready"
    );
}

#[tokio::test]
async fn a_hanging_server_delays_neither_readiness_nor_its_neighbours() {
    let mut servers = JoinSet::new();
    let hanging = serve(&mut servers, async |stream| {
        let _stream = stream;
        std::future::pending::<()>().await;
    })
    .await;
    let healthy = serve_page(&mut servers).await;
    let snapshot = mk_snapshot(&[hanging, healthy]);
    let running = start(Some(Arc::clone(&snapshot)));
    running.readiness.set(Part::Discovery, true);
    running
        .until(&snapshot.members()[1].endpoint, |reading| {
            reading.scraped == FULL
        })
        .await;
    timeout(Duration::from_secs(10), async {
        while !running.readiness.is_ready() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("ready without the one that hangs");
}

#[tokio::test]
async fn a_member_that_left_is_scraped_no_more() {
    let mut servers = JoinSet::new();
    let (closed, mut closes) = mpsc::channel(8);
    let address = serve(&mut servers, move |mut stream| {
        let closed = closed.clone();
        async move {
            while read_request(&mut stream).await {
                answer(&mut stream, "200 OK", PAGE).await;
            }
            let _ = closed.send(()).await;
        }
    })
    .await;
    let snapshot = mk_snapshot(&[address]);
    let running = start(Some(Arc::clone(&snapshot)));
    running
        .until(&snapshot.members()[0].endpoint, |reading| {
            reading.scraped == FULL
        })
        .await;
    running.snapshots.send_replace(Some(mk_snapshot(&[])));
    timeout(Duration::from_secs(10), closes.recv())
        .await
        .expect("its connection is closed");
}

/// Otherwise all endpoints would be scraped at the same moments from then on.
#[tokio::test(start_paused = true)]
async fn scrapes_are_spread_again_after_a_pause_of_the_thread() {
    const PHASES: [u64; 2] = [10, 40];
    let interval = Duration::from_millis(50);
    let (clock, start) = (Clock::start(), tokio::time::Instant::now());
    let mut ticks = PHASES.map(|phase| ticks_of(clock, interval, Duration::from_millis(phase)));
    for one in &mut ticks {
        one.tick().await;
    }
    tokio::time::advance(Duration::from_millis(1_017)).await;
    for one in &mut ticks {
        one.tick().await; // due long ago, as the other
    }
    let mut next = Vec::new();
    for one in &mut ticks {
        let due = one.tick().await - start;
        next.push(u64::try_from(due.as_millis()).unwrap());
    }
    assert_eq!(next, [1_060, 1_090]);
}
