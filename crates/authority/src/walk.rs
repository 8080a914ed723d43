//! From the bytes of a connection to its frames (RFC 9113, section 4), and to the values of `:authority` in them.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::ops::Range;

use crate::{
    fields::{Fields, Step},
    huffman, name,
};

/// What a client of HTTP/2 begins with.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Bytes of a value of `:authority` that is looked at, at most; a host name has 255. A longer value passes as it is.
pub const MAX_VALUE: usize = 1024;

/// From the first byte of such a value to its last: the value, and what is between its parts where it is split between frames. The
/// server takes no block with so many frames as it takes to fill this with heads.
pub(crate) const MAX_SPAN: usize = 4 * MAX_VALUE;

/// Of a frame's head, before what its flags add.
const HEAD: usize = 9;
/// With all that flags add: the length of padding, and a priority.
const LONGEST_HEAD: usize = HEAD + 1 + PRIORITY_BYTES;
const PRIORITY_BYTES: usize = 5;

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// Where in a connection its bytes are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Walk {
    part: Part,
    /// The last header block goes on in the next frame.
    open: bool,
    fields: Fields,
}

/// What the next byte belongs to.
#[derive(Clone, Copy, Debug)]
enum Part {
    /// So many bytes of the preface have come.
    Preface(usize),
    Head(Head),
    Fragment(Fragment),
    /// So many bytes up to the next frame.
    Rest(usize),
    /// All that comes passes as it is.
    Off,
}

/// The head of a frame; of one with headers also what precedes these.
#[derive(Clone, Copy, Debug, Default)]
struct Head {
    bytes: [u8; LONGEST_HEAD],
    read: usize,
}

/// Part of a header block.
#[derive(Clone, Copy, Debug)]
struct Fragment {
    left: usize,
    padding: usize,
    /// The block ends with it.
    last: bool,
}

/// A value of which not all has come.
#[derive(Debug)]
struct Pending {
    /// Its first byte.
    from: usize,
    /// Before that byte.
    walk: Walk,
    /// Where it is, in the order of its bytes.
    places: Vec<Range<usize>>,
}

// === impl Walk ===

impl Walk {
    /// At the beginning of a connection.
    pub(crate) fn new() -> Self {
        Self {
            part: Part::Preface(0),
            open: false,
            fields: Fields::default(),
        }
    }

    /// Whether all that comes passes as it is.
    pub(crate) fn is_off(&self) -> bool {
        matches!(self.part, Part::Off)
    }

    /// Lets all that comes pass as it is.
    pub(crate) fn stop(&mut self) {
        self.part = Part::Off;
    }

    /// Goes on over these bytes, and changes those of authorities that have to be others. Returns how many may be passed on; the
    /// rest is a part of a value, and must be at the beginning of the next bytes again.
    pub(crate) fn over(&mut self, bytes: &mut [u8]) -> usize {
        let mut at = 0_usize;
        let mut pending = None;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            let walked = match self.part {
                Part::Off => break,
                Part::Preface(seen) => self.preface(seen, rest),
                Part::Head(head) => self.head(head, rest),
                Part::Rest(left) => {
                    let walked = left.min(rest.len());
                    self.part = Part::rest(left.saturating_sub(walked));
                    walked
                }
                Part::Fragment(fragment) => {
                    let here = rest.get(..fragment.left).unwrap_or(rest);
                    match self.fields.step(here, MAX_VALUE) {
                        Step::Bytes(walked) => {
                            self.within(fragment, walked);
                            walked
                        }
                        Step::Malformed => {
                            self.stop();
                            break;
                        }
                        Step::Authority(value) => {
                            let walked = value.left.min(here.len());
                            let value_at = pending.get_or_insert_with(|| Pending::new(at, *self));
                            let to = at.saturating_add(walked);
                            value_at.places.push(at..to);
                            let too_long = value_at.span(to) > MAX_SPAN;
                            let whole = self.fields.take(walked);
                            self.within(fragment, walked);
                            if too_long {
                                self.stop();
                            } else if whole && let Some(value_at) = pending.take() {
                                exchange(bytes, &value_at.places, value.huffman);
                            }
                            walked
                        }
                    }
                }
            };
            at = at.saturating_add(walked);
            if pending.as_ref().is_some_and(|it| it.span(at) > MAX_SPAN) {
                self.stop();
            }
        }
        match pending {
            Some(pending) if !self.is_off() => {
                *self = pending.walk;
                pending.from
            }
            _ => bytes.len(),
        }
    }

    fn preface(&mut self, seen: usize, bytes: &[u8]) -> usize {
        let wanted = PREFACE.get(seen..).unwrap_or_default();
        let here = bytes.get(..wanted.len()).unwrap_or(bytes);
        self.part = if !wanted.starts_with(here) {
            Part::Off
        } else if here.len() == wanted.len() {
            Part::rest(0)
        } else {
            Part::Preface(seen.saturating_add(here.len()))
        };
        here.len()
    }

    fn head(&mut self, mut head: Head, bytes: &[u8]) -> usize {
        let walked = head.read(bytes);
        if head.missing() > 0 {
            self.part = Part::Head(head);
            return walked;
        }
        match head.frame(self.open) {
            // its fields end with it, and there may be none
            Some(Part::Fragment(fragment)) => self.within(fragment, 0),
            Some(part) => self.part = part,
            None => self.stop(),
        }
        walked
    }

    /// So many bytes of a part of a header block are walked over.
    fn within(&mut self, fragment: Fragment, walked: usize) {
        let left = fragment.left.saturating_sub(walked);
        if left > 0 {
            self.part = Part::Fragment(Fragment { left, ..fragment });
            return;
        }
        self.open = !fragment.last;
        self.part = if self.open || self.fields.is_between() {
            Part::rest(fragment.padding)
        } else {
            Part::Off
        };
    }
}

// === impl Part ===

impl Part {
    fn rest(left: usize) -> Self {
        if left == 0 {
            Self::Head(Head::default())
        } else {
            Self::Rest(left)
        }
    }
}

// === impl Head ===

impl Head {
    /// Takes what is missing from these bytes, and says how many that were.
    fn read(&mut self, bytes: &[u8]) -> usize {
        let to = self.read.saturating_add(self.missing());
        let place = self.bytes.get_mut(self.read..to).unwrap_or_default();
        let read = place.len().min(bytes.len());
        for (place, byte) in place.iter_mut().zip(bytes) {
            *place = *byte;
        }
        self.read = self.read.saturating_add(read);
        read
    }

    /// How many bytes are missing, as far as is known by those that have come.
    fn missing(&self) -> usize {
        let before = HEAD.saturating_sub(self.read);
        if before > 0 {
            return before;
        }
        // a frame that is too short for what its flags say is malformed without it
        let wanted = HEAD.saturating_add(self.prefix().min(self.length()));
        wanted.saturating_sub(self.read)
    }

    fn length(&self) -> usize {
        let [high, middle, low, ..] = self.bytes;
        let [high, middle, low] = [high, middle, low].map(usize::from);
        (high << 16) | (middle << 8) | low
    }

    /// Bytes of the payload that precede the fields.
    fn prefix(&self) -> usize {
        let [_, _, _, kind, flags, ..] = self.bytes;
        if kind != HEADERS {
            return 0;
        }
        let priority = if flags & PRIORITY == 0 {
            0
        } else {
            PRIORITY_BYTES
        };
        priority.saturating_add(usize::from(flags & PADDED != 0))
    }

    /// What follows the head; none where it is malformed.
    fn frame(&self, open: bool) -> Option<Part> {
        let [_, _, _, kind, flags, _, _, _, _, first, ..] = self.bytes;
        let padding = match kind {
            HEADERS if !open => usize::from(if flags & PADDED == 0 { 0 } else { first }),
            CONTINUATION if open => 0,
            HEADERS | CONTINUATION => return None,
            _ if open => return None,
            _ => return Some(Part::rest(self.length())),
        };
        let left = self.length().checked_sub(self.prefix())?;
        Some(Part::Fragment(Fragment {
            left: left.checked_sub(padding)?,
            padding,
            last: flags & END_HEADERS != 0,
        }))
    }
}

// === impl Pending ===

impl Pending {
    fn new(from: usize, walk: Walk) -> Self {
        Self {
            from,
            walk,
            places: Vec::new(),
        }
    }

    /// Bytes from the first one of the value on.
    fn span(&self, to: usize) -> usize {
        to.saturating_sub(self.from)
    }
}

/// Changes the value at these places where it is no authority.
fn exchange(bytes: &mut [u8], places: &[Range<usize>], huffman: bool) {
    let parts = places.iter().filter_map(|place| bytes.get(place.clone()));
    let value: Vec<u8> = parts.flatten().copied().collect();
    let found = if huffman {
        huffman::decode(&value)
    } else {
        Some(value.clone())
    };
    let Some((name, read_as)) = found.and_then(|name| {
        let read_as = name::readable(&name)?;
        Some((name, read_as))
    }) else {
        return;
    };
    let written = if huffman {
        huffman::encode(&read_as)
    } else {
        read_as.clone()
    };
    // always equal, as the exchanged bytes have codes of the same length
    if written.len() != value.len() {
        return;
    }
    for (place, byte) in places.iter().cloned().flatten().zip(written) {
        if let Some(place) = bytes.get_mut(place) {
            *place = byte;
        }
    }
    name::report(&name, &read_as);
}
