//! Follows what the engines of a pool publish of their KV caches.
//!
//! Owns the sockets of one (worker, rank): the subscription, the replay of what was missed, and when to connect again. What
//! is applied, forgotten and asked for is decided by [`kv_router::EventStream`]; what an event changes, by
//! [`kv_router::WorkerBlocks`]. Knows nothing of Kubernetes: addresses come from whoever knows the workers.
//!
//! ```text
//!  engine PUB ─── link ──► Input ──► EventStream ──► Effects ──► WorkerBlocks ──► Index
//!  engine ROUTER ─ replay ──┘                           └──► connect, ask again
//! ```
//!
//! # Bounds
//! One task for each (worker, rank), which yields: an engine that floods delays itself alone. There is no queue: what is
//! not read yet is held back by TCP, and what the engine then drops shows as a gap. What waits for a replay is at most
//! 1024 messages of 64 MiB together.

mod counts;
mod follow;
mod link;
mod observer;
#[cfg(test)]
mod recorded;
mod replay;
mod seen;
mod wire;

pub use counts::{Counts, EventKind, EventResult};
pub use follow::{Engine, follow};
pub use observer::{Observer, Received, ReplayResult};
pub use zmtp::Error as ConnectionError;
