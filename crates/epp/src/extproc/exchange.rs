//! The protocol of one stream, as a state machine without clock, client or task.
//!
//! The request half and the response half run side by side: a response may begin while the request is
//! still coming (an early 413, a local reply). What ends the request half early is in the order of
//! [`Exchange::on`]; how a body is collected and given back is in [`request`], how a response is answered in [`response`].

use std::{net::SocketAddr, sync::Arc, time::Duration};

use scheduling::{Booking, Endpoint, Moment, Subset};
use smallvec::{SmallVec, smallvec};

use super::message::{BodyMode, Close, Context, Event, Input, Modes, Output, Phase, Reply};
use crate::{
    budget::Budget,
    config::Parsers,
    director::{Learned, NamedSession},
    external::Reservation,
    llm::LlmRequest,
    reject::Reject,
    tap::ResponseTap,
};

mod parts;
mod request;
mod response;
mod transcoding;

use parts::{answer_body, body_reply, push_parts};
use request::RequestHalf;
use response::ResponseHalf;
use transcoding::Transcoding;

/// Envoy refuses streamed bodies above 64 KiB; this leaves room for the message around them.
pub(super) const MAX_STREAMED: usize = 62_000;

/// Between the last answer and the peer's close. The peer closes at once; this only bounds a hung one.
const PEER_CLOSE: Duration = Duration::from_secs(5);

/// What one [`Input`] leads to: mostly one or two; a collected body gives one per 62,000 bytes.
pub(super) type Outputs = SmallVec<[Output; 4]>;

/// Bounds of a stream, the same for all.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Largest request body that is collected, in bytes.
    pub max_body: u64,
    /// Longest wait for the next part of a body that is collected.
    pub body_timeout: Duration,
    /// What all collected bodies may take together.
    pub budget: Budget,
    /// Holds where the proxy does not say its modes.
    pub default_mode: BodyMode,
}

/// One stream. Dropping it, at any time, ends the request's count at its endpoint.
#[derive(Debug)]
pub(super) struct Exchange {
    limits: Limits,
    /// Whose bodies are read.
    parsers: Parsers,
    modes: Modes,
    subset: Option<Subset>,
    /// How many endpoints the proxy can try, 1 to 8.
    list: u8,
    request: RequestHalf,
    response: ResponseHalf,
    picked: Option<Picked>,
    deadline: Option<Moment>,
    /// Responses say in a header by which endpoint they were served.
    reports_served: bool,
    /// The endpoint that served the response, as the proxy says.
    served: Option<SocketAddr>,
    /// What was recorded as cached for a request that its endpoint did not receive, with that endpoint, until it is
    /// taken.
    unserved: Option<(Learned, Arc<Endpoint>)>,
    /// What the responding endpoint has cached, if it is the endpoint that was picked, until it is taken.
    confirmed: Option<(Learned, Arc<Endpoint>)>,
    closed: bool,
}

#[derive(Debug)]
struct Picked {
    endpoints: SmallVec<[Arc<Endpoint>; 1]>,
    booking: Booking,
    served: bool,
    tap: Option<ResponseTap>,
    /// In the place of the tap.
    transcoding: Option<Transcoding>,
    session: Option<NamedSession>,
    /// Who serves it is no member of the pool.
    stranger: bool,
    /// A byte of the response's body came.
    responded: bool,
    /// What the endpoint will have cached; until the response begins another one may turn out to serve it.
    learned: Option<Learned>,
    /// The endpoint that is known to have it.
    learned_at: Option<Arc<Endpoint>>,
    of_llm: OfLlm,
    /// What a Router booked for it.
    reservation: Option<Reservation>,
}

/// What concerns requests under the LLM filter.
#[derive(Debug)]
struct OfLlm {
    /// Until somebody takes it.
    request: Option<Box<LlmRequest>>,
    /// An LLM filter is in force for it.
    is_filtered: bool,
    /// When its prompt counts as computed, unless its response begins before.
    prefill_until: Option<Moment>,
}

/// What an endpoint will have cached.
pub(super) struct Unlearned<'a> {
    pub(super) learned: &'a Learned,
    pub(super) endpoint: &'a Endpoint,
    /// The one that was known to have it, and did not get it.
    pub(super) first: Option<Arc<Endpoint>>,
}

// === impl OfLlm ===

impl OfLlm {
    fn new(request: Option<Box<LlmRequest>>, now: Moment) -> Self {
        let of = request.as_ref();
        Self {
            is_filtered: of.is_some_and(|of| of.trace_id.is_some()),
            prefill_until: of.and_then(|of| Some(now.plus(of.prefill?))),
            request,
        }
    }
}

// === impl Exchange ===

impl Exchange {
    /// A stream that was just opened, by a proxy that can try `list` endpoints in order.
    pub(super) fn new(limits: Limits, list: u8, now: Moment) -> Self {
        let modes = Modes::both(limits.default_mode);
        let deadline = Some(now.plus(limits.body_timeout));
        Self {
            limits,
            parsers: Parsers::default(),
            modes,
            subset: None,
            list,
            request: RequestHalf::Awaited,
            response: ResponseHalf::Awaited,
            picked: None,
            deadline,
            reports_served: false,
            served: None,
            unserved: None,
            confirmed: None,
            closed: false,
        }
    }

    /// Responses are to say in a header by which endpoint they were served, as the conformance suite asks.
    pub(super) fn report_served(&mut self) {
        self.reports_served = true;
    }

    /// The same, which reads no other bodies than these.
    pub(super) fn reading(mut self, parsers: Parsers) -> Self {
        self.parsers = parsers;
        self
    }

    /// When [`Input::Timer`] is due; absent: there is nothing to wait for.
    pub(super) fn deadline(&self) -> Option<Moment> {
        self.deadline
    }

    /// As [`Self::deadline`], also of what concerns the pick alone.
    pub(super) fn next_timer(&self) -> Option<Moment> {
        let prefill = self
            .picked
            .as_ref()
            .and_then(|picked| picked.of_llm.prefill_until);
        [self.deadline, prefill].into_iter().flatten().min()
    }

    /// What is known of the request under the LLM filter, once, after the pick.
    pub(super) fn take_llm(&mut self) -> Option<Box<LlmRequest>> {
        self.picked.as_mut()?.of_llm.request.take()
    }

    /// Who serves the request, as far as is known; none: no member, or it is over.
    pub(super) fn served_endpoint(&self) -> Option<&Arc<Endpoint>> {
        let picked = self.picked.as_ref().filter(|picked| !picked.stranger)?;
        Some(picked.booking.endpoint())
    }

    /// Whether a body is read elsewhere: what it says is of no use later.
    pub(super) fn is_reading(&self) -> bool {
        matches!(self.request, RequestHalf::Reading(_))
    }

    /// Whether a decision is awaited: one that comes later is of no use.
    pub(super) fn is_deciding(&self) -> bool {
        matches!(self.request, RequestHalf::Deciding(_))
    }

    /// Whether attributes of the next message can matter: the subset until the pick, the served endpoint after it.
    pub(super) fn wants_attributes(&self) -> bool {
        match (&self.request, &self.picked) {
            (RequestHalf::Awaited | RequestHalf::Collecting(_) | RequestHalf::Reading(_), _) => {
                true
            }
            // What the response's headers do not report is not reported later.
            (_, Some(picked)) if !picked.served => self.response == ResponseHalf::Awaited,
            _ => self.reports_served && self.response == ResponseHalf::Awaited,
        }
    }

    /// Whether nothing comes from it any more.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Which half is being worked on.
    pub(super) fn phase(&self) -> Phase {
        if self.response == ResponseHalf::Awaited {
            Phase::Request
        } else {
            Phase::Response
        }
    }

    /// Moves the request's count to the endpoint that really serves it.
    pub(super) fn serve_from(&mut self, endpoint: Arc<Endpoint>) {
        if let Some(picked) = &mut self.picked {
            picked.booking.move_to(endpoint);
            picked.stranger = false;
        }
    }

    /// Records that no endpoint of the pool serves the request: it is counted at none, and none has cached its prompt.
    pub(super) fn serve_elsewhere(&mut self) {
        if let Some(picked) = &mut self.picked {
            picked.booking.release();
            self.unserved = picked.learned.take().zip(picked.learned_at.take());
        }
    }

    /// What an endpoint is believed to have cached of a request that it did not get, once.
    pub(super) fn take_unserved(&mut self) -> Option<(Learned, Arc<Endpoint>)> {
        self.unserved.take()
    }

    /// What the endpoint that was picked has cached since it responds, once.
    pub(super) fn take_confirmed(&mut self) -> Option<(Learned, Arc<Endpoint>)> {
        self.confirmed.take()
    }

    /// The response begins: the endpoint got the request. One that took over has had all of the prompt since that was seen.
    fn confirm(&mut self) {
        let Some(picked) = self.picked.as_mut().filter(|picked| !picked.stranger) else {
            return;
        };
        let endpoint = picked.booking.endpoint();
        let is_first = picked
            .endpoints
            .first()
            .is_some_and(|first| first.slot() == endpoint.slot());
        let is_learned = picked.learned_at.is_some();
        if is_first
            && is_learned
            && let Some(learned) = picked.learned.take()
        {
            self.confirmed = Some((learned, Arc::clone(endpoint)));
        }
    }

    /// Ends the exchange in whatever state it is. Token counts that its response reported are still recorded. Without
    /// any response it is not known whether the endpoint received the request.
    pub(super) fn abandon(&mut self) -> Outputs {
        let mut outputs = Outputs::new();
        if let Some(mut picked) = self.picked.take() {
            let usage = picked.tap.as_mut().and_then(ResponseTap::finish);
            outputs.extend(usage.map(|usage| Output::Observe(Event::Usage(usage))));
            if self.response == ResponseHalf::Awaited {
                self.unserved = picked.learned.zip(picked.learned_at);
            }
        }
        outputs
    }

    /// Ends the exchange at once, in whatever state it is.
    pub(super) fn fail(&mut self) {
        self.close(Close::Done);
    }

    /// The request's session, and the endpoint that serves it; absent where it has none, or is served by no member.
    pub(super) fn served_session(&self) -> Option<(&NamedSession, &Endpoint)> {
        let picked = self.picked.as_ref().filter(|picked| !picked.stranger)?;
        Some((picked.session.as_ref()?, picked.booking.endpoint()))
    }

    /// Takes an input and says what to do, in order. After an [`Output::Close`] nothing comes any more.
    pub(super) fn on(&mut self, input: Input, now: Moment) -> Outputs {
        if self.closed {
            return Outputs::new();
        }
        match input {
            Input::Context(context) => self.on_context(context),
            Input::UnknownMode(mode) => self.violation(format!(
                "body mode {mode} is not supported: use FULL_DUPLEX_STREAMED, STREAMED, BUFFERED, BUFFERED_PARTIAL or NONE"
            )),
            Input::RequestHeaders(head) => self.on_request_headers(head, now),
            Input::RequestBody(chunk) => self.on_request_body(chunk, now),
            Input::RequestTrailers => self.on_request_trailers(now),
            Input::Read(parsed) => self.on_read(parsed),
            Input::Queued => self.on_queued(),
            Input::Decided(decision) => self.on_decided(decision, now),
            Input::ResponseHeaders(head) => self.on_response_headers(head, now),
            Input::ResponseBody(chunk) => self.on_response_body(chunk, now),
            Input::ResponseTrailers => self.on_response_trailers(now),
            Input::Timer => self.on_timer(now),
            Input::PeerClosed => self.on_peer_closed(),
            Input::Drain => self.on_drain(),
        }
    }

    fn on_context(&mut self, Context { subset, served }: Context) -> Outputs {
        if subset.is_some() {
            self.subset = subset;
        }
        self.served = served.or(self.served);
        served
            .map(|address| self.on_served(address))
            .unwrap_or_default()
    }

    /// The first endpoint of the list needs no word; another one takes over the count.
    fn on_served(&mut self, address: SocketAddr) -> Outputs {
        let Some(picked) = self.picked.as_mut().filter(|picked| !picked.served) else {
            return Outputs::new();
        };
        picked.served = true;
        if picked.booking.endpoint().address() == address {
            return Outputs::new();
        }
        let listed = picked
            .endpoints
            .iter()
            .find(|endpoint| endpoint.address() == address)
            .cloned();
        let in_list = listed.is_some();
        picked.stranger = !in_list; // as far as is known here
        if let Some(endpoint) = listed {
            picked.booking.move_to(endpoint);
        }
        smallvec![Output::Observe(Event::ServedElsewhere { address, in_list })]
    }

    /// Ends what the request counts as unfinished prefill, if it is time.
    pub(super) fn end_prefill(&mut self, now: Moment) -> Outputs {
        let mut outputs = Outputs::new();
        if let Some(picked) = &mut self.picked
            && picked
                .of_llm
                .prefill_until
                .is_some_and(|until| until <= now)
        {
            picked.of_llm.prefill_until = None;
            picked.booking.respond();
            outputs.push(Output::Observe(Event::Prefilled));
        }
        outputs
    }

    fn on_timer(&mut self, now: Moment) -> Outputs {
        let outputs = self.end_prefill(now);
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return outputs;
        }
        self.deadline = None;
        match &self.request {
            RequestHalf::Collecting(_) => self.reject(Reject::BodyTimeout {
                seconds: self.limits.body_timeout.as_secs(),
            }),
            RequestHalf::Reading(_) => self.reject(Reject::Saturated),
            // A stream on which nothing ever came, or whose peer does not close it.
            _ => self.close(Close::Done),
        }
    }

    fn on_drain(&mut self) -> Outputs {
        match (&self.request, self.response) {
            (
                RequestHalf::Collecting(_) | RequestHalf::Reading(_) | RequestHalf::Deciding(_),
                _,
            ) => self.reject(Reject::ShuttingDown),
            // The headers may be on their way: closing in order would let them go on without a pick.
            (RequestHalf::Awaited, _) => self.close(Close::Unavailable),
            // Closing in order now would make the proxy drop the rest of the body.
            _ if self.uploads() => self.close(Close::Unavailable),
            // Nothing more is to be answered: the response goes on without us.
            (_, ResponseHalf::Open) if self.modes.response == BodyMode::None => {
                self.close(Close::Done)
            }
            (_, ResponseHalf::Held | ResponseHalf::Open) => self.close(Close::Unavailable),
            (_, ResponseHalf::Awaited | ResponseHalf::Over) => self.close(Close::Done),
        }
    }

    /// Where the response's body passes unseen, the peer's close is its end.
    fn on_peer_closed(&mut self) -> Outputs {
        let unseen = self.modes.response == BodyMode::None;
        let mut outputs = Outputs::new();
        if unseen && self.response == ResponseHalf::Open {
            outputs.push(Output::Observe(Event::Complete));
        }
        outputs.extend(self.close(Close::Done));
        outputs
    }

    /// What an endpoint will have cached and is not known to. To be asked once answers are written, and when another
    /// endpoint turns out to serve: a response may end with the message that says so.
    pub(super) fn take_unlearned(&mut self) -> Option<Unlearned<'_>> {
        let picked = self.picked.as_mut()?;
        let learned = picked.learned.as_ref()?;
        let endpoint = picked.booking.endpoint();
        let known = picked.learned_at.as_ref();
        if known.is_some_and(|known| known.slot() == endpoint.slot()) {
            return None;
        }
        let first = picked.learned_at.replace(Arc::clone(endpoint));
        Some(Unlearned {
            learned,
            endpoint,
            first,
        })
    }

    /// Whether more of the request's body is to come, and to be answered.
    fn uploads(&self) -> bool {
        matches!(self.request, RequestHalf::Passing) && self.modes.request != BodyMode::None
    }

    /// Bounds the wait for the peer's close, once both halves are over.
    fn await_close(&mut self, now: Moment) {
        if self.response == ResponseHalf::Over && !self.uploads() {
            self.deadline = Some(now.plus(PEER_CLOSE));
        }
    }

    /// Answers the client in the server's stead. Once the response began that would reset the client.
    fn reject(&mut self, reject: Reject) -> Outputs {
        if self.response != ResponseHalf::Awaited {
            return self.close(Close::Done);
        }
        let mut outputs: Outputs = smallvec![Output::Reply(Reply::Immediate(reject))];
        outputs.extend(self.close(Close::Done));
        outputs
    }

    fn violation(&mut self, what: String) -> Outputs {
        self.close(Close::InvalidArgument(what))
    }

    fn close(&mut self, how: Close) -> Outputs {
        let mut outputs = self.abandon();
        self.closed = true;
        self.request = RequestHalf::Over;
        self.deadline = None;
        outputs.push(Output::Close(how));
        outputs
    }
}

#[cfg(any(test, feature = "fuzzing"))]
pub(super) mod fuzz;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
