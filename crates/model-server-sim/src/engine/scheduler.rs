//! What runs, what waits, and when the next token is due: pure, with time as a parameter.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use super::{
    Dice, Event, Latency, Limits, Load, Moment, Rejected, SequenceId, Work,
    adapters::{AdapterSlots, Admission},
    cache::KvCache,
};

/// The queue, the batch and the KV blocks.
///
/// Sequences start in order of arrival. One starts when there is a place in the batch and the blocks for
/// its whole prompt and output can be reserved; so the cache never runs out under a running sequence, and
/// nothing is preempted. Reported usage counts only blocks that hold tokens.
///
/// A sequence whose LoRA adapter finds no place lets those behind it pass, as in vLLM.
///
/// The full blocks of a prompt are known to the prefix cache once they are computed, which is when the
/// first token is made; blocks of the output never are.
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    latency: Latency,
    dice: Dice,
    next_id: u64,
    waiting: VecDeque<Waiting>,
    running: BTreeMap<SequenceId, Running>,
    /// When each running sequence makes its next token.
    due: BTreeSet<(Moment, SequenceId)>,
    cache: KvCache,
    adapters: AdapterSlots,
}

#[derive(Debug)]
struct Waiting {
    id: SequenceId,
    work: Work,
    blocks: u32,
    arrived: Moment,
}

#[derive(Debug)]
struct Running {
    waited: Waiting,
    started: Moment,
    first_token: Moment,
    last_token: Moment,
    next_token: Moment,
    produced: u32,
    /// How many blocks of its prefix it shares through the cache: at first those that were known, after
    /// the prefill all.
    shared: usize,
    /// Its other blocks.
    reserved: u32,
}

// === impl Scheduler ===

impl Scheduler {
    /// An idle engine.
    pub fn new(limits: Limits, latency: Latency, dice: Dice) -> Self {
        Self {
            limits,
            latency,
            dice,
            next_id: 0,
            waiting: VecDeque::new(),
            running: BTreeMap::new(),
            due: BTreeSet::new(),
            cache: KvCache::new(limits.blocks.get()),
            adapters: AdapterSlots::new(limits.max_adapters.get()),
        }
    }

    /// From now on tokens take this long. A token whose moment is already set keeps it.
    pub fn set_latency(&mut self, latency: Latency) {
        self.latency = latency;
    }

    /// Adds work, after everything due until `now` has happened; `events` receives what happened.
    ///
    /// # Errors
    /// [`Rejected`] if it must wait and the queue is full, or if it can never fit.
    pub fn submit(
        &mut self,
        work: Work,
        now: Moment,
        events: &mut Vec<Event>,
    ) -> Result<SequenceId, Rejected> {
        self.advance(now, events);
        let blocks = self.blocks_of(work.prompt_tokens, work.output_tokens);
        if blocks > self.limits.blocks.get() {
            return Err(Rejected::TooLarge {
                needed: blocks,
                blocks: self.limits.blocks.get(),
            });
        }
        let id = SequenceId(self.next_id);
        self.waiting.push_back(Waiting {
            id,
            work,
            blocks,
            arrived: now,
        });
        self.start_waiting(now, events);
        // If anything still waits beyond the limit, it is the one just added, which is the last.
        if self.waiting.len() > self.limits.max_waiting {
            self.waiting.pop_back();
            return Err(Rejected::QueueFull {
                waiting: self.waiting.len(),
            });
        }
        self.next_id += 1;
        Ok(id)
    }

    /// Lets everything happen that is due until `now`, each thing at its own moment.
    pub fn advance(&mut self, now: Moment, events: &mut Vec<Event>) {
        while let Some(&(at, id)) = self.due.first()
            && at <= now
        {
            self.due.pop_first();
            self.make_token(id, at, events);
        }
    }

    /// Ends a sequence whose client has gone; nothing happens if it has ended already.
    pub fn cancel(&mut self, id: SequenceId, now: Moment, events: &mut Vec<Event>) {
        self.advance(now, events);
        let waited = if let Some(running) = self.running.remove(&id) {
            self.due.remove(&(running.next_token, id));
            self.release(&running);
            running.waited
        } else if let Some(place) = self.waiting.iter().position(|waiting| waiting.id == id)
            && let Some(waiting) = self.waiting.remove(place)
        {
            waiting
        } else {
            return;
        };
        events.push(Event::Aborted {
            id,
            since_arrival: now.since(waited.arrived),
        });
        self.start_waiting(now, events);
    }

    /// Ends everything, and the cache is empty: a new engine in the place of this one.
    pub(super) fn restart(&mut self, now: Moment, events: &mut Vec<Event>) {
        let running = std::mem::take(&mut self.running);
        let running = running.into_values().map(|running| running.waited);
        for waited in running.chain(std::mem::take(&mut self.waiting)) {
            events.push(Event::Aborted {
                id: waited.id,
                since_arrival: now.since(waited.arrived),
            });
        }
        self.due.clear();
        self.cache.restart();
        self.adapters = AdapterSlots::new(self.limits.max_adapters.get());
    }

    /// The cache, for whoever is told of what it does.
    pub(super) fn cache_mut(&mut self) -> &mut KvCache {
        &mut self.cache
    }

    /// When the next token is made; `None` if nothing runs.
    pub fn next_due(&self) -> Option<Moment> {
        self.due.first().map(|&(at, _)| at)
    }

    /// Sequences that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Sequences that make tokens.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Share of the KV cache that holds tokens of running sequences: 0 to 1. A block that several of them
    /// share counts once.
    pub fn kv_usage(&self) -> f64 {
        let own: u32 = self.running.values().map(|running| self.own(running)).sum();
        f64::from(self.cache.shared().saturating_add(own)) / f64::from(self.limits.blocks.get())
    }

    /// LoRA adapters of running sequences, by name.
    pub fn running_adapters(&self) -> BTreeSet<Arc<str>> {
        self.adapters.running().cloned().collect()
    }

    /// LoRA adapters of waiting sequences, by name.
    pub fn waiting_adapters(&self) -> BTreeSet<Arc<str>> {
        let adapters = self.waiting.iter().map(|waiting| &waiting.work.adapter);
        adapters.flatten().cloned().collect()
    }

    /// Blocks that hold tokens of this sequence alone.
    fn own(&self, running: &Running) -> u32 {
        let held = self.blocks_of(running.waited.work.prompt_tokens, running.produced);
        held.saturating_sub(u32::try_from(running.shared).unwrap_or(u32::MAX))
    }

    fn make_token(&mut self, id: SequenceId, at: Moment, events: &mut Vec<Event>) {
        let load = self.load(self.running.len());
        let Some(running) = self.running.get_mut(&id) else {
            return;
        };
        let work = &running.waited.work;
        let since_arrival = at.since(running.waited.arrived);
        let since_last = at.since(running.last_token);
        running.last_token = at;
        if running.produced == 0 {
            running.first_token = at;
            events.push(Event::Prefilled {
                id,
                prompt_tokens: work.prompt_tokens,
                took: at.since(running.started),
            });
            self.cache.fill_prompt(work, running.shared);
            let new = work.prefix.len().saturating_sub(running.shared);
            running.reserved -= u32::try_from(new).unwrap_or(u32::MAX);
            running.shared = work.prefix.len();
        }
        if running.produced < work.output_tokens {
            running.produced += 1;
            events.push(if running.produced == 1 {
                Event::FirstToken { id, since_arrival }
            } else {
                Event::Token {
                    id,
                    produced: running.produced,
                    since_last,
                }
            });
        }
        if running.produced < work.output_tokens {
            let wait = self
                .latency
                .next_token(running.produced, load, self.dice, id);
            running.next_token = at.plus(wait);
            self.due.insert((running.next_token, id));
            return;
        }
        events.push(Event::Finished {
            id,
            finish: work.finish,
            since_arrival,
            decode: at.since(running.first_token),
        });
        if let Some(running) = self.running.remove(&id) {
            self.release(&running);
        }
        self.start_waiting(at, events);
    }

    fn release(&mut self, running: &Running) {
        let prefix = &running.waited.work.prefix;
        let held = prefix.get(..running.shared).unwrap_or(prefix);
        self.cache.release(held, running.reserved);
        if let Some(adapter) = &running.waited.work.adapter {
            self.adapters.release(adapter);
        }
    }

    /// Starts waiting sequences in order while the first that has a place for its adapter fits.
    fn start_waiting(&mut self, now: Moment, events: &mut Vec<Event>) {
        let mut place = 0;
        while self.running.len() < self.limits.max_running.get()
            && let Some(next) = self.waiting.get(place)
        {
            let swap = match self.adapters.check(next.work.adapter.as_deref()) {
                Admission::Ready => Duration::ZERO,
                Admission::Swap => self.latency.adapter_swap(),
                Admission::Full => {
                    place += 1;
                    continue;
                }
            };
            let Some(next) = self.waiting.remove(place) else {
                return;
            };
            let Some(hits) = self.reserve(&next) else {
                self.waiting.insert(place, next);
                return;
            };
            self.start(next, hits, swap, now, events);
        }
    }

    fn start(
        &mut self,
        waited: Waiting,
        hits: u32,
        swap: Duration,
        now: Moment,
        events: &mut Vec<Event>,
    ) {
        let (id, prompt_tokens) = (waited.id, waited.work.prompt_tokens);
        let cached_tokens = hits.saturating_mul(self.limits.block_tokens.get());
        let uncached = prompt_tokens.saturating_sub(cached_tokens);
        events.push(Event::Started {
            id,
            queued: now.since(waited.arrived),
            prompt_tokens,
            cached_tokens,
        });
        if let Some(adapter) = &waited.work.adapter {
            self.adapters.acquire(adapter);
        }
        let load = self.load(self.running.len() + 1);
        let prefill = self.latency.prefill(uncached, load, self.dice, id);
        let next_token = now.plus(swap).plus(prefill);
        self.due.insert((next_token, id));
        let running = Running {
            started: now,
            first_token: now,
            last_token: now,
            next_token,
            produced: 0,
            shared: usize::try_from(hits).unwrap_or(usize::MAX),
            reserved: waited.blocks - hits,
            waited,
        };
        self.running.insert(id, running);
    }

    /// Reserves all blocks of a sequence; gives back how many of them the prefix cache holds, `None` if
    /// there is no room. At least one token of a prompt is always computed, as in vLLM: the first token
    /// of the output follows from it.
    fn reserve(&mut self, waiting: &Waiting) -> Option<u32> {
        let Work {
            prompt_tokens,
            prefix,
            ..
        } = &waiting.work;
        let most = prompt_tokens.saturating_sub(1) / self.limits.block_tokens.get();
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let usable = prefix.get(..most).unwrap_or(prefix);
        let hits = usable.get(..self.cache.matched(usable))?;
        let count = u32::try_from(hits.len()).ok()?;
        let more = waiting.blocks.checked_sub(count)?;
        self.cache.admit(hits, more).then_some(count)
    }

    fn load(&self, running: usize) -> Load {
        Load {
            running,
            max_running: self.limits.max_running.get(),
        }
    }

    fn blocks_of(&self, prompt_tokens: u32, output_tokens: u32) -> u32 {
        prompt_tokens
            .saturating_add(output_tokens)
            .div_ceil(self.limits.block_tokens.get())
    }
}

#[cfg(test)]
mod tests;
