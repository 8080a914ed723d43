//! Hash -> which endpoints have it, read without a lock.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// A record covers this many columns: one word.
pub const GROUP: usize = 64;
/// So many columns at most: the group of a record lives in the low `GROUP_BITS` bits of its key.
pub const MAX_COLUMNS: usize = GROUP << GROUP_BITS;

const GROUP_BITS: u32 = 10;
/// Smallest table: 256 bytes.
const MIN_ROOM: usize = 16;
/// A read that met this many writes leaves it to the caller, who waits for the writer.
const READ_ATTEMPTS: usize = 16;

/// Open addressing with linear probing, 16 bytes a record; one writer at a time, any number of readers.
///
/// A record says which of 64 columns have a hash; a column is the place of one endpoint in these words. Adding a record
/// or a bit is one atomic store. Removing a record moves others, so it makes `version` odd until it is done, and readers
/// that saw another version before than after read again (a seqlock).
#[derive(Debug)]
pub struct Table {
    version: AtomicU64,
    records: Box<[Record]>,
    key: Key,
}

/// Hides from the senders of prompts which hashes fall on the same place: they could make probing slow.
#[derive(Clone, Copy, Debug)]
pub struct Key(pub u64, pub u64);

/// Free while `columns` is 0.
#[derive(Debug, Default)]
struct Record {
    /// The hash XOR the group: all groups of a hash are neighbors, and the key still tells 64 bits apart.
    key: AtomicU64,
    columns: AtomicU64,
}

// === impl Key ===

impl Key {
    /// Maps `value` to `0..room`.
    pub fn place(self, value: u64, room: usize) -> usize {
        let (low, high) = (value ^ self.0).carrying_mul(self.1 | 1, 0);
        let (_, place) = (low ^ high).carrying_mul(room as u64, 0);
        usize::try_from(place).unwrap_or(0)
    }
}

// === impl Table ===

impl Table {
    /// What a record takes, used or not.
    pub const RECORD_BYTES: usize = size_of::<Record>();

    /// An empty table with room for so many records, and for 16 at least.
    pub fn new(room: usize, key: Key) -> Self {
        Self {
            version: AtomicU64::new(0),
            records: (0..room.max(MIN_ROOM)).map(|_| Record::default()).collect(),
            key,
        }
    }

    /// Records, used or not.
    pub fn room(&self) -> usize {
        self.records.len()
    }

    /// Whether another record keeps probes short: at 3/4 a miss reads 8.5 records on average, two or three cache
    /// lines.
    pub fn has_room_for(&self, records: usize) -> bool {
        records * 4 <= self.records.len() * 3
    }

    /// The room in which `records` just fit.
    pub fn room_for(records: usize) -> usize {
        (records * 4).div_ceil(3)
    }

    /// Sets in `found` the columns which have `hash`, for each group with a bit in `wanted`; both are equally long.
    /// False when writers kept interfering: then `read_alone` under the writer's lock.
    pub fn read(&self, hash: u64, wanted: &[u64], found: &mut [u64]) -> bool {
        for _ in 0..READ_ATTEMPTS {
            let before = self.version.load(Ordering::Acquire);
            if before.is_multiple_of(2) {
                self.read_alone(hash, wanted, found);
                fence(Ordering::Acquire);
                if self.version.load(Ordering::Relaxed) == before {
                    return true;
                }
            }
            std::hint::spin_loop();
        }
        false
    }

    /// As `read`, while nobody writes.
    pub fn read_alone(&self, hash: u64, wanted: &[u64], found: &mut [u64]) {
        found.fill(0);
        let mut missing = wanted.iter().filter(|word| **word != 0).count();
        for record in self.probe(hash).map(|at| &self.records[at]) {
            let columns = record.columns.load(Ordering::Acquire);
            if columns == 0 {
                return;
            }
            let group = record.key.load(Ordering::Relaxed) ^ hash;
            let Some(group) = usize::try_from(group).ok().filter(|it| *it < found.len()) else {
                continue;
            };
            found[group] = columns;
            missing -= usize::from(wanted[group] != 0);
            if missing == 0 {
                return;
            }
        }
    }

    /// Loads the records where probes for `hash` begin; what it returns means nothing. Loads of several hashes in a row
    /// overlap, unlike reads, each of which waits for its record to know whether to go on. Half the time in a large
    /// table is such waiting.
    pub fn warm(&self, hash: u64) -> u64 {
        let home = self.home(hash);
        // A cache line holds four; most probes go on into the next.
        let next = (home + 4).min(self.records.len() - 1);
        [home, next].iter().fold(0, |sum, at| {
            sum ^ self.records[*at].columns.load(Ordering::Relaxed)
        })
    }

    /// Adds `column` to `hash`; true when that took a new record. There must be room for it. The writer only.
    pub fn set(&self, hash: u64, column: usize) -> bool {
        let (key, bit) = split(hash, column);
        for record in self.probe(hash).map(|at| &self.records[at]) {
            let columns = record.columns.load(Ordering::Relaxed);
            if columns == 0 {
                record.key.store(key, Ordering::Relaxed);
                record.columns.store(bit, Ordering::Release);
                return true;
            }
            if record.key.load(Ordering::Relaxed) == key {
                record.columns.store(columns | bit, Ordering::Release);
                return false;
            }
        }
        false
    }

    /// Takes `column` from `hash`; true when that ended a record. The writer only.
    pub fn clear(&self, hash: u64, column: usize) -> bool {
        let (key, bit) = split(hash, column);
        for at in self.probe(hash) {
            let record = &self.records[at];
            let columns = record.columns.load(Ordering::Relaxed);
            if columns == 0 {
                return false;
            }
            if record.key.load(Ordering::Relaxed) == key {
                let rest = columns & !bit;
                if rest == 0 {
                    self.end(at);
                } else {
                    record.columns.store(rest, Ordering::Release);
                }
                return rest == 0;
            }
        }
        false
    }

    /// Copies all records into a table of another size.
    #[must_use]
    pub fn resized(&self, room: usize) -> Self {
        let new = Self::new(room, self.key);
        for record in &self.records {
            let columns = record.columns.load(Ordering::Relaxed);
            if columns == 0 {
                continue;
            }
            let key = record.key.load(Ordering::Relaxed);
            let mut free = new.probe(key).map(|at| &new.records[at]);
            if let Some(record) = free.find(|it| it.columns.load(Ordering::Relaxed) == 0) {
                record.key.store(key, Ordering::Relaxed);
                record.columns.store(columns, Ordering::Relaxed);
            }
        }
        new
    }

    /// Frees the record at `hole` and moves later ones of its run up, so that probes meet no gap.
    fn end(&self, mut hole: usize) {
        let version = self.version.load(Ordering::Relaxed);
        self.version
            .store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        let room = self.records.len();
        let mut at = hole;
        for _ in 1..room {
            at = if at + 1 == room { 0 } else { at + 1 };
            let record = &self.records[at];
            let columns = record.columns.load(Ordering::Relaxed);
            if columns == 0 {
                break;
            }
            let key = record.key.load(Ordering::Relaxed);
            let distance = |from: usize| {
                if at >= from {
                    at - from
                } else {
                    at + room - from
                }
            };
            // Moving it before its home would hide it.
            if distance(self.home(key)) >= distance(hole) {
                self.records[hole].key.store(key, Ordering::Relaxed);
                self.records[hole].columns.store(columns, Ordering::Relaxed);
                hole = at;
            }
        }
        self.records[hole].columns.store(0, Ordering::Relaxed);
        self.version
            .store(version.wrapping_add(2), Ordering::Release);
    }

    /// The same for a hash and for the keys made of it.
    fn home(&self, hash: u64) -> usize {
        self.key.place(hash >> GROUP_BITS, self.records.len())
    }

    fn probe(&self, hash: u64) -> impl Iterator<Item = usize> {
        let home = self.home(hash);
        (home..self.records.len()).chain(0..home)
    }
}

/// The key of the record, and the bit in it.
fn split(hash: u64, column: usize) -> (u64, u64) {
    let group = (column / GROUP) as u64;
    (hash ^ group, 1 << (column % GROUP))
}

#[cfg(test)]
mod tests {
    use std::{sync::atomic::AtomicBool, thread};

    use super::*;

    /// Spread as block hashes are.
    fn mk_hash(number: u64) -> u64 {
        xxhash_rust::xxh64::xxh64(&number.to_le_bytes(), 0)
    }

    /// Never fails by chance; without the version it fails in nearly each run.
    #[test]
    fn readers_are_right_while_records_move() {
        const NONE: u64 = u64::MAX;
        let table = Table::new(16, Key(1, 2));
        // The round whose hash stays until this is another round.
        let kept = AtomicU64::new(NONE);
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..100_000 {
                    let others = [1, 2, 3, 4, 5, 6, 7, 8, 9].map(|it| mk_hash(round * 10 + it));
                    for hash in others {
                        table.set(hash, 6);
                    }
                    table.set(mk_hash(round * 10), 5);
                    kept.store(round, Ordering::SeqCst);
                    // It moves up when others before it end.
                    for hash in others {
                        assert!(table.clear(hash, 6));
                    }
                    kept.store(NONE, Ordering::SeqCst);
                    table.clear(mk_hash(round * 10), 5);
                }
                done.store(true, Ordering::Relaxed);
            });
            while !done.load(Ordering::Relaxed) {
                let round = kept.load(Ordering::SeqCst);
                let mut found = [0];
                if round != NONE
                    && table.read(mk_hash(round * 10), &[u64::MAX], &mut found)
                    && kept.load(Ordering::SeqCst) == round
                {
                    assert_eq!(found, [1 << 5], "in round {round}");
                }
            }
        });
    }
}
