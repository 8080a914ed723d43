//! Ids of prompts, kept under random keys until the worker that was chosen for the prompt fetches them.
//!
//! Owns the entry, its forms in HTTP and in Redis, and the store in memory. Knows no HTTP server, no Redis client and no
//! clock: time is a parameter.
//!
//! ```text
//!  Processor ── put ──► MemoryStore ── get ──► HTTP body ──► worker
//!            └─ encode ──► value in Redis ── decode ──────────┘
//! ```

mod body;
mod entry;
mod memory;
mod redis_value;

pub use body::{BodyError, BodyForm};
pub use entry::{Entry, MAX_BYTES, MAX_IDS};
pub use memory::{Evictions, MemoryStore, Put, PutError, Sizes};
pub use redis_value::{BadValue, REDIS_PREFIX, decode, encode, redis_key};
