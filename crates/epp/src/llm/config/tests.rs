use std::fmt::Write;

use rstest::rstest;
use scheduling::inference_lb::Growth;
use transcode::{Backend, ChatTemplate, StreamOutput, Triton, TrtLlm, Wire};

use super::*;
use crate::config::Config;

/// The example of the filter's documentation.
const EXAMPLE: &str = include_str!("../../../tests/fixtures/llm-filter.yaml");

fn parse(text: &str) -> Result<LlmFilter, Refusals> {
    LlmFilter::parse(text, Compat::Strict)
}

fn accepted(text: &str) -> LlmFilter {
    parse(text).unwrap_or_else(|refusals| panic!("{text}: {refusals}"))
}

/// A file of one model with one rule, and more fields.
fn with(fields: &str) -> String {
    format!("protocol: openai\nmodel_mapping_rule: {{m: {{rules: [{{cluster: c}}]}}}}\n{fields}\n")
}

/// A file of one rule with these fields.
fn rule(fields: &str) -> String {
    format!(
        "protocol: openai\nmodel_mapping_rule:\n  m:\n    rules:\n    - {{cluster: c, {fields}}}\n"
    )
}

fn balance(fields: &str) -> String {
    with(&format!("lb_mapping_rule: {{m: {{{fields}}}}}"))
}

fn places(refusals: &Refusals) -> Vec<String> {
    let found = refusals.found().iter();
    found.map(|one| one.place().into_owned()).collect()
}

#[test]
fn the_documented_example_is_read_as_it_is() {
    let filter = accepted(EXAMPLE);
    assert_eq!(filter.protocol, Protocol::OpenAi);
    assert_eq!(filter.algorithm, Algorithm::InferenceLb);
    let rules: Vec<_> = filter.rules.rules().collect();
    let scenes: Vec<_> = rules.iter().map(|(_, rule)| &*rule.scene_name).collect();
    assert_eq!(scenes, ["qwen-prod", "qwen-default"]);
    let (model, first) = rules[0];
    assert_eq!((model, &first.backend), ("qwen-2.5-72b", &Backend::Vllm));
    let cluster = "outbound|8000||vllm-service.llm.svc.cluster.local";
    assert_eq!(first.cluster.as_str(), cluster);
    assert_eq!(filter.balance("qwen-2.5-72b"), &Balance::default());
    assert!(filter.ignored.is_empty(), "{:?}", filter.ignored);
}

#[test]
fn the_example_of_our_documentation_can_be_used() {
    let docs = include_str!("../../../../../docs/llm-filter.md");
    let (_, rest) = docs.split_once("```yaml\n").expect("an example");
    let (example, _) = rest.split_once("```").expect("its end");
    let filter = accepted(example);
    assert_eq!(filter.balance("qwen-2.5-72b").candidate_percent, 20);
    assert!(filter.ignored.is_empty(), "{:?}", filter.ignored);
}

#[test]
fn json_is_read_as_yaml_is() {
    let json =
        r#"{"protocol": "openai", "model_mapping_rule": {"m": {"rules": [{"cluster": "c"}]}}}"#;
    assert_eq!(parse(json), parse(&with("")));
}

#[test]
fn the_endpoint_pickers_file_can_have_it_too() {
    let mut text =
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nisthmus:\n  llmFilter:\n"
            .to_owned();
    for line in EXAMPLE.lines() {
        let _ = writeln!(text, "    {line}");
    }
    let config = Config::parse(&text, Compat::Strict).expect("accepted");
    let filter = config.llm_filter.expect("a filter");
    assert_eq!(filter.rules.names().collect::<Vec<_>>(), ["qwen-2.5-72b"]);
    let bad = text.replace("candidate_percent: 10", "candidate_percent: 101");
    let refusals = Config::parse(&bad, Compat::Strict).expect_err("refused");
    assert_eq!(
        places(&refusals),
        ["isthmus.llmFilter.lb_mapping_rule.qwen-2.5-72b.candidate_percent (line 23)"]
    );
}

#[test]
fn what_the_file_does_not_say_has_its_default() {
    let filter = accepted(&with(""));
    let default = LlmFilter::default();
    assert_eq!(
        filter.log,
        AccessLog {
            enabled: false,
            path: None
        }
    );
    assert_eq!(filter.prompt_mode, Mode::Full);
    assert_eq!(
        (filter.algorithm, &filter.transcoders),
        (Algorithm::InferenceLb, &default.transcoders)
    );
    let balance = filter.balance("m");
    assert!(balance.load_aware && balance.cache_aware);
    assert_eq!(
        (balance.candidate_percent, balance.prefill_charge),
        (10, PrefillCharge::Uncached)
    );
    let Params {
        cache_weight,
        request_weight,
        prefill_weight,
        growth,
        prompt_floor,
    } = balance.params();
    assert_eq!(
        (cache_weight, request_weight, prefill_weight),
        (2.0, 1.0, 3.0)
    );
    assert_eq!((growth, prompt_floor), (Growth::Linear, 1024));
}

#[rstest]
#[case("cache_radio_weight: 7", Balance { weights: Params { cache_weight: 7.0, ..Params::default() }, ..Balance::default() })]
#[case("cache_ratio_weight: 7", Balance { weights: Params { cache_weight: 7.0, ..Params::default() }, ..Balance::default() })]
#[case("request_load_weight: 0.5", Balance { weights: Params { request_weight: 0.5, ..Params::default() }, ..Balance::default() })]
#[case("prefill_load_weight: 0", Balance { weights: Params { prefill_weight: 0.0, ..Params::default() }, ..Balance::default() })]
#[case("dynamic_weight: ceil", Balance { weights: Params { growth: Growth::Ceil, ..Params::default() }, ..Balance::default() })]
#[case("prompt_floor: 9", Balance { weights: Params { prompt_floor: 9, ..Params::default() }, ..Balance::default() })]
#[case("candidate_percent: 0", Balance { candidate_percent: 0, ..Balance::default() })]
#[case("prefill_charge: full", Balance { prefill_charge: PrefillCharge::Full, ..Balance::default() })]
#[case("load_aware_enable: false", Balance { load_aware: false, ..Balance::default() })]
#[case("cache_aware_enable: false, prompt_floor: null", Balance { cache_aware: false, ..Balance::default() })]
fn one_field_of_a_model_keeps_the_defaults_of_the_others(
    #[case] fields: &str,
    #[case] want: Balance,
) {
    let filter = accepted(&balance(fields));
    assert_eq!(filter.balance("m"), &want);
    assert_eq!(filter.balance("other"), &Balance::default());
}

#[rstest]
#[case("load_aware_enable: false", (2.0, 0.0, 0.0))]
#[case("cache_aware_enable: false", (0.0, 1.0, 3.0))]
#[case("load_aware_enable: false, cache_aware_enable: false", (0.0, 0.0, 0.0))]
fn what_is_switched_off_counts_nothing(#[case] fields: &str, #[case] want: (f64, f64, f64)) {
    let filter = accepted(&balance(fields));
    let params = filter.balance("m").params();
    assert_eq!(
        (
            params.cache_weight,
            params.request_weight,
            params.prefill_weight
        ),
        want
    );
}

#[rstest]
#[case("Random", Algorithm::Random)]
#[case("random", Algorithm::Random)]
#[case("RoundRobin", Algorithm::RoundRobin)]
#[case("round_robin", Algorithm::RoundRobin)]
fn algorithms_have_their_names(#[case] name: &str, #[case] want: Algorithm) {
    assert_eq!(
        accepted(&with(&format!("algorithm: {name}"))).algorithm,
        want
    );
}

#[rstest]
#[case("", Backend::Vllm)]
#[case("vllm", Backend::Vllm)]
#[case("tensorrt", Backend::TrtLlm)]
#[case("tensorrt-llm", Backend::TrtLlm)]
#[case("trt-llm", Backend::TrtLlm)]
fn backends_have_several_names(#[case] name: &str, #[case] want: Backend) {
    let filter = accepted(&rule(&format!("backend: '{name}'")));
    let (_, rule) = filter.rules.rules().next().expect("a rule");
    assert_eq!(rule.backend, want);
    assert!(filter.ignored.is_empty());
}

#[rstest]
#[case(&rule("weight: 5"), "model_mapping_rule.m.rules[0].weight")]
#[case(&rule("backend: tritn"), "model_mapping_rule.m.rules[0].backend")]
fn what_has_no_effect_is_named(#[case] text: &str, #[case] want: &str) {
    let ignored = accepted(text).ignored;
    assert_eq!(
        ignored
            .iter()
            .map(|one| one.item.as_str())
            .collect::<Vec<_>>(),
        [want]
    );
}

/// 1024 bytes are 256 tokens.
#[rstest]
#[case("length_unit: bytes", LengthUnit::Bytes, 1024)]
#[case("length_unit: tokens", LengthUnit::Tokens, 256)]
fn the_floor_is_in_the_unit_of_lengths(
    #[case] text: &str,
    #[case] unit: LengthUnit,
    #[case] floor: u64,
) {
    let entries = "lb_mapping_rule: {m: {}, n: {prompt_floor: 9}}";
    let filter = accepted(&with(&format!("{text}\n{entries}")));
    let floor_of = |model| filter.balance(model).weights.prompt_floor;
    assert_eq!(filter.length_unit, unit);
    assert_eq!(
        (floor_of("m"), floor_of("n"), floor_of("other")),
        (floor, 9, floor)
    );
}

#[test]
fn transcoders_and_the_log_have_their_fields() {
    let filter = accepted(&with(
        "log: {enabled: true, path: /var/log/llm.json}\nprompt_mode: text\nlength_unit: bytes\n\
         transcoders: {triton: {extra_outputs: false, chat_template: chatml}, \
         trt-llm: {wire: triton, default_max_tokens: 9, stream_output: cumulative, \
         repeats_prompt: true}}",
    ));
    let log = AccessLog {
        enabled: true,
        path: Some("/var/log/llm.json".into()),
    };
    assert_eq!((filter.log, filter.prompt_mode), (log, Mode::Text));
    let triton = Triton {
        chat_template: ChatTemplate::ChatMl,
        extra_outputs: false,
    };
    let trt_llm = TrtLlm {
        wire: Wire::Triton,
        chat_template: ChatTemplate::Plain,
        default_max_tokens: 9,
        stream_output: StreamOutput::Cumulative,
        repeats_prompt: true,
    };
    assert_eq!(filter.transcoders, Transcoders { triton, trt_llm });
}

#[rstest]
#[case::no_map("[]", &["the file"])]
#[case::nothing("{}", &["protocol", "model_mapping_rule"])]
#[case::unknown(&with("protocl: openai"), &["protocl (line 3)"])]
#[case::protocol("protocol: grpc\nmodel_mapping_rule: {m: {rules: [{cluster: c}]}}", &["protocol (line 1)"])]
#[case(&with("algorithm: least_conn"), &["algorithm (line 3)"])]
#[case(&with("prompt_mode: none"), &["prompt_mode (line 3)"])]
#[case(&with("length_unit: words"), &["length_unit (line 3)"])]
#[case(&with("log: {file: x}"), &["log.file (line 3)"])]
#[case(&with("transcoders: {trt-llm: {chat_template: jinja}}"), &["transcoders.trt-llm.chat_template (line 3)"])]
#[case(&with("transcoders: {trt-llm: {default_max_tokens: 0}}"), &["transcoders.trt-llm.default_max_tokens (line 3)"])]
#[case::no_models("protocol: openai\nmodel_mapping_rule: {}", &["model_mapping_rule (line 2)"])]
#[case::no_rules("protocol: openai\nmodel_mapping_rule:\n  m: {rules: []}", &["model_mapping_rule.m.rules (line 3)"])]
#[case::no_cluster("protocol: openai\nmodel_mapping_rule:\n  m.1:\n    rules:\n    - {backend: vllm}\n",
    &["model_mapping_rule.m.1.rules[0].cluster (line 5)"])]
#[case(&rule("scene_nam: x"), &["model_mapping_rule.m.rules[0].scene_nam (line 5)"])]
#[case(&rule("headers: [{key: 'x env', value: a}]"), &["model_mapping_rule.m.rules[0].headers[0].key (line 5)"])]
#[case(&rule("headers: [{key: x-env}]"), &["model_mapping_rule.m.rules[0].headers[0].value (line 5)"])]
#[case(&rule("headers: [{key: x-env, value: \"a\\n\"}]"), &["model_mapping_rule.m.rules[0].headers[0].value (line 5)"])]
#[case(&rule("subset: [{weight: -1}]"), &["model_mapping_rule.m.rules[0].subset[0].weight (line 5)"])]
#[case(&rule("subset: [{labels: {a: 1}}]"), &["model_mapping_rule.m.rules[0].subset[0].labels.a (line 5)"])]
#[case(&balance("candidate_percent: 101"), &["lb_mapping_rule.m.candidate_percent (line 3)"])]
#[case(&balance("request_load_weight: -1"), &["lb_mapping_rule.m.request_load_weight (line 3)"])]
#[case(&balance("prefill_load_weight: .nan"), &["lb_mapping_rule.m.prefill_load_weight (line 3)"])]
#[case(&balance("cache_radio_weight: 1, cache_ratio_weight: 1"), &["lb_mapping_rule.m.cache_ratio_weight (line 3)"])]
#[case(&balance("load_aware_enable: 1"), &["lb_mapping_rule.m.load_aware_enable (line 3)"])]
#[case::no_clusters(&with("clusters: {}"), &["clusters (line 3)"])]
#[case(&with("clusters: {\"a\\tb\": {}}"), &["clusters.a\tb (line 3)"])]
#[case::several_clusters("protocol: openai\nmodel_mapping_rule:\n  a: {rules: [{cluster: x}]}\n  b:\n    rules: [{cluster: x},\n      {cluster: y}]\n",
    &["model_mapping_rule.b.rules[1].cluster (line 6)"])]
#[case::triton_speaks_no_anthropic("protocol: anthropic\nmodel_mapping_rule: {m: {rules: [{cluster: c, backend: triton}]}}",
    &["model_mapping_rule.m.rules[0].backend (line 2)"])]
#[case::adapter_of_trt_llm_behind_triton("protocol: openai\ntranscoders: {trt-llm: {wire: triton}}\nmodel_mapping_rule:
  m: {rules: [{cluster: c, backend: trt-llm, subset: [{lora: sql}]}]}",
    &["model_mapping_rule.m.rules[0].subset (line 4)"])]
fn what_cannot_be_used_is_refused_by_its_place(#[case] text: &str, #[case] want: &[&str]) {
    let refusals = parse(text).expect_err(text);
    assert_eq!(places(&refusals), want, "{refusals}");
}

#[test]
fn several_clusters_are_told_apart_by_their_labels() {
    let filter = accepted(
        "protocol: openai\nclusters: {x: {pool: a}, y: {pool: b}}\nmodel_mapping_rule: \
         {a: {rules: [{cluster: x}]}, b: {rules: [{cluster: elsewhere}]}}",
    );
    assert_eq!(filter.rules.names().collect::<Vec<_>>(), ["a", "b"]);
}

/// The bound, and one more.
#[rstest]
#[case("scene_name", 128)]
#[case("chain_name", 128)]
#[case("backend", 256)]
#[case("route_name", 512)]
fn names_have_a_bound(#[case] field: &str, #[case] max: usize) {
    let text = |length| rule(&format!("{field}: {}", "x".repeat(length)));
    assert!(parse(&text(max)).is_ok());
    let refusals = parse(&text(max + 1)).expect_err("refused");
    assert_eq!(
        places(&refusals),
        [format!("model_mapping_rule.m.rules[0].{field} (line 5)")]
    );
}

#[rstest]
#[case(16_384, true)]
#[case(16_385, false)]
fn values_of_headers_have_a_bound(#[case] length: usize, #[case] good: bool) {
    let value = "x".repeat(length);
    let text = rule(&format!("headers: [{{key: a, value: {value}}}]"));
    assert_eq!(parse(&text).is_ok(), good);
}

#[test]
fn all_models_together_have_ten_thousand_rules_at_most() {
    let text = |rules: usize| {
        let list = "{cluster: c},".repeat(rules / 2);
        format!(
            "protocol: openai\nmodel_mapping_rule: {{a: {{rules: [{list}]}}, b: {{rules: [{list}]}}}}"
        )
    };
    assert!(parse(&text(10_000)).is_ok());
    let refusals = parse(&text(10_002)).expect_err("refused");
    assert_eq!(
        places(&refusals),
        ["model_mapping_rule.b.rules[4999] (line 2)"]
    );
}

#[test]
fn lenient_reading_ignores_unknown_fields_and_nothing_else() {
    let read = |text: &str| LlmFilter::parse(text, Compat::Lenient);
    let filter = read(&with("color: red")).expect("accepted");
    assert_eq!(filter.ignored[0].item, "color");
    let refusals = read(&with("algorithm: least_conn")).expect_err("refused");
    assert!(
        places(&refusals)[0].starts_with("algorithm "),
        "{refusals:?}"
    );
}
