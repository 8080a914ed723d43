use std::{sync::Arc, time::Duration};

use rstest::rstest;
use scheduling::{Filter, Picker, PickerKind, Role, Scorer, WeightedScorer};

use super::*;

mod files;
mod parameters;
mod refusals;

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
  allowClientKvTransfer: true
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
    assert!(config.allow_client_kv_transfer);
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
#[case("isthmus: {objectives: {batch: -1}}", &["isthmus.objectives"])]
#[case("isthmus: {objectives: {batch: -1}, trustedHeaders: [objective]}", &[])]
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
