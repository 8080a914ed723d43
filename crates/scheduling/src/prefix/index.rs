//! The index: endpoints, shards, and the calls on them.

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    hint::black_box,
    ops::ControlFlow,
    sync::Arc,
};

use arc_swap::ArcSwap;
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use smallvec::{SmallVec, smallvec};

use super::{
    columns::{Bounds, Columns},
    shard::{NEVER, Shard, Walk},
    table::{GROUP, Key, MAX_COLUMNS, Table},
};
use crate::slot::Slot;

/// Blocks which an endpoint keeps unless [`PrefixIndex::set_capacity`] says otherwise: `lruCapacityPerServer`.
pub const DEFAULT_CAPACITY: usize = 31_250;

/// What an entry costs at most, all tables included.
const ENTRY_BYTES: usize = 64;
/// Smaller shards would not hold their own fixed parts: 16 KiB.
const MIN_SHARD_ENTRIES: usize = 256;
/// A column takes 12 bytes in each shard, so those of one column for 16 entries are below 1 byte an entry.
const ENTRIES_PER_COLUMN: usize = 16;
/// Slots have small indexes; 16 bytes each.
const MAX_PLACES: usize = 1 << 16;
const MAX_SHARDS: usize = 1 << 12;
/// Some more loads than a processor core has under way at once.
const MAX_AHEAD: usize = 32;
/// Blocks of removed endpoints which an insert evicts beside its own in each shard that it needs: more than it adds
/// there, and at most 6 us (up to 0.35 us each when out of the caches).
const SWEEP: usize = 16;
/// Blocks that are evicted at most to get a column back, 0.2 ms while all calls wait: then a churn of small endpoints
/// needs no more columns than endpoints.
const SWEEP_FOR_COLUMN: usize = 512;

/// Hash of a block -> endpoints that have it, with the least recently used blocks of an endpoint evicted first.
///
/// An entry is one block of one endpoint. Blocks go to shards by bits of their hash; each endpoint keeps up to
/// `capacity / shards` (at least 1) in each. If the capacities of all endpoints together exceed the memory bound, all
/// are lowered in proportion.
///
/// # Memory
/// [`Stats::bytes`] is at most the `max_bytes` of [`PrefixIndex::new`], which pays for one entry in 64 bytes. While a
/// table grows, which happens to one shard at a time in each inserting thread, its old copy comes on top. At the bound
/// an entry takes 54 bytes, and less where endpoints share blocks.
///
/// # Threads
/// [`matches`](Self::matches) takes one shared lock for a call and none for a block; it waits for a shard only if
/// inserts there interfere 16 times with the same block. [`insert`](Self::insert) and [`forget`](Self::forget) lock each
/// shard that they need once.
/// [`remove`](Self::remove), a changed [`set_capacity`](Self::set_capacity) and the first insert of an endpoint exclude
/// all others for a time that depends on the number of endpoints and shards, not on that of blocks.
pub struct PrefixIndex {
    columns: RwLock<Columns>,
    shards: Box<[Line<Mutex<Shard>>]>,
    /// What readers see of each shard.
    tables: ArcSwap<Box<[Arc<Table>]>>,
}

/// Size of a [`PrefixIndex`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Endpoints that were inserted or given a capacity, and not removed.
    pub endpoints: usize,
    /// Pairs of block and endpoint, those of removed endpoints included until they are swept.
    pub entries: usize,
    /// Entries that gave way to others since the start.
    pub evictions: u64,
    /// Different blocks; one counts again for each 64 endpoints.
    pub blocks: usize,
    /// Heap bytes of all tables as allocated, used or not.
    pub bytes: usize,
    /// Entries that fit under the memory bound.
    pub max_entries: usize,
}

/// Where [`PrefixIndex::expire`] goes on; the default is the beginning.
#[derive(Clone, Copy, Debug)]
pub struct Cursor {
    shard: usize,
    walk: Walk,
    done: bool,
}

/// Two cache lines (processors fetch pairs), so that writers of neighbors do not disturb each other.
#[repr(align(128))]
struct Line<T>(T);

/// One bit for each column; on the stack up to 256 columns.
type Words = SmallVec<[u64; 4]>;

// === impl PrefixIndex ===

impl PrefixIndex {
    /// An empty index for at most `max_bytes`, but 16 KiB for each shard at least. `shards` is rounded up to a power
    /// of two up to 4096; 64 suit up to some 64 threads.
    ///
    /// One endpoint is tracked for each 16 entries that fit into a shard, up to 65,536: with 512 MiB in 64 shards that
    /// is 8192 endpoints.
    pub fn new(max_bytes: usize, shards: usize) -> Self {
        let shards = shards.clamp(1, MAX_SHARDS).next_power_of_two();
        let entries = (max_bytes / shards / ENTRY_BYTES)
            .clamp(MIN_SHARD_ENTRIES, Shard::MAX_ENTRIES / ENTRY_BYTES);
        let bounds = Bounds {
            shards,
            entries,
            columns: (entries / ENTRIES_PER_COLUMN).min(MAX_COLUMNS),
            places: (entries * shards / ENTRIES_PER_COLUMN).min(MAX_PLACES),
        };
        debug_assert!(
            Self::max_bytes(bounds) <= entries * shards * ENTRY_BYTES,
            "an entry pays for all"
        );
        // Chance has no effect on answers, only on where a record lies.
        let chance = RandomState::new();
        let key = Key(chance.hash_one(0), chance.hash_one(1));
        let shards: Box<[_]> = (0..shards)
            .map(|_| Line(Mutex::new(Shard::new(key))))
            .collect();
        let tables = shards
            .iter()
            .map(|Line(shard)| Arc::clone(shard.lock().table()))
            .collect();
        Self {
            columns: RwLock::new(Columns::new(bounds)),
            shards,
            tables: ArcSwap::from_pointee(tables),
        }
    }

    /// For each candidate, how many blocks from the beginning of `chain` it has without a gap: `out[i]` is for
    /// `candidates[i]`. Removed and unknown slots have none. What is matched does not count as used.
    pub fn matches(&self, chain: &[u64], candidates: &[Slot], out: &mut [u32]) {
        out.fill(0);
        let columns = self.columns.read();
        let mut live = Words::new();
        for column in candidates.iter().filter_map(|slot| columns.column(*slot)) {
            if column / GROUP >= live.len() {
                live.resize(column / GROUP + 1, 0);
            }
            live[column / GROUP] |= 1 << (column % GROUP);
        }
        let mut leading: SmallVec<[u32; 256]> = smallvec![0; live.len() * GROUP];
        if live.is_empty() {
            return;
        }
        self.walk(chain, &mut live, |column, blocks| leading[column] = blocks);
        for (slot, out) in candidates.iter().zip(out) {
            *out = columns.column(*slot).map_or(0, |it| leading[it]);
        }
    }

    /// The endpoint has these blocks from now on, as its most recently used; of these the last are evicted first, so
    /// that what is left is a prefix. No effect for a removed slot.
    pub fn insert(&self, chain: &[u64], slot: Slot) {
        self.insert_until(chain, slot, NEVER);
    }

    /// As [`insert`](Self::insert); from the second `expiry_second` on, [`expire`](Self::expire) takes those of these
    /// blocks that no other insert keeps for longer. Says whether the slot is tracked: it is not where it was removed, or
    /// where there are too many.
    pub fn insert_until(&self, chain: &[u64], slot: Slot, expiry_second: u32) -> bool {
        // 0 is for what is unused.
        let expiry = expiry_second.max(1);
        let Some((columns, column)) = self.column_or_admit(slot) else {
            return false;
        };
        self.write_each(chain, &columns, |shard, hashes| {
            shard.warm(hashes, column);
            for hash in hashes.iter().rev() {
                shard.touch(*hash, column, expiry, &columns);
            }
            shard.sweep(SWEEP, &columns);
        });
        true
    }

    /// Those of these blocks that the endpoint has are its most recently used ones. It gets no others, and all stay as long
    /// as they were to stay.
    pub fn refresh(&self, chain: &[u64], slot: Slot) {
        let columns = self.columns.read();
        let Some(column) = columns.column(slot) else {
            return;
        };
        self.write_each(chain, &columns, |shard, hashes| {
            for hash in hashes.iter().rev() {
                shard.refresh(*hash, column);
            }
        });
    }

    /// The endpoint has none of these blocks, whatever was inserted. No effect for a removed or unknown slot.
    pub fn forget(&self, chain: &[u64], slot: Slot) {
        self.forget_until(chain, slot, NEVER);
    }

    /// Like [`forget`](Self::forget), except for blocks that another insert keeps for longer than `expiry_second`.
    pub fn forget_until(&self, chain: &[u64], slot: Slot, expiry_second: u32) {
        let columns = self.columns.read();
        let Some(column) = columns.column(slot) else {
            return;
        };
        self.write_each(chain, &columns, |shard, hashes| {
            for hash in hashes {
                shard.forget(*hash, column, expiry_second);
            }
        });
    }

    /// The endpoint is gone: it matches nothing from now on, and this and former generations of the slot are never
    /// inserted again. Its memory comes back with the next inserts and with [`sweep`](Self::sweep).
    ///
    /// An endpoint that restarted has an empty cache: remove it and go on with the next generation.
    pub fn remove(&self, slot: Slot) {
        self.remove_all(&[slot]);
    }

    /// As [`remove`](Self::remove), at once: it excludes all others for little longer than for one of them.
    pub fn remove_all(&self, slots: &[Slot]) {
        self.columns.write().remove(slots);
    }

    /// The endpoint keeps up to so many blocks from now on. What it has above that goes with the next inserts and with
    /// [`sweep`](Self::sweep). No effect for a removed slot.
    pub fn set_capacity(&self, slot: Slot, blocks: usize) {
        let columns = self.columns.read();
        let wanted = columns.per_shard(blocks);
        if columns.wanted(slot) == Some(wanted) || !columns.admits(slot) {
            return;
        }
        drop(columns);
        self.admit(&mut self.columns.write(), slot, wanted);
    }

    /// Evicts up to `max` blocks which removed endpoints left or that are above a lowered capacity; says how many.
    /// Less than `max`: nothing is left. For an idle moment: without it the next inserts do this.
    pub fn sweep(&self, max: usize) -> usize {
        let columns = self.columns.read();
        let mut swept = 0;
        for at in 0..self.shards.len() {
            if swept == max {
                break;
            }
            swept += self.write(at, &columns, |shard| shard.sweep(max - swept, &columns));
        }
        swept
    }

    /// Forgets blocks that are over at `now_second`: goes on from `cursor`, looks at up to `max_blocks` of them in one
    /// shard and forgets an eighth as many at most. Says how many it forgot. A shard where nothing is over yet costs
    /// nothing, and so does a cursor that is done.
    pub fn expire(&self, cursor: &mut Cursor, now_second: u32, max_blocks: usize) -> usize {
        if cursor.done {
            return 0;
        }
        let columns = self.columns.read();
        let Cursor { shard, walk, .. } = cursor;
        let (expired, at_end) = self.write(*shard, &columns, |it| {
            it.expire(walk, now_second, max_blocks)
        });
        if at_end {
            *cursor = Cursor {
                shard: *shard + 1,
                done: *shard + 1 >= self.shards.len(),
                ..Cursor::default()
            };
        }
        expired
    }

    /// How many blocks these endpoints have together; takes each shard's lock in turn.
    pub fn entries_of(&self, slots: &[Slot]) -> usize {
        let columns = self.columns.read();
        let of: Vec<_> = slots.iter().filter_map(|it| columns.column(*it)).collect();
        let entries = |Line(shard): &Line<Mutex<Shard>>| {
            let shard = shard.lock();
            of.iter().map(|column| shard.len(*column)).sum::<usize>()
        };
        self.shards.iter().map(entries).sum()
    }

    /// So many endpoints are tracked at once, those that were removed and are not swept yet among them.
    pub fn max_endpoints(&self) -> usize {
        let Bounds {
            columns, places, ..
        } = self.columns.read().bounds();
        columns.min(places)
    }

    /// Counts what there is now; takes each shard's lock in turn.
    pub fn stats(&self) -> Stats {
        let columns = self.columns.read();
        let bounds = columns.bounds();
        let mut stats = Stats {
            endpoints: columns.endpoints(),
            entries: 0,
            evictions: 0,
            blocks: 0,
            bytes: Self::fixed_bytes(bounds) + columns.bytes(),
            max_entries: bounds.entries * bounds.shards,
        };
        for Line(shard) in &self.shards {
            let shard = shard.lock();
            stats.entries += shard.entries();
            stats.evictions += shard.evictions();
            stats.blocks += shard.records();
            stats.bytes += shard.bytes();
        }
        stats
    }

    /// The most that `Stats::bytes` can become.
    fn max_bytes(bounds: Bounds) -> usize {
        Self::fixed_bytes(bounds)
            + Columns::max_bytes(bounds)
            + bounds.shards * Shard::max_bytes(bounds.entries, bounds.columns)
    }

    fn fixed_bytes(bounds: Bounds) -> usize {
        bounds.shards * (size_of::<Line<Mutex<Shard>>>() + size_of::<Arc<Table>>())
    }

    /// Calls `leading(column, blocks)` for each column in `live`, when it lacks a block or the chain ends.
    fn walk(&self, chain: &[u64], live: &mut Words, mut leading: impl FnMut(usize, u32)) {
        let tables = self.tables.load();
        let mut found: Words = smallvec![0; live.len()];
        let mut blocks = 0;
        let mut rest = chain;
        // Most prompts are unknown from the first block on: not more work ahead than was done.
        let mut ahead = 1;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(ahead));
            rest = later;
            ahead = (2 * ahead).min(MAX_AHEAD);
            let warm = |hash: &u64| tables[self.shard_of(*hash)].warm(*hash);
            black_box(now.iter().map(warm).fold(0, |sum, it| sum ^ it));
            for hash in now {
                let at = self.shard_of(*hash);
                if !tables[at].read(*hash, live, &mut found) {
                    let _writers = self.shards[at].0.lock();
                    tables[at].read_alone(*hash, live, &mut found);
                }
                let mut any = 0;
                for (group, (live, found)) in live.iter_mut().zip(&found).enumerate() {
                    for_each_bit(*live & !found, |bit| leading(group * GROUP + bit, blocks));
                    *live &= found;
                    any |= *live;
                }
                if any == 0 {
                    return;
                }
                blocks += 1;
            }
        }
        for (group, live) in live.iter().enumerate() {
            for_each_bit(*live, |bit| leading(group * GROUP + bit, blocks));
        }
    }

    fn column_or_admit(&self, slot: Slot) -> Option<(RwLockReadGuard<'_, Columns>, usize)> {
        let columns = self.columns.read();
        if let Some(column) = columns.column(slot) {
            return Some((columns, column));
        }
        if !columns.admits(slot) {
            return None;
        }
        drop(columns);
        let mut columns = self.columns.write();
        let column = if let Some(column) = columns.column(slot) {
            column
        } else {
            let wanted = columns.per_shard(DEFAULT_CAPACITY);
            self.admit(&mut columns, slot, wanted)?
        };
        Some((RwLockWriteGuard::downgrade(columns), column))
    }

    fn admit(&self, columns: &mut Columns, slot: Slot, wanted: usize) -> Option<usize> {
        let mut left = SWEEP_FOR_COLUMN;
        columns.admit(slot, wanted, |columns, column| {
            let emptied = (0..self.shards.len()).try_for_each(|at| {
                let rest = self.write(at, columns, |shard| {
                    left -= shard.sweep_column(column, left);
                    shard.len(column)
                });
                if rest == 0 {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            });
            emptied.is_continue()
        })
    }

    /// Lets `change` write a shard and shows readers its table if that is another one now.
    fn write<T>(&self, at: usize, columns: &Columns, change: impl FnOnce(&mut Shard) -> T) -> T {
        let mut shard = self.shards[at].0.lock();
        let before = Arc::as_ptr(shard.table());
        shard.follow(columns);
        let result = change(&mut shard);
        if !std::ptr::eq(before, Arc::as_ptr(shard.table())) {
            self.tables.rcu(|tables| {
                let mut tables = Box::clone(tables);
                tables[at] = Arc::clone(shard.table());
                tables
            });
        }
        result
    }

    /// Lets `change` write each shard that has blocks of the chain, with these blocks in their order.
    fn write_each(
        &self,
        chain: &[u64],
        columns: &Columns,
        mut change: impl FnMut(&mut Shard, &[u64]),
    ) {
        let (hashes, ends) = self.by_shard(chain);
        let mut start = 0;
        for (at, end) in ends.into_iter().enumerate() {
            if start < end {
                self.write(at, columns, |shard| change(shard, &hashes[start..end]));
                start = end;
            }
        }
    }

    /// The chain sorted by shard, else in its order; and for each shard where its part ends.
    fn by_shard(&self, chain: &[u64]) -> (Vec<u64>, Vec<usize>) {
        let mut ends = vec![0; self.shards.len()];
        for hash in chain {
            ends[self.shard_of(*hash)] += 1;
        }
        let mut sum = 0;
        for end in &mut ends {
            sum += *end;
            *end = sum - *end;
        }
        let mut hashes = vec![0; chain.len()];
        for hash in chain {
            let end = &mut ends[self.shard_of(*hash)];
            hashes[*end] = *hash;
            *end += 1;
        }
        (hashes, ends)
    }

    fn shard_of(&self, hash: u64) -> usize {
        // A power of two of shards, so less than that many.
        usize::try_from(hash & (self.shards.len() as u64 - 1)).unwrap_or(0)
    }
}

impl fmt::Debug for PrefixIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stats().fmt(f)
    }
}

// === impl Cursor ===

impl Cursor {
    /// All shards were seen.
    pub fn is_done(&self) -> bool {
        self.done
    }
}

impl Default for Cursor {
    fn default() -> Self {
        Self {
            shard: 0,
            walk: Walk {
                at: 0,
                next_end: NEVER,
            },
            done: false,
        }
    }
}

fn for_each_bit(mut word: u64, mut f: impl FnMut(usize)) {
    while word != 0 {
        f(word.trailing_zeros() as usize);
        word &= word - 1;
    }
}
