use rand::{SeedableRng, rngs::StdRng};

use super::*;
use crate::{
    cost::Preset,
    event::{Event, Stored},
    hash::{Seed, chain},
    index::WorkerBlocks,
    loads::Limits,
};

const BLOCK: usize = 4;
const NOW: Moment = Moment::from_millis(1000);

struct World {
    all: Workers,
    workers: Vec<WorkerBlocks>,
    policy: Policy,
    rng: StdRng,
    scratch: Scratch,
}

impl World {
    fn new(workers: usize) -> Self {
        let limits = Limits {
            block_size: BLOCK,
            ..Limits::default()
        };
        let all = Workers::new(limits, 1 << 24);
        let workers = (0..workers).filter_map(|_| all.add()).collect();
        let policy = Policy {
            weights: Preset::Isthmus.weights(),
            temperature: 0.0,
            busy_tokens: None,
        };
        Self {
            all,
            workers,
            policy,
            rng: StdRng::seed_from_u64(3),
            scratch: Scratch::default(),
        }
    }

    fn decide(&mut self, id: &str, ids: &[u32], most: usize) -> Result<Decision, NoWorker> {
        let slots: Vec<Slot> = self.workers.iter().map(WorkerBlocks::slot).collect();
        let mut names = Vec::new();
        chain(ids, BLOCK, Seed::PLAIN, &mut names);
        let prompt = Prompt {
            id,
            chain: names.into(),
            ids: u32::try_from(ids.len()).unwrap_or(u32::MAX),
            decays: false,
            most,
        };
        let Self {
            all,
            policy,
            rng,
            scratch,
            ..
        } = self;
        policy.decide(all, &prompt, &slots, NOW, rng, scratch)
    }

    /// The engine of a worker has this prompt.
    fn store(&mut self, worker: usize, ids: &[u32]) {
        let blocks = u64::try_from(ids.len() / BLOCK).unwrap();
        let stored = Event::Stored(Stored {
            hashes: (0..blocks).collect(),
            ids: ids.to_vec(),
            block_size: BLOCK as u64,
            is_full_attention: true,
            ..Stored::default()
        });
        self.workers[worker]
            .apply(&self.all.index, &stored)
            .unwrap();
    }
}

#[test]
fn a_prompt_goes_where_it_is_cached_and_that_is_booked() {
    let mut world = World::new(4);
    let ids: Vec<u32> = (0..41).collect();
    world.store(2, &ids[..40]);
    let decision = world.decide("a", &ids, 3).unwrap();
    assert_eq!(decision.worker, world.workers[2].slot());
    assert_eq!((decision.overlap.gpu, decision.source), (10, Source::Exact));
    assert_eq!((decision.fallbacks.len(), decision.booked), (2, Ok(())));
    let load = world.all.loads.of(decision.worker, NOW).unwrap();
    assert_eq!(
        (load.prefill_tokens, load.decode_blocks, load.requests),
        (1, 11, 1)
    );
    assert_eq!(world.scratch.candidates.len(), 4);
}

/// Before any event: the first of them is computed once for each worker that gets one, and all others count on that.
#[test]
fn of_a_hundred_equal_prompts_each_chosen_worker_computes_one() {
    let mut world = World::new(8);
    // long enough that a few requests weigh less than computing it
    let ids: Vec<u32> = (0..40_000).collect();
    let mut chosen = std::collections::BTreeSet::new();
    let mut computed = 0;
    for number in 0..100 {
        let decision = world.decide(&format!("{number}"), &ids, 1).unwrap();
        let source = if chosen.insert(decision.worker) {
            computed += ids.len() - decision.overlap.blocks() as usize * BLOCK;
            Source::None
        } else {
            assert_eq!(decision.overlap.blocks(), 10_000);
            Source::Predicted
        };
        assert_eq!(decision.source, source, "prompt {number}");
    }
    assert_eq!(computed, chosen.len() * ids.len());
    let load = |worker: &WorkerBlocks| world.all.loads.of(worker.slot(), NOW).unwrap();
    let loads: Vec<_> = world.workers.iter().map(load).collect();
    let all: u64 = loads.iter().map(|it| it.prefill_tokens).sum();
    assert_eq!(all, computed as u64);
}

#[test]
fn without_overlap_prompts_spread_evenly() {
    let mut world = World::new(5);
    for number in 0..500_u32 {
        let ids: Vec<u32> = (0..40).map(|at| number * 1000 + at).collect();
        world.decide(&format!("{number}"), &ids, 1).unwrap();
    }
    let requests = |worker: &WorkerBlocks| world.all.loads.of(worker.slot(), NOW).unwrap().requests;
    let requests: Vec<_> = world.workers.iter().map(requests).collect();
    assert_eq!(requests, [100; 5]);
}

#[test]
fn busy_workers_are_left_out_until_all_are_busy() {
    let mut world = World::new(2);
    world.policy.busy_tokens = Some(50);
    let prompt = |number: u32| -> Vec<u32> { (0..60).map(|at| number * 1000 + at).collect() };
    let one = world.decide("1", &prompt(1), 2).unwrap();
    assert_eq!(one.fallbacks.len(), 1);
    let two = world.decide("2", &prompt(1), 2).unwrap();
    assert_ne!(one.worker, two.worker);
    assert!(two.fallbacks.is_empty());
    let busy: Vec<Slot> = world.scratch.busy.iter().map(|it| it.slot).collect();
    assert_eq!(busy, [one.worker]);
    assert_eq!(world.decide("3", &prompt(3), 2), Err(NoWorker::Saturated));
    world.all.loads.free("1", NOW);
    assert_eq!(world.decide("4", &prompt(4), 2).unwrap().worker, one.worker);
}

#[test]
fn a_worker_that_is_gone_is_no_candidate() {
    let mut world = World::new(2);
    let ids: Vec<u32> = (0..40).collect();
    world.store(0, &ids);
    world.all.loads.remove(world.workers[0].slot());
    let decision = world.decide("1", &ids, 2).unwrap();
    assert_eq!(decision.worker, world.workers[1].slot());
    world.all.loads.remove(world.workers[1].slot());
    assert_eq!(world.decide("2", &ids, 2), Err(NoWorker::Unknown));
}
