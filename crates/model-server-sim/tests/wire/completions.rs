//! Answers, whole and as streams, and what they do to the engine.

use std::time::Duration;

use axum::body::Body;
use http::StatusCode;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::{Sim, json, next_event};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn chat(extra: Value) -> String {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hello world!"}]});
    if let (Value::Object(body), Value::Object(extra)) = (&mut body, extra) {
        body.extend(extra);
    }
    body.to_string()
}

#[tokio::test(start_paused = true)]
async fn a_chat_is_answered_with_usage_and_the_name_of_the_pod() {
    let sim = Sim::start(&[]);
    let response = sim.send("POST", CHAT, chat(json!({"max_tokens": 3}))).await;
    let header = |name: &str| response.headers()[name].to_str().expect("text").to_owned();
    let identity = ["pod", "namespace", "port"].map(|name| header(&format!("x-inference-{name}")));
    assert_eq!(identity, ["pod-1", "ns", "8000"]);
    let (status, answer) = json(response).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(answer["object"], "chat.completion");
    assert!(
        answer["id"]
            .as_str()
            .is_some_and(|id| id.starts_with("chatcmpl-"))
    );
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["role"], "assistant");
    assert_eq!(
        choice["message"]["content"].as_str().map(str::len),
        Some(12)
    );
    assert_eq!(
        (&choice["finish_reason"], &choice["index"]),
        (&json!("length"), &json!(0))
    );
    let usage = json!({"prompt_tokens": 4, "completion_tokens": 3, "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 0}});
    assert_eq!(answer["usage"], usage);
}

#[tokio::test(start_paused = true)]
async fn a_completion_is_echoed() {
    let sim = Sim::start(&["--mode", "echo"]);
    let (status, answer) = sim
        .post(COMPLETIONS, r#"{"model":"m","prompt":"hello world!"}"#)
        .await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(answer["object"], "text_completion");
    let choice = json!({"index":0,"text":"hello world!","logprobs":null,"finish_reason":"stop"});
    assert_eq!(answer["choices"], json!([choice]));
}

#[tokio::test(start_paused = true)]
async fn the_same_request_gets_the_same_text_and_another_seed_another() {
    let content = async |seed: &str, body: String| {
        let sim = Sim::start(&["--seed", seed]);
        let (_, answer) = sim.post(CHAT, body).await;
        answer["choices"][0]["message"]["content"].clone()
    };
    let first = content("1", chat(json!({}))).await;
    assert_eq!(first, content("1", chat(json!({}))).await);
    assert_ne!(first, content("2", chat(json!({}))).await);
}

#[tokio::test(start_paused = true)]
async fn tokens_of_a_stream_arrive_one_by_one() {
    let flags = [
        "--time-to-first-token",
        "100ms",
        "--inter-token-latency",
        "10ms",
    ];
    let sim = Sim::start(&flags);
    let start = Instant::now();
    let options =
        json!({"stream": true, "max_tokens": 3, "stream_options": {"include_usage": true}});
    let response = sim.send("POST", CHAT, chat(options)).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(
        response.headers()["content-type"],
        "text/event-stream; charset=utf-8"
    );
    assert_eq!(
        start.elapsed(),
        Duration::ZERO,
        "headers come before the first token"
    );

    let mut body = response.into_body();
    let mut events = Vec::new();
    while let Some(event) = next_event(&mut body).await {
        events.push((start.elapsed().as_millis(), event));
    }
    let times: Vec<_> = events.iter().map(|(time, _)| *time).collect();
    assert_eq!(times, [100, 100, 110, 120, 120, 120]);
    let (done, chunks) = events.split_last().expect("events");
    assert_eq!(done.1, "[DONE]");
    let chunks: Vec<Value> = chunks
        .iter()
        .map(|(_, event)| serde_json::from_str(event).expect("JSON"))
        .collect();
    assert!(
        chunks
            .iter()
            .all(|chunk| chunk["object"] == "chat.completion.chunk")
    );
    assert!(chunks.iter().all(|chunk| chunk["id"] == chunks[0]["id"]));
    assert_eq!(
        chunks[0]["choices"][0]["delta"],
        json!({"role": "assistant", "content": ""})
    );
    let reasons: Vec<_> = chunks[1..4]
        .iter()
        .map(|chunk| &chunk["choices"][0]["finish_reason"])
        .collect();
    assert_eq!(reasons, [&Value::Null, &Value::Null, &json!("length")]);
    assert_eq!(
        chunks[3]["choices"][0]["delta"]["content"]
            .as_str()
            .map(str::len),
        Some(4)
    );
    assert_eq!(chunks[4]["choices"], json!([]));
    assert_eq!(chunks[4]["usage"]["total_tokens"], 7);
}

#[tokio::test(start_paused = true)]
async fn a_stream_holds_the_same_text_as_the_whole_answer() {
    let sim = Sim::start(&["--mode", "echo"]);
    let prompt = "Grüße aus Köln, \u{1F980}!";
    let body = |stream| json!({"model": "m", "prompt": prompt, "stream": stream}).to_string();
    let mut stream = sim.send("POST", COMPLETIONS, body(true)).await.into_body();
    let mut joined = String::new();
    while let Some(event) = next_event(&mut stream).await {
        if let Ok(chunk) = serde_json::from_str::<Value>(&event) {
            joined.push_str(chunk["choices"][0]["text"].as_str().expect("text"));
        }
    }
    let (_, whole) = sim.post(COMPLETIONS, body(false)).await;
    assert_eq!(joined, prompt);
    assert_eq!(whole["choices"][0]["text"], prompt);
}

#[tokio::test(start_paused = true)]
async fn requests_beyond_the_queue_get_429() {
    let sim = Sim::start(&[
        "--max-num-seqs",
        "1",
        "--max-waiting-queue-length",
        "1",
        "--time-to-first-token",
        "1s",
    ]);
    let stream = chat(json!({"stream": true}));
    let running = sim.send("POST", CHAT, stream.clone()).await;
    let waiting = sim.send("POST", CHAT, stream.clone()).await;
    assert_eq!(
        (running.status(), waiting.status()),
        (StatusCode::OK, StatusCode::OK)
    );
    assert!((sim.metric("vllm:num_requests_running{").await - 1.0).abs() < 1e-9);
    assert!((sim.metric("vllm:num_requests_waiting{").await - 1.0).abs() < 1e-9);
    let refused = sim.send("POST", CHAT, stream).await;
    assert_eq!(refused.headers()["retry-after"], "1");
    let (status, error) = json(refused).await;
    assert_eq!(
        (status, &error["error"]["reason"]),
        (StatusCode::TOO_MANY_REQUESTS, &json!("queue-full"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_frees_its_place() {
    let sim = Sim::start(&["--max-num-seqs", "1", "--inter-token-latency", "1s"]);
    let mut body = sim
        .send(
            "POST",
            CHAT,
            chat(json!({"stream": true, "max_tokens": 50})),
        )
        .await
        .into_body();
    next_event(&mut body).await.expect("the first event");
    let second = sim
        .send("POST", CHAT, chat(json!({"stream": true, "max_tokens": 1})))
        .await;
    drop(body);
    let start = Instant::now();
    let mut body = second.into_body();
    while next_event(&mut body).await.is_some() {}
    assert_eq!(
        start.elapsed(),
        Duration::ZERO,
        "it did not wait for the rest of the first"
    );
    let aborted =
        r#"vllm:request_success_total{model_name="m",engine="0",finished_reason="abort"}"#;
    assert!((sim.metric(aborted).await - 1.0).abs() < 1e-9);
    assert!(sim.metric("vllm:num_requests_running{").await.abs() < 1e-9);
}

#[tokio::test(start_paused = true)]
async fn the_metrics_page_counts_tokens() {
    let sim = Sim::start(&["--time-to-first-token", "20ms"]);
    let response = sim.send("GET", "/metrics", Body::empty()).await;
    assert_eq!(
        response.headers()["content-type"],
        "text/plain; version=0.0.4; charset=utf-8"
    );
    sim.post(CHAT, chat(json!({"max_tokens": 3}))).await;
    for (start, value) in [
        ("vllm:prompt_tokens_total{", 4.0),
        ("vllm:generation_tokens_total{", 3.0),
        ("vllm:time_to_first_token_seconds_sum{", 0.02),
        ("vllm:inter_token_latency_seconds_count{", 2.0),
        ("vllm:e2e_request_latency_seconds_count{", 1.0),
    ] {
        assert!((sim.metric(start).await - value).abs() < 1e-9, "{start}");
    }
}

#[tokio::test(start_paused = true)]
async fn models_are_listed_under_their_served_names() {
    let sim = Sim::start(&["--served-model-name", "a,b", "--max-model-len", "100"]);
    let (status, models) = sim.get("/v1/models").await;
    assert_eq!(
        (status, &models["object"]),
        (StatusCode::OK, &json!("list"))
    );
    let data = models["data"].as_array().expect("a list");
    let names: Vec<_> = data.iter().map(|model| &model["id"]).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(
        (&data[0]["max_model_len"], &data[0]["root"]),
        (&json!(100), &json!("m"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_repeated_prompt_is_cached_and_answers_sooner() {
    let sim = Sim::start(&["--prefill-time-per-token", "10ms"]);
    let prompt = "x".repeat(400);
    let send = async |salt: &str| {
        let start = Instant::now();
        let body = json!({"model": "m", "prompt": prompt, "max_tokens": 1, "cache_salt": salt});
        let (_, answer) = sim.post(COMPLETIONS, body.to_string()).await;
        let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
        (cached.as_u64(), start.elapsed().as_millis())
    };
    assert_eq!(send("").await, (Some(0), 1_000));
    assert_eq!(send("").await, (Some(96), 40));
    assert_eq!(send("pepper").await, (Some(0), 1_000));
    assert!((sim.metric("vllm:prefix_cache_queries_total{").await - 300.0).abs() < 1e-9);
    assert!((sim.metric("vllm:prefix_cache_hits_total{").await - 96.0).abs() < 1e-9);
    let (_, requests) = sim.get("/admin/requests").await;
    assert_eq!(
        (&requests[1]["cached_tokens"], &requests[2]["cached_tokens"]),
        (&json!(96), &json!(0))
    );
}
