//! One gRPC stream: moves messages between the peer and its [`Exchange`].

use std::{
    collections::VecDeque,
    future::Future,
    net::SocketAddr,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Arc, Weak, atomic::Ordering},
    task::{Context, Poll, ready},
};

use futures::Stream;
use parking_lot::Mutex;
use scheduling::Moment;
use tokio::time::{Sleep, sleep_until};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::{Code, Status};
use tracing::debug;
use xxhash_rust::xxh64::xxh64;

use super::{
    exchange::{Exchange, Unlearned},
    live::Live,
    message::{Answer, Event, Input, Output, Phase, Query, Reply},
    overdue::{OVERDUE, Overdue},
    reader::Reading,
    service::Shared,
    wire::{self, Wanted},
};
use crate::{
    connection::RoundTrip,
    director::{Decision, Picking},
    gather,
    llm::TraceId,
    metrics::Outcome,
    proto::{ProcessingRequest, ProcessingResponse},
    reject::Reject,
};
use meter::Meter;
use wait::{Wait, Waited};

mod meter;
mod wait;

/// The answers to one stream of requests. Dropped by the server when the peer resets the stream.
pub(super) struct Replies<S> {
    /// Locked by its thread alone: to answer, and now and then to look at it.
    dialog: Arc<Mutex<Dialog<S>>>,
    shared: Arc<Shared>,
    /// Among the open streams.
    key: usize,
}

/// The messages of a stream and what is made of them.
struct Dialog<S> {
    messages: S,
    exchange: Exchange,
    outputs: VecDeque<Output>,
    /// Whether it let the writes of a connection go first, which it does once.
    gave_way: bool,
    /// Whether the client's answer is decided and sent.
    is_answered: bool,
    /// The end, once the last output is out.
    ended: Option<Result<(), Status>>,
    timer: Option<Timer>,
    /// What the body says, while it is read.
    reading: Option<Reading>,
    /// What the decision waits for.
    wait: Option<Wait>,
    /// Hash of the attributes that were read last: a proxy may send the same ones with each message.
    attributes: Option<u64>,
    drained: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Whether the proxy reset the stream before its end.
    is_reset: bool,
    /// When the end of the drain was seen from outside.
    drained_at: Option<Moment>,
    round_trip: RoundTrip,
    /// Of a request under an LLM filter.
    trace_id: Option<TraceId>,
    /// The same request.
    live: Option<Box<Live>>,
    shared: Arc<Shared>,
    meter: Meter,
}

struct Timer {
    at: Moment,
    sleep: Pin<Box<Sleep>>,
}

// === impl Replies ===

impl<S> Replies<S>
where
    S: Stream<Item = Result<ProcessingRequest, Status>> + Unpin + Send + 'static,
{
    pub(super) fn new(messages: S, list: u8, round_trip: RoundTrip, shared: Arc<Shared>) -> Self {
        let dialog = Dialog::new(messages, list, round_trip, Arc::clone(&shared));
        let dialog = Arc::new(Mutex::new(dialog));
        let seen: Weak<Mutex<Dialog<S>>> = Arc::downgrade(&dialog);
        let key = shared.open.insert(seen);
        Self {
            dialog,
            shared,
            key,
        }
    }
}

impl<S> Stream for Replies<S>
where
    S: Stream<Item = Result<ProcessingRequest, Status>> + Unpin,
{
    type Item = Result<ProcessingResponse, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut dialog = self.dialog.lock();
        if gather::is_overdue() && !std::mem::replace(&mut dialog.gave_way, true) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        dialog.gave_way = false;
        // After a panic only [`Dialog::fail`] uses the state of this stream, and no other stream uses it.
        let polled = catch_unwind(AssertUnwindSafe(|| dialog.poll_next(cx)));
        polled.unwrap_or_else(|_| dialog.fail())
    }
}

impl<S> Drop for Replies<S> {
    fn drop(&mut self) {
        self.shared.open.remove(self.key);
    }
}

// === impl Dialog ===

impl<S> Dialog<S>
where
    S: Stream<Item = Result<ProcessingRequest, Status>> + Unpin,
{
    fn new(messages: S, list: u8, round_trip: RoundTrip, shared: Arc<Shared>) -> Self {
        let now = shared.director.clock().now();
        let mut exchange = Exchange::new(shared.settings.limits.clone(), list, now)
            .reading(shared.director.parsers());
        if shared.director.options().conformance_headers {
            exchange.report_served();
        }
        let drained = Box::pin(shared.settings.drained.clone().cancelled_owned());
        let meter = Meter::new(&shared, now);
        Self {
            messages,
            exchange,
            outputs: VecDeque::new(),
            gave_way: false,
            is_answered: false,
            ended: None,
            timer: None,
            reading: None,
            wait: None,
            attributes: None,
            drained,
            is_reset: false,
            drained_at: None,
            round_trip,
            trace_id: None,
            live: None,
            shared,
            meter,
        }
    }

    fn now(&self) -> Moment {
        self.shared.director.clock().now()
    }

    fn feed(&mut self, input: Input, now: Moment) {
        if let Input::RequestHeaders(head) = &input {
            self.meter.trace_begins(head, now);
            self.trace_id = self.shared.director.trace_id(head);
            self.live = self.trace_id.clone().map(|id| self.make_live(Some(id)));
        }
        if let Input::ResponseHeaders(_) = &input {
            self.shared.sees_responses.store(true, Ordering::Relaxed);
        }
        let is_drain = matches!(input, Input::Drain);
        self.outputs.extend(self.exchange.on(input, now));
        self.take_back();
        if !self.exchange.is_reading() {
            self.reading = None;
        }
        if !self.exchange.is_deciding() {
            self.wait = None; // it leaves the queue, and nobody asks any more
            self.meter.wait_ends(if is_drain {
                Outcome::EvictedOther
            } else {
                Outcome::EvictedContextCancelled
            });
        }
        self.meter.open.enter(self.exchange.phase());
    }

    fn make_live(&self, trace_id: Option<TraceId>) -> Box<Live> {
        let Shared {
            director, metrics, ..
        } = &*self.shared;
        let (director, metrics) = (Arc::clone(director), metrics.llm().clone());
        let opened = self.meter.opened;
        Box::new(Live::new(director, metrics, trace_id, opened))
    }

    fn decided(&mut self, decision: Result<Box<Answer>, Reject>) {
        self.meter.decided(&decision);
        self.feed(Input::Decided(decision), self.now());
        let Some(request) = self.exchange.take_llm() else {
            return;
        };
        if let Some(endpoint) = self.exchange.served_endpoint() {
            let endpoint = Arc::clone(endpoint);
            let mut live = self.live.take().unwrap_or_else(|| self.make_live(None));
            live.picked(request, endpoint);
            self.live = Some(live);
        }
    }

    /// Works off outputs up to the next message for the peer.
    fn next_reply(&mut self) -> Option<ProcessingResponse> {
        while let Some(output) = self.outputs.pop_front() {
            match output {
                Output::Reply(reply) => {
                    self.meter.reply(&reply);
                    let is_first =
                        matches!(reply, Reply::Headers(Phase::Request, None) | Reply::Wait(_));
                    self.is_answered |= !is_first;
                    if let Some(live) = &mut self.live {
                        live.reply(&reply);
                    }
                    return Some(wire::message(
                        reply,
                        self.shared.settings.clear_route_cache,
                        self.trace_id.as_ref(),
                    ));
                }
                Output::Read(api, body) => self.reading = Some(self.shared.reader.read(api, body)),
                Output::Decide(query) => {
                    if let Some(live) = &mut self.live {
                        live.asks_for(&query);
                    }
                    self.decide(*query);
                }
                Output::Observe(event) => self.observe(event),
                Output::Close(close) => self.ended = Some(self.meter.close(close)),
            }
        }
        None
    }

    fn decide(&mut self, query: Query) {
        let transit = self.round_trip.transit();
        let decision = self.meter.decide(query, transit, self.trace_id.as_ref());
        match decision {
            Decision::Picked(picking) => self.picking(picking),
            Decision::Queued(waiting) => {
                if let Some(trace) = &mut self.meter.trace {
                    trace.queued();
                }
                self.wait = Some(Wait::Queue(waiting));
                self.feed(Input::Queued, self.now());
            }
        }
    }

    fn picking(&mut self, picking: Picking) {
        match picking {
            Picking::Made(decision) => self.decided(decision),
            Picking::Asked(asking) => {
                let is_long = asking.is_long();
                self.wait = Some(Wait::Pick(asking));
                if is_long {
                    self.feed(Input::Queued, self.now());
                }
            }
            Picking::Staged(mut staging) => {
                let now = self.now();
                staging.begin(self.meter.stage_begins(now));
                self.wait = Some(Wait::Stage(staging));
                self.feed(Input::Queued, now);
            }
        }
    }

    fn waited(&mut self, waited: Waited) {
        match waited {
            Waited::Turn(picking) => self.picking(picking),
            Waited::Staged(staged) => {
                self.meter.stage_ends(staged.told(), self.now());
                let picking = self.shared.director.unstage(*staged);
                self.picking(picking);
            }
            Waited::Picked(picked) => {
                let decision = self.shared.director.take(picked);
                self.decided(decision);
            }
            Waited::Nothing => {}
        }
    }

    /// What was observed before the next reply counts for that reply: who serves a response is named in its headers.
    fn observe_first(&mut self) {
        while let Some(Output::Observe(_)) = self.outputs.front() {
            if let Some(Output::Observe(event)) = self.outputs.pop_front() {
                self.observe(event);
            }
        }
    }

    fn observe(&mut self, event: Event) {
        self.meter.observe(event);
        if let Event::ServedElsewhere { address, in_list } = event {
            self.served_elsewhere(address, in_list);
        }
        if let Some(live) = &mut self.live {
            live.observe(event);
        }
    }

    fn served_elsewhere(&mut self, address: SocketAddr, in_list: bool) {
        if !in_list {
            debug!(%address, "served by an endpoint that was not picked");
            if let Some(endpoint) = self.shared.director.pool().at(address) {
                self.exchange.serve_from(endpoint);
            } else {
                self.exchange.serve_elsewhere();
                if let Some((learned, endpoint)) = self.exchange.take_unserved() {
                    self.shared.director.unlearn(&learned, &endpoint);
                }
                self.shared.director.wake();
            }
        }
        if let Some(live) = &mut self.live {
            live.served_by(address, self.exchange.served_endpoint());
        }
        if let Some((session, endpoint)) = self.exchange.served_session() {
            self.shared.director.served_by(session, endpoint);
        }
        self.learn();
    }

    fn learn(&mut self) {
        if let Some(unlearned) = self.exchange.take_unlearned() {
            let Unlearned {
                learned,
                endpoint,
                first,
            } = unlearned;
            let director = &self.shared.director;
            director.learn(learned, endpoint, first.as_deref());
        }
        if let Some((learned, endpoint)) = self.exchange.take_confirmed() {
            self.shared.director.confirm(&learned, &endpoint);
        }
    }

    fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<ProcessingResponse, Status>>> {
        loop {
            if let Some(reply) = self.next_reply() {
                return Poll::Ready(Some(Ok(reply)));
            }
            match &mut self.ended {
                Some(end) => return Poll::Ready(std::mem::replace(end, Ok(())).err().map(Err)),
                None => ready!(self.poll_input(cx)),
            }
        }
    }

    /// Ends the stream after a panic, with an answer to its client where that has none yet.
    fn fail(&mut self) -> Poll<Option<Result<ProcessingResponse, Status>>> {
        self.outputs.clear();
        self.reading = None;
        self.wait = None;
        self.exchange.fail();
        self.take_back();
        self.ended = Some(Ok(()));
        if std::mem::replace(&mut self.is_answered, true) {
            self.meter.end = "broken";
            return Poll::Ready(Some(Err(Status::internal("the endpoint picker failed"))));
        }
        let reply = Reply::Immediate(Reject::Internal);
        self.meter.reply(&reply);
        let reply = wire::message(reply, false, self.trace_id.as_ref());
        Poll::Ready(Some(Ok(reply)))
    }

    /// Does what is due and was not done: the server does not ask for this stream's answers any more.
    fn look(&mut self, now: Moment) {
        let prefilled = self.exchange.end_prefill(now);
        self.outputs.extend(prefilled);
        let is_drained = self.shared.settings.drained.is_cancelled();
        let due = if is_drained {
            Some(*self.drained_at.get_or_insert(now))
        } else {
            self.exchange.deadline()
        };
        if self.exchange.is_closed() || due.is_none_or(|due| now.since(due) < OVERDUE) {
            return;
        }
        debug!("the peer takes no answers: giving the stream up");
        let is_cut = !self.outputs.is_empty();
        let input = if is_drained {
            Input::Drain
        } else {
            Input::Timer
        };
        self.feed(input, now);
        self.meter.give_up();
        if is_cut && self.exchange.is_closed() {
            // In order it would let a request go on without the rest of its body.
            self.outputs.clear();
            self.ended = Some(Err(Status::unavailable("the peer takes no answers")));
        }
    }

    /// Whether the attributes of a message are others than those that were read last.
    fn has_news(&mut self, message: &ProcessingRequest) -> bool {
        let Some(bytes) = &message.metadata_context else {
            return false;
        };
        let hash = xxh64(bytes, 0);
        self.attributes.replace(hash) != Some(hash)
    }

    /// The next thing that happens to the stream, other than our own answers.
    fn poll_input(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // All that was to be said is with the server: what follows delays nobody.
        self.learn();
        if let Poll::Ready(message) = Pin::new(&mut self.messages).poll_next(cx) {
            let now = self.now();
            self.meter.heard = now;
            match message {
                Some(Ok(message)) => {
                    self.meter.message(&message);
                    if let Some(live) = &mut self.live {
                        live.message(&message, now);
                    }
                    let wanted = Wanted {
                        attributes: self.exchange.wants_attributes() && self.has_news(&message),
                        content_type: self.live.is_some(),
                    };
                    wire::inputs(message, wanted).into_iter().for_each(|input| {
                        self.feed(input, now);
                        self.observe_first();
                    });
                }
                Some(Err(status)) => self.broken(status),
                None => self.feed(Input::PeerClosed, now),
            }
            return Poll::Ready(());
        }
        if let Some(reading) = &mut self.reading
            && let Poll::Ready(parsed) = reading.as_mut().poll(cx)
        {
            self.feed(Input::Read(parsed), self.now());
            return Poll::Ready(());
        }
        if let Some(wait) = &mut self.wait
            && let Poll::Ready(waited) = wait.poll(cx)
        {
            self.wait = None;
            self.waited(waited);
            return Poll::Ready(());
        }
        if self.drained.as_mut().poll(cx).is_ready() {
            self.feed(Input::Drain, self.now());
            return Poll::Ready(());
        }
        if self.poll_timer(cx).is_ready() {
            self.feed(Input::Timer, self.now());
            return Poll::Ready(());
        }
        Poll::Pending
    }

    /// A reset is a normal end; a message that cannot be read is the peer's fault and is said so.
    fn broken(&mut self, status: Status) {
        let is_unread = matches!(
            status.code(),
            Code::OutOfRange | Code::ResourceExhausted | Code::Internal | Code::InvalidArgument
        );
        self.is_reset = !is_unread;
        self.feed(Input::PeerClosed, self.meter.heard);
        if is_unread {
            debug!(%status, "message of the peer not read");
            self.outputs.clear();
            self.meter.end = "broken";
            self.ended = Some(Err(status));
        }
    }

    /// The timer is moved only when it is due too late or fires too early: a deadline moves with every
    /// chunk of a body, the timer need not.
    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(deadline) = self.exchange.next_timer() else {
            return Poll::Pending;
        };
        let clock = self.shared.director.clock();
        let timer = self.timer.get_or_insert_with(|| Timer {
            at: deadline,
            sleep: Box::pin(sleep_until(clock.instant(deadline))),
        });
        if timer.at > deadline {
            timer.set(deadline, clock.instant(deadline));
        }
        while timer.sleep.as_mut().poll(cx).is_ready() {
            if timer.at >= deadline {
                self.timer = None;
                return Poll::Ready(());
            }
            timer.set(deadline, clock.instant(deadline));
        }
        Poll::Pending
    }
}

impl<S> Dialog<S> {
    /// Removes the cache entry of a request that an endpoint did not receive. Only a reset of the stream shows this: a
    /// proxy closes a stream in order once it has nothing left to send, which on a route that sends no responses
    /// happens before them. A proxy that sends no response to any EPP may reset all streams.
    fn take_back(&mut self) {
        if let Some((learned, endpoint)) = self.exchange.take_unserved()
            && self.is_reset
            && self.shared.sees_responses.load(Ordering::Relaxed)
        {
            self.shared.director.unlearn(&learned, &endpoint);
        }
    }
}

impl<S> Drop for Dialog<S> {
    fn drop(&mut self) {
        for output in self.exchange.abandon() {
            if let Output::Observe(event) = output {
                self.meter.observe(event);
                if let Some(live) = &mut self.live {
                    live.observe(event);
                }
            }
        }
        // A stream that was closed in order has nothing left to remove.
        self.is_reset = true;
        self.take_back();
        if let Some(live) = &mut self.live {
            live.ends(self.meter.end);
        }
    }
}

/// Seen from outside, where it takes its turn to be looked at.
impl<S> Overdue for Mutex<Dialog<S>>
where
    S: Stream<Item = Result<ProcessingRequest, Status>> + Unpin + Send,
{
    fn look(&self, now: Moment) {
        self.lock().look(now);
    }
}

// === impl Timer ===

impl Timer {
    fn set(&mut self, at: Moment, instant: tokio::time::Instant) {
        self.at = at;
        self.sleep.as_mut().reset(instant);
    }
}

#[cfg(test)]
mod tests;
