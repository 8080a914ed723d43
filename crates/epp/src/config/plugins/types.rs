//! The supported types of plugins, and how each reads its parameters.

use std::time::Duration;

use scheduling::{
    ConcurrencyMode, Detector, Filter, MAX_LIST, Picker, PickerKind, Role, Scorer, SessionStrategy,
};

use super::{
    Plugin,
    labels::{by_label, label_selector_filter},
};
use crate::config::{
    Parser, Prefix, Session,
    data::{Engines, FileDiscovery, MetricsSource},
    findings::Findings,
    flow::{FairnessPolicy, OrderingPolicy},
    section::{Bounds, Section, Value},
};
use crate::llm::Balance;

/// A supported type.
pub(super) struct Type {
    pub(super) name: &'static str,
    pub(super) read: fn(&mut Section<'_>) -> Plugin,
    /// A parameter that names the producer of what the plugin reads, and the producer's type.
    pub(super) producer: Option<(&'static str, &'static str)>,
}

/// What the prefix producer is called where a file does not name it.
const PREFIX_PRODUCER: &str = "approx-prefix-cache-producer";
const LOAD_PRODUCER: &str = "inflight-load-producer";
const TOKEN_PRODUCER: &str = "token-producer";

/// Where `encoded_endpoint_header` keeps the endpoint.
const SESSION_TOKEN: &str = "x-session-token";
/// Where `session_id` finds the session.
const SESSION_ID: &str = "x-session-id";
const SESSION_TTL: Duration = Duration::from_mins(5);

/// Characters of a token, as the reference estimates them too.
const TOKEN_CHARS: i64 = 4;

const ONE_PROFILE: &str = "there is one profile";

pub(super) const TYPES: &[Type] = &[
    // scorers
    Type::new("queue-scorer", |parameters| {
        let count_unscraped = parameters.flag("countUnscraped", true);
        Plugin::Scorer(Scorer::Queue { count_unscraped })
    }),
    Type::new("running-requests-size-scorer", |_| {
        Plugin::Scorer(Scorer::RunningRequests)
    }),
    Type::new("kv-cache-utilization-scorer", |_| {
        Plugin::Scorer(Scorer::KvCacheUtilization)
    }),
    Type::new("prefix-cache-scorer", prefix_cache_scorer).of_prefixes(),
    Type::new("lora-affinity-scorer", |_| {
        Plugin::Scorer(Scorer::LoraAffinity)
    }),
    Type::new("load-aware-scorer", |parameters| {
        let threshold = parameters.number("threshold", Bounds::POSITIVE, 128.0);
        Plugin::Scorer(Scorer::LoadAware { threshold })
    }),
    Type::new("active-request-scorer", active_request_scorer).of_load(),
    Type::new("token-load-scorer", |parameters| {
        let queue_threshold_tokens =
            parameters.number("queueThresholdTokens", Bounds::POSITIVE, 4_194_304.0);
        Plugin::Scorer(Scorer::TokenLoad {
            queue_threshold_tokens,
        })
    })
    .of_load(),
    Type::new("session-affinity-scorer", |parameters| {
        Plugin::SessionScorer(session(parameters))
    }),
    Type::new("inference-lb-scorer", inference_lb_scorer),
    // filters
    Type::new("label-selector-filter", label_selector_filter),
    Type::new("by-label", by_label),
    Type::new("decode-filter", |_| {
        Plugin::Filter(Filter::Role(Role::Decode))
    }),
    Type::new("prefill-filter", |_| {
        Plugin::Filter(Filter::Role(Role::Prefill))
    }),
    Type::new("encode-filter", |_| {
        Plugin::Filter(Filter::Role(Role::Encode))
    }),
    Type::new("session-affinity-filter", |parameters| {
        Plugin::SessionFilter(session(parameters))
    }),
    // detectors, which are filters too
    Type::new("utilization-detector", |parameters| {
        Plugin::Detector(utilization_detector(parameters))
    })
    .of_load(),
    Type::new("concurrency-detector", concurrency_detector).of_load(),
    // pickers
    Type::new("max-score-picker", |parameters| {
        picker(PickerKind::MaxScore, parameters)
    }),
    Type::new("weighted-random-picker", |parameters| {
        picker(PickerKind::WeightedRandom, parameters)
    }),
    Type::new("random-picker", |parameters| {
        picker(PickerKind::Random, parameters)
    }),
    Type::new("top-percent-picker", |parameters| {
        let percent = parameters.integer("percent", 0..=100, 10);
        let percent = u32::try_from(percent).unwrap_or(0);
        picker(PickerKind::TopPercent { percent }, parameters)
    }),
    Type::new("round-robin-picker", |parameters| {
        picker(PickerKind::RoundRobin, parameters)
    }),
    // the rest of scheduling
    Type::new("single-profile-handler", |_| Plugin::Handler),
    Type::new(PREFIX_PRODUCER, prefix_producer),
    Type::new(LOAD_PRODUCER, |_| Plugin::LoadProducer).of_prefixes(),
    Type::new(TOKEN_PRODUCER, |_| Plugin::Nothing),
    // data
    Type::new("metrics-data-source", |parameters| {
        Plugin::Source(MetricsSource::read(parameters))
    }),
    Type::new("core-metrics-extractor", |parameters| {
        Plugin::Extractor(Engines::read(parameters))
    }),
    Type::new("file-discovery", |parameters| {
        Plugin::Discovery(FileDiscovery::read(parameters))
    }),
    Type::new("openai-parser", |_| Plugin::Parser(Parser::OpenAi)),
    Type::new("anthropic-parser", |_| Plugin::Parser(Parser::Anthropic)),
    Type::new("vllmhttp-parser", |_| Plugin::Parser(Parser::VllmHttp)),
    // flow control
    Type::new("global-strict-fairness-policy", |_| {
        Plugin::Fairness(FairnessPolicy::GlobalStrict)
    }),
    Type::new("round-robin-fairness-policy", |_| {
        Plugin::Fairness(FairnessPolicy::RoundRobin)
    }),
    Type::new("fcfs-ordering-policy", |_| {
        Plugin::Ordering(OrderingPolicy::Fcfs)
    }),
    Type::new("edf-ordering-policy", |_| {
        Plugin::Ordering(OrderingPolicy::Edf)
    }),
];

// === impl Type ===

impl Type {
    const fn new(name: &'static str, read: fn(&mut Section<'_>) -> Plugin) -> Self {
        Self {
            name,
            read,
            producer: None,
        }
    }

    const fn of_prefixes(mut self) -> Self {
        self.producer = Some(("prefixMatchInfoProducerName", PREFIX_PRODUCER));
        self
    }

    const fn of_load(mut self) -> Self {
        self.producer = Some(("inFlightLoadProducerName", LOAD_PRODUCER));
        self
    }

    pub(super) fn named(name: &str) -> Option<&'static Self> {
        TYPES.iter().find(|one| one.name == name)
    }

    /// A plugin without parameters, and whether it can do without.
    pub(super) fn default_plugin(&self) -> (Plugin, bool) {
        let findings = Findings::default();
        let plugin = (self.read)(&mut Section::empty("", &findings));
        (plugin, findings.into_result().is_ok())
    }
}

/// The names of all supported types.
pub(in crate::config) fn type_names() -> Vec<&'static str> {
    TYPES.iter().map(|one| one.name).collect()
}

fn prefix_cache_scorer(parameters: &mut Section<'_>) -> Plugin {
    Plugin::Scorer(Scorer::PrefixCache {
        match_length_weight: parameters.number("matchLengthWeight", Bounds::SHARE, 0.0),
        match_length_scale_tokens: parameters.number(
            "matchLengthScaleTokens",
            Bounds::POSITIVE,
            8192.0,
        ),
    })
}

fn inference_lb_scorer(parameters: &mut Section<'_>) -> Plugin {
    parameters.no_effect(
        "candidate_percent",
        "a picker chooses: top-percent-picker has a percent of its own",
    );
    let balance = Balance::read(parameters);
    Plugin::Scorer(Scorer::InferenceLb {
        params: balance.params(),
        charge: balance.prefill_charge,
    })
}

fn active_request_scorer(parameters: &mut Section<'_>) -> Plugin {
    parameters.no_effect("requestTimeout", "requests end with their streams");
    let idle = parameters.integer("idleThreshold", 0..=i64::from(u32::MAX), 0);
    Plugin::Scorer(Scorer::ActiveRequest {
        idle_threshold: u32::try_from(idle).unwrap_or(u32::MAX),
        max_busy_score: parameters.number("maxBusyScore", Bounds::SHARE, 1.0),
    })
}

fn session(parameters: &mut Section<'_>) -> Session {
    parameters.no_effect("profileName", ONE_PROFILE);
    let by_id = parameters.choice(
        "strategy",
        &[("encoded_endpoint_header", false), ("session_id", true)],
    );
    let mut header = parameters.section("encodedEndpointHeaderConfig");
    let token = header.text("header", SESSION_TOKEN);
    header.finish();
    let mut by_id_config = parameters.section("sessionIdConfig");
    by_id_config.no_effect("evictionSweepSeconds", "sessions end at their time");
    let sources = by_id_config.list("sources");
    let nested = ttl(&mut by_id_config);
    by_id_config.finish();
    // where this EPP's own files may have it, too
    let flat = ttl(parameters);
    if by_id.unwrap_or(false) {
        let headers: Vec<String> = sources.into_iter().filter_map(session_header).collect();
        let ttl = nested.or(flat).unwrap_or(SESSION_TTL);
        Session {
            strategy: SessionStrategy::SessionId { ttl },
            headers: if headers.is_empty() {
                vec![SESSION_ID.to_owned()]
            } else {
                headers
            },
        }
    } else {
        let token = token.unwrap_or_else(|| SESSION_TOKEN.to_owned());
        Session {
            strategy: SessionStrategy::EncodedEndpointHeader,
            headers: vec![token.to_ascii_lowercase()],
        }
    }
}

fn ttl(section: &mut Section<'_>) -> Option<Duration> {
    let value = section.value("evictionTtlSeconds")?;
    let seconds = value.number(Bounds::TTL_SECONDS, SESSION_TTL.as_secs_f64())?;
    Some(Duration::from_secs_f64(seconds))
}

fn session_header(source: Value<'_>) -> Option<String> {
    let mut source = source.section()?;
    let header = source.required_text("header", SESSION_ID);
    source.finish();
    (!header.is_empty()).then(|| header.to_ascii_lowercase())
}

/// The parameters of `utilization-detector`, which older files have in `saturationDetector` itself.
pub(in crate::config) fn utilization_detector(parameters: &mut Section<'_>) -> Detector {
    parameters.no_effect(
        "metricsStalenessThreshold",
        "stale metrics alone never make an endpoint saturated",
    );
    Detector::Utilization {
        queue_depth: parameters.number("queueDepthThreshold", Bounds::POSITIVE, 5.0),
        kv_utilization: parameters.number("kvCacheUtilThreshold", Bounds::POSITIVE_SHARE, 0.8),
        headroom: parameters.number("headroom", Bounds::NOT_NEGATIVE, 0.0),
    }
}

fn concurrency_detector(parameters: &mut Section<'_>) -> Plugin {
    let mode = parameters.choice(
        "concurrencyMode",
        &[
            ("requests", ConcurrencyMode::Requests),
            ("tokens", ConcurrencyMode::Tokens),
            ("hybrid", ConcurrencyMode::Hybrid),
        ],
    );
    Plugin::Detector(Detector::Concurrency {
        mode: mode.unwrap_or(ConcurrencyMode::Requests),
        max_requests: parameters.number("maxConcurrency", Bounds::POSITIVE, 100.0),
        max_tokens: parameters.number("maxTokenConcurrency", Bounds::POSITIVE, 1_000_000.0),
        headroom: parameters.number("headroom", Bounds::NOT_NEGATIVE, 0.0),
    })
}

fn picker(kind: PickerKind, parameters: &mut Section<'_>) -> Plugin {
    let most = parameters.integer("maxNumOfEndpoints", 1..=i64::from(MAX_LIST), 1);
    Plugin::Picker(Picker {
        kind,
        max_endpoints: u8::try_from(most).unwrap_or(MAX_LIST),
    })
}

fn prefix_producer(parameters: &mut Section<'_>) -> Plugin {
    let default = Prefix::default();
    let most = i64::from(u32::MAX);
    let count = |value: i64| u32::try_from(value).unwrap_or(u32::MAX);
    let auto_tune = parameters.flag("autoTune", default.auto_tune);
    let chars = parameters.integer("blockSize", 0..=most, 0);
    let place = parameters.place("blockSizeTokens");
    let tokens = parameters.integer("blockSizeTokens", 0..=most, 0);
    let tokens = match tokens {
        0 => chars / TOKEN_CHARS,
        tokens => tokens,
    };
    let least = default.block_tokens;
    if tokens > 0 && count(tokens) < least {
        parameters.findings().ignore(
            place,
            format!("blocks have at least {least} tokens, so these have {least}"),
        );
    }
    let block_tokens = count(tokens).max(least);
    let max_blocks = parameters.integer("maxPrefixBlocksToMatch", 0..=most, 0);
    let max_tokens = parameters.integer(
        "maxPrefixTokensToMatch",
        0..=most,
        default.max_prefix_tokens.into(),
    );
    let max_prefix_tokens = match (max_tokens, max_blocks) {
        (0, 0) => u32::MAX,
        (0, blocks) => count(blocks).saturating_mul(block_tokens),
        (tokens, _) => count(tokens),
    };
    let capacity = parameters.integer("lruCapacityPerServer", 0..=most, 0);
    Plugin::PrefixProducer(Prefix {
        block_tokens,
        max_prefix_tokens,
        lru_capacity_per_server: match capacity {
            0 => default.lru_capacity_per_server,
            blocks => count(blocks),
        },
        auto_tune,
        ..default
    })
}
