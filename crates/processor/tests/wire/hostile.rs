//! Text that is meant to take long.

use std::time::Duration;

use rstest::rstest;
use serde_json::json;
use tokio::time::Instant;

use crate::served::{Options, Served, text};

/// In a debug build on a busy machine. Quadratic work on a megabyte takes minutes.
const BOUND: Duration = Duration::from_secs(20);

fn spaces() -> String {
    call(&json!([{"role": "user", "content": " ".repeat(1 << 20)}]))
}

fn messages() -> String {
    let messages: Vec<_> = (0..10_000)
        .map(|number| json!({"role": "user", "content": format!("message {number}")}))
        .collect();
    call(&messages.into())
}

fn special_tokens() -> String {
    call(&json!([{"role": "user", "content": "<|end|>".repeat(1_000_000)}]))
}

fn apostrophes() -> String {
    call(&json!([{"role": "user", "content": "'".repeat(1 << 20)}]))
}

fn depth() -> String {
    let deep = "[".repeat(10_000) + &"]".repeat(10_000);
    format!(r#"{{"request_body":{{"model":"tiny","messages":[],"metadata":{deep}}}}}"#)
}

fn depth_of_the_call() -> String {
    "[".repeat(10_000)
}

fn call(messages: &serde_json::Value) -> String {
    json!({"request_body": {"model": "tiny", "messages": messages}}).to_string()
}

#[rstest]
#[case::a_megabyte_of_spaces(spaces(), &[200])]
#[case::a_megabyte_of_apostrophes(apostrophes(), &[200])]
#[case::ten_thousand_messages(messages(), &[200])]
#[case::a_million_special_tokens(special_tokens(), &[200])]
#[case::depth_ten_thousand(depth(), &[422])]
#[case::depth_of_the_call(depth_of_the_call(), &[400])]
#[tokio::test]
async fn hostile_text_is_answered_in_bounded_time_and_others_beside_it(
    #[case] call: String,
    #[case] statuses: &[u16],
) {
    let served = Served::start(Options::default()).await;
    let begun = Instant::now();
    // the deadline of a call is 5 s, and a debug build is slow: what is bounded is the work
    let (reply, other) = tokio::join!(
        served.post("/process", call),
        served.post("/v1/completions/render", r#"{"model":"tiny","prompt":"a"}"#),
    );
    assert_eq!(other.status, 200, "{}", text(&other));
    let status = reply.status.as_u16();
    let head: String = text(&reply).chars().take(200).collect();
    assert!(
        statuses.contains(&status) || status == 503,
        "{status} {head}"
    );
    // its thread is free again: both take work
    for _ in 0..4 {
        let body = r#"{"model":"tiny","prompt":"a"}"#;
        while served.post("/v1/completions/render", body).await.status != 200 {
            assert!(begun.elapsed() < BOUND, "{:?}", begun.elapsed());
        }
    }
    assert!(begun.elapsed() < BOUND, "{:?}", begun.elapsed());
}
