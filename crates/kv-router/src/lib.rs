//! Which worker a prompt goes to, by what is in the workers' KV caches and by how much they have to do.
//!
//! Owns the names of prompt blocks, the index of who has which, what engines publish of their caches, the loads and the
//! choice. Knows no socket, no clock, no HTTP: time and chance are parameters.
//!
//! ```text
//!  messages ─► EventStream ─► Batch ─► WorkerBlocks ─► Index ─┐
//!  prompt ─► chain of Seq ────────────────────────────────────┴─► Policy::decide ─► worker, fallbacks, booking
//! ```

mod choice;
mod cost;
mod decide;
mod event;
mod hash;
mod index;
mod loads;
mod ordered;
mod stream;
mod workers;

pub use choice::choose;
pub use cost::{Facts, Preset, Terms, UnknownPreset, Weights};
pub use decide::{Candidate, Decision, NoWorker, Policy, Prompt, Scratch, Source};
pub use event::{Batch, BlockKeys, Event, ExtraKeys, MalformedEvents, Removed, Stored, Tier};
pub use hash::{Seed, Seq, chain};
pub use index::{Applied, Index, MAX_SLOTS, Overlap, PAIR_BYTES, Refused, Stats, WorkerBlocks};
pub use loads::{Limits, Load, Loads, MAX_BOOKED_BLOCKS, NewBooking, NotBooked, View};
pub use scheduling::Slot;
pub use stream::{Effect, Effects, EventStream, Input, PartialCause, StreamState};
pub use workers::Workers;
