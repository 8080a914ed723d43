//! What is known of the clusters of each import, and what follows from it for requests (pure).
//!
//! ```text
//! model, policies ─ sync ─┐
//! probes, scrapes ─ record ┼─► state ─ advance ─► target ─► smooth ─► publish ─► Selection
//! time ───────────────────┘
//! ```

use std::collections::BTreeMap;

use moment::Moment;
use serde_json::{Value, json};

use crate::world::Key;

use super::health::ProbedHealth;
use super::policy::Policy;
use super::publish::{Placement, Published};
use super::selection::{Assigned, Health, Selection, WHOLE};
use super::smooth::{apportion, smooth};
use super::target::{Candidate, PoolLoad, Target, target};

/// One cluster of one import.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClusterId {
    pub(crate) import: Key,
    pub(crate) cluster: String,
}

/// Something that was observed of a cluster.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Fact {
    /// A probe of its endpoint picker or of its parents ended.
    Probed {
        cluster: ClusterId,
        result: Result<(), &'static str>,
    },
    /// A scrape of its endpoint picker ended.
    Scraped {
        cluster: ClusterId,
        result: Result<PoolLoad, &'static str>,
    },
}

/// What the model says of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) is_local: bool,
    /// Requests can reach its endpoints without its endpoint picker.
    pub(crate) fails_open: bool,
    pub(crate) standing: Standing,
    /// Why its metrics are not read, where shares depend on them.
    pub(crate) unscraped: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Ready,
    /// The exporting side says that it is not ready.
    NotReady,
    /// It is being withdrawn: requests that are in flight go on.
    Draining,
}

/// By import: its policy and its clusters, by name.
pub(crate) type Wanted = BTreeMap<Key, (Policy, BTreeMap<String, Entry>)>;

#[derive(Debug, Default)]
pub(crate) struct Selector {
    imports: BTreeMap<Key, ImportState>,
}

#[derive(Debug, Default)]
struct ImportState {
    policy: Policy,
    clusters: BTreeMap<String, ClusterState>,
    /// When the weights moved first and last.
    began: Option<Moment>,
    moved: Option<Moment>,
    /// The weights have been those of known scores, or there are none: from then on they move slowly.
    is_settled: bool,
    published: Published,
}

#[derive(Debug)]
struct ClusterState {
    entry: Entry,
    health: ProbedHealth,
    /// It was a candidate when the import was looked at last.
    was_ready: bool,
    /// When it became one, if shares were published before; its health begins anew then, or is old.
    returned: Option<Moment>,
    load: Option<(PoolLoad, Moment)>,
    /// Why the last probe and the last scrape failed.
    probe_error: Option<&'static str>,
    scrape_error: Option<&'static str>,
    /// Its smoothed share, 0 to 1; `None`: it did not serve, or shares do not depend on metrics.
    weight: Option<f64>,
}

// === impl Selector ===

impl Selector {
    /// The imports in use and their clusters are these now. What is known of those that stay is kept.
    /// Returns whether the metrics of others than before are not read, which status says.
    pub(crate) fn sync(&mut self, wanted: Wanted) -> bool {
        self.imports.retain(|key, _| wanted.contains_key(key));
        let mut changed = false;
        for (key, (policy, clusters)) in wanted {
            let import = self.imports.entry(key).or_default();
            let before = import.unread();
            import.sync(policy, clusters);
            changed |= import.unread() != before;
        }
        changed
    }

    /// Whether Envoys are to get anything else by this fact alone, which only health does at once. A fact of a cluster that is
    /// not known any more is ignored.
    pub(crate) fn record(&mut self, fact: Fact, now: Moment) -> bool {
        let (Fact::Probed { cluster: id, .. } | Fact::Scraped { cluster: id, .. }) = &fact;
        let Some(import) = self.imports.get_mut(&id.import) else {
            return false;
        };
        let Some(cluster) = import.clusters.get_mut(&id.cluster) else {
            return false;
        };
        match fact {
            Fact::Probed { result, .. } => {
                let rule = &import.policy.health;
                let changed = cluster.health.record(result.is_ok(), rule, now);
                cluster.probe_error = result.err();
                changed && import.advance(now)
            }
            Fact::Scraped { result, .. } => {
                cluster.scrape_error = result.err();
                if let Ok(load) = result {
                    cluster.load = Some((load, now));
                }
                false
            }
        }
    }

    /// Whether Envoys are to get other shares, priorities or health from now on.
    pub(crate) fn advance(&mut self, now: Moment) -> bool {
        let mut changed = false;
        for import in self.imports.values_mut() {
            changed |= import.advance(now);
        }
        changed
    }

    /// What was published last.
    pub(crate) fn selection(&self) -> Selection {
        let mut selection = Selection::default();
        for (key, import) in &self.imports {
            selection.insert(key.clone(), import.published.placement.clone());
            selection.note_unread(key, import.unread());
        }
        selection
    }

    /// For people: what is known, and what follows from it.
    pub(crate) fn show(&self, now: Moment) -> BTreeMap<String, Value> {
        let shown = self.imports.iter();
        shown
            .map(|(key, import)| (key.to_string(), import.show(now)))
            .collect()
    }
}

// === impl ImportState ===

impl ImportState {
    fn sync(&mut self, policy: Policy, clusters: BTreeMap<String, Entry>) {
        if policy.metrics().is_none() {
            for cluster in self.clusters.values_mut() {
                (cluster.load, cluster.weight, cluster.scrape_error) = (None, None, None);
            }
            (self.began, self.moved, self.is_settled) = (None, None, false);
        }
        self.policy = policy;
        self.clusters.retain(|name, _| clusters.contains_key(name));
        // Without a choice there are no probes, and what they said before is old.
        let is_probed = clusters.len() > 1;
        for (name, entry) in clusters {
            let state = self.clusters.entry(name).or_insert(ClusterState {
                entry,
                health: ProbedHealth::default(),
                was_ready: false,
                returned: None,
                load: None,
                probe_error: None,
                scrape_error: None,
                weight: None,
            });
            state.entry = entry;
            if !is_probed {
                (state.health, state.probe_error) = (ProbedHealth::default(), None);
            }
        }
    }

    fn advance(&mut self, now: Moment) -> bool {
        self.note_returned(now);
        let candidates: Vec<_> = self.candidates(now).collect();
        let targets = target(&self.policy, &candidates, now);
        let named = candidates
            .iter()
            .map(|one| one.name.to_owned())
            .zip(targets);
        let named: Vec<(String, Target)> = named.collect();
        let placement = self.place(named, now);
        let hysteresis = self.policy.metrics().map_or(1, |rule| rule.hysteresis);
        self.published.offer(&placement, hysteresis, now)
    }

    /// The clusters whose metrics are not read.
    fn unread(&self) -> Vec<String> {
        let unread = self.clusters.iter();
        let unread = unread.filter(|(_, cluster)| cluster.entry.unscraped.is_some());
        unread.map(|(name, _)| name.clone()).collect()
    }

    fn note_returned(&mut self, now: Moment) {
        let is_start = self.published.is_first();
        for cluster in self.clusters.values_mut() {
            let is_ready = cluster.entry.standing == Standing::Ready;
            if is_ready && !cluster.was_ready && !is_start {
                cluster.returned = Some(now);
            }
            cluster.was_ready = is_ready;
        }
    }

    /// Clusters that are not ready or drain are none.
    fn candidates(&self, now: Moment) -> impl Iterator<Item = Candidate<'_>> {
        let ready = self.clusters.iter();
        let ready = ready.filter(|(_, cluster)| cluster.entry.standing == Standing::Ready);
        ready.map(move |(name, cluster)| Candidate {
            name,
            is_local: cluster.entry.is_local,
            fails_open: cluster.entry.fails_open,
            healthy: cluster.health.is_healthy(),
            is_current: self.is_current(name),
            recovered: cluster.recovered(),
            score: cluster.score(&self.policy, now),
        })
    }

    fn is_current(&self, name: &str) -> bool {
        let assigned = self.published.placement.get(name);
        assigned.is_some_and(|one| one.health == Health::Healthy && one.priority == 0)
    }

    /// Targets as whole shares; the clusters that are no candidates come last and serve nothing new.
    fn place(&mut self, targets: Vec<(String, Target)>, now: Moment) -> Placement {
        let shares = self.shares(&targets, now);
        let last = targets.iter().map(|(_, target)| target.priority).max();
        let assigned = targets
            .into_iter()
            .zip(shares)
            .map(|((name, target), weight)| {
                let health = if target.serves {
                    Health::Healthy
                } else {
                    Health::Unhealthy
                };
                let priority = target.priority;
                (
                    name,
                    Assigned {
                        weight,
                        priority,
                        health,
                    },
                )
            });
        let mut placement: Placement = assigned.collect();
        for (name, cluster) in &self.clusters {
            let health = match cluster.entry.standing {
                Standing::Ready => continue,
                Standing::NotReady => Health::Unhealthy,
                Standing::Draining => Health::Draining,
            };
            let assigned = Assigned {
                weight: 0,
                priority: last.unwrap_or(0),
                health,
            };
            placement.insert(name.clone(), assigned);
        }
        placement
    }

    /// In the order of the targets.
    fn shares(&mut self, targets: &[(String, Target)], now: Moment) -> Vec<u32> {
        let serving = || targets.iter().filter(|(_, target)| target.serves);
        if self.policy.order().is_some() {
            let whole = |(_, target): &(String, Target)| if target.serves { WHOLE } else { 0 };
            return targets.iter().map(whole).collect();
        }
        let (weights, least) = match self.policy.metrics().map(|rule| rule.min_share) {
            Some(least) => {
                self.move_weights(targets, now);
                let weight = |name: &String| self.clusters.get(name).and_then(|one| one.weight);
                let weights = serving().map(|(name, _)| weight(name).unwrap_or(0.0));
                (weights.collect::<Vec<_>>(), least)
            }
            None => (serving().map(|(_, target)| target.share).collect(), 0),
        };
        let mut shares = apportion(&weights, least).into_iter();
        let of = |(_, target): &(String, Target)| {
            let share = target.serves.then(|| shares.next());
            share.flatten().unwrap_or(0)
        };
        targets.iter().map(of).collect()
    }

    /// A cluster that serves again begins with nothing. Where none served before, the targets hold at once, and so they do until
    /// each serving cluster has a score, or should have one: equal shares of a start are no state to move slowly from.
    fn move_weights(&mut self, targets: &[(String, Target)], now: Moment) {
        let Some(rule) = self.policy.metrics() else {
            return;
        };
        let half_life = rule.half_life;
        let began = *self.began.get_or_insert(now);
        let is_over = now.since(began) >= rule.stale_after;
        let passed = self
            .moved
            .map_or_else(Default::default, |moved| now.since(moved));
        self.moved = Some(now);
        let is_first = self.clusters.values().all(|one| one.weight.is_none());
        let is_settled = self.is_settled || is_over;
        let by_name: BTreeMap<&str, &Target> = targets
            .iter()
            .filter(|(_, target)| target.serves)
            .map(|(name, target)| (name.as_str(), target))
            .collect();
        for (name, cluster) in &mut self.clusters {
            cluster.weight = by_name
                .get(name.as_str())
                .map(|target| match cluster.weight {
                    _ if is_first || !is_settled => target.share,
                    None => 0.0,
                    Some(weight) => smooth(weight, target.share, passed, half_life),
                });
        }
        let has_score = |name: &str| {
            let cluster = self.clusters.get(name);
            cluster.is_some_and(|one| one.score(&self.policy, now).is_some())
        };
        self.is_settled = is_settled || by_name.keys().all(|name| has_score(name));
    }

    fn show(&self, now: Moment) -> Value {
        let age = |at: Moment| now.since(at).as_secs_f64();
        let clusters = self.clusters.iter().map(|(name, cluster)| {
            let assigned = self.published.placement.get(name);
            let health = cluster.health;
            let load = cluster.load.map(|(load, at)| {
                let PoolLoad { ready, queue, kv } = load;
                json!({"ready": ready, "queue": queue, "kv": kv, "ageSeconds": age(at)})
            });
            let shown = json!({
                "standing": format!("{:?}", cluster.entry.standing),
                "local": cluster.entry.is_local,
                "failsOpen": cluster.entry.fails_open,
                "healthy": health.is_healthy(),
                "healthChangedSecondsAgo": health.changed().map(age),
                "lastProbeFailed": cluster.probe_error,
                "metrics": load,
                "lastScrapeFailed": cluster.entry.unscraped.or(cluster.scrape_error),
                "score": cluster.score(&self.policy, now),
                "weight": cluster.weight,
                "share": assigned.map(|one| one.weight),
                "priority": assigned.map(|one| one.priority),
                "assigned": assigned.map(|one| format!("{:?}", one.health)),
                "why": self.why(cluster, assigned, now),
            });
            (name.clone(), shown)
        });
        let clusters: BTreeMap<String, Value> = clusters.collect();
        json!({ "policy": self.policy.strategy.name(), "clusters": clusters })
    }

    fn why(
        &self,
        cluster: &ClusterState,
        assigned: Option<&Assigned>,
        now: Moment,
    ) -> &'static str {
        let serves = assigned.is_some_and(|one| one.health == Health::Healthy);
        match (cluster.entry.standing, cluster.health.is_healthy()) {
            (Standing::Draining, _) => "it is being withdrawn",
            (Standing::NotReady, _) => "the exporting side says that it is not ready",
            (Standing::Ready, false) if serves => {
                "no cluster is healthy, and a guess is better than a failure"
            }
            (Standing::Ready, false) => "its probes fail",
            (Standing::Ready, true) => self.why_healthy(cluster, assigned, now),
        }
    }

    fn why_healthy(
        &self,
        cluster: &ClusterState,
        assigned: Option<&Assigned>,
        now: Moment,
    ) -> &'static str {
        if let Some(rule) = self.policy.order() {
            let recovered = cluster.recovered();
            return match assigned.map(|one| one.priority) {
                Some(0) => "it is the first healthy cluster of the order",
                _ if recovered.is_some_and(|at| now.since(at) < rule.failback) => {
                    "it has not been healthy for failbackSeconds yet"
                }
                _ => "a cluster before it in the order is healthy",
            };
        }
        match (self.policy.metrics(), cluster.score(&self.policy, now)) {
            (None, _) => "healthy clusters have equal shares",
            (Some(_), Some(_)) => "its share follows its metrics",
            (Some(_), None) => {
                "its metrics are missing or old: it counts as the mean of the others"
            }
        }
    }
}

// === impl ClusterState ===

impl ClusterState {
    /// Since when it can serve, if it could not before.
    fn recovered(&self) -> Option<Moment> {
        self.health.recovered().max(self.returned)
    }

    fn score(&self, policy: &Policy, now: Moment) -> Option<f64> {
        let rule = policy.metrics()?;
        let (load, at) = self.load?;
        (now.since(at) <= rule.stale_after).then(|| load.score(rule.queue_target))
    }
}

#[cfg(test)]
mod tests;
