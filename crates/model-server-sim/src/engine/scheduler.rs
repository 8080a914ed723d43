//! What runs, what waits, and when the next token is due: pure, with time as a parameter.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{Event, Latency, Limits, Moment, Rejected, SequenceId, Work};

/// The queue, the batch and the KV blocks.
///
/// Sequences start in order of arrival. One starts when there is a place in the batch and the blocks for
/// its whole prompt and output can be reserved; so the cache never runs out under a running sequence, and
/// nothing is preempted. Reported usage counts only blocks that hold tokens.
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    latency: Latency,
    next_id: u64,
    waiting: VecDeque<Waiting>,
    running: BTreeMap<SequenceId, Running>,
    /// When each running sequence makes its next token.
    due: BTreeSet<(Moment, SequenceId)>,
    reserved_blocks: u32,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    id: SequenceId,
    work: Work,
    blocks: u32,
    arrived: Moment,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    waited: Waiting,
    started: Moment,
    first_token: Moment,
    last_token: Moment,
    next_token: Moment,
    produced: u32,
}

// === impl Scheduler ===

impl Scheduler {
    /// An idle engine.
    pub fn new(limits: Limits, latency: Latency) -> Self {
        Self {
            limits,
            latency,
            next_id: 0,
            waiting: VecDeque::new(),
            running: BTreeMap::new(),
            due: BTreeSet::new(),
            reserved_blocks: 0,
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
        let blocks = self.blocks_of(work.prompt_tokens, work.output_tokens.get());
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
        // First in, first out: if anything still waits beyond the limit, it is the one just added.
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
            self.reserved_blocks -= running.waited.blocks;
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

    /// Share of the KV cache that holds tokens of running sequences: 0 to 1.
    pub fn kv_usage(&self) -> f64 {
        let used: u32 = self
            .running
            .values()
            .map(|running| self.blocks_of(running.waited.work.prompt_tokens, running.produced))
            .sum();
        f64::from(used) / f64::from(self.limits.blocks.get())
    }

    fn make_token(&mut self, id: SequenceId, at: Moment, events: &mut Vec<Event>) {
        let Some(running) = self.running.get_mut(&id) else {
            return;
        };
        let work = running.waited.work;
        let since_last = at.since(running.last_token);
        let since_arrival = at.since(running.waited.arrived);
        running.produced += 1;
        running.last_token = at;
        if running.produced == 1 {
            running.first_token = at;
            let prefill = at.since(running.started);
            let prompt_tokens = work.prompt_tokens;
            events.push(Event::FirstToken {
                id,
                prompt_tokens,
                since_arrival,
                prefill,
            });
        } else {
            events.push(Event::Token {
                id,
                produced: running.produced,
                since_last,
            });
        }
        if running.produced < work.output_tokens.get() {
            running.next_token = at.plus(self.latency.inter_token);
            self.due.insert((running.next_token, id));
            return;
        }
        let decode = at.since(running.first_token);
        self.reserved_blocks -= running.waited.blocks;
        self.running.remove(&id);
        events.push(Event::Finished {
            id,
            finish: work.finish,
            since_arrival,
            decode,
        });
        self.start_waiting(at, events);
    }

    /// Starts waiting sequences in order while the first of them fits.
    fn start_waiting(&mut self, now: Moment, events: &mut Vec<Event>) {
        while let Some(&first) = self.waiting.front()
            && self.running.len() < self.limits.max_running.get()
            && first.blocks <= self.limits.blocks.get() - self.reserved_blocks
        {
            self.waiting.pop_front();
            self.reserved_blocks += first.blocks;
            let next_token = now.plus(self.latency.first_token(first.work.prompt_tokens));
            self.due.insert((next_token, first.id));
            self.running.insert(
                first.id,
                Running {
                    waited: first,
                    started: now,
                    first_token: now,
                    last_token: now,
                    next_token,
                    produced: 0,
                },
            );
            events.push(Event::Started {
                id: first.id,
                queued: now.since(first.arrived),
            });
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
