//! Hash chains over prompts.
//!
//! A prompt is cut into blocks and each block gets a hash that depends on all blocks before it, so equal hashes mean
//! equal prefixes.

mod chain;

pub use chain::{chain, seed};
