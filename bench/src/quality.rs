//! How good choices are: a simulation of a pool, driven by a trace. Pure: no socket, no clock, no chance but seeds.
//!
//! The endpoint picker is the crate `scheduling` as the program `epp` uses it: registry, loads by scrapes and own picks, prefix
//! index, profile. Model servers are simple models of vLLM, and the requests are made up; both are described in
//! `docs/epp-scorers.md`.
//!
//! ```text
//!  Trace ─► World ─┬─► Picker (scheduling: table, index, choose, bookings)
//!                  ├─► Engines (steps, slots, BlockCache) ─► pages each 50 ms ─► loads of the Picker
//!                  └─► Outcome: first tokens, cached share, spread
//! ```

mod cache;
mod engine;
mod outcome;
mod policy;
mod trace;
mod world;

#[cfg(test)]
mod tests;

pub use engine::EngineModel;
pub use outcome::Outcome;
pub use policy::Policy;
pub use trace::{Trace, Workload};
pub use world::{Setup, capacity, simulate};
