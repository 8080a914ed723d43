//! What the operator at home is told of members.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;

use super::{Notice, Outbox, Reason, Regarding};
use crate::{
    name::ClusterName,
    overview::{Active, Overview},
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

#[derive(Clone, Copy, Debug)]
struct Seen {
    reason: &'static str,
    /// Its first word after the start of the program: that it works is no news then.
    quiet: bool,
}

// === impl MemberTeller ===

impl MemberTeller {
    /// What is news in an overview. `regarding` gives the object that an event of a member is about. Where we are not
    /// the one to speak, trouble stays news: if nobody told of it, we do when we are.
    pub(crate) fn look(
        &mut self,
        overview: &Overview,
        speaking: bool,
        at: Timestamp,
        regarding: impl Fn(Option<&ClusterName>) -> Option<Regarding>,
    ) -> Vec<Notice> {
        let mut notices = Vec::new();
        let mut seen = BTreeMap::new();
        for member in &overview.clusters {
            let Active {
                reason, message, ..
            } = member.active;
            let old = self.seen.get(&member.name).copied();
            let quiet = match old {
                // before the gate opens, members are those of before the start
                None => !overview.gate_open,
                Some(old) => old.quiet && matches!(old.reason, "Connecting"),
            };
            let news = old.is_none_or(|old| old.reason != reason)
                && reason != "Connecting"
                && !(reason == "Active" && quiet);
            if !speaking && news && reason != "Active" {
                let untold = Seen {
                    reason: "Connecting",
                    quiet,
                };
                seen.insert(member.name.clone(), old.unwrap_or(untold));
                continue;
            }
            if news && let Some(regarding) = regarding(Some(&member.name)) {
                notices.push(Notice {
                    regarding,
                    subject: member.name.to_string(),
                    reason: Reason::Member(reason),
                    note: match (&member.denied, &member.detail) {
                        (Some(missing), _) => format!("member {}: grant {missing}", member.name),
                        // what exactly is wrong with its object says more than what that means in general
                        (None, Some(detail)) => format!("member {}: {detail}", member.name),
                        (None, None) => format!("member {}: {message}", member.name),
                    },
                    at,
                });
            }
            if let Some(why) = &member.unusable_credentials
                && self.unusable.get(&member.name) != Some(why)
                && let Some(regarding) = regarding(Some(&member.name))
            {
                notices.push(Notice {
                    regarding,
                    subject: member.name.to_string(),
                    reason: Reason::Member("BadCredentials"),
                    note: format!(
                        "member {}: the new credentials are not used, the old ones stay: {why}",
                        member.name
                    ),
                    at,
                });
            }
            // on the way back to contact nothing is forgotten: the same trouble again is no news
            let reason = match old {
                Some(old) if reason == "Connecting" => old.reason,
                _ => reason,
            };
            seen.insert(member.name.clone(), Seen { reason, quiet });
        }
        let unusable = overview.clusters.iter();
        let unusable = unusable
            .filter_map(|member| Some((member.name.clone(), member.unusable_credentials.clone()?)));
        let unusable =
            unusable.filter(|(name, why)| speaking || self.unusable.get(name) == Some(why));
        self.unusable = unusable.collect();
        self.seen = seen;
        if overview.guard
            && !self.guarded
            && let Some(regarding) = regarding(None)
        {
            notices.push(Notice {
                regarding,
                subject: String::new(),
                reason: Reason::IsolationGuard,
                note: "more than half of the members were lost at once: the fault may be here, so withdrawals are held"
                    .to_owned(),
                at,
            });
        }
        self.guarded = overview.guard && (speaking || self.guarded);
        notices
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        fixtures::mk_name,
        overview::{Counts, MemberView},
        write::stats::QueueStats,
    };

    fn mk_overview(gate_open: bool, members: &[(&str, &'static str)]) -> Overview {
        let clusters = members.iter().map(|(name, reason)| MemberView {
            name: mk_name(name),
            link: "Live",
            active: Active {
                status: *reason == "Active",
                reason,
                message: "text",
            },
            source: String::new(),
            detail: None,
            up: true,
            unusable_credentials: None,
            denied: None,
            uid: None,
            silent: Duration::ZERO,
            flavour: None,
            counts: Counts::default(),
            queue: QueueStats::default(),
        });
        Overview {
            gate_open,
            clusters: clusters.collect(),
            ..Overview::default()
        }
    }

    fn look(teller: &mut MemberTeller, overview: &Overview) -> Vec<String> {
        let notices = notices(teller, overview, true);
        let told = notices.iter();
        told.map(|notice| format!("{} {}", notice.regarding.name, notice.reason.name()))
            .collect()
    }

    fn notices(teller: &mut MemberTeller, overview: &Overview, speaking: bool) -> Vec<Notice> {
        let regarding = |name: Option<&ClusterName>| {
            Some(Regarding {
                api_version: "v1",
                kind: "Secret",
                namespace: "isthmus-system".to_owned(),
                name: name.map_or("lease", ClusterName::as_str).to_owned(),
                uid: "u".to_owned(),
            })
        };
        teller.look(overview, speaking, Timestamp::UNIX_EPOCH, regarding)
    }

    #[test]
    fn a_start_that_works_is_no_news_and_trouble_is() {
        let mut teller = MemberTeller::default();
        let start = mk_overview(false, &[("a", "Connecting"), ("b", "Connecting")]);
        assert!(look(&mut teller, &start).is_empty());
        let settled = mk_overview(true, &[("a", "Active"), ("b", "AuthFailed")]);
        assert_eq!(look(&mut teller, &settled), ["b AuthFailed"]);
        assert!(look(&mut teller, &settled).is_empty());
        let trying = mk_overview(true, &[("a", "Active"), ("b", "Connecting")]);
        assert!(look(&mut teller, &trying).is_empty());
        assert!(look(&mut teller, &settled).is_empty());
        let mended = mk_overview(true, &[("a", "ConnectionLost"), ("b", "Active")]);
        assert_eq!(look(&mut teller, &mended), ["a ConnectionLost", "b Active"]);
    }

    #[test]
    fn a_member_added_later_is_told_of_when_it_works() {
        let mut teller = MemberTeller::default();
        let joined = mk_overview(true, &[("a", "Connecting")]);
        assert!(look(&mut teller, &joined).is_empty());
        let works = mk_overview(true, &[("a", "Active")]);
        assert_eq!(look(&mut teller, &works), ["a Active"]);
    }

    #[test]
    fn the_guard_is_told_when_it_closes() {
        let mut teller = MemberTeller::default();
        let guarded = Overview {
            guard: true,
            ..mk_overview(true, &[])
        };
        assert_eq!(look(&mut teller, &guarded), ["lease IsolationGuard"]);
        assert!(look(&mut teller, &guarded).is_empty());
        assert!(look(&mut teller, &mk_overview(true, &[])).is_empty());
        assert_eq!(look(&mut teller, &guarded), ["lease IsolationGuard"]);
    }

    #[test]
    fn new_credentials_that_do_not_work_are_told_once() {
        let mut teller = MemberTeller::default();
        let mut overview = mk_overview(true, &[("a", "Active")]);
        look(&mut teller, &overview);
        overview.clusters[0].unusable_credentials = Some("403".to_owned());
        assert_eq!(look(&mut teller, &overview), ["a BadCredentials"]);
        assert!(look(&mut teller, &overview).is_empty());
        overview.clusters[0].unusable_credentials = None;
        assert!(look(&mut teller, &overview).is_empty());
    }

    #[test]
    fn what_exactly_is_wrong_is_told() {
        let mut teller = MemberTeller::default();
        let mut overview = mk_overview(true, &[("a", "BadCredentials")]);
        overview.clusters[0].detail = Some("the plugin failed".to_owned());
        let told = notices(&mut teller, &overview, true);
        assert_eq!(told[0].note, "member a: the plugin failed");
    }

    #[test]
    fn trouble_that_came_while_another_led_is_told_when_we_do() {
        let mut teller = MemberTeller::default();
        let mut overview = mk_overview(true, &[("a", "IdentityChanged"), ("b", "Active")]);
        overview.clusters[1].unusable_credentials = Some("403".to_owned());
        overview.guard = true;
        notices(&mut teller, &overview, false);
        notices(&mut teller, &overview, false);
        assert_eq!(
            look(&mut teller, &overview),
            [
                "a IdentityChanged",
                "b BadCredentials",
                "lease IsolationGuard"
            ]
        );
        assert!(look(&mut teller, &overview).is_empty());
        // what another leader told of and is over is no news
        let mended = mk_overview(true, &[("a", "Active"), ("b", "Active")]);
        let mut other = MemberTeller::default();
        notices(
            &mut other,
            &mk_overview(false, &[("a", "Connecting"), ("b", "Connecting")]),
            false,
        );
        notices(&mut other, &overview, false);
        assert!(look(&mut other, &mended).is_empty());
    }
}
