//! What the service asks of the place where its state is.

use std::{fmt, future::Future, time::Duration};

use metadata::{
    Address, Cluster, Fault, Instance, RequestId, Sizes, Swept,
    wire::{
        batch::{Applied, Batch, ClusterState},
        cache::{Locations, Query, Save},
        load::{Add, Load},
        pick::{Pick, Picks},
    },
};

/// The state of a Metadata-Center, wherever it is. The calls are those of [`metadata::Center`]; a place that can fail
/// answers with [`Fault::BackendUnavailable`].
pub trait Engine: Send + Sync + 'static {
    /// Changes when state was lost.
    fn boot(&self) -> BootId;

    /// Why calls would fail now; none if they are expected to work.
    fn unready(&self) -> Option<&'static str>;

    /// What this process holds of prompt caches, whatever a place elsewhere does.
    fn cache_size(&self) -> CacheSize;

    /// How the log is by which replicas tell each other what endpoints have seen; none: there is one replica.
    fn cache_log(&self) -> Option<CacheLog> {
        None
    }

    /// The endpoints of the cluster by address; none if the cluster is unknown.
    fn loads(
        &self,
        cluster: &Cluster,
    ) -> impl Future<Output = Result<Option<Vec<Load>>, Fault>> + Send;

    /// Charges a request to an endpoint, without an owner.
    fn add(&self, add: Add, strict: bool) -> impl Future<Output = Result<(), Fault>> + Send;

    /// The prefill of an owner-less charge is done.
    fn prompt_done(
        &self,
        id: &RequestId,
        strict: bool,
    ) -> impl Future<Output = Result<(), Fault>> + Send;

    /// The request of an owner-less charge ended.
    fn remove(
        &self,
        id: &RequestId,
        strict: bool,
    ) -> impl Future<Output = Result<(), Fault>> + Send;

    /// What an owner reports.
    fn batch(&self, batch: Batch) -> impl Future<Output = Result<Applied, Fault>> + Send;

    /// The instance ends.
    fn end_leases(
        &self,
        instance: &Instance,
        epoch: u64,
    ) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Chooses an endpoint and reserves it.
    fn pick(&self, pick: &Pick) -> impl Future<Output = Result<Picks, Fault>> + Send;

    /// An endpoint has the prompt.
    fn save(&self, save: &Save) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Which endpoints have how much of a prompt.
    fn query(&self, query: &Query) -> impl Future<Output = Result<Locations, Fault>> + Send;

    /// The endpoint has nothing any more.
    fn purge(
        &self,
        cluster: &Cluster,
        ip: Address,
    ) -> impl Future<Output = Result<(), Fault>> + Send;

    /// What there is, by cluster.
    fn clusters(&self) -> impl Future<Output = Result<Vec<ClusterState>, Fault>> + Send;

    /// Frees what is over. Called each second, by one task.
    fn sweep(&self) -> impl Future<Output = Result<Swept, Fault>> + Send;

    /// How much there is, for metrics.
    fn sizes(&self) -> impl Future<Output = Result<Sizes, Fault>> + Send;
}

/// The prompt cache's index, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheSize {
    /// Its memory.
    pub bytes: usize,
    /// Chunks that gave way to others.
    pub evictions: u64,
}

/// How far the shared log of prompt caches is, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheLog {
    /// Saves that reached no other replica.
    pub append_errors: u64,
    /// How old the last entry was when it was read.
    pub lag: Duration,
}

/// Names one life of the state: 16 hexadecimal digits in `X-Metadata-Boot`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootId(pub u64);

// === impl BootId ===

impl fmt::Display for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
