//! What is measured of a stream.

use std::{sync::Arc, time::Duration};

use scheduling::Moment;
use tonic::Status;
use tracing::debug;

use crate::{
    director::Decision,
    extproc::{
        message::{Answer, Close, Event, Phase, PrefixMatch, Query, Reply, RequestHead},
        service::Shared,
    },
    llm::TraceId,
    metrics::{Labels, OpenStream, Outcome, Queued, Running, Series},
    proto::{ProcessingRequest, Request},
    reject::Reject,
    spans::RequestTrace,
    tap::Usage,
};

/// What is measured of a stream; its drop is the end of it, on every path.
pub(super) struct Meter {
    shared: Arc<Shared>,
    pub(super) opened: Moment,
    /// When the last message came.
    pub(super) heard: Moment,
    /// Whether it is still to be answered.
    unanswered: bool,
    /// When the response began.
    responding: Option<Moment>,
    /// The client wants the response as events.
    streaming: bool,
    /// What the parts of a streamed response took here.
    handling: Duration,
    pub(super) open: OpenStream,
    /// Of the request, once its model was looked for.
    series: Option<Arc<Series>>,
    /// Bytes of the body that was seen; absent: none was.
    seen: Option<usize>,
    /// While the request waits.
    queued: Option<Queued>,
    running: Option<Running>,
    /// When the external stage began, while it lasts.
    staged_at: Option<Moment>,
    /// How long it took since the last message came: no part of the pick.
    staged_for: Duration,
    /// Tokens of the prompt, as a Processor counted them.
    tokens: Option<u32>,
    /// Of a request that is sampled.
    pub(super) trace: Option<Box<RequestTrace>>,
    pub(super) end: &'static str,
}

// === impl Meter ===

impl Meter {
    pub(super) fn new(shared: &Arc<Shared>, now: Moment) -> Self {
        Self {
            open: shared.metrics.open_stream(),
            opened: now,
            heard: now,
            unanswered: false,
            responding: None,
            streaming: false,
            handling: Duration::ZERO,
            series: None,
            seen: None,
            queued: None,
            running: None,
            staged_at: None,
            staged_for: Duration::ZERO,
            tokens: None,
            trace: None,
            end: "reset",
            shared: Arc::clone(shared),
        }
    }

    pub(super) fn observe(&mut self, event: Event) {
        match event {
            Event::Responding(status) => self.responding(status),
            Event::ServedElsewhere { address, in_list } => {
                self.shared.metrics.served_elsewhere(in_list);
                if let Some(trace) = &self.trace {
                    trace.served_by(address);
                }
            }
            Event::FirstByte => self.first_byte(),
            Event::Prefilled => self.shared.director.wake(),
            Event::Streaming => {}
            Event::Usage(usage) => self.used(usage),
            Event::Failed(status) => self.failed(status),
            Event::Complete => self.complete(),
        }
    }

    pub(super) fn message(&mut self, message: &ProcessingRequest) {
        self.unanswered = true;
        if let (Some(Request::ResponseBody(body)), Some(running)) =
            (&message.request, &mut self.running)
        {
            running.chunk(body.body.len(), self.heard);
        }
    }

    pub(super) fn decide(
        &mut self,
        query: Query,
        transit: Duration,
        trace_id: Option<&TraceId>,
    ) -> Decision {
        let Shared {
            director, metrics, ..
        } = &*self.shared;
        let resolved = match director.resolve(&query, trace_id) {
            Ok(resolved) => resolved,
            // What nobody serves has no series: anybody may ask for it.
            Err(reject) => return Decision::refused(reject),
        };
        if let (Some(trace), Some(model)) = (&self.trace, &resolved.model) {
            trace.model(model);
        }
        let series = metrics.series(&Labels {
            model: resolved.model.as_deref(),
            target: resolved.target.as_deref(),
            fairness_id: resolved.fairness_id.as_deref(),
            priority: resolved.priority,
        });
        self.streaming = query.parsed.as_ref().is_some_and(|parsed| parsed.stream);
        self.seen = query.parsed.as_ref().map(|_| query.body.len());
        if director.queues() {
            let (bytes, clock) = (query.body.len(), director.clock());
            self.queued = Some(metrics.queue(&series, resolved.priority, bytes, clock));
        }
        self.series = Some(series);
        director.decide(query, &resolved, transit)
    }

    pub(super) fn decided(&mut self, decision: &Result<Box<Answer>, Reject>) {
        self.wait_ends(match decision {
            Err(Reject::QueueFull(_)) => Outcome::RejectedCapacity,
            Err(Reject::Expired { .. }) => Outcome::EvictedTtl,
            Err(Reject::ShuttingDown) => Outcome::EvictedOther,
            Ok(_) | Err(_) => Outcome::Dispatched,
        });
        if let Some(trace) = &mut self.trace {
            trace.decided(decision, self.shared.director.clock().now());
        }
        let (Some(series), Ok(answer)) = (&self.series, decision) else {
            return;
        };
        let metrics = &self.shared.metrics;
        metrics.scheduled(answer.scheduling);
        if let Some(PrefixMatch { cached, prompt }) = answer.prefix {
            metrics.predicted(cached.into(), prompt.into());
        }
        if self.seen.is_none() {
            metrics.picked_blindly();
        }
        self.tokens = answer.staged.as_ref().and_then(|staged| staged.tokens);
        self.running = Some(Arc::clone(series).begin(self.seen.unwrap_or(0)));
    }

    pub(super) fn trace_begins(&mut self, head: &RequestHead, now: Moment) {
        if let Some(tracing) = &self.shared.tracing
            && self.trace.is_none()
        {
            self.trace = tracing.request(head, now.since(self.opened));
        }
    }

    /// A Processor is asked from now on. The parent of what it does, if that is traced.
    pub(super) fn stage_begins(&mut self, now: Moment) -> Option<String> {
        self.wait_ends(Outcome::Dispatched);
        self.staged_at = Some(now);
        self.trace.as_mut().map(|trace| trace.staged())
    }

    /// It was asked, and this came of it.
    pub(super) fn stage_ends(&mut self, told: &'static str, now: Moment) {
        if let Some(began) = self.staged_at.take() {
            self.staged_for = now.since(began.max(self.heard));
        }
        if let Some(trace) = &mut self.trace {
            trace.stage_ends(told);
        }
    }

    pub(super) fn wait_ends(&mut self, outcome: Outcome) {
        if let Some(queued) = self.queued.take() {
            queued.end(outcome);
        }
    }

    pub(super) fn reply(&mut self, reply: &Reply) {
        let Shared {
            director, metrics, ..
        } = &*self.shared;
        let unanswered = std::mem::take(&mut self.unanswered);
        match reply {
            Reply::Headers(Phase::Request, Some(_))
            | Reply::Body {
                phase: Phase::Request,
                route: Some(_),
                ..
            } => {
                let now = director.clock().now();
                let took = now.since(self.heard).saturating_sub(self.staged_for);
                metrics.picked(took);
                metrics.request_processed(now.since(self.opened));
            }
            Reply::Immediate(reject) => {
                metrics.request_processed(director.clock().now().since(self.opened));
                metrics.rejected(reject.reason());
                if let Some(trace) = &self.trace {
                    trace.refused(reject);
                }
                // Refused before its model was read: it has none.
                let series = self
                    .series
                    .take()
                    .unwrap_or_else(|| metrics.series(&Labels::default()));
                series.failed(reject.status());
                self.end = "rejected";
            }
            Reply::Body {
                phase: Phase::Response,
                ..
            } if self.streaming && unanswered => {
                self.handling += director.clock().now().since(self.heard);
            }
            Reply::Headers(..) | Reply::Body { .. } | Reply::Trailers(_) | Reply::Wait(_) => {}
        }
    }

    fn responding(&mut self, status: u16) {
        self.responding = Some(self.heard);
        if let Some(trace) = &self.trace {
            trace.responding(status);
        }
        if let Some(running) = self.running.as_ref().filter(|_| status >= 400) {
            running.failed(status);
        }
    }

    fn failed(&mut self, status: u16) {
        if let Some(running) = &self.running {
            running.failed(status);
        }
    }

    /// Where the body passes unseen its first byte is not known either.
    fn first_byte(&mut self) {
        self.shared.director.wake();
        if let Some(running) = self.running.as_mut().filter(|running| running.has_body()) {
            running.first_byte(self.heard.since(self.opened), self.streaming);
        }
    }

    fn used(&mut self, usage: Usage) {
        if let Some(cached) = usage.cached_tokens {
            self.shared.metrics.reported(cached);
        }
        let counted = self.tokens.map(u64::from).zip(usage.input_tokens);
        if counted.is_some_and(|(counted, reported)| counted != reported) {
            self.shared.director.token_counts_differ();
        }
        if let Some(running) = &mut self.running {
            running.used(usage);
        }
    }

    fn complete(&mut self) {
        self.shared.director.wake();
        self.end = "complete";
        self.trace = None;
        if let Some(running) = self.running.take() {
            let now = self.shared.director.clock().now();
            running.took(now.since(self.opened));
            if let Some(began) = self.responding.filter(|_| !self.streaming) {
                self.shared.metrics.response_processed(now.since(began));
            }
        }
    }

    pub(super) fn give_up(&mut self) {
        self.end = "overdue";
        self.running = None;
        self.shared.director.wake();
    }

    pub(super) fn close(&mut self, close: Close) -> Result<(), Status> {
        match close {
            Close::Done => {
                if self.end == "reset" {
                    self.end = "early";
                }
                Ok(())
            }
            Close::InvalidArgument(what) => {
                self.end = "invalid";
                debug!(what, "the peer broke the protocol");
                Err(Status::invalid_argument(what))
            }
            Close::Unavailable => {
                self.end = "drained";
                Err(Status::unavailable("the endpoint picker is shutting down"))
            }
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.shared.metrics.stream_ended(self.end);
        if self.handling > Duration::ZERO {
            self.shared.metrics.response_processed(self.handling);
        }
        self.shared.director.wake();
    }
}
