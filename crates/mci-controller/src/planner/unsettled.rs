//! Exports on their way: when their condition is told as it stands, and when it is looked at again.

use std::{collections::BTreeMap, time::Duration};

use crate::name::{ClusterName, Key};
use moment::Moment;

/// Exports whose importers do not all show them yet. Bound: the exported pools.
#[derive(Debug, Default)]
pub(super) struct Unsettled {
    keys: BTreeMap<Key, BTreeMap<ClusterName, Wait>>,
}

#[derive(Debug)]
struct Wait {
    /// Nothing is told before: importers come one after another.
    held_until: Moment,
    /// When to plan again, though nothing was heard.
    look_at: Moment,
    /// Between the last look and the next.
    pause: Duration,
}

/// How long `Exported` waits for importers that are on their way (spec 4.2).
const SETTLE: Duration = Duration::from_secs(1);
/// An importer's news makes its key dirty by itself. Looking again without any only sends what was sent and never
/// showed, so it is done ever more seldom: one that never shows its writes must not cost the others their turns.
const LOOK_MAX: Duration = Duration::from_mins(5);

// === impl Unsettled ===

impl Unsettled {
    /// The export was planned and is not settled: whether to tell how it stands.
    pub(super) fn is_told(&mut self, key: &Key, exporter: &ClusterName, now: Moment) -> bool {
        let exporters = self.keys.entry(key.clone()).or_default();
        let Some(wait) = exporters.get_mut(exporter) else {
            let wait = Wait {
                held_until: now + SETTLE,
                look_at: now + SETTLE,
                pause: SETTLE,
            };
            exporters.insert(exporter.clone(), wait);
            return false;
        };
        if now < wait.held_until {
            // it moved: to be told when the second is over
            wait.look_at = wait.look_at.min(wait.held_until);
            return false;
        }
        if now >= wait.look_at {
            wait.pause = wait.pause.saturating_mul(2).min(LOOK_MAX);
        }
        wait.held_until = now + SETTLE;
        wait.look_at = now + wait.pause;
        true
    }

    /// An importer of the key moved: it is looked at again as soon as its condition may be told. False: it may be told now.
    pub(super) fn hurry(&mut self, key: &Key, now: Moment) -> bool {
        let Some(exporters) = self.keys.get_mut(key) else {
            return false;
        };
        for wait in exporters.values_mut() {
            wait.look_at = wait.look_at.min(wait.held_until);
        }
        exporters.values().all(|wait| now < wait.held_until)
    }

    pub(super) fn settle(&mut self, key: &Key, exporter: &ClusterName) {
        self.retain(key, |name| name != exporter);
    }

    /// Keeps the exports of the key by these members alone.
    pub(super) fn retain(&mut self, key: &Key, stays: impl Fn(&ClusterName) -> bool) {
        if let Some(exporters) = self.keys.get_mut(key) {
            exporters.retain(|name, _| stays(name));
            if exporters.is_empty() {
                self.keys.remove(key);
            }
        }
    }

    pub(super) fn forget(&mut self, exporter: &ClusterName) {
        self.keys.retain(|_, exporters| {
            exporters.remove(exporter);
            !exporters.is_empty()
        });
    }

    /// Keys to plan again.
    pub(super) fn due(&self, now: Moment) -> impl Iterator<Item = &Key> {
        let due = move |exporters: &BTreeMap<_, Wait>| {
            let mut waits = exporters.values();
            waits.any(|wait| wait.look_at <= now)
        };
        let keys = self.keys.iter();
        keys.filter(move |(_, exporters)| due(exporters))
            .map(|(key, _)| key)
    }

    /// The keys that wait.
    #[cfg(test)]
    pub(super) fn keys(&self) -> Vec<&Key> {
        self.keys.keys().collect()
    }
}
