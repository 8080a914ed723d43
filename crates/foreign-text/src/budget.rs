//! What is left of a document's limits while it is read.

use std::cell::Cell;

use serde::de::Error;

use crate::{clip::clipped, limits::Limits};

/// Longest part of a key in an error, in bytes.
const MAX_KEY: usize = 128;

/// What is left of a document's limits.
#[derive(Debug)]
pub(crate) struct Budget {
    limits: Limits,
    bytes: Cell<usize>,
    values: Cell<usize>,
}

// === impl Budget ===

impl Budget {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            bytes: Cell::new(limits.expanded),
            values: Cell::new(limits.values),
        }
    }

    /// Charges one value and the bytes of its text.
    pub(crate) fn spend_value<E: Error>(&self, bytes: usize) -> Result<(), E> {
        let left = self.values.get().checked_sub(1).ok_or_else(|| {
            let most = self.limits.values;
            E::custom(format!(
                "it has more than {most} values, or its aliases repeat too much"
            ))
        })?;
        self.values.set(left);
        self.spend_bytes(bytes)
    }

    /// Charges the bytes of a key.
    pub(crate) fn spend_bytes<E: Error>(&self, bytes: usize) -> Result<(), E> {
        let left = self.bytes.get().checked_sub(bytes).ok_or_else(|| {
            let most = self.limits.expanded;
            E::custom(format!(
                "its aliases repeat too much: it stands for more than {most} bytes"
            ))
        })?;
        self.bytes.set(left);
        Ok(())
    }
}

/// The error for a key that the map already has.
pub(crate) fn twice<E: Error>(key: &str) -> E {
    let key = clipped(key.to_owned(), MAX_KEY);
    E::custom(format!("the key {key:?} is there twice"))
}
