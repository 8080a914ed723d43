//! Which model server should take a request: endpoints, their load, scores and the pick.
//!
//! Everything here is a function of (state, facts, now, chance). The crate must not know of sockets,
//! Kubernetes, Envoy, tasks or clocks: time comes in as a [`Moment`], chance as an [`rand::Rng`].
//!
//! ```text
//!  members ──► Snapshot ──┐
//!  scrapes ──► Load ──────┤ (each Endpoint owns its Load)
//!  Facts, Profile ────────┴─► pick ──► Pick { ranked endpoints, InFlight guard }
//! ```
//!
//! A [`Snapshot`] is immutable and shared; the [`Load`] inside an endpoint is the only thing that
//! changes, and it outlives the snapshots that the endpoint is part of. What endpoints have cached is
//! kept beside them, by [`Slot`], in a [`prefix::PrefixIndex`].

mod endpoint;
mod facts;
mod load;
mod pick;
pub mod prefix;
mod profile;
mod slot;
mod snapshot;

pub use ::moment::Moment;
pub use endpoint::{Endpoint, EndpointId};
pub use facts::{Allowed, Facts, MAX_LIST, Subset};
pub use load::{
    Freshness, InFlight, Load, LoadView, Quality, Reading, ScrapeFailure, ScrapeStart, Scraped,
};
pub use pick::{NoPick, Pick, Ranked, pick};
pub use profile::{Picker, Profile, Scorer, WeightedScorer};
pub use slot::Slot;
pub use snapshot::{Averages, Member, Snapshot};
