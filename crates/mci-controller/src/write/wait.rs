//! How long to wait before a server is asked again. Pure.

use std::time::Duration;

/// Wait without `Retry-After`.
const THROTTLE: Duration = Duration::from_secs(1);
/// A `Retry-After` past this is not obeyed to the letter: a hostile server must not silence us for ever.
const THROTTLE_MAX: Duration = Duration::from_mins(5);

/// The silence that a server gets that asks for it, by `Retry-After` or without.
pub(crate) fn throttle(asked: Option<Duration>) -> Duration {
    asked.unwrap_or(THROTTLE).clamp(THROTTLE, THROTTLE_MAX)
}
