//! What this EPP counts. Standard names of the ecosystem keep their names; ours begin with `epp_`.
//!
//! [`requests`] holds what is counted per model, [`pool`] what is read from the members when a scrape
//! asks for it. All names are in `docs/epp-metrics.md`.

mod histogram;
mod pool;
mod recent;
mod requests;

use std::{sync::Arc, time::Duration};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

pub use pool::PoolCollector;
pub(crate) use requests::{Labels, Running, Series};

use crate::extproc::Phase;
use histogram::{Shape, Single};
use requests::{Page, Requests};

/// 10 us to 100 ms: the goal is 100 us at the median and 500 us at the 99th percentile.
static PICKS: Shape = Shape::nanos(&[
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
]);

/// 0.1 to 100 ms, as the reference has them.
static SCHEDULING: Shape = Shape::nanos(&[
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
]);

/// 0.5 ms to 10 s: the body's transfer and the queue count too. As the reference has them.
static REQUEST_PROCESSING: Shape = Shape::micros(&[
    500, 1_000, 2_000, 5_000, 10_000, 15_000, 25_000, 40_000, 60_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 5_000_000, 10_000_000,
]);

/// 0.1 ms to 5 s, as the reference has them.
static RESPONSE_PROCESSING: Shape = Shape::micros(&[
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 5_000_000,
]);

/// Set when an image is built.
const COMMIT: Option<&str> = option_env!("ISTHMUS_COMMIT");
/// Set when an image is built; else the version.
const BUILD_REF: Option<&str> = option_env!("ISTHMUS_BUILD_REF");

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
            rejected: Family::default(),
            streams: PHASES.map(|phase| by_phase.get_or_create_owned(&PhaseLabel { phase })),
            stream_ends: ENDS.map(|end| by_end.get_or_create_owned(&End { end })),
            blind_picks: Counter::default(),
            served_mismatches: Family::default(),
            scrapes: Family::default(),
            discovery_synced: Family::default(),
            discovery_errors: Family::default(),
            requests: Arc::new(Requests::new()),
        };
        let Self {
            pick_duration,
            scheduling,
            request_processing,
            response_processing,
            rejected,
            streams: _,
            stream_ends: _,
            blind_picks,
            served_mismatches,
            scrapes,
            discovery_synced,
            discovery_errors,
            requests,
        } = metrics.clone();
        registry.register_collector(Box::new(Page(requests)));
        let llm_d = registry.sub_registry_with_prefix("llm_d_epp");
        llm_d.register(
            "scheduler_e2e_duration_seconds",
            "Filters, scores and the pick, without the wait before them",
            scheduling,
        );
        llm_d.register(
            "request_processing_duration_seconds",
            "From the first message to the answer, the body's transfer and the queue included",
            request_processing,
        );
        llm_d.register(
            "response_processing_duration_seconds",
            "Of a streamed response the time spent on its parts, of another one from its headers to its end",
            response_processing,
        );
        let info = Family::<Build, Gauge>::default();
        let build = Build {
            commit: COMMIT.unwrap_or("unknown"),
            build_ref: BUILD_REF.unwrap_or(env!("CARGO_PKG_VERSION")),
        };
        info.get_or_create(&build).set(1);
        llm_d.register("info", "What this program was built from", info);
        let epp = registry.sub_registry_with_prefix("epp");
        epp.register(
            "pick_duration_seconds",
            "From the last byte the decision needed to the answer",
            pick_duration,
        );
        epp.register("rejected", "Requests answered by the EPP itself", rejected);
        epp.register("streams", "Open ext_proc streams", by_phase);
        epp.register("streams_ended", "Ended ext_proc streams", by_end);
        epp.register(
            "blind_picks",
            "Picks without the request's body",
            blind_picks,
        );
        epp.register(
            "served_mismatch",
            "Responses from another endpoint than the first of the list",
            served_mismatches,
        );
        epp.register("scrapes", "Scrapes of model servers", scrapes);
        epp.register(
            "discovery_synced",
            "1 while the kind's watch has listed",
            discovery_synced,
        );
        epp.register(
            "discovery_errors",
            "Failures and odd objects of the kind's watch",
            discovery_errors,
        );
        metrics
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
mod tests {
    use moment::Moment;
    use prometheus_client::encoding::text::encode;

    use super::*;
    use crate::tap::Usage;

    const DOCS: &str = include_str!("../../../docs/epp-metrics.md");

    /// All that [`Metrics`] serves, with a value each.
    fn page() -> String {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        for (model, streaming) in [("m", false), ("n", true)] {
            let labels = Labels {
                model: Some(model),
                ..Labels::default()
            };
            let mut running = metrics.series(&labels).begin(1);
            running.failed(500);
            running.chunk(1, Moment::START);
            running.first_byte(Duration::from_secs(1), streaming);
            running.chunk(1, Moment::from_millis(1));
            running.used(Usage {
                input_tokens: Some(2),
                output_tokens: Some(2),
                cached_tokens: Some(2),
            });
            running.took(Duration::from_secs(2));
        }
        metrics.rejected("saturated");
        metrics.stream_ended("complete");
        metrics.served_elsewhere(true);
        metrics.scrapes("ok");
        metrics.discovery_synced("pools", true);
        metrics.discovery_error("pools");
        let mut page = String::new();
        encode(&mut page, &registry).unwrap();
        page
    }

    #[test]
    fn every_name_is_documented() {
        let page = page();
        let mut names: Vec<_> = page
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
            .map(|(name, kind)| match kind {
                "counter" => format!("`{name}_total`"),
                _ => format!("`{name}`"),
            })
            .collect();
        assert_eq!(names.len(), 36, "{names:#?}");
        names.retain(|name| !DOCS.contains(name.as_str()));
        assert!(names.is_empty(), "not in docs/epp-metrics.md: {names:?}");
    }

    #[test]
    fn the_build_is_on_the_page() {
        let version = env!("CARGO_PKG_VERSION");
        let line = format!(
            "llm_d_epp_info{{commit=\"{}\",build_ref=\"{}\"}} 1\n",
            COMMIT.unwrap_or("unknown"),
            BUILD_REF.unwrap_or(version)
        );
        let page = page();
        assert!(page.contains(&line), "{page}");
    }
}
