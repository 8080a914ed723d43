//! Messages: some frames that arrive together or not at all.

use bytes::Bytes;
use smallvec::SmallVec;

/// Frames of a message. What publishes events has three, and each hop of a route adds two.
pub const MAX_FRAMES: usize = 16;

/// A message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    frames: SmallVec<[Bytes; 4]>,
}

// === impl Message ===

impl Message {
    /// Its frames, at least one in what is received.
    pub fn frames(&self) -> &[Bytes] {
        &self.frames
    }

    /// Bytes of all frames.
    pub fn len(&self) -> usize {
        self.frames.iter().map(Bytes::len).sum()
    }

    /// No frames.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    pub(crate) fn push(&mut self, frame: Bytes) {
        self.frames.push(frame);
    }
}

impl<const N: usize> From<[Bytes; N]> for Message {
    fn from(frames: [Bytes; N]) -> Self {
        Self {
            frames: frames.into_iter().collect(),
        }
    }
}
