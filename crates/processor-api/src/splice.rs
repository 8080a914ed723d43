//! New bytes between slices of old ones.

use std::ops::Range;

use bytes::Bytes;
use smallvec::SmallVec;

/// A part of the body and what stands there instead. An empty part inserts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Splice {
    /// The bytes that go.
    pub at: Range<usize>,
    /// The bytes that come.
    pub with: Bytes,
}

/// Changes of one body, by place, without overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Splices(Vec<Splice>);

/// Why a splice is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpliceError {
    /// Its end is before its start.
    #[error("the splice at {} ends at {}: give the smaller place first", .0.start, .0.end)]
    Reversed(Range<usize>),
    /// Another splice changes the same bytes.
    #[error("the splice of bytes {} to {} overlaps another one: change each byte once", .0.start, .0.end)]
    Overlap(Range<usize>),
    /// The bytes there are not what the caller says they are.
    #[error("there is no member of a JSON object at bytes {} to {}: read its place from the same body", .0.start, .0.end)]
    NoMember(Range<usize>),
}

// === impl Splices ===

impl Splices {
    /// Adds a splice, in any order; of two insertions at one place the earlier call comes first.
    ///
    /// # Errors
    /// [`SpliceError`] when the range is reversed, or overlaps that of another splice.
    pub fn add(&mut self, splice: Splice) -> Result<(), SpliceError> {
        let Range { start, end } = splice.at;
        if end < start {
            return Err(SpliceError::Reversed(splice.at));
        }
        let index = self.0.partition_point(|before| before.at.end <= start);
        if self.0.get(index).is_some_and(|next| next.at.start < end) {
            return Err(SpliceError::Overlap(splice.at));
        }
        self.0.insert(index, splice);
        Ok(())
    }

    /// By place.
    pub fn as_slice(&self) -> &[Splice] {
        &self.0
    }

    /// Nothing changes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The parts of the changed body, none empty: slices of `body`, and what replaces the rest of it. A
    /// splice counts as cut off at the body's end.
    pub fn apply(&self, mut body: Bytes) -> impl Iterator<Item = Bytes> + use<> {
        let mut parts: SmallVec<[Bytes; 3]> = SmallVec::new();
        let mut passed: usize = 0;
        for Splice { at, with } in &self.0 {
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
    pub fn len_after(&self, len: usize) -> usize {
        self.0.iter().fold(len, |total, Splice { at, with }| {
            let gone = at.end.min(len).saturating_sub(at.start.min(len));
            total.saturating_sub(gone).saturating_add(with.len())
        })
    }
}

impl IntoIterator for Splices {
    type Item = Splice;
    type IntoIter = std::vec::IntoIter<Splice>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}
