//! What the ClusterSet controller knows of its members, and the plan that follows. Pure: no async, no client, no clock.
//!
//! It must not know how members are reached, nor how anything is written.
//!
//! ```text
//!  updates ──► index (what is known, with the evidence) ──► plan (imports, conditions) ──► diff (what to write)
//! ```

pub mod evidence;
pub mod explain;
pub mod export;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
pub mod index;
pub mod name;
pub mod networks;
pub mod plan;
pub mod seeded;
pub mod text;
