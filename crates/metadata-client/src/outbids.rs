//! Whether another program reports under the same name.

use std::{collections::VecDeque, time::Duration};

use moment::Moment;

/// So many outbids within [`WINDOW`] are no restart and no clock that went back.
const OUTBIDS: usize = 3;
const WINDOW: Duration = Duration::from_mins(1);

/// Counts how often the service knew a higher epoch than ours. Two programs under one name take turns in that; after a
/// restart, or when the clock went back, it happens once.
#[derive(Debug)]
pub(crate) struct Outbids {
    /// Ours, as far as it rose. The service names a higher one to each shard, and it counts once.
    epoch: u64,
    at: VecDeque<Moment>,
}

// === impl Outbids ===

impl Outbids {
    pub(crate) fn new(epoch: u64) -> Self {
        Self {
            epoch,
            at: VecDeque::new(),
        }
    }

    /// The service is at `current`, so that ours becomes the one above it. True: another has the same name.
    pub(crate) fn record(&mut self, current: u64, now: Moment) -> bool {
        if current < self.epoch {
            return false;
        }
        self.epoch = current.saturating_add(1);
        self.at.retain(|at| now.since(*at) < WINDOW);
        self.at.push_back(now);
        let is_shared = self.at.len() >= OUTBIDS;
        if is_shared {
            self.at.clear();
        }
        is_shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(second: u64) -> Moment {
        Moment::from_millis(second * 1000)
    }

    #[test]
    fn the_third_outbid_in_a_minute_shows_that_the_name_is_shared() {
        let mut outbids = Outbids::new(100);
        assert!(!outbids.record(200, at(0)));
        assert!(!outbids.record(202, at(1)));
        assert!(outbids.record(204, at(59)));
        assert!(!outbids.record(206, at(59)));
    }

    #[test]
    fn shards_that_hear_of_one_epoch_count_once() {
        let mut outbids = Outbids::new(100);
        for _ in 0..10 {
            assert!(!outbids.record(200, at(0)));
        }
    }

    #[test]
    fn outbids_of_longer_ago_do_not_count() {
        let mut outbids = Outbids::new(100);
        for minute in 0..9 {
            assert!(!outbids.record(200 + minute * 2, at(minute * 31)));
        }
    }
}
