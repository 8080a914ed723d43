//! The names of Triton with its TensorRT-LLM backend, which has no histograms.

use super::{Facts, Load, Page};
use crate::engine::Snapshot;

pub(super) fn write(page: &mut Page, facts: &Facts<'_>, load: Load, engine: &Snapshot) {
    let name = "nv_trt_llm_request_metrics";
    page.head(name, "gauge", "TRT LLM request metrics");
    for (kind, value) in [
        ("waiting", load.waiting),
        ("scheduled", load.running),
        ("active", load.waiting + load.running),
        ("max", facts.max_running.get() as f64),
    ] {
        page.labelled(name, &[("request_type", kind)], value);
    }
    let name = "nv_trt_llm_kv_cache_block_metrics";
    page.head(name, "gauge", "TRT LLM KV cache block metrics");
    let blocks = f64::from(facts.blocks.get());
    let used = (load.kv * blocks).round();
    let queries = engine.stats.prefix_queries.max(1) as f64;
    for (kind, value) in [
        ("fraction", load.kv),
        ("used", used),
        ("free", blocks - used),
        ("max", blocks),
        ("tokens_per", f64::from(facts.block_size.get())),
        ("cache_hit_rate", engine.stats.prefix_hits as f64 / queries),
    ] {
        page.labelled(name, &[("kv_cache_block_type", kind)], value);
    }
}
