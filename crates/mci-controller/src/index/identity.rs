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
    pub(crate) fn recall(&mut self, recorded: BTreeMap<ClusterName, Record>) {
        self.recorded = recorded;
    }

    /// Which clusters the members are, for the next controller to recall.
    pub(crate) fn recorded(&self) -> &BTreeMap<ClusterName, Record> {
        &self.recorded
    }

    /// The name no longer stands for any cluster.
    pub(super) fn forget_identity(&mut self, name: &ClusterName) {
        self.recorded.remove(name);
    }

    /// What the inventory says of a member, besides how to reach it.
    pub(crate) fn describe(&mut self, name: &ClusterName, origin: &Arc<Origin>) -> Changes {
        let Some(member) = self.members.get_mut(name) else {
            return Changes::default();
        };
        let shows = |origin: &Origin| (origin.labels.clone(), origin.allowed.clone());
        let news = shows(&member.origin) != shows(origin);
        member.origin = origin.clone();
        if news {
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
        let verdict = match (clusterset, &self.clusterset) {
            (Some(said), Some(ours)) if said != ours => refused(Refusal::ClusterSetMismatch),
            _ if self.is_another(name, member, &uid) => refused(Refusal::IdentityChanged),
            _ => self.rival(name, &uid).map(|(rival, other)| {
                let comes_first =
                    self.precedence(rival, other, &uid) < self.precedence(name, member, &uid);
                let loser = if comes_first { name } else { rival };
                (loser.clone(), Refusal::DuplicateCluster)
            }),
        };
        let out = verdict.as_ref().is_some_and(|(loser, _)| loser == name);
        changes.refused.extend(verdict);
        if out {
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
        }
        changes
    }

    /// Whether the name stood for another cluster, and nobody said that it may stand for this one.
    fn is_another(&self, name: &ClusterName, member: &Member, uid: &str) -> bool {
        let recorded = self.recorded.get(name).map(|record| record.uid.as_str());
        let before = member.uid.as_deref().or(recorded);
        before.is_some_and(|before| before != uid)
            && member.origin.accepted_identity.as_deref() != Some(uid)
    }

    /// Another name for this cluster, in use.
    fn rival(&self, name: &ClusterName, uid: &str) -> Option<(&ClusterName, &Member)> {
        self.members.iter().find(|(other, member)| {
            *other != name
                && member.uid.as_deref() == Some(uid)
                && !matches!(member.link, Link::Refused(_) | Link::Removing)
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
