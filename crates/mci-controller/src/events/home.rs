//! Events about members, for the operator at home.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;

use super::{
    EventQueue, reason,
    reported::{Observations, Reported},
    source,
};
use crate::{
    index::{member::Link, origin::Source},
    name::ClusterName,
    overview::Overview,
};
use mci_inventory::Unused;
use moment::Moment;

/// Compares the state of the members with what was reported.
#[derive(Debug)]
pub(crate) struct HomeRecorder {
    queue: Arc<EventQueue>,
    /// For members that no object at home defines, and for what concerns all of them.
    lease: ObjectReference,
    reported: BTreeMap<Subject, Reported>,
    /// The gate was open at the last observation: a member that works before that is not reported.
    started: bool,
}

/// The uid of an object at home, and a member: our Lease is for many members.
type Subject = (String, String);

const GUARD: &str = "more than half of the members were lost at once: the fault may be here, so withdrawals are held";
const UNUSABLE: &str = "the new credentials are not used, the old ones stay";

// === impl HomeRecorder ===

impl HomeRecorder {
    pub(crate) fn new(queue: Arc<EventQueue>, lease: ObjectReference) -> Self {
        Self {
            queue,
            lease,
            reported: BTreeMap::new(),
            started: false,
        }
    }

    /// Compares the overview with what was reported, and reports what is new if we lead. `source_of` is the object that
    /// defines a member; `unused` are objects that define none.
    pub(crate) fn observe<'a>(
        &mut self,
        overview: &Overview,
        unused: &[Unused],
        source_of: impl Fn(&ClusterName) -> Option<&'a Source>,
        leading: bool,
        time: (Moment, Timestamp),
    ) {
        let mut observed: BTreeMap<Subject, (ObjectReference, Observations)> = BTreeMap::new();
        let mut add = |of: Option<&Source>, member: &str, reason, about: &str, note: &str| {
            let regarding = of.and_then(source).unwrap_or_else(|| self.lease.clone());
            let subject = (regarding.uid.clone().unwrap_or_default(), member.to_owned());
            let found = observed.entry(subject).or_default();
            found.0 = regarding;
            found.1.add(reason, [about], note);
        };
        if overview.guard {
            add(None, "", reason::ISOLATION_GUARD, "", GUARD);
        }
        for one in unused {
            let note = format!("not member {}: {}", one.member, one.detail);
            let of = Some(&one.origin.source);
            add(of, &one.member, one.refusal.reason(), "", &note);
        }
        // the operator knows that a member is being removed
        let all = overview.clusters.iter();
        let staying = all.filter(|member| member.link != Link::Removing.name());
        // while a member connects, its last observations hold
        let (connecting, members): (Vec<_>, Vec<_>) =
            staying.partition(|member| member.active.reason == "Connecting");
        let connecting: BTreeSet<&str> = connecting.iter().map(|one| one.name.as_str()).collect();
        for member in members {
            let name = member.name.as_str();
            let of = source_of(&member.name);
            let note = format!("member {name}: {}", member.explanation());
            add(of, name, member.active.reason, "", &note);
            for complaint in &member.complaints {
                let note = format!("member {name}: {complaint}");
                add(of, name, reason::INVALID_ANNOTATION, complaint, &note);
            }
            if let Some(why) = &member.unusable_credentials {
                let note = format!("member {name}: {UNUSABLE}: {why}");
                add(of, name, "BadCredentials", why, &note);
            }
        }
        for subject in self.reported.keys() {
            if !connecting.contains(&*subject.1) {
                observed.entry(subject.clone()).or_default();
            }
        }
        // a member that works while another controller leads is reported by that one
        let is_known = |reason| reason == "Active" && !(leading && self.started);
        let queue = leading.then_some(&*self.queue);
        for (subject, (regarding, found)) in observed {
            let reported = self.reported.entry(subject).or_default();
            reported.observe(&regarding, found, is_known, queue, time);
        }
        self.reported.retain(|_, reported| !reported.is_empty());
        self.started = overview.gate_open;
    }
}

#[cfg(test)]
mod tests;
