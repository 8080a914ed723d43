//! The whole program with a Processor, as its flags say: what goes over the wires, and how it ends.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{Method, Uri},
};
use bytes::Bytes;
use clap::Parser;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request;
use parking_lot::Mutex;
use process::Shutdown;
use tokio::{
    net::TcpListener,
    task::JoinSet,
    time::{Instant, sleep},
};
use tonic::transport::{Channel, Endpoint};

use crate::{
    LIMIT,
    peer::{BODY, Epp, destination, mk_body, mk_headers, streamed},
};

const WORKER: &str = "10.0.0.2:8000";

/// Calls, as `METHOD path`, with the body of each.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<Vec<(String, Bytes)>>>);

impl Calls {
    /// Those that came, once there are so many.
    async fn until(&self, count: usize) -> Vec<(String, Bytes)> {
        let deadline = Instant::now() + LIMIT;
        while self.0.lock().len() < count {
            assert!(Instant::now() < deadline, "{:?}", self.0.lock());
            sleep(Duration::from_millis(5)).await;
        }
        self.0.lock().clone()
    }
}

/// Routes to [`WORKER`], with two ids.
async fn answer(State(calls): State<Calls>, method: Method, uri: Uri, body: Bytes) -> String {
    calls
        .0
        .lock()
        .push((format!("{method} {}", uri.path()), body));
    format!(
        r#"{{"worker_address":"{WORKER}","token_value":"[1,2]","token_count":2,"overlap_tokens":1,"later":{{}}}}"#
    )
}

async fn serve_processor(tasks: &mut JoinSet<()>) -> (SocketAddr, Calls) {
    let calls = Calls::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new().fallback(answer).with_state(calls.clone());
    tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });
    (address, calls)
}

async fn free_ports<const N: usize>() -> [u16; N] {
    let mut taken = Vec::new();
    for _ in 0..N {
        taken.push(TcpListener::bind("127.0.0.1:0").await.unwrap());
    }
    let ports = taken.iter().map(|one| one.local_addr().unwrap().port());
    ports.collect::<Vec<_>>().try_into().unwrap()
}

async fn connect(port: u16) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}")).unwrap();
    let deadline = Instant::now() + LIMIT;
    loop {
        match endpoint.connect().await {
            Ok(channel) => return channel,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn the_program_asks_the_processor_of_its_flags_and_ends_bookings_with_itself() {
    let mut tasks = JoinSet::new();
    let (processor, calls) = serve_processor(&mut tasks).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("endpoints.yaml");
    let endpoints = "endpoints:\n- {name: a, address: 10.0.0.1, port: 8000}\n- {name: b, address: 10.0.0.2, port: 8000}\n";
    std::fs::write(&file, endpoints).unwrap();
    let [grpc, health, metrics] = free_ports().await;
    let flags = [
        format!("--endpoints-file={}", file.display()),
        format!("--grpc-port={grpc}"),
        format!("--grpc-health-port={health}"),
        format!("--metrics-port={metrics}"),
        format!("--external-llm-processor-endpoint=http://{processor}/process"),
        "--secure-serving=false".to_owned(),
        "--drain-timeout=1s".to_owned(),
        "--use-external-llm-processor".to_owned(),
        "--use-external-llm-router=yes".to_owned(),
    ];
    let args = epp::Args::try_parse_from(["epp".to_owned()].into_iter().chain(flags)).unwrap();
    let shutdown = Shutdown::manual();
    let stop = shutdown.drain.clone();
    let mut program = JoinSet::new();
    program.spawn(epp::run(args, shutdown));

    let channel = connect(grpc).await;
    let mut peer = Epp::open_over(channel, None).await;
    peer.post("/v1/chat/completions").await;
    peer.body(BODY, true).await;
    assert_eq!(destination(&peer.next().await.unwrap()), WORKER);
    let (mut passed, mut is_end) = (String::new(), false);
    while !is_end {
        let (part, end) = streamed(&peer.next().await.unwrap());
        passed.push_str(&part);
        is_end = end;
    }
    assert_eq!(passed, BODY.replace("]}", "],\"token_ids\":[1,2]}"));
    peer.send(Request::ResponseHeaders(mk_headers(
        &[(":status", "200")],
        false,
    )))
    .await;
    peer.next().await.unwrap();
    peer.send(Request::ResponseBody(mk_body("data: {}\n\n", false)))
        .await;
    peer.next().await.unwrap();

    stop.cancel();
    let ended = program.join_next().await.unwrap().unwrap();
    ended.expect("in order");
    let all = calls.until(3).await;
    let question: serde_json::Value = serde_json::from_slice(&all[0].1).unwrap();
    let id = question["reservation_id"].as_str().unwrap();
    let lines: Vec<_> = all.iter().map(|(line, _)| line.as_str()).collect();
    assert_eq!(
        lines,
        [
            "POST /process",
            &format!("POST /route/{id}/prefill_complete"),
            &format!("DELETE /route/{id}"),
        ]
    );
    assert_eq!(all[1].1, format!("{{\"worker_address\":\"{WORKER}\"}}"));
}
