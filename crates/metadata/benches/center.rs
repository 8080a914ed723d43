//! Time of the calls that are made for each request, and of the longest calls while a full state is swept.
//!
//! `cargo bench -p metadata --bench center`

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark reads the clock and prints"
)]

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use metadata::{
    Address, Center, Limits, Now, RequestId,
    wire::{
        batch::{Batch, Put},
        load::Add,
        pick::{Candidate, Params, Pick},
    },
};
use moment::Moment;
use rand::{SeedableRng, rngs::StdRng};

const ENDPOINTS: u32 = 100;
const CHUNKS: u64 = 40;
/// Puts and deletes.
const BATCH: u32 = 64;

fn at(seconds: u64) -> Now {
    Now {
        at: Moment::START + Duration::from_secs(seconds),
        unix_ns: 0,
    }
}

fn id(number: u32) -> RequestId {
    let text = format!("{number:08x}-0000-4000-8000-000000000000");
    text.parse().unwrap()
}

fn ip(number: u32) -> Address {
    let number = number % ENDPOINTS;
    format!("10.0.0.{number}:8000").parse().unwrap()
}

/// As a client sends it: parsing is part of the work.
fn mk_batch(seq: u32) -> String {
    let puts = (0..BATCH / 2).map(|it| Put {
        request_id: id(seq * BATCH + it),
        ip: ip(seq + it),
        prompt_length: 1000.try_into().unwrap(),
    });
    let deletes = (0..BATCH / 2).map(|it| id(seq.saturating_sub(1) * BATCH + it));
    let batch = Batch {
        cluster: "c".parse().unwrap(),
        instance: "a".parse().unwrap(),
        epoch: 1,
        shard: 0,
        seq: seq.into(),
        full: seq == 0,
        lease_ms: 10_000,
        puts: puts.collect(),
        deletes: if seq == 0 {
            Vec::new()
        } else {
            deletes.collect()
        },
        live: u64::from(BATCH / 2),
        prompt_sum: i64::from(BATCH / 2) * 1000,
    };
    serde_json::to_string(&batch).unwrap()
}

fn mk_pick(number: u32) -> Pick {
    let candidates = (0..ENDPOINTS).map(|it| Candidate {
        ip: ip(it),
        bias: 0.0,
    });
    let first = u64::from(number % 1000) << 32;
    Pick {
        cluster: "c".parse().unwrap(),
        request_id: id(number),
        prompt_hash: (0..CHUNKS)
            .map(|it| (first + it).wrapping_mul(0x9e37_79b9_7f4a_7c15))
            .collect::<Vec<_>>()
            .into(),
        prompt_length: 20_000.try_into().unwrap(),
        count: 1,
        reserve_ms: 10_000,
        candidates: candidates.collect(),
        params: Params::default(),
    }
}

fn mean(name: &str, count: u32, call: impl FnOnce()) {
    let start = Instant::now();
    call();
    let each = start.elapsed() / count;
    println!("{name}: {each:?}");
}

fn main() {
    let center = Center::new(Limits::default());
    let batches: Vec<_> = (0..2000).map(mk_batch).collect();
    let parsed: Vec<Batch> = batches
        .iter()
        .map(|it| serde_json::from_str(it).unwrap())
        .collect();
    let operations = 2000 * BATCH;
    mean("an operation of a batch, parsed", operations, || {
        for batch in &batches {
            serde_json::from_str::<Batch>(batch).unwrap();
        }
    });
    mean("an operation of a batch, applied", operations, || {
        for batch in parsed {
            assert!(!center.batch(batch, at(1)).unwrap().resync);
        }
    });
    let picks: Vec<_> = (0..20_000).map(mk_pick).collect();
    let rng = &mut StdRng::seed_from_u64(1);
    mean("a pick of 100 endpoints and 40 chunks", 20_000, || {
        for pick in &picks {
            center.pick(pick, rng, at(2)).unwrap();
        }
    });
    sweeps();
}

/// Half a million charges end at once, while one is added and removed again and again.
fn sweeps() {
    let center = &Center::new(Limits::default());
    let add = |number| Add {
        cluster: "c".parse().unwrap(),
        request_id: id(number),
        ip: ip(number),
        prompt_length: 1000.try_into().unwrap(),
    };
    for number in 0..500_000 {
        center.add(add(number), false, at(1)).unwrap();
    }
    let done = &AtomicBool::new(false);
    thread::scope(|scope| {
        let longest = scope.spawn(move || {
            let mut longest = Duration::ZERO;
            while !done.load(Ordering::Relaxed) {
                let start = Instant::now();
                center.add(add(u32::MAX), false, at(700)).unwrap();
                center.remove(&id(u32::MAX), false, at(700)).unwrap();
                longest = longest.max(start.elapsed());
            }
            longest
        });
        mean("a charge, swept", 500_000, || {
            assert_eq!(center.sweep(at(700)).expired, 500_000);
        });
        done.store(true, Ordering::Relaxed);
        println!(
            "longest add and remove meanwhile: {:?}",
            longest.join().unwrap()
        );
    });
}
