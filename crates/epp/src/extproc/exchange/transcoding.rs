//! Responses of servers that speak another protocol than the client.

use bytes::Bytes;
use transcode::{Failure, Piece, Transcoder};

use super::{Exchange, Outputs, ResponseHalf, parts::push_streamed};
use crate::{
    budget::Reservation,
    edit::Edit,
    extproc::message::{
        BodyMode, Chunk, Close, Event, Output, Part, Phase, Reply, ResponseHead, Route,
    },
    llm::LlmError,
    tap::Usage,
};

const CONTENT_TYPE: &str = "content-type";
const CONTENT_LENGTH: &str = "content-length";

/// The response of one request on its way through its transcoder.
#[derive(Debug)]
pub(super) struct Transcoding {
    transcoder: Box<dyn Transcoder>,
    /// What changes in the response's headers, while their answer waits for the body.
    held: Option<Box<Route>>,
    /// The status says already that it is an error.
    is_error: bool,
    /// What of the body the transcoder keeps; absent: none of it.
    kept: Option<Reservation>,
}

/// When the headers of a response are answered.
pub(super) enum HeadersReply {
    Now(Option<Box<Route>>),
    /// Once the body is there: it may turn out to be none that a client can use.
    WithBody,
}

// === impl Transcoding ===

impl Transcoding {
    pub(super) fn new(transcoder: Box<dyn Transcoder>) -> Self {
        Self {
            transcoder,
            held: None,
            is_error: false,
            kept: None,
        }
    }

    fn read(&mut self, bytes: Bytes, end: bool) -> Piece {
        if let Some(kept) = &mut self.kept
            && !kept.grow(bytes.len())
        {
            let problem = "too many bodies are held at this time".to_owned();
            self.kept = None;
            return self.transcoder.fail(Failure::Broken(problem));
        }
        self.transcoder.read_response(bytes, end)
    }
}

// === impl Exchange ===

impl Exchange {
    /// What the answer to the response's headers is, where `edit` is that of a response which is not transcoded.
    pub(super) fn transcode_headers(
        &mut self,
        head: ResponseHead,
        edit: Option<Box<Route>>,
    ) -> HeadersReply {
        let mode = self.modes.response;
        let kept = self.limits.budget.reserve_none();
        let Some(transcoding) = self.transcoding().filter(|_| !head.end) else {
            return HeadersReply::Now(edit);
        };
        let content_type = if head.is_sse {
            "text/event-stream"
        } else {
            "application/json"
        };
        let transcoder = &mut transcoding.transcoder;
        let head_read = transcoder.read_response_headers(head.status, Some(content_type));
        let mut route = edit.unwrap_or_default();
        if let Some(content_type) = head_read.rewritten {
            route.edit.set_header(CONTENT_TYPE, content_type);
            if mode != BodyMode::Buffered {
                route.edit.remove_header(CONTENT_LENGTH);
            }
        }
        transcoding.is_error = head.status >= 400;
        transcoding.kept = (!head_read.stream).then_some(kept);
        if head_read.stream || mode != BodyMode::FullDuplexStreamed {
            return HeadersReply::Now(Some(route));
        }
        transcoding.held = Some(route);
        HeadersReply::WithBody
    }

    /// Whether the response's body becomes another one.
    pub(super) fn transcodes(&self) -> bool {
        let picked = self.picked.as_ref();
        picked.is_some_and(|picked| picked.transcoding.is_some())
    }

    pub(super) fn transcode_body(&mut self, chunk: Chunk, outputs: &mut Outputs) {
        let mode = self.modes.response;
        // There a part is all there is.
        let end = chunk.end || mode == BodyMode::Buffered;
        let Some(data) = self.transcode_part(chunk.bytes, end, outputs) else {
            return;
        };
        if mode == BodyMode::FullDuplexStreamed {
            self.answer_held_headers(end, outputs);
            return push_streamed(Phase::Response, data, chunk.end, outputs);
        }
        let route = (mode == BodyMode::Buffered).then(|| {
            let mut edit = Edit::default();
            edit.set_header(CONTENT_LENGTH, data.len().to_string());
            Box::new(Route {
                edit,
                ..Route::default()
            })
        });
        outputs.push(Output::Reply(Reply::Body {
            phase: Phase::Response,
            route,
            part: Part::Replaced(data),
        }));
    }

    /// Trailers end the body; only in full-duplex mode there is a place for what is left of it.
    pub(super) fn transcode_end_by_trailers(&mut self, outputs: &mut Outputs) {
        let Some(data) = self.transcode_part(Bytes::new(), true, outputs) else {
            return;
        };
        if self.modes.response == BodyMode::FullDuplexStreamed {
            self.answer_held_headers(true, outputs);
            push_streamed(Phase::Response, data, false, outputs);
        }
    }

    /// What some bytes become; absent: the client got an error in place of the response.
    fn transcode_part(&mut self, bytes: Bytes, end: bool, outputs: &mut Outputs) -> Option<Bytes> {
        let transcoding = self.transcoding()?;
        let is_error = transcoding.is_error;
        let piece = transcoding.read(bytes, end);
        outputs.extend(piece.usage.map(|usage| {
            Output::Observe(Event::Usage(Usage {
                input_tokens: Some(usage.prompt_tokens),
                output_tokens: Some(usage.completion_tokens),
                cached_tokens: None,
            }))
        }));
        let Some(failure) = piece.failure.filter(|_| !is_error) else {
            return Some(piece.data);
        };
        let is_unsent =
            self.response == ResponseHalf::Held || self.modes.response == BodyMode::Buffered;
        if is_unsent {
            let reject = LlmError::from(failure).into();
            outputs.push(Output::Reply(Reply::Immediate(reject)));
            outputs.extend(self.close(Close::Done));
            return None;
        }
        outputs.push(Output::Observe(Event::Failed(failure.status())));
        Some(piece.data)
    }

    /// Once the body is there.
    fn answer_held_headers(&mut self, end: bool, outputs: &mut Outputs) {
        if end && self.response == ResponseHalf::Held {
            self.response = ResponseHalf::Open;
            let route = self.transcoding().and_then(|one| one.held.take());
            outputs.push(Output::Reply(Reply::Headers(Phase::Response, route)));
        }
    }

    fn transcoding(&mut self) -> Option<&mut Transcoding> {
        self.picked.as_mut()?.transcoding.as_mut()
    }
}
