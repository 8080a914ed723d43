//! The names of `SGLang`.

use super::{Facts, Load, Page};
use crate::engine::Snapshot;

pub(super) fn write(page: &mut Page, facts: &Facts<'_>, load: Load, engine: &Snapshot) {
    let stats = &engine.stats;
    page.gauge(
        "sglang:num_queue_reqs",
        "The number of requests in the waiting queue.",
        load.waiting,
    );
    page.gauge(
        "sglang:num_running_reqs",
        "The number of running requests.",
        load.running,
    );
    page.gauge("sglang:token_usage", "The token usage.", load.kv);
    let name = "sglang:cache_config_info";
    page.head(name, "gauge", "Information of the cache configuration.");
    let size = facts.block_size.to_string();
    let pages = facts.blocks.to_string();
    page.labelled(name, &[("page_size", &size), ("num_pages", &pages)], 1.0);
    let queries = stats.prefix_queries.max(1) as f64;
    page.gauge(
        "sglang:cache_hit_rate",
        "The prefix cache hit rate since the start.",
        stats.prefix_hits as f64 / queries,
    );
    page.counter(
        "sglang:cached_tokens_total",
        "Number of cached prompt tokens.",
        stats.prefix_hits,
    );
    page.counter(
        "sglang:prompt_tokens_total",
        "Number of prefill tokens processed.",
        stats.prompt_tokens,
    );
    page.counter(
        "sglang:generation_tokens_total",
        "Number of generation tokens processed.",
        stats.generation_tokens,
    );
    page.histogram(
        "sglang:time_to_first_token_seconds",
        "Histogram of time to first token in seconds.",
        &stats.time_to_first_token,
    );
    page.histogram(
        "sglang:inter_token_latency_seconds",
        "Histogram of inter-token latency in seconds.",
        &stats.inter_token,
    );
    page.histogram(
        "sglang:e2e_request_latency_seconds",
        "Histogram of end-to-end request latency in seconds.",
        &stats.e2e,
    );
    page.histogram(
        "sglang:queue_time_seconds",
        "Histogram of queueing time in seconds.",
        &stats.queue,
    );
}
