//! The blocks of the KV cache: which ones hold a known prefix, and which one is given up first. Pure.

use std::collections::{BTreeMap, HashMap};

use xxhash_rust::xxh64::{Xxh64, xxh64};

/// Bytes of a prompt that count as one token.
pub(crate) const TOKEN_BYTES: u32 = 4;

/// Names the content of one full block and of all blocks before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockHash(u64);

/// What prompts must have in common to share blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixSeed<'a> {
    /// The base model.
    pub model: &'a str,
    /// The LoRA adapter, or empty.
    pub adapter: &'a str,
    /// `cache_salt` of the request, or empty.
    pub salt: &'a str,
}

/// All blocks of the cache. A block is free, reserved for a running sequence, or known: it holds a
/// prefix that later prompts may begin with. Known blocks that no sequence uses are idle; the one idle
/// for the longest time is given up first.
#[derive(Debug)]
pub(super) struct KvCache {
    total: u32,
    /// At most `total`.
    known: HashMap<BlockHash, Known>,
    /// Idle blocks, by when they became so.
    idle: BTreeMap<u64, BlockHash>,
    /// Blocks of running sequences that hold nothing known.
    reserved: u32,
    /// Counts how often a block became idle.
    clock: u64,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    users: u32,
    /// Key in `idle` while there are no users.
    idle_since: u64,
}

/// The hashes of the full blocks of a prompt; a last block that is not full has none.
pub fn prefix_blocks(seed: PrefixSeed<'_>, prompt: &[u8], block_tokens: u32) -> Vec<BlockHash> {
    let block_bytes = usize::try_from(block_tokens.saturating_mul(TOKEN_BYTES));
    // The lengths keep ("a", "b") apart from ("ab", "").
    let mut start = Xxh64::new(0);
    for part in [seed.model, seed.adapter, seed.salt] {
        start.update(&part.len().to_le_bytes());
        start.update(part.as_bytes());
    }
    let mut chain = start.digest();
    prompt
        .chunks_exact(block_bytes.unwrap_or(usize::MAX).max(1))
        .map(|block| {
            chain = xxh64(block, chain);
            BlockHash(chain)
        })
        .collect()
}

// === impl KvCache ===

impl KvCache {
    pub(super) fn new(total: u32) -> Self {
        Self {
            total,
            known: HashMap::new(),
            idle: BTreeMap::new(),
            reserved: 0,
            clock: 0,
        }
    }

    /// How many of the first blocks of `prefix` are known.
    pub(super) fn matched(&self, prefix: &[BlockHash]) -> usize {
        prefix
            .iter()
            .take_while(|block| self.known.contains_key(block))
            .count()
    }

    /// Takes the known blocks `hits` into use and reserves `more`; false, and nothing changed, if there
    /// is no room.
    pub(super) fn admit(&mut self, hits: &[BlockHash], more: u32) -> bool {
        let idle_hits = hits
            .iter()
            .filter(|block| self.known.get(block).is_some_and(|known| known.users == 0))
            .count();
        let room = u64::from(self.total) - u64::from(self.in_use());
        if idle_hits as u64 + u64::from(more) > room {
            return false;
        }
        for block in hits {
            self.acquire(*block);
        }
        self.reserved += more;
        self.evict();
        true
    }

    /// Reserved blocks now hold this: each becomes known. Where another sequence has made the same block
    /// known in the meantime, that one is shared and the reserved one is free again.
    pub(super) fn fill(&mut self, blocks: &[BlockHash]) {
        for block in blocks {
            self.reserved = self.reserved.saturating_sub(1);
            self.acquire(*block);
        }
    }

    /// A sequence ended: nobody may use `held` any more, and `reserved` blocks are free. The end of a
    /// prefix is given up before its start, without which it is of no use.
    pub(super) fn release(&mut self, held: &[BlockHash], reserved: u32) {
        self.reserved = self.reserved.saturating_sub(reserved);
        for block in held.iter().rev() {
            let Some(known) = self.known.get_mut(block) else {
                continue;
            };
            known.users = known.users.saturating_sub(1);
            if known.users == 0 {
                self.clock += 1;
                known.idle_since = self.clock;
                self.idle.insert(self.clock, *block);
            }
        }
    }

    /// Known blocks that running sequences use.
    pub(super) fn shared(&self) -> u32 {
        to_u32(self.known.len() - self.idle.len())
    }

    /// Blocks that cannot be given to anybody else now.
    pub(super) fn in_use(&self) -> u32 {
        self.shared() + self.reserved
    }

    fn acquire(&mut self, block: BlockHash) {
        let known = self.known.entry(block).or_insert(Known {
            users: 0,
            idle_since: 0,
        });
        if known.users == 0 {
            self.idle.remove(&known.idle_since);
        }
        known.users += 1;
    }

    fn evict(&mut self) {
        while to_u32(self.known.len()) + self.reserved > self.total
            && let Some((_, block)) = self.idle.pop_first()
        {
            self.known.remove(&block);
        }
    }
}

fn to_u32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
