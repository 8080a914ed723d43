//! Responses, and how streams end.

use scheduling::Allowed;

use super::*;

const UNSEEN: Modes = Modes {
    response: BodyMode::None,
    ..FDS
};

/// A script whose request was answered in full.
fn mk_sent(modes: Modes) -> Script {
    let mut script = Script::new();
    let head = RequestHead {
        path: CHAT.into(),
        end: true,
        modes: Some(modes),
        ..RequestHead::default()
    };
    script.on(Input::RequestHeaders(head));
    script
}

#[test]
fn events_are_echoed_one_by_one_and_the_end_frees_the_endpoint() {
    let mut script = mk_sent(FDS);
    assert_eq!(script.on(mk_response(false)), ["<headers"]);
    assert_eq!(
        script.on(mk_response_chunk("data: 1\n\n", false)),
        [r#"<body "data: 1\n\n""#]
    );
    assert_eq!(script.in_flight(), [1, 0]);
    assert_eq!(script.on(mk_response_chunk("", true)), [r#"<body "" end"#]);
    assert_eq!(script.in_flight(), [0, 0]);
    assert!(
        script.on(mk_response_chunk("", true)).is_empty(),
        "a second end is ignored"
    );
}

#[rstest]
#[case(BodyMode::Streamed)]
#[case(BodyMode::Buffered)]
fn other_modes_get_an_empty_answer_per_part(#[case] mode: BodyMode) {
    let mut script = mk_sent(mk_modes(mode));
    script.on(mk_response(false));
    assert_eq!(script.on(mk_response_chunk("data", false)), ["<body"]);
    assert_eq!(script.on(Input::ResponseTrailers), ["<trailers"]);
    assert_eq!(script.in_flight(), [0, 0]);
}

#[test]
fn a_response_without_body_is_complete_at_its_headers() {
    let mut script = mk_sent(FDS);
    assert_eq!(script.on(mk_response(true)), ["<headers"]);
    assert_eq!(script.in_flight(), [0, 0]);
}

/// Its body is not sent to us: the server works until the peer closes the stream, however long that takes.
#[rstest]
#[case::closed(Input::PeerClosed, &["close Done"])]
#[case::drained(Input::Drain, &["close Done"])]
fn a_response_whose_body_passes_unseen_lasts_until_the_peer_closes(
    #[case] end: Input,
    #[case] want: &[&str],
) {
    let mut script = mk_sent(UNSEEN);
    assert_eq!(script.on(mk_response(false)), ["<headers"]);
    assert_eq!(script.in_flight(), [1, 0]);
    assert_eq!(script.exchange.deadline(), None);
    assert_eq!(script.on(end), want);
    assert_eq!(script.in_flight(), [0, 0]);
}

#[test]
fn trailers_of_a_response_whose_body_passes_unseen_are_answered() {
    let mut script = mk_sent(UNSEEN);
    script.on(mk_response(false));
    assert_eq!(script.on(Input::ResponseTrailers), ["<trailers"]);
    assert_eq!(script.in_flight(), [0, 0]);
}

#[test]
fn a_peer_that_does_not_close_is_closed_after_five_seconds() {
    let mut script = mk_sent(FDS);
    assert_eq!(
        script.exchange.deadline(),
        None,
        "a long generation has no deadline of ours"
    );
    script.on(mk_response(true));
    let deadline = script.exchange.deadline().unwrap();
    assert_eq!(deadline, NOW.plus(Duration::from_secs(5)));
    assert_eq!(script.at(deadline, Input::Timer), ["close Done"]);
}

#[rstest]
#[case::by_a_chunk(mk_chunk("b", true))]
#[case::by_trailers(Input::RequestTrailers)]
fn a_peer_may_upload_for_as_long_as_it_likes_after_its_response(#[case] end: Input) {
    let mut script = Script::new();
    script.on(mk_headers("/x", FDS));
    script.on(mk_response(true));
    assert_eq!(script.exchange.deadline(), None);
    let later = NOW.plus(Duration::from_mins(10));
    assert_eq!(script.at(later, mk_chunk("a", false)), [echo("a", false)]);
    assert_eq!(script.exchange.deadline(), None);
    script.at(later, end);
    let deadline = later.plus(Duration::from_secs(5));
    assert_eq!(script.exchange.deadline(), Some(deadline));
}

#[test]
fn a_peer_without_request_body_is_closed_after_five_seconds_too() {
    let mut script = Script::new();
    script.on(mk_headers("/x", mk_modes(BodyMode::None)));
    script.on(mk_response(true));
    assert_eq!(
        script.exchange.deadline(),
        Some(NOW.plus(Duration::from_secs(5)))
    );
}

#[test]
fn a_stream_that_stays_silent_is_closed() {
    let mut script = Script::new();
    let deadline = script.exchange.deadline().unwrap();
    assert_eq!(script.at(deadline, Input::Timer), ["close Done"]);
}

#[test]
fn an_early_response_cancels_the_collecting() {
    let mut script = Script::new();
    script.on(mk_headers(CHAT, FDS));
    script.on(mk_chunk(piece(0, 5), false));
    assert_eq!(script.on(mk_response(false)), ["<headers"]);
    assert_eq!(script.budget.used(), 0);
    assert!(
        script.on(mk_chunk(piece(5, BODY.len()), true)).is_empty(),
        "the request is over"
    );
    assert_eq!(
        script.on(mk_response_chunk("no", true)),
        [r#"<body "no" end"#]
    );
}

#[test]
fn an_early_response_cancels_an_open_decision_and_its_place() {
    let mut script = Script::new();
    script.hold_decisions = true;
    script.on(mk_headers(CHAT, FDS));
    script.on(mk_chunk(BODY, true));
    assert_eq!(script.on(mk_response(false)), ["<headers"]);
    assert!(script.decide().is_empty());
    assert_eq!(script.in_flight(), [0, 0]);
}

#[test]
fn an_upload_goes_on_while_its_response_comes() {
    let mut script = Script::new();
    script.on(mk_headers("/v1/files", FDS));
    script.on(mk_chunk("a", false));
    script.on(mk_response(false));
    assert_eq!(script.on(mk_chunk("b", true)), [echo("b", true)]);
    assert_eq!(script.in_flight(), [1, 0]);
}

#[test]
fn a_stream_that_begins_with_a_response_is_passed() {
    let mut script = Script::new();
    let head = ResponseHead {
        is_sse: false,
        status: 403,
        end: false,
        modes: Some(FDS),
    };
    assert_eq!(script.on(Input::ResponseHeaders(head)), ["<headers"]);
    assert_eq!(
        script.on(mk_response_chunk("no", true)),
        [r#"<body "no" end"#]
    );
    assert!(script.queries.is_empty());
}

#[test]
fn the_endpoint_that_served_takes_over_the_count() {
    let served = |address: &str| {
        Input::Context(Context {
            subset: None,
            served: Some(address.parse().unwrap()),
        })
    };
    let mut picked = mk_sent(FDS);
    assert!(picked.on(served("10.0.0.1:8000")).is_empty());
    assert_eq!(picked.in_flight(), [1, 0]);

    let mut fallback = mk_sent(FDS);
    assert_eq!(fallback.on(served("10.0.0.2:8000")), ["elsewhere true"]);
    assert_eq!(fallback.in_flight(), [0, 1]);
    assert!(
        fallback.on(served("10.0.0.2:8000")).is_empty(),
        "each later message says it again"
    );

    let mut outside = mk_sent(FDS);
    assert_eq!(outside.on(served("10.9.9.9:8000")), ["elsewhere false"]);
    assert_eq!(outside.in_flight(), [1, 0]);
    outside
        .exchange
        .serve_from(Arc::clone(&outside.snapshot.members()[1].endpoint));
    assert_eq!(outside.in_flight(), [0, 1]);

    let mut stranger = mk_sent(FDS);
    assert_eq!(stranger.on(served("10.9.9.9:8000")), ["elsewhere false"]);
    stranger.exchange.serve_elsewhere();
    assert_eq!(stranger.in_flight(), [0, 0]);
    stranger.on(mk_response(false));
    stranger.on(mk_response_chunk("a", true));
    assert_eq!(stranger.in_flight(), [0, 0]);
}

/// A proxy without a filter that names the endpoint sends the same attributes with each event of a response.
#[test]
fn who_served_is_looked_for_up_to_the_response_headers() {
    let mut script = mk_sent(FDS);
    assert!(script.exchange.wants_attributes());
    script.on(mk_response(false));
    assert!(!script.exchange.wants_attributes());
}

/// Some clients close at the last event, before the proxy receives the end of the response.
#[test]
fn tokens_that_a_response_told_count_where_its_stream_is_reset() {
    const EVENT: &str = "data: {\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2}}\n\n";
    let mut script = Script::new();
    script.restores = Some("m");
    script.on(mk_headers(CHAT, FDS));
    script.on(mk_chunk(BODY, true));
    script.on(mk_response(false));
    script.on(mk_response_chunk(EVENT, false));
    let outputs = script.exchange.on(Input::PeerClosed, NOW);
    let usages = outputs.iter().filter_map(|output| match output {
        Output::Observe(Event::Usage(usage)) => Some((usage.input_tokens, usage.output_tokens)),
        _ => None,
    });
    assert_eq!(usages.collect::<Vec<_>>(), [(Some(7), Some(2))]);
    assert!(script.exchange.abandon().is_empty(), "once");
}

/// Also of a response that no pick led to, such as one of the proxy itself.
#[rstest]
#[case::served(Some("10.0.0.2:8000"), true, Some("10.0.0.2:8000"))]
#[case::not_said(None, true, Some("fail: missing"))]
#[case::not_asked_for(Some("10.0.0.2:8000"), false, None)]
fn responses_say_who_served_them_where_a_test_asks(
    #[case] served: Option<&str>,
    #[case] asked: bool,
    #[case] header: Option<&'static str>,
) {
    for mut script in [mk_sent(FDS), Script::new()] {
        if asked {
            script.exchange.report_served();
        }
        assert!(script.exchange.wants_attributes());
        let served = served.map(|address| address.parse().unwrap());
        script.exchange.on(
            Input::Context(Context {
                subset: None,
                served,
            }),
            NOW,
        );
        let mut outputs = script.exchange.on(mk_response(false), NOW).into_iter();
        let found = outputs.find_map(|output| match output {
            Output::Reply(Reply::Headers(Phase::Response, route)) => Some(route),
            _ => None,
        });
        let route = found.unwrap();
        let set = route.as_ref().map(|route| route.edit.headers_to_set());
        let set = set.and_then(|set| set.first());
        let set = set.map(|(name, value)| (&**name, std::str::from_utf8(value).unwrap()));
        assert_eq!(
            set,
            header.map(|header| ("x-conformance-test-served-endpoint", header))
        );
    }
}

#[test]
fn the_latest_subset_before_the_pick_counts() {
    let context = |list: &str| {
        let mut subset = Subset::default();
        subset.extend_from_list(list);
        Input::Context(Context {
            subset: Some(subset),
            served: None,
        })
    };
    let mut script = Script::new();
    script.on(context("10.0.0.1"));
    script.on(mk_headers(CHAT, FDS));
    script.on(context("10.0.0.2"));
    script.on(mk_chunk(BODY, true));
    let subset = script.queries[0].subset.clone().unwrap();
    let latest = Allowed::Ip("10.0.0.2".parse().unwrap());
    assert_eq!(subset.entries(), [latest]);
}

#[test]
fn a_peer_that_leaves_frees_the_endpoint() {
    let mut script = mk_sent(FDS);
    script.on(mk_response(false));
    assert_eq!(script.on(Input::PeerClosed), ["close Done"]);
    assert_eq!(script.in_flight(), [0, 0]);
}

#[rstest]
#[case::collecting(vec![mk_headers(CHAT, FDS)], &["immediate 503 shutting-down", "close Done"])]
#[case::uploading(vec![mk_headers("/x", FDS), mk_chunk("a", false)], &["close Unavailable"])]
#[case::waiting_for_the_response(vec![mk_headers("/x", FDS), mk_chunk("a", true)], &["close Done"])]
#[case::responding(vec![mk_headers("/x", FDS), mk_chunk("", true), mk_response(false)], &["close Unavailable"])]
#[case::complete(vec![mk_headers("/x", FDS), mk_chunk("", true), mk_response(true)], &["close Done"])]
#[case::uploading_after_the_response(vec![mk_headers("/x", FDS), mk_chunk("a", false), mk_response(true)], &["close Unavailable"])]
#[case::no_body_to_come(vec![mk_headers("/x", mk_modes(BodyMode::None))], &["close Done"])]
#[case::silent(vec![], &["close Unavailable"])]
fn the_end_of_a_drain_hurts_as_little_as_it_can(#[case] inputs: Vec<Input>, #[case] want: &[&str]) {
    let mut script = Script::new();
    for input in inputs {
        script.on(input);
    }
    assert_eq!(script.on(Input::Drain), want);
    assert_eq!(script.in_flight(), [0, 0]);
}

#[test]
fn an_open_decision_is_refused_at_the_end_of_a_drain() {
    let mut script = Script::new();
    script.hold_decisions = true;
    script.on(mk_headers(CHAT, FDS));
    script.on(mk_chunk(BODY, true));
    assert_eq!(
        script.on(Input::Drain),
        ["immediate 503 shutting-down", "close Done"]
    );
}
