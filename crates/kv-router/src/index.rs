//! What each worker has in its KV cache, by the events of its engine.
//!
//! ```text
//!  events ──► WorkerBlocks (one owner each: engine's hash -> block) ──► Index (block -> workers) ◄── matches(chain)
//! ```

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use scheduling::{Slot, prefix::table::GROUP};
use smallvec::smallvec;

use self::forward::{Forward, Words};
use crate::hash::Seq;

mod forward;
mod worker;

#[cfg(test)]
mod tests;

pub use worker::{Applied, Refused, WorkerBlocks};

/// What a block of a worker costs at most at one tier, all tables included: 40 bytes of a slab that is up to an eighth
/// larger, 12 in its table, 16 of a table that is three fifths full at least: 84, and room for small tables.
pub const PAIR_BYTES: usize = 96;
/// Workers, a rank each; those that are gone and not swept yet are among them.
pub const MAX_SLOTS: u32 = 1 << 13;

/// Which workers have which blocks.
///
/// # Memory
/// Each worker keeps as many blocks as `max_bytes` has room for, divided by the workers: at [`PAIR_BYTES`] each; over
/// it a worker loses its oldest blocks. While a shard of 64 grows, its old copy comes on top.
///
/// # Threads
/// [`matches`](Self::matches) waits for no one. Two writers wait for each other where their blocks meet in a shard, for
/// as long as one block takes.
pub struct Index {
    forward: Forward,
    block_size: usize,
    max_pairs: usize,
    /// By slot: the generation that matches.
    generations: Box<[AtomicU32]>,
    slots: Mutex<Slots>,
    /// Workers that were added and not removed.
    workers: AtomicUsize,
    evicted: AtomicU64,
}

/// How many blocks from the beginning of a prompt a worker has without a gap, each at its fastest tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overlap {
    /// In the accelerator's memory.
    pub gpu: u32,
    /// In the host's memory.
    pub host: u32,
    /// Anywhere else.
    pub disk: u32,
}

/// Size of an [`Index`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Workers, a rank each.
    pub workers: usize,
    /// Blocks, once for each tier and for each 64 workers.
    pub records: usize,
    /// Heap bytes, those of workers' own tables apart.
    pub bytes: usize,
    /// Blocks that went since the start because of the memory bound.
    pub evicted: u64,
}

#[derive(Debug, Default)]
struct Slots {
    /// Given away so far.
    used: u32,
    /// Of them, those that are to be given away again.
    free: Vec<u32>,
    /// Of removed workers: until they are swept their slots are not given away.
    removed: VecDeque<WorkerBlocks>,
}

// === impl Overlap ===

impl Overlap {
    /// Of all tiers.
    pub fn blocks(self) -> u32 {
        self.gpu + self.host + self.disk
    }
}

// === impl Index ===

impl Index {
    /// An empty index for blocks of so many ids, with a bound of its memory.
    pub fn new(block_size: usize, max_bytes: usize) -> Self {
        Self {
            forward: Forward::new(),
            block_size: block_size.max(1),
            max_pairs: max_bytes / PAIR_BYTES,
            generations: (0..MAX_SLOTS).map(|_| AtomicU32::new(0)).collect(),
            slots: Mutex::default(),
            workers: AtomicUsize::new(0),
            evicted: AtomicU64::new(0),
        }
    }

    /// Ids of a block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// A new worker without blocks; none when all slots are taken. Whoever has it applies its events, and gives it back
    /// to [`remove`](Self::remove).
    pub fn add(&self) -> Option<WorkerBlocks> {
        let mut slots = self.slots.lock();
        let index = match slots.free.pop() {
            Some(index) => index,
            None if slots.used < MAX_SLOTS => {
                slots.used += 1;
                slots.used - 1
            }
            None => return None,
        };
        drop(slots);
        self.workers.fetch_add(1, Ordering::Relaxed);
        let generation = self.generation(index).load(Ordering::Acquire);
        Some(WorkerBlocks::new(Slot { index, generation }))
    }

    /// The worker is gone: nothing of it matches from now on. Its memory comes back with [`sweep`](Self::sweep).
    pub fn remove(&self, worker: WorkerBlocks) {
        let generation = self.generation(worker.slot().index);
        generation.fetch_add(1, Ordering::AcqRel);
        self.workers.fetch_sub(1, Ordering::Relaxed);
        self.slots.lock().removed.push_back(worker);
    }

    /// Forgets up to `max` blocks of removed workers; how many it forgot. Less than `max`: nothing is left.
    pub fn sweep(&self, max: usize) -> usize {
        let mut swept = 0;
        while swept < max {
            let Some(mut worker) = self.slots.lock().removed.pop_front() else {
                break;
            };
            let some = worker.forget_oldest(self, max - swept);
            swept += some;
            let mut slots = self.slots.lock();
            if worker.is_empty() {
                slots.free.push(worker.slot().index);
            } else {
                slots.removed.push_front(worker);
            }
        }
        swept
    }

    /// For each candidate what it has of the beginning of `chain`: `out[i]` is for `candidates[i]`. Removed workers have
    /// nothing.
    pub fn matches(&self, chain: &[Seq], candidates: &[Slot], out: &mut [Overlap]) {
        out.fill(Overlap::default());
        let mut live = Words::new();
        let is_live = |slot: &&Slot| self.is_live(**slot);
        for slot in candidates.iter().filter(is_live) {
            let at = slot.index as usize;
            if at / GROUP >= live.len() {
                live.resize(at / GROUP + 1, 0);
            }
            live[at / GROUP] |= 1 << (at % GROUP);
        }
        let mut leading: smallvec::SmallVec<[Overlap; 64]> =
            smallvec![Overlap::default(); live.len() * GROUP];
        self.forward
            .walk(chain, &mut live, |slot, overlap| leading[slot] = overlap);
        for (slot, out) in candidates.iter().zip(out) {
            if self.is_live(*slot)
                && let Some(overlap) = leading.get(slot.index as usize)
            {
                *out = *overlap;
            }
        }
    }

    /// Blocks that a worker may have, one at two tiers counted twice.
    pub fn share(&self) -> usize {
        self.max_pairs / self.workers.load(Ordering::Relaxed).max(1)
    }

    /// Counts what there is now; takes each shard's lock in turn.
    pub fn stats(&self) -> Stats {
        Stats {
            workers: self.workers.load(Ordering::Relaxed),
            records: self.forward.records(),
            bytes: self.forward.bytes() + size_of_val(&*self.generations),
            evicted: self.evicted.load(Ordering::Relaxed),
        }
    }

    fn is_live(&self, slot: Slot) -> bool {
        let generation = self.generations.get(slot.index as usize);
        generation.is_some_and(|it| it.load(Ordering::Acquire) == slot.generation)
    }

    fn generation(&self, index: u32) -> &AtomicU32 {
        &self.generations[index as usize]
    }
}
