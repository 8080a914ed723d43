//! How a stream is, and why.

/// How far what is known of the engine's cache can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamState {
    /// There is no connection.
    Connecting,
    /// All that the engine published is known.
    Live,
    /// What it published lately is known.
    Partial,
    /// What was missed is asked for.
    Replaying,
    /// No message came yet.
    NoEvents,
    /// The engine's blocks are of another size, so that only its load counts. Ends with the first block of our size.
    BlockSizeMismatch,
}

/// Why not all that an engine has is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum PartialCause {
    /// The first message that came was not the engine's first, and there is no port for replays.
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
    /// The replay took too long, or too many messages came meanwhile.
    #[error("the replay of messages that were missed took too long")]
    SlowReplay,
    /// Something could not be read.
    #[error("an event could not be read")]
    Unreadable,
}

/// What the engine's events say of the size of its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockSize {
    /// Nothing yet.
    Unknown,
    /// Some blocks have ours: those of other sizes are not all that it has.
    Ours,
    /// No block has ours.
    Other,
}

// === impl StreamState ===

impl StreamState {
    /// As metrics have it.
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
