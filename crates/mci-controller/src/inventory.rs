//! Who the members are: kubeconfig files in a directory, one per member.
//!
//! ```text
//!  directory ── scan each 2 s, by content hash ──► Tracker ──► InventoryEvent ──► member tasks, index
//! ```
//! A failed scan is never an empty inventory, and a file is gone only when two scans in a row lack it;
//! when most members go at once, they are held first.

mod kubeconfig;
mod scan;
mod tracker;

pub(crate) use self::{kubeconfig::Credentials, scan::watch_directory, tracker::InventoryEvent};
