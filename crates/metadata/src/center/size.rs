//! What bounds the state, and how large it is.

use std::time::Duration;

use crate::name::Cluster;

/// Bounds of a [`Center`](super::Center), and how long it keeps what nobody takes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Charges and reservations of all clusters together.
    pub requests: usize,
    /// Clusters.
    pub clusters: usize,
    /// Endpoints of one cluster.
    pub endpoints: usize,
    /// Live leases of all clusters together.
    pub instances: usize,
    /// Owner-less charges end so long after they were added; unused endpoints and clusters go after so long.
    pub request_expire: Duration,
    /// For how long an endpoint has a saved prompt unless the save says otherwise.
    pub cache_expire: Duration,
    /// How many endpoints a query names unless it says otherwise.
    pub cache_top_k: u32,
    /// Memory of the cache index.
    pub cache_max_bytes: usize,
}

/// What was freed without a delete since the [`Center::sweep`](super::Center::sweep) before, by cause: by it, and by
/// the calls between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Leases that ended by themselves.
    pub leases: usize,
    /// Charges of these leases.
    pub charges: usize,
    /// Charges of epochs that a higher one replaced.
    pub replaced: usize,
    /// Charges of instances that ended their leases.
    pub released: usize,
    /// Charges that a full batch left out.
    pub left_out: usize,
    /// Owner-less charges that nobody deleted in time.
    pub expired: usize,
    /// Reservations that nobody confirmed in time.
    pub reservations: usize,
    /// Blocks of the cache index past their time.
    pub cache_entries: usize,
    /// Endpoints without load for long.
    pub endpoints: usize,
    /// Clusters without use for long.
    pub clusters: usize,
}

/// How much a [`Center`](super::Center) holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Clusters.
    pub clusters: usize,
    /// Endpoints of all clusters.
    pub endpoints: usize,
    /// Charges, owned and owner-less, and reservations: what [`Limits::requests`] bounds.
    pub requests: usize,
    /// Reservations among them.
    pub reservations: usize,
    /// Leases that live.
    pub leases: usize,
    /// Pairs of endpoint and prompt chunk in the cache index.
    pub cache_entries: usize,
    /// Heap bytes of the cache index.
    pub cache_bytes: usize,
    /// Entries that gave way to others since the start.
    pub cache_evictions: u64,
    /// How often an endpoint found no place in the cache index, or lost its place to another one, since the start.
    pub cache_refusals: u64,
    /// By name.
    pub by_cluster: Vec<ClusterSize>,
}

/// One cluster in [`Sizes`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterSize {
    /// Its name.
    pub cluster: Cluster,
    /// Endpoints that have load, or had some lately.
    pub endpoints: usize,
    /// Unfinished requests, reservations among them.
    pub requests: i64,
    /// Their unfinished prefill.
    pub prefill: i64,
}

// === impl Limits ===

impl Default for Limits {
    fn default() -> Self {
        Self {
            requests: 1_000_000,
            clusters: 1024,
            endpoints: 4096,
            instances: 4096,
            request_expire: Duration::from_mins(11),
            cache_expire: Duration::from_hours(1),
            cache_top_k: 5,
            cache_max_bytes: 512 << 20,
        }
    }
}
