//! Members of a JSON object, set and removed without touching any other byte.

use std::ops::Range;

use bytes::Bytes;

use crate::splice::{Splice, SpliceError};

/// What is to become of one member of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberEdit<'a> {
    /// Its key, which must need no escape in JSON. Only insertion reads it.
    pub name: &'a str,
    /// Where its value is in the body; absent: the object has no such member.
    pub value_at: Option<Range<usize>>,
    /// The value to set, as JSON; absent: the member is removed.
    pub value: Option<Bytes>,
}

/// The splices that edit members of the JSON object at `object`, which is a part of `body`: sorted, disjoint.
///
/// A removal takes one adjoining comma, so that the object stays one whatever is removed with it. A member that is not
/// there is inserted behind the last one. `body` must be valid JSON, and the places must be those of its values.
///
/// # Errors
/// [`SpliceError`] when two edits are of one member, or no member of an object is at a place.
pub fn splice_object(
    body: &[u8],
    object: Range<usize>,
    edits: &[MemberEdit<'_>],
) -> Result<Vec<Splice>, SpliceError> {
    let no_object = || SpliceError::NoMember(object.clone());
    let open = Some(object.start).filter(|at| body.get(*at) == Some(&b'{'));
    let open = open.ok_or_else(no_object)?;
    let close = object.end.checked_sub(1).filter(|at| *at > open);
    let close = close.filter(|at| body.get(*at) == Some(&b'}'));
    let close = close.ok_or_else(no_object)?;

    let mut present: Vec<(&Range<usize>, Option<&Bytes>)> = edits
        .iter()
        .filter_map(|edit| Some((edit.value_at.as_ref()?, edit.value.as_ref())))
        .collect();
    present.sort_unstable_by_key(|(at, _)| at.start);
    let mut splices: Vec<Splice> = Vec::with_capacity(edits.len());
    // the first byte that no splice has taken
    let mut free = open.saturating_add(1);
    for (value_at, value) in present {
        if value_at.start < free || value_at.end > close || value_at.is_empty() {
            return Err(SpliceError::Overlap(value_at.clone()));
        }
        let at = match value {
            Some(_) => value_at.clone(),
            None => removal(body, value_at, free, close)?,
        };
        free = at.end;
        splices.push(Splice {
            at,
            with: value.cloned().unwrap_or_default(),
        });
    }
    let mut has_members = has_members(body, open, close, &splices);
    for edit in edits.iter().filter(|edit| edit.value_at.is_none()) {
        let Some(value) = &edit.value else {
            continue;
        };
        let comma = if has_members { "," } else { "" };
        let mut with = format!("{comma}\"{}\":", edit.name).into_bytes();
        with.extend_from_slice(value);
        splices.push(Splice {
            at: close..close,
            with: with.into(),
        });
        has_members = true;
    }
    Ok(splices)
}

/// The bytes of a member and of one comma beside it, from `free` on.
fn removal(
    body: &[u8],
    value_at: &Range<usize>,
    free: usize,
    close: usize,
) -> Result<Range<usize>, SpliceError> {
    let key = key_start(body, value_at.start)
        .filter(|key| *key >= free)
        .ok_or_else(|| SpliceError::NoMember(value_at.clone()))?;
    if let Some(comma) = last_filled(body, free..key).filter(|at| body.get(*at) == Some(&b',')) {
        return Ok(comma..value_at.end);
    }
    // the first of the object, or the removal before it took their comma
    let comma = first_filled(body, value_at.end..close);
    let comma = comma.filter(|at| body.get(*at) == Some(&b','));
    let end = comma.map_or(value_at.end, |comma| comma.saturating_add(1));
    Ok(key..end)
}

/// Where the key of the member whose value starts at `value` has its first quote.
fn key_start(body: &[u8], value: usize) -> Option<usize> {
    let colon = last_filled(body, 0..value).filter(|at| body.get(*at) == Some(&b':'))?;
    let mut end = last_filled(body, 0..colon).filter(|at| body.get(*at) == Some(&b'"'))?;
    // a quote inside of the key has an odd number of backslashes before it
    loop {
        let start = memchr::memrchr(b'"', body.get(..end)?)?;
        let before = body.get(..start)?;
        let escapes = before.iter().rev().take_while(|byte| **byte == b'\\');
        if escapes.count().is_multiple_of(2) {
            return Some(start);
        }
        end = start;
    }
}

/// Whether any byte but whitespace is left between the braces.
fn has_members(body: &[u8], open: usize, close: usize, splices: &[Splice]) -> bool {
    let mut from = open.saturating_add(1);
    for Splice { at, with } in splices {
        if !with.is_empty() || first_filled(body, from..at.start).is_some() {
            return true;
        }
        from = at.end;
    }
    first_filled(body, from..close).is_some()
}

fn first_filled(body: &[u8], range: Range<usize>) -> Option<usize> {
    let part = body.get(range.clone())?;
    let place = part.iter().position(|byte| !is_space(*byte))?;
    range.start.checked_add(place)
}

fn last_filled(body: &[u8], range: Range<usize>) -> Option<usize> {
    let part = body.get(range.clone())?;
    let place = part.iter().rposition(|byte| !is_space(*byte))?;
    range.start.checked_add(place)
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

#[cfg(test)]
mod tests;
