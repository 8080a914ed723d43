//! What the page says of one engine that did one thing.

use std::time::Duration;

use rstest::rstest;

use super::*;
use crate::engine::{
    Dice, Finish, Latency, Limits, Moment, PrefixSeed, Scheduler, Spread, Stats, Work,
    prefix_blocks,
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
        content: None,
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
        adapter_sets: vec![(AdapterSet::of(&mk_snapshot()), 1_800_000_000.5)],
        process_start: Some(1_700_000_000.25),
        padding_lines: 0,
        max_running: NonZeroUsize::MIN,
        kind: EngineKind::Vllm,
        fake: FakeValues::default(),
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

#[rstest]
#[case(EngineKind::Vllm, 17)]
#[case(EngineKind::Sglang, 13)]
#[case(EngineKind::TrtllmServe, 11)]
#[case(EngineKind::TritonTensorrtLlm, 3)]
#[case(EngineKind::Triton, 17)]
fn every_family_has_help_and_type_once_before_its_samples(
    #[case] kind: EngineKind,
    #[case] families: usize,
) {
    let facts = Facts { kind, ..mk_facts() };
    let page = render(&facts, &mk_snapshot());
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
    assert_eq!(seen.len(), families);
}

#[test]
fn fake_values_replace_the_true_ones() {
    let fake = FakeValues {
        waiting: Some(7.0),
        running: Some(3.0),
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

#[rstest]
#[case(EngineKind::Sglang, &[
    r#"sglang:num_queue_reqs{model_name="m",engine="0"} 0"#,
    r#"sglang:num_running_reqs{model_name="m",engine="0"} 1"#,
    r#"sglang:token_usage{model_name="m",engine="0"} 0.4"#,
    r#"sglang:cache_config_info{model_name="m",engine="0",page_size="16",num_pages="10"} 1"#,
    r#"sglang:cached_tokens_total{model_name="m",engine="0"} 3"#,
])]
#[case(EngineKind::TrtllmServe, &[
    r#"trtllm_num_requests_waiting{model_name="m",engine="0"} 0"#,
    r#"trtllm_num_requests_running{model_name="m",engine="0"} 1"#,
    r#"trtllm_kv_cache_utilization{model_name="m",engine="0"} 0.4"#,
    r#"trtllm_kv_cache_tokens_per_block{model_name="m",engine="0"} 16"#,
    r#"trtllm_kv_cache_max_blocks{model_name="m",engine="0"} 10"#,
])]
#[case(EngineKind::TritonTensorrtLlm, &[
    r#"nv_trt_llm_request_metrics{model_name="m",engine="0",request_type="waiting"} 0"#,
    r#"nv_trt_llm_request_metrics{model_name="m",engine="0",request_type="scheduled"} 1"#,
    r#"nv_trt_llm_kv_cache_block_metrics{model_name="m",engine="0",kv_cache_block_type="fraction"} 0.4"#,
    r#"nv_trt_llm_kv_cache_block_metrics{model_name="m",engine="0",kv_cache_block_type="tokens_per"} 16"#,
    r#"nv_trt_llm_kv_cache_block_metrics{model_name="m",engine="0",kv_cache_block_type="max"} 10"#,
])]
fn each_engine_has_its_own_names(#[case] kind: EngineKind, #[case] lines: &[&str]) {
    let facts = Facts {
        kind,
        model_name: "m",
        ..mk_facts()
    };
    let page = render(&facts, &mk_snapshot());
    for line in lines {
        assert!(
            page.lines().any(|other| other == *line),
            "{line} is not in\n{page}"
        );
    }
    assert!(!page.contains("vllm:") && page.contains("process_start_time_seconds 1"));
}

#[test]
fn padding_makes_the_page_longer() {
    let lines = |padding_lines| {
        let facts = Facts {
            padding_lines,
            ..mk_facts()
        };
        render(&facts, &mk_snapshot()).lines().count()
    };
    assert_eq!(lines(300), lines(0) + 302, "with help and type");
}

#[rstest]
#[case(EngineKind::Vllm, true)]
#[case(EngineKind::Triton, false)]
fn old_names_replace_the_new_ones(#[case] kind: EngineKind, #[case] legacy_names: bool) {
    let page = render(
        &Facts {
            kind,
            legacy_names,
            ..mk_facts()
        },
        &mk_snapshot(),
    );
    assert!(page.contains("vllm:gpu_cache_usage_perc{"));
    assert!(page.contains("vllm:time_per_output_token_seconds_count{"));
    assert!(page.contains("vllm:gpu_prefix_cache_hits_total{"));
    assert!(!page.contains("kv_cache_usage") && !page.contains("inter_token"));
}
