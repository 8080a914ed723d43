//! Time of hash chains and of the prefix index, beside the plainest index there is. Prints nanoseconds.
//!
//! `cargo bench -p scheduling --bench prefix`

#![allow(
    clippy::disallowed_types,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark reads the clock and prints"
)]

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    hint::black_box,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use scheduling::{
    Slot,
    prefix::{PrefixIndex, chain, seed},
};

const BLOCKS: usize = 512;
const ENDPOINTS: u32 = 100;
const BLOCK_BYTES: usize = 256;
const MAX_BYTES: usize = 512 << 20;
const SHARDS: usize = 64;

/// One map under no lock at all, and a queue for each endpoint: order of insertion, not of use.
#[derive(Default)]
struct Naive {
    blocks: BTreeMap<u64, BTreeSet<u32>>,
    order: BTreeMap<u32, VecDeque<u64>>,
}

impl Naive {
    fn matches(&self, chain: &[u64], candidates: &[Slot], out: &mut [u32]) {
        for (slot, out) in candidates.iter().zip(out) {
            let has = |hash: &&u64| {
                self.blocks
                    .get(hash)
                    .is_some_and(|it| it.contains(&slot.index))
            };
            *out = u32::try_from(chain.iter().take_while(has).count()).unwrap();
        }
    }

    fn insert(&mut self, chain: &[u64], slot: Slot) {
        let order = self.order.entry(slot.index).or_default();
        for hash in chain {
            if self.blocks.entry(*hash).or_default().insert(slot.index) {
                order.push_back(*hash);
            }
        }
    }
}

fn main() {
    // `cargo test --benches` passes no `--bench`.
    if std::env::args().all(|it| it != "--bench") {
        return;
    }
    chains();
    matching();
    threads();
    inserting();
    full();
}

fn mk_slots() -> Vec<Slot> {
    (0..ENDPOINTS)
        .map(|index| Slot {
            index,
            generation: 0,
        })
        .collect()
}

/// A chain that no other call returns, of hashes as good as real ones.
fn mk_chain(number: u64, blocks: usize) -> Vec<u64> {
    chain(
        number,
        std::iter::repeat_n([0].as_slice(), blocks),
        1,
        blocks,
    )
}

/// Processor time of one call: the median of 15 rounds of `times` calls. Other programs on the machine do not count.
fn measure(name: &str, times: u32, mut call: impl FnMut()) -> f64 {
    let mut rounds: Vec<_> = (0..15)
        .map(|_| {
            let start = processor_ns();
            for _ in 0..times {
                call();
            }
            (processor_ns() - start) / f64::from(times)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    println!("{name:<66} {:>12.0} ns", rounds[7]);
    rounds[7]
}

fn chains() {
    let text: Vec<u8> = (0..=255).cycle().take(BLOCKS * BLOCK_BYTES).collect();
    let seed = seed("model", None);
    let spans: Vec<_> = text.chunks(BLOCK_BYTES * 16 + 100).collect();
    let rate = |ns: f64| println!("{:<66} {:>12.1} GB/s", "", text.len() as f64 / ns);
    rate(measure(
        "chain, 512 blocks of 256 bytes, one span",
        200,
        || {
            black_box(chain(
                seed,
                [black_box(text.as_slice())],
                BLOCK_BYTES,
                BLOCKS,
            ));
        },
    ));
    rate(measure("chain, spans of 4196 bytes", 200, || {
        black_box(chain(
            seed,
            black_box(&spans).iter().copied(),
            BLOCK_BYTES,
            BLOCKS,
        ));
    }));
}

fn matching() {
    let slots = mk_slots();
    let prompt = mk_chain(0, BLOCKS);
    let mut out = vec![0; slots.len()];
    let all = |_: usize| BLOCKS;
    let stairs = |at: usize| BLOCKS * (at + 1) / ENDPOINTS as usize;
    let halves = |at: usize| if at < 10 { BLOCKS } else { 16 };
    let none = |_: usize| 0;
    for (name, has) in [
        ("all have all blocks", &all as &dyn Fn(usize) -> usize),
        ("each drops out at another block", &stairs),
        ("10 have all, 90 the first 16", &halves),
        ("none has any", &none),
    ] {
        let index = PrefixIndex::new(MAX_BYTES, SHARDS);
        let mut naive = Naive::default();
        for (at, slot) in slots.iter().enumerate() {
            index.insert(&prompt[..has(at)], *slot);
            naive.insert(&prompt[..has(at)], *slot);
            index.insert(&mk_chain(1 + at as u64, BLOCKS), *slot);
            naive.insert(&mk_chain(1 + at as u64, BLOCKS), *slot);
        }
        measure(&format!("matches 512 x 100, {name}"), 200, || {
            index.matches(black_box(&prompt), &slots, &mut out);
        });
        measure("  naive", 2, || {
            naive.matches(black_box(&prompt), &slots, &mut out);
        });
    }
}

/// Matches in a second of processor time, summed over the threads: what they would do together with a processor each.
/// `writer` inserts new prompts all the time.
fn matches_per_second(
    index: &PrefixIndex,
    chains: &[Vec<u64>],
    threads: usize,
    writer: bool,
) -> f64 {
    let stop = AtomicBool::new(false);
    let slots = mk_slots();
    let read = |thread: usize| {
        let mut out = vec![0; slots.len()];
        let mut calls = 0.0;
        let start = processor_ns();
        for chain in chains.iter().cycle().skip(thread * chains.len() / threads) {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            index.matches(black_box(chain), &slots, &mut out);
            calls += 1.0;
        }
        calls * 1e9 / (processor_ns() - start)
    };
    let write = || {
        for number in 1_000_000_000.. {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let slot = slots[usize::try_from(number).unwrap() % slots.len()];
            index.insert(&mk_chain(number, 64), slot);
        }
    };
    thread::scope(|scope| {
        if writer {
            scope.spawn(write);
        }
        let readers: Vec<_> = (0..threads)
            .map(|thread| {
                let read = &read;
                scope.spawn(move || read(thread))
            })
            .collect();
        thread::sleep(Duration::from_secs(1));
        stop.store(true, Ordering::Relaxed);
        readers.into_iter().map(|it| it.join().unwrap()).sum()
    })
}

fn threads() {
    let index = PrefixIndex::new(MAX_BYTES, SHARDS);
    let chains: Vec<_> = (0..50).map(|number| mk_chain(number, BLOCKS)).collect();
    for chain in &chains {
        for slot in mk_slots().iter().step_by(3) {
            index.insert(chain, *slot);
        }
    }
    for (name, chains) in [("one hot prompt", &chains[..1]), ("50 prompts", &chains)] {
        let [one, two] = [1, 2].map(|threads| matches_per_second(&index, chains, threads, false));
        println!(
            "matches a second, {name}: 1 thread {one:.0}, 2 threads {two:.0}: {:.2} x",
            two / one
        );
    }
    let beside = matches_per_second(&index, &chains, 1, true);
    println!("matches a second, 50 prompts: 1 thread beside one that inserts {beside:.0}");
}

fn inserting() {
    let slots = mk_slots();
    let index = PrefixIndex::new(MAX_BYTES, SHARDS);
    let mut naive = Naive::default();
    let mut number = 0;
    let mut next = || {
        number += 1;
        (
            mk_chain(number, BLOCKS),
            slots[usize::try_from(number).unwrap() % slots.len()],
        )
    };
    measure("(making a chain of 512 for a benchmark)", 200, || {
        black_box(next());
    });
    measure(
        "insert 512 new blocks, tables grow (with making the chain)",
        200,
        || {
            let (chain, slot) = next();
            index.insert(&chain, slot);
        },
    );
    measure("  naive", 20, || {
        let (chain, slot) = next();
        naive.insert(&chain, slot);
    });
    let chain = mk_chain(1, BLOCKS);
    measure("insert the same 512 blocks again", 200, || {
        index.insert(&chain, slots[0]);
    });
}

/// A million prompts: the index is at its bound, out of the caches, and evicts.
fn full() {
    let slots = mk_slots();
    let index = PrefixIndex::new(MAX_BYTES, SHARDS);
    for slot in &slots {
        index.set_capacity(*slot, 200_000);
    }
    let before = resident();
    let mut number = 0;
    let mut longest = Duration::ZERO;
    let start = processor_ns();
    while number < 1_000_000 {
        number += 1;
        let chain = mk_chain(number, 20);
        let insert = Instant::now();
        index.insert(
            &chain,
            slots[usize::try_from(number).unwrap() % slots.len()],
        );
        longest = longest.max(insert.elapsed());
    }
    let stats = index.stats();
    println!(
        "10^6 prompts of 20 blocks: {:.1} s of processor time, longest insert {longest:?} with what others took",
        (processor_ns() - start) / 1e9
    );
    println!(
        "{stats:?}: {:.1} bytes an entry; resident memory grew by {} bytes",
        stats.bytes as f64 / stats.entries as f64,
        resident() - before,
    );
    let mut next = || {
        number += 1;
        (
            mk_chain(number, BLOCKS),
            slots[usize::try_from(number).unwrap() % slots.len()],
        )
    };
    measure(
        "insert 512 new blocks, full (with making the chain)",
        200,
        || {
            let (chain, slot) = next();
            index.insert(&chain, slot);
        },
    );
    // Long prompts which half of the endpoints have; 200 of them do not fit into the caches.
    let prompts: Vec<_> = (0..200)
        .map(|at| mk_chain(2_000_000 + at, BLOCKS))
        .collect();
    for prompt in &prompts {
        for slot in slots.iter().step_by(2) {
            index.insert(prompt, *slot);
        }
    }
    let mut out = vec![0; slots.len()];
    let mut prompt = prompts.iter().cycle();
    measure(
        "matches 512 x 100, full, 50 have all, 200 prompts in turn",
        200,
        || {
            index.matches(prompt.next().unwrap(), &slots, &mut out);
        },
    );
    assert_eq!(out[0], 512);
    let mut hard = (0..u64::MAX).map(|at| mk_chain(3_000_000 + at, 1));
    measure(
        "matches of an unknown prompt (with making its chain of 1)",
        2000,
        || {
            index.matches(&hard.next().unwrap(), &slots, &mut out);
        },
    );
    let [one, two] = [1, 2].map(|threads| matches_per_second(&index, &prompts, threads, false));
    println!(
        "matches a second, full: 1 thread {one:.0}, 2 threads {two:.0}: {:.2} x",
        two / one
    );
    let start = Instant::now();
    index.remove(slots[1]);
    println!("remove {:?}", start.elapsed());
    let start = processor_ns();
    let swept = index.sweep(usize::MAX);
    println!(
        "sweep of its {swept} blocks {:.1} ms",
        (processor_ns() - start) / 1e6
    );
}

/// What the thread has run so far.
fn processor_ns() -> f64 {
    thread::yield_now();
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns = stat.split(' ').next().and_then(|it| it.parse().ok());
    ns.unwrap_or(0.0)
}

fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = status.split(' ').nth(1).and_then(|it| it.parse().ok());
    pages.unwrap_or(0) * 4096
}
