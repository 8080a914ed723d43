//! The one owner of the world: takes updates in, plans what they touch, hands the difference to the queues.
//!
//! Synchronous; time comes in. It never waits for a writer nor hears from one.

mod gate;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use crd::{
    InferencePoolImport, InferencePoolImportStatus,
    annotations::{CLUSTERSET, CONTROLLER_INSTANCE, MANAGED_BY, MANAGED_BY_CONTROLLER},
    import::API_VERSION,
};
use jiff::Timestamp;
use serde_json::json;
use xxhash_rust::xxh3::xxh3_64;

use self::gate::Gate;
use crate::{
    events::{Audience, PoolTeller},
    index::{
        Changes, Dirty, Evidence, World,
        facts::{Claim, LiveImport},
        interest::Interest,
        member::{Coverage, Member, Reach, Refusal},
        update::Update,
    },
    metrics::Metrics,
    name::{ClusterName, Key},
    overview::{Observer, Overview},
    plan::{
        ImportPlan, KeyPlan, PlannedImport, Policy, PoolPlan, desired_for,
        diff::{PoolStep, Step, diff, diff_pool},
        ledger::Ledger,
    },
    write::{
        Queue,
        action::{Action, Slot, Work},
        describe_import, describe_pool,
    },
};
use moment::Moment;

/// The planner.
pub(crate) struct Planner {
    world: World,
    policy: Policy,
    ledger: Ledger,
    gate: Gate,
    queues: BTreeMap<ClusterName, Arc<Queue>>,
    dirty: Dirty,
    /// When the oldest event arrived that is not planned for yet.
    since: Option<Moment>,
    /// How each exporter's contact was last planned: it changes with time alone.
    reaches: BTreeMap<ClusterName, Reach>,
    /// `Exported` that is not settled is held back until then.
    unsettled: BTreeMap<Key, BTreeMap<ClusterName, Moment>>,
    /// Imports in the way, by member and key.
    conflicts: BTreeSet<(ClusterName, Key)>,
    observer: Observer,
    teller: PoolTeller,
    /// Whether events are told: only the leader does.
    speaking: bool,
    metrics: Metrics,
    /// Each write says what it would change, for the log.
    dry_run: bool,
}

/// How long `Exported` waits for importers that are on their way.
const SETTLE: Duration = Duration::from_secs(1);

/// When a plan is made, and for what.
#[derive(Clone, Copy)]
struct Occasion {
    /// Arrival of the oldest event behind it.
    since: Moment,
    now: Moment,
    wall: Timestamp,
}

/// A body per content: importers that read the same share it.
#[derive(Default)]
struct Bodies {
    /// By address of the plan: one per audience and key.
    made: Vec<(Arc<PlannedImport>, Bytes, u64)>,
}

// === impl Planner ===

impl Planner {
    pub(crate) fn new(
        policy: Policy,
        stale_after: Duration,
        gate_timeout: Duration,
        metrics: Metrics,
        now: Moment,
    ) -> Self {
        Self {
            world: World::new(stale_after).with_default_mode(policy.default_mode),
            policy,
            ledger: Ledger::default(),
            gate: Gate::new(now + gate_timeout),
            queues: BTreeMap::new(),
            dirty: Dirty::default(),
            since: None,
            reaches: BTreeMap::new(),
            unsettled: BTreeMap::new(),
            conflicts: BTreeSet::new(),
            observer: Observer::default(),
            teller: PoolTeller::default(),
            speaking: false,
            metrics,
            dry_run: false,
        }
    }

    /// Nothing is going to be sent: writes are described instead.
    pub(crate) fn with_dry_run(mut self, dry_run: bool) -> Self {
        self.dry_run = dry_run;
        self
    }

    pub(crate) fn world(&self) -> &World {
        &self.world
    }

    /// What is worth watching in a member; none before its pools are known.
    pub(crate) fn interest(&self, name: &ClusterName) -> Option<Interest> {
        self.world.members.get(name).and_then(Member::interest)
    }

    pub(crate) fn is_open(&self) -> bool {
        self.gate.is_open()
    }

    /// The inventory has been read once.
    pub(crate) fn inventory_listed(&mut self) {
        self.gate.inventory_listed();
    }

    pub(crate) fn add_member(&mut self, name: &ClusterName, queue: Arc<Queue>, now: Moment) {
        self.metrics.add(name);
        self.queues.insert(name.clone(), queue);
        let changes = self.world.add_member(name, now);
        self.take(changes, now);
    }

    pub(crate) fn remove_member(&mut self, name: &ClusterName, now: Moment) {
        let changes = self.world.remove_member(name);
        self.take(changes, now);
    }

    /// A member is gone from the inventory, but not believed to be: its exports stay.
    pub(crate) fn withhold_removal(&self, name: &ClusterName) {
        let pools = self.world.members.get(name).map(|member| &member.pools);
        let exported = pools.into_iter().flatten();
        let count = exported.filter(|(_, record)| record.is_exported()).count();
        self.metrics.withheld(Evidence::MemberRemoved, count.max(1));
    }

    /// Whether a removed member is known to hold nothing of ours any more.
    pub(crate) fn is_clean(&self, name: &ClusterName) -> bool {
        self.world.members.get(name).is_none_or(|member| {
            let imports = member.imports.items.values();
            let pools = member.pools.values();
            let known = member.imports.coverage != Coverage::Never
                && member.pools_coverage != Coverage::Never;
            known
                && imports.filter(|import| import.claim == Claim::Ours).count() == 0
                && pools.filter(|pool| pool.facts.exported.is_some()).count() == 0
        })
    }

    pub(crate) fn forget_member(&mut self, name: &ClusterName, now: Moment) {
        self.queues.remove(name);
        self.reaches.remove(name);
        self.unsettled.retain(|_, exporters| {
            exporters.remove(name);
            !exporters.is_empty()
        });
        self.conflicts.retain(|(member, _)| member != name);
        self.observer.forget(name);
        self.teller.forget(name);
        self.metrics.forget(name);
        let changes = self.world.forget(name);
        self.take(changes, now);
    }

    /// Takes an update in; returns members that must stop what they do.
    pub(crate) fn update(
        &mut self,
        name: &ClusterName,
        update: Update,
        now: Moment,
    ) -> Vec<(ClusterName, Refusal)> {
        self.observer.touch(name);
        let mut changes = self.world.update(name, update, now);
        let refused = std::mem::take(&mut changes.refused);
        self.take(changes, now);
        for (name, refusal) in &refused {
            let changes = self.world.update(name, Update::Refused(*refusal), now);
            self.take(changes, now);
        }
        refused
    }

    /// What time alone changes. Call it a few times a second.
    pub(crate) fn tick(&mut self, now: Moment) {
        let changes = self.world.tick(now);
        self.take(changes, now);
        for (name, member) in &self.world.members {
            let reach = self.world.reach(member, now);
            if self.reaches.get(name) != Some(&reach) {
                self.reaches.insert(name.clone(), reach);
                self.dirty.all = true;
            }
        }
        let due = |exporters: &BTreeMap<_, Moment>| exporters.values().any(|until| *until <= now);
        let ripe = self.unsettled.iter();
        let ripe = ripe.filter(|(_, exporters)| due(exporters));
        let ripe: Vec<Key> = ripe.map(|(key, _)| key.clone()).collect();
        self.dirty.keys.extend(ripe);
        if self.gate.check(&self.world, now) {
            // what waited for the gate is not slow
            self.plan_afresh();
        }
    }

    /// Plans all that is known again, as if it had just come.
    pub(crate) fn plan_afresh(&mut self) {
        self.dirty.all = true;
        self.since = None;
    }

    /// Whether events are told from now on.
    pub(crate) fn speak(&mut self, speaking: bool) {
        self.speaking = speaking;
    }

    /// The slow pass: compares everything again.
    pub(crate) fn compare_all(&mut self) {
        self.dirty.all = true;
    }

    /// Forgets what nobody needs and says how all stands; for every few seconds.
    pub(crate) fn housekeep(&mut self, now: Moment) -> Overview {
        for queue in self.queues.values() {
            queue.prune(now);
        }
        Overview {
            gate_open: self.gate.is_open(),
            conflicts: self.conflicts.len(),
            ..self.observer.draw(&self.world, &self.queues, now)
        }
    }

    /// Plans what is dirty, once the gate is open.
    pub(crate) fn publish(&mut self, now: Moment, wall: Timestamp) {
        if !self.gate.is_open() || self.dirty.is_empty() {
            return;
        }
        let Dirty { all, mut keys } = std::mem::take(&mut self.dirty);
        let occasion = Occasion {
            since: self.since.take().unwrap_or(now),
            now,
            wall,
        };
        if all {
            keys.extend(self.world.all_keys());
            let stale: Vec<Key> = self.conflicts.iter().map(|(_, key)| key.clone()).collect();
            keys.extend(stale);
        }
        for key in keys {
            self.publish_key(&key, occasion);
        }
    }

    fn take(&mut self, changes: Changes, now: Moment) {
        for withdrawal in &changes.withdrawals {
            tracing::info!(exporter = %withdrawal.exporter, key = %withdrawal.key,
                evidence = withdrawal.evidence.reason(), "export ended");
            self.metrics.withdrawn(withdrawal.evidence);
        }
        if changes.withheld > 0 {
            tracing::warn!(
                pools = changes.withheld,
                "pools vanished without proof and are kept"
            );
            self.metrics
                .withheld(Evidence::PoolAbsent, changes.withheld);
        }
        if !changes.dirty.is_empty() {
            self.since.get_or_insert(now);
        }
        self.dirty.merge(changes.dirty);
    }

    fn publish_key(&mut self, key: &Key, occasion: Occasion) {
        let plan = desired_for(&self.world, &self.policy, key, occasion.now);
        let audience = Audience {
            queues: &self.queues,
            metrics: &self.metrics,
            speaking: self.speaking,
            now: occasion.now,
            wall: occasion.wall,
        };
        self.teller.planned(&self.world, key, &plan, &audience);
        let mut bodies = Bodies::default();
        for (name, import) in &plan.imports {
            self.publish_import(key, name, import, &mut bodies, occasion);
        }
        // a pool that is gone waits for nobody
        if let Some(exporters) = self.unsettled.get_mut(key) {
            exporters.retain(|name, _| plan.pools.contains_key(name));
        }
        for (name, pool) in &plan.pools {
            self.publish_pool(key, name, pool, occasion);
        }
        if self.unsettled.get(key).is_some_and(BTreeMap::is_empty) {
            self.unsettled.remove(key);
        }
        if is_empty(&plan) {
            self.ledger.forget(key);
        }
    }

    fn publish_import(
        &mut self,
        key: &Key,
        name: &ClusterName,
        plan: &ImportPlan,
        bodies: &mut Bodies,
        occasion: Occasion,
    ) {
        let (Some(member), Some(queue)) = (self.world.members.get(name), self.queues.get(name))
        else {
            return;
        };
        let live = member.imports.items.get(key);
        let slot = Slot::Import(key.clone());
        let step = diff(plan, live);
        let place = (name.clone(), key.clone());
        if step == Step::Conflict {
            if self.conflicts.insert(place) {
                tracing::warn!(member = %name, %key, reason = "Conflict",
                    "an import of this name is not ours: leaving it alone");
            }
        } else {
            self.conflicts.remove(&place);
        }
        let action = match (step, plan, live) {
            (Step::None | Step::Conflict, _, _) => {
                queue.withdraw(&slot);
                return;
            }
            (Step::Delete, _, Some(live)) => Some((delete(live), 0)),
            (Step::RemoveForeign(pointers), _, Some(live)) => {
                let patch = remove_foreign(live, &pointers);
                let content = xxh3_64(&patch);
                Some((Action::Patch(patch), content))
            }
            (step, ImportPlan::Present(planned), _) => {
                let lives = self.world.members.values();
                let lives: Vec<&InferencePoolImportStatus> = lives
                    .filter_map(|member| member.imports.items.get(key))
                    .filter(|live| live.claim == Claim::Ours)
                    .map(|live| &live.status)
                    .collect();
                let (status, content) = bodies.get(
                    planned,
                    || self.ledger.stamp(key, planned, &lives, occasion.wall),
                    key,
                );
                let apply = Action::Apply {
                    create: step == Step::CreateMain,
                    main: main_body(key, &self.policy),
                    status,
                };
                Some((apply, content))
            }
            _ => None,
        };
        if let Some((action, content)) = action {
            tracing::debug!(member = %name, %key, action = action.name(), "writing an import");
            let summary = self
                .dry_run
                .then(|| describe_import(live.map(|live| &live.status), &action));
            let work = Work {
                action,
                summary,
                content,
                base: live.map_or_else(String::new, |live| live.resource_version.clone()),
                since: occasion.since,
            };
            queue.offer(slot, work, occasion.now);
        }
    }

    fn publish_pool(
        &mut self,
        key: &Key,
        name: &ClusterName,
        plan: &PoolPlan,
        Occasion { since, now, .. }: Occasion,
    ) {
        let (Some(member), Some(queue)) = (self.world.members.get(name), self.queues.get(name))
        else {
            return;
        };
        let Some(record) = member.pools.get(key) else {
            return;
        };
        let settled = !matches!(plan, PoolPlan::Exported { settled: false, .. });
        if settled {
            if let Some(exporters) = self.unsettled.get_mut(key) {
                exporters.remove(name);
            }
        } else {
            let exporters = self.unsettled.entry(key.clone()).or_default();
            let until = exporters.entry(name.clone()).or_insert(now + SETTLE);
            if now < *until {
                return;
            }
            // as it is now; and again in a second, if it still moves
            *until = now + SETTLE;
        }
        let slot = Slot::Pool(key.clone());
        let live = record.facts.exported.as_deref();
        let wanted = match diff_pool(plan, live) {
            PoolStep::None => {
                queue.withdraw(&slot);
                return;
            }
            PoolStep::Set(condition) => Some(condition),
            PoolStep::Remove => None,
        };
        let said = |condition: &crd::Condition| {
            let crd::Condition {
                status,
                reason,
                message,
                observed_generation,
                ..
            } = condition;
            format!("{status} {reason} {observed_generation:?} {message}")
        };
        let content = xxh3_64(wanted.as_ref().map(said).unwrap_or_default().as_bytes());
        let base = live.map_or_else(String::new, |live| {
            let texts: Vec<String> = live.iter().map(said).collect();
            format!("{} {}", record.facts.uid, texts.join("\n"))
        });
        let summary = self.dry_run.then(|| describe_pool(live, wanted.as_ref()));
        let work = Work {
            action: Action::Pool(wanted),
            summary,
            content,
            base,
            since,
        };
        queue.offer(slot, work, now);
    }
}

// === impl Bodies ===

impl Bodies {
    /// The serialised status, made once per plan, and the hash of what it says without times.
    fn get(
        &mut self,
        planned: &Arc<PlannedImport>,
        stamp: impl FnOnce() -> InferencePoolImportStatus,
        key: &Key,
    ) -> (Bytes, u64) {
        let known = self
            .made
            .iter()
            .find(|(known, _, _)| Arc::ptr_eq(known, planned));
        if let Some((_, body, content)) = known {
            return (body.clone(), *content);
        }
        let bare = json!(planned.status).to_string();
        let content = xxh3_64(bare.as_bytes());
        let mut object = InferencePoolImport::new(&key.namespace, &key.name);
        object.status = Some(stamp());
        let body = Bytes::from(json!(object).to_string());
        self.made.push((planned.clone(), body.clone(), content));
        (body, content)
    }
}

fn main_body(key: &Key, policy: &Policy) -> Bytes {
    let object = json!({
        "apiVersion": API_VERSION,
        "kind": crd::annotations::IMPORT_KIND,
        "metadata": {
            "namespace": *key.namespace,
            "name": *key.name,
            "labels": {
                MANAGED_BY: MANAGED_BY_CONTROLLER,
                CLUSTERSET: policy.clusterset,
                CONTROLLER_INSTANCE: policy.instance,
            },
        },
    });
    object.to_string().into()
}

fn delete(live: &LiveImport) -> Action {
    Action::Delete {
        uid: live.uid.clone(),
        resource_version: live.resource_version.clone(),
    }
}

/// A patch that holds only for the object as it was seen: positions shift otherwise.
fn remove_foreign(live: &LiveImport, pointers: &[String]) -> Bytes {
    let mut patch = vec![json!({
        "op": "test",
        "path": "/metadata/resourceVersion",
        "value": live.resource_version,
    })];
    let removals = pointers.iter();
    patch.extend(removals.map(|path| json!({"op": "remove", "path": path})));
    json!(patch).to_string().into()
}

/// Whether nothing is planned for a key any more.
fn is_empty(plan: &KeyPlan) -> bool {
    let nothing_imported = plan
        .imports
        .values()
        .all(|import| !matches!(import, ImportPlan::Present(_)));
    let nothing_exported = plan
        .pools
        .values()
        .all(|pool| matches!(pool, PoolPlan::NoEntry));
    nothing_imported && nothing_exported
}
