//! The pool at this moment: members and what is known of them, queue, prefix index, configuration.

use std::collections::BTreeMap;

use moment::Moment;
use scheduling::{Entry, Snapshot, Table, flow::Usage};
use serde_json::{Value, json};

use super::config;
use crate::director::{Director, QueueState};

pub(super) fn of(director: &Director) -> Value {
    let config = director.config();
    let snapshot = director.pool().snapshot();
    let now = director.clock().now();
    let table = snapshot.read(now, config.profile.freshness);
    let stats = director.prefix_stats();
    json!({
        "time": jiff::Timestamp::now().to_string(),
        "saturation": config.detector.saturation(&table),
        "endpoints": endpoints(&snapshot, &table, now, &config.profile),
        "queue": queue(&director.queue_state()),
        "prefix_index": { "blocks": stats.entries, "bytes": stats.bytes },
        "config": config::of(&config),
    })
}

fn endpoints(
    snapshot: &Snapshot,
    table: &Table,
    now: Moment,
    profile: &scheduling::Profile,
) -> Vec<Value> {
    let members = snapshot.members().iter().enumerate();
    let endpoints = members.map(|(index, entry)| {
        let Entry {
            endpoint,
            engine,
            labels,
        } = entry;
        let labels = labels.iter().map(|(key, value)| (&**key, &**value));
        let labels: BTreeMap<&str, &str> = labels.collect();
        let load = endpoint.load();
        let reading = load.read(now, profile.freshness);
        let lora = load.lora(now, profile.freshness).map(
            |lora| json!({ "running": lora.running, "waiting": lora.waiting, "max": lora.max }),
        );
        let cache = load
            .cache()
            .map(|cache| json!({ "block_tokens": cache.block_tokens, "blocks": cache.blocks }));
        json!({
            "endpoint": endpoint.id().to_string(),
            "pod_uid": &*endpoint.id().uid,
            "address": endpoint.address(),
            "slot": endpoint.slot().to_string(),
            "engine": &**engine,
            "labels": labels,
            "quality": reading.quality.name(),
            // What scorers see, with own requests that no scrape has seen and means for what is unknown.
            "view": {
                "waiting": table.waiting.get(index),
                "running": table.running.get(index),
                "kv_cache_utilization": table.kv.get(index),
            },
            "scraped": {
                "waiting": reading.scraped.waiting,
                "running": reading.scraped.running,
                "kv_cache_utilization": reading.scraped.kv,
            },
            "in_flight": reading.in_flight,
            "unseen": reading.unseen,
            "prompt_tokens_in_flight": reading.tokens,
            "unfinished_prefill": reading.prefill,
            "picks": load.picks(),
            "adapters": lora,
            "kv_cache": cache,
            "engine_restarts": reading.restarts,
        })
    });
    endpoints.collect()
}

fn queue(state: &QueueState) -> Value {
    let usage = |usage: &Usage| json!({ "requests": usage.requests, "bytes": usage.bytes });
    let QueueState {
        total,
        bands,
        flows,
    } = state;
    let bands = bands
        .iter()
        .map(|(priority, used)| json!({ "priority": priority, "usage": usage(used) }));
    let flows = flows.iter().map(|(priority, fairness_id, used)| {
        json!({ "priority": priority, "fairness_id": &**fairness_id, "usage": usage(used) })
    });
    json!({
        "total": usage(total),
        "bands": bands.collect::<Vec<_>>(),
        "flows": flows.collect::<Vec<_>>(),
    })
}
