use std::{sync::Arc, time::Duration};

use rstest::rstest;
use scheduling::{
    ConcurrencyMode, Expression, Filter, Operator, Picker, PickerKind, Role, Scorer, Selector,
    WeightedScorer,
};

use super::*;

mod files;

const HEAD: &str = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n";

fn parse(body: &str) -> Result<Config, Refusals> {
    Config::parse(&format!("{HEAD}{body}"), Compat::Strict)
}

fn accepted(body: &str) -> Config {
    parse(body).unwrap_or_else(|refusals| panic!("{body}: {refusals}"))
}

/// The places of what is refused.
fn refused(body: &str) -> Vec<String> {
    let refusals = parse(body).expect_err(body);
    let items = refusals.found().iter();
    items.map(|refusal| refusal.item.clone()).collect()
}

/// The places of what has no effect.
fn ignored(config: &Config) -> Vec<&str> {
    let items = config.ignored.iter();
    items.map(|ignored| ignored.item.as_str()).collect()
}

/// A file of one plugin with parameters.
fn one(type_name: &str, parameters: &str) -> String {
    format!("plugins: [{{type: {type_name}, parameters: {{{parameters}}}}}]\n")
}

fn set(values: &[&str]) -> BTreeSet<Arc<str>> {
    values.iter().map(|value| (*value).into()).collect()
}

#[rstest]
#[case("queue-scorer", "", Scorer::QUEUE)]
#[case("queue-scorer", "countUnscraped: false", Scorer::Queue { count_unscraped: false })]
#[case("running-requests-size-scorer", "", Scorer::RunningRequests)]
#[case("kv-cache-utilization-scorer", "", Scorer::KvCacheUtilization)]
#[case("prefix-cache-scorer", "", Scorer::PREFIX_CACHE)]
#[case("prefix-cache-scorer", "matchLengthWeight: 0.25, matchLengthScaleTokens: 4096",
    Scorer::PrefixCache { match_length_weight: 0.25, match_length_scale_tokens: 4096.0 })]
#[case("lora-affinity-scorer", "", Scorer::LoraAffinity)]
#[case("load-aware-scorer", "", Scorer::LoadAware { threshold: 128.0 })]
#[case("load-aware-scorer", "threshold: 1e2", Scorer::LoadAware { threshold: 100.0 })]
#[case("active-request-scorer", "", Scorer::ActiveRequest { idle_threshold: 0, max_busy_score: 1.0 })]
#[case("active-request-scorer", "idleThreshold: 2, maxBusyScore: 0.5",
    Scorer::ActiveRequest { idle_threshold: 2, max_busy_score: 0.5 })]
#[case("token-load-scorer", "", Scorer::TokenLoad { queue_threshold_tokens: 4_194_304.0 })]
#[case("token-load-scorer", "queueThresholdTokens: 1000",
    Scorer::TokenLoad { queue_threshold_tokens: 1000.0 })]
#[case(
    "session-affinity-scorer",
    "",
    Scorer::SessionAffinity(SessionStrategy::EncodedEndpointHeader)
)]
#[case("session-affinity-scorer", "strategy: session_id",
    Scorer::SessionAffinity(SessionStrategy::SessionId { ttl: Duration::from_mins(5) }))]
#[case("session-affinity-scorer", "strategy: session_id, evictionTtlSeconds: 1.5",
    Scorer::SessionAffinity(SessionStrategy::SessionId { ttl: Duration::from_millis(1500) }))]
fn scorers_have_their_parameters(
    #[case] type_name: &str,
    #[case] parameters: &str,
    #[case] scorer: Scorer,
) {
    let config = accepted(&one(type_name, parameters));
    let weight = 1.0;
    assert_eq!(config.profile.scorers, [WeightedScorer { scorer, weight }]);
    assert!(config.ignored.is_empty(), "{:?}", config.ignored);
}

#[rstest]
#[case("decode-filter", "", Filter::Role(Role::Decode))]
#[case("prefill-filter", "", Filter::Role(Role::Prefill))]
#[case("encode-filter", "", Filter::Role(Role::Encode))]
#[case("session-affinity-filter", "", Filter::SessionAffinity)]
#[case("by-label", "label: gpu, validValues: [h100, l4]",
    Filter::ByLabel { label: "gpu".into(), valid_values: set(&["h100", "l4"]), allows_no_label: false })]
#[case("by-label", "label: gpu, allowsNoLabel: true",
    Filter::ByLabel { label: "gpu".into(), valid_values: set(&[]), allows_no_label: true })]
#[case("label-selector-filter", "matchLabels: {a: x, b: ''}, matchExpressions: [{key: gpu, operator: NotIn, values: [l4]}, {key: tpu, operator: DoesNotExist}]",
    Filter::LabelSelector(Selector {
        labels: vec![("a".into(), "x".into()), ("b".into(), "".into())],
        expressions: vec![
            Expression { key: "gpu".into(), operator: Operator::NotIn(set(&["l4"])) },
            Expression { key: "tpu".into(), operator: Operator::DoesNotExist },
        ],
    }))]
#[case("utilization-detector", "", Filter::Saturation(Detector::default()))]
#[case("utilization-detector", "queueDepthThreshold: 10, kvCacheUtilThreshold: 0.9, headroom: 0.2",
    Filter::Saturation(Detector::Utilization { queue_depth: 10.0, kv_utilization: 0.9, headroom: 0.2 }))]
#[case("concurrency-detector", "", Filter::Saturation(Detector::CONCURRENCY))]
#[case("concurrency-detector", "concurrencyMode: hybrid, maxConcurrency: 8, maxTokenConcurrency: 9000, headroom: 1",
    Filter::Saturation(Detector::Concurrency {
        mode: ConcurrencyMode::Hybrid, max_requests: 8.0, max_tokens: 9000.0, headroom: 1.0,
    }))]
fn filters_have_their_parameters(
    #[case] type_name: &str,
    #[case] parameters: &str,
    #[case] filter: Filter,
) {
    let config = accepted(&one(type_name, parameters));
    assert_eq!(config.profile.filters, [filter]);
    assert!(config.ignored.is_empty(), "{:?}", config.ignored);
}

#[rstest]
#[case("max-score-picker", "", PickerKind::MaxScore, 1)]
#[case("weighted-random-picker", "", PickerKind::WeightedRandom, 1)]
#[case("random-picker", "maxNumOfEndpoints: 8", PickerKind::Random, 8)]
fn pickers_have_their_parameters(
    #[case] type_name: &str,
    #[case] parameters: &str,
    #[case] kind: PickerKind,
    #[case] max_endpoints: u8,
) {
    let config = accepted(&one(type_name, parameters));
    let picker = Picker {
        kind,
        max_endpoints,
    };
    assert_eq!(config.profile.picker, picker);
}

#[rstest]
#[case("", Prefix::default())]
#[case("blockSizeTokens: 128", Prefix { block_tokens: 128, ..Prefix::default() })]
#[case("blockSize: 1024", Prefix { block_tokens: 256, ..Prefix::default() })]
#[case("blockSize: 1024, blockSizeTokens: 64", Prefix::default())]
#[case("maxPrefixTokensToMatch: 4096", Prefix { max_prefix_tokens: 4096, ..Prefix::default() })]
#[case("maxPrefixBlocksToMatch: 256", Prefix::default())]
#[case("maxPrefixBlocksToMatch: 256, maxPrefixTokensToMatch: 0, blockSizeTokens: 100",
    Prefix { block_tokens: 100, max_prefix_tokens: 25_600, ..Prefix::default() })]
#[case("maxPrefixTokensToMatch: 0", Prefix { max_prefix_tokens: u32::MAX, ..Prefix::default() })]
#[case("lruCapacityPerServer: 10, autoTune: false",
    Prefix { lru_capacity_per_server: 10, auto_tune: false, ..Prefix::default() })]
#[case("lruCapacityPerServer: 0", Prefix::default())]
fn the_prefix_producer_has_its_parameters(#[case] parameters: &str, #[case] prefix: Prefix) {
    let config = accepted(&one("approx-prefix-cache-producer", parameters));
    assert_eq!(config.prefix, prefix);
    assert!(config.ignored.is_empty(), "{:?}", config.ignored);
}

#[rstest]
#[case("", "encoded_endpoint_header", &["x-session-token"])]
#[case("encodedEndpointHeaderConfig: {header: X-Pod}", "encoded_endpoint_header", &["x-pod"])]
#[case("strategy: session_id", "session_id", &["x-session-id"])]
#[case("strategy: session_id, sessionIdConfig: {evictionTtlSeconds: 300, sources: [{header: X-A}, {header: x-b}]}",
    "session_id", &["x-a", "x-b"])]
fn sessions_are_found_in_headers(
    #[case] parameters: &str,
    #[case] strategy: &str,
    #[case] headers: &[&str],
) {
    let session = accepted(&one("session-affinity-filter", parameters)).session;
    let session = session.expect("a session");
    let ttl = Duration::from_mins(5);
    let want = match strategy {
        "session_id" => SessionStrategy::SessionId { ttl },
        _ => SessionStrategy::EncodedEndpointHeader,
    };
    assert_eq!(
        (session.strategy, session.headers.as_slice()),
        (want, &headers.map_str()[..])
    );
}

/// Texts of a slice, owned.
trait MapStr {
    fn map_str(&self) -> Vec<String>;
}

impl MapStr for &[&str] {
    fn map_str(&self) -> Vec<String> {
        self.iter().map(|text| (*text).to_owned()).collect()
    }
}

#[rstest]
#[case("", MetricsSource::default())]
#[case("scheme: https, path: /stats, port: 9400, interval: 1s, insecureSkipVerify: false, caCertPath: /ca, clientCertPath: /c, clientKeyPath: /k",
    MetricsSource {
        scheme: Scheme::Https,
        path: "/stats".to_owned(),
        port: Some(9400),
        interval: Some(Duration::from_secs(1)),
        insecure_skip_verify: false,
        ca_cert_path: Some("/ca".into()),
        client_cert: Some(ClientCert { cert_path: "/c".into(), key_path: "/k".into() }),
    })]
fn the_metrics_source_has_its_parameters(#[case] parameters: &str, #[case] want: MetricsSource) {
    assert_eq!(
        accepted(&one("metrics-data-source", parameters)).metrics_source,
        want
    );
}

#[test]
fn engines_have_their_specs_as_they_were_written() {
    let config = accepted(
        "
plugins:
- type: core-metrics-extractor
  parameters:
    engineLabelKey: engine
    defaultEngine: mine
    engineConfigs:
    - name: mine
      queuedRequestsSpec: 'my_requests{state=waiting}'
      runningRequestsSpec: my_running
      kvUsageSpec: my_kv
      loraSpec: my_lora
      cacheInfoSpec: my_info
      cacheBlockSizeLabelName: size
      cacheNumBlocksLabelName: blocks
    - name: other
      cacheBlockSizeSpec: a
      cacheNumBlocksSpec: b
dataLayer: {sources: [{pluginRef: metrics-data-source, extractors: [{pluginRef: core-metrics-extractor}]}]}
",
    );
    let text = |text: &str| Some(text.to_owned());
    let mine = EngineConfig {
        name: "mine".to_owned(),
        queued_requests: text("my_requests{state=waiting}"),
        running_requests: text("my_running"),
        kv_usage: text("my_kv"),
        lora: text("my_lora"),
        cache_info: text("my_info"),
        cache_block_size_label: text("size"),
        cache_num_blocks_label: text("blocks"),
        ..EngineConfig::default()
    };
    let other = EngineConfig {
        name: "other".to_owned(),
        cache_block_size: text("a"),
        cache_num_blocks: text("b"),
        ..EngineConfig::default()
    };
    assert_eq!(
        config.engines,
        Engines {
            label_key: text("engine"),
            default_engine: "mine".to_owned(),
            configs: vec![mine, other],
        }
    );
}

#[test]
fn members_may_come_from_a_file() {
    let file = "plugins: [{name: f, type: file-discovery, parameters: {path: /e.yaml, watchFile: true}}]\n";
    let config = accepted(&format!("{file}dataLayer: {{discovery: {{pluginRef: f}}}}"));
    let want = FileDiscovery {
        path: "/e.yaml".into(),
        watch: true,
    };
    assert_eq!(config.discovery, Some(want));
    let config = accepted(file);
    assert_eq!(config.discovery, None, "nothing refers to it");
    assert_eq!(ignored(&config), ["plugins[0]"]);
}

#[rstest]
#[case("", &[Parser::OpenAi, Parser::Anthropic, Parser::VllmHttp])]
#[case("requestHandler: {parsers: [{pluginRef: anthropic-parser}]}", &[Parser::Anthropic])]
#[case("requestHandler: {parsers: [{pluginRef: vllmhttp-parser}]}", &[Parser::OpenAi, Parser::VllmHttp])]
#[case("plugins: [{name: p, type: openai-parser}]\nrequestHandler: {parsers: [{pluginRef: p}]}", &[Parser::OpenAi])]
#[case("parser: {pluginRef: openai-parser}", &[Parser::OpenAi])]
fn parsers_are_chosen(#[case] body: &str, #[case] want: &[Parser]) {
    let parsers = accepted(body).parsers;
    let all = [Parser::OpenAi, Parser::Anthropic, Parser::VllmHttp];
    let chosen = all.into_iter().filter(|parser| parsers.has(*parser));
    assert_eq!(chosen.collect::<Vec<_>>(), want);
}

#[test]
fn flow_control_has_its_limits_policies_and_times() {
    let flow = accepted(
        "
featureGates: [flowControl]
plugins: [{name: fair, type: round-robin-fairness-policy}]
flowControl:
  maxRequests: 10k
  maxBytes: 1Gi
  defaultRequestTTL: 1m30s
  noEndpointRequestTTL: 0s
  defaultPriorityBand: {maxRequests: 7}
  priorityBands:
  - {priority: 10, maxBytes: 500M, fairnessPolicyRef: fair, orderingPolicyRef: edf-ordering-policy}
",
    )
    .flow_control;
    let default_band = Band {
        max_requests: 7,
        ..Band::default()
    };
    let ten = Band {
        max_bytes: 500_000_000,
        fairness: FairnessPolicy::RoundRobin,
        ordering: OrderingPolicy::Edf,
        ..Band::default()
    };
    let want = FlowControl {
        enabled: true,
        max_requests: Some(10_000),
        max_bytes: Some(1 << 30),
        default_request_ttl: Some(Duration::from_secs(90)),
        no_endpoint_request_ttl: None,
        bands: [(10, ten)].into(),
        default_band,
        default_negative_band: default_band,
    };
    assert_eq!(flow, want);
    assert_eq!(
        [flow.band(10), flow.band(3), flow.band(-3)],
        [&ten, &default_band, &default_band]
    );
}

#[test]
fn negative_priorities_may_have_a_band_of_their_own() {
    let body =
        "featureGates: [flowControl]\nflowControl: {defaultNegativePriorityBand: {maxRequests: 1}}";
    let flow = accepted(body).flow_control;
    assert_eq!(flow.band(-1).max_requests, 1);
    assert_eq!(flow.band(0).max_requests, 5000);
}

#[test]
fn without_a_time_of_its_own_an_empty_pool_has_the_time_of_others() {
    let flow =
        accepted("featureGates: [flowControl]\nflowControl: {defaultRequestTTL: 5s}").flow_control;
    assert_eq!(flow.no_endpoint_request_ttl, Some(Duration::from_secs(5)));
}

#[rstest]
#[case("featureGates: [flowControl]", true)]
#[case("featureGates: [flowControl=true]", true)]
#[case("featureGates: [flowControl=false]", false)]
#[case("featureGates: []", false)]
#[case("", false)]
fn the_gate_turns_flow_control_on(#[case] body: &str, #[case] on: bool) {
    assert_eq!(accepted(body).flow_control.enabled, on);
}

#[rstest]
#[case("", Detector::default())]
#[case(
    "flowControl: {saturationDetector: {pluginRef: concurrency-detector}}",
    Detector::CONCURRENCY
)]
#[case(
    "saturationDetector: {pluginRef: concurrency-detector}",
    Detector::CONCURRENCY
)]
#[case("saturationDetector: {queueDepthThreshold: 7}",
    Detector::Utilization { queue_depth: 7.0, kv_utilization: 0.8, headroom: 0.0 })]
#[case("plugins: [{name: d, type: utilization-detector, parameters: {queueDepthThreshold: 3}}]\nschedulingProfiles: [{name: p, plugins: []}]\nflowControl: {saturationDetector: {pluginRef: d}}",
    Detector::Utilization { queue_depth: 3.0, kv_utilization: 0.8, headroom: 0.0 })]
#[case(
    "saturationDetector: {pluginRef: concurrency-detector}\nflowControl: {saturationDetector: {pluginRef: utilization-detector}}",
    Detector::default()
)]
fn the_detector_is_chosen(#[case] body: &str, #[case] want: Detector) {
    assert_eq!(accepted(body).detector, want);
}

#[test]
fn our_block_is_read() {
    let config = accepted(
        "
isthmus:
  models: [a, b]
  objectives: {batch: -1, chat: 5}
  rewrites:
  - matches: [{model: {type: Exact, value: gpt}}, {model: {value: gpt-2}}]
    targets: [{modelRewrite: llama, weight: 3}, {modelRewrite: qwen}]
  - targets: [{modelRewrite: any}]
  trustedHeaders: [modelNameRewrite]
  prefixIndex: {maxBytes: 1Gi, shards: 128}
",
    );
    assert_eq!(config.models, ["a", "b"].map(str::to_owned).into());
    let objectives = [("batch".to_owned(), -1), ("chat".to_owned(), 5)];
    assert_eq!(config.objectives, objectives.into());
    let target = |model: &str, weight| RewriteTarget {
        model: model.to_owned(),
        weight,
    };
    let rules = [
        RewriteRule {
            models: ["gpt", "gpt-2"].map(str::to_owned).into(),
            targets: vec![target("llama", 3), target("qwen", 1)],
        },
        RewriteRule {
            models: BTreeSet::new(),
            targets: vec![target("any", 1)],
        },
    ];
    assert_eq!(config.rewrites, rules);
    let trusted = TrustedHeaders {
        objective: false,
        fairness: false,
        model_name_rewrite: true,
    };
    assert_eq!(config.trusted_headers, trusted);
    assert_eq!(
        (config.prefix.max_bytes, config.prefix.shards),
        (1 << 30, 128)
    );
}

#[test]
fn a_profile_takes_what_it_names_with_its_weights() {
    let config = accepted(
        "
plugins:
- {type: queue-scorer}
- {name: kv, type: kv-cache-utilization-scorer}
- {type: decode-filter}
- {type: random-picker}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: kv, weight: 0.5}, {pluginRef: decode-filter, weight: null}, {pluginRef: queue-scorer}, {pluginRef: random-picker}]
",
    );
    let weigh = |scorer, weight| WeightedScorer { scorer, weight };
    let want = Profile {
        filters: vec![Filter::Role(Role::Decode)],
        scorers: vec![
            weigh(Scorer::KvCacheUtilization, 0.5),
            weigh(Scorer::QUEUE, 1.0),
        ],
        picker: Picker {
            kind: PickerKind::Random,
            max_endpoints: 1,
        },
        ..Profile::default()
    };
    assert_eq!(config.profile, want);
    assert!(config.ignored.is_empty(), "{:?}", config.ignored);
}

#[test]
fn a_profile_without_picker_takes_the_best_score() {
    let body = "
plugins: [{type: queue-scorer}, {type: max-score-picker, parameters: {maxNumOfEndpoints: 3}}, {type: random-picker}]
schedulingProfiles: [{name: p, plugins: [{pluginRef: queue-scorer}]}]
";
    let config = accepted(body);
    let want = Picker {
        kind: PickerKind::MaxScore,
        max_endpoints: 3,
    };
    assert_eq!(config.profile.picker, want);
    assert_eq!(ignored(&config), ["plugins[2]"], "nothing refers to it");
}

/// Each has no effect, which is said and is no error.
#[rstest]
#[case("plugins: [{type: token-producer, parameters: {anything: {goes: 1}}}]", &["plugins[0]"])]
#[case("featureGates: [experimentalDatalayer, flowControl]", &["featureGates[0]"])]
#[case("dataLayer: {injectDefaults: false}", &["dataLayer.injectDefaults"])]
#[case("plugins: [{type: core-metrics-extractor, parameters: {engineConfigs: [{name: x, customMetrics: []}]}}]",
    &["plugins[0].parameters.engineConfigs[0].customMetrics"])]
#[case("plugins: [{type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: approx-prefix-cache-producer}}]",
    &["plugins[0].parameters.prefixMatchInfoProducerName"])]
#[case("plugins: [{type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: mine}}, {name: mine, type: approx-prefix-cache-producer}]",
    &["plugins[0].parameters.prefixMatchInfoProducerName"])]
#[case("plugins: [{type: token-load-scorer, parameters: {inFlightLoadProducerName: inflight-load-producer}}]",
    &["plugins[0].parameters.inFlightLoadProducerName"])]
#[case("plugins: [{type: utilization-detector, parameters: {metricsStalenessThreshold: 200ms}}]",
    &["plugins[0].parameters.metricsStalenessThreshold"])]
#[case("plugins: [{type: metrics-data-source, parameters: {families: [a]}}]", &["plugins[0].parameters.families"])]
#[case("plugins: [{type: approx-prefix-cache-producer, parameters: {blockSizeTokens: 16}}]",
    &["plugins[0].parameters.blockSizeTokens"])]
#[case("plugins: [{type: session-affinity-scorer, parameters: {profileName: decode}}]",
    &["plugins[0].parameters.profileName"])]
#[case("flowControl: {maxRequests: 5}", &["flowControl.maxRequests"])]
#[case("plugins: [{type: decode-filter}]\nschedulingProfiles: [{name: p, plugins: [{pluginRef: decode-filter, weight: 2}]}]",
    &["schedulingProfiles[0].plugins[0].weight"])]
#[case("saturationDetector: {metricsStalenessThreshold: 1s}", &["saturationDetector.metricsStalenessThreshold"])]
#[case("parser: {pluginRef: openai-parser}\nrequestHandler: {parsers: [{pluginRef: anthropic-parser}]}", &["parser"])]
#[case("plugins: [{type: edf-ordering-policy}]", &["plugins[0]"])]
#[case("flowControl: {enableEviction: false}", &[])]
#[case("plugins: [{type: single-profile-handler}, {type: inflight-load-producer}]", &[])]
fn what_has_no_effect_is_named(#[case] body: &str, #[case] want: &[&str]) {
    assert_eq!(ignored(&accepted(body)), want);
}

#[rstest]
// the head
#[case::no_list("plugins: 5", &["plugins"])]
#[case::unknown_section("pluginz: []", &["pluginz"])]
// plugins
#[case::no_type("plugins: [{name: x}]", &["plugins[0].type"])]
#[case::unknown_type("plugins: [{type: queue-scorer}, {type: kv-cache-scorer}]", &["plugins[1].type"])]
#[case::multicluster("plugins: [{type: multicluster-queue-scorer}]", &["plugins[0].type"])]
#[case::unknown_parameter("plugins: [{type: load-aware-scorer, parameters: {treshold: 5}}]",
    &["plugins[0].parameters.treshold"])]
#[case::parameter_of_none("plugins: [{type: decode-filter, parameters: {role: x}}]", &["plugins[0].parameters.role"])]
#[case::unknown_field("plugins: [{type: queue-scorer, param: {}}]", &["plugins[0].param"])]
#[case::duplicate("plugins: [{type: queue-scorer}, {name: queue-scorer, type: decode-filter}]", &["plugins[1]"])]
#[case::two_prefix_producers("plugins: [{name: a, type: approx-prefix-cache-producer}, {name: b, type: approx-prefix-cache-producer}]",
    &["plugins[1]"])]
#[case::two_sources("plugins: [{name: a, type: metrics-data-source}, {name: b, type: metrics-data-source}]", &["plugins[1]"])]
#[case::other_producer("plugins: [{type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: precise}}]",
    &["plugins[0].parameters.prefixMatchInfoProducerName"])]
#[case::no_prefix_producer("plugins: [{type: queue-scorer}, {type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: queue-scorer}}]",
    &["plugins[1].parameters.prefixMatchInfoProducerName"])]
// numbers
#[case(&one("load-aware-scorer", "threshold: 0"), &["plugins[0].parameters.threshold"])]
#[case(&one("load-aware-scorer", "threshold: -1"), &["plugins[0].parameters.threshold"])]
#[case(&one("load-aware-scorer", "threshold: .nan"), &["plugins[0].parameters.threshold"])]
#[case(&one("load-aware-scorer", "threshold: .inf"), &["plugins[0].parameters.threshold"])]
#[case(&one("load-aware-scorer", "threshold: '5'"), &["plugins[0].parameters.threshold"])]
#[case(&one("prefix-cache-scorer", "matchLengthWeight: 1.1"), &["plugins[0].parameters.matchLengthWeight"])]
#[case(&one("prefix-cache-scorer", "matchLengthScaleTokens: 0"), &["plugins[0].parameters.matchLengthScaleTokens"])]
#[case(&one("active-request-scorer", "idleThreshold: -1"), &["plugins[0].parameters.idleThreshold"])]
#[case(&one("active-request-scorer", "idleThreshold: 1.5"), &["plugins[0].parameters.idleThreshold"])]
#[case(&one("active-request-scorer", "maxBusyScore: 2"), &["plugins[0].parameters.maxBusyScore"])]
#[case(&one("token-load-scorer", "queueThresholdTokens: 0"), &["plugins[0].parameters.queueThresholdTokens"])]
#[case(&one("utilization-detector", "queueDepthThreshold: 0"), &["plugins[0].parameters.queueDepthThreshold"])]
#[case(&one("utilization-detector", "kvCacheUtilThreshold: 1.2"), &["plugins[0].parameters.kvCacheUtilThreshold"])]
#[case(&one("utilization-detector", "kvCacheUtilThreshold: 0"), &["plugins[0].parameters.kvCacheUtilThreshold"])]
#[case(&one("utilization-detector", "headroom: -0.1"), &["plugins[0].parameters.headroom"])]
#[case(&one("concurrency-detector", "maxConcurrency: 0"), &["plugins[0].parameters.maxConcurrency"])]
#[case(&one("concurrency-detector", "maxTokenConcurrency: 0"), &["plugins[0].parameters.maxTokenConcurrency"])]
#[case(&one("concurrency-detector", "concurrencyMode: request"), &["plugins[0].parameters.concurrencyMode"])]
#[case(&one("max-score-picker", "maxNumOfEndpoints: 0"), &["plugins[0].parameters.maxNumOfEndpoints"])]
#[case(&one("max-score-picker", "maxNumOfEndpoints: 9"), &["plugins[0].parameters.maxNumOfEndpoints"])]
#[case(&one("approx-prefix-cache-producer", "blockSizeTokens: -1"), &["plugins[0].parameters.blockSizeTokens"])]
#[case(&one("approx-prefix-cache-producer", "autoTune: yes please"), &["plugins[0].parameters.autoTune"])]
#[case(&one("session-affinity-scorer", "strategy: sticky"), &["plugins[0].parameters.strategy"])]
#[case(&one("session-affinity-scorer", "evictionTtlSeconds: 0"), &["plugins[0].parameters.evictionTtlSeconds"])]
#[case(&one("session-affinity-scorer", "strategy: session_id, sessionIdConfig: {sources: [{attribute: agent}]}"),
    &["plugins[0].parameters.sessionIdConfig.sources[0].header", "plugins[0].parameters.sessionIdConfig.sources[0].attribute"])]
// filters
#[case(&one("by-label", "validValues: [x]"), &["plugins[0].parameters.label"])]
#[case(&one("by-label", "label: x"), &["plugins[0].parameters.validValues"])]
#[case(&one("by-label", "label: x, validValues: [1]"), &["plugins[0].parameters.validValues[0]", "plugins[0].parameters.validValues"])]
#[case(&one("label-selector-filter", "matchLabels: {a: 1}"), &["plugins[0].parameters.matchLabels.a"])]
#[case(&one("label-selector-filter", "matchExpressions: [{key: a, operator: in, values: [x]}]"),
    &["plugins[0].parameters.matchExpressions[0].operator"])]
#[case(&one("label-selector-filter", "matchExpressions: [{key: a}]"), &["plugins[0].parameters.matchExpressions[0].operator"])]
#[case(&one("label-selector-filter", "matchExpressions: [{key: a, operator: In}]"),
    &["plugins[0].parameters.matchExpressions[0].values"])]
#[case(&one("label-selector-filter", "matchExpressions: [{key: a, operator: Exists, values: [x]}]"),
    &["plugins[0].parameters.matchExpressions[0].values"])]
// metrics
#[case(&one("metrics-data-source", "scheme: ftp"), &["plugins[0].parameters.scheme"])]
#[case(&one("metrics-data-source", "path: metrics"), &["plugins[0].parameters.path"])]
#[case(&one("metrics-data-source", "port: 65536"), &["plugins[0].parameters.port"])]
#[case(&one("metrics-data-source", "interval: 5ms"), &["plugins[0].parameters.interval"])]
#[case(&one("metrics-data-source", "interval: 50"), &["plugins[0].parameters.interval"])]
#[case(&one("metrics-data-source", "clientCertPath: /c"), &["plugins[0].parameters.clientKeyPath"])]
#[case(&one("core-metrics-extractor", "defaultEngine: atom"), &["plugins[0].parameters.defaultEngine"])]
#[case(&one("core-metrics-extractor", "engineConfigs: [{name: a}, {name: a}]"),
    &["plugins[0].parameters.engineConfigs[1].name"])]
#[case(&one("core-metrics-extractor", "engineConfigs: [{queuedRequestsSpec: a}]"),
    &["plugins[0].parameters.engineConfigs[0].name"])]
#[case(&one("core-metrics-extractor", "engineConfigs: [{name: a, kvSpec: b}]"),
    &["plugins[0].parameters.engineConfigs[0].kvSpec"])]
#[case(&one("file-discovery", "watchFile: true"), &["plugins[0].parameters.path"])]
// profiles
#[case::no_profile_name("schedulingProfiles: [{plugins: []}]", &["schedulingProfiles[0].name"])]
#[case::several_profiles("schedulingProfiles: [{name: prefill, plugins: []}, {name: decode, plugins: []}]",
    &["schedulingProfiles[1]"])]
#[case::missing_ref("plugins: [{type: queue-scorer}]\nschedulingProfiles: [{name: p, plugins: [{pluginRef: queue}]}]",
    &["schedulingProfiles[0].plugins[0].pluginRef"])]
#[case::undeclared_type("schedulingProfiles: [{name: p, plugins: [{pluginRef: queue-scorer}]}]",
    &["schedulingProfiles[0].plugins[0].pluginRef"])]
#[case::no_ref("schedulingProfiles: [{name: p, plugins: [{weight: 1}]}]", &["schedulingProfiles[0].plugins[0].pluginRef"])]
#[case::wrong_kind("plugins: [{type: approx-prefix-cache-producer}]\nschedulingProfiles: [{name: p, plugins: [{pluginRef: approx-prefix-cache-producer}]}]",
    &["schedulingProfiles[0].plugins[0].pluginRef"])]
#[case::two_pickers("plugins: [{type: random-picker}, {type: max-score-picker}]\nschedulingProfiles: [{name: p, plugins: [{pluginRef: random-picker}, {pluginRef: max-score-picker}]}]",
    &["schedulingProfiles[0].plugins[1].pluginRef"])]
#[case::two_pickers_without_profile("plugins: [{type: random-picker}, {type: max-score-picker}]", &["plugins[1]"])]
#[case::negative_weight("plugins: [{type: queue-scorer}]\nschedulingProfiles: [{name: p, plugins: [{pluginRef: queue-scorer, weight: -1}]}]",
    &["schedulingProfiles[0].plugins[0].weight"])]
#[case::no_number("plugins: [{type: queue-scorer}]\nschedulingProfiles: [{name: p, plugins: [{pluginRef: queue-scorer, weight: .NaN}]}]",
    &["schedulingProfiles[0].plugins[0].weight"])]
#[case::unlike_sessions("plugins: [{type: session-affinity-scorer}, {type: session-affinity-filter, parameters: {strategy: session_id}}]",
    &["plugins[1]"])]
// flow control
#[case("featureGates: [flowControl=maybe]", &["featureGates[0]"])]
#[case("featureGates: [1]", &["featureGates[0]"])]
#[case("flowControl: {enableEviction: true}", &["flowControl.enableEviction"])]
#[case("flowControl: {maxByte: 1Gi}", &["flowControl.maxByte"])]
#[case("flowControl: {maxBytes: 1GB}", &["flowControl.maxBytes"])]
#[case("flowControl: {maxRequests: -1}", &["flowControl.maxRequests"])]
#[case("flowControl: {defaultRequestTTL: 60}", &["flowControl.defaultRequestTTL"])]
#[case("flowControl: {defaultRequestTTL: -1s}", &["flowControl.defaultRequestTTL"])]
#[case("flowControl: {noEndpointRequestTTL: soon}", &["flowControl.noEndpointRequestTTL"])]
#[case("flowControl: {usageLimitPolicyPluginRef: x}", &["flowControl.usageLimitPolicyPluginRef"])]
#[case("flowControl: {priorityBands: [{priority: 1}, {priority: 1}]}", &["flowControl.priorityBands[1].priority"])]
#[case("flowControl: {priorityBands: [{priority: high}]}", &["flowControl.priorityBands[0].priority"])]
#[case("flowControl: {priorityBands: [{priority: 1, fairnessPolicyRef: fcfs-ordering-policy}]}",
    &["flowControl.priorityBands[0].fairnessPolicyRef"])]
#[case("flowControl: {priorityBands: [{priority: 1, orderingPolicyRef: lifo}]}",
    &["flowControl.priorityBands[0].orderingPolicyRef"])]
#[case("flowControl: {saturationDetector: {pluginRef: nothing}}", &["flowControl.saturationDetector.pluginRef"])]
#[case("plugins: [{type: queue-scorer}]\nflowControl: {saturationDetector: {pluginRef: queue-scorer}}",
    &["flowControl.saturationDetector.pluginRef"])]
#[case("saturationDetector: {queueDepthThreshold: 0}", &["saturationDetector.queueDepthThreshold"])]
// data
#[case("dataLayer: {discovery: {pluginRef: file-discovery}}", &["dataLayer.discovery.pluginRef"])]
#[case("dataLayer: {sources: [{pluginRef: core-metrics-extractor}]}", &["dataLayer.sources[0].pluginRef"])]
#[case("dataLayer: {sources: [{pluginRef: metrics-data-source, extractors: [{pluginRef: openai-parser}]}]}",
    &["dataLayer.sources[0].extractors[0].pluginRef"])]
#[case("dataLayer: {sources: [{pluginRef: metrics-data-source}, {pluginRef: metrics-data-source}]}", &["dataLayer.sources[1]"])]
#[case("dataLayer: {peerDiscovery: {pluginRef: x}}", &["dataLayer.peerDiscovery"])]
#[case("requestHandler: {parsers: [{pluginRef: vllmgrpc-parser}]}", &["requestHandler.parsers[0].pluginRef"])]
#[case("requestHandler: {parser: {}}", &["requestHandler.parser"])]
// ours
#[case("isthmus: {model: [a]}", &["isthmus.model"])]
#[case("isthmus: {models: [1]}", &["isthmus.models[0]"])]
#[case("isthmus: {objectives: {batch: low}}", &["isthmus.objectives.batch"])]
#[case("isthmus: {objectives: {batch: 3000000000}}", &["isthmus.objectives.batch"])]
#[case("isthmus: {rewrites: [{targets: []}]}", &["isthmus.rewrites[0].targets"])]
#[case("isthmus: {rewrites: [{targets: [{modelRewrite: a, weight: 0}]}]}", &["isthmus.rewrites[0].targets[0].weight"])]
#[case("isthmus: {rewrites: [{matches: [{model: {type: Prefix, value: a}}], targets: [{modelRewrite: a}]}]}",
    &["isthmus.rewrites[0].matches[0].model.type"])]
#[case("isthmus: {trustedHeaders: [authorization]}", &["isthmus.trustedHeaders[0]"])]
#[case("isthmus: {prefixIndex: {maxBytes: 0}}", &["isthmus.prefixIndex.maxBytes"])]
#[case("isthmus: {prefixIndex: {shards: 48}}", &["isthmus.prefixIndex.shards"])]
#[case("isthmus: {prefixIndex: {shards: 2048}}", &["isthmus.prefixIndex.shards"])]
fn what_cannot_be_used_is_refused_by_its_place(#[case] body: &str, #[case] want: &[&str]) {
    assert_eq!(refused(body), want);
}

#[rstest]
#[case("", &["the file"])]
#[case("[]", &["the file"])]
#[case("{", &["the file"])]
#[case("{}", &["apiVersion", "kind"])]
#[case("{apiVersion: llm-d.ai/v1, kind: EndpointPickerConfig}", &["apiVersion"])]
#[case("{apiVersion: llm-d.ai/v1alpha1, kind: InferencePool}", &["kind"])]
fn a_file_that_is_none_is_refused(#[case] text: &str, #[case] want: &[&str]) {
    let refusals = Config::parse(text, Compat::Lenient).expect_err(text);
    let items: Vec<_> = refusals
        .found()
        .iter()
        .map(|one| one.item.as_str())
        .collect();
    assert_eq!(items, want);
}

#[rstest]
#[case("plugins: [{type: kv-cache-scorer}]", "kv-cache-utilization-scorer")]
#[case("plugins: [{type: multicluster-queue-scorer}]", "queue-scorer")]
#[case("plugins: [{type: max-score}]", "max-score-picker")]
#[case(
    "plugins: [{type: load-aware-scorer, parameters: {treshold: 5}}]",
    "threshold"
)]
#[case(
    "plugins: [{name: my-queue, type: queue-scorer}]\nschedulingProfiles: [{name: p, plugins: [{pluginRef: my-que}]}]",
    "my-queue"
)]
#[case(
    "flowControl: {priorityBands: [{priority: 1, orderingPolicyRef: edf}]}",
    "edf-ordering-policy"
)]
#[case(
    "requestHandler: {parsers: [{pluginRef: vllmgrpc-parser}]}",
    "vllmhttp-parser"
)]
#[case("isthmus: {trustedHeaders: [objectives]}", "objective")]
fn the_nearest_word_is_the_example(#[case] body: &str, #[case] want: &str) {
    let refusals = parse(body).expect_err(body);
    assert_eq!(
        refusals.found()[0].example.trim_start_matches(": "),
        want,
        "{refusals}"
    );
}

#[test]
fn an_error_says_what_was_wrong_what_was_expected_and_an_example() {
    let refusals = parse(&one("load-aware-scorer", "threshold: -3")).expect_err("refused");
    assert_eq!(
        refusals.to_string(),
        "plugins[0].parameters.threshold: it is -3: expected a number above 0, for example threshold: 128"
    );
}

#[test]
fn all_that_is_wrong_is_named_at_once() {
    let body = "plugins: [{type: a}, {type: queue-scorer, parameters: {b: 1}}]\nc: 1";
    assert_eq!(
        refused(body),
        ["plugins[0].type", "plugins[1].parameters.b", "c"]
    );
}

/// Unknown things are ignored, and what refers to them; wrong values are not.
#[test]
fn lenient_reading_ignores_what_is_unknown_and_nothing_else() {
    let text = format!(
        "{HEAD}
plugins:
- {{type: queue-scorer, parameters: {{color: red}}}}
- {{type: precise-prefix-cache-scorer, parameters: {{indexer: 1}}}}
schedulingProfiles:
- name: p
  plugins: [{{pluginRef: precise-prefix-cache-scorer, weight: 3}}, {{pluginRef: queue-scorer}}]
flowControl: {{enableEviction: true}}
"
    );
    let config = Config::parse(&text, Compat::Lenient).expect("accepted");
    assert_eq!(config.profile.scorers.len(), 1);
    assert_eq!(
        ignored(&config),
        [
            "plugins[0].parameters.color",
            "plugins[1].type",
            "schedulingProfiles[0].plugins[0].pluginRef",
            "flowControl.enableEviction",
        ]
    );
    let wrong = text.replace("weight: 3", "weight: -3");
    assert!(Config::parse(&wrong, Compat::Lenient).is_err());
}

#[test]
fn what_only_a_restart_changes_is_kept_and_named() {
    let running = Config::default();
    let mut next = accepted(
        "
plugins: [{type: file-discovery, parameters: {path: /e}}, {type: random-picker}]
dataLayer: {discovery: {pluginRef: file-discovery}}
isthmus: {prefixIndex: {shards: 8}}
",
    );
    assert_eq!(
        next.keep_fixed(&running),
        [
            "dataLayer.discovery",
            "isthmus.prefixIndex and parameters of approx-prefix-cache-producer"
        ]
    );
    assert_eq!((next.discovery.as_ref(), next.prefix.shards), (None, 64));
    assert_eq!(
        next.profile.picker.kind,
        PickerKind::Random,
        "the rest is new"
    );
    assert_eq!(next.keep_fixed(&running), Vec::<&str>::new());
}

#[test]
fn the_documentation_names_every_type_of_plugin() {
    let docs = include_str!("../../../../docs/epp-config.md");
    for name in plugins::type_names() {
        assert!(docs.contains(&format!("`{name}`")), "{name}");
    }
}
