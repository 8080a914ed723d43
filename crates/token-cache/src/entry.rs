//! The ids of one prompt, and whose they are.

use std::{fmt, sync::Arc};

/// Bytes of an entry's ids as u32, and of a body that brings them: 16 MiB.
pub const MAX_BYTES: usize = 16 << 20;

/// Ids of an entry.
pub const MAX_IDS: usize = MAX_BYTES / size_of::<u32>();

/// The ids of a prompt. A worker compares the tags with its own: ids of another tokenizer are another prompt.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    /// The model's name, as in the request once rewritten.
    pub model: Arc<str>,
    /// Names the tokenizer and template files by their contents.
    pub tokenizer: Arc<str>,
    /// The prompt.
    pub ids: Arc<[u32]>,
}

// === impl Entry ===

impl Entry {
    /// Bytes of what it points to.
    pub(crate) fn bytes(&self) -> usize {
        let Self {
            model,
            tokenizer,
            ids,
        } = self;
        size_of_val(&**ids) + model.len() + tokenizer.len()
    }
}

impl fmt::Debug for Entry {
    /// Without the prompt.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry")
            .field("model", &self.model)
            .field("tokenizer", &self.tokenizer)
            .field("ids", &self.ids.len())
            .finish()
    }
}
