//! What of a request's body is the prompt: hashes of its chunks, which tell what endpoints have cached, and its length.
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

mod json;

use scheduling::murmur3::{CHUNK, Chunks, MAX_CHUNKS};
use xxhash_rust::{xxh3::xxh3_128, xxh64::Xxh64};

use self::json::{Item, Shape, elements, item, shape, text, unescaped};
use crate::body::{Parsed, Span};

/// What of a prompt is hashed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// All that an engine's cache depends on: text, roles, tools, media, the model and the salt of the cache.
    #[default]
    Full,
    /// The text alone, so that gateways that hash no more can share an index.
    Text,
}

/// A prompt, as far as the choice of an endpoint depends on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PromptFacts {
    /// The n-th stands for the first n chunks of 512 bytes; the last chunk may be shorter. At most 8192.
    pub hashes: Vec<u64>,
    /// Bytes of text, and for each media part as many as it counts for; of [`Mode::Text`] only the text.
    pub length: u64,
    /// Bytes of text.
    pub text_bytes: u64,
    /// There is an image or a video in it.
    pub is_vl: bool,
}

/// Why a request has no prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PromptError {
    /// A chat without a message.
    #[error("the request has no messages: set \"messages\" to a list of at least one")]
    NoMessages,
}

/// Before the name of a part: a role, or `tools`. Also between prompts of a list.
const PART: &[u8] = b"\x1e";

/// After the name of a part.
const NAMED: &[u8] = b"\x1f";

/// Before JSON that is neither text nor media, such as calls of tools.
const RECORD: &[u8] = b"\x1d";

/// Bytes of a prompt that are hashed.
const HASHED: u64 = CHUNK as u64 * MAX_CHUNKS as u64;

/// Hex digits that stand for the content of a media part.
const DIGEST: usize = 32;

/// What is not text, by how many bytes of text it is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Media {
    Image,
    Video,
    Audio,
    /// What is not known, such as files.
    Other,
}

/// What a part of a message's content is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Text,
    Media(Media),
    /// Calls of tools and their results, thoughts.
    Record,
}

/// Reads the prompt of a body that was parsed. `model` is the name that the server gets; in [`Mode::Full`] prompts of
/// different models or salts have no hash in common.
///
/// # Errors
/// [`PromptError::NoMessages`] where the format asks for messages and there is none.
pub fn read(
    parsed: &Parsed,
    body: &[u8],
    mode: Mode,
    model: &str,
) -> Result<PromptFacts, PromptError> {
    let mut reader = Reader {
        mode,
        chunks: Chunks::default(),
        length: 0,
        text_bytes: 0,
        is_vl: false,
        messages: 0,
    };
    let tools_first = |of_tools: bool| {
        let spans = parsed.spans.iter().zip(&parsed.kinds);
        spans.filter(move |(_, kind)| (**kind == Span::Tools) == of_tools)
    };
    for (at, kind) in tools_first(true).chain(tools_first(false)) {
        let json = body
            .get(at.clone())
            .and_then(|json| str::from_utf8(json).ok());
        if let Some(json) = json {
            reader.span(*kind, json);
        }
    }
    if parsed.wants_messages && reader.messages == 0 {
        return Err(PromptError::NoMessages);
    }
    let mut hashes = reader.chunks.finish();
    if mode == Mode::Full {
        let salt = salt(model, parsed.cache_salt.as_deref());
        for hash in &mut hashes {
            *hash ^= salt;
        }
    }
    Ok(PromptFacts {
        hashes,
        length: reader.length,
        text_bytes: reader.text_bytes,
        is_vl: reader.is_vl,
    })
}

// === impl PromptFacts ===

impl PromptFacts {
    /// Chunks of the prompt; the share of them that an endpoint has cached is the cache ratio.
    pub fn chunks(&self) -> u32 {
        u32::try_from(self.hashes.len()).unwrap_or(u32::MAX)
    }
}

/// Goes through the prompt once.
#[derive(Debug)]
struct Reader {
    mode: Mode,
    chunks: Chunks,
    length: u64,
    text_bytes: u64,
    is_vl: bool,
    /// Of the format's `messages`.
    messages: usize,
}

// === impl Reader ===

impl Reader {
    fn span(&mut self, kind: Span, json: &str) {
        match kind {
            Span::Tools => {
                self.name("tools");
                self.raw(json);
            }
            Span::Messages => {
                for message in elements(json) {
                    self.messages = self.messages.saturating_add(1);
                    self.message(message);
                }
            }
            Span::System | Span::Instructions => self.said(Some("system"), json),
            Span::Input if shape(json) == Shape::Text => self.said(Some("user"), json),
            Span::Input | Span::Prompt | Span::TokenIds => self.bare(json),
        }
    }

    /// A message of a list; of the Responses API also other items.
    fn message(&mut self, json: &str) {
        let Some(message) = item(json) else {
            return self.record(json);
        };
        if message.role.is_none() && message.content.is_none() {
            return self.record(json);
        }
        let role = message.role.and_then(text);
        let content = message.content.unwrap_or_default();
        self.said(Some(role.as_deref().unwrap_or_default()), content);
        if let Some(calls) = message.tool_calls {
            self.record(calls);
        }
    }

    /// A text or a list of parts, and whose it is.
    fn said(&mut self, role: Option<&str>, content: &str) {
        if let Some(role) = role {
            self.name(role);
        }
        match shape(content) {
            Shape::Text => self.text(content),
            Shape::List => elements(content).for_each(|part| self.part(part)),
            _ => {}
        }
    }

    fn part(&mut self, json: &str) {
        if shape(json) == Shape::Text {
            return self.text(json);
        }
        let Some(part) = item(json) else {
            return self.record(json);
        };
        match Part::of(&part) {
            Part::Text => {
                if let Some(text) = part.text.filter(|text| shape(text) == Shape::Text) {
                    self.text(text);
                }
            }
            Part::Media(media) => self.media(media, json),
            Part::Record => self.record(json),
        }
    }

    /// A prompt without roles: a text, ids of tokens, or a list of such.
    fn bare(&mut self, json: &str) {
        match shape(json) {
            Shape::Text => self.text(json),
            Shape::List => {
                for (nth, element) in elements(json).enumerate() {
                    let shape = shape(element);
                    if matches!(shape, Shape::Text | Shape::List) && nth > 0 {
                        self.chunks.update(PART);
                    }
                    match shape {
                        Shape::Text => self.text(element),
                        Shape::List => elements(element).for_each(|id| self.token(id)),
                        Shape::Object => self.message(element),
                        Shape::Other => self.token(element),
                    }
                }
            }
            _ => {}
        }
    }

    /// A JSON string.
    fn text(&mut self, json: &str) {
        let mut bytes = 0_u64;
        unescaped(json, |text| {
            self.chunks.update(text);
            bytes = bytes.saturating_add(count(text));
        });
        self.text_bytes = self.text_bytes.saturating_add(bytes);
        self.length = self.length.saturating_add(bytes);
    }

    /// Its id, as wide as engines have it. What is no id is refused by them.
    fn token(&mut self, json: &str) {
        let Ok(id) = json.parse::<u64>() else {
            return;
        };
        let id = u32::try_from(id).unwrap_or(u32::MAX).to_le_bytes();
        self.chunks.update(&id);
        self.text_bytes = self.text_bytes.saturating_add(count(&id));
        self.length = self.length.saturating_add(count(&id));
    }

    fn media(&mut self, media: Media, json: &str) {
        self.is_vl |= matches!(media, Media::Image | Media::Video);
        if self.mode == Mode::Text {
            return;
        }
        let size = media.size();
        self.length = self.length.saturating_add(count_of(size));
        // the digest of a large part is not for nothing
        if self.chunks.bytes() >= HASHED {
            return;
        }
        let digest = format!("{:032x}", xxh3_128(json.as_bytes()));
        for _ in 0..size.checked_div(DIGEST).unwrap_or_default() {
            self.chunks.update(digest.as_bytes());
        }
    }

    fn record(&mut self, json: &str) {
        if self.mode == Mode::Full {
            self.chunks.update(RECORD);
            self.raw(json);
        }
    }

    fn name(&mut self, name: &str) {
        if self.mode == Mode::Full {
            for bytes in [PART, name.as_bytes(), NAMED] {
                self.chunks.update(bytes);
            }
        }
    }

    /// JSON as it is written.
    fn raw(&mut self, json: &str) {
        if self.mode == Mode::Full {
            self.chunks.update(json.as_bytes());
        }
    }
}

// === impl Media ===

impl Media {
    /// Bytes of text that it is worth, all multiples of a digest.
    fn size(self) -> usize {
        match self {
            Self::Image | Self::Other => 4096,
            Self::Video => 8192,
            Self::Audio => 40_960,
        }
    }
}

// === impl Part ===

impl Part {
    /// By its type, which each format names in its own way. Without one, what has a text is text.
    fn of(item: &Item<'_>) -> Self {
        let kind = item.kind.and_then(text);
        let Some(kind) = kind.as_deref() else {
            return if item.text.is_some() {
                Self::Text
            } else {
                Self::Record
            };
        };
        match kind {
            "text" | "input_text" | "output_text" => Self::Text,
            "tool_use"
            | "tool_result"
            | "server_tool_use"
            | "function_call"
            | "function_call_output"
            | "thinking"
            | "redacted_thinking"
            | "reasoning"
            | "refusal" => Self::Record,
            kind if kind.contains("video") => Self::Media(Media::Video),
            kind if kind.contains("audio") => Self::Media(Media::Audio),
            kind if kind.contains("image") => Self::Media(Media::Image),
            _ => Self::Media(Media::Other),
        }
    }
}

/// Other gateways of the cluster share the index of caches: this and the hash must not change.
fn salt(model: &str, cache_salt: Option<&str>) -> u64 {
    let mut state = Xxh64::new(0);
    state.update(model.as_bytes());
    state.update(&[0]);
    state.update(cache_salt.unwrap_or_default().as_bytes());
    state.digest()
}

fn count(bytes: &[u8]) -> u64 {
    count_of(bytes.len())
}

fn count_of(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
