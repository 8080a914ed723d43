//! The request half: collect what the decision needs, decide, give it back.

use std::time::Duration;

use bytes::Bytes;
use scheduling::Moment;
use smallvec::{SmallVec, smallvec};

use super::{
    Exchange, OfLlm, Outputs, Picked, ResponseHalf, Transcoding, answer_body, body_reply,
    push_parts,
};
use crate::{
    body::{Api, BodyError, Parsed},
    budget::{HeldBody, Reservation, Reserved},
    extproc::message::{
        Answer, BodyMode, Chunk, Output, Part, Phase, Query, Reply, RequestHead, Route,
    },
    reject::Reject,
};

/// In STREAMED mode the proxy stops reading at its own buffer limit (1 MiB by default) until we answer:
/// a quarter of it still catches nearly every prompt, and cannot deadlock.
const STREAMED_HOLD: usize = 256 * 1024;

/// The header that names how the body is compressed.
const CONTENT_ENCODING: &str = "content-encoding";

/// 4 MiB: a million tokens. Beyond it a body grows by doubling, whatever length was declared.
const MAX_RESERVE: usize = 4 * 1024 * 1024;

/// 1 MiB: reading it takes 0.3 ms, as long as all else does for a few dozen small requests.
const MAX_READ_HERE: usize = 1024 * 1024;

/// Beyond it the bodies before this one take longer to read than its client will wait.
const READ_LIMIT: Duration = Duration::from_secs(10);

/// Bodies that only look complete, at the ends of their parts, are rare; each look reads all of it.
pub(super) const EARLY_LOOKS: u8 = 8;

/// What a proxy is asked to wait for a request in the queue; the queue's own limit is mostly less.
const QUEUE_LIMIT: Duration = Duration::from_mins(5);

#[derive(Debug)]
pub(super) enum RequestHalf {
    /// No message yet.
    Awaited,
    /// The body is needed for the decision and still coming.
    Collecting(Held),
    /// The whole body is being read elsewhere.
    Reading(Held),
    /// A decision was asked for; what comes meanwhile is held as well.
    Deciding(Held),
    /// Headers are answered with a pick; the rest is answered as it comes.
    Passing,
    /// The last message is answered, or nothing more needs one.
    Over,
    /// The stream began with a response: the request is none of ours.
    Bypassed,
}

/// A request whose messages are not all answered.
#[derive(Debug)]
pub(super) struct Held {
    head: RequestHead,
    /// The format of the body, if it is to be read.
    api: Option<Api>,
    /// The path is one whose bodies are read.
    is_inference: bool,
    body: HeldBody,
    /// What `body` takes.
    reservation: Reservation,
    /// Body messages that still need an answer each.
    unanswered: usize,
    end: End,
    /// Headers are answered already, so the pick goes with the body.
    headers_answered: bool,
    /// The proxy was asked to wait, which it takes once.
    asked_to_wait: bool,
    /// How often it was read to see whether it is complete without an end.
    early_looks: u8,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    NotYet,
    /// By headers or a body message.
    ByMessage,
    ByTrailers,
}

// === impl RequestHalf ===

impl RequestHalf {
    /// The response is here before the decision: what is held needs no answer any more.
    pub(super) fn give_up(&mut self) {
        if let Self::Collecting(_) | Self::Reading(_) | Self::Deciding(_) = self {
            *self = Self::Over;
        }
    }
}

// === impl Exchange ===

impl Exchange {
    pub(super) fn on_request_headers(&mut self, head: RequestHead, now: Moment) -> Outputs {
        let mut outputs = Outputs::new();
        match self.request {
            RequestHalf::Awaited => {}
            RequestHalf::Bypassed => {
                outputs.push(Output::Reply(Reply::Headers(Phase::Request, None)));
                if head.end {
                    self.request = RequestHalf::Over;
                    self.await_close(now);
                }
                return outputs;
            }
            _ => return self.violation("request headers came twice".to_owned()),
        }
        self.modes = head.modes.unwrap_or(self.modes);
        self.deadline = None;
        let api = match Api::for_path(&head.path) {
            Ok(api) => api.filter(|api| self.parsers.has(api.parser())),
            Err(error) => return self.reject(Reject::BadRequest(error.to_string(), None)),
        };
        let is_inference = api.is_some();
        let api = api.filter(|_| self.body_comes(&head));
        if api.is_some()
            && let Some(encoding) = head.field(&[CONTENT_ENCODING])
            && !encoding.eq_ignore_ascii_case("identity")
        {
            return self.reject(Reject::encoded(encoding));
        }
        if let Some(length) = head.content_length
            && length > self.limits.max_body
            && api.is_some()
        {
            return self.reject(Reject::BodyTooLarge {
                limit: self.limits.max_body,
            });
        }
        let mut held = Held {
            api,
            is_inference,
            end: if head.end {
                End::ByMessage
            } else {
                End::NotYet
            },
            head,
            body: HeldBody::default(),
            reservation: self.limits.budget.reserve_none(),
            unanswered: 0,
            headers_answered: false,
            asked_to_wait: false,
            early_looks: 0,
        };
        if held.api.is_none() {
            return self.decide(held, None);
        }
        if let BodyMode::Buffered | BodyMode::BufferedPartial = self.modes.request {
            // Only now does the body come.
            held.headers_answered = true;
            outputs.push(Output::Reply(Reply::Headers(Phase::Request, None)));
        }
        if self.modes.request == BodyMode::Streamed {
            // It waits for the answer to its headers, by default 200 ms.
            // It takes one such word: the queue's time is in it.
            let limit = self.limits.body_timeout + QUEUE_LIMIT;
            held.asked_to_wait = true;
            outputs.push(Output::Reply(Reply::Wait(limit)));
        }
        self.deadline = Some(now.plus(self.limits.body_timeout));
        self.request = RequestHalf::Collecting(held);
        outputs
    }

    pub(super) fn on_request_body(&mut self, chunk: Chunk, now: Moment) -> Outputs {
        let mut outputs = Outputs::new();
        match std::mem::replace(&mut self.request, RequestHalf::Over) {
            RequestHalf::Awaited => {
                return self.violation("a request body came before its headers".to_owned());
            }
            // A second end of stream, seen above 1 MB, must not be echoed.
            RequestHalf::Over => {}
            RequestHalf::Reading(held) => self.request = RequestHalf::Reading(held),
            RequestHalf::Collecting(mut held) => {
                if let Err(reject) = held.take(chunk, &self.limits) {
                    return self.reject(reject);
                }
                return self.collect(held, now);
            }
            RequestHalf::Deciding(mut held) => {
                // What comes after the end counts for nothing here either.
                if held.end == End::NotYet
                    && let Err(reject) = held.take(chunk, &self.limits)
                {
                    return self.reject(reject);
                }
                self.request = RequestHalf::Deciding(held);
            }
            state @ (RequestHalf::Passing | RequestHalf::Bypassed) => {
                if chunk.end {
                    self.await_close(now);
                } else {
                    self.request = state;
                }
                answer_body(Phase::Request, self.modes.request, chunk, &mut outputs);
            }
        }
        outputs
    }

    pub(super) fn on_request_trailers(&mut self, now: Moment) -> Outputs {
        let mut outputs = Outputs::new();
        match std::mem::replace(&mut self.request, RequestHalf::Over) {
            RequestHalf::Awaited => {
                return self.violation("request trailers came before the headers".to_owned());
            }
            RequestHalf::Over => {}
            RequestHalf::Collecting(mut held) => {
                held.end = End::ByTrailers;
                return self.read_and_decide(held, now);
            }
            RequestHalf::Reading(mut held) => {
                if held.end == End::NotYet {
                    held.end = End::ByTrailers;
                }
                self.request = RequestHalf::Reading(held);
            }
            RequestHalf::Deciding(mut held) => {
                if held.end == End::NotYet {
                    held.end = End::ByTrailers;
                }
                self.request = RequestHalf::Deciding(held);
            }
            RequestHalf::Passing | RequestHalf::Bypassed => {
                self.await_close(now);
                outputs.push(Output::Reply(Reply::Trailers(Phase::Request)));
            }
        }
        outputs
    }

    /// The body was read elsewhere.
    pub(super) fn on_read(&mut self, parsed: Result<Parsed, BodyError>) -> Outputs {
        match std::mem::replace(&mut self.request, RequestHalf::Over) {
            RequestHalf::Reading(held) => self.decide_by(held, parsed.map(Some)),
            state => {
                // The response came first.
                self.request = state;
                Outputs::new()
            }
        }
    }

    /// A proxy that waits for an answer to its message is asked for patience.
    pub(super) fn on_queued(&mut self) -> Outputs {
        let mode = self.modes.request;
        match &mut self.request {
            RequestHalf::Deciding(held) => held.ask_to_wait(mode, QUEUE_LIMIT).collect(),
            _ => Outputs::new(),
        }
    }

    pub(super) fn on_decided(
        &mut self,
        decision: Result<Box<Answer>, Reject>,
        now: Moment,
    ) -> Outputs {
        let RequestHalf::Deciding(held) = std::mem::replace(&mut self.request, RequestHalf::Over)
        else {
            // The response came first; dropping the decision gives its place back.
            return Outputs::new();
        };
        match decision {
            Err(reject) => self.reject(reject),
            Ok(answer) => {
                let Answer {
                    route,
                    endpoints,
                    booking,
                    tap,
                    transcoder,
                    session,
                    learned,
                    // counted by the adapter
                    prefix: _,
                    llm,
                    staged,
                    scheduling: _,
                } = *answer;
                self.picked = Some(Picked {
                    endpoints,
                    booking,
                    served: false,
                    tap,
                    transcoding: transcoder.map(Transcoding::new),
                    session,
                    stranger: false,
                    responded: false,
                    learned,
                    learned_at: None,
                    of_llm: OfLlm::new(llm, now),
                    reservation: staged.and_then(|staged| staged.reservation),
                });
                if held.end == End::NotYet {
                    self.request = RequestHalf::Passing;
                }
                held.answer(route, self.modes.request)
            }
        }
    }

    /// Whether a body can come before the headers are answered.
    fn body_comes(&self, head: &RequestHead) -> bool {
        let comes = match self.modes.request {
            BodyMode::None => false,
            BodyMode::Streamed => self.modes.body_before_headers_reply,
            BodyMode::Buffered | BodyMode::BufferedPartial | BodyMode::FullDuplexStreamed => true,
        };
        comes && !head.end
    }

    fn collect(&mut self, mut held: Held, now: Moment) -> Outputs {
        let whole = match self.modes.request {
            BodyMode::Buffered => true,
            _ => held.end != End::NotYet,
        };
        if whole {
            return self.read_and_decide(held, now);
        }
        // Where trailers follow, no body message is the last, and the proxy holds them back until it has its answer.
        if let BodyMode::Streamed | BodyMode::BufferedPartial = self.modes.request
            && let Some(parsed) = held.read_early()
        {
            return self.decide(held, Some(parsed));
        }
        let enough = match self.modes.request {
            BodyMode::BufferedPartial => true,
            BodyMode::Streamed => held.body.len() >= STREAMED_HOLD,
            _ => false,
        };
        if enough {
            return self.decide(held, None);
        }
        self.deadline = Some(now.plus(self.limits.body_timeout));
        self.request = RequestHalf::Collecting(held);
        Outputs::new()
    }

    /// Reads the whole body: here, or elsewhere if others would have to wait for it.
    fn read_and_decide(&mut self, mut held: Held, now: Moment) -> Outputs {
        let Some(api) = held.api.filter(|_| held.body.len() > MAX_READ_HERE) else {
            let parsed = held.api.map(|api| api.parse(held.body.as_ref()));
            return self.decide_by(held, parsed.transpose());
        };
        let mode = self.modes.request;
        let mut outputs: Outputs = held.ask_to_wait(mode, READ_LIMIT + QUEUE_LIMIT).collect();
        outputs.push(Output::Read(api, held.freeze()));
        self.deadline = Some(now.plus(READ_LIMIT));
        self.request = RequestHalf::Reading(held);
        outputs
    }

    fn decide_by(&mut self, held: Held, parsed: Result<Option<Parsed>, BodyError>) -> Outputs {
        match parsed {
            Ok(parsed) => self.decide(held, parsed),
            Err(error) => self.reject(Reject::BadRequest(error.to_string(), error.param())),
        }
    }

    fn decide(&mut self, mut held: Held, parsed: Option<Parsed>) -> Outputs {
        self.deadline = None;
        let mut head = std::mem::take(&mut held.head);
        head.modes = Some(self.modes);
        let query = Query {
            head,
            subset: self.subset.take(),
            list: self.list,
            parsed,
            is_inference: held.is_inference,
            body: held.freeze(),
        };
        debug_assert!(
            self.response == ResponseHalf::Awaited,
            "a response ends the collecting"
        );
        self.request = RequestHalf::Deciding(held);
        smallvec![Output::Decide(Box::new(query))]
    }
}

// === impl Held ===

impl Held {
    /// Holds one more message. The bytes are kept only where they must be given back or read.
    fn take(&mut self, chunk: Chunk, limits: &super::Limits) -> Result<(), Reject> {
        let Chunk { bytes, end } = chunk;
        let total = self.body.len().saturating_add(bytes.len());
        if u64::try_from(total).unwrap_or(u64::MAX) > limits.max_body {
            return Err(Reject::BodyTooLarge {
                limit: limits.max_body,
            });
        }
        if bytes.is_empty() {
            // The end of most bodies.
        } else if self.body.is_empty() {
            // Most bodies are one chunk and one empty end: no copy.
            self.charge(bytes.len())?;
            self.body = HeldBody::Whole(bytes);
        } else {
            self.make_room(total, limits.max_body)?;
            self.body.extend_from_slice(&bytes);
        }
        self.unanswered += 1;
        if end {
            self.end = End::ByMessage;
        }
        Ok(())
    }

    /// What the body says, if it is complete although no end was announced: JSON that is cut off is no JSON.
    fn read_early(&mut self) -> Option<Parsed> {
        let body = self.body.as_ref();
        let last = body.iter().rfind(|byte| !byte.is_ascii_whitespace());
        if last != Some(&b'}') || self.early_looks == EARLY_LOOKS {
            return None;
        }
        self.early_looks += 1;
        self.api?.parse(body).ok()
    }

    /// Makes room for a body of `total` bytes: for its declared length at once, else by doubling.
    fn make_room(&mut self, total: usize, max_body: u64) -> Result<(), Reject> {
        let room = self.body.capacity();
        if total <= room && !self.is_frozen() {
            return Ok(());
        }
        let bounded = |bytes: u64| usize::try_from(bytes.min(max_body)).unwrap_or(usize::MAX);
        let declared = bounded(self.head.content_length.unwrap_or(0)).min(MAX_RESERVE);
        let doubled = room.saturating_mul(2).min(bounded(u64::MAX));
        let wanted = if declared >= total {
            declared
        } else {
            doubled.max(total)
        };
        // What a frozen body takes is given back with it, so that its copy counts in full.
        let charged = if self.is_frozen() { 0 } else { room };
        self.charge(wanted.saturating_sub(charged))?;
        self.body.reserve_exact(wanted);
        Ok(())
    }

    /// Whether the body has its own reservation.
    fn is_frozen(&self) -> bool {
        self.reservation.is_empty() && !self.body.is_empty()
    }

    /// Asks a proxy that waits for an answer to its message to wait for so long. In full-duplex mode none does.
    fn ask_to_wait(
        &mut self,
        mode: BodyMode,
        limit: Duration,
    ) -> impl Iterator<Item = Output> + use<> {
        let waits = mode != BodyMode::FullDuplexStreamed;
        let asks = waits && !std::mem::replace(&mut self.asked_to_wait, true);
        asks.then_some(Output::Reply(Reply::Wait(limit)))
            .into_iter()
    }

    /// The body so far, whose memory counts until the last slice of it is gone.
    fn freeze(&mut self) -> Bytes {
        if let HeldBody::Whole(bytes) = &self.body
            && self.reservation.is_empty()
        {
            return bytes.clone(); // none, or frozen before
        }
        let none = self.reservation.none();
        let bytes = Bytes::from_owner(Reserved {
            body: std::mem::take(&mut self.body),
            _reservation: std::mem::replace(&mut self.reservation, none),
        });
        self.body = HeldBody::Whole(bytes.clone());
        bytes
    }

    fn charge(&mut self, bytes: usize) -> Result<(), Reject> {
        if self.reservation.grow(bytes) {
            Ok(())
        } else {
            Err(Reject::Saturated)
        }
    }

    /// All answers that are due once there is a pick, headers first.
    fn answer(mut self, mut route: Route, mode: BodyMode) -> Outputs {
        let body = self.freeze();
        let Self {
            mut unanswered,
            end,
            headers_answered,
            ..
        } = self;
        let phase = Phase::Request;
        let mut outputs = Outputs::new();
        let changed = route.edit.changes_body();
        let parts: SmallVec<[Bytes; 3]> = if changed {
            route.edit.apply_body(body.clone()).collect()
        } else {
            smallvec![body.clone()]
        };
        // The proxy sets the length itself in full-duplex mode, never in others.
        let replaced = (changed && mode != BodyMode::FullDuplexStreamed).then(|| {
            let length = route.edit.body_len_after(body.len());
            match mode {
                BodyMode::Streamed => route.edit.remove_header("content-length"),
                _ => route.edit.set_header("content-length", length.to_string()),
            }
            Bytes::from(parts.concat())
        });
        let mut part = replaced.map_or(Part::Kept, Part::Replaced);
        let route = Some(Box::new(route));
        if headers_answered {
            unanswered = unanswered.saturating_sub(1);
            outputs.push(Output::Reply(Reply::Body {
                phase,
                route,
                part: std::mem::replace(&mut part, Part::Kept),
            }));
        } else {
            outputs.push(Output::Reply(Reply::Headers(phase, route)));
        }
        if mode == BodyMode::FullDuplexStreamed {
            let ended_by_body = end == End::ByMessage && unanswered > 0;
            push_parts(phase, parts, ended_by_body, &mut outputs);
        } else {
            // The changed body takes the place of the first part, nothing that of the others.
            for _ in 0..unanswered {
                let rest = if changed {
                    Part::Replaced(Bytes::new())
                } else {
                    Part::Kept
                };
                let part = std::mem::replace(&mut part, rest);
                outputs.push(Output::Reply(body_reply(phase, part)));
            }
        }
        if end == End::ByTrailers {
            outputs.push(Output::Reply(Reply::Trailers(phase)));
        }
        outputs
    }
}
