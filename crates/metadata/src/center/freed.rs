//! What calls and sweeps freed, by cause.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::Swept;

/// Counts since they were last taken.
#[derive(Debug, Default)]
pub(super) struct Freed([AtomicUsize; 7]);

/// Why something was freed that its owner did not delete.
#[derive(Clone, Copy, Debug)]
pub(super) enum Cause {
    /// A lease ended by itself.
    Lease,
    /// A charge of such a lease.
    Silent,
    /// A charge of an epoch that a higher one replaced.
    Replaced,
    /// A charge of an instance that ended its lease.
    Released,
    /// A charge that a full batch left out.
    LeftOut,
    /// An owner-less charge past its time.
    Expired,
    /// A reservation past its time.
    Unconfirmed,
}

// === impl Freed ===

impl Freed {
    pub(super) fn add(&self, cause: Cause, count: usize) {
        if count > 0 {
            self.0[cause as usize].fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Moves the counts, which are 0 from then on.
    pub(super) fn take_into(&self, swept: &mut Swept) {
        let take = |cause: Cause| self.0[cause as usize].swap(0, Ordering::Relaxed);
        swept.leases += take(Cause::Lease);
        swept.charges += take(Cause::Silent);
        swept.replaced += take(Cause::Replaced);
        swept.released += take(Cause::Released);
        swept.left_out += take(Cause::LeftOut);
        swept.expired += take(Cause::Expired);
        swept.reservations += take(Cause::Unconfirmed);
    }
}
