//! How often an endpoint is scraped.

use std::time::Duration;

/// With that many failures in a row, of any kind, the endpoint is scraped only each [`SLOW`].
pub(super) const SLOW_AFTER: u32 = 10;

/// Bounds the work spent on endpoints that are gone, or that have no metrics.
pub(super) const SLOW: Duration = Duration::from_secs(1);

/// The pace of one endpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    usual: Duration,
    failures: u32,
}

// === impl Pace ===

impl Pace {
    pub(super) fn new(usual: Duration) -> Self {
        Self { usual, failures: 0 }
    }

    /// After a scrape: the interval from now on, if it is another one than before.
    pub(super) fn scraped(&mut self, succeeded: bool) -> Option<Duration> {
        let before = self.interval();
        self.failures = if succeeded {
            0
        } else {
            self.failures.saturating_add(1)
        };
        let interval = self.interval();
        (interval != before).then_some(interval)
    }

    fn interval(self) -> Duration {
        if self.failures < SLOW_AFTER {
            self.usual
        } else {
            self.usual.max(SLOW)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Duration = Duration::from_millis(50);

    const UNCHANGED: [Duration; 0] = [];

    fn fail(pace: &mut Pace, times: u32) -> Vec<Duration> {
        (0..times).filter_map(|_| pace.scraped(false)).collect()
    }

    #[test]
    fn ten_failures_in_a_row_slow_it_and_one_success_ends_that() {
        let mut pace = Pace::new(USUAL);
        assert_eq!(fail(&mut pace, SLOW_AFTER - 1), UNCHANGED);
        assert_eq!(pace.scraped(true), None);
        assert_eq!(fail(&mut pace, SLOW_AFTER - 1), UNCHANGED, "not in a row");
        assert_eq!(fail(&mut pace, 20), [SLOW]);
        assert_eq!(pace.scraped(true), Some(USUAL));
        assert_eq!(fail(&mut pace, SLOW_AFTER - 1), UNCHANGED);
    }

    #[test]
    fn it_never_scrapes_more_often_after_failures() {
        let mut pace = Pace::new(Duration::from_mins(1));
        assert_eq!(fail(&mut pace, 20), UNCHANGED);
    }
}
