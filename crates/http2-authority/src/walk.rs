//! From the bytes of a connection to its frames (RFC 9113, section 4), and to the values of `:authority` in them.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::{borrow::Cow, ops::Range};

use smallvec::SmallVec;

use crate::{
    fields::{AuthorityValue, Fields, Step},
    huffman,
    name::{FIRST_NAMES, Judgement, judge},
};

/// What a client of HTTP/2 begins with.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The most bytes of a value of `:authority` that is looked at; a host name has 255. A longer value passes as it is.
pub const MAX_VALUE: usize = 1024;

/// The most frames that a value of `:authority` may be in. With one more frame the value passes as it is, and so does what follows
/// on its connection: what is held back is walked over again with each read, so its frames have to be few. The server takes five
/// `CONTINUATION` frames in a header block as long as `max_header_list_size` of hyper is 16 KiB, its default, which none of our
/// servers changes.
pub const MAX_FRAMES: usize = 8;

/// The bytes of a frame's head, before what its flags add.
const HEAD: usize = 9;
/// The bytes of a head with all that its flags add: the length of padding, and a priority.
const LONGEST_HEAD: usize = HEAD + 1 + PRIORITY_BYTES;
const PRIORITY_BYTES: usize = 5;
/// The most padding of one frame. Only the first frame of a header block can have padding.
#[cfg(any(test, feature = "fuzzing"))]
const MAX_PADDING: usize = 255;

/// The most bytes that are held back: a value, and what is between its parts where it is split between frames.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) const MAX_HELD: usize = MAX_VALUE + MAX_PADDING + MAX_FRAMES * HEAD;

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// Where in a connection its next byte is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Walk {
    part: FramePart,
    /// The last header block goes on in the next frame.
    open: bool,
    fields: Fields,
}

/// What the next byte of a connection belongs to.
#[derive(Clone, Copy, Debug)]
enum FramePart {
    /// The preface, of which this number of bytes has come.
    Preface(usize),
    Head(Head),
    Fragment(Fragment),
    /// This number of bytes up to the next frame.
    Rest(usize),
    /// What passes as it is.
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
struct PartialValue {
    /// The place of its first byte.
    from: usize,
    /// The walk before that byte.
    walk: Walk,
    /// Frames that its parts are in, with empty ones between them.
    frames: usize,
    places: Places,
}

/// Where a value is, in the order of its bytes. It has one place in each of its frames.
type Places = SmallVec<[Range<usize>; MAX_FRAMES]>;

// === impl Walk ===

impl Walk {
    /// At the beginning of a connection.
    pub(crate) fn new() -> Self {
        Self {
            part: FramePart::Preface(0),
            open: false,
            fields: Fields::default(),
        }
    }

    /// Whether all that comes passes as it is.
    pub(crate) fn is_off(&self) -> bool {
        matches!(self.part, FramePart::Off)
    }

    /// Lets all that comes pass as it is.
    pub(crate) fn stop(&mut self) {
        self.part = FramePart::Off;
    }

    /// Goes on over these bytes, and writes other bytes in place of authorities that no URI may have. Returns how many bytes may be
    /// passed on; the rest is a part of a value, and must be at the beginning of the next bytes again.
    pub(crate) fn rewrite_authorities(&mut self, bytes: &mut [u8]) -> usize {
        let mut at = 0_usize;
        let mut partial: Option<PartialValue> = None;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            let walked = match self.part {
                FramePart::Off => break,
                FramePart::Preface(seen) => self.advance_in_preface(seen, rest),
                FramePart::Head(head) => {
                    let (walked, whole) = self.advance_in_head(head, rest);
                    if whole && let Some(value) = &mut partial {
                        value.frames = value.frames.saturating_add(1);
                        if value.frames > MAX_FRAMES {
                            self.stop();
                        }
                    }
                    walked
                }
                FramePart::Rest(left) => {
                    let walked = left.min(rest.len());
                    self.part = FramePart::rest(left.saturating_sub(walked));
                    walked
                }
                FramePart::Fragment(fragment) => {
                    let here = rest.get(..fragment.left).unwrap_or(rest);
                    match self.fields.step(here, MAX_VALUE) {
                        Step::Bytes(walked) => {
                            self.advance_in_fragment(fragment, walked);
                            walked
                        }
                        Step::Malformed => {
                            self.stop();
                            break;
                        }
                        Step::Authority(AuthorityValue { left, huffman }) => {
                            let walked = left.min(here.len());
                            let walk = *self;
                            let value = partial.get_or_insert_with(|| PartialValue::new(at, walk));
                            value.places.push(at..at.saturating_add(walked));
                            let whole = self.fields.advance_in_authority(walked);
                            self.advance_in_fragment(fragment, walked);
                            if whole && let Some(value) = partial.take() {
                                rewrite_value(bytes, &value.places, huffman);
                            }
                            walked
                        }
                    }
                }
            };
            at = at.saturating_add(walked);
        }
        match partial {
            Some(value) if !self.is_off() => {
                *self = value.walk;
                value.from
            }
            _ => bytes.len(),
        }
    }

    /// Returns how many of these bytes are of the preface, or are other bytes in its place.
    fn advance_in_preface(&mut self, seen: usize, bytes: &[u8]) -> usize {
        let wanted = PREFACE.get(seen..).unwrap_or_default();
        let here = bytes.get(..wanted.len()).unwrap_or(bytes);
        self.part = if !wanted.starts_with(here) {
            FramePart::Off
        } else if here.len() == wanted.len() {
            FramePart::rest(0)
        } else {
            FramePart::Preface(seen.saturating_add(here.len()))
        };
        here.len()
    }

    /// Returns how many of these bytes are of the head, and whether it ends with them.
    fn advance_in_head(&mut self, mut head: Head, bytes: &[u8]) -> (usize, bool) {
        let walked = head.read(bytes);
        if head.missing() > 0 {
            self.part = FramePart::Head(head);
            return (walked, false);
        }
        if !self.open {
            self.fields.begin_block();
        }
        match head.next_part(self.open) {
            // the head may be all of the frame
            Some(FramePart::Fragment(fragment)) => self.advance_in_fragment(fragment, 0),
            Some(part) => self.part = part,
            None => self.stop(),
        }
        (walked, true)
    }

    /// Goes on over this number of bytes of a fragment, and where they are all of it to what follows.
    fn advance_in_fragment(&mut self, fragment: Fragment, walked: usize) {
        let left = fragment.left.saturating_sub(walked);
        if left > 0 {
            self.part = FramePart::Fragment(Fragment { left, ..fragment });
            return;
        }
        self.open = !fragment.last;
        self.part = if self.open || self.fields.is_between() {
            FramePart::rest(fragment.padding)
        } else {
            FramePart::Off
        };
    }
}

// === impl FramePart ===

impl FramePart {
    /// What follows where a frame has `left` more bytes that are not looked at.
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
    /// Takes what is missing from these bytes. Returns how many bytes it took.
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

    /// The number of bytes of the payload that precede the fields.
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

    /// What follows the head; `None` where it is malformed.
    fn next_part(&self, open: bool) -> Option<FramePart> {
        let [_, _, _, kind, flags, _, _, _, _, first, ..] = self.bytes;
        let padding = match kind {
            HEADERS if !open => usize::from(if flags & PADDED == 0 { 0 } else { first }),
            CONTINUATION if open => 0,
            HEADERS | CONTINUATION => return None,
            _ if open => return None,
            _ => return Some(FramePart::rest(self.length())),
        };
        let left = self.length().checked_sub(self.prefix())?;
        Some(FramePart::Fragment(Fragment {
            left: left.checked_sub(padding)?,
            padding,
            last: flags & END_HEADERS != 0,
        }))
    }
}

// === impl PartialValue ===

impl PartialValue {
    /// A value whose first byte is at `from`, where the walk is.
    fn new(from: usize, walk: Walk) -> Self {
        Self {
            from,
            walk,
            frames: 1,
            places: Places::new(),
        }
    }
}

/// Writes other bytes at these places where their value is an authority that no URI may have and that can be read as another.
fn rewrite_value(bytes: &mut [u8], places: &[Range<usize>], huffman: bool) {
    let mut parts = places.iter().filter_map(|place| bytes.get(place.clone()));
    let value = match (parts.next(), places.len()) {
        (Some(whole), 1) => Cow::Borrowed(whole),
        (first, _) => first.into_iter().chain(parts).flatten().copied().collect(),
    };
    let name = if huffman {
        // where the value is no such code the server says so
        let Some(name) = huffman::decode(&value) else {
            return;
        };
        Cow::Owned(name)
    } else {
        Cow::Borrowed(&*value)
    };
    let judgement = judge(&name);
    FIRST_NAMES.log(&name, &judgement);
    let Judgement::ReadAs(read_as) = judgement else {
        return;
    };
    let written = if huffman {
        huffman::encode(&read_as)
    } else {
        read_as
    };
    // always equal, as the other bytes have codes of the same length
    if written.len() != value.len() {
        return;
    }
    for (place, byte) in places.iter().cloned().flatten().zip(written) {
        if let Some(place) = bytes.get_mut(place) {
            *place = byte;
        }
    }
}
