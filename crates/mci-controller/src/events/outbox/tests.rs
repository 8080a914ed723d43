use std::time::Duration;

use jiff::Timestamp;
use rand::{SeedableRng, rngs::StdRng};

use super::*;
use crate::{
    events::{Reason, Regarding},
    fixtures::mk_key,
    write::action::Failure,
};

const THROTTLED: Outcome = Outcome::Throttled(None);

const fn at(seconds: u64) -> Moment {
    Moment::from_millis(seconds * 1000)
}

fn mk_notice(uid: usize, note: &str) -> Notice {
    Notice {
        regarding: Regarding::pool(&mk_key("llm"), &uid.to_string()),
        subject: String::new(),
        reason: Reason::Exported,
        note: note.to_owned(),
        at: Timestamp::UNIX_EPOCH,
    }
}

/// Leaves no room.
pub(crate) fn fill(outbox: &Outbox, now: Moment) {
    let mut numbers = 0..;
    let full = numbers.find(|number| !outbox.offer(mk_notice(*number, ""), now));
    assert!(full.is_some_and(|taken| taken > 0));
}

fn finish(mail: &mut Mail, outcome: Outcome, now: Moment) {
    mail.finish(outcome, now, &mut StdRng::seed_from_u64(1));
}

/// Note and tries of the next letter.
fn take(mail: &mut Mail, now: Moment) -> Option<(String, u32)> {
    let letter = mail.take(now)?;
    Some((letter.notice.note, letter.tries))
}

#[test]
fn a_full_outbox_takes_nothing_and_a_notice_that_was_not_taken_may_come_again() {
    let outbox = Outbox::default();
    let offer = |number: usize| outbox.offer(mk_notice(number, &number.to_string()), at(0));
    for number in 0..MAX_WAITING {
        assert!(offer(number));
    }
    assert!(!offer(MAX_WAITING));
    assert_eq!(outbox.drain().len(), MAX_WAITING);
    assert!(offer(MAX_WAITING));
    assert_eq!(outbox.drain(), [("Exported", MAX_WAITING.to_string())]);
}

#[test]
fn a_letter_that_a_busy_server_did_not_take_is_the_next_one_and_has_its_place_kept() {
    let mut mail = Mail::default();
    for number in 0..MAX_WAITING {
        assert!(mail.offer(mk_notice(number, &number.to_string()), at(0)));
    }
    assert_eq!(take(&mut mail, at(0)), Some(("0".to_owned(), 1)));
    assert_eq!(take(&mut mail, at(0)), None, "one at a time");
    assert!(!mail.offer(mk_notice(MAX_WAITING, ""), at(0)));
    finish(&mut mail, THROTTLED, at(0));
    assert_eq!((mail.waiting.len(), mail.lost), (MAX_WAITING, 0));
    assert_eq!(take(&mut mail, at(0)), None, "it asked for silence");
    assert_eq!(take(&mut mail, at(1)), Some(("0".to_owned(), 2)));
    finish(&mut mail, Outcome::Done, at(1));
    assert_eq!(take(&mut mail, at(1)), Some(("1".to_owned(), 1)));
    // without an answer it is lost
    finish(&mut mail, Outcome::Retry(Failure::Timeout), at(6));
    assert_eq!(take(&mut mail, at(9)), Some(("2".to_owned(), 1)));
}

#[test]
fn a_letter_is_tried_five_times_whoever_gives_it_back() {
    let mut mail = Mail::default();
    mail.offer(mk_notice(1, "one"), at(0));
    mail.offer(mk_notice(2, "two"), at(0));
    for tries in 1..=5 {
        let now = at(tries);
        let letter = take(&mut mail, now).expect("the letter");
        assert_eq!(
            (letter.0.as_str(), u64::from(letter.1)),
            ("one", tries),
            "at {tries}"
        );
        if tries % 2 == 0 {
            mail.reopen(Moment::START, now);
        } else {
            finish(&mut mail, THROTTLED, now);
        }
    }
    assert_eq!(mail.lost, 1);
    assert_eq!(take(&mut mail, at(60)), Some(("two".to_owned(), 1)));
}

#[test]
fn of_two_that_say_the_same_the_newer_goes() {
    let mut mail = Mail::default();
    let later = at(301);
    mail.offer(mk_notice(1, "1/2"), at(0));
    mail.offer(mk_notice(2, "other"), at(0));
    // where it waits
    assert!(mail.offer(mk_notice(1, "2/2"), later));
    assert_eq!(mail.waiting.len(), 2);
    assert_eq!(take(&mut mail, later), Some(("2/2".to_owned(), 1)));
    // and where it comes back
    let latest = later + Duration::from_mins(6);
    assert!(mail.offer(mk_notice(1, "2/3"), latest));
    finish(&mut mail, THROTTLED, latest);
    let rest: Vec<&str> = mail
        .waiting
        .iter()
        .map(|letter| &*letter.notice.note)
        .collect();
    assert_eq!((rest, mail.lost), (vec!["other", "2/3"], 0));
}

#[test]
fn what_came_too_soon_waits_outside_and_for_room() {
    let mut mail = Mail::default();
    mail.offer(mk_notice(0, "1/2"), at(0));
    assert_eq!(take(&mut mail, at(0)), Some(("1/2".to_owned(), 1)));
    finish(&mut mail, Outcome::Done, at(0));
    assert_eq!(mail.next_due(), None);
    assert!(mail.offer(mk_notice(0, "2/2"), at(10)));
    assert_eq!(mail.next_due(), Some(at(300)));
    assert_eq!(take(&mut mail, at(10)), None);
    for number in 1..=MAX_WAITING {
        assert!(mail.offer(mk_notice(number, ""), at(20)));
    }
    assert_eq!(mail.next_due(), Some(at(0)), "others wait");
    assert_eq!(take(&mut mail, at(301)), Some((String::new(), 1)));
    assert_eq!(mail.ledger.next_due(), Some(at(300)), "there is no room");
    finish(&mut mail, Outcome::Done, at(301));
    for _ in 1..MAX_WAITING {
        assert_eq!(take(&mut mail, at(301)), Some((String::new(), 1)));
        finish(&mut mail, Outcome::Done, at(301));
    }
    assert_eq!(take(&mut mail, at(301)), Some(("2/2".to_owned(), 1)));
}

#[test]
fn what_was_old_when_a_term_began_is_dropped_and_what_was_young_is_told() {
    let mut mail = Mail::default();
    for (number, seconds) in [(0, 0), (1, 90), (2, 100)] {
        mail.offer(mk_notice(number, "1/2"), at(seconds));
    }
    assert_eq!(take(&mut mail, at(100)), Some(("1/2".to_owned(), 1)));
    finish(&mut mail, Outcome::Done, at(100));
    // what came too soon
    assert!(mail.offer(mk_notice(0, "2/2"), at(110)));
    mail.take(at(120)).expect("in flight when the term ends");
    // a connection anew, in the same term
    mail.reopen(at(0), at(150));
    assert_eq!(
        (mail.waiting.len(), mail.ledger.next_due()),
        (2, Some(at(300)))
    );
    mail.take(at(200)).expect("in flight again");
    let term = at(395);
    mail.reopen(term, at(395));
    let uid = |letter: &Letter| letter.notice.regarding.uid.clone();
    let left: Vec<String> = mail.waiting.iter().map(uid).collect();
    assert_eq!(left, ["2"]);
    assert_eq!(mail.ledger.next_due(), Some(at(300)));
    mail.reopen(at(411), at(411));
    assert_eq!((mail.waiting.len(), mail.ledger.next_due()), (0, None));
}

#[test]
fn there_is_room_for_what_both_queue_and_memory_take() {
    let outbox = Outbox::default();
    assert_eq!(outbox.room(at(0)), MAX_WAITING);
    outbox.offer(mk_notice(0, ""), at(0));
    assert_eq!(outbox.room(at(0)), MAX_WAITING - 1);
    outbox.take(at(0)).expect("in flight");
    assert_eq!(outbox.room(at(0)), MAX_WAITING - 1);
    outbox.finish(Outcome::Done, at(0));
    assert_eq!(outbox.room(at(0)), MAX_WAITING);
    let mut number = 0;
    loop {
        number += 1;
        if !outbox.offer(mk_notice(number, ""), at(1)) {
            break;
        }
        outbox.drain();
    }
    assert_eq!(outbox.room(at(1)), 0, "after {number}");
}
