//! What is known of all members, with the evidence for whatever is forgotten.
//!
//! Synchronous: no client, no clock, no await. Every method returns the keys whose plan may change and the
//! withdrawals it found evidence for; a fault alone never yields one.

pub(crate) mod facts;
pub(crate) mod interest;
mod kinds;
mod link;
pub(crate) mod member;
mod parents;
mod pools;
#[cfg(test)]
mod tests;
pub(crate) mod update;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use crd::RoutingMode;

use self::{
    facts::{Claim, CrdCheck, LiveImport, PoolFacts},
    member::{Coverage, Link, Member, Reach, Refusal, Unseen},
    update::Update,
};
use crate::name::{ClusterName, Key};
use moment::Moment;

/// All members.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) members: BTreeMap<ClusterName, Member>,
    /// Silence after which readiness is unknown.
    pub(crate) stale_after: Duration,
    /// Mode of exports that name none.
    default_mode: RoutingMode,
    /// Exports that ended while no controller ran: each is told once.
    orphans: BTreeSet<(ClusterName, Key)>,
}

/// What an update did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    pub(crate) dirty: Dirty,
    pub(crate) withdrawals: Vec<Withdrawal>,
    /// Pools that vanished without proof and are retained.
    pub(crate) withheld: usize,
    /// Members that must stop: they are clusters we know under another name, or not the clusters they were.
    pub(crate) refused: Vec<(ClusterName, Refusal)>,
}

/// Keys to plan again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dirty {
    pub(crate) all: bool,
    pub(crate) keys: BTreeSet<Key>,
}

/// An export that ended, and the proof of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Withdrawal {
    pub(crate) exporter: ClusterName,
    pub(crate) key: Key,
    pub(crate) evidence: Evidence,
}

/// What permits a withdrawal (spec 4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Evidence {
    /// The watch said DELETED, and the CRD still stands.
    PoolDeleted,
    /// A complete list lacks it, and the CRD still stands.
    PoolAbsent,
    AnnotationGone,
    AnnotationInvalid,
    /// The member left the inventory.
    MemberRemoved,
}

// === impl World ===

impl World {
    pub(crate) fn new(stale_after: Duration) -> Self {
        Self {
            members: BTreeMap::new(),
            stale_after,
            default_mode: RoutingMode::EndpointMode,
            orphans: BTreeSet::new(),
        }
    }

    /// The mode of exports that name none; else EndpointMode.
    pub(crate) fn with_default_mode(mut self, mode: RoutingMode) -> Self {
        self.default_mode = mode;
        self
    }

    /// A member joined the inventory, or came back before it was forgotten.
    pub(crate) fn add_member(&mut self, name: &ClusterName, now: Moment) -> Changes {
        let known = self.members.get(name);
        if known.is_none_or(|member| member.link == Link::Removing) {
            let default_mode = self.default_mode;
            let member = Member {
                default_mode,
                ..Member::new(now)
            };
            self.members.insert(name.clone(), member);
        }
        Changes::all()
    }

    /// A member left the inventory: what it exports goes at once; what it imports is taken away while it stays
    /// [`Link::Removing`], until [`World::forget`].
    pub(crate) fn remove_member(&mut self, name: &ClusterName) -> Changes {
        let mut changes = Changes::all();
        if let Some(member) = self.members.get_mut(name) {
            member.link = Link::Removing;
            for (key, record) in &member.pools {
                if record.is_exported() {
                    changes.withdraw(name, key, Evidence::MemberRemoved);
                }
            }
        }
        changes
    }

    /// Drops what is known of a removed member.
    pub(crate) fn forget(&mut self, name: &ClusterName) -> Changes {
        self.members.remove(name);
        self.orphans.retain(|(exporter, _)| exporter != name);
        Changes::all()
    }

    /// Takes in what a member's tasks report.
    pub(crate) fn update(&mut self, name: &ClusterName, update: Update, now: Moment) -> Changes {
        let known = |world: &Self| {
            let member = world.members.get(name);
            member.map(|member| (member.exports_known(), member.imports_known()))
        };
        let before = known(self);
        let mut changes = self.take(name, update, now);
        changes.dirty.all |= known(self) != before;
        changes
    }

    fn take(&mut self, name: &ClusterName, update: Update, now: Moment) -> Changes {
        let Some(member) = self.members.get_mut(name) else {
            return Changes::default();
        };
        let refused = matches!(member.link, Link::Refused(_));
        if refused && !matches!(update, Update::Connected { .. } | Update::Refused(_)) {
            // the last words of a session that is being ended: not heard
            return Changes::default();
        }
        match update {
            Update::Connected { uid } => return self.identify(name, uid),
            Update::Live => return member.live(),
            Update::Suspect => member.set_link(Link::Suspect),
            Update::Lost(fault) => return member.lost(fault, now),
            Update::Refused(refusal) => return member.refuse(refusal, now),
            Update::NotServed(kind) => return member.not_served(kind),
            Update::ImportCrd(served) => {
                if member.import_crd != Some(served) {
                    member.import_crd = Some(served);
                    return Changes::all();
                }
            }
            Update::PoolsListed { pools, odd, crd } => {
                return self.list_pools(name, pools, odd, crd, now);
            }
            Update::PoolApplied(pool) => return member.apply_pool(name, pool),
            Update::PoolOdd(key) => {
                member.odd_pools.insert(key);
            }
            Update::PoolDeleted { key, crd } => return member.delete_pool(name, &key, crd),
            Update::Services(change) => return member.change_services(change),
            Update::Slices(change) => return member.change_slices(change),
            Update::SlicesListed { slices, scope } => {
                return member.list_slices(name, slices, scope);
            }
            Update::Gateways(change) => return member.change_gateways(change),
            Update::Routes(change) => return member.change_routes(change),
            Update::ParentsHidden(kind) => return member.hide_parents(kind),
            Update::ParentsUnwatched => return member.unwatch_parents(),
            Update::Namespaces(change) => {
                let names = member.change_namespaces(change);
                return self.keys_in(&names);
            }
            Update::Imports(change) => {
                let first = member.imports.coverage != Coverage::Listed;
                let mut changes = member.change_imports(change);
                if first {
                    self.tell_orphans(None, Some(name), &mut changes);
                }
                return changes;
            }
        }
        Changes::default()
    }

    /// Ends doubts whose time has come.
    pub(crate) fn tick(&mut self, now: Moment) -> Changes {
        let mut changes = Changes::default();
        let mut cleared = Vec::new();
        for (name, member) in &mut self.members {
            if !member.in_contact() {
                continue;
            }
            if let Unseen::UnknownUntil(ends) = member.unseen
                && ends <= now
            {
                member.unseen = Unseen::Absent;
                member.gone_pools.clear();
                cleared.push(name.clone());
            }
            member.pools.retain(|key, record| {
                let over = record
                    .doubt
                    .and_then(|doubt| doubt.ends)
                    .is_some_and(|ends| ends <= now);
                if over {
                    changes.dirty.keys.insert(key.clone());
                    if record.is_exported() {
                        changes.withdraw(name, key, Evidence::PoolAbsent);
                    }
                }
                !over
            });
        }
        for name in cleared {
            changes.dirty.all = true;
            self.tell_orphans(Some(&name), None, &mut changes);
        }
        changes
    }

    /// Every key that some member exports, holds an import of ours for, or has our condition for.
    pub(crate) fn all_keys(&self) -> BTreeSet<Key> {
        let mut keys = BTreeSet::new();
        for member in self.members.values() {
            let pools = member
                .pools
                .iter()
                .filter(|(_, record)| record.concerns_us());
            keys.extend(pools.map(|(key, _)| key.clone()));
            let imports = member.imports.items.iter();
            keys.extend(
                imports
                    .filter(|(_, import)| import.claim == Claim::Ours)
                    .map(|(key, _)| key.clone()),
            );
        }
        keys
    }

    /// How a member's contact shows in its entries.
    pub(crate) fn reach(&self, member: &Member, now: Moment) -> Reach {
        member.reach(now, self.stale_after)
    }

    /// Records which cluster answers under this name. Of two names for one cluster the one in contact stays, and
    /// before either is, the first by name; a name that leads to another cluster than before is not followed.
    fn identify(&mut self, name: &ClusterName, uid: String) -> Changes {
        let mut changes = Changes::default();
        let recorded = self.members.get(name).and_then(|member| member.uid.clone());
        if recorded.is_some_and(|recorded| recorded != uid) {
            changes
                .refused
                .push((name.clone(), Refusal::IdentityChanged));
            return changes;
        }
        let rival = self.members.iter().find(|(other, member)| {
            *other != name
                && member.uid.as_ref() == Some(&uid)
                && !matches!(member.link, Link::Refused(_) | Link::Removing)
        });
        if let Some((rival, member)) = rival {
            if member.met || rival < name {
                changes
                    .refused
                    .push((name.clone(), Refusal::DuplicateCluster));
                return changes;
            }
            changes
                .refused
                .push((rival.clone(), Refusal::DuplicateCluster));
        }
        if let Some(member) = self.members.get_mut(name) {
            member.uid = Some(uid);
            if !member.in_contact() {
                member.set_link(Link::Syncing);
            }
        }
        changes
    }

    fn list_pools(
        &mut self,
        name: &ClusterName,
        pools: Vec<PoolFacts>,
        odd: BTreeSet<Key>,
        crd: CrdCheck,
        now: Moment,
    ) -> Changes {
        let stale_after = self.stale_after;
        let Some(member) = self.members.get_mut(name) else {
            return Changes::default();
        };
        let first = member.pools_coverage != Coverage::Listed;
        let mut changes = member.list_pools(name, pools, odd, crd, now + stale_after);
        if first {
            changes.dirty.all = true;
            changes.withheld += self.carried_from(name).len();
            self.tell_orphans(Some(name), None, &mut changes);
        }
        changes
    }

    /// Keys of imports that hold an entry of this exporter although its pool has not been seen.
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
            .filter(|(key, import)| !exporting.knows_pool(key) && lists(import))
            .map(|(key, _)| key.clone())
            .collect()
    }

    /// Tells which entries carried over from before the start are now proven to have no export behind them: of this
    /// exporter, in this importer; none: all.
    fn tell_orphans(
        &mut self,
        exporter: Option<&ClusterName>,
        importer: Option<&ClusterName>,
        changes: &mut Changes,
    ) {
        for (name, member) in &self.members {
            if importer.is_some_and(|one| one != name) {
                continue;
            }
            let ours = member.imports.items.iter();
            for (key, import) in ours.filter(|(_, import)| import.claim == Claim::Ours) {
                for entry in &import.status.clusters {
                    let Ok(found) = ClusterName::new(&entry.name) else {
                        continue;
                    };
                    let wanted = exporter.is_none_or(|one| *one == found);
                    let exporting = self.members.get(&found).filter(|_| wanted);
                    let evidence = exporting.and_then(|member| member.lacks_export(key));
                    if let Some(evidence) = evidence
                        && self.orphans.insert((found.clone(), key.clone()))
                    {
                        changes.withdraw(&found, key, evidence);
                    }
                }
            }
        }
    }

    /// Keys in these namespaces, in any member.
    fn keys_in(&self, namespaces: &BTreeSet<Arc<str>>) -> Changes {
        if namespaces.is_empty() {
            return Changes::default();
        }
        let mut changes = Changes::default();
        changes.dirty.keys = self.all_keys();
        changes
            .dirty
            .keys
            .retain(|key| namespaces.contains(&key.namespace));
        changes
    }
}

// === impl Changes ===

impl Changes {
    pub(crate) fn all() -> Self {
        Self {
            dirty: Dirty {
                all: true,
                keys: BTreeSet::new(),
            },
            ..Self::default()
        }
    }

    pub(crate) fn merge(&mut self, other: Self) {
        let Self {
            dirty,
            withdrawals,
            withheld,
            refused,
        } = other;
        self.dirty.merge(dirty);
        self.withdrawals.extend(withdrawals);
        self.withheld += withheld;
        self.refused.extend(refused);
    }

    fn withdraw(&mut self, exporter: &ClusterName, key: &Key, evidence: Evidence) {
        self.withdrawals.push(Withdrawal {
            exporter: exporter.clone(),
            key: key.clone(),
            evidence,
        });
    }
}

// === impl Dirty ===

impl Dirty {
    pub(crate) fn is_empty(&self) -> bool {
        !self.all && self.keys.is_empty()
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.all |= other.all;
        self.keys.extend(other.keys);
    }
}

// === impl Evidence ===

impl Evidence {
    pub(crate) const ALL: [Self; 5] = [
        Self::PoolDeleted,
        Self::PoolAbsent,
        Self::AnnotationGone,
        Self::AnnotationInvalid,
        Self::MemberRemoved,
    ];

    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::PoolDeleted => "PoolDeleted",
            Self::PoolAbsent => "PoolAbsent",
            Self::AnnotationGone => "AnnotationGone",
            Self::AnnotationInvalid => "AnnotationInvalid",
            Self::MemberRemoved => "MemberRemoved",
        }
    }
}
