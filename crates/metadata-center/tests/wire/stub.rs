//! An engine that fails.

use std::future::pending;

use metadata::{
    Address, Cluster, Fault, Instance, RequestId, Sizes, Swept,
    wire::{
        batch::{Applied, Batch, ClusterState},
        cache::{Locations, Query, Save},
        load::{Add, Load},
        pick::{Pick, Picks},
    },
};
use metadata_center::{BootId, CacheSize, Engine};

/// How each call fails.
pub(crate) enum Stub {
    Fault(Fault),
    Panic,
    Hang,
}

// === impl Stub ===

impl Stub {
    async fn fail<T>(&self) -> Result<T, Fault> {
        match self {
            Self::Fault(fault) => Err(fault.clone()),
            Self::Panic => panic!("on purpose"),
            Self::Hang => pending().await,
        }
    }
}

impl Engine for Stub {
    fn boot(&self) -> BootId {
        BootId(0xab)
    }

    fn unready(&self) -> Option<&'static str> {
        Some("on purpose")
    }

    fn cache_size(&self) -> CacheSize {
        CacheSize::default()
    }

    async fn loads(&self, _: &Cluster) -> Result<Option<Vec<Load>>, Fault> {
        self.fail().await
    }

    async fn add(&self, _: Add, _: bool) -> Result<(), Fault> {
        self.fail().await
    }

    async fn prompt_done(&self, _: &RequestId, _: bool) -> Result<(), Fault> {
        self.fail().await
    }

    async fn remove(&self, _: &RequestId, _: bool) -> Result<(), Fault> {
        self.fail().await
    }

    async fn batch(&self, _: Batch) -> Result<Applied, Fault> {
        self.fail().await
    }

    async fn end_leases(&self, _: &Instance, _: u64) -> Result<(), Fault> {
        self.fail().await
    }

    async fn pick(&self, _: &Pick) -> Result<Picks, Fault> {
        self.fail().await
    }

    async fn save(&self, _: &Save) -> Result<(), Fault> {
        self.fail().await
    }

    async fn query(&self, _: &Query) -> Result<Locations, Fault> {
        self.fail().await
    }

    async fn purge(&self, _: &Cluster, _: Address) -> Result<(), Fault> {
        self.fail().await
    }

    async fn clusters(&self) -> Result<Vec<ClusterState>, Fault> {
        self.fail().await
    }

    async fn sweep(&self) -> Result<Swept, Fault> {
        self.fail().await
    }

    async fn sizes(&self) -> Result<Sizes, Fault> {
        self.fail().await
    }
}
