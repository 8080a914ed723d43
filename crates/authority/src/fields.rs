//! The fields of header blocks (RFC 7541, section 6), as far as it takes to find the values of `:authority`.
//!
//! A field can be named by the number of an entry of the dynamic table. Of that table nothing is kept but whether each of the last
//! entries is named `:authority`, one bit each, the newest first. Numbers count from the newest entry on, so neither sizes nor
//! evictions change which entry a number means. An entry that is too large for the table is not in it, but then it has emptied the
//! table, and no number means an entry before it. A number of an entry that is gone is an error, for which the server answers.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

/// In the static table.
const AUTHORITY: usize = 1;

/// The number of the newest entry of the dynamic table.
const DYNAMIC: usize = 62;

const NAME: &[u8] = b":authority";

/// The same in the Huffman code.
const ENCODED_NAME: &[u8] = &[0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f];

/// Bytes of an integer after its first one, at most. The server takes no more either.
const MORE: u32 = 4;

/// Where in the header blocks of a connection its bytes are.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fields {
    part: Part,
    /// Whether an entry of the dynamic table is named `:authority`; the last bit is the newest. There are 128 at most: each counts
    /// 32 bytes and more, of 4096, since our ports announce no larger table.
    named: u128,
}

/// What the next byte belongs to.
#[derive(Clone, Copy, Debug, Default)]
enum Part {
    #[default]
    Start,
    Integer {
        of: Integer,
        value: usize,
        bytes: u32,
    },
    NameLength {
        indexed: bool,
    },
    Name {
        left: usize,
        huffman: bool,
        /// All of it so far is as in `:authority`.
        same: bool,
        indexed: bool,
    },
    ValueLength {
        authority: bool,
    },
    /// A value of another field, or one that is too long to be looked at.
    Value {
        left: usize,
    },
    Authority(Value),
}

/// What an integer says.
#[derive(Clone, Copy, Debug)]
enum Integer {
    /// A whole field, or the size of the table.
    Whole,
    /// The number of an entry with the field's name, or 0.
    Name { indexed: bool },
    /// The length of a name.
    NameLength { huffman: bool, indexed: bool },
    /// The length of a value.
    ValueLength { huffman: bool, authority: bool },
}

/// What is left of the value of an `:authority`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Value {
    pub(crate) left: usize,
    pub(crate) huffman: bool,
}

/// What comes next.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// So many bytes are walked over.
    Bytes(usize),
    /// This value; see [`Fields::take`].
    Authority(Value),
    /// No header block goes on so.
    Malformed,
}

// === impl Fields ===

impl Fields {
    /// Whether the bytes so far are whole fields.
    pub(crate) fn is_between(&self) -> bool {
        matches!(self.part, Part::Start)
    }

    /// Goes on over some of these bytes, of which there is one at least. `longest` is the length from which on a value is not
    /// looked at.
    pub(crate) fn step(&mut self, bytes: &[u8], longest: usize) -> Step {
        let Some(&first) = bytes.first() else {
            return Step::Bytes(0);
        };
        let go_on = match self.part {
            Part::Start => {
                let (bits, of) = field(first);
                self.begin(first, bits, of, longest)
            }
            Part::Integer { of, value, bytes } => self.integer(first, of, value, bytes, longest),
            Part::NameLength { indexed } => {
                let huffman = is_huffman(first);
                self.begin(first, 7, Integer::NameLength { huffman, indexed }, longest)
            }
            Part::ValueLength { authority } => {
                let huffman = is_huffman(first);
                let of = Integer::ValueLength { huffman, authority };
                self.begin(first, 7, of, longest)
            }
            Part::Name {
                left,
                huffman,
                same,
                indexed,
            } => {
                let (here, left) = split(left, bytes);
                let wanted = name(huffman);
                let from = wanted.len().checked_sub(left.saturating_add(here.len()));
                let same = same && from.is_some_and(|from| is_at(wanted, from, here));
                self.part = Part::Name {
                    left,
                    huffman,
                    same,
                    indexed,
                };
                if left == 0 {
                    self.named(same, indexed);
                }
                return Step::Bytes(here.len());
            }
            Part::Value { left } => {
                let (here, left) = split(left, bytes);
                self.value(left);
                return Step::Bytes(here.len());
            }
            Part::Authority(value) => return Step::Authority(value),
        };
        match go_on {
            Some(()) => Step::Bytes(1),
            None => Step::Malformed,
        }
    }

    /// Goes on over so many bytes of the value that the last step came to; whether that is all of it.
    pub(crate) fn take(&mut self, bytes: usize) -> bool {
        let Part::Authority(value) = &mut self.part else {
            return false;
        };
        value.left = value.left.saturating_sub(bytes);
        let all = value.left == 0;
        if all {
            self.part = Part::Start;
        }
        all
    }

    /// The first byte of an integer, which has so many bits of it.
    fn begin(&mut self, first: u8, bits: u32, of: Integer, longest: usize) -> Option<()> {
        let full = u8::MAX.checked_shr(8_u32.saturating_sub(bits))?;
        let value = first & full;
        if value == full {
            let value = value.into();
            self.part = Part::Integer {
                of,
                value,
                bytes: 0,
            };
            return Some(());
        }
        self.end(of, value.into(), longest)
    }

    /// One more byte of an integer.
    fn integer(
        &mut self,
        byte: u8,
        of: Integer,
        value: usize,
        bytes: u32,
        longest: usize,
    ) -> Option<()> {
        let more = usize::from(byte & 0x7f).checked_shl(bytes.checked_mul(7)?)?;
        let (value, bytes) = (value.checked_add(more)?, bytes.checked_add(1)?);
        if byte & 0x80 == 0 {
            return self.end(of, value, longest);
        }
        self.part = Part::Integer { of, value, bytes };
        (bytes < MORE).then_some(())
    }

    /// The integer is read.
    fn end(&mut self, of: Integer, value: usize, longest: usize) -> Option<()> {
        match of {
            Integer::Whole => self.part = Part::Start,
            Integer::Name { indexed } if value == 0 => self.part = Part::NameLength { indexed },
            Integer::Name { indexed } => self.named(self.is_authority(value), indexed),
            // a field must have a name
            Integer::NameLength { .. } if value == 0 => return None,
            Integer::NameLength { huffman, indexed } => {
                self.part = Part::Name {
                    left: value,
                    huffman,
                    same: value == name(huffman).len(),
                    indexed,
                };
            }
            Integer::ValueLength { huffman, authority } => {
                if authority && value > 0 && value <= longest {
                    let left = value;
                    self.part = Part::Authority(Value { left, huffman });
                } else {
                    self.value(value);
                }
            }
        }
        Some(())
    }

    /// The field's name is known.
    fn named(&mut self, authority: bool, indexed: bool) {
        if indexed {
            self.named = (self.named << 1) | u128::from(authority);
        }
        self.part = Part::ValueLength { authority };
    }

    /// So much of a value that is not looked at is left.
    fn value(&mut self, left: usize) {
        self.part = if left == 0 {
            Part::Start
        } else {
            Part::Value { left }
        };
    }

    /// Whether the entry of this number is named `:authority`.
    fn is_authority(&self, entry: usize) -> bool {
        let Some(nth) = entry.checked_sub(DYNAMIC) else {
            return entry == AUTHORITY;
        };
        let nth = u32::try_from(nth).unwrap_or(u32::MAX);
        self.named
            .checked_shr(nth)
            .is_some_and(|bits| bits & 1 == 1)
    }
}

/// The integer that a field begins with, and how many bits of it are in the first byte.
fn field(first: u8) -> (u32, Integer) {
    match first.leading_zeros() {
        0 => (7, Integer::Whole),
        1 => (6, Integer::Name { indexed: true }),
        2 => (5, Integer::Whole),
        _ => (4, Integer::Name { indexed: false }),
    }
}

fn is_huffman(first: u8) -> bool {
    first & 0x80 != 0
}

fn name(huffman: bool) -> &'static [u8] {
    if huffman { ENCODED_NAME } else { NAME }
}

/// Of these bytes those that belong to something with so many left, and how many it then has.
fn split(left: usize, bytes: &[u8]) -> (&[u8], usize) {
    let here = bytes.get(..left).unwrap_or(bytes);
    (here, left.saturating_sub(here.len()))
}

fn is_at(whole: &[u8], from: usize, part: &[u8]) -> bool {
    whole.get(from..).is_some_and(|rest| rest.starts_with(part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::huffman;

    #[test]
    fn the_encoded_name_is_the_name() {
        assert_eq!(huffman::encode(NAME), ENCODED_NAME);
    }
}
