//! Inference requests: which paths carry one, and what the EPP reads from it.
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

/// Bytes of a reader's message that a client is told: the reason stands first, after it may come its input.
const MAX_MESSAGE: usize = 200;

/// Bytes of JSON that stand for one token of the prompt: an estimate that needs no tokenizer.
const BYTES_PER_TOKEN: usize = 4;

/// A request format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Api {
    /// Path suffix, without a leading slash.
    suffix: &'static str,
    /// The prompt's spans, in the order the engine reads them.
    spans: &'static [Span],
}

/// What the EPP reads from a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parsed {
    /// The model the client asks for.
    pub model: String,
    /// Tokens of the prompt, estimated from its bytes.
    pub prompt_tokens: usize,
}

/// Why a body cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    /// JSON of another kind, or none: a derived reader would take an array too, and repeat a whole string
    /// in its error.
    #[error("the request body is no JSON object: begin it with \"{{\"")]
    NoObject,
    /// No JSON, or an object with a key given twice.
    #[error("the request body is no valid JSON request: {0}")]
    Json(String),
    /// An object without a usable model.
    #[error("the request body names no model: set \"model\" to a non-empty string")]
    NoModel,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Span {
    Instructions,
    Tools,
    System,
    Messages,
    Prompt,
    Input,
    TokenIds,
}

/// The keys of all formats; one pass over the body, and a key given twice is an error.
#[derive(Deserialize)]
struct Raw<'a> {
    #[serde(borrow)]
    model: Option<Cow<'a, str>>,
    #[serde(borrow)]
    instructions: Option<&'a RawValue>,
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
    #[serde(borrow)]
    system: Option<&'a RawValue>,
    #[serde(borrow)]
    messages: Option<&'a RawValue>,
    #[serde(borrow)]
    prompt: Option<&'a RawValue>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
    #[serde(borrow)]
    token_ids: Option<&'a RawValue>,
}

/// Every format; the longest suffix that matches wins.
const APIS: &[Api] = &[
    Api {
        suffix: "chat/completions",
        spans: &[Span::Tools, Span::Messages],
    },
    Api {
        suffix: "chat/completions/render",
        spans: &[Span::Tools, Span::Messages],
    },
    Api {
        suffix: "completions",
        spans: &[Span::Prompt],
    },
    Api {
        suffix: "completions/render",
        spans: &[Span::Prompt],
    },
    Api {
        suffix: "embeddings",
        spans: &[Span::Input],
    },
    Api {
        suffix: "responses",
        spans: &[Span::Instructions, Span::Tools, Span::Input],
    },
    Api {
        suffix: "messages",
        spans: &[Span::Tools, Span::System, Span::Messages],
    },
    Api {
        suffix: "messages/count_tokens",
        spans: &[Span::Tools, Span::System, Span::Messages],
    },
    Api {
        suffix: "inference/v1/generate",
        spans: &[Span::TokenIds],
    },
];

// === impl Api ===

impl Api {
    /// The format that requests to `path` (a query may follow) carry, whatever their content type;
    /// `None`: the path is passed through unread.
    pub(crate) fn for_path(path: &str) -> Option<Self> {
        let path = path.split('?').next().unwrap_or(path);
        let matches = |api: &&Self| {
            path.strip_suffix(api.suffix)
                .is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
        };
        APIS.iter()
            .filter(matches)
            .max_by_key(|api| api.suffix.len())
            .copied()
    }

    /// Reads a whole body.
    ///
    /// # Errors
    /// [`BodyError`] when it is no JSON object, gives a key twice, or names no model.
    pub(crate) fn parse(self, body: &[u8]) -> Result<Parsed, BodyError> {
        let first = body.iter().find(|byte| !b" \t\r\n".contains(byte));
        if first.is_some_and(|byte| *byte != b'{') {
            return Err(BodyError::NoObject);
        }
        let raw: Raw<'_> = serde_json::from_slice(body)
            .map_err(|error| BodyError::Json(brief(&error.to_string())))?;
        let prompt_bytes = self
            .spans
            .iter()
            .filter_map(|span| raw.span(*span))
            .map(|json| json.get().len());
        let prompt_tokens = prompt_bytes
            .fold(0_usize, usize::saturating_add)
            .div_ceil(BYTES_PER_TOKEN);
        let model = raw
            .model
            .filter(|model| !model.is_empty())
            .ok_or(BodyError::NoModel)?;
        Ok(Parsed {
            model: model.into_owned(),
            prompt_tokens,
        })
    }
}

// === impl Raw ===

impl<'a> Raw<'a> {
    fn span(&self, span: Span) -> Option<&'a RawValue> {
        match span {
            Span::Instructions => self.instructions,
            Span::Tools => self.tools,
            Span::System => self.system,
            Span::Messages => self.messages,
            Span::Prompt => self.prompt,
            Span::Input => self.input,
            Span::TokenIds => self.token_ids,
        }
    }
}

/// The first [`MAX_MESSAGE`] bytes of `message`, cut between characters.
fn brief(message: &str) -> String {
    let end = message.floor_char_boundary(MAX_MESSAGE);
    match message.split_at_checked(end) {
        Some((start, rest)) if !rest.is_empty() => format!("{start}..."),
        _ => message.to_owned(),
    }
}

#[cfg(test)]
mod tests;
