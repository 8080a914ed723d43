//! Values of a label that are known beforehand.

use prometheus_client::metrics::{counter::Counter, family::Family};

/// One of few values of a label.
pub(crate) trait Label: Copy + PartialEq + 'static {
    /// All that there are.
    const ALL: &'static [Self];

    /// Stable: on the page of metrics.
    fn label(self) -> &'static str;
}

/// A counter for each value; handles, since the look into a family takes a lock that all threads share.
#[derive(Clone, Debug)]
pub(super) struct Each<K: 'static> {
    keys: &'static [K],
    counters: Vec<Counter>,
}

// === impl Each ===

impl<K: Label> Each<K> {
    /// The counters of a family whose only label is `key`.
    pub(super) fn of(
        key: &'static str,
        family: &Family<[(&'static str, &'static str); 1], Counter>,
    ) -> Self {
        let counter = |one: &K| family.get_or_create_owned(&[(key, one.label())]);
        Self {
            keys: K::ALL,
            counters: K::ALL.iter().map(counter).collect(),
        }
    }

    pub(super) fn inc(&self, key: K) {
        let mut all = self.keys.iter().zip(&self.counters);
        if let Some((_, counter)) = all.find(|(one, _)| **one == key) {
            counter.inc();
        }
    }
}
