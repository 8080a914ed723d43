use proptest::prelude::*;
use rstest::rstest;

use super::*;

const VLLM: &str = r#"# HELP vllm:num_requests_running Number of requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a {b} \"c\""} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0 1700000000
vllm:num_requests_waiting{engine="0"} 4
vllm:num_requests_waiting_total{engine="0"} 999
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
vllm:gpu_cache_usage_perc{engine="0"} 0.9
process_start_time_seconds 1.7e9
"#;

fn mk_scraped(waiting: f64, running: f64, kv: f64) -> Scraped {
    Scraped {
        waiting: Some(waiting),
        running: Some(running),
        kv: Some(kv),
        ..Scraped::default()
    }
}

fn scan(engine: &str, page: &str) -> Scraped {
    let mut scanner = Scanner::new(Engine::by_name(engine));
    scanner.feed(page.as_bytes());
    scanner.finish()
}

#[test]
fn ranks_are_summed_and_their_cache_is_averaged() {
    assert_eq!(scan("vllm", VLLM), mk_scraped(4.0, 5.0, 0.5));
    assert_eq!(
        scan("an engine of tomorrow", VLLM),
        mk_scraped(4.0, 5.0, 0.5)
    );
}

#[rstest]
#[case::sglang(
    "sglang",
    "sglang:num_queue_reqs 1\nsglang:num_running_reqs{x=\"y\"} 2\nsglang:token_usage 0.5\n"
)]
#[case::trtllm(
    "trtllm-serve",
    "trtllm_num_requests_waiting 1\ntrtllm_num_requests_running 2\ntrtllm_kv_cache_utilization 0.5\n"
)]
#[case::triton(
    "triton-tensorrt-llm",
    "nv_trt_llm_request_metrics{model=\"m\",request_type=\"waiting\",version=\"1\"} 1\n\
     nv_trt_llm_request_metrics{model=\"m\",request_type=\"scheduled\"} 2\n\
     nv_trt_llm_request_metrics{model=\"m\",request_type=\"max\"} 64\n\
     nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"fraction\"} 0.5\n\
     nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"max\"} 900\n"
)]
fn each_engine_is_read_by_its_own_names(#[case] engine: &str, #[case] page: &str) {
    assert_eq!(scan(engine, page), mk_scraped(1.0, 2.0, 0.5));
}

#[rstest]
#[case::former_name("vllm:gpu_cache_usage_perc 0.4\n", Some(0.4))]
#[case::percent("vllm:kv_cache_usage_perc 40\n", Some(0.4))]
#[case::nan("vllm:kv_cache_usage_perc NaN\n", None)]
#[case::infinite("vllm:kv_cache_usage_perc +Inf\n", None)]
#[case::negative("vllm:kv_cache_usage_perc -1\n", None)]
#[case::no_value("vllm:kv_cache_usage_perc\n", None)]
#[case::open_labels("vllm:kv_cache_usage_perc{a=\"}\n", None)]
#[case::longer_name("vllm:kv_cache_usage_perc_max 0.4\n", None)]
#[case::no_newline("vllm:kv_cache_usage_perc 0.4", Some(0.4))]
#[case::carriage_return("vllm:kv_cache_usage_perc 0.4\r\n", Some(0.4))]
fn odd_values_of_the_cache_are_read_or_missing(#[case] page: &str, #[case] kv: Option<f64>) {
    assert_eq!(scan("vllm", page).kv, kv);
}

#[test]
fn values_whose_sums_could_be_infinite_are_missing() {
    let page = "vllm:num_requests_waiting{r=\"0\"} 1.7e308\nvllm:num_requests_waiting{r=\"1\"} 1.7e308\n\
                vllm:kv_cache_usage_perc{r=\"0\"} 1.7e308\nvllm:kv_cache_usage_perc{r=\"1\"} 1.7e308\n\
                vllm:num_requests_running 2\n";
    let scraped = scan("vllm", page);
    assert_eq!(
        scraped,
        Scraped {
            running: Some(2.0),
            ..Scraped::default()
        }
    );
}

#[test]
fn a_page_without_a_metric_lacks_only_that() {
    let scraped = scan("vllm", "vllm:num_requests_waiting 7\n");
    assert_eq!(
        scraped,
        Scraped {
            waiting: Some(7.0),
            ..Scraped::default()
        }
    );
}

#[test]
fn a_split_at_every_byte_reads_the_same() {
    for at in 0..=VLLM.len() {
        let mut scanner = Scanner::new(Engine::by_name("vllm"));
        let (head, tail) = VLLM.as_bytes().split_at(at);
        scanner.feed(head);
        scanner.feed(tail);
        assert_eq!(scanner.finish(), mk_scraped(4.0, 5.0, 0.5), "split at {at}");
    }
}

#[test]
fn a_line_without_end_is_passed_over_and_not_kept() {
    let mut scanner = Scanner::new(Engine::by_name("vllm"));
    scanner.feed(b"vllm:kv_cache_usage_perc{a=\"");
    let piece = vec![b'x'; 64 * 1024];
    for _ in 0..100 {
        scanner.feed(&piece);
    }
    assert!(scanner.partial.capacity() <= 2 * MAX_LINE);
    scanner.feed(b"\"} 0.5\nvllm:num_requests_waiting 2\n");
    assert_eq!(
        scanner.finish(),
        Scraped {
            waiting: Some(2.0),
            ..Scraped::default()
        }
    );
}

#[test]
fn one_page_leaves_nothing_to_the_next() {
    let mut scanner = Scanner::new(Engine::by_name("vllm"));
    scanner.feed(b"vllm:num_requests_waiting 2\nvllm:num_requests_wai");
    scanner.finish();
    scanner.feed(b"ting 5\n");
    assert_eq!(scanner.finish(), Scraped::default());
}

proptest! {
    #[test]
    fn no_page_makes_it_panic_and_any_split_reads_the_same(
        page in proptest::collection::vec("vllm:(num_requests_waiting|kv_cache_usage_perc)?[ -~]{0,20}\n?", 0..20),
        at in any::<proptest::sample::Index>(),
    ) {
        let page = page.concat();
        let mut scanner = Scanner::new(Engine::by_name("vllm"));
        let (head, tail) = page.as_bytes().split_at(at.index(page.len().max(1)));
        scanner.feed(head);
        scanner.feed(tail);
        prop_assert_eq!(scanner.finish(), scan("vllm", &page));
    }
}
