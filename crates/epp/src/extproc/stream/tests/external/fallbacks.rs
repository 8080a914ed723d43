//! Without a reply, or with one that cannot be used, requests go on, or are refused where the flag says so.

use futures::future::BoxFuture;
use processor_api::StageFailure;

use super::*;
use crate::external::{CallProcessor, External, ExternalMetrics, Outgoing, Skip};

const CHAT: &str = r#"{"model":"m","messages":[],"token_ids":[9]}"#;
const STRIPPED: &str = r#"{"model":"m","messages":[]}"#;

/// 0: it goes on.
#[rstest]
#[case::template_error(StageFailure::Client("no such role".to_owned()), 400, 400)]
#[case::unknown_model(StageFailure::UnknownModel, 0, 404)]
#[case::too_large(StageFailure::TooLarge, 0, 413)]
#[case::unsupported(StageFailure::Unsupported, 0, 0)]
#[case::overloaded(StageFailure::Unavailable, 0, 503)]
#[case::invalid(StageFailure::Invalid, 0, 502)]
#[case::late(StageFailure::Timeout, 0, 504)]
#[tokio::test(start_paused = true)]
async fn each_failure_falls_back_or_refuses(
    #[case] failure: StageFailure,
    #[case] open: i32,
    #[case] closed: i32,
) {
    for (fail_closed, want) in [(false, open), (true, closed)] {
        let switches = Switches {
            fail_closed,
            ..Switches::default()
        };
        let bed = Bed::without_reply(NoReply::Failed(failure.clone()), switches);
        let passed = bed.pass_list(1, &[], CHAT).await;
        let status = match &passed {
            Ok(passed) => {
                assert_eq!(passed.body, STRIPPED, "its edits stay");
                0
            }
            Err((status, body)) => {
                assert!(*status != 400 || body.contains("no such role"), "{body}");
                *status
            }
        };
        assert_eq!(status, want, "closed: {fail_closed}");
        let outcome = if want == 0 { "failed" } else { "refused" };
        bed.assert_has(&[&format!(
            "epp_external_requests_total{{outcome=\"{outcome}\"}} 1"
        )]);
        if want == 0 {
            let reason = failure.reason();
            let line =
                format!("epp_external_fallback_total{{stage=\"process\",reason=\"{reason}\"}} 1");
            bed.assert_has(&[&line]);
        }
    }
}

#[rstest]
#[case::open_breaker(NoReply::Skipped(Skip::BreakerOpen), Some("breaker-open"))]
#[case::too_many(NoReply::Skipped(Skip::Busy), Some("busy"))]
#[case::nobody_there(NoReply::Unreachable, None)]
#[tokio::test(start_paused = true)]
async fn what_cannot_be_asked_goes_on_or_gets_503(
    #[case] no_reply: NoReply,
    #[case] skipped: Option<&str>,
) {
    for fail_closed in [false, true] {
        let switches = Switches {
            fail_closed,
            ..routing()
        };
        let bed = Bed::without_reply(no_reply.clone(), switches);
        let passed = bed.pass_list(1, &[], CHAT).await;
        let status = passed.map_or_else(|(status, _)| status, |_| 0);
        assert_eq!(status, if fail_closed { 503 } else { 0 });
        assert_eq!(bed.scripted.take_reports(), [], "nothing was booked");
        if let Some(reason) = skipped {
            bed.assert_has(&[&format!(
                "epp_external_skipped_total{{reason=\"{reason}\"}} 1"
            )]);
        }
    }
}

#[rstest]
#[case(false, 0)]
#[case(true, 503)]
#[tokio::test(start_paused = true)]
async fn while_the_breaker_is_open_nobody_waits(#[case] fail_closed: bool, #[case] want: i32) {
    let scripted = Arc::new(Scripted {
        is_open: true,
        ..Scripted::default()
    });
    let switches = Switches {
        fail_closed,
        ..routing()
    };
    let bed = Bed::of(scripted, switches);
    let start = Instant::now();
    let passed = bed.pass_list(1, &[], CHAT).await;
    assert_eq!(passed.map_or_else(|(status, _)| status, |_| 0), want);
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert!(bed.scripted.questions.lock().is_empty());
    bed.assert_has(&["epp_external_skipped_total{reason=\"breaker-open\"} 1"]);
}

/// One outside of pool and subset, or none: the picker chooses, and what was booked is given back.
#[rstest]
#[case::stranger(Some("10.9.9.9:8000"), &[], "no-member", true, true)]
#[case::none(None, &[], "no-worker", false, true)]
#[case::late(None, &[Degraded::RouteTimeout], "route-timeout", false, true)]
#[case::saturated(None, &[Degraded::RouteSaturated], "route-saturated", false, true)]
#[case::no_router(None, &[Degraded::NoRouter], "no-router", false, false)]
#[tokio::test(start_paused = true)]
async fn without_a_worker_of_the_pool_the_picker_chooses_and_the_booking_ends(
    #[case] worker: Option<&str>,
    #[case] degraded: &[Degraded],
    #[case] reason: &str,
    #[case] is_refused: bool,
    #[case] may_be_booked: bool,
) {
    let reply = ProcessReply {
        degraded: degraded.to_vec(),
        ..mk_reply(worker)
    };
    let switches = Switches {
        fail_closed: true,
        ..routing()
    };
    let bed = Bed::replying(reply, switches);
    let passed = bed.pass(&[], CHAT).await;
    assert!([A, B, C].contains(&passed.destination()));
    assert_eq!(
        passed.set["x-req-tokens-key"],
        mk_key().as_str(),
        "the ids are good"
    );
    let id = bed.scripted.question()["reservation_id"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    let ended = may_be_booked.then_some(LifeCycle::End(id));
    assert_eq!(bed.scripted.take_reports(), Vec::from_iter(ended));
    bed.assert_has(&[
        &format!("epp_external_fallback_total{{stage=\"route\",reason=\"{reason}\"}} 1"),
        &format!(
            "epp_external_pick_refused_total{{reason=\"no-member\"}} {}",
            u8::from(is_refused)
        ),
    ]);
}

#[rstest]
#[case::of_low_priority(-1, 429)]
#[case::others(0, 0)]
#[tokio::test(start_paused = true)]
async fn where_the_router_is_saturated_low_priorities_are_shed(
    #[case] priority: i32,
    #[case] want: i32,
) {
    let reply = ProcessReply {
        degraded: vec![Degraded::RouteSaturated],
        ..ProcessReply::default()
    };
    let mut config = small_config();
    config.objectives = [("o".to_owned(), priority)].into();
    config.trusted_headers.objective = true;
    let bed = Bed::with(Scripted::answering(WAIT, Ok(reply)), routing(), config);
    let fields = [("x-llm-d-inference-objective", "o")];
    let passed = bed.pass_list(1, &fields, CHAT).await;
    assert_eq!(passed.map_or_else(|(status, _)| status, |_| 0), want);
    assert_eq!(bed.scripted.question()["priority"], priority);
}

#[tokio::test(start_paused = true)]
async fn ids_that_the_cache_did_not_take_are_counted() {
    let reply = ProcessReply {
        token_value: Some(Bytes::from_static(b"[1]")),
        degraded: vec![Degraded::CacheWrite],
        ..ProcessReply::default()
    };
    let bed = Bed::replying(reply, Switches::default());
    bed.pass(&[], CHAT).await;
    bed.assert_has(&[
        "epp_external_fallback_total{stage=\"cache\",reason=\"cache-write\"} 1",
        "epp_external_tokens_total{transfer=\"direct\"} 1",
    ]);
}

/// Nobody is asked, and what clients may not send is taken out all the same.
#[tokio::test(start_paused = true)]
async fn a_request_that_is_not_for_the_processor_is_picked_for_at_once() {
    let switches = Switches {
        fail_closed: true,
        ..routing()
    };
    let bed = Bed::of(Scripted::silent(), switches);
    let several = r#"{"model":"m","prompt":["a","b"],"token_ids":[9]}"#;
    let (messages, mut replies) = open(&bed.shared, 1);
    send(
        &messages,
        Request::RequestHeaders(mk_headers(":path", "/v1/completions", false)),
    )
    .await;
    send(&messages, mk_whole(several)).await;
    let Response::RequestHeaders(part) = next(&mut replies).await else {
        panic!("not to the headers")
    };
    let (_, removed) = mutated(part);
    assert!(
        removed.iter().any(|name| name == "x-req-tokens-key"),
        "{removed:?}"
    );
    let Response::RequestBody(part) = next(&mut replies).await else {
        panic!("not to the body")
    };
    assert_eq!(
        streamed(part.response.unwrap().body_mutation),
        r#"{"model":"m","prompt":["a","b"]"#
    );
    bed.assert_has(&["epp_external_skipped_total{reason=\"several-prompts\"} 1"]);
}

/// A client for the Processor that fails.
#[derive(Debug)]
struct Panics;

impl CallProcessor for Panics {
    fn process(&self, _: Outgoing) -> BoxFuture<'static, Result<ProcessReply, NoReply>> {
        panic!("a fault, in a test")
    }

    fn report(&self, _: LifeCycle) {}

    fn is_open(&self) -> bool {
        false
    }
}

/// Without an answer, an Envoy that fails open would forward the request without a pick.
#[tokio::test(start_paused = true)]
async fn a_request_whose_decision_panics_gets_500_and_counts_nowhere() {
    let mut registry = Registry::default();
    let metrics = ExternalMetrics::register(&mut registry);
    let external = External::new(Switches::default(), Arc::new(Panics), metrics);
    let pool = Pool::default();
    pool.replace(vec![mk_member("a", A.parse().unwrap())], Moment::START);
    let config = CurrentConfig::new(small_config());
    let director = Director::new(pool, config, Options::default(), Clock::start());
    let director = director.staging(Some(Arc::new(external)));
    let shared = mk_shared_around(director, 1 << 20, &mut registry);
    for _ in 0..2 {
        let (messages, mut replies) = open(&shared, 1);
        send(&messages, mk_head(&[], false)).await;
        send(&messages, mk_whole(CHAT)).await;
        let Response::ImmediateResponse(refusal) = next(&mut replies).await else {
            panic!("it is not refused")
        };
        assert_eq!(refusal.status.unwrap().code, 500);
        assert_eq!(refusal.details, "internal");
        assert!(replies.next().await.is_none());
    }
    let snapshot = shared.director.pool().snapshot();
    assert_eq!(snapshot.members()[0].endpoint.load().in_flight(), 0);
}
