//! Triton's generate extension in place of OpenAI's paths.

use http::StatusCode;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::{Sim, next_event, text};

const VLLM: &[&str] = &["--engine", "triton", "--mode", "echo"];
const TRT_LLM: &[&str] = &["--engine", "triton-tensorrt-llm", "--mode", "echo"];
const GENERATE: &str = "/v2/models/m/generate";
const STREAM: &str = "/v2/models/m/generate_stream";

/// A request for what the input is, as the simulator echoes it.
fn with(fields: Value) -> String {
    let mut body = json!({"text_input": "hi there"});
    for (name, value) in fields.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body.to_string()
}

async fn stream(sim: &Sim, body: String) -> Vec<Value> {
    let response = sim.send("POST", STREAM, body).await;
    assert_eq!(response.status(), StatusCode::OK);
    let content_type = &response.headers()["content-type"];
    assert_eq!(content_type, "text/event-stream; charset=utf-8");
    let mut body = response.into_body();
    let mut events = Vec::new();
    while let Some(event) = next_event(&mut body).await {
        events.push(serde_json::from_str(&event).expect("JSON"));
    }
    events
}

fn texts(events: &[Value]) -> Vec<&str> {
    let texts = events.iter().map(|event| event["text_output"].as_str());
    texts.map(|text| text.expect("a text")).collect()
}

#[tokio::test(start_paused = true)]
async fn vllm_gives_what_it_is_asked_for() {
    let sim = Sim::start(VLLM);
    let sampling = r#"{"max_tokens":1,"temperature":0.5}"#;
    let fields = json!({"exclude_input_in_output": true, "sampling_parameters": sampling,
        "return_finish_reason": true, "return_num_input_tokens": true, "return_num_output_tokens": true});
    let (status, answer) = sim.post(GENERATE, with(fields)).await;
    let wanted = json!({"model_name": "m", "model_version": "1", "text_output": "hi t",
        "finish_reason": "length", "num_input_tokens": 2, "num_output_tokens": 1});
    assert_eq!((status, answer), (StatusCode::OK, wanted));

    // Without asking: the input too, and nothing else.
    let (_, answer) = sim.post(GENERATE, with(json!({}))).await;
    let wanted =
        json!({"model_name": "m", "model_version": "1", "text_output": "hi therehi there"});
    assert_eq!(answer, wanted);
}

#[tokio::test(start_paused = true)]
async fn vllm_streams_what_is_new() {
    let sim = Sim::start(VLLM);
    let fields = json!({"parameters": {"stream": true, "return_finish_reason": true, "return_num_output_tokens": true}});
    let events = stream(&sim, with(fields)).await;
    assert_eq!(texts(&events), ["hi t", "here"]);
    let reasons: Vec<_> = events.iter().map(|event| &event["finish_reason"]).collect();
    assert_eq!(reasons, ["None", "stop"]);
    assert!(events.iter().all(|event| event["num_output_tokens"] == 1));

    let events = stream(&sim, with(json!({"stream": false}))).await;
    assert_eq!(
        texts(&events),
        ["hi therehi there"],
        "one event if no stream is asked for"
    );
}

#[tokio::test(start_paused = true)]
async fn tensorrt_llm_has_its_own_outputs() {
    let sim = Sim::start(TRT_LLM);
    let (status, answer) = sim.post(GENERATE, with(json!({"max_tokens": 2}))).await;
    assert_eq!(
        (status, &answer["text_output"]),
        (StatusCode::OK, &json!("hi therehi there"))
    );
    assert_eq!(answer["output_log_probs"], json!([0.0, 0.0]));
    assert_eq!(answer.get("finish_reason"), None);
    let events = stream(&sim, with(json!({"max_tokens": 1, "stream": true}))).await;
    assert_eq!(texts(&events), ["hi t"]);
}

#[tokio::test(start_paused = true)]
async fn streams_may_be_cumulative() {
    let sim = Sim::start(&[TRT_LLM, &["--triton-stream-output", "cumulative"]].concat());
    let fields = json!({"max_tokens": 9, "stream": true, "exclude_input_in_output": false});
    let events = stream(&sim, with(fields)).await;
    assert_eq!(texts(&events), ["hi therehi t", "hi therehi there"]);
}

#[rstest]
#[case(VLLM, GENERATE, "{", 400, "not a valid request")]
#[case(VLLM, GENERATE, "{}", 400, "text_input is missing")]
#[case(
    VLLM,
    GENERATE,
    r#"{"text_input":"a","stream":true}"#,
    400,
    "exactly 1 response"
)]
#[case(
    VLLM,
    STREAM,
    r#"{"text_input":"a","stream":true,"exclude_input_in_output":false}"#,
    400,
    "exclude_input_in_output"
)]
#[case(
    VLLM,
    GENERATE,
    r#"{"text_input":"a","sampling_parameters":"x"}"#,
    400,
    "sampling_parameters"
)]
#[case(
    VLLM,
    GENERATE,
    r#"{"text_input":"a","sampling_parameters":"{\"lora_name\":\"x\"}"}"#,
    400,
    "lora_name"
)]
#[case(
    TRT_LLM,
    GENERATE,
    r#"{"text_input":"a"}"#,
    400,
    "max_tokens is missing"
)]
#[case(
    VLLM,
    "/v2/models/x/generate",
    r#"{"text_input":"a"}"#,
    404,
    "unknown model: 'x'"
)]
#[case(
    VLLM,
    "/v2/models/sql/generate",
    r#"{"text_input":"a"}"#,
    404,
    "unknown model: 'sql'"
)]
#[case(
    VLLM,
    "/v2/models/m/versions/2/generate",
    r#"{"text_input":"a"}"#,
    404,
    "unknown model"
)]
#[case(VLLM, "/v1/chat/completions", r#"{"model":"m"}"#, 404, "nothing at")]
#[tokio::test(start_paused = true)]
async fn errors_are_a_text(
    #[case] flags: &[&str],
    #[case] path: &str,
    #[case] body: &'static str,
    #[case] status: u16,
    #[case] part: &str,
) {
    let sim = Sim::start(&[flags, &["--lora-modules", "sql"]].concat());
    let (got, error) = sim.post(path, body).await;
    let text = error["error"].as_str().unwrap_or_default();
    assert!(
        got.as_u16() == status && text.contains(part),
        "{got} {error}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_is_503() {
    let sim = Sim::start(
        &[
            VLLM,
            &[
                "--max-waiting-queue-length",
                "0",
                "--max-num-seqs",
                "1",
                "--time-to-first-token",
                "1s",
            ],
        ]
        .concat(),
    );
    let body = with(json!({"stream": true}));
    let first = sim.send("POST", STREAM, body.clone()).await;
    let (status, error) = sim.post(STREAM, body).await;
    let wanted = json!({"error": "Exceeds maximum queue size"});
    assert_eq!((status, error), (StatusCode::SERVICE_UNAVAILABLE, wanted));
    assert!(!text(first).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_adapter_is_named_in_the_sampling_parameters() {
    let flags = ["--lora-modules", "sql", "--lora-swap-time", "5s"];
    let sim = Sim::start(&[VLLM, &flags].concat());
    let body = with(json!({"sampling_parameters": r#"{"lora_name":"sql"}"#}));
    let start = Instant::now();
    let (status, answer) = sim.post("/v2/models/m/versions/1/generate", body).await;
    assert_eq!(
        (status, &answer["model_name"]),
        (StatusCode::OK, &json!("m"))
    );
    assert!(
        start.elapsed().as_secs() >= 5,
        "the adapter is brought to its place"
    );
}

#[tokio::test(start_paused = true)]
async fn readiness_is_a_status() {
    let sim = Sim::start(VLLM);
    let paths = ["/v2/health/live", "/v2/health/ready", "/v2/models/m/ready"];
    let statuses = async || {
        let mut statuses = Vec::new();
        for path in paths {
            statuses.push(sim.get(path).await.0.as_u16());
        }
        statuses
    };
    assert_eq!(statuses().await, [200, 200, 200]);
    sim.draining.cancel();
    assert_eq!(statuses().await, [200, 400, 400]);
    assert_eq!(sim.get("/v2/models/x/ready").await.0, StatusCode::NOT_FOUND);
}
