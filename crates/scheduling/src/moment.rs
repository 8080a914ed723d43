//! Time as a value.

use std::time::Duration;

/// Nanoseconds on the program's own monotonic clock, counted from its start. 64 bits last 584 years.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

// === impl Moment ===

impl Moment {
    /// The start of the program.
    pub const START: Self = Self(0);

    /// The moment `elapsed` after the start; saturates after 584 years.
    pub fn after_start(elapsed: Duration) -> Self {
        Self(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
    }

    /// The moment `millis` milliseconds after the start.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// The time from the start to this moment.
    pub const fn since_start(self) -> Duration {
        Duration::from_nanos(self.0)
    }

    /// The time from `earlier` to `self`; zero when `earlier` is in fact later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// This moment moved `by` into the future, saturating.
    #[must_use]
    pub fn plus(self, by: Duration) -> Self {
        Self(self.0.saturating_add(Self::after_start(by).0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_moment_is_no_negative_age() {
        let now = Moment::from_millis(5);
        let later = now.plus(Duration::from_millis(3));
        assert_eq!(later.since(now), Duration::from_millis(3));
        assert_eq!(now.since(later), Duration::ZERO);
    }
}
