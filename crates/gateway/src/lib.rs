//! The importing gateway: from Gateway API objects, `InferencePool`s and `InferencePoolImport`s of
//! one cluster to the configuration of its Envoys, and back to status.
//!
//! It must not know what an EPP decides, nor speak to other clusters' API servers.
//!
//! ```text
//!  API server ─ watch ─► index ─► World ─► Built::update ─┬─► xds::translate ─► Snapshot ─► ADS ─► Envoys
//!       ▲                  │ └────► Endpoints ────────────┼──────────▲                       │ NACK
//!       │                  │                              └─► infra::make_parts ─► writer    │
//!       │                  └─────► Feedback ◄────────────────────────────────────────┴───────┘
//!       └── status writer ◄── status::diff ◄── WantedStatus ◄── Built::report ◄── Feedback
//! ```
//!
//! Everything between `World` and what is written or sent is pure. What Envoys are served never follows from `Feedback`.

mod args;
mod control;
mod debug;
mod feedback;
#[cfg(test)]
mod fixture;
mod index;
mod infra;
#[cfg(test)]
mod layers;
mod metrics;
mod model;
mod observe;
mod parameters;
mod pki;
mod queue;
mod replicas;
mod resource;
mod run;
mod select;
mod status;
mod text;
mod watches;
mod world;
mod xds;

pub use args::Args;
pub use run::run;
