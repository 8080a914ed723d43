//! Finds `usage` and `model` in one JSON object whose bytes come in pieces.
//!
//! The two may stand in the object itself, or in its `response` (events of the Responses API) or
//! `message` (Anthropic's `message_start`). Everything else is only passed over: strings and brackets are
//! followed, numbers and words not checked.

use memchr::{memchr2, memchr2_iter, memchr3};
use smallvec::SmallVec;

use super::usage::Usage;

/// 4 KiB: twenty times the longest usage object of today's engines. A longer one is passed by.
pub(super) const MAX_VALUE: usize = 4096;

/// Bits of [`Scanner::objects`]. Responses are about five levels deep; a deeper one is not read.
const MAX_DEPTH: u32 = u128::BITS;

/// One byte more than the longest key that matters, `response`.
const KEY_BYTES: usize = 9;

/// Where a model name is, in bytes of the chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// Its first byte, after the quote.
    ModelStart,
    /// The quote after it.
    ModelEnd,
    /// It is none: the object is broken.
    NoModel,
}

/// Reads one object at a time; allocates only for a usage object, in a buffer that is kept.
#[derive(Debug, Default)]
pub(super) struct Scanner {
    place: Place,
    /// The last byte was a backslash in a string.
    escaped: bool,
    depth: u32,
    /// A bit per open bracket, the innermost lowest: 1 is an object.
    objects: u128,
    /// The current key as it is written; an escape in it makes it another key.
    key: SmallVec<[u8; KEY_BYTES]>,
    /// The level that is read on once what is passed over has ended.
    level: u32,
    /// The bytes that are passed over are those of `usage`.
    keeping: bool,
    kept: Vec<u8>,
    usage: Usage,
}

/// What the next byte belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    BeforeObject,
    BeforeKey,
    Key,
    BeforeColon,
    BeforeValue,
    Model,
    String,
    /// A number or word, or nothing any more.
    AfterValue,
    /// An array or object that is passed over.
    Passed,
    PassedString,
    AfterObject,
    /// No object, or one that cannot be read.
    Broken,
}

// === impl Scanner ===

impl Scanner {
    /// Takes the next bytes of the object; the first one is at `base` of the chunk.
    pub(super) fn feed(&mut self, bytes: &[u8], base: usize, mark: &mut impl FnMut(usize, Mark)) {
        let mut rest = bytes;
        while let Some((first, after)) = rest.split_first() {
            let at = base.saturating_add(bytes.len().saturating_sub(rest.len()));
            rest = match self.place {
                Place::Broken => return,
                Place::Key => self.read_key(rest),
                Place::Model => {
                    let (model, after, ended) = self.split_string(rest);
                    if ended {
                        self.place = Place::AfterValue;
                        mark(at.saturating_add(model.len()), Mark::ModelEnd);
                    }
                    after
                }
                Place::String => {
                    let (_, after, ended) = self.split_string(rest);
                    if ended {
                        self.place = Place::AfterValue;
                    }
                    after
                }
                Place::Passed => self.pass(rest),
                Place::PassedString => {
                    let (_, after, ended) = self.split_string(rest);
                    self.keep(rest, after);
                    if ended {
                        self.place = Place::Passed;
                    }
                    after
                }
                Place::AfterValue => {
                    let end = rest.iter().position(|byte| b",}]{[\":".contains(byte));
                    match end.and_then(|end| rest.get(end..)) {
                        Some([b',', after @ ..]) => {
                            self.place = Place::BeforeKey;
                            after
                        }
                        Some([b'}', after @ ..]) => {
                            self.close_read();
                            after
                        }
                        Some(_) => {
                            self.place = Place::Broken;
                            return;
                        }
                        None => return,
                    }
                }
                _ if first.is_ascii_whitespace() => after,
                place => {
                    self.place = self.next(place, *first);
                    if self.place == Place::Model {
                        mark(at.saturating_add(1), Mark::ModelStart);
                    }
                    after
                }
            };
        }
    }

    /// A line of the event's data ended at `at`, and no string can go on in the next one.
    pub(super) fn end_line(&mut self, at: usize, mark: &mut impl FnMut(usize, Mark)) {
        if let Place::Key | Place::Model | Place::String | Place::PassedString = self.place {
            self.give_up(at, mark);
        }
    }

    /// Reads this object no further.
    fn give_up(&mut self, at: usize, mark: &mut impl FnMut(usize, Mark)) {
        if self.place == Place::Model {
            mark(at, Mark::NoModel);
        }
        self.place = Place::Broken;
    }

    /// What the object said, if it was complete; ready for the next one.
    pub(super) fn finish(&mut self) -> Option<Usage> {
        let complete = self.place == Place::AfterObject;
        let usage = self.usage;
        *self = Self {
            kept: std::mem::take(&mut self.kept),
            ..Self::default()
        };
        complete.then_some(usage)
    }

    /// Where a byte leads that stands between strings, at a level that is read.
    fn next(&mut self, place: Place, byte: u8) -> Place {
        match (place, byte) {
            (Place::BeforeObject, b'{') => self.open(b'{', Place::BeforeKey),
            (Place::BeforeKey, b'"') => {
                self.key.clear();
                Place::Key
            }
            (Place::BeforeKey, b'}') => {
                self.close_read();
                self.place
            }
            (Place::BeforeColon, b':') => Place::BeforeValue,
            (Place::BeforeValue, b'"') if *self.key == *b"model" => Place::Model,
            (Place::BeforeValue, b'"') => Place::String,
            (Place::BeforeValue, b'{') if self.depth == 1 && self.key_names_an_envelope() => {
                self.open(byte, Place::BeforeKey)
            }
            (Place::BeforeValue, b'{' | b'[') => {
                self.level = self.depth;
                self.keeping = byte == b'{' && *self.key == *b"usage";
                self.kept.clear();
                if self.keeping {
                    self.kept.push(byte);
                }
                self.open(byte, Place::Passed)
            }
            (Place::BeforeValue, byte) if !b",}]:".contains(&byte) => Place::AfterValue,
            _ => Place::Broken,
        }
    }

    fn key_names_an_envelope(&self) -> bool {
        *self.key == *b"response" || *self.key == *b"message"
    }

    fn read_key<'a>(&mut self, rest: &'a [u8]) -> &'a [u8] {
        let (text, after, ended) = self.split_string(rest);
        let room = KEY_BYTES.saturating_sub(self.key.len());
        self.key.extend_from_slice(text.get(..room).unwrap_or(text));
        if ended {
            self.place = Place::BeforeColon;
        }
        after
    }

    /// Passes over brackets and what is between them, up to the next string or closing bracket.
    fn pass<'a>(&mut self, rest: &'a [u8]) -> &'a [u8] {
        let end = memchr3(b'"', b']', b'}', rest).unwrap_or(rest.len());
        let (between, after) = rest.split_at_checked(end).unwrap_or((rest, &[]));
        for bracket in memchr2_iter(b'{', b'[', between).filter_map(|open| between.get(open)) {
            self.place = self.open(*bracket, Place::Passed);
        }
        let Some((last, after)) = after.split_first() else {
            self.keep(rest, after);
            return after;
        };
        self.keep(rest, after);
        if self.place == Place::Broken {
            return after;
        }
        if *last == b'"' {
            self.place = Place::PassedString;
        } else if !self.close(*last) {
            self.place = Place::Broken;
        } else if self.depth == self.level {
            self.place = Place::AfterValue;
            if std::mem::take(&mut self.keeping) {
                self.usage.merge(Usage::from_json(&self.kept));
            }
        }
        after
    }

    /// Keeps the bytes of `rest` before `after`, if they are those of a usage object and not too many.
    fn keep(&mut self, rest: &[u8], after: &[u8]) {
        let passed = rest.len().saturating_sub(after.len());
        self.keeping &= self.kept.len().saturating_add(passed) <= MAX_VALUE;
        if self.keeping {
            self.kept
                .extend_from_slice(rest.get(..passed).unwrap_or_default());
        }
    }

    fn open(&mut self, bracket: u8, then: Place) -> Place {
        if self.depth == MAX_DEPTH || self.place == Place::Broken {
            return Place::Broken;
        }
        self.depth = self.depth.saturating_add(1);
        self.objects = (self.objects << 1) | u128::from(bracket == b'{');
        then
    }

    /// Whether `bracket` closes the innermost open one.
    fn close(&mut self, bracket: u8) -> bool {
        let object = self.objects & 1 == 1;
        self.depth = self.depth.saturating_sub(1);
        self.objects >>= 1;
        object == (bracket == b'}')
    }

    /// Closes an object that is read, not passed over.
    fn close_read(&mut self) {
        self.close(b'}');
        self.place = if self.depth == 0 {
            Place::AfterObject
        } else {
            Place::AfterValue
        };
    }

    /// Splits at the end of the string that `rest` continues: its text, what follows the quote, and whether
    /// there is a quote.
    fn split_string<'a>(&mut self, rest: &'a [u8]) -> (&'a [u8], &'a [u8], bool) {
        let mut from = usize::from(std::mem::take(&mut self.escaped));
        while let Some(hit) = rest
            .get(from..)
            .and_then(|rest| memchr2(b'"', b'\\', rest))
            .map(|hit| hit.saturating_add(from))
        {
            let (text, quote) = rest.split_at_checked(hit).unwrap_or((rest, &[]));
            if let [b'"', after @ ..] = quote {
                return (text, after, true);
            }
            from = hit.saturating_add(2);
            self.escaped = from > rest.len();
        }
        (rest, &[], false)
    }
}
