//! What is known of all members, with the evidence for whatever is forgotten.
//!
//! Synchronous: no client, no clock, no await. Every method returns the keys whose plan may change and the
//! withdrawals it found evidence for; a fault alone never yields one.

pub(crate) mod facts;
pub(crate) mod member;
#[cfg(test)]
mod tests;
pub(crate) mod update;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use self::{
    facts::{Claim, CrdCheck, LiveImport, NamespaceFacts, PoolFacts, ServiceFacts, SliceFacts},
    member::{Coverage, Doubt, Fault, Link, Member, PoolRecord, Reach, Refusal, Silence},
    update::{Change, Kind, Update},
};
use crate::{
    moment::Moment,
    name::{ClusterName, Key},
    plan::export::{Export, parse_export},
};

/// All members.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) members: BTreeMap<ClusterName, Member>,
    /// Silence after which readiness is unknown.
    pub(crate) stale_after: Duration,
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
        }
    }

    /// A member joined the inventory, or came back before it was forgotten.
    pub(crate) fn add_member(&mut self, name: &ClusterName, now: Moment) -> Changes {
        let known = self.members.get(name);
        if known.is_none_or(|member| member.link == Link::Removing) {
            self.members.insert(name.clone(), Member::new(now));
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
            Update::Namespaces(change) => {
                let names = member.change_namespaces(change);
                return self.keys_in(&names);
            }
            Update::Imports(change) => return member.change_imports(change),
        }
        Changes::default()
    }

    /// Ends doubts whose time has come.
    pub(crate) fn tick(&mut self, now: Moment) -> Changes {
        let mut changes = Changes::default();
        for (name, member) in &mut self.members {
            if !member.in_contact() {
                continue;
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
            self.end_carrying(name, &mut changes);
        }
        changes
    }

    /// The first complete list of an exporter is what ends entries carried over from before the start.
    fn end_carrying(&self, name: &ClusterName, changes: &mut Changes) {
        let Some(exporter) = self.members.get(name) else {
            return;
        };
        let mut seen = BTreeSet::new();
        for member in self.members.values() {
            for (key, import) in &member.imports.items {
                let listed = import.claim == Claim::Ours
                    && import
                        .status
                        .clusters
                        .iter()
                        .any(|entry| entry.name == name.as_str());
                let known = exporter.pools.contains_key(key) || exporter.odd_pools.contains(key);
                if listed && !known && seen.insert(key.clone()) {
                    changes.withdraw(name, key, Evidence::PoolAbsent);
                }
            }
        }
        changes.dirty.all = true;
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

// === impl Member ===

impl Member {
    fn set_link(&mut self, link: Link) {
        if self.link != Link::Removing {
            self.link = link;
        }
    }

    fn live(&mut self) -> Changes {
        let news = self.silence.is_some() || !self.in_contact();
        self.set_link(Link::Live);
        self.silence = None;
        self.met = true;
        if news {
            Changes::all()
        } else {
            Changes::default()
        }
    }

    /// Proves nothing: what is known stays.
    fn lost(&mut self, fault: Fault, now: Moment) -> Changes {
        self.set_link(Link::Lost);
        let since = self.silence.map_or(now, |silence| silence.since);
        let silence = Some(Silence { since, fault });
        if self.silence == silence {
            return Changes::default();
        }
        self.silence = silence;
        Changes::all()
    }

    fn refuse(&mut self, refusal: Refusal, now: Moment) -> Changes {
        let fault = match refusal {
            Refusal::BadCredentials | Refusal::InsecureCredentials => Fault::AuthFailed,
            Refusal::DuplicateCluster | Refusal::IdentityChanged => Fault::ConnectionLost,
        };
        let changes = self.lost(fault, now);
        self.set_link(Link::Refused(refusal));
        changes
    }

    fn not_served(&mut self, kind: Kind) -> Changes {
        let coverage = match kind {
            Kind::Pools => &mut self.pools_coverage,
            Kind::Services => &mut self.services.coverage,
            Kind::Slices => &mut self.slices.coverage,
            Kind::Namespaces => &mut self.namespaces.coverage,
            Kind::Imports => &mut self.imports.coverage,
        };
        if *coverage != Coverage::Never {
            return Changes::default();
        }
        *coverage = Coverage::NotServed;
        Changes::all()
    }

    fn list_pools(
        &mut self,
        name: &ClusterName,
        pools: Vec<PoolFacts>,
        odd: BTreeSet<Key>,
        crd: CrdCheck,
        doubt_ends: Moment,
    ) -> Changes {
        let mut changes = Changes::default();
        let listed: BTreeSet<Key> = pools.iter().map(|pool| pool.key.clone()).collect();
        for pool in pools {
            changes.merge(self.apply_pool(name, pool));
        }
        let same_crd = self
            .pools_crd
            .as_ref()
            .is_none_or(|known| matches!(&crd, CrdCheck::Serving { uid } if uid == known));
        let missing: Vec<Key> = self
            .pools
            .keys()
            .filter(|key| !listed.contains(*key) && !odd.contains(*key))
            .cloned()
            .collect();
        for key in missing {
            let Some(record) = self.pools.get_mut(&key) else {
                continue;
            };
            match (&crd, record.doubt) {
                // The reinstalled CRD's objects have until then to come back.
                (_, Some(Doubt { ends: Some(_) })) => {}
                (CrdCheck::Serving { .. }, _) if same_crd => {
                    changes.merge(self.drop_pool(name, &key, Evidence::PoolAbsent));
                }
                (CrdCheck::Serving { .. }, _) => {
                    changes.merge(record.doubt_until(&key, Some(doubt_ends)));
                }
                (CrdCheck::Doubtful, _) => changes.merge(record.doubt_until(&key, None)),
            }
        }
        if let CrdCheck::Serving { uid } = crd {
            self.pools_crd = Some(uid);
        }
        self.odd_pools = odd;
        self.pools_coverage = Coverage::Listed;
        changes
    }

    fn apply_pool(&mut self, name: &ClusterName, pool: PoolFacts) -> Changes {
        let mut changes = Changes::default();
        let key = pool.key.clone();
        self.odd_pools.remove(&key);
        let record = PoolRecord {
            facts: pool,
            doubt: None,
        };
        let old = self.pools.get(&key);
        if old == Some(&record) {
            return changes;
        }
        if old.is_some_and(PoolRecord::is_exported) {
            match parse_export(&record.facts.annotations) {
                Export::NotRequested => changes.withdraw(name, &key, Evidence::AnnotationGone),
                Export::Invalid(_) => changes.withdraw(name, &key, Evidence::AnnotationInvalid),
                Export::Requested(_) => {}
            }
        }
        if record.concerns_us() || old.is_some_and(PoolRecord::concerns_us) {
            changes.dirty.keys.insert(key.clone());
        }
        self.pools.insert(key, record);
        changes
    }

    fn delete_pool(&mut self, name: &ClusterName, key: &Key, crd: CrdCheck) -> Changes {
        self.odd_pools.remove(key);
        let proven =
            matches!(&crd, CrdCheck::Serving { uid } if self.pools_crd.as_ref() == Some(uid));
        if proven {
            return self.drop_pool(name, key, Evidence::PoolDeleted);
        }
        self.pools
            .get_mut(key)
            .map(|record| record.doubt_until(key, None))
            .unwrap_or_default()
    }

    fn drop_pool(&mut self, name: &ClusterName, key: &Key, evidence: Evidence) -> Changes {
        let mut changes = Changes::default();
        if let Some(record) = self.pools.remove(key)
            && record.concerns_us()
        {
            changes.dirty.keys.insert(key.clone());
            if record.is_exported() {
                changes.withdraw(name, key, evidence);
            }
        }
        changes
    }

    fn change_services(&mut self, change: Change<ServiceFacts>) -> Changes {
        let changed = match change {
            Change::Listed(items) => {
                let items = items.into_iter().map(|item| (item.key.clone(), item));
                self.services.reset(items.collect())
            }
            Change::Applied(item) => {
                let key = item.key.clone();
                let news = self.services.apply(key.clone(), item);
                news.then_some(key).into_iter().collect()
            }
            Change::Deleted(key) => {
                self.services.items.remove(&key);
                BTreeSet::from([key])
            }
        };
        self.pools_of(&changed)
    }

    fn change_slices(&mut self, change: Change<SliceFacts>) -> Changes {
        let service = |slice: &SliceFacts| Key {
            namespace: slice.key.namespace.clone(),
            name: slice.service.clone(),
        };
        let mut services = BTreeSet::new();
        match change {
            Change::Listed(items) => {
                let items: BTreeMap<_, _> = items
                    .into_iter()
                    .map(|item| (item.key.clone(), item))
                    .collect();
                let old = std::mem::take(&mut self.slices.items);
                let changed = items
                    .iter()
                    .filter(|(key, item)| old.get(key) != Some(item));
                services.extend(changed.map(|(_, item)| service(item)));
                let gone = old
                    .iter()
                    .filter(|(key, item)| items.get(key) != Some(item));
                services.extend(gone.map(|(_, item)| service(item)));
                self.slices.items = items;
                self.slices.coverage = Coverage::Listed;
            }
            Change::Applied(item) => {
                let old = self.slices.items.get(&item.key);
                if old != Some(&item) {
                    services.extend(old.map(service));
                    services.insert(service(&item));
                    self.slices.items.insert(item.key.clone(), item);
                }
            }
            Change::Deleted(key) => {
                services.extend(self.slices.items.remove(&key).as_ref().map(service));
            }
        }
        self.pools_of(&services)
    }

    fn change_namespaces(&mut self, change: Change<NamespaceFacts>) -> BTreeSet<Arc<str>> {
        match change {
            Change::Listed(items) => {
                let items = items.into_iter().map(|item| (item.name.clone(), item));
                self.namespaces.reset(items.collect())
            }
            Change::Applied(item) => {
                let name = item.name.clone();
                let news = self.namespaces.apply(name.clone(), item);
                news.then_some(name).into_iter().collect()
            }
            Change::Deleted(key) => {
                self.namespaces.items.remove(&key.name);
                BTreeSet::from([key.name])
            }
        }
    }

    fn change_imports(&mut self, change: Change<LiveImport>) -> Changes {
        let keys = match change {
            Change::Listed(items) => {
                let items = items.into_iter().map(|item| (item.key.clone(), item));
                self.imports.reset(items.collect())
            }
            Change::Applied(item) => {
                let key = item.key.clone();
                let news = self.imports.apply(key.clone(), item);
                news.then_some(key).into_iter().collect()
            }
            Change::Deleted(key) => {
                self.imports.items.remove(&key);
                BTreeSet::from([key])
            }
        };
        Changes {
            dirty: Dirty { all: false, keys },
            ..Changes::default()
        }
    }

    /// The exported pools behind these Services.
    fn pools_of(&self, services: &BTreeSet<Key>) -> Changes {
        let mut changes = Changes::default();
        for service in services {
            let pools = self.pools_of_service(service);
            let concerned =
                pools.filter(|key| self.pools.get(*key).is_some_and(PoolRecord::concerns_us));
            changes.dirty.keys.extend(concerned.cloned());
        }
        changes
    }
}

// === impl PoolRecord ===

impl PoolRecord {
    /// Whether its annotations ask for an export that we can make.
    pub(crate) fn is_exported(&self) -> bool {
        matches!(parse_export(&self.facts.annotations), Export::Requested(_))
    }

    /// Whether it is exported, wants to be, or bears our condition.
    pub(crate) fn concerns_us(&self) -> bool {
        self.facts.exported.is_some()
            || parse_export(&self.facts.annotations) != Export::NotRequested
    }

    fn doubt_until(&mut self, key: &Key, ends: Option<Moment>) -> Changes {
        let mut changes = Changes::default();
        let doubt = Some(Doubt { ends });
        if self.doubt != doubt {
            changes.withheld += usize::from(self.doubt.is_none() && self.is_exported());
            self.doubt = doubt;
            changes.dirty.keys.insert(key.clone());
        }
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
