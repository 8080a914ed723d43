//! The counters of each member.

use std::{collections::BTreeMap, fmt, sync::Arc};

use mci_model::plan::Rejection;
use parking_lot::{Mutex, RwLock};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder},
    metrics::{MetricType, counter::ConstCounter},
};

use crate::name::ClusterName;

/// The counters of all members, as the registry sees them.
#[derive(Debug, Default)]
pub(super) struct Members(RwLock<BTreeMap<ClusterName, MemberMetrics>>);

/// The counters of one member. A count locks a small map that only this member's tasks use, and allocates only for a new
/// label.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemberMetrics(Arc<Counters>);

#[derive(Debug, Default)]
struct Counters {
    patches: Tally,
    /// By kind and reason.
    watch_restarts: Tally,
    rejected_addresses: Tally,
    client_rebuilds: Tally,
}

/// Counts by one or two label values; without a second label, the second is empty.
#[derive(Debug, Default)]
struct Tally(Mutex<BTreeMap<(&'static str, &'static str), u64>>);

/// The name and help of a counter.
struct Description {
    name: &'static str,
    help: &'static str,
    labels: &'static [&'static str],
    tally: fn(&Counters) -> &Tally,
}

const DESCRIPTIONS: [Description; 4] = [
    Description {
        name: "mci_patches",
        help: "Writes into the member, by how they ended",
        labels: &["result"],
        tally: |counters| &counters.patches,
    },
    Description {
        name: "mci_watch_restarts",
        help: "Watches and lists that failed and began again",
        labels: &["kind", "reason"],
        tally: |counters| &counters.watch_restarts,
    },
    Description {
        name: "mci_rejected_addresses",
        help: "Addresses and host names of the member that were not passed on",
        labels: &["reason"],
        tally: |counters| &counters.rejected_addresses,
    },
    Description {
        name: "mci_client_rebuilds",
        help: "Clients rebuilt for the member, by reason",
        labels: &["reason"],
        tally: |counters| &counters.client_rebuilds,
    },
];

// === impl Members ===

impl Members {
    pub(super) fn add(&self, name: &ClusterName) {
        let mut members = self.0.write();
        let member = members.entry(name.clone()).or_default();
        // an alert on a rise needs a zero before the first count
        for rejection in Rejection::ALL {
            member.0.rejected_addresses.begin(rejection.reason(), "");
        }
    }

    pub(super) fn get(&self, name: &ClusterName) -> MemberMetrics {
        self.0.read().get(name).cloned().unwrap_or_default()
    }

    pub(super) fn forget(&self, name: &ClusterName) {
        self.0.write().remove(name);
    }
}

impl Collector for Members {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        // counting continues while the page is written
        let members = self.0.read().clone();
        for description in &DESCRIPTIONS {
            let Description {
                name, help, labels, ..
            } = description;
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (member, metrics) in &members {
                (description.tally)(&metrics.0).encode(&mut metric, member, labels)?;
            }
        }
        Ok(())
    }
}

// === impl MemberMetrics ===

impl MemberMetrics {
    /// A write ended with this result.
    pub(crate) fn patched(&self, result: &'static str) {
        self.0.patches.count(result, "");
    }

    /// A watch or list of this kind failed.
    pub(crate) fn watch_failed(&self, kind: &'static str, reason: &'static str) {
        self.0.watch_restarts.count(kind, reason);
    }

    /// An address of the member is not passed on.
    pub(crate) fn rejected_address(&self, reason: &'static str) {
        self.0.rejected_addresses.count(reason, "");
    }

    /// Its client was rebuilt.
    pub(crate) fn client_rebuilt(&self, reason: &'static str) {
        self.0.client_rebuilds.count(reason, "");
    }
}

// === impl Tally ===

impl Tally {
    /// Served from now on, as 0 until something is counted.
    fn begin(&self, first: &'static str, second: &'static str) {
        self.0.lock().entry((first, second)).or_default();
    }

    fn count(&self, first: &'static str, second: &'static str) {
        let mut counts = self.0.lock();
        let count = counts.entry((first, second)).or_default();
        *count = count.saturating_add(1);
    }

    fn encode(
        &self,
        metric: &mut MetricEncoder,
        member: &ClusterName,
        labels: &[&'static str],
    ) -> fmt::Result {
        let counts: Vec<((&str, &str), u64)> = self
            .0
            .lock()
            .iter()
            .map(|(key, count)| (*key, *count))
            .collect();
        for ((first, second), count) in counts {
            let mut set = vec![("cluster", member.as_str())];
            set.extend(labels.iter().copied().zip([first, second]));
            let counter = ConstCounter::new(count);
            counter.encode(metric.encode_family(&set)?)?;
        }
        Ok(())
    }
}
