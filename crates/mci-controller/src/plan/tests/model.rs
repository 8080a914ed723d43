//! Random events against the index and the plan, judged by a naive oracle that was written apart from both.
//!
//! Clusters are kept as their API servers would hold them; the controller is told what a watch would tell, and no more.
//! After each event its plan is written into the clusters in contact. `PROPTEST_CASES` scales it.

mod clusters;
mod oracle;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use proptest::prelude::*;

use self::{
    clusters::{Cluster, CrdState},
    oracle::Oracle,
};
use super::super::{ImportPlan, KeyPlan, desired, desired_for};
use crate::{
    fixtures::*,
    index::{
        Changes, World,
        drain::later,
        flavour::Flavour,
        member::{Fault, Link, Refusal},
        rules::Rules,
        update::{Change, Update},
    },
    name::{ClusterName, Key},
    plan::{
        PoolPlan,
        diff::{PoolStep, Step, diff, diff_pool},
    },
};
use moment::Moment;

/// What can happen.
#[derive(Clone, Debug)]
enum Op {
    /// With so many seconds of drain; none: the operator's default.
    Export(usize, usize, Option<u32>),
    Unexport(usize, usize),
    Invalidate(usize, usize),
    Delete(usize, usize),
    /// There, going, or missing.
    Namespace(usize, Option<bool>),
    PoolsCrd(usize, CrdState),
    ImportCrd(usize, Flavour),
    ReinstallImportCrd(usize),
    Lose(usize, bool),
    Refuse(usize),
    Return(usize),
    Remove(usize),
    Readd(usize),
    Forge(usize, usize, usize),
    Restart,
    Wait(u64),
}

const MEMBERS: [&str; 5] = ["a", "b", "c", "d", "e"];
const POOLS: [&str; 2] = ["x", "y"];

fn any_op(members: usize) -> impl Strategy<Value = Op> {
    let m = move || 0..members;
    let p = || 0..POOLS.len();
    let crd = prop_oneof![
        Just(CrdState::Stands),
        Just(CrdState::Reinstalled),
        Just(CrdState::Going),
        Just(CrdState::Gone)
    ];
    let flavour = prop_oneof![
        3 => Just(Flavour::Superset),
        1 => Just(Flavour::Upstream),
        1 => Just(Flavour::Absent)
    ];
    let drain = prop_oneof![Just(None), Just(Some(0)), Just(Some(20)), Just(Some(3600))];
    let namespace = prop_oneof![3 => Just(Some(false)), 1 => Just(Some(true)), 1 => Just(None)];
    let wait = prop_oneof![
        Just(1),
        Just(4),
        Just(12),
        Just(31),
        Just(61),
        Just(310),
        Just(4000)
    ];
    prop_oneof![
        6 => (m(), p(), drain).prop_map(|(m, p, drain)| Op::Export(m, p, drain)),
        3 => (m(), p()).prop_map(|(m, p)| Op::Unexport(m, p)),
        1 => (m(), p()).prop_map(|(m, p)| Op::Invalidate(m, p)),
        2 => (m(), p()).prop_map(|(m, p)| Op::Delete(m, p)),
        2 => (m(), namespace).prop_map(|(m, state)| Op::Namespace(m, state)),
        2 => (m(), crd).prop_map(|(m, state)| Op::PoolsCrd(m, state)),
        2 => (m(), flavour).prop_map(|(m, flavour)| Op::ImportCrd(m, flavour)),
        1 => m().prop_map(Op::ReinstallImportCrd),
        3 => (m(), any::<bool>()).prop_map(|(m, denied)| Op::Lose(m, denied)),
        1 => m().prop_map(Op::Refuse),
        5 => m().prop_map(Op::Return),
        1 => m().prop_map(Op::Remove),
        3 => m().prop_map(Op::Readd),
        1 => (m(), m(), p()).prop_map(|(t, m, p)| Op::Forge(t, m, p)),
        2 => Just(Op::Restart),
        5 => wait.prop_map(Op::Wait),
    ]
}

/// The clusters, and the controller over them.
struct Bench {
    clusters: Vec<Cluster>,
    world: World,
    now: Moment,
    oracle: Oracle,
    /// Plans as a planner would have them that plans only what is dirty.
    cache: BTreeMap<Key, KeyPlan>,
    ripening: BTreeMap<Key, Moment>,
    reaches: BTreeMap<ClusterName, crate::index::member::Reach>,
    /// When each member that counts as removed is forgotten at the latest.
    leaving: BTreeMap<ClusterName, Moment>,
    writes: usize,
}

impl Bench {
    fn new(members: usize, rules: Rules) -> Self {
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
        };
        bench.start(BTreeSet::new());
        bench
    }

    /// A controller starts: it meets who is in the inventory and answers.
    fn start(&mut self, recorded: BTreeSet<ClusterName>) {
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
        self.world.recorded_members(recorded);
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
    fn connect(&mut self, m: usize) {
        let cluster = &self.clusters[m];
        let mut updates = first_lists(cluster.pools(), cluster.imports());
        for update in &mut updates {
            match update {
                Update::Connected { uid } => *uid = format!("cluster-{m}"),
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
            updates.insert(at, Update::NotServed(crate::index::update::Kind::Pools));
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

    /// Tells the controller, if it listens to this member.
    fn tell(&mut self, m: usize, update: Update) {
        let changes = self.world.update(&name(m), update, self.now);
        self.take(changes);
    }

    /// Only what the controller calls dirty is planned again.
    fn take(&mut self, changes: Changes) {
        let keys = if changes.dirty.all {
            self.cache.clear();
            self.world.all_keys()
        } else {
            changes.dirty.keys
        };
        for key in keys {
            let plan = desired_for(&self.world, &mk_policy(), &key, self.now);
            match plan.ripens {
                Some(at) => self.ripening.insert(key.clone(), at),
                None => self.ripening.remove(&key),
            };
            self.cache.insert(key, plan);
        }
    }

    fn tick(&mut self) {
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
        let lost = self.world.members.values().filter(|one| one.is_lost());
        let lost = lost.count();
        self.oracle.ticked(lost, self.now);
        // as the supervisor forgets them
        let removing = self.world.members.iter();
        let removing = removing.filter(|(_, member)| member.link == Link::Removing);
        let removing: Vec<ClusterName> = removing.map(|(name, _)| name.clone()).collect();
        for name in removing {
            let member = &self.world.members[&name];
            let clean = member.in_contact()
                && member.imports.items.is_empty()
                && member
                    .pools
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
    fn settle(&mut self) -> usize {
        let before = self.writes;
        for _ in 0..12 {
            let mut told: Vec<(usize, Update)> = Vec::new();
            for (key, plan) in &self.cache {
                for (importer, import) in &plan.imports {
                    let m = index(importer);
                    let member = &self.world.members[importer];
                    if !self.clusters[m].up || !can_write(member.link) {
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
                    if !self.clusters[m].up || !can_write(member.link) {
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

    fn step(&mut self, op: &Op) {
        let heard = |bench: &Self, m: usize| {
            bench.clusters[m].up && bench.world.members.contains_key(&name(m))
        };
        match *op {
            Op::Export(m, p, drain) => {
                if self.clusters[m].export(POOLS[p], Some("ClusterSet"), drain) && heard(self, m) {
                    self.tell_pool(m, p);
                }
            }
            Op::Unexport(m, p) => {
                if self.clusters[m].export(POOLS[p], None, None) && heard(self, m) {
                    self.tell_pool(m, p);
                }
            }
            Op::Invalidate(m, p) => {
                let illegal = Some("clusterset");
                if self.clusters[m].export(POOLS[p], illegal, None) && heard(self, m) {
                    self.tell_pool(m, p);
                }
            }
            Op::Delete(m, p) => {
                if self.clusters[m].delete_pool(POOLS[p]) && heard(self, m) {
                    self.tell_deleted(m, p);
                }
            }
            Op::Namespace(m, state) => {
                self.clusters[m].namespace = state;
                let gone_pools = match state {
                    None => self.clusters[m].empty_namespace(),
                    Some(_) => Vec::new(),
                };
                if heard(self, m) {
                    if state.is_none() {
                        for key in [mk_key("x"), mk_key("y")] {
                            self.tell(m, Update::Imports(Change::Deleted(key)));
                        }
                    }
                    for p in gone_pools {
                        self.tell_deleted(m, p);
                    }
                    let change = match state {
                        Some(terminating) => Change::Applied(mk_namespace(terminating)),
                        None => Change::Deleted(Key::new("", NS)),
                    };
                    self.tell(m, Update::Namespaces(change));
                }
            }
            Op::PoolsCrd(m, state) => {
                let gone = self.clusters[m].set_crd(state);
                if heard(self, m) {
                    for p in gone {
                        self.tell_deleted(m, p);
                    }
                    if self.clusters[m].serves_pools() {
                        self.list_pools(m);
                    } else {
                        self.tell(m, Update::NotServed(crate::index::update::Kind::Pools));
                        self.oracle.crd_gone(m);
                    }
                }
            }
            Op::ImportCrd(m, flavour) => {
                self.clusters[m].set_flavour(flavour);
                if heard(self, m) {
                    self.tell_import_crd(m);
                }
            }
            Op::ReinstallImportCrd(m) => {
                self.clusters[m].reinstall_import_crd();
                if heard(self, m) {
                    self.tell_import_crd(m);
                }
            }
            Op::Lose(m, denied) => {
                let was_up = std::mem::replace(&mut self.clusters[m].up, false);
                if was_up && self.world.members.contains_key(&name(m)) {
                    let fault = if denied {
                        Fault::AuthFailed
                    } else {
                        Fault::ConnectionLost
                    };
                    self.tell(m, Update::Lost(fault));
                    self.oracle.lost(m, self.now);
                }
            }
            Op::Refuse(m) => {
                let was_up = std::mem::replace(&mut self.clusters[m].up, false);
                if was_up && self.world.members.contains_key(&name(m)) {
                    self.tell(m, Update::Refused(Refusal::IdentityChanged));
                }
            }
            Op::Return(m) => {
                let was_up = std::mem::replace(&mut self.clusters[m].up, true);
                if !was_up && self.world.members.contains_key(&name(m)) {
                    self.connect(m);
                }
            }
            Op::Remove(m) => {
                if std::mem::replace(&mut self.clusters[m].listed, false) {
                    let changes = self.world.remove_member(&name(m), self.now);
                    self.take(changes);
                    self.oracle.left(m, self.now);
                }
            }
            Op::Readd(m) => {
                if !std::mem::replace(&mut self.clusters[m].listed, true) {
                    self.oracle.back_in_inventory(m);
                    let known = self.world.members.get(&name(m));
                    let met = known.is_some_and(|member| {
                        member.link != Link::Removing && member.uid.is_some()
                    });
                    let changes = self.world.add_member(&name(m), self.now);
                    self.take(changes);
                    self.leaving.remove(&name(m));
                    if !met {
                        self.oracle.unheard(m);
                        if self.clusters[m].up {
                            self.connect(m);
                        }
                    }
                }
            }
            Op::Forge(t, m, p) => {
                if let Some(change) = self.clusters[t].forge(&mk_key(POOLS[p]), MEMBERS[m])
                    && heard(self, t)
                {
                    self.tell(t, Update::Imports(change));
                }
            }
            Op::Restart => {
                let members = self.world.members.iter();
                let known = members.filter(|(_, member)| member.link != Link::Removing);
                let recorded = known.map(|(name, _)| name.clone()).collect();
                self.start(recorded);
            }
            Op::Wait(seconds) => {
                for _ in 0..3 {
                    self.now = self.now + Duration::from_millis(seconds * 250);
                    self.tick();
                }
                self.now = self.now + Duration::from_millis(seconds * 250);
            }
        }
        self.tick();
    }

    fn tell_pool(&mut self, m: usize, p: usize) {
        if let Some(facts) = self.clusters[m].pool(POOLS[p]) {
            self.tell(m, Update::PoolApplied(facts));
            self.oracle.showed(m, p, &self.clusters[m]);
        }
    }

    fn tell_deleted(&mut self, m: usize, p: usize) {
        let crd = self.clusters[m].crd_check();
        let key = mk_key(POOLS[p]);
        self.tell(m, Update::PoolDeleted { key, crd });
        self.oracle.deleted(m, p, &self.clusters[m]);
    }

    fn list_pools(&mut self, m: usize) {
        let listed = Update::PoolsListed {
            pools: self.clusters[m].pools(),
            odd: BTreeSet::new(),
            crd: self.clusters[m].crd_check(),
        };
        self.tell(m, listed);
        self.oracle.listed(m, &self.clusters[m], self.now);
    }

    fn tell_import_crd(&mut self, m: usize) {
        let crd = self.clusters[m].import_crd();
        let imports = self.clusters[m].imports();
        self.tell(m, Update::ImportCrd(crd));
        self.tell(m, Update::Imports(Change::Listed(imports)));
    }

    /// Whether a new controller would know at once all that this one knows.
    fn is_quiet(&self, entries: &[Vec<BTreeMap<String, Option<jiff::Timestamp>>>]) -> bool {
        let stands = |one: &Cluster| one.up && one.listed && one.crd_stands();
        let exported = |p: usize, entries: &BTreeMap<String, Option<jiff::Timestamp>>| {
            let mut entries = entries.iter();
            entries.all(|(exporter, drains)| {
                let exporter = &self.clusters[index(&mk_name(exporter))];
                exporter.exports(POOLS[p]) && drains.is_none()
            })
        };
        let mut pools = entries.iter().flat_map(|pools| pools.iter().enumerate());
        self.clusters.iter().all(stands) && pools.all(|(p, entries)| exported(p, entries))
    }

    /// Entries as the importers' API servers hold them, by importer and pool: exporter, and until when it drains.
    fn entries(&self) -> Vec<Vec<BTreeMap<String, Option<jiff::Timestamp>>>> {
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

fn name(m: usize) -> ClusterName {
    mk_name(MEMBERS[m])
}

fn index(name: &ClusterName) -> usize {
    let found = MEMBERS.iter().position(|one| *one == name.as_str());
    found.expect("a member")
}

fn wall(now: Moment) -> jiff::Timestamp {
    later(jiff::Timestamp::UNIX_EPOCH, now.since_start())
}

fn any_rules() -> impl Strategy<Value = Rules> {
    (any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(guard, impatient, drain)| Rules {
        isolation_guard: guard,
        withdraw_after: impatient.then_some(Duration::from_mins(4)),
        drain: Duration::from_secs(if drain { 30 } else { 0 }),
        ..mk_rules()
    })
}

fn any_run() -> impl Strategy<Value = (usize, Rules, Vec<Op>)> {
    (3..=MEMBERS.len(), any_rules()).prop_flat_map(|(members, rules)| {
        let ops = proptest::collection::vec(any_op(members), 1..40);
        (Just(members), Just(rules), ops)
    })
}

fn check(members: usize, rules: Rules, ops: &[Op]) -> Result<(), TestCaseError> {
    let mut bench = Bench::new(members, rules);
    for op in ops {
        let before = bench.entries();
        let was_quiet = bench.settle() == 0 && bench.is_quiet(&before);
        bench.step(op);
        let writes = bench.settle();
        // P5: whatever was dirty, the whole is the fold of its keys
        let whole = desired(&bench.world, &mk_policy(), bench.now);
        for (key, plan) in &whole {
            let cached = bench.cache.get(key).cloned().unwrap_or_default();
            for m in bench.world.members.keys() {
                // a pool that nobody exports is none
                let word = |plan: &KeyPlan| {
                    let pool = plan.pools.get(m).cloned();
                    pool.filter(|pool| *pool != PoolPlan::NoEntry)
                };
                let same =
                    cached.imports.get(m) == plan.imports.get(m) && word(&cached) == word(plan);
                prop_assert!(same, "the plan of {} in {} is old after {:?}", key, m, op);
            }
        }
        // P2, P6
        prop_assert_eq!(bench.settle(), 0, "writes again after {:?}", op);
        if matches!(op, Op::Restart) && was_quiet {
            prop_assert_eq!(writes, 0, "a restart writes");
        }
        let after = bench.entries();
        for (t, pools) in after.iter().enumerate() {
            for (p, found) in pools.iter().enumerate() {
                // P4
                prop_assert!(
                    !found.contains_key(MEMBERS[t]),
                    "{} lists itself",
                    MEMBERS[t]
                );
                // what a removed member imports is taken away
                if bench.clusters[t].excused || !bench.clusters[t].listed {
                    continue;
                }
                // P3
                for (exporter, drains) in &before[t][p] {
                    let may = bench
                        .oracle
                        .may_go(index(&mk_name(exporter)), p, *drains, bench.now);
                    prop_assert!(
                        found.contains_key(exporter) || may,
                        "{} lost {} of {} by {:?}",
                        MEMBERS[t],
                        exporter,
                        POOLS[p],
                        op
                    );
                }
            }
        }
        for cluster in &mut bench.clusters {
            cluster.excused = false;
        }
    }
    settle_all(&mut bench)
}

/// Everything heals: then imports are what the clusters ask for, and nothing else.
fn settle_all(bench: &mut Bench) -> Result<(), TestCaseError> {
    for m in 0..bench.clusters.len() {
        for op in [
            Op::Return(m),
            Op::Namespace(m, Some(false)),
            Op::PoolsCrd(m, CrdState::Stands),
            Op::ImportCrd(m, Flavour::Superset),
        ] {
            bench.step(&op);
            bench.settle();
        }
    }
    // doubts, then holds and drains end
    for _ in 0..3 {
        bench.step(&Op::Wait(4000));
        bench.settle();
    }
    for (t, pools) in bench.entries().iter().enumerate() {
        for (p, found) in pools.iter().enumerate() {
            let exporters: BTreeSet<&str> = (0..bench.clusters.len())
                .filter(|&m| m != t && bench.clusters[m].listed && bench.clusters[t].listed)
                .filter(|&m| bench.clusters[m].exports(POOLS[p]))
                .map(|m| MEMBERS[m])
                .collect();
            let found: BTreeSet<&str> = found.keys().map(String::as_str).collect();
            if bench.clusters[t].listed {
                prop_assert_eq!(&found, &exporters, "{} of {}", POOLS[p], MEMBERS[t]);
                let import = bench.clusters[t].has_import(&mk_key(POOLS[p]));
                prop_assert_eq!(import, !exporters.is_empty());
            }
        }
    }
    let others = bench.clusters.iter().filter(|one| one.listed).count();
    for (key, plan) in desired(&bench.world, &mk_policy(), bench.now) {
        for (exporter, pool) in &plan.pools {
            if let PoolPlan::Exported { condition, settled } = pool
                && others > 1
                && condition.reason != "NotSupported"
            {
                prop_assert!(
                    *settled && condition.reason == "Exported",
                    "{} of {}: {:?}",
                    key,
                    exporter,
                    condition
                );
            }
        }
    }
    Ok(())
}

/// 64 runs of up to 40 events take a few seconds; `PROPTEST_CASES` asks for more.
fn config() -> ProptestConfig {
    let asked = ProptestConfig::default();
    let cases = if asked.cases == 256 { 64 } else { asked.cases };
    ProptestConfig {
        cases,
        max_shrink_iters: 2000,
        ..asked
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn no_sequence_of_events_withdraws_without_evidence((members, rules, ops) in any_run()) {
        check(members, rules, &ops)?;
    }
}
