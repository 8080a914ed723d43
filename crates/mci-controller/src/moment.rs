//! Time as a value: pure code takes it as a parameter, one clock at the edge makes it.

use std::time::Duration;

use tokio::time::Instant;

/// Nanoseconds since the program's start, on its monotonic clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

/// Makes [`Moment`]s; follows tokio's clock, so that paused time works in tests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
}

// === impl Moment ===

impl Moment {
    #[cfg(test)]
    pub(crate) const fn from_millis(millis: u64) -> Self {
        Self(millis * 1_000_000)
    }

    /// Time from `earlier` to this moment; zero if it is not earlier.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add<Duration> for Moment {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

// === impl Clock ===

impl Clock {
    pub(crate) fn start() -> Self {
        Self {
            start: Instant::now(),
        }
    }

    pub(crate) fn now(&self) -> Moment {
        Moment::default() + self.start.elapsed()
    }

    /// The instant of a moment, to sleep until.
    pub(crate) fn instant(&self, moment: Moment) -> Instant {
        self.start + Duration::from_nanos(moment.0)
    }
}
