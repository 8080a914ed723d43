//! The cluster behind each member's name.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    Changes, World,
    grant::MayExport,
    member::{Link, Member, Refusal},
    origin::Origin,
    record::Record,
};
use crate::{evidence::Evidence, name::ClusterName};

// === impl World ===

impl World {
    /// Sets the clusters of the last controller run. Call it before any member is added.
    pub fn recall(&mut self, recorded: BTreeMap<ClusterName, Record>) {
        self.recorded = recorded;
    }

    /// The clusters of the members, for the next controller run.
    pub fn recorded(&self) -> &BTreeMap<ClusterName, Record> {
        &self.recorded
    }

    /// Removes the record of the name's cluster.
    pub(super) fn forget_identity(&mut self, name: &ClusterName) {
        self.recorded.remove(name);
    }

    /// Sets what the inventory records about a member, besides its credentials. Where its object has a value that
    /// cannot be read, the earlier value stays in force. Exports that it no longer allows are withdrawn.
    pub fn describe(&mut self, name: &ClusterName, origin: &Arc<Origin>) -> Changes {
        let Some(member) = self.members.get_mut(name) else {
            return Changes::default();
        };
        let mut origin = origin.clone();
        let before = member.origin.clone();
        if before.source.is_same_place(&origin.source) {
            let origin = Arc::make_mut(&mut origin);
            origin.pod_cidrs.or_before(&before.pod_cidrs);
            origin
                .export_namespaces
                .or_before(&before.export_namespaces);
        }
        let shows = |origin: &Origin| {
            let Origin {
                source: _,
                labels,
                allowed,
                pod_cidrs,
                export_namespaces,
                complaints: _,
                accepted_identity: _,
                hint: _,
            } = origin.clone();
            (labels, allowed, pod_cidrs, export_namespaces)
        };
        if shows(&before) == shows(&origin) {
            member.origin = origin;
            return Changes::default();
        }
        let allowed = member.exported_and_allowed();
        member.origin = origin;
        let mut changes = Changes::all();
        for key in allowed {
            if member.may_export(&key.namespace) == MayExport::No {
                member.pools.draining.forget(&key);
                changes.withdraw(name, &key, Evidence::NotAllowed, None);
            }
        }
        changes
    }

    /// A cluster answered under this name, with its uid and ClusterSet. It is refused if it belongs to another ClusterSet;
    /// if the name had another cluster and the operator has not accepted this one; or if it is a member under another
    /// name that takes precedence: one in contact, then one with a record of an earlier run, then the first by source.
    pub(super) fn identify(
        &mut self,
        name: &ClusterName,
        uid: String,
        clusterset: Option<&str>,
    ) -> Changes {
        let mut changes = Changes::default();
        let Some(member) = self.members.get(name) else {
            return changes;
        };
        let refused = |refusal| Some((name.clone(), refusal));
        let refusal: Option<(ClusterName, Refusal)> = match (clusterset, &self.clusterset) {
            (Some(theirs), Some(ours)) if theirs != ours => refused(Refusal::ClusterSetMismatch),
            _ if self.is_another(name, member, &uid) => refused(Refusal::IdentityChanged),
            _ => self.rival(name, &uid).map(|(rival, other)| {
                // the imports of a leaving member are being deleted: nobody writes there before it is removed
                let comes_first = other.contact.link == Link::Removing
                    || self.precedence(rival, other, &uid) < self.precedence(name, member, &uid);
                let loser = if comes_first { name } else { rival };
                (loser.clone(), Refusal::DuplicateCluster)
            }),
        };
        let out = refusal.as_ref().is_some_and(|(loser, _)| loser == name);
        let duplicate = matches!(&refusal, Some((_, Refusal::DuplicateCluster)));
        changes.refused.extend(refusal);
        if out {
            if let Some(member) = self.members.get_mut(name) {
                member.stands_by = duplicate.then_some(uid);
            }
            return changes;
        }
        if let Some(member) = self.members.get_mut(name) {
            if !member.contact.is_up() {
                member.contact.set_link(Link::Syncing);
            }
            let known = self.recorded.get(name);
            if known.is_none_or(|record| record.uid != uid) {
                let record = Record {
                    uid: uid.clone(),
                    source: member.origin.source.to_string(),
                    first_seen: None,
                };
                self.recorded.insert(name.clone(), record);
            }
            member.uid = Some(uid);
            member.stands_by = None;
        }
        changes
    }

    /// Other names of a leaving member's cluster: it was renamed, or one of its two names was removed.
    pub fn successors(&self, name: &ClusterName) -> Vec<ClusterName> {
        let leaving = self.members.get(name);
        let Some(leaving) = leaving.filter(|member| member.contact.link == Link::Removing) else {
            return Vec::new();
        };
        let waits = |member: &Member| {
            member.contact.link == Link::Refused(Refusal::DuplicateCluster)
                && member.stands_by.is_some()
                && member.stands_by == leaving.uid
        };
        let waiting = self.members.iter().filter(|(_, member)| waits(member));
        waiting.map(|(name, _)| name.clone()).collect()
    }

    /// Whether the name had another cluster, and the operator has not accepted this one.
    fn is_another(&self, name: &ClusterName, member: &Member, uid: &str) -> bool {
        let recorded = self.recorded.get(name).map(|record| record.uid.as_str());
        let before = member.uid.as_deref().or(recorded);
        before.is_some_and(|before| before != uid)
            && member.origin.accepted_identity.as_deref() != Some(uid)
    }

    /// Another name of this cluster, in use or not removed yet.
    fn rival(&self, name: &ClusterName, uid: &str) -> Option<(&ClusterName, &Member)> {
        self.members.iter().find(|(other, member)| {
            *other != name
                && member.uid.as_deref() == Some(uid)
                && !matches!(member.contact.link, Link::Refused(_))
        })
    }

    /// Sort key for the names of one cluster; the smallest is used.
    fn precedence<'a>(
        &self,
        name: &'a ClusterName,
        member: &'a Member,
        uid: &str,
    ) -> impl Ord + use<'a> {
        // only records that were read at the start have a time
        let record = self.recorded.get(name);
        let recalled =
            record.is_some_and(|record| record.uid == uid && record.first_seen.is_some());
        (!member.contact.met, !recalled, &member.origin.source, name)
    }
}

#[cfg(test)]
mod tests;
