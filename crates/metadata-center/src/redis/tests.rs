//! The engine on a real Redis.

mod basics;
mod bounds;
mod log;
mod replicas;
mod score;
mod state;

use std::{future::Future, time::Duration};

use metadata::{
    Address, Cluster, Fault, RequestId,
    wire::{
        batch::{Batch, Put},
        load::{Add, Load, PromptLength},
        pick::{Candidate, Params, Pick},
    },
};
use moment::Clock;
use redis_server::Server;
use tokio::time::{Instant, sleep};

use super::*;

/// Of all that a test waits for: a loaded machine is slow.
const LIMIT: Duration = Duration::from_secs(20);

fn mk_options(server: &Server) -> RedisOptions {
    RedisOptions {
        // Generous: what is tested is the answer, not the machine.
        timeout: Duration::from_secs(5),
        ..RedisOptions::new(server.url())
    }
}

/// An engine that is ready.
async fn mk_engine(options: RedisOptions) -> Redis {
    let engine = Redis::start(options, Clock::start()).unwrap();
    eventually("ready", || async {
        engine.unready().map_or(Ok(()), |why| Err(why.to_owned()))
    })
    .await;
    engine
}

/// Waits until there is no more complaint.
async fn eventually<F: Future<Output = Result<(), String>>>(
    what: &str,
    mut look: impl FnMut() -> F,
) {
    let begin = Instant::now();
    loop {
        match look().await {
            Ok(()) => return,
            Err(seen) if begin.elapsed() > LIMIT => panic!("{what}: not in time; seen {seen}"),
            Err(_) => sleep(Duration::from_millis(10)).await,
        }
    }
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

/// Requests and prefill of each endpoint that has some, by the last number of its address.
async fn loads(engine: &Redis) -> Vec<(u8, i32, i32)> {
    let loads = engine
        .loads(&cluster("c"))
        .await
        .unwrap()
        .unwrap_or_default();
    let load = |it: Load| {
        let std::net::IpAddr::V4(ip) = it.ip.ip() else {
            panic!("{it:?}");
        };
        (ip.octets()[3], it.queued_req_num, it.prompt_length)
    };
    let loads = loads.into_iter().map(load);
    loads.filter(|it| (it.1, it.2) != (0, 0)).collect()
}
