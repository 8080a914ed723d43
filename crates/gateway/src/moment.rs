//! Time as a value: pure code takes `now: Moment`, only the edge reads a clock.

use std::time::Duration;

use tokio::time::Instant;

/// Time since the program started; tests write `Moment::from_millis(1_500)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(Duration);

/// The one reader of the clock; follows tokio's paused time in tests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
}

// === impl Moment ===

impl Moment {
    #[cfg(test)]
    pub(crate) const fn from_millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }

    pub(crate) fn plus(self, by: Duration) -> Self {
        Self(self.0.saturating_add(by))
    }
}

// === impl Clock ===

impl Clock {
    pub(crate) fn start() -> Self {
        Self {
            start: Instant::now(),
        }
    }

    pub(crate) fn now(self) -> Moment {
        Moment(self.start.elapsed())
    }

    pub(crate) fn instant(self, moment: Moment) -> Instant {
        self.start + moment.0
    }
}
