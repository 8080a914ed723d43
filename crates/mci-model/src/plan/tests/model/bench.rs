//! The controller over the clusters, without its tasks: told what watches would tell, written by its own plan.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{MEMBERS, POOLS, clusters::Cluster, oracle::Oracle};
use crate::{
    fixtures::*,
    index::{
        Changes, Dirty, World,
        drain::later,
        member::{Link, Reach},
        rules::Rules,
        update::{Change, Kind, Update},
    },
    name::{ClusterName, Key},
    plan::{
        ImportPlan, KeyPlan, desired_for,
        diff::{PoolStep, Step, diff, diff_pool},
    },
};
use moment::Moment;

/// The clusters, and the controller over them.
pub(super) struct Bench {
    pub(super) clusters: Vec<Cluster>,
    pub(super) world: World,
    pub(super) now: Moment,
    pub(super) oracle: Oracle,
    /// Plans as a planner would have them that plans only what is dirty.
    pub(super) cache: BTreeMap<Key, KeyPlan>,
    ripening: BTreeMap<Key, Moment>,
    reaches: BTreeMap<ClusterName, Reach>,
    /// When each member that counts as removed is forgotten at the latest.
    pub(super) leaving: BTreeMap<ClusterName, Moment>,
    writes: usize,
    /// A member whose import CRD changed, and whose imports are to be listed through the new one.
    pub(super) late: Option<usize>,
}

impl Bench {
    pub(super) fn new(members: usize, rules: Rules) -> Self {
        let now = Moment::from_millis(1_000_000);
        let mut bench = Self {
            clusters: (0..members).map(|_| Cluster::new()).collect(),
            world: World::new(rules),
            now,
            oracle: Oracle::new(members, rules),
            cache: BTreeMap::new(),
            ripening: BTreeMap::new(),
            reaches: BTreeMap::new(),
            leaving: BTreeMap::new(),
            writes: 0,
            late: None,
        };
        bench.start(BTreeSet::new());
        bench
    }

    /// A controller starts: it meets who is in the inventory and answers.
    pub(super) fn start(&mut self, recorded: BTreeSet<ClusterName>) {
        self.world = World::new(self.world.rules);
        self.world.set_wall(self.now, wall(self.now));
        self.cache.clear();
        self.ripening.clear();
        self.reaches.clear();
        self.leaving.clear();
        let gone = recorded
            .iter()
            .filter(|name| !(0..self.clusters.len()).any(|m| self.is_named(m, name)))
            .count();
        self.oracle.restarted(recorded.len(), gone, self.now);
        let recorded = recorded.into_iter().map(|name| {
            let record = mk_record(&format!("cluster-{}", index(&name)));
            (name, record)
        });
        self.world.recall(recorded.collect());
        for m in 0..self.clusters.len() {
            if self.clusters[m].listed {
                let changes = self.world.add_member(&name(m), self.now);
                self.take(changes);
            }
        }
        let changes = self.world.inventory_listed(self.now);
        self.take(changes);
        for m in 0..self.clusters.len() {
            if self.clusters[m].listed && self.clusters[m].up {
                self.connect(m);
            }
        }
    }

    fn is_named(&self, m: usize, name: &ClusterName) -> bool {
        MEMBERS[m] == name.as_str() && self.clusters[m].listed
    }

    /// The lists of a new session.
    pub(super) fn connect(&mut self, m: usize) {
        let cluster = &self.clusters[m];
        let mut updates = first_lists(cluster.pools(), cluster.imports());
        for update in &mut updates {
            match update {
                Update::Connected { uid, .. } => *uid = format!("cluster-{m}"),
                Update::ImportCrd(crd) => *crd = cluster.import_crd(),
                Update::Namespaces(change) => *change = Change::Listed(cluster.namespaces()),
                Update::PoolsListed { crd, .. } => *crd = cluster.crd_check(),
                _ => {}
            }
        }
        if !cluster.serves_pools() {
            // 404: what was known stays
            updates.retain(|update| !matches!(update, Update::PoolsListed { .. }));
            let at = updates.len() - 1;
            updates.insert(at, Update::NotServed(Kind::Pools));
        }
        self.oracle.back(m, self.now);
        let served = self.clusters[m].serves_pools();
        for update in updates {
            self.tell(m, update);
        }
        if served {
            self.oracle.listed(m, &self.clusters[m], self.now);
        }
    }

    /// The list that follows another shape of the import CRD.
    pub(super) fn relist_imports(&mut self) {
        if let Some(m) = self.late.take() {
            let imports = self.clusters[m].imports();
            self.tell(m, Update::Imports(Change::Listed(imports)));
        }
    }

    /// Tells the controller, if it listens to this member.
    pub(super) fn tell(&mut self, m: usize, update: Update) {
        let changes = self.world.update(&name(m), update, self.now);
        self.take(changes);
    }

    /// Only what the controller calls dirty is planned again.
    pub(super) fn take(&mut self, changes: Changes) {
        let keys = if changes.dirty.all {
            self.cache.clear();
            self.world.all_keys()
        } else {
            let Dirty {
                keys,
                imports,
                conditions,
                ..
            } = changes.dirty;
            keys.into_iter().chain(imports).chain(conditions).collect()
        };
        for key in keys {
            let plan = desired_for(&self.world, &mk_policy(), &key, self.now);
            match plan.next_change_at {
                Some(at) => self.ripening.insert(key.clone(), at),
                None => self.ripening.remove(&key),
            };
            self.cache.insert(key, plan);
        }
    }

    pub(super) fn tick(&mut self) {
        self.world.set_wall(self.now, wall(self.now));
        let changes = self.world.tick(self.now);
        self.take(changes);
        let reaches: BTreeMap<_, _> = self
            .world
            .members
            .iter()
            .map(|(name, member)| (name.clone(), self.world.reach(member, self.now)))
            .collect();
        if reaches != self.reaches {
            self.reaches = reaches;
            self.take(Changes::all());
        }
        let ripe = self.ripening.iter().filter(|(_, at)| **at <= self.now);
        let mut changes = Changes::default();
        changes.dirty.keys = ripe.map(|(key, _)| key.clone()).collect();
        self.take(changes);
        let lost = self
            .world
            .members
            .values()
            .filter(|one| one.contact.is_lost());
        let lost = lost.count();
        self.oracle.ticked(lost, self.now);
        // as the supervisor forgets them
        let removing = self.world.members.iter();
        let removing = removing.filter(|(_, member)| member.contact.link == Link::Removing);
        let removing: Vec<ClusterName> = removing.map(|(name, _)| name.clone()).collect();
        for name in removing {
            let member = &self.world.members[&name];
            let clean = member.contact.is_up()
                && member.imports.items.is_empty()
                && member
                    .pools
                    .records
                    .values()
                    .all(|pool| pool.facts.exported.is_none());
            let until = self.leaving.entry(name.clone());
            let until = *until.or_insert(self.now + Duration::from_secs(30));
            if clean || until <= self.now {
                self.leaving.remove(&name);
                let changes = self.world.forget(&name);
                self.take(changes);
            }
        }
    }

    /// Writes until nothing is left to write, as the API servers take it; returns how many writes that took.
    pub(super) fn settle(&mut self) -> usize {
        let before = self.writes;
        for _ in 0..12 {
            let mut told: Vec<(usize, Update)> = Vec::new();
            for (key, plan) in &self.cache {
                for (importer, import) in &plan.imports {
                    let m = index(importer);
                    let member = &self.world.members[importer];
                    if !self.clusters[m].up || !can_write(member.contact.link) {
                        continue;
                    }
                    let live = member.imports.items.get(key);
                    let step = diff(import, live);
                    let cluster = &mut self.clusters[m];
                    let change = match (&step, import) {
                        (Step::None | Step::Conflict, _) => None,
                        (Step::RemoveForeign(pointers), _) => cluster.patch_import(key, pointers),
                        (Step::Delete, _) => cluster.delete_import(key),
                        (_, ImportPlan::Present(planned)) => cluster.apply_import(key, planned),
                        _ => None,
                    };
                    told.extend(change.map(|change| (m, Update::Imports(change))));
                }
                for (exporter, pool) in &plan.pools {
                    let m = index(exporter);
                    let member = &self.world.members[exporter];
                    let Some(record) = member.pools.get(key) else {
                        continue;
                    };
                    if !self.clusters[m].up || !can_write(member.contact.link) {
                        continue;
                    }
                    let wanted = match diff_pool(pool, record.facts.exported.as_deref()) {
                        PoolStep::None => continue,
                        PoolStep::Set(condition) => Some(vec![condition]),
                        PoolStep::Remove => None,
                    };
                    let facts = self.clusters[m].set_exported(key, wanted);
                    told.extend(facts.map(|facts| (m, Update::PoolApplied(facts))));
                }
            }
            if told.is_empty() {
                return self.writes - before;
            }
            self.writes += told.len();
            for (m, update) in told {
                self.tell(m, update);
            }
        }
        panic!("the plan does not settle");
    }

    /// Whether a new controller would know at once all that this one knows.
    pub(super) fn is_quiet(
        &self,
        entries: &[Vec<BTreeMap<String, Option<jiff::Timestamp>>>],
    ) -> bool {
        let stands = |one: &Cluster| one.up && one.listed && one.crd_stands();
        let exported = |p: usize, entries: &BTreeMap<String, Option<jiff::Timestamp>>| {
            let mut entries = entries.iter();
            entries.all(|(exporter, drains)| {
                let exporter = &self.clusters[index(&mk_name(exporter))];
                exporter.exports(POOLS[p]) && drains.is_none()
            })
        };
        let mut pools = entries.iter().flat_map(|pools| pools.iter().enumerate());
        // where all importers have upstream's shape, nothing says that a drain is under way: a new controller ends it
        let drains = |pool: &&str| {
            let mut members = self.world.members.values();
            members.any(|member| member.pools.draining.until(&mk_key(pool)).is_some())
        };
        self.clusters.iter().all(stands)
            && pools.all(|(p, entries)| exported(p, entries))
            && !POOLS.iter().any(drains)
    }

    /// Entries as the importers' API servers hold them, by importer and pool: exporter, and until when it drains.
    pub(super) fn entries(&self) -> Vec<Vec<BTreeMap<String, Option<jiff::Timestamp>>>> {
        let of = |cluster: &Cluster, pool: &&str| cluster.entries(&mk_key(pool));
        self.clusters
            .iter()
            .map(|cluster| POOLS.iter().map(|pool| of(cluster, pool)).collect())
            .collect()
    }
}

fn can_write(link: Link) -> bool {
    matches!(link, Link::Live | Link::Suspect | Link::Removing)
}

pub(super) fn name(m: usize) -> ClusterName {
    mk_name(MEMBERS[m])
}

pub(super) fn index(name: &ClusterName) -> usize {
    let found = MEMBERS.iter().position(|one| *one == name.as_str());
    found.expect("a member")
}

pub(super) fn wall(now: Moment) -> jiff::Timestamp {
    later(jiff::Timestamp::UNIX_EPOCH, now.since_start())
}
