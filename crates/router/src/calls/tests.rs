use http_body_util::BodyExt;
use kv_router::{Limits, Policy, Preset};
use moment::Clock;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::{
    metrics::Metrics,
    pool::tests::{mk_member, mk_pool},
    service,
};

const ID: &str = "r_abcdefghijklmnopqrstuvwxyz";

fn mk_calls(tokens: Option<Tokens>) -> Calls {
    let pool = Arc::new(mk_pool(Limits::default()));
    pool.replace(&[mk_member("vllm-0", "1", 1, 0)], 1);
    let service = Service::new(service::Parts {
        pool,
        policy: Policy {
            weights: Preset::Isthmus.weights(),
            temperature: 0.0,
            busy_tokens: Some(1000),
        },
        clock: Clock::start(),
        metrics: Metrics::default(),
        follows_events: false,
        routes: None,
    });
    Calls::new(service, tokens, None)
}

/// The status, the headers and the body.
async fn ask(
    calls: &Calls,
    line: &str,
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> (u16, HeaderMap, Value) {
    let (method, path) = line.split_once(' ').unwrap();
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::new(body.into())).unwrap();
    let (head, body) = calls.0.answer(request).await.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let body = if body.is_empty() {
        Value::Null
    } else {
        serde_json::from_slice(&body).unwrap()
    };
    (head.status.as_u16(), head.headers, body)
}

fn mk_binary(ids: std::ops::Range<u32>) -> Vec<u8> {
    let request = RouteRequest {
        token_ids: ids.collect(),
        reservation_id: Some(ID.parse().unwrap()),
        ..RouteRequest::default()
    };
    request.encode_binary()
}

#[tokio::test]
async fn the_minimal_form_gets_what_the_seed_expects() {
    let calls = mk_calls(None);
    let (status, headers, body) =
        ask(&calls, "POST /route", &[], r#"{"token_ids":[1,2,3,4,5]}"#).await;
    assert_eq!(
        (status, &headers[API_HEADER]),
        (200, &HeaderValue::from_static("1"))
    );
    assert_eq!(body["worker_address"], "10.0.0.1:8000");
    assert_eq!(body["worker_id"], "default/vllm-0-rank-0");
    assert_eq!(
        (&body["prompt_blocks"], &body["overlap_blocks"]),
        (&json!(1), &json!(0))
    );
    assert_eq!(body["source"], "none");
    let id = body["reservation_id"].as_str().unwrap();
    let (status, _, body) = ask(&calls, &format!("DELETE /route/{id}"), &[], "").await;
    assert_eq!((status, body), (204, Value::Null));
}

#[rstest]
#[case::of_ours("application/x-isthmus-tokens")]
#[case::with_a_parameter("Application/X-Isthmus-Tokens; v=1")]
#[tokio::test]
async fn the_binary_form_is_known_by_its_type(#[case] kind: &str) {
    let calls = mk_calls(None);
    let (status, _, body) = ask(
        &calls,
        "POST /route",
        &[("content-type", kind)],
        mk_binary(0..9),
    )
    .await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(
        (&body["prompt_blocks"], &body["reservation_id"]),
        (&json!(2), &json!(ID))
    );
}

#[tokio::test]
async fn a_booking_lives_from_its_prompt_to_its_end() {
    let calls = mk_calls(None);
    let body = format!(r#"{{"token_ids":[1,2,3],"reservation_id":"{ID}"}}"#);
    assert_eq!(ask(&calls, "POST /route", &[], body).await.0, 200);
    let served = r#"{"worker_address":"10.0.0.1:8000"}"#;
    let kept = format!(r#"{{"reservation_ids":["{ID}","r_bbcdefghijklmnopqrstuvwxyz"]}}"#);
    let complete = format!("POST /route/{ID}/prefill_complete");
    let steps = [
        (complete.as_str(), served, 204),
        ("POST /route/keepalive", kept.as_str(), 204),
        (&format!("DELETE /route/{ID}"), "", 204),
        (&format!("DELETE /route/{ID}"), "", 404),
        ("POST /route/keepalive", &kept, 404),
        (&complete, served, 404),
    ];
    for (line, body, status) in steps {
        let reply = ask(&calls, line, &[], body.to_owned()).await;
        assert_eq!(reply.0, status, "{line}: {}", reply.2);
    }
}

#[rstest]
#[case("POST /route", "{", 400, "bad-request")]
#[case("POST /route", "", 400, "bad-request")]
#[case("POST /route", "\u{e9}", 400, "bad-request")]
#[case("POST /route", r#"{"token_ids":[-1]}"#, 400, "bad-request")]
#[case(
    "POST /route",
    r#"{"token_ids":[1],"reservation_id":"mine"}"#,
    400,
    "bad-request"
)]
#[case(
    "POST /route",
    r#"{"token_ids":[1],"candidates":["10.9.9.9:1"]}"#,
    503,
    "no-workers"
)]
#[case(
    "POST /route/keepalive",
    r#"{"reservation_ids":["x"]}"#,
    400,
    "bad-request"
)]
#[case(
    "POST /route/r_abcdefghijklmnopqrstuvwxyz/prefill_complete",
    "{}",
    400,
    "bad-request"
)]
#[case("DELETE /route/mine", "", 404, "unknown-reservation")]
#[case("GET /route", "", 405, "method")]
#[case("POST /route/r_abcdefghijklmnopqrstuvwxyz", "", 405, "method")]
#[case("POST /routes", "", 404, "not-found")]
#[case("POST /route/a/b", "", 404, "not-found")]
#[case("GET /metrics", "", 404, "not-found")]
#[tokio::test]
async fn what_is_wrong_is_named(
    #[case] line: &str,
    #[case] body: &'static str,
    #[case] status: u16,
    #[case] kind: &str,
) {
    let reply = ask(&mk_calls(None), line, &[], body).await;
    let error = &reply.2["error"];
    assert_eq!(
        (reply.0, error["type"].as_str()),
        (status, Some(kind)),
        "{error}"
    );
    assert_eq!(error["code"], status);
    assert_eq!(reply.1.contains_key(header::ALLOW), status == 405);
    assert_eq!(&reply.1[API_HEADER], "1");
}

#[tokio::test]
async fn a_refusal_repeats_nothing_of_the_prompt() {
    let body = r#"{"token_ids":[77177,"77177"],"model":"77177"}"#;
    let reply = ask(&mk_calls(None), "POST /route", &[], body).await;
    let kind = reply.2["error"]["type"].as_str();
    assert_eq!((reply.0, kind), (400, Some("bad-request")), "{}", reply.2);
    assert!(!reply.2.to_string().contains("77177"), "{}", reply.2);
}

#[tokio::test]
async fn saturation_says_when_to_come_again() {
    let calls = mk_calls(None);
    let kind = [("content-type", TOKENS_TYPE)];
    assert_eq!(
        ask(&calls, "POST /route", &kind, mk_binary(0..1100))
            .await
            .0,
        200
    );
    let (status, headers, body) = ask(&calls, "POST /route", &kind, mk_binary(0..8)).await;
    assert_eq!((status, &body["error"]["type"]), (429, &json!("saturated")));
    assert_eq!(headers[header::RETRY_AFTER], "1");
}

#[tokio::test]
async fn more_keepalives_than_a_message_may_have_are_refused() {
    let calls = mk_calls(None);
    let body = json!({"reservation_ids": vec![ID; 10_001]}).to_string();
    let reply = ask(&calls, "POST /route/keepalive", &[], body).await;
    assert_eq!(
        (reply.0, &reply.2["error"]["type"]),
        (400, &json!("bad-request"))
    );
    let body = json!({"reservation_ids": vec![ID; 10_000]}).to_string();
    // it is read, and none of them is known
    assert_eq!(ask(&calls, "POST /route/keepalive", &[], body).await.0, 404);
}

#[tokio::test]
async fn callers_need_one_of_the_tokens() {
    let calls = mk_calls(Some(Tokens::new(vec!["secret".to_owned()])));
    let body = r#"{"token_ids":[1]}"#;
    let (status, headers, _) = ask(&calls, "POST /route", &[], body).await;
    assert_eq!(
        (status, &headers[header::WWW_AUTHENTICATE]),
        (401, &HeaderValue::from_static("Bearer"))
    );
    assert_eq!(headers[header::CONNECTION], "close");
    let token = [("authorization", "Bearer secret")];
    assert_eq!(ask(&calls, "POST /route", &token, body).await.0, 200);
}

#[tokio::test]
async fn who_does_not_answer_any_more_ends_the_connection() {
    let calls = mk_calls(None);
    let body = r#"{"token_ids":[1]}"#;
    calls.turn_away(true);
    let (status, headers, _) = ask(&calls, "POST /route", &[], body).await;
    assert_eq!(
        (status, &headers[header::CONNECTION]),
        (200, &HeaderValue::from_static("close"))
    );
    calls.turn_away(false);
    let (status, headers, _) = ask(&calls, "POST /route", &[], body).await;
    assert_eq!((status, headers.get(header::CONNECTION)), (200, None));
    calls.close();
    let (status, headers, body) = ask(&calls, "POST /route", &[], body).await;
    assert_eq!(
        (status, &body["error"]["type"]),
        (503, &json!("shutting-down"))
    );
    assert_eq!(headers[header::CONNECTION], "close");
}

/// A body of which nothing comes.
struct Never;

impl Body for Never {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, Self::Error>>> {
        std::task::Poll::Pending
    }
}

#[rstest]
#[case::of_the_caller(Some("110"), 100)]
#[case::of_its_own(None, 2000)]
#[tokio::test(start_paused = true)]
async fn a_body_is_waited_for_as_long_as_the_caller_waits(
    #[case] left: Option<&str>,
    #[case] millis: u64,
) {
    let calls = mk_calls(None);
    let mut request = Request::builder().method("POST").uri("/route");
    if let Some(left) = left {
        request = request.header(DEADLINE_HEADER, left);
    }
    let begun = tokio::time::Instant::now();
    let reply = calls.0.answer(request.body(Never).unwrap()).await;
    assert_eq!(
        (reply.status().as_u16(), begun.elapsed()),
        (408, Duration::from_millis(millis))
    );
    assert_eq!(reply.headers()[header::CONNECTION], "close");
}

#[tokio::test]
async fn a_body_that_says_that_it_is_too_large_is_not_read() {
    struct Large(Never);
    impl Body for Large {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            mut self: std::pin::Pin<&mut Self>,
            context: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, Self::Error>>> {
            std::pin::Pin::new(&mut self.0).poll_frame(context)
        }

        fn size_hint(&self) -> hyper::body::SizeHint {
            hyper::body::SizeHint::with_exact((16 << 20) + 1)
        }
    }
    let request = Request::builder().method("POST").uri("/route");
    let reply = mk_calls(None)
        .0
        .answer(request.body(Large(Never)).unwrap())
        .await;
    assert_eq!(reply.status(), 413);
    assert_eq!(reply.headers()[header::CONNECTION], "close");
}
