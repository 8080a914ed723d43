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
fn a_text_that_comes_back_counts_on_and_gets_its_new_time() {
    let mut ledger = Ledger::default();
    let say = |ledger: &mut Ledger, note: &str, seconds: u64| {
        let letter = admit(
            ledger,
            mk_notice("u1", Reason::ClusterUnreachable, note),
            seconds,
        );
        let letter = letter.expect("told");
        (letter.count, letter.name)
    };
    let (_, first) = say(&mut ledger, "a", 0);
    assert_eq!(say(&mut ledger, "b", 400).0, 1);
    assert_eq!(say(&mut ledger, "a", 800), (2, first.clone()));
    // of what came too soon only the repeats of what was said last are counted
    for note in ["a", "b"] {
        let notice = mk_notice("u1", Reason::ClusterUnreachable, note);
        assert!(admit(&mut ledger, notice, 900).is_none());
    }
    assert_eq!(say(&mut ledger, "b", 1200).0, 2);
    assert_eq!(say(&mut ledger, "a", 1600), (3, first.clone()));
    // more texts than are known again
    for (note, seconds) in ["c", "d", "e", "f"]
        .into_iter()
        .zip([2000, 2400, 2800, 3200])
    {
        assert_eq!(say(&mut ledger, note, seconds).0, 1);
    }
    assert_eq!(say(&mut ledger, "a", 3600), (1, first));
    let texts = ledger.told.values().map(|told| told.texts.len()).max();
    assert_eq!(texts, Some(MAX_TEXTS));
}

#[test]
fn what_came_too_soon_and_is_over_is_not_told() {
    let mut ledger = Ledger::default();
    let bad = |uid, note| mk_notice(uid, Reason::InvalidExportAnnotation, note);
    for uid in ["u1", "u2"] {
        assert!(admit(&mut ledger, bad(uid, "x"), 0).is_some());
        assert!(admit(&mut ledger, bad(uid, "y"), 10).is_none());
    }
    ledger.retract(|uid, subject, topic| {
        uid == "u1" && subject.is_empty() && topic == Reason::InvalidExportAnnotation
    });
    let told = due(&mut ledger, 300);
    assert_eq!(told, Some(("InvalidExportAnnotation", "y".to_owned(), 1)));
    assert_eq!(due(&mut ledger, 300), None);
    assert!(ledger.told.keys().any(|(uid, ..)| uid == "u1"));
    assert_eq!(ledger.held.len(), 0);
}

#[test]
fn what_came_too_soon_waits_where_as_much_was_told_as_can_be_kept_in_mind() {
    let mut ledger = Ledger::default();
    let of = |number: usize, note: &str| mk_notice(&number.to_string(), Reason::Exported, note);
    for note in ["x", "y"] {
        let _ = admit(&mut ledger, of(0, note), 0);
    }
    // what was told of it is forgotten, for others need the room
    for number in 1..=MAX_TOLD {
        let seconds = if number < MAX_TOLD { 100 } else { 300 };
        assert!(admit(&mut ledger, of(number, "x"), seconds).is_some());
    }
    assert_eq!(due(&mut ledger, 301), None);
    assert_eq!(ledger.told.len(), MAX_TOLD);
    assert_eq!(ledger.next_due(), Some(at(601)));
    assert_eq!(due(&mut ledger, 601), Some(("Exported", "y".to_owned(), 1)));
    assert!(ledger.told.len() <= MAX_TOLD);
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
    let name = event_name(&notice, text_hash(&notice));
    assert!(
        crate::name::is_subdomain(&name) || name.len() <= 253,
        "{name}"
    );
    assert_eq!(name.len(), 229 + 17);
}
