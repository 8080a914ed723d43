//! Keeps the last look at each pool, and tells what is news.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;

use super::{
    Notice, Regarding,
    derive::derive,
    signs::{Obstacles, Signs},
};
use crate::{
    index::{World, member::PoolRecord},
    metrics::Metrics,
    name::{ClusterName, Key},
    plan::{KeyPlan, PoolPlan},
    write::Queue,
};
use moment::Moment;

/// Tells of pools.
#[derive(Debug, Default)]
pub(crate) struct PoolTeller {
    /// The last look at each pool that concerns us.
    seen: BTreeMap<Key, BTreeMap<ClusterName, Signs>>,
}

/// When, and to whom.
pub(crate) struct Audience<'a> {
    /// Whose outboxes to use.
    pub(crate) queues: &'a BTreeMap<ClusterName, Arc<Queue>>,
    pub(crate) metrics: &'a Metrics,
    /// Only the leader tells; the others look on, so that they know what was told when they take over.
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
            let mut signs = Signs::read(name, &record.facts, plan, &obstacles);
            let old = before.remove(name).filter(|old| old.uid == signs.uid);
            let old = old.unwrap_or_else(|| signs.first(&record.facts));
            count_rejections(&old, &signs, &audience.metrics.member(name));
            let outbox = audience.queues.get(name).map(|queue| queue.outbox());
            if let Some(outbox) = outbox.filter(|_| audience.speaking) {
                for (reason, note) in derive(&old, &signs) {
                    tracing::debug!(member = %name, %key, reason = reason.name(), note, "event");
                    let notice = Notice {
                        regarding: Regarding::pool(key, &signs.uid),
                        subject: String::new(),
                        reason,
                        note,
                        at: audience.wall,
                    };
                    outbox.offer(notice, audience.now);
                }
            }
            // while it moves, what it last said stands
            signs.exported = signs.exported.or(old.exported);
            if plan.pools.get(name) != Some(&PoolPlan::NoEntry) || !signs.is_blank() {
                after.insert(name.clone(), signs);
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

/// Counts each address that was left out once, however often it is planned.
fn count_rejections(old: &Signs, new: &Signs, metrics: &crate::metrics::MemberMetrics) {
    for (reason, count) in &new.rejected {
        let known = old.rejected.get(reason).copied().unwrap_or_default();
        for _ in known..*count {
            metrics.rejected_address(reason);
        }
    }
}

#[cfg(test)]
mod tests;
