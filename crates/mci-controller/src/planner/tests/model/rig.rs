//! The planner, its queues and its writes over the clusters, without tasks: told what watches would tell.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures::FutureExt;
use http::Request;
use http_body_util::BodyExt;
use lease::Claim;
use moment::{Clock, Moment};
use prometheus_client::registry::Registry;
use tower::BoxError;

use super::{
    MEMBERS, POOLS,
    cluster::{Cluster, is_import, name_of, text},
    oracle::{Oracle, wall},
};
use crate::{
    client::Direct,
    fixtures::*,
    index::{member::Link, rules::Rules, update::Update},
    metrics::Metrics,
    name::{ClusterName, Key},
    planner::Planner,
    write::{
        Caller, Queue,
        action::{Outcome, Slot},
        send::Sender,
    },
};

/// The clusters, and the controller over them.
pub(super) struct Rig {
    pub(super) clusters: Vec<Cluster>,
    pub(super) planner: Planner,
    pub(super) now: Moment,
    pub(super) oracle: Oracle,
    pub(super) rules: Rules,
    queues: Vec<Arc<Queue>>,
    senders: Vec<Sender>,
    /// When each member that counts as removed is forgotten at the latest.
    leaving: BTreeMap<ClusterName, Moment>,
    /// A member whose import CRD changed, and whose imports are to be listed through the new one.
    pub(super) relist: Option<usize>,
    /// When whose import of which pool was changed beside us.
    pub(super) undone: Vec<(usize, usize, Moment)>,
}

/// Members that do not answer are waited for so long after a start.
const GATE: Duration = Duration::from_secs(1);
/// The planner is asked this often.
const TICK: Duration = Duration::from_millis(250);
/// Longer than `Exported` waits for the importers.
const CALM: Duration = Duration::from_millis(1_250);
/// Retries that change nothing, as under a CRD that is gone, go on for ever.
const RETRIES: usize = 8;

// === impl Rig ===

impl Rig {
    /// Call it within a runtime.
    pub(super) fn new(members: usize, rules: Rules) -> Self {
        let clusters: Vec<Cluster> = MEMBERS[..members]
            .iter()
            .map(|name| Cluster::new(name))
            .collect();
        let mut rig = Self {
            senders: clusters.iter().map(sender).collect(),
            clusters,
            planner: planner(rules),
            now: Moment::from_millis(1_000_000),
            oracle: Oracle::new(members, rules),
            rules,
            queues: Vec::new(),
            leaving: BTreeMap::new(),
            relist: None,
            undone: Vec::new(),
        };
        rig.start(BTreeSet::new());
        rig
    }

    /// A controller starts: it meets who is in the inventory and answers.
    pub(super) fn start(&mut self, recorded: BTreeSet<ClusterName>) {
        self.planner = planner(self.rules);
        self.planner.set_leading(true);
        self.planner.publish(self.now, wall(self.now));
        self.leaving.clear();
        self.queues = MEMBERS.iter().map(|_| Arc::default()).collect();
        let listed = |name: &&ClusterName| self.clusters[index(name)].listed;
        let gone = recorded.iter().filter(|name| !listed(name)).count();
        self.oracle.restarted(recorded.len(), gone, self.now);
        let recorded = recorded.into_iter().map(|name| {
            let record = mk_record(&format!("cluster-{}", index(&name)));
            (name, record)
        });
        self.planner.recall(recorded.collect());
        for m in 0..self.clusters.len() {
            if self.clusters[m].listed {
                self.add(m);
            }
        }
        self.planner.inventory_listed(self.now);
        for m in 0..self.clusters.len() {
            if self.clusters[m].listed && self.clusters[m].up {
                self.connect(m);
            }
        }
    }

    pub(super) fn add(&mut self, m: usize) {
        self.leaving.remove(&name(m));
        let queue = self.queues[m].clone();
        self.planner.add_member(&name(m), queue, self.now);
    }

    /// The lists of a new session.
    pub(super) fn connect(&mut self, m: usize) {
        self.queues[m].reopen(self.now);
        self.oracle.back(m, self.now);
        for update in self.clusters[m].lists(format!("cluster-{m}")) {
            self.tell(m, update);
        }
    }

    pub(super) fn tell(&mut self, m: usize, update: Update) {
        let cluster = &self.clusters[m];
        match &update {
            Update::PoolApplied(pool) => self.oracle.showed(m, place(&pool.key), cluster),
            Update::PoolDeleted { key, crd } => self.oracle.deleted(m, place(key), crd),
            Update::PoolsListed { crd, .. } => self.oracle.listed(m, cluster, crd, self.now),
            Update::NotServed(crate::index::update::Kind::Pools) => self.oracle.crd_gone(m),
            _ => {}
        }
        self.oracle.sees(m, cluster);
        self.planner.update(&name(m), update, self.now);
    }

    pub(super) fn knows(&self, m: usize) -> bool {
        self.planner.world().members.contains_key(&name(m))
    }

    pub(super) fn hears(&self, m: usize) -> bool {
        self.clusters[m].up && self.knows(m)
    }

    /// Whether there was anything.
    fn hear(&mut self) -> bool {
        let mut heard = false;
        for m in 0..self.clusters.len() {
            if self.hears(m) {
                for update in self.clusters[m].events() {
                    heard = true;
                    self.tell(m, update);
                }
            }
        }
        heard
    }

    pub(super) fn tick(&mut self) {
        self.planner.tick(self.now);
        self.plan();
        let members = self.planner.world().members.values();
        let lost = members.filter(|one| one.contact.is_lost()).count();
        self.oracle.ticked(lost, self.now);
        // as the supervisor forgets them
        let removing: Vec<ClusterName> = self.planner.removing().cloned().collect();
        for name in removing {
            let until = self.leaving.entry(name.clone());
            let until = *until.or_insert(self.now + Duration::from_secs(30));
            let clean = self.planner.is_open() && self.planner.is_clean(&name);
            if clean || until <= self.now {
                self.leaving.remove(&name);
                self.queues[index(&name)] = Arc::default();
                self.planner.forget_member(&name, self.now);
            }
        }
    }

    fn plan(&mut self) {
        self.planner.publish(self.now, wall(self.now));
        while self.planner.is_behind() {
            self.planner.publish(self.now, wall(self.now));
        }
    }

    /// Hears, plans and writes until nothing happens any more; returns the writes that took effect.
    pub(super) fn settle(&mut self) -> Vec<String> {
        let mut calm_since = self.now;
        let mut retries = 0;
        for _ in 0..500 {
            let heard = self.hear();
            self.tick();
            self.send();
            if heard {
                calm_since = self.now;
                retries = 0;
            }
            // a change that came with time alone may be reported a second later
            let reports = self.planner.unsettled.due(self.now + CALM).count();
            let calm = self.now.since(calm_since) >= CALM && reports == 0;
            let due = self.due().filter(|_| retries < RETRIES);
            self.now = match due {
                None if calm => return self.take_taken(),
                Some(due) if calm => {
                    retries += 1;
                    due.max(self.now + TICK)
                }
                _ => self.now + TICK,
            };
        }
        panic!("the plan does not settle");
    }

    /// The slow pass; returns the writes that it leads to. It is too short for time to change what is planned.
    pub(super) fn compare_all(&mut self) -> Vec<String> {
        self.planner.compare_all();
        self.plan();
        for _ in 0..2 {
            self.send();
            self.now = self.now + Duration::from_secs(1);
        }
        self.take_taken()
    }

    fn take_taken(&self) -> Vec<String> {
        let taken = self.clusters.iter().map(|one| one.wire.take_taken());
        taken.flatten().collect()
    }

    fn can_write(&self, m: usize) -> bool {
        let member = self.planner.world().members.get(&name(m));
        let link = member.map(|member| member.contact.link);
        self.clusters[m].up && matches!(link, Some(Link::Live | Link::Suspect | Link::Removing))
    }

    fn due(&self) -> Option<Moment> {
        let writing = (0..self.clusters.len()).filter(|&m| self.can_write(m));
        let writes = writing.filter_map(|m| self.queues[m].next_due());
        writes.min()
    }

    fn send(&mut self) {
        for (m, name) in MEMBERS[..self.clusters.len()].iter().enumerate() {
            while self.can_write(m)
                && let Some((slot, work)) = self.queues[m].take(self.now)
            {
                let sending = self.senders[m].execute(&slot, &work.action);
                let Slot::Import(key) = &slot else {
                    let outcome = sending.now_or_never().expect("an answer at once");
                    self.queues[m].finish(&slot, outcome, self.now);
                    continue;
                };
                let before = self.clusters[m].entries(&key.name);
                let outcome = sending.now_or_never().expect("an answer at once");
                self.queues[m].finish(&slot, outcome, self.now);
                let cluster = &self.clusters[m];
                // there may be nothing left to delete
                let is_done = cluster.wire.is_last_taken() || cluster.import(&key.name).is_none();
                assert!(
                    outcome != Outcome::Done || is_done,
                    "{slot} of {name}: done, though it was not"
                );
                // while the importer is a member and its CRD shows entries, none goes without evidence (P3)
                if !cluster.listed || cluster.flavour != crate::index::flavour::Flavour::Superset {
                    continue;
                }
                let after = cluster.entries(&key.name);
                for (exporter, was) in &before {
                    if let Some(e) = MEMBERS.iter().position(|one| one == exporter) {
                        let now = after.get(exporter);
                        self.oracle.judge_write(e, place(key), was, now, self.now);
                    }
                }
            }
        }
    }

    /// Writes of a step before arrive now, but for those into what became somebody else's: no apply can name the version
    /// that it is meant for.
    pub(super) fn deliver(&mut self, late: Vec<Vec<Request<Bytes>>>) {
        for (m, requests) in late.into_iter().enumerate() {
            for request in requests {
                let cluster = &self.clusters[m];
                let object = name_of(&request);
                if !is_import(&request) || !cluster.foreign.contains_key(object) {
                    cluster.server().answer(&request);
                    let p = POOLS.iter().position(|one| *one == object);
                    self.undone.extend(p.map(|p| (m, p, self.now)));
                }
            }
        }
    }

    /// Whether a new controller would know at once all that this one knows.
    pub(super) fn is_quiet(&self) -> bool {
        let stands = |one: &Cluster| one.up && one.listed && one.crd_stands();
        let mut drains = self.planner.world().members.values();
        self.clusters.iter().all(stands)
            && !drains.any(|one| {
                POOLS
                    .iter()
                    .any(|p| one.pools.draining.until(&mk_key(p)).is_some())
            })
            && POOLS.iter().enumerate().all(|(p, pool)| {
                let mut clusters = 0..self.clusters.len();
                clusters.all(|m| {
                    let entries = self.clusters[m].entries(pool);
                    let exported = entries.iter().all(|(exporter, entry)| {
                        // an entry that somebody added may name none of the members
                        let exporter = MEMBERS.iter().position(|one| one == exporter);
                        exporter.is_some_and(|it| self.clusters[it].exports(pool))
                            && text(entry, "/drainUntil").is_empty()
                    });
                    exported && !self.may_be_contested(m, p)
                })
            })
    }

    /// Somebody undid our writes so often that they may be slowed down, and the export be said to conflict.
    pub(super) fn may_be_contested(&self, m: usize, p: usize) -> bool {
        let undone = self.undone.iter().filter(|(t, of, at)| {
            (*t, *of) == (m, p) && self.now.since(*at) < Duration::from_mins(30)
        });
        undone.count() >= 3
    }
}

fn planner(rules: Rules) -> Planner {
    let metrics = Metrics::register(&mut Registry::default());
    Planner::new(mk_policy(), rules, GATE, metrics)
}

/// The real writer of a member, whose requests go to its server without a connection.
fn sender(cluster: &Cluster) -> Sender {
    let wire = cluster.wire.clone();
    let client = Direct::answered_by(move |request: Request<kube::client::Body>| {
        let wire = wire.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.map_err(BoxError::from)?.to_bytes();
            wire.answer(&Request::from_parts(parts, body))
        }
    });
    let tenure = Claim::always().gained().now_or_never();
    Sender {
        caller: Caller {
            client,
            timeout: Duration::from_secs(5),
            tenure: tenure.expect("no rival"),
            clock: Clock::start(),
        },
        controller_name: mk_policy().controller_name,
    }
}

pub(super) fn name(m: usize) -> ClusterName {
    mk_name(MEMBERS[m])
}

pub(super) fn index(name: &ClusterName) -> usize {
    let found = MEMBERS.iter().position(|one| *one == name.as_str());
    found.expect("a member")
}

/// Which pool it is.
fn place(key: &Key) -> usize {
    let found = POOLS.iter().position(|one| *one == &*key.name);
    found.expect("a pool")
}
