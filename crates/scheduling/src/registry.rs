//! Endpoints and their slots, over all snapshots.
//!
//! An endpoint that leaves the pool keeps its slot, and with it its load and what it is known to have cached, while
//! requests of ours are at it and [`LINGER`] more: a readiness blip, a label edit or a pool that is made anew must not
//! make a busy server look idle when it is back.

use std::{collections::HashMap, net::SocketAddr, sync::Arc, time::Duration};

use moment::Moment;

use crate::{
    endpoint::{Endpoint, EndpointId, Member},
    slot::Slot,
    snapshot::{Entry, Snapshot},
};

/// How long an endpoint without requests of ours is remembered after it left.
pub const LINGER: Duration = Duration::from_mins(1);

/// Endpoints that are remembered after they left. Past it those that left first are forgotten, if they have no requests.
const MAX_LEAVING: usize = 1024;

/// All endpoints of a pool, the members and those that left a moment ago. One writer: discovery.
#[derive(Debug, Default)]
pub struct Registry {
    version: u64,
    members: HashMap<Key, Arc<Endpoint>>,
    /// In the order in which they left.
    leaving: Vec<Leaving>,
    /// The next generation of each index.
    generations: Vec<u32>,
    free: Vec<u32>,
}

/// What makes an endpoint the same one. Another port of the pool for the same rank is another server.
type Key = (EndpointId, SocketAddr);

#[derive(Debug)]
struct Leaving {
    key: Key,
    endpoint: Arc<Endpoint>,
    /// When it was last seen with requests, or left.
    idle_since: Moment,
}

// === impl Registry ===

impl Registry {
    /// The snapshot of these members. One that is known, also if it left a moment ago, keeps its endpoint. Of two members
    /// with one id the first is kept.
    pub fn update(&mut self, mut members: Vec<Member>, now: Moment) -> Snapshot {
        members.sort();
        members.dedup_by(|b, a| a.id == b.id);
        self.version += 1;
        let mut before = std::mem::take(&mut self.members);
        let mut entries = Vec::with_capacity(members.len());
        for member in members {
            let Member {
                id,
                address,
                engine,
                labels,
            } = member;
            let key = (id, address);
            let known = before.remove(&key).or_else(|| self.return_of(&key));
            let endpoint = known.unwrap_or_else(|| {
                Arc::new(Endpoint::new(self.take_slot(), key.0.clone(), address))
            });
            self.members.insert(key, Arc::clone(&endpoint));
            entries.push(Entry {
                endpoint,
                engine,
                labels,
            });
        }
        self.leaving
            .extend(before.into_iter().map(|(key, endpoint)| Leaving {
                key,
                endpoint,
                idle_since: now,
            }));
        Snapshot::new(self.version, entries)
    }

    /// Forgets endpoints that left long enough ago; their slots, which match nothing any more. To be called now and then.
    pub fn sweep(&mut self, now: Moment) -> Vec<Slot> {
        for one in &mut self.leaving {
            if one.endpoint.load().in_flight() > 0 {
                one.idle_since = now;
            }
        }
        let mut over = self.leaving.len().saturating_sub(MAX_LEAVING);
        let mut forgotten = Vec::new();
        self.leaving.retain(|one| {
            let idle = one.endpoint.load().in_flight() == 0;
            let forget = idle && (over > 0 || now.since(one.idle_since) >= LINGER);
            if forget {
                over = over.saturating_sub(1);
                forgotten.push(one.endpoint.slot());
            }
            !forget
        });
        for slot in &forgotten {
            self.give_back(*slot);
        }
        forgotten
    }

    /// Endpoints that left and are remembered.
    pub fn leaving(&self) -> usize {
        self.leaving.len()
    }

    fn return_of(&mut self, key: &Key) -> Option<Arc<Endpoint>> {
        let index = self.leaving.iter().position(|one| one.key == *key)?;
        Some(self.leaving.remove(index).endpoint)
    }

    fn take_slot(&mut self) -> Slot {
        let index = self.free.pop().unwrap_or_else(|| {
            self.generations.push(0);
            u32::try_from(self.generations.len() - 1).unwrap_or(u32::MAX)
        });
        let generation = self.generation(index).map_or(0, |generation| *generation);
        Slot { index, generation }
    }

    fn give_back(&mut self, slot: Slot) {
        if let Some(generation) = self.generation(slot.index) {
            *generation = slot.generation.wrapping_add(1);
            self.free.push(slot.index);
        }
    }

    fn generation(&mut self, index: u32) -> Option<&mut u32> {
        self.generations.get_mut(usize::try_from(index).ok()?)
    }
}

#[cfg(test)]
mod tests;
