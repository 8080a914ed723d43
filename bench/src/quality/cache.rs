//! The prefix cache of one engine.

use std::collections::{BTreeMap, HashMap};

/// Blocks that are known by the hash of what they hold and all before it. What no request uses stays until its room is
/// needed, the least recently used first.
#[derive(Debug)]
pub(super) struct BlockCache {
    capacity: usize,
    /// Of running requests; a shared one counts once.
    held: usize,
    known: HashMap<u64, Known>,
    /// Known blocks that no request uses, by when they were left.
    idle: BTreeMap<u64, u64>,
    /// Grows with each block that is left.
    clock: u64,
}

#[derive(Debug)]
struct Known {
    users: u32,
    /// When it was left; its place in `idle` while it has no users.
    left: u64,
}

// === impl BlockCache ===

impl BlockCache {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            held: 0,
            known: HashMap::new(),
            idle: BTreeMap::new(),
            clock: 0,
        }
    }

    /// Blocks from the beginning of the chain that are known.
    pub(super) fn hits(&self, chain: &[u64]) -> usize {
        let known = |hash: &&u64| self.known.contains_key(hash);
        chain.iter().take_while(known).count()
    }

    /// Takes these known blocks and so many new ones, or none at all where there is no room.
    pub(super) fn take(&mut self, known: &[u64], new: usize) -> bool {
        let unused = |hash: &&u64| self.known.get(hash).is_some_and(|one| one.users == 0);
        let more = new + known.iter().filter(unused).count();
        if self.held + more > self.capacity {
            return false;
        }
        for hash in known {
            self.hold(*hash);
        }
        self.held += more;
        while self.held + self.idle.len() > self.capacity
            && let Some((_, hash)) = self.idle.pop_first()
        {
            self.known.remove(&hash);
        }
        true
    }

    /// New blocks of a request are filled, and others find them. Where one is known by now the request goes on with that.
    pub(super) fn fill(&mut self, blocks: &[u64]) {
        for hash in blocks {
            match self.known.get(hash).map(|one| one.users) {
                None => {
                    let one = Known { users: 1, left: 0 };
                    self.known.insert(*hash, one);
                }
                Some(0) => self.hold(*hash),
                Some(_) => {
                    self.hold(*hash);
                    self.held -= 1;
                }
            }
        }
    }

    /// A request leaves its filled blocks, and new ones that the answer filled.
    pub(super) fn leave(&mut self, filled: &[u64], answer: &[u64]) {
        self.held -= answer.len();
        // the end of a prompt goes before its beginning
        for hash in answer.iter().rev() {
            if !self.known.contains_key(hash) {
                let one = Known { users: 0, left: 0 };
                self.known.insert(*hash, one);
                self.rest(*hash);
            }
        }
        for hash in filled.iter().rev() {
            let Some(one) = self.known.get_mut(hash) else {
                continue;
            };
            one.users -= 1;
            if one.users == 0 {
                self.held -= 1;
                self.rest(*hash);
            }
        }
    }

    /// Share that running requests hold.
    pub(super) fn usage(&self) -> f64 {
        self.held as f64 / self.capacity as f64
    }

    fn hold(&mut self, hash: u64) {
        if let Some(one) = self.known.get_mut(&hash) {
            if one.users == 0 {
                self.idle.remove(&one.left);
            }
            one.users += 1;
        }
    }

    fn rest(&mut self, hash: u64) {
        self.clock += 1;
        if let Some(one) = self.known.get_mut(&hash) {
            one.left = self.clock;
            self.idle.insert(self.clock, hash);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request with these prompt blocks and one of an answer, from its start to its end.
    fn run(cache: &mut BlockCache, prompt: &[u64], answer: u64) -> usize {
        let hits = cache.hits(prompt);
        let (known, new) = prompt.split_at(hits);
        assert!(cache.take(known, new.len() + 1));
        cache.fill(new);
        cache.leave(prompt, &[answer]);
        hits
    }

    #[test]
    fn what_is_filled_is_found_until_its_room_is_needed_the_oldest_end_first() {
        let mut cache = BlockCache::new(8);
        assert_eq!(run(&mut cache, &[1, 2, 3], 4), 0);
        assert_eq!(cache.hits(&[1, 2, 3, 4, 5]), 4);
        assert!(cache.usage() <= 0.0);
        assert_eq!(run(&mut cache, &[11, 12, 13], 14), 0);
        // room for two: the answer goes, then the last block of the prompt
        assert_eq!(run(&mut cache, &[21], 22), 0);
        assert_eq!(cache.hits(&[1, 2, 3, 4]), 2);
        assert_eq!(cache.hits(&[11, 12, 13, 14]), 4);
    }

    #[test]
    fn what_requests_hold_is_not_given_to_others() {
        let mut cache = BlockCache::new(8);
        assert!(cache.take(&[], 5));
        cache.fill(&[1, 2, 3, 4]);
        assert!(!cache.take(&[], 4));
        // shared blocks take no room again
        assert!(cache.take(&[1, 2, 3, 4], 3));
        assert!((cache.usage() - 1.0).abs() < 1e-9);
        cache.leave(&[1, 2, 3, 4], &[5]);
        assert!((cache.usage() - 7.0 / 8.0).abs() < 1e-9);
    }

    #[test]
    fn two_that_fill_the_same_share_it_from_then_on() {
        let mut cache = BlockCache::new(8);
        assert!(cache.take(&[], 4) && cache.take(&[], 4));
        for _ in 0..2 {
            cache.fill(&[1, 2, 3]);
        }
        assert!((cache.usage() - 5.0 / 8.0).abs() < 1e-9);
        for answer in [4, 5] {
            cache.leave(&[1, 2, 3], &[answer]);
        }
        assert!(cache.usage() <= 0.0);
    }
}
