//! From a prompt to a worker.

use std::sync::Arc;

use moment::Moment;
use rand::Rng;
use scheduling::Slot;
use smallvec::SmallVec;

use crate::{
    choice::choose,
    cost::{Facts, Terms, Weights},
    hash::Seq,
    index::Overlap,
    loads::{NewBooking, NotBooked, View},
    workers::Workers,
};

#[cfg(test)]
mod tests;

/// What choices depend on beside the prompt and the workers.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Of the parts of the cost.
    pub weights: Weights,
    /// Above 0 the choice is random.
    pub temperature: f64,
    /// A worker with more ids to compute than this gets no prompt.
    pub busy_tokens: Option<u64>,
}

/// A prompt that wants a worker.
#[derive(Clone, Debug)]
pub struct Prompt<'a> {
    /// Under which it is booked.
    pub id: &'a str,
    /// All full blocks.
    pub chain: Arc<[Seq]>,
    /// Ids.
    pub ids: u32,
    /// Nobody will report that it is computed.
    pub decays: bool,
    /// Workers in the order of preference at most.
    pub most: usize,
}

/// Where a prompt goes.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The worker.
    pub worker: Slot,
    /// Others, the best first.
    pub fallbacks: SmallVec<[Slot; 4]>,
    /// Blocks that the worker has.
    pub overlap: Overlap,
    /// How that is known.
    pub source: Source,
    /// Whether it was booked.
    pub booked: Result<(), NotBooked>,
}

/// How an overlap is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The engine's events say it.
    Exact,
    /// What was sent there before lets expect it.
    Predicted,
    /// There is none.
    None,
}

/// A worker as it was considered for a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Candidate {
    /// The worker.
    pub slot: Slot,
    /// What it has by the engine's events.
    pub exact: Overlap,
    /// What it has by all that is known.
    pub overlap: Overlap,
    /// How the prompt finds it.
    pub view: View,
    /// What that costs, in blocks.
    pub terms: Terms,
}

/// Why there is no worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoWorker {
    /// No candidate is known.
    #[error("none of the candidates is a known worker")]
    Unknown,
    /// All are busy.
    #[error("all workers are above the busy threshold")]
    Saturated,
}

/// What a decision is made with; one for each task, used again and again. After a decision it has all candidates.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    /// Those that were considered, in the order in which they were given.
    pub candidates: Vec<Candidate>,
    /// Those that were left out because they are busy; their cost is not worked out.
    pub busy: Vec<Candidate>,
    overlaps: Vec<Overlap>,
    costs: Vec<f64>,
}

// === impl Source ===

impl Source {
    /// As replies and metrics have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Predicted => "predicted",
            Self::None => "none",
        }
    }
}

// === impl NoWorker ===

impl NoWorker {
    /// As replies and metrics have it.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Unknown => "no-workers",
            Self::Saturated => "saturated",
        }
    }
}

// === impl Policy ===

impl Policy {
    /// Chooses one of the candidates and books the prompt there.
    /// # Errors
    /// When none can be chosen.
    pub fn decide(
        &self,
        workers: &Workers,
        prompt: &Prompt<'_>,
        slots: &[Slot],
        now: Moment,
        rng: &mut impl Rng,
        scratch: &mut Scratch,
    ) -> Result<Decision, NoWorker> {
        scratch.fill(workers, prompt, slots, now)?;
        let block_size = workers.index.block_size();
        self.weigh(block_size, prompt, scratch)?;
        let order = choose(&scratch.costs, self.temperature, prompt.most, rng);
        let mut order = order.iter().filter_map(|at| scratch.candidates.get(*at));
        let best = order.next().ok_or(NoWorker::Unknown)?;
        let cached = best.overlap.blocks() as usize * block_size;
        let booked = workers.loads.book(
            prompt.id,
            NewBooking {
                slot: best.slot,
                chain: Arc::clone(&prompt.chain),
                ids: prompt.ids,
                cached: u32::try_from(cached).unwrap_or(u32::MAX),
                decays: prompt.decays,
            },
            now,
        );
        Ok(Decision {
            worker: best.slot,
            fallbacks: order.map(|it| it.slot).collect(),
            overlap: best.overlap,
            source: best.source(),
            booked,
        })
    }

    fn weigh(
        &self,
        block_size: usize,
        prompt: &Prompt<'_>,
        scratch: &mut Scratch,
    ) -> Result<(), NoWorker> {
        let Scratch {
            candidates: all,
            busy,
            costs,
            ..
        } = scratch;
        if let Some(most) = self.busy_tokens {
            let is_busy = |it: &mut Candidate| it.view.load.prefill_tokens > most;
            busy.extend(all.extract_if(.., is_busy));
        }
        let prefill = all.iter().map(|it| it.view.load.prefill_tokens);
        let least = prefill.min().ok_or(NoWorker::Saturated)?;
        let partial = prompt.ids as usize > prompt.chain.len() * block_size;
        let blocks = u32::try_from(prompt.chain.len() + usize::from(partial));
        let blocks = blocks.unwrap_or(u32::MAX);
        costs.clear();
        for it in all {
            it.terms = self.weights.terms(&Facts {
                ids: prompt.ids,
                block_size,
                overlap: it.overlap,
                load: it.view.load,
                new_blocks: blocks.saturating_sub(it.view.active),
                least_prefill_tokens: least,
            });
            costs.push(it.terms.sum());
        }
        Ok(())
    }
}

// === impl Scratch ===

impl Scratch {
    fn fill(
        &mut self,
        workers: &Workers,
        prompt: &Prompt<'_>,
        slots: &[Slot],
        now: Moment,
    ) -> Result<(), NoWorker> {
        self.overlaps.resize(slots.len(), Overlap::default());
        workers
            .index
            .matches(&prompt.chain, slots, &mut self.overlaps);
        self.candidates.clear();
        self.busy.clear();
        for (slot, exact) in slots.iter().zip(&self.overlaps) {
            let Some(view) = workers.loads.view(*slot, &prompt.chain, now) else {
                continue;
            };
            let mut overlap = *exact;
            overlap.gpu += view.predicted.saturating_sub(exact.blocks());
            self.candidates.push(Candidate {
                slot: *slot,
                exact: *exact,
                overlap,
                view,
                terms: Terms::default(),
            });
        }
        if self.candidates.is_empty() {
            return Err(NoWorker::Unknown);
        }
        Ok(())
    }
}

// === impl Candidate ===

impl Candidate {
    fn source(&self) -> Source {
        if self.overlap.blocks() > self.exact.blocks() {
            Source::Predicted
        } else if self.exact.blocks() > 0 {
            Source::Exact
        } else {
            Source::None
        }
    }
}
