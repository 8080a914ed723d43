//! What the operator at home is told of members.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;

use super::{Notice, Outbox, Reason, Regarding};
use crate::{
    index::member::Link,
    name::ClusterName,
    overview::{MemberView, Overview},
};

/// Where events at home go.
#[derive(Clone, Debug)]
pub(crate) struct HomeDesk {
    pub(crate) outbox: Arc<Outbox>,
    /// For members that no object at home names, and for what concerns all of them.
    pub(crate) lease: Regarding,
}

/// Keeps the last `Active` reason of each member, and tells what is news.
#[derive(Debug, Default)]
pub(crate) struct MemberTeller {
    seen: BTreeMap<ClusterName, Seen>,
    /// Members that go on with older credentials, and why.
    unusable: BTreeMap<ClusterName, String>,
    guarded: bool,
}

/// Topic of all that is told of one member.
const ACTIVE: Reason = Reason::Member("Active");

#[derive(Clone, Copy, Debug)]
struct Seen {
    reason: &'static str,
    /// Its first word after the start of the program: that it works is no news then.
    quiet: bool,
}

// === impl MemberTeller ===

impl MemberTeller {
    /// Tells what is news in an overview. `regarding` gives the object that an event of a member is about; `tell` returns
    /// whether it takes a notice. Trouble stays news until it does, also where we are not the one to speak: if nobody told
    /// of it, we do when we are. `over` gets subject and topic of what is over: of it nothing is to be told any more.
    pub(crate) fn look(
        &mut self,
        overview: &Overview,
        speaking: bool,
        at: Timestamp,
        regarding: impl Fn(Option<&ClusterName>) -> Option<Regarding>,
        mut tell: impl FnMut(Notice) -> bool,
        mut over: impl FnMut(&str, Reason),
    ) {
        let mut tell = |member: Option<&ClusterName>, subject: String, reason, note| {
            let regarding = regarding(member).filter(|_| speaking);
            regarding.is_some_and(|regarding| {
                tell(Notice {
                    regarding,
                    subject,
                    reason,
                    note,
                    at,
                })
            })
        };
        // it explains what is to follow of members, and there may be no room after that
        let held = "more than half of the members were lost at once: the fault may be here, so withdrawals are held";
        if self.guarded && !overview.guard {
            over("", Reason::IsolationGuard);
        }
        self.guarded = overview.guard
            && (self.guarded || tell(None, String::new(), Reason::IsolationGuard, held.to_owned()));
        let mut seen = BTreeMap::new();
        let mut unusable = BTreeMap::new();
        let removing = Link::Removing.name();
        for member in &overview.clusters {
            // who removes it knows; what it says until it is gone is no news, and added again it is a new one
            if member.link == removing {
                continue;
            }
            let name = &member.name;
            let old = self.seen.get(name).copied();
            let reason = member.active.reason;
            let quiet = match old {
                // before the gate opens, members are those of before the start
                None => !overview.gate_open,
                Some(old) => old.quiet && matches!(old.reason, "Connecting"),
            };
            let news = old.is_none_or(|old| old.reason != reason)
                && reason != "Connecting"
                && !(reason == "Active" && quiet);
            let told = !news
                || tell(
                    Some(name),
                    name.to_string(),
                    Reason::Member(reason),
                    note(member),
                );
            // what another leader told of and is over is no news
            let passed = !told && !speaking && reason == "Active";
            if passed {
                over(name.as_str(), ACTIVE);
            }
            let known = told || passed;
            let reason = match old {
                // on the way back to contact nothing is forgotten: the same trouble again is no news
                Some(old) if reason == "Connecting" || !known => old.reason,
                None if !known => "Connecting",
                Some(_) | None => reason,
            };
            seen.insert(name.clone(), Seen { reason, quiet });
            if let Some(why) = &member.unusable_credentials {
                let known = self.unusable.get(name) == Some(why);
                // whether it is in contact is another topic
                let subject = subject_of_credentials(name);
                let text = format!(
                    "member {name}: the new credentials are not used, the old ones stay: {why}"
                );
                if known || tell(Some(name), subject, Reason::Member("BadCredentials"), text) {
                    unusable.insert(name.clone(), why.clone());
                }
            }
        }
        for name in self
            .unusable
            .keys()
            .filter(|name| !unusable.contains_key(*name))
        {
            over(&subject_of_credentials(name), ACTIVE);
        }
        for name in self.seen.keys().filter(|name| !seen.contains_key(*name)) {
            over(name.as_str(), ACTIVE);
        }
        self.unusable = unusable;
        self.seen = seen;
    }
}

fn subject_of_credentials(member: &ClusterName) -> String {
    format!("{member} credentials")
}

/// Why a member's `Active` is as it is: what exactly is wrong says more than what the reason means in general.
fn note(member: &MemberView) -> String {
    let MemberView { name, active, .. } = member;
    let missing = member.denied.as_ref();
    let detail = member.detail.as_ref();
    // both outlast what they explain
    match (
        missing.filter(|_| member.up && active.reason == "AuthFailed"),
        detail.filter(|_| member.detail_of == Some(active.reason)),
    ) {
        (Some(missing), _) => format!("member {name}: grant {missing}"),
        (None, Some(detail)) => format!("member {name}: {detail}"),
        (None, None) => format!("member {name}: {}", active.message),
    }
}

#[cfg(test)]
mod tests;
