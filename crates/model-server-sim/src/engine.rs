//! The simulated engine: a FIFO queue, a bounded batch, KV blocks and LoRA adapters, in time.
//!
//! [`Scheduler`] decides and is pure, as are the [`cache`], the [`adapters`] and [`latency`] that it asks; [`Engine`] lets it act on tokio's clock and tells each
//! [`Sequence`] how far it is; [`Stats`] counts what happened.

mod adapters;
mod cache;
mod driver;
mod latency;
mod moment;
mod scheduler;
mod stats;
mod work;

pub use self::{
    cache::{BlockHash, PrefixSeed, prefix_blocks},
    driver::{Cancelled, Engine, Progress, Sequence},
    latency::{Dice, Latency, Load, Spread},
    moment::Moment,
    scheduler::Scheduler,
    stats::{Histogram, Stats},
    work::{Content, Event, Finish, Limits, Rejected, SequenceId, Work},
};
pub(crate) use self::{
    cache::{CacheEvent, StoredBlocks, TOKEN_BYTES},
    driver::{CacheListener, Snapshot},
    latency::share,
};
