//! Memory that request bodies may take together.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;

/// A number of bytes shared by all streams. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Counter>);

#[derive(Debug)]
struct Counter {
    limit: u64,
    used: AtomicU64,
}

/// Bytes taken from a [`Budget`], given back when dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: Budget,
    bytes: u64,
}

/// A body while it is collected.
#[derive(Debug)]
pub(crate) enum HeldBody {
    /// One chunk, as it came.
    Whole(Bytes),
    /// Several, one after the other.
    Joined(Vec<u8>),
}

/// A collected body with its reservation: the bytes count until the last slice of it is gone.
pub(crate) struct Reserved {
    pub(crate) body: HeldBody,
    pub(crate) _reservation: Reservation,
}

// === impl Budget ===

impl Budget {
    /// A budget of `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Self(Arc::new(Counter {
            limit,
            used: AtomicU64::new(0),
        }))
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.0.used.load(Ordering::Relaxed)
    }

    pub(crate) fn reserve_none(&self) -> Reservation {
        Reservation {
            budget: self.clone(),
            bytes: 0,
        }
    }
}

// === impl Reservation ===

impl Reservation {
    /// Nothing of the same budget.
    pub(crate) fn none(&self) -> Self {
        self.budget.reserve_none()
    }

    /// Whether it holds no byte.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Takes `more` bytes; false, and nothing taken, when the limit would be passed.
    pub(crate) fn grow(&mut self, more: usize) -> bool {
        let more = u64::try_from(more).unwrap_or(u64::MAX);
        let Counter { limit, used } = &*self.budget.0;
        let take = |now: u64| now.checked_add(more).filter(|total| total <= limit);
        let taken = used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .is_ok();
        if taken {
            self.bytes += more;
        }
        taken
    }

    /// Takes `more` bytes, also beyond the limit: they are there in any case, and others get less.
    pub(crate) fn add(&mut self, more: usize) {
        let more = u64::try_from(more).unwrap_or(u64::MAX);
        self.budget.0.used.fetch_add(more, Ordering::Relaxed);
        self.bytes += more;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.0.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

// === impl Reserved ===

impl AsRef<[u8]> for Reserved {
    fn as_ref(&self) -> &[u8] {
        self.body.as_ref()
    }
}

// === impl HeldBody ===

impl HeldBody {
    pub(crate) fn len(&self) -> usize {
        self.as_ref().len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that it takes.
    pub(crate) fn capacity(&self) -> usize {
        match self {
            Self::Whole(bytes) => bytes.len(),
            Self::Joined(bytes) => bytes.capacity(),
        }
    }

    /// Makes room for `total` bytes, also for those that are there.
    pub(crate) fn reserve_exact(&mut self, total: usize) {
        match self {
            Self::Whole(bytes) => {
                let mut joined = Vec::with_capacity(total.max(bytes.len()));
                joined.extend_from_slice(bytes);
                *self = Self::Joined(joined);
            }
            Self::Joined(joined) => joined.reserve_exact(total.saturating_sub(joined.len())),
        }
    }

    /// Adds bytes, for which there is room.
    pub(crate) fn extend_from_slice(&mut self, more: &[u8]) {
        if matches!(self, Self::Whole(_)) {
            self.reserve_exact(self.len() + more.len());
        }
        if let Self::Joined(joined) = self {
            joined.extend_from_slice(more);
        }
    }
}

impl Default for HeldBody {
    fn default() -> Self {
        Self::Whole(Bytes::new())
    }
}

impl AsRef<[u8]> for HeldBody {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Whole(bytes) => bytes,
            Self::Joined(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_for_all_together_and_given_back() {
        let budget = Budget::new(10);
        let (mut one, mut two) = (budget.reserve_none(), budget.reserve_none());
        assert!(one.grow(6));
        assert!(!two.grow(5));
        assert!(two.grow(4));
        drop(one);
        assert_eq!(budget.used(), 4);
        assert!(two.grow(6));
        assert!(!two.grow(usize::MAX));
        drop(two);
        assert_eq!(budget.used(), 0);
    }
}
