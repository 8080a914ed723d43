//! The router's parts alone: names of blocks, the index beside the plainest one there is, its memory, and a decision.
//!
//! Names are timed by the processor time of their thread, the index and a decision by the clock.

use std::{
    cell::RefCell,
    collections::{BTreeSet, HashMap, VecDeque},
    hint::black_box,
    sync::Arc,
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use kv_router::{
    Event, Index, Limits, Overlap, Policy, Preset, Prompt, Removed, Scratch, Seed, Seq, Slot,
    Stored, Tier, WorkerBlocks, Workers, chain,
};
use moment::Moment;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::Instant;

mod bound;

pub use bound::{Bounded, bounded};

const THREADS: u32 = 2;
/// For each thread.
const WORKERS: usize = 4;
const BLOCK: usize = 16;
const PROMPT_BLOCKS: usize = 64;
const PROMPT_IDS: u32 = 1024;
/// Of them, those that a prompt shares with some others.
const SHARED_IDS: u32 = 512;
const PROMPTS: u32 = 4000;
/// Prompts that a worker keeps.
const KEPT: usize = 500;
const MAX_BYTES: usize = 2 << 30;

/// A prompt as an engine publishes it and as the router asks for it.
struct Made {
    stored: Event<'static>,
    removed: Event<'static>,
    chain: Vec<Seq>,
}

/// One map without any lock, by the names that both use.
#[derive(Default)]
struct Naive {
    blocks: HashMap<u64, BTreeSet<usize>>,
    engines: Vec<HashMap<u64, (Seq, u32)>>,
}

// === impl Naive ===

impl Naive {
    fn apply(&mut self, worker: usize, event: &Event<'_>) {
        let engine = &mut self.engines[worker];
        match event {
            Event::Stored(stored) => {
                let mut names = Vec::new();
                chain(&stored.ids, BLOCK, Seed::PLAIN, &mut names);
                for (hash, name) in stored.hashes.iter().zip(names) {
                    let known = engine.entry(*hash).or_insert((name, 0));
                    known.1 += 1;
                    if known.1 == 1 {
                        self.blocks.entry(name.get()).or_default().insert(worker);
                    }
                }
            }
            Event::Removed(removed) => {
                for hash in &removed.hashes {
                    let Some(known) = engine.get_mut(hash) else {
                        continue;
                    };
                    known.1 -= 1;
                    if known.1 == 0 {
                        let name = known.0.get();
                        engine.remove(hash);
                        let workers = self.blocks.entry(name).or_default();
                        workers.remove(&worker);
                        if workers.is_empty() {
                            self.blocks.remove(&name);
                        }
                    }
                }
            }
            Event::Cleared => engine.clear(),
            // `mk_prompt` makes none of these
            Event::Shared { .. } | Event::Unreadable { .. } => {}
        }
    }

    fn matches(&self, chain: &[Seq], out: &mut [Overlap]) {
        for (worker, out) in out.iter_mut().enumerate() {
            let has = |name: &&Seq| {
                let workers = self.blocks.get(&name.get());
                workers.is_some_and(|it| it.contains(&worker))
            };
            out.gpu = chain.iter().take_while(has).map(|_| 1).sum();
        }
    }
}

fn mk_prompt(thread: u32, number: u32) -> Made {
    let id = |at: u32| {
        let shared = SHARED_IDS > at;
        let prompt = if shared { number % 50 } else { 1000 + number };
        (thread * 7919 + prompt).wrapping_mul(48_271) ^ at
    };
    let ids: Vec<u32> = (0..PROMPT_IDS).map(id).collect();
    let mut names = Vec::new();
    chain(&ids, BLOCK, Seed::PLAIN, &mut names);
    let hashes: Vec<u64> = names.iter().map(|it| !it.get()).collect();
    Made {
        removed: Event::Removed(Removed {
            hashes: hashes.iter().rev().copied().collect(),
            tier: Tier::Gpu,
            group: None,
        }),
        stored: Event::Stored(Stored {
            hashes,
            ids,
            block_size: BLOCK as u64,
            is_full_attention: true,
            ..Stored::default()
        }),
        chain: names,
    }
}

/// What the thread has run so far: other programs on the machine do not count.
fn processor_seconds() -> f64 {
    thread::yield_now();
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns: Option<f64> = stat.split(' ').next().and_then(|it| it.parse().ok());
    ns.unwrap_or(0.0) / 1e9
}

/// Stores prompts at one worker after the other, removes what is too much and matches each: block operations.
fn drive(
    prompts: &[Made],
    mut apply: impl FnMut(usize, &Event<'_>),
    mut matches: impl FnMut(&[Seq]) -> u32,
) -> (f64, u64) {
    let mut kept = vec![VecDeque::new(); WORKERS];
    let (mut operations, mut sum) = (0, 0_u64);
    for (number, prompt) in prompts.iter().enumerate() {
        let worker = number % WORKERS;
        sum += u64::from(matches(&prompt.chain));
        apply(worker, &prompt.stored);
        operations += 2 * PROMPT_BLOCKS;
        kept[worker].push_back(&prompt.removed);
        if kept[worker].len() > KEPT {
            if let Some(oldest) = kept[worker].pop_front() {
                apply(worker, oldest);
            }
            operations += PROMPT_BLOCKS;
        }
    }
    (operations as f64, sum)
}

/// What the index costs.
#[derive(Clone, Copy, Debug)]
pub struct IndexCost {
    /// Operations a second of all threads: a block stored, removed or matched.
    pub ours: f64,
    /// Of the plainest index, on one thread.
    pub oracle: f64,
}

/// Bytes of ids whose blocks are named in a second.
pub fn hashing(block: u32, blocks: u32) -> f64 {
    let ids: Vec<u32> = (0..block * blocks).map(|at| at * 7).collect();
    let mut out = Vec::new();
    let start = processor_seconds();
    let rounds = 20_000;
    for _ in 0..rounds {
        out.clear();
        chain(black_box(&ids), block as usize, Seed::PLAIN, &mut out);
        black_box(&out);
    }
    let bytes = f64::from(rounds) * f64::from(block * blocks) * 4.0;
    bytes / (processor_seconds() - start)
}

/// The middle one of three rounds on two threads, each with workers of its own.
///
/// # Errors
/// When the index and the oracle do not match the same.
pub fn index() -> Result<IndexCost> {
    let made: Vec<Vec<Made>> = (0..THREADS)
        .map(|thread| {
            (0..PROMPTS)
                .map(|number| mk_prompt(thread, number))
                .collect()
        })
        .collect();
    let mut rounds = Vec::new();
    for _ in 0..3 {
        let index = Index::new(BLOCK, MAX_BYTES);
        let results: Vec<_> = thread::scope(|scope| {
            let all: Vec<_> = made
                .iter()
                .map(|prompts| scope.spawn(|| indexed(&index, prompts)))
                .collect();
            all.into_iter()
                .map(thread::ScopedJoinHandle::join)
                .collect()
        });
        let mut ours = 0.0;
        let mut first = None;
        for result in results {
            let (operations, sum, took) =
                result.map_err(|_| anyhow::anyhow!("a thread died"))??;
            ours += operations / took;
            first.get_or_insert(sum);
        }
        let (oracle, sum) = naive(&made[0]);
        ensure!(first == Some(sum), "the oracle matches something else");
        rounds.push(IndexCost { ours, oracle });
    }
    rounds.sort_by(|a, b| a.ours.total_cmp(&b.ours));
    rounds.get(rounds.len() / 2).copied().context("no round")
}

/// Operations, what was matched, and how long it took by the clock: a thread that waits for the other is slower.
fn indexed(index: &Index, prompts: &[Made]) -> Result<(f64, u64, f64)> {
    let mut workers: Vec<WorkerBlocks> = (0..WORKERS).filter_map(|_| index.add()).collect();
    let slots: Vec<Slot> = workers.iter().map(WorkerBlocks::slot).collect();
    let mut out = [Overlap::default(); WORKERS];
    let mut refused = false;
    let start = Instant::now();
    let (operations, sum) = drive(
        prompts,
        |worker, event| refused |= workers[worker].apply(index, event).is_err(),
        |chain| {
            index.matches(chain, &slots, &mut out);
            out.iter().map(|it| it.gpu).sum()
        },
    );
    let took = start.elapsed().as_secs_f64();
    ensure!(!refused, "the index refused an event");
    Ok((operations, sum, took))
}

/// Operations a second, and what was matched.
fn naive(prompts: &[Made]) -> (f64, u64) {
    let mut naive = Naive::default();
    naive.engines.resize_with(WORKERS, HashMap::new);
    let naive = RefCell::new(naive);
    let mut out = [Overlap::default(); WORKERS];
    let start = processor_seconds();
    let (operations, sum) = drive(
        prompts,
        |worker, event| naive.borrow_mut().apply(worker, event),
        |chain| {
            naive.borrow().matches(chain, &mut out);
            out.iter().map(|it| it.gpu).sum()
        },
    );
    (operations / (processor_seconds() - start), sum)
}

/// Bytes of a worker's block, where no two workers share one: the most that it can cost.
///
/// # Errors
/// When the index refuses an event.
pub fn memory(prompts: u32) -> Result<f64> {
    let index = Index::new(BLOCK, MAX_BYTES);
    let empty = index.stats().bytes;
    let mut workers: Vec<_> = (0..8).filter_map(|_| index.add()).collect();
    for number in 0..prompts {
        let at = number as usize % workers.len();
        workers[at].apply(&index, &mk_prompt(number, number).stored)?;
    }
    let pairs: usize = workers.iter().map(WorkerBlocks::pairs).sum();
    let own: usize = workers.iter().map(WorkerBlocks::bytes).sum();
    Ok((index.stats().bytes - empty + own) as f64 / pairs as f64)
}

/// Times from names to a booked worker, shortest first: prompts of 8,600 ids in blocks of 64, a third of them new from the
/// first block on.
///
/// # Errors
/// When no worker is found.
pub fn decide(count: u32) -> Result<Vec<Duration>> {
    let limits = Limits {
        block_size: 64,
        ..Limits::default()
    };
    let workers = Workers::new(limits, MAX_BYTES);
    let all: Vec<_> = (0..count).filter_map(|_| workers.add()).collect();
    let slots: Vec<Slot> = all.iter().map(WorkerBlocks::slot).collect();
    let policy = Policy {
        weights: Preset::Isthmus.weights(),
        temperature: 0.0,
        busy_tokens: None,
    };
    let mut rng = StdRng::seed_from_u64(1);
    let mut scratch = Scratch::default();
    let mut times = Vec::new();
    let mut open: VecDeque<String> = VecDeque::new();
    for number in 0..50_000_u64 {
        let now = Moment::from_millis(number * 5);
        let family: u64 = rng.random_range(0..60);
        let shared = if number % 3 == 0 { 0 } else { 80 };
        let name = |at: u64| {
            let of = if at < shared { family } else { 100 + number };
            (of + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17) ^ (at << 7)
        };
        let chain: Vec<Seq> = (0..134).map(|at| Seq::from_u64(name(at))).collect();
        let id = format!("r_{number}");
        let start = Instant::now();
        let prompt = Prompt {
            id: &id,
            chain: Arc::from(chain),
            ids: 8600,
            decays: false,
            most: 2,
        };
        let decision = policy.decide(&workers, &prompt, &slots, now, &mut rng, &mut scratch)?;
        times.push(start.elapsed());
        ensure!(
            decision.booked == Ok(()),
            "not booked: {:?}",
            decision.booked
        );
        workers.loads.prefill_complete(&id, None, now);
        open.push_back(id);
        if open.len() > 256
            && let Some(ended) = open.pop_front()
        {
            workers.loads.free(&ended, now);
        }
        if number % 200 == 0 {
            workers.loads.expire(now);
        }
    }
    times.sort_unstable();
    Ok(times)
}
