//! Charges that no instance reports in batches: a call adds each, and calls end it.

use std::{
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use moment::Moment;
use parking_lot::Mutex;

use super::{
    Now,
    endpoints::Charge,
    freed::Cause,
    space::{Shared, Space},
    timed::Timed,
};
use crate::{
    fault::Fault,
    name::RequestId,
    wire::load::{Add, PromptLength},
};

const SHARDS: usize = 64;
/// For how long a delete waits for the add that it overtook.
const EARLY: Duration = Duration::from_secs(2);
/// Such deletes in one shard: 100,000 in all.
const MAX_EARLY: usize = 100_000 / SHARDS;

/// By request id, of all clusters: the deletes name no cluster.
#[derive(Debug)]
pub(super) struct Unowned {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
}

#[derive(Debug)]
struct Shard {
    entries: Timed<Entry>,
    early: usize,
}

#[derive(Debug)]
enum Entry {
    Charge(Arc<Space>, Charge),
    /// Deleted before it was added.
    Early {
        whole: bool,
    },
}

// === impl Unowned ===

impl Unowned {
    pub(super) fn new() -> Self {
        let shard = || Shard {
            entries: Timed::new(),
            early: 0,
        };
        Self {
            shards: (0..SHARDS).map(|_| Mutex::new(shard())).collect(),
            hasher: RandomState::new(),
        }
    }

    /// Adds a charge until `until`, unless it is known or was deleted before. `open` finds the cluster.
    pub(super) fn add(
        &self,
        add: Add,
        strict: bool,
        until: Moment,
        now: Now,
        open: impl FnOnce() -> Result<Arc<Space>, Fault>,
        shared: &Shared,
    ) -> Result<(), Fault> {
        let mut shard = self.shard(&add.request_id).lock();
        let mut prefill = prefill(add.prompt_length);
        shard.end_if_over(&add.request_id, now, shared);
        match shard.entries.get_mut(&add.request_id) {
            Some((_, Entry::Charge(space, charge))) => {
                let same = space.endpoints.read().address(charge.endpoint) == Some(add.ip);
                return if strict && !same {
                    Err(Fault::Duplicate(add.request_id.to_string()))
                } else {
                    Ok(())
                };
            }
            Some((_, Entry::Early { whole: true })) => return Ok(()),
            Some((_, Entry::Early { whole: false })) => prefill = 0,
            None => {}
        }
        let space = open()?;
        let charge = space.charge(&add.request_id, add.ip, prefill, shared, now)?;
        shard.forget_early(&add.request_id);
        let entry = Entry::Charge(space, charge);
        shard.entries.insert(add.request_id, until, entry);
        Ok(())
    }

    /// The first token came, or with `whole` the end. An unknown request is remembered, also where `strict` says so.
    pub(super) fn delete(
        &self,
        id: &RequestId,
        whole: bool,
        strict: bool,
        now: Now,
        shared: &Shared,
    ) -> Result<(), Fault> {
        let mut shard = self.shard(id).lock();
        shard.end_if_over(id, now, shared);
        if let Some((_, Entry::Charge(space, charge))) = shard.entries.get_mut(id) {
            if whole {
                shard.end(id, now, shared);
            } else if charge.prefill > 0 {
                let prefill = -charge.prefill();
                charge.prefill = 0;
                space
                    .endpoints
                    .read()
                    .change(charge.endpoint, 0, prefill, now);
            }
            return Ok(());
        }
        shard.remember(id, whole, now.at + EARLY);
        if strict {
            return Err(Fault::UnknownRequest(id.to_string()));
        }
        Ok(())
    }

    /// Ends what is over.
    pub(super) fn sweep(&self, now: Now, shared: &Shared) {
        for shard in &self.shards {
            let mut from = Some(0);
            while let Some(at) = from {
                let mut shard = shard.lock();
                let Shard { entries, early } = &mut *shard;
                from = entries.sweep(at, now.at, |entry| entry.expire(early, now, shared));
            }
        }
    }

    fn shard(&self, id: &RequestId) -> &Mutex<Shard> {
        let shard = self.hasher.hash_one(id) % SHARDS as u64;
        &self.shards[usize::try_from(shard).unwrap_or(0)]
    }
}

/// As a [`Charge`] has it.
pub(super) fn prefill(length: PromptLength) -> u32 {
    u32::try_from(i64::from(length)).unwrap_or(u32::MAX)
}

// === impl Shard ===

impl Shard {
    fn end(&mut self, id: &RequestId, now: Now, shared: &Shared) {
        if let Some(entry) = self.entries.remove(id) {
            entry.end(&mut self.early, now, shared);
        }
    }

    fn end_if_over(&mut self, id: &RequestId, now: Now, shared: &Shared) {
        if matches!(self.entries.get_mut(id), Some((until, _)) if *until <= now.at)
            && let Some(entry) = self.entries.remove(id)
        {
            entry.expire(&mut self.early, now, shared);
        }
    }

    /// A delete of an unknown request.
    fn remember(&mut self, id: &RequestId, whole: bool, until: Moment) {
        if let Some((was_until, Entry::Early { whole: was })) = self.entries.get_mut(id) {
            *was_until = until;
            *was |= whole;
        } else if self.early < MAX_EARLY {
            self.early += 1;
            self.entries
                .insert(id.clone(), until, Entry::Early { whole });
        }
    }

    fn forget_early(&mut self, id: &RequestId) {
        if self.entries.remove(id).is_some() {
            self.early -= 1;
        }
    }
}

// === impl Entry ===

impl Entry {
    /// As [`end`](Self::end), by itself.
    fn expire(self, early: &mut usize, now: Now, shared: &Shared) {
        let expired = usize::from(matches!(self, Self::Charge(..)));
        shared.freed.add(Cause::Expired, expired);
        self.end(early, now, shared);
    }

    fn end(self, early: &mut usize, now: Now, shared: &Shared) {
        match self {
            Self::Charge(space, charge) => {
                space.endpoints.read().subtract(charge, now);
                shared.requests.give(1);
            }
            Self::Early { .. } => *early -= 1,
        }
    }
}
