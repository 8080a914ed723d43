//! Which endpoints of which clusters have seen the beginning of a prompt.

use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
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
/// Endpoints that are taken out under one lock: some 10 us.
const RELEASED: usize = 64;

/// Chunks by endpoint, each with a time to stay, within a bound of memory.
///
/// A query may find an entry up to a second after its time: the next [`sweep`](Self::sweep) takes it.
///
/// Where there are more endpoints than it tracks, those stay whose entries last longest.
#[derive(Debug)]
pub struct CacheIndex {
    index: PrefixIndex,
    directory: RwLock<Directory>,
    refusals: AtomicU64,
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
            refusals: AtomicU64::new(0),
        }
    }

    /// The endpoint has this prompt for `ttl` from now on.
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
        let saved = self.slot(cluster, address, until).is_some_and(|slot| {
            if let Some(capacity) = capacity {
                let capacity = usize::try_from(capacity).unwrap_or(usize::MAX);
                self.index.set_capacity(slot, capacity);
            }
            self.index.insert_until(hashes, slot, until)
        });
        if !saved {
            self.refusals.fetch_add(1, Ordering::Relaxed);
        }
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
        let gone = self.directory.write().remove(cluster, &address);
        self.release(gone.as_slice());
    }

    /// As [`purge`](Self::purge), all endpoints of the cluster.
    pub fn purge_cluster(&self, cluster: &Cluster) {
        let gone = self.directory.write().clusters.remove(cluster);
        let gone = gone.into_iter().flatten().map(|(_, seen)| seen.slot);
        self.release(&gone.collect::<Vec<_>>());
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

    /// How often an endpoint found no place, or lost its place to another one, since the start.
    pub fn refusals(&self) -> u64 {
        self.refusals.load(Ordering::Relaxed)
    }

    /// The slot of the endpoint, which has entries until then. None if others last longer and there is no place left.
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
            let gone = directory.remove_before(until)?;
            self.index.remove(gone);
            self.refusals.fetch_add(1, Ordering::Relaxed);
            next_generation(gone)
        };
        let until = AtomicU32::new(until);
        let seen = directory.clusters.entry_ref(cluster).or_default();
        seen.insert(address, Seen { slot, until });
        Some(slot)
    }

    /// Gives back the slots of endpoints whose entries are all over, some at a time.
    fn forget(&self, now: u32) {
        let directory = self.directory.read();
        let all = directory.all().filter(|(_, _, seen)| seen.until() <= now);
        let over: Vec<_> = all.map(|(name, ip, _)| (name.clone(), *ip)).collect();
        drop(directory);
        for step in over.chunks(RELEASED) {
            let mut directory = self.directory.write();
            let gone = step.iter().filter_map(|(cluster, address)| {
                // Unless it was saved again since.
                let seen = directory.clusters.get(cluster)?.get(address)?;
                let over = seen.until() <= now;
                over.then(|| directory.remove(cluster, address)).flatten()
            });
            let gone: Vec<_> = gone.collect();
            drop(directory);
            self.release(&gone);
        }
    }

    /// Nothing matches these slots from now on; their next generations are free.
    fn release(&self, gone: &[Slot]) {
        for step in gone.chunks(RELEASED) {
            self.index.remove_all(step);
            let next = step.iter().copied().map(next_generation);
            self.directory.write().free.extend(next);
        }
    }
}

// === impl Directory ===

impl Directory {
    fn all(&self) -> impl Iterator<Item = (&Cluster, &Address, &Seen)> {
        let clusters = self.clusters.iter();
        clusters.flat_map(|(name, seen)| seen.iter().map(move |(ip, seen)| (name, ip, seen)))
    }

    fn remove(&mut self, cluster: &Cluster, address: &Address) -> Option<Slot> {
        let seen = self.clusters.get_mut(cluster)?;
        let gone = seen.remove(address);
        if seen.is_empty() {
            self.clusters.remove(cluster);
        }
        gone.map(|it| it.slot)
    }

    /// Removes the endpoint whose entries are over first, if that is before `until`.
    fn remove_before(&mut self, until: u32) -> Option<Slot> {
        let first = self.all().min_by_key(|(_, _, seen)| seen.until());
        let (cluster, address, _) = first.filter(|(_, _, seen)| seen.until() < until)?;
        let (cluster, address) = (cluster.clone(), *address);
        self.remove(&cluster, &address)
    }
}

// === impl Seen ===

impl Seen {
    fn until(&self) -> u32 {
        self.until.load(Ordering::Relaxed)
    }
}

fn next_generation(slot: Slot) -> Slot {
    Slot {
        generation: slot.generation.wrapping_add(1),
        ..slot
    }
}

/// Whole seconds since the start.
fn second(moment: Moment) -> u32 {
    u32::try_from(moment.since_start().as_secs()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
