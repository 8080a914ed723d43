//! What the endpoint pickers of a pool share: how much each endpoint has to do, and which prompts it has seen.
//!
//! Owns the wire types of the Metadata-Center, its state, and the outbox by which an endpoint picker reports to it.
//! Knows no HTTP, no Redis, no clock: time and chance are parameters, and the answers are values.
//!
//! ```text
//!  endpoint picker                               Metadata-Center
//!  charges ──► Outbox ──► wire::Batch ──────────► Center ──► loads  ─┐
//!                         wire::Pick ───────────►        ──► caches ─┴─► wire::Picks
//! ```

mod cache_index;
mod center;
mod choice;
mod fault;
mod name;
mod outbox;
pub mod wire;

pub use cache_index::CacheIndex;
pub use center::{Center, ClusterSize, Limits, Now, Sizes, Swept};
pub use choice::choose;
pub use fault::{Bound, Fault};
pub use name::{Address, Cluster, Instance, NameError, RequestId};
pub use outbox::{
    CompatOutbox, MAX_CHANGES, MAX_PUTS, Outbox, Refusal, Reply, Reporting, Sum, Write,
};
