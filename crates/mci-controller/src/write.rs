//! Gets the plan into the members: one queue per member, one write in flight per object, the newest wins.
//!
//! ```text
//!  plan ── offer ──► Queue (a lane per object) ── take ──► writer ── PATCH, DELETE, PUT ──► API server
//!                      ▲─────────── finish(outcome): echo awaited, retry, park ──┘
//! ```
//! Nothing is read back: the member's watch shows whether a write took effect.

pub(crate) mod action;
mod breaker;
mod caller;
mod dry;
mod lane;
mod limits;
pub(crate) mod pool_status;
pub(crate) mod queue;
mod request;
pub(crate) mod send;
pub(crate) mod stats;
mod wait;
mod writer;

pub(crate) use self::{
    caller::Caller,
    dry::{describe_import, describe_pool},
    queue::Queue,
    request::Call,
    wait::throttle,
    writer::{WriterSettings, run_writer},
};
