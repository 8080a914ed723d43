//! A result in the shape of its API, whole or as the events of a stream: pure.

mod anthropic;
mod generate;
mod openai;
mod responses;
mod triton;

use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;

use super::request::{IncludeUsage, TritonShape};
use crate::{engine::Finish, server::ApiServer, text::Output};

/// Which API was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
    /// `/v1/responses`
    Responses,
    /// `/v1/messages`
    Messages,
    /// `/inference/v1/generate`
    Generate,
    /// `/v2/models/<model>/generate`
    Triton(TritonShape),
}

/// Everything that an answer says.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) endpoint: Endpoint,
    /// Unique in this process; the prefix of its kind is added.
    pub(crate) id: String,
    /// Seconds since 1970.
    pub(crate) created: i64,
    pub(crate) model: Arc<str>,
    pub(crate) prompt_tokens: u32,
    /// Those of them that the prefix cache held.
    pub(crate) cached_tokens: u32,
    /// `None`: not a stream.
    pub(crate) include_usage: Option<IncludeUsage>,
    /// What the answer repeats of the prompt before its own text.
    pub(crate) repeated_input: String,
    pub(crate) output: Output,
    /// What is kept of a response that others may go on from.
    pub(crate) stored: Option<Stored>,
}

/// What a response that is kept needs beside its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    /// Who keeps it.
    pub(crate) by: ApiServer,
    /// All that the model read.
    pub(crate) prompt: Vec<u8>,
}

// === impl Answer ===

impl Answer {
    /// The whole answer.
    pub(crate) fn whole(&self) -> Vec<u8> {
        match self.endpoint {
            Endpoint::Chat | Endpoint::Completions => self.openai_whole(),
            Endpoint::Responses => to_json(&self.response_whole()),
            Endpoint::Messages => to_json(&self.message_whole()),
            Endpoint::Generate => to_json(&self.generate_whole()),
            Endpoint::Triton(shape) => to_json(&self.triton_whole(shape)),
        }
    }

    /// What a stream sends before the first token.
    pub(crate) fn start_events(&self) -> Vec<Bytes> {
        match self.endpoint {
            Endpoint::Chat | Endpoint::Completions => self.openai_start(),
            Endpoint::Responses => self.response_start(),
            Endpoint::Messages => self.message_start(),
            Endpoint::Generate | Endpoint::Triton(_) => Vec::new(),
        }
    }

    /// One token, counted from 0; empty if it has no event of its own.
    pub(crate) fn token_event(&self, index: u32) -> Bytes {
        match self.endpoint {
            Endpoint::Chat | Endpoint::Completions => self.openai_token(index),
            Endpoint::Responses => self.response_token(index),
            Endpoint::Messages => self.message_token(index),
            Endpoint::Generate => self.generate_token(index),
            Endpoint::Triton(shape) => self.triton_token(shape, index),
        }
    }

    /// What a stream sends after the last token.
    pub(crate) fn end_events(&self) -> Vec<Bytes> {
        match self.endpoint {
            Endpoint::Chat | Endpoint::Completions => self.openai_end(),
            Endpoint::Responses => self.response_end(),
            Endpoint::Messages => self.message_end(),
            Endpoint::Generate => self.generate_end(),
            Endpoint::Triton(_) => Vec::new(),
        }
    }

    fn is_last(&self, index: u32) -> bool {
        index + 1 == self.output.tokens().get()
    }
}

/// How the OpenAI API names an end.
fn finish_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
    }
}

fn to_json(document: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(document).expect("strings and numbers always have a JSON form")
}

/// A server-sent event without a name.
fn data_event(document: &impl Serialize) -> Bytes {
    [b"data: ".as_slice(), &to_json(document), b"\n\n"]
        .concat()
        .into()
}

/// The end of streams whose events have no names.
fn done_event() -> Bytes {
    Bytes::from_static(b"data: [DONE]\n\n")
}

/// A server-sent event whose name is also the `type` in its document.
fn named_event(document: &serde_json::Value) -> Bytes {
    let name = document["type"].as_str().unwrap_or_default();
    let data = to_json(document);
    [b"event: ", name.as_bytes(), b"\ndata: ", &data, b"\n\n"]
        .concat()
        .into()
}
