//! Responses that are kept: who gets them, and who goes on from them.

use std::time::Duration;

use axum::body::Body;
use http::StatusCode;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::support::{Sim, text};

const KEPT: &[&str] = &["--responses-store", "2", "--mode", "echo"];

async fn respond(sim: &Sim, body: Value) -> Value {
    let (status, response) = sim.post("/v1/responses", body.to_string()).await;
    assert_eq!(status, StatusCode::OK, "{response}");
    response
}

fn id(response: &Value) -> &str {
    response["id"].as_str().expect("an id")
}

#[tokio::test(start_paused = true)]
async fn a_request_goes_on_from_a_response_that_is_kept() {
    let sim = Sim::start(KEPT);
    let first = respond(&sim, json!({"model": "m", "input": "hi there"})).await;
    let body = json!({"model": "m", "input": "and", "previous_response_id": id(&first)});
    let next = respond(&sim, body).await;
    // 8 bytes of the prompt, 8 of the answer, which repeats it, and 3 of the new input
    assert_eq!(next["usage"]["input_tokens"], 5, "{next}");
    let body = json!({"model": "m", "input": "so", "previous_response_id": id(&next)});
    let last = respond(&sim, body).await;
    assert_eq!(last["usage"]["input_tokens"], 6, "19 + 3 + 2 bytes: {last}");
}

#[tokio::test(start_paused = true)]
async fn a_response_is_kept_as_it_was_answered_whole_or_as_events() {
    let sim = Sim::start(KEPT);
    let first = respond(&sim, json!({"model": "m", "input": "hi"})).await;
    let path = format!("/v1/responses/{}", id(&first));
    assert_eq!(sim.get(&path).await, (StatusCode::OK, first));
    let body = json!({"model": "m", "input": "hi", "stream": true}).to_string();
    let events = text(sim.send("POST", "/v1/responses", body).await).await;
    let last = events.split("data: ").last().expect("an event");
    let last: Value = serde_json::from_str(last.trim()).expect("JSON");
    let path = format!("/v1/responses/{}", id(&last["response"]));
    assert_eq!(
        sim.get(&path).await,
        (StatusCode::OK, last["response"].clone())
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_not_kept_is_not_found_as_in_vllm() {
    let unknown = |id: &str| {
        let message = format!("Response with id '{id}' not found.");
        json!({"message": message, "type": "invalid_request_error", "param": "response_id",
            "code": 404, "reason": "unknown-response"})
    };
    for (flags, extra) in [(&[][..], json!({})), (KEPT, json!({"store": false}))] {
        let sim = Sim::start(flags);
        let mut body = json!({"model": "m", "input": "hi"});
        body.as_object_mut()
            .expect("an object")
            .extend(extra.as_object().expect("an object").clone());
        let response = respond(&sim, body).await;
        let id = id(&response);
        let next = json!({"model": "m", "input": "hi", "previous_response_id": id}).to_string();
        for (method, path, body) in [
            ("POST", "/v1/responses".to_owned(), Body::from(next)),
            ("GET", format!("/v1/responses/{id}"), Body::empty()),
            ("POST", format!("/v1/responses/{id}/cancel"), Body::empty()),
        ] {
            let response = sim.send(method, &path, body).await;
            assert_eq!(response.status(), StatusCode::NOT_FOUND, "{method} {path}");
            let error: Value = serde_json::from_str(&text(response).await).expect("JSON");
            assert_eq!(error["error"], unknown(id), "{method} {path}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_oldest_responses_make_room() {
    let sim = Sim::start(KEPT);
    let mut responses = Vec::new();
    for nth in 0..3 {
        let body = json!({"model": "m", "input": format!("number {nth}")});
        responses.push(respond(&sim, body).await);
    }
    let mut statuses = Vec::new();
    for response in &responses {
        let path = format!("/v1/responses/{}", id(response));
        statuses.push(sim.get(&path).await.0.as_u16());
    }
    assert_eq!(statuses, [404, 200, 200]);
}

#[tokio::test(start_paused = true)]
async fn a_response_in_the_background_comes_later_or_is_cancelled() {
    let sim = Sim::start(&["--responses-store", "2", "--time-to-first-token", "10s"]);
    let body = json!({"model": "m", "input": "hi", "background": true, "max_output_tokens": 2});
    let (slow, cancelled) = (respond(&sim, body.clone()).await, respond(&sim, body).await);
    assert_eq!(
        (&slow["status"], &slow["output"]),
        (&json!("queued"), &json!([]))
    );
    let cancel = format!("/v1/responses/{}/cancel", id(&cancelled));
    let (status, document) = sim.post(&cancel, Body::empty()).await;
    assert_eq!(
        (status, &document["status"]),
        (StatusCode::OK, &json!("cancelled"))
    );
    // Its task gives its place back when it runs.
    sleep(Duration::from_secs(1)).await;
    assert!((sim.metric("vllm:num_requests_running{").await - 1.0).abs() < 0.5);
    sleep(Duration::from_secs(20)).await;
    let path = format!("/v1/responses/{}", id(&slow));
    let (_, document) = sim.get(&path).await;
    assert_eq!(document["status"], "incomplete", "{document}");
    assert_eq!(document["usage"]["output_tokens"], 2);
    let path = format!("/v1/responses/{}", id(&cancelled));
    assert_eq!(sim.get(&path).await.1["status"], "cancelled");
}

#[tokio::test(start_paused = true)]
async fn a_response_that_is_complete_cannot_be_cancelled() {
    let sim = Sim::start(KEPT);
    let response = respond(&sim, json!({"model": "m", "input": "hi"})).await;
    let cancel = format!("/v1/responses/{}/cancel", id(&response));
    let (status, error) = sim.post(&cancel, Body::empty()).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_eq!(
        error["error"]["message"],
        "Cannot cancel a synchronous response."
    );
}
