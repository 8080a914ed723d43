//! The controller's metrics (spec section 7). Handles are cheap to clone; labels are member names and fixed reasons.
//!
//! Gauges are read from the last [`Overview`] when scraped, and each member's counters live in one place ([`MemberMetrics`]):
//! the series of a forgotten member are dropped.

mod counters;
mod gauges;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use prometheus_client::{
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::{Registry, Unit},
};

pub(crate) use self::counters::MemberMetrics;
#[cfg(test)]
pub(crate) use self::tests::sample_page;
use self::{counters::Members, gauges::Gauges};
use crate::{evidence::Evidence, name::ClusterName, overview::Overview};

type ReasonLabel = [(&'static str, &'static str); 1];

/// All metrics.
#[derive(Clone)]
pub(crate) struct Metrics {
    members: Arc<Members>,
    overview: Arc<ArcSwap<Overview>>,
    withdrawals: Family<ReasonLabel, Counter>,
    withheld_withdrawals: Family<ReasonLabel, Counter>,
    propagation: Histogram,
}

/// 1 ms to 65 s, doubling: the goal is 100 ms plus a round trip, the worst case a minute of backoff.
const PROPAGATION_BUCKETS: usize = 17;

// === impl Metrics ===

impl Metrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            members: Arc::default(),
            overview: Arc::default(),
            withdrawals: Family::default(),
            withheld_withdrawals: Family::default(),
            propagation: Histogram::new(buckets()),
        };
        registry.register_collector(Box::new(metrics.members.clone()));
        registry.register_collector(Box::new(Gauges(metrics.overview.clone())));
        registry.register(
            "mci_withdrawals",
            "Exports that ended, by evidence",
            metrics.withdrawals.clone(),
        );
        registry.register(
            "mci_withheld_withdrawals",
            "Exports that vanished without evidence and were retained, by what it looked like",
            metrics.withheld_withdrawals.clone(),
        );
        registry.register_with_unit(
            "mci_propagation",
            "From the arrival of an event to the import applied in one member",
            Unit::Seconds,
            metrics.propagation.clone(),
        );
        // a rate needs a zero before the first count
        for evidence in Evidence::ALL {
            let reason = [("reason", evidence.reason())];
            metrics.withdrawals.get_or_create(&reason).inc_by(0);
            metrics
                .withheld_withdrawals
                .get_or_create(&reason)
                .inc_by(0);
        }
        metrics
    }

    /// Adds the counters of a new member.
    pub(crate) fn add(&self, name: &ClusterName) {
        self.members.add(name);
    }

    /// The counters of a member, to be kept by frequent callers; for an unknown member, counters that are not exported.
    pub(crate) fn member(&self, name: &ClusterName) -> MemberMetrics {
        self.members.get(name)
    }

    /// Drops the series of a forgotten member. Later counts of its tasks are not exported.
    pub(crate) fn forget(&self, member: &ClusterName) {
        self.members.forget(member);
    }

    /// Sets the values of the gauges.
    pub(crate) fn set_overview(&self, overview: Arc<Overview>) {
        self.overview.store(overview);
    }

    /// The values of the gauges.
    pub(crate) fn overview(&self) -> Arc<ArcSwap<Overview>> {
        self.overview.clone()
    }

    pub(crate) fn propagated(&self, time: Duration) {
        self.propagation.observe(time.as_secs_f64());
    }

    pub(crate) fn withdrawn(&self, evidence: Evidence, count: usize) {
        let reason = [("reason", evidence.reason())];
        self.withdrawals
            .get_or_create(&reason)
            .inc_by(u64::try_from(count).unwrap_or(u64::MAX));
    }

    pub(crate) fn withheld(&self, looks_like: Evidence, count: usize) {
        let reason = [("reason", looks_like.reason())];
        self.withheld_withdrawals
            .get_or_create(&reason)
            .inc_by(u64::try_from(count).unwrap_or(u64::MAX));
    }
}

fn buckets() -> impl Iterator<Item = f64> {
    std::iter::successors(Some(0.001), |bound| Some(bound * 2.0)).take(PROPAGATION_BUCKETS)
}
