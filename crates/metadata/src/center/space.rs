//! What there is of one cluster.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use hashbrown::HashMap;
use moment::Moment;
use parking_lot::{Mutex, RwLock};

use super::{
    Now,
    endpoints::{Charge, Endpoints, nanos},
    freed::{Cause, Freed},
    lease::Reporter,
    reservations::Reservations,
    room::Room,
    timed::STEP,
};
use crate::{
    fault::{Bound, Fault},
    name::{Address, Cluster, Instance, RequestId},
    wire::batch::Lease,
};

/// One cluster. Locks are taken in the order `picking` or a reporter's term, its owner, `endpoints`, `reservations`.
#[derive(Debug)]
pub(super) struct Space {
    pub(super) name: Cluster,
    /// Held over a whole pick, so that picks see each other.
    pub(super) picking: Mutex<()>,
    pub(super) endpoints: Endpoints,
    pub(super) reservations: Reservations,
    pub(super) reporters: RwLock<HashMap<Instance, Arc<Reporter>>>,
    /// Leases that were not ended.
    pub(super) live: AtomicUsize,
    /// Last use, in nanoseconds of the monotonic clock.
    used: AtomicU64,
}

/// What all clusters share.
#[derive(Debug)]
pub(super) struct Shared {
    /// Charges and reservations.
    pub(super) requests: Room,
    /// Live leases.
    pub(super) leases: Room,
    /// Records of instances, with a lease or without.
    pub(super) reporters: Room,
    /// Of one cluster.
    pub(super) max_endpoints: usize,
    pub(super) freed: Freed,
}

// === impl Space ===

impl Space {
    pub(super) fn new(name: Cluster, now: Now) -> Self {
        Self {
            name,
            picking: Mutex::new(()),
            endpoints: Endpoints::default(),
            reservations: Reservations::new(),
            reporters: RwLock::default(),
            live: AtomicUsize::new(0),
            used: AtomicU64::new(nanos(now.at)),
        }
    }

    /// The cluster is in use.
    pub(super) fn touch(&self, now: Moment) {
        /// Not written by each call: all processors share it.
        const OFTEN: Duration = Duration::from_secs(1);

        if self.unused(now) >= OFTEN {
            self.used.store(nanos(now), Ordering::Relaxed);
        }
    }

    pub(super) fn unused(&self, now: Moment) -> Duration {
        let used = Duration::from_nanos(self.used.load(Ordering::Relaxed));
        now.since(Moment::after_start(used))
    }

    /// No endpoint had load lately and no lease lives.
    pub(super) fn is_idle(&self) -> bool {
        self.live.load(Ordering::Relaxed) == 0 && self.endpoints.read().len() == 0
    }

    /// Gives back what it has of the bounds; for a cluster that goes.
    pub(super) fn close(&self, shared: &Shared) {
        let mut reporters = self.reporters.write();
        shared.reporters.give(reporters.len());
        reporters.clear();
    }

    /// Charges a request to an endpoint; a reservation of this id becomes this charge.
    pub(super) fn charge(
        &self,
        id: &RequestId,
        address: Address,
        prefill: u32,
        shared: &Shared,
        now: Now,
    ) -> Result<Charge, Fault> {
        let endpoints = self
            .endpoints
            .with([&address].into_iter(), shared.max_endpoints, now)?;
        let endpoint = endpoints.find(&address).ok_or(Fault::Internal)?;
        let charge = Charge { endpoint, prefill };
        if let Some(reserved) = self.reservations.take(id) {
            endpoints.replace(reserved, charge, now);
        } else if shared.requests.try_take(1) {
            endpoints.add(charge, now);
        } else {
            return Err(Fault::Limit(Bound::Requests));
        }
        Ok(charge)
    }

    /// Ends what is over, some at a time; says how many endpoints.
    pub(super) fn sweep(&self, keep: Duration, shared: &Shared, now: Now) -> usize {
        self.sweep_leases(keep, shared, now);
        let ended = self.reservations.sweep(now.at, |over| {
            self.subtract(over.into_iter(), shared, now);
        });
        shared.freed.add(Cause::Unconfirmed, ended);
        self.endpoints.sweep(keep, now.at)
    }

    /// Takes charges off their endpoints, some at a time; says how many.
    pub(super) fn subtract(
        &self,
        charges: impl Iterator<Item = Charge>,
        shared: &Shared,
        now: Now,
    ) -> usize {
        let mut charges = charges.peekable();
        let mut subtracted = 0;
        while charges.peek().is_some() {
            let endpoints = self.endpoints.read();
            let step = charges.by_ref().take(STEP);
            let step = step.map(|it| endpoints.subtract(it, now)).count();
            shared.requests.give(step);
            subtracted += step;
        }
        subtracted
    }

    /// Live leases by instance.
    pub(super) fn leases(&self, now: Moment) -> Vec<Lease> {
        let lease = |(instance, reporter): (&Instance, &Arc<Reporter>)| {
            let term = reporter.term.read();
            let (live, prompt_sum) = term.totals();
            let remaining = term.deadline().since(now).as_millis();
            term.is_live(now).then(|| Lease {
                instance: instance.clone(),
                epoch: term.epoch,
                live,
                prompt_sum,
                remaining_ms: u64::try_from(remaining).unwrap_or(u64::MAX),
            })
        };
        let reporters = self.reporters.read();
        let mut leases: Vec<_> = reporters.iter().filter_map(lease).collect();
        leases.sort_unstable_by(|a, b| a.instance.cmp(&b.instance));
        leases
    }
}
