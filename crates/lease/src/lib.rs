//! Leader election on a `coordination.k8s.io` Lease: of several processes one at a time has a valid [`Claim`].
//!
//! It owns who leads and until when; it must not know what a leader does. No clock of another is ever trusted: a candidate
//! takes a lease over once *it* has seen the record unchanged for [`DURATION`], and a holder believes in its claim for
//! [`RENEW_DEADLINE`] from the *start* of its last successful write. Both are measured on monotonic clocks, so wall clocks
//! may be hours apart; the promise holds while no monotonic clock runs half as fast again as another.
//!
//! ```text
//!  API server ◄─ get, create, update ─ Elector ── obeys ──► Contender ── evaluate(seen, me, now)
//!                                         └── Term ──► Claim ──► whoever writes: is_valid, gained ─► Tenure: ended
//! ```

#[cfg(feature = "test-util")]
mod by_hand;
mod claim;
mod contender;
mod election;
mod elector;
mod evaluate;

#[cfg(feature = "test-util")]
pub use by_hand::ByHand;
pub use claim::{Claim, Tenure};
pub use contender::{Call, Contender, Draft, Reply, Step};
pub use contender::{RENEW_DEADLINE, RETRY};
pub use election::Election;
pub use elector::{Elector, LeaseError, identity};
pub use evaluate::{DURATION, Decision, Record, Seen, evaluate};
