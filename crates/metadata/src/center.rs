//! The state of a Metadata-Center.

mod charges;
mod endpoints;
mod freed;
mod lease;
mod pick;
mod reports;
mod reservations;
mod room;
mod size;
mod space;
mod timed;
mod unowned;

use std::{sync::Arc, time::Duration};

use hashbrown::HashMap;
use moment::Moment;
use parking_lot::RwLock;
use rand::Rng;

pub use self::size::{ClusterSize, Limits, Sizes, Swept};
use self::{
    freed::Freed,
    room::Room,
    space::{Shared, Space},
    unowned::Unowned,
};
use crate::{
    cache_index::CacheIndex,
    fault::{Bound, Fault},
    name::{Address, Cluster, Instance, RequestId},
    wire::{
        batch::{Applied, Batch, ClusterState},
        cache::{Locations, Query, Save},
        load::{Add, Load},
        pick::{Pick, Picks},
    },
};

/// One reading of both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// For all deadlines.
    pub at: Moment,
    /// For people: nanoseconds since 1970.
    pub unix_ns: i64,
}

/// The state of a Metadata-Center in memory, within [`Limits`].
///
/// For each endpoint of each cluster, requests are its charges and reservations, and prefill is their sum.
///
/// # Memory
/// A charge takes at most 200 bytes with its share of the tables: 55 to 112 if an instance reports it, 100 to 200 if it
/// is owner-less or a reservation.
///
/// # Threads
/// Owners do not wait for each other, nor picks of different clusters. What all share is read under shared locks that
/// are written when a cluster, an endpoint or an instance comes or goes.
#[derive(Debug)]
pub struct Center {
    limits: Limits,
    shared: Shared,
    spaces: RwLock<HashMap<Cluster, Arc<Space>>>,
    unowned: Unowned,
    cache: CacheIndex,
}

// === impl Center ===

impl Center {
    /// An empty state.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            shared: Shared {
                requests: Room::new(limits.requests),
                leases: Room::new(limits.instances),
                // As many whose lease is over.
                reporters: Room::new(limits.instances.saturating_mul(2)),
                max_endpoints: limits.endpoints,
                freed: Freed::default(),
            },
            spaces: RwLock::default(),
            unowned: Unowned::new(),
            cache: CacheIndex::new(limits.cache_max_bytes),
        }
    }

    /// `GET /v1/load/stats`: the endpoints of the cluster by address; none if the cluster is unknown.
    pub fn loads(&self, cluster: &Cluster) -> Option<Vec<Load>> {
        let space = self.find(cluster)?;
        let loads = space.endpoints.read().loads();
        Some(loads)
    }

    /// `POST /v1/load/stats`. A known request is not charged again.
    ///
    /// # Errors
    /// [`Fault::Limit`]; with `strict` [`Fault::Duplicate`] where the request is charged to another endpoint.
    pub fn add(&self, add: Add, strict: bool, now: Now) -> Result<(), Fault> {
        let cluster = add.cluster.clone();
        let until = now.at + self.limits.request_expire;
        let open = || self.open(&cluster, now);
        self.unowned
            .add(add, strict, until, now, open, &self.shared)
    }

    /// `DELETE /v1/load/prompt`: the prefill of the request is done. Of an unknown request it is remembered for 2 s, in
    /// case its add comes late.
    ///
    /// # Errors
    /// With `strict`, [`Fault::UnknownRequest`].
    pub fn prompt_done(&self, id: &RequestId, strict: bool, now: Now) -> Result<(), Fault> {
        self.unowned.delete(id, false, strict, now, &self.shared)
    }

    /// `DELETE /v1/load/stats`: the request ended. Of an unknown request it is remembered for 2 s, in case its add comes
    /// late.
    ///
    /// It names no cluster, so a reservation of this id stays until its time is over: only the delete of a batch drops
    /// one.
    ///
    /// # Errors
    /// With `strict`, [`Fault::UnknownRequest`].
    pub fn remove(&self, id: &RequestId, strict: bool, now: Now) -> Result<(), Fault> {
        self.unowned.delete(id, true, strict, now, &self.shared)
    }

    /// `POST /v1/load/batch`.
    ///
    /// # Errors
    /// [`Fault::InvalidParameter`]; [`Fault::StaleEpoch`], [`Fault::LeaseLost`] and [`Fault::StaleSeq`], in this order;
    /// [`Fault::Limit`], where what the batch ends is ended and the lease goes on, but no put was applied and the batch
    /// does not count as the owner's last: the same one may come again.
    pub fn batch(&self, batch: Batch, now: Now) -> Result<Applied, Fault> {
        batch.validate()?;
        let space = if batch.full {
            self.open(&batch.cluster, now)?
        } else {
            self.find_used(&batch.cluster, now)
                .ok_or(Fault::LeaseLost)?
        };
        if batch.full && !space.knows(&batch.instance) && self.shared.reporters.is_full() {
            // One whose lease is over gives way, of whichever cluster.
            self.all().iter().any(|it| it.forget_one(&self.shared));
        }
        space.batch(&batch, &self.shared, now)
    }

    /// `DELETE /v1/leases/{instance}?epoch=`: in each cluster, unless the lease there is of a later epoch.
    pub fn end_leases(&self, instance: &Instance, epoch: u64, now: Now) {
        for space in self.all() {
            space.end_lease(instance, epoch, &self.shared, now);
        }
    }

    /// `POST /v1/pick`.
    ///
    /// # Errors
    /// [`Fault::InvalidParameter`], [`Fault::Limit`].
    pub fn pick<R: Rng + ?Sized>(
        &self,
        pick: &Pick,
        rng: &mut R,
        now: Now,
    ) -> Result<Picks, Fault> {
        pick.validate()?;
        let space = self.open(&pick.cluster, now)?;
        space.pick(pick, &self.cache, &self.shared, rng, now)
    }

    /// `POST /v1/cache/save`.
    ///
    /// # Errors
    /// [`Fault::InvalidParameter`], [`Fault::Limit`].
    pub fn save(&self, save: &Save, now: Now) -> Result<(), Fault> {
        save.validate()?;
        self.open(&save.cluster, now)?;
        let ttl = save.ttl_s.map(|it| Duration::from_secs(it.into()));
        let ttl = ttl.unwrap_or(self.limits.cache_expire);
        let hashes = save.prompt_hash.hashes();
        self.cache
            .save(&save.cluster, save.ip, hashes, ttl, save.capacity, now.at);
        Ok(())
    }

    /// `POST /v1/cache/query`.
    ///
    /// # Errors
    /// [`Fault::InvalidParameter`].
    pub fn query(&self, query: &Query, now: Now) -> Result<Locations, Fault> {
        query.validate()?;
        self.find_used(&query.cluster, now);
        let hashes = query.prompt_hash.hashes();
        let locations = if let Some(candidates) = &query.candidates {
            self.cache.locations_of(&query.cluster, hashes, candidates)
        } else {
            let mut locations = self.cache.locations(&query.cluster, hashes);
            let top_k = query.limit().unwrap_or(self.limits.cache_top_k);
            locations.truncate(usize::try_from(top_k).unwrap_or(usize::MAX));
            locations
        };
        Ok(Locations { locations })
    }

    /// `DELETE /v1/cache/endpoint?cluster=&ip=`.
    pub fn purge(&self, cluster: &Cluster, ip: Address) {
        self.cache.purge(cluster, ip);
    }

    /// `GET /v1/clusters`, by name.
    pub fn clusters(&self, now: Now) -> Vec<ClusterState> {
        let state = |space: Arc<Space>| {
            let leases = space.leases(now.at);
            let endpoints = space.endpoints.read();
            ClusterState {
                cluster: space.name.clone(),
                endpoints: endpoints.len() as u64,
                requests: u64::try_from(endpoints.sum().0).unwrap_or(0),
                chunks: self.cache.chunks(&space.name),
                leases,
            }
        };
        self.all().into_iter().map(state).collect()
    }

    /// Frees what is over, a little at a time. To call each second, in one thread.
    pub fn sweep(&self, now: Now) -> Swept {
        let keep = self.limits.request_expire;
        self.unowned.sweep(now, &self.shared);
        let mut swept = Swept {
            cache_entries: self.cache.sweep(now.at),
            ..Swept::default()
        };
        for space in self.all() {
            swept.endpoints += space.sweep(keep, &self.shared, now);
            let unused = space.unused(now.at) >= keep && !self.cache.has(&space.name);
            let name = space.name.clone();
            drop(space);
            if unused {
                let mut spaces = self.spaces.write();
                swept.clusters += usize::from(self.close(&mut spaces, &name));
            }
        }
        self.shared.freed.take_into(&mut swept);
        swept
    }

    /// Bytes of the cache index, and chunks that gave way to others.
    pub fn cache_size(&self) -> (usize, u64) {
        let cache = self.cache.stats();
        (cache.bytes, cache.evictions)
    }

    /// How much there is, for metrics.
    pub fn sizes(&self) -> Sizes {
        let cache = self.cache.stats();
        let mut sizes = Sizes {
            requests: self.shared.requests.taken(),
            leases: self.shared.leases.taken(),
            cache_entries: cache.entries,
            cache_bytes: cache.bytes,
            cache_evictions: cache.evictions,
            cache_refusals: self.cache.refusals(),
            ..Sizes::default()
        };
        for space in self.all() {
            let endpoints = space.endpoints.read();
            let (requests, prefill) = endpoints.sum();
            sizes.clusters += 1;
            sizes.endpoints += endpoints.len();
            sizes.reservations += space.reservations.len();
            sizes.by_cluster.push(ClusterSize {
                cluster: space.name.clone(),
                endpoints: endpoints.len(),
                requests,
                prefill,
            });
        }
        sizes
    }

    /// By name.
    fn all(&self) -> Vec<Arc<Space>> {
        let mut all: Vec<_> = self.spaces.read().values().cloned().collect();
        all.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        all
    }

    fn find(&self, cluster: &Cluster) -> Option<Arc<Space>> {
        self.spaces.read().get(cluster).cloned()
    }

    fn find_used(&self, cluster: &Cluster, now: Now) -> Option<Arc<Space>> {
        let space = self.find(cluster)?;
        space.touch(now.at);
        Some(space)
    }

    /// The cluster, which begins now if it is unknown.
    fn open(&self, cluster: &Cluster, now: Now) -> Result<Arc<Space>, Fault> {
        if let Some(space) = self.find_used(cluster, now) {
            return Ok(space);
        }
        let mut spaces = self.spaces.write();
        if let Some(space) = spaces.get(cluster) {
            return Ok(Arc::clone(space));
        }
        let mut closed = None;
        if spaces.len() >= self.limits.clusters {
            closed = self.make_room(&mut spaces, now);
            if closed.is_none() {
                return Err(Fault::Limit(Bound::Clusters));
            }
        }
        let space = Arc::new(Space::new(cluster.clone(), now));
        spaces.insert(cluster.clone(), Arc::clone(&space));
        drop(spaces);
        if let Some(closed) = closed {
            self.cache.purge_cluster(&closed);
        }
        Ok(space)
    }

    /// Closes the cluster that was unused for longest, if that is long: it is kept for its cache only. Says which.
    fn make_room(&self, spaces: &mut HashMap<Cluster, Arc<Space>>, now: Now) -> Option<Cluster> {
        let unused = |it: &&Arc<Space>| it.unused(now.at) >= self.limits.request_expire;
        let mut unused: Vec<_> = spaces.values().filter(unused).cloned().collect();
        unused.sort_by_key(|it| std::cmp::Reverse(it.unused(now.at)));
        let names: Vec<_> = unused.iter().map(|it| it.name.clone()).collect();
        drop(unused);
        names.into_iter().find(|it| self.close(spaces, it))
    }

    /// Removes the cluster, unless it has load or a lease, or a call is using it.
    fn close(&self, spaces: &mut HashMap<Cluster, Arc<Space>>, cluster: &Cluster) -> bool {
        // Only the map has it, and while that is locked nobody gets it.
        let idle = |it: &Arc<Space>| Arc::strong_count(it) == 1 && it.is_idle();
        if !spaces.get(cluster).is_some_and(idle) {
            return false;
        }
        if let Some(space) = spaces.remove(cluster) {
            space.close(&self.shared);
        }
        true
    }
}

#[cfg(test)]
mod tests;
