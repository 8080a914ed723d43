//! Who is in a pool: a stream of members, from one of three sources.
//!
//! It owns what makes a pod or an entry of a file a member. It must not know what is done with the members, nor
//! anything of Envoy, gRPC, readiness or metrics: the program that reads the stream does.
//!
//! ```text
//!  watch of the pool ─► selector, ports ─┐
//!  flags ─► selector, ports ─────────────┴─► watch of the selected pods ─┐
//!  file, read each second ───────────────────────────────────────────────┴─► Update ─► program
//! ```
//!
//! A source that fails proves nothing: the members stay until it says otherwise.

mod engine;
mod file;
mod pods;
mod pool;
mod ports;
mod selected;
mod selector;
mod standalone;
mod update;

#[cfg(test)]
mod fake_api;

pub use file::{FileDiscovery, FileError, MAX_FILE};
pub use pool::PoolDiscovery;
pub use ports::{TargetPorts, TargetPortsError};
pub use selector::{LabelSelector, SelectorError};
pub use standalone::SelectorDiscovery;
pub use update::{Discovery, Kind, Update, Updates};
