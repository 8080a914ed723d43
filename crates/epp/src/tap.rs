//! Reads what a response says of its tokens, and puts the client's model name back, as the bytes pass.
//!
//! ```text
//!  chunk ─┬─ JSON body ───────────────────┬─► scanner ─► usage
//!         └─ events ─► lines ─ data ──────┘      └─► restorer ─► chunk
//! ```
//!
//! Nothing is delayed but a model name that is cut in two, and nothing copied but a usage object. What
//! cannot be read passes as it is.
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use bytes::Bytes;
use smallvec::{SmallVec, smallvec};

mod events;
mod restore;
mod scanner;
mod usage;

pub(crate) use usage::Usage;

use events::Events;
use restore::Restorer;
use scanner::{Mark, Scanner};

/// What a chunk becomes: itself, or the parts around a model name.
pub(crate) type Output = SmallVec<[Bytes; 3]>;

/// Follows one response body.
#[derive(Debug, Default)]
pub(crate) struct ResponseTap {
    format: Format,
    events: Events,
    scanner: Scanner,
    restorer: Option<Restorer>,
    /// What the objects so far say.
    usage: Usage,
}

/// Decided by the first byte that is no white space, as a content type may be wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Format {
    #[default]
    Unknown,
    Json,
    Events,
}

// === impl ResponseTap ===

impl ResponseTap {
    /// A tap that also replaces the model in the response by the name that the client used.
    pub(crate) fn restoring(client_model: &str) -> Self {
        Self {
            events: Events::reading_all(),
            restorer: Some(Restorer::new(client_model)),
            ..Self::default()
        }
    }

    /// Whether what goes on may be other than what came.
    pub(crate) fn changes(&self) -> bool {
        self.restorer.is_some()
    }

    /// Takes the next chunk, cut anywhere, and gives what goes on in its place. `end`: nothing follows, so
    /// nothing may be held; a body that ends by trailers is ended by an empty chunk.
    ///
    /// Without restoring that is the chunk itself; else it may be no part, or several.
    pub(crate) fn on_chunk(&mut self, chunk: Bytes, end: bool) -> Output {
        let Some(mut restorer) = self.restorer.take() else {
            self.read(&chunk, &mut |_, _| {});
            return smallvec![chunk];
        };
        let mut rewrite = restorer.rewrite(&chunk);
        self.read(&chunk, &mut |at, mark| rewrite.on(at, mark));
        let output = rewrite.finish(end);
        self.restorer = Some(restorer);
        output
    }

    /// What the response said, once it is over; `None`: it said nothing, or was broken.
    pub(crate) fn finish(&mut self) -> Option<Usage> {
        // A last event may lack the empty line.
        if let Some(usage) = self.scanner.finish() {
            self.usage.merge(usage);
        }
        Some(std::mem::take(&mut self.usage)).filter(|usage| *usage != Usage::default())
    }

    fn read(&mut self, chunk: &[u8], mark: &mut impl FnMut(usize, Mark)) {
        if self.format == Format::Unknown {
            let first = chunk.iter().find(|byte| !byte.is_ascii_whitespace());
            self.format = match first {
                None => Format::Unknown,
                Some(b'{') => Format::Json,
                Some(_) => Format::Events,
            };
        }
        match self.format {
            Format::Json => self.scanner.feed(chunk, 0, mark),
            // White space may be lines.
            Format::Unknown | Format::Events => {
                self.events
                    .feed(chunk, &mut self.scanner, &mut self.usage, mark);
            }
        }
    }
}

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzz;
#[cfg(test)]
mod tests;
