//! Members that are silent or out of the inventory. Nothing follows from that while the fault may be ours.

use std::time::Duration;

use super::{
    World,
    changes::Changes,
    guard::{self, Census},
    member::{Leaving, Link, Member, Reach, Refusal},
    orphans::Suspects,
};
use crate::{
    evidence::{Evidence, Removal, on_evidence},
    name::ClusterName,
};
use moment::Moment;

// === impl World ===

impl World {
    /// The contact as a member's entries show it. Under the guard, readiness does not become unknown.
    pub fn reach(&self, member: &Member, now: Moment) -> Reach {
        let reach = member.contact.reach(now, self.rules.stale_after);
        let (Reach::Stale(fault), Some(silence)) = (reach, member.contact.silence) else {
            return reach;
        };
        let held = self
            .guard
            .since()
            .is_some_and(|since| silence.since + self.rules.stale_after > since);
        if held { Reach::Lost(fault) } else { reach }
    }

    /// Whether withdrawals that a fault of ours could cause are held.
    pub fn is_guarded(&self) -> bool {
        self.guard.is_active()
    }

    /// A member left the inventory. It counts as removed only once it is clear that most others did not leave with it:
    /// then its exports are withdrawn at once, and its imports are deleted while it is [`Link::Removing`], until
    /// [`World::forget`]. If most left too, it is kept for `--removal-hold`.
    pub fn remove_member(&mut self, name: &ClusterName, now: Moment) -> Changes {
        let waits = self.rules.isolation_guard && self.census().members >= 2;
        let Some(member) = self.members.get_mut(name) else {
            return Changes::default();
        };
        if member.contact.link == Link::Removing || member.leaving.is_some() {
            return Changes::default();
        }
        if !waits {
            return self.leave(name);
        }
        member.leaving = Some(Leaving {
            since: now,
            until: now + guard::WINDOW,
            held: false,
        });
        self.guard.lost(name, now);
        self.update_guard(now)
    }

    /// A member that left is in the inventory again.
    pub fn keep_member(&mut self, name: &ClusterName) {
        let Some(member) = self.members.get_mut(name) else {
            return;
        };
        if member.leaving.take().is_none() {
            return;
        }
        match member.contact.silence.filter(|_| member.contact.is_lost()) {
            // as if it had never left
            Some(silence) => self.guard.lost(name, silence.since),
            None => self.guard.found(name),
        }
    }

    /// All members in the inventory have been added. If most of the recorded members are missing, they are kept, as
    /// members without contact.
    pub fn inventory_listed(&mut self, now: Moment) -> Changes {
        if std::mem::replace(&mut self.listed, true) {
            return Changes::default();
        }
        let recorded = self.recorded().len();
        let missing: Vec<ClusterName> = self
            .recorded()
            .keys()
            .filter(|name| !self.members.contains_key(*name))
            .cloned()
            .collect();
        let mut changes = Changes::default();
        if self.rules.isolation_guard && guard::most_are_missing(recorded, missing.len()) {
            self.guard.raise(now);
            for name in missing {
                let mut member = Member::new(now);
                member.leaving = Some(Leaving {
                    since: now,
                    until: now + self.rules.removal_hold,
                    held: true,
                });
                self.members.insert(name.clone(), member);
                changes.withhold(Evidence::MemberRemoved, 1);
            }
            changes.dirty.all = true;
        } else {
            for name in &missing {
                self.forget_identity(name);
            }
            self.orphans.add_left(missing);
        }
        self.withdraw_orphans(Suspects::All, &mut changes);
        changes
    }

    /// Records that a member became silent or is back; `was_lost` is from before the update.
    pub(super) fn note_contact(
        &mut self,
        name: &ClusterName,
        was_lost: bool,
        now: Moment,
    ) -> Changes {
        let Some(member) = self.members.get(name) else {
            return Changes::default();
        };
        match (was_lost, member.contact.is_lost()) {
            (false, true) => self.guard.lost(name, now),
            // a member that left stays lost, though it answers
            (true, false) if member.leaving.is_none() => self.guard.found(name),
            _ => return Changes::default(),
        }
        self.update_guard(now)
    }

    /// Applies what time alone changes for members that are gone.
    pub(super) fn tick_absence(&mut self, now: Moment) -> Changes {
        let mut changes = self.update_guard(now);
        let gone: Vec<ClusterName> = self
            .members
            .iter()
            .filter(|(_, member)| member.leaving.is_some_and(|leaving| leaving.until <= now))
            .map(|(name, _)| name.clone())
            .collect();
        for name in gone {
            changes.merge(self.leave(&name));
        }
        if let Some(after) = self.rules.withdraw_after {
            changes.merge(self.withdraw_silent(after, now));
        }
        changes
    }

    /// Updates the guard, and holds the removals under it.
    fn update_guard(&mut self, now: Moment) -> Changes {
        let mut changes = Changes::default();
        if !self.rules.isolation_guard {
            return changes;
        }
        let census = self.census();
        if self.guard.update(census, now) {
            let on = self.guard.is_active();
            tracing::warn!(
                on,
                lost = census.lost,
                members = census.members,
                "isolation guard"
            );
            changes.dirty.all = true;
        }
        if on_evidence(Evidence::MemberRemoved, self.guard.is_active()) != Removal::Held {
            return changes;
        }
        for (name, member) in &mut self.members {
            if let Some(leaving) = &mut member.leaving
                && !leaving.held
            {
                leaving.held = true;
                leaving.until = leaving.since + self.rules.removal_hold;
                let exported = member.pools.exported().count();
                changes.withhold(Evidence::MemberRemoved, exported.max(1));
                tracing::warn!(member = %name, hold = ?self.rules.removal_hold,
                    "it left together with most others: keeping it for now");
            }
        }
        changes
    }

    fn census(&self) -> Census {
        let is_counted = |member: &&Member| member.contact.link != Link::Removing;
        let members = || self.members.values().filter(is_counted);
        Census {
            members: members().count(),
            lost: members().filter(|member| member.contact.is_lost()).count(),
        }
    }

    /// Removes the member and withdraws its exports, without a drain.
    fn leave(&mut self, name: &ClusterName) -> Changes {
        let mut changes = Changes::all();
        if let Some(member) = self.members.get_mut(name) {
            member.contact.link = Link::Removing;
            member.leaving = None;
            member.pools.draining.clear();
            if !member.withdrawn {
                for (key, _) in member.pools.exported() {
                    changes.withdraw(name, key, Evidence::MemberRemoved, None);
                }
            }
        }
        self.guard.found(name);
        changes
    }

    /// Withdraws the exports of members that have been silent for too long.
    fn withdraw_silent(&mut self, after: Duration, now: Moment) -> Changes {
        let mut changes = Changes::default();
        let removal = on_evidence(Evidence::WithdrawAfter, self.guard.is_active());
        for (name, member) in &mut self.members {
            let silent = member
                .contact
                .silence
                .is_some_and(|it| now.since(it.since) >= after);
            // it is not clear which clusters these are: that is no silence
            let elsewhere = matches!(
                member.contact.link,
                Link::Removing
                    | Link::Refused(Refusal::IdentityChanged | Refusal::DuplicateCluster)
            );
            if !silent || elsewhere || member.withdrawn {
                continue;
            }
            if removal == Removal::Held {
                if !std::mem::replace(&mut member.withheld, true) {
                    changes.withhold(
                        Evidence::WithdrawAfter,
                        member.pools.exported().count().max(1),
                    );
                }
                continue;
            }
            member.withdrawn = true;
            changes.dirty.all = true;
            for (key, _) in member.pools.exported() {
                changes.withdraw(name, key, Evidence::WithdrawAfter, None);
            }
        }
        changes
    }
}

#[cfg(test)]
mod tests;
