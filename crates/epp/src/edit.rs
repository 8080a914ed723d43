//! What the EPP changes of a request: headers, and parts of the body.
//!
//! The body is never taken apart: splices put new bytes between slices of the old ones.
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::{borrow::Cow, ops::Range};

use bytes::Bytes;
use processor_api::{Splice, SpliceError, Splices};

/// Changes of one request. A header is never both set and removed: the later call counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Edit {
    set: Vec<(HeaderName, Bytes)>,
    remove: Vec<HeaderName>,
    body: Splices,
}

/// In lower case, as in HTTP/2.
pub(crate) type HeaderName = Cow<'static, str>;

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
    /// [`SpliceError`] when the range is reversed, or overlaps that of another splice.
    pub(crate) fn splice(&mut self, splice: Splice) -> Result<(), SpliceError> {
        self.body.add(splice)
    }

    /// Puts `model` where the JSON string of the client's model is, quotes included.
    ///
    /// # Errors
    /// [`SpliceError`] when something else there is changed already.
    pub(crate) fn rewrite_model(
        &mut self,
        at: Range<usize>,
        model: &str,
    ) -> Result<(), SpliceError> {
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

    /// The text that a header is set to.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        let (_, value) = self.set.iter().find(|(set, _)| set == name)?;
        std::str::from_utf8(value).ok()
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
    pub(crate) fn apply_body(&self, body: Bytes) -> impl Iterator<Item = Bytes> + use<> {
        self.body.apply(body)
    }

    /// Bytes of a body of `len` bytes once it is changed.
    pub(crate) fn body_len_after(&self, len: usize) -> usize {
        self.body.len_after(len)
    }

    fn forget(&mut self, name: &str) {
        self.set.retain(|(set, _)| set != name);
        self.remove.retain(|removed| removed != name);
    }
}

#[cfg(test)]
mod tests;
