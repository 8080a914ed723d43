//! What the model would read: the texts of a request one after the other, as bytes. Pure.

use serde::Deserialize;
use serde_json::Value;
use xxhash_rust::xxh64::Xxh64;

use super::{error::ApiError, object::Object, request::invalid};
use crate::text::count_tokens;

/// Prompts of one request for embeddings, as in the OpenAI API.
const MAX_INPUTS: usize = 2048;

/// What the model would read, and the text that echo mode gives back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Prompt {
    /// Four bytes a token; the last token may be short.
    bytes: Vec<u8>,
    echo_text: String,
}

/// One message of a chat, or one item of the input of a response.
#[derive(Debug, Deserialize)]
pub(super) struct RawMessage {
    role: String,
    content: Option<RawContent>,
    tool_calls: Option<Value>,
}

#[derive(Debug, Deserialize)]
pub(super) struct RawItem {
    role: Option<String>,
    content: Option<RawContent>,
    /// Of a function call.
    arguments: Option<Value>,
    /// Of its result.
    output: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "content must be a string or a list of parts")]
pub(super) enum RawContent {
    Text(String),
    Parts(Vec<Object<RawPart>>),
}

#[derive(Debug, Deserialize)]
pub(super) struct RawPart {
    text: Option<String>,
    /// Of a tool use.
    input: Option<Value>,
    /// Of a tool result.
    content: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "prompt must be a string, a list with one string, or a list of token ids"
)]
pub(super) enum RawPrompt {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
}

#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "input must be a string, a list of strings, of token ids or of lists of token ids, or a list of messages"
)]
pub(super) enum RawInput {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
    TokenLists(Vec<Vec<u32>>),
    Items(Vec<Object<RawItem>>),
}

// === impl Prompt ===

impl Prompt {
    /// Tools, system prompt and messages, in the order of the APIs that have them.
    pub(super) fn of_chat(
        tools: Option<Value>,
        system: Option<RawContent>,
        messages: Vec<Object<RawMessage>>,
    ) -> Result<Self, ApiError> {
        if messages.is_empty() {
            return Err(invalid("messages", "at least one message is needed"));
        }
        let mut prompt = Self::default();
        prompt.push(&json(tools));
        prompt.push(&system.map(RawContent::into_text).unwrap_or_default());
        for Object(message) in messages {
            let text = message.content.map(RawContent::into_text);
            prompt.echo_text = text.unwrap_or_default();
            prompt.push(&message.role);
            prompt.bytes.extend_from_slice(prompt.echo_text.as_bytes());
            prompt.push(&json(message.tool_calls));
        }
        Ok(prompt)
    }

    pub(super) fn of_completion(prompt: RawPrompt) -> Result<Self, ApiError> {
        match prompt {
            RawPrompt::Text(text) => Self::of_text("prompt", text),
            RawPrompt::Tokens(ids) => Self::of_tokens("prompt", &ids),
            RawPrompt::Texts(texts) => match <[String; 1]>::try_from(texts) {
                Ok([text]) => Self::of_text("prompt", text),
                Err(_) => Err(invalid(
                    "prompt",
                    "only one prompt per request is simulated",
                )),
            },
        }
    }

    /// Of `/v1/responses`.
    pub(super) fn of_response(
        instructions: Option<String>,
        tools: Option<Value>,
        input: RawInput,
    ) -> Result<Self, ApiError> {
        let mut prompt = Self::default();
        prompt.push(&instructions.unwrap_or_default());
        prompt.push(&json(tools));
        match input {
            RawInput::Text(text) if !text.is_empty() => {
                prompt.push(&text);
                prompt.echo_text = text;
            }
            RawInput::Items(items) => {
                for Object(item) in items {
                    let text = item.content.map(RawContent::into_text).unwrap_or_default();
                    prompt.push(&item.role.unwrap_or_default());
                    prompt.push(&text);
                    prompt.push(&json(item.arguments));
                    prompt.push(&json(item.output));
                    prompt.echo_text = text;
                }
            }
            _ => {
                return Err(invalid(
                    "input",
                    "must be a text or a list of messages, and not empty",
                ));
            }
        }
        Ok(prompt)
    }

    /// One prompt for each input of `/v1/embeddings`.
    pub(super) fn of_inputs(input: RawInput) -> Result<Vec<Self>, ApiError> {
        let prompts: Vec<_> = match input {
            RawInput::Text(text) => vec![Self::of_text("input", text)?],
            RawInput::Tokens(ids) => vec![Self::of_tokens("input", &ids)?],
            RawInput::Texts(texts) => texts
                .into_iter()
                .map(|text| Self::of_text("input", text))
                .collect::<Result<_, _>>()?,
            RawInput::TokenLists(lists) => lists
                .iter()
                .map(|ids| Self::of_tokens("input", ids))
                .collect::<Result<_, _>>()?,
            RawInput::Items(_) => {
                return Err(invalid("input", "must be texts or token ids, not messages"));
            }
        };
        if prompts.len() > MAX_INPUTS {
            return Err(invalid("input", "at most 2048 inputs per request"));
        }
        Ok(prompts)
    }

    pub(super) fn of_tokens(field: &'static str, ids: &[u32]) -> Result<Self, ApiError> {
        if ids.is_empty() {
            return Err(invalid(field, "must not be empty"));
        }
        let words: Vec<_> = ids.iter().map(u32::to_string).collect();
        Ok(Self {
            bytes: ids.iter().flat_map(|id| id.to_le_bytes()).collect(),
            echo_text: words.join(" "),
        })
    }

    pub(super) fn of_text(field: &'static str, text: String) -> Result<Self, ApiError> {
        if text.is_empty() {
            return Err(invalid(field, "must not be empty"));
        }
        Ok(Self {
            bytes: text.clone().into_bytes(),
            echo_text: text,
        })
    }

    /// The model reads these; what echo mode gives back stays.
    pub(super) fn replace_ids(&mut self, ids: &[u32]) {
        self.bytes = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    }

    /// The model reads this first: what it read and wrote before.
    pub(super) fn go_on_from(&mut self, mut conversation: Vec<u8>) {
        conversation.append(&mut self.bytes);
        self.bytes = conversation;
    }

    /// xxh64 of the ids, 32 bits each, with seed 0.
    pub(super) fn checksum(&self) -> u64 {
        let mut hash = Xxh64::new(0);
        hash.update(&self.bytes);
        // as the id of a last token that is short
        let short = self.bytes.len().next_multiple_of(size_of::<u32>()) - self.bytes.len();
        hash.update(&[0; size_of::<u32>()][..short]);
        hash.digest()
    }

    fn push(&mut self, text: &str) {
        self.bytes.extend_from_slice(text.as_bytes());
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn tokens(&self) -> u32 {
        count_tokens(self.bytes.len())
    }

    /// The text that echo mode gives back: the last message, or the prompt.
    pub(crate) fn echo_text(&self) -> &str {
        &self.echo_text
    }
}

// === impl RawContent ===

impl RawContent {
    fn into_text(self) -> String {
        match self {
            Self::Text(text) => text,
            Self::Parts(parts) => parts
                .into_iter()
                .flat_map(|Object(part)| {
                    [
                        part.text.unwrap_or_default(),
                        json(part.input),
                        json(part.content),
                    ]
                })
                .collect(),
        }
    }
}

/// The JSON form of a value without a text of its own; nothing for nothing.
fn json(value: Option<Value>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}
