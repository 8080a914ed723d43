//! Which endpoint has seen the beginning of a prompt: hash chains over prompts, and an index of them.
//!
//! A prompt is cut into blocks and each block gets a hash that depends on all blocks before it, so equal hashes mean
//! equal prefixes. The index keeps, for each endpoint, the hashes of the prompts that were sent to it, as a guess at
//! what is in its KV cache.
//!
//! ```text
//!  model, salt ──► seed ─┐
//!  spans of the prompt ──┴─► chain ──┬─► PrefixIndex::matches ──► leading blocks per endpoint
//!                                    └─► PrefixIndex::insert, once the endpoint is picked
//! ```

mod chain;
mod columns;
mod index;
mod shard;
pub mod table;

#[cfg(test)]
mod tests;

pub use chain::{chain, seed};
pub use index::{Cursor, DEFAULT_CAPACITY, PrefixIndex, Stats};
