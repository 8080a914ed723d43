//! What Triton answers, and what clients get of it.

use serde::Deserialize;

use super::{Dialect, text::Text};
use crate::{
    backend::StreamOutput,
    error::{Failure, brief},
    openai::{Asked, DONE, Reply},
    transcoder::{Call, Usage},
};

/// Bytes of a reader's message that a client is told.
const MAX_MESSAGE: usize = 200;

/// One answer as it comes.
#[derive(Debug, Default)]
pub(super) struct Response {
    reply: Reply,
    include_usage: bool,
    /// Tokens after which the server stops.
    limit: Option<u64>,
    text: Text,
    /// The role chunk has been sent.
    begun: bool,
    finish: Option<String>,
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
}

/// An answer, or an event of one. Other outputs, such as log probabilities, are left out.
#[derive(Deserialize)]
struct Document {
    text_output: Option<OneOrMany<String>>,
    finish_reason: Option<OneOrMany<String>>,
    num_input_tokens: Option<OneOrMany<u64>>,
    num_output_tokens: Option<OneOrMany<u64>>,
    error: Option<String>,
}

/// An output of one element is that element, one of several a list.
#[derive(Deserialize)]
#[serde(untagged, expecting = "an output must be a value or a list of values")]
enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

// === impl Response ===

impl Response {
    /// The answer to a request of which the model reads `input`.
    pub(super) fn new(dialect: Dialect, asked: &Asked, input: String, call: &Call) -> Self {
        let (limit, text) = match dialect {
            Dialect::Vllm { .. } => (asked.sampling.max_tokens, Text::default()),
            Dialect::TrtLlm {
                default_max_tokens,
                output,
                repeats_prompt,
            } => {
                let limit = asked.sampling.max_tokens.unwrap_or(default_max_tokens);
                // otherwise the server is configured to leave the input out, and text that looks like it is the model's
                let repeated = if repeats_prompt { input } else { String::new() };
                let text = Text::new(repeated, output == StreamOutput::Cumulative);
                (Some(limit), text)
            }
        };
        Self {
            reply: Reply::new(asked.api, &call.request_id, call.created, &asked.model),
            include_usage: asked.include_usage,
            limit: limit.map(u64::from),
            text,
            ..Self::default()
        }
    }

    /// Adds the chunks of an event to `out`.
    pub(super) fn on_event(&mut self, data: &[u8], out: &mut Vec<u8>) -> Result<(), Failure> {
        let text = self.read(data)?;
        let text = self.text.add(&text)?;
        self.begin(out);
        self.send(&text, out);
        Ok(())
    }

    /// Ends a stream, and returns its usage if the server has counted it.
    pub(super) fn end_stream(&mut self, out: &mut Vec<u8>) -> Option<Usage> {
        let rest = self.text.finish();
        self.begin(out);
        self.send(&rest, out);
        let usage = self.usage();
        self.reply.finish_chunk(out, self.finish());
        if let Some(usage) = usage.filter(|_| self.include_usage) {
            self.reply.usage_chunk(out, usage);
        }
        out.extend_from_slice(DONE);
        usage
    }

    /// The answer to a whole body.
    pub(super) fn whole(&mut self, body: &[u8]) -> Result<(Vec<u8>, Option<Usage>), Failure> {
        let text = self.read(body)?;
        let mut text = self.text.add(&text)?;
        text.push_str(&self.text.finish());
        let usage = self.usage();
        Ok((self.reply.whole(&text, self.finish(), usage), usage))
    }

    /// The text of a document; the rest is recorded.
    fn read(&mut self, json: &[u8]) -> Result<String, Failure> {
        let document: Document = serde_json::from_slice(json)
            .map_err(|error| Failure::Broken(brief(&error.to_string(), MAX_MESSAGE).to_owned()))?;
        if let Some(error) = document.error {
            return Err(Failure::Server(brief(&error, super::MAX_ERROR).to_owned()));
        }
        let text = document.text_output.and_then(OneOrMany::first);
        let text = text.ok_or_else(|| Failure::Broken("it has no text_output".to_owned()))?;
        // "None": it goes on.
        let finish = document.finish_reason.and_then(OneOrMany::first);
        let finish = finish.filter(|reason| !reason.is_empty() && reason != "None");
        self.finish = finish.or(self.finish.take());
        let input = document.num_input_tokens.and_then(OneOrMany::first);
        self.input_tokens = input.or(self.input_tokens);
        if let Some(more) = document.num_output_tokens.and_then(OneOrMany::first) {
            let before = self.output_tokens.unwrap_or_default();
            self.output_tokens = Some(before.saturating_add(more));
        }
        Ok(text)
    }

    fn begin(&mut self, out: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.begun, true) {
            self.reply.role_chunk(out);
        }
    }

    fn send(&mut self, text: &str, out: &mut Vec<u8>) {
        if !text.is_empty() {
            self.reply.text_chunk(out, text);
        }
    }

    /// What the server has counted. Clients are billed by it, so that nothing is guessed.
    fn usage(&self) -> Option<Usage> {
        Some(Usage {
            prompt_tokens: self.input_tokens?,
            completion_tokens: self.output_tokens?,
        })
    }

    /// The server's finish reason; without one, `length` where it has counted as many tokens as it may generate.
    fn finish(&self) -> &str {
        let counted = self.output_tokens.zip(self.limit);
        let at_limit = counted.is_some_and(|(tokens, limit)| tokens >= limit);
        let known = if at_limit { "length" } else { "stop" };
        self.finish.as_deref().unwrap_or(known)
    }
}

// === impl OneOrMany ===

impl<T> OneOrMany<T> {
    fn first(self) -> Option<T> {
        match self {
            Self::One(value) => Some(value),
            Self::Many(values) => values.into_iter().next(),
        }
    }
}

/// What an error's body says.
pub(super) fn error_message(body: &[u8]) -> Option<String> {
    let document: Document = serde_json::from_slice(body).ok()?;
    document.error
}
