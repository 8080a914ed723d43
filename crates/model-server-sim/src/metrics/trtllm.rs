//! The names of `trtllm-serve`.

use super::{Facts, Load, Page};
use crate::engine::Snapshot;

pub(super) fn write(page: &mut Page, facts: &Facts<'_>, load: Load, engine: &Snapshot) {
    let stats = &engine.stats;
    page.gauge(
        "trtllm_num_requests_waiting",
        "Number of requests waiting.",
        load.waiting,
    );
    page.gauge(
        "trtllm_num_requests_running",
        "Number of requests running.",
        load.running,
    );
    page.gauge(
        "trtllm_kv_cache_utilization",
        "KV cache utilization.",
        load.kv,
    );
    page.gauge(
        "trtllm_kv_cache_tokens_per_block",
        "Tokens in a block of the KV cache.",
        f64::from(facts.block_size.get()),
    );
    page.gauge(
        "trtllm_kv_cache_max_blocks",
        "Blocks of the KV cache.",
        f64::from(facts.blocks.get()),
    );
    let queries = stats.prefix_queries.max(1) as f64;
    page.gauge(
        "trtllm_kv_cache_hit_rate",
        "KV cache hit rate since the start.",
        stats.prefix_hits as f64 / queries,
    );
    page.histogram(
        "trtllm_time_to_first_token_seconds",
        "Histogram of time to first token in seconds.",
        &stats.time_to_first_token,
    );
    page.histogram(
        "trtllm_time_per_output_token_seconds",
        "Histogram of time per output token in seconds.",
        &stats.inter_token,
    );
    page.histogram(
        "trtllm_e2e_request_latency_seconds",
        "Histogram of end to end request latency in seconds.",
        &stats.e2e,
    );
    page.histogram(
        "trtllm_request_queue_time_seconds",
        "Histogram of time spent in WAITING phase for request.",
        &stats.queue,
    );
}
