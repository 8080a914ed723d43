//! Time as a value.
//!
//! What decides takes `now: Moment` and is tested with moments written down; one [`Clock`] (feature `clock`) at the edge
//! of a program makes them. The clock follows tokio's, so that loops are tested under paused time.

use std::{ops::Add, time::Duration};

/// Nanoseconds on the program's own monotonic clock, counted from its start. 64 bits last 584 years.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

/// Makes [`Moment`]s.
#[cfg(feature = "clock")]
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: tokio::time::Instant,
}

// === impl Moment ===

impl Moment {
    /// The start of the program.
    pub const START: Self = Self(0);

    /// The moment `elapsed` after the start; saturates after 584 years.
    pub fn after_start(elapsed: Duration) -> Self {
        Self(nanos(elapsed))
    }

    /// The moment `millis` milliseconds after the start.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// The time from the start to this moment.
    pub const fn since_start(self) -> Duration {
        Duration::from_nanos(self.0)
    }

    /// The time from `earlier` to this moment; zero when `earlier` is in fact later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// This moment moved `by` into the future, saturating.
    #[must_use]
    pub fn plus(self, by: Duration) -> Self {
        Self(self.0.saturating_add(nanos(by)))
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, by: Duration) -> Self {
        self.plus(by)
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

// === impl Clock ===

#[cfg(feature = "clock")]
impl Clock {
    /// A clock whose [`Moment::START`] is now.
    pub fn start() -> Self {
        Self {
            start: tokio::time::Instant::now(),
        }
    }

    /// The time.
    pub fn now(&self) -> Moment {
        Moment::after_start(self.start.elapsed())
    }

    /// The same moment for tokio's timers; one too far for them is now.
    pub fn instant(&self, moment: Moment) -> tokio::time::Instant {
        self.start
            .checked_add(moment.since_start())
            .unwrap_or_else(tokio::time::Instant::now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_moment_is_no_negative_age() {
        let now = Moment::from_millis(5);
        let later = now + Duration::from_millis(3);
        assert_eq!(later.since(now), Duration::from_millis(3));
        assert_eq!(now.since(later), Duration::ZERO);
    }

    #[test]
    fn the_far_future_saturates() {
        let far = Moment::START + Duration::MAX;
        assert_eq!(far.plus(Duration::MAX), far);
    }

    #[cfg(feature = "clock")]
    #[tokio::test(start_paused = true)]
    async fn the_clock_follows_paused_time() {
        let clock = Clock::start();
        tokio::time::advance(Duration::from_secs(7)).await;
        assert_eq!(clock.now(), Moment::from_millis(7_000));
        assert_eq!(clock.instant(clock.now()), tokio::time::Instant::now());
    }
}
