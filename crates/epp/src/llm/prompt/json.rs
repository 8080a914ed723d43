//! JSON as it is written, read without a copy: objects by the few fields that matter, strings in pieces.

use std::{borrow::Cow, fmt, marker::PhantomData};

use memchr::memchr;
use serde::{
    Deserialize,
    de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Text,
    List,
    Object,
    /// A number, true, false or null.
    Other,
}

/// The fields of a message or of a part of its content. Of one that is there several times the last counts, as in the
/// readers of engines.
#[derive(Debug, Default)]
pub(super) struct Item<'a> {
    pub(super) kind: Option<&'a RawValue>,
    pub(super) role: Option<&'a RawValue>,
    pub(super) content: Option<&'a RawValue>,
    pub(super) text: Option<&'a RawValue>,
    pub(super) tool_calls: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum Field {
    Type,
    Role,
    Content,
    Text,
    ToolCalls,
    #[serde(other)]
    Other,
}

struct ItemVisitor;

struct Elements<'a, F>(F, PhantomData<&'a RawValue>);

/// Short pieces are put together up to so many bytes: each piece costs its taker about as much as the copy of some dozen
/// bytes.
const GATHERED: usize = 512;

/// What stands for half of a character, which no UTF-8 can.
const REPLACEMENT: char = char::REPLACEMENT_CHARACTER;

pub(super) fn shape(json: &str) -> Shape {
    match json.as_bytes().first() {
        Some(b'"') => Shape::Text,
        Some(b'[') => Shape::List,
        Some(b'{') => Shape::Object,
        _ => Shape::Other,
    }
}

/// The fields of an object; `None`: it is none, or has a key that is no text.
pub(super) fn item(json: &RawValue) -> Option<Item<'_>> {
    let mut reader = serde_json::Deserializer::from_str(json.get());
    reader.deserialize_map(ItemVisitor).ok()
}

/// Calls `take` with each element of a list, and never if it is none.
pub(super) fn elements<'a>(json: &'a str, take: impl FnMut(&'a RawValue)) {
    let mut reader = serde_json::Deserializer::from_str(json);
    // the body was read as JSON before: what is no list has no elements
    let _ = reader.deserialize_seq(Elements(take, PhantomData));
}

/// A short string, such as a role; `None`: it is another value.
pub(super) fn text(json: &RawValue) -> Option<Cow<'_, str>> {
    let json = json.get();
    if shape(json) != Shape::Text {
        return None;
    }
    let inner = json.get(1..json.len().saturating_sub(1))?;
    if memchr(b'\\', inner.as_bytes()).is_none() {
        return Some(Cow::Borrowed(inner));
    }
    let mut bytes = Vec::with_capacity(inner.len());
    unescaped(json, |piece| bytes.extend_from_slice(piece));
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

/// Calls `take` with the pieces of a JSON string's text in UTF-8. Half of a surrogate pair becomes U+FFFD.
pub(super) fn unescaped(json: &str, mut take: impl FnMut(&[u8])) {
    let inner = json.get(1..json.len().saturating_sub(1));
    let mut rest = inner.unwrap_or_default().as_bytes();
    let mut gathered = Vec::new();
    while let Some((plain, escape)) = memchr(b'\\', rest).and_then(|at| rest.split_at_checked(at)) {
        if gathered.len().saturating_add(plain.len()) > GATHERED {
            take(&gathered);
            gathered.clear();
        }
        if plain.len() > GATHERED {
            take(plain);
        } else {
            gathered.extend_from_slice(plain);
        }
        let (character, after) = unescape(escape);
        let mut utf8 = [0; 4];
        gathered.extend_from_slice(character.encode_utf8(&mut utf8).as_bytes());
        rest = after;
    }
    for piece in [&gathered, rest] {
        if !piece.is_empty() {
            take(piece);
        }
    }
}

/// The character of the escape that `text` begins with, and what follows it.
fn unescape(text: &[u8]) -> (char, &[u8]) {
    let [_, letter, after @ ..] = text else {
        return (REPLACEMENT, &[]);
    };
    let character = match letter {
        b'n' => '\n',
        b't' => '\t',
        b'r' => '\r',
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'u' => return unescape_unit(after),
        other => char::from(*other),
    };
    (character, after)
}

/// As [`unescape`], after `\u`.
fn unescape_unit(text: &[u8]) -> (char, &[u8]) {
    let Some((first, after)) = unit(text) else {
        return (REPLACEMENT, text);
    };
    let second = after.strip_prefix(b"\\u").and_then(unit);
    let mut pair = char::decode_utf16([first].into_iter().chain(second.map(|(second, _)| second)));
    match (pair.next(), second) {
        (Some(Ok(character)), Some((_, after))) if character.len_utf16() == 2 => (character, after),
        (Some(Ok(character)), _) => (character, after),
        _ => (REPLACEMENT, after),
    }
}

/// Four hex digits.
fn unit(text: &[u8]) -> Option<(u16, &[u8])> {
    let (digits, after) = text.split_at_checked(4)?;
    let digits = str::from_utf8(digits).ok()?;
    Some((u16::from_str_radix(digits, 16).ok()?, after))
}

impl<'de> Visitor<'de> for ItemVisitor {
    type Value = Item<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Item<'de>, A::Error> {
        let mut item = Item::default();
        while let Some(field) = map.next_key::<Field>()? {
            let slot = match field {
                Field::Type => &mut item.kind,
                Field::Role => &mut item.role,
                Field::Content => &mut item.content,
                Field::Text => &mut item.text,
                Field::ToolCalls => &mut item.tool_calls,
                Field::Other => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            *slot = map.next_value::<Option<&RawValue>>()?;
        }
        Ok(item)
    }
}

impl<'a, F: FnMut(&'a RawValue)> Visitor<'a> for Elements<'a, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'a>>(mut self, mut list: A) -> Result<(), A::Error> {
        while let Some(element) = list.next_element::<&RawValue>()? {
            (self.0)(element);
        }
        Ok(())
    }
}
