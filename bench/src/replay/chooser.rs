//! Ways to choose a worker that are compared.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result};
use kv_router::{
    Event, Limits, Policy, Preset, Prompt, Removed, Scratch, Slot, Stored, Tier, WorkerBlocks,
    Workers,
};
use moment::Moment;
use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::{BLOCK, prompts, worker::Changed};

/// A way to choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// By chance.
    Random,
    /// One worker after the other.
    RoundRobin,
    /// The one with the fewest requests, of equals the first.
    LeastRequests,
    /// By the first 1024 ids: the first part of a prompt beside what all begin with.
    Affinity,
    /// The default weights, by what was sent before alone.
    Approximate,
    /// The default weights, by the engines' events alone.
    Exact,
    /// By both, with the weights of Dynamo's router.
    Reference,
    /// By both: the router's default.
    Isthmus,
}

/// Chooses for one run.
pub(super) struct Chooser {
    routing: Routing,
    workers: Workers,
    /// One for each worker.
    blocks: Vec<WorkerBlocks>,
    slots: Vec<Slot>,
    policy: Policy,
    scratch: Scratch,
    rng: StdRng,
    next: usize,
    requests: Vec<u32>,
}

const INDEX_BYTES: usize = 2 << 30;
const AFFINITY_IDS: usize = 1024;

// === impl Routing ===

impl Routing {
    /// All of them, the default last.
    pub const ALL: [Self; 8] = [
        Self::Random,
        Self::RoundRobin,
        Self::LeastRequests,
        Self::Affinity,
        Self::Approximate,
        Self::Exact,
        Self::Reference,
        Self::Isthmus,
    ];

    /// What tables call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::RoundRobin => "round robin",
            Self::LeastRequests => "least requests",
            Self::Affinity => "first-block affinity",
            Self::Approximate => "approximate",
            Self::Exact => "exact",
            Self::Reference => "reference",
            Self::Isthmus => "isthmus",
        }
    }

    fn has_events(self) -> bool {
        matches!(self, Self::Exact | Self::Reference | Self::Isthmus)
    }
}

// === impl Chooser ===

impl Chooser {
    pub(super) fn new(routing: Routing, count: usize, seed: u64) -> Self {
        let keep_live = match routing {
            Routing::Exact => Duration::ZERO,
            _ => Limits::default().keep_live,
        };
        let limits = Limits {
            block_size: BLOCK,
            keep_live,
            ..Limits::default()
        };
        let workers = Workers::new(limits, INDEX_BYTES);
        let blocks: Vec<_> = (0..count).filter_map(|_| workers.add()).collect();
        let slots: Vec<Slot> = blocks.iter().map(WorkerBlocks::slot).collect();
        for slot in &slots {
            workers.loads.set_live(*slot, routing.has_events());
        }
        let preset = match routing {
            Routing::Reference => Preset::Reference,
            _ => Preset::Isthmus,
        };
        Self {
            routing,
            workers,
            blocks,
            slots,
            policy: Policy {
                weights: preset.weights(),
                temperature: 0.0,
                busy_tokens: None,
            },
            scratch: Scratch::default(),
            rng: StdRng::seed_from_u64(seed),
            next: 0,
            requests: vec![0; count],
        }
    }

    pub(super) fn choose(
        &mut self,
        request: usize,
        prompt: &prompts::Prompt,
        now: Moment,
    ) -> Result<usize> {
        let count = self.slots.len();
        let chosen = match self.routing {
            Routing::Random => self.rng.random_range(0..count),
            Routing::RoundRobin => {
                self.next += 1;
                self.next % count
            }
            Routing::LeastRequests => {
                let least = self.requests.iter().min().copied().unwrap_or(0);
                let place = self.requests.iter().position(|it| *it == least);
                place.unwrap_or(0)
            }
            Routing::Affinity => {
                let last = prompt.chain.len().min(AFFINITY_IDS / BLOCK);
                let name = last.checked_sub(1).map_or(0, |at| prompt.chain[at].get());
                usize::try_from(name % count as u64)?
            }
            _ => self.route(request, prompt, now)?,
        };
        self.requests[chosen] += 1;
        Ok(chosen)
    }

    /// The prompt was computed.
    pub(super) fn prefilled(
        &mut self,
        request: usize,
        worker: usize,
        prompt: &prompts::Prompt,
        changed: Changed,
        now: Moment,
    ) -> Result<()> {
        if self.routing.has_events() {
            let names = |from: usize| prompt.chain[from..].iter().map(|name| name.get());
            let from = changed.stored_from;
            let stored = Event::Stored(Stored {
                hashes: names(from).collect(),
                parent: from.checked_sub(1).map(|at| prompt.chain[at].get()),
                ids: prompt.blocks(from),
                block_size: BLOCK as u64,
                is_full_attention: true,
                ..Stored::default()
            });
            let removed = Event::Removed(Removed {
                hashes: changed.removed.iter().map(|name| name.get()).collect(),
                tier: Tier::Gpu,
                group: None,
            });
            for event in [stored, removed] {
                self.blocks[worker].apply(&self.workers.index, &event)?;
            }
        }
        let loads = &self.workers.loads;
        loads.prefill_complete(&request.to_string(), None, now);
        Ok(())
    }

    pub(super) fn ended(&mut self, request: usize, worker: usize, now: Moment) {
        self.requests[worker] -= 1;
        self.workers.loads.free(&request.to_string(), now);
    }

    fn route(&mut self, request: usize, prompt: &prompts::Prompt, now: Moment) -> Result<usize> {
        let wanted = Prompt {
            id: &request.to_string(),
            chain: Arc::clone(&prompt.chain),
            ids: u32::try_from(prompt.ids)?,
            decays: false,
            most: 1,
        };
        let Self {
            policy,
            workers,
            slots,
            rng,
            scratch,
            ..
        } = self;
        let decision = policy.decide(workers, &wanted, slots, now, rng, scratch)?;
        decision.booked?;
        let place = slots.iter().position(|slot| *slot == decision.worker);
        place.context("the chosen worker is no candidate")
    }
}
