//! How long to wait before the next request to a throttling server. Pure.

use std::time::Duration;

/// Wait without `Retry-After`.
const THROTTLE: Duration = Duration::from_secs(1);
/// Longest accepted `Retry-After`: a hostile server must not stop us for ever.
const THROTTLE_MAX: Duration = Duration::from_mins(5);

/// The pause for a server that throttles, with or without a `Retry-After`.
pub(crate) fn throttle(asked: Option<Duration>) -> Duration {
    asked.unwrap_or(THROTTLE).clamp(THROTTLE, THROTTLE_MAX)
}
