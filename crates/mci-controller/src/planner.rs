//! The one owner of the world: takes updates in, plans what they touch, hands the difference to the queues.
//!
//! Synchronous; time is a parameter. It never waits for a writer and gets no results from one.

mod body;
mod ended;
mod gate;
mod kept;
mod publish;
mod rejections;
#[cfg(test)]
mod tests;
mod unsettled;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use self::{
    ended::Ended, gate::Gate, kept::Kept, publish::Backlog, rejections::Rejections,
    unsettled::Unsettled,
};
use crate::{
    events::{EventQueue, PoolRecorder},
    explain::{ExplainInput, Explanation, explain},
    grid::Directory,
    index::{
        Changes, Dirty, World,
        facts::Claim,
        interest::Interest,
        member::{Coverage, Link, Member, Reach, Refusal},
        origin::Origin,
        record::Record,
        rules::Rules,
        update::{AnyKind, Update},
    },
    metrics::Metrics,
    name::{ClusterName, Key},
    overview::{Overview, OverviewBuilder},
    plan::{Policy, ledger::Ledger},
    write::Queue,
};
use moment::Moment;

/// The planner.
pub(crate) struct Planner {
    world: World,
    policy: Policy,
    ledger: Ledger,
    gate: Gate,
    queues: BTreeMap<ClusterName, Arc<Queue>>,
    /// To be planned, as a whole.
    dirty: Dirty,
    /// Imports that changed, to be compared with the plan of their keys. Bound: the imports.
    imports: BTreeSet<(Key, ClusterName)>,
    /// Pools of which only our condition changed, to be compared alone. Bound: the pools.
    conditions: BTreeSet<(Key, ClusterName)>,
    /// The plan of each key, as long as nothing that it was made of changed. Bound: of each key a line for each member,
    /// and the entries of its exporters.
    plans: BTreeMap<Key, Kept>,
    /// The same keys, and those that wait to be planned again, for people.
    directory: Directory,
    /// To be planned a slice at a time: a change that concerns every key must not hold up what happens meanwhile.
    backlog: Backlog,
    /// When the oldest event arrived that is not planned for yet.
    since: Option<Moment>,
    /// How each exporter's contact was last planned: it changes with time alone.
    reaches: BTreeMap<ClusterName, (Reach, Option<Reach>)>,
    unsettled: Unsettled,
    /// Keys whose plan changes by time alone, and when.
    next_changes: BTreeMap<Key, Moment>,
    /// Imports that are not ours, or that somebody keeps undoing, by member and key.
    conflicts: BTreeSet<(ClusterName, Key)>,
    overview_builder: OverviewBuilder,
    recorder: PoolRecorder,
    rejections: Rejections,
    /// Whether this controller writes: only then it reports events and detects who undoes its writes.
    leading: bool,
    metrics: Metrics,
    /// Each write has a summary of its changes, for the log.
    dry_run: bool,
}

// === impl Planner ===

impl Planner {
    pub(crate) fn new(
        policy: Policy,
        rules: Rules,
        gate_timeout: Duration,
        metrics: Metrics,
    ) -> Self {
        let mut world = World::new(rules)
            .with_default_mode(policy.default_mode)
            .with_own_namespace(&policy.own_namespace);
        world.clusterset = Some(policy.clusterset.clone());
        Self {
            world,
            policy,
            ledger: Ledger::default(),
            gate: Gate::new(gate_timeout),
            queues: BTreeMap::new(),
            dirty: Dirty::default(),
            imports: BTreeSet::new(),
            conditions: BTreeSet::new(),
            plans: BTreeMap::new(),
            directory: Directory::default(),
            backlog: Backlog::default(),
            since: None,
            reaches: BTreeMap::new(),
            unsettled: Unsettled::default(),
            next_changes: BTreeMap::new(),
            conflicts: BTreeSet::new(),
            overview_builder: OverviewBuilder::default(),
            recorder: PoolRecorder::default(),
            rejections: Rejections::default(),
            leading: false,
            metrics,
            dry_run: false,
        }
    }

    /// Nothing is going to be sent: writes are described instead.
    pub(crate) fn with_dry_run(mut self, dry_run: bool) -> Self {
        self.dry_run = dry_run;
        self
    }

    /// Sets where the keys are listed. Before any is planned.
    pub(crate) fn set_directory(&mut self, directory: Directory) {
        self.directory = directory;
    }

    pub(crate) fn world(&self) -> &World {
        &self.world
    }

    /// What is worth watching in a member; none before its pools are known.
    pub(crate) fn interest(&self, name: &ClusterName) -> Option<Interest> {
        self.world.members.get(name).and_then(Member::interest)
    }

    /// The kinds of a member that are to be listed again, for not all of them is kept.
    pub(crate) fn partial_kinds(&self, name: &ClusterName) -> BTreeSet<AnyKind> {
        let member = self.world.members.get(name);
        member.map(Member::partial_kinds).unwrap_or_default()
    }

    pub(crate) fn is_open(&self) -> bool {
        self.gate.is_open()
    }

    /// The inventory has been read once.
    pub(crate) fn inventory_listed(&mut self, now: Moment) {
        self.gate.inventory_listed(now);
        let changes = self.world.inventory_listed(now);
        self.take(changes, now);
    }

    pub(crate) fn add_member(&mut self, name: &ClusterName, queue: Arc<Queue>, now: Moment) {
        self.metrics.add(name);
        self.queues.insert(name.clone(), queue);
        let changes = self.world.add_member(name, now);
        self.take(changes, now);
    }

    /// Which clusters the members were when a controller last ran. Before any member is added.
    pub(crate) fn recall(&mut self, recorded: BTreeMap<ClusterName, Record>) {
        self.world.recall(recorded);
    }

    /// The events that wait for a member.
    pub(crate) fn event_queue(&mut self, name: &ClusterName) -> Arc<EventQueue> {
        self.recorder.queue(name)
    }

    /// What the inventory has about a member, besides its credentials.
    pub(crate) fn describe(&mut self, name: &ClusterName, origin: &Arc<Origin>, now: Moment) {
        let changes = self.world.describe(name, origin);
        self.take(changes, now);
    }

    /// It left the inventory: see [`World::remove_member`].
    pub(crate) fn remove_member(&mut self, name: &ClusterName, now: Moment) {
        let changes = self.world.remove_member(name, now);
        self.take(changes, now);
    }

    /// It is in the inventory again, before it was removed.
    pub(crate) fn keep_member(&mut self, name: &ClusterName) {
        self.world.keep_member(name);
    }

    /// Members that count as removed: what is in them is being taken away.
    pub(crate) fn removing(&self) -> impl Iterator<Item = &ClusterName> {
        let members = self.world.members.iter();
        let removing = members.filter(|(_, member)| member.contact.link == Link::Removing);
        removing.map(|(name, _)| name)
    }

    /// Whether a removed member is known to hold nothing of ours any more.
    pub(crate) fn is_clean(&self, name: &ClusterName) -> bool {
        self.world.members.get(name).is_none_or(|member| {
            let imports = member.imports.items.values();
            let pools = member.pools.records.values();
            let is_known = |one| matches!(one, Coverage::Listed | Coverage::NotServed);
            let known = is_known(member.imports.coverage) && is_known(member.pools.coverage);
            known
                && imports.filter(|import| import.claim == Claim::Ours).count() == 0
                && pools.filter(|pool| pool.facts.exported.is_some()).count() == 0
        })
    }

    /// See [`World::successors`].
    pub(crate) fn successors(&self, name: &ClusterName) -> Vec<ClusterName> {
        self.world.successors(name)
    }

    pub(crate) fn forget_member(&mut self, name: &ClusterName, now: Moment) {
        self.queues.remove(name);
        self.reaches.remove(name);
        self.unsettled.forget(name);
        self.conflicts.retain(|(member, _)| member != name);
        self.overview_builder.forget(name);
        self.recorder.forget(name);
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
        self.overview_builder.mark_changed(name);
        let mut changes = self.world.update(name, update, now);
        if !changes.dirty.is_empty() {
            self.since.get_or_insert(now);
        }
        let of_member = |keys: BTreeSet<Key>| keys.into_iter().map(|key| (key, name.clone()));
        let Dirty {
            imports,
            conditions,
            ..
        } = &mut changes.dirty;
        self.imports.extend(of_member(std::mem::take(imports)));
        self.conditions
            .extend(of_member(std::mem::take(conditions)));
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
            let stale_after = self.world.rules.stale_after;
            let denied = member.exports_denied(now, stale_after);
            let reach = (self.world.reach(member, now), denied);
            if self.reaches.get(name) != Some(&reach) {
                self.reaches.insert(name.clone(), reach);
                self.dirty.all = true;
            }
        }
        for member in self.world.members.values_mut() {
            self.dirty.keys.extend(member.undone_imports.tick(now));
            // nothing reports of these
            member.pools.undone.tick(now);
        }
        if self.gate.is_open() {
            self.backlog.add(self.unsettled.due(now).cloned(), now);
        }
        let due = self.next_changes.iter().filter(|(_, at)| **at <= now);
        self.dirty.keys.extend(due.map(|(key, _)| key.clone()));
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

    /// Why each member has or lacks a key; none where nothing is known of it.
    pub(crate) fn explain(&self, key: &Key, leader: bool, now: Moment) -> Option<Explanation> {
        let input = ExplainInput {
            world: &self.world,
            policy: &self.policy,
            queues: &self.queues,
            gate_open: self.gate.is_open(),
            leader,
            dry_run: self.dry_run,
            now,
        };
        explain(input, key)
    }

    /// Sets whether this controller writes. When it begins, it plans all keys, and reports events not reported yet.
    pub(crate) fn set_leading(&mut self, leading: bool) {
        if self.leading != leading {
            self.dirty.all |= leading;
            // only the controller that writes can detect who undoes it
            for member in self.world.members.values_mut() {
                self.dirty.keys.extend(member.undone_imports.clear());
                member.pools.undone.clear();
            }
        }
        self.leading = leading;
    }

    /// The slow pass: compares everything again.
    pub(crate) fn compare_all(&mut self) {
        for member in self.world.members.values_mut() {
            member.undone_imports.prune();
            member.pools.undone.prune();
        }
        self.dirty.all = true;
    }

    /// Drops what is not needed and returns an overview; call it every few seconds.
    pub(crate) fn housekeep(&mut self, now: Moment) -> Overview {
        for queue in self.queues.values() {
            queue.prune(now);
        }
        Overview {
            gate_open: self.gate.is_open(),
            guard: self.world.is_guarded(),
            conflicts: self.conflicts.len(),
            ..self.overview_builder.build(&self.world, &self.queues, now)
        }
    }

    fn take(&mut self, changes: Changes, now: Moment) {
        for Ended {
            evidence,
            exports,
            first,
        } in ended::summarise(&changes.withdrawals)
        {
            let evidence_name = evidence.reason();
            tracing::info!(exports, evidence = evidence_name, first, "exports ended");
            self.metrics.withdrawn(evidence, exports);
        }
        for withdrawal in &changes.withdrawals {
            tracing::debug!(exporter = %withdrawal.exporter, key = %withdrawal.key,
                evidence = withdrawal.evidence.reason(), "an export ended");
        }
        for (looks_like, exports) in &changes.withheld {
            tracing::warn!(
                exports,
                looks_like = looks_like.reason(),
                "exports seem to have ended, without proof, and are kept"
            );
            self.metrics.withheld(*looks_like, *exports);
        }
        if !changes.dirty.is_empty() {
            self.since.get_or_insert(now);
        }
        self.dirty.merge(changes.dirty);
    }
}
