//! What is known of all members, with the evidence for each removal.
//!
//! Synchronous: no client, no clock, no await. Every method returns the keys whose plan may change and the
//! withdrawals with their evidence; a fault alone never causes one.

mod absence;
mod changes;
mod counted;
pub mod denied;
pub mod digest;
pub mod drain;
pub mod entry;
pub mod facts;
pub mod flavour;
pub mod grant;
mod guard;
pub mod heap;
mod identity;
pub mod interest;
mod kinds;
mod link;
pub mod member;
pub mod memory;
pub mod origin;
mod orphans;
mod parents;
pub mod pools;
pub mod record;
pub mod rules;
#[cfg(test)]
mod tests;
pub mod undo;
pub mod update;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crd::RoutingMode;
use jiff::Timestamp;

pub use self::changes::{Changes, Dirty, Withdrawal};
use self::{
    facts::{Claim, CrdCheck, LiveImport, PoolFacts},
    guard::Guard,
    member::{Coverage, Doubt, Link, Member, PoolRecord, Unseen},
    memory::MEMBER_MEMORY,
    orphans::{Orphans, Suspects},
    pools::Reading,
    record::Record,
    rules::Rules,
    update::Update,
};
use crate::{
    evidence::{Evidence, Removal, on_evidence},
    name::{ClusterName, Key},
};
use moment::Moment;

/// All members.
#[derive(Clone, Debug)]
pub struct World {
    /// Those in the inventory, and those that left it and are not removed yet.
    pub members: BTreeMap<ClusterName, Member>,
    /// Time limits and safeguards, as the operator configured them.
    pub rules: Rules,
    guard: Guard,
    /// The wall clock at a moment.
    wall: (Moment, Timestamp),
    /// The inventory has been listed once.
    listed: bool,
    /// Mode of exports that name none.
    default_mode: RoutingMode,
    /// The controller's own namespace, in every member: exported only where it is named.
    own_namespace: Arc<str>,
    /// The ClusterSet; a member of another one is refused. None: not known.
    pub clusterset: Option<String>,
    /// The cluster of each name, for members and for those of the last controller run.
    recorded: BTreeMap<ClusterName, Record>,
    /// Exports that ended while no controller ran: each is reported once.
    orphans: Orphans,
}

// === impl World ===

impl World {
    /// Without members; the inventory counts as not listed, and the ClusterSet as not known.
    pub fn new(rules: Rules) -> Self {
        Self {
            members: BTreeMap::new(),
            rules,
            guard: Guard::default(),
            wall: (Moment::START, Timestamp::UNIX_EPOCH),
            listed: false,
            default_mode: RoutingMode::EndpointMode,
            own_namespace: Arc::from(""),
            clusterset: None,
            recorded: BTreeMap::new(),
            orphans: Orphans::default(),
        }
    }

    /// The mode of exports that name none; else EndpointMode.
    #[must_use]
    pub fn with_default_mode(mut self, mode: RoutingMode) -> Self {
        self.default_mode = mode;
        self
    }

    /// Sets the controller's own namespace. Without it no namespace is the controller's.
    #[must_use]
    pub fn with_own_namespace(mut self, namespace: &str) -> Self {
        self.own_namespace = Arc::from(namespace);
        self
    }

    /// A member joined the inventory, or came back before it was removed.
    pub fn add_member(&mut self, name: &ClusterName, now: Moment) -> Changes {
        let known = self.members.get(name).map(|member| member.contact.link);
        if known == Some(Link::Removing) {
            // removed and added again: it may be another cluster now
            self.forget_identity(name);
        }
        if known.is_none_or(|link| link == Link::Removing) {
            let default_mode = self.default_mode;
            let member = Member {
                default_mode,
                own_namespace: self.own_namespace.clone(),
                ..Member::new(now)
            };
            self.members.insert(name.clone(), member);
        }
        self.keep_member(name);
        Changes::all()
    }

    /// Drops what is known of a removed member.
    pub fn forget(&mut self, name: &ClusterName) -> Changes {
        self.members.remove(name);
        self.forget_identity(name);
        self.orphans.forget(name);
        Changes::all()
    }

    /// Applies a report of a member's tasks.
    pub fn update(&mut self, name: &ClusterName, update: Update, now: Moment) -> Changes {
        let known = |world: &Self| {
            let member = world.members.get(name)?;
            let refusal = match member.contact.link {
                Link::Refused(refusal) => Some(refusal),
                _ => None,
            };
            let exports = (member.exports_known(), member.parts_known());
            Some((refusal, exports, member.imports_known()))
        };
        let overfull = |world: &Self| {
            world
                .members
                .get(name)
                .is_some_and(|member| member.pools.is_overfull())
        };
        let was_lost = self
            .members
            .get(name)
            .is_some_and(|member| member.contact.is_lost());
        let before = known(self);
        let was_overfull = overfull(self);
        let mut changes = self.apply_update(name, update, now);
        changes.dirty.all |= known(self) != before;
        // all its pools are known now
        changes.dirty.all |= was_overfull && !overfull(self);
        changes.merge(self.note_contact(name, was_lost, now));
        self.begin_drains(&changes, now);
        changes
    }

    fn apply_update(&mut self, name: &ClusterName, update: Update, now: Moment) -> Changes {
        let guarded = self.is_guarded();
        let Some(member) = self.members.get_mut(name) else {
            return Changes::default();
        };
        let refused = matches!(member.contact.link, Link::Refused(_));
        if refused && !matches!(update, Update::Connected { .. } | Update::Refused(_)) {
            // from a session that is being ended: ignored
            return Changes::default();
        }
        let over = match &update {
            Update::OverLimit(kind) => Some(*kind),
            update => member.exceeds(update, guarded),
        };
        if let Some(kind) = over {
            let is_new = member.set_partial(kind);
            if is_new {
                tracing::warn!(member = %name, kind = kind.plural(), limit = MEMBER_MEMORY,
                    "it has more than is kept of one member: what is known of this kind stays as it is");
            }
            // what is derived from this kind is not known any more
            return if is_new {
                Changes::all()
            } else {
                Changes::default()
            };
        }
        match update {
            Update::Connected { uid, clusterset } => {
                return self.identify(name, uid, clusterset.as_deref());
            }
            Update::Live => return member.live(),
            Update::Suspect => member.contact.set_link(Link::Suspect),
            Update::Lost(fault) => return member.contact.lost(fault, now),
            Update::Refused(refusal) => return member.contact.refuse(refusal, now),
            Update::NewCredentials(unusable) => member.unusable_credentials = unusable,
            Update::Denied(kinds) => return member.deny(kinds, now),
            Update::NotServed(kind) => return member.not_served(kind),
            Update::ImportCrd(crd) => return member.change_import_crd(crd),
            Update::PoolsListed { pools, odd, crd } => {
                return self.list_pools(name, pools, odd, crd, now);
            }
            Update::PoolApplied(pool) => {
                let key = pool.key.clone();
                let not_seen = !member.pools.knows(&key);
                let mut changes = member.apply_pool(name, pool);
                if not_seen && (self.is_imported(&key) || self.is_exported(&key)) {
                    // entries carried over, now or later, are decided now, whatever the pool asks for
                    changes.dirty.keys.insert(key.clone());
                    self.withdraw_orphans(Suspects::One(name, &key), &mut changes);
                }
                return changes;
            }
            Update::PoolOdd(key) => member.pools.apply_odd(key),
            Update::PoolDeleted { key, crd } => return member.pools.delete(name, &key, crd),
            Update::Services(change) => return member.change_services(change),
            Update::Slices(change) => return member.change_slices(change),
            Update::SlicesListed { slices, scope } => {
                return member.list_slices(name, slices, scope);
            }
            Update::Gateways(change) => return member.change_gateways(change),
            Update::Routes(change) => return member.change_routes(change),
            Update::ParentsHidden(kind) => return member.hide_parents(kind),
            Update::ParentsUnwatched => return member.unwatch_parents(),
            Update::OverLimit(_) => {}
            Update::Namespaces(change) => {
                let names = member.change_namespaces(change);
                return self.keys_in(&names);
            }
            Update::Imports(change) => {
                let first = !member.all_imports_known();
                let mut changes = member.change_imports(change, now);
                if first && member.all_imports_known() {
                    self.withdraw_orphans(Suspects::In(name), &mut changes);
                }
                return changes;
            }
        }
        Changes::default()
    }

    /// Applies what time alone changes: doubts and drains that end, members that have been gone for long enough.
    pub fn tick(&mut self, now: Moment) -> Changes {
        let mut changes = self.tick_absence(now);
        if on_evidence(Evidence::PoolAbsent, self.is_guarded()) != Removal::Held {
            changes.merge(self.end_doubts(now));
        }
        self.begin_drains(&changes, now);
        changes.dirty.keys.extend(self.end_drains(now));
        changes
    }

    /// Ends the doubts that are due.
    fn end_doubts(&mut self, now: Moment) -> Changes {
        let mut changes = Changes::default();
        let mut cleared = BTreeSet::new();
        for (name, member) in &mut self.members {
            if !member.contact.is_up() {
                continue;
            }
            if let Unseen::UnknownUntil(ends) = member.pools.unseen
                && ends <= now
            {
                member.pools.unseen = Unseen::Absent;
                if !member.pools.is_overfull() {
                    member.pools.gone.clear();
                }
                cleared.insert(name.clone());
            }
            let is_over = |doubt: Doubt| doubt.ends.is_some_and(|ends| ends <= now);
            let pools = member.pools.iter();
            let over = pools.filter(|(_, record)| record.doubt.is_some_and(is_over));
            for key in over.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
                changes.merge(member.pools.drop(name, &key, Evidence::PoolAbsent));
            }
        }
        if !cleared.is_empty() {
            changes.dirty.all = true;
            self.withdraw_orphans(Suspects::Of(&cleared), &mut changes);
        }
        changes
    }

    /// Every key for which some member has an export, an import of ours, or our condition.
    pub fn all_keys(&self) -> BTreeSet<Key> {
        let mut keys = BTreeSet::new();
        for member in self.members.values() {
            let (pools, imports) = (member.pools.iter(), member.imports.items.iter());
            let pools = pools.filter(|(_, record)| record.concerns_us());
            let imports = imports.filter(|(_, import)| import.claim == Claim::Ours);
            keys.extend(pools.map(|(key, _)| key.clone()));
            keys.extend(imports.map(|(key, _)| key.clone()));
        }
        keys
    }

    fn list_pools(
        &mut self,
        name: &ClusterName,
        pools: Vec<PoolFacts>,
        odd: BTreeSet<Key>,
        crd: CrdCheck,
        now: Moment,
    ) -> Changes {
        let reading = Reading {
            now,
            doubt_ends: now + self.rules.stale_after,
            guarded: self.is_guarded(),
        };
        let Some(member) = self.members.get_mut(name) else {
            return Changes::default();
        };
        let before = member.pools.coverage;
        let mut changes = member.list_pools(name, pools, odd, crd, reading);
        // the first list, or the first that fits
        if before != Coverage::Listed && before != member.pools.coverage {
            changes.dirty.all = true;
            changes.withhold(Evidence::PoolAbsent, self.carried_from(name).len());
            self.withdraw_orphans(Suspects::Listed(name), &mut changes);
        }
        changes
    }

    /// Whether some member has an import of ours for the key.
    fn is_imported(&self, key: &Key) -> bool {
        self.members.values().any(|member| {
            let import = member.imports.items.get(key);
            import.is_some_and(|import| import.claim == Claim::Ours)
        })
    }

    /// Whether some member has a pool that asks for the key's export.
    fn is_exported(&self, key: &Key) -> bool {
        let mut members = self.members.values();
        members.any(|member| member.pools.get(key).is_some_and(PoolRecord::is_exported))
    }

    /// Keys of imports that have an entry of this exporter although its pool has not been seen.
    fn carried_from(&self, exporter: &ClusterName) -> BTreeSet<Key> {
        let Some(exporting) = self.members.get(exporter) else {
            return BTreeSet::new();
        };
        let lists = |import: &LiveImport| {
            let mut entries = import.status.clusters.iter();
            import.claim == Claim::Ours && entries.any(|entry| entry.name == exporter.as_str())
        };
        let imports = self.members.values().flat_map(|one| &one.imports.items);
        imports
            .filter(|(key, import)| !exporting.pools.knows(key) && lists(import))
            .map(|(key, _)| key.clone())
            .collect()
    }

    /// Keys in these namespaces, in any member.
    fn keys_in(&self, namespaces: &BTreeSet<Arc<str>>) -> Changes {
        if namespaces.is_empty() {
            return Changes::default();
        }
        let mut changes = Changes::default();
        let mut keys = self.all_keys();
        keys.retain(|key| namespaces.contains(&key.namespace));
        changes.dirty.keys = keys;
        changes
    }
}
