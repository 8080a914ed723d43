//! Keeps events rare: one per object and reason in five minutes. Pure.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use xxhash_rust::xxh3::Xxh3;

use super::{Notice, Reason};
use moment::Moment;

/// What was told of the objects of one cluster.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    told: BTreeMap<(String, String, Reason), Told>,
    pruned: Moment,
}

/// A notice on its way, and how often it has been given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Letter {
    pub(super) notice: Notice,
    /// Name of the Event object: the same text about the same object has the same one, so a controller that starts anew
    /// does not say again what its predecessor said.
    pub(super) name: String,
    /// 1: not told yet by this process.
    pub(super) count: u32,
    pub(super) first: Timestamp,
    /// How often it was on its way.
    pub(super) tries: u32,
}

#[derive(Debug)]
struct Told {
    at: Moment,
    name: String,
    count: u32,
    /// Not sent since.
    suppressed: u32,
    first: Timestamp,
}

/// The same reason for the same object is told once in this time (spec 7).
const INTERVAL: Duration = Duration::from_mins(5);
/// An API server forgets events after an hour by default; so do we.
const FORGET: Duration = Duration::from_hours(1);
/// 4096: next power of two above 2000 exported pools per member (spec 5.2) with 2 reasons each.
const MAX_TOLD: usize = 4096;

// === impl Notice ===

impl Notice {
    /// Object, subject and reason: of those that share it, the newest is worth telling.
    pub(super) fn place(&self) -> (&str, &str, Reason) {
        (&self.regarding.uid, &self.subject, self.reason)
    }
}

// === impl Ledger ===

impl Ledger {
    /// Whether to tell, and how; none: told not long ago, or there is too much to keep in mind.
    pub(super) fn admit(&mut self, notice: Notice, now: Moment) -> Option<Letter> {
        self.forget_old(now);
        let (uid, subject, reason) = notice.place();
        let place = (uid.to_owned(), subject.to_owned(), reason);
        let name = event_name(&notice);
        let mut letter = Letter {
            count: 1,
            first: notice.at,
            tries: 0,
            notice,
            name,
        };
        if let Some(told) = self.told.get_mut(&place) {
            if now.since(told.at) < INTERVAL {
                told.suppressed = told.suppressed.saturating_add(1);
                return None;
            }
            if told.name == letter.name {
                letter.count = told.count.saturating_add(1).saturating_add(told.suppressed);
                letter.first = told.first;
            }
        } else if self.told.len() >= MAX_TOLD {
            return None;
        }
        self.told.insert(
            place,
            Told {
                at: now,
                name: letter.name.clone(),
                count: letter.count,
                suppressed: 0,
                first: letter.first,
            },
        );
        Some(letter)
    }

    fn forget_old(&mut self, now: Moment) {
        let full = self.told.len() >= MAX_TOLD;
        if now.since(self.pruned) < INTERVAL && !full {
            return;
        }
        self.pruned = now;
        // what is past the interval suppresses nothing: it goes early where there is no room
        let age = if full { INTERVAL } else { FORGET };
        self.told.retain(|_, told| now.since(told.at) < age);
    }
}

/// `<object>.<hash>`, at most 253 characters.
fn event_name(notice: &Notice) -> String {
    let mut hash = Xxh3::new();
    let Notice {
        regarding,
        subject,
        reason,
        note,
        at: _,
    } = notice;
    for part in [&*regarding.uid, subject, reason.name(), note] {
        hash.update(part.as_bytes());
        hash.update(&[0]);
    }
    let name: String = regarding.name.chars().take(230).collect();
    format!(
        "{}.{:016x}",
        name.trim_end_matches(['.', '-']),
        hash.digest()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{events::Regarding, fixtures::mk_key};

    fn mk_notice(uid: &str, reason: Reason, note: &str) -> Notice {
        Notice {
            regarding: Regarding::pool(&mk_key("llm"), uid),
            subject: String::new(),
            reason,
            note: note.to_owned(),
            at: Timestamp::UNIX_EPOCH,
        }
    }

    fn admit(ledger: &mut Ledger, notice: Notice, seconds: u64) -> Option<Letter> {
        ledger.admit(notice, Moment::from_millis(seconds * 1000))
    }

    #[test]
    fn one_reason_of_one_object_is_told_once_in_five_minutes() {
        let mut ledger = Ledger::default();
        let partly = |note| mk_notice("u1", Reason::PartiallyExported, note);
        assert!(admit(&mut ledger, partly("1/2"), 0).is_some());
        assert!(admit(&mut ledger, partly("2/3"), 299).is_none());
        let other = mk_notice("u1", Reason::Exported, "2/2");
        assert!(admit(&mut ledger, other, 299).is_some());
        let elsewhere = mk_notice("u2", Reason::PartiallyExported, "1/2");
        assert!(admit(&mut ledger, elsewhere, 299).is_some());
        assert!(admit(&mut ledger, partly("2/3"), 300).is_some());
    }

    #[test]
    fn the_same_text_counts_on_and_another_is_a_new_event() {
        let mut ledger = Ledger::default();
        let lost = || mk_notice("u1", Reason::ClusterUnreachable, "c3");
        let first = admit(&mut ledger, lost(), 0).expect("told");
        assert!(admit(&mut ledger, lost(), 10).is_none());
        let again = admit(&mut ledger, lost(), 301).expect("told");
        assert_eq!((again.count, &again.name), (3, &first.name));
        let other = mk_notice("u1", Reason::ClusterUnreachable, "c4");
        let other = admit(&mut ledger, other, 700).expect("told");
        assert_eq!(other.count, 1);
        assert_ne!(other.name, first.name);
        // a process that starts anew finds the same name
        let restarted = admit(&mut Ledger::default(), lost(), 0).expect("told");
        assert_eq!(restarted.name, first.name);
    }

    #[test]
    fn members_on_one_object_do_not_silence_each_other() {
        let mut ledger = Ledger::default();
        let of = |member: &str| Notice {
            subject: member.to_owned(),
            ..mk_notice("lease", Reason::Member("AuthFailed"), "text")
        };
        assert!(admit(&mut ledger, of("a"), 0).is_some());
        assert!(admit(&mut ledger, of("b"), 0).is_some());
        assert!(admit(&mut ledger, of("a"), 1).is_none());
    }

    #[test]
    fn the_ledger_is_bounded_and_forgets() {
        let mut ledger = Ledger::default();
        let of = |number: usize| mk_notice(&number.to_string(), Reason::Exported, "x");
        for number in 0..MAX_TOLD {
            assert!(admit(&mut ledger, of(number), 0).is_some());
        }
        assert!(admit(&mut ledger, of(MAX_TOLD), 1).is_none());
        assert_eq!(ledger.told.len(), MAX_TOLD);
        assert!(admit(&mut ledger, of(MAX_TOLD), 301).is_some());
        assert_eq!(ledger.told.len(), 1);
        assert!(admit(&mut ledger, of(0), 301 + 3600).is_some());
        assert_eq!(ledger.told.len(), 1);
    }

    #[test]
    fn a_long_name_stays_legal() {
        let mut notice = mk_notice("u1", Reason::Exported, "x");
        notice.regarding.name = format!("{}.{}", "a".repeat(229), "b".repeat(23));
        let name = event_name(&notice);
        assert!(
            crate::name::is_subdomain(&name) || name.len() <= 253,
            "{name}"
        );
        assert_eq!(name.len(), 229 + 17);
    }
}
