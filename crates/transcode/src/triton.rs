//! Triton's generate extension: a text in, a text out, as JSON or as events.

mod request;
mod response;
mod text;

use bytes::Bytes;

use crate::{
    backend::{ChatTemplate, StreamOutput},
    error::{Failure, Refusal, brief, error_body},
    events::EventReader,
    openai::{Asked, DONE},
    passthrough::is_event_stream,
    transcoder::{BodyEdit, Call, Edit, Piece, RequestData, ResponseHead, Target, Transcoder},
};

use response::Response;

/// Bytes of a body that comes whole: a text of a million tokens. A longer one is not collected.
const MAX_WHOLE: usize = 4 * 1024 * 1024;

/// Bytes of an error's text that a client is told.
const MAX_ERROR: usize = 4096;

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream; charset=utf-8";

/// What a server takes beside the text, and what it gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// Triton's vLLM backend.
    Vllm {
        /// It knows the finish reason and the number of tokens.
        extra_outputs: bool,
    },
    /// Triton's TensorRT-LLM backend.
    TrtLlm {
        /// Tokens of an answer to a request that sets no limit.
        default_max_tokens: u32,
        /// What an event holds.
        output: StreamOutput,
        /// Whether the text begins with the prompt.
        repeats_prompt: bool,
    },
}

/// A request for a model server behind Triton.
#[derive(Debug)]
pub(crate) struct Generate {
    dialect: Dialect,
    template: ChatTemplate,
    call: Call,
    asked: Asked,
    format: Format,
    events: EventReader,
    /// The body so far, if it is read as a whole.
    whole: Vec<u8>,
    response: Response,
    /// Nothing is sent any more.
    ended: bool,
}

/// What the server's body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Whole,
    Events,
    /// An error, by this status.
    Error(u16),
}

// === impl Generate ===

impl Generate {
    pub(crate) fn new(dialect: Dialect, template: ChatTemplate, call: Call) -> Self {
        Self {
            dialect,
            template,
            call,
            asked: Asked::default(),
            format: Format::Whole,
            events: EventReader::default(),
            whole: Vec::new(),
            response: Response::default(),
            ended: false,
        }
    }

    fn read_events(&mut self, chunk: &[u8], end: bool) -> Piece {
        let mut out = Vec::new();
        let mut result = Ok(());
        let response = &mut self.response;
        let mut on_event = |data: &[u8]| {
            if result.is_ok() {
                result = response.on_event(data, &mut out);
            }
        };
        let mut read = self.events.feed(chunk, &mut on_event);
        if end && read.is_ok() {
            read = self.events.finish(&mut on_event);
        }
        if let Err(failure) = result.and(read.map_err(|error| Failure::Broken(error.to_string()))) {
            self.end_events(&failure, &mut out);
            return Piece::failed(out, failure);
        }
        let usage = if end {
            self.response.end_stream(&mut out)
        } else {
            None
        };
        Piece {
            data: out.into(),
            last: end,
            failure: None,
            usage,
        }
    }

    /// An error as the last event.
    fn end_events(&self, failure: &Failure, out: &mut Vec<u8>) {
        let error = self.error(failure, failure.status());
        for part in [b"data: ".as_slice(), &error, b"\n\n", DONE] {
            out.extend_from_slice(part);
        }
    }

    fn read_whole(&mut self, chunk: &[u8], end: bool) -> Piece {
        if self.whole.len().saturating_add(chunk.len()) > MAX_WHOLE {
            let failure = Failure::Broken(format!("it has more than {MAX_WHOLE} bytes"));
            return Piece::failed(self.error(&failure, failure.status()), failure);
        }
        self.whole.extend_from_slice(chunk);
        if !end {
            return Piece::default();
        }
        let body = std::mem::take(&mut self.whole);
        match self.response.whole(&body) {
            Ok((data, usage)) => Piece {
                data: data.into(),
                last: true,
                failure: None,
                usage,
            },
            Err(failure) => Piece::failed(self.error(&failure, failure.status()), failure),
        }
    }

    /// An error that the status says already: what is too long of it is left out.
    fn read_error(&mut self, status: u16, chunk: &[u8], end: bool) -> Piece {
        let room = MAX_WHOLE.saturating_sub(self.whole.len());
        self.whole.extend(chunk.iter().take(room));
        if !end {
            return Piece::default();
        }
        let body = std::mem::take(&mut self.whole);
        let message = response::error_message(&body).unwrap_or_else(|| {
            let text = String::from_utf8_lossy(&body);
            match text.trim() {
                "" => format!("the model server answered with status {status} and no body"),
                text => text.to_owned(),
            }
        });
        let failure = Failure::Server(brief(&message, MAX_ERROR).to_owned());
        Piece::failed(self.error(&failure, status), failure)
    }

    fn error(&self, failure: &Failure, status: u16) -> Vec<u8> {
        error_body(&failure.to_string(), status, None, &self.call.trace_id)
    }
}

impl Transcoder for Generate {
    fn read_request(&mut self, path: &str, body: &[u8]) -> Result<RequestData, Refusal> {
        self.asked = Asked::read(path, body)?;
        Ok(RequestData {
            model: self.asked.model.clone(),
            stream: self.asked.stream,
        })
    }

    fn encode_request(&mut self, target: &Target<'_>) -> Result<Edit, Refusal> {
        let prompt = std::mem::take(&mut self.asked.prompt);
        let input = prompt.render(self.template);
        let body = request::body(self.dialect, &self.asked, &input, target)?;
        let path = request::path(target.model, self.asked.stream);
        self.response = Response::new(self.dialect, &self.asked, input, &self.call);
        self.format = if self.asked.stream {
            Format::Events
        } else {
            Format::Whole
        };
        Ok(Edit {
            path: Some(path),
            body: BodyEdit::Whole(body.into()),
        })
    }

    fn read_response_headers(&mut self, status: u16, content_type: Option<&str>) -> ResponseHead {
        let stream = content_type.map_or(self.asked.stream, is_event_stream);
        self.format = match stream {
            _ if status >= 400 => Format::Error(status),
            true => Format::Events,
            false => Format::Whole,
        };
        let stream = self.format == Format::Events;
        ResponseHead {
            stream,
            rewritten: Some(if stream { EVENTS } else { JSON }),
        }
    }

    fn read_response(&mut self, chunk: Bytes, end: bool) -> Piece {
        if self.ended {
            return Piece {
                last: true,
                ..Piece::default()
            };
        }
        let piece = match self.format {
            Format::Whole => self.read_whole(&chunk, end),
            Format::Events => self.read_events(&chunk, end),
            Format::Error(status) => self.read_error(status, &chunk, end),
        };
        self.ended = piece.last;
        piece
    }

    fn fail(&mut self, failure: Failure) -> Piece {
        if std::mem::replace(&mut self.ended, true) {
            return Piece {
                last: true,
                ..Piece::default()
            };
        }
        self.whole = Vec::new();
        let data = match self.format {
            Format::Events => {
                let mut out = Vec::new();
                self.end_events(&failure, &mut out);
                out
            }
            Format::Whole => self.error(&failure, failure.status()),
            Format::Error(status) => self.error(&failure, status),
        };
        Piece::failed(data, failure)
    }
}

// === impl Piece ===

impl Piece {
    fn failed(data: Vec<u8>, failure: Failure) -> Self {
        Self {
            data: data.into(),
            last: true,
            failure: Some(failure),
            usage: None,
        }
    }
}
