//! A client's side of HPACK, which writes fields in any form that RFC 7541 has.

use std::collections::VecDeque;

use crate::huffman;

/// Names of the static table that are used here, with a value where the entry is to be used as a whole.
const STATIC: [(usize, &str, &str); 5] = [
    (1, ":authority", ""),
    (3, ":method", "POST"),
    (4, ":path", "/"),
    (6, ":scheme", "http"),
    (58, "user-agent", ""),
];

/// How a field is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    /// The field is written as the number of an entry, where there is one.
    pub(super) by_number: bool,
    pub(super) literal: Literal,
    pub(super) name: NameForm,
    pub(super) huffman_name: bool,
    pub(super) huffman_value: bool,
}

/// Whether a field that is written out becomes an entry of the dynamic table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Literal {
    Indexed,
    Plain,
    Never,
}

/// Where the name comes from. If it cannot come from there, it comes from the next of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NameForm {
    Dynamic,
    Static,
    Text,
}

/// The encoder of a connection, with its dynamic table.
#[derive(Debug)]
pub(super) struct Encoder {
    entries: VecDeque<(String, String)>,
    max: usize,
}

impl Default for Encoder {
    fn default() -> Self {
        Self {
            entries: VecDeque::new(),
            max: 4096,
        }
    }
}

impl Encoder {
    /// Gives the dynamic table another size, which the server is told before other fields.
    pub(super) fn resize(&mut self, block: &mut Vec<u8>, max: usize) {
        self.max = max;
        self.evict(0);
        integer(block, 0x20, 5, max);
    }

    pub(super) fn field(&mut self, block: &mut Vec<u8>, name: &str, value: &str, form: Form) {
        if form.by_number
            && let Some(number) = self.number(name, value)
        {
            integer(block, 0x80, 7, number);
            return;
        }
        let (first, bits) = match form.literal {
            Literal::Indexed => (0x40, 6),
            Literal::Plain => (0x00, 4),
            Literal::Never => (0x10, 4),
        };
        let number = self.name(name, form.name);
        integer(block, first, bits, number);
        if number == 0 {
            string(block, name, form.huffman_name);
        }
        string(block, value, form.huffman_value);
        if form.literal == Literal::Indexed {
            let size = size(name, value);
            self.evict(size);
            if size <= self.max {
                self.entries.push_front((name.to_owned(), value.to_owned()));
            }
        }
    }

    fn number(&self, name: &str, value: &str) -> Option<usize> {
        let known = STATIC
            .iter()
            .find(|known| (known.1, known.2) == (name, value));
        let known = known.map(|known| known.0).filter(|_| !value.is_empty());
        let added = self
            .entries
            .iter()
            .position(|(n, v)| n == name && v == value);
        known.or(added.map(|nth| nth + 62))
    }

    /// The number of an entry of this name; 0 where the name is to be written.
    fn name(&self, name: &str, form: NameForm) -> usize {
        let added = self.entries.iter().position(|(added, _)| added == name);
        let known = STATIC.iter().find(|known| known.1 == name);
        match (form, added, known) {
            (NameForm::Dynamic, Some(nth), _) => nth + 62,
            (NameForm::Dynamic | NameForm::Static, _, Some(known)) => known.0,
            _ => 0,
        }
    }

    /// Removes the oldest entries until there is room for one of this size.
    fn evict(&mut self, size_of_next: usize) {
        let sizes = |entries: &VecDeque<(String, String)>| -> usize {
            entries.iter().map(|(name, value)| size(name, value)).sum()
        };
        while !self.entries.is_empty() && sizes(&self.entries) + size_of_next > self.max {
            self.entries.pop_back();
        }
    }
}

fn size(name: &str, value: &str) -> usize {
    name.len() + value.len() + 32
}

fn string(block: &mut Vec<u8>, text: &str, huffman: bool) {
    let (first, bytes) = if huffman {
        (0x80, huffman::encode(text.as_bytes()))
    } else {
        (0, text.as_bytes().to_vec())
    };
    integer(block, first, 7, bytes.len());
    block.extend(bytes);
}

/// An integer whose first byte has so many bits of it.
pub(super) fn integer(block: &mut Vec<u8>, first: u8, bits: u32, value: usize) {
    let full = (1_usize << bits) - 1;
    let byte = |value: usize| u8::try_from(value).unwrap();
    if value < full {
        block.push(first | byte(value));
        return;
    }
    block.push(first | byte(full));
    let mut left = value - full;
    while left >= 0x80 {
        block.push(byte(left % 0x80 + 0x80));
        left /= 0x80;
    }
    block.push(byte(left));
}
