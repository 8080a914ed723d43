//! What can be seen of a stream from outside.

use std::time::Duration;

use kv_router::StreamState;
use zmtp::Error;

use crate::counts::Counts;

/// Sees what happens to one stream. Called by its task, so none of it may wait.
pub trait Observer: Send + Sync + 'static {
    /// Reports the state from now on; `reason` is why it is not the expected one.
    fn state(&self, state: StreamState, reason: Option<&str>);
    /// There is no connection for its events, or none any more.
    fn disconnected(&self, error: &Error);
    /// A message was applied, by the subscription or by a replay.
    fn received(&self, received: &Received);
    /// Reports that a message was skipped whole, for this reason.
    fn malformed(&self, reason: &'static str);
    /// So many messages are missing between two of one connection.
    fn gap(&self, missing: u64);
    /// All that was known of the worker's blocks is forgotten.
    fn forgotten(&self);
    /// A replay is over.
    fn replayed(&self, result: ReplayResult);
}

/// A message whose events were applied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Received {
    /// Its number in the life of the engine.
    pub number: u64,
    /// What became of its events.
    pub counts: Counts,
    /// Blocks of the worker that are known now.
    pub blocks: usize,
    /// From when the engine made it until now, by the clocks of both; none if it does not tell. Of replayed messages the
    /// time since they were made, which is no lag.
    pub age: Option<Duration>,
    /// It came by a replay.
    pub is_replayed: bool,
}

/// How a replay ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReplayResult {
    /// With all that was asked for.
    Complete,
    /// The engine has less than was asked for.
    Partial,
    /// The connection could not be made, or broke.
    Failed,
    /// It took too long, too much came meanwhile, or the stream's own connection ended.
    Abandoned,
}

// === impl ReplayResult ===

impl ReplayResult {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Complete, Self::Partial, Self::Failed, Self::Abandoned];

    /// As metrics have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Partial => "partial",
            Self::Failed => "failed",
            Self::Abandoned => "abandoned",
        }
    }
}
