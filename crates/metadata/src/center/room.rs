//! A bound that many share.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts what there is of something that is bounded.
#[derive(Debug)]
pub(super) struct Room {
    taken: AtomicUsize,
    limit: usize,
}

// === impl Room ===

impl Room {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            taken: AtomicUsize::new(0),
            limit,
        }
    }

    /// Room for so many more, or none at all.
    pub(super) fn try_take(&self, count: usize) -> bool {
        let more = |taken: usize| taken.checked_add(count).filter(|it| *it <= self.limit);
        self.taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .is_ok()
    }

    /// So many that were taken are gone.
    pub(super) fn give(&self, count: usize) {
        self.taken.fetch_sub(count, Ordering::Relaxed);
    }

    /// Of `taken`, `used` were needed in the end, which may be more.
    pub(super) fn settle(&self, taken: usize, used: usize) {
        if used > taken {
            self.taken.fetch_add(used - taken, Ordering::Relaxed);
        } else {
            self.give(taken - used);
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.taken() >= self.limit
    }

    pub(super) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }
}
