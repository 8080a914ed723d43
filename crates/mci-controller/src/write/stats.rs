//! The state of a member's queue, for metrics and debug pages.

use std::time::Duration;

use serde::{Serialize, Serializer};

/// The state of one queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct QueueStats {
    /// Objects that wait to be written.
    pub(crate) keys: usize,
    /// Age of the oldest event whose write still waits; zero if none waits.
    #[serde(rename = "oldestSeconds", serialize_with = "seconds")]
    pub(crate) oldest: Duration,
    pub(crate) in_flight: usize,
    /// Writes that may be in flight at once.
    pub(crate) limit: usize,
    /// Whether writes are held back because none was answered.
    pub(crate) breaker_open: bool,
}

/// The state of the writes of one object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LaneStats {
    /// One waits or is in flight.
    pub(crate) queued: bool,
    /// Label of the last outcome where that was a failure, and nothing has succeeded since.
    pub(crate) last_error: Option<&'static str>,
}

/// Seconds, rounded to milliseconds: enough for people.
pub(crate) fn seconds<S: Serializer>(
    duration: &Duration,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    serializer.serialize_f64(Duration::from_millis(millis).as_secs_f64())
}
