//! What an endpoint picker is to report, and what it has reported.
//!
//! Level-triggered: a batch says how charges are when it is made, not what happened to them since the last. So changes
//! that were not sent yet fall together, and what was lost is found again by a full batch.

mod compat;
mod refusal;
mod shard;
mod waiting;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use moment::Moment;
use parking_lot::Mutex;
use xxhash_rust::xxh64::xxh64;

pub use self::{
    compat::{CompatOutbox, Sum, Write},
    refusal::Refusal,
};
use self::{shard::Shard, waiting::Waiting};
use crate::{
    name::{Address, Cluster, Instance, RequestId},
    wire::{
        batch::{Applied, Batch, MAX_SHARDS},
        load::PromptLength,
    },
};

/// Changes in one batch at most, unless charges of a full one are still to follow.
pub const MAX_CHANGES: usize = 256;
/// Puts in one batch at most. 467 KB, of the 4 MiB that the service reads: a put with the longest id and address has 228
/// bytes. So few that a service whose store takes a millisecond for some hundred answers in time.
pub const MAX_PUTS: usize = 2048;

/// The charges of one instance in one cluster, in shards each of which has one batch under way at most.
///
/// The worker of a shard sends what [`take`](Self::take) gives and hands the reply to [`settle`](Self::settle). Where
/// there is no reply it takes again, which gives the same batch. A request only changes what is to be sent, under the
/// lock of its shard, and never waits for a batch.
///
/// # Parts
/// A full batch has up to [`MAX_PUTS`] charges. Those of the shard beyond them follow in ordinary batches of as many,
/// and the totals of each batch are those of what was sent until then: to the service they are requests that began
/// since.
///
/// # Refusals
/// The batch after a refused one is full. It goes out at once if that is what the refusal asks for, the first time in a
/// row, and else after 50 ms to 2 s: [`take`](Self::take) gives none until then.
///
/// # Memory
/// Charges that live, and changes up to a bound: beyond it the next batch of the shard is full, which needs none.
#[derive(Debug)]
pub struct Outbox {
    cluster: Cluster,
    instance: Instance,
    lease: Duration,
    shards: Box<[Mutex<Shard>]>,
    shared: Shared,
}

/// What the shards share.
#[derive(Debug)]
struct Shared {
    waiting: Waiting,
    epoch: AtomicU64,
}

/// How an [`Outbox`] reports.
#[derive(Clone, Copy, Debug)]
pub struct Reporting {
    /// Workers: 1 to 64.
    pub shards: u32,
    /// Changes that wait, of all shards.
    pub max_waiting: usize,
    /// How long charges stay when nothing more is reported, in milliseconds.
    pub lease_ms: u32,
}

/// What became of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The service answered.
    Applied(Applied),
    /// It refused.
    Refused(Refusal),
}

// === impl Outbox ===

impl Outbox {
    /// Nothing to report yet. `epoch` is the start of the program in milliseconds since 1970.
    pub fn new(cluster: Cluster, instance: Instance, epoch: u64, reporting: Reporting) -> Self {
        let shards = reporting.shards.clamp(1, MAX_SHARDS);
        Self {
            cluster,
            instance,
            lease: Duration::from_millis(reporting.lease_ms.into()),
            shards: (0..shards).map(|_| Mutex::new(Shard::new())).collect(),
            shared: Shared {
                waiting: Waiting::new(reporting.max_waiting),
                epoch: AtomicU64::new(epoch),
            },
        }
    }

    /// How many shards there are.
    pub fn shards(&self) -> u32 {
        u32::try_from(self.shards.len()).unwrap_or(MAX_SHARDS)
    }

    /// The request is charged to this endpoint from now on. `reserved`: the service has a reservation for it, so its end
    /// is reported even if its charge never was. Answers with the shard whose worker is to look.
    pub fn put(&self, id: RequestId, ip: Address, prompt: PromptLength, reserved: bool) -> u32 {
        let at = self.shard_of(&id);
        self.shard(at).put(id, (ip, prompt), reserved, &self.shared);
        at
    }

    /// The request's prefill is done; nothing changes if it is unknown.
    pub fn prompt_done(&self, id: &RequestId) -> u32 {
        let at = self.shard_of(id);
        self.shard(at).prompt_done(id, &self.shared);
        at
    }

    /// The request ended. Of a `reserved` one that was never put the reservation ends.
    pub fn delete(&self, id: &RequestId, reserved: bool) -> u32 {
        let at = self.shard_of(id);
        self.shard(at).delete(id, reserved, &self.shared);
        at
    }

    /// The batch to send: the one that was not settled yet, or a new one of what changed, or when a third of the lease
    /// is over an empty one. None: there is nothing to send until [`due`](Self::due).
    pub fn take(&self, shard: u32, now: Moment) -> Option<Arc<Batch>> {
        let mut it = self.shards.get(shard as usize)?.lock();
        if let Some(batch) = it.under_way() {
            return Some(batch);
        }
        let next = it.next(&self.shared, now)?;
        let lease_ms = u32::try_from(self.lease.as_millis()).unwrap_or(u32::MAX);
        Some(it.start(Batch {
            cluster: self.cluster.clone(),
            instance: self.instance.clone(),
            epoch: next.epoch,
            shard,
            seq: next.seq,
            full: next.full,
            lease_ms,
            puts: next.puts,
            deletes: next.deletes,
            live: next.live,
            prompt_sum: next.prompt_sum,
        }))
    }

    /// The service answered to the batch that is under way.
    pub fn settle(&self, shard: u32, reply: &Reply, now: Moment) {
        let Some(it) = self.shards.get(shard as usize) else {
            return;
        };
        it.lock().settle(reply, self.lease, now, &self.shared);
    }

    /// When [`take`](Self::take) may give a batch: [`Moment::START`] is at once. A change brings it forward.
    pub fn due(&self, shard: u32) -> Moment {
        let shard = self.shards.get(shard as usize);
        shard.map_or(Moment::START, |it| it.lock().due(&self.shared))
    }

    /// The service lost its state: the next batches are full.
    pub fn reset(&self) {
        self.shards.iter().for_each(|it| it.lock().need_full());
    }

    /// Changes that wait.
    pub fn waiting(&self) -> usize {
        self.shared.waiting.len()
    }

    /// How often changes were too many, since the start.
    pub fn overflows(&self) -> u64 {
        self.shared.waiting.overflows()
    }

    /// The epoch of the next batches: it rises where another program reports under the name of this instance.
    pub fn epoch(&self) -> u64 {
        self.shared.epoch.load(Ordering::Relaxed)
    }

    fn shard_of(&self, id: &RequestId) -> u32 {
        shard_of(id, self.shards.len())
    }

    fn shard(&self, at: u32) -> parking_lot::MutexGuard<'_, Shard> {
        self.shards[at as usize].lock()
    }
}

/// The same for each program that reports, which makes it easy to follow a request.
fn shard_of(id: &RequestId, shards: usize) -> u32 {
    let hash = xxh64(id.as_str().as_bytes(), 0);
    u32::try_from(hash % shards as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests;
