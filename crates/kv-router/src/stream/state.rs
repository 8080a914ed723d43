//! The state of a stream, and the reason for it.

/// How complete the known contents of the engine's cache are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamState {
    /// There is no connection.
    Connecting,
    /// All that the engine published is known.
    Live,
    /// Only what the engine published recently is known.
    Partial,
    /// The missed messages are requested.
    Replaying,
    /// No message was received yet.
    NoEvents,
    /// The engine's blocks have another size, so that only its load counts. The first block of the expected size ends
    /// this.
    BlockSizeMismatch,
}

/// Why only a part of an engine's cache is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum PartialCause {
    /// The first message that was received was not the engine's first, and there is no port for replays.
    #[error("the engine had published before, and there is no replay port to ask for it")]
    Late,
    /// Messages were lost, and there is no port for replays or it did not help.
    #[error("messages were lost that no replay brought back")]
    Gap,
    /// The engine does not keep as many messages as were missed.
    #[error("the engine does not keep all messages that were missed for replays")]
    ShortReplay,
    /// The replay failed.
    #[error("the replay of messages that were missed failed")]
    FailedReplay,
    /// The replay took too long, or too many messages were received meanwhile.
    #[error("the replay of messages that were missed took too long")]
    SlowReplay,
    /// An event could not be read.
    #[error("an event could not be read")]
    Unreadable,
}

/// What the engine's events show about the size of its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockSize {
    /// No event showed it yet.
    Unknown,
    /// Some blocks have the expected size, so blocks of other sizes are not all that the engine has.
    Ours,
    /// No block has the expected size.
    Other,
}

// === impl StreamState ===

impl StreamState {
    /// The name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Live => "live",
            Self::Partial => "partial",
            Self::Replaying => "replaying",
            Self::NoEvents => "no-events",
            Self::BlockSizeMismatch => "block-size-mismatch",
        }
    }
}
