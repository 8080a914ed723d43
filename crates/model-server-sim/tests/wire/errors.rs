//! Requests that are refused.

use axum::body::Body;
use futures::{StreamExt, stream};
use http::StatusCode;
use rstest::rstest;

use crate::support::{Sim, json};

const CHAT: &str = "/v1/chat/completions";
const OK_BODY: &str = r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#;

#[rstest]
#[case("POST", CHAT, "{", 400, "invalid-json")]
#[case("POST", CHAT, r#"{"model":"m"}"#, 400, "missing-field")]
#[case("POST", "/v1/completions", r#"{"model":"m"}"#, 400, "missing-field")]
#[case(
    "POST",
    "/v1/completions",
    r#"{"model":"x","prompt":"p"}"#,
    404,
    "unknown-model"
)]
#[case(
    "POST",
    "/v1/completions",
    r#"{"model":"m","prompt":"p","max_tokens":99}"#,
    400,
    "context-too-long"
)]
#[case("GET", CHAT, "", 405, "wrong-method")]
#[case("DELETE", "/v1/models", "", 405, "wrong-method")]
#[case("GET", "/v2/models", "", 404, "no-such-path")]
#[tokio::test(start_paused = true)]
async fn bad_requests_get_an_openai_error(
    #[case] method: &str,
    #[case] path: &str,
    #[case] body: &'static str,
    #[case] status: u16,
    #[case] reason: &str,
) {
    let sim = Sim::start(&["--max-model-len", "99"]);
    let response = sim.send(method, path, body).await;
    assert_eq!(
        response.headers()["x-inference-pod"],
        "pod-1",
        "also on errors"
    );
    assert_eq!(response.headers()["content-type"], "application/json");
    let (got, error) = json(response).await;
    assert_eq!(
        (got.as_u16(), error["error"]["reason"].as_str()),
        (status, Some(reason)),
        "{error}"
    );
    assert_eq!(error["error"]["code"], status);
    assert!(
        error["error"]["message"]
            .as_str()
            .is_some_and(|message| !message.is_empty())
    );
    assert!(
        error["error"]["type"]
            .as_str()
            .is_some_and(|kind| kind.ends_with("Error"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_body_over_the_limit_gets_413() {
    let limit = OK_BODY.len().to_string();
    let sim = Sim::start(&["--max-request-body-bytes", &limit]);
    assert_eq!(sim.post(CHAT, OK_BODY).await.0, StatusCode::OK);
    let (status, error) = sim.post(CHAT, format!("{OK_BODY} ")).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(error["error"]["reason"], "body-too-large");
}

#[tokio::test(start_paused = true)]
async fn a_body_that_never_ends_gets_408() {
    let sim = Sim::start(&[]);
    let part = stream::iter([Ok::<_, std::io::Error>("{")]).chain(stream::pending());
    let (status, error) = sim.post(CHAT, Body::from_stream(part)).await;
    assert_eq!(status, StatusCode::REQUEST_TIMEOUT, "{error}");
}

#[tokio::test(start_paused = true)]
async fn requests_before_the_start_is_over_get_503() {
    let sim = Sim::start(&["--startup-duration", "5s"]);
    assert_eq!(
        sim.post(CHAT, OK_BODY).await.0,
        StatusCode::SERVICE_UNAVAILABLE
    );
    assert_eq!(
        sim.get("/health/ready").await.0,
        StatusCode::SERVICE_UNAVAILABLE
    );
    assert_eq!(sim.get("/health").await.0, StatusCode::OK);
    tokio::time::advance(std::time::Duration::from_secs(5)).await;
    assert_eq!(sim.post(CHAT, OK_BODY).await.0, StatusCode::OK);
    assert_eq!(sim.get("/health/ready").await.0, StatusCode::OK);
    sim.draining.cancel();
    assert_eq!(
        sim.get("/health/ready").await.0,
        StatusCode::SERVICE_UNAVAILABLE
    );
    assert_eq!(
        sim.post(CHAT, OK_BODY).await.0,
        StatusCode::OK,
        "draining still serves"
    );
}
