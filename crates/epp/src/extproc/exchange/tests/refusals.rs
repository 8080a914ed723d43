//! What is not passed on.

use super::*;

#[rstest]
#[case::no_json("{", "immediate 400 bad-request")]
#[case::no_model("{}", "immediate 400 bad-request")]
#[case::two_models(r#"{"model":"a","model":"b"}"#, "immediate 400 bad-request")]
#[case::nothing("", "immediate 400 bad-request")]
fn an_unreadable_body_is_refused(#[case] body: &str, #[case] want: &str) {
    let mut script = Script::new();
    script.on(mk_headers(CHAT, FDS));
    assert_eq!(script.on(mk_chunk(body, true)), [want, "close Done"]);
    assert!(
        script.on(mk_chunk(BODY, true)).is_empty(),
        "input after the close is ignored"
    );
    assert!(script.queries.is_empty());
}

#[test]
fn an_encoded_path_hides_no_body() {
    let mut script = Script::new();
    script.on(mk_headers("/v1/chat/c%6fmpletions", FDS));
    assert_eq!(
        script.on(mk_chunk("{}", true)),
        ["immediate 400 bad-request", "close Done"]
    );
}

/// The EPP does not know what a compressed body means; a request whose path is not read passes.
#[rstest]
#[case("zstd", CHAT, true)]
#[case("zstd, gzip", CHAT, true)]
#[case("identity", CHAT, false)]
#[case("Identity", CHAT, false)]
#[case("", CHAT, false)]
#[case("gzip", "/v1/files", false)]
fn an_encoded_body_is_refused_before_it_comes(
    #[case] encoding: &'static str,
    #[case] path: &'static str,
    #[case] is_refused: bool,
) {
    let head = RequestHead {
        path: path.into(),
        fields: vec![("content-encoding".into(), encoding.into())],
        modes: Some(FDS),
        ..RequestHead::default()
    };
    let words = Script::new().on(Input::RequestHeaders(head));
    let refused = ["immediate 415 content-encoding", "close Done"];
    assert_eq!(words == refused, is_refused, "{words:?}");
}

#[test]
fn a_path_that_is_no_text_is_refused() {
    assert_eq!(
        Script::new().on(mk_headers("/v1/completions%ff", FDS)),
        ["immediate 400 bad-request", "close Done"]
    );
}

#[test]
fn a_body_over_the_limit_is_refused_before_and_while_it_comes() {
    let mut declared = Script::with_limits(10, 1 << 20);
    let head = RequestHead {
        path: CHAT.into(),
        content_length: Some(11),
        modes: Some(FDS),
        ..RequestHead::default()
    };
    assert_eq!(
        declared.on(Input::RequestHeaders(head)),
        ["immediate 413 body-too-large", "close Done"]
    );

    let mut growing = Script::with_limits(10, 1 << 20);
    growing.on(mk_headers(CHAT, FDS));
    assert!(
        growing.on(mk_chunk("0123456789", false)).is_empty(),
        "the limit itself is fine"
    );
    assert_eq!(
        growing.on(mk_chunk("x", false)),
        ["immediate 413 body-too-large", "close Done"]
    );
    assert_eq!(growing.budget.used(), 0);
}

#[test]
fn the_shared_budget_is_refused_with_a_retry() {
    let mut script = Script::with_limits(1 << 20, 10);
    script.on(mk_headers(CHAT, FDS));
    assert_eq!(
        script.on(mk_chunk(BODY, false)),
        ["immediate 429 saturated", "close Done"]
    );
}

#[test]
fn room_made_for_a_declared_length_counts_before_it_is_filled() {
    let declaring = |length| {
        Input::RequestHeaders(RequestHead {
            path: CHAT.into(),
            content_length: Some(length),
            modes: Some(FDS),
            ..RequestHead::default()
        })
    };
    let mut fits = Script::with_limits(1 << 20, 5000);
    fits.on(declaring(4000));
    fits.on(mk_chunk(piece(0, 5), false));
    fits.on(mk_chunk(piece(5, 9), false));
    assert_eq!(fits.budget.used(), 4000);

    let mut too_much = Script::with_limits(1 << 20, 3000);
    too_much.on(declaring(4000));
    assert!(too_much.on(mk_chunk(piece(0, 5), false)).is_empty());
    assert_eq!(
        too_much.on(mk_chunk(piece(5, 9), false)),
        ["immediate 429 saturated", "close Done"]
    );
    assert_eq!(too_much.budget.used(), 0);
}

#[test]
fn a_body_of_no_declared_length_takes_twice_its_bytes_at_most_and_never_over_the_limit() {
    let mut script = Script::with_limits(1000, 1 << 20);
    script.on(mk_headers(CHAT, FDS));
    for round in 1..=250 {
        assert!(script.on(mk_chunk("1234", false)).is_empty());
        let used = script.budget.used();
        assert!(
            (round * 4..=(round * 8).min(1000)).contains(&used),
            "{used} bytes in round {round}"
        );
    }
}

#[test]
fn silence_in_a_body_is_refused_after_the_timeout_only() {
    let mut script = Script::new();
    script.on(mk_headers(CHAT, FDS));
    let later = NOW.plus(Duration::from_secs(30));
    script.at(later, mk_chunk(piece(0, 5), false));
    let deadline = script.exchange.deadline().unwrap();
    assert_eq!(
        deadline,
        later.plus(Duration::from_mins(1)),
        "each part starts it anew"
    );
    assert!(
        script
            .at(Moment::from_millis(61_000), Input::Timer)
            .is_empty()
    );
    assert_eq!(
        script.at(deadline, Input::Timer),
        ["immediate 408 body-timeout", "close Done"]
    );
}

#[test]
fn no_pick_is_told_to_the_client() {
    let mut script = Script::new();
    script.hold_decisions = true;
    script.on(mk_headers(CHAT, FDS));
    script.on(mk_chunk(BODY, true));
    let got = script.on(Input::Decided(Err(NoPick::EmptyPool.into())));
    assert_eq!(got, ["immediate 503 no-endpoints", "close Done"]);
}

#[rstest]
#[case::body_first(vec![mk_chunk(BODY, true)])]
#[case::trailers_first(vec![Input::RequestTrailers])]
#[case::headers_twice(vec![mk_headers(CHAT, FDS), mk_headers(CHAT, FDS)])]
#[case::response_body_first(vec![mk_headers(CHAT, FDS), mk_response_chunk("x", true)])]
#[case::response_headers_twice(vec![mk_headers("/x", FDS), mk_response(false), mk_response(false)])]
#[case::unknown_mode(vec![Input::UnknownMode(5)])]
fn a_broken_protocol_closes_with_invalid_argument(#[case] inputs: Vec<Input>) {
    let mut script = Script::new();
    let got: Vec<_> = inputs
        .into_iter()
        .flat_map(|input| script.on(input))
        .collect();
    assert!(
        got.last().unwrap().starts_with("close InvalidArgument"),
        "{got:?}"
    );
    assert_eq!(script.in_flight(), [0, 0]);
}
