//! Load, as our endpoint picker reports it: ordered batches under a lease.

use hashbrown::HashSet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{in_range, load::PromptLength};
use crate::{
    fault::Fault,
    name::{Address, Cluster, Instance, RequestId},
};

/// Shortest and longest lease, in milliseconds.
pub const LEASE_MS: std::ops::RangeInclusive<u32> = 1000..=60_000;
/// Puts of one batch at most, and as many deletes. 4 MiB hold 56,000 puts of UUIDs.
pub const MAX_ITEMS: usize = 65_536;
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
    /// Charges as they are now. At most 65536.
    #[serde(default, deserialize_with = "super::list::<MAX_ITEMS, _, _>")]
    pub puts: Vec<Put>,
    /// Charges that ended. At most 65536.
    #[serde(default, deserialize_with = "super::list::<MAX_ITEMS, _, _>")]
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
    /// The owner's last batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<u64>,
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

// === impl Refused ===

impl Refused {
    /// What goes beside this fault; none for most.
    pub fn beside(fault: &Fault) -> Option<Self> {
        match fault {
            Fault::StaleEpoch { current } => Some(Self {
                current: Some(*current),
                ..Self::default()
            }),
            Fault::StaleSeq { last, applied } => Some(Self {
                applied: Some(*applied),
                last: Some(*last),
                ..Self::default()
            }),
            _ => None,
        }
    }
}

// === impl Batch ===

impl Batch {
    /// Checks what the types do not hold.
    ///
    /// # Errors
    /// [`Fault::InvalidParameter`] names the first field that is out of its range, or an id that occurs again.
    pub fn validate(&self) -> Result<(), Fault> {
        in_range("lease_ms", self.lease_ms, LEASE_MS)?;
        in_range("shard", self.shard, 0..=MAX_SHARDS - 1)?;
        let mut ids = HashSet::with_capacity(self.puts.len() + self.deletes.len());
        let once = |field: String| Fault::invalid(field, "this id occurs before in the batch");
        for (at, put) in self.puts.iter().enumerate() {
            if !ids.insert(&put.request_id) {
                return Err(once(format!("puts[{at}].request_id")));
            }
        }
        for (at, id) in self.deletes.iter().enumerate() {
            if !ids.insert(id) {
                return Err(once(format!("deletes[{at}]")));
            }
        }
        Ok(())
    }
}
