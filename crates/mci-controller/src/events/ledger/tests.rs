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

const fn at(seconds: u64) -> Moment {
    Moment::from_millis(seconds * 1000)
}

fn admit(ledger: &mut Ledger, notice: Notice, seconds: u64) -> Option<Letter> {
    match ledger.admit(notice, at(seconds)) {
        Admission::Now(letter) => Some(*letter),
        Admission::Kept | Admission::Refused => None,
    }
}

/// Reason, note and count of what is due.
fn due(ledger: &mut Ledger, seconds: u64) -> Option<(&'static str, String, u32)> {
    let letter = ledger.due(at(seconds))?;
    Some((
        letter.notice.reason.name(),
        letter.notice.note,
        letter.count,
    ))
}

fn of_member(reason: &'static str) -> Notice {
    Notice {
        subject: "b".to_owned(),
        ..mk_notice("secret", Reason::Member(reason), "text")
    }
}

#[test]
fn a_last_word_that_came_too_soon_is_told_when_its_time_comes() {
    let mut ledger = Ledger::default();
    assert!(admit(&mut ledger, of_member("AuthFailed"), 0).is_some());
    assert_eq!(ledger.next_due(), None);
    assert!(admit(&mut ledger, of_member("Active"), 60).is_some());
    assert!(admit(&mut ledger, of_member("AuthFailed"), 120).is_none());
    assert_eq!(ledger.next_due(), Some(at(300)));
    assert_eq!(due(&mut ledger, 299), None);
    let told = due(&mut ledger, 300);
    assert_eq!(told, Some(("AuthFailed", "text".to_owned(), 2)));
    assert_eq!((due(&mut ledger, 300), ledger.next_due()), (None, None));
    // and it is the last word now
    assert!(admit(&mut ledger, of_member("AuthFailed"), 301).is_none());
    assert_eq!(ledger.next_due(), None);
}

#[test]
fn what_came_too_soon_is_not_told_where_a_newer_word_was() {
    let mut ledger = Ledger::default();
    for (reason, seconds) in [("AuthFailed", 0), ("Active", 60)] {
        assert!(admit(&mut ledger, of_member(reason), seconds).is_some());
    }
    // by one that was told last
    assert!(admit(&mut ledger, of_member("AuthFailed"), 120).is_none());
    assert!(admit(&mut ledger, of_member("Active"), 130).is_none());
    assert_eq!(due(&mut ledger, 600), None);
    // by one that may be told at once
    assert!(admit(&mut ledger, of_member("AuthFailed"), 140).is_none());
    assert!(admit(&mut ledger, of_member("ConnectionLost"), 150).is_some());
    assert_eq!(due(&mut ledger, 600), None);
    // by one that came too soon itself
    assert!(admit(&mut ledger, of_member("AuthFailed"), 160).is_none());
    assert!(admit(&mut ledger, of_member("Active"), 170).is_none());
    let told = due(&mut ledger, 360);
    assert_eq!(told, Some(("Active", "text".to_owned(), 3)));
    assert_eq!(due(&mut ledger, 600), None);
    // all are counted
    let again = admit(&mut ledger, of_member("AuthFailed"), 600).expect("told");
    assert_eq!(again.count, 5);
}

#[test]
fn what_is_of_another_topic_overtakes_nothing() {
    let mut ledger = Ledger::default();
    let bad = |note| mk_notice("u1", Reason::InvalidExportAnnotation, note);
    assert!(admit(&mut ledger, bad("x"), 0).is_some());
    assert!(admit(&mut ledger, bad("y"), 10).is_none());
    let exported = mk_notice("u1", Reason::Exported, "2/2");
    assert!(admit(&mut ledger, exported, 20).is_some());
    let told = due(&mut ledger, 300);
    assert_eq!(told, Some(("InvalidExportAnnotation", "y".to_owned(), 1)));
}

#[test]
fn what_came_too_soon_is_bounded() {
    let mut ledger = Ledger::default();
    let of = |number: usize, note: &str| mk_notice(&number.to_string(), Reason::Exported, note);
    let admit_all = |ledger: &mut Ledger, from: usize, seconds: u64| {
        for number in from..from + MAX_TOLD {
            assert!(admit(ledger, of(number, "x"), seconds).is_some());
        }
    };
    admit_all(&mut ledger, 0, 0);
    for number in 0..MAX_TOLD {
        let admission = ledger.admit(of(number, "y"), at(1));
        assert!(matches!(admission, Admission::Kept));
    }
    // nobody takes what is due
    admit_all(&mut ledger, MAX_TOLD, 301);
    let one_more = ledger.admit(of(MAX_TOLD, "y"), at(302));
    assert!(matches!(one_more, Admission::Refused));
    assert_eq!(ledger.held.len(), MAX_TOLD);
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
    assert_eq!(ledger.next_due(), None, "it was the last word");
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
