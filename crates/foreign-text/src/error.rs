//! The error for a document that is rejected.

use crate::clip::{MAX_MESSAGE, clipped};

/// Why a document is refused: what is wrong, with path and line where the library knows them. It may quote the document, and
/// has at most [`MAX_MESSAGE`] bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct YamlError {
    text: String,
    place: Option<Place>,
}

/// A place of a document; line and column count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

// === impl YamlError ===

impl YamlError {
    pub(crate) fn new(text: String) -> Self {
        let text = clipped(text, MAX_MESSAGE);
        Self { text, place: None }
    }

    /// The place of the error, for callers that must not quote the document.
    #[must_use]
    pub fn place(&self) -> Option<Place> {
        self.place
    }
}

impl From<serde_yaml::Error> for YamlError {
    fn from(error: serde_yaml::Error) -> Self {
        let place = error.location().map(|at| Place {
            line: at.line(),
            column: at.column(),
        });
        let whole = error.to_string();
        if whole.len() <= MAX_MESSAGE {
            return Self { text: whole, place };
        }
        // the library has the line at the end, where a long text would lose it
        let line = place.map_or_else(String::new, |at| format!(" … at line {}", at.line));
        let mut text = clipped(whole, MAX_MESSAGE - line.len());
        text.push_str(&line);
        Self { text, place }
    }
}
