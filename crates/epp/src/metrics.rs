//! What this EPP counts. Standard names of the ecosystem keep their names; ours begin with `epp_`.
//!
//! [`requests`] holds what is counted per model, [`pool`] what is read from the members when a scrape
//! asks for it. All names are in `docs/epp-metrics.md`.

mod buckets;
mod histogram;
mod llm;
mod pool;
mod recent;
mod requests;

use std::{borrow::Cow, sync::Arc, time::Duration};

use moment::Clock;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

pub(crate) use llm::LlmMetrics;
pub use pool::PoolCollector;
pub(crate) use recent::Recent;
pub(crate) use requests::{Labels, Outcome, Queued, Running, Series};

use crate::{director::BYTES_PER_TOKEN, extproc::Phase};
use buckets::{HIT_BYTES, HIT_RATIOS, PICKS, REQUEST_PROCESSING, RESPONSE_PROCESSING, SCHEDULING};
use histogram::Single;
use requests::{Outcomes, Page, QueuePage, Requests};

/// Set when an image is built.
const COMMIT: Option<&str> = option_env!("ISTHMUS_COMMIT");
/// Set when an image is built; else the version.
const BUILD_REF: Option<&str> = option_env!("ISTHMUS_BUILD_REF");

/// Labels of the prefix index, as in the reference.
pub(crate) const PREFIX_INDEX: [(&str, &str); 2] = [
    ("plugin_name", "approx-prefix-cache-producer"),
    ("plugin_type", "approx-prefix-cache-producer"),
];

/// Label values of open streams.
const PHASES: [&str; 2] = ["request", "response"];

/// Label values of ended streams.
const ENDS: [&str; 8] = [
    "complete", "rejected", "early", "reset", "broken", "invalid", "drained", "overdue",
];

/// All handles. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics {
    pick_duration: Single,
    scheduling: Single,
    request_processing: Single,
    response_processing: Single,
    hit_ratio: Single,
    hit_bytes: Single,
    predicted_tokens: Counter,
    reported_tokens: Counter,
    rejected: Family<Reason, Counter>,
    /// Of requests and of responses.
    streams: [Gauge; 2],
    /// `epp_streams_ended_total`, not `epp_streams_total`: `OpenMetrics` takes the name of a counter without
    /// `_total` for its family's, and `epp_streams` is the gauge of the open ones.
    /// Of [`ENDS`]; handles, since the lookup in a family takes a lock that all threads share.
    stream_ends: [Counter; ENDS.len()],
    blind_picks: Counter,
    served_mismatches: Family<Kind, Counter>,
    scrapes: Family<ResultLabel, Counter>,
    discovery_synced: Family<Kind, Gauge>,
    discovery_errors: Family<Kind, Counter>,
    requests: Arc<Requests>,
    queue_outcomes: Outcomes,
    llm: LlmMetrics,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabel {
    phase: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct End {
    end: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Build {
    commit: &'static str,
    build_ref: &'static str,
}

/// Counts one stream as open, in one phase.
#[derive(Debug)]
pub struct OpenStream {
    gauges: [Gauge; 2],
    phase: Phase,
}

// === impl Metrics ===

impl Metrics {
    /// Registers everything but [`PoolCollector`].
    pub fn register(registry: &mut Registry) -> Self {
        let by_phase = Family::<PhaseLabel, Gauge>::default();
        let by_end = Family::<End, Counter>::default();
        let metrics = Self {
            pick_duration: Single::new(&PICKS),
            scheduling: Single::new(&SCHEDULING),
            request_processing: Single::new(&REQUEST_PROCESSING),
            response_processing: Single::new(&RESPONSE_PROCESSING),
            hit_ratio: Single::new(&HIT_RATIOS),
            hit_bytes: Single::new(&HIT_BYTES),
            predicted_tokens: Counter::default(),
            reported_tokens: Counter::default(),
            rejected: Family::default(),
            streams: PHASES.map(|phase| by_phase.get_or_create_owned(&PhaseLabel { phase })),
            stream_ends: ENDS.map(|end| by_end.get_or_create_owned(&End { end })),
            blind_picks: Counter::default(),
            served_mismatches: Family::default(),
            scrapes: Family::default(),
            discovery_synced: Family::default(),
            discovery_errors: Family::default(),
            requests: Arc::new(Requests::new()),
            llm: LlmMetrics::register(registry),
            queue_outcomes: Outcomes::default(),
        };
        registry.register_collector(Box::new(Page(Arc::clone(&metrics.requests))));
        metrics.register_standard(registry.sub_registry_with_prefix("llm_d_epp"));
        metrics.register_streams(registry.sub_registry_with_prefix("epp"), by_phase, by_end);
        metrics.register_sources(registry.sub_registry_with_prefix("epp"));
        metrics
    }

    /// Registers what waits in the queue of one pool.
    pub fn register_flow_control(&self, registry: &mut Registry, pool: &str) {
        let pool = (Cow::Borrowed("inference_pool"), Cow::Owned(pool.to_owned()));
        let registry = registry
            .sub_registry_with_prefix("llm_d_epp_flow_control")
            .sub_registry_with_label(pool);
        registry.register_collector(Box::new(QueuePage(Arc::clone(&self.requests))));
        registry.register(
            "requests",
            "Requests that passed flow control, by outcome",
            self.queue_outcomes.clone(),
        );
    }

    fn register_standard(&self, registry: &mut Registry) {
        registry.register(
            "scheduler_e2e_duration_seconds",
            "Filters, scores and the pick, without the wait before them",
            self.scheduling.clone(),
        );
        registry.register(
            "request_processing_duration_seconds",
            "From the first message to the answer, the body's transfer and the queue included",
            self.request_processing.clone(),
        );
        registry.register(
            "response_processing_duration_seconds",
            "Of a streamed response the time spent on its parts, of another one from its headers to its end",
            self.response_processing.clone(),
        );
        let info = Family::<Build, Gauge>::default();
        let build = Build {
            commit: COMMIT.unwrap_or("unknown"),
            build_ref: BUILD_REF.unwrap_or(env!("CARGO_PKG_VERSION")),
        };
        info.get_or_create(&build).set(1);
        registry.register("info", "What this program was built from", info);
        let labels = PREFIX_INDEX.map(|(name, value)| (Cow::Borrowed(name), Cow::Borrowed(value)));
        let index = registry.sub_registry_with_labels(labels.into_iter());
        index.register(
            "prefix_indexer_hit_ratio",
            "Share of the prompt's blocks that the picked endpoint is believed to have cached",
            self.hit_ratio.clone(),
        );
        index.register(
            "prefix_indexer_hit_bytes",
            "Bytes of the prompt that the picked endpoint is believed to have cached",
            self.hit_bytes.clone(),
        );
    }

    fn register_streams(
        &self,
        registry: &mut Registry,
        open: Family<PhaseLabel, Gauge>,
        ended: Family<End, Counter>,
    ) {
        registry.register(
            "pick_duration_seconds",
            "From the last byte the decision needed to the answer",
            self.pick_duration.clone(),
        );
        registry.register(
            "rejected",
            "Requests answered by the EPP itself",
            self.rejected.clone(),
        );
        registry.register("streams", "Open ext_proc streams", open);
        registry.register("streams_ended", "Ended ext_proc streams", ended);
        registry.register(
            "blind_picks",
            "Picks without the request's body",
            self.blind_picks.clone(),
        );
        registry.register(
            "served_mismatch",
            "Responses from another endpoint than the first of the list",
            self.served_mismatches.clone(),
        );
        registry.register(
            "prefix_predicted_tokens",
            "Tokens of prompts that the picked endpoints are believed to have cached",
            self.predicted_tokens.clone(),
        );
        registry.register(
            "prefix_reported_tokens",
            "Tokens of prompts that the servers report as cached",
            self.reported_tokens.clone(),
        );
    }

    fn register_sources(&self, registry: &mut Registry) {
        registry.register("scrapes", "Scrapes of model servers", self.scrapes.clone());
        registry.register(
            "discovery_synced",
            "1 while the kind's watch has listed",
            self.discovery_synced.clone(),
        );
        registry.register(
            "discovery_errors",
            "Failures and odd objects of the kind's watch",
            self.discovery_errors.clone(),
        );
    }

    /// Of requests under the LLM filter.
    pub(crate) fn llm(&self) -> &LlmMetrics {
        &self.llm
    }

    /// A pick was answered this long after its last input.
    pub fn picked(&self, took: Duration) {
        self.pick_duration.observe_nanos(took);
    }

    /// Filters, scores and the pick took this long.
    pub fn scheduled(&self, took: Duration) {
        self.scheduling.observe_nanos(took);
    }

    /// A request was answered, by a pick or a refusal, this long after its first message.
    pub fn request_processed(&self, took: Duration) {
        self.request_processing.observe_micros(took);
    }

    /// A response took this long here: a streamed one the work on its parts, another one from its headers to its end.
    pub fn response_processed(&self, took: Duration) {
        self.response_processing.observe_micros(took);
    }

    /// A pick was made for a prompt of which the endpoint is believed to have cached so many of its tokens.
    pub(crate) fn predicted(&self, cached: u64, prompt: u64) {
        if prompt == 0 {
            return;
        }
        let cached = cached.min(prompt);
        self.hit_ratio.observe(cached.saturating_mul(1000) / prompt);
        self.hit_bytes
            .observe(cached.saturating_mul(BYTES_PER_TOKEN.into()));
        self.predicted_tokens.inc_by(cached);
    }

    /// A server says how many tokens of the prompt it had cached.
    pub(crate) fn reported(&self, cached: u64) {
        self.reported_tokens.inc_by(cached);
    }

    /// A request with so many bytes comes to the queue of flow control.
    pub(crate) fn queue(
        &self,
        series: &Arc<Series>,
        priority: i32,
        bytes: usize,
        clock: Clock,
    ) -> Queued {
        let outcomes = self.queue_outcomes.clone();
        Queued::new(Arc::clone(series), priority, bytes, outcomes, clock)
    }

    /// A pick was made without the body.
    pub fn picked_blindly(&self) {
        self.blind_picks.inc();
    }

    /// A request was answered here, by `Reject::reason`.
    pub fn rejected(&self, reason: &'static str) {
        self.rejected.get_or_create(&Reason { reason }).inc();
    }

    /// A stream was opened.
    pub fn open_stream(&self) -> OpenStream {
        let open = OpenStream {
            gauges: self.streams.clone(),
            phase: Phase::Request,
        };
        open.gauge().inc();
        open
    }

    /// A stream ended, in one of the ways of `epp_streams_ended_total`.
    pub fn stream_ended(&self, end: &'static str) {
        let mut counters = ENDS.iter().zip(&self.stream_ends);
        let counter = counters.find(|(one, _)| **one == end);
        debug_assert!(counter.is_some(), "{end} is none of ENDS");
        if let Some((_, counter)) = counter {
            counter.inc();
        }
    }

    /// A response came from elsewhere: `fallback` in the list, `outside` not.
    pub fn served_elsewhere(&self, in_list: bool) {
        let kind = if in_list { "fallback" } else { "outside" };
        self.served_mismatches.get_or_create(&Kind { kind }).inc();
    }

    /// The counter of one result of scrapes.
    pub fn scrapes(&self, result: &'static str) -> Counter {
        self.scrapes.get_or_create_owned(&ResultLabel { result })
    }

    /// Whether the watch of a kind has listed.
    pub fn discovery_synced(&self, kind: &'static str, synced: bool) {
        self.discovery_synced
            .get_or_create(&Kind { kind })
            .set(synced.into());
    }

    /// A watch broke, or met an object that it cannot read.
    pub fn discovery_error(&self, kind: &'static str) {
        self.discovery_errors.get_or_create(&Kind { kind }).inc();
    }

    /// Where requests of these labels are counted. The 1000 most recently used series are on the page; one that is held
    /// stays. Of a value over 256 bytes, and of all values where no series may leave, it is that of `other`.
    pub(crate) fn series(&self, labels: &Labels<'_>) -> Arc<Series> {
        self.requests.series(labels)
    }
}

// === impl OpenStream ===

impl OpenStream {
    /// The stream is in `phase` from now on.
    pub fn enter(&mut self, phase: Phase) {
        if self.phase != phase {
            self.gauge().dec();
            self.phase = phase;
            self.gauge().inc();
        }
    }

    fn gauge(&self) -> &Gauge {
        let [request, response] = &self.gauges;
        match self.phase {
            Phase::Request => request,
            Phase::Response => response,
        }
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.gauge().dec();
    }
}

#[cfg(test)]
mod tests;
