//! Which cluster each name stands for.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    Changes, World,
    member::{Link, Member, Refusal},
    origin::Origin,
    record::Record,
};
use crate::name::ClusterName;

// === impl World ===

impl World {
    /// Which clusters the members were when a controller last ran. Before any member is added.
    pub fn recall(&mut self, recorded: BTreeMap<ClusterName, Record>) {
        self.recorded = recorded;
    }

    /// Which clusters the members are, for the next controller to recall.
    pub fn recorded(&self) -> &BTreeMap<ClusterName, Record> {
        &self.recorded
    }

    /// The name no longer stands for any cluster.
    pub(super) fn forget_identity(&mut self, name: &ClusterName) {
        self.recorded.remove(name);
    }

    /// What the inventory says of a member, besides how to reach it.
    pub fn describe(&mut self, name: &ClusterName, origin: &Arc<Origin>) -> Changes {
        let Some(member) = self.members.get_mut(name) else {
            return Changes::default();
        };
        let shows = |origin: &Origin| (origin.labels.clone(), origin.allowed.clone());
        let changed = shows(&member.origin) != shows(origin);
        member.origin = origin.clone();
        if changed {
            Changes::all()
        } else {
            Changes::default()
        }
    }

    /// A cluster answered under this name and said which it is. It is refused if it says that it belongs to another
    /// ClusterSet; if the name stood for another cluster and nobody accepted this one; or if it is a member under
    /// another name, and that one is in contact, or was the cluster in an earlier run, or comes first.
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
            (Some(said), Some(ours)) if said != ours => refused(Refusal::ClusterSetMismatch),
            _ if self.is_another(name, member, &uid) => refused(Refusal::IdentityChanged),
            _ => self.rival(name, &uid).map(|(rival, other)| {
                // what one that leaves holds is being taken away: nobody writes there before it is forgotten
                let comes_first = other.link == Link::Removing
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
            if !member.in_contact() {
                member.set_link(Link::Syncing);
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

    /// Members that are the same cluster as this one, which leaves: it was renamed, or one of two names for it goes.
    pub fn successors(&self, name: &ClusterName) -> Vec<ClusterName> {
        let leaving = self.members.get(name);
        let leaving = leaving.filter(|member| member.link == Link::Removing);
        let Some(uid) = leaving.and_then(|member| member.uid.as_ref()) else {
            return Vec::new();
        };
        let waits = |member: &Member| {
            member.link == Link::Refused(Refusal::DuplicateCluster)
                && member.stands_by.as_ref() == Some(uid)
        };
        let waiting = self.members.iter().filter(|(_, member)| waits(member));
        waiting.map(|(name, _)| name.clone()).collect()
    }

    /// Whether the name stood for another cluster, and nobody said that it may stand for this one.
    fn is_another(&self, name: &ClusterName, member: &Member, uid: &str) -> bool {
        let recorded = self.recorded.get(name).map(|record| record.uid.as_str());
        let before = member.uid.as_deref().or(recorded);
        before.is_some_and(|before| before != uid)
            && member.origin.accepted_identity.as_deref() != Some(uid)
    }

    /// Another name for this cluster, in use or not forgotten yet.
    fn rival(&self, name: &ClusterName, uid: &str) -> Option<(&ClusterName, &Member)> {
        self.members.iter().find(|(other, member)| {
            *other != name
                && member.uid.as_deref() == Some(uid)
                && !matches!(member.link, Link::Refused(_))
        })
    }

    /// Sorts the names of one cluster, the one to use first.
    fn precedence<'a>(
        &self,
        name: &'a ClusterName,
        member: &'a Member,
        uid: &str,
    ) -> impl Ord + use<'a> {
        // a time is there only on what was read at the start
        let record = self.recorded.get(name);
        let recalled =
            record.is_some_and(|record| record.uid == uid && record.first_seen.is_some());
        (!member.met, !recalled, &member.origin.source, name)
    }
}

#[cfg(test)]
mod tests;
