//! Which endpoints have seen the beginning of a prompt, as far as this endpoint picker sent it there: chunks, as the LLM
//! filter hashes them.
//!
//! Beside the index of blocks, which other scorers ask for: its hashes are shared with other gateways, it has a time to
//! live, and it knows clusters.

use std::{collections::HashMap, net::SocketAddr, sync::OnceLock, time::Duration};

use metadata::{CacheIndex, Cluster};
use parking_lot::Mutex;
use scheduling::{Endpoint, Moment, Slot, Snapshot, murmur3::CHUNK};

use super::BYTES_PER_TOKEN;

/// For how long an endpoint is taken to get the prompt of a pick; the save that follows lasts longer.
const SPECULATIVE: Duration = Duration::from_mins(1);

/// For how long it has a prompt that it answered.
const SAVED: Duration = Duration::from_hours(1);

/// The chunks of one pool's endpoints. Takes no memory before its first prompt.
#[derive(Debug)]
pub(super) struct Chunks {
    max_bytes: u64,
    index: OnceLock<CacheIndex>,
    /// Of each endpoint the slot of its cache, which is another one after a restart.
    lives: Mutex<HashMap<SocketAddr, Slot>>,
}

// === impl Chunks ===

impl Chunks {
    pub(super) fn new(max_bytes: u64) -> Self {
        Self {
            max_bytes,
            index: OnceLock::new(),
            lives: Mutex::default(),
        }
    }

    /// By endpoint, how many chunks of the prompt it has, from the first on.
    pub(super) fn matches(
        &self,
        cluster: &Cluster,
        hashes: &[u64],
        addresses: &[SocketAddr],
    ) -> Vec<u32> {
        match self.index.get() {
            Some(index) => {
                let addresses = addresses.iter().map(|address| (*address).into());
                index.matches(cluster, hashes, addresses)
            }
            None => Vec::new(),
        }
    }

    /// The endpoint is picked for the prompt.
    pub(super) fn speculate(
        &self,
        cluster: &Cluster,
        endpoint: &Endpoint,
        hashes: &[u64],
        now: Moment,
    ) {
        let address = endpoint.address().into();
        self.index()
            .insert(cluster, address, hashes, SPECULATIVE, now);
    }

    /// The endpoint answered the prompt.
    pub(super) fn save(&self, cluster: &Cluster, endpoint: &Endpoint, hashes: &[u64], now: Moment) {
        let address = endpoint.address().into();
        let capacity = capacity(endpoint);
        self.index()
            .save(cluster, address, hashes, SAVED, capacity, now);
    }

    /// Forgets what is over, what endpoints had that are gone, and what engines had before they started again. To be called
    /// each second. Answers with the endpoints that have nothing any more.
    pub(super) fn tend(&self, snapshot: &Snapshot, gone: &[Slot], now: Moment) -> Vec<SocketAddr> {
        let Some(index) = self.index.get() else {
            return Vec::new();
        };
        let mut forgotten = Vec::new();
        let mut lives = self.lives.lock();
        for endpoint in snapshot.endpoints() {
            let life = endpoint.slot().after_restarts(endpoint.load().restarts());
            let before = lives.insert(endpoint.address(), life);
            if before.is_some_and(|before| before != life) {
                forgotten.push(endpoint.address());
            }
        }
        lives.retain(|address, life| {
            let is_gone = gone.contains(&life.life_of());
            if is_gone {
                forgotten.push(*address);
            }
            !is_gone
        });
        drop(lives);
        for address in &forgotten {
            index.purge_everywhere((*address).into());
        }
        index.sweep(now);
        forgotten
    }

    fn index(&self) -> &CacheIndex {
        let make = || CacheIndex::new(usize::try_from(self.max_bytes).unwrap_or(usize::MAX));
        self.index.get_or_init(make)
    }
}

/// Chunks that the engine's cache holds; none: the index has a default.
pub(super) fn capacity(endpoint: &Endpoint) -> Option<u32> {
    let cache = endpoint.load().cache()?;
    let tokens = u64::from(cache.block_tokens) * u64::from(cache.blocks);
    let chunks = tokens.saturating_mul(BYTES_PER_TOKEN.into()) / CHUNK as u64;
    Some(u32::try_from(chunks).unwrap_or(u32::MAX).max(1))
}

#[cfg(test)]
mod tests {
    use scheduling::{LINGER, Registry, Scraped};

    use super::*;
    use crate::fixtures::mk_member;

    const HASHES: [u64; 3] = [1, 2, 3];

    fn mk_cluster() -> Cluster {
        "ns/pool".parse().unwrap()
    }

    fn matched(chunks: &Chunks, snapshot: &Snapshot) -> Vec<u32> {
        let addresses: Vec<_> = snapshot.endpoints().map(|one| one.address()).collect();
        chunks.matches(&mk_cluster(), &HASHES, &addresses)
    }

    fn at(seconds: u64) -> Moment {
        Moment::from_millis(seconds * 1000)
    }

    #[test]
    fn a_pick_counts_for_a_minute_and_an_answer_for_an_hour() {
        let members = ["10.0.0.1:80", "10.0.0.2:80"];
        let members = members.map(|one| mk_member(one, one.parse().unwrap()));
        let snapshot = Registry::default().update(members.to_vec(), at(0));
        let endpoints: Vec<_> = snapshot.endpoints().collect();
        let chunks = Chunks::new(1 << 20);
        assert!(matched(&chunks, &snapshot).is_empty());
        chunks.speculate(&mk_cluster(), endpoints[0], &HASHES, at(0));
        chunks.save(&mk_cluster(), endpoints[1], &HASHES[..2], at(0));
        assert_eq!(matched(&chunks, &snapshot), [3, 2]);
        chunks.tend(&snapshot, &[], at(62));
        assert_eq!(matched(&chunks, &snapshot), [0, 2]);
        chunks.tend(&snapshot, &[], at(3602));
        assert_eq!(matched(&chunks, &snapshot), [0, 0]);
    }

    #[test]
    fn an_engine_that_starts_again_and_a_pod_that_is_gone_have_nothing() {
        let members = ["10.0.0.1:80", "10.0.0.2:80"];
        let members = members.map(|one| mk_member(one, one.parse().unwrap()));
        let mut registry = Registry::default();
        let snapshot = registry.update(members.to_vec(), at(0));
        let chunks = Chunks::new(1 << 20);
        for endpoint in snapshot.endpoints() {
            chunks.save(&mk_cluster(), endpoint, &HASHES, at(0));
        }
        let started = |seconds: f64| {
            let load = snapshot.endpoints().next().unwrap().load();
            let page = Scraped {
                waiting: Some(0.0),
                started: Some(seconds),
                ..Scraped::default()
            };
            load.scraped(load.scrape_starts(at(1)), page).unwrap();
        };
        started(1000.0);
        chunks.tend(&snapshot, &[], at(1));
        assert_eq!(matched(&chunks, &snapshot), [3, 3]);
        started(2000.0);
        chunks.tend(&snapshot, &[], at(2));
        assert_eq!(matched(&chunks, &snapshot), [0, 3]);
        let rest = registry.update(members[..1].to_vec(), at(3));
        let gone = registry.sweep(at(4) + LINGER);
        chunks.tend(&rest, &gone, at(4));
        assert_eq!(matched(&chunks, &snapshot), [0, 0]);
    }
}
