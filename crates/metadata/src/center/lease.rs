//! Who reports in batches: instances, their epochs, and the owners of an epoch.

use std::{
    mem,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use moment::Moment;
use parking_lot::{Mutex, RwLock};

use super::{charges::Charges, endpoints::nanos};
use crate::{fault::Fault, wire::batch::Batch};

/// One instance in one cluster. Its record stays some time after its lease, so that a late batch finds what came after
/// it.
#[derive(Debug)]
pub(super) struct Reporter {
    pub(super) term: RwLock<Term>,
}

/// One epoch of an instance.
#[derive(Debug)]
pub(super) struct Term {
    pub(super) epoch: u64,
    /// Its lease was not ended.
    pub(super) live: bool,
    /// When the lease ends, in nanoseconds of the monotonic clock.
    deadline: AtomicU64,
    /// By shard.
    owners: Vec<(u32, Mutex<Owner>)>,
}

#[derive(Debug)]
pub(super) struct Owner {
    /// The last batch that was applied.
    pub(super) seq: Option<u64>,
    pub(super) charges: Charges,
    pub(super) prompt_sum: i64,
}

// === impl Reporter ===

impl Reporter {
    pub(super) fn new(epoch: u64) -> Self {
        Self {
            term: RwLock::new(Term::new(epoch)),
        }
    }
}

// === impl Term ===

impl Term {
    pub(super) fn new(epoch: u64) -> Self {
        Self {
            epoch,
            live: false,
            deadline: AtomicU64::new(0),
            owners: Vec::new(),
        }
    }

    pub(super) fn renew(&self, until: Moment) {
        self.deadline.store(nanos(until), Ordering::Relaxed);
    }

    pub(super) fn deadline(&self) -> Moment {
        let deadline = self.deadline.load(Ordering::Relaxed);
        Moment::after_start(Duration::from_nanos(deadline))
    }

    /// The lease lives.
    pub(super) fn is_live(&self, now: Moment) -> bool {
        self.live && self.deadline() > now
    }

    pub(super) fn owner(&self, shard: u32) -> Option<&Mutex<Owner>> {
        let found = self.owners.iter().find(|(it, _)| *it == shard);
        found.map(|(_, owner)| owner)
    }

    pub(super) fn add_owner(&mut self, shard: u32) {
        if self.owner(shard).is_none() {
            let owner = Owner {
                seq: None,
                charges: Charges::new(),
                prompt_sum: 0,
            };
            self.owners.push((shard, Mutex::new(owner)));
        }
    }

    /// Ends the lease: what is left is which batches came. The charges are to be subtracted.
    pub(super) fn end(&mut self) -> Vec<Charges> {
        self.live = false;
        let take = |(_, owner): &mut (u32, Mutex<Owner>)| {
            let owner = owner.get_mut();
            owner.prompt_sum = 0;
            mem::replace(&mut owner.charges, Charges::new())
        };
        self.owners.iter_mut().map(take).collect()
    }

    /// How many charges there are, and their unfinished prefill.
    pub(super) fn totals(&self) -> (u64, i64) {
        self.owners.iter().fold((0, 0), |(live, sum), (_, owner)| {
            let owner = owner.lock();
            (live + owner.charges.len() as u64, sum + owner.prompt_sum)
        })
    }
}

// === impl Owner ===

impl Owner {
    /// Refuses a batch that is not after the last one.
    pub(super) fn check(&self, batch: &Batch) -> Result<(), Fault> {
        match self.seq {
            Some(last) if batch.seq <= last => Err(Fault::StaleSeq {
                last,
                applied: batch.seq == last,
            }),
            _ => Ok(()),
        }
    }
}
