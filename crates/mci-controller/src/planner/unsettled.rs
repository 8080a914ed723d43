//! Exports with pending importers: when their condition is reported nevertheless, and when they are planned again.

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
    /// The condition is not reported before: importers become current one after another.
    held_until: Moment,
    /// When to plan again without an event.
    check_at: Moment,
    /// Time between the last check and the next.
    pause: Duration,
}

/// How long `Exported` waits for pending importers (spec 4.2).
const SETTLE: Duration = Duration::from_secs(1);
/// A change of an importer is followed by itself. A check without one only repeats writes that never showed, so the
/// pauses grow up to this: an importer that never shows its writes must not delay the others.
const CHECK_MAX: Duration = Duration::from_mins(5);

// === impl Unsettled ===

impl Unsettled {
    /// Whether to report the condition of an export that was planned and is not settled.
    pub(super) fn may_report(&mut self, key: &Key, exporter: &ClusterName, now: Moment) -> bool {
        let exporters = self.keys.entry(key.clone()).or_default();
        let Some(wait) = exporters.get_mut(exporter) else {
            let wait = Wait {
                held_until: now + SETTLE,
                check_at: now + SETTLE,
                pause: SETTLE,
            };
            exporters.insert(exporter.clone(), wait);
            return false;
        };
        if now < wait.held_until {
            // it changed: to be reported when the second is over
            wait.check_at = wait.check_at.min(wait.held_until);
            return false;
        }
        if now >= wait.check_at {
            wait.pause = wait.pause.saturating_mul(2).min(CHECK_MAX);
        }
        wait.held_until = now + SETTLE;
        wait.check_at = now + wait.pause;
        true
    }

    /// An importer of the key changed: the key is planned again as soon as its condition may be reported. False: it may be
    /// reported now.
    pub(super) fn hurry(&mut self, key: &Key, now: Moment) -> bool {
        let Some(exporters) = self.keys.get_mut(key) else {
            return false;
        };
        for wait in exporters.values_mut() {
            wait.check_at = wait.check_at.min(wait.held_until);
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
            waits.any(|wait| wait.check_at <= now)
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
