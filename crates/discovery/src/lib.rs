//! Who is in a pool: a stream of members, from one of three sources; and what the cluster's objects say of the pool's models.
//!
//! It owns what makes a pod or an entry of a file a member, and which objects of the optional kinds count. It must not know
//! what is done with them, nor anything of Envoy, gRPC, readiness or metrics: the program that reads the streams does.
//!
//! ```text
//!  watch of the pool ─► selector, ports ─┐
//!  flags ─► selector, ports ─────────────┴─► watch of the selected pods ─┐
//!  file, read each second ───────────────────────────────────────────────┴─► Update ─► program
//!  watch of objectives, rewrites, models, where they are served ─────────► ObjectUpdate ─► program
//! ```
//!
//! A source that fails proves nothing: members and objects stay until it says otherwise.

mod engine;
mod file;
mod objects;
mod optional;
mod pods;
mod pool;
mod ports;
mod selected;
mod selector;
mod source;
mod standalone;
mod update;

#[cfg(test)]
mod fake_api;

pub use file::{FileDiscovery, FileError, MAX_FILE};
pub use objects::{Model, Objective, Objects, Rewrite, Target};
pub use optional::{ObjectDiscovery, ObjectUpdate};
pub use pool::PoolDiscovery;
pub use ports::{TargetPorts, TargetPortsError};
pub use selector::{LabelSelector, SelectorError};
pub use source::{Opened, Source, SourceFlags};
pub use standalone::SelectorDiscovery;
pub use update::{Discovery, Kind, Update, Updates};
