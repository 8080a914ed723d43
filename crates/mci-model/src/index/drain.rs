//! Entries whose export ended stay for a while, marked as draining (spec 4.7). Their end is a wall time, because it is
//! written into the import and outlives the process there.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};

use super::{
    World,
    changes::{Changes, Withdrawal},
};
use crate::{
    evidence::{Removal, on_evidence},
    name::Key,
};
use moment::Moment;

/// Ended exports of one member, with the time until which their entries stay.
#[derive(Clone, Debug, Default)]
pub struct Drains {
    /// Of exports whose end was seen.
    own: BTreeMap<Key, Timestamp>,
    /// Of exports that only imports show: separate, so that a forged import takes no room from the others. Bound: the
    /// orphans that are reported.
    orphaned: BTreeMap<Key, Timestamp>,
}

/// The longest drain that a pool or an import can ask for.
pub const MAX_DRAIN: Duration = Duration::from_hours(1);
/// Drains of one member at the same time, without those of orphans: as many as pools that it may export. Beyond it,
/// entries are removed without a drain.
const MAX_DRAINS: usize = super::pools::MAX_EXPORTED;

// === impl World ===

impl World {
    /// Sets the wall clock; call it before each plan.
    pub fn set_wall(&mut self, now: Moment, wall: Timestamp) {
        self.wall = (now, wall);
    }

    /// The wall clock at a moment.
    pub fn wall_at(&self, now: Moment) -> Timestamp {
        let (then, wall) = self.wall;
        later(wall, now.since(then))
    }

    /// The moment of a wall time; `now` if it has passed.
    pub fn moment_at(&self, wall: Timestamp, now: Moment) -> Moment {
        let ahead = wall.duration_since(self.wall_at(now));
        now + Duration::try_from(ahead).unwrap_or_default()
    }

    /// Begins the drains of the withdrawn exports.
    pub(super) fn begin_drains(&mut self, changes: &Changes, now: Moment) {
        for withdrawal in &changes.withdrawals {
            self.begin_drain(withdrawal, now);
        }
    }

    fn begin_drain(&mut self, withdrawal: &Withdrawal, now: Moment) {
        let Withdrawal {
            exporter,
            key,
            evidence,
            drain,
            is_orphan,
        } = withdrawal;
        let drain = drain.unwrap_or(self.rules.drain).min(MAX_DRAIN);
        if drain.is_zero() || on_evidence(*evidence, false) != Removal::Drain {
            return;
        }
        let until = whole_second(later(self.wall_at(now), drain));
        if let Some(member) = self.members.get_mut(exporter) {
            member.pools.draining.begin(key, until, *is_orphan);
        }
    }

    /// Removes drains that are over; returns their keys.
    pub(super) fn end_drains(&mut self, now: Moment) -> BTreeSet<Key> {
        let wall = self.wall_at(now);
        let mut keys = BTreeSet::new();
        for member in self.members.values_mut() {
            keys.extend(member.pools.draining.end(wall));
        }
        keys
    }
}

// === impl Drains ===

impl Drains {
    /// Until when the entry of this key drains, if it does.
    pub fn until(&self, key: &Key) -> Option<Timestamp> {
        self.own
            .get(key)
            .or_else(|| self.orphaned.get(key))
            .copied()
    }

    pub(super) fn forget(&mut self, key: &Key) {
        self.own.remove(key);
        self.orphaned.remove(key);
    }

    pub(super) fn clear(&mut self) {
        self.own.clear();
        self.orphaned.clear();
    }

    /// Does not change a drain that has begun already.
    fn begin(&mut self, key: &Key, until: Timestamp, is_orphan: bool) {
        let full = self.own.len() >= MAX_DRAINS;
        if self.until(key).is_some() || !is_orphan && full {
            return;
        }
        let drains = if is_orphan {
            &mut self.orphaned
        } else {
            &mut self.own
        };
        drains.insert(key.clone(), until);
    }

    /// Removes those that are over at `wall`; returns their keys.
    fn end(&mut self, wall: Timestamp) -> Vec<Key> {
        let mut over = Vec::new();
        for drains in [&mut self.own, &mut self.orphaned] {
            over.extend(drains.extract_if(.., |_, until| *until <= wall));
        }
        over.into_iter().map(|(key, _)| key).collect()
    }
}

/// A wall time moved into the future, saturating.
pub fn later(wall: Timestamp, by: Duration) -> Timestamp {
    let by = SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX);
    wall.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// The next whole second: Kubernetes times have no fractions.
fn whole_second(time: Timestamp) -> Timestamp {
    let second = time.as_second() + i64::from(time.subsec_nanosecond() > 0);
    Timestamp::from_second(second).unwrap_or(Timestamp::MAX)
}
