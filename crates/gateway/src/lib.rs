//! The importing gateway: from Gateway API objects, `InferencePool`s and `InferencePoolImport`s of
//! one cluster to the configuration of its Envoys, and back to status.
//!
//! It must not know what an EPP decides, nor speak to other clusters' API servers.
//!
//! ```text
//!  API server ─ watch ─► index ─► World ─► model::build ─┬─► xds::translate ─► Snapshot ─► ADS ─► Envoys
//!       ▲                   └────► Endpoints ────────────┼──────────▲                       │ NACK
//!       │                                                ├─► infra::plan ─► writer          │
//!       └── status writer ◄── status::diff ◄─────────────┴─► WantedStatus ◄─────────────────┘
//! ```
//!
//! Everything between `World` and what is written or sent is pure.

mod args;
mod control;
mod debug;
#[cfg(test)]
mod fixture;
mod index;
mod infra;
mod metrics;
mod model;
mod observe;
mod pki;
mod queue;
mod replicas;
mod run;
mod select;
mod status;
mod text;
mod watches;
mod world;
mod xds;

pub use args::Args;
pub use run::run;
