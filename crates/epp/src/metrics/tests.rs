//! What is on the page, and that the documentation has it.

use std::path::Path;

use moment::Moment;
use prometheus_client::encoding::text::encode;

use super::*;
use crate::{
    budget::Budget,
    config::{Config, ConfigMetrics, CurrentConfig, Prefix},
    director::{Director, DirectorCollector, Options, Pool},
    external::{ExternalMetrics, Stage, fixtures::Scripted},
    fixtures::mk_member,
    llm::{
        AccessLogger, AskedElsewhere, Ended, LengthUnit, LlmPick, LlmRequest, Phases, PromptFacts,
        Table,
    },
    spans::SpanMetrics,
    tap::Usage,
};

const DOCS: &str = include_str!("../../../../docs/epp-metrics.md");

/// All that the program serves, with a value each.
fn page() -> String {
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    metrics.register_flow_control(&mut registry, "llm");
    register_collectors(&mut registry);
    SpanMetrics::register(&mut registry, "epp");
    ExternalMetrics::register(&mut registry).fell_back(Stage::Process, "timeout");
    let processor = Scripted::silent();
    registry.register_collector(Box::new(ExternalMetrics::breaker(processor)));
    for (model, streaming) in [("m", false), ("n", true)] {
        let labels = Labels {
            model: Some(model),
            ..Labels::default()
        };
        let mut running = metrics.series(&labels).begin(1);
        running.failed(500);
        running.chunk(1, Moment::START);
        running.first_byte(Duration::from_secs(1), streaming);
        running.chunk(1, Moment::from_millis(1));
        running.used(Usage {
            input_tokens: Some(2),
            output_tokens: Some(2),
            cached_tokens: Some(2),
        });
        running.took(Duration::from_secs(2));
    }
    let series = metrics.series(&Labels::default());
    metrics
        .queue(&series, 0, 10, Clock::start())
        .end(Outcome::Dispatched);
    metrics.predicted(64, 100);
    metrics.reported(90);
    metrics.rejected("saturated");
    metrics.stream_ended("complete");
    metrics.served_elsewhere(true);
    metrics.scrapes("ok");
    metrics.discovery_synced("pools", true);
    metrics.discovery_error("pools");
    metrics
        .llm()
        .ended(&mk_ended(), Some(&mk_llm_request()), Moment::START);
    AccessLogger::begin(CurrentConfig::default(), &mut registry);
    let mut page = String::new();
    encode(&mut page, &registry).unwrap();
    page
}

fn mk_ended() -> Ended {
    let mut ended = Ended::new(None, Moment::START);
    ended.answered = Some(Moment::START);
    ended.first_byte = Some(Moment::START);
    ended
}

fn mk_llm_request() -> LlmRequest {
    let mut found = Table::default().default_match(&"c".parse().unwrap());
    found.model = Some("m".into());
    LlmRequest {
        found,
        trace_id: None,
        target: None,
        prompt: Some(PromptFacts {
            hashes: vec![1],
            ..PromptFacts::default()
        }),
        unit: LengthUnit::default(),
        counted: None,
        id: "id".parse().unwrap(),
        is_streaming: false,
        prefill: None,
        pick: LlmPick::default(),
        asked: AskedElsewhere::default(),
        phases: Phases::default(),
        trace_parent: None,
    }
}

fn register_collectors(registry: &mut Registry) {
    let (pool, clock) = (Pool::default(), Clock::start());
    let member = mk_member("a", "10.0.0.1:80".parse().unwrap());
    pool.replace(vec![member], Moment::START);
    let prefix = Prefix {
        max_bytes: 1 << 20,
        ..Prefix::default()
    };
    let config = Config {
        prefix,
        llm_filter: Some(Arc::default()),
        ..Config::default()
    };
    ConfigMetrics::register(registry).report(&config.ignored);
    let config = CurrentConfig::new(config);
    let director = Director::new(pool.clone(), config, Options::default(), clock);
    registry.register_collector(Box::new(PoolCollector {
        name: "llm".to_owned(),
        pool,
        freshness: scheduling::Freshness::default(),
        clock,
        budget: Budget::new(1),
    }));
    registry.register_collector(Box::new(DirectorCollector {
        pool: "llm".to_owned(),
        director: Arc::new(director),
    }));
}

#[test]
fn every_name_is_documented() {
    let page = page();
    let mut names: Vec<_> = page
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .map(|(name, kind)| match kind {
            "counter" => format!("`{name}_total`"),
            _ => format!("`{name}`"),
        })
        .collect();
    assert_eq!(names.len(), 85, "{names:#?}");
    names.retain(|name| !DOCS.contains(name.as_str()));
    assert!(names.is_empty(), "not in docs/epp-metrics.md: {names:?}");
}

/// What other crates register, whose own tests hold these samples.
const OF_OTHERS: &str = "\
epp_certificate_not_after_seconds{port=\"ext_proc\"} 1
epp_certificate_reloads_total{port=\"ext_proc\",item=\"certificate\",result=\"failure\"} 1
epp_leader 1
";

#[test]
fn dashboard_and_alerts_name_what_is_served_and_the_runbook_has_each_alert() {
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/isthmus-pool");
    let mut page = page();
    page.push_str(OF_OTHERS);
    let checked = process::queries::check(&chart, "epp", "Epp", &page);
    checked.unwrap_or_else(|faults| panic!("{faults}"));
}

#[test]
fn the_build_is_on_the_page() {
    let version = env!("CARGO_PKG_VERSION");
    let line = format!(
        "llm_d_epp_info{{commit=\"{}\",build_ref=\"{}\"}} 1\n",
        COMMIT.unwrap_or("unknown"),
        BUILD_REF.unwrap_or(version)
    );
    let page = page();
    assert!(page.contains(&line), "{page}");
}

#[tokio::test(start_paused = true)]
async fn a_request_in_the_queue_shows_until_it_leaves_and_then_for_how_long() {
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    metrics.register_flow_control(&mut registry, "llm");
    let page = || {
        let mut page = String::new();
        encode(&mut page, &registry).unwrap();
        page
    };
    assert!(!page().contains("queue_size{"), "nothing ever waited");
    let series = metrics.series(&Labels {
        model: Some("m"),
        target: Some("m"),
        fairness_id: Some("team"),
        priority: 2,
    });
    let queued = metrics.queue(&series, 2, 1000, Clock::start());
    let labels = r#"inference_pool="llm",model_name="m",target_model_name="m",fairness_id="team",priority="2""#;
    let expect = |lines: &[String]| {
        let page = page();
        for line in lines {
            assert!(page.contains(line), "{line} is not in {page}");
        }
    };
    expect(&[
        format!("llm_d_epp_flow_control_queue_size{{{labels}}} 1\n"),
        format!("llm_d_epp_flow_control_queue_bytes{{{labels}}} 1000\n"),
    ]);
    tokio::time::advance(Duration::from_millis(1500)).await;
    queued.end(Outcome::EvictedTtl);
    let outcome = format!("{labels},outcome=\"EvictedTTL\"");
    expect(&[
        format!("llm_d_epp_flow_control_queue_size{{{labels}}} 0\n"),
        format!("llm_d_epp_flow_control_queue_bytes{{{labels}}} 0\n"),
        format!("llm_d_epp_flow_control_request_queue_duration_seconds_sum{{{outcome}}} 1.5\n"),
        "llm_d_epp_flow_control_requests_total{inference_pool=\"llm\",outcome=\"EvictedTTL\",priority=\"2\"} 1\n".to_owned(),
    ]);
}

#[test]
fn no_more_can_be_cached_than_there_is_of_a_prompt() {
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    metrics.predicted(64, 128);
    metrics.predicted(64, 40);
    metrics.predicted(0, 0);
    let mut page = String::new();
    encode(&mut page, &registry).unwrap();
    let labels =
        r#"plugin_name="approx-prefix-cache-producer",plugin_type="approx-prefix-cache-producer""#;
    for line in [
        format!("llm_d_epp_prefix_indexer_hit_ratio_sum{{{labels}}} 1.5\n"),
        format!("llm_d_epp_prefix_indexer_hit_ratio_count{{{labels}}} 2\n"),
        format!("llm_d_epp_prefix_indexer_hit_bytes_sum{{{labels}}} 416.0\n"),
        "epp_prefix_predicted_tokens_total 104\n".to_owned(),
    ] {
        assert!(page.contains(&line), "{line} is not in {page}");
    }
}
