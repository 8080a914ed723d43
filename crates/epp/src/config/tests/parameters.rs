//! Plugins and their parameters.

use scheduling::{
    ConcurrencyMode, Expression, Filter, Operator, Picker, PickerKind, Role, Scorer, Selector,
    WeightedScorer,
};

use super::*;

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
#[case("top-percent-picker", "", PickerKind::TopPercent { percent: 10 }, 1)]
#[case("top-percent-picker", "percent: 0, maxNumOfEndpoints: 2", PickerKind::TopPercent { percent: 0 }, 2)]
#[case("round-robin-picker", "", PickerKind::RoundRobin, 1)]
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
