//! Which model server should take a request: endpoints, their load, scores and the choice.
//!
//! Everything here is a function of (state, request, now, chance). The crate must not know of sockets,
//! Kubernetes, Envoy, tasks or clocks: time comes in as a [`Moment`], chance as an [`rand::Rng`].
//!
//! ```text
//!  members ─► Registry ─► Snapshot ──┐
//!  scrapes ─► Load of each endpoint ─┴─► Table ─┐
//!  Request, Profile, cached blocks ─────────────┴─► choose ─► Choice ─► Booking at the first
//!  saturation of the Table ─► flow::Controller (requests that wait, where flow control is on)
//! ```
//!
//! A [`Snapshot`] is immutable and shared; the [`Load`] inside an endpoint is the only thing that
//! changes, and it outlives the snapshots that the endpoint is part of. A [`Table`] is what is known at one moment, in
//! plain values: whoever has it and the [`Profile`] can choose, also another process, and reports the [`Slot`].
//!
//! What endpoints have cached is kept beside them in a [`prefix::PrefixIndex`], requests that wait in a
//! [`flow::Controller`].

mod candidates;
mod endpoint;
mod explanation;
mod filter;
pub mod flow;
pub mod inference_lb;
mod load;
pub mod murmur3;
mod percent;
mod pick;
pub mod prefix;
mod profile;
mod registry;
mod request;
mod saturation;
mod scorer;
mod slot;
mod snapshot;
mod table;
pub mod ttft;

#[cfg(test)]
mod fixtures;

pub use ::moment::Moment;
pub use candidates::Candidates;
pub use endpoint::{Endpoint, EndpointId, Labels, Member};
pub use explanation::{Exclusion, Explanation, Scores, Verdict};
pub use filter::{Expression, Filter, Operator, Role, Selector};
pub use load::{
    Booking, CacheLayout, Freshness, Load, Lora, MAX_TRANSIT, PageLora, Quality, Reading,
    SAME_START, ScrapeFailure, ScrapeStart, Scraped, Values,
};
pub use percent::top_percent;
pub use pick::{Choice, Chosen, Narrowed, NoPick, choose, choose_among, choose_explained, narrow};
pub use profile::{Picker, PickerKind, Profile, WeightedScorer};
pub use registry::{LINGER, Registry};
pub use request::{Allowed, DEFAULT_TRANSIT, MAX_LIST, Request, SessionAt, Subset};
pub use saturation::{ConcurrencyMode, Detector, Unplaced};
pub use scorer::{Scorer, SessionStrategy};
pub use slot::Slot;
pub use snapshot::{Entry, Roster, Snapshot};
pub use table::{Adapters, Averages, Table};
