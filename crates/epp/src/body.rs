//! Inference requests: which paths carry one, and what the EPP reads from it.
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::{borrow::Cow, ops::Range};

use memchr::{memchr, memchr2};
use processor_api::{Fields, present};
use serde::Deserialize;
use serde_json::value::RawValue;
use smallvec::SmallVec;

use crate::config::Parser;

mod guarded;

pub(crate) use guarded::{GENERATE, Guarded};

use guarded::GuardedPlaces;

/// Bytes of a reader's message that a client is told: the reason stands first, after it may come its input.
const MAX_MESSAGE: usize = 200;

/// Bytes of a model's name: it is kept for as long as the request's stream is open, beside the limit of bodies, and may
/// be put into each event of the response.
const MAX_MODEL: usize = 256;

/// The byte order mark: some clients write it before the JSON, and engines skip it.
const MARK: char = '\u{feff}';
pub(crate) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Bytes of JSON that stand for one token of the prompt: an estimate that needs no tokenizer.
const BYTES_PER_TOKEN: usize = 4;

/// A request format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Api {
    /// Path suffix, without a leading slash.
    suffix: &'static str,
    /// Whose format it is.
    parser: Parser,
    /// The prompt's spans, in the order the engine reads them.
    spans: &'static [Span],
}

/// What the EPP reads from a body. Ranges are in bytes of that body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parsed {
    /// The model the client asks for.
    pub model: String,
    /// Where the model's JSON string is, quotes included.
    pub model_at: Range<usize>,
    /// Whether the client wants the response as events.
    pub stream: bool,
    /// Most tokens the engine may generate, if the client sets a limit.
    pub max_tokens: Option<u64>,
    /// Requests with different salts share no cached prefix.
    pub cache_salt: Option<String>,
    /// The JSON values that make the prompt, in the order the engine reads them.
    pub spans: SmallVec<[Range<usize>; 3]>,
    /// What each of the spans is.
    pub(crate) kinds: SmallVec<[Span; 3]>,
    /// The format has messages, and engines refuse a request without one.
    pub(crate) wants_messages: bool,
    /// Tokens of the prompt, estimated from the bytes of its spans.
    pub prompt_tokens: usize,
    /// Where the external stage's own members are.
    pub fields: Fields,
    /// The members of the body that a client may not be allowed to set.
    pub(crate) guarded: GuardedPlaces,
}

/// A request path that no server can read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request path is no UTF-8 once percent-decoded: encode it as UTF-8")]
pub struct BadPath;

/// Why a body cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// JSON of another kind, or none: a derived reader would take an array too, and repeat a whole string
    /// in its error.
    #[error("the request body is no JSON object: begin it with \"{{\"")]
    NoObject,
    /// Engines refuse it too; with this check made once, the reader need not check each string.
    #[error("the request body is no UTF-8: encode its JSON as UTF-8")]
    NoText,
    /// The body is UTF-16. Engines accept it, as Python does; RFC 8259 requires UTF-8.
    #[error("the request body is UTF-16: send its JSON as UTF-8")]
    Utf16,
    /// No JSON, or an object with a key given twice.
    #[error("the request body is no valid JSON request: {0}")]
    Json(String),
    /// A model's name that is kept nowhere.
    #[error("the request body names a model of more than {MAX_MODEL} bytes: use a shorter name")]
    LongModel,
    /// An object without a usable model.
    #[error("the request body names no model: set \"model\" to a non-empty string")]
    NoModel,
}

/// A field of a request that is a part of its prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Span {
    Instructions,
    Tools,
    System,
    Messages,
    Prompt,
    Input,
    TokenIds,
}

/// The keys of all formats; one pass over the body, and a key given twice is an error. The values may be
/// of any type: engines are more lenient than a typed reader, and refuse what they do not take themselves.
#[derive(Deserialize)]
struct Raw<'a> {
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    #[serde(borrow)]
    stream: Option<&'a RawValue>,
    #[serde(borrow)]
    max_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    cache_salt: Option<&'a RawValue>,
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
    #[serde(borrow, default, deserialize_with = "present")]
    token_ids: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    route: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    nvext: Option<&'a RawValue>,
    #[serde(borrow)]
    sampling_params: Option<&'a RawValue>,
    #[serde(borrow)]
    vllm_xargs: Option<&'a RawValue>,
    #[serde(borrow)]
    kv_transfer_params: Option<&'a RawValue>,
    #[serde(borrow)]
    ec_transfer_params: Option<&'a RawValue>,
    #[serde(borrow)]
    bootstrap_host: Option<&'a RawValue>,
    #[serde(borrow)]
    bootstrap_port: Option<&'a RawValue>,
    #[serde(borrow)]
    bootstrap_room: Option<&'a RawValue>,
    #[serde(borrow)]
    disagg_prefill_dp_rank: Option<&'a RawValue>,
    #[serde(borrow)]
    disaggregated_params: Option<&'a RawValue>,
    #[serde(borrow)]
    prompt_token_ids: Option<&'a RawValue>,
    #[serde(borrow)]
    prompt_embeds: Option<&'a RawValue>,
    #[serde(borrow)]
    input_ids: Option<&'a RawValue>,
    #[serde(borrow)]
    input_embeds: Option<&'a RawValue>,
    #[serde(borrow)]
    embed_overrides: Option<&'a RawValue>,
}

/// Every format; the longest suffix that matches wins.
const APIS: &[Api] = &[
    Api {
        suffix: "chat/completions",
        parser: Parser::OpenAi,
        spans: &[Span::Tools, Span::Messages],
    },
    Api {
        suffix: "chat/completions/render",
        parser: Parser::OpenAi,
        spans: &[Span::Tools, Span::Messages],
    },
    Api {
        suffix: "completions",
        parser: Parser::OpenAi,
        spans: &[Span::Prompt],
    },
    Api {
        suffix: "completions/render",
        parser: Parser::OpenAi,
        spans: &[Span::Prompt],
    },
    Api {
        suffix: "embeddings",
        parser: Parser::OpenAi,
        spans: &[Span::Input],
    },
    Api {
        suffix: "responses",
        parser: Parser::OpenAi,
        spans: &[Span::Instructions, Span::Tools, Span::Input],
    },
    Api {
        suffix: "messages",
        parser: Parser::Anthropic,
        spans: &[Span::Tools, Span::System, Span::Messages],
    },
    Api {
        suffix: "messages/count_tokens",
        parser: Parser::Anthropic,
        spans: &[Span::Tools, Span::System, Span::Messages],
    },
    Api {
        suffix: GENERATE,
        parser: Parser::VllmHttp,
        spans: &[Span::TokenIds],
    },
];

// === impl Api ===

impl Api {
    /// The format that requests to `path` (a query may follow) carry, whatever their content type;
    /// `None`: the path is passed through unread. Only a path with encoded bytes is copied.
    ///
    /// # Errors
    /// [`BadPath`] when the path is not UTF-8 after percent-decoding.
    pub fn for_path(path: &[u8]) -> Result<Option<Self>, BadPath> {
        // Some servers cut a fragment off, which a client should not have sent.
        let end = memchr2(b'?', b'#', path).unwrap_or(path.len());
        let path = percent_decoded(path.get(..end).unwrap_or(path));
        let path = str::from_utf8(&path).map_err(|_| BadPath)?;
        let matches = |api: &&Self| {
            path.strip_suffix(api.suffix)
                .is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
        };
        let longest = APIS
            .iter()
            .filter(matches)
            .max_by_key(|api| api.suffix.len());
        Ok(longest.copied())
    }

    /// How its paths end.
    pub(crate) fn suffix(self) -> &'static str {
        self.suffix
    }

    /// The parser that a configuration names for it.
    pub(crate) fn parser(self) -> Parser {
        self.parser
    }

    /// Reads a whole body, in one pass.
    ///
    /// # Errors
    /// [`BodyError`] when it is no JSON object in UTF-8, gives a key twice, or names no model.
    pub fn parse(self, body: &[u8]) -> Result<Parsed, BodyError> {
        if is_utf16(body) {
            return Err(BodyError::Utf16);
        }
        let json = body.strip_prefix(BYTE_ORDER_MARK).unwrap_or(body);
        let first = json.iter().find(|byte| !b" \t\r\n".contains(byte));
        if first.is_some_and(|byte| *byte != b'{') {
            return Err(BodyError::NoObject);
        }
        let text = simdutf8::basic::from_utf8(body).map_err(|_| BodyError::NoText)?;
        // Places are in bytes of the body, with the mark.
        let marked = text.strip_prefix(MARK).unwrap_or(text);
        let raw: Raw<'_> = serde_json::from_str(marked).map_err(json_error)?;
        let model = raw.model.ok_or(BodyError::NoModel)?;
        let (kinds, spans): (SmallVec<[Span; 3]>, SmallVec<[Range<usize>; 3]>) = self
            .spans
            .iter()
            .filter_map(|span| Some((*span, place(raw.span(*span)?, text))))
            .unzip();
        let prompt_tokens = spans
            .iter()
            .map(ExactSizeIterator::len)
            .fold(0_usize, usize::saturating_add)
            .div_ceil(BYTES_PER_TOKEN);
        let name = string(model)
            .map_err(json_error)?
            .filter(|model| !model.is_empty())
            .ok_or(BodyError::NoModel)?;
        if name.len() > MAX_MODEL {
            return Err(BodyError::LongModel);
        }
        Ok(Parsed {
            model: name.into_owned(),
            model_at: place(model, text),
            stream: raw.stream.is_some_and(is_true),
            max_tokens: raw.max_tokens.and_then(count),
            cache_salt: raw
                .cache_salt
                .and_then(|salt| string(salt).ok().flatten())
                .map(Cow::into_owned)
                .filter(|salt| !salt.is_empty()),
            spans,
            kinds,
            wants_messages: self.spans.contains(&Span::Messages),
            prompt_tokens,
            fields: raw.fields(text),
            guarded: raw.guarded(self, text),
        })
    }
}

// === impl BodyError ===

impl BodyError {
    /// The field of the body that is at fault, if it is one.
    pub(crate) fn param(&self) -> Option<&'static str> {
        match self {
            Self::NoModel | Self::LongModel => Some("model"),
            Self::NoObject | Self::NoText | Self::Utf16 | Self::Json(_) => None,
        }
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
            Span::TokenIds => self.token_ids.filter(|ids| ids.get() != "null"),
        }
    }

    fn fields(&self, text: &str) -> Fields {
        let place = |json: Option<&RawValue>| json.map(|json| place(json, text));
        Fields {
            route: place(self.route),
            token_ids: place(self.token_ids),
            nvext: place(self.nvext),
        }
    }
}

/// The bytes that `path` stands for. As in servers, a `%` without two hex digits stands for itself.
fn percent_decoded(path: &[u8]) -> Cow<'_, [u8]> {
    let Some(first) = memchr(b'%', path) else {
        return Cow::Borrowed(path);
    };
    let (start, mut rest) = path.split_at_checked(first).unwrap_or((path, &[]));
    let mut decoded = Vec::with_capacity(path.len());
    decoded.extend_from_slice(start);
    while let [first, after @ ..] = rest {
        let encoded = match rest {
            [b'%', high, low, after @ ..] => hex(*high)
                .zip(hex(*low))
                .map(|(high, low)| ((high << 4) | low, after)),
            _ => None,
        };
        let (byte, after) = encoded.unwrap_or((*first, after));
        decoded.push(byte);
        rest = after;
    }
    Cow::Owned(decoded)
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit)
        .to_digit(16)
        .and_then(|value| u8::try_from(value).ok())
}

/// Whether it is the beginning of an object in UTF-16, with a mark or without.
fn is_utf16(body: &[u8]) -> bool {
    matches!(
        body,
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] | [b'{', 0, ..] | [0, b'{', ..]
    )
}

/// Where `json`, which was read from `text`, is in it.
fn place(json: &RawValue, text: &str) -> Range<usize> {
    let json = json.get();
    let start = json.as_ptr().addr().saturating_sub(text.as_ptr().addr());
    start..start.saturating_add(json.len())
}

/// The text of a JSON string; `None`: it is another value.
fn string(json: &RawValue) -> Result<Option<Cow<'_, str>>, serde_json::Error> {
    let Some(inner) = quoted(json.get()) else {
        return Ok(None);
    };
    if memchr(b'\\', inner.as_bytes()).is_none() {
        return Ok(Some(Cow::Borrowed(inner)));
    }
    serde_json::from_str(json.get()).map(|text| Some(Cow::Owned(text)))
}

/// What stands between the quotes of a JSON string.
fn quoted(json: &str) -> Option<&str> {
    json.strip_prefix('"')?.strip_suffix('"')
}

/// Whether engines take this value as true: pydantic, in which vLLM declares its fields, converts it.
fn is_true(json: &RawValue) -> bool {
    let text = quoted(json.get()).unwrap_or(json.get());
    ["true", "1", "1.0", "t", "y", "yes", "on"]
        .iter()
        .any(|word| text.eq_ignore_ascii_case(word))
}

/// The whole number that engines take this value for, which may also be written as `"100"` or `100.0`.
fn count(json: &RawValue) -> Option<u64> {
    let text = quoted(json.get()).unwrap_or(json.get()).trim();
    let whole = match text.split_once('.') {
        Some((whole, zeros)) if zeros.bytes().all(|digit| digit == b'0') => whole,
        _ => text,
    };
    whole.parse().ok()
}

fn json_error(error: serde_json::Error) -> BodyError {
    BodyError::Json(brief(&error.to_string()))
}

/// The first [`MAX_MESSAGE`] bytes of `message`, cut between characters.
fn brief(message: &str) -> String {
    let end = message.floor_char_boundary(MAX_MESSAGE);
    match message.split_at_checked(end) {
        Some((start, rest)) if !rest.is_empty() => format!("{start}..."),
        _ => message.to_owned(),
    }
}

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzz;
#[cfg(test)]
mod tests;
