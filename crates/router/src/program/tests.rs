//! The whole program on ports of its own, with workers from a file.

mod engine;

use std::{net::SocketAddr, path::PathBuf};

use clap::Parser;
use processor_api::{RouteRequest, TOKENS_TYPE};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use super::*;
use engine::FakeEngine;

const LIMIT: Duration = Duration::from_secs(20);
const BLOCK: u32 = 4;
const WITHOUT_DEBUG: &str = "--enable-debug=false";

struct Program {
    calls: SocketAddr,
    admin: SocketAddr,
    shutdown: Shutdown,
    tasks: JoinSet<anyhow::Result<()>>,
    file: PathBuf,
    _dir: tempfile::TempDir,
}

// === impl Program ===

impl Program {
    /// With workers of these names, all at 127.0.0.1, from port 8000 on.
    async fn start(workers: &[&str], flags: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("endpoints.yaml");
        write_workers(&file, workers);
        let path = file.to_str().unwrap();
        let mut all = vec!["router", "--block-size", "4", "--endpoints-file", path];
        if !flags.contains(&WITHOUT_DEBUG) {
            all.push("--enable-debug");
        }
        let args = Args::try_parse_from(all.iter().chain(flags)).unwrap();
        let open = async || TcpListener::bind("127.0.0.1:0").await.unwrap();
        let ports = Ports {
            calls: open().await,
            admin: open().await,
        };
        let (calls, admin) = (ports.calls.local_addr(), ports.admin.local_addr());
        let shutdown = Shutdown::manual();
        let setup = Setup::of(args).await.unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(setup.run(ports, shutdown.clone()));
        let program = Self {
            calls: calls.unwrap(),
            admin: admin.unwrap(),
            shutdown,
            tasks,
            file,
            _dir: dir,
        };
        let ready = if workers.is_empty() { 503 } else { 200 };
        program.until("/readyz", |status, _| status == ready).await;
        program
    }

    /// Waits until the admin port answers so.
    async fn until(&self, path: &str, is_it: impl Fn(u16, &str) -> bool) -> String {
        let deadline = Instant::now() + LIMIT;
        loop {
            let (status, body) = ask(self.admin, &format!("GET {path}"), "text/plain", b"").await;
            if is_it(status, &body) {
                return body;
            }
            assert!(Instant::now() < deadline, "{path}: {status} {body}");
            sleep(Duration::from_millis(20)).await;
        }
    }

    async fn route(&self, ids: std::ops::Range<u32>) -> Value {
        let request = RouteRequest {
            token_ids: ids.collect(),
            ..RouteRequest::default()
        };
        let frame = request.encode_binary();
        let (status, body) = ask(self.calls, "POST /route", TOKENS_TYPE, &frame).await;
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    async fn ended(mut self) -> anyhow::Result<()> {
        let ended = timeout(LIMIT, self.tasks.join_next()).await;
        ended.expect("it ends").unwrap().unwrap()
    }
}

fn write_workers(file: &std::path::Path, names: &[&str]) {
    let workers = (8000..).zip(names);
    let workers =
        workers.map(|(port, name)| json!({"name": name, "address": "127.0.0.1", "port": port}));
    let text = json!({"endpoints": workers.collect::<Vec<_>>()}).to_string();
    let new = file.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, file).unwrap();
}

/// The status and the body of the reply.
async fn ask(address: SocketAddr, line: &str, kind: &str, body: &[u8]) -> (u16, String) {
    let asking = async {
        let mut tcp = TcpStream::connect(address).await.unwrap();
        let length = body.len();
        let head = format!(
            "{line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n"
        );
        tcp.write_all(head.as_bytes()).await.unwrap();
        tcp.write_all(body).await.unwrap();
        let mut reply = String::new();
        tcp.read_to_string(&mut reply).await.unwrap();
        reply
    };
    let reply = timeout(LIMIT, asking).await.expect("a reply");
    let (head, body) = reply.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

#[tokio::test]
async fn a_prompt_is_routed_on_one_port_and_explained_on_the_other() {
    let program = Program::start(&["a", "b"], &["--kv-events", "off"]).await;
    let body = br#"{"token_ids":[1,2,3,4,5],"request_id":"req-1","max_endpoints":2}"#;
    let (status, reply) = ask(program.calls, "POST /route", "application/json", body).await;
    assert_eq!(status, 200, "{reply}");
    let reply: Value = serde_json::from_str(&reply).unwrap();
    assert_eq!(reply["fallbacks"].as_array().map(Vec::len), Some(1));

    let page = program
        .until("/debug/routes", |status, _| status == 200)
        .await;
    let page: Value = serde_json::from_str(&page).unwrap();
    let route = &page["routes"][0];
    assert_eq!(
        (&route["request_id"], &route["worker"]),
        (&json!("req-1"), &reply["worker_id"])
    );
    let (ids, booked) = (&route["ids"], &route["booked"]);
    assert_eq!((ids, booked), (&json!(5), &json!("yes")));
    let candidates = route["candidates"].as_array().unwrap();
    assert_eq!(candidates.len(), 2);
    for it in candidates {
        let term = |name| it["terms"][name].as_f64().unwrap();
        let sum = term("prefill") + term("decode") + term("requests");
        assert!((it["cost"].as_f64().unwrap() - sum).abs() < 1e-9, "{it}");
    }
    // 5 ids are 1.25 blocks; 2 are resident then, a quarter each
    assert!((candidates[0]["cost"].as_f64().unwrap() - 1.75).abs() < 1e-9);

    let page = program
        .until("/debug/workers", |status, _| status == 200)
        .await;
    let page: Value = serde_json::from_str(&page).unwrap();
    assert_eq!(
        (&page["bookings"], &page["workers"][1]["worker"]),
        (&json!(1), &json!("default/b-rank-0"))
    );
    assert_eq!(page["workers"][1]["state"], "off");
    let counted = |_, page: &str| page.contains("router_decisions_total{source=\"none\"} 1\n");
    program.until("/metrics", counted).await;
    program
        .until("/healthz", |_, page| page.contains("sweep: goes round"))
        .await;
}

#[tokio::test]
async fn what_an_engine_publishes_is_known_and_is_not_that_of_the_next_pod_there() {
    let engine = FakeEngine::start().await;
    let port = engine.port().to_string();
    let program = Program::start(&["first"], &["--kv-event-port", &port]).await;
    engine.subscribed().await;
    engine.publish_stored(0..40, BLOCK);
    let is_known = |_, page: &str| page.contains("\"blocks\":10,");
    let page = program.until("/debug/workers", is_known).await;
    assert!(
        page.contains("\"state\":\"live\"") || page.contains("\"state\":\"partial\""),
        "{page}"
    );
    let reply = program.route(0..40).await;
    assert_eq!(
        (
            &reply["source"],
            &reply["overlap_blocks"],
            &reply["block_size"]
        ),
        (&json!("exact"), &json!(10), &json!(4))
    );

    write_workers(&program.file, &["second"]);
    program
        .until("/debug/workers", |_, page| {
            page.contains("default/second-rank-0")
        })
        .await;
    let reply = program.route(0..40).await;
    assert_eq!(reply["worker_id"], "default/second-rank-0");
    assert_eq!(
        (&reply["source"], &reply["overlap_blocks"]),
        (&json!("none"), &json!(0))
    );
}

#[tokio::test]
async fn blocks_of_another_size_are_loud() {
    let engine = FakeEngine::start().await;
    let port = engine.port().to_string();
    let program = Program::start(&["a"], &["--kv-event-port", &port]).await;
    engine.subscribed().await;
    engine.publish_stored(0..64, 16);
    let page = program
        .until("/debug/workers", |_, page| {
            page.contains("\"state\":\"block-size-mismatch\"")
        })
        .await;
    assert!(page.contains("another size than 4 ids"), "{page}");
    let counted =
        |_, page: &str| page.contains("router_workers{state=\"block-size-mismatch\"} 1\n");
    program.until("/metrics", counted).await;
    assert_eq!(program.route(0..64).await["overlap_blocks"], 0);
}

#[tokio::test]
async fn without_workers_it_is_not_ready_and_says_so() {
    let program = Program::start(&[], &["--kv-events", "off", WITHOUT_DEBUG]).await;
    for path in ["/debug/routes", "/debug/workers"] {
        program.until(path, |status, _| status == 404).await;
    }
    let (status, reply) = ask(program.calls, "POST /route", "", br#"{"token_ids":[1]}"#).await;
    assert_eq!(status, 503);
    assert!(reply.contains("\"type\":\"no-workers\""), "{reply}");
    write_workers(&program.file, &["a"]);
    program.until("/readyz", |status, _| status == 200).await;
    assert_eq!(
        program.route(0..4).await["worker_address"],
        "127.0.0.1:8000"
    );
}

#[tokio::test]
async fn a_drain_is_not_ready_at_once_serves_on_and_ends() {
    let program = Program::start(&["a"], &["--kv-events", "off", "--drain-timeout", "4s"]).await;
    program.shutdown.drain.cancel();
    program.until("/readyz", |status, _| status == 503).await;
    program.route(0..4).await;
    program.ended().await.unwrap();
}

#[tokio::test]
async fn a_leader_needs_kubernetes_and_bad_values_end_it_before_a_port() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("e.yaml");
    write_workers(&file, &["a"]);
    let path = file.to_str().unwrap();
    for (flags, said) in [
        (&["--ha-enable-leader-election"][..], "a pool or a selector"),
        (&["--block-size", "0"], "--block-size 0"),
        (
            &["--client-ca-file", "/none"],
            "--client-ca-file /none without --cert-path",
        ),
    ] {
        let all = ["router", "--endpoints-file", path];
        let args = Args::try_parse_from(all.iter().chain(flags)).unwrap();
        let error = run(args, Shutdown::manual()).await.unwrap_err();
        assert!(error.downcast_ref::<ConfigError>().is_some());
        assert!(error.to_string().contains(said), "{error}");
    }
}
