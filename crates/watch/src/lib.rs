//! Guarded Kubernetes watches: a stream of [`Update`]s that never ends.
//!
//! A list is passed on only when it is complete, as one [`Update::Reset`]: what is not in it is gone, which finds the
//! deletions that a broken watch missed. An object that does not decode is an [`Update::Odd`] and not the end of the
//! watch. A failure is told ([`Update::Failed`]) and retried after a backoff with jitter; it proves nothing about any
//! object. The crate keeps no store: the index that reads the stream does.
//!
//! ```text
//!  API server ─ list, watch ─► kube watcher ─ guard ─► Reset | Apply | Delete | Odd | Failed ─► index
//!                                   ▲───── backoff 0.5-30 s ─────┘
//! ```

mod backoff;
mod crd_state;
mod failure;
mod stream;
mod tolerant;

pub use backoff::{backoff, jittered};
pub use crd_state::{CrdState, LastListed, crd_state};
pub use failure::{FailureReason, WatchFailure};
pub use foreign_text::clipped;
pub use kube::runtime::watcher::Config;
pub use stream::{OddObject, Update, metadata, objects, reduced, reduced_as, reduced_metadata};
pub use tolerant::Tolerant;
