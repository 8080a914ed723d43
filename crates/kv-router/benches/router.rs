//! Time and memory of the index, beside the plainest index there is, and of a decision. Prints its figures.
//!
//! `cargo bench -p kv-router`

#![allow(
    clippy::disallowed_types,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark reads the clock and prints"
)]

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    hint::black_box,
    sync::Arc,
    thread,
    time::Instant,
};

use kv_router::{
    Event, Index, Limits, Overlap, Policy, Preset, Prompt, Removed, Scratch, Seed, Seq, Slot,
    Stored, Tier, WorkerBlocks, Workers, chain,
};
use moment::Moment;
use rand::{RngExt, SeedableRng, rngs::StdRng};

const THREADS: u32 = 2;
/// For each thread.
const WORKERS: usize = 4;
const BLOCK: usize = 16;
const PROMPT_BLOCKS: usize = 64;
/// Of them, those that a prompt shares with some others.
const SHARED_BLOCKS: usize = 32;
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

fn main() {
    // `cargo test --benches` passes no `--bench`.
    if std::env::args().all(|it| it != "--bench") {
        return;
    }
    hashing();
    index();
    memory();
    for workers in [8, 64, 1000] {
        decide(workers);
    }
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
                        let workers = self.blocks.get_mut(&name).unwrap();
                        workers.remove(&worker);
                        if workers.is_empty() {
                            self.blocks.remove(&name);
                        }
                    }
                }
            }
            Event::Cleared => engine.clear(),
        }
    }

    fn matches(&self, chain: &[Seq], out: &mut [Overlap]) {
        for (worker, out) in out.iter_mut().enumerate() {
            let has = |name: &&Seq| {
                let workers = self.blocks.get(&name.get());
                workers.is_some_and(|it| it.contains(&worker))
            };
            out.gpu = u32::try_from(chain.iter().take_while(has).count()).unwrap();
        }
    }
}

fn mk_prompt(thread: u32, number: u32) -> Made {
    let id = |at: usize| {
        let at = u32::try_from(at).unwrap();
        let shared = SHARED_BLOCKS * BLOCK > at as usize;
        let prompt = if shared { number % 50 } else { 1000 + number };
        (thread * 7919 + prompt).wrapping_mul(48_271) ^ at
    };
    let ids: Vec<u32> = (0..PROMPT_BLOCKS * BLOCK).map(id).collect();
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
            apply(worker, kept[worker].pop_front().unwrap());
            operations += PROMPT_BLOCKS;
        }
    }
    (operations as f64, sum)
}

fn hashing() {
    for (block, blocks) in [(64, 134), (16, 537)] {
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
        println!(
            "hashing, {block} ids a block: {:.2} GB/s",
            bytes / (processor_seconds() - start) / 1e9
        );
    }
}

fn index() {
    let made: Vec<Vec<Made>> = (0..THREADS)
        .map(|thread| {
            (0..PROMPTS)
                .map(|number| mk_prompt(thread, number))
                .collect()
        })
        .collect();
    for round in 0..3 {
        let index = Index::new(BLOCK, MAX_BYTES);
        let run = |prompts: &[Made]| {
            let mut workers: Vec<WorkerBlocks> = (0..WORKERS).filter_map(|_| index.add()).collect();
            let slots: Vec<Slot> = workers.iter().map(WorkerBlocks::slot).collect();
            let mut out = [Overlap::default(); WORKERS];
            let start = processor_seconds();
            let done = drive(
                prompts,
                |worker, event| {
                    workers[worker].apply(&index, event).unwrap();
                },
                |chain| {
                    index.matches(chain, &slots, &mut out);
                    out.iter().map(|it| it.gpu).sum()
                },
            );
            (done, processor_seconds() - start)
        };
        let results: Vec<_> = thread::scope(|scope| {
            let all: Vec<_> = made.iter().map(|it| scope.spawn(|| run(it))).collect();
            all.into_iter().map(|it| it.join().unwrap()).collect()
        });
        let ours: f64 = results
            .iter()
            .map(|((operations, _), took)| operations / took)
            .sum();
        let mut naive = Naive::default();
        naive.engines.resize_with(WORKERS, HashMap::new);
        let naive = std::cell::RefCell::new(naive);
        let mut out = [Overlap::default(); WORKERS];
        let start = processor_seconds();
        let (operations, sum) = drive(
            &made[0],
            |worker, event| naive.borrow_mut().apply(worker, event),
            |chain| {
                naive.borrow().matches(chain, &mut out);
                out.iter().map(|it| it.gpu).sum()
            },
        );
        let oracle = operations / (processor_seconds() - start);
        assert_eq!(results[0].0.1, sum, "the oracle matches the same");
        println!(
            "index, round {round}: {:.1} M operations/s on {THREADS} threads; oracle on one {:.1} M/s",
            ours / 1e6,
            oracle / 1e6
        );
    }
}

/// No two workers share a block: the most that a pair can cost.
fn memory() {
    for prompts in [1_000, 10_000, 160_000] {
        let index = Index::new(BLOCK, MAX_BYTES);
        let empty = index.stats().bytes;
        let mut workers: Vec<_> = (0..8).filter_map(|_| index.add()).collect();
        for number in 0..prompts {
            let at = number as usize % workers.len();
            workers[at]
                .apply(&index, &mk_prompt(number, number).stored)
                .unwrap();
        }
        let pairs: usize = workers.iter().map(WorkerBlocks::pairs).sum();
        let own: usize = workers.iter().map(WorkerBlocks::bytes).sum();
        println!(
            "memory: {pairs} pairs, {:.1} bytes each",
            (index.stats().bytes - empty + own) as f64 / pairs as f64
        );
    }
}

/// From names to a booked worker: prompts of 8,600 ids in blocks of 64, a third of them new from the first block on.
fn decide(count: u32) {
    let workers = Workers::new(
        Limits {
            block_size: 64,
            ..Limits::default()
        },
        MAX_BYTES,
    );
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
        let decision = policy
            .decide(&workers, &prompt, &slots, now, &mut rng, &mut scratch)
            .unwrap();
        times.push(start.elapsed());
        assert_eq!(decision.booked, Ok(()));
        workers.loads.prefill_complete(&id, None, now);
        open.push_back(id);
        if open.len() > 256 {
            workers.loads.free(&open.pop_front().unwrap(), now);
        }
        if number % 200 == 0 {
            workers.loads.expire(now);
        }
    }
    times.sort_unstable();
    let at = |permille: usize| times[times.len() * permille / 1000];
    println!(
        "decision, {count} workers, 134 blocks: p50 {:?}, p99 {:?}, p99.9 {:?}",
        at(500),
        at(990),
        at(999)
    );
}
