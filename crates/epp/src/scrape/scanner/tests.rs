use proptest::{prelude::*, sample::Index};
use rstest::rstest;
use scheduling::{Lora, PageLora};

use super::{super::engine::EngineTable, *};

const VLLM: &str = r#"# HELP vllm:num_requests_running Number of requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a {b} \"c\""} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0 1700000000
vllm:num_requests_waiting{engine="0"} 4
vllm:num_requests_waiting_total{engine="0"} 999
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
vllm:gpu_cache_usage_perc{engine="0"} 0.9
vllm:lora_requests_info{max_lora="4",running_lora_adapters="",waiting_lora_adapters=""} 1.7e+09
vllm:lora_requests_info{max_lora="4",running_lora_adapters="a, b",waiting_lora_adapters="c"} 1.700000001e+09
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="1000"} 1.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="1",num_gpu_blocks="500"} 1.0
process_start_time_seconds 1.7e9
"#;

/// What [`VLLM`] says.
fn mk_vllm() -> Scraped {
    Scraped {
        lora: PageLora::Now(Lora {
            running: vec!["a".into(), "b".into()],
            waiting: vec!["c".into()],
            max: 4,
        }),
        cache: Some(CacheLayout {
            block_tokens: 16,
            blocks: 1500,
        }),
        started: Some(1.7e9),
        ..mk_scraped(4.0, 5.0, 0.5)
    }
}

fn mk_scanner(engine: &str) -> Scanner {
    Scanner::new(Arc::clone(EngineTable::default().engine(engine)))
}

fn mk_scraped(waiting: f64, running: f64, kv: f64) -> Scraped {
    Scraped {
        waiting: Some(waiting),
        running: Some(running),
        kv: Some(kv),
        ..Scraped::default()
    }
}

fn scan(engine: &str, page: &str) -> Scraped {
    let mut scanner = mk_scanner(engine);
    scanner.feed(page.as_bytes());
    scanner.finish()
}

#[test]
fn ranks_are_summed_and_their_cache_is_averaged() {
    assert_eq!(scan("vllm", VLLM), mk_vllm());
    assert_eq!(scan("an engine of tomorrow", VLLM), mk_vllm());
}

#[rstest]
#[case::vllm(
    "vllm",
    "vllm:num_requests_waiting 1\nvllm:num_requests_running 2\nvllm:kv_cache_usage_perc 0.5\n\
     vllm:cache_config_info{block_size=\"32\",num_gpu_blocks=\"900\"} 1\n"
)]
#[case::sglang(
    "sglang",
    "sglang:num_queue_reqs 1\nsglang:num_running_reqs{x=\"y\"} 2\nsglang:token_usage 0.5\n\
     sglang:cache_config_info{page_size=\"32\",num_pages=\"900\"} 1\n"
)]
#[case::trtllm(
    "trtllm-serve",
    "trtllm_num_requests_waiting 1\ntrtllm_num_requests_running 2\ntrtllm_kv_cache_utilization 0.5\n\
     trtllm_kv_cache_tokens_per_block 32.0\ntrtllm_kv_cache_max_blocks 900\n"
)]
#[case::triton(
    "triton-tensorrt-llm",
    "nv_trt_llm_request_metrics{model=\"m\",request_type=\"waiting\",version=\"1\"} 1\n\
     nv_trt_llm_request_metrics{model=\"m\",request_type=\"scheduled\"} 2\n\
     nv_trt_llm_request_metrics{model=\"m\",request_type=\"max\"} 64\n\
     nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"fraction\"} 0.5\n\
     nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"tokens_per\"} 32\n\
     nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"used\"} 7\n\
     nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"max\"} 900\n"
)]
fn each_engine_is_read_by_its_own_names(#[case] engine: &str, #[case] page: &str) {
    let expected = Scraped {
        cache: Some(CacheLayout {
            block_tokens: 32,
            blocks: 900,
        }),
        ..mk_scraped(1.0, 2.0, 0.5)
    };
    assert_eq!(scan(engine, page), expected);
}

#[rstest]
#[case::none("block_size=\"16\",num_gpu_blocks=\"None\"", None)]
#[case::zero("block_size=\"16\",num_gpu_blocks=\"0\"", None)]
#[case::absent("block_size=\"16\"", None)]
#[case::nan("block_size=\"nan\",num_gpu_blocks=\"5\"", None)]
#[case::blanks("block_size = \" 16\" , num_gpu_blocks=\"5 \"", Some((16, 5)))]
#[case::too_many("block_size=\"16\",num_gpu_blocks=\"99999999999\"", Some((16, u32::MAX)))]
fn a_cache_without_size_or_blocks_is_missing(
    #[case] labels: &str,
    #[case] expected: Option<(u32, u32)>,
) {
    let page = format!("vllm:cache_config_info{{{labels}}} 1\n");
    let cache = scan("vllm", &page).cache;
    assert_eq!(
        cache.map(|cache| (cache.block_tokens, cache.blocks)),
        expected
    );
}

#[rstest]
#[case::former_name("vllm:gpu_cache_usage_perc 0.4\n", Some(0.4))]
#[case::percent("vllm:kv_cache_usage_perc 40\n", Some(0.4))]
#[case::percent_of_ranks(
    "vllm:kv_cache_usage_perc{r=\"0\"} 3.0\nvllm:kv_cache_usage_perc{r=\"1\"} 1.0\n",
    Some(0.02)
)]
#[case::full("vllm:kv_cache_usage_perc 1.02\n", Some(1.0))]
#[case::rounded(
    "vllm:kv_cache_usage_perc{r=\"0\"} 1.0000001\nvllm:kv_cache_usage_perc{r=\"1\"} 0.5\n",
    Some(0.750_000_05)
)]
#[case::processes(
    "vllm:kv_cache_usage_perc{pid=\"1\"} 0\nvllm:kv_cache_usage_perc{pid=\"2\"} 0.65\nvllm:kv_cache_usage_perc{pid=\"3\"} 0\n",
    Some(0.65)
)]
#[case::processes_of_two_engines(
    "vllm:kv_cache_usage_perc{engine=\"0\",pid=\"1\"} 0.6\nvllm:kv_cache_usage_perc{engine=\"1\",pid=\"2\"} 0.2\nvllm:kv_cache_usage_perc{engine=\"1\",pid=\"1\"} 0\n",
    Some(0.4)
)]
#[case::one_rank_is_nan(
    "vllm:kv_cache_usage_perc{r=\"0\"} NaN\nvllm:kv_cache_usage_perc{r=\"1\"} 0.5\n",
    Some(0.5)
)]
#[case::both_names(
    "vllm:gpu_cache_usage_perc 0.4\nvllm:kv_cache_usage_perc 0.3\n",
    Some(0.3)
)]
#[case::first_name_is_nan(
    "vllm:kv_cache_usage_perc NaN\nvllm:gpu_cache_usage_perc 0.4\n",
    Some(0.4)
)]
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

#[rstest]
#[case::another_key_with_the_same_end("{x_request_type=\"waiting\"}")]
#[case::inside_another_value("{model=\"request_type=\\\"waiting\\\"\"}")]
#[case::a_longer_value("{request_type=\"waiting_long\"}")]
#[case::no_labels("")]
fn a_label_counts_only_with_its_exact_key_and_value(#[case] labels: &str) {
    let page = format!("nv_trt_llm_request_metrics{labels} 9\n");
    assert_eq!(scan("triton-tensorrt-llm", &page), Scraped::default());
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
        let mut scanner = mk_scanner("vllm");
        let (head, tail) = VLLM.as_bytes().split_at(at);
        scanner.feed(head);
        scanner.feed(tail);
        assert_eq!(scanner.finish(), mk_vllm(), "split at {at}");
    }
}

/// Otherwise values below 1 on such a page would be a hundred times too great.
#[test]
fn a_page_that_was_in_percent_stays_so() {
    let mut scanner = mk_scanner("vllm");
    for (value, kv) in [("0.5", 0.5), ("40", 0.4), ("0.5", 0.005), ("1.2", 0.012)] {
        scanner.feed(format!("vllm:kv_cache_usage_perc {value}\n").as_bytes());
        assert_eq!(scanner.finish().kv, Some(kv), "{value}");
    }
}

#[test]
fn another_process_may_publish_fractions() {
    let mut scanner = mk_scanner("vllm");
    for (started, value, kv) in [
        ("1.7e9", "40", 0.4),
        ("1700000001", "0.5", 0.005),
        ("1.8e9", "0.5", 0.5),
        ("1.8e9", "0.25", 0.25),
    ] {
        let page =
            format!("vllm:kv_cache_usage_perc {value}\nprocess_start_time_seconds {started}\n");
        scanner.feed(page.as_bytes());
        assert_eq!(scanner.finish().kv, Some(kv), "{started} {value}");
    }
}

/// Each rank of a tensor-parallel engine reports the queue of all ranks.
#[test]
fn ranks_that_share_a_scheduler_count_once() {
    let ranks = (0..8).flat_map(|rank| (0..2).map(move |dp| (rank, dp)));
    let series = ranks.map(|(rank, dp)| {
        let labels = format!(
            "{{dp_rank=\"{dp}\",tp_rank=\"{rank}\",pid=\"{}\"}}",
            100 + rank
        );
        format!("sglang:num_queue_reqs{labels} 3\nsglang:num_running_reqs{labels} 10\n")
    });
    let page: String = series.collect();
    let scraped = scan("sglang", &page);
    assert_eq!((scraped.waiting, scraped.running), (Some(6.0), Some(20.0)));
}

#[test]
fn series_without_end_take_bounded_memory() {
    let count = 10 * MAX_SERIES;
    let series = (0..count).map(|rank| format!("vllm:num_requests_waiting{{r=\"{rank}\"}} 2\n"));
    let page: String = series.collect();
    let mut scanner = mk_scanner("vllm");
    scanner.feed(page.as_bytes());
    assert_eq!(scanner.page.waiting.values.len(), MAX_SERIES);
    assert_eq!(scanner.finish().waiting, Some(2.0 * count as f64));
}

#[test]
fn a_line_without_end_is_passed_over_and_not_kept() {
    let mut scanner = mk_scanner("vllm");
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
    let mut scanner = mk_scanner("vllm");
    scanner.feed(b"vllm:num_requests_waiting 2\nvllm:num_requests_wai");
    scanner.finish();
    scanner.feed(b"ting 5\n");
    assert_eq!(scanner.finish(), Scraped::default());
}

/// An engine that just started declares the metric and has no series of it.
#[rstest]
#[case::vllm("# TYPE vllm:lora_requests_info gauge\n", true)]
#[case::without_end("# TYPE vllm:lora_requests_info", true)]
#[case::another("# TYPE vllm:lora_requests_info_total counter\n", false)]
#[case::help("# HELP vllm:lora_requests_info Running stats\n", false)]
fn an_engine_that_ran_no_adapter_has_none(#[case] declared: &str, #[case] has_none: bool) {
    let page = format!("vllm:num_requests_waiting 1\n{declared}");
    let none = Lora {
        max: 1,
        ..Lora::default()
    };
    for size in [1, page.len()] {
        let mut scanner = mk_scanner("vllm");
        for piece in page.as_bytes().chunks(size) {
            scanner.feed(piece);
        }
        let want = if has_none {
            PageLora::Now(none.clone())
        } else {
            PageLora::Absent
        };
        assert_eq!(scanner.finish().lora, want, "in pieces of {size}");
    }
}

#[test]
fn the_adapters_of_a_page_are_reported_once_and_its_other_values_each_time() {
    let mut scanner = mk_scanner("vllm");
    scanner.feed(VLLM.as_bytes());
    assert_eq!(scanner.finish(), mk_vllm());
    let again = Scraped {
        lora: PageLora::Unchanged,
        ..mk_vllm()
    };
    for _ in 0..2 {
        scanner.feed(VLLM.as_bytes());
        assert_eq!(scanner.finish(), again);
    }
    scanner
        .feed(b"vllm:num_requests_waiting 3\nvllm:lora_requests_info{max_lora=\"9\"} 1.8e9\nvllm");
    scanner.reset();
    scanner.feed(VLLM.as_bytes());
    assert_eq!(scanner.finish(), mk_vllm(), "of a page that nobody took");
}

#[test]
fn a_line_too_long_is_passed_over_however_it_is_cut() {
    let long = "x".repeat(MAX_LINE);
    let page =
        format!("vllm:num_requests_waiting{{a=\"{long}\"}} 5\nvllm:num_requests_running 2\n");
    for size in [page.len(), 1000] {
        let mut scanner = mk_scanner("vllm");
        for piece in page.as_bytes().chunks(size) {
            scanner.feed(piece);
        }
        let scraped = scanner.finish();
        assert_eq!((scraped.waiting, scraped.running), (None, Some(2.0)));
    }
}

#[test]
fn an_unwanted_line_is_not_kept_even_when_it_comes_byte_by_byte() {
    let mut scanner = mk_scanner("vllm");
    for byte in b"vllm:prompt_tokens_total 1" {
        scanner.feed(&[*byte]);
    }
    assert!(scanner.skipping && scanner.partial.is_empty());
}

/// Reads a page and then another, the same or not, in pieces that end at `cuts`.
fn scan_in_pieces(engine: &str, pages: &[&[u8]], cuts: &[Index]) -> Vec<Scraped> {
    let mut scanner = mk_scanner(engine);
    let mut scan = |page: &[u8]| {
        let mut cuts: Vec<_> = cuts
            .iter()
            .map(|cut| cut.index(page.len().saturating_add(1)))
            .collect();
        cuts.sort_unstable();
        let mut from = 0;
        for cut in cuts {
            scanner.feed(&page[from..cut]);
            from = cut;
        }
        scanner.feed(&page[from..]);
        scanner.finish()
    };
    pages.iter().map(|page| scan(page)).collect()
}

const ENGINES: [&str; 4] = ["vllm", "sglang", "trtllm-serve", "triton-tensorrt-llm"];

proptest! {
    #[test]
    fn any_bytes_read_the_same_however_they_are_cut(
        page in proptest::collection::vec(any::<u8>(), 0..200),
        engine in proptest::sample::select(&ENGINES),
        cuts in proptest::collection::vec(any::<Index>(), 0..5),
    ) {
        let pages = [&page[..], &page];
        prop_assert_eq!(scan_in_pieces(engine, &pages, &cuts), scan_in_pieces(engine, &pages, &[]));
    }

    #[test]
    fn a_damaged_page_reads_the_same_however_it_is_cut(
        damage in proptest::collection::vec((any::<Index>(), any::<u8>()), 0..30),
        marks in proptest::collection::vec((any::<Index>(), proptest::sample::select(b"{}\"\\,= \n".as_slice())), 0..10),
        cut_off in any::<Index>(),
        cuts in proptest::collection::vec(any::<Index>(), 0..8),
    ) {
        let mut page = VLLM.as_bytes().to_vec();
        for (at, byte) in damage.iter().chain(&marks) {
            *at.get_mut(&mut page) = *byte;
        }
        let pages = [VLLM.as_bytes(), &page, &page[..cut_off.index(page.len())], &page];
        prop_assert_eq!(scan_in_pieces("vllm", &pages, &cuts), scan_in_pieces("vllm", &pages, &[]));
    }

    #[test]
    fn lines_like_ours_read_the_same_however_they_are_cut(
        page in proptest::collection::vec(
            "vllm:(num_requests_waiting|kv_cache_usage_perc|lora_requests_info|cache_config_info)?[ -~]{0,20}\n?",
            0..20,
        ),
        cuts in proptest::collection::vec(any::<Index>(), 0..8),
    ) {
        let page = page.concat();
        let pages = [page.as_bytes()];
        prop_assert_eq!(scan_in_pieces("vllm", &pages, &cuts), scan_in_pieces("vllm", &pages, &[]));
    }
}

/// 1500 lines, most of them the engine's own, with their comments.
fn mk_page(size: usize) -> String {
    let mut page = VLLM.to_owned();
    for bucket in 1_u32.. {
        if page.len() >= size {
            break;
        }
        if bucket % 20 == 0 {
            page.push_str("# HELP vllm:e2e x\n# TYPE vllm:e2e histogram\n");
        }
        page.push_str("vllm:e2e{le=\"1\"} 1\n");
    }
    page
}

#[test]
#[ignore = "a measurement: run it in release with --nocapture"]
fn time_of_a_page() {
    const PAGES: u32 = 10_000;
    let page = mk_page(30_000);
    let mut scanner = mk_scanner("vllm");
    let start = tokio::time::Instant::now();
    for _ in 0..PAGES {
        scanner.feed(page.as_bytes());
        std::hint::black_box(scanner.finish());
    }
    let each = start.elapsed() / PAGES;
    let lines = page.lines().count();
    eprintln!(
        "{} ns per page of {} bytes, {lines} lines",
        each.as_nanos(),
        page.len()
    );
}
