//! One worker's blocks by the names that its engine has for them.

use std::{
    hash::{BuildHasher, RandomState},
    sync::atomic::Ordering,
};

use scheduling::Slot;
use smallvec::SmallVec;

use super::Index;
use crate::{
    event::{BlockKeys, Event, ExtraKeys, MalformedEvents, Removed, Stored, Tier},
    hash::{Seed, Seq, little_endian},
    ordered::Ordered,
};

/// What one worker, or one rank of it, has cached; its owner applies the events in their order.
#[derive(Debug)]
pub struct WorkerBlocks {
    slot: Slot,
    /// By the engine's name.
    blocks: Ordered<Block>,
    pairs: usize,
    /// Cache groups of other attention, whose blocks are not indexed.
    other_groups: SmallVec<[u64; 4]>,
    bytes: Vec<u8>,
}

/// 24 bytes. If an engine had two names for one block, the first removal would end both: less is known then, nothing wrong.
#[derive(Clone, Copy, Debug, Default)]
struct Block {
    seq: Seq,
    /// Children have the same.
    seed: Seed,
    /// How often it was stored and not removed, by tier.
    references: [u16; 3],
    /// More than its ids says what it is, as with images: it is kept for its children, and not indexed.
    is_opaque: bool,
}

/// What distinguishes the blocks of an event beside their ids, read one block at a time.
struct Identity<'a> {
    stored: &'a Stored<'a>,
    extra: ExtraKeys<'a>,
    media: ExtraKeys<'a>,
}

/// What an event changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// So many blocks were stored or removed, the known and the unknown among them.
    Blocks(usize),
    /// It is of a cache group whose blocks are not indexed.
    OtherGroup,
    /// All blocks went.
    Cleared,
    /// The event belongs to a store that all workers share.
    Shared,
}

/// Why an event was not applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The block before is not known, so that nobody can tell what these are.
    #[error("the parent of stored blocks is not known: events were missed")]
    Orphan,
    /// These blocks are of another size. If they are all that the engine has, so is its own: see
    /// [`Input::OtherBlockSize`](crate::Input::OtherBlockSize).
    #[error("the engine's blocks have {0} ids: set --block-size to that")]
    BlockSize(u64),
    /// There are more or fewer ids than the blocks have.
    #[error("{0} blocks with {1} ids")]
    Length(usize, usize),
    /// The event could not be read.
    #[error("an event could not be read: {0}")]
    Unreadable(MalformedEvents),
}

/// No engine has so many cache groups.
const MAX_GROUPS: usize = 64;

// === impl WorkerBlocks ===

impl WorkerBlocks {
    pub(super) fn new(slot: Slot) -> Self {
        Self {
            slot,
            blocks: Ordered::new(RandomState::new().hash_one(slot.index)),
            pairs: 0,
            other_groups: SmallVec::new(),
            bytes: Vec::new(),
        }
    }

    /// Its place among the candidates of [`Index::matches`].
    pub fn slot(&self) -> Slot {
        self.slot
    }

    /// Blocks by their engine's names.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Blocks, one at two tiers counted twice: what the memory bound counts.
    pub fn pairs(&self) -> usize {
        self.pairs
    }

    /// No blocks.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Heap bytes of its own.
    pub fn bytes(&self) -> usize {
        self.blocks.bytes() + self.bytes.capacity()
    }

    /// Applies an event; what is above its share of the memory bound then goes.
    /// # Errors
    /// When it cannot be applied; nothing is changed then. Only if it could not be read and may have removed blocks,
    /// all are forgotten: it is not known which blocks were removed.
    pub fn apply(&mut self, index: &Index, event: &Event<'_>) -> Result<Applied, Refused> {
        match event {
            Event::Stored(stored) => {
                let applied = self.store(index, stored);
                self.trim(index);
                applied
            }
            Event::Removed(removed) => Ok(self.removed(index, removed)),
            Event::Cleared => {
                self.clear(index);
                Ok(Applied::Cleared)
            }
            Event::Shared { .. } => Ok(Applied::Shared),
            Event::Unreadable { error, is_stored } => {
                if !is_stored {
                    self.clear(index);
                }
                Err(Refused::Unreadable(*error))
            }
        }
    }

    /// It has no blocks any more.
    pub fn clear(&mut self, index: &Index) {
        self.forget_oldest(index, usize::MAX);
        self.other_groups.clear();
    }

    /// Lets the oldest blocks go that are above its share of the memory bound, which becomes less with more workers.
    pub fn trim(&mut self, index: &Index) {
        let share = index.share();
        let mut evicted = 0;
        while self.pairs > share && self.forget_oldest(index, 1) > 0 {
            evicted += 1;
        }
        if evicted > 0 {
            index.evicted.fetch_add(evicted, Ordering::Relaxed);
        }
    }

    /// Forgets up to `max` blocks; how many it forgot.
    pub(super) fn forget_oldest(&mut self, index: &Index, max: usize) -> usize {
        let mut forgotten = 0;
        while forgotten < max
            && let Some((_, block)) = self.blocks.pop_oldest()
        {
            self.pairs -= block.pairs();
            for tier in Tier::ALL {
                if block.is_indexed(tier) {
                    index.forward.clear(block.seq, tier, self.slot.index);
                }
            }
            forgotten += 1;
        }
        forgotten
    }

    fn store(&mut self, index: &Index, stored: &Stored<'_>) -> Result<Applied, Refused> {
        let Stored {
            ref hashes,
            parent,
            ref ids,
            block_size,
            tier,
            group,
            is_full_attention,
            ..
        } = *stored;
        if !is_full_attention {
            self.leave_out(group);
            return Ok(Applied::OtherGroup);
        }
        if group.is_some_and(|group| self.other_groups.contains(&group)) {
            return Ok(Applied::OtherGroup);
        }
        if ids.is_empty() {
            self.store_known(index, hashes, tier);
            return Ok(Applied::Blocks(hashes.len()));
        }
        // where an engine leaves the size out, the ids show it
        let shown = ids.len().checked_div(hashes.len()).unwrap_or_default();
        let is_shown = shown.checked_mul(hashes.len()) == Some(ids.len());
        let block_size = match block_size {
            0 if is_shown => shown as u64,
            0 => index.block_size as u64,
            size => size,
        };
        if block_size != index.block_size as u64 {
            return Err(Refused::BlockSize(block_size));
        }
        if hashes.len().checked_mul(index.block_size) != Some(ids.len()) {
            return Err(Refused::Length(hashes.len(), ids.len()));
        }
        let mut before = match parent {
            Some(parent) => Some(*self.blocks.get(parent).ok_or(Refused::Orphan)?),
            None => None,
        };
        let mut identity = Identity::of(stored);
        let all_ids = ids.chunks_exact(index.block_size);
        for ((hash, ids), at) in hashes.iter().zip(all_ids).zip(1..) {
            let (seed, is_opaque) = identity.next(before, at * index.block_size);
            let parent = before.map(|it| it.seq);
            let bytes = &mut self.bytes;
            let make = || Block {
                seq: Seq::of_bytes(parent, little_endian(ids, bytes), seed),
                seed,
                references: [0; 3],
                is_opaque,
            };
            let (block, is_new) = self.blocks.or_insert_with(*hash, make);
            // what is not indexed takes room too
            self.pairs += usize::from(is_new && block.is_opaque);
            self.pairs += usize::from(block.refer(index, self.slot, tier));
            before = Some(*block);
        }
        Ok(Applied::Blocks(hashes.len()))
    }

    /// Records that blocks whose ids are known are at this tier, too. What the other blocks contain is not known.
    fn store_known(&mut self, index: &Index, hashes: &[u64], tier: Tier) {
        for hash in hashes {
            if let Some(block) = self.blocks.get_mut(*hash) {
                self.pairs += usize::from(block.refer(index, self.slot, tier));
            }
        }
    }

    fn removed(&mut self, index: &Index, removed: &Removed) -> Applied {
        let Removed {
            hashes,
            tier,
            group,
        } = removed;
        if group.is_some_and(|group| self.other_groups.contains(&group)) {
            return Applied::OtherGroup;
        }
        for hash in hashes {
            let Some(block) = self.blocks.get_mut(*hash) else {
                continue;
            };
            let references = &mut block.references[tier.index()];
            if *references == 0 {
                continue;
            }
            *references -= 1;
            if *references == 0 && !block.is_opaque {
                self.pairs -= 1;
                index.forward.clear(block.seq, *tier, self.slot.index);
            }
            if block.references == [0; 3] {
                self.pairs -= usize::from(block.is_opaque);
                self.blocks.remove(*hash);
            }
        }
        Applied::Blocks(hashes.len())
    }

    fn leave_out(&mut self, group: Option<u64>) {
        if let Some(group) = group
            && !self.other_groups.contains(&group)
            && self.other_groups.len() < MAX_GROUPS
        {
            self.other_groups.push(group);
        }
    }
}

// === impl Identity ===

impl<'a> Identity<'a> {
    fn of(stored: &'a Stored<'a>) -> Self {
        Self {
            stored,
            extra: stored.extra_keys.clone(),
            media: stored.media_keys.clone(),
        }
    }

    /// The seed of the next block behind `before`, and whether more than its ids identifies it; the event's ids belong
    /// to it up to `end`.
    fn next(&mut self, before: Option<Block>, end: usize) -> (Seed, bool) {
        let Stored {
            lora_name,
            cache_salt,
            opaque_from,
            is_unnamed_adapter,
            ..
        } = *self.stored;
        let (salt, has_other_keys) = match (cache_salt, self.extra.next_block(lora_name)) {
            (_, BlockKeys::Other) => (cache_salt, true),
            (_, BlockKeys::None) => (cache_salt, false),
            (None, BlockKeys::Salt(salt)) => (Some(salt), false),
            (Some(salt), BlockKeys::Salt(key)) => (Some(salt), key != salt),
        };
        let own = Seed::new(lora_name, salt);
        let has_media = self.media.next_block(None) != BlockKeys::None;
        let has_other_ids = opaque_from.is_some_and(|first| first < end);
        let is_opaque = has_other_keys || has_media || has_other_ids || is_unnamed_adapter;
        match before {
            None => (own, is_opaque),
            // Blocks further back name no salt, or that of their prompt: a text of their own is something else.
            Some(before) => {
                let is_odd = salt.is_some() && own != before.seed;
                (before.seed, is_opaque || is_odd || before.is_opaque)
            }
        }
    }
}

// === impl Block ===

impl Block {
    /// Counts it once more at this tier; whether it was not indexed there before and is now.
    fn refer(&mut self, index: &Index, slot: Slot, tier: Tier) -> bool {
        let references = &mut self.references[tier.index()];
        *references = references.saturating_add(1);
        let is_new = *references == 1 && !self.is_opaque;
        if is_new {
            index.forward.set(self.seq, tier, slot.index);
        }
        is_new
    }

    fn is_indexed(&self, tier: Tier) -> bool {
        !self.is_opaque && self.references[tier.index()] > 0
    }

    /// What it counts for the memory bound.
    fn pairs(&self) -> usize {
        let at = |tier: &Tier| self.is_indexed(*tier);
        Tier::ALL.iter().filter(|tier| at(tier)).count() + usize::from(self.is_opaque)
    }
}
