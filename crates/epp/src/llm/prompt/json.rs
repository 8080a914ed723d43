//! JSON that was found to be valid, read without a copy: objects by the few fields that matter, strings in pieces.
//!
//! Not by the library: of text in escapes it decodes each character whenever it goes past it, which took five times as
//! long.

use std::borrow::Cow;

use memchr::{memchr, memchr2};

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Text,
    List,
    Object,
    /// A number, true, false or null.
    Other,
}

/// The fields of a message or of a part of its content, as far as they are there and not null. Of one that is there several
/// times the last counts, as in the readers of engines.
#[derive(Debug, Default)]
pub(super) struct Item<'a> {
    pub(super) kind: Option<&'a str>,
    pub(super) role: Option<&'a str>,
    pub(super) content: Option<&'a str>,
    pub(super) text: Option<&'a str>,
    pub(super) tool_calls: Option<&'a str>,
}

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

/// The fields of an object; `None`: it is none.
pub(super) fn item(json: &str) -> Option<Item<'_>> {
    let mut rest = json.strip_prefix('{')?;
    let mut item = Item::default();
    while let Some((key, after)) = value(rest) {
        let Some((value, after)) = value(after) else {
            break;
        };
        rest = after;
        let field = match text(key).as_deref() {
            Some("type") => &mut item.kind,
            Some("role") => &mut item.role,
            Some("content") => &mut item.content,
            Some("text") => &mut item.text,
            Some("tool_calls") => &mut item.tool_calls,
            _ => continue,
        };
        *field = Some(value).filter(|value| *value != "null");
    }
    Some(item)
}

/// The elements of a list; none if it is no list.
pub(super) fn elements(json: &str) -> impl Iterator<Item = &str> {
    let mut rest = json.strip_prefix('[').unwrap_or_default();
    std::iter::from_fn(move || {
        let (element, after) = value(rest)?;
        rest = after;
        Some(element)
    })
}

/// The next value and what follows it; `None`: the list or the object ends.
fn value(json: &str) -> Option<(&str, &str)> {
    let json = json.trim_start_matches([' ', '\t', '\n', '\r', ',', ':']);
    let length = match json.as_bytes().first()? {
        b'"' => string(json.as_bytes()),
        b'[' | b'{' => nested(json.as_bytes()),
        b']' | b'}' => return None,
        _ => json.find([',', ']', '}', ' ', '\t', '\n', '\r']),
    };
    json.split_at_checked(length.unwrap_or(json.len()))
}

/// The length of the string that `json` begins with.
fn string(json: &[u8]) -> Option<usize> {
    let mut at = 1_usize;
    loop {
        at = at.saturating_add(memchr2(b'"', b'\\', json.get(at..)?)?);
        // of a text that is no ASCII each character may be escaped
        while json.get(at) == Some(&b'\\') {
            let is_unit = json.get(at.saturating_add(1)) == Some(&b'u');
            at = at.saturating_add(if is_unit { 6 } else { 2 });
        }
        if json.get(at) == Some(&b'"') {
            return Some(at.saturating_add(1));
        }
    }
}

/// The length of the list or the object that `json` begins with.
fn nested(json: &[u8]) -> Option<usize> {
    let mut depth = 0_usize;
    let mut at = 0_usize;
    loop {
        let length = match json.get(at)? {
            b'"' => string(json.get(at..)?)?,
            b'[' | b'{' => {
                depth = depth.saturating_add(1);
                1
            }
            b']' | b'}' => {
                depth = depth.saturating_sub(1);
                1
            }
            _ => 1,
        };
        at = at.saturating_add(length);
        if depth == 0 {
            return Some(at);
        }
    }
}

/// A short string, such as a role; `None`: it is another value.
pub(super) fn text(json: &str) -> Option<Cow<'_, str>> {
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
    while let Some((plain, escapes)) = memchr(b'\\', rest).and_then(|at| rest.split_at_checked(at))
    {
        if gathered.len().saturating_add(plain.len()) > GATHERED {
            take(&gathered);
            gathered.clear();
        }
        if plain.len() > GATHERED {
            take(plain);
        } else {
            gathered.extend_from_slice(plain);
        }
        rest = escapes;
        // of a text that is no ASCII each character may be escaped
        while rest.first() == Some(&b'\\') {
            let (character, after) = unescape(rest);
            let mut utf8 = [0; 4];
            gathered.extend_from_slice(character.encode_utf8(&mut utf8).as_bytes());
            rest = after;
            if gathered.len() > GATHERED {
                take(&gathered);
                gathered.clear();
            }
        }
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
    if let Some(character) = char::from_u32(first.into()) {
        return (character, after);
    }
    let second = after.strip_prefix(b"\\u").and_then(unit);
    let pair = second.and_then(|(second, after)| {
        let character = char::decode_utf16([first, second]).next()?.ok()?;
        Some((character, after))
    });
    pair.unwrap_or((REPLACEMENT, after))
}

/// Four hex digits.
fn unit(text: &[u8]) -> Option<(u16, &[u8])> {
    let (digits, after) = text.split_first_chunk::<4>()?;
    let mut unit = 0;
    for digit in digits {
        let digit = char::from(*digit).to_digit(16)?;
        unit = (unit << 4) | u16::try_from(digit).ok()?;
    }
    Some((unit, after))
}
