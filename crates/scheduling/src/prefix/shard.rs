//! The writer's side of a shard: which blocks an endpoint has there, in order of use.

use std::{hint::black_box, sync::Arc};

use super::{
    columns::Columns,
    table::{Key, Table},
};

const NONE: u32 = u32::MAX;
/// An end that never comes.
pub(super) const NEVER: u32 = u32::MAX;
/// Spreads the columns of one hash over the buckets; any odd number with mixed bits.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
/// Blocks of one insert in one shard that are loaded ahead: 2048 blocks over 64 shards are 32.
const WARM: usize = 32;
/// A shard with fewer nodes is not worth shrinking.
const SMALL: usize = 256;

/// Blocks whose hash falls into this shard, of all endpoints.
///
/// Each entry is a node: in the list of its column by use, and in the chain of its bucket. The table repeats the same
/// set for readers.
#[derive(Debug)]
pub(super) struct Shard {
    table: Arc<Table>,
    records: usize,
    nodes: Vec<Node>,
    /// One for each node there is room for: the first node of a chain.
    buckets: Vec<u32>,
    /// By column.
    lists: Vec<List>,
    /// Unused nodes, linked through `chained`.
    free: u32,
    entries: usize,
    key: Key,
    /// The limits that were seen, and the first column which may have more than its limit since.
    version: u64,
    sweep_at: usize,
    /// No entry ends before this second.
    next_end: u32,
    /// The same of what the walk that is under way may have missed.
    missed_end: u32,
    /// Entries that gave way to others.
    evictions: u64,
}

/// 28 bytes: a whole 64-bit number in it would make them 32.
#[derive(Clone, Copy, Debug)]
struct Node {
    hash: Bytes,
    column: u32,
    newer: u32,
    older: u32,
    chained: u32,
    /// The second from which on it is over; 0 while it is unused.
    end: u32,
}

/// A 64-bit number without its alignment.
#[derive(Clone, Copy, Debug)]
struct Bytes([u8; 8]);

/// Where a walk over the nodes of a shard is, and what it found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk {
    pub(super) at: usize,
    /// The earliest end of the nodes so far.
    pub(super) next_end: u32,
}

#[derive(Clone, Copy, Debug)]
struct List {
    newest: u32,
    oldest: u32,
    len: u32,
}

// === impl Shard ===

impl Shard {
    pub(super) const MAX_ENTRIES: usize = NONE as usize;

    pub(super) fn new(key: Key) -> Self {
        Self {
            table: Arc::new(Table::new(0, key)),
            records: 0,
            nodes: Vec::new(),
            buckets: Vec::new(),
            lists: Vec::new(),
            free: NONE,
            entries: 0,
            key,
            version: 0,
            sweep_at: 0,
            next_end: NEVER,
            missed_end: NEVER,
            evictions: 0,
        }
    }

    /// The most heap bytes of a shard with so many entries and columns.
    pub(super) fn max_bytes(entries: usize, columns: usize) -> usize {
        entries * (size_of::<Node>() + size_of::<u32>())
            + Table::room_for(entries + 1) * Table::RECORD_BYTES
            + size_of::<Table>()
            + columns * size_of::<List>()
    }

    pub(super) fn bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>()
            + self.buckets.capacity() * size_of::<u32>()
            + self.table.room() * Table::RECORD_BYTES
            + size_of::<Table>()
            + self.lists.capacity() * size_of::<List>()
    }

    pub(super) fn entries(&self) -> usize {
        self.entries
    }

    /// Different hashes; one that endpoints of different groups have counts for each group.
    pub(super) fn records(&self) -> usize {
        self.records
    }

    pub(super) fn evictions(&self) -> u64 {
        self.evictions
    }

    pub(super) fn table(&self) -> &Arc<Table> {
        &self.table
    }

    pub(super) fn len(&self, column: usize) -> usize {
        self.lists.get(column).map_or(0, |it| it.len as usize)
    }

    /// To call first, before the shard is written: learns new columns and limits.
    pub(super) fn follow(&mut self, columns: &Columns) {
        if self.version == columns.version() {
            return;
        }
        self.version = columns.version();
        self.sweep_at = 0;
        let missing = columns.len().saturating_sub(self.lists.len());
        if missing > 0 {
            self.lists.reserve_exact(missing);
            self.lists.resize(columns.len(), List::EMPTY);
        }
    }

    /// Makes `hash` the block that the column used last; it stays until the second `end`, or as it was to stay if that is
    /// longer.
    pub(super) fn touch(&mut self, hash: u64, column: usize, end: u32, columns: &Columns) {
        let node = self.find(hash, column);
        if node != NONE {
            self.unlink(node);
            self.link(node);
            let node = &mut self.nodes[node as usize];
            node.end = node.end.max(end);
            return;
        }
        // Once more than needed: a limit that was lowered is reached soon, with bounded work for each call.
        let over = (self.len(column) + 1).saturating_sub(columns.limit(column));
        for _ in 0..over.min(2) {
            self.evictions += u64::from(self.evict(column));
        }
        // The limits leave room for all, so if the shard is full then some column is over its limit.
        if self.entries < columns.bounds().entries || self.sweep(1, columns) > 0 {
            self.add(hash, column, end, columns.bounds().entries);
        }
    }

    /// Makes `hash` the block that the column used last, if it has it; how long it stays does not change.
    pub(super) fn refresh(&mut self, hash: u64, column: usize) {
        let node = self.find(hash, column);
        if node != NONE {
            self.unlink(node);
            self.link(node);
        }
    }

    /// Forgets the column's block, if it has it and not for longer than until the second `end`.
    pub(super) fn forget(&mut self, hash: u64, column: usize, end: u32) {
        let node = self.find(hash, column);
        if node != NONE && self.nodes[node as usize].end <= end {
            self.release(node);
        }
    }

    /// Forgets what is over at the second `now` among the next nodes: looks at up to `max`, and forgets an eighth of it
    /// at most. True at the end of the shard, which is at once where nothing is over.
    pub(super) fn expire(&mut self, walk: &mut Walk, now: u32, max: usize) -> (usize, bool) {
        if walk.at == 0 {
            if self.next_end > now {
                return (0, true);
            }
            self.missed_end = NEVER;
        }
        let mut expired = 0;
        for _ in 0..max {
            if walk.at >= self.nodes.len() {
                break;
            }
            let Node { end, .. } = self.nodes[walk.at];
            if end == 0 {
                // Unused.
            } else if end > now {
                walk.next_end = walk.next_end.min(end);
            } else {
                self.release(u32::try_from(walk.at).unwrap_or(NONE));
                expired += 1;
            }
            walk.at += 1;
            if expired >= (max / 8).max(1) {
                break;
            }
        }
        let done = walk.at >= self.nodes.len();
        if done {
            self.next_end = walk.next_end.min(self.missed_end);
            self.shrink();
        }
        (expired, done)
    }

    /// Loads what `touch` of each hash is about to read, in steps within which loads overlap.
    pub(super) fn warm(&self, hashes: &[u64], column: usize) {
        if self.buckets.is_empty() || hashes.len() < 2 {
            return;
        }
        let hashes = &hashes[..hashes.len().min(WARM)];
        let mut buckets = [0; WARM];
        let mut sum = 0;
        for (hash, bucket) in hashes.iter().zip(&mut buckets) {
            *bucket = self.buckets[self.bucket(*hash, column)];
            sum ^= self.table.warm(*hash);
        }
        for bucket in &buckets[..hashes.len()] {
            sum ^= self
                .nodes
                .get(*bucket as usize)
                .map_or(0, |it| it.hash.whole());
        }
        // What may be evicted in their place.
        let mut at = self.lists[column].oldest;
        let mut oldest = [0; WARM];
        for hash in &mut oldest[..hashes.len()] {
            if let Some(node) = self.nodes.get(at as usize) {
                (*hash, at) = (node.hash.whole(), node.newer);
            }
        }
        for hash in &oldest[..hashes.len()] {
            let bucket = self.buckets[self.bucket(*hash, column)];
            sum ^= self.table.warm(*hash) ^ u64::from(bucket);
        }
        black_box(sum);
    }

    /// Evicts up to `max` blocks of columns which have more than their limit, such as removed ones; says how many.
    pub(super) fn sweep(&mut self, max: usize, columns: &Columns) -> usize {
        let mut swept = 0;
        while self.sweep_at < self.lists.len() {
            if self.len(self.sweep_at) <= columns.limit(self.sweep_at) {
                self.sweep_at += 1;
                if self.sweep_at == self.lists.len() {
                    self.shrink();
                }
            } else if swept < max {
                self.evict(self.sweep_at);
                // Those of a removed endpoint give way to nothing.
                self.evictions += u64::from(columns.limit(self.sweep_at) > 0);
                swept += 1;
            } else {
                break;
            }
        }
        swept
    }

    /// Evicts up to `max` blocks of the column.
    pub(super) fn sweep_column(&mut self, column: usize, max: usize) -> usize {
        let evicted = self.len(column).min(max);
        for _ in 0..evicted {
            self.evict(column);
        }
        evicted
    }

    fn find(&self, hash: u64, column: usize) -> u32 {
        if self.buckets.is_empty() {
            return NONE;
        }
        let mut at = self.buckets[self.bucket(hash, column)];
        while at != NONE {
            let node = &self.nodes[at as usize];
            if node.hash.whole() == hash && node.column as usize == column {
                break;
            }
            at = node.chained;
        }
        at
    }

    fn add(&mut self, hash: u64, column: usize, end: u32, max_entries: usize) {
        self.next_end = self.next_end.min(end);
        self.missed_end = self.missed_end.min(end);
        if !self.table.has_room_for(self.records + 1) {
            let room = self.table.room();
            self.resize_table((room + room / 4).min(Table::room_for(max_entries + 1)));
        }
        if self.free == NONE && self.nodes.len() == self.buckets.len() {
            self.grow(max_entries);
        }
        let bucket = self.bucket(hash, column);
        let new = Node {
            hash: Bytes::of(hash),
            column: u32::try_from(column).unwrap_or(NONE),
            newer: NONE,
            older: NONE,
            chained: self.buckets[bucket],
            end,
        };
        let at = self.free;
        let at = if at == NONE {
            self.nodes.push(new);
            u32::try_from(self.nodes.len() - 1).unwrap_or(NONE)
        } else {
            self.free = self.nodes[at as usize].chained;
            self.nodes[at as usize] = new;
            at
        };
        self.buckets[bucket] = at;
        self.link(at);
        self.entries += 1;
        self.records += usize::from(self.table.set(hash, column));
    }

    /// Forgets the column's least recently used block; false if it has none.
    fn evict(&mut self, column: usize) -> bool {
        let at = self.lists[column].oldest;
        if at == NONE {
            return false;
        }
        self.release(at);
        true
    }

    /// The node is unused from now on.
    fn release(&mut self, at: u32) {
        self.unlink(at);
        let Node {
            hash,
            column,
            chained,
            ..
        } = self.nodes[at as usize];
        let (hash, column) = (hash.whole(), column as usize);
        let bucket = self.bucket(hash, column);
        if self.buckets[bucket] == at {
            self.buckets[bucket] = chained;
        } else {
            let mut before = self.buckets[bucket] as usize;
            while self.nodes[before].chained != at {
                before = self.nodes[before].chained as usize;
            }
            self.nodes[before].chained = chained;
        }
        let node = &mut self.nodes[at as usize];
        (node.chained, node.end) = (self.free, 0);
        self.free = at;
        self.entries -= 1;
        self.records -= usize::from(self.table.clear(hash, column));
    }

    /// Makes the node the newest of its column.
    fn link(&mut self, at: u32) {
        let list = &mut self.lists[self.nodes[at as usize].column as usize];
        let older = std::mem::replace(&mut list.newest, at);
        list.len += 1;
        if older == NONE {
            list.oldest = at;
        } else {
            self.nodes[older as usize].newer = at;
        }
        let node = &mut self.nodes[at as usize];
        (node.newer, node.older) = (NONE, older);
    }

    fn unlink(&mut self, at: u32) {
        let Node {
            column,
            newer,
            older,
            ..
        } = self.nodes[at as usize];
        let list = &mut self.lists[column as usize];
        list.len -= 1;
        if newer == NONE {
            list.newest = older;
        } else {
            self.nodes[newer as usize].older = older;
        }
        let list = &mut self.lists[column as usize];
        if older == NONE {
            list.oldest = newer;
        } else {
            self.nodes[older as usize].newer = newer;
        }
    }

    fn bucket(&self, hash: u64, column: usize) -> usize {
        let spread = (column as u64).wrapping_mul(SPREAD);
        self.key.place(hash ^ spread, self.buckets.len())
    }

    /// Makes room for an eighth more nodes: doubling would leave half of the memory unused.
    fn grow(&mut self, max_entries: usize) {
        let len = self.nodes.len();
        let room = (len + len / 8 + 16).min(max_entries);
        self.nodes.reserve_exact(room - len);
        self.fill_buckets(room);
    }

    /// Chains all nodes anew; all are in use.
    fn fill_buckets(&mut self, room: usize) {
        self.buckets = vec![NONE; room];
        for at in 0..self.nodes.len() {
            let Node { hash, column, .. } = self.nodes[at];
            let bucket = self.bucket(hash.whole(), column as usize);
            self.nodes[at].chained = self.buckets[bucket];
            self.buckets[bucket] = u32::try_from(at).unwrap_or(NONE);
        }
    }

    /// Gives memory back when three quarters of it are unused.
    fn shrink(&mut self) {
        if self.buckets.len() > SMALL && self.entries < self.buckets.len() / 4 {
            self.compact();
        }
        if self.table.room() > SMALL && self.records < self.table.room() / 4 {
            self.resize_table(Table::room_for(self.records + self.records / 8 + 1));
        }
    }

    /// Moves the nodes together, each list in its order.
    fn compact(&mut self) {
        let room = self.entries + self.entries / 8;
        let old = std::mem::replace(&mut self.nodes, Vec::with_capacity(room));
        for column in 0..self.lists.len() {
            let mut at = self.lists[column].oldest;
            self.lists[column] = List::EMPTY;
            while at != NONE {
                let node = old[at as usize];
                self.nodes.push(node);
                self.link(u32::try_from(self.nodes.len() - 1).unwrap_or(NONE));
                at = node.newer;
            }
        }
        self.free = NONE;
        self.missed_end = 0;
        self.fill_buckets(room);
    }

    fn resize_table(&mut self, room: usize) {
        self.table = Arc::new(self.table.resized(room));
    }
}

// === impl Bytes ===

impl Bytes {
    fn of(number: u64) -> Self {
        Self(number.to_ne_bytes())
    }

    fn whole(self) -> u64 {
        u64::from_ne_bytes(self.0)
    }
}

// === impl List ===

impl List {
    const EMPTY: Self = Self {
        newest: NONE,
        oldest: NONE,
        len: 0,
    };
}
