//! From the plan to the queues: what differs from what is live is offered, and nothing else.

use std::{cell::LazyCell, collections::BTreeSet, ops::Bound};

use jiff::Timestamp;
use xxhash_rust::xxh3::xxh3_64;

use super::{
    Planner,
    body::{Bodies, content_under, delete, remove_foreign},
    kept::{Kept, Standing, Standings},
};
use crate::{
    index::{
        Dirty, World,
        digest::digest_entry_in_pool,
        entry::ImportStatus,
        facts::Claim,
        undo::{Version, Wanted},
    },
    name::{ClusterName, Key},
    plan::{
        Hold, ImportPlan, KeyPlan, PoolPlan, Replanned, desired_for,
        diff::{PoolStep, Step, diff, diff_pool},
    },
    write::{
        action::{Action, Slot, Work},
        describe_import, describe_pool,
    },
};
use moment::Moment;

/// Keys that wait to be planned, taken in turn.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    keys: BTreeSet<Key>,
    /// The last that was taken: what is added again meanwhile waits for its turn.
    last: Option<Key>,
    /// Arrival of the oldest event behind it.
    since: Option<Moment>,
}

/// When a plan is made, and for what.
#[derive(Clone, Copy)]
struct Occasion {
    /// Arrival of the oldest event behind it.
    since: Moment,
    now: Moment,
    wall: Timestamp,
}

/// Imports compared in one go, some 10 ms: an event waits no longer for its turn.
pub(super) const SLICE: usize = 5000;

// === impl Planner ===

impl Planner {
    /// Plans a slice of what is dirty, once the gate is open: first what events touched, then what waited for its turn.
    /// What the slice does not hold waits too.
    pub(crate) fn publish(&mut self, now: Moment, wall: Timestamp) {
        self.world.set_wall(now, wall);
        if !self.gate.is_open() {
            return;
        }
        let Dirty { all, keys, .. } = std::mem::take(&mut self.dirty);
        let mut occasion = Occasion {
            since: self.since.take().unwrap_or(now),
            now,
            wall,
        };
        if all {
            let conflicts = self.conflicts.iter().map(|(_, key)| key.clone());
            let all = self.world.all_keys().into_iter().chain(conflicts);
            self.backlog.add(all, occasion.since);
            // of those that wait the last plan is shown
            for key in std::mem::take(&mut self.plans).into_keys() {
                if !self.backlog.contains(&key) {
                    self.directory.remove(&key);
                }
            }
        }
        let mut compared = 0;
        self.publish_keys(keys, &mut compared, occasion);
        let cost = self.cost();
        while compared < SLICE
            && let Some((key, name)) = self.imports.pop_first()
        {
            compared += self.follow_import(&key, &name, occasion);
        }
        while compared < SLICE
            && let Some((key, name)) = self.conditions.pop_first()
        {
            compared += self.follow_condition(&key, &name, occasion);
        }
        occasion.since = self.backlog.since.unwrap_or(now);
        // one at least, lest events without end starve it
        while let Some(key) = self.backlog.pop() {
            compared += cost;
            self.publish_key(&key, occasion);
            if compared >= SLICE {
                break;
            }
        }
    }

    /// These go first, up to a slice; the others wait for their turn.
    fn publish_keys(&mut self, keys: BTreeSet<Key>, compared: &mut usize, occasion: Occasion) {
        for key in keys {
            if *compared < SLICE {
                *compared += self.cost();
                self.backlog.keys.remove(&key);
                self.publish_key(&key, occasion);
            } else {
                self.backlog.add([key], occasion.since);
            }
        }
    }

    /// Imports that are compared for one key.
    fn cost(&self) -> usize {
        self.world.members.len().max(1)
    }

    /// Whether more is to be planned at once.
    pub(crate) fn is_behind(&self) -> bool {
        let is_idle =
            self.backlog.keys.is_empty() && self.imports.is_empty() && self.conditions.is_empty();
        self.gate.is_open() && !is_idle
    }

    /// Plans a key for all members.
    fn publish_key(&mut self, key: &Key, occasion: Occasion) {
        let plan = desired_for(&self.world, &self.policy, key, occasion.now);
        self.rejections.count(key, &plan, &self.metrics);
        let mut bodies = Bodies::default();
        let mut standings = Standings::default();
        for (name, import) in &plan.imports {
            let standing = self.publish_import(key, name, import, &mut bodies, occasion);
            standings.set(name, standing.awaited(plan.is_awaited(name)));
        }
        self.publish_pools(key, &plan, occasion);
        self.keep(key, &plan);
        self.keep_plan(key, Kept::new(plan, standings));
    }

    /// Until nothing is planned any more and each import shows it.
    fn keep_plan(&mut self, key: &Key, kept: Kept) {
        if is_empty(kept.plan()) && kept.standings.all_shown() {
            self.plans.remove(key);
            self.directory.remove(key);
        } else {
            self.directory.set(key, kept.has_holes());
            self.plans.insert(key.clone(), kept);
        }
    }

    /// An import changed: compares it with the kept plan, and plans the pool conditions again if they may change. Returns
    /// the number of imports compared.
    fn follow_import(&mut self, key: &Key, name: &ClusterName, occasion: Occasion) -> usize {
        if self.backlog.keys.remove(key) {
            self.publish_key(key, occasion);
            return self.cost();
        }
        let replanned = self
            .plans
            .get_mut(key)
            .map(|kept| kept.replan_import(&self.world, &self.policy, key, name, occasion.now));
        let (Some(Replanned::Same | Replanned::Changed), Some(mut kept)) =
            (replanned, self.plans.remove(key))
        else {
            // those of one key are planned together
            self.backlog.add([key.clone()], occasion.since);
            return 1;
        };
        let mut cost = 1;
        if replanned == Some(Replanned::Changed) {
            self.keep(key, kept.plan());
        }
        if let Some(import) = kept.plan().imports.get(name) {
            let mut bodies = Bodies::default();
            let standing = self.publish_import(key, name, import, &mut bodies, occasion);
            let was_shown = kept.standings.all_shown();
            let standing = standing.awaited(kept.plan().is_awaited(name));
            let moved = kept.standings.set(name, standing);
            let decides = moved && (was_shown || kept.standings.all_shown());
            // one that is still pending may carry more entries than before
            let moved = moved || standing == Standing::Pending;
            if decides || (moved && !self.unsettled.hurry(key, occasion.now)) {
                kept.plan_pools(&self.world, &self.policy, key);
                self.publish_pools(key, kept.plan(), occasion);
                cost = self.cost();
            }
        }
        self.keep_plan(key, kept);
        cost
    }

    /// Our condition of a pool changed: it is compared with the plan that is kept. Returns how many imports were compared.
    fn follow_condition(&mut self, key: &Key, name: &ClusterName, occasion: Occasion) -> usize {
        let Some(mut kept) = self.plans.remove(key) else {
            self.backlog.add([key.clone()], occasion.since);
            return 1;
        };
        if !kept.standings.all_shown() {
            kept.plan_pools(&self.world, &self.policy, key);
        }
        self.observe(key, kept.plan(), occasion);
        if let Some(pool) = kept.plan().pools.get(name) {
            self.publish_pool(key, name, pool, occasion);
        }
        self.keep_plan(key, kept);
        self.cost()
    }

    fn publish_pools(&mut self, key: &Key, plan: &KeyPlan, occasion: Occasion) {
        self.observe(key, plan, occasion);
        // a pool that is gone waits for nobody
        self.unsettled
            .retain(key, |name| plan.pools.contains_key(name));
        for (name, pool) in &plan.pools {
            self.publish_pool(key, name, pool, occasion);
        }
    }

    fn observe(&mut self, key: &Key, plan: &KeyPlan, occasion: Occasion) {
        let time = (occasion.now, occasion.wall);
        self.recorder
            .observe(&self.world, key, plan, self.leading, time);
    }

    /// Keeps of a key what its plan needs, and no more.
    fn keep(&mut self, key: &Key, plan: &KeyPlan) {
        match plan.next_change_at {
            Some(at) => self.next_changes.insert(key.clone(), at),
            None => self.next_changes.remove(key),
        };
        if is_empty(plan) {
            self.ledger.forget(key);
        } else {
            let imports = plan.imports.values();
            let planned = imports.filter_map(|import| match import {
                ImportPlan::Present(planned) => Some(&**planned),
                ImportPlan::Absent | ImportPlan::Hold(_) => None,
            });
            self.ledger.prune(key, planned);
        }
    }

    fn publish_import(
        &mut self,
        key: &Key,
        name: &ClusterName,
        plan: &ImportPlan,
        bodies: &mut Bodies,
        occasion: Occasion,
    ) -> Standing {
        let Some(step) = self.compare_import(key, name, plan, occasion.now) else {
            return Standing::Shown;
        };
        let (Some(member), Some(queue)) = (self.world.members.get(name), self.queues.get(name))
        else {
            return Standing::Shown;
        };
        let live = member.imports.items.get(key);
        let slot = Slot::Import(key.clone());
        let retry = member.undone_imports.not_before(key);
        let standing = match step {
            _ if step == Step::Conflict || retry.is_some() => Standing::Conflict,
            Step::None => Standing::Shown,
            _ => Standing::Pending,
        };
        let place = (name.clone(), key.clone());
        if step == Step::Conflict {
            if self.conflicts.insert(place) {
                tracing::warn!(member = %name, %key, reason = "Conflict",
                    "an import of this name is not ours: leaving it alone");
            }
        } else if retry.is_some() {
            if self.conflicts.insert(place) {
                tracing::warn!(member = %name, %key, reason = "Conflict",
                    "somebody keeps undoing what is written into the import: writing it ever more rarely");
            }
        } else if !self.conflicts.is_empty() {
            self.conflicts.remove(&place);
        }
        let action = match (step, plan, live) {
            (Step::None | Step::Conflict, _, _) => {
                queue.withdraw(&slot);
                return standing;
            }
            (Step::Delete, _, Some(live)) => Some((delete(live), 0)),
            (Step::RemoveForeign(pointers), _, Some(live)) => {
                let patch = remove_foreign(live, &pointers);
                let content = xxh3_64(&patch);
                Some((Action::Patch(patch), content))
            }
            // the write in flight is about to fill it
            (Step::ApplyStatus, _, Some(live))
                if *live.status == ImportStatus::default() && queue.is_creating(&slot) =>
            {
                return standing;
            }
            (step, ImportPlan::Present(planned), _) => {
                let live = LazyCell::new(|| live_statuses(&self.world, key));
                let status = bodies.status(key, planned, &mut self.ledger, &live, occasion.wall);
                let apply = Action::Apply {
                    create: step == Step::CreateMain,
                    main: bodies.main(key, &self.policy),
                    status,
                };
                let content = content_under(member.import_crd.as_ref(), planned.digest);
                Some((apply, content))
            }
            _ => None,
        };
        if let Some((action, content)) = action {
            tracing::debug!(member = %name, %key, action = action.name(), "writing an import");
            let summary = self
                .dry_run
                .then(|| describe_import(live.map(|live| &*live.status), &action));
            let work = Work {
                action,
                summary,
                content,
                base: live.map_or_else(String::new, |live| live.resource_version.clone()),
                not_before: retry,
                // a wait that is meant is no delay
                since: retry.map_or(occasion.since, |retry| retry.max(occasion.since)),
            };
            queue.offer(slot, work, occasion.now);
        }
        standing
    }

    /// Compares an import with its plan, and updates the undo detector. None: no such member.
    fn compare_import(
        &mut self,
        key: &Key,
        name: &ClusterName,
        plan: &ImportPlan,
        now: Moment,
    ) -> Option<Step> {
        let member = self.world.members.get_mut(name)?;
        let live = member.imports.items.get(key);
        let step = diff(plan, live);
        let digest = match plan {
            ImportPlan::Present(planned) => Some(planned.digest),
            ImportPlan::Absent | ImportPlan::Hold(_) => None,
        };
        match plan {
            // its imports are not known: nothing follows
            ImportPlan::Hold(Hold::Unreachable | Hold::AuthFailed | Hold::IdentityChanged) => {}
            ImportPlan::Present(_) | ImportPlan::Absent if step != Step::Conflict => {
                let wanted = Wanted {
                    digest,
                    is_shown: step == Step::None,
                };
                let version = live.map(Version::of_import);
                if self.leading && member.undone_imports.observe(key, version, wanted, now) {
                    // the condition of its export changes
                    self.dirty.keys.insert(key.clone());
                }
            }
            ImportPlan::Present(_) | ImportPlan::Absent | ImportPlan::Hold(_) => {
                member.undone_imports.forget(key);
            }
        }
        Some(step)
    }

    fn publish_pool(
        &mut self,
        key: &Key,
        name: &ClusterName,
        plan: &PoolPlan,
        Occasion { since, now, .. }: Occasion,
    ) {
        let (Some(member), Some(queue)) = (self.world.members.get_mut(name), self.queues.get(name))
        else {
            return;
        };
        let Some(record) = member.pools.records.get(key) else {
            return;
        };
        let (wanted, settled) = match plan {
            PoolPlan::NoEntry => (None, true),
            PoolPlan::Exported { condition, settled } => (Some(condition), *settled),
        };
        if settled {
            self.unsettled.settle(key, name);
        } else if !self.unsettled.may_report(key, name, now) {
            return;
        }
        let slot = Slot::Pool(key.clone());
        let live = record.facts.exported.as_deref();
        let is_shown = diff_pool(plan, live) == PoolStep::None;
        let content = digest_entry_in_pool(wanted.map(std::slice::from_ref));
        if self.leading {
            let version = Some(Version::of_pool(&record.facts));
            let wanted = Wanted {
                digest: wanted.map(|_| content),
                is_shown,
            };
            if member.pools.undone.observe(key, version, wanted, now) {
                tracing::warn!(member = %name, %key,
                    "somebody keeps undoing our entry in the pool's status: writing it ever more rarely");
            }
        }
        // gateways fill it: once one gives its place up, that shows and is planned
        if is_shown || record.facts.status_full {
            queue.withdraw(&slot);
            return;
        }
        let retry = member.pools.undone.not_before(key);
        let work = Work {
            action: Action::Pool(wanted.cloned()),
            summary: self.dry_run.then(|| describe_pool(live, wanted)),
            content,
            base: format!("{} {:x}", record.facts.uid, digest_entry_in_pool(live)),
            not_before: retry,
            since: retry.map_or(since, |retry| retry.max(since)),
        };
        queue.offer(slot, work, now);
    }
}

/// The live statuses of our imports, in every member.
fn live_statuses<'a>(world: &'a World, key: &Key) -> Vec<&'a ImportStatus> {
    let members = world.members.values();
    members
        .filter_map(|member| member.imports.items.get(key))
        .filter(|live| live.claim == Claim::Ours)
        .map(|live| &*live.status)
        .collect()
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

// === impl Backlog ===

impl Backlog {
    /// These keys wait for their turn.
    pub(super) fn add(&mut self, keys: impl IntoIterator<Item = Key>, since: Moment) {
        for key in keys {
            self.since.get_or_insert(since);
            self.keys.insert(key);
        }
    }

    pub(super) fn contains(&self, key: &Key) -> bool {
        self.keys.contains(key)
    }

    fn pop(&mut self) -> Option<Key> {
        let after = self.last.take();
        let next = after.and_then(|last| {
            let beyond = (Bound::Excluded(last), Bound::Unbounded);
            self.keys.range(beyond).next().cloned()
        });
        let next = next.or_else(|| self.keys.first().cloned());
        if let Some(key) = &next {
            self.keys.remove(key);
        }
        if self.keys.is_empty() {
            self.since = None;
        } else {
            self.last.clone_from(&next);
        }
        next
    }
}
