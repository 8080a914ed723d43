//! Ids of prompts, kept under random keys until the worker that was chosen for the prompt fetches them.
//!
//! Owns the entry, its forms in HTTP and in Redis, the stores, and the HTTP interface of the one in memory. Knows no
//! socket that it is served on.
//!
//! ```text
//!  Processor ── put ──► Store ─┬─ MemoryStore ◄── TokenService ◄── HTTP ─┐
//!                              ├─ HTTP ─► another Processor's port       ├── get ── Store ◄── worker
//!                              └─ Redis ◄────────────────────────────────┘
//! ```

mod body;
mod endpoint;
mod entry;
mod error;
mod memory;
mod metrics;
mod redis;
mod redis_value;
mod remote;
mod service;
mod store;

pub use body::{BodyError, BodyForm};
pub use endpoint::{Endpoint, EndpointError, RedisUrl};
pub use entry::{Entry, MAX_BYTES, MAX_IDS};
pub use error::StoreError;
pub use memory::{Evictions, MemoryStore, Put, PutError, Sizes};
pub use redis_value::{BadValue, REDIS_PREFIX, decode, encode, redis_key};
pub use service::{Operation, RefusedRequest, TOKENS_PATH, TokenService};
pub use store::{OpenError, Settings, Store, Upkeep};
