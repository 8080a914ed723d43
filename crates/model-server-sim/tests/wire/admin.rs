//! Knobs and the request log.

use std::time::Duration;

use axum::body::Body;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use rstest::rstest;
use serde_json::json;
use tokio::{task::JoinSet, time::Instant};
use tower::ServiceExt;

use crate::support::Sim;

const CHAT: &str = "/v1/chat/completions";
const CONFIG: &str = "/admin/config";
const BODY: &str = r#"{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"hi"}]}"#;

#[tokio::test(start_paused = true)]
async fn latency_changes_while_it_runs() {
    let sim = Sim::start(&["--time-to-first-token", "20ms"]);
    let (status, config) = sim.get(CONFIG).await;
    assert_eq!(
        (status, &config["latency"]["time_to_first_token"]),
        (StatusCode::OK, &json!("20ms"))
    );
    let patch = json!({"latency": {"time_to_first_token": "3s"}}).to_string();
    let (status, config) = sim.post(CONFIG, patch).await;
    assert_eq!(
        (status, &config["latency"]["time_to_first_token"]),
        (StatusCode::OK, &json!("3s"))
    );
    let start = Instant::now();
    sim.post(CHAT, BODY).await;
    assert_eq!(start.elapsed().as_secs(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_bad_change_is_refused_and_changes_nothing() {
    let sim = Sim::start(&[]);
    for bad in [
        "",
        "[]",
        r#"{"redy":false}"#,
        r#"{"ready":false,"metrics":{"kv":2}}"#,
    ] {
        let (status, error) = sim.post(CONFIG, bad).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{bad}");
        assert_eq!(error["error"]["reason"], "invalid-config", "{bad}");
    }
    assert_eq!(sim.get(CONFIG).await.1["ready"], true);
}

#[tokio::test(start_paused = true)]
async fn fake_metrics_and_readiness_are_shown_and_taken_back() {
    let sim = Sim::start(&[]);
    sim.post(
        CONFIG,
        r#"{"ready":false,"metrics":{"waiting":9,"running":8,"kv":0.7}}"#,
    )
    .await;
    assert!((sim.metric("vllm:num_requests_waiting{").await - 9.0).abs() < 1e-9);
    assert!((sim.metric("vllm:num_requests_running{").await - 8.0).abs() < 1e-9);
    assert!((sim.metric("vllm:kv_cache_usage_perc{").await - 0.7).abs() < 1e-9);
    let (status, readiness) = sim.get("/health/ready").await;
    assert_eq!(
        (status, &readiness["switched_off"]),
        (StatusCode::SERVICE_UNAVAILABLE, &json!(true))
    );
    assert_eq!(
        sim.post(CHAT, BODY).await.0,
        StatusCode::OK,
        "requests are served all the same"
    );
    sim.post(CONFIG, r#"{"ready":null,"metrics":null}"#).await;
    assert!(sim.metric("vllm:num_requests_waiting{").await.abs() < 1e-9);
    assert_eq!(sim.get("/health/ready").await.0, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn a_share_of_the_requests_fails() {
    let sim = Sim::start(&["--seed", "3"]);
    sim.post(CONFIG, r#"{"fail":{"status":500,"rate":0.5}}"#)
        .await;
    let mut failed = 0;
    for _ in 0..100 {
        match sim.post(CHAT, BODY).await.0 {
            StatusCode::OK => {}
            status => {
                assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
                failed += 1;
            }
        }
    }
    assert!((30..=70).contains(&failed), "{failed} of 100");
    sim.post(CONFIG, r#"{"fail":null,"reject":true}"#).await;
    assert_eq!(sim.post(CHAT, BODY).await.0, StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test(start_paused = true)]
async fn a_hung_request_goes_on_when_the_knob_is_off_again() {
    let sim = Sim::start(&[]);
    sim.post(CONFIG, r#"{"hang":true}"#).await;
    let mut hung = JoinSet::new();
    let request = Request::post(CHAT).body(Body::from(BODY)).expect("valid");
    hung.spawn(sim.router.clone().oneshot(request));
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(hung.try_join_next().is_none(), "it hangs");
    sim.post(CONFIG, r#"{"hang":false}"#).await;
    let response = hung
        .join_next()
        .await
        .expect("one")
        .expect("no panic")
        .expect("no error");
    assert_eq!(response.status(), StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn requests_are_remembered_even_when_refused() {
    let sim = Sim::start(&[]);
    sim.post(CHAT, BODY).await;
    sim.post("/v1/completions", "{").await;
    let (_, requests) = sim.get("/admin/requests").await;
    let paths: Vec<_> = requests
        .as_array()
        .expect("a list")
        .iter()
        .map(|entry| &entry["path"])
        .collect();
    assert_eq!(paths, [CHAT, "/v1/completions"]);
    assert_eq!(requests[0]["body_bytes"], BODY.len());
    assert_eq!(requests[0]["body_hash"].as_str().map(str::len), Some(16));
}

#[rstest]
#[case("/admin/requests", &[0, 1, 2])]
#[case("/admin/requests?x-id=b", &[1, 2])]
#[case("/admin/requests?x-id=", &[])]
#[case("/admin/requests?x-other=b", &[])]
#[tokio::test(start_paused = true)]
async fn remembered_requests_can_be_found_by_a_header(#[case] path: &str, #[case] numbers: &[u64]) {
    let sim = Sim::start(&[]);
    for id in ["a", "b", "b"] {
        let request = Request::post(CHAT).header("x-id", id);
        let request = request.body(Body::from(BODY)).expect("valid");
        let answer = sim.router.clone().oneshot(request).await;
        assert_eq!(answer.expect("no error").status(), StatusCode::OK);
    }
    let (_, requests) = sim.get(path).await;
    let entries = requests.as_array().expect("a list").iter();
    let found = entries.map(|entry| entry["number"].as_u64().expect("a number"));
    assert_eq!(found.collect::<Vec<_>>(), numbers);
}

#[tokio::test(start_paused = true)]
async fn fake_metrics_can_be_on_their_way() {
    let sim = Sim::start(&[]);
    let ramp = r#"{"metrics":{"waiting":"ramp:0:10:5s","kv":"ramp:1:0:4s"}}"#;
    let (_, config) = sim.post(CONFIG, ramp).await;
    assert_eq!(config["metrics"]["waiting"], "ramp:0:10:5s");
    tokio::time::advance(Duration::from_secs(2)).await;
    assert!((sim.metric("vllm:num_requests_waiting{").await - 4.0).abs() < 1e-9);
    assert!((sim.metric("vllm:kv_cache_usage_perc{").await - 0.5).abs() < 1e-9);
    tokio::time::advance(Duration::from_secs(20)).await;
    assert!((sim.metric("vllm:num_requests_waiting{").await - 10.0).abs() < 1e-9);
}

#[tokio::test(start_paused = true)]
async fn the_metrics_page_can_be_frozen_slow_or_failing() {
    let sim = Sim::start(&[]);
    sim.post(CONFIG, r#"{"metrics":{"frozen":true}}"#).await;
    sim.post(CHAT, BODY).await;
    assert!(sim.metric("vllm:prompt_tokens_total{").await.abs() < 1e-9);
    sim.post(CONFIG, r#"{"metrics":{"frozen":null,"delay":"3s"}}"#)
        .await;
    let start = Instant::now();
    assert!(sim.metric("vllm:prompt_tokens_total{").await > 0.0);
    assert_eq!(start.elapsed().as_secs(), 3);
    sim.post(CONFIG, r#"{"metrics":{"delay":null,"status":500}}"#)
        .await;
    assert_eq!(
        sim.get("/metrics").await.0,
        StatusCode::INTERNAL_SERVER_ERROR
    );
    sim.post(CONFIG, r#"{"metrics":null}"#).await;
    assert_eq!(sim.get("/metrics").await.0, StatusCode::OK);
}

/// A sleep of no time would take a timer's tick, in each of the 20 scrapes a second of each endpoint picker.
#[tokio::test(start_paused = true)]
async fn the_metrics_page_waits_for_no_timer_without_a_delay() {
    let sim = Sim::start(&[]);
    let start = Instant::now();
    assert_eq!(sim.get("/metrics").await.0, StatusCode::OK);
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[rstest]
#[case(0, 0)]
#[case(2, 3)]
#[case(9, 5)]
#[tokio::test(start_paused = true)]
async fn a_stream_can_be_cut(#[case] after_tokens: u32, #[case] events: usize) {
    let sim = Sim::start(&["--inter-token-latency", "1ms"]);
    let cut = json!({"cut": {"after_tokens": after_tokens}}).to_string();
    sim.post(CONFIG, cut).await;
    let body = r#"{"model":"m","stream":true,"max_tokens":4,"messages":[{"role":"user"}]}"#;
    let response = sim.send("POST", CHAT, body).await;
    assert_eq!(response.status(), StatusCode::OK);
    let mut body = response.into_body();
    let mut seen = 0;
    let error = loop {
        match body.frame().await.expect("not the end") {
            Ok(_) => seen += 1,
            Err(error) => break error,
        }
    };
    // the role comes before the first token
    assert_eq!(seen, events, "{error}");
}
