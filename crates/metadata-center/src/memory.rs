//! The state in the memory of this process: one replica, empty after a restart.

use std::time::SystemTime;

use metadata::{
    Address, Center, Cluster, Fault, Instance, Limits, Now, RequestId, Sizes, Swept,
    wire::{
        batch::{Applied, Batch, ClusterState},
        cache::{Locations, Query, Save},
        load::{Add, Load},
        pick::{Pick, Picks},
    },
};
use moment::Clock;

use crate::engine::{BootId, CacheSize, Engine};

/// A [`Center`] with a clock. No call waits.
#[derive(Debug)]
pub struct Memory {
    center: Center,
    clock: Clock,
    boot: BootId,
}

// === impl Memory ===

impl Memory {
    /// An empty state.
    pub fn new(limits: Limits, clock: Clock) -> Self {
        Self {
            center: Center::new(limits),
            clock,
            boot: BootId(rand::random()),
        }
    }

    fn now(&self) -> Now {
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let nanos = since_1970.unwrap_or_default().as_nanos();
        Now {
            at: self.clock.now(),
            unix_ns: i64::try_from(nanos).unwrap_or(i64::MAX),
        }
    }
}

// === impl Engine ===

impl Engine for Memory {
    fn boot(&self) -> BootId {
        self.boot
    }

    fn unready(&self) -> Option<&'static str> {
        None
    }

    async fn loads(&self, cluster: &Cluster) -> Result<Option<Vec<Load>>, Fault> {
        Ok(self.center.loads(cluster))
    }

    async fn add(&self, add: Add, strict: bool) -> Result<(), Fault> {
        self.center.add(add, strict, self.now())
    }

    async fn prompt_done(&self, id: &RequestId, strict: bool) -> Result<(), Fault> {
        self.center.prompt_done(id, strict, self.now())
    }

    async fn remove(&self, id: &RequestId, strict: bool) -> Result<(), Fault> {
        self.center.remove(id, strict, self.now())
    }

    async fn batch(&self, batch: Batch) -> Result<Applied, Fault> {
        self.center.batch(batch, self.now())
    }

    async fn end_leases(&self, instance: &Instance, epoch: u64) -> Result<(), Fault> {
        self.center.end_leases(instance, epoch, self.now());
        Ok(())
    }

    async fn pick(&self, pick: &Pick) -> Result<Picks, Fault> {
        self.center.pick(pick, &mut rand::rng(), self.now())
    }

    async fn save(&self, save: &Save) -> Result<(), Fault> {
        self.center.save(save, self.now())
    }

    async fn query(&self, query: &Query) -> Result<Locations, Fault> {
        self.center.query(query, self.now())
    }

    async fn purge(&self, cluster: &Cluster, ip: Address) -> Result<(), Fault> {
        self.center.purge(cluster, ip);
        Ok(())
    }

    async fn clusters(&self) -> Result<Vec<ClusterState>, Fault> {
        Ok(self.center.clusters(self.now()))
    }

    async fn sweep(&self) -> Result<Swept, Fault> {
        Ok(self.center.sweep(self.now()))
    }

    fn cache_size(&self) -> CacheSize {
        let (bytes, evictions) = self.center.cache_size();
        CacheSize { bytes, evictions }
    }

    async fn sizes(&self) -> Result<Sizes, Fault> {
        Ok(self.center.sizes())
    }
}
