//! A member's pools: what is listed, what vanishes, and what that proves.

use std::{collections::BTreeSet, time::Duration};

use super::{
    Changes, Evidence,
    counted::Counted,
    drain::Drains,
    facts::{CrdCheck, PoolFacts},
    grant::MayExport,
    member::{Coverage, Doubt, DoubtCause, Member, PoolRecord, Unseen},
    undo::UndoDetector,
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

/// The pools of one member.
#[derive(Clone, Debug)]
pub struct Pools {
    /// All known pools, exported or not; for a retained pool, its last facts.
    pub records: Counted<Key, PoolRecord>,
    /// Whether the absence of a pool means anything.
    pub coverage: Coverage,
    /// Pools that could not be read: only their existence is known.
    pub(super) odd: BTreeSet<Key>,
    /// Uid of the pools CRD at the last complete list during which it existed.
    pub(super) crd: Option<String>,
    /// What it means that a pool has not been seen since the start.
    pub(super) unseen: Unseen,
    /// Pools that are proven to be gone, while other unseen pools are not; empty once every unseen pool is.
    pub(super) gone: BTreeSet<Key>,
    /// Exported pools within what one member may export.
    pub(super) admitted: BTreeSet<Key>,
    /// Exported pools beyond it: their entries are not updated.
    pub over_cap: BTreeSet<Key>,
    /// Ended exports whose entries drain.
    pub draining: Drains,
    /// New states of pools whose EPP's endpoints are not known yet: until then the record stays.
    pub(super) waiting: Counted<Key, PoolFacts>,
    /// In which of them somebody keeps undoing our entry.
    pub undone: UndoDetector,
}

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
        let was_overfull = self.pools.is_overfull();
        self.pools.coverage = Coverage::Listed;
        pools.sort_unstable_by(|a, b| (a.created, a.key.text()).cmp(&(b.created, b.key.text())));
        let listed: BTreeSet<Key> = pools.iter().map(|pool| pool.key.clone()).collect();
        if let CrdCheck::Serving { .. } = crd {
            self.pools
                .waiting
                .retain(|key, _| listed.contains(key) || odd.contains(key));
        }
        let same_crd =
            matches!(&crd, CrdCheck::Serving { uid } if self.pools.crd.as_ref() == Some(uid));
        let missing: Vec<Key> = self
            .pools
            .records
            .keys()
            .filter(|key| !listed.contains(*key) && !odd.contains(*key))
            .cloned()
            .collect();
        let mut gone = Vec::new();
        for key in missing {
            let Some(record) = self.pools.records.get_mut(&key) else {
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
                    changes.merge(self.pools.drop(name, &key, Evidence::PoolAbsent));
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
        if self.pools.is_overfull() {
            // nothing is known of other pools that are not kept, but these are proven to be gone
            let room = MAX_POOLS.saturating_sub(self.pools.gone.len());
            self.pools.gone.extend(gone.into_iter().take(room));
        }
        self.pools.unseen = match (&crd, self.pools.unseen) {
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
            self.pools.crd = Some(uid);
        }
        // an entry of one that cannot be read is carried over
        let readable = std::mem::take(&mut self.pools.odd);
        let readable = readable.into_iter().filter(|key| !odd.contains(key));
        changes.dirty.keys.extend(readable);
        for key in odd {
            self.pools.apply_odd(key);
        }
        if self.pools.unseen == Unseen::Absent && !self.pools.is_overfull() {
            // any pool without a record is absent: no separate proof is needed
            self.pools.gone.clear();
        }
        changes
    }

    pub(super) fn apply_pool(&mut self, name: &ClusterName, pool: PoolFacts) -> Changes {
        let mut changes = Changes::default();
        let key = pool.key.clone();
        self.pools.odd.remove(&key);
        self.pools.gone.remove(&key);
        let record = PoolRecord {
            facts: pool,
            doubt: None,
        };
        let waits = self.must_wait(&record.facts);
        if !self.pools.may_keep(&record.facts) {
            if self.set_partial(Kind::Pools.into()) {
                tracing::warn!(member = %name, "too many pools: nothing is known of some of them");
            }
            return changes;
        }
        if waits {
            self.pools.waiting.insert(key, record.facts);
            return changes;
        }
        self.pools.waiting.remove(&key);
        let old = self.pools.records.get(&key);
        if old == Some(&record) {
            return changes;
        }
        let evidence = record.facts.export.requested().err();
        // a pool that may not be exported never was exported
        let may = self.may_export(&key.namespace) != MayExport::No;
        match (evidence, old.filter(|old| old.is_exported() && may)) {
            (Some(evidence), Some(old)) => changes.withdraw(name, &key, evidence, old.drain()),
            (Some(_), None) => {}
            (None, _) => {
                self.pools.draining.forget(&key);
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
        self.pools.records.insert(key.clone(), record);
        changes.merge(self.pools.admit(&key));
        changes
    }
}

impl Member {
    /// The pools whose annotation requests their export, in namespaces that the member may export.
    pub(super) fn exported_and_allowed(&self) -> Vec<Key> {
        let exported = self.pools.exported().map(|(key, _)| key);
        let allowed = exported.filter(|key| self.may_export(&key.namespace) != MayExport::No);
        allowed.cloned().collect()
    }
}

// === impl Pools ===

impl Pools {
    /// The record of a pool; none: it is not known, or gone.
    pub fn get(&self, key: &Key) -> Option<&PoolRecord> {
        self.records.get(key)
    }

    /// All known pools, exported or not.
    pub fn iter(&self) -> impl Iterator<Item = (&Key, &PoolRecord)> {
        self.records.iter()
    }

    /// The pools that ask for their export.
    pub fn exported(&self) -> impl Iterator<Item = (&Key, &PoolRecord)> {
        self.records
            .iter()
            .filter(|(_, record)| record.is_exported())
    }

    /// Pools whose EPP is this Service.
    pub fn of_service(&self, service: &Key) -> impl Iterator<Item = &Key> {
        self.records
            .range(Key::all_of(&service.namespace))
            .filter(|(key, _)| key.namespace == service.namespace)
            .filter(|(_, record)| {
                let epp = record.facts.epp.as_ref();
                epp.is_some_and(|epp| *epp.name == *service.name)
            })
            .map(|(key, _)| key)
    }

    /// Whether it has more pools than are kept.
    pub fn is_overfull(&self) -> bool {
        self.coverage == Coverage::Partial
    }

    /// A pool that could not be read: it exists, so what is known of it stays.
    pub(super) fn apply_odd(&mut self, key: Key) {
        if self.odd.len() < MAX_POOLS {
            self.odd.insert(key);
        } else if !self.odd.contains(&key) {
            self.coverage = Coverage::Partial;
        }
    }

    /// Whether the pool may be kept; a known one always.
    fn may_keep(&self, pool: &PoolFacts) -> bool {
        let kept = self.records.len() + self.waiting.len();
        let known = self.records.contains_key(&pool.key) || self.waiting.contains_key(&pool.key);
        let exported = pool.export.is_requested();
        known || kept < if exported { MAX_POOLS } else { MAX_OTHERS }
    }

    /// Whether a missing record of the pool means that there is no such pool.
    pub fn knows(&self, key: &Key) -> bool {
        let certain = match self.coverage {
            Coverage::Listed => self.unseen == Unseen::Absent || self.gone.contains(key),
            Coverage::Partial => self.gone.contains(key),
            Coverage::Never | Coverage::NotServed => false,
        };
        let unread = self.odd.contains(key) || self.waiting.contains_key(key);
        self.records.contains_key(key) || (certain && !unread)
    }

    /// The proof, if there is one, that it does not export the key.
    pub(super) fn lacks_export(&self, key: &Key) -> Option<Evidence> {
        match self.records.get(key) {
            Some(record) => record.facts.export.requested().err(),
            None => self.knows(key).then_some(Evidence::PoolAbsent),
        }
    }

    /// The pools CRD is not served any more: all pools are in doubt until it is back. A watch that was broken meanwhile
    /// sends no deletions.
    pub(super) fn doubt_crd(&mut self) -> Changes {
        if let Unseen::UnknownUntil(_) = self.unseen {
            self.unseen = Unseen::Unknown;
        }
        let mut changes = Changes::default();
        for (key, record) in self.records.iter_mut() {
            changes.merge(record.doubt_until(key, None, DoubtCause::Crd));
        }
        changes
    }

    /// Keeps the number of admitted exports within [`MAX_EXPORTED`].
    fn admit(&mut self, key: &Key) -> Changes {
        let exported = self.records.get(key).is_some_and(PoolRecord::is_exported);
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
        let age = |key: &Key| self.records.get(key).map(|record| record.facts.created);
        let over = self.over_cap.iter();
        over.min_by(|a, b| (age(a), a.text()).cmp(&(age(b), b.text())))
            .cloned()
    }

    pub(super) fn delete(&mut self, name: &ClusterName, key: &Key, crd: CrdCheck) -> Changes {
        let mut changes = Changes::default();
        if self.odd.remove(key) {
            changes.dirty.keys.insert(key.clone());
        }
        let proven = matches!(&crd, CrdCheck::Serving { uid } if self.crd.as_ref() == Some(uid));
        if proven || seeded::is_on(SeededFault::DeletedWithoutCrdCheck) {
            self.waiting.remove(key);
            changes.merge(self.drop(name, key, Evidence::PoolDeleted));
        } else if let Some(record) = self.records.get_mut(key) {
            changes.merge(record.doubt_until(key, None, DoubtCause::Crd));
        }
        changes
    }

    pub(super) fn drop(&mut self, name: &ClusterName, key: &Key, evidence: Evidence) -> Changes {
        let mut changes = Changes::default();
        let proof_needed = self.unseen != Unseen::Absent || self.is_overfull();
        if proof_needed && self.gone.len() < MAX_POOLS {
            self.gone.insert(key.clone());
            changes.dirty.keys.insert(key.clone());
        }
        self.undone.forget(key);
        if let Some(record) = self.records.remove(key)
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

    pub(super) fn bytes(&self) -> usize {
        self.records.bytes() + self.waiting.bytes()
    }

    /// Size of the pools that a list lacks and that are kept nevertheless.
    pub(super) fn bytes_that_stay(
        &self,
        listed: &BTreeSet<&Key>,
        crd: &CrdCheck,
        guarded: bool,
    ) -> usize {
        let same_crd = matches!(crd, CrdCheck::Serving { uid } if self.crd.as_ref() == Some(uid));
        let stays = |key: &Key, record: &PoolRecord| {
            !listed.contains(key) && (!same_crd || guarded || record.doubt.is_some())
        };
        let records = self
            .records
            .iter()
            .filter(|(key, record)| stays(key, record));
        Counted::<Key, _>::bytes_for(records.map(|(_, record)| record))
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

impl Default for Pools {
    fn default() -> Self {
        Self {
            records: Counted::default(),
            coverage: Coverage::Never,
            odd: BTreeSet::new(),
            crd: None,
            unseen: Unseen::Unknown,
            gone: BTreeSet::new(),
            admitted: BTreeSet::new(),
            over_cap: BTreeSet::new(),
            draining: Drains::default(),
            waiting: Counted::default(),
            undone: UndoDetector::of_pools(),
        }
    }
}
