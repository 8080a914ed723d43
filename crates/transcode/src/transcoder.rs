//! What a transcoder is, and which one serves a rule.

use std::{fmt, ops::Range};

use bytes::Bytes;

use crate::{
    backend::{Backend, Protocol, Transcoders, Wire},
    error::{Failure, Refusal},
    passthrough::Passthrough,
    triton::{Dialect, Generate},
};

/// One request on its way to a model server, and its response on the way back. Its methods are called in their order,
/// the last one once for each part of the body.
pub trait Transcoder: fmt::Debug + Send {
    /// Reads what a client sent to `path`.
    ///
    /// # Errors
    /// [`Refusal`] when it asks for something that the server's protocol has no terms for.
    fn read_request(&mut self, path: &str, body: &[u8]) -> Result<RequestData, Refusal>;

    /// What the server is sent in its place.
    ///
    /// # Errors
    /// [`Refusal`] when the server's protocol has no terms for the target.
    fn encode_request(&mut self, target: &Target<'_>) -> Result<Edit, Refusal>;

    /// The server's answer has begun: whether it is a stream, and what its body becomes.
    fn read_response_headers(&mut self, status: u16, content_type: Option<&str>) -> ResponseHead;

    /// What the next bytes of the server's body become; `end`: none follow. Nothing comes after a piece that is
    /// [`last`](Piece::last).
    fn read_response(&mut self, chunk: Bytes, end: bool) -> Piece;

    /// Ends the response before the server does, as its format has it, since the caller cannot go on. Nothing comes after it.
    fn fail(&mut self, failure: Failure) -> Piece;
}

/// What answers to one request carry, whatever the server says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// Of the request; the answer's id is made of it.
    pub request_id: String,
    /// Of the request; errors carry it.
    pub trace_id: String,
    /// When the request came, in seconds since 1970.
    pub created: u64,
}

/// What the pick needs of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestData {
    /// The model as the client named it.
    pub model: String,
    /// Whether the client wants the response as events.
    pub stream: bool,
}

/// What the server shall run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target<'a> {
    /// The model by its name on the server.
    pub model: &'a str,
    /// An adapter of it, if the protocol has a place for both names.
    pub adapter: Option<&'a str>,
}

/// How a request changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edit {
    /// Another path; absent: the client's.
    pub path: Option<String>,
    /// What its body becomes.
    pub body: BodyEdit,
}

/// How a body changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum BodyEdit {
    /// Not at all.
    #[default]
    Same,
    /// Some of its bytes are replaced.
    Splice(Range<usize>, Bytes),
    /// It is another one.
    Whole(Bytes),
}

/// What is known of a response once its headers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    /// It comes as events.
    pub stream: bool,
    /// The content type of what the client gets, whose length is not known; absent: the body passes as it is.
    pub rewritten: Option<&'static str>,
}

/// What some bytes of a response become.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// The client's bytes; there may be none. After a failure they end the response as its format has it.
    pub data: Bytes,
    /// The response is complete.
    pub last: bool,
    /// What went wrong, once.
    pub failure: Option<Failure>,
    /// The usage of the response, once it is known; a server that counts no tokens never reports it.
    pub usage: Option<Usage>,
}

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Of the prompt.
    pub prompt_tokens: u64,
    /// Generated.
    pub completion_tokens: u64,
}

/// The transcoder for a request between clients of `protocol` and a backend.
pub fn transcoder(
    protocol: Protocol,
    backend: &Backend,
    transcoders: &Transcoders,
    call: Call,
) -> Box<dyn Transcoder> {
    let trt_llm = &transcoders.trt_llm;
    match (protocol, backend) {
        (Protocol::OpenAi, Backend::Triton) => {
            let triton = &transcoders.triton;
            let dialect = Dialect::Vllm {
                extra_outputs: triton.extra_outputs,
            };
            Box::new(Generate::new(dialect, triton.chat_template, call))
        }
        (Protocol::OpenAi, Backend::TrtLlm) if trt_llm.wire == Wire::Triton => {
            let dialect = Dialect::TrtLlm {
                default_max_tokens: trt_llm.default_max_tokens,
                output: trt_llm.stream_output,
                repeats_prompt: trt_llm.repeats_prompt,
            };
            Box::new(Generate::new(dialect, trt_llm.chat_template, call))
        }
        _ => Box::new(Passthrough::new(protocol)),
    }
}
