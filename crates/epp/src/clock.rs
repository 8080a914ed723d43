//! The one place that reads the time.

use std::time::Duration;

use scheduling::Moment;
use tokio::time::Instant;

/// Makes [`Moment`]s. Follows tokio's clock, so that tests can pause it.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

// === impl Clock ===

impl Clock {
    /// A clock whose [`Moment::START`] is now.
    pub fn start() -> Self {
        Self {
            start: Instant::now(),
        }
    }

    /// The time.
    pub fn now(&self) -> Moment {
        Moment::after_start(self.start.elapsed())
    }

    /// The same moment for tokio's timers.
    pub fn instant(&self, moment: Moment) -> Instant {
        let elapsed: Duration = moment.since_start();
        self.start.checked_add(elapsed).unwrap_or(self.start)
    }
}
