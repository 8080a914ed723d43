//! The fields of header blocks (RFC 7541, section 6), as far as it takes to find the value of `:authority`.
//!
//! A field can be named by the number of an entry of the dynamic table. Of that table nothing is kept but whether each of the last
//! entries is named `:authority`, one bit each, the newest first. Numbers count from the newest entry on, so neither sizes nor
//! evictions change which entry a number means. An entry that is too large for the table is not in it, but then it has emptied the
//! table, and no number means an entry before it. A number of an entry that is gone is an error, for which the server answers.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

/// The number of the entry `:authority` of the static table.
const STATIC_AUTHORITY: usize = 1;

/// The number of the newest entry of the dynamic table.
const NEWEST_ENTRY: usize = 62;

const NAME: &[u8] = b":authority";

/// `:authority` in the Huffman code.
const ENCODED_NAME: &[u8] = &[0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f];

/// The most bytes of an integer after its first one. The server takes no more either.
const MAX_INTEGER_BYTES: u32 = 4;

/// Where in the header blocks of a connection its next byte is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fields {
    part: FieldPart,
    /// The block has had a field that is named `:authority`. With a second one the server refuses the request in any case, so that
    /// one is not looked at.
    seen: bool,
    /// Whether each entry of the dynamic table is named `:authority`; the last bit is the newest entry. There are 128 entries at
    /// most: an entry counts 32 bytes and more, of 4096. That is what holds while a server does not announce another
    /// `SETTINGS_HEADER_TABLE_SIZE`: none of ours calls `header_table_size` of hyper or h2.
    authority_entries: u128,
}

/// What the next byte of a header block belongs to.
#[derive(Clone, Copy, Debug, Default)]
enum FieldPart {
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
        /// All bytes of the name so far are those of `:authority`.
        same: bool,
        indexed: bool,
    },
    ValueLength {
        authority: bool,
    },
    /// A value that is not looked at.
    OtherValue {
        left: usize,
    },
    Authority(AuthorityValue),
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
pub(crate) struct AuthorityValue {
    pub(crate) left: usize,
    pub(crate) huffman: bool,
}

/// What comes next.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// The fields are read over this number of bytes.
    Bytes(usize),
    /// The next bytes are of this value; see [`Fields::advance_in_authority`].
    Authority(AuthorityValue),
    /// No header block goes on so.
    Malformed,
}

// === impl Fields ===

impl Fields {
    /// Begins another header block of the connection.
    pub(crate) fn begin_block(&mut self) {
        self.seen = false;
    }

    /// Whether the bytes so far are whole fields.
    pub(crate) fn is_between(&self) -> bool {
        matches!(self.part, FieldPart::Start)
    }

    /// Reads some of these bytes, of which there is one at least. A value that is longer than `longest` is not looked at.
    pub(crate) fn step(&mut self, bytes: &[u8], longest: usize) -> Step {
        let Some(&first) = bytes.first() else {
            return Step::Bytes(0);
        };
        let go_on = match self.part {
            FieldPart::Start => {
                let (bits, of) = first_integer(first);
                self.begin_integer(first, bits, of, longest)
            }
            FieldPart::Integer { of, value, bytes } => {
                self.continue_integer(first, of, value, bytes, longest)
            }
            FieldPart::NameLength { indexed } => {
                let huffman = is_huffman(first);
                let of = Integer::NameLength { huffman, indexed };
                self.begin_integer(first, 7, of, longest)
            }
            FieldPart::ValueLength { authority } => {
                let huffman = is_huffman(first);
                let of = Integer::ValueLength { huffman, authority };
                self.begin_integer(first, 7, of, longest)
            }
            FieldPart::Name {
                left,
                huffman,
                same,
                indexed,
            } => {
                let (here, left) = split(left, bytes);
                let wanted = authority_name(huffman);
                let from = wanted.len().checked_sub(left.saturating_add(here.len()));
                let same = same && from.is_some_and(|from| is_at(wanted, from, here));
                self.part = FieldPart::Name {
                    left,
                    huffman,
                    same,
                    indexed,
                };
                if left == 0 {
                    self.finish_name(same, indexed);
                }
                return Step::Bytes(here.len());
            }
            FieldPart::OtherValue { left } => {
                let (here, left) = split(left, bytes);
                self.skip_value(left);
                return Step::Bytes(here.len());
            }
            FieldPart::Authority(value) => return Step::Authority(value),
        };
        match go_on {
            Some(()) => Step::Bytes(1),
            None => Step::Malformed,
        }
    }

    /// Goes on over this number of bytes of the value that the last step came to. Returns whether the value ends with them.
    pub(crate) fn advance_in_authority(&mut self, bytes: usize) -> bool {
        let FieldPart::Authority(value) = &mut self.part else {
            return false;
        };
        value.left = value.left.saturating_sub(bytes);
        let all = value.left == 0;
        if all {
            self.part = FieldPart::Start;
        }
        all
    }

    /// Reads the first byte of an integer, of which `bits` belong to it.
    fn begin_integer(&mut self, first: u8, bits: u32, of: Integer, longest: usize) -> Option<()> {
        let full = u8::MAX.checked_shr(8_u32.saturating_sub(bits))?;
        let value = first & full;
        if value == full {
            let value = value.into();
            self.part = FieldPart::Integer {
                of,
                value,
                bytes: 0,
            };
            return Some(());
        }
        self.finish_integer(of, value.into(), longest)
    }

    /// Reads one more byte of an integer.
    fn continue_integer(
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
            return self.finish_integer(of, value, longest);
        }
        self.part = FieldPart::Integer { of, value, bytes };
        (bytes < MAX_INTEGER_BYTES).then_some(())
    }

    /// Goes on after an integer of this value.
    fn finish_integer(&mut self, of: Integer, value: usize, longest: usize) -> Option<()> {
        match of {
            Integer::Whole => self.part = FieldPart::Start,
            Integer::Name { indexed } if value == 0 => {
                self.part = FieldPart::NameLength { indexed };
            }
            Integer::Name { indexed } => {
                self.finish_name(self.is_authority_entry(value), indexed);
            }
            // a field must have a name
            Integer::NameLength { .. } if value == 0 => return None,
            Integer::NameLength { huffman, indexed } => {
                self.part = FieldPart::Name {
                    left: value,
                    huffman,
                    same: value == authority_name(huffman).len(),
                    indexed,
                };
            }
            Integer::ValueLength { huffman, authority } => {
                if authority && value > 0 && value <= longest {
                    let left = value;
                    self.part = FieldPart::Authority(AuthorityValue { left, huffman });
                } else {
                    self.skip_value(value);
                }
            }
        }
        Some(())
    }

    /// Goes on after a field's name, which is `:authority` or another.
    fn finish_name(&mut self, authority: bool, indexed: bool) {
        if indexed {
            self.authority_entries = (self.authority_entries << 1) | u128::from(authority);
        }
        let first = authority && !self.seen;
        self.seen |= authority;
        self.part = FieldPart::ValueLength { authority: first };
    }

    /// Goes on over a value that is not looked at and has `left` more bytes.
    fn skip_value(&mut self, left: usize) {
        self.part = if left == 0 {
            FieldPart::Start
        } else {
            FieldPart::OtherValue { left }
        };
    }

    /// Whether the entry of this number is named `:authority`.
    fn is_authority_entry(&self, number: usize) -> bool {
        let Some(nth) = number.checked_sub(NEWEST_ENTRY) else {
            return number == STATIC_AUTHORITY;
        };
        let nth = u32::try_from(nth).unwrap_or(u32::MAX);
        self.authority_entries
            .checked_shr(nth)
            .is_some_and(|bits| bits & 1 == 1)
    }
}

/// The integer that a field begins with, and how many of its bits are in the first byte.
fn first_integer(first: u8) -> (u32, Integer) {
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

fn authority_name(huffman: bool) -> &'static [u8] {
    if huffman { ENCODED_NAME } else { NAME }
}

/// The first `left` of these bytes, and how many of `left` are not among them.
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
