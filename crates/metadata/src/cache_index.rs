//! Which endpoints of which clusters have seen the beginning of a prompt.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use hashbrown::HashMap;
use moment::Moment;
use parking_lot::RwLock;
use scheduling::{
    Slot,
    prefix::{Cursor, PrefixIndex, Stats},
};

use crate::{
    name::{Address, Cluster},
    wire::cache::Location,
};

/// Suits up to some 64 threads.
const SHARDS: usize = 64;
/// Shards of less memory would have room for few endpoints: with 64 KiB it is 64.
const MIN_SHARD_BYTES: usize = 64 << 10;
/// Entries that one step of a sweep looks at, while one shard in 64 is locked.
const STEP: usize = 4096;

/// Chunks by endpoint, each with a time to stay, within a bound of memory.
///
/// A query may find an entry up to a second after its time: the next [`sweep`](Self::sweep) takes it.
#[derive(Debug)]
pub struct CacheIndex {
    index: PrefixIndex,
    directory: RwLock<Directory>,
}

#[derive(Debug, Default)]
struct Directory {
    clusters: HashMap<Cluster, HashMap<Address, Seen>>,
    free: Vec<Slot>,
    next: u32,
}

/// An endpoint that has entries.
#[derive(Debug)]
struct Seen {
    slot: Slot,
    /// From this second on they are all over.
    until: AtomicU32,
}

// === impl CacheIndex ===

impl CacheIndex {
    /// An empty index for at most `max_bytes`.
    pub fn new(max_bytes: usize) -> Self {
        let shards = (max_bytes / MIN_SHARD_BYTES).clamp(1, SHARDS);
        Self {
            index: PrefixIndex::new(max_bytes, shards),
            directory: RwLock::default(),
        }
    }

    /// The endpoint has this prompt for `ttl` from now on. Of more endpoints than the index tracks the new ones are not
    /// kept.
    pub fn insert(
        &self,
        cluster: &Cluster,
        address: Address,
        hashes: &[u64],
        ttl: Duration,
        now: Moment,
    ) {
        self.save(cluster, address, hashes, ttl, None, now);
    }

    /// As [`insert`](Self::insert); with `capacity` the endpoint keeps up to so many chunks from now on.
    pub fn save(
        &self,
        cluster: &Cluster,
        address: Address,
        hashes: &[u64],
        ttl: Duration,
        capacity: Option<u32>,
        now: Moment,
    ) {
        if hashes.is_empty() {
            return;
        }
        let until = second(now + ttl).saturating_add(1);
        let Some(slot) = self.slot(cluster, address, until) else {
            return;
        };
        if let Some(capacity) = capacity {
            let capacity = usize::try_from(capacity).unwrap_or(usize::MAX);
            self.index.set_capacity(slot, capacity);
        }
        self.index.insert_until(hashes, slot, until);
    }

    /// How many chunks of the prompt each endpoint has, from its beginning.
    pub fn matches(
        &self,
        cluster: &Cluster,
        hashes: &[u64],
        addresses: impl Iterator<Item = Address>,
    ) -> Vec<u32> {
        let directory = self.directory.read();
        let seen = directory.clusters.get(cluster);
        // No slot has the last index.
        let nowhere = Slot {
            index: u32::MAX,
            generation: 0,
        };
        let slot = |address| {
            seen.and_then(|it| it.get(&address))
                .map_or(nowhere, |it| it.slot)
        };
        let slots: Vec<_> = addresses.map(slot).collect();
        drop(directory);
        let mut matched = vec![0; slots.len()];
        if !hashes.is_empty() {
            self.index.matches(hashes, &slots, &mut matched);
        }
        matched
    }

    /// The endpoints that have a beginning of the prompt: longest match first, then by address.
    pub fn locations(&self, cluster: &Cluster, hashes: &[u64]) -> Vec<Location> {
        let directory = self.directory.read();
        let seen = directory.clusters.get(cluster);
        let addresses: Vec<_> = seen.into_iter().flat_map(HashMap::keys).copied().collect();
        drop(directory);
        self.locations_of(cluster, hashes, &addresses)
    }

    /// As [`locations`](Self::locations), of these only.
    pub fn locations_of(
        &self,
        cluster: &Cluster,
        hashes: &[u64],
        addresses: &[Address],
    ) -> Vec<Location> {
        let matched = self.matches(cluster, hashes, addresses.iter().copied());
        let locations = addresses
            .iter()
            .zip(matched)
            .filter(|(_, length)| *length > 0);
        let mut locations: Vec<_> = locations
            .map(|(ip, length)| Location { ip: *ip, length })
            .collect();
        locations.sort_unstable_by(|a, b| b.length.cmp(&a.length).then(a.ip.cmp(&b.ip)));
        locations.dedup();
        locations
    }

    /// The endpoint's cache is empty: it matches nothing from now on.
    pub fn purge(&self, cluster: &Cluster, address: Address) {
        let mut directory = self.directory.write();
        let Directory { clusters, free, .. } = &mut *directory;
        let Some(seen) = clusters.get_mut(cluster) else {
            return;
        };
        if let Some(gone) = seen.remove(&address) {
            self.release(gone, free);
        }
        if seen.is_empty() {
            clusters.remove(cluster);
        }
    }

    /// As [`purge`](Self::purge), in all clusters that have the endpoint.
    pub fn purge_everywhere(&self, address: Address) {
        let mut directory = self.directory.write();
        let Directory { clusters, free, .. } = &mut *directory;
        clusters.retain(|_, seen| {
            if let Some(gone) = seen.remove(&address) {
                self.release(gone, free);
            }
            !seen.is_empty()
        });
    }

    /// As [`purge`](Self::purge), all endpoints of the cluster.
    pub fn purge_cluster(&self, cluster: &Cluster) {
        let mut directory = self.directory.write();
        let Directory { clusters, free, .. } = &mut *directory;
        let gone = clusters.remove(cluster).unwrap_or_default();
        gone.into_values().for_each(|it| self.release(it, free));
    }

    /// Frees what is past its time, some at a time; says how many entries. To call each second.
    pub fn sweep(&self, now: Moment) -> usize {
        let now = second(now);
        let mut swept = 0;
        let mut cursor = Cursor::default();
        while !cursor.is_done() {
            swept += self.index.expire(&mut cursor, now, STEP);
        }
        while self.index.sweep(STEP / 16) > 0 {}
        self.forget(now);
        swept
    }

    /// Whether anything of the cluster is kept.
    pub fn has(&self, cluster: &Cluster) -> bool {
        self.directory.read().clusters.contains_key(cluster)
    }

    /// How many chunks the endpoints of a cluster have together.
    pub fn chunks(&self, cluster: &Cluster) -> u64 {
        let directory = self.directory.read();
        let seen = directory.clusters.get(cluster);
        let slots: Vec<_> = seen
            .into_iter()
            .flat_map(HashMap::values)
            .map(|it| it.slot)
            .collect();
        drop(directory);
        self.index.entries_of(&slots) as u64
    }

    /// How large it is.
    pub fn stats(&self) -> Stats {
        self.index.stats()
    }

    /// The slot of the endpoint, which has entries until then.
    fn slot(&self, cluster: &Cluster, address: Address, until: u32) -> Option<Slot> {
        let find = |directory: &Directory| {
            let seen = directory.clusters.get(cluster)?.get(&address)?;
            seen.until.fetch_max(until, Ordering::Relaxed);
            Some(seen.slot)
        };
        if let Some(slot) = find(&self.directory.read()) {
            return Some(slot);
        }
        let mut directory = self.directory.write();
        if let Some(slot) = find(&directory) {
            return Some(slot);
        }
        let slot = if let Some(slot) = directory.free.pop() {
            slot
        } else if (directory.next as usize) < self.index.max_endpoints() {
            let index = directory.next;
            directory.next += 1;
            Slot {
                index,
                generation: 0,
            }
        } else {
            return None;
        };
        let until = AtomicU32::new(until);
        let seen = directory.clusters.entry_ref(cluster).or_default();
        seen.insert(address, Seen { slot, until });
        Some(slot)
    }

    /// Gives back the slots of endpoints whose entries are all over.
    fn forget(&self, now: u32) {
        let over = |seen: &Seen| seen.until.load(Ordering::Relaxed) <= now;
        let directory = self.directory.read();
        let mut all = directory.clusters.values().flat_map(HashMap::values);
        let any = all.any(over);
        drop(directory);
        if !any {
            return;
        }
        let mut directory = self.directory.write();
        let Directory { clusters, free, .. } = &mut *directory;
        clusters.retain(|_, seen| {
            let gone = seen.extract_if(|_, seen| over(seen));
            gone.for_each(|(_, gone)| self.release(gone, free));
            !seen.is_empty()
        });
    }

    fn release(&self, seen: Seen, free: &mut Vec<Slot>) {
        self.index.remove(seen.slot);
        free.push(Slot {
            generation: seen.slot.generation.wrapping_add(1),
            ..seen.slot
        });
    }
}

/// Whole seconds since the start.
fn second(moment: Moment) -> u32 {
    u32::try_from(moment.since_start().as_secs()).unwrap_or(u32::MAX)
}
