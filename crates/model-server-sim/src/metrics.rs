//! The metrics page, with the names that vLLM has: pure.

mod page;

use std::{
    collections::BTreeSet,
    num::{NonZeroU32, NonZeroUsize},
    sync::Arc,
};

pub(crate) use self::page::{CONTENT_TYPE, Page};
use crate::{
    admin::FakeMetrics,
    engine::{Histogram, Snapshot, Stats},
};

/// What the page tells besides the engine's own numbers.
#[derive(Clone, Debug)]
pub(crate) struct Facts<'a> {
    /// Label `model_name` of everything.
    pub(crate) model_name: &'a str,
    /// Label `engine` of everything: the data-parallel rank.
    pub(crate) rank: u16,
    pub(crate) block_size: NonZeroU32,
    pub(crate) blocks: NonZeroU32,
    /// Names that vLLM had before its version 0.10.
    pub(crate) legacy_names: bool,
    /// LoRA adapters that can run at the same time; `None`: LoRA is off.
    pub(crate) max_adapters: Option<NonZeroUsize>,
    /// When the page is made, in seconds since 1970.
    pub(crate) now: f64,
    /// Seconds since 1970.
    pub(crate) process_start: f64,
    pub(crate) fake: FakeMetrics,
}

/// Writes the page.
pub(crate) fn render(facts: &Facts<'_>, engine: &Snapshot) -> String {
    let rank = facts.rank.to_string();
    let labels = [("model_name", facts.model_name), ("engine", rank.as_str())];
    let stats = &engine.stats;
    let mut page = Page::new(&labels);

    let waiting = facts.fake.waiting.map_or(engine.waiting as f64, f64::from);
    page.gauge(
        "vllm:num_requests_waiting",
        "Requests waiting to be processed.",
        waiting,
    );
    let running = facts.fake.running.map_or(engine.running as f64, f64::from);
    page.gauge(
        "vllm:num_requests_running",
        "Requests making tokens.",
        running,
    );
    let kv = facts.fake.kv.unwrap_or(engine.kv_usage);
    let kv_name = if facts.legacy_names {
        "vllm:gpu_cache_usage_perc"
    } else {
        "vllm:kv_cache_usage_perc"
    };
    page.gauge(kv_name, "KV-cache usage. 1 means 100 percent usage.", kv);

    let block_size = facts.block_size.to_string();
    let blocks = facts.blocks.to_string();
    page.head(
        "vllm:cache_config_info",
        "gauge",
        "Information of the cache configuration.",
    );
    let cache = [
        labels[1],
        ("block_size", block_size.as_str()),
        ("num_gpu_blocks", blocks.as_str()),
    ];
    page.sample("vllm:cache_config_info", &cache, 1.0);

    if let Some(most) = facts.max_adapters {
        write_adapters(&mut page, most, facts.now, engine);
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
        let labels = [labels[0], labels[1], ("finished_reason", reason)];
        page.sample("vllm:request_success_total", &labels, count as f64);
    }

    write_histograms(&mut page, facts.legacy_names, stats);

    page.head(
        "process_start_time_seconds",
        "gauge",
        "Start time of the process since unix epoch in seconds.",
    );
    page.sample("process_start_time_seconds", &[], facts.process_start);
    page.finish()
}

/// Of several series with this name scrapers take the one with the greatest value, the latest; here there
/// is one.
fn write_adapters(page: &mut Page<'_>, most: NonZeroUsize, now: f64, engine: &Snapshot) {
    let list = |names: &BTreeSet<Arc<str>>| {
        let names: Vec<_> = names.iter().map(|name| &**name).collect();
        names.join(",")
    };
    let name = "vllm:lora_requests_info";
    page.head(name, "gauge", "Running stats on lora requests.");
    let most = most.to_string();
    let running = list(&engine.running_adapters);
    let waiting = list(&engine.waiting_adapters);
    let labels = [
        ("max_lora", most.as_str()),
        ("running_lora_adapters", &running),
        ("waiting_lora_adapters", &waiting),
    ];
    page.sample(name, &labels, now);
}

fn write_histograms(page: &mut Page<'_>, legacy_names: bool, stats: &Stats) {
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::engine::{
        Dice, Finish, Latency, Limits, Moment, PrefixSeed, Scheduler, Spread, Work, prefix_blocks,
    };

    fn mk_snapshot() -> Snapshot {
        let limits = Limits {
            max_running: std::num::NonZeroUsize::MIN,
            max_waiting: 1,
            block_tokens: NonZeroU32::MIN,
            blocks: NonZeroU32::new(10).expect("not zero"),
            max_adapters: std::num::NonZeroUsize::MIN,
        };
        let first_token = Spread::fixed(Duration::from_millis(50));
        let mut scheduler = Scheduler::new(
            limits,
            Latency {
                first_token,
                ..Latency::default()
            },
            Dice::new(0),
        );
        let (mut stats, mut events) = (Stats::new(), Vec::new());
        let work = Work {
            prompt_tokens: 4,
            prefix: prefix_blocks(PrefixSeed::default(), &[0; 16], 1),
            adapter: Some("sql".into()),
            output_tokens: 1,
            finish: Finish::Stop,
        };
        for _ in 0..2 {
            scheduler
                .submit(work.clone(), Moment::default(), &mut events)
                .expect("room");
        }
        scheduler.advance(Moment::from_millis(50), &mut events);
        for event in &events {
            stats.observe(event);
        }
        Snapshot {
            waiting: scheduler.waiting(),
            running: scheduler.running(),
            kv_usage: scheduler.kv_usage(),
            running_adapters: scheduler.running_adapters(),
            waiting_adapters: scheduler.waiting_adapters(),
            stats,
        }
    }

    fn mk_facts() -> Facts<'static> {
        Facts {
            model_name: "a \"b\"\\",
            rank: 0,
            block_size: NonZeroU32::new(16).expect("not zero"),
            blocks: NonZeroU32::new(10).expect("not zero"),
            legacy_names: false,
            max_adapters: Some(NonZeroUsize::MIN),
            now: 1_800_000_000.5,
            process_start: 1_700_000_000.25,
            fake: FakeMetrics::default(),
        }
    }

    #[test]
    fn the_page_tells_what_the_engine_did() {
        let page = render(&mk_facts(), &mk_snapshot());
        let labels = r#"model_name="a \"b\"\\",engine="0""#;
        for line in [
            format!("vllm:num_requests_waiting{{{labels}}} 0"),
            format!("vllm:num_requests_running{{{labels}}} 1"),
            format!("vllm:kv_cache_usage_perc{{{labels}}} 0.4"),
            r#"vllm:cache_config_info{engine="0",block_size="16",num_gpu_blocks="10"} 1"#.into(),
            r#"vllm:lora_requests_info{max_lora="1",running_lora_adapters="sql",waiting_lora_adapters=""} 1800000000.5"#.into(),
            format!("vllm:prefix_cache_queries_total{{{labels}}} 8"),
            format!("vllm:prefix_cache_hits_total{{{labels}}} 3"),
            format!("vllm:prompt_tokens_total{{{labels}}} 4"),
            format!("vllm:generation_tokens_total{{{labels}}} 1"),
            format!("vllm:request_success_total{{{labels},finished_reason=\"stop\"}} 1"),
            format!("vllm:time_to_first_token_seconds_bucket{{{labels},le=\"0.04\"}} 0"),
            format!("vllm:time_to_first_token_seconds_bucket{{{labels},le=\"0.06\"}} 1"),
            format!("vllm:time_to_first_token_seconds_bucket{{{labels},le=\"+Inf\"}} 1"),
            format!("vllm:time_to_first_token_seconds_sum{{{labels}}} 0.05"),
            format!("vllm:e2e_request_latency_seconds_count{{{labels}}} 1"),
            "process_start_time_seconds 1700000000.25".into(),
        ] {
            assert!(
                page.lines().any(|other| other == line),
                "{line}\nis not in\n{page}"
            );
        }
        assert!(page.ends_with('\n'));
    }

    #[test]
    fn every_family_has_help_and_type_once_before_its_samples() {
        let page = render(&mk_facts(), &mk_snapshot());
        let mut family = "";
        let mut seen = Vec::new();
        for line in page.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                family = rest.split(' ').next().expect("a name");
                assert!(!seen.contains(&family), "{family} twice");
                assert!(page.contains(&format!("# HELP {family} ")), "{family}");
                seen.push(family);
            } else if !line.starts_with('#') {
                assert!(line.starts_with(family), "{line} is under {family}");
            }
        }
        assert_eq!(seen.len(), 17);
    }

    #[test]
    fn fake_values_replace_the_true_ones() {
        let fake = FakeMetrics {
            waiting: Some(7),
            running: Some(3),
            kv: Some(0.25),
        };
        let page = render(
            &Facts {
                fake,
                model_name: "m",
                ..mk_facts()
            },
            &mk_snapshot(),
        );
        for line in [
            r#"vllm:num_requests_waiting{model_name="m",engine="0"} 7"#,
            r#"vllm:num_requests_running{model_name="m",engine="0"} 3"#,
            r#"vllm:kv_cache_usage_perc{model_name="m",engine="0"} 0.25"#,
        ] {
            assert!(page.lines().any(|other| other == line), "{line}");
        }
    }

    #[test]
    fn old_names_replace_the_new_ones() {
        let page = render(
            &Facts {
                legacy_names: true,
                ..mk_facts()
            },
            &mk_snapshot(),
        );
        assert!(page.contains("vllm:gpu_cache_usage_perc{"));
        assert!(page.contains("vllm:time_per_output_token_seconds_count{"));
        assert!(page.contains("vllm:gpu_prefix_cache_hits_total{"));
        assert!(!page.contains("kv_cache_usage") && !page.contains("inter_token"));
    }
}
