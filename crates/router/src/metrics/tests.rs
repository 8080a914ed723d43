use std::path::Path;

use kv_router::{Limits, NoWorker, Preset};
use process::docs::{cell, check_part};
use prometheus_client::encoding::text::encode;

use super::*;
use crate::{
    calls::Calls,
    leader::Follower,
    membership::Warm,
    pool::tests::{mk_member, mk_pool},
    service::{Parts, Service},
};

/// A page with each metric, of a pool of so many workers of two ranks each.
fn page(workers: u8) -> String {
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let (pool, clock) = (Arc::new(mk_pool(Limits::default())), Clock::start());
    Metrics::register_sizes(&mut registry, Arc::clone(&pool), clock);
    let members: Vec<_> = (0..workers)
        .map(|at| mk_member(&format!("vllm-{at:03}"), "1", at, 0))
        .collect();
    pool.replace(&members, 2);
    let service = Service::new(Parts {
        pool: Arc::clone(&pool),
        policy: kv_router::Policy {
            weights: Preset::Isthmus.weights(),
            temperature: 0.0,
            busy_tokens: None,
        },
        clock,
        metrics: metrics.clone(),
        follows_events: true,
        routes: None,
    });
    let health = process::Health::new(&[]);
    let (warm, calls) = (
        Warm::new(health.clone()),
        Calls::new(service.clone(), None, None),
    );
    Follower::new(warm, health, calls, service.clone(), &mut registry);
    let request = processor_api::RouteRequest {
        // long enough that a request weighs less than computing it
        token_ids: (0..4002).collect(),
        candidates: Some(vec!["10.0.0.0:8000".into()]),
        ..processor_api::RouteRequest::default()
    };
    for _ in 0..2 {
        let routed = service.route(&request, clock.now(), &mut rand::rng());
        routed.unwrap();
    }
    let table = pool.table();
    table.workers()[0].ranks[0]
        .events
        .set_state(StreamState::Live);
    metrics.refused(&Fault::NoWorker(NoWorker::Saturated));
    metrics.not_booked(NotBooked::Full);
    metrics.expired(3);
    metrics.discovery_failed("Pod");
    metrics.events("stored", "applied", 5);
    metrics.event_gap();
    metrics.replayed("complete");
    let mut page = String::new();
    encode(&mut page, &registry).unwrap();
    page
}

#[tokio::test]
async fn what_happened_is_on_the_page() {
    let page = page(2);
    for line in [
        "router_decisions_total{source=\"none\"} 1\n",
        "router_decisions_total{source=\"exact\"} 0\n",
        "router_decisions_total{source=\"predicted\"} 1\n",
        "router_prompt_blocks_total 2000\n",
        "router_overlap_blocks_total 1000\n",
        "router_overlap_ratio_bucket{le=\"0.0\"} 1\n",
        "router_overlap_ratio_count 2\n",
        "router_decision_duration_seconds_count 2\n",
        "router_refused_total{reason=\"saturated\"} 1\n",
        "router_not_booked_total{reason=\"full\"} 1\n",
        "router_bookings_expired_total 3\n",
        "router_bookings 2\n",
        "router_discovery_errors_total{kind=\"Pod\"} 1\n",
        "router_events_total{kind=\"stored\",result=\"applied\"} 5\n",
        "router_event_gaps_total 1\n",
        "router_replays_total{result=\"complete\"} 1\n",
        "router_workers{state=\"live\"} 1\n",
        "router_workers{state=\"off\"} 3\n",
        "router_worker_requests{worker=\"default/vllm-000-rank-0\"} 2\n",
        "router_worker_decode_blocks{worker=\"default/vllm-001-rank-0\"} 0\n",
        "router_index_blocks{kind=\"exact\"} 0\n",
        "router_index_blocks{kind=\"predicted\"} 1000\n",
        "router_leader 0\n",
        "router_index_evictions_total{cause=\"memory\"} 0\n",
    ] {
        assert!(page.contains(line), "no {line}{page}");
    }
}

#[tokio::test]
async fn workers_have_a_bounded_number_of_series() {
    let pool = Arc::new(mk_pool(Limits::default()));
    let members: Vec<_> = (0..u8::MAX)
        .flat_map(|host| (0..5).map(move |rank| (host, rank)))
        .map(|(host, rank)| mk_member(&format!("vllm-{host:03}"), "1", host, rank))
        .collect();
    pool.replace(&members, 1);
    let mut registry = Registry::default();
    Metrics::register_sizes(&mut registry, pool, Clock::start());
    let mut page = String::new();
    encode(&mut page, &registry).unwrap();
    let series = page
        .lines()
        .filter(|it| it.starts_with("router_worker_requests{"));
    assert_eq!(series.count(), MAX_WORKERS);
    assert!(page.contains("router_workers{state=\"off\"} 1275\n"));
}

#[tokio::test]
async fn every_metric_is_documented() {
    let page = page(1);
    let mut table = "| name | type | labels | |\n|---|---|---|---|\n".to_owned();
    for line in page.lines() {
        let Some((name, kind)) = line
            .strip_prefix("# TYPE ")
            .and_then(|it| it.split_once(' '))
        else {
            continue;
        };
        let help = format!("# HELP {name} ");
        let help = page.lines().find_map(|it| it.strip_prefix(&help));
        let help = cell(help.unwrap_or_default().trim_end_matches('.'));
        let suffix = if kind == "counter" { "_total" } else { "" };
        let series = format!("{name}{suffix}{{");
        let labels = page.lines().find_map(|it| it.strip_prefix(&series));
        let labels = labels
            .and_then(|it| it.split_once('}'))
            .map_or("", |it| it.0);
        let labels = labels.split(',').filter_map(|it| it.split_once('='));
        let labels: Vec<_> = labels.map(|(label, _)| format!("`{label}`")).collect();
        let labels = labels.join(", ");
        let row = format!("| `{name}{suffix}` | {kind} | {labels} | {help} |\n");
        table.push_str(&row);
    }
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/router.md");
    let again = "UPDATE_DOCS=1 cargo test -p router documented";
    check_part(&docs, "metrics", &table, again).unwrap();
}
