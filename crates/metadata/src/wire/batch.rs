//! Load, as our endpoint picker reports it: ordered batches under a lease.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::load::PromptLength;
use crate::name::{Address, Cluster, Instance, RequestId};

/// Shortest and longest lease, in milliseconds.
pub const LEASE_MS: std::ops::RangeInclusive<u32> = 1000..=60_000;
/// Shards of an instance.
pub const MAX_SHARDS: u32 = 64;

/// `POST /v1/load/batch`: what changed at one owner, which is a shard of an epoch of an instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Batch {
    /// Where the endpoints are.
    pub cluster: Cluster,
    /// Who reports.
    pub instance: Instance,
    /// When it started, in milliseconds since 1970: a higher one replaces the lower ones of the instance.
    pub epoch: u64,
    /// Orders its batches beside those of its other shards. 0 to 63.
    #[serde(default)]
    pub shard: u32,
    /// Higher by one with each batch of the owner; a repeated batch has the same.
    pub seq: u64,
    /// `puts` are all that the owner has: what is not among them goes.
    #[serde(default)]
    pub full: bool,
    /// The charges of the instance stay for so long without another batch. 1000 to 60000.
    pub lease_ms: u32,
    /// Charges as they are now.
    #[serde(default)]
    pub puts: Vec<Put>,
    /// Charges that ended.
    #[serde(default)]
    pub deletes: Vec<RequestId>,
    /// How many charges the owner then has, reservations not counted.
    pub live: u64,
    /// The sum of their unfinished prefill.
    pub prompt_sum: i64,
}

/// A whole charge: adds it, moves it, lowers it, or confirms a reservation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Put {
    /// Among those of the owner.
    pub request_id: RequestId,
    /// The endpoint.
    pub ip: Address,
    /// Unfinished prefill: 0 after the first token. 0 to 2147483647.
    #[serde(default)]
    pub prompt_length: PromptLength,
}

/// The answer to a [`Batch`] that was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Applied {
    /// The totals differ: the next batch is to be full.
    pub resync: bool,
    /// As asked for.
    pub lease_ms: u32,
}

/// The data beside the refusal of a [`Batch`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Refused {
    /// It was applied before: its first reply was lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied: Option<bool>,
    /// The instance's highest epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<u64>,
}

/// One lease in the answer to `GET /v1/clusters`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Lease {
    /// Whose it is.
    pub instance: Instance,
    /// Of which start.
    pub epoch: u64,
    /// Its charges.
    pub live: u64,
    /// Their unfinished prefill.
    pub prompt_sum: i64,
    /// Until it ends.
    pub remaining_ms: u64,
}

/// One cluster in the answer to `GET /v1/clusters`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClusterState {
    /// Its name.
    pub cluster: Cluster,
    /// Endpoints that have load, or had some lately.
    pub endpoints: u64,
    /// Unfinished requests, reservations among them.
    pub requests: u64,
    /// Chunks in the cache index, of all endpoints.
    pub chunks: u64,
    /// Who reports, by name.
    pub leases: Vec<Lease>,
}
