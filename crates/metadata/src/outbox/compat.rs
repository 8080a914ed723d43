//! What is to be reported to a service that takes single writes: no batches, no leases.

mod shard;

use parking_lot::Mutex;

use self::shard::Shard;
use super::{shard_of, waiting::Waiting};
use crate::{
    name::{Address, Cluster, RequestId},
    wire::{
        batch::MAX_SHARDS,
        load::{Add, Drop, PromptLength},
    },
};

/// As an [`Outbox`](super::Outbox), with single writes: one is under way in each shard at most.
///
/// Where too many changes wait, charges that were not added yet are not added; writes that take load off are kept.
///
/// # View
/// What the service says of an endpoint has the charges of this instance in it that it has acknowledged. So the load to
/// choose by is [`Sum::seen`] of its reply, of [`acknowledged`](Self::acknowledged) when the query left, and of
/// [`charged`](Self::charged) when the reply is used.
///
/// # Memory
/// Charges that live, and those that ended until the service knows.
#[derive(Debug)]
pub struct CompatOutbox {
    cluster: Cluster,
    shards: Box<[Mutex<Shard>]>,
    waiting: Waiting,
}

/// One write. Each may be repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// `POST /v1/load/stats`.
    Add(Add),
    /// `DELETE /v1/load/prompt`.
    PromptDone(Drop),
    /// `DELETE /v1/load/stats`.
    Delete(Drop),
}

/// Unfinished requests and their unfinished prefill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Requests.
    pub requests: i64,
    /// Prefill.
    pub prefill: i64,
}

// === impl CompatOutbox ===

impl CompatOutbox {
    /// Nothing to report yet. `shards`: workers, 1 to 64; `max_waiting`: changes that wait, of all shards.
    pub fn new(cluster: Cluster, shards: u32, max_waiting: usize) -> Self {
        let shards = shards.clamp(1, MAX_SHARDS);
        Self {
            cluster,
            shards: (0..shards).map(|_| Mutex::new(Shard::new())).collect(),
            waiting: Waiting::new(max_waiting),
        }
    }

    /// How many shards there are.
    pub fn shards(&self) -> u32 {
        u32::try_from(self.shards.len()).unwrap_or(MAX_SHARDS)
    }

    /// The request is charged to this endpoint from now on. Answers with the shard whose worker is to look.
    pub fn put(&self, id: RequestId, ip: Address, prompt: PromptLength) -> u32 {
        let (at, mut shard) = self.shard_of(&id);
        shard.put(id, (ip, prompt), &self.waiting);
        at
    }

    /// The request's prefill is done; nothing changes if it is unknown.
    pub fn prompt_done(&self, id: &RequestId) -> u32 {
        let (at, mut shard) = self.shard_of(id);
        shard.prompt_done(id, &self.waiting);
        at
    }

    /// The request ended.
    pub fn delete(&self, id: &RequestId) -> u32 {
        let (at, mut shard) = self.shard_of(id);
        shard.delete(id, &self.waiting);
        at
    }

    /// The write to send: the one that was not settled yet, or a new one. None: there is nothing to send.
    pub fn take(&self, shard: u32) -> Option<Write> {
        let mut shard = self.shards.get(shard as usize)?.lock();
        shard.take(&self.cluster, &self.waiting)
    }

    /// The service answered to the write that is under way. What it refused is not sent again.
    pub fn settle(&self, shard: u32, accepted: bool) {
        if let Some(shard) = self.shards.get(shard as usize) {
            shard.lock().settle(accepted, &self.waiting);
        }
    }

    /// What live requests add to each of these endpoints.
    pub fn charged(&self, ips: &[Address]) -> Vec<Sum> {
        self.sums(ips, Shard::charged)
    }

    /// What the service has acknowledged of each of these endpoints.
    pub fn acknowledged(&self, ips: &[Address]) -> Vec<Sum> {
        self.sums(ips, Shard::acknowledged)
    }

    /// Changes that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// How often a charge was not added, since the start.
    pub fn overflows(&self) -> u64 {
        self.waiting.overflows()
    }

    fn sums(&self, ips: &[Address], sum: impl Fn(&Shard, &Address) -> Sum) -> Vec<Sum> {
        let mut sums = vec![Sum::default(); ips.len()];
        for shard in &self.shards {
            let shard = shard.lock();
            for (ip, of) in ips.iter().zip(&mut sums) {
                let more = sum(&shard, ip);
                of.requests += more.requests;
                of.prefill += more.prefill;
            }
        }
        sums
    }

    fn shard_of(&self, id: &RequestId) -> (u32, parking_lot::MutexGuard<'_, Shard>) {
        let at = shard_of(id, self.shards.len());
        (at, self.shards[at as usize].lock())
    }
}

// === impl Sum ===

impl Sum {
    /// What an endpoint has to do where the service says `remote`: the charges of other instances, and ours as they are
    /// now.
    #[must_use]
    pub fn seen(remote: Self, acknowledged: Self, charged: Self) -> Self {
        let seen = |remote: i64, acknowledged: i64, charged: i64| {
            let others = remote.saturating_sub(acknowledged);
            others.saturating_add(charged).max(0)
        };
        Self {
            requests: seen(remote.requests, acknowledged.requests, charged.requests),
            prefill: seen(remote.prefill, acknowledged.prefill, charged.prefill),
        }
    }
}

#[cfg(test)]
mod tests;
