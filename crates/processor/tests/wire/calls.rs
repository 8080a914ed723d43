//! Calls that succeed, whole or in part.

use std::time::Duration;

use processor::TokenTransfer;
use processor_api::{API_HEADER, DEADLINE_HEADER, RouteRequest, TOKENS_TYPE};
use serde_json::json;

use crate::{
    router::{Answer, StubRouter},
    served::{Options, Served, ask, chat, text},
};

const CHOICE: &str = r#"{"worker_address":"10.1.2.3:8000","worker_id":"default/vllm-0-rank-0",
    "overlap_blocks":1,"prompt_blocks":1,"block_size":4,"fallbacks":["10.1.2.4:8000"],"source":"exact"}"#;

#[tokio::test]
async fn with_route_the_reply_names_the_routers_worker_and_has_the_ids() {
    let router = StubRouter::start(Answer::of(200, CHOICE)).await;
    let served = Served::start(Options {
        router: Some(router.address),
        ..Options::default()
    })
    .await;
    let call = r#"{"request_body":{"model":"tiny","prompt":"Grüße","route":true},
        "headers":{"x-request-id":"req-123","traceparent":"00-a-b-01"},"candidates":["10.1.2.3:8000"]}"#;
    let reply = served.process(call).await;
    let want = json!({
        "worker_address": "10.1.2.3:8000", "token_value": "[71,114,195,188,195,159,101]", "token_count": 7,
        "overlap_tokens": 4, "fallbacks": ["10.1.2.4:8000"], "worker_id": "default/vllm-0-rank-0",
    });
    assert_eq!(reply, want);
    let asked = router.last();
    assert_eq!(asked.line, "POST /route");
    let request = RouteRequest::parse_binary(&asked.body, 7).unwrap();
    assert_eq!(
        request.token_ids,
        "Grüße".bytes().map(u32::from).collect::<Vec<_>>()
    );
    assert_eq!(
        request.candidates.as_deref(),
        Some(&["10.1.2.3:8000".into()][..])
    );
    let header = |name: &str| asked.headers[name].to_str().unwrap();
    assert_eq!(header("content-type"), TOKENS_TYPE);
    assert_eq!(header(API_HEADER), "1");
    assert_eq!(header("x-request-id"), "req-123");
    assert_eq!(header("traceparent"), "00-a-b-01");
    let left: u64 = header(DEADLINE_HEADER).parse().unwrap();
    assert!((1..=4000).contains(&left), "{left}");
}

#[tokio::test]
async fn without_route_the_reply_has_the_ids_alone() {
    let served = Served::start(Options::default()).await;
    let call = chat("tiny", false, "hi");
    let reply = served.post("/process", call).await;
    assert_eq!(reply.headers[API_HEADER], "1");
    assert_eq!(reply.headers["content-type"], "application/json");
    let ids: Vec<String> = [256]
        .into_iter()
        .chain("user\nhi".bytes().map(u32::from))
        .chain([257, 10, 256])
        .chain("assistant\n".bytes().map(u32::from))
        .map(|id| id.to_string())
        .collect();
    let want = format!(
        r#"{{"token_value":"[{}]","token_count":{}}}"#,
        ids.join(","),
        ids.len()
    );
    assert_eq!(text(&reply), want);
}

#[tokio::test]
async fn with_route_and_no_router_the_reply_says_so() {
    let served = Served::start(Options {
        mode: TokenTransfer::None,
        ..Options::default()
    })
    .await;
    let reply = served.process(&chat("tiny", true, "")).await;
    assert_eq!(reply, json!({"token_count": 19, "degraded": ["no-router"]}));
}

#[tokio::test]
async fn a_router_that_is_full_or_hangs_costs_the_worker_alone() {
    let full = Answer::of(429, "{}");
    let hangs = Answer {
        takes: Duration::from_mins(1),
        ..Answer::of(200, CHOICE)
    };
    for (answer, wait_ms, why) in [
        (full, 4000, "route-saturated"),
        (hangs, 100, "route-timeout"),
    ] {
        let router = StubRouter::start(answer).await;
        let served = Served::start(Options {
            router: Some(router.address),
            route_timeout: Duration::from_millis(wait_ms),
            mode: TokenTransfer::None,
            ..Options::default()
        })
        .await;
        let reply = served.process(&chat("tiny", true, "")).await;
        assert_eq!(reply, json!({"token_count": 19, "degraded": [why]}));
    }
}

#[tokio::test]
async fn a_router_that_hangs_is_left_alone_after_five_calls() {
    let router = StubRouter::start(Answer {
        takes: Duration::from_mins(1),
        ..Answer::of(200, CHOICE)
    })
    .await;
    let served = Served::start(Options {
        router: Some(router.address),
        route_timeout: Duration::from_millis(100),
        mode: TokenTransfer::None,
        ..Options::default()
    })
    .await;
    let mut reasons = Vec::new();
    for _ in 0..6 {
        let reply = served.process(&chat("tiny", true, "")).await;
        reasons.push(reply["degraded"][0].as_str().unwrap().to_owned());
    }
    assert_eq!(reasons[..5], ["route-timeout"; 5]);
    assert_eq!(reasons[5], "route-error");
    assert_eq!(router.asked.lock().len(), 5);
}

#[tokio::test]
async fn a_saturated_pool_is_told_again_and_again() {
    let router = StubRouter::start(Answer::of(429, "{}")).await;
    let served = Served::start(Options {
        router: Some(router.address),
        route_timeout: Duration::from_secs(10),
        mode: TokenTransfer::None,
        ..Options::default()
    })
    .await;
    for _ in 0..6 {
        let reply = served.process(&chat("tiny", true, "")).await;
        assert_eq!(reply["degraded"][0], "route-saturated");
    }
}

#[tokio::test]
async fn no_stage_goes_on_longer_than_the_caller_has() {
    let router = StubRouter::start(Answer {
        takes: Duration::from_mins(1),
        ..Answer::of(200, CHOICE)
    })
    .await;
    let served = Served::start(Options {
        router: Some(router.address),
        ..Options::default()
    })
    .await;
    let call = chat("tiny", true, "");
    let left = [(DEADLINE_HEADER, "500")];
    let reply = ask(&served.calls, "POST", "/process", &left, call).await;
    assert!(text(&reply).contains("route-timeout"), "{}", text(&reply));
    let asked = router.last();
    let told = asked.headers[DEADLINE_HEADER].to_str().unwrap();
    let told: u64 = told.parse().unwrap();
    // 10 ms are for the way back
    assert!(told <= 490, "{told}");
}

#[tokio::test]
async fn bodies_are_rendered_for_others() {
    let served = Served::start(Options::default()).await;
    let body = r#"{"model":"tiny","prompt":"ab"}"#;
    let reply = served.post("/v1/completions/render", body).await;
    assert_eq!(text(&reply), r#"[{"token_ids":[97,98]}]"#);
    let body = r#"{"model":"tiny","messages":[],"add_generation_prompt":false}"#;
    let reply = served.post("/v1/chat/completions/render", body).await;
    assert_eq!(text(&reply), r#"{"token_ids":[]}"#);
}
