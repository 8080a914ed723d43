use rand::{SeedableRng, rngs::StdRng};
use rstest::rstest;

use super::*;

fn mk_request() -> ProcessRequest<'static> {
    ProcessRequest {
        headers: BTreeMap::from([("x-request-id".into(), "req-\"1\"".into())]),
        path: Some("/v1/chat/completions".into()),
        candidates: Some(vec!["10.1.2.3:8000".into()]),
        priority: Some(-1),
        max_endpoints: Some(2),
        reservation_id: Some(ReservationId::random(&mut StdRng::seed_from_u64(1))),
    }
}

fn encoded(request: &ProcessRequest<'_>, body: &'static str) -> String {
    let (start, end) = body.as_bytes().split_at(3);
    let parts = request.encode([start, end].map(Bytes::from_static));
    String::from_utf8(parts.into_iter().flatten().collect()).unwrap()
}

#[test]
fn a_call_carries_the_bodys_own_bytes_and_reads_back() {
    let body = r#"{"model" : "m",  "messages":[]}"#;
    let request = mk_request();
    let json = encoded(&request, body);
    let call = ProcessCall::parse(&json).unwrap();
    assert_eq!(call.body, body);
    assert_eq!(call.request, request);
}

#[test]
fn a_call_of_the_body_alone_is_valid() {
    let json = encoded(&ProcessRequest::default(), r#"{"prompt":""}"#);
    assert_eq!(json, r#"{"request_body":{"prompt":""}}"#);
    let request = ProcessCall::parse(&json).unwrap().request;
    assert_eq!(request, ProcessRequest::default());
}

#[test]
fn fields_of_a_later_version_are_passed_over() {
    let call = ProcessCall::parse(r#"{"new":{"a":[]},"request_body":{},"path":null}"#).unwrap();
    assert_eq!((call.body, call.request.path), ("{}", None));
}

#[rstest]
#[case::no_body(r#"{"headers":{}}"#)]
#[case::other_type(r#"{"request_body":{},"priority":"high"}"#)]
#[case::foreign_reservation(r#"{"request_body":{},"reservation_id":"r_1"}"#)]
fn a_call_of_another_shape_is_refused_by_its_place(#[case] json: &str) {
    let error = ProcessCall::parse(json).unwrap_err();
    assert!(matches!(error, WireError::Json { line: 1, .. }), "{error}");
}

#[test]
fn too_many_candidates_are_refused() {
    let candidates = |count| {
        let request = ProcessRequest {
            candidates: Some(vec!["a:1".into(); count]),
            ..ProcessRequest::default()
        };
        ProcessCall::parse(&encoded(&request, r#"{"a":1}"#)).map(|_| ())
    };
    assert_eq!(candidates(MAX_CANDIDATES), Ok(()));
    assert_eq!(candidates(MAX_CANDIDATES + 1), Err(WireError::Candidates));
}

#[test]
fn a_reply_reads_back_with_its_ids_as_a_string() {
    let reply = ProcessReply {
        worker_address: Some("10.1.2.3:8000".to_owned()),
        token_key: Some(TokenKey::random(&mut StdRng::seed_from_u64(1))),
        token_value: Some(Bytes::from_static(b"[1,15043,29892]")),
        token_count: Some(3),
        overlap_tokens: Some(0),
        fallbacks: vec!["10.1.2.4:8000".to_owned()],
        worker_id: Some("default/vllm-0-rank-0".to_owned()),
        dp_rank: Some(3),
        degraded: vec![Degraded::CacheWrite],
    };
    let json = reply.encode();
    let value: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(value["token_value"], "[1,15043,29892]");
    assert_eq!(value["degraded"][0], "cache-write");
    assert_eq!(ProcessReply::parse(&json, 3).unwrap(), reply);
    assert_eq!(ProcessReply::default().encode(), "{}");
}

#[test]
fn a_reply_of_another_maker_is_read() {
    let json = Bytes::from_static(
        br#"{"x":1,"token_value":[1, 2],"fallbacks":null,"degraded":["no-gpu","no-router"]}"#,
    );
    let reply = ProcessReply::parse(&json, 2).unwrap();
    assert_eq!(reply.token_value.as_deref(), Some(&b"[1, 2]"[..]));
    assert_eq!(reply.token_count, Some(2));
    assert_eq!(reply.degraded, [Degraded::Other, Degraded::NoRouter]);
}

#[rstest]
#[case::no_json("hello", "no JSON object")]
#[case::count(r#"{"token_value":"[1]","token_count":2}"#, "token_count is 2")]
#[case::float(r#"{"token_value":[1.5]}"#, "token_value")]
#[case::too_many(r#"{"token_value":[1,2,3,4]}"#, "more than 3")]
#[case::foreign_key(r#"{"token_key":"../secret"}"#, "no JSON object")]
fn a_reply_that_contradicts_is_invalid(#[case] json: &'static str, #[case] part: &str) {
    let error = ProcessReply::parse(&Bytes::from_static(json.as_bytes()), 3).unwrap_err();
    assert!(error.to_string().contains(part), "{error}");
}

#[test]
fn each_degraded_reason_is_its_name_on_the_wire() {
    let all = [
        Degraded::NoRouter,
        Degraded::RouteTimeout,
        Degraded::RouteError,
        Degraded::RouteSaturated,
        Degraded::CacheWrite,
    ];
    for degraded in all {
        assert_eq!(
            serde_json::to_value(degraded).unwrap(),
            degraded.reason(),
            "{degraded:?}"
        );
    }
}
