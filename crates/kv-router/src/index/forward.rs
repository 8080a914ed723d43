//! Block -> workers that have it.

use std::{
    hash::{BuildHasher, RandomState},
    hint::black_box,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use scheduling::prefix::table::{GROUP, Key, Table};
use smallvec::{SmallVec, smallvec};

use super::Overlap;
use crate::{event::Tier, hash::Seq};

/// 64 shards, as many as suit some 64 threads.
const SHARDS: usize = 64;
/// Some more loads than a processor core has under way at once.
const MAX_AHEAD: usize = 32;
/// The same block at another tier has a record of its own, elsewhere.
const AT_TIER: [u64; 3] = [0, 0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f];

/// One bit for each slot; on the stack up to 256 slots.
pub(super) type Words = SmallVec<[u64; 4]>;
/// Blocks for each slot.
type Counts = SmallVec<[u32; 64]>;

/// Which slots have a block, at which tier. Writers lock the shard of a block, readers lock nothing.
///
/// A record is 16 bytes and stands for one block at one tier for each 64 slots; tables are from a quarter to three
/// quarters full, but grow by a quarter only.
pub(super) struct Forward {
    shards: Box<[Line<Mutex<Shard>>]>,
    /// What readers see of each shard.
    tables: ArcSwap<Box<[Arc<Table>]>>,
    /// How often a block is at each tier: readers do not look where nothing is.
    at_tier: [AtomicUsize; 3],
}

/// Two cache lines (processors fetch pairs), so that writers of neighbors do not disturb each other.
#[repr(align(128))]
struct Line<T>(T);

struct Shard {
    table: Arc<Table>,
    records: usize,
}

// === impl Forward ===

impl Forward {
    pub(super) fn new() -> Self {
        // Chance has no effect on answers, only on where a record lies.
        let chance = RandomState::new();
        let key = Key(chance.hash_one(0), chance.hash_one(1));
        let tables: Box<[_]> = (0..SHARDS).map(|_| Arc::new(Table::new(0, key))).collect();
        let shard = |table: &Arc<Table>| {
            Line(Mutex::new(Shard {
                table: Arc::clone(table),
                records: 0,
            }))
        };
        Self {
            shards: tables.iter().map(shard).collect(),
            tables: ArcSwap::from_pointee(tables),
            at_tier: Default::default(),
        }
    }

    /// The slot has the block from now on; it had not.
    pub(super) fn set(&self, block: Seq, tier: Tier, slot: u32) {
        self.at_tier[tier.index()].fetch_add(1, Ordering::Relaxed);
        let hash = at_tier(block, tier);
        let place = shard_of(hash);
        let mut shard = self.shards[place].0.lock();
        if !shard.table.has_room_for(shard.records + 1) {
            let room = shard.table.room();
            self.resize(place, &mut shard, room + room / 4);
        }
        shard.records += usize::from(shard.table.set(hash, slot as usize));
    }

    /// The slot has the block no more.
    pub(super) fn clear(&self, block: Seq, tier: Tier, slot: u32) {
        self.at_tier[tier.index()].fetch_sub(1, Ordering::Relaxed);
        let hash = at_tier(block, tier);
        let place = shard_of(hash);
        let mut shard = self.shards[place].0.lock();
        shard.records -= usize::from(shard.table.clear(hash, slot as usize));
        if shard.records < shard.table.room() / 4 && shard.records > 16 {
            let room = Table::room_for(shard.records + shard.records / 8 + 1);
            self.resize(place, &mut shard, room);
        }
    }

    /// Calls `leading(slot, overlap)` for each slot in `live`, when it lacks a block or the chain ends.
    pub(super) fn walk(
        &self,
        chain: &[Seq],
        live: &mut Words,
        mut leading: impl FnMut(usize, Overlap),
    ) {
        let tables = self.tables.load();
        let tiers = [Tier::Host, Tier::Disk].map(|tier| (tier, self.has(tier)));
        let lower = tiers.iter().any(|(_, any)| *any);
        let slots = if lower { live.len() * GROUP } else { 0 };
        let mut below: [Counts; 2] = [smallvec![0; slots], smallvec![0; slots]];
        let mut found: Words = smallvec![0; live.len()];
        let mut missing: Words = smallvec![0; live.len()];
        let mut blocks = 0;
        let mut rest = chain;
        // Most prompts are unknown from the first block on: not more work ahead than was done.
        let mut ahead = 1;
        while !rest.is_empty() && live.iter().any(|word| *word != 0) {
            let (now, later) = rest.split_at(rest.len().min(ahead));
            rest = later;
            ahead = (2 * ahead).min(MAX_AHEAD);
            let warm = |block: &Seq| tables[shard_of(block.get())].warm(block.get());
            black_box(now.iter().map(warm).fold(0, |sum, it| sum ^ it));
            for block in now {
                self.read(&tables, block.get(), live, &mut found);
                let mut short = 0;
                for ((missing, live), found) in missing.iter_mut().zip(&*live).zip(&found) {
                    *missing = live & !found;
                    short |= *missing;
                }
                for ((tier, any), counts) in tiers.iter().zip(&mut below) {
                    if !any || short == 0 {
                        continue;
                    }
                    self.read(&tables, at_tier(*block, *tier), &missing, &mut found);
                    short = 0;
                    for (group, (missing, found)) in missing.iter_mut().zip(&found).enumerate() {
                        for_each_bit(*missing & found, |bit| counts[group * GROUP + bit] += 1);
                        *missing &= !found;
                        short |= *missing;
                    }
                }
                if short != 0 {
                    for (group, (live, missing)) in live.iter_mut().zip(&missing).enumerate() {
                        for_each_bit(*missing, |bit| {
                            let slot = group * GROUP + bit;
                            leading(slot, overlap(blocks, &below, slot));
                        });
                        *live &= !missing;
                    }
                    if live.iter().all(|word| *word == 0) {
                        return;
                    }
                }
                blocks += 1;
            }
        }
        for (group, live) in live.iter().enumerate() {
            for_each_bit(*live, |bit| {
                let slot = group * GROUP + bit;
                leading(slot, overlap(blocks, &below, slot));
            });
        }
    }

    /// Blocks, once for each tier and for each 64 slots.
    pub(super) fn records(&self) -> usize {
        self.shards.iter().map(|it| it.0.lock().records).sum()
    }

    /// Heap bytes, used or not.
    pub(super) fn bytes(&self) -> usize {
        let bytes = |Line(shard): &Line<Mutex<Shard>>| {
            shard.lock().table.room() * Table::RECORD_BYTES + size_of::<Table>()
        };
        self.shards.iter().map(bytes).sum::<usize>()
            + SHARDS * (size_of::<Line<Mutex<Shard>>>() + size_of::<Arc<Table>>())
    }

    fn has(&self, tier: Tier) -> bool {
        self.at_tier[tier.index()].load(Ordering::Relaxed) > 0
    }

    fn read(&self, tables: &[Arc<Table>], hash: u64, wanted: &[u64], found: &mut [u64]) {
        let place = shard_of(hash);
        if !tables[place].read(hash, wanted, found) {
            let _writers = self.shards[place].0.lock();
            tables[place].read_alone(hash, wanted, found);
        }
    }

    /// The shard goes on with a table of another size, and readers too.
    fn resize(&self, place: usize, shard: &mut Shard, room: usize) {
        shard.table = Arc::new(shard.table.resized(room));
        self.tables.rcu(|tables| {
            let mut tables = Box::clone(tables);
            tables[place] = Arc::clone(&shard.table);
            tables
        });
    }
}

/// The name of a block at a tier.
fn at_tier(block: Seq, tier: Tier) -> u64 {
    block.get() ^ AT_TIER[tier.index()]
}

fn shard_of(hash: u64) -> usize {
    // the highest 6 bits: below 64
    usize::try_from(hash >> (u64::BITS - SHARDS.trailing_zeros())).unwrap_or(0)
}

fn overlap(blocks: u32, [host, disk]: &[Counts; 2], slot: usize) -> Overlap {
    let at = |counts: &Counts| counts.get(slot).copied().unwrap_or(0);
    let (host, disk) = (at(host), at(disk));
    Overlap {
        gpu: blocks - host - disk,
        host,
        disk,
    }
}

fn for_each_bit(mut word: u64, mut f: impl FnMut(usize)) {
    while word != 0 {
        f(word.trailing_zeros() as usize);
        word &= word - 1;
    }
}
