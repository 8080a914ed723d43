//! Whole files, in the shape that the ecosystem's have.

use scheduling::ConcurrencyMode;

use super::*;

/// The default of the specification, with every block.
const DEFAULT: &str = "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: []
plugins:
- {type: queue-scorer}
- {type: kv-cache-utilization-scorer}
- {type: prefix-cache-scorer}
- {type: approx-prefix-cache-producer, parameters: {maxPrefixTokensToMatch: 131072, lruCapacityPerServer: 31250, autoTune: true}}
schedulingProfiles:
- {name: default, plugins: [{pluginRef: queue-scorer, weight: 2}, {pluginRef: kv-cache-utilization-scorer, weight: 2}, {pluginRef: prefix-cache-scorer, weight: 3}]}
flowControl: {saturationDetector: {pluginRef: utilization-detector}}
isthmus:
  models: []
  objectives: {}
  rewrites: []
  trustedHeaders: []
  prefixIndex: {maxBytes: 512Mi, shards: 64}
";

#[test]
fn the_default_file_says_what_holds_without_a_file() {
    let config = Config::parse(DEFAULT, Compat::Strict);
    assert_eq!(config, Ok(Config::default()));
}

#[test]
fn the_documented_default_is_the_default() {
    let docs = include_str!("../../../../../docs/epp-config.md");
    let (_, rest) = docs.split_once("```yaml\n").expect("an example");
    let (example, _) = rest.split_once("```").expect("its end");
    let config = Config::parse(example, Compat::Strict);
    assert_eq!(config, Ok(Config::default()));
}

#[test]
fn both_api_versions_are_read_alike() {
    let older = DEFAULT.replace(
        "llm-d.ai/v1alpha1",
        "inference.networking.x-k8s.io/v1alpha1",
    );
    assert_eq!(Config::parse(&older, Compat::Strict), Ok(Config::default()));
}

/// A pool that spreads long prompts by what is cached and by what is in flight.
const LONG_PROMPTS: &str = r#"
{
  "apiVersion": "llm-d.ai/v1alpha1",
  "kind": "EndpointPickerConfig",
  "plugins": [
    {"type": "single-profile-handler"},
    {"type": "inflight-load-producer"},
    {"type": "token-producer", "parameters": {"backend": "estimate"}},
    {"name": "prefixes", "type": "approx-prefix-cache-producer",
     "parameters": {"blockSizeTokens": 64, "maxPrefixBlocksToMatch": 0, "lruCapacityPerServer": 31250}},
    {"name": "cached", "type": "prefix-cache-scorer",
     "parameters": {"prefixMatchInfoProducerName": "prefixes", "matchLengthWeight": 0.3}},
    {"name": "in-flight", "type": "token-load-scorer", "parameters": {"queueThresholdTokens": 2000000}},
    {"name": "best", "type": "max-score-picker", "parameters": {"maxNumOfEndpoints": 1}},
    {"type": "openai-parser"}
  ],
  "schedulingProfiles": [
    {"name": "default", "plugins": [
      {"pluginRef": "cached", "weight": 3},
      {"pluginRef": "in-flight", "weight": 2},
      {"pluginRef": "best", "weight": null}
    ]}
  ],
  "requestHandler": {"parsers": [{"pluginRef": "openai-parser"}]}
}
"#;

#[test]
fn a_file_for_long_prompts_is_read() {
    let config = Config::parse(LONG_PROMPTS, Compat::Strict).expect("accepted");
    let weigh = |scorer, weight| WeightedScorer { scorer, weight };
    assert_eq!(
        config.profile.scorers,
        [
            weigh(
                Scorer::PrefixCache {
                    match_length_weight: 0.3,
                    match_length_scale_tokens: 8192.0
                },
                3.0
            ),
            weigh(
                Scorer::TokenLoad {
                    queue_threshold_tokens: 2_000_000.0
                },
                2.0
            ),
        ]
    );
    assert_eq!(
        ignored(&config),
        [
            "plugins[2]",
            "plugins[4].parameters.prefixMatchInfoProducerName"
        ]
    );
}

/// Queues for three kinds of clients.
const QUEUES: &str = "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates:
- flowControl
- dataLayer
plugins:
- type: queue-scorer
- type: lora-affinity-scorer
- type: round-robin-fairness-policy
- type: edf-ordering-policy
- type: concurrency-detector
  name: at-most-64
  parameters: {maxConcurrency: 64, headroom: 0.25}
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: at-most-64
  - pluginRef: queue-scorer
  - pluginRef: lora-affinity-scorer
    weight: 4
flowControl:
  maxBytes: 4Gi
  defaultRequestTTL: 30s
  noEndpointRequestTTL: 10m
  saturationDetector: {pluginRef: at-most-64}
  priorityBands:
  - &band {priority: 100, maxRequests: 1k, fairnessPolicyRef: round-robin-fairness-policy, orderingPolicyRef: edf-ordering-policy}
  defaultNegativePriorityBand: {maxRequests: 50, maxBytes: 50M}
";

#[test]
fn a_file_with_queues_is_read() {
    let config = Config::parse(QUEUES, Compat::Strict).expect("accepted");
    let limit = Detector::Concurrency {
        mode: ConcurrencyMode::Requests,
        max_requests: 64.0,
        max_tokens: 1_000_000.0,
        headroom: 0.25,
    };
    assert_eq!(config.detector, limit);
    assert_eq!(config.profile.filters, [Filter::Saturation(limit)]);
    let flow = &config.flow_control;
    assert_eq!(flow.band(100).max_requests, 1000);
    assert_eq!(flow.band(100).ordering, OrderingPolicy::Edf);
    assert_eq!(flow.band(-1).max_bytes, 50_000_000);
    assert_eq!(flow.no_endpoint_request_ttl, Some(Duration::from_mins(10)));
    assert_eq!(ignored(&config), ["featureGates[1]"]);
}

/// Prefill and decode apart, which this EPP does not do.
const DISAGGREGATED: &str = "
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: prefill-header-handler
- type: prefix-cache-scorer
  parameters: {hashBlockSize: 5, maxPrefixBlocksToMatch: 256}
- type: prefill-filter
- type: decode-filter
- type: max-score-picker
- type: pd-profile-handler
  parameters: {threshold: 10}
schedulingProfiles:
- name: prefill
  plugins: [{pluginRef: prefill-filter}, {pluginRef: max-score-picker}, {pluginRef: prefix-cache-scorer, weight: 2}]
- name: decode
  plugins: [{pluginRef: decode-filter}, {pluginRef: max-score-picker}, {pluginRef: prefix-cache-scorer, weight: 2}]
";

#[test]
fn a_file_that_needs_more_than_there_is_is_refused_in_each_point() {
    let refusals = Config::parse(DISAGGREGATED, Compat::Strict).expect_err("refused");
    let items: Vec<_> = refusals
        .found()
        .iter()
        .map(|one| one.item.as_str())
        .collect();
    assert_eq!(
        items,
        [
            "plugins[0].type",
            "plugins[1].parameters.hashBlockSize",
            "plugins[1].parameters.maxPrefixBlocksToMatch",
            "plugins[5].type",
            "schedulingProfiles[1]",
        ]
    );
    let refusals = Config::parse(DISAGGREGATED, Compat::Lenient).expect_err("refused");
    let items: Vec<_> = refusals
        .found()
        .iter()
        .map(|one| one.item.as_str())
        .collect();
    assert_eq!(
        items,
        ["schedulingProfiles[1]"],
        "two profiles need a handler"
    );
}

#[test]
fn the_documentation_names_every_type_of_plugin() {
    let docs = include_str!("../../../../../docs/epp-config.md");
    for name in plugins::type_names() {
        assert!(docs.contains(&format!("`{name}`")), "{name}");
    }
}
