//! A member's pools: what is listed, what vanishes, and what that proves.

use std::{collections::BTreeSet, time::Duration};

use super::{
    Changes, Evidence,
    facts::{CrdCheck, PoolFacts},
    member::{Coverage, Doubt, DoubtCause, Member, PoolRecord, Unseen},
    update::Kind,
};
use crate::{
    evidence::{Removal, on_evidence},
    export::Export,
    name::{ClusterName, Key},
    seeded::{self, SeededFault},
};
use moment::Moment;

/// Pools that one member may export (spec 5.2); those known first, or older, stay.
pub const MAX_EXPORTED: usize = 2000;

/// Pools of one member that are not exported: as many as Services (spec 5.2).
const MAX_OTHERS: usize = 20_000;
/// All pools of one member. Beyond it, or beyond `MAX_OTHERS`, a new pool is not kept: it is unknown, not absent. There is
/// room for twice [`MAX_EXPORTED`], so that exports beyond that get a condition.
pub const MAX_POOLS: usize = MAX_OTHERS + 2 * MAX_EXPORTED;

/// The circumstances of a list.
#[derive(Clone, Copy)]
pub(super) struct Reading {
    pub(super) now: Moment,
    /// When doubts that begin now end.
    pub(super) doubt_ends: Moment,
    /// The isolation guard holds.
    pub(super) guarded: bool,
}

// === impl Member ===

impl Member {
    pub(super) fn list_pools(
        &mut self,
        name: &ClusterName,
        mut pools: Vec<PoolFacts>,
        odd: BTreeSet<Key>,
        crd: CrdCheck,
        reading: Reading,
    ) -> Changes {
        let Reading {
            now,
            doubt_ends,
            guarded,
        } = reading;
        let mut changes = Changes::default();
        let was_overfull = self.is_overfull();
        self.pools_coverage = Coverage::Listed;
        pools.sort_unstable_by(|a, b| (a.created, a.key.text()).cmp(&(b.created, b.key.text())));
        let listed: BTreeSet<Key> = pools.iter().map(|pool| pool.key.clone()).collect();
        if let CrdCheck::Serving { .. } = crd {
            self.waiting_pools
                .retain(|key, _| listed.contains(key) || odd.contains(key));
        }
        let same_crd =
            matches!(&crd, CrdCheck::Serving { uid } if self.pools_crd.as_ref() == Some(uid));
        let missing: Vec<Key> = self
            .pools
            .keys()
            .filter(|key| !listed.contains(*key) && !odd.contains(*key))
            .cloned()
            .collect();
        let mut gone = Vec::new();
        for key in missing {
            let Some(record) = self.pools.get_mut(&key) else {
                continue;
            };
            match (&crd, record.doubt) {
                // pools of a reinstalled CRD have until then to come back
                (CrdCheck::Serving { .. }, Some(Doubt { ends: Some(_), .. })) if same_crd => {}
                (CrdCheck::Serving { .. }, _)
                    if same_crd && on_evidence(Evidence::PoolAbsent, guarded) == Removal::Held =>
                {
                    changes.merge(record.doubt_until(&key, Some(now), DoubtCause::Guard));
                }
                (CrdCheck::Serving { .. }, _) if same_crd => {
                    changes.merge(self.drop_pool(name, &key, Evidence::PoolAbsent));
                    gone.push(key);
                }
                (CrdCheck::Serving { .. }, _) => {
                    changes.merge(record.doubt_until(&key, Some(doubt_ends), DoubtCause::Crd));
                }
                (CrdCheck::Doubtful, _) => {
                    changes.merge(record.doubt_until(&key, None, DoubtCause::Crd));
                }
            }
        }
        for pool in pools {
            changes.merge(self.apply_pool(name, pool));
        }
        if self.is_overfull() {
            // nothing is known of other pools that are not kept, but these are proven to be gone
            let room = MAX_POOLS.saturating_sub(self.gone_pools.len());
            self.gone_pools.extend(gone.into_iter().take(room));
        }
        self.unseen = match (&crd, self.unseen) {
            // pools that were not kept are unknown, and this list proves no absence
            (CrdCheck::Doubtful, Unseen::Absent) if !was_overfull => Unseen::Absent,
            (CrdCheck::Serving { .. }, Unseen::Absent) if was_overfull && !same_crd => {
                Unseen::UnknownUntil(doubt_ends)
            }
            (CrdCheck::Doubtful, _) => Unseen::Unknown,
            (CrdCheck::Serving { .. }, Unseen::Unknown) => Unseen::UnknownUntil(doubt_ends),
            (CrdCheck::Serving { .. }, Unseen::UnknownUntil(_)) if !same_crd => {
                Unseen::UnknownUntil(doubt_ends)
            }
            (CrdCheck::Serving { .. }, unseen) => unseen,
        };
        if let CrdCheck::Serving { uid } = crd {
            self.pools_crd = Some(uid);
        }
        self.odd_pools.clear();
        for key in odd {
            self.odd_pool(key);
        }
        if self.unseen == Unseen::Absent && !self.is_overfull() {
            // any pool without a record is absent: no separate proof is needed
            self.gone_pools.clear();
        }
        changes
    }

    /// A pool that could not be read: it exists, so what is known of it stays.
    pub(super) fn odd_pool(&mut self, key: Key) {
        if self.odd_pools.len() < MAX_POOLS {
            self.odd_pools.insert(key);
        } else if !self.odd_pools.contains(&key) {
            self.set_partial(Kind::Pools.into());
        }
    }

    /// Whether the pool may be kept; a known one always.
    fn may_keep(&self, pool: &PoolFacts) -> bool {
        let kept = self.pools.len() + self.waiting_pools.len();
        let known =
            self.pools.contains_key(&pool.key) || self.waiting_pools.contains_key(&pool.key);
        let exported = pool.export.is_requested();
        known || kept < if exported { MAX_POOLS } else { MAX_OTHERS }
    }

    /// Whether a missing record of the pool means that there is no such pool.
    pub fn knows_pool(&self, key: &Key) -> bool {
        let certain = match self.pools_coverage {
            Coverage::Listed => self.unseen == Unseen::Absent || self.gone_pools.contains(key),
            Coverage::Partial => self.gone_pools.contains(key),
            Coverage::Never | Coverage::NotServed => false,
        };
        let unread = self.odd_pools.contains(key) || self.waiting_pools.contains_key(key);
        self.pools.contains_key(key) || (certain && !unread)
    }

    /// The proof, if there is one, that it does not export the key.
    pub(super) fn lacks_export(&self, key: &Key) -> Option<Evidence> {
        match self.pools.get(key) {
            Some(record) => record.facts.export.requested().err(),
            None => self.knows_pool(key).then_some(Evidence::PoolAbsent),
        }
    }

    /// The pools CRD is not served any more: all pools are in doubt until it is back. A watch that was broken meanwhile
    /// sends no deletions.
    pub(super) fn doubt_pools_crd(&mut self) -> Changes {
        if let Unseen::UnknownUntil(_) = self.unseen {
            self.unseen = Unseen::Unknown;
        }
        let mut changes = Changes::default();
        for (key, record) in self.pools.iter_mut() {
            changes.merge(record.doubt_until(key, None, DoubtCause::Crd));
        }
        changes
    }

    pub(super) fn apply_pool(&mut self, name: &ClusterName, pool: PoolFacts) -> Changes {
        let mut changes = Changes::default();
        let key = pool.key.clone();
        self.odd_pools.remove(&key);
        self.gone_pools.remove(&key);
        let record = PoolRecord {
            facts: pool,
            doubt: None,
        };
        let waits = self.must_wait(&record.facts);
        if !self.may_keep(&record.facts) {
            if self.set_partial(Kind::Pools.into()) {
                tracing::warn!(member = %name, "too many pools: nothing is known of some of them");
            }
            return changes;
        }
        if waits {
            self.waiting_pools.insert(key, record.facts);
            return changes;
        }
        self.waiting_pools.remove(&key);
        let old = self.pools.get(&key);
        if old == Some(&record) {
            return changes;
        }
        let evidence = record.facts.export.requested().err();
        match (evidence, old.filter(|old| old.is_exported())) {
            (Some(evidence), Some(old)) => changes.withdraw(name, &key, evidence, old.drain()),
            (Some(_), None) => {}
            (None, _) => {
                self.draining.forget(&key);
            }
        }
        let is_echo = |old: &PoolRecord| {
            old.concerns_us() && record.concerns_us() && old.differs_by_condition(&record)
        };
        if old.is_some_and(is_echo) {
            changes.dirty.conditions.insert(key.clone());
        } else if record.concerns_us() || old.is_some_and(PoolRecord::concerns_us) {
            changes.dirty.keys.insert(key.clone());
        }
        if record.is_exported() {
            self.miss_service(&record.facts);
        }
        self.pools.insert(key.clone(), record);
        changes.merge(self.admit(&key));
        changes
    }

    /// Keeps the number of admitted exports within [`MAX_EXPORTED`].
    fn admit(&mut self, key: &Key) -> Changes {
        let exported = self.pools.get(key).is_some_and(PoolRecord::is_exported);
        let mut changes = Changes::default();
        if exported && self.admitted.len() >= MAX_EXPORTED && !self.admitted.contains(key) {
            self.over_cap.insert(key.clone());
            return changes;
        }
        self.over_cap.remove(key);
        if exported {
            self.admitted.insert(key.clone());
        } else if self.admitted.remove(key)
            && let Some(next) = self.oldest_over_cap()
        {
            self.over_cap.remove(&next);
            changes.dirty.keys.insert(next.clone());
            self.admitted.insert(next);
        }
        changes
    }

    fn oldest_over_cap(&self) -> Option<Key> {
        let age = |key: &Key| self.pools.get(key).map(|record| record.facts.created);
        let over = self.over_cap.iter();
        over.min_by(|a, b| (age(a), a.text()).cmp(&(age(b), b.text())))
            .cloned()
    }

    pub(super) fn delete_pool(&mut self, name: &ClusterName, key: &Key, crd: CrdCheck) -> Changes {
        self.odd_pools.remove(key);
        let proven =
            matches!(&crd, CrdCheck::Serving { uid } if self.pools_crd.as_ref() == Some(uid));
        if proven || seeded::is_on(SeededFault::DeletedWithoutCrdCheck) {
            self.waiting_pools.remove(key);
            return self.drop_pool(name, key, Evidence::PoolDeleted);
        }
        self.pools
            .get_mut(key)
            .map(|record| record.doubt_until(key, None, DoubtCause::Crd))
            .unwrap_or_default()
    }

    pub(super) fn drop_pool(
        &mut self,
        name: &ClusterName,
        key: &Key,
        evidence: Evidence,
    ) -> Changes {
        let mut changes = Changes::default();
        let proof_needed = self.unseen != Unseen::Absent || self.is_overfull();
        if proof_needed && self.gone_pools.len() < MAX_POOLS {
            self.gone_pools.insert(key.clone());
            changes.dirty.keys.insert(key.clone());
        }
        if let Some(record) = self.pools.remove(key)
            && record.concerns_us()
        {
            changes.dirty.keys.insert(key.clone());
            if record.is_exported() {
                changes.withdraw(name, key, evidence, record.drain());
            }
        }
        changes.merge(self.admit(key));
        changes
    }
}

// === impl PoolRecord ===

impl PoolRecord {
    /// Whether its annotations ask for an export that we can make.
    pub fn is_exported(&self) -> bool {
        self.facts.export.is_requested()
    }

    /// Whether it asks for an export, has our condition, or has an annotation that has no effect.
    pub fn concerns_us(&self) -> bool {
        let nothing = Export::NotRequested { mode_alone: false };
        self.facts.exported.is_some() || self.facts.export != nothing
    }

    /// Whether the two differ only by our condition, on which no plan depends.
    fn differs_by_condition(&self, other: &Self) -> bool {
        let PoolFacts {
            key,
            uid,
            generation,
            created,
            export,
            epp,
            target_ports,
            app_protocol,
            exported,
            parents,
            status_full,
        } = &self.facts;
        let same_facts = *key == other.facts.key
            && *uid == other.facts.uid
            && *generation == other.facts.generation
            && *created == other.facts.created
            && *export == other.facts.export
            && *epp == other.facts.epp
            && *target_ports == other.facts.target_ports
            && *app_protocol == other.facts.app_protocol
            && *parents == other.facts.parents
            && *status_full == other.facts.status_full;
        same_facts && self.doubt == other.doubt && *exported != other.facts.exported
    }

    /// Whether it vanished with its CRD.
    pub fn is_crd_missing(&self) -> bool {
        let doubt = self.doubt.filter(|doubt| doubt.cause == DoubtCause::Crd);
        doubt.is_some()
    }

    /// The drain that it asks for, if any.
    pub(super) fn drain(&self) -> Option<Duration> {
        self.facts.export.requested().ok()?.drain
    }

    pub(super) fn doubt_until(
        &mut self,
        key: &Key,
        ends: Option<Moment>,
        cause: DoubtCause,
    ) -> Changes {
        let mut changes = Changes::default();
        let doubt = Some(Doubt { ends, cause });
        if self.doubt != doubt {
            let is_new = self.doubt.is_none() && self.is_exported();
            changes.withhold(Evidence::PoolAbsent, usize::from(is_new));
            self.doubt = doubt;
            changes.dirty.keys.insert(key.clone());
        }
        changes
    }
}
