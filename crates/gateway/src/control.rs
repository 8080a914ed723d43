//! The loop from updates to snapshots, status and infrastructure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use moment::Clock;
use parking_lot::Mutex;
use process::Health;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::debug::DebugView;
use crate::index::{Changes, Event, Index, Source};
use crate::infra::credentials::Credentials;
use crate::infra::problems::{Problems, Reports};
use crate::infra::{Change, InfraSettings, Part, is_applied, make_parts, parameters, unwanted};
use crate::metrics::ModelMetrics;
use crate::model::{
    GatewayModel, Import, Pool, Settings, WantedStatus, backend_tls, build, certificates, policies,
};
use crate::observe::Observers;
use crate::queue::Queue;
use crate::select::inputs::{self, Surroundings};
use crate::select::{Fact, Selection, Selector};
use crate::status::pace::Pace;
use crate::status::{self, Target, Wanted};
use crate::watches::Watches;
use crate::world::{Key, Rejection, World};
use crate::xds::ads::proxies::Proxies;
use crate::xds::ads::server::Snapshots;
use crate::xds::{Options, Plan, Snapshot, assign, translate};

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
    models: Vec<GatewayModel>,
    plans: BTreeMap<Key, Plan>,
    wanted: WantedStatus,
    selection: Selection,
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
                    changes.live |= self.pace.take_due(now);
                }
                event = self.events.recv() => {
                    let Some(event) = event else { return };
                    changes.add(self.index.on(event, self.clock.now()));
                    // Before all is listed, every list may be the last one.
                    changes.live |= !self.open.is_cancelled();
                }
                () = self.proxies.changed() => changes.world = true,
                () = self.problems.changed() => changes.world = true,
                _ = heal.tick() => {
                    changes.add(self.index.expire(self.clock.now()));
                    changes.live = true;
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

    fn flush(&mut self, changes: Changes) {
        let sources = wanted_sources(&self.index.world, &self.settings.controller);
        let stopped = self.watches.sync(&sources);
        for gone in &stopped.gone {
            self.index.forget(gone);
        }
        for replaced in &stopped.replaced {
            self.index.replaced(replaced);
        }
        let opened = self.open.is_cancelled();
        if !opened {
            let more: BTreeSet<Source> = sources.into_keys().collect();
            if !self.index.has_listed(&more) {
                return;
            }
        }
        if changes.world || !opened {
            self.decide();
        }
        let mut is_moved = changes.world || changes.endpoints || !opened;
        if is_moved || changes.observed {
            is_moved |= self.observe();
        }
        if is_moved || changes.selection {
            self.publish();
        }
        if !opened {
            info!(
                gateways = self.decided.models.len(),
                "everything is listed, serving ADS"
            );
            self.open.cancel();
            self.health.set(SYNCED, true);
        }
        self.write();
    }

    fn decide(&mut self) {
        let started = Instant::now();
        let Reports { taken, refused } = self.problems.reports();
        (self.index.world.taken, self.index.world.refused) = (taken, refused);
        let (models, wanted) = decide(&self.index.world, &self.settings, &self.decided);
        let plans = models
            .iter()
            .map(|model| (model.key.clone(), translate(model, &self.options)));
        self.decided = Decided {
            plans: plans.collect(),
            wanted,
            models,
            selection: std::mem::take(&mut self.decided.selection),
        };
        self.metrics.built(started.elapsed());
    }

    /// Observes the clusters of the imports in use. Returns whether requests are to be shared in another way.
    fn observe(&mut self) -> bool {
        let world = &self.index.world;
        let imports = self.decided.imports();
        let policies = policies::of_imports(world);
        let around = Surroundings {
            world,
            endpoints: &self.index.endpoints,
            pools: self.decided.pools(),
            health_service: &self.options.health_service,
            deny: &self.settings.deny_cidrs,
        };
        let jobs = inputs::jobs(&imports, &policies, &around);
        self.observers.sync(jobs);
        let mut selector = self.selector.lock();
        selector.sync(inputs::wanted(&imports, &policies, world));
        selector.advance(self.clock.now())
    }

    /// How requests are shared from now on. Only assignments and the status of imports follow from it.
    fn select(&mut self) {
        let selection = self.selector.lock().selection();
        let imports = self.decided.imports();
        self.metrics.imports(imports.into_values(), &selection);
        self.decided.selection = selection;
    }

    fn publish(&mut self) {
        self.select();
        let before = self.snapshots.borrow().clone();
        let now: BTreeMap<Key, Arc<Snapshot>> = self
            .decided
            .plans
            .iter()
            .map(|(key, plan)| {
                let made = assign(plan, &self.index.endpoints, &self.decided.selection);
                let kept = before.get(key).filter(|old| ***old == made);
                (key.clone(), kept.cloned().unwrap_or_else(|| Arc::new(made)))
            })
            .collect();
        let refused = self.proxies.refused(&now);
        let rejections: BTreeMap<Key, Vec<Rejection>> = refused
            .into_iter()
            .map(|(gateway, refused)| {
                let refused = refused
                    .into_iter()
                    .map(|((kind, name, _), verdict)| Rejection {
                        kind,
                        message: verdict.to_string(),
                        name,
                    });
                (gateway, refused.collect())
            })
            .collect();
        if *before != now {
            debug!(gateways = now.len(), "new snapshots");
            self.snapshots.send_replace(Arc::new(now));
        }
        if self.index.world.rejections != rejections {
            // Only status says what was refused: the snapshots stay as they are.
            self.index.world.rejections = rejections;
            self.decided.wanted = decide(&self.index.world, &self.settings, &self.decided).1;
        }
        self.metrics.connected(&self.proxies.connected());
        let snapshots = self.snapshots.borrow().clone();
        self.debug.set(self.decided.models.clone(), snapshots);
    }

    /// Queues what differs from what there is.
    fn write(&mut self) {
        let (now, moment) = (Timestamp::now(), self.clock.now());
        self.pace
            .keep(|import| self.index.world.imports.contains_key(import));
        let mut differing = BTreeMap::new();
        for (target, wanted) in status::wanted(&self.decided.wanted, &self.decided.selection) {
            let Some(live) = self.index.live.get(&target) else {
                continue;
            };
            let wanted = match &target {
                Target::Import(key) => self.pace.pick(key, wanted, moment),
                _ => wanted,
            };
            match status::diff::diff(&target, &wanted, live, &self.settings.controller, now) {
                Ok(None) => {}
                Ok(Some(_)) => {
                    differing.insert(target, wanted);
                }
                Err(error) => warn!(?target, %error, "status cannot be written"),
            }
        }
        self.status.replace(differing);
        let (mut parts, mut secrets) = (BTreeMap::new(), BTreeSet::new());
        let started = Instant::now();
        for model in &self.decided.models {
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
        let pools = self.models.iter().flat_map(|model| &model.pools);
        pools
            .map(|(key, pool)| (key.clone(), pool.as_ref()))
            .collect()
    }

    /// Each import in use. Of one that a Gateway has as it was before, the newest.
    fn imports(&self) -> BTreeMap<Key, &Import> {
        let served = self.models.iter().flat_map(|model| model.imports.values());
        let newest = self.wanted.imports.values();
        let newest = newest.filter_map(|status| status.import.as_ref());
        let all = served.chain(newest);
        all.map(|import| (import.key.clone(), import.as_ref()))
            .collect()
    }
}

/// What the world says; of what depends on a ConfigMap or Secret that is not listed yet, what it said before.
fn decide(
    world: &World,
    settings: &Settings,
    before: &Decided,
) -> (Vec<GatewayModel>, WantedStatus) {
    let (mut models, mut wanted) = build(world, settings);
    keep_drain(world, &mut models, &before.models);
    let is_unknown = |key: &Key| {
        let gateway = world.gateways.get(key);
        gateway.is_some_and(|gateway| {
            parameters::is_unknown(world, gateway) || certificates::is_unknown(world, gateway)
        })
    };
    models.retain(|model| !is_unknown(&model.key));
    let kept = before.models.iter().filter(|model| is_unknown(&model.key));
    models.extend(kept.cloned());
    models.sort_by(|a, b| a.key.cmp(&b.key));
    wanted.gateways.retain(|key, _| !is_unknown(key));
    let kept = before.wanted.gateways.iter();
    let kept = kept.filter(|(key, _)| is_unknown(key));
    wanted
        .gateways
        .extend(kept.map(|(key, status)| (key.clone(), status.clone())));
    let is_unknown = |name: &str| {
        let class = world.classes.get(name);
        class.is_some_and(|class| parameters::is_unknown_of_class(world, class))
    };
    wanted.classes.retain(|name, _| !is_unknown(name));
    let kept = before.wanted.classes.iter();
    let kept = kept.filter(|(name, _)| is_unknown(name));
    wanted
        .classes
        .extend(kept.map(|(name, status)| (name.clone(), status.clone())));
    (models, wanted)
}

/// Parameters that cannot be read change nothing: listeners keep what was last readable.
fn keep_drain(world: &World, models: &mut [GatewayModel], before: &[GatewayModel]) {
    for model in models {
        let gateway = world.gateways.get(&model.key);
        if gateway.is_none_or(|gateway| parameters::of_gateway(world, gateway).is_ok()) {
            continue;
        }
        let known = before.iter().find(|one| one.key == model.key);
        let known = known.and_then(|one| one.ports.values().next());
        if let Some(drain) = known.map(|port| port.drain) {
            model.ports.values_mut().for_each(|port| port.drain = drain);
        }
    }
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
mod tests {
    use super::*;
    use crate::fixture::{key, mk_https_listener, mk_own_parameters, mk_settings, mk_world};
    use crate::world::BadSecret;

    /// What follows from this world after what was decided before.
    fn decided(world: &World, before: &Decided) -> Decided {
        let (models, wanted) = decide(world, &mk_settings(), before);
        Decided {
            models,
            wanted,
            ..Decided::default()
        }
    }

    #[test]
    fn gateway_stays_as_it_is_until_its_parameters_are_listed() {
        let mut world = mk_world();
        let before = decided(&world, &Decided::default());
        let gateway = world.gateways.get_mut(&key("gw")).unwrap();
        gateway.parameters = Some(mk_own_parameters());
        let meanwhile = decided(&world, &before);
        assert_eq!(meanwhile.models, before.models);
        assert_eq!(meanwhile.wanted.gateways, before.wanted.gateways);
        // A Gateway that was not there before waits without a word.
        assert_eq!(
            decided(&world, &Decided::default()).wanted.gateways.len(),
            0
        );
        world.parameters.insert(key("own"), None);
        let listed = decided(&world, &meanwhile);
        assert_eq!(listed.models, before.models, "they are of its Envoys alone");
        let accepted = &listed.wanted.gateways[&key("gw")].conditions[0];
        assert_eq!(accepted.reason, "InvalidParameters");
        world
            .parameters
            .insert(key("own"), Some(parameters::parse("replicas: 1")));
        assert_eq!(decided(&world, &listed).models, before.models);
    }

    /// Another drain time is another listener, which ends connections.
    #[test]
    fn parameters_that_cannot_be_read_change_no_listener() {
        let mut world = mk_world();
        let gateway = world.gateways.get_mut(&key("gw")).unwrap();
        gateway.parameters = Some(mk_own_parameters());
        let set = |world: &mut World, text: Option<&str>| {
            let parsed = text.map(parameters::parse);
            world.parameters.insert(key("own"), parsed);
        };
        set(&mut world, Some("drainSeconds: 8"));
        let mut now = decided(&world, &Decided::default());
        let before = now.models.clone();
        assert_eq!(before[0].ports[&80].drain, Duration::from_secs(8));
        for text in [Some("drainSecond: 9"), Some("drainSeconds: 4000"), None] {
            set(&mut world, text);
            now = decided(&world, &now);
            assert_eq!(now.models, before, "{text:?}");
            let accepted = &now.wanted.gateways[&key("gw")].conditions[0];
            assert_eq!(accepted.reason, "InvalidParameters");
        }
        set(&mut world, Some("drainSeconds: 9"));
        let drain = decided(&world, &now).models[0].ports[&80].drain;
        assert_eq!(drain, Duration::from_secs(9));
    }

    #[test]
    fn gateway_stays_as_it_is_until_its_secrets_are_listed() {
        let mut world = mk_world();
        let before = decided(&world, &Decided::default());
        let gateway = world.gateways.get_mut(&key("gw")).unwrap();
        gateway
            .listeners
            .push(mk_https_listener("https", 443, None, &["cert"]));
        let sources = wanted_sources(&world, &mk_settings().controller);
        assert!(sources.contains_key(&Source::Secret(key("cert"))));
        let meanwhile = decided(&world, &before);
        assert_eq!(meanwhile.models, before.models);
        assert_eq!(meanwhile.wanted.gateways, before.wanted.gateways);
        world
            .certificates
            .insert(key("cert"), Err(BadSecret::NotFound));
        let listed = decided(&world, &meanwhile);
        let ports: Vec<_> = listed.models[0].ports.keys().copied().collect();
        assert_eq!(ports, [80, 443]);
        assert_eq!(listed.wanted.gateways[&key("gw")].listeners.len(), 2);
    }
}
