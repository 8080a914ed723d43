//! Limits on the writes in flight and the write rate of one member. Pure.

use std::time::Duration;

use moment::Moment;

/// The limit on writes in flight: grows with successes, is halved by an overloaded server.
#[derive(Debug)]
pub(super) struct InFlightLimit {
    limit: usize,
    /// Successes since the limit last moved.
    successes: usize,
    /// Writes that started before it do not halve the limit again: they met the same overload.
    halved_at: Moment,
}

/// The write rate, with a burst after a time without writes.
#[derive(Debug, Default)]
pub(super) struct Rate {
    /// The end of the last write's interval, at one interval for each write.
    paid_until: Moment,
}

/// Highest limit, and the first.
pub(super) const MAX_IN_FLIGHT: usize = 32;
/// 100 writes a second.
const INTERVAL: Duration = Duration::from_millis(10);
/// The burst: 500 writes.
const CREDIT: Duration = Duration::from_secs(5);

// === impl InFlightLimit ===

impl Default for InFlightLimit {
    fn default() -> Self {
        Self {
            limit: MAX_IN_FLIGHT,
            successes: 0,
            halved_at: Moment::START,
        }
    }
}

impl InFlightLimit {
    pub(super) fn get(&self) -> usize {
        self.limit
    }

    /// Raises the limit by one for each full round of successes.
    pub(super) fn succeeded(&mut self) {
        self.successes += 1;
        if self.successes >= self.limit {
            self.successes = 0;
            self.limit = (self.limit + 1).min(MAX_IN_FLIGHT);
        }
    }

    /// A write that started at `began` was throttled or not answered in time.
    pub(super) fn overloaded(&mut self, began: Moment, now: Moment) {
        self.successes = 0;
        if began >= self.halved_at {
            self.limit = (self.limit / 2).max(1);
            self.halved_at = now;
        }
    }
}

// === impl Rate ===

impl Rate {
    /// When the next write may be sent; in the past if now.
    pub(super) fn next(&self) -> Moment {
        let owed = CREDIT.saturating_sub(INTERVAL);
        Moment::after_start(self.paid_until.since(Moment::after_start(owed)))
    }

    pub(super) fn take(&mut self, now: Moment) {
        self.paid_until = self.paid_until.max(now) + INTERVAL;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn at(millis: u64) -> Moment {
        Moment::from_millis(millis)
    }

    #[test]
    fn the_limit_is_halved_once_per_round_down_to_one() {
        let mut limit = InFlightLimit::default();
        // 32 that began together are not answered in time
        for _ in 0..32 {
            limit.overloaded(at(0), at(5_000));
        }
        assert_eq!(limit.get(), 16);
        let limits: Vec<usize> = (1..=6)
            .map(|round| {
                limit.overloaded(at(round * 5_000), at((round + 1) * 5_000));
                limit.get()
            })
            .collect();
        assert_eq!(limits, [8, 4, 2, 1, 1, 1]);
    }

    #[test]
    fn the_limit_grows_by_one_per_full_round() {
        let mut limit = InFlightLimit::default();
        for round in 0..5 {
            limit.overloaded(at(round), at(round + 1));
        }
        assert_eq!(limit.get(), 1);
        let mut limits = Vec::new();
        for _ in 0..6 {
            limit.succeeded();
            limits.push(limit.get());
        }
        // 1 success, then 2, then 3
        assert_eq!(limits, [2, 2, 3, 3, 3, 4]);
        for _ in 0..10_000 {
            limit.succeeded();
        }
        assert_eq!(limit.get(), MAX_IN_FLIGHT);
    }

    #[test]
    fn a_failure_ends_the_round() {
        let mut limit = InFlightLimit::default();
        limit.overloaded(at(0), at(1));
        for _ in 0..15 {
            limit.succeeded();
        }
        limit.overloaded(at(0), at(2));
        limit.succeeded();
        assert_eq!(
            limit.get(),
            16,
            "an old write halves nothing, but breaks the round"
        );
    }

    proptest! {
        /// In any window, no more than the burst and 100 a second.
        #[test]
        fn the_rate_is_kept(gaps in proptest::collection::vec(0_u64..200, 1..2_000)) {
            let mut rate = Rate::default();
            let mut now = 0;
            let mut taken: Vec<u64> = Vec::new();
            for gap in gaps {
                now += gap;
                for _ in 0..40 {
                    if rate.next() <= at(now) {
                        rate.take(at(now));
                        taken.push(now);
                    }
                }
            }
            for (first, from) in taken.iter().enumerate() {
                for (last, to) in taken.iter().enumerate().skip(first) {
                    let allowed = 500 + (to - from) / 10;
                    prop_assert!((last - first) as u64 <= allowed, "{} in {} ms", last - first + 1, to - from);
                }
                if first > 20 {
                    break;
                }
            }
        }
    }

    #[test]
    fn after_the_burst_one_goes_each_10_ms() {
        let mut rate = Rate::default();
        for _ in 0..500 {
            assert!(rate.next() <= at(0));
            rate.take(at(0));
        }
        assert_eq!(rate.next(), at(10));
        rate.take(at(10));
        assert_eq!(rate.next(), at(20));
        // rested
        assert!(rate.next() <= at(60_000));
    }
}
