//! Large bodies, which are read elsewhere.

use super::*;

const BUFFERED: Modes = mk_modes(BodyMode::Buffered);

fn mk_large() -> String {
    format!(r#"{{"model":"m","messages":["{}"]}}"#, "x".repeat(1 << 20))
}

fn mk_script() -> Script {
    Script::with_limits(4 << 20, 8 << 20)
}

/// A large body came, and is being read.
fn mk_reading() -> Script {
    let mut script = mk_script();
    script.hold_reads = true;
    script.on(mk_headers(CHAT, FDS));
    assert!(script.on(mk_chunk(&mk_large(), true)).is_empty());
    script
}

#[test]
fn only_a_large_body_is_read_elsewhere() {
    for (body, reads) in [(BODY.to_owned(), 0), (mk_large(), 1)] {
        let mut script = mk_script();
        script.on(mk_headers(CHAT, FDS));
        let words = script.on(mk_chunk(&body, true));
        assert_eq!(words[0], "headers pick");
        assert!(words.last().unwrap().ends_with(" end"));
        assert_eq!(script.reads.len(), reads);
        assert_eq!(script.model(), Some("m"));
        assert_eq!(script.queries[0].body, body);
    }
}

#[test]
fn a_large_body_that_is_no_json_is_refused() {
    let mut script = mk_script();
    script.on(mk_headers(CHAT, FDS));
    assert_eq!(
        script.on(mk_chunk(&"{".repeat(2 << 20), true)),
        ["immediate 400 bad-request", "close Done"]
    );
}

#[rstest]
#[case::drain(Input::Drain, &["immediate 503 shutting-down", "close Done"])]
#[case::early_response(mk_response(false), &["<headers"])]
#[case::reset(Input::PeerClosed, &["close Done"])]
#[case::too_many_before_it(Input::Timer, &["immediate 429 saturated", "close Done"])]
fn what_ends_the_wait_for_a_body_to_be_read(#[case] input: Input, #[case] want: &[&str]) {
    let mut script = mk_reading();
    let later = script.exchange.deadline().expect("it is bounded");
    assert_eq!(script.at(later, input), want);
    assert!(!script.exchange.is_reading());
    assert!(script.read().is_empty(), "of no use any more");
    assert!(script.queries.is_empty());
    assert_eq!(script.budget.used(), 0);
}

#[test]
fn what_follows_the_body_is_answered_after_the_pick_and_a_second_end_is_not() {
    let mut script = mk_script();
    script.hold_reads = true;
    script.on(mk_headers(CHAT, BUFFERED));
    script.on(mk_chunk(&mk_large(), false));
    assert!(script.on(mk_chunk("more", true)).is_empty());
    assert!(script.on(Input::RequestTrailers).is_empty());
    assert_eq!(script.read(), ["body pick", "trailers"]);
}

#[test]
fn a_proxy_that_waits_is_asked_once_to_wait_for_reading_and_queue() {
    let mut script = mk_script();
    (script.hold_reads, script.hold_decisions) = (true, true);
    assert_eq!(script.on(mk_headers(CHAT, BUFFERED)), ["headers"]);
    assert_eq!(script.on(mk_chunk(&mk_large(), true)), ["wait 310"]);
    assert!(script.read().is_empty());
    assert!(script.on(Input::Queued).is_empty());
    assert_eq!(script.decide(), ["body pick"]);
}
