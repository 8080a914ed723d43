//! Entries whose export ended stay for a while, marked as draining (spec 4.7). When they go is a wall time, because it is
//! told in the import and outlives us there.

use std::{collections::BTreeSet, time::Duration};

use jiff::{SignedDuration, Timestamp};

use super::{
    World,
    changes::{Changes, Withdrawal},
};
use crate::{
    name::Key,
    plan::decision::{self, on_evidence},
};
use moment::Moment;

/// The longest drain that a pool or an import can ask for.
pub(crate) const MAX_DRAIN: Duration = Duration::from_hours(1);
/// Drains of one member at once: as many as pools that it may export. Beyond, an entry goes without.
const MAX_DRAINS: usize = super::pools::MAX_EXPORTED;

// === impl World ===

impl World {
    /// Tells what the wall clock says; call it before each plan.
    pub(crate) fn set_wall(&mut self, now: Moment, wall: Timestamp) {
        self.wall = (now, wall);
    }

    /// The wall clock at a moment.
    pub(crate) fn wall_at(&self, now: Moment) -> Timestamp {
        let (then, wall) = self.wall;
        later(wall, now.since(then))
    }

    /// The moment of a wall time; now, if it is past.
    pub(crate) fn moment_at(&self, wall: Timestamp, now: Moment) -> Moment {
        let ahead = wall.duration_since(self.wall_at(now));
        now + Duration::try_from(ahead).unwrap_or_default()
    }

    /// Begins the drains of what was just withdrawn.
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
        } = withdrawal;
        let drain = drain.unwrap_or(self.rules.drain).min(MAX_DRAIN);
        if drain.is_zero() || on_evidence(*evidence, false) != decision::Withdrawal::Drain {
            return;
        }
        let until = whole_second(later(self.wall_at(now), drain));
        if let Some(member) = self.members.get_mut(exporter)
            && member.draining.len() < MAX_DRAINS
        {
            member.draining.entry(key.clone()).or_insert(until);
        }
    }

    /// Forgets drains that are over; returns their keys.
    pub(super) fn end_drains(&mut self, now: Moment) -> BTreeSet<Key> {
        let wall = self.wall_at(now);
        let mut keys = BTreeSet::new();
        for member in self.members.values_mut() {
            member.draining.retain(|key, until| {
                let over = *until <= wall;
                if over {
                    keys.insert(key.clone());
                }
                !over
            });
        }
        keys
    }
}

/// A wall time moved into the future, saturating.
pub(crate) fn later(wall: Timestamp, by: Duration) -> Timestamp {
    let by = SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX);
    wall.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// The next whole second: Kubernetes times have no fractions.
fn whole_second(time: Timestamp) -> Timestamp {
    let second = time.as_second() + i64::from(time.subsec_nanosecond() > 0);
    Timestamp::from_second(second).unwrap_or(Timestamp::MAX)
}
