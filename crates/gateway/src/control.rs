//! The loop from updates to snapshots, status and infrastructure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use moment::Clock;
use parking_lot::Mutex;
use process::{Health, Pulse};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::debug::DebugView;
use crate::feedback::Rejection;
use crate::index::{Changes, Event, Index, Live, Source};
use crate::infra::credentials::Credentials;
use crate::infra::problems::{Problems, Reports};
use crate::infra::{Change, InfraSettings, Part, is_applied, make_parts, unwanted};
use crate::metrics::ModelMetrics;
use crate::model::{
    Built, Delta, Import, Pool, Settings, StatusDelta, Unreported, backend_tls, certificates,
    policies,
};
use crate::observe::Observers;
use crate::parameters;
use crate::queue::Queue;
use crate::select::inputs::{self, Surroundings};
use crate::select::{Fact, Selection, Selector};
use crate::status::pace::Pace;
use crate::status::{self, Target, Wanted};
use crate::watches::Watches;
use crate::world::{Key, Touched, World};
use crate::xds::ads::proxies::Proxies;
use crate::xds::ads::server::Snapshots;
use crate::xds::{Options, Reads, Served, names};

/// A burst of changes is one change; a lone one waits only the first of these.
const QUIET: Duration = Duration::from_millis(5);
const AT_MOST: Duration = Duration::from_millis(50);

/// How often live objects are compared again, for what was lost on the way.
const HEAL: Duration = Duration::from_secs(10);

/// Time between two looks at shares, which metrics and time move.
const LOOK: Duration = Duration::from_secs(1);

/// What is known of the clusters of imports; a debug page reads it.
pub(crate) type SharedSelector = Arc<Mutex<Selector>>;

/// Part of readiness: everything is listed and served.
pub(crate) const SYNCED: &str = "synced";

/// Owns what is known and decides what follows.
pub(crate) struct Control {
    pub(crate) index: Index,
    pub(crate) watches: Watches,
    pub(crate) events: mpsc::Receiver<Event>,
    pub(crate) settings: Settings,
    pub(crate) options: Options,
    pub(crate) infra: InfraSettings,
    pub(crate) snapshots: watch::Sender<Snapshots>,
    pub(crate) proxies: Proxies,
    pub(crate) status: Queue<Target, Wanted>,
    pub(crate) parts: Queue<(Part, Key), Change>,
    pub(crate) problems: Problems,
    /// What Envoys show on the control channel; none without TLS.
    pub(crate) credentials: Option<Credentials>,
    pub(crate) metrics: ModelMetrics,
    /// Beats in each turn.
    pub(crate) pulse: Pulse,
    pub(crate) health: Health,
    pub(crate) debug: DebugView,
    /// Cancelled once ADS may be served: a cold start never empties Envoys.
    pub(crate) open: CancellationToken,
    pub(crate) decided: Decided,
    pub(crate) observers: Observers,
    pub(crate) facts: mpsc::Receiver<Fact>,
    pub(crate) selector: SharedSelector,
    pub(crate) pace: Pace,
    pub(crate) clock: Clock,
}

/// What follows from the newest world.
#[derive(Default)]
pub(crate) struct Decided {
    built: Built,
    served: Served,
    selection: Selection,
    /// Statuses that differ from what they shall be.
    differing: BTreeMap<Target, Wanted>,
}

// === impl Control ===

impl Control {
    /// Until `stop`; an early end is an error of its caller.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut heal = interval(HEAL);
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut changes = Changes::default();
        let mut due: Option<(Instant, Instant)> = None;
        loop {
            self.pulse.beat();
            let flush = async {
                match due {
                    Some((quiet, at_most)) => sleep_until(quiet.min(at_most)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.watches.ended() => {
                    self.health.fail("a watch ended");
                    return;
                }
                () = self.observers.ended() => {
                    self.health.fail("an observation of a cluster ended");
                    return;
                }
                fact = self.facts.recv() => {
                    let Some(fact) = fact else { return };
                    let now = self.clock.now();
                    changes.selection |= self.selector.lock().record(fact, now);
                }
                _ = look.tick() => {
                    let now = self.clock.now();
                    changes.selection |= self.selector.lock().advance(now);
                    if self.pace.take_due(now) {
                        let imports = self.decided.built.wanted.imports.keys().cloned();
                        changes.live.targets.extend(imports.map(Target::Import));
                    }
                }
                event = self.events.recv() => {
                    let Some(event) = event else { return };
                    changes.add(self.index.on(event, self.clock.now()));
                    // Before all is listed, every list may be the last one.
                    changes.live.all |= !self.open.is_cancelled();
                }
                () = self.proxies.changed() => changes.feedback = true,
                () = self.problems.changed() => changes.feedback = true,
                _ = heal.tick() => {
                    changes.add(self.index.expire(self.clock.now()));
                    changes.live.all = true;
                    changes.parts = true;
                    self.metrics.connected(&self.proxies.connected());
                }
                () = flush => {
                    due = None;
                    self.flush(std::mem::take(&mut changes));
                    continue;
                }
            }
            if changes.any() {
                let now = Instant::now();
                let at_most = due.map_or(now + AT_MOST, |(_, at_most)| at_most);
                due = Some((now + QUIET, at_most));
            }
        }
    }

    fn flush(&mut self, mut changes: Changes) {
        let opened = self.open.is_cancelled();
        if !opened {
            changes.world = Touched::all();
        }
        let world = &changes.world;
        let names_sources = world.all || !world.pools.is_empty() || !world.imports.is_empty();
        if names_sources || changes.observed {
            let sources = self.sync_watches();
            if !opened && !self.index.has_listed(&sources) {
                return;
            }
        }
        let (mut status, mut unreported) = self.decide(&changes.world);
        let has_epps = |reads: &Reads| matches!(reads, Reads::Service(_));
        let is_moved = !changes.world.is_empty() || changes.endpoints.iter().any(has_epps);
        if is_moved || changes.observed {
            changes.selection |= self.observe();
        }
        let mut reads = std::mem::take(&mut changes.endpoints);
        if changes.selection || status.has_imports() || changes.world.all {
            for import in self.select() {
                status.targets.insert(Target::Import(import.clone()));
                reads.insert(Reads::Import(import));
            }
        }
        let Decided {
            served, selection, ..
        } = &mut self.decided;
        served.assign(&reads, &self.index.endpoints, selection);
        let published = self.publish();
        if published || changes.feedback || changes.world.all {
            unreported.feedback.extend(self.take_feedback());
        }
        status.add(self.decided.built.report(
            &self.index.world,
            &self.index.feedback,
            &self.settings,
            unreported,
        ));
        if !opened {
            info!(
                gateways = self.decided.built.models.len(),
                "everything is listed, serving ADS"
            );
            self.open.cancel();
            self.health.set(SYNCED, true);
        }
        self.write_status(&status, &changes.live);
        let reported = changes.world.all || !changes.world.reports.is_empty();
        if changes.parts || reported || changes.feedback {
            self.write_parts();
        }
    }

    /// Watches what the world names, and returns it.
    fn sync_watches(&mut self) -> BTreeSet<Source> {
        let sources = wanted_sources(&self.index.world, &self.settings.controller);
        let stopped = self.watches.sync(&sources);
        for gone in &stopped.gone {
            self.index.forget(gone);
        }
        for replaced in &stopped.replaced {
            self.index.replaced(replaced);
        }
        sources.into_keys().collect()
    }

    /// Follows what was touched in the world. What depends on feedback is left to be reported.
    fn decide(&mut self, touched: &Touched) -> (StatusDelta, Unreported) {
        if touched.is_empty() {
            return (StatusDelta::default(), Unreported::default());
        }
        let started = Instant::now();
        let Decided {
            built,
            served,
            selection,
            ..
        } = &mut self.decided;
        let Delta {
            models,
            status,
            unreported,
        } = built.update(&self.index.world, &self.settings, touched);
        for gateway in &models {
            let model = built.models.get(gateway);
            let endpoints = &self.index.endpoints;
            served.plan(
                gateway,
                model.map(|model| &**model),
                &self.options,
                endpoints,
                selection,
            );
        }
        self.metrics.built(started.elapsed());
        if !models.is_empty() {
            self.debug.set_models(built.models.clone());
        }
        (status, unreported)
    }

    /// Observes the clusters of the imports in use. Returns whether requests are to be shared in another way, or
    /// something else is said of the clusters.
    fn observe(&mut self) -> bool {
        let world = &self.index.world;
        let imports = self.decided.imports();
        let policies = &self.decided.built.policies;
        let around = Surroundings {
            world,
            endpoints: &self.index.endpoints,
            pools: self.decided.pools(),
            health_service: &self.options.health_service,
            deny: &self.settings.deny_cidrs,
        };
        let jobs = inputs::jobs(&imports, policies, &around);
        self.observers.sync(jobs);
        let mut selector = self.selector.lock();
        let changed = selector.sync(inputs::wanted(&imports, policies, world));
        selector.advance(self.clock.now()) || changed
    }

    /// How requests are shared from now on. Only assignments and the status of imports follow from it: of those that are
    /// returned.
    fn select(&mut self) -> BTreeSet<Key> {
        let selection = self.selector.lock().selection();
        let imports = self.decided.imports();
        self.metrics.imports(imports.into_values(), &selection);
        let before = std::mem::replace(&mut self.decided.selection, selection);
        self.decided.selection.differing(&before)
    }

    /// Whether there are other snapshots than before.
    fn publish(&mut self) -> bool {
        let now = &self.decided.served.snapshots;
        if Arc::ptr_eq(&*self.snapshots.borrow(), now) {
            return false;
        }
        debug!(gateways = now.len(), "new snapshots");
        self.snapshots.send_replace(Arc::clone(now));
        self.debug.set_snapshots(Arc::clone(now));
        true
    }

    /// The Gateways of which Envoys or a writer say something else than before. Only status follows from it: the snapshots
    /// stay as they are.
    fn take_feedback(&mut self) -> BTreeSet<Key> {
        self.metrics.connected(&self.proxies.connected());
        let all = self.proxies.refused(&self.decided.served.snapshots);
        let rejections: BTreeMap<Key, Vec<Rejection>> = all
            .into_iter()
            .map(|(gateway, refused)| {
                let refused = refused
                    .into_iter()
                    .map(|((kind, name, _), verdict)| Rejection {
                        of: names::refused(kind, &name),
                        message: verdict.to_string(),
                        others_serve: verdict.others_serve,
                        name,
                    });
                (gateway, refused.collect())
            })
            .collect();
        let Reports { taken, refused } = self.problems.reports();
        let known = &mut self.index.feedback;
        let mut differing = differing(&known.taken, &taken);
        differing.extend(self::differing(&known.refused, &refused));
        differing.extend(self::differing(&known.rejections, &rejections));
        (known.taken, known.refused, known.rejections) = (taken, refused, rejections);
        differing
    }

    /// Queues what of these statuses differs from what there is.
    fn write_status(&mut self, status: &StatusDelta, live: &Live) {
        let (now, moment) = (Timestamp::now(), self.clock.now());
        self.pace
            .keep(|import| self.index.world.imports.contains_key(import));
        let Decided {
            built,
            selection,
            differing,
            ..
        } = &mut self.decided;
        let mut compare = |target: Target, wanted: Option<Wanted>| {
            let differs = wanted.and_then(|wanted| {
                let live = self.index.live.get(&target)?;
                let wanted = match &target {
                    Target::Import(key) => self.pace.pick(key, wanted, moment),
                    _ => wanted,
                };
                match status::diff::diff(&target, &wanted, live, &self.settings.controller, now) {
                    Ok(differs) => differs.map(|_| wanted),
                    Err(error) => {
                        warn!(?target, %error, "status cannot be written");
                        None
                    }
                }
            });
            match differs {
                Some(wanted) => differing.insert(target, wanted),
                None => differing.remove(&target),
            };
        };
        if status.all || live.all {
            for (target, wanted) in status::wanted(&built.wanted, selection) {
                compare(target, Some(wanted));
            }
            // objects that are gone, or none of ours any more
            differing.retain(|target, _| status::is_wanted(target, &built.wanted));
        } else {
            for target in status.targets.union(&live.targets) {
                let wanted = status::wanted_of(target, &built.wanted, selection);
                compare(target.clone(), wanted);
            }
        }
        self.status.replace(differing.clone());
    }

    /// Queues what of the infrastructure of Gateways differs from what there is.
    fn write_parts(&mut self) {
        let (mut parts, mut secrets) = (BTreeMap::new(), BTreeSet::new());
        let started = Instant::now();
        for model in self.decided.built.models.values() {
            let Some(gateway) = self.index.world.gateways.get(&model.key) else {
                continue;
            };
            if self
                .index
                .world
                .kept
                .contains(&("Gateway", model.key.clone()))
            {
                continue; // its parts are owned by an object that is gone: garbage collection would win
            }
            let Ok(parameters) = parameters::of_gateway(&self.index.world, gateway) else {
                continue; // it has no model, or keeps that of before until they are known
            };
            if model.ports.is_empty() {
                continue; // a Service has a port: what there is stays, and serves nothing
            }
            let binds = model
                .ports
                .iter()
                .map(|(port, one)| (*port, one.bind))
                .collect();
            let wanted = make_parts(gateway, &parameters, &binds, &self.infra);
            parts.extend(wanted.into_iter().filter(|(id, wanted)| {
                if id.0 == Part::DisruptionBudget && !self.index.has_listed_budgets() {
                    return false;
                }
                if id.0 == Part::ClientSecret {
                    secrets.insert(id.1.clone());
                    let credentials = self.credentials.as_ref();
                    return credentials.is_some_and(|known| known.is_due(&id.1, wanted, started));
                }
                let live = self.index.parts.get(id);
                !live.is_some_and(|live| is_applied(wanted, live))
            }));
        }
        if let Some(credentials) = &self.credentials {
            credentials.keep(|key| secrets.contains(key));
        }
        let parts = parts
            .into_iter()
            .map(|(id, wanted)| (id, Change::Apply(wanted)));
        let gone = unwanted(
            &self.index.world,
            &self.index.feedback,
            &self.settings.controller,
            self.index.parts.iter(),
        );
        let gone = gone
            .into_iter()
            .map(|(id, owner)| (id, Change::Delete(owner)));
        let parts: BTreeMap<_, _> = gone.chain(parts).collect();
        self.problems.keep(&parts);
        self.parts.replace(parts);
    }
}

// === impl Decided ===

impl Decided {
    fn pools(&self) -> BTreeMap<Key, &Pool> {
        let models = self.built.models.values();
        let pools = models.flat_map(|model| &model.pools);
        pools
            .map(|(key, pool)| (key.clone(), pool.as_ref()))
            .collect()
    }

    /// Each import in use. Of one that a Gateway has as it was before, the newest.
    fn imports(&self) -> BTreeMap<Key, &Import> {
        let models = self.built.models.values();
        let served = models.flat_map(|model| model.imports.values());
        let newest = self.built.wanted.imports.values();
        let newest = newest.filter_map(|status| status.import.as_ref());
        let all = served.chain(newest);
        all.map(|import| (import.key.clone(), import.as_ref()))
            .collect()
    }
}

/// The keys whose values are not the same in both.
fn differing<V: PartialEq>(a: &BTreeMap<Key, V>, b: &BTreeMap<Key, V>) -> BTreeSet<Key> {
    let keys = a.keys().chain(b.keys());
    let differing = keys.filter(|key| a.get(*key) != b.get(*key));
    differing.cloned().collect()
}

/// Pods of every pool, and the `ConfigMap`s and Secrets that are named.
fn wanted_sources(world: &World, controller: &str) -> BTreeMap<Source, String> {
    let pools = world.pools.iter().map(|(key, pool)| {
        let labels = pool
            .selector
            .iter()
            .map(|(name, value)| format!("{name}={value}"));
        let selector: Vec<String> = labels.collect();
        (Source::Pods(key.clone()), selector.join(","))
    });
    let maps = parameters::wanted_maps(world, controller)
        .into_iter()
        .chain(backend_tls::named_maps(world))
        .map(|key| (Source::ConfigMap(key), String::new()));
    let secrets = certificates::wanted(world, controller)
        .into_iter()
        .map(|key| (Source::Secret(key), String::new()));
    let credentials = inputs::credentials(world, &policies::of_imports(world))
        .into_iter()
        .map(|key| (Source::Credential(key), String::new()));
    let named = maps.chain(secrets).chain(credentials);
    pools.chain(named).collect()
}

#[cfg(test)]
mod tests;
