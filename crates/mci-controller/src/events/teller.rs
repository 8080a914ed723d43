//! Keeps the last look at each pool, and tells what is news.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;

use super::{
    Notice, Regarding,
    derive::{News, derive},
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
}

/// The last look at a pool.
#[derive(Debug)]
struct Seen {
    /// What was told of it.
    told: Signs,
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
            let signs = Signs::read(name, &record.facts, plan, &obstacles);
            let old = before.remove(name).filter(|old| old.told.uid == signs.uid);
            let old = old.unwrap_or_else(|| Seen::first(&signs, &record.facts));
            count_rejections(
                &old.rejected,
                &signs.rejected,
                &audience.metrics.member(name),
            );
            let rejected = signs.rejected.clone();
            let kept = plan.pools.get(name) != Some(&PoolPlan::NoEntry) || !signs.is_blank();
            let outbox = audience.queues.get(name).map(|queue| queue.outbox());
            let outbox = outbox.filter(|_| audience.speaking);
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
                    outbox.offer(notice, audience.now)
                })
            });
            if kept {
                after.insert(name.clone(), Seen { told, rejected });
            }
        }
        if !after.is_empty() {
            self.seen.insert(key.clone(), after);
        }
    }

    pub(crate) fn forget(&mut self, member: &ClusterName) {
        self.seen.retain(|_, pools| {
            pools.remove(member);
            !pools.is_empty()
        });
    }
}

// === impl Seen ===

impl Seen {
    fn first(signs: &Signs, pool: &PoolFacts) -> Self {
        let told = signs.first(pool);
        Self {
            rejected: told.rejected.clone(),
            told,
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
