//! Events of exported pools: their state is compared with what was reported whenever their key is planned.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crd::{Condition, RoutingMode, ServiceType, conditions};
use jiff::Timestamp;

use super::{
    EventQueue, EventReason, pool,
    reason::{self, EXPORTED_REASONS},
    reported::{Observations, Reported},
};
use crate::{
    export::Export,
    index::{
        World,
        facts::{Claim, PoolFacts},
        member::{Link, Reach},
    },
    name::{ClusterName, Key},
    plan::{Hold, ImportPlan, KeyPlan, PoolPlan, entry_of, join_names},
};
use moment::Moment;

/// Records events of the pools of all members.
#[derive(Debug, Default)]
pub(crate) struct PoolRecorder {
    /// Pools that concern us, with their uid.
    pools: BTreeMap<Key, BTreeMap<ClusterName, (String, Reported)>>,
    queues: BTreeMap<ClusterName, Arc<EventQueue>>,
}

/// Members that do not import a key, by obstacle: a reason and its explanation.
type Obstacles = BTreeMap<(EventReason, &'static str), BTreeSet<ClusterName>>;

const MISSING: &str = "not imported until the namespace is there and not terminating";
const FOREIGN: &str = "an InferencePoolImport of this name belongs to somebody else and is left alone: rename the pool, \
    or delete that import";
const CONTESTED: &str = "somebody keeps undoing what is written into the InferencePoolImport, so it is written ever more \
    rarely: end the other writer, which its managedFields name";
const SILENT: &str = "no contact, so changes are late there and what is there stays";
const NO_HEALTH_PORT: &str = "the endpoint picker's Service has no port named health or grpc-health, so importing \
    gateways cannot check it: name one, or set the annotation isthmus.dev/health-port";
const CROWDED_OUT: &str = "too many clusters export this pool: the oldest pools are listed in the imports, this one is not";
const STATUS_FULL: &str = "the pool's status has 32 parents already, so the condition Exported has no place there: \
    remove those of controllers that are gone";
const REJECTED: &str =
    "addresses of the endpoint picker's Service are not passed on to other clusters";

// === impl PoolRecorder ===

impl PoolRecorder {
    /// The events that wait for a member.
    pub(crate) fn queue(&mut self, member: &ClusterName) -> Arc<EventQueue> {
        self.queues.entry(member.clone()).or_default().clone()
    }

    pub(crate) fn forget(&mut self, member: &ClusterName) {
        self.queues.remove(member);
        for pools in self.pools.values_mut() {
            pools.remove(member);
        }
    }

    /// A key was planned. What another leader may or may not have reported is reported once we lead: if it did, the event
    /// has the same name.
    pub(crate) fn observe(
        &mut self,
        world: &World,
        key: &Key,
        plan: &KeyPlan,
        leading: bool,
        time: (Moment, Timestamp),
    ) {
        let mut before = self.pools.remove(key).unwrap_or_default();
        let mut after = BTreeMap::new();
        let mut obstacles = None;
        for name in plan.pools.keys() {
            let member = world.members.get(name);
            let Some(record) = member.and_then(|member| member.pools.get(key)) else {
                continue;
            };
            let facts = &record.facts;
            let known = before.remove(name).filter(|(uid, _)| *uid == facts.uid);
            let (is_first, concerns_us) = (known.is_none(), record.concerns_us());
            if is_first && !concerns_us {
                continue;
            }
            let ours = facts.exported.as_deref();
            let live = ours.and_then(|ours| conditions::find(ours, conditions::EXPORTED));
            let obstacles =
                obstacles.get_or_insert_with(|| find_obstacles(world, key, plan, time.0));
            let found = observe_pool(name, facts, live, plan, obstacles);
            // the writer of the condition reports it, and has reported what held when we first saw the pool
            let is_known = |reason| match live {
                Some(live) if EXPORTED_REASONS.contains(&reason) => {
                    (is_first || !leading) && live.reason == reason
                }
                live => is_first && live.is_some(),
            };
            let queue = leading.then(|| self.queue(name));
            let regarding = pool(key, &facts.uid);
            let mut reported = known.map(|(_, reported)| reported).unwrap_or_default();
            reported.observe(&regarding, found, is_known, queue.as_deref(), time);
            if concerns_us || !reported.is_empty() {
                after.insert(name.clone(), (facts.uid.clone(), reported));
            }
        }
        if !after.is_empty() {
            self.pools.insert(key.clone(), after);
        }
    }
}

/// The obstacles for all exporters of a key.
fn find_obstacles(world: &World, key: &Key, plan: &KeyPlan, now: Moment) -> Obstacles {
    let mut found = Obstacles::new();
    for (name, import) in &plan.imports {
        let member = world.members.get(name);
        let Some(member) = member.filter(|member| member.contact.link != Link::Removing) else {
            continue;
        };
        let is_silent = member.contact.met && world.reach(member, now) != Reach::Reachable;
        let live = member.imports.items.get(key);
        let is_foreign = live.is_some_and(|live| live.claim == Claim::Foreign);
        let obstacle = match import {
            _ if is_silent => (reason::CLUSTER_UNREACHABLE, SILENT),
            ImportPlan::Hold(Hold::Unreachable | Hold::AuthFailed) => {
                (reason::CLUSTER_UNREACHABLE, SILENT)
            }
            ImportPlan::Hold(Hold::NamespaceMissing) => (reason::NAMESPACE_MISSING, MISSING),
            ImportPlan::Present(_) if is_foreign => (reason::IMPORT_CONFLICT, FOREIGN),
            ImportPlan::Present(_) if member.undone_imports.is_in_conflict(key) => {
                (reason::IMPORT_CONFLICT, CONTESTED)
            }
            _ => continue,
        };
        found.entry(obstacle).or_default().insert(name.clone());
    }
    found
}

/// All that holds for the pool of `exporter` under this key, whose condition `Exported` is `live` now.
fn observe_pool(
    exporter: &ClusterName,
    pool: &PoolFacts,
    live: Option<&Condition>,
    plan: &KeyPlan,
    obstacles: &Obstacles,
) -> Observations {
    let mut found = Observations::default();
    let export = &pool.export;
    if let Some(PoolPlan::Exported { condition, settled }) = plan.pools.get(exporter) {
        // the last condition holds until the new one is settled
        let condition = if *settled { Some(condition) } else { live };
        let mut reasons = EXPORTED_REASONS.into_iter();
        let reason = reasons.find(|it| condition.is_some_and(|live| live.reason == *it));
        // invalid annotations have a reason of their own
        if let (Some(reason), Some(condition)) = (reason, condition)
            && !matches!(export, Export::Invalid(_))
        {
            found.add(reason, [""], &condition.message);
        }
    }
    let unmet = plan.ignored.get(exporter).into_iter().flatten();
    for text in export.complaints(unmet) {
        found.add(reason::INVALID_EXPORT_ANNOTATION, [&*text], &text);
    }
    if !export.is_requested() {
        return found;
    }
    for ((reason, text), members) in obstacles {
        let importers = members.iter().filter(|name| *name != exporter);
        let others: Vec<&str> = importers.map(ClusterName::as_str).collect();
        if !others.is_empty() {
            let names = join_names(others.iter().copied());
            found.add(reason, others, &format!("{text}: {names}"));
        }
    }
    if lacks_health_port(exporter, plan) {
        found.add(reason::HEALTH_PORT_NOT_FOUND, [""], NO_HEALTH_PORT);
    }
    if plan.crowded_out.contains(exporter) {
        found.add(reason::TOO_MANY_EXPORTERS, [""], CROWDED_OUT);
    }
    if pool.status_full {
        found.add(reason::POOL_STATUS_FULL, [""], STATUS_FULL);
    }
    let rejected = plan.rejected.iter().filter(|(name, _)| name == exporter);
    let why: BTreeSet<&str> = rejected.map(|(_, why)| why.reason()).collect();
    if !why.is_empty() {
        let note = format!("{REJECTED}: {}", join_names(why.iter().copied()));
        found.add(reason::ADDRESS_REJECTED, why, &note);
    }
    found
}

/// Whether its entry in imports has no port for health checks.
fn lacks_health_port(exporter: &ClusterName, plan: &KeyPlan) -> bool {
    let picker = entry_of(&plan.imports, exporter)
        .filter(|entry| entry.routing_mode == RoutingMode::EndpointMode)
        .and_then(|entry| entry.endpoint_picker.as_ref());
    picker.is_some_and(|picker| {
        let mut services = picker.service.iter();
        let is_exported = services.all(|service| service.type_ != ServiceType::ExternalName);
        picker.health.is_none() && is_exported
    })
}

#[cfg(test)]
mod tests;
