use std::path::Path;

use metadata::{Limits, wire::load::Add};
use moment::Clock;
use process::docs::{cell, check_part};
use prometheus_client::encoding::text::encode;

use super::*;
use crate::{memory::Memory, route};

/// A page with each metric.
async fn page() -> String {
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let engine = Memory::new(Limits::default(), Clock::start());
    for n in 0..3 {
        let add = format!(
            r#"{{"cluster":"ns/pool","request_id":"r{n}","ip":"10.0.0.{n}","prompt_length":{n}}}"#
        );
        let add: Add = serde_json::from_str(&add).unwrap();
        engine.add(add, false).await.unwrap();
    }
    let found = route::find(&http::Method::POST, "/v1/load/stats").unwrap();
    let reply = |found, status: u16| {
        let time = Duration::from_micros(20);
        let status = http::StatusCode::from_u16(status).unwrap();
        metrics.route(found).replied(status, time);
    };
    reply(Some(&found), 200);
    reply(Some(&found), 400);
    reply(None, 404);
    metrics.engine(Call::Add, Duration::from_micros(5), &Ok(()));
    let stale = Fault::StaleEpoch { current: 5 };
    metrics.engine(Call::Batch, Duration::ZERO, &Err::<(), _>(stale));
    metrics.swept(&Swept {
        charges: 2,
        reservations: 1,
        ..Swept::default()
    });
    metrics.read(&engine).await;
    let mut page = String::new();
    encode(&mut page, &registry).unwrap();
    page
}

#[tokio::test]
async fn what_happened_is_on_the_page() {
    let page = page().await;
    for line in [
        "metadata_center_requests_total{route=\"POST /v1/load/stats\",status=\"400\"} 1\n",
        "metadata_center_requests_total{route=\"other\",status=\"404\"} 1\n",
        "metadata_center_request_duration_seconds_bucket{le=\"0.000025\",route=\"POST /v1/load/stats\"} 2\n",
        "metadata_center_request_duration_seconds_bucket{le=\"0.00001\",route=\"POST /v1/load/stats\"} 0\n",
        "metadata_center_engine_duration_seconds_count{op=\"add\"} 1\n",
        "metadata_center_stale_batches_total 1\n",
        "metadata_center_freed_total{cause=\"lease\"} 2\n",
        "metadata_center_freed_total{cause=\"reservation\"} 1\n",
        "metadata_center_charges 3\n",
        "metadata_center_clusters 1\n",
        "model_engine_count{model_name=\"ns/pool\"} 3\n",
        "queued_num{model_name=\"ns/pool\",engine_ip=\"10.0.0.2\"} 1\n",
        "prompt_length{model_name=\"ns/pool\",engine_ip=\"10.0.0.2\"} 2\n",
    ] {
        assert!(page.contains(line), "{line} is not in {page}");
    }
}

#[tokio::test]
async fn the_known_names_take_no_more_than_ten_thousand_series() {
    let limits = Limits {
        endpoints: 6_000,
        ..Limits::default()
    };
    let engine = Memory::new(limits, Clock::start());
    for n in 0..6_000 {
        let ip = std::net::Ipv4Addr::from_bits(0x0a00_0000 + n);
        let add = format!(r#"{{"cluster":"c","request_id":"r{n}","ip":"{ip}"}}"#);
        let add: Add = serde_json::from_str(&add).unwrap();
        engine.add(add, false).await.unwrap();
    }
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    metrics.read(&engine).await;
    let mut page = String::new();
    encode(&mut page, &registry).unwrap();
    let series = page.lines().filter(|line| line.contains("engine_ip="));
    assert_eq!(series.count(), 10_000);
}

#[tokio::test]
async fn every_metric_is_documented() {
    let page = page().await;
    let mut table = "| name | type | labels | |\n|---|---|---|---|\n".to_owned();
    let of = |begin: &str| {
        page.lines()
            .filter_map(|line| line.strip_prefix(begin))
            .collect::<Vec<_>>()
    };
    for (name, kind) in of("# TYPE ").iter().filter_map(|line| line.split_once(' ')) {
        let help = of(&format!("# HELP {name} ")).concat();
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
        let help = cell(help.trim_end_matches('.'));
        let names = names.join(", ");
        let row = format!("| `{name}{suffix}` | {kind} | {names} | {help} |\n");
        table.push_str(&row);
    }
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metadata-center.md");
    let again = "UPDATE_DOCS=1 cargo test -p metadata-center documented";
    check_part(&docs, "metrics", &table, again).unwrap();
}

#[tokio::test]
async fn without_redis_the_page_has_what_this_process_holds() {
    let server = redis_server::Server::start().unwrap();
    let options = crate::RedisOptions::new(server.url());
    let engine = crate::Redis::start(options, Clock::start()).unwrap();
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let look = async || {
        metrics.read(&engine).await;
        let mut page = String::new();
        encode(&mut page, &registry).unwrap();
        page
    };
    let add = r#"{"cluster":"c","request_id":"r","ip":"10.0.0.1"}"#;
    let add: Add = serde_json::from_str(add).unwrap();
    let until = tokio::time::Instant::now() + Duration::from_secs(20);
    while let Some(why) = engine.unready() {
        assert!(tokio::time::Instant::now() < until, "not in 20 s: {why}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    engine.add(add, false).await.unwrap();
    let charges = "\nmetadata_center_charges ";
    let page = look().await;
    assert!(page.contains(charges), "{page}");
    drop(server);
    let page = look().await;
    assert!(!page.contains(charges), "{page}");
    for name in [
        "cache_bytes",
        "cache_evictions_total",
        "cache_log_lag_seconds",
        "cache_append_errors_total",
    ] {
        let line = format!("\nmetadata_center_{name} ");
        assert!(page.contains(&line), "{line} is not in {page}");
    }
}
