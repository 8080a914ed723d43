//! Keeps the last look at each pool, and tells what is news.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;

use super::{
    Notice, Outbox, Reason, Regarding,
    derive::{News, derive, over, untell},
    signs::{Obstacles, Signs},
};
use crate::{
    index::{World, facts::PoolFacts, member::PoolRecord},
    metrics::{MemberMetrics, Metrics},
    name::{ClusterName, Key},
    plan::{KeyPlan, PoolPlan},
    write::Queue,
};
use moment::Moment;

/// Tells of pools.
#[derive(Debug, Default)]
pub(crate) struct PoolTeller {
    /// The last look at each pool that concerns us.
    seen: BTreeMap<Key, BTreeMap<ClusterName, Seen>>,
    /// Keys with news for a member whose outbox had no room.
    untold: BTreeMap<ClusterName, BTreeSet<Key>>,
}

/// The last look at a pool.
#[derive(Debug)]
struct Seen {
    /// What was told of it.
    told: Signs,
    /// The verdict that we were to tell and that did not fit. That the pool bears it by now tells nobody of it: we wrote it.
    unsaid: Option<String>,
    /// Addresses that were counted as left out, by reason.
    rejected: Rejected,
}

type Rejected = BTreeMap<&'static str, usize>;

/// When, and to whom.
pub(crate) struct Audience<'a> {
    /// Whose outboxes to use.
    pub(crate) queues: &'a BTreeMap<ClusterName, Arc<Queue>>,
    pub(crate) metrics: &'a Metrics,
    /// Only the leader tells. The others look on: what they cannot know to be told is news when they take over, for nobody
    /// led for a while. What was told all the same bears the same name, so it is not there twice.
    pub(crate) speaking: bool,
    pub(crate) now: Moment,
    pub(crate) wall: Timestamp,
}

// === impl PoolTeller ===

impl PoolTeller {
    /// A key was planned.
    pub(crate) fn planned(
        &mut self,
        world: &World,
        key: &Key,
        plan: &KeyPlan,
        audience: &Audience,
    ) {
        let mut before = self.seen.remove(key).unwrap_or_default();
        let concerns = |name: &ClusterName| {
            let member = world.members.get(name);
            let record = member.and_then(|member| member.pools.get(key));
            record.is_some_and(PoolRecord::concerns_us) || before.contains_key(name)
        };
        let concerned: Vec<&ClusterName> =
            plan.pools.keys().filter(|name| concerns(name)).collect();
        if concerned.is_empty() {
            retract_all(before, audience);
            return;
        }
        let obstacles = Obstacles::read(world, key, plan, audience.now);
        let mut after = BTreeMap::new();
        for name in concerned {
            let record = world
                .members
                .get(name)
                .and_then(|member| member.pools.get(key));
            let Some(record) = record else {
                continue;
            };
            let mut signs = Signs::read(name, &record.facts, plan, &obstacles);
            let old = before.remove(name);
            let mut old = match old {
                Some(old) if old.told.uid == signs.uid => old,
                other => {
                    retract_all(other.map(|old| (name.clone(), old)), audience);
                    Seen::first(&signs, &record.facts)
                }
            };
            count_rejections(
                &old.rejected,
                &signs.rejected,
                &audience.metrics.member(name),
            );
            let rejected = signs.rejected.clone();
            let is_exported = plan.pools.get(name) != Some(&PoolPlan::NoEntry);
            let kept = is_exported || !signs.is_blank();
            let outbox = audience.outbox(name);
            old.take_back(&mut signs, is_exported, outbox);
            let mut unsaid = old.unsaid.take();
            let verdict = signs.exported.as_ref().map(|one| one.kind().to_owned());
            let outbox = outbox.filter(|_| audience.speaking);
            let mut is_refused = false;
            let told = derive(&old.told, signs, |news| {
                outbox.is_some_and(|outbox| {
                    let News {
                        reason,
                        subject,
                        note,
                    } = news;
                    tracing::debug!(member = %name, %key, reason = reason.name(), note, "event");
                    let notice = Notice {
                        regarding: Regarding::pool(key, &record.facts.uid),
                        subject: subject.to_owned(),
                        reason,
                        note,
                        at: audience.wall,
                    };
                    let taken = outbox.offer(notice, audience.now);
                    is_refused |= !taken;
                    if reason.topic() == Reason::Exported {
                        unsaid = verdict.clone().filter(|_| !taken);
                    }
                    taken
                })
            });
            if is_refused {
                let untold = self.untold.entry(name.clone()).or_default();
                untold.insert(key.clone());
            }
            let seen = Seen {
                told,
                unsaid,
                rejected,
            };
            if kept {
                after.insert(name.clone(), seen);
            } else {
                retract_all([(name.clone(), seen)], audience);
            }
        }
        retract_all(before, audience);
        if !after.is_empty() {
            self.seen.insert(key.clone(), after);
        }
    }

    /// Keys to look at again, for what did not fit into an outbox does now; each is given once.
    pub(crate) fn fitting(
        &mut self,
        queues: &BTreeMap<ClusterName, Arc<Queue>>,
        now: Moment,
    ) -> BTreeSet<Key> {
        let mut fitting = BTreeSet::new();
        for (name, keys) in &mut self.untold {
            let queue = queues.get(name);
            let room = queue.map_or(0, |queue| queue.outbox().room(now));
            fitting.extend(std::iter::from_fn(|| keys.pop_first()).take(room));
        }
        self.untold.retain(|_, keys| !keys.is_empty());
        fitting
    }

    pub(crate) fn forget(&mut self, member: &ClusterName) {
        self.untold.remove(member);
        self.seen.retain(|_, pools| {
            pools.remove(member);
            !pools.is_empty()
        });
    }
}

/// These pools are gone, or concern us no more.
fn retract_all(pools: impl IntoIterator<Item = (ClusterName, Seen)>, audience: &Audience) {
    for (name, seen) in pools {
        if let Some(outbox) = audience.outbox(&name) {
            outbox.retract(|uid, _, _| uid == seen.told.uid);
        }
    }
}

// === impl Audience ===

impl Audience<'_> {
    fn outbox(&self, name: &ClusterName) -> Option<&Outbox> {
        self.queues.get(name).map(|queue| queue.outbox())
    }
}

// === impl Seen ===

impl Seen {
    fn first(signs: &Signs, pool: &PoolFacts) -> Self {
        let told = signs.first(pool);
        Self {
            rejected: told.rejected.clone(),
            told,
            unsaid: None,
        }
    }

    /// Takes back what came too soon and is over by this look; what is left of it is news again.
    fn take_back(&mut self, signs: &mut Signs, is_exported: bool, outbox: Option<&Outbox>) {
        if let Some(verdict) = &mut signs.exported {
            if self.unsaid.as_deref() == Some(verdict.kind()) {
                verdict.written = false;
            } else {
                self.unsaid = None;
            }
        }
        let mut ended = over(&self.told, signs);
        if !is_exported {
            ended.push((Reason::Exported, ""));
            // should it be exported again, that is news
            (self.told.exported, self.unsaid) = (None, None);
        }
        for (reason, subject) in ended {
            let is_it = |uid: &str, of: &str, topic: Reason| {
                uid == signs.uid && of == subject && topic == reason.topic()
            };
            if outbox.is_some_and(|outbox| outbox.retract(is_it)) {
                untell(&mut self.told, reason, subject);
            }
        }
    }
}

/// Counts each address that was left out once, however often it is planned.
fn count_rejections(old: &Rejected, new: &Rejected, metrics: &MemberMetrics) {
    for (reason, count) in new {
        let known = old.get(reason).copied().unwrap_or_default();
        for _ in known..*count {
            metrics.rejected_address(reason);
        }
    }
}

#[cfg(test)]
mod tests;
