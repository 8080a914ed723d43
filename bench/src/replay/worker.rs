//! A worker: one prompt after the other, all answers at once, and a cache of blocks.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap, VecDeque},
};

use kv_router::Seq;

use super::prompts::Prompt;

/// Nanoseconds.
pub(super) type Time = u64;

/// One worker.
#[derive(Debug)]
pub(super) struct Worker {
    cache: Cache,
    waiting: VecDeque<usize>,
    /// The one that is computed, and its blocks that were cached.
    prefilling: Option<(usize, usize)>,
    /// By how far all answers are when theirs is over.
    running: BinaryHeap<Reverse<(u64, usize)>>,
    /// How far all answers are, in millionths of an id, and when.
    progress: u64,
    at: Time,
    /// Ids that it computed.
    pub(super) computed: usize,
    pub(super) requests: u32,
}

/// Blocks, the last ones of a prompt going before its first.
#[derive(Debug, Default)]
struct Cache {
    stamps: HashMap<Seq, u64>,
    order: BTreeMap<u64, Seq>,
    clock: u64,
}

/// What changed in a cache.
#[derive(Debug)]
pub(super) struct Changed {
    /// The first block of the prompt that is new.
    pub(super) stored_from: usize,
    pub(super) removed: Vec<Seq>,
}

const CACHE: usize = 16_384;
/// 25,000 ids a second.
const PREFILL: Time = 40_000;
const STEP: Time = 8_000_000;
const STEP_EACH: Time = 100_000;
const ID: u64 = 1_000_000;

// === impl Worker ===

impl Worker {
    pub(super) fn new() -> Self {
        Self {
            cache: Cache::default(),
            waiting: VecDeque::new(),
            prefilling: None,
            running: BinaryHeap::new(),
            progress: 0,
            at: 0,
            computed: 0,
            requests: 0,
        }
    }

    pub(super) fn submit(&mut self, request: usize) {
        self.waiting.push_back(request);
        self.requests += 1;
    }

    /// Begins to compute the next prompt, if none is under way: how long it takes.
    pub(super) fn begin(&mut self, prompts: &[Prompt]) -> Option<Time> {
        if self.prefilling.is_some() {
            return None;
        }
        let request = self.waiting.pop_front()?;
        let prompt = &prompts[request];
        let cached = self.cache.hits(&prompt.chain);
        let computed = prompt.ids - prompt.cached(cached);
        self.computed += computed;
        self.prefilling = Some((request, cached));
        Some(computed as Time * PREFILL)
    }

    /// The prompt that was computed, its blocks that were cached, and what changed in the cache.
    pub(super) fn prefilled(
        &mut self,
        prompts: &[Prompt],
        now: Time,
    ) -> Option<(usize, usize, Changed)> {
        let (request, cached) = self.prefilling.take()?;
        let changed = self.cache.insert(&prompts[request].chain);
        self.advance(now);
        // the first id came with the prompt
        let left = u64::from(prompts[request].answer - 1) * ID;
        self.running.push(Reverse((self.progress + left, request)));
        Some((request, cached, changed))
    }

    /// How long until the next answer is over.
    pub(super) fn next_end(&self) -> Option<Time> {
        let Reverse((end, _)) = self.running.peek()?;
        let left = u128::from(end.saturating_sub(self.progress));
        let took = (left * u128::from(self.step())).div_ceil(u128::from(ID));
        Time::try_from(took).ok()
    }

    /// An answer that is over.
    pub(super) fn ended(&mut self, now: Time) -> Option<usize> {
        self.advance(now);
        let Reverse((end, request)) = *self.running.peek()?;
        (end <= self.progress).then(|| {
            self.running.pop();
            request
        })
    }

    fn advance(&mut self, now: Time) {
        if !self.running.is_empty() {
            let passed = u128::from(now - self.at) * u128::from(ID);
            let ids = passed / u128::from(self.step());
            self.progress += u64::try_from(ids).unwrap_or(0);
        }
        self.at = now;
    }

    fn step(&self) -> Time {
        STEP + STEP_EACH * self.running.len() as Time
    }
}

// === impl Cache ===

impl Cache {
    fn hits(&self, chain: &[Seq]) -> usize {
        let known = |name: &&Seq| self.stamps.contains_key(name);
        chain.iter().take_while(known).count()
    }

    fn insert(&mut self, chain: &[Seq]) -> Changed {
        let stored_from = self.hits(chain);
        for name in chain.iter().rev() {
            self.clock += 1;
            if let Some(old) = self.stamps.insert(*name, self.clock) {
                self.order.remove(&old);
            }
            self.order.insert(self.clock, *name);
        }
        let mut removed = Vec::new();
        while self.order.len() > CACHE
            && let Some((_, name)) = self.order.pop_first()
        {
            self.stamps.remove(&name);
            removed.push(name);
        }
        Changed {
            stored_from,
            removed,
        }
    }
}
