//! What a reply makes of a request.

use processor_api::StageFailure;

use super::*;
use crate::extproc::stream::tests::llm::{PLAIN, mk_filter};

const CHAT: &str = r#"{"model":"m","messages":[]}"#;

/// Both scenarios of the proposal, each with both ways of the ids.
#[rstest]
#[case::routed_by_key(Some("c:8000"), true, CHAT)]
#[case::routed_directly(Some(C), false, r#"{"model":"m","messages":[],"token_ids":[1,15043]}"#)]
#[case::scheduled_by_key(None, true, CHAT)]
#[case::scheduled_directly(None, false, r#"{"model":"m","messages":[],"token_ids":[1,15043]}"#)]
#[tokio::test(start_paused = true)]
async fn a_worker_gets_the_ids_and_the_router_or_the_picker_chooses_it(
    #[case] worker: Option<&str>,
    #[case] by_key: bool,
    #[case] body: &str,
) {
    let reply = ProcessReply {
        worker_address: worker.map(str::to_owned),
        token_key: by_key.then(mk_key),
        token_value: Some(Bytes::from_static(b"[1,15043]")),
        token_count: Some(2),
        overlap_tokens: worker.map(|_| 1),
        dp_rank: Some(3),
        ..ProcessReply::default()
    };
    let routes = worker.is_some();
    let bed = Bed::replying(
        reply,
        Switches {
            routes,
            ..Switches::default()
        },
    );
    let fields = [
        ("x-request-id", "r-1"),
        ("x-req-tokens-key", "tk_of_another"),
    ];
    let passed = bed.pass(&fields, CHAT).await;
    assert_eq!(passed.body, body);
    let key = by_key.then(|| mk_key().as_str().to_owned());
    assert_eq!(passed.set.get("x-req-tokens-key"), key.as_ref());
    let is_removed = passed.removed.iter().any(|name| name == "x-req-tokens-key");
    assert_eq!(is_removed, !by_key, "that of the client is never passed on");
    assert_eq!(passed.set["x-gateway-model-name"], "m");
    // the rank is one of those behind the Router's address
    let rank = passed.set.get("x-data-parallel-rank");
    assert_eq!(rank.map(String::as_str), routes.then_some("3"));
    if routes {
        assert_eq!(passed.destination(), C);
    }
    let question = bed.scripted.question();
    let mut asked = serde_json::json!({
        "request_body": {"model": "m", "messages": []},
        "headers": {"x-request-id": "r-1"},
        "path": "/v1/chat/completions",
    });
    if routes {
        asked["request_body"]["route"] = true.into();
        asked["candidates"] = serde_json::json!([A, B, C]);
        asked["priority"] = 0.into();
        asked["max_endpoints"] = 1.into();
        asked["reservation_id"] = question["reservation_id"].clone();
    }
    assert_eq!(question, asked);
    let by = if routes { "external" } else { "internal" };
    let transfer = if by_key { "key" } else { "direct" };
    bed.assert_has(&[
        "epp_external_requests_total{outcome=\"replied\"} 1",
        "epp_external_duration_seconds_sum 1.0",
        &format!("epp_external_picks_total{{by=\"{by}\"}} 1"),
        &format!("epp_external_tokens_total{{transfer=\"{transfer}\"}} 1"),
        "epp_external_overwritten_total{what=\"tokens-key\"} 1",
        "epp_external_pending 0",
        "epp_pick_duration_seconds_sum 0.0",
    ]);
}

/// The rank goes wherever the proxy tries again, and another worker may have fewer ranks.
#[rstest]
#[case::of_a_rank(Some(3), 1)]
#[case::of_none(None, 2)]
#[tokio::test(start_paused = true)]
async fn a_rank_is_for_the_worker_of_the_router_alone(
    #[case] dp_rank: Option<u32>,
    #[case] workers: usize,
) {
    let reply = ProcessReply {
        worker_address: Some(C.to_owned()),
        dp_rank,
        ..ProcessReply::default()
    };
    let switches = Switches {
        routes: true,
        ..Switches::default()
    };
    let bed = Bed::replying(reply, switches);
    let passed = bed.pass_list(2, &[], CHAT).await.unwrap();
    let destinations: Vec<_> = passed.destination().split(',').collect();
    assert_eq!((destinations[0], destinations.len()), (C, workers));
}

#[rstest]
#[case::nvext(
    Some(TokenField::NvextTokenData),
    r#"{"model":"n","messages":[],"nvext":{"token_data":[1]}}"#
)]
#[case::by_key_alone(None, r#"{"model":"n","messages":[],"nvext":{}}"#)]
#[tokio::test(start_paused = true)]
async fn edits_of_the_body_go_together(#[case] field: Option<TokenField>, #[case] body: &str) {
    let reply = ProcessReply {
        token_value: Some(Bytes::from_static(b"[1]")),
        ..ProcessReply::default()
    };
    let mut config = small_config();
    config.rewrites = vec![crate::RewriteRule {
        models: ["m".to_owned()].into(),
        targets: vec![crate::RewriteTarget {
            model: "n".to_owned(),
            weight: 1,
        }],
    }];
    let switches = Switches {
        token_field: field,
        ..Switches::default()
    };
    let bed = Bed::with(Scripted::answering(WAIT, Ok(reply)), switches, config);
    let sent =
        r#"{"token_ids":[9],"model":"m","route":false,"messages":[],"nvext":{"token_data":[9]}}"#;
    let passed = bed.pass(&[], sent).await;
    assert_eq!(passed.body, body);
    assert_eq!(
        passed.set["x-gateway-model-name"], "m",
        "as the client named it"
    );
    let asked = serde_json::json!({"model": "n", "messages": [], "nvext": {}, "route": false});
    assert_eq!(bed.scripted.question()["request_body"], asked);
    bed.assert_has(&["epp_external_overwritten_total{what=\"token-ids\"} 1"]);
}

/// With 27 bytes a prompt is estimated at one token.
#[rstest]
#[case::of_the_router(Some(C), Some(60), 40)]
#[case::nothing_cached(Some(C), None, 100)]
#[case::more_than_all(Some(C), Some(200), 0)]
#[case::of_the_picker(None, Some(60), 100)]
#[tokio::test(start_paused = true)]
async fn counted_tokens_take_the_place_of_the_estimate(
    #[case] worker: Option<&str>,
    #[case] overlap: Option<usize>,
    #[case] want: u64,
) {
    let reply = ProcessReply {
        overlap_tokens: overlap,
        ..mk_reply(worker)
    };
    let bed = Bed::replying(reply, routing());
    let passed = bed.pass(&[], CHAT).await;
    assert!(worker.is_none_or(|worker| worker == passed.destination()));
    let snapshot = bed.shared.director.pool().snapshot();
    let table = snapshot.read(Moment::START, scheduling::Freshness::default());
    assert_eq!(table.tokens.iter().sum::<u64>(), want);
}

#[tokio::test(start_paused = true)]
async fn a_list_goes_on_with_the_routers_fallbacks_and_then_with_the_own_order() {
    let reply = ProcessReply {
        fallbacks: vec!["10.9.9.9:1".to_owned(), "b:8000".to_owned()],
        ..mk_reply(Some(C))
    };
    let bed = Bed::replying(reply, routing());
    let passed = bed.pass_list(3, &[], CHAT).await.unwrap();
    assert_eq!(passed.destination(), [C, B, A].join(","));
    assert_eq!(bed.scripted.question()["max_endpoints"], 3);
}

#[rstest]
#[case::equal(100, 0)]
#[case::not_equal(101, 1)]
#[tokio::test(start_paused = true)]
async fn a_worker_that_counts_other_tokens_is_counted(#[case] reported: u32, #[case] want: u32) {
    let bed = Bed::replying(mk_reply(None), Switches::default());
    let mut passed = bed.pass(&[], CHAT).await;
    passed.responds(A).await;
    let usage = format!(r#"{{"usage":{{"prompt_tokens":{reported}}}}}"#);
    passed.response_body(&usage, true).await;
    assert!(passed.replies.next().now_or_never().is_none());
    bed.assert_has(&[&format!("epp_external_token_count_mismatch_total {want}")]);
}

/// Rules, charges and caches follow a pick of the Router as any other.
#[tokio::test(start_paused = true)]
async fn under_an_llm_filter_the_routers_worker_is_charged() {
    let mut config = small_config();
    config.llm_filter = Some(mk_filter(PLAIN));
    let bed = Bed::with(
        Scripted::answering(WAIT, Ok(mk_reply(Some(B)))),
        routing(),
        config,
    );
    let passed = bed.pass(&[], &mk_chat("m", &"a".repeat(512 * 5))).await;
    assert_eq!(passed.destination(), B);
    assert_eq!(loads(&bed.shared), [(0, 0), (1, 2560), (0, 0)]);
}

#[tokio::test(start_paused = true)]
async fn the_last_picks_say_what_the_stage_told() {
    let scripted = Scripted::answering(WAIT, Ok(mk_reply(Some("10.9.9.9:1"))));
    let bed = Bed::around(scripted, routing(), small_config(), Director::recording);
    bed.pass(&[], CHAT).await;
    let picks = bed.shared.director.latest_picks();
    let pick = serde_json::to_value(&*picks[0]).unwrap();
    assert_eq!(pick["external"], "no-member");
}

/// A template may repeat the conversation in its error.
#[tokio::test(start_paused = true)]
async fn the_last_picks_do_not_say_what_a_template_said() {
    let failure = StageFailure::Client("no role after: my secret".to_owned());
    let scripted = Scripted::answering(WAIT, Err(NoReply::Failed(failure)));
    let bed = Bed::around(scripted, routing(), small_config(), Director::recording);
    let (status, body) = bed.pass_list(1, &[], CHAT).await.err().unwrap();
    assert!(status == 400 && body.contains("my secret"), "{body}");
    let picks = bed.shared.director.latest_picks();
    let pick = serde_json::to_string(&*picks[0]).unwrap();
    assert!(
        pick.contains("bad-request") && !pick.contains("secret"),
        "{pick}"
    );
}

/// 4004 bytes are worth 1001 tokens.
#[rstest]
#[case::in_bytes("length_unit: bytes", true, Some(1500), 4004)]
#[case::routed("length_unit: tokens", true, Some(1500), 1500)]
#[case::picked_here("length_unit: tokens", false, Some(1500), 1500)]
#[case::not_counted("length_unit: tokens", false, None, 1001)]
#[tokio::test(start_paused = true)]
async fn an_endpoint_is_charged_in_the_unit_of_lengths(
    #[case] unit: &str,
    #[case] routes: bool,
    #[case] token_count: Option<usize>,
    #[case] want: u64,
) {
    let config = Config {
        llm_filter: Some(mk_filter(&format!("{unit}\n{PLAIN}"))),
        ..small_config()
    };
    let reply = ProcessReply {
        token_count,
        ..mk_reply(routes.then_some(C))
    };
    let switches = Switches {
        routes,
        ..Switches::default()
    };
    let scripted = Scripted::answering(WAIT, Ok(reply));
    let bed = Bed::with(scripted, switches, config);
    let _passed = bed.pass(&[], &mk_chat("m", &"é".repeat(2002))).await;
    let charged: u64 = loads(&bed.shared).iter().map(|(_, prefill)| prefill).sum();
    assert_eq!(charged, want);
}

/// A prompt by another name would go past what the Processor, or a moderation beside it, reads.
#[rstest]
#[case::removed(false, "null", 1)]
#[case::trusted(true, "[1,2]", 0)]
#[tokio::test(start_paused = true)]
async fn neither_processor_nor_worker_sees_a_prompt_by_another_name(
    #[case] keeps_ids: bool,
    #[case] value: &str,
    #[case] counted: u64,
) {
    let switches = Switches {
        keeps_ids,
        ..Switches::default()
    };
    let bed = Bed::replying(ProcessReply::default(), switches);
    let given = r#"{"model":"m","prompt_embeds":[1,2],"messages":[]}"#;
    let passed = bed.pass(&[], given).await;
    assert_eq!(passed.body, given.replace("[1,2]", value));
    let asked = &bed.scripted.question()["request_body"]["prompt_embeds"];
    assert_eq!(asked.to_string(), value);
    bed.assert_has(&[&format!(
        "epp_external_overwritten_total{{what=\"token-ids\"}} {counted}"
    )]);
}
