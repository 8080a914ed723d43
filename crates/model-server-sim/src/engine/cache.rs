//! The blocks of the KV cache: which ones hold a known prefix, and which one is given up first. Pure.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use xxhash_rust::xxh64::{Xxh64, xxh64};

use super::Work;

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
    /// What happened since somebody last asked, if somebody does: at most what one step of the scheduler does.
    journal: Option<Vec<CacheEvent>>,
}

/// What happened in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CacheEvent {
    /// These blocks became known.
    Stored(StoredBlocks),
    /// These were given up.
    Removed(Vec<BlockHash>),
    /// All were.
    Cleared,
}

/// Consecutive blocks that became known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredBlocks {
    pub(crate) hashes: Vec<BlockHash>,
    /// The block before them, which is known.
    pub(crate) parent: Option<BlockHash>,
    pub(crate) ids: Vec<u32>,
    pub(crate) adapter: Option<Arc<str>>,
    pub(crate) salt: String,
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

// === impl BlockHash ===

impl BlockHash {
    /// As a plain number.
    pub(crate) fn get(self) -> u64 {
        self.0
    }
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
            journal: None,
        }
    }

    /// From now on [`KvCache::take_journal`] has what happens.
    pub(super) fn keep_journal(&mut self) {
        self.journal.get_or_insert_default();
    }

    /// What happened since the last call.
    pub(super) fn take_journal(&mut self) -> Vec<CacheEvent> {
        self.journal
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// As new: nothing is known or in use, and nobody is told.
    pub(super) fn restart(&mut self) {
        let journal = self.journal.take().map(|_| Vec::new());
        *self = Self {
            journal,
            ..Self::new(self.total)
        };
    }

    /// Gives up all known blocks; false, and nothing changed, if sequences use some.
    pub(super) fn clear(&mut self) -> bool {
        if self.in_use() > 0 {
            return false;
        }
        self.known.clear();
        self.idle.clear();
        self.record(|| CacheEvent::Cleared);
        true
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

    /// As [`KvCache::fill`] for what of a prompt is not in `shared`, and tells of it.
    pub(super) fn fill_prompt(&mut self, work: &Work, shared: usize) {
        let known = self.matched(&work.prefix);
        self.fill(work.prefix.get(shared..).unwrap_or_default());
        let hashes = work.prefix.get(known..).unwrap_or_default();
        if let Some(content) = &work.content
            && !hashes.is_empty()
        {
            let block = content.ids.len() / work.prefix.len();
            self.record(|| {
                CacheEvent::Stored(StoredBlocks {
                    hashes: hashes.to_vec(),
                    parent: known
                        .checked_sub(1)
                        .and_then(|at| work.prefix.get(at))
                        .copied(),
                    ids: content
                        .ids
                        .get(known * block..)
                        .unwrap_or_default()
                        .to_vec(),
                    adapter: work.adapter.clone(),
                    salt: content.salt.clone(),
                })
            });
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
        let mut removed = Vec::new();
        while to_u32(self.known.len()) + self.reserved > self.total
            && let Some((_, block)) = self.idle.pop_first()
        {
            self.known.remove(&block);
            removed.push(block);
        }
        if !removed.is_empty() {
            self.record(|| CacheEvent::Removed(removed));
        }
    }

    fn record(&mut self, event: impl FnOnce() -> CacheEvent) {
        if let Some(journal) = &mut self.journal {
            journal.push(event());
        }
    }
}

fn to_u32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
