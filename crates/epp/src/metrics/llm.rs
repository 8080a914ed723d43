//! What is counted of requests under the LLM filter, by the models of its rules.

use std::{
    collections::HashMap,
    fmt::{self, Write},
    sync::Arc,
};

use moment::Moment;
use parking_lot::RwLock;
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder},
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};

use crate::llm::{Ended, LlmRequest};

/// As many models have series of their own; what there is of others falls together. With 100 values each a page of 5 MB.
const MAX_MODELS: usize = 1000;

/// The model of requests that no rule is for, and of those beyond the bound.
const OTHER: &str = "other";

/// 10 ms to 10 minutes: generations are long.
const DURATIONS: [f64; 15] = [
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0,
];

/// 1 ms to a minute: the longest prefill that is predicted.
const FIRST_TOKENS: [f64; 14] = [
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
];

const RATIOS: [f64; 11] = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0];

/// By the default weights 2 is the best, and -4 the worst of endpoints that differ by few requests.
const SCORES: [f64; 11] = [-8.0, -4.0, -3.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0];

type Histograms = Family<ByModel, Histogram, fn() -> Histogram>;

/// All handles. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct LlmMetrics {
    requests: Family<Request, Counter>,
    matches: Family<Matched, Counter>,
    duration: Histograms,
    ttft: Histograms,
    upstream_ttft: Histograms,
    cache_hit_ratio: Histograms,
    score: Histograms,
    models: Arc<RwLock<HashMap<Arc<str>, Model>>>,
}

/// The handles of one model: a look into each family would take a lock that all threads share.
#[derive(Clone, Debug)]
struct Model {
    duration: Histogram,
    ttft: Histogram,
    upstream_ttft: Histogram,
    cache_hit_ratio: Histogram,
    score: Histogram,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByModel {
    model: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    model: Arc<str>,
    status: Status,
}

/// A status, or what took its place.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Status {
    Code(u16),
    SseError,
    Aborted,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Matched {
    model: Arc<str>,
    scene: Arc<str>,
}

// === impl LlmMetrics ===

impl LlmMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let registry = registry.sub_registry_with_prefix("llm");
        let metrics = Self {
            requests: Family::default(),
            matches: Family::default(),
            duration: Family::new_with_constructor(|| Histogram::new(DURATIONS)),
            ttft: Family::new_with_constructor(|| Histogram::new(FIRST_TOKENS)),
            upstream_ttft: Family::new_with_constructor(|| Histogram::new(FIRST_TOKENS)),
            cache_hit_ratio: Family::new_with_constructor(|| Histogram::new(RATIOS)),
            score: Family::new_with_constructor(|| Histogram::new(SCORES)),
            models: Arc::default(),
        };
        registry.register(
            "request",
            "Requests under the LLM filter, by the status of the response",
            metrics.requests.clone(),
        );
        registry.register(
            "rule_matches",
            "Requests that a rule led to an endpoint",
            metrics.matches.clone(),
        );
        let histograms = [
            (
                "request_duration_seconds",
                "From the request's headers to the end of its stream",
                &metrics.duration,
            ),
            (
                "ttft_seconds",
                "From the request's headers to the first byte of the response's body",
                &metrics.ttft,
            ),
            (
                "upstream_ttft_seconds",
                "From the answer to the proxy to the first byte of the response's body",
                &metrics.upstream_ttft,
            ),
            (
                "cache_hit_ratio",
                "Share of the prompt that the picked endpoint is believed to have cached",
                &metrics.cache_hit_ratio,
            ),
            (
                "lb_score",
                "Score of the picked endpoint by prompt cache and load",
                &metrics.score,
            ),
        ];
        for (name, help, family) in histograms {
            registry.register(name, help, family.clone());
        }
        metrics
    }

    /// A request ended; `request` is absent if it was not picked for.
    pub(crate) fn ended(&self, ended: &Ended, request: Option<&LlmRequest>, now: Moment) {
        let named = request.and_then(|request| request.found.model.as_ref());
        let (name, model) = self.model(named);
        let status = Status::of(ended);
        self.requests
            .get_or_create(&Request {
                model: Arc::clone(&name),
                status,
            })
            .inc();
        let seconds = |from: Moment, to: Moment| to.since(from).as_secs_f64();
        model.duration.observe(seconds(ended.opened, now));
        if let Some(first_byte) = ended.first_byte {
            model.ttft.observe(seconds(ended.opened, first_byte));
            if let Some(answered) = ended.answered {
                model.upstream_ttft.observe(seconds(answered, first_byte));
            }
        }
        let Some(request) = request else {
            return;
        };
        if !request.hashes().is_empty() {
            model.cache_hit_ratio.observe(request.cache_ratio());
        }
        model.score.observe(request.pick.score);
        if request.found.model.is_some() {
            let scene = Arc::clone(&request.found.rule.scene_name);
            let matched = Matched { model: name, scene };
            self.matches.get_or_create(&matched).inc();
        }
    }

    /// The handles of a model, and the name it goes by.
    fn model(&self, named: Option<&Arc<str>>) -> (Arc<str>, Model) {
        let name = named.cloned().unwrap_or_else(|| OTHER.into());
        if let Some(model) = self.models.read().get(&name) {
            return (name, model.clone());
        }
        let mut models = self.models.write();
        let name = if models.len() < MAX_MODELS {
            name
        } else {
            OTHER.into()
        };
        let label = ByModel {
            model: Arc::clone(&name),
        };
        let of = |family: &Histograms| family.get_or_create_owned(&label);
        let make = || Model {
            duration: of(&self.duration),
            ttft: of(&self.ttft),
            upstream_ttft: of(&self.upstream_ttft),
            cache_hit_ratio: of(&self.cache_hit_ratio),
            score: of(&self.score),
        };
        let model = models.entry(Arc::clone(&name)).or_insert_with(make);
        (name, model.clone())
    }
}

// === impl Status ===

impl Status {
    fn of(ended: &Ended) -> Self {
        if ended.is_sse_error {
            Self::SseError
        } else if ended.is_complete || ended.refused.is_some() {
            Self::Code(ended.status)
        } else {
            Self::Aborted
        }
    }
}

impl EncodeLabelValue for Status {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => encoder.write_fmt(format_args!("{code}")),
            Self::SseError => encoder.write_str("sse_error"),
            Self::Aborted => encoder.write_str("aborted"),
        }
    }
}
