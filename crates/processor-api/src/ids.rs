//! Lists of token ids, written as JSON.

use std::ops::Range;

/// A list of ids that was read but not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdList {
    /// Where the JSON array is, brackets included: inside of the quotes when it came as a string.
    pub text_at: Range<usize>,
    /// How many ids it has.
    pub count: usize,
}

/// Why a value is no list of ids. No variant repeats what was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdsError {
    /// It is something else than a list.
    #[error("it is no list of token ids: send an array of integers, or a string that holds one")]
    NoList,
    /// It has a float, a sign, a leading zero, text.
    #[error("at byte {0} there is no token id: send integers from 0 to 4294967295")]
    NoId(usize),
    /// It has a number that no id can be.
    #[error("the number at byte {0} is too large: send integers from 0 to 4294967295")]
    TooLarge(usize),
    /// It is longer than the caller takes.
    #[error("it has more than {0} token ids")]
    TooMany(usize),
}

/// Bytes of an id in JSON, its comma included: ids of today's vocabularies have up to six digits, most fewer.
const BYTES_PER_ID: usize = 7;

/// Checks a JSON value that is to be a list of at most `max` ids: an array, or a string that holds one.
///
/// # Errors
/// [`IdsError`] when it is anything else.
pub fn scan_ids(json: &[u8], max: usize) -> Result<IdList, IdsError> {
    scan(json, max, |_| {})
}

/// Reads a JSON value that is a list of at most `max` ids: an array, or a string that holds one.
///
/// # Errors
/// [`IdsError`] when it is anything else.
pub fn parse_ids(json: &[u8], max: usize) -> Result<Vec<u32>, IdsError> {
    // at least two bytes an id, so that a hostile body cannot ask for more memory than it has itself, times two
    let likely = json.len().div_ceil(BYTES_PER_ID).min(max);
    let mut ids = Vec::with_capacity(likely);
    scan(json, max, |id| ids.push(id))?;
    Ok(ids)
}

/// The ids as a JSON array without spaces.
pub fn write_ids(ids: &[u32]) -> String {
    let mut text = String::with_capacity(ids.len().saturating_mul(BYTES_PER_ID).saturating_add(2));
    let mut digits = itoa::Buffer::new();
    text.push('[');
    for (index, id) in ids.iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        text.push_str(digits.format(*id));
    }
    text.push(']');
    text
}

fn scan(json: &[u8], max: usize, mut take: impl FnMut(u32)) -> Result<IdList, IdsError> {
    let mut reader = Reader {
        json,
        at: 0,
        quoted: false,
    };
    reader.skip_spaces();
    reader.quoted = reader.skip(b'"');
    reader.skip_spaces();
    let start = reader.at;
    if !reader.skip(b'[') {
        return Err(IdsError::NoList);
    }
    let mut count: usize = 0;
    reader.skip_spaces();
    if !reader.skip(b']') {
        loop {
            reader.skip_spaces();
            if count == max {
                return Err(IdsError::TooMany(max));
            }
            take(reader.id()?);
            count = count.saturating_add(1);
            reader.skip_spaces();
            if reader.skip(b']') {
                break;
            }
            if !reader.skip(b',') {
                return Err(IdsError::NoId(reader.at));
            }
        }
    }
    let text_at = start..reader.at;
    reader.skip_spaces();
    if reader.quoted {
        if !reader.skip(b'"') {
            return Err(IdsError::NoId(reader.at));
        }
        reader.quoted = false;
        reader.skip_spaces();
    }
    if reader.at < json.len() {
        return Err(IdsError::NoId(reader.at));
    }
    Ok(IdList { text_at, count })
}

#[derive(Debug)]
struct Reader<'a> {
    json: &'a [u8],
    at: usize,
    quoted: bool,
}

// === impl Reader ===

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.json.get(self.at).copied()
    }

    fn skip(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at = self.at.saturating_add(usize::from(found));
        found
    }

    /// A string holds tabs and line breaks only as escapes, and what is escaped cannot be passed on as it is: it is refused.
    fn skip_spaces(&mut self) {
        while let Some(byte) = self.peek() {
            let is_space = byte == b' ' || (!self.quoted && matches!(byte, b'\t' | b'\r' | b'\n'));
            if !is_space {
                break;
            }
            self.at = self.at.saturating_add(1);
        }
    }

    fn id(&mut self) -> Result<u32, IdsError> {
        let start = self.at;
        let mut value: u32 = 0;
        while let Some(digit) = self.peek().filter(u8::is_ascii_digit) {
            let digit = u32::from(digit.wrapping_sub(b'0'));
            value = value
                .checked_mul(10)
                .and_then(|tens| tens.checked_add(digit))
                .ok_or(IdsError::TooLarge(start))?;
            self.at = self.at.saturating_add(1);
        }
        let digits = self.at.saturating_sub(start);
        let leading_zero = digits > 1 && self.json.get(start) == Some(&b'0');
        // what follows is a float's, if it is part of the number at all
        let goes_on = matches!(self.peek(), Some(b'.' | b'e' | b'E'));
        if digits == 0 || leading_zero || goes_on {
            return Err(IdsError::NoId(start));
        }
        Ok(value)
    }
}

#[cfg(test)]
mod tests;
