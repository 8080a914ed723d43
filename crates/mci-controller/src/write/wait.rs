//! How long to wait before a server is asked again. Pure.

use std::time::Duration;

use rand::RngExt;

/// Wait without `Retry-After`.
const THROTTLE: Duration = Duration::from_secs(1);
/// A `Retry-After` past this is not obeyed to the letter: a hostile server must not silence us for ever.
const THROTTLE_MAX: Duration = Duration::from_mins(5);

/// The silence that a server gets that asks for it, by `Retry-After` or without.
pub(crate) fn throttle(asked: Option<Duration>) -> Duration {
    asked.unwrap_or(THROTTLE).clamp(THROTTLE, THROTTLE_MAX)
}

/// Full jitter over a span that doubles with each failure in a row.
pub(crate) fn backoff(
    failures: u32,
    min: Duration,
    max: Duration,
    rng: &mut impl rand::Rng,
) -> Duration {
    let span = min
        .saturating_mul(1_u32.checked_shl(failures.min(16)).unwrap_or(u32::MAX))
        .min(max);
    min.max(span.mul_f64(rng.random::<f64>()))
}
