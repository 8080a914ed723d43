//! Any order of messages, cuts, modes and endings.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use scheduling::{
    Allowed, Booking, Endpoint, EndpointId, Member, Moment, Registry, Snapshot, Subset,
};
use smallvec::SmallVec;

use super::{
    super::message::{
        Answer, BodyMode, Chunk, Close, Context, Input, Modes, Output, Part, Phase, Query, Reply,
        RequestHead, ResponseHead, Route, Streamed,
    },
    Exchange, Limits, MAX_STREAMED,
};
use crate::{budget::Budget, edit::Edit, fuzz::Choices, reject::Reject, tap::ResponseTap};

/// Small, so that short inputs reach them.
const MAX_BODY: u64 = 4096;
const MAX_BUFFERED: u64 = 6000;

/// A stream of a thousand messages shows no more than one of these.
const MAX_STEPS: usize = 200;

const MODES: [BodyMode; 5] = [
    BodyMode::FullDuplexStreamed,
    BodyMode::Buffered,
    BodyMode::Streamed,
    BodyMode::BufferedPartial,
    BodyMode::None,
];

const PATHS: [&str; 4] = ["/v1/completions", "/v1/messages", "/health", "/%ff"];

/// Bodies that are worth being read.
const BODIES: [&str; 4] = [
    r#"{"model":"m","prompt":"abc"}"#,
    r#"{"model":"#,
    r#""m"}"#,
    "data: {\"model\":\"n\",\"usage\":{\"prompt_tokens\":3}}\n\n",
];

/// The model that servers get.
const TARGET: &str = "target";

/// One stream, its peer and what the peer has seen of it.
struct Peer {
    exchange: Exchange,
    snapshot: Snapshot,
    budget: Budget,
    now: Moment,
    /// A decision was asked for and not given yet.
    query: Option<Box<Query>>,
    request: Side,
    response: Side,
    /// Of the first headers; where they are a response's, the request is none of ours.
    began: Option<Phase>,
    modes: Modes,
    restores: bool,
    closed: bool,
}

/// One direction of the body.
#[derive(Default)]
struct Side {
    /// What came, as it is to go on.
    sent: Vec<u8>,
    /// Messages of the body up to its end.
    parts: usize,
    /// The end came, by a message or by trailers.
    ended: bool,
    /// What went on.
    echoed: Vec<u8>,
    ends: usize,
    replies: usize,
    headers: usize,
    trailers: usize,
}

pub(crate) fn run(data: &[u8]) {
    let mut choices = Choices::new(data);
    let mut peer = Peer::new(&mut choices);
    for _ in 0..MAX_STEPS {
        if choices.is_over() || peer.closed {
            break;
        }
        peer.step(&mut choices);
    }
    peer.end();
}

// === impl Peer ===

impl Peer {
    fn new(choices: &mut Choices<'_>) -> Self {
        let mode = |choice: u8| {
            let at = usize::from(choice) % MODES.len();
            MODES.get(at).copied().unwrap_or_default()
        };
        let modes = Modes {
            request: mode(choices.byte()),
            response: mode(choices.byte()),
            body_before_headers_reply: choices.flag(),
        };
        let budget = Budget::new(MAX_BUFFERED);
        let limits = Limits {
            max_body: MAX_BODY,
            body_timeout: Duration::from_mins(1),
            budget: budget.clone(),
            default_mode: modes.request,
        };
        let members = (1..=3).map(mk_member).collect();
        Self {
            exchange: Exchange::new(limits, 2, Moment::START),
            snapshot: Registry::default().update(members, Moment::START),
            budget,
            now: Moment::START,
            query: None,
            request: Side::default(),
            response: Side::default(),
            began: None,
            modes,
            restores: choices.flag(),
            closed: false,
        }
    }

    fn step(&mut self, choices: &mut Choices<'_>) {
        let input = match choices.byte() % 16 {
            0 => Input::Context(mk_context(choices)),
            1 | 2 => Input::RequestHeaders(self.request_head(choices)),
            3..=5 => {
                let chunk = mk_chunk(choices);
                if !self.request.ended {
                    self.request.sent.extend_from_slice(&chunk.bytes);
                    self.request.parts += 1;
                    self.request.ended = chunk.end;
                }
                Input::RequestBody(chunk)
            }
            6 => {
                self.request.ended = true;
                Input::RequestTrailers
            }
            7 | 8 => match self.query.take() {
                Some(query) => Input::Decided(self.decide(&query, choices)),
                None => Input::Queued,
            },
            9 => {
                self.began.get_or_insert(Phase::Response);
                Input::ResponseHeaders(ResponseHead {
                    is_sse: false,
                    status: 200,
                    end: choices.flag(),
                    modes: Some(self.modes),
                })
            }
            10..=12 => {
                let chunk = mk_chunk(choices);
                if !self.response.ended {
                    self.response.sent.extend_from_slice(&chunk.bytes);
                    self.response.parts += 1;
                    self.response.ended = chunk.end;
                }
                Input::ResponseBody(chunk)
            }
            13 => {
                self.response.ended = true;
                Input::ResponseTrailers
            }
            14 => {
                self.now = self.now.plus(Duration::from_secs(choices.byte().into()));
                Input::Timer
            }
            _ if choices.flag() => Input::PeerClosed,
            _ => Input::Drain,
        };
        self.feed(input);
    }

    fn feed(&mut self, input: Input) {
        for output in self.exchange.on(input, self.now) {
            assert!(!self.closed, "{output:?} after the close");
            match output {
                Output::Reply(reply) => self.reply(reply),
                Output::Decide(query) => {
                    assert!(self.query.is_none(), "asked twice");
                    self.query = Some(query);
                }
                Output::Read(..) => unreachable!("no body here is as large as that"),
                Output::Observe(_) => {}
                Output::Close(close) => {
                    self.closed = true;
                    self.check_close(&close);
                }
            }
        }
        let in_flight: u32 = self.in_flight();
        assert!(in_flight <= 1, "{in_flight} places are taken");
    }

    fn reply(&mut self, reply: Reply) {
        let streamed = match (&reply, self.modes) {
            (
                Reply::Body {
                    phase: Phase::Request,
                    ..
                },
                modes,
            ) => modes.request,
            (_, modes) => modes.response,
        } == BodyMode::FullDuplexStreamed;
        match reply {
            Reply::Headers(phase, _) => self.side(phase).headers += 1,
            Reply::Body { phase, part, .. } => {
                let bypassed = self.began == Some(Phase::Response);
                let side = self.side(phase);
                assert!(side.headers > 0 || bypassed, "a body before its headers");
                assert_eq!(side.trailers, 0, "a body after its trailers");
                side.replies += 1;
                match part {
                    Part::Streamed(Streamed { bytes, end }) => {
                        assert!(streamed, "only in full-duplex mode");
                        assert!(bytes.len() <= MAX_STREAMED);
                        assert_eq!(side.ends, 0, "a part after the end");
                        side.echoed.extend_from_slice(&bytes);
                        side.ends += usize::from(end);
                    }
                    Part::Kept | Part::Replaced(_) => {
                        assert!(!streamed, "not in full-duplex mode");
                        assert!(side.replies <= side.parts, "more answers than parts");
                    }
                }
                self.check_bytes(phase);
            }
            Reply::Trailers(phase) => {
                let bypassed = self.began == Some(Phase::Response);
                let side = self.side(phase);
                assert!(side.headers > 0 || bypassed, "trailers before headers");
                assert_eq!(side.ends, 0, "two ends");
                side.trailers += 1;
                assert_eq!(side.trailers, 1, "trailers twice");
            }
            Reply::Immediate(_) => {
                assert_eq!(self.response.headers, 0, "it would reset the client");
            }
            Reply::Wait(_) => {}
        }
    }

    /// What went on is the beginning of what came. A restored model makes it another text.
    fn check_bytes(&self, phase: Phase) {
        let side = match phase {
            Phase::Request => &self.request,
            Phase::Response if self.restores => return,
            Phase::Response => &self.response,
        };
        assert!(side.sent.starts_with(&side.echoed), "other bytes");
        if side.ends > 0 {
            assert!(side.echoed == side.sent, "the end before all bytes");
            assert!(side.ended, "an end that nobody sent");
        }
    }

    fn check_close(&self, close: &Close) {
        assert_eq!(self.in_flight(), 0, "{close:?} frees the place");
        assert_eq!(self.exchange.deadline(), None);
    }

    /// The stream is dropped, and with it all that it held.
    fn end(self) {
        let Self {
            exchange,
            snapshot,
            budget,
            query,
            ..
        } = self;
        drop((exchange, query));
        assert_eq!(in_flight(&snapshot), 0, "the place is freed");
        assert_eq!(budget.used(), 0, "the memory is given back");
    }

    fn side(&mut self, phase: Phase) -> &mut Side {
        match phase {
            Phase::Request => &mut self.request,
            Phase::Response => &mut self.response,
        }
    }

    fn in_flight(&self) -> u32 {
        in_flight(&self.snapshot)
    }

    fn request_head(&mut self, choices: &mut Choices<'_>) -> RequestHead {
        self.began.get_or_insert(Phase::Request);
        let path = PATHS.get(usize::from(choices.byte()) % PATHS.len());
        let length = choices.byte();
        let end = choices.byte() % 8 == 7;
        self.request.ended |= end;
        RequestHead {
            path: Bytes::from_static(path.copied().unwrap_or_default().as_bytes()),
            content_length: (length > 0).then(|| u64::from(length) * 64),
            end,
            modes: Some(self.modes),
            ..RequestHead::default()
        }
    }

    fn decide(&mut self, query: &Query, choices: &mut Choices<'_>) -> Result<Box<Answer>, Reject> {
        if choices.byte() % 8 == 7 {
            return Err(Reject::Shed);
        }
        let endpoints: SmallVec<[Arc<Endpoint>; 1]> =
            self.snapshot.endpoints().take(2).cloned().collect();
        let first = endpoints.first().ok_or(Reject::Saturated)?;
        let booking = Booking::new(Arc::clone(first), 0, None, self.now, Duration::ZERO);
        let mut edit = Edit::default();
        if let Some(parsed) = query.parsed.as_ref().filter(|_| self.restores) {
            let at = parsed.model_at.clone();
            let name = format!("{TARGET:?}").into_bytes();
            if edit.rewrite_model(at.clone(), TARGET).is_ok() && self.request.sent.len() >= at.end {
                self.request.sent.splice(at, name);
            }
        }
        Ok(Box::new(Answer {
            route: Route {
                destination: Some(Bytes::from_static(b"10.0.0.1:8000")),
                edit,
                ..Route::default()
            },
            endpoints,
            booking,
            tap: if self.restores {
                Some(ResponseTap::restoring("client"))
            } else {
                choices.flag().then(ResponseTap::default)
            },
            transcoder: None,
            session: None,
            prefix: None,
            learned: None,
            llm: None,
            staged: None,
            scheduling: Duration::ZERO,
        }))
    }
}

fn in_flight(snapshot: &Snapshot) -> u32 {
    snapshot
        .endpoints()
        .map(|endpoint| endpoint.load().in_flight())
        .sum()
}

fn mk_address(host: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, host], 8000))
}

fn mk_member(host: u8) -> Member {
    let name: Arc<str> = format!("pod-{host}").into();
    Member {
        id: EndpointId {
            namespace: "ns".into(),
            pod: Arc::clone(&name),
            rank: 0,
            uid: name,
        },
        address: mk_address(host),
        engine: "".into(),
        labels: Arc::default(),
    }
}

fn mk_context(choices: &mut Choices<'_>) -> Context {
    let (with_subset, served) = (choices.flag(), choices.byte() % 6);
    let mut subset = Subset::default();
    subset.extend_from_list("10.0.0.1,10.0.0.2:8000");
    debug_assert!(matches!(
        subset.entries(),
        [Allowed::Ip(_), Allowed::Address(_)]
    ));
    Context {
        subset: with_subset.then_some(subset),
        served: (served > 0).then(|| mk_address(served)),
    }
}

/// Bytes of the input, or a text that is worth being read.
fn mk_chunk(choices: &mut Choices<'_>) -> Chunk {
    let kind = choices.byte();
    let bytes = match kind % 8 {
        known @ 0..=3 => {
            let body = BODIES.get(usize::from(known)).copied().unwrap_or_default();
            Bytes::from_static(body.as_bytes())
        }
        4 => Bytes::new(),
        5 => Bytes::from(vec![b' '; 16 * usize::from(choices.byte())]),
        _ => {
            let count = usize::from(choices.byte());
            Bytes::copy_from_slice(choices.take(count))
        }
    };
    Chunk {
        bytes,
        end: kind >= 192,
    }
}
