//! The load and the prompt caches that the endpoint pickers of a pool share.
//!
//! What is decided is in the crate `metadata`; here are the places where its state can be.

mod engine;
mod memory;
mod redis;

pub use engine::{BootId, Engine};
pub use memory::Memory;

pub use self::redis::{CacheLog, Redis, RedisOptions, RedisUrlError};
