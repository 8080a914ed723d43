//! The response half: how its messages are answered, and what they say of the endpoint.

use scheduling::Moment;

use super::{BodyMode, Exchange, Outputs, RequestHalf, transcoding::HeadersReply};
use crate::{
    edit::Edit,
    extproc::message::{Chunk, Event, Output, Phase, Reply, ResponseHead, Route},
    llm::LlmError,
    reject::Reject,
};

/// Tells proxies on the way to pass each event on at once.
const X_ACCEL_BUFFERING: &str = "x-accel-buffering";

/// In responses, for the conformance suite.
const SERVED_BY: &str = "x-conformance-test-served-endpoint";

/// How far the response has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseHalf {
    /// No message yet.
    Awaited,
    /// The answer to its headers waits for its body.
    Held,
    /// Headers are answered.
    Open,
    /// The last message is answered.
    Over,
}

// === impl Exchange ===

impl Exchange {
    pub(super) fn on_response_headers(&mut self, head: ResponseHead, now: Moment) -> Outputs {
        if self.response != ResponseHalf::Awaited {
            return self.violation("response headers came twice".to_owned());
        }
        if let RequestHalf::Awaited = self.request {
            self.modes = head.modes.unwrap_or(self.modes);
            self.request = RequestHalf::Bypassed;
        }
        self.request.give_up();
        if let Some(reject) = self.no_data(head) {
            return self.reject(reject);
        }
        self.confirm();
        self.deadline = None;
        let mut outputs = Outputs::new();
        if head.is_sse {
            outputs.push(Output::Observe(Event::Streaming));
        }
        outputs.push(Output::Observe(Event::Responding(head.status)));
        let edit = self.response_edit(head);
        self.response = match self.transcode_headers(head, edit) {
            HeadersReply::Now(edit) => {
                outputs.push(Output::Reply(Reply::Headers(Phase::Response, edit)));
                ResponseHalf::Open
            }
            HeadersReply::WithBody => ResponseHalf::Held,
        };
        if head.end {
            self.complete(now, &mut outputs);
        } else if self.modes.response == BodyMode::None {
            self.respond(&mut outputs); // its body passes unseen
        }
        outputs
    }

    pub(super) fn on_response_body(&mut self, chunk: Chunk, now: Moment) -> Outputs {
        let mut outputs = Outputs::new();
        match self.response {
            ResponseHalf::Awaited => {
                return self.violation("a response body came before its headers".to_owned());
            }
            ResponseHalf::Over => return outputs,
            ResponseHalf::Held | ResponseHalf::Open => {}
        }
        let end = chunk.end;
        if !chunk.bytes.is_empty() {
            self.respond(&mut outputs);
        }
        self.answer_response_body(chunk, &mut outputs);
        if end && !self.closed {
            self.complete(now, &mut outputs);
        }
        outputs
    }

    pub(super) fn on_response_trailers(&mut self, now: Moment) -> Outputs {
        let mut outputs = Outputs::new();
        match self.response {
            ResponseHalf::Awaited => {
                return self.violation("response trailers came before the headers".to_owned());
            }
            ResponseHalf::Over => return outputs,
            ResponseHalf::Held | ResponseHalf::Open => {}
        }
        self.end_by_trailers(&mut outputs);
        if self.closed {
            return outputs;
        }
        outputs.push(Output::Reply(Reply::Trailers(Phase::Response)));
        self.complete(now, &mut outputs);
        outputs
    }

    /// Under the LLM filter a success without anything in it is none: clients of `OpenAI` cannot read it.
    fn no_data(&self, head: ResponseHead) -> Option<Reject> {
        let picked = self
            .picked
            .as_ref()
            .filter(|picked| picked.of_llm.is_filtered)?;
        let is_empty = head.end && (200..300).contains(&head.status) && head.status != 204;
        let server = picked.booking.endpoint().destination().to_owned();
        is_empty.then(|| LlmError::NoUpstreamData { server }.into())
    }

    /// The server has computed the prompt.
    pub(super) fn respond(&mut self, outputs: &mut Outputs) {
        if let Some(picked) = self.picked.as_mut().filter(|picked| !picked.responded) {
            picked.responded = true;
            picked.of_llm.prefill_until = None;
            picked.learned = None;
            picked.booking.respond();
            if let Some(reservation) = &mut picked.reservation {
                let stranger = self.served.filter(|_| picked.stranger);
                let booked = || picked.booking.endpoint().address();
                reservation.prefilled(stranger.unwrap_or_else(booked));
            }
            outputs.push(Output::Observe(Event::FirstByte));
        }
    }

    /// What changes in the response's headers.
    fn response_edit(&self, head: ResponseHead) -> Option<Box<Route>> {
        // An error starts no session: its client may be routed to another endpoint.
        let is_success = (200..300).contains(&head.status);
        let session = self.served_session().filter(|_| is_success);
        let session = session.and_then(|(session, endpoint)| session.response_header(endpoint));
        let is_filtered = self
            .picked
            .as_ref()
            .is_some_and(|picked| picked.of_llm.is_filtered);
        let unbuffered = head.is_sse && is_filtered;
        if session.is_none() && !self.reports_served && !unbuffered {
            return None;
        }
        let mut edit = Edit::default();
        if unbuffered {
            edit.set_header(X_ACCEL_BUFFERING, "no");
        }
        if let Some((name, value)) = session {
            edit.set_header(name, value);
        }
        if self.reports_served {
            let served = self.served.map(|address| address.to_string());
            edit.set_header(
                SERVED_BY,
                served.unwrap_or_else(|| "fail: missing".to_owned()),
            );
        }
        Some(Box::new(Route {
            edit,
            ..Route::default()
        }))
    }

    /// The response is answered in full: the endpoint is free.
    pub(super) fn complete(&mut self, now: Moment, outputs: &mut Outputs) {
        self.response = ResponseHalf::Over;
        let tap = self.picked.take().and_then(|picked| picked.tap);
        let usage = tap.and_then(|mut tap| tap.finish());
        outputs.extend(usage.map(|usage| Output::Observe(Event::Usage(usage))));
        self.await_close(now);
        outputs.push(Output::Observe(Event::Complete));
    }
}
