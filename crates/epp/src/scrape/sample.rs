//! One line of a page behind the metric's name: labels and a value.

use memchr::{memchr, memchr2};
use xxhash_rust::xxh64::xxh64;

/// Labels of processes and of ranks that work on the same requests: each of them publishes the values of the whole, or
/// stays at 0.
const SAME_SCHEDULER: [&[u8]; 4] = [b"pid", b"tp_rank", b"pp_rank", b"moe_ep_rank"];

/// `{key="value",…} 1.5 1700000000`: a sample's labels, if it has any, and its value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample<'l> {
    /// What stands between the braces.
    pub(super) labels: &'l [u8],
    value: &'l [u8],
}

// === impl Sample ===

impl<'l> Sample<'l> {
    /// Absent when the labels do not end or there is no value.
    pub(super) fn parse(line: &'l [u8]) -> Option<Self> {
        let line = trim_start(line);
        let (labels, behind) = match line.strip_prefix(b"{") {
            Some(rest) => split_block(rest)?,
            None => (&b""[..], line),
        };
        let mut words = behind.split(u8::is_ascii_whitespace);
        let value = words.find(|word| !word.is_empty())?;
        Some(Self { labels, value })
    }

    /// A sample of labels alone, to look them up.
    pub(super) fn of_labels(labels: &'l [u8]) -> Self {
        Self { labels, value: b"" }
    }

    /// The value. What is no number counts as missing: NaN, infinite, negative.
    pub(super) fn value(self) -> Option<f64> {
        number(self.value)
    }

    /// The value of a label, as it is written: with its escapes.
    pub(super) fn label(self, wanted: &[u8]) -> Option<&'l [u8]> {
        let mut rest = self.labels;
        loop {
            let (key, value, behind) = split_label(rest)?;
            if key == wanted {
                return Some(value);
            }
            rest = behind;
        }
    }

    /// A hash of its labels except [`SAME_SCHEDULER`]: samples that report the same value of one scheduler have the
    /// same hash.
    pub(super) fn identity(self) -> u64 {
        let (mut hash, mut rest) = (0, self.labels);
        while let Some((key, value, behind)) = split_label(rest) {
            if !SAME_SCHEDULER.contains(&key) {
                hash = xxh64(value, xxh64(key, hash));
            }
            rest = behind;
        }
        hash
    }

    /// Whether the sample has each of these labels with exactly that value.
    pub(super) fn has(self, labels: &[(String, String)]) -> bool {
        labels.iter().all(|(key, value)| {
            self.label(key.as_bytes())
                .is_some_and(|written| unescape(written).eq(value.bytes()))
        })
    }
}

/// A finite number that is not negative.
pub(super) fn number(text: &[u8]) -> Option<f64> {
    let number: f64 = std::str::from_utf8(text).ok()?.trim_ascii().parse().ok()?;
    (number >= 0.0 && number.is_finite()).then_some(number)
}

/// The nearest integer, at most the greatest there is.
pub(super) fn integer(number: f64) -> u32 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "such a cast saturates, as it should"
    )]
    let integer = number.round() as u32;
    integer
}

/// Undoes `\"`, `\\` and `\n`; another escape stays as it is.
pub(super) fn unescape(written: &[u8]) -> impl Iterator<Item = u8> {
    let mut bytes = written.iter().copied().peekable();
    std::iter::from_fn(move || {
        let byte = bytes.next()?;
        if byte != b'\\' {
            return Some(byte);
        }
        match bytes.next_if(|next| matches!(next, b'"' | b'\\' | b'n')) {
            Some(b'n') => Some(b'\n'),
            escaped => escaped.or(Some(byte)),
        }
    })
}

/// Splits `a="b",c="d"} 1` at the closing brace, which may also stand inside a value.
fn split_block(block: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut end = 0_usize;
    loop {
        let rest = block.get(end..)?;
        let at = memchr2(b'"', b'}', rest)?;
        end = end.checked_add(at)?;
        if rest.get(at) == Some(&b'}') {
            let (labels, behind) = block.split_at_checked(end)?;
            return Some((labels, behind.get(1..)?));
        }
        let value = rest.get(at.checked_add(1)?..)?;
        end = end.checked_add(quoted_len(value)?)?.checked_add(2)?;
    }
}

/// Splits `key="value",…` into the key, the value and what follows.
fn split_label(rest: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let at = memchr(b'=', rest)?;
    let (key, rest) = rest.split_at_checked(at)?;
    let value = trim_start(rest.get(1..)?).strip_prefix(b"\"")?;
    let (value, rest) = value.split_at_checked(quoted_len(value)?)?;
    let rest = trim_start(rest.get(1..)?);
    Some((
        key.trim_ascii(),
        value,
        rest.strip_prefix(b",").unwrap_or_default(),
    ))
}

/// Where the quote ends that `text` is the inside of.
fn quoted_len(text: &[u8]) -> Option<usize> {
    let mut end = 0_usize;
    loop {
        let rest = text.get(end..)?;
        let at = memchr2(b'"', b'\\', rest)?;
        let found = end.checked_add(at)?;
        if rest.get(at) == Some(&b'"') {
            return Some(found);
        }
        end = found.checked_add(2)?; // past the escaped byte
    }
}

fn trim_start(text: &[u8]) -> &[u8] {
    text.trim_ascii_start()
}

#[cfg(test)]
mod tests;
