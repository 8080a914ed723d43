//! How many changes wait.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Changes that wait in all shards, up to a bound.
#[derive(Debug)]
pub(super) struct Waiting {
    count: AtomicUsize,
    max: usize,
    overflows: AtomicU64,
}

// === impl Waiting ===

impl Waiting {
    pub(super) fn new(max: usize) -> Self {
        Self {
            count: AtomicUsize::new(0),
            max,
            overflows: AtomicU64::new(0),
        }
    }

    /// One more waits, unless there are too many.
    pub(super) fn try_add(&self) -> bool {
        let more = |count: usize| Some(count + 1).filter(|it| *it <= self.max);
        let added = self
            .count
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        if added.is_err() {
            self.overflows.fetch_add(1, Ordering::Relaxed);
        }
        added.is_ok()
    }

    /// One more waits, whatever the bound.
    pub(super) fn add(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn remove(&self, count: usize) {
        self.count.fetch_sub(count, Ordering::Relaxed);
    }

    pub(super) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    pub(super) fn overflows(&self) -> u64 {
        self.overflows.load(Ordering::Relaxed)
    }
}
