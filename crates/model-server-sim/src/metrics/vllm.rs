//! The names of vLLM.

use std::num::NonZeroUsize;

use super::{AdapterSet, Facts, Load, Page};
use crate::engine::{Histogram, Snapshot, Stats};

pub(super) fn write(page: &mut Page, facts: &Facts<'_>, load: Load, engine: &Snapshot) {
    let stats = &engine.stats;
    let rank = facts.rank.to_string();
    page.gauge(
        "vllm:num_requests_waiting",
        "Requests waiting to be processed.",
        load.waiting,
    );
    page.gauge(
        "vllm:num_requests_running",
        "Requests making tokens.",
        load.running,
    );
    let kv_name = if facts.legacy_names {
        "vllm:gpu_cache_usage_perc"
    } else {
        "vllm:kv_cache_usage_perc"
    };
    page.gauge(
        kv_name,
        "KV-cache usage. 1 means 100 percent usage.",
        load.kv,
    );

    let block_size = facts.block_size.to_string();
    let blocks = facts.blocks.to_string();
    page.head(
        "vllm:cache_config_info",
        "gauge",
        "Information of the cache configuration.",
    );
    let cache = [
        ("engine", rank.as_str()),
        ("block_size", block_size.as_str()),
        ("num_gpu_blocks", blocks.as_str()),
    ];
    page.sample("vllm:cache_config_info", &cache, 1.0);

    if let Some(most) = facts.max_adapters {
        write_adapters(page, most, &facts.adapter_sets);
    }

    let (queries, hits) = if facts.legacy_names {
        (
            "vllm:gpu_prefix_cache_queries_total",
            "vllm:gpu_prefix_cache_hits_total",
        )
    } else {
        (
            "vllm:prefix_cache_queries_total",
            "vllm:prefix_cache_hits_total",
        )
    };
    page.counter(
        queries,
        "Prompt tokens looked for in the prefix cache.",
        stats.prefix_queries,
    );
    page.counter(
        hits,
        "Prompt tokens found in the prefix cache.",
        stats.prefix_hits,
    );
    page.counter(
        "vllm:prompt_tokens_total",
        "Prompt tokens processed.",
        stats.prompt_tokens,
    );
    page.counter(
        "vllm:generation_tokens_total",
        "Tokens made.",
        stats.generation_tokens,
    );
    page.head(
        "vllm:request_success_total",
        "counter",
        "Requests that ended, by reason.",
    );
    for (reason, count) in [
        ("stop", stats.stopped),
        ("length", stats.cut),
        ("abort", stats.aborted),
    ] {
        page.labelled(
            "vllm:request_success_total",
            &[("finished_reason", reason)],
            count as f64,
        );
    }

    write_histograms(page, facts.legacy_names, stats);
}

fn write_adapters(page: &mut Page, most: NonZeroUsize, sets: &[(AdapterSet, f64)]) {
    let name = "vllm:lora_requests_info";
    page.head(name, "gauge", "Running stats on lora requests.");
    let most = most.to_string();
    for (set, value) in sets {
        let labels = [
            ("max_lora", most.as_str()),
            ("running_lora_adapters", &set.running),
            ("waiting_lora_adapters", &set.waiting),
        ];
        page.sample(name, &labels, *value);
    }
}

fn write_histograms(page: &mut Page, legacy_names: bool, stats: &Stats) {
    let inter_token = if legacy_names {
        "vllm:time_per_output_token_seconds"
    } else {
        "vllm:inter_token_latency_seconds"
    };
    let histograms: [(&str, &str, &Histogram); 6] = [
        (
            "vllm:time_to_first_token_seconds",
            "Time from arrival to the first token.",
            &stats.time_to_first_token,
        ),
        (
            inter_token,
            "Time from one token to the next.",
            &stats.inter_token,
        ),
        (
            "vllm:e2e_request_latency_seconds",
            "Time from arrival to the end.",
            &stats.e2e,
        ),
        (
            "vllm:request_queue_time_seconds",
            "Time from arrival to start.",
            &stats.queue,
        ),
        (
            "vllm:request_prefill_time_seconds",
            "Time from start to the first token.",
            &stats.prefill,
        ),
        (
            "vllm:request_decode_time_seconds",
            "Time from the first token to the end.",
            &stats.decode,
        ),
    ];
    for (name, help, histogram) in histograms {
        page.histogram(name, help, histogram);
    }
}
