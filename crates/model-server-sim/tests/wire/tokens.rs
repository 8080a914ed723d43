//! Token ids by key and in the body, and those of a Processor.

use std::{net::SocketAddr, time::Duration};

use axum::{body::Body, response::Response};
use http::{Request, StatusCode};
use redis_server::Server;
use rstest::rstest;
use serde_json::{Value, json};
use token_cache::{Entry, Settings as CacheSettings, Store};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    task::JoinSet,
    time::{Instant, sleep},
};
use tower::ServiceExt;
use xxhash_rust::xxh64::xxh64;

use crate::support::{Sim, json as read};

const KEY: &str = "tk_abcdefghijklmnopqrstuvwxyz";
/// More than anything here takes on a loaded machine.
const LONG: Duration = Duration::from_secs(20);
const CHAT: &str = "/v1/chat/completions";

/// Answers each connection's first request with what stands for its path, else with 404. Below `/secured` only those with a
/// token are answered so.
async fn serve(answers: &'static [(&'static str, &'static str)]) -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        loop {
            let (mut tcp, _) = listener.accept().await.expect("a connection");
            let mut request = vec![0; 64 * 1024];
            let length = tcp.read(&mut request).await.unwrap_or(0);
            let request = String::from_utf8_lossy(&request[..length]).into_owned();
            let path = request.split(' ').nth(1).unwrap_or_default();
            let is_allowed = !path.starts_with("/secured")
                || request.contains("authorization: Bearer s3cret\r\n");
            let path = path.trim_start_matches("/secured");
            let found = answers.iter().find(|(known, _)| *known == path);
            let found = found.filter(|_| is_allowed);
            let response = match found {
                Some((_, answer)) => format!("HTTP/1.1 200 OK\r\n{answer}"),
                None => "HTTP/1.1 404 Not Found\r\nconnection: close\r\n\r\n".to_owned(),
            };
            let _written = tcp.write_all(response.as_bytes()).await;
        }
    });
    (address, tasks)
}

/// An entry of the model `m`, and one of another.
async fn cache() -> (SocketAddr, JoinSet<()>) {
    serve(&[
        (
            "/v1/tokens/tk_abcdefghijklmnopqrstuvwxyz",
            "connection: close\r\ncontent-type: application/json\r\nx-tokens-model: m\r\n\
             x-tokens-tokenizer: 00ff\r\nx-tokens-count: 4\r\n\r\n[7,8,9,10]",
        ),
        (
            "/v1/tokens/tk_qqqqqqqqqqqqqqqqqqqqqqqqqq",
            "connection: close\r\ncontent-type: application/json\r\nx-tokens-model: qwen\r\n\
             x-tokens-tokenizer: 00ff\r\n\r\n[7]",
        ),
    ])
    .await
}

async fn ask(sim: &Sim, key: Option<&str>, more: Value) -> Response {
    let mut body =
        json!({"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "Hello"}]});
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    let mut request = Request::post(CHAT);
    if let Some(key) = key {
        request = request.header("x-req-tokens-key", key);
    }
    let request = request.body(Body::from(body.to_string())).expect("valid");
    let router = sim.router.clone();
    router.oneshot(request).await.expect("routers do not fail")
}

fn checksum(ids: &[u32]) -> String {
    let bytes: Vec<_> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    format!("{:016x}", xxh64(&bytes, 0))
}

fn header<'a>(response: &'a Response, name: &str) -> &'a str {
    let value = response.headers().get(name);
    value.map_or("", |value| value.to_str().expect("text"))
}

const UNKNOWN: &str = "tk_zzzzzzzzzzzzzzzzzzzzzzzzzz";
const OF_QWEN: &str = "tk_qqqqqqqqqqqqqqqqqqqqqqqqqq";
/// `user` and `Hello`, four bytes each.
const TEXT: [u32; 3] = [0x7265_7375, 0x6c6c_6548, 0x6f];

#[rstest]
#[case::key("key,body", Some(KEY), json!({"token_ids": [1, 2]}), "key", &[7, 8, 9, 10], None)]
#[case::unknown_key("key,body", Some(UNKNOWN), json!({"token_ids": [1, 2]}), "body", &[1, 2], None)]
#[case::string("key,body", None, json!({"token_ids": "[1,2]"}), "body", &[1, 2], None)]
#[case::dynamo("body", None, json!({"nvext": {"token_data": [3]}}), "body", &[3], None)]
#[case::other_model("key,body", Some(OF_QWEN), json!({}), "text", &TEXT, Some("other-model"))]
#[case::no_entry("key", Some(UNKNOWN), json!({"token_ids": [1, 2]}), "text", &TEXT, Some("unknown-key"))]
#[case::no_key("key", Some("tk_"), json!({}), "text", &TEXT, Some("bad-key"))]
#[case::no_list("key,body", None, json!({"token_ids": {"a": 1}}), "text", &TEXT, Some("bad-ids"))]
#[case::key_alone("key", None, json!({"token_ids": [1]}), "text", &TEXT, Some("no-ids"))]
#[case::none("none", Some(KEY), json!({"token_ids": [1]}), "text", &TEXT, Some("no-ids"))]
#[tokio::test]
async fn the_first_ids_that_can_be_used_are_computed_with(
    #[case] accept: &str,
    #[case] key: Option<&str>,
    #[case] body: Value,
    #[case] source: &str,
    #[case] ids: &[u32],
    #[case] reason: Option<&str>,
) {
    let (cache, _tasks) = cache().await;
    let endpoint = format!("http://{cache}");
    let flags = [
        "--accept-tokens",
        accept,
        "--token-cache-endpoint",
        &endpoint,
        "--token-fetch-timeout",
        "20s",
        "--block-size",
        "1",
    ];
    let sim = Sim::start(&flags);
    let streamed = json!({"stream": true});
    for more in [&json!({}), &streamed] {
        let mut body = body.clone();
        for (name, value) in more.as_object().expect("an object") {
            body[name] = value.clone();
        }
        let response = ask(&sim, key, body).await;
        assert_eq!(header(&response, "x-inference-token-source"), source);
        let sum = header(&response, "x-inference-token-checksum");
        assert_eq!(sum, checksum(ids));
        // to its end, so that its blocks are kept
        crate::support::text(response).await;
    }
    let (status, answer) = read(ask(&sim, key, body).await).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(answer["usage"]["prompt_tokens"], ids.len());
    let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
    assert_eq!(cached, ids.len() - 1, "all blocks are those of the ids");
    let (_, log) = sim.get("/admin/requests").await;
    let shown = ["token_source", "token_reason", "token_checksum"].map(|it| log[0][it].as_str());
    assert_eq!(shown, [Some(source), reason, Some(&checksum(ids))]);
}

#[tokio::test]
async fn a_cache_that_is_away_costs_its_time_and_no_request() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let silent = format!("http://{}", listener.local_addr().expect("an address"));
    for endpoint in [silent.as_str(), "http://127.0.0.1:1", "redis://127.0.0.1:1"] {
        let flags = [
            "--accept-tokens",
            "key,body",
            "--token-cache-endpoint",
            endpoint,
        ];
        let sim = Sim::start(&flags);
        let start = Instant::now();
        let (status, _) = read(ask(&sim, Some(KEY), json!({})).await).await;
        assert_eq!(status, StatusCode::OK);
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "{:?}",
            start.elapsed()
        );
        let (_, log) = sim.get("/admin/requests").await;
        assert_eq!(log[0]["token_reason"], "cache-failed", "{endpoint}");
    }
}

#[tokio::test]
async fn a_cache_that_wants_a_token_gets_it() {
    let (cache, _tasks) = cache().await;
    let endpoint = format!("http://{cache}/secured");
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "s3cret\n").expect("written");
    let path = file.path().display().to_string();
    let without = [
        "--accept-tokens",
        "key",
        "--token-cache-endpoint",
        &endpoint,
    ];
    let with = [&without[..], &["--token-cache-token-file", &path]].concat();
    for (flags, source) in [(&without[..], "text"), (&with[..], "key")] {
        let response = ask(&Sim::start(flags), Some(KEY), json!({})).await;
        assert_eq!(header(&response, "x-inference-token-source"), source);
    }
}

#[tokio::test]
async fn a_redis_that_is_paused_or_killed_costs_no_request() {
    let mut redis = Server::start().expect("a Redis");
    let url = redis.url();
    let endpoint = url.parse().expect("an endpoint");
    let (store, upkeep) = Store::open(endpoint, CacheSettings::default()).expect("no files");
    let mut tasks = JoinSet::new();
    tasks.spawn(upkeep.run());
    let entry = Entry {
        model: "m".into(),
        tokenizer: "00ff".into(),
        ids: [7, 8].into(),
    };
    let key = KEY.parse().expect("a key");
    let until = Instant::now() + LONG;
    while let Err(error) = store.put(key, entry.clone(), LONG).await {
        assert!(Instant::now() < until, "{error}");
        sleep(Duration::from_millis(20)).await;
    }
    let sim = Sim::start(&["--accept-tokens", "key", "--token-cache-endpoint", &url]);
    uses_key(&sim).await;
    redis.pause();
    let start = Instant::now();
    for _ in 0..20 {
        let response = ask(&sim, Some(KEY), json!({})).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(header(&response, "x-inference-token-source"), "text");
    }
    // five wait for 200 ms each
    assert!(start.elapsed() < LONG / 2, "{:?}", start.elapsed());
    redis.resume();
    uses_key(&sim).await;
    redis.kill();
    let response = ask(&sim, Some(KEY), json!({})).await;
    assert_eq!(header(&response, "x-inference-token-source"), "text");
}

/// Waits until the ids of the key are used; no request fails meanwhile.
async fn uses_key(sim: &Sim) {
    let until = Instant::now() + LONG;
    loop {
        let response = ask(sim, Some(KEY), json!({})).await;
        assert_eq!(response.status(), StatusCode::OK);
        if header(&response, "x-inference-token-source") == "key" {
            return;
        }
        assert!(Instant::now() < until, "{:?}", response.headers());
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn more_ids_than_the_model_takes_are_the_clients_fault() {
    let sim = Sim::start(&["--accept-tokens", "body", "--max-model-len", "3"]);
    let (status, _) = read(ask(&sim, None, json!({"token_ids": [1, 2, 3]})).await).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    // the text alone would be too long
    let (status, _) = read(ask(&sim, None, json!({"token_ids": [1, 2]})).await).await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn a_processor_makes_the_ids_of_text() {
    let (processor, _tasks) = serve(&[
        (
            "/v1/chat/completions/render",
            "connection: close\r\n\r\n{\"token_ids\":[1,5,6],\"more\":0}",
        ),
        (
            "/v1/completions/render",
            "connection: close\r\n\r\n[{\"token_ids\":[5,6]}]",
        ),
    ])
    .await;
    let url = format!("http://{processor}");
    let sim = Sim::start(&["--tokenize-url", &url]);
    let response = ask(&sim, None, json!({})).await;
    assert_eq!(header(&response, "x-inference-token-source"), "text");
    let sum = header(&response, "x-inference-token-checksum");
    assert_eq!(sum, checksum(&[1, 5, 6]));
    let body = r#"{"model":"m","prompt":"Hello"}"#;
    let response = sim.send("POST", "/v1/completions", body).await;
    let sum = header(&response, "x-inference-token-checksum");
    assert_eq!(sum, checksum(&[5, 6]));
}

#[tokio::test]
async fn without_its_processor_text_has_the_simulators_own_ids() {
    let (processor, _tasks) = serve(&[]).await;
    let url = format!("http://{processor}");
    let sim = Sim::start(&["--tokenize-url", &url]);
    let response = ask(&sim, None, json!({})).await;
    let sum = header(&response, "x-inference-token-checksum");
    assert_eq!(sum, checksum(&TEXT));
    let (_, log) = sim.get("/admin/requests").await;
    assert_eq!(log[0]["token_reason"], "tokenize-failed");
}
