//! What this EPP counts. Standard names of the ecosystem keep their names; ours begin with `epp_`.
//!
//! [`requests`] holds what is counted per model, [`pool`] what is read from the members when a scrape
//! asks for it.

mod pool;
mod requests;

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

pub use pool::PoolCollector;
use requests::Requests;
pub(crate) use requests::{Running, Series};

use crate::extproc::Phase;

/// 10 us to 100 ms: the goal is 100 us at the median and 500 us at the 99th percentile.
const PICK_BUCKETS: [f64; 13] = [
    1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 1e-1,
];

/// Label values of open streams.
const PHASES: [&str; 2] = ["request", "response"];

/// All handles. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics {
    pick_duration: Histogram,
    rejected: Family<Reason, Counter>,
    /// Of requests and of responses.
    streams: [Gauge; 2],
    /// `epp_streams_ended_total`, not `epp_streams_total`: `OpenMetrics` takes the name of a counter without
    /// `_total` for its family's, and `epp_streams` is the gauge of the open ones.
    stream_ends: Family<End, Counter>,
    blind_picks: Counter,
    served_mismatches: Family<Kind, Counter>,
    scrapes: Family<ResultLabel, Counter>,
    discovery_synced: Family<Kind, Gauge>,
    discovery_errors: Family<Kind, Counter>,
    requests: Arc<Mutex<Requests>>,
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
        let metrics = Self {
            pick_duration: Histogram::new(PICK_BUCKETS),
            rejected: Family::default(),
            streams: PHASES.map(|phase| by_phase.get_or_create_owned(&PhaseLabel { phase })),
            stream_ends: Family::default(),
            blind_picks: Counter::default(),
            served_mismatches: Family::default(),
            scrapes: Family::default(),
            discovery_synced: Family::default(),
            discovery_errors: Family::default(),
            requests: Arc::new(Mutex::new(Requests::register(registry))),
        };
        let Self {
            pick_duration,
            rejected,
            streams: _,
            stream_ends,
            blind_picks,
            served_mismatches,
            scrapes,
            discovery_synced,
            discovery_errors,
            requests: _,
        } = metrics.clone();
        let epp = registry.sub_registry_with_prefix("epp");
        epp.register(
            "pick_duration_seconds",
            "From the last byte the decision needed to the answer",
            pick_duration,
        );
        epp.register("rejected", "Requests answered by the EPP itself", rejected);
        epp.register("streams", "Open ext_proc streams", by_phase);
        epp.register(
            "streams_ended",
            "Ended ext_proc streams",
            stream_ends.clone(),
        );
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
        self.pick_duration.observe(took.as_secs_f64());
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

    /// A stream ended.
    pub fn stream_ended(&self, end: &'static str) {
        self.stream_ends.get_or_create(&End { end }).inc();
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

    /// The series of one model and flow. Of a value over 256 bytes, and of pairs after the first thousand,
    /// that of `other`.
    pub fn series(&self, model: Option<&str>, fairness_id: Option<&str>) -> Arc<Series> {
        self.requests.lock().series(model, fairness_id)
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
