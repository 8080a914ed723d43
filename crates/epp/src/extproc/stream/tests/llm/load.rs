//! Load and prompt caches: what a request charges and saves, and what is told of it.

use super::*;
use crate::llm::AccessLogger;

/// Others go there too rarely to be it by chance: once in 2^10.
#[tokio::test(start_paused = true)]
async fn a_prompt_goes_where_it_was_answered_before() {
    let shared = mk_llm(PLAIN, &[&[], &[]]);
    let chat = mk_chat("m", &mk_prompt("a"));
    let first = ask(&shared, &[], &chat).await;
    let by = first.first().to_owned();
    answered(first).await;
    // The entry of the pick is over, that of the answer is not.
    tokio::time::advance(Duration::from_mins(5)).await;
    shared.director.tend();
    for _ in 0..10 {
        let next = ask(&shared, &[], &chat).await;
        assert_eq!(next.first(), by);
    }
}

#[rstest]
#[case::error_status("500", "", true)]
#[case::error_as_first_event("200", "data: {\"error\":{\"message\":\"no\"}}\n\n", true)]
#[case::events("200", "data: {\"choices\":[]}\n\n", false)]
#[tokio::test(start_paused = true)]
async fn only_an_answer_saves_its_prompt(
    #[case] status: &str,
    #[case] event: &str,
    #[case] is_forgotten: bool,
) {
    let mut registry = Registry::default();
    let shared = mk_llm_counted_in(PLAIN, &[&[]], &mut registry);
    let chat = mk_streamed_chat("m", &mk_prompt("a"));
    let mut asked = ask(&shared, &[], &chat).await;
    if event.is_empty() {
        asked.response_headers(status, A, false).await;
        asked.response_body("{}", true).await;
    } else {
        streamed_after(&mut asked, Duration::ZERO, event).await;
    }
    drop(asked);
    tokio::time::advance(Duration::from_secs(62)).await;
    shared.director.tend();
    drop(ask(&shared, &[], &chat).await);
    let ratios = if is_forgotten { 0.0 } else { 1.0 };
    let want = format!("llm_cache_hit_ratio_sum{{model=\"m\"}} {ratios:.1}\n");
    let page = page(&registry);
    assert!(page.contains(&want), "{want} is not in {page}");
}

#[tokio::test(start_paused = true)]
async fn requests_that_are_open_spread_over_idle_endpoints() {
    let shared = mk_llm(PLAIN, &[&[][..]; 10]);
    let mut open = Vec::new();
    for index in 0..100 {
        let prompt = format!("{index} {}", mk_prompt("a"));
        open.push(ask(&shared, &[], &mk_chat("m", &prompt)).await);
    }
    let requests: Vec<_> = loads(&shared).into_iter().map(|(reqs, _)| reqs).collect();
    let (least, most) = (requests.iter().min(), requests.iter().max());
    assert!(most.unwrap() - least.unwrap() <= 1, "{requests:?}");
}

/// A hit costs no prefill, but a chunk at least.
#[rstest]
#[case("bytes", 512)]
#[case("tokens", 128)]
#[tokio::test(start_paused = true)]
async fn a_charge_is_what_is_not_cached(#[case] unit: &str, #[case] chunk: u64) {
    let shared = mk_llm(&format!("length_unit: {unit}\n{PLAIN}"), &[&[]]);
    let chat = mk_chat("m", &mk_prompt("a"));
    let first = ask(&shared, &[], &chat).await;
    assert_eq!(loads(&shared), [(1, 5 * chunk)]);
    answered(first).await;
    let _again = ask(&shared, &[], &chat).await;
    assert_eq!(loads(&shared), [(1, chunk)]);
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    /// The time of the prefill is over.
    Timer,
    /// Headers come, from the other endpoint.
    Headers,
    Body,
    End,
}

/// Whatever comes first, the prefill ends once, the request ends once, and both are where the request is.
#[rstest]
#[case(&[Step::Timer, Step::Headers, Step::Body, Step::End])]
#[case(&[Step::Headers, Step::Timer, Step::Body, Step::End])]
#[case(&[Step::Headers, Step::Body, Step::Timer, Step::End])]
#[tokio::test(start_paused = true)]
async fn a_charge_follows_its_request_and_ends_once_in_any_order(#[case] steps: &[Step]) {
    for length in 0..=steps.len() {
        let shared = mk_llm(PLAIN, &[&[], &[]]);
        let mut asked = ask(&shared, &[], &mk_chat("m", "hi")).await;
        let picked = usize::from(asked.first() == B);
        let (other, other_at) = [(B, 1), (A, 0)][picked];
        let (mut at, mut prefill, mut requests) = (picked, 2, 1);
        for step in &steps[..length] {
            match step {
                Step::Timer => {
                    tokio::time::advance(Duration::from_millis(121)).await;
                    assert!(asked.replies.next().now_or_never().is_none());
                    prefill = 0;
                }
                Step::Headers => {
                    asked.response_headers("200", other, false).await;
                    at = other_at;
                }
                Step::Body => {
                    asked.response_body("{", false).await;
                    prefill = 0;
                }
                Step::End => {
                    asked.response_body("}", true).await;
                    requests = 0;
                }
            }
            let mut want = [(0, 0), (0, 0)];
            want[at] = (requests, prefill);
            let seen = loads(&shared);
            assert_eq!(seen, want, "after {step:?} of {:?}", &steps[..length]);
        }
        drop(asked);
        assert_eq!(loads(&shared), [(0, 0), (0, 0)], "{:?}", &steps[..length]);
    }
}

#[tokio::test(start_paused = true)]
async fn the_prefill_of_a_stream_ends_with_its_first_byte_alone() {
    let shared = mk_llm(PLAIN, &[&[]]);
    let mut asked = ask(&shared, &[], &mk_streamed_chat("m", "hi")).await;
    tokio::time::advance(Duration::from_hours(1)).await;
    assert!(asked.replies.next().now_or_never().is_none());
    assert_eq!(loads(&shared), [(1, 2)]);
    streamed_after(&mut asked, Duration::ZERO, "data: {}\n\n").await;
    assert_eq!(loads(&shared), [(0, 0)]);
}

/// What streams take to begin is what the others are given.
#[tokio::test(start_paused = true)]
async fn streams_teach_how_long_prefills_take() {
    let shared = mk_llm(PLAIN, &[&[]]);
    for index in 0..60 {
        let prompt = format!("{index:02}{}", "a".repeat(398));
        let mut asked = ask(&shared, &[], &mk_streamed_chat("m", &prompt)).await;
        streamed_after(&mut asked, Duration::from_secs(3), "data: {}\n\n").await;
    }
    let mut asked = ask(&shared, &[], &mk_chat("m", &"b".repeat(400))).await;
    for (wait, is_over) in [(3500, false), (200, true)] {
        tokio::time::advance(Duration::from_millis(wait)).await;
        assert!(asked.replies.next().now_or_never().is_none());
        assert_eq!(loads(&shared)[0].1 == 0, is_over, "after {wait} ms more");
    }
}

#[tokio::test(start_paused = true)]
async fn events_are_not_to_be_held_back_on_their_way() {
    let shared = mk_llm(PLAIN, &[&[]]);
    let mut asked = ask(&shared, &[], &mk_streamed_chat("m", "hi")).await;
    let head = streamed_after(&mut asked, Duration::ZERO, "data: {}\n\n").await;
    let Response::ResponseHeaders(part) = head else {
        panic!("not to the headers")
    };
    assert_eq!(header_value(&part, "x-accel-buffering"), Some("no"));
}

#[rstest]
#[case("200", Some(503))]
#[case("204", None)]
#[case("500", None)]
#[tokio::test(start_paused = true)]
async fn a_success_without_a_body_is_none(#[case] status: &str, #[case] want: Option<i32>) {
    let shared = mk_llm(PLAIN, &[&[]]);
    let mut asked = ask(&shared, &[], &mk_chat("m", "hi")).await;
    let got = match asked.response_headers(status, A, true).await {
        Response::ImmediateResponse(refusal) => {
            let body = String::from_utf8(refusal.body.to_vec()).unwrap();
            assert!(body.contains(A), "{body}");
            Some(refusal.status.unwrap().code)
        }
        _ => None,
    };
    assert_eq!(got, want);
    assert_eq!(loads(&shared), [(0, 0)]);
}

/// Without an LLM filter there are no rules, and no change of responses.
#[tokio::test(start_paused = true)]
async fn the_scorer_alone_weighs_prompts_and_load_too() {
    let text = "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
  - {type: inference-lb-scorer, parameters: {cache_ratio_weight: 5, prefill_charge: full}}
  - {type: top-percent-picker}";
    let mut config = Config::parse(text, Compat::Strict).unwrap();
    config.prefix.max_bytes = 1 << 20;
    let shared = mk_shared_of(1 << 20, &["a", "b"], config, &mut Registry::default());
    let chat = mk_streamed_chat("m", &mk_prompt("a"));
    let mut asked = ask(&shared, &[], &chat).await;
    let by = asked.first().to_owned();
    let head = streamed_after(&mut asked, Duration::ZERO, "data: {}\n\n").await;
    let Response::ResponseHeaders(part) = head else {
        panic!("not to the headers")
    };
    assert_eq!(header_value(&part, "x-accel-buffering"), None);
    for _ in 0..10 {
        let next = ask(&shared, &[], &chat).await;
        assert_eq!(next.first(), by);
        let charge: u64 = loads(&shared).iter().map(|(_, prefill)| prefill).sum();
        assert_eq!(charge, 5 * 512);
    }
}

/// Load stays, and what was picked for stays where it is.
#[tokio::test(start_paused = true)]
async fn another_file_changes_the_rules_and_no_load() {
    let current = CurrentConfig::new(small_config());
    let rules = |zone: &str| {
        let text = format!("protocol: openai\n{PLAIN}\nclusters: {{c: {{zone: {zone}}}}}");
        LlmFilter::parse(&text, Compat::Strict).unwrap()
    };
    let member = |host: u8, zone: &str| {
        let address = format!("10.0.0.{host}:8000").parse().unwrap();
        let mut member = mk_member(&format!("pod-{host}"), address);
        member.labels = Arc::new([("zone".into(), zone.into())].into());
        member
    };
    let pool = Pool::default();
    pool.replace(vec![member(1, "a"), member(2, "b")], Moment::START);
    current.set_llm_filter(rules("a"));
    let director = Director::new(pool, current.clone(), Options::default(), Clock::start());
    let shared = mk_shared_around(director, 1 << 20, &mut Registry::default());
    let first = ask(&shared, &[], &mk_chat("m", "hi")).await;
    current.set_llm_filter(rules("b"));
    let second = ask(&shared, &[], &mk_chat("m", "hi")).await;
    assert_eq!((first.first(), second.first()), (A, B));
    assert_eq!(loads(&shared), [(1, 2), (1, 2)]);
    answered(first).await;
    assert_eq!(loads(&shared), [(0, 0), (1, 2)]);
}

#[tokio::test(start_paused = true)]
async fn requests_count_by_model_status_and_rule() {
    let mut registry = Registry::default();
    let filter = "
model_mapping_rule:
  m: {rules: [{cluster: c, scene_name: day, headers: [{key: x-time, value: day}]}]}";
    let shared = mk_llm_counted_in(filter, &[&[]], &mut registry);
    let day = [("x-time", "day")];
    answered(ask(&shared, &day, &mk_chat("m", "hi")).await).await;
    drop(ask(&shared, &day, &mk_chat("m", "hi")).await);
    drop(ask(&shared, &[], &mk_chat("m", "hi")).await);
    let mut failing = ask(&shared, &day, &mk_streamed_chat("m", "hi")).await;
    streamed_after(
        &mut failing,
        Duration::from_secs(2),
        "event: error\ndata: {}\n\n",
    )
    .await;
    drop(failing);
    let page = page(&registry);
    for line in [
        r#"llm_request_total{model="m",status="200"} 1"#,
        r#"llm_request_total{model="m",status="aborted"} 1"#,
        r#"llm_request_total{model="other",status="404"} 1"#,
        r#"llm_request_total{model="m",status="sse_error"} 1"#,
        r#"llm_rule_matches_total{model="m",scene="day"} 3"#,
        r#"llm_upstream_ttft_seconds_sum{model="m"} 2.0"#,
        r#"llm_lb_score_count{model="m"} 3"#,
    ] {
        assert!(page.contains(line), "{line} is not in {page}");
    }
}

/// The fields of one line of the access log, without its time. The id of a charge differs each time: it is replaced by
/// its length.
fn read_line(line: &str) -> serde_json::Value {
    let mut line: serde_json::Value = serde_json::from_str(line).unwrap();
    let fields = line.as_object_mut().unwrap();
    let time = fields.remove("time").unwrap();
    assert!(time.as_str().unwrap().ends_with('Z'), "{time}");
    let id = fields.get_mut("metacenter_reqid").unwrap();
    if let Some(text) = id.as_str() {
        *id = text.len().into();
    }
    line
}

#[tokio::test(start_paused = true)]
async fn a_request_has_a_line_in_the_access_log() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("access.json");
    let current = CurrentConfig::new(small_config());
    let text = format!(
        "
protocol: openai
log: {{enabled: true, path: {path:?}}}
model_mapping_rule:
  m:
    rules:
      - cluster: c
        scene_name: s
        chain_name: n
        route_name: r
        headers: [{{key: x-env, value: prod}}]
        subset: [{{lora: sql}}]"
    );
    current.set_llm_filter(LlmFilter::parse(&text, Compat::Strict).unwrap());
    let pool = Pool::default();
    pool.replace(vec![mk_member("a", A.parse().unwrap())], Moment::START);
    let registry = &mut Registry::default();
    let (logger, writer) = AccessLogger::begin(current.clone(), registry);
    let director = Director::new(pool, current, Options::default(), Clock::start());
    let shared = mk_shared_around(director.logging_to(logger), 1 << 20, registry);

    let fields = [("x-env", "prod"), ("x-request-id", "t-1")];
    let mut asked = ask(&shared, &fields, &mk_streamed_chat("m", &mk_prompt("a"))).await;
    tokio::time::advance(Duration::from_millis(250)).await;
    let usage = r#"{"prompt_tokens":640,"completion_tokens":2}"#;
    let event = format!("data: {{\"choices\":[],\"usage\":{usage}}}\n\n");
    streamed_after(&mut asked, Duration::from_millis(500), &event).await;
    drop(asked);
    drop(ask(&shared, &[("x-request-id", "t-2")], &mk_chat("m", "hi")).await);

    let stop = CancellationToken::new();
    stop.cancel();
    writer.run(futures::stream::pending(), stop).await;
    let text = std::fs::read_to_string(path).unwrap();
    let lines: Vec<_> = text.lines().map(read_line).collect();
    let want = serde_json::json!({
        "trace_id": "t-1", "metacenter_reqid": 36, "model": "m", "target_model_name": "sql", "scene_name": "s",
        "chain_name": "n", "route_name": "r", "cluster": "c", "ai_backend_protocol": "vllm",
        "ai_stream_request": true, "lora_id": "sql", "header_num": 1, "is_vl": false,
        "prompt_len": 2560, "candidates": 1, "selected": A, "served": A, "score": 0.0,
        "cache_hit": 0.0, "use_load": true, "load_duration": null, "use_cache": true,
        "cache_duration": null, "degraded": null, "ttft": 750.0, "upstream_ttft": 750.0,
        "first_rt": 250.0, "last_rt": 750.0, "duration": 750.0, "status": 200,
        "is_local_error": false, "reason": null, "prompt_tokens": 640, "completion_tokens": 2,
        "cached_tokens": null, "end": "complete",
    });
    assert_eq!(lines[0], want);
    let refused = &lines[1];
    assert_eq!(refused["trace_id"], "t-2");
    assert_eq!(refused["metacenter_reqid"], serde_json::Value::Null);
    assert_eq!(refused["status"], 404);
    assert_eq!(refused["is_local_error"], true);
    assert_eq!(refused["reason"], "rule-not-found");
    assert_eq!(refused["end"], "rejected");
}

/// With `fallback equal` nothing is known without a Metadata-Center; with `cache-enabled=false` no prompt cache counts.
#[rstest]
#[case::own_view(true, true, true)]
#[case::no_caches(true, false, false)]
#[case::all_equal(false, true, false)]
#[tokio::test(start_paused = true)]
async fn what_is_known_here_counts_as_flags_say(
    #[case] own_view: bool,
    #[case] uses_caches: bool,
    #[case] stays: bool,
) {
    let mut config = small_config();
    config.llm_filter = Some(mk_filter(PLAIN));
    let pool = Pool::default();
    let members = [A, B].map(|address| mk_member(address, address.parse().unwrap()));
    pool.replace(members.to_vec(), Moment::START);
    let config = CurrentConfig::new(config);
    config.use_caches(uses_caches);
    let options = Options {
        own_view,
        ..Options::default()
    };
    let director = Director::new(pool, config, options, Clock::start());
    let shared = mk_shared_around(director, 1 << 20, &mut Registry::default());
    let chat = mk_chat("m", &mk_prompt("a"));
    let first = ask(&shared, &[], &chat).await;
    let by = first.first().to_owned();
    answered(first).await;
    let mut same = 0;
    for _ in 0..40 {
        let next = ask(&shared, &[], &chat).await;
        same += usize::from(next.first() == by);
        answered(next).await;
    }
    // By chance all go there once in 2^40.
    assert_eq!(same == 40, stays, "{same} of 40");
    let mut open = Vec::new();
    for index in 0..40 {
        let prompt = format!("{index} {}", mk_prompt("b"));
        open.push(ask(&shared, &[], &mk_chat("m", &prompt)).await);
    }
    let loads: Vec<_> = loads(&shared).into_iter().map(|(reqs, _)| reqs).collect();
    if own_view {
        assert!(loads[0].abs_diff(loads[1]) <= 1, "{loads:?}");
    }
}
