//! `kubectl mci`: joins clusters to a ClusterSet, exports pools, and says what is missing.
//!
//! It reads and writes what a person could with kubectl, by the contexts of their kubeconfig, and nothing else: no program
//! of ours needs it. What is wrong is judged from facts alone ([`check`](crate), [`status`](crate)); clients only gather them.
//!
//! ```text
//!  kubeconfig ─► contexts ─► clusters ─► facts ─► judgement ─► tables, JSON, YAML
//!                               ▲
//!                 join, leave, export: server-side apply, annotations
//! ```

mod args;
mod cause;
mod check;
mod cluster;
mod completion;
mod contexts;
mod controller;
mod explain;
mod export;
mod fleet;
mod ignored;
mod join;
mod known;
mod leave;
mod member;
mod membership;
mod output;
mod route;
mod run;
mod setup;
mod status;

pub use args::Args;
pub use run::main;
