use std::{num::NonZeroUsize, path::Path};

use process::docs::{cell, check_part};
use prometheus_client::encoding::text::encode;
use tempfile::TempDir;
use token_cache::{Endpoint, Store};
use tokenization::{Catalogue, sample};

use super::*;

/// A page on which everything has happened.
fn page() -> String {
    let base = TempDir::new().unwrap();
    sample::write(&base.path().join("tiny")).unwrap();
    let text = "models: [{name: tiny, path: tiny}, {name: lost, path: lost}]";
    let catalogue = Catalogue::load(text, base.path(), &Catalogue::default(), || 1).unwrap();
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    metrics.register_page(
        &mut registry,
        Models::fixed(catalogue),
        Arc::new(Encoders::start(NonZeroUsize::MIN, 1).unwrap()),
        SegmentCache::new(1 << 20, 1),
    );
    let settings = token_cache::Settings::default();
    let (store, _) = Store::open(Endpoint::Memory, settings).unwrap();
    store.register(&mut registry);
    metrics.ended(Outcome::Ok);
    metrics.ended(Outcome::Refused("template-error"));
    metrics.template_error("tiny");
    metrics.route_fallback(Degraded::RouteTimeout);
    metrics.relayed(Relayed::Unknown);
    metrics.prompt(5000);
    metrics.catalogue.reload_failed();
    for stage in Stage::ALL {
        metrics.took(stage, Duration::from_micros(70));
    }
    let mut page = String::new();
    encode(&mut page, &registry).unwrap();
    page
}

#[test]
fn what_happened_is_on_the_page() {
    let page = page();
    for line in [
        "processor_requests_total{outcome=\"ok\"} 1\n",
        "processor_requests_total{outcome=\"template-error\"} 1\n",
        "processor_requests_total{outcome=\"overloaded\"} 0\n",
        "processor_template_errors_total{model=\"tiny\"} 1\n",
        "processor_route_fallback_total{reason=\"route-timeout\"} 1\n",
        "processor_relayed_total{result=\"unknown\"} 1\n",
        "processor_prompt_tokens_bucket{le=\"16384.0\"} 1\n",
        "processor_stage_duration_seconds_bucket{le=\"0.0001\",stage=\"store\"} 1\n",
        "processor_segment_verify_failed_total{model=\"tiny\"} 0\n",
        "processor_segment_cache_bytes 0\n",
        "processor_queue_depth 0\n",
        "processor_catalogue_loads_total{result=\"failed\"} 1\n",
        "processor_models{state=\"loaded\"} 1\n",
    ] {
        assert!(page.contains(line), "{line} is not in {page}");
    }
}

#[test]
fn every_refusal_has_a_counter() {
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let outcomes = refusals().map(Outcome::Refused);
    let ends = [
        Outcome::Ok,
        Outcome::Degraded,
        Outcome::Internal,
        Outcome::LateBody,
        Outcome::GivenUp,
    ];
    for outcome in outcomes.into_iter().chain(ends) {
        metrics.ended(outcome);
    }
    let total: u64 = metrics
        .requests
        .iter()
        .map(|(_, counter)| counter.get())
        .sum();
    assert_eq!(total, 12);
}

#[test]
fn every_metric_is_documented() {
    let page = page();
    let mut table = "| name | type | labels | |\n|---|---|---|---|\n".to_owned();
    for (name, kind) in of(&page, "# TYPE ")
        .iter()
        .filter_map(|line| line.split_once(' '))
    {
        let help = of(&page, &format!("# HELP {name} ")).concat();
        let suffix = if kind == "counter" { "_total" } else { "" };
        let sample = page
            .lines()
            .find_map(|line| line.strip_prefix(name)?.split_once('{'));
        let labels = sample
            .and_then(|(_, rest)| rest.split_once('}'))
            .map_or("", |it| it.0);
        let names = labels.split(',').filter_map(|label| label.split_once('='));
        let names: Vec<_> = names
            .filter(|(name, _)| *name != "le")
            .map(|(name, _)| format!("`{name}`"))
            .collect();
        let (help, names) = (cell(help.trim_end_matches('.')), names.join(", "));
        let row = format!("| `{name}{suffix}` | {kind} | {names} | {help} |\n");
        table.push_str(&row);
    }
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/processor.md");
    let again = "UPDATE_DOCS=1 cargo test -p processor documented";
    check_part(&docs, "metrics", &table, again).unwrap();
}

fn of<'a>(page: &'a str, begin: &str) -> Vec<&'a str> {
    page.lines()
        .filter_map(|line| line.strip_prefix(begin))
        .collect()
}
