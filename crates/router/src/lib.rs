//! For the token ids of a prompt, the worker of its pool where it costs least, over HTTP.
//!
//! It owns the wire, the workers of the pool, and the tasks that follow their KV events. What is decided is in the crate
//! `kv-router`.
//!
//! ```text
//!  POST /route ─► Calls ─► Service ─► Policy::decide ─► worker, booking
//!                             ▲ Pool: Table, Index, Loads
//!  discovery ─► Membership ───┤
//!  KV events ─► a follower for each rank
//! ```

mod args;
mod calls;
mod debug;
mod events;
mod fault;
mod follow;
mod leader;
mod membership;
mod metrics;
mod pool;
mod program;
mod service;
mod spans;
mod warnings;

pub use args::{
    Args, BusyThreshold, ChoiceArgs, ElectionArgs, EventArgs, Follow, ListenArgs, PoolArgs,
    PresetName, StateArgs,
};
pub use calls::Calls;
pub use debug::Routes;
pub use events::{EventPorts, FirstRank};
pub use membership::{Membership, Warm};
pub use metrics::Metrics;
pub use pool::Pool;
pub use program::run;
pub use service::{Parts, Service};
pub use spans::Spans;
