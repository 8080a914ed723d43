//! One request in the queue of flow control, from its coming to its leaving.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use moment::{Clock, Moment};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
};

use super::series::Series;

/// How a request left the queue, in the reference's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Outcome {
    /// It was picked for, or might have been.
    Dispatched,
    /// There was no room.
    RejectedCapacity,
    /// It waited too long.
    EvictedTtl,
    /// Its client is gone.
    EvictedContextCancelled,
    /// The program ends.
    EvictedOther,
}

/// Counts one request as waiting until dropped.
#[derive(Debug)]
pub(crate) struct Queued {
    series: Arc<Series>,
    priority: i32,
    bytes: u64,
    since: Moment,
    clock: Clock,
    outcome: Outcome,
    outcomes: Outcomes,
}

/// Requests that left the queue. Priorities come from the configuration and objects, so that they are few.
pub(in crate::metrics) type Outcomes = Family<OutcomeLabels, Counter>;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(in crate::metrics) struct OutcomeLabels {
    outcome: &'static str,
    priority: i32,
}

// === impl Outcome ===

impl Outcome {
    /// In the order of [`Outcome::index`].
    pub(super) const ALL: [Self; 5] = [
        Self::Dispatched,
        Self::RejectedCapacity,
        Self::EvictedTtl,
        Self::EvictedContextCancelled,
        Self::EvictedOther,
    ];

    /// Its place in an array of all.
    pub(super) const fn index(self) -> usize {
        self as usize
    }

    /// Label of metrics.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Dispatched => "Dispatched",
            Self::RejectedCapacity => "RejectedCapacity",
            Self::EvictedTtl => "EvictedTTL",
            Self::EvictedContextCancelled => "EvictedContextCancelled",
            Self::EvictedOther => "EvictedOther",
        }
    }
}

// === impl Queued ===

impl Queued {
    /// A request of `priority` with so many bytes begins to wait. Unless something else is said its end is that of its
    /// stream.
    pub(in crate::metrics) fn new(
        series: Arc<Series>,
        priority: i32,
        bytes: usize,
        outcomes: Outcomes,
        clock: Clock,
    ) -> Self {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        series.row.queued.fetch_add(1, Relaxed);
        series.row.queued_bytes.fetch_add(bytes, Relaxed);
        Self {
            series,
            priority,
            bytes,
            since: clock.now(),
            clock,
            outcome: Outcome::EvictedContextCancelled,
            outcomes,
        }
    }

    /// It waits no more.
    pub(crate) fn end(mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        let row = &self.series.row;
        row.queued.fetch_sub(1, Relaxed);
        row.queued_bytes.fetch_sub(self.bytes, Relaxed);
        let waited = self.clock.now().since(self.since);
        row.waits[self.outcome.index()].observe_micros(waited);
        let labels = OutcomeLabels {
            outcome: self.outcome.name(),
            priority: self.priority,
        };
        self.outcomes.get_or_create(&labels).inc();
    }
}
