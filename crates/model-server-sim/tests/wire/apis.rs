//! The paths besides chats and completions.

use axum::body::Body;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::StatusCode;
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::{Sim, text};

const ECHO: &[&str] = &["--mode", "echo"];

/// Name and document of each event.
async fn stream(sim: &Sim, path: &str, body: Value) -> Vec<(String, Value)> {
    let response = sim.send("POST", path, body.to_string()).await;
    assert_eq!(response.status(), StatusCode::OK);
    let body = text(response).await;
    body.split_terminator("\n\n")
        .map(|event| {
            let (name, data) = event.split_once("\ndata: ").expect("a named event");
            let name = name.strip_prefix("event: ").expect("a name");
            (name.to_owned(), serde_json::from_str(data).expect("JSON"))
        })
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_message_is_answered_as_anthropic_does() {
    let sim = Sim::start(ECHO);
    let body = json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi there"}]});
    let (status, answer) = sim.post("/v1/messages", body.to_string()).await;
    assert_eq!(
        (status, &answer["type"]),
        (StatusCode::OK, &json!("message"))
    );
    assert_eq!(
        answer["content"],
        json!([{"type": "text", "text": "hi there"}])
    );
    assert_eq!(answer["stop_reason"], "end_turn");
    assert_eq!(answer["usage"]["input_tokens"], 3);
    assert_eq!(answer["usage"]["output_tokens"], 2);

    let mut body = body;
    body["stream"] = json!(true);
    let events = stream(&sim, "/v1/messages", body).await;
    let names: Vec<_> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop"
        ]
    );
    assert_eq!(events[0].1["message"]["usage"]["input_tokens"], 3);
    assert_eq!(events[2].1["delta"]["text"], "hi t");
    assert_eq!(events[5].1["usage"]["output_tokens"], 2);
    assert!(events.iter().all(|(name, event)| event["type"] == *name));
}

#[tokio::test(start_paused = true)]
async fn cached_tokens_are_apart_from_the_input_of_a_message() {
    let sim = Sim::start(ECHO);
    let body = json!({"model": "m", "max_tokens": 1,
        "messages": [{"role": "user", "content": "x".repeat(156)}]});
    sim.post("/v1/messages", body.to_string()).await;
    let (_, answer) = sim.post("/v1/messages", body.to_string()).await;
    let usage = &answer["usage"];
    assert_eq!(
        (&usage["input_tokens"], &usage["cache_read_input_tokens"]),
        (&json!(8), &json!(32))
    );
}

#[tokio::test(start_paused = true)]
async fn errors_of_messages_have_their_own_shape() {
    let sim = Sim::start(&[]);
    for path in ["/v1/messages", "/v1/messages/count_tokens"] {
        let body = json!({"model": "x", "max_tokens": 1, "messages": [{"role": "user"}]});
        let (status, error) = sim.post(path, body.to_string()).await;
        assert_eq!(
            (status, &error["type"]),
            (StatusCode::NOT_FOUND, &json!("error"))
        );
        assert_eq!(error["error"]["type"], "not_found_error");
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_is_answered_whole_and_as_events() {
    let sim = Sim::start(ECHO);
    let body = json!({"model": "m", "input": "hi there"});
    let (status, answer) = sim.post("/v1/responses", body.to_string()).await;
    assert_eq!(
        (status, &answer["status"]),
        (StatusCode::OK, &json!("completed"))
    );
    assert_eq!(answer["output"][0]["content"][0]["text"], "hi there");
    assert_eq!(answer["usage"]["total_tokens"], 4);

    let body = json!({"model": "m", "input": "hi there", "stream": true, "max_output_tokens": 1});
    let events = stream(&sim, "/v1/responses", body).await;
    let names: Vec<_> = events
        .iter()
        .map(|(name, _)| name.strip_prefix("response.").expect("the prefix"))
        .collect();
    assert_eq!(
        names,
        [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "incomplete"
        ]
    );
    for (number, (_, event)) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
    }
    assert_eq!(events[4].1["delta"], "hi t");
    assert_eq!(events[8].1["response"]["usage"]["output_tokens"], 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_rendered_can_be_generated_and_shares_its_prefix() {
    let sim = Sim::start(&[]);
    let chat = json!({"model": "m", "max_tokens": 2, "messages": [{"role": "user", "content": "x".repeat(156)}]});
    let (status, rendered) = sim
        .post("/v1/chat/completions/render", chat.to_string())
        .await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(rendered["token_ids"].as_array().map(Vec::len), Some(40));
    let (status, answer) = sim
        .post("/inference/v1/generate", rendered.to_string())
        .await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(
        answer["choices"][0]["token_ids"].as_array().map(Vec::len),
        Some(2)
    );
    let (_, answer) = sim.post("/v1/chat/completions", chat.to_string()).await;
    assert_eq!(
        answer["usage"]["prompt_tokens_details"]["cached_tokens"],
        32
    );

    let completion = json!({"model": "m", "prompt": "abcd"}).to_string();
    let (_, rendered) = sim.post("/v1/completions/render", completion.clone()).await;
    let (_, tokens) = sim.post("/tokenize", completion).await;
    assert_eq!(rendered[0]["token_ids"], tokens["tokens"]);
    assert_eq!(
        (&tokens["count"], &tokens["max_model_len"]),
        (&json!(1), &json!(16384))
    );
    let (_, tokens) = sim.post("/tokenize", chat.to_string()).await;
    assert_eq!(tokens["count"], 40);
    let (_, counted) = sim
        .post("/v1/messages/count_tokens", chat.to_string())
        .await;
    assert_eq!(counted, json!({"input_tokens": 40}));
}

#[tokio::test(start_paused = true)]
async fn generated_tokens_can_be_streamed() {
    let sim = Sim::start(&[]);
    let body = json!({"token_ids": [1, 2], "sampling_params": {"max_tokens": 2}, "stream": true,
        "stream_options": {"include_usage": true}});
    let response = sim
        .send("POST", "/inference/v1/generate", body.to_string())
        .await;
    let text = text(response).await;
    let events: Vec<_> = text.split_terminator("\n\n").collect();
    assert_eq!(events.len(), 4, "{text}");
    assert!(events[2].contains("\"completion_tokens\":2"));
    assert_eq!(events[3], "data: [DONE]");
}

#[tokio::test(start_paused = true)]
async fn embeddings_wait_for_their_prefill_and_repeat() {
    let sim = Sim::start(&["--max-num-seqs", "1", "--time-to-first-token", "1s"]);
    let start = tokio::time::Instant::now();
    let body = json!({"model": "m", "input": ["one", "two"], "dimensions": 3});
    let (status, answer) = sim.post("/v1/embeddings", body.to_string()).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(start.elapsed().as_secs(), 2, "one after the other");
    assert_eq!(answer["data"][1]["index"], 1);
    assert_eq!(
        answer["data"][0]["embedding"].as_array().map(Vec::len),
        Some(3)
    );
    assert_eq!(answer["usage"]["prompt_tokens"], 2);
    assert!(sim.metric("vllm:generation_tokens_total{").await.abs() < 1e-9);

    let body = json!({"model": "m", "input": "one", "dimensions": 3, "encoding_format": "base64"});
    let (_, encoded) = sim.post("/v1/embeddings", body.to_string()).await;
    let bytes = STANDARD
        .decode(encoded["data"][0]["embedding"].as_str().expect("text"))
        .expect("base64");
    let first = f32::from_le_bytes(bytes[..4].try_into().expect("four"));
    let plain = answer["data"][0]["embedding"][0]
        .as_f64()
        .expect("a number");
    assert!((f64::from(first) - plain).abs() < 1e-6);
}

#[tokio::test(start_paused = true)]
async fn adapters_can_be_loaded_used_and_unloaded() {
    let sim = Sim::start(&[]);
    let lora = json!({"lora_name": "sql", "lora_path": "/sql"}).to_string();
    let (status, said) = sim.post("/v1/load_lora_adapter", lora.clone()).await;
    assert_eq!(
        (status, said.as_str()),
        (
            StatusCode::OK,
            Some("Success: LoRA adapter 'sql' added successfully.")
        )
    );
    assert_eq!(
        sim.post("/v1/load_lora_adapter", lora.clone()).await.0,
        StatusCode::BAD_REQUEST
    );
    let (_, models) = sim.get("/v1/models").await;
    let adapter = &models["data"][1];
    assert_eq!(
        (&adapter["id"], &adapter["root"], &adapter["parent"]),
        (&json!("sql"), &json!("/sql"), &json!("m"))
    );
    let body = json!({"model": "sql", "prompt": "p"}).to_string();
    let (status, answer) = sim.post("/v1/completions", body.clone()).await;
    assert_eq!((status, &answer["model"]), (StatusCode::OK, &json!("sql")));
    assert_eq!(
        sim.post("/v1/unload_lora_adapter", lora.clone()).await.0,
        StatusCode::OK
    );
    assert_eq!(
        sim.post("/v1/completions", body).await.0,
        StatusCode::NOT_FOUND
    );
    assert_eq!(
        sim.post("/v1/unload_lora_adapter", lora).await.0,
        StatusCode::NOT_FOUND
    );
}

#[tokio::test(start_paused = true)]
async fn the_metrics_name_adapters_that_run_and_wait() {
    let flags = ["--lora-modules", "a=/a", "b", "--time-to-first-token", "1s"];
    let sim = Sim::start(&flags);
    let mut streams = Vec::new();
    for model in ["a", "b", "m"] {
        let body = json!({"model": model, "prompt": "p", "stream": true}).to_string();
        streams.push(sim.send("POST", "/v1/completions", body).await);
    }
    let line = r#"vllm:lora_requests_info{max_lora="1",running_lora_adapters="a",waiting_lora_adapters="b"}"#;
    assert!(sim.metric(line).await > 1.7e9, "a timestamp");
}

/// With several processes Prometheus' library for Python leaves out what a process says of itself, and adds up the times of adapters.
#[tokio::test(start_paused = true)]
async fn the_page_of_several_api_servers_has_sums_and_no_start() {
    let flags = ["--lora-modules", "a=/a", "--api-server-count", "3"];
    let sim = Sim::start(&flags);
    let line = r#"vllm:lora_requests_info{max_lora="1",running_lora_adapters="",waiting_lora_adapters=""}"#;
    let mut times = Vec::new();
    for _ in 0..3 {
        times.push(sim.metric(line).await);
    }
    assert!(
        times[1] > 1.9 * times[0] && times[2] > 2.9 * times[0],
        "{times:?}"
    );
    let page = text(sim.send("GET", "/metrics", Body::empty()).await).await;
    assert!(!page.contains("process_start_time_seconds"), "{page}");
}

#[rstest]
#[case("/v1/responses")]
#[case("/v1/embeddings")]
#[case("/v1/messages")]
#[case("/v1/messages/count_tokens")]
#[case("/v1/chat/completions/render")]
#[case("/v1/completions/render")]
#[case("/tokenize")]
#[case("/inference/v1/generate")]
#[case("/v1/load_lora_adapter")]
#[case("/v1/unload_lora_adapter")]
#[tokio::test(start_paused = true)]
async fn every_path_refuses_what_is_not_json(#[case] path: &str) {
    let sim = Sim::start(&[]);
    let (status, error) = sim.post(path, "{").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_eq!(error["error"]["reason"], "invalid-json");
}
