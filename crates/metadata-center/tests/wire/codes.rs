//! Every code, with its status and reason.

use metadata::{Bound, Fault};
use rstest::rstest;

use crate::{
    client::{Client, Reply, Served, memory},
    stub::Stub,
};

const ADD: &str = r#"{"cluster":"c","request_id":"r","ip":"10.0.0.1"}"#;

fn check(reply: &Reply, code: u32, message: &str, reason: &str, data: &str) {
    let body = format!(
        r#"{{"status":"ERROR","error":{{"code":{code},"message":"{message}","reason":"{reason}"}},"data":{data},"trace_id":"t"}}"#
    );
    assert_eq!(
        (u32::from(reply.status), &*reply.body),
        (code / 100_000, &*body)
    );
}

async fn batch(client: &mut Client, epoch: u64, seq: u64, full: bool) -> Reply {
    let body = format!(
        r#"{{"cluster":"c","instance":"i","epoch":{epoch},"seq":{seq},"full":{full},"lease_ms":15000,"live":0,"prompt_sum":0}}"#
    );
    client.ask("POST /v1/load/batch", &body).await
}

#[tokio::test]
async fn what_is_wrong_with_a_request_is_named() {
    let served = Served::start(memory()).await;
    let bad = r#"{"cluster":"c","request_id":"r","ip":"10.0.0.1","prompt_length":3000000000}"#;
    let cases = [
        (
            "POST /v1/load/stats",
            bad,
            40_001_400,
            "prompt_length: expected 0 to 2147483647",
            "invalid-parameter",
        ),
        (
            "GET /v1/load/stats",
            "",
            40_001_400,
            "cluster: missing in the query",
            "invalid-parameter",
        ),
        (
            "GET /v1/load/stat",
            "",
            40_401_000,
            "/v1/load/stat is not served",
            "not-found",
        ),
        (
            "POST /v1/load/prompt",
            "{}",
            40_501_000,
            "use DELETE here",
            "method",
        ),
        (
            "DELETE /v1/load/stats/other?strict=true",
            "",
            40_401_404,
            "request other is unknown",
            "unknown-request",
        ),
    ];
    for (line, body, code, message, reason) in cases {
        let reply = served.client().await.ask(line, body).await;
        check(&reply, code, message, reason, "null");
        assert_eq!(
            reply.headers.get("allow").map(|_| ()),
            (code == 40_501_000).then_some(())
        );
    }
    let mut client = served.client().await;
    client.ok("POST /v1/load/stats?strict=true", ADD).await;
    client.ok("POST /v1/load/stats?strict=true", ADD).await;
    let elsewhere = ADD.replace("10.0.0.1", "10.0.0.2");
    let reply = client
        .ask("POST /v1/load/stats?strict=true", &elsewhere)
        .await;
    check(
        &reply,
        40_901_000,
        "request r is charged to another endpoint",
        "duplicate",
        "null",
    );
}

#[tokio::test]
async fn a_refused_batch_says_how_to_go_on() {
    let served = Served::start(memory()).await;
    let mut client = served.client().await;
    let reply = batch(&mut client, 5, 1, false).await;
    check(
        &reply,
        40_901_001,
        "the lease is over: send a full batch",
        "lease-lost",
        "null",
    );
    assert_eq!(batch(&mut client, 5, 2, true).await.status, 200);
    let reply = batch(&mut client, 4, 3, false).await;
    check(
        &reply,
        40_901_002,
        "the instance is at epoch 5",
        "stale-epoch",
        r#"{"current":5}"#,
    );
    let reply = batch(&mut client, 5, 2, false).await;
    check(
        &reply,
        40_901_003,
        "the owner is at batch 2",
        "stale-seq",
        r#"{"applied":true,"last":2}"#,
    );
    let reply = batch(&mut client, 5, 1, false).await;
    check(
        &reply,
        40_901_003,
        "the owner is at batch 2",
        "stale-seq",
        r#"{"applied":false,"last":2}"#,
    );
}

#[rstest]
#[case(
    Fault::Limit(Bound::Requests),
    42_901_000,
    "no room for more requests",
    "limit-requests"
)]
#[case(
    Fault::Limit(Bound::Endpoints),
    42_901_000,
    "no room for more endpoints in this cluster",
    "limit-endpoints"
)]
#[case(
    Fault::Limit(Bound::Clusters),
    42_901_000,
    "no room for more clusters",
    "limit-clusters"
)]
#[case(
    Fault::Limit(Bound::Instances),
    42_901_000,
    "no room for more instances",
    "limit-instances"
)]
#[case(Fault::BackendUnavailable("refused".into()), 50_301_000, "the backend does not answer: refused", "backend-unavailable")]
#[tokio::test]
async fn a_fault_of_the_engine_is_passed_on(
    #[case] fault: Fault,
    #[case] code: u32,
    #[case] message: &str,
    #[case] reason: &str,
) {
    let served = Served::start(Stub::Fault(fault)).await;
    let reply = served.client().await.ask("POST /v1/load/stats", ADD).await;
    check(&reply, code, message, reason, "null");
}

#[tokio::test]
async fn a_panic_is_an_internal_error_and_the_connection_goes_on() {
    let served = Served::start(Stub::Panic).await;
    let mut client = served.client().await;
    for _ in 0..2 {
        let reply = client.ask("POST /v1/load/stats", ADD).await;
        check(&reply, 50_001_000, "internal error", "internal", "null");
    }
}

#[tokio::test]
async fn an_engine_that_hangs_is_given_up() {
    let served = Served::start(Stub::Hang).await;
    let reply = served.client().await.ask("POST /v1/load/stats", ADD).await;
    let message = "the backend does not answer: nothing within 2s";
    check(&reply, 50_301_000, message, "backend-unavailable", "null");
}
