//! The state against the rules in their plainest form, and single rules by example.

mod bounds;
mod charges;
mod model;
mod picks;
mod random;
mod steps;
mod threads;

use std::{cell::RefCell, time::Duration};

use moment::Moment;
use rand::{SeedableRng, rngs::StdRng};

use super::*;
use crate::wire::{
    batch::Put,
    load::PromptLength,
    pick::{Candidate, Params},
};

fn at_ms(millis: u64) -> Now {
    Now {
        at: Moment::from_millis(millis),
        unix_ns: i64::try_from(millis).unwrap() * 1_000_000,
    }
}

fn mk_rng() -> StdRng {
    StdRng::seed_from_u64(7)
}

fn cluster(name: &str) -> Cluster {
    name.parse().unwrap()
}

fn id(name: &str) -> RequestId {
    name.parse().unwrap()
}

fn ip(last: u8) -> Address {
    format!("10.0.0.{last}:8000").parse().unwrap()
}

fn length(length: i64) -> PromptLength {
    length.try_into().unwrap()
}

fn mk_add(name: &str, endpoint: u8, prefill: i64) -> Add {
    Add {
        cluster: cluster("c"),
        request_id: id(name),
        ip: ip(endpoint),
        prompt_length: length(prefill),
    }
}

fn put(name: &str, endpoint: u8, prefill: i64) -> Put {
    Put {
        request_id: id(name),
        ip: ip(endpoint),
        prompt_length: length(prefill),
    }
}

fn mk_save(endpoint: u8, hashes: Vec<u64>) -> Save {
    Save {
        cluster: cluster("c"),
        prompt_hash: hashes.into(),
        ip: ip(endpoint),
        ttl_s: None,
        capacity: None,
    }
}

/// Of epoch 1 and shard 0 of the instance `a`, with a lease of 10 s; its totals are those of its puts.
fn mk_batch(seq: u64, full: bool, puts: Vec<Put>, deletes: &[&str]) -> Batch {
    Batch {
        cluster: cluster("c"),
        instance: "a".parse().unwrap(),
        epoch: 1,
        shard: 0,
        seq,
        full,
        lease_ms: 10_000,
        live: puts.len() as u64,
        prompt_sum: puts.iter().map(|it| i64::from(it.prompt_length)).sum(),
        puts,
        deletes: deletes.iter().map(|it| id(it)).collect(),
    }
}

/// As [`mk_batch`], without changes, of an owner with so much.
fn mk_empty(seq: u64, live: u64, prompt_sum: i64) -> Batch {
    Batch {
        live,
        prompt_sum,
        ..mk_batch(seq, false, vec![], &[])
    }
}

/// One of the endpoints 1 to `candidates`, reserved for 5 s.
fn mk_pick(name: &str, candidates: u8) -> Pick {
    Pick {
        cluster: cluster("c"),
        request_id: id(name),
        prompt_hash: Vec::new().into(),
        prompt_length: length(100),
        count: 1,
        reserve_ms: 5000,
        candidates: (1..=candidates)
            .map(|it| Candidate {
                ip: ip(it),
                bias: 0.0,
            })
            .collect(),
        params: Params::default(),
    }
}

/// A state, with the calls that tests make often and that do not fail. Times are in milliseconds.
struct Rig {
    center: Center,
    rng: RefCell<StdRng>,
}

// === impl Rig ===

impl Rig {
    fn new() -> Self {
        Self {
            center: Center::new(Limits {
                cache_max_bytes: 1 << 20,
                ..Limits::default()
            }),
            rng: RefCell::new(mk_rng()),
        }
    }

    /// The first batch of an owner, at 0.
    fn begin(&self, puts: Vec<Put>) {
        self.batch(mk_batch(1, true, puts, &[]), 0).unwrap();
    }

    /// Says whether the totals differ.
    fn batch(&self, batch: Batch, now: u64) -> Result<bool, Fault> {
        self.center.batch(batch, at_ms(now)).map(|it| it.resync)
    }

    fn add(&self, name: &str, endpoint: u8, prefill: i64, now: u64) {
        let add = mk_add(name, endpoint, prefill);
        self.center.add(add, false, at_ms(now)).unwrap();
    }

    fn pick(&self, pick: &Pick, now: u64) -> Picks {
        let rng = &mut *self.rng.borrow_mut();
        self.center.pick(pick, rng, at_ms(now)).unwrap()
    }

    fn save(&self, endpoint: u8, hashes: Vec<u64>) {
        let save = mk_save(endpoint, hashes);
        self.center.save(&save, at_ms(0)).unwrap();
    }

    fn loads(&self) -> Vec<(u8, i32, i32)> {
        loads(&self.center)
    }
}

/// Requests and prefill of each endpoint that has some, by the last number of its address.
fn loads(center: &Center) -> Vec<(u8, i32, i32)> {
    let loads = center.loads(&cluster("c")).unwrap_or_default();
    let load = |it: Load| {
        let std::net::IpAddr::V4(ip) = it.ip.ip() else {
            panic!("{it:?}");
        };
        (ip.octets()[3], it.queued_req_num, it.prompt_length)
    };
    let loads = loads.into_iter().map(load);
    loads.filter(|it| (it.1, it.2) != (0, 0)).collect()
}

fn sweep_seconds(center: &Center, from: u64, to: u64) {
    for second in from..=to {
        center.sweep(at_ms(second * 1000));
    }
}

const ONE_HOUR: Duration = Duration::from_hours(1);

fn field_of(fault: Fault) -> String {
    match fault {
        Fault::InvalidParameter { field, .. } => field,
        other => panic!("{other:?}"),
    }
}
