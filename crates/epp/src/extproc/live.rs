//! A request under the LLM filter, from its headers to the end of its stream: what it saves, teaches, counts and logs.
//!
//! Its charge rides on the booking. Whoever else is to know of it is told here: it is made in [`Live::picked`], moves in
//! [`Live::served_by`], loses its prefill with the first of [`Event::Prefilled`] and [`Event::FirstByte`], and ends with the
//! drop.

use std::{net::SocketAddr, sync::Arc};

use scheduling::{Endpoint, Moment};
use tracing::debug;

use super::message::{Event, Phase, Query, Reply};
use crate::{
    director::{ChargeElsewhere, Director},
    llm::{Ended, LlmRequest, TraceId, begins_with_error},
    metrics::LlmMetrics,
    proto::{HttpBody, ProcessingRequest, Request},
};

/// One request. Its drop is its end, on every path.
pub(super) struct Live {
    director: Arc<Director>,
    metrics: LlmMetrics,
    request: Option<Box<LlmRequest>>,
    /// Who serves it, as far as is known; absent: no member.
    endpoint: Option<Arc<Endpoint>>,
    is_saved: bool,
    /// Where the pick is to be known elsewhere.
    charge: Option<ChargeElsewhere>,
    /// When the last message came.
    heard: Moment,
    ended: Ended,
}

// === impl Live ===

impl Live {
    pub(super) fn new(
        director: Arc<Director>,
        metrics: LlmMetrics,
        trace_id: Option<TraceId>,
        opened: Moment,
    ) -> Self {
        Self {
            director,
            metrics,
            request: None,
            endpoint: None,
            is_saved: false,
            charge: None,
            heard: opened,
            ended: Ended::new(trace_id, opened),
        }
    }

    /// What the client asks for.
    pub(super) fn asks_for(&mut self, query: &Query) {
        let parsed = query.parsed.as_ref();
        self.ended.model = parsed.map(|parsed| parsed.model.as_str().into());
    }

    /// It is picked for.
    pub(super) fn picked(&mut self, request: Box<LlmRequest>, endpoint: Arc<Endpoint>) {
        self.ended.selected = Some(endpoint.address());
        self.ended.served = Some(endpoint.address());
        self.charge = self.director.charge_elsewhere(&request, endpoint.address());
        self.endpoint = Some(endpoint);
        self.request = Some(request);
    }

    /// This goes to the proxy.
    pub(super) fn reply(&mut self, reply: &Reply) {
        match reply {
            Reply::Headers(Phase::Request, Some(_))
            | Reply::Body {
                phase: Phase::Request,
                route: Some(_),
                ..
            } => self.ended.answered = Some(self.director.clock().now()),
            Reply::Immediate(reject) => {
                (self.ended.status, self.ended.refused) = (reject.status(), Some(reject.reason()));
            }
            _ => {}
        }
    }

    /// Another endpoint than the picked one serves it; absent: it is no member.
    pub(super) fn served_by(&mut self, address: SocketAddr, endpoint: Option<&Arc<Endpoint>>) {
        self.ended.served = Some(address);
        self.endpoint = endpoint.cloned();
        match (&mut self.charge, endpoint) {
            (Some(charge), Some(_)) => charge.move_to(address),
            // The address is not in the pool: the request counts at no endpoint.
            _ => self.charge = None,
        }
    }

    /// This came from the proxy; what it leads to is observed next.
    pub(super) fn message(&mut self, message: &ProcessingRequest, now: Moment) {
        self.heard = now;
        let Some(Request::ResponseBody(HttpBody { body, .. })) = &message.request else {
            return;
        };
        if !body.is_empty() {
            self.ended.last_byte = Some(now);
            if self.ended.first_byte.is_none() && self.ended.is_sse {
                self.ended.is_sse_error = begins_with_error(body);
            }
        }
    }

    pub(super) fn observe(&mut self, event: Event) {
        if let (Some(charge), Event::Prefilled | Event::FirstByte) = (&mut self.charge, event) {
            charge.prefilled();
        }
        match event {
            Event::Streaming => self.ended.is_sse = true,
            Event::Responding(status) => self.responding(status),
            Event::FirstByte => self.first_byte(),
            Event::Usage(usage) => self.ended.usage = usage,
            Event::Failed(_) => self.ended.is_sse_error = true,
            Event::Complete => {
                self.ended.is_complete = true;
                self.charge = None;
            }
            Event::Prefilled | Event::ServedElsewhere { .. } => {}
        }
    }

    /// How the stream ends.
    pub(super) fn ends(&mut self, end: &'static str) {
        self.ended.end = end;
    }

    /// What serves it has cached the prompt, unless the first event of the response says that it failed.
    fn responding(&mut self, status: u16) {
        self.ended.status = status;
        self.ended.responding = Some(self.heard);
        debug!(
            trace_id = self.ended.trace_id(),
            stream = self.ended.is_sse,
            cache_hit = self.request.as_deref().map(LlmRequest::cache_ratio),
            "EncodeHeaders"
        );
        if !self.ended.is_sse {
            self.save();
        }
    }

    fn first_byte(&mut self) {
        self.ended.first_byte = Some(self.heard);
        self.save();
        let ttft = self.heard.since(self.ended.opened);
        debug!(trace_id = self.ended.trace_id(), ?ttft, "FirstToken");
    }

    fn save(&mut self) {
        let is_saved = std::mem::replace(&mut self.is_saved, true);
        if let (Some(request), Some(endpoint)) = (&self.request, &self.endpoint)
            && !is_saved
            && self.ended.is_success()
        {
            self.director.save_chunks(request, endpoint);
        }
    }

    /// The time from the answer to the first byte teaches how long prefills take, where that byte is the first token.
    fn teach(&self) {
        let Ended {
            answered: Some(answered),
            first_byte: Some(first_byte),
            is_sse: true,
            usage,
            ..
        } = self.ended
        else {
            return;
        };
        let request = self.request.as_ref().filter(|_| self.ended.is_success());
        let Some((request, mut prompt)) = request.and_then(|one| Some((one, one.tokens()?))) else {
            return;
        };
        if let Some(tokens) = usage.input_tokens {
            prompt.tokens = tokens as f64;
        }
        if let Some(tokens) = usage.cached_tokens {
            prompt.cached = tokens as f64;
        }
        let took = first_byte.since(answered);
        self.director.learn_prefill(request, prompt, took);
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.teach();
        let config = self.director.config();
        let Some(filter) = config.llm_filter() else {
            return;
        };
        let now = self.director.clock().now();
        let request = self.request.as_deref();
        debug!(
            trace_id = self.ended.trace_id(),
            duration = ?now.since(self.ended.opened),
            status = self.ended.status,
            "OnLog"
        );
        self.metrics.ended(&self.ended, request, now);
        if filter.log.enabled {
            self.director
                .log_access(|| self.ended.line(request, filter, now));
        }
    }
}
