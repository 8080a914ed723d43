//! Where a worker takes a prompt from: ids by their key, ids of the body, or the text, which is always complete.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    fields::{Fields, token_data},
    ids::{IdsError, parse_ids},
    name::TokenKey,
};

/// What a worker computes with. In this order: the first that can be used.
#[derive(Clone, PartialEq, Eq)]
pub enum Source<'a> {
    /// The ids of the key.
    Key(&'a [u32]),
    /// Those of the body.
    Body(Vec<u32>),
    /// The worker's own, from the text.
    Text(TextReason),
}

/// Why a worker makes ids itself. Of a key that cannot be used and ids of the body that cannot either, the key's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextReason {
    /// Nobody sent ids.
    NoIds,
    /// The header holds no key.
    BadKey,
    /// Nothing has the key: its time is over, or the cache restarted.
    UnknownKey,
    /// The cache did not answer.
    CacheFailed,
    /// The ids of the key are of another model.
    OtherModel,
    /// Another tokenizer made the ids of the key.
    OtherTokenizer,
    /// What is in their place holds none.
    BadIds,
}

/// What the header [`TOKENS_KEY_HEADER`](crate::TOKENS_KEY_HEADER) asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyHeader {
    /// There is none.
    Absent,
    /// It holds no key.
    Bad,
    /// The entry of this key.
    Key(TokenKey),
}

/// What became of the key.
#[derive(Clone, Copy)]
pub enum Fetched<'a> {
    /// There is none, or keys are not accepted.
    Nothing,
    /// The header holds no key.
    Bad,
    /// Nothing has it.
    Unknown,
    /// The cache did not answer.
    Failed,
    /// The entry.
    Entry {
        /// Its model.
        model: &'a str,
        /// The tokenizer that made it.
        tokenizer: &'a str,
        /// The prompt.
        ids: &'a [u32],
    },
}

/// What an entry's tags must say.
#[derive(Clone, Copy, Debug)]
pub struct Tags<'a> {
    /// The model of the request.
    pub model: &'a str,
    /// The worker's tokenizer; absent: it does not know its name.
    pub tokenizer: Option<&'a str>,
}

#[derive(Deserialize)]
struct Model<'a> {
    #[serde(borrow)]
    model: Option<&'a RawValue>,
}

/// Where a worker takes the prompt from. `body` is the request's, or absent where ids of the body are not accepted; from it
/// at most `max` ids are taken.
pub fn source<'a>(
    fetched: Fetched<'a>,
    tags: Tags<'_>,
    body: Option<&[u8]>,
    max: usize,
) -> Source<'a> {
    let of_key = match fetched {
        Fetched::Nothing => None,
        Fetched::Bad => Some(TextReason::BadKey),
        Fetched::Unknown => Some(TextReason::UnknownKey),
        Fetched::Failed => Some(TextReason::CacheFailed),
        Fetched::Entry { model, .. } if model != tags.model => Some(TextReason::OtherModel),
        Fetched::Entry { tokenizer, .. } if tags.tokenizer.is_some_and(|it| it != tokenizer) => {
            Some(TextReason::OtherTokenizer)
        }
        Fetched::Entry { ids: [], .. } => Some(TextReason::BadIds),
        Fetched::Entry { ids, .. } => return Source::Key(ids),
    };
    match body.and_then(|body| body_ids(body, max)) {
        Some(Ok(ids)) if !ids.is_empty() => Source::Body(ids),
        Some(_) => Source::Text(of_key.unwrap_or(TextReason::BadIds)),
        None => Source::Text(of_key.unwrap_or(TextReason::NoIds)),
    }
}

/// The model that a body names; of one that is no JSON object, or that names none, nothing.
pub fn model(body: &[u8]) -> Option<String> {
    let Model { model } = serde_json::from_slice(body).ok()?;
    serde_json::from_str(model?.get()).ok()
}

/// The ids of a body, if there is something in their place: `token_ids`, else `nvext.token_data`. A body that cannot be
/// read has none.
fn body_ids(body: &[u8], max: usize) -> Option<Result<Vec<u32>, IdsError>> {
    let text = str::from_utf8(body).ok()?;
    let fields = Fields::read(text).ok()?;
    let own = fields.token_ids.and_then(|at| text.get(at));
    let own = own.filter(|json| *json != "null");
    let json = own.or_else(|| token_data(text.get(fields.nvext?)?))?;
    Some(parse_ids(json.as_bytes(), max))
}

// === impl Source ===

impl Source<'_> {
    /// Stable: response header, metric label.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Key(_) => "key",
            Self::Body(_) => "body",
            Self::Text(_) => "text",
        }
    }

    /// The ids, if it has any.
    pub fn ids(&self) -> Option<&[u32]> {
        match self {
            Self::Key(ids) => Some(ids),
            Self::Body(ids) => Some(ids),
            Self::Text(_) => None,
        }
    }
}

impl std::fmt::Debug for Source<'_> {
    /// Without the prompt.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Key(ids) => write!(f, "Key({} ids)", ids.len()),
            Self::Body(ids) => write!(f, "Body({} ids)", ids.len()),
            Self::Text(reason) => write!(f, "Text({reason:?})"),
        }
    }
}

// === impl TextReason ===

impl TextReason {
    /// Stable: metric label and log field.
    pub fn reason(self) -> &'static str {
        match self {
            Self::NoIds => "no-ids",
            Self::BadKey => "bad-key",
            Self::UnknownKey => "unknown-key",
            Self::CacheFailed => "cache-failed",
            Self::OtherModel => "other-model",
            Self::OtherTokenizer => "other-tokenizer",
            Self::BadIds => "bad-ids",
        }
    }
}

// === impl KeyHeader ===

impl KeyHeader {
    /// Of the header's value, if there is one.
    pub fn read(value: Option<&[u8]>) -> Self {
        let Some(value) = value else {
            return Self::Absent;
        };
        let text = str::from_utf8(value.trim_ascii()).ok();
        let key = text.and_then(|text| text.parse().ok());
        key.map_or(Self::Bad, Self::Key)
    }
}

#[cfg(test)]
mod tests;
