//! How good the router's choices are: a simulation of workers with KV caches, driven by prompts of a trace. Pure: no
//! socket, no clock, no chance but seeds.
//!
//! The router is the crate `kv-router` as its program uses it. A worker computes one prompt after the other at 25,000 ids a
//! second, keeps 16,384 blocks of 64 ids, and decodes all its answers at once. So many requests are always under way.
//!
//! ```text
//!  Prompts ─► World ─┬─► Chooser (kv-router: index, bookings, cost) ◄─ events ─┐
//!                    └─► Workers (prefill queue, block cache, decode) ─────────┴─► Replayed: reuse, TTFT, TPOT
//! ```

mod chooser;
mod prompts;
mod worker;
mod world;

#[cfg(test)]
mod tests;

pub use chooser::Routing;
pub use prompts::{Prompts, TraceFormat};
pub use world::{Replayed, replay};

/// Ids of a block.
const BLOCK: usize = 64;
