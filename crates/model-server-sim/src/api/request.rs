//! A request body, read and checked: pure.

use std::num::NonZeroU32;

use serde::Deserialize;
use serde_json::Value;
use xxhash_rust::xxh64::xxh64;

use super::{answer::Endpoint, error::ApiError};
use crate::{
    engine::{BlockHash, Finish, PrefixSeed, prefix_blocks},
    text::count_tokens,
};

mod object;

use object::Object;

/// `max_tokens` of `/v1/completions` when the request says nothing, as in the OpenAI API.
const COMPLETIONS_MAX_TOKENS: u32 = 16;

/// Bytes of a client's value, or of a message that may repeat one, that the client is told.
const MAX_MESSAGE: usize = 200;

/// What requests are checked against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits<'a> {
    pub(crate) served_models: &'a [String],
    /// Prompt and output together, in tokens.
    pub(crate) max_model_len: NonZeroU32,
}

/// A valid request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    model: String,
    prompt: Prompt,
    cache_salt: String,
    max_tokens: NonZeroU32,
    /// The request itself set `max_tokens`, or its endpoint has a default for it.
    max_tokens_given: bool,
    seed: u64,
    stream: Option<IncludeUsage>,
}

/// Whether a stream ends with a usage chunk.
pub(crate) type IncludeUsage = bool;

/// What is read of both kinds of bodies; other fields are ignored, a field twice is an error.
#[derive(Debug, Deserialize)]
struct RawRequest {
    model: Option<String>,
    messages: Option<Vec<Object<RawMessage>>>,
    prompt: Option<RawPrompt>,
    tools: Option<Value>,
    max_tokens: Option<i64>,
    max_completion_tokens: Option<i64>,
    stream: Option<bool>,
    stream_options: Option<Object<RawStreamOptions>>,
    seed: Option<i64>,
    n: Option<i64>,
    cache_salt: Option<String>,
}

#[derive(Debug, Deserialize)]
struct RawStreamOptions {
    include_usage: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct RawMessage {
    role: String,
    content: Option<RawContent>,
    tool_calls: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "content must be a string or a list of parts")]
enum RawContent {
    Text(String),
    Parts(Vec<Object<RawPart>>),
}

#[derive(Debug, Deserialize)]
struct RawPart {
    text: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "prompt must be a string, a list with one string, or a list of token ids"
)]
enum RawPrompt {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
}

/// What the model would read, and the text that echo mode gives back.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Prompt {
    /// Four bytes a token; the last token may be short.
    bytes: Vec<u8>,
    echo_text: String,
}

// === impl Request ===

impl Request {
    /// Reads a body.
    ///
    /// # Errors
    /// [`ApiError`] when it is not JSON, lacks a field, names an unknown model or asks for too much.
    pub(crate) fn parse(
        endpoint: Endpoint,
        body: &[u8],
        limits: &Limits<'_>,
    ) -> Result<Self, ApiError> {
        let Object(raw): Object<RawRequest> = serde_json::from_slice(body)
            .map_err(|error| ApiError::InvalidJson(brief(&error.to_string())))?;
        let model = raw.model.ok_or(ApiError::MissingField {
            field: "model",
            expected: "name the model to use, see /v1/models",
        })?;
        if !limits.served_models.contains(&model) {
            let served = limits.served_models.join(", ");
            let model = brief(&model);
            return Err(ApiError::UnknownModel { model, served });
        }
        if raw.n.is_some_and(|choices| choices != 1) {
            return Err(invalid("n", "only 1 choice per request is simulated"));
        }
        let stream = raw.stream.unwrap_or(false);
        if raw.stream_options.is_some() && !stream {
            return Err(invalid(
                "stream_options",
                "only allowed with \"stream\": true",
            ));
        }
        let usage = raw
            .stream_options
            .and_then(|Object(options)| options.include_usage)
            .unwrap_or(false);

        let (prompt, asked, default) = match endpoint {
            Endpoint::Chat => {
                let messages = raw.messages.ok_or(ApiError::MissingField {
                    field: "messages",
                    expected: "send a list of messages",
                })?;
                let asked = raw.max_completion_tokens.or(raw.max_tokens);
                (Prompt::of_chat(messages, raw.tools)?, asked, None)
            }
            Endpoint::Completions => {
                let prompt = raw.prompt.ok_or(ApiError::MissingField {
                    field: "prompt",
                    expected: "send a string or a list of token ids",
                })?;
                let default = Some(COMPLETIONS_MAX_TOKENS);
                (Prompt::of_completion(prompt)?, raw.max_tokens, default)
            }
        };
        let asked = asked.map(max_tokens).transpose()?;
        let limit = limits.max_model_len.get();
        let room = limit.checked_sub(prompt.tokens()).and_then(NonZeroU32::new);
        let wanted = asked.map_or(1, NonZeroU32::get);
        let too_long = || ApiError::ContextTooLong {
            limit,
            prompt: prompt.tokens(),
            output: wanted,
        };
        let room = room
            .filter(|room| room.get() >= wanted)
            .ok_or_else(too_long)?;
        let default = default
            .and_then(NonZeroU32::new)
            .map(|default| default.min(room));

        Ok(Self {
            model,
            prompt,
            cache_salt: raw.cache_salt.unwrap_or_default(),
            max_tokens: asked.or(default).unwrap_or(room),
            max_tokens_given: asked.or(default).is_some(),
            // Only mixed into a hash: any bits will do.
            seed: raw.seed.map_or(0, i64::cast_unsigned),
            stream: stream.then_some(usage),
        })
    }

    /// How long made-up text is, and how it ends: exactly `max_tokens` if given (a load test asks for
    /// what it wants to get), else 1 to `usual` tokens, drawn from `seed`.
    pub(crate) fn output_length(&self, seed: u64, usual: NonZeroU32) -> (NonZeroU32, Finish) {
        if self.max_tokens_given {
            return (self.max_tokens, Finish::Length);
        }
        let draw = xxh64(b"length", seed) % u64::from(usual.get());
        let drawn = u32::try_from(draw).map_or(usual, |draw| NonZeroU32::MIN.saturating_add(draw));
        if drawn > self.max_tokens {
            (self.max_tokens, Finish::Length)
        } else {
            (drawn, Finish::Stop)
        }
    }

    /// The text that echo mode gives back: the last message, or the prompt.
    pub(crate) fn echo_text(&self) -> &str {
        &self.prompt.echo_text
    }

    pub(crate) fn prompt_tokens(&self) -> u32 {
        self.prompt.tokens()
    }

    /// The full blocks of the prompt, for the prefix cache of the model at `root`.
    pub(crate) fn prefix(&self, root: &str, block_tokens: NonZeroU32) -> Vec<BlockHash> {
        let seed = PrefixSeed {
            model: root,
            adapter: "",
            salt: &self.cache_salt,
        };
        prefix_blocks(seed, &self.prompt.bytes, block_tokens.get())
    }

    /// The most tokens that may be made.
    pub(crate) fn max_tokens(&self) -> NonZeroU32 {
        self.max_tokens
    }

    /// The request's own seed; 0 if it has none.
    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// `None`: one JSON document is wanted, no stream.
    pub(crate) fn include_usage(&self) -> Option<IncludeUsage> {
        self.stream
    }

    pub(crate) fn into_model(self) -> String {
        self.model
    }
}

// === impl Prompt ===

impl Prompt {
    fn of_chat(messages: Vec<Object<RawMessage>>, tools: Option<Value>) -> Result<Self, ApiError> {
        if messages.is_empty() {
            return Err(invalid("messages", "at least one message is needed"));
        }
        let json = |value: Option<Value>| value.map_or(String::new(), |value| value.to_string());
        let mut bytes = json(tools).into_bytes();
        let mut echo_text = String::new();
        for Object(message) in messages {
            echo_text = message
                .content
                .map(RawContent::into_text)
                .unwrap_or_default();
            bytes.extend_from_slice(message.role.as_bytes());
            bytes.extend_from_slice(echo_text.as_bytes());
            bytes.extend_from_slice(json(message.tool_calls).as_bytes());
        }
        Ok(Self { bytes, echo_text })
    }

    fn of_completion(prompt: RawPrompt) -> Result<Self, ApiError> {
        let text = match prompt {
            RawPrompt::Text(text) => text,
            RawPrompt::Tokens(ids) if !ids.is_empty() => return Ok(Self::of_tokens(&ids)),
            RawPrompt::Texts(texts) => match <[String; 1]>::try_from(texts) {
                Ok([text]) => text,
                Err(_) => {
                    return Err(invalid(
                        "prompt",
                        "only one prompt per request is simulated",
                    ));
                }
            },
            RawPrompt::Tokens(_) => return Err(invalid("prompt", "must not be empty")),
        };
        if text.is_empty() {
            return Err(invalid("prompt", "must not be empty"));
        }
        Ok(Self {
            bytes: text.clone().into_bytes(),
            echo_text: text,
        })
    }

    fn of_tokens(ids: &[u32]) -> Self {
        let words: Vec<_> = ids.iter().map(u32::to_string).collect();
        Self {
            bytes: ids.iter().flat_map(|id| id.to_le_bytes()).collect(),
            echo_text: words.join(" "),
        }
    }

    fn tokens(&self) -> u32 {
        count_tokens(self.bytes.len())
    }
}

// === impl RawContent ===

impl RawContent {
    fn into_text(self) -> String {
        match self {
            Self::Text(text) => text,
            Self::Parts(parts) => parts
                .into_iter()
                .filter_map(|Object(part)| part.text)
                .collect(),
        }
    }
}

fn max_tokens(asked: i64) -> Result<NonZeroU32, ApiError> {
    if asked < 1 {
        return Err(invalid("max_tokens", "must be at least 1"));
    }
    let asked = u32::try_from(asked).unwrap_or(u32::MAX);
    Ok(NonZeroU32::new(asked).unwrap_or(NonZeroU32::MIN))
}

/// The first [`MAX_MESSAGE`] bytes of `message`, cut between characters.
fn brief(message: &str) -> String {
    let end = message.floor_char_boundary(MAX_MESSAGE);
    match message.split_at_checked(end) {
        Some((start, rest)) if !rest.is_empty() => format!("{start}..."),
        _ => message.to_owned(),
    }
}

fn invalid(field: &'static str, message: &str) -> ApiError {
    ApiError::InvalidField {
        field,
        message: message.to_owned(),
    }
}

#[cfg(test)]
mod tests;
