//! What cannot be used, by its place, with what could stand there.

use super::*;

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
#[case(&one("top-percent-picker", "percent: 101"), &["plugins[0].parameters.percent"])]
#[case(&one("top-percent-picker", "percent: -1"), &["plugins[0].parameters.percent"])]
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
#[case("flowControl: {defaultRequestTTL: 8761h}", &["flowControl.defaultRequestTTL"])]
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
        "plugins[0].parameters.threshold (line 3): it is -3: expected a number above 0, for example threshold: 128"
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
    let refused = Config::parse(&wrong, Compat::Lenient).expect_err("refused");
    let text = refused.to_string();
    assert!(
        text.contains("schedulingProfiles[0].plugins[0].weight"),
        "{text}"
    );
}
