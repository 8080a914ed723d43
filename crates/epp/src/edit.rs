//! What the EPP changes of a request: headers, and parts of the body.
//!
//! The body is never taken apart: splices put new bytes between slices of the old ones.
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::{borrow::Cow, ops::Range};

use bytes::Bytes;
use smallvec::SmallVec;

/// Changes of one request. A header is never both set and removed: the later call counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Edit {
    set: Vec<(HeaderName, Bytes)>,
    remove: Vec<HeaderName>,
    /// By place, without overlap.
    body: Vec<Splice>,
}

/// A part of the body and what stands there instead. An empty part inserts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Splice {
    /// The bytes that go.
    pub at: Range<usize>,
    /// The bytes that come.
    pub with: Bytes,
}

/// In lower case, as in HTTP/2.
pub(crate) type HeaderName = Cow<'static, str>;

/// Why a splice is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EditError {
    /// Its end is before its start.
    #[error("the splice at {} ends at {}: give the smaller place first", .0.start, .0.end)]
    Reversed(Range<usize>),
    /// Another splice changes the same bytes.
    #[error("the splice of bytes {} to {} overlaps another one: change each byte once", .0.start, .0.end)]
    Overlap(Range<usize>),
}

// === impl Edit ===

impl Edit {
    /// Sets a header, in place of the values it has.
    pub(crate) fn set_header(&mut self, name: impl Into<HeaderName>, value: impl Into<Bytes>) {
        let name = name.into();
        self.forget(&name);
        self.set.push((name, value.into()));
    }

    /// Removes a header.
    pub(crate) fn remove_header(&mut self, name: impl Into<HeaderName>) {
        let name = name.into();
        self.forget(&name);
        self.remove.push(name);
    }

    /// Adds a splice, in any order; of two insertions at one place the earlier call comes first.
    ///
    /// # Errors
    /// [`EditError`] when the range is reversed, or overlaps that of another splice.
    pub(crate) fn splice(&mut self, splice: Splice) -> Result<(), EditError> {
        let Range { start, end } = splice.at;
        if end < start {
            return Err(EditError::Reversed(splice.at));
        }
        let index = self.body.partition_point(|before| before.at.end <= start);
        if self.body.get(index).is_some_and(|next| next.at.start < end) {
            return Err(EditError::Overlap(splice.at));
        }
        self.body.insert(index, splice);
        Ok(())
    }

    /// Puts `model` where the JSON string of the client's model is, quotes included.
    ///
    /// # Errors
    /// [`EditError`] when something else there is changed already.
    pub(crate) fn rewrite_model(&mut self, at: Range<usize>, model: &str) -> Result<(), EditError> {
        let json = serde_json::Value::from(model).to_string();
        let with = Bytes::from(json);
        self.splice(Splice { at, with })
    }

    /// Headers to set, with their values.
    pub(crate) fn headers_to_set(&self) -> &[(HeaderName, Bytes)] {
        &self.set
    }

    /// Whether a header is set.
    pub(crate) fn sets(&self, name: &str) -> bool {
        self.set.iter().any(|(set, _)| set == name)
    }

    /// Headers to remove.
    pub(crate) fn headers_to_remove(&self) -> &[HeaderName] {
        &self.remove
    }

    /// Whether the body changes.
    pub(crate) fn changes_body(&self) -> bool {
        !self.body.is_empty()
    }

    /// The parts of the changed body, none empty: slices of `body`, and what replaces the rest of it. A
    /// splice counts as cut off at the body's end.
    pub(crate) fn apply_body(&self, mut body: Bytes) -> impl Iterator<Item = Bytes> + use<> {
        let mut parts: SmallVec<[Bytes; 3]> = SmallVec::new();
        let mut passed: usize = 0;
        for Splice { at, with } in &self.body {
            let kept = at.start.saturating_sub(passed).min(body.len());
            parts.push(body.split_to(kept));
            parts.push(with.clone());
            let _ = body.split_to(at.len().min(body.len()));
            passed = at.end;
        }
        parts.push(body);
        parts.into_iter().filter(|part| !part.is_empty())
    }

    /// Bytes of a body of `len` bytes once it is changed.
    pub(crate) fn body_len_after(&self, len: usize) -> usize {
        self.body.iter().fold(len, |total, Splice { at, with }| {
            let gone = at.end.min(len).saturating_sub(at.start.min(len));
            total.saturating_sub(gone).saturating_add(with.len())
        })
    }

    fn forget(&mut self, name: &str) {
        self.set.retain(|(set, _)| set != name);
        self.remove.retain(|removed| removed != name);
    }
}

#[cfg(test)]
mod tests;
