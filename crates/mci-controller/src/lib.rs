//! The ClusterSet controller: watches every annotated InferencePool in all member clusters and keeps the
//! `InferencePoolImport`s in all the others.
//!
//! It owns the watches, the writes, the events and the wiring. Who the members are is in `mci_inventory`, what is known of
//! them and what follows from that in `mci_model`. It must not know how a gateway uses an import, and no request ever
//! passes through it.
//!
//! ```text
//!  inventory ─► member (connect, watch, probe) ── updates ──► index ─► plan ── queues ──► write ─► members
//!  sources         one task tree each              bounded     └──── planner ────┘         ▲
//!                                                                                        lease
//! ```

mod args;
mod clusterset;
#[cfg(test)]
mod docs;
mod events;
mod explain;
mod grid;
mod home;
mod member;
mod metrics;
mod overview;
mod planner;
mod questions;
mod run;
mod write;

use mci_inventory::client;
#[cfg(test)]
use mci_model::fixtures;
use mci_model::{evidence, export, index, name, networks, plan, seeded, text};

pub use args::Args;
pub use run::run;
