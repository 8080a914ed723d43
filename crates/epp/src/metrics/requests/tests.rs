//! What a scrape shows of requests.

use std::{sync::Arc, thread, time::Duration};

use moment::Moment;
use prometheus_client::{encoding::text::encode, registry::Registry};
use rstest::rstest;
use tokio::time::Instant;

use super::{
    labels::{MAX_VALUE, OTHER},
    page::MAX_HISTOGRAMS,
    table::MAX_SERIES,
    *,
};
use crate::tap::Usage;

struct Scraped(Arc<Requests>);

fn mk_requests() -> (Arc<Requests>, Scraped) {
    let requests = Arc::new(Requests::new());
    (Arc::clone(&requests), Scraped(requests))
}

fn mk_labels<'a>(model: &'a str, flow: &'a str) -> Labels<'a> {
    Labels {
        model: Some(model),
        target: Some(model),
        fairness_id: Some(flow),
        priority: 0,
    }
}

fn labels_of(model: &str, flow: &str) -> String {
    format!(r#"model_name="{model}",target_model_name="{model}",fairness_id="{flow}",priority="0""#)
}

impl Scraped {
    fn page(&self) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Page(Arc::clone(&self.0))));
        let mut page = String::new();
        encode(&mut page, &registry).unwrap();
        page
    }

    fn value(&self, sample: &str) -> Option<f64> {
        value(&self.page(), sample)
    }

    fn series(&self) -> usize {
        count(&self.page(), "llm_d_epp_request_total{")
    }
}

fn value(page: &str, sample: &str) -> Option<f64> {
    let line = page.lines().find(|line| {
        line.strip_prefix(sample)
            .is_some_and(|rest| rest.starts_with(' '))
    })?;
    line.rsplit(' ').next()?.parse().ok()
}

fn count(page: &str, prefix: &str) -> usize {
    page.lines().filter(|line| line.starts_with(prefix)).count()
}

#[test]
fn a_request_shows_under_both_names() {
    let (requests, scraped) = mk_requests();
    let labels = Labels {
        model: Some("m"),
        target: Some("t"),
        fairness_id: None,
        priority: -2,
    };
    let mut running = requests.series(&labels).begin(100);
    running.failed(500);
    let models = r#"model_name="m",target_model_name="t""#;
    let all = format!(r#"{models},fairness_id="default-flow",priority="-2""#);
    for (sample, expected) in [
        (format!("llm_d_epp_request_total{{{all}}}"), 1.0),
        (format!("llm_d_epp_request_running{{{all}}}"), 1.0),
        (
            format!("llm_d_epp_request_error_total{{{all},error_code=\"500\"}}"),
            1.0,
        ),
        (
            format!("inference_objective_request_total{{{models},priority=\"-2\"}}"),
            1.0,
        ),
        (
            format!("inference_objective_request_error_total{{{models},error_code=\"500\"}}"),
            1.0,
        ),
        (
            r#"inference_objective_running_requests{model_name="m"}"#.to_owned(),
            1.0,
        ),
    ] {
        assert_eq!(scraped.value(&sample), Some(expected), "{sample}");
    }

    running.chunk(30, Moment::from_millis(2_000));
    running.first_byte(Duration::from_secs(2), true);
    running.chunk(20, Moment::from_millis(2_250));
    running.chunk(0, Moment::from_millis(2_900));
    running.used(Usage {
        input_tokens: Some(40),
        output_tokens: Some(5),
        cached_tokens: Some(0),
    });
    running.took(Duration::from_secs(4));
    let page = scraped.page();
    for (name, former, sum) in [
        (
            "request_duration_seconds",
            Some("request_duration_seconds"),
            4.0,
        ),
        ("request_size_bytes", Some("request_sizes"), 100.0),
        ("response_size_bytes", Some("response_sizes"), 50.0),
        ("request_input_tokens", Some("input_tokens"), 40.0),
        ("request_output_tokens", Some("output_tokens"), 5.0),
        ("request_cached_tokens", Some("prompt_cached_tokens"), 0.0),
        (
            "request_ntpot_seconds",
            Some("normalized_time_per_output_token_seconds"),
            0.8,
        ),
        ("request_streaming_tpot_seconds", None, 0.5),
        ("request_streaming_itl_seconds", None, 0.25),
    ] {
        let sample = format!("llm_d_epp_{name}_sum{{{all}}}");
        assert_eq!(value(&page, &sample), Some(sum), "{sample}");
        let sample = format!("llm_d_epp_{name}_count{{{all}}}");
        assert_eq!(value(&page, &sample), Some(1.0), "{sample}");
        if let Some(former) = former {
            let sample = format!("inference_objective_{former}_sum{{{models}}}");
            assert_eq!(value(&page, &sample), Some(sum), "{sample}");
        }
    }
    let sample = format!(r#"llm_d_epp_request_ttft_seconds_sum{{{all},streaming="true"}}"#);
    assert_eq!(value(&page, &sample), Some(2.0));
    let sample = r#"inference_objective_running_requests{model_name="m"}"#;
    assert_eq!(value(&page, sample), Some(0.0));
}

#[test]
fn what_only_a_stream_has_is_not_measured_of_a_whole_response() {
    let (requests, scraped) = mk_requests();
    let mut running = requests.series(&mk_labels("m", "f")).begin(1);
    running.chunk(30, Moment::from_millis(2_000));
    running.first_byte(Duration::from_secs(2), false);
    running.chunk(30, Moment::from_millis(3_000));
    running.used(Usage {
        output_tokens: Some(5),
        ..Usage::default()
    });
    running.took(Duration::from_secs(4));
    let page = scraped.page();
    assert_eq!(count(&page, "llm_d_epp_request_streaming"), 0, "{page}");
    let sample = format!(
        r#"llm_d_epp_request_ttft_seconds_sum{{{},streaming="false"}}"#,
        labels_of("m", "f")
    );
    assert_eq!(value(&page, &sample), Some(2.0), "{page}");
}

#[test]
fn a_request_that_is_cut_has_no_duration_and_no_response() {
    let (requests, scraped) = mk_requests();
    let mut running = requests.series(&mk_labels("m", "f")).begin(1);
    running.chunk(30, Moment::START);
    drop(running);
    let page = scraped.page();
    assert_eq!(count(&page, "llm_d_epp_request_duration"), 0, "{page}");
    assert_eq!(count(&page, "llm_d_epp_response"), 0, "{page}");
    let sample = format!("llm_d_epp_request_running{{{}}}", labels_of("m", "f"));
    assert_eq!(value(&page, &sample), Some(0.0));
}

#[test]
fn ten_thousand_invented_models_do_not_hide_one_in_use() {
    let (requests, scraped) = mk_requests();
    let real = mk_labels("real", "f");
    let mut longest = 0;
    for invented in 0..10_000 {
        if invented % 500 == 0 {
            drop(requests.series(&real).begin(1));
        }
        let name = format!("invented-{invented}");
        drop(requests.series(&mk_labels(&name, "f")).begin(1));
        if invented == 999 {
            longest = scraped.page().len();
        }
    }
    let sample = format!("llm_d_epp_request_total{{{}}}", labels_of("real", "f"));
    assert_eq!(scraped.value(&sample), Some(20.0));
    let page = scraped.page();
    assert_eq!(scraped.series(), MAX_SERIES);
    assert!(
        page.len() < longest + longest / 20,
        "{} {longest}",
        page.len()
    );
    for (name, shown) in [
        ("invented-0", false),
        ("invented-5000", false),
        ("invented-9999", true),
    ] {
        let found = page.contains(&format!("{name}\""));
        assert_eq!(found, shown, "{name}");
    }
    assert!(!page.contains(OTHER));
    let table = requests.table.lock();
    assert_eq!(table.models.len(), MAX_SERIES);
    assert_eq!(table.recent.values().count(), MAX_SERIES);
}

#[test]
fn a_request_in_flight_keeps_its_series_and_its_gauge() {
    let (requests, scraped) = mk_requests();
    let long = requests.series(&mk_labels("long", "f")).begin(1);
    for invented in 0..3000 {
        let name = format!("invented-{invented}");
        drop(requests.series(&mk_labels(&name, "f")).begin(1));
    }
    let sample = format!("llm_d_epp_request_running{{{}}}", labels_of("long", "f"));
    assert_eq!(scraped.value(&sample), Some(1.0));
    drop(long);
    assert_eq!(scraped.value(&sample), Some(0.0));
    // It counted as used when the table looked at it last.
    for invented in 0..MAX_SERIES {
        let name = format!("later-{invented}");
        drop(requests.series(&mk_labels(&name, "f")).begin(1));
    }
    assert_eq!(scraped.value(&sample), None);
    // Back, it begins anew.
    let again = requests.series(&mk_labels("long", "f")).begin(1);
    assert_eq!(scraped.value(&sample), Some(1.0));
    drop(again);
    let sample = format!("llm_d_epp_request_total{{{}}}", labels_of("long", "f"));
    assert_eq!(scraped.value(&sample), Some(1.0));
}

#[test]
fn a_request_is_other_while_all_series_have_requests_in_flight() {
    let (requests, scraped) = mk_requests();
    let names: Vec<_> = (0..MAX_SERIES).map(|at| format!("held-{at}")).collect();
    let held: Vec<_> = names
        .iter()
        .map(|name| requests.series(&mk_labels(name, "f")).begin(1))
        .collect();
    let beyond = [
        requests.series(&mk_labels("late", "f")).begin(1),
        requests.series(&mk_labels("later", "g")).begin(1),
    ];
    assert_eq!(scraped.series(), MAX_SERIES + 1);
    let other = r#"llm_d_epp_request_running{model_name="other",target_model_name="other",fairness_id="other",priority="other"}"#;
    assert_eq!(scraped.value(other), Some(2.0));
    drop(held);
    drop(requests.series(&mk_labels("late", "f")).begin(1));
    let sample = format!("llm_d_epp_request_total{{{}}}", labels_of("late", "f"));
    assert_eq!(scraped.value(&sample), Some(1.0));
    drop(beyond);
    assert_eq!(scraped.value(other), Some(0.0));
}

#[test]
fn counters_of_a_model_do_not_go_back_when_one_of_its_series_leaves() {
    let (requests, scraped) = mk_requests();
    let begin = |flow: &str| {
        let mut running = requests.series(&mk_labels("m", flow)).begin(10);
        running.failed(503);
        running.used(Usage {
            input_tokens: Some(7),
            ..Usage::default()
        });
    };
    let flows = MAX_SERIES + 500;
    for flow in 0..flows {
        begin(&format!("flow-{flow}"));
    }
    let page = scraped.page();
    assert_eq!(count(&page, "llm_d_epp_request_total{"), MAX_SERIES);
    let models = r#"model_name="m",target_model_name="m""#;
    let flows = flows as f64;
    for (sample, expected) in [
        (
            format!("inference_objective_request_total{{{models},priority=\"0\"}}"),
            flows,
        ),
        (
            format!("inference_objective_request_error_total{{{models},error_code=\"503\"}}"),
            flows,
        ),
        (
            format!("inference_objective_input_tokens_count{{{models}}}"),
            flows,
        ),
        (
            format!("inference_objective_input_tokens_sum{{{models}}}"),
            flows * 7.0,
        ),
        (
            format!("inference_objective_request_sizes_sum{{{models}}}"),
            flows * 10.0,
        ),
    ] {
        assert_eq!(value(&page, &sample), Some(expected), "{sample}");
    }
}

#[test]
fn a_series_that_leaves_while_a_page_is_written_is_counted_once() {
    let (requests, _) = mk_requests();
    drop(requests.series(&mk_labels("m", "first")).begin(1));
    drop(requests.series(&mk_labels("m", "second")).begin(1));
    let rows: Vec<_> = {
        let table = requests.table.lock();
        let series = table.recent.values();
        series.map(|series| Arc::clone(&series.row)).collect()
    };
    for invented in 0..MAX_SERIES - 1 {
        drop(requests.series(&mk_labels(&format!("i-{invented}"), "f")));
    }
    // A row of the page in hand did not keep its series in the table.
    let table = requests.table.lock();
    let names = &rows[0].names.model;
    assert_eq!(table.models[names].series, 1);
    assert_eq!(table.models[names].left.total["0"], 1);
}

#[test]
fn a_value_too_long_to_keep_is_other() {
    let (requests, scraped) = mk_requests();
    let (longest, longer) = ("m".repeat(MAX_VALUE), "m".repeat(MAX_VALUE + 1));
    drop(requests.series(&mk_labels(&longest, &longer)).begin(1));
    drop(
        requests
            .series(&Labels {
                model: Some(&longer),
                ..Labels::default()
            })
            .begin(1),
    );
    let page = scraped.page();
    let sample = format!(
        "llm_d_epp_request_total{{{}}}",
        labels_of(&longest, "other")
    );
    assert_eq!(value(&page, &sample), Some(1.0));
    let sample = r#"llm_d_epp_request_total{model_name="other",target_model_name="unknown",fairness_id="default-flow",priority="0"}"#;
    assert_eq!(value(&page, sample), Some(1.0));
    assert!(!page.contains(&longer));
}

#[test]
fn values_that_only_join_alike_are_not_mixed() {
    let (requests, scraped) = mk_requests();
    for (model, flow) in [("ab", "c"), ("a", "bc")] {
        let labels = Labels {
            target: None,
            ..mk_labels(model, flow)
        };
        drop(requests.series(&labels).begin(1));
    }
    assert_eq!(scraped.series(), 2);
}

#[rstest]
#[case(404, "404")]
#[case(599, "599")]
#[case(0, "other")]
#[case(60_000, "other")]
fn a_status_that_http_does_not_have_is_other(#[case] status: u16, #[case] code: &str) {
    let (requests, scraped) = mk_requests();
    requests.series(&Labels::default()).failed(status);
    let sample = format!(
        r#"llm_d_epp_request_error_total{{model_name="unknown",target_model_name="unknown",fairness_id="default-flow",priority="0",error_code="{code}"}}"#
    );
    assert_eq!(scraped.value(&sample), Some(1.0));
}

#[test]
fn a_name_has_one_descriptor() {
    let (requests, scraped) = mk_requests();
    for streaming in [false, true] {
        for model in ["a", "b"] {
            let mut running = requests.series(&mk_labels(model, "f")).begin(1);
            running.chunk(1, Moment::START);
            running.first_byte(Duration::from_secs(1), streaming);
        }
    }
    let page = scraped.page();
    let mut types: Vec<_> = page
        .lines()
        .filter(|line| line.starts_with("# TYPE"))
        .collect();
    let all = types.len();
    types.sort_unstable();
    types.dedup();
    assert_eq!(types.len(), all, "{page}");
}

/// Run alone, optimised: `cargo test -p epp --lib --release cost_of -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn cost_of_a_request() {
    const REQUESTS: u32 = 200_000;
    for threads in [1, 2, 4] {
        let (requests, scraped) = mk_requests();
        let start = Instant::now();
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    for request in 0..REQUESTS {
                        let flow = ["a", "b", "c", "d"][request as usize % 4];
                        let mut running = requests.series(&mk_labels("a-model", flow)).begin(1);
                        running.chunk(1, Moment::START);
                        running.first_byte(Duration::from_millis(10), true);
                        for chunk in 0..10 {
                            running.chunk(100, Moment::from_millis(chunk));
                        }
                        running.took(Duration::from_secs(1));
                    }
                });
            }
        });
        let each = start.elapsed() / (REQUESTS * threads);
        eprintln!("{threads} threads: {each:?} a request of ten parts");
        assert_eq!(scraped.series(), 4);
    }
    let (requests, scraped) = mk_requests();
    let start = Instant::now();
    for invented in 0..REQUESTS {
        let name = format!("invented-{invented}");
        drop(requests.series(&mk_labels(&name, "f")).begin(1));
    }
    eprintln!("{:?} an invented model", start.elapsed() / REQUESTS);
    let start = Instant::now();
    let bytes = scraped.page().len();
    eprintln!("{:?} a page of {bytes} bytes", start.elapsed());
}

/// Otherwise a client that invents labels would make each scrape tens of MB long.
#[test]
fn only_the_labels_used_last_have_histograms() {
    let (requests, scraped) = mk_requests();
    let sets = 3 * MAX_HISTOGRAMS;
    for model in 0..sets {
        let model = format!("m-{model}");
        drop(requests.series(&mk_labels(&model, "f")).begin(7));
    }
    drop(requests.series(&mk_labels("m-0", "f")).begin(7));
    let page = scraped.page();
    assert_eq!(count(&page, "llm_d_epp_request_total{"), sets);
    for name in [
        "llm_d_epp_request_size_bytes",
        "inference_objective_request_sizes",
    ] {
        assert_eq!(
            count(&page, &format!("{name}_count{{")),
            MAX_HISTOGRAMS,
            "{name}"
        );
    }
    for (model, is_recent) in [("m-0", true), ("m-299", true), ("m-1", false)] {
        let sample = format!(
            "llm_d_epp_request_size_bytes_count{{{}}}",
            labels_of(model, "f")
        );
        assert_eq!(value(&page, &sample).is_some(), is_recent, "{model}");
    }
}
