//! The state of a Metadata-Center.

mod size;

use moment::Moment;
use rand::Rng;

pub use self::size::{ClusterSize, Limits, Sizes, Swept};
use crate::{
    fault::Fault,
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

/// The state of a Metadata-Center in memory.
#[derive(Debug)]
pub struct Center {
    limits: Limits,
}

// === impl Center ===

#[expect(
    clippy::missing_errors_doc,
    clippy::unused_self,
    clippy::unnecessary_wraps,
    reason = "a skeleton to build against"
)]
impl Center {
    /// An empty state.
    pub fn new(limits: Limits) -> Self {
        Self { limits }
    }

    /// `GET /v1/load/stats`: the endpoints of the cluster by address; none if the cluster is unknown.
    pub fn loads(&self, _cluster: &Cluster) -> Option<Vec<Load>> {
        None
    }

    /// `POST /v1/load/stats`.
    pub fn add(&self, _add: Add, _strict: bool, _now: Now) -> Result<(), Fault> {
        Ok(())
    }

    /// `DELETE /v1/load/prompt`.
    pub fn prompt_done(&self, _id: &RequestId, _strict: bool, _now: Now) -> Result<(), Fault> {
        Ok(())
    }

    /// `DELETE /v1/load/stats`.
    pub fn remove(&self, _id: &RequestId, _strict: bool, _now: Now) -> Result<(), Fault> {
        Ok(())
    }

    /// `POST /v1/load/batch`.
    pub fn batch(&self, batch: Batch, _now: Now) -> Result<Applied, Fault> {
        Ok(Applied {
            resync: false,
            lease_ms: batch.lease_ms,
        })
    }

    /// `DELETE /v1/leases/{instance}?epoch=`: in each cluster.
    pub fn end_leases(&self, _instance: &Instance, _epoch: u64, _now: Now) {}

    /// `POST /v1/pick`.
    pub fn pick<R: Rng + ?Sized>(
        &self,
        _pick: &Pick,
        _rng: &mut R,
        _now: Now,
    ) -> Result<Picks, Fault> {
        Err(Fault::Internal)
    }

    /// `POST /v1/cache/save`.
    pub fn save(&self, _save: &Save, _now: Now) -> Result<(), Fault> {
        Ok(())
    }

    /// `POST /v1/cache/query`.
    pub fn query(&self, _query: &Query, _now: Now) -> Result<Locations, Fault> {
        Ok(Locations::default())
    }

    /// `DELETE /v1/cache/endpoint?cluster=&ip=`.
    pub fn purge(&self, _cluster: &Cluster, _ip: Address) {}

    /// `GET /v1/clusters`, by name.
    pub fn clusters(&self, _now: Now) -> Vec<ClusterState> {
        Vec::new()
    }

    /// Frees what is over. To call each second.
    pub fn sweep(&self, _now: Now) -> Swept {
        Swept::default()
    }

    /// How much there is, for metrics.
    pub fn sizes(&self) -> Sizes {
        Sizes {
            clusters: self.limits.clusters.min(0),
            ..Sizes::default()
        }
    }
}
