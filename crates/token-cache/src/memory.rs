//! The store in memory.

use std::{collections::BTreeMap, ops::AddAssign, time::Duration};

use hashbrown::HashMap;
use moment::Moment;
use parking_lot::Mutex;
use processor_api::TokenKey;
use xxhash_rust::xxh3::xxh3_64;

use crate::entry::{Entry, MAX_BYTES, MAX_IDS};

/// Parts with a lock each, at most: two for each core of a large machine's Processor.
const MAX_SHARDS: usize = 16;

/// A part holds at least this many of the largest entries, so that one does not empty it.
const LARGEST_ENTRIES: usize = 4;

/// Bytes of an entry beside what it points to: its slot, its key in the table and in both orders, their nodes, and
/// the counts of three shared pointers.
const OVERHEAD: usize = 320;

/// Entries by key, for a time, within a number of bytes. Reading one does not prolong its time.
#[derive(Debug)]
pub struct MemoryStore {
    shards: Vec<Mutex<Shard>>,
    shard_bytes: usize,
    ttl: Duration,
}

/// What became of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// It is there.
    Stored,
    /// It was there already, with the same value. Its time stays as it was.
    Same,
}

/// Why an entry is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PutError {
    /// Another value has the key: keys are never used again.
    #[error("the key has another value")]
    Conflict,
    /// It is larger than an entry may be, or than the store.
    #[error("it is larger than {MAX_BYTES} bytes, or than the store")]
    TooLarge,
}

/// How full it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Entries, those included whose time has passed since the last sweep.
    pub entries: usize,
    /// Bytes that they take.
    pub bytes: usize,
    /// Entries that went, since the start.
    pub evictions: Evictions,
}

/// Entries that nobody deleted, by why they went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evictions {
    /// Their time was over.
    pub expired: u64,
    /// Others needed their room.
    pub full: u64,
}

#[derive(Debug, Default)]
struct Shard {
    slots: HashMap<TokenKey, Slot>,
    /// Least recently used first.
    by_use: BTreeMap<u64, TokenKey>,
    /// First to expire first; the number tells those of one moment apart.
    by_expiry: BTreeMap<(Moment, u64), TokenKey>,
    bytes: usize,
    next: u64,
    evictions: Evictions,
}

#[derive(Debug)]
struct Slot {
    entry: Entry,
    expiry: (Moment, u64),
    used: u64,
}

// === impl MemoryStore ===

impl MemoryStore {
    /// One of at most `max_bytes`, whose entries stay for `ttl`.
    pub fn new(max_bytes: usize, ttl: Duration) -> Self {
        let shards = (max_bytes / (LARGEST_ENTRIES * MAX_BYTES)).clamp(1, MAX_SHARDS);
        Self {
            shards: std::iter::repeat_with(Mutex::default)
                .take(shards)
                .collect(),
            shard_bytes: max_bytes / shards,
            ttl,
        }
    }

    /// Keeps an entry, in place of those that were not used for longest where there is no room.
    ///
    /// # Errors
    /// [`PutError`] when it cannot.
    pub fn put(&self, key: TokenKey, entry: Entry, now: Moment) -> Result<Put, PutError> {
        if entry.ids.len() > MAX_IDS || entry.bytes() + OVERHEAD > self.shard_bytes {
            return Err(PutError::TooLarge);
        }
        let mut shard = self.shard(&key).lock();
        shard.expire(now);
        if let Some(slot) = shard.slots.get(&key) {
            let same = slot.entry == entry;
            return if same {
                Ok(Put::Same)
            } else {
                Err(PutError::Conflict)
            };
        }
        shard.insert(key, entry, now.plus(self.ttl));
        while shard.bytes > self.shard_bytes {
            let Some((_, oldest)) = shard.by_use.pop_first() else {
                break;
            };
            shard.remove(&oldest);
            shard.evictions.full += 1;
        }
        Ok(Put::Stored)
    }

    /// The entry of a key. It stays: a worker that retries reads again.
    pub fn get(&self, key: &TokenKey, now: Moment) -> Option<Entry> {
        self.shard(key).lock().touch(key, now)
    }

    /// Whether there was one to delete.
    pub fn delete(&self, key: &TokenKey, now: Moment) -> bool {
        let mut shard = self.shard(key).lock();
        shard.expire(now);
        shard.remove(key).is_some()
    }

    /// Lets go of entries whose time is over; without it their room is given back at the next `put` or `delete`.
    pub fn sweep(&self, now: Moment) {
        for shard in &self.shards {
            shard.lock().expire(now);
        }
    }

    /// How full it is.
    pub fn sizes(&self) -> Sizes {
        let mut sizes = Sizes::default();
        for shard in &self.shards {
            let shard = shard.lock();
            sizes.entries += shard.slots.len();
            sizes.bytes += shard.bytes;
            sizes.evictions += shard.evictions;
        }
        sizes
    }

    fn shard(&self, key: &TokenKey) -> &Mutex<Shard> {
        let hash = usize::try_from(xxh3_64(key.as_str().as_bytes()) >> 32).unwrap_or_default();
        // there is at least one, and the remainder is less than their number
        &self.shards[hash % self.shards.len()]
    }
}

// === impl Shard ===

impl Shard {
    fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn insert(&mut self, key: TokenKey, entry: Entry, expires: Moment) {
        let number = self.next();
        let expiry = (expires, number);
        self.bytes += entry.bytes() + OVERHEAD;
        self.by_use.insert(number, key);
        self.by_expiry.insert(expiry, key);
        self.slots.insert(
            key,
            Slot {
                entry,
                expiry,
                used: number,
            },
        );
    }

    fn touch(&mut self, key: &TokenKey, now: Moment) -> Option<Entry> {
        let number = self.next();
        let slot = self.slots.get_mut(key).filter(|slot| slot.expiry.0 > now)?;
        self.by_use.remove(&slot.used);
        self.by_use.insert(number, *key);
        slot.used = number;
        Some(slot.entry.clone())
    }

    fn expire(&mut self, now: Moment) {
        while let Some(first) = self.by_expiry.first_entry() {
            if first.key().0 > now {
                break;
            }
            let key = first.remove();
            self.remove(&key);
            self.evictions.expired += 1;
        }
    }

    fn remove(&mut self, key: &TokenKey) -> Option<Entry> {
        let slot = self.slots.remove(key)?;
        self.by_use.remove(&slot.used);
        self.by_expiry.remove(&slot.expiry);
        self.bytes -= slot.entry.bytes() + OVERHEAD;
        Some(slot.entry)
    }
}

// === impl Evictions ===

impl AddAssign for Evictions {
    fn add_assign(&mut self, other: Self) {
        self.expired += other.expired;
        self.full += other.full;
    }
}

#[cfg(test)]
mod tests;
