use bytes::Bytes;
use rstest::rstest;
use scheduling::{EndpointId, Member, NoPick, Registry, Snapshot};

use super::{request::EARLY_LOOKS, *};
use crate::{
    body::Api,
    edit::Edit,
    extproc::message::{Answer, Chunk, Part, Query, RequestHead, ResponseHead, Route, Streamed},
};

mod edits;
mod reading;
mod refusals;
mod responses;

const NOW: Moment = Moment::from_millis(1_000);
const CHAT: &str = "/v1/chat/completions";
const BODY: &str = r#"{"model":"m","messages":[]}"#;
const FDS: Modes = mk_modes(BodyMode::FullDuplexStreamed);

/// An exchange with two endpoints to decide for, and a log of what it replied.
pub(super) struct Script {
    pub(super) exchange: Exchange,
    pub(super) snapshot: Snapshot,
    pub(super) queries: Vec<Query>,
    /// Decisions stay open until [`Script::decide`].
    pub(super) hold_decisions: bool,
    /// Bodies read elsewhere.
    reads: Vec<(Api, Bytes)>,
    /// What the last one says stays unknown until [`Script::read`].
    hold_reads: bool,
    budget: Budget,
    /// Of the decisions to come.
    edit: Edit,
    restores: Option<&'static str>,
}

const fn mk_modes(mode: BodyMode) -> Modes {
    Modes {
        request: mode,
        response: mode,
        body_before_headers_reply: false,
    }
}

fn mk_member(index: u8) -> Member {
    Member {
        id: EndpointId {
            namespace: "ns".into(),
            pod: format!("pod-{index}").into(),
            rank: 0,
            uid: format!("uid-{index}").into(),
        },
        address: format!("10.0.0.{index}:8000").parse().unwrap(),
        engine: "".into(),
        labels: Arc::default(),
    }
}

pub(super) fn mk_chunk(text: &str, end: bool) -> Input {
    Input::RequestBody(Chunk {
        bytes: text.to_owned().into(),
        end,
    })
}

pub(super) fn mk_response_chunk(text: &str, end: bool) -> Input {
    Input::ResponseBody(Chunk {
        bytes: text.to_owned().into(),
        end,
    })
}

pub(super) fn mk_headers(path: &str, modes: Modes) -> Input {
    Input::RequestHeaders(RequestHead {
        path: path.to_owned().into(),
        has_request_id: true,
        modes: Some(modes),
        ..RequestHead::default()
    })
}

pub(super) fn mk_response(end: bool) -> Input {
    Input::ResponseHeaders(ResponseHead {
        is_sse: false,
        status: 200,
        end,
        modes: None,
    })
}

impl Script {
    pub(super) fn new() -> Self {
        Self::with_limits(1 << 20, 1 << 20)
    }

    fn with_limits(max_body: u64, max_buffered: u64) -> Self {
        let budget = Budget::new(max_buffered);
        let limits = Limits {
            max_body,
            body_timeout: Duration::from_mins(1),
            budget: budget.clone(),
            default_mode: BodyMode::FullDuplexStreamed,
        };
        Self {
            exchange: Exchange::new(limits, 1, NOW),
            snapshot: Registry::default().update(vec![mk_member(1), mk_member(2)], NOW),
            queries: Vec::new(),
            hold_decisions: false,
            reads: Vec::new(),
            hold_reads: false,
            budget,
            edit: Edit::default(),
            restores: None,
        }
    }

    /// Feeds an input at `now` and gives the replies in short words.
    pub(super) fn at(&mut self, now: Moment, input: Input) -> Vec<String> {
        let mut words = Vec::new();
        let mut outputs: std::collections::VecDeque<_> =
            self.exchange.on(input, now).into_iter().collect();
        while let Some(output) = outputs.pop_front() {
            match output {
                Output::Decide(query) => {
                    self.queries.push(*query);
                    if !self.hold_decisions {
                        outputs.extend(self.exchange.on(self.answer(), now));
                    }
                }
                Output::Read(api, body) => {
                    let parsed = api.parse(&body);
                    self.reads.push((api, body));
                    if !self.hold_reads {
                        outputs.extend(self.exchange.on(Input::Read(parsed), now));
                    }
                }
                Output::Reply(reply) => words.push(word(&reply)),
                Output::Observe(Event::ServedElsewhere { in_list, .. }) => {
                    words.push(format!("elsewhere {in_list}"));
                }
                Output::Observe(_) => {}
                Output::Close(close) => words.push(format!("close {close:?}")),
            }
        }
        words
    }

    pub(super) fn on(&mut self, input: Input) -> Vec<String> {
        self.at(NOW, input)
    }

    /// The decision for the first endpoint, the second as fallback.
    fn answer(&self) -> Input {
        let endpoints: SmallVec<[Arc<Endpoint>; 1]> = self.snapshot.endpoints().cloned().collect();
        let transit = Duration::ZERO;
        let booking = Booking::new(Arc::clone(&endpoints[0]), 0, None, NOW, transit);
        let route = Route {
            destination: Some("10.0.0.1:8000".into()),
            edit: self.edit.clone(),
            ..Route::default()
        };
        Input::Decided(Ok(Box::new(Answer {
            route,
            endpoints,
            booking,
            tap: self.restores.map(ResponseTap::restoring),
            transcoder: None,
            session: None,
            prefix: None,
            learned: None,
            llm: None,
            staged: None,
            scheduling: Duration::ZERO,
        })))
    }

    /// The last body that is read elsewhere is read.
    fn read(&mut self) -> Vec<String> {
        let (api, body) = self.reads.pop().expect("a body to read");
        let parsed = api.parse(&body);
        drop(body);
        self.on(Input::Read(parsed))
    }

    fn decide(&mut self) -> Vec<String> {
        self.on(self.answer())
    }

    /// The model that the first decision was asked for with.
    fn model(&self) -> Option<&str> {
        let parsed = self.queries[0].parsed.as_ref()?;
        Some(parsed.model.as_str())
    }

    pub(super) fn in_flight(&self) -> Vec<u32> {
        self.snapshot
            .endpoints()
            .map(|endpoint| endpoint.load().in_flight())
            .collect()
    }
}

/// `headers pick`, `body "text" end`, `body` (no bytes of ours), `trailers`; responses begin with `<`.
fn word(reply: &Reply) -> String {
    let side = |phase: &Phase| if *phase == Phase::Response { "<" } else { "" };
    let pick = |route: &Option<Box<Route>>| match route.as_deref() {
        None => "",
        Some(Route {
            destination: None, ..
        }) => " edit",
        Some(_) => " pick",
    };
    match reply {
        Reply::Headers(phase, route) => format!("{}headers{}", side(phase), pick(route)),
        Reply::Body { phase, route, part } => {
            let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
            let streamed = match part {
                Part::Kept => String::new(),
                Part::Replaced(bytes) => format!(" ={:?}", text(bytes)),
                Part::Streamed(Streamed { bytes, end }) => {
                    format!(" {:?}{}", text(bytes), if *end { " end" } else { "" })
                }
            };
            format!("{}body{}{streamed}", side(phase), pick(route))
        }
        Reply::Trailers(phase) => format!("{}trailers", side(phase)),
        Reply::Immediate(reject) => format!("immediate {} {}", reject.status(), reject.reason()),
        Reply::Wait(limit) => format!("wait {}", limit.as_secs()),
    }
}

/// A part of [`BODY`].
fn piece(from: usize, to: usize) -> &'static str {
    BODY.get(from..to).unwrap()
}

fn echo(text: &str, end: bool) -> String {
    format!("body {text:?}{}", if end { " end" } else { "" })
}

// === full duplex ===

#[rstest]
#[case::end_on_the_data(vec![mk_chunk(BODY, true)], vec!["headers pick".into(), echo(BODY, true)])]
#[case::end_by_an_empty_chunk(vec![mk_chunk(BODY, false), mk_chunk("", true)], vec!["headers pick".into(), echo(BODY, true)])]
#[case::end_by_trailers(vec![mk_chunk(BODY, false), Input::RequestTrailers], vec!["headers pick".into(), echo(BODY, false), "trailers".into()])]
#[case::cut_in_three(
    vec![mk_chunk(piece(0, 5), false), mk_chunk(piece(5, 9), false), mk_chunk(piece(9, BODY.len()), true)],
    vec!["headers pick".into(), echo(BODY, true)],
)]
fn a_body_is_collected_then_given_back_after_the_pick(
    #[case] inputs: Vec<Input>,
    #[case] want: Vec<String>,
) {
    let mut script = Script::new();
    assert!(
        script.on(mk_headers(CHAT, FDS)).is_empty(),
        "nothing before the body is in"
    );
    let got: Vec<_> = inputs
        .into_iter()
        .flat_map(|input| script.on(input))
        .collect();
    assert_eq!(got, want);
    assert_eq!(script.model(), Some("m"));
    assert_eq!(script.in_flight(), [1, 0]);
}

#[test]
fn a_second_end_of_stream_is_ignored() {
    let mut script = Script::new();
    script.on(mk_headers(CHAT, FDS));
    script.on(mk_chunk(BODY, true));
    assert!(script.on(mk_chunk("", true)).is_empty());
    assert!(script.on(mk_chunk("more", false)).is_empty());
}

/// Also where the pick waits: the second end must not become a part of the body.
#[test]
fn what_comes_after_the_end_while_the_pick_is_awaited_is_ignored() {
    let mut script = Script::new();
    script.hold_decisions = true;
    script.on(mk_headers(CHAT, FDS));
    script.on(mk_chunk(BODY, true));
    script.on(mk_chunk("more", true));
    script.on(Input::RequestTrailers);
    assert_eq!(
        script.decide(),
        ["headers pick".to_owned(), echo(BODY, true)]
    );
}

#[test]
fn a_large_body_comes_back_in_pieces_with_one_end() {
    let text = format!(r#"{{"model":"m","messages":["{}"]}}"#, "x".repeat(150_000));
    let mut script = Script::new();
    script.on(mk_headers(CHAT, FDS));
    let got = script.on(mk_chunk(&text, true));
    assert_eq!(got.len(), 1 + 3, "headers, then 62,000 bytes a piece");
    assert_eq!(got.iter().filter(|word| word.ends_with(" end")).count(), 1);
    assert!(got[3].ends_with(" end"));
    script.queries.clear();
    assert_eq!(
        script.budget.used(),
        0,
        "the pieces were dropped, and so their bytes"
    );
}

#[rstest]
#[case::headers_only(RequestHead { path: CHAT.into(), end: true, modes: Some(FDS), ..RequestHead::default() })]
#[case::no_body_mode(RequestHead { path: CHAT.into(), modes: Some(mk_modes(BodyMode::None)), ..RequestHead::default() })]
fn without_a_body_the_pick_is_made_at_once(#[case] head: RequestHead) {
    let mut script = Script::new();
    assert_eq!(script.on(Input::RequestHeaders(head)), ["headers pick"]);
    assert_eq!(script.model(), None);
}

#[test]
fn an_unread_path_is_echoed_as_it_comes() {
    let mut script = Script::new();
    assert_eq!(script.on(mk_headers("/v1/files", FDS)), ["headers pick"]);
    assert_eq!(script.on(mk_chunk("abc", false)), [echo("abc", false)]);
    assert_eq!(script.on(mk_chunk("", true)), [echo("", true)]);
    assert!(script.on(mk_chunk("", true)).is_empty());
}

#[test]
fn an_unread_path_may_end_with_trailers() {
    let mut script = Script::new();
    script.on(mk_headers("/v1/files", FDS));
    assert_eq!(script.on(Input::RequestTrailers), ["trailers"]);
}

#[test]
fn chunks_that_come_while_the_decision_is_open_follow_the_headers() {
    let mut script = Script::new();
    script.hold_decisions = true;
    assert!(script.on(mk_headers("/v1/files", FDS)).is_empty());
    assert!(script.on(mk_chunk("ab", false)).is_empty());
    assert!(script.on(mk_chunk("cd", true)).is_empty());
    assert_eq!(
        script.decide(),
        ["headers pick".to_owned(), echo("abcd", true)]
    );
}

// === the other modes ===

#[rstest]
#[case(BodyMode::Buffered)]
#[case(BodyMode::BufferedPartial)]
fn buffered_gets_its_pick_with_the_body(#[case] mode: BodyMode) {
    let mut script = Script::new();
    assert_eq!(script.on(mk_headers(CHAT, mk_modes(mode))), ["headers"]);
    assert_eq!(script.on(mk_chunk(BODY, true)), ["body pick"]);
    assert_eq!(script.model(), Some("m"));
}

#[test]
fn buffered_with_trailers_answers_both() {
    let mut script = Script::new();
    script.on(mk_headers(CHAT, mk_modes(BodyMode::Buffered)));
    assert_eq!(script.on(mk_chunk(BODY, false)), ["body pick"]);
    assert_eq!(script.on(Input::RequestTrailers), ["trailers"]);
}

#[test]
fn a_truncated_body_is_picked_for_unread() {
    let mut script = Script::new();
    script.on(mk_headers(CHAT, mk_modes(BodyMode::BufferedPartial)));
    assert_eq!(script.on(mk_chunk(piece(0, 9), false)), ["body pick"]);
    assert_eq!(script.model(), None);
}

/// Where trailers follow, no body message is the last, and Envoy sends them only once its headers are answered.
#[rstest]
#[case(mk_modes(BodyMode::BufferedPartial), &["body pick"])]
#[case(STREAMED_AHEAD, &["headers pick", "body"])]
fn a_body_that_is_complete_is_read_before_its_trailers(
    #[case] modes: Modes,
    #[case] answers: &[&str],
) {
    let mut script = Script::new();
    script.on(mk_headers(CHAT, modes));
    assert_eq!(script.on(mk_chunk(BODY, false)), answers);
    assert_eq!(script.model(), Some("m"));
    assert_eq!(script.on(Input::RequestTrailers), ["trailers"]);
}

#[test]
fn a_body_that_only_looks_complete_is_read_a_few_times() {
    let mut script = Script::new();
    script.on(mk_headers(CHAT, STREAMED_AHEAD));
    script.on(mk_chunk(r#"{"model":"m","prompt":"}"#, false));
    for _ in 0..EARLY_LOOKS {
        assert!(script.on(mk_chunk("}", false)).is_empty());
    }
    assert!(script.on(mk_chunk(r#""}"#, false)).is_empty());
    assert_eq!(script.on(mk_chunk("", true))[0], "headers pick");
    assert_eq!(script.model(), Some("m"));
}

#[test]
fn buffered_answers_an_unread_path_at_once_and_its_body_empty() {
    let mut script = Script::new();
    assert_eq!(
        script.on(mk_headers("/v1/files", mk_modes(BodyMode::Buffered))),
        ["headers pick"]
    );
    assert_eq!(script.on(mk_chunk("abc", true)), ["body"]);
}

const STREAMED_AHEAD: Modes = Modes {
    body_before_headers_reply: true,
    ..mk_modes(BodyMode::Streamed)
};

#[test]
fn streamed_holds_its_answers_to_the_end_and_gives_one_each() {
    let mut script = Script::new();
    assert_eq!(script.on(mk_headers(CHAT, STREAMED_AHEAD)), ["wait 360"]);
    assert!(script.on(mk_chunk(piece(0, 9), false)).is_empty());
    assert_eq!(
        script.on(mk_chunk(piece(9, BODY.len()), true)),
        ["headers pick", "body", "body"]
    );
    assert_eq!(script.model(), Some("m"));
}

#[test]
fn streamed_decides_unread_before_the_proxy_stops_reading() {
    let mut script = Script::new();
    script.on(mk_headers(CHAT, STREAMED_AHEAD));
    let chunk = "x".repeat(100 * 1024);
    assert!(script.on(mk_chunk(&chunk, false)).is_empty());
    assert!(script.on(mk_chunk(&chunk, false)).is_empty());
    assert_eq!(
        script.on(mk_chunk(&chunk, false)),
        ["headers pick", "body", "body", "body"]
    );
    assert_eq!(script.model(), None);
    assert_eq!(script.on(mk_chunk("", true)), ["body"]);
}

#[test]
fn what_streamed_holds_while_a_decision_is_open_counts_in_full() {
    let mut script = Script::new();
    script.hold_decisions = true;
    script.on(mk_headers(CHAT, STREAMED_AHEAD));
    script.on(mk_chunk(&"x".repeat(300_000), false));
    assert_eq!(script.queries.len(), 1);
    for total in [400_000, 500_000] {
        script.on(mk_chunk(&"x".repeat(100_000), false));
        script.queries.clear(); // it is in the queue, without the body
        let used = script.budget.used();
        assert!((total..2 * total).contains(&used), "{used} of {total}");
    }
}

#[test]
fn streamed_that_waits_for_headers_is_picked_for_at_once() {
    let mut script = Script::new();
    assert_eq!(
        script.on(mk_headers(CHAT, mk_modes(BodyMode::Streamed))),
        ["headers pick"]
    );
    assert_eq!(script.on(mk_chunk(BODY, false)), ["body"]);
    assert_eq!(script.on(Input::RequestTrailers), ["trailers"]);
}

#[test]
fn a_proxy_that_names_no_mode_gets_the_default() {
    let mut script = Script::new();
    let head = RequestHead {
        path: CHAT.into(),
        ..RequestHead::default()
    };
    assert!(script.on(Input::RequestHeaders(head)).is_empty());
    assert_eq!(
        script.on(mk_chunk(BODY, true)),
        ["headers pick".to_owned(), echo(BODY, true)]
    );
}
