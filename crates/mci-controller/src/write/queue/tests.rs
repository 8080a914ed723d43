use bytes::Bytes;
use proptest::prelude::*;
use rand::{SeedableRng, rngs::StdRng};

use super::*;
use crate::{
    fixtures::mk_key,
    write::{
        action::{Action, Failure},
        lane::{FORGET, REPEAT_MAX},
        limits::MAX_IN_FLIGHT,
    },
};

const fn at(millis: u64) -> Moment {
    Moment::from_millis(millis)
}

fn mk_slot(name: &str) -> Slot {
    Slot::Import(mk_key(name))
}

fn mk_work(content: u64, base: &str) -> Work {
    Work {
        action: Action::Patch(Bytes::new()),
        content,
        base: base.to_owned(),
        since: at(0),
        not_before: None,
        summary: None,
    }
}

fn finish(lanes: &mut Lanes, slot: &Slot, outcome: Outcome, now: Moment) {
    lanes.finish(slot, outcome, now, &mut StdRng::seed_from_u64(1));
}

fn take(lanes: &mut Lanes, now: Moment) -> Option<u64> {
    lanes.take(now).map(|(_, work)| work.content)
}

#[test]
fn the_first_write_goes_at_once_and_the_newest_wins() {
    let mut lanes = Lanes::default();
    lanes.offer(mk_slot("x"), mk_work(1, ""), at(0));
    assert_eq!(take(&mut lanes, at(0)), Some(1));
    for content in 2..100 {
        lanes.offer(mk_slot("x"), mk_work(content, ""), at(1));
    }
    assert_eq!(take(&mut lanes, at(10)), None, "one in flight per object");
    finish(&mut lanes, &mk_slot("x"), Outcome::Done, at(20));
    assert_eq!(take(&mut lanes, at(20)), None, "merged for 50 ms");
    assert_eq!(take(&mut lanes, at(51)), Some(99));
}

#[test]
fn a_write_is_not_repeated_before_its_echo() {
    let mut lanes = Lanes::default();
    lanes.offer(mk_slot("x"), mk_work(1, "5"), at(0));
    assert_eq!(take(&mut lanes, at(0)), Some(1));
    lanes.offer(mk_slot("x"), mk_work(1, "5"), at(1));
    finish(&mut lanes, &mk_slot("x"), Outcome::Done, at(2));
    lanes.offer(mk_slot("x"), mk_work(1, "5"), at(3));
    assert_eq!(take(&mut lanes, at(1_000)), None);
    // the object changed since: somebody undid it
    lanes.offer(mk_slot("x"), mk_work(1, "7"), at(2_000));
    assert_eq!(take(&mut lanes, at(2_000)), Some(1));
}

#[test]
fn a_new_object_shown_without_its_status_is_not_written_again() {
    let mut lanes = Lanes::default();
    lanes.offer(mk_slot("x"), mk_work(1, ""), at(0));
    assert_eq!(take(&mut lanes, at(0)), Some(1));
    // the watch shows the bare object, before and after the answer
    lanes.offer(mk_slot("x"), mk_work(1, "5"), at(1));
    finish(&mut lanes, &mk_slot("x"), Outcome::Done, at(60));
    lanes.offer(mk_slot("x"), mk_work(1, "5"), at(70));
    assert_eq!(take(&mut lanes, at(200)), None);
    lanes.withdraw(&mk_slot("x"));
    assert_eq!(take(&mut lanes, at(10_000)), None);
    // without the echo it is written again in the end
    lanes.offer(mk_slot("y"), mk_work(1, ""), at(0));
    take(&mut lanes, at(0));
    lanes.offer(mk_slot("y"), mk_work(1, "5"), at(1));
    finish(&mut lanes, &mk_slot("y"), Outcome::Done, at(60));
    assert_eq!(take(&mut lanes, at(560)), Some(1));
}

#[rstest::rstest]
// what it made went before it showed
#[case::nothing_changes(false, &[0, 5_000, 10_000, 20_000, 40_000, 80_000, 160_000, 300_000, 300_000])]
// the server makes something else of it
#[case::something_else_shows(true, &[0, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000])]
fn a_write_that_is_never_shown_is_repeated_ever_more_rarely(
    #[case] changes: bool,
    #[case] expected: &[u64],
) {
    let mut lanes = Lanes::default();
    let mut now = at(0);
    let mut waits = Vec::new();
    for version in 0..expected.len() {
        let base = if changes { version } else { 0 };
        lanes.offer(mk_slot("x"), mk_work(1, &base.to_string()), now);
        let due = lanes.next_due().expect("due");
        waits.push(u64::try_from(due.since(now).as_millis()).expect("small"));
        assert_eq!(take(&mut lanes, due), Some(1));
        finish(&mut lanes, &mk_slot("x"), Outcome::Done, due);
        now = due;
    }
    assert_eq!(waits, expected);
    // it shows at last, and what follows is something new
    lanes.withdraw(&mk_slot("x"));
    now = now + Duration::from_millis(50);
    lanes.offer(mk_slot("x"), mk_work(1, "0"), now);
    assert_eq!(take(&mut lanes, now), Some(1));
}

#[test]
fn a_write_shown_before_its_answer_is_not_awaited_after_it() {
    let mut lanes = Lanes::default();
    lanes.offer(mk_slot("x"), mk_work(1, "5"), at(0));
    take(&mut lanes, at(0));
    lanes.withdraw(&mk_slot("x"));
    finish(&mut lanes, &mk_slot("x"), Outcome::Done, at(10));
    // undone, which leaves the object as it was
    lanes.offer(mk_slot("x"), mk_work(1, "5"), at(60));
    assert_eq!(take(&mut lanes, at(60)), Some(1));
    // undone before the answer, too
    lanes.withdraw(&mk_slot("x"));
    lanes.offer(mk_slot("x"), mk_work(1, "5"), at(70));
    finish(&mut lanes, &mk_slot("x"), Outcome::Done, at(80));
    assert_eq!(take(&mut lanes, at(110)), Some(1));
}

#[test]
fn a_plan_that_is_met_cancels_the_write() {
    let mut lanes = Lanes::default();
    lanes.offer(mk_slot("x"), mk_work(1, ""), at(0));
    lanes.withdraw(&mk_slot("x"));
    assert_eq!(take(&mut lanes, at(0)), None);
    assert_eq!(lanes.next_due(), None);
}

#[test]
fn failures_back_off_and_are_tried_again() {
    let mut lanes = Lanes::default();
    lanes.offer(mk_slot("x"), mk_work(1, ""), at(0));
    assert_eq!(take(&mut lanes, at(0)), Some(1));
    let failed = Outcome::Retry(Failure::Timeout);
    finish(&mut lanes, &mk_slot("x"), failed, at(10));
    assert_eq!(take(&mut lanes, at(100)), None);
    let due = lanes.next_due().expect("a retry");
    assert!(due >= at(510) && due <= at(30_010));
    assert_eq!(take(&mut lanes, due), Some(1));
}

#[test]
fn a_newer_write_replaces_a_failed_one() {
    let mut lanes = Lanes::default();
    lanes.offer(mk_slot("x"), mk_work(1, ""), at(0));
    take(&mut lanes, at(0));
    lanes.offer(mk_slot("x"), mk_work(2, ""), at(5));
    finish(
        &mut lanes,
        &mk_slot("x"),
        Outcome::Retry(Failure::Other),
        at(10),
    );
    let due = lanes.next_due().expect("a retry");
    assert_eq!(take(&mut lanes, due), Some(2));
}

#[test]
fn refused_content_waits_for_a_change() {
    let mut lanes = Lanes::default();
    lanes.offer(mk_slot("x"), mk_work(1, ""), at(0));
    take(&mut lanes, at(0));
    finish(&mut lanes, &mk_slot("x"), Outcome::Rejected, at(10));
    lanes.offer(mk_slot("x"), mk_work(1, "9"), at(20));
    assert_eq!(take(&mut lanes, at(100_000)), None);
    lanes.offer(mk_slot("x"), mk_work(2, "9"), at(100_000));
    assert_eq!(take(&mut lanes, at(100_000)), Some(2));
}

#[test]
fn an_offer_of_refused_content_withdraws_the_waiting_write() {
    let mut lanes = Lanes::default();
    lanes.offer(mk_slot("x"), mk_work(1, ""), at(0));
    take(&mut lanes, at(0));
    lanes.offer(mk_slot("x"), mk_work(2, ""), at(5));
    finish(&mut lanes, &mk_slot("x"), Outcome::Rejected, at(10));
    lanes.offer(mk_slot("x"), mk_work(1, ""), at(20));
    assert_eq!(take(&mut lanes, at(1_000)), None, "2 is not planned");
}

#[test]
fn a_throttling_server_is_left_alone() {
    let mut lanes = Lanes::default();
    lanes.offer(mk_slot("x"), mk_work(1, ""), at(0));
    lanes.offer(mk_slot("y"), mk_work(2, ""), at(0));
    take(&mut lanes, at(0));
    let asked = Outcome::Throttled(Some(Duration::from_secs(5)));
    finish(&mut lanes, &mk_slot("x"), asked, at(10));
    assert_eq!(take(&mut lanes, at(5_009)), None);
    assert_eq!(lanes.next_due(), Some(at(5_010)));
    assert!(take(&mut lanes, at(5_010)).is_some());
}

#[test]
fn a_write_in_conflict_is_sent_when_planned_and_no_earlier() {
    let mut lanes = Lanes::default();
    lanes.offer(mk_slot("x"), mk_work(1, "5"), at(0));
    assert_eq!(take(&mut lanes, at(0)), Some(1));
    finish(&mut lanes, &mk_slot("x"), Outcome::Done, at(0));
    let contested = Work {
        not_before: Some(at(600_000)),
        ..mk_work(2, "6")
    };
    lanes.offer(mk_slot("x"), contested, at(1_000));
    assert_eq!(take(&mut lanes, at(599_999)), None);
    assert_eq!(take(&mut lanes, at(600_000)), Some(2));
}

#[test]
fn at_most_32_are_in_flight() {
    let mut lanes = Lanes::default();
    for n in 0..100 {
        lanes.offer(mk_slot(&format!("x{n}")), mk_work(n, ""), at(0));
    }
    let taken = std::iter::from_fn(|| take(&mut lanes, at(0))).count();
    assert_eq!(taken, 32);
    assert_eq!(lanes.next_due(), None);
}

#[test]
fn a_server_that_asks_for_a_pause_gets_fewer_writes_at_once_afterwards() {
    let mut lanes = Lanes::default();
    for n in 0..100 {
        lanes.offer(mk_slot(&format!("x{n}")), mk_work(n, ""), at(0));
    }
    let in_flight: Vec<Slot> =
        std::iter::from_fn(|| lanes.take(at(0)).map(|(slot, _)| slot)).collect();
    for slot in &in_flight {
        finish(&mut lanes, slot, Outcome::Throttled(None), at(10));
    }
    assert_eq!(lanes.stats(at(10)).limit, MAX_IN_FLIGHT / 2);
    let after = std::iter::from_fn(|| take(&mut lanes, at(2_000))).count();
    assert_eq!(after, MAX_IN_FLIGHT / 2);
}

#[test]
fn two_seconds_a_write_and_a_hundred_events_make_two_writes() {
    let mut lanes = Lanes::default();
    let mut writes = 0;
    for event in 0..100 {
        lanes.offer(mk_slot("x"), mk_work(event + 1, ""), at(event * 20));
        writes += usize::from(take(&mut lanes, at(event * 20)).is_some());
    }
    finish(&mut lanes, &mk_slot("x"), Outcome::Done, at(2_000));
    assert_eq!(take(&mut lanes, at(2_000)), Some(100));
    finish(&mut lanes, &mk_slot("x"), Outcome::Done, at(4_000));
    assert_eq!(take(&mut lanes, at(60_000)), None);
    assert_eq!(writes + 1, 2);
}

#[test]
fn a_server_that_does_not_answer_is_tried_with_one_write_at_a_time() {
    let mut lanes = Lanes::default();
    for n in 0..10 {
        lanes.offer(mk_slot(&format!("x{n}")), mk_work(n, ""), at(0));
    }
    let in_flight: Vec<Slot> =
        std::iter::from_fn(|| lanes.take(at(0)).map(|(slot, _)| slot)).collect();
    assert_eq!(in_flight.len(), 10);
    for slot in &in_flight {
        let failed = Outcome::Retry(Failure::Unconnected);
        finish(&mut lanes, slot, failed, at(10));
    }
    assert!(lanes.stats(at(10)).breaker_open);
    let due = lanes.next_due().expect("half open in the end");
    assert!(due >= at(510), "{due:?}");
    let tried = std::iter::from_fn(|| lanes.take(at(60_000))).count();
    assert_eq!(tried, 1);
    assert_eq!(lanes.next_due(), None, "the one decides");
    let slot = lanes.in_flight.first().cloned().expect("the one");
    // any answer
    finish(
        &mut lanes,
        &slot,
        Outcome::Retry(Failure::Denied),
        at(60_010),
    );
    assert!(!lanes.stats(at(60_010)).breaker_open);
    let freed = std::iter::from_fn(|| lanes.take(at(60_010))).count();
    assert_eq!(freed, 9);
}

#[test]
fn a_burst_past_five_hundred_is_slowed_to_a_hundred_a_second() {
    let mut lanes = Lanes::default();
    for n in 0..1000 {
        lanes.offer(mk_slot(&format!("x{n}")), mk_work(n, ""), at(0));
    }
    let mut counts = Vec::new();
    for second in 0..7 {
        let mut count = 0;
        for millis in 0..1000 {
            while let Some((slot, _)) = lanes.take(at(second * 1000 + millis)) {
                finish(&mut lanes, &slot, Outcome::Done, at(second * 1000 + millis));
                count += 1;
            }
        }
        counts.push(count);
    }
    assert_eq!(counts, [599, 100, 100, 100, 100, 1, 0]);
}

#[test]
fn a_namespace_that_is_gone_makes_no_hot_loop_and_comes_back_at_once() {
    let mut lanes = Lanes::default();
    lanes.offer(mk_slot("x"), mk_work(1, ""), at(0));
    take(&mut lanes, at(0));
    let gone = Outcome::Retry(Failure::NamespaceGone);
    finish(&mut lanes, &mk_slot("x"), gone, at(10));
    lanes.offer(mk_slot("x"), mk_work(1, ""), at(20));
    assert_eq!(take(&mut lanes, at(30_000)), None);
    // its watch reports that it is gone, then that it is back
    lanes.withdraw(&mk_slot("x"));
    lanes.offer(mk_slot("x"), mk_work(1, ""), at(30_000));
    assert_eq!(take(&mut lanes, at(30_000)), Some(1));
}

#[test]
fn the_stats_contain_the_age_of_the_oldest() {
    let mut lanes = Lanes::default();
    assert_eq!(lanes.stats(at(5_000)).oldest, Duration::ZERO);
    lanes.offer(mk_slot("x"), mk_work(1, ""), at(0));
    lanes.offer(mk_slot("y"), mk_work(1, ""), at(0));
    take(&mut lanes, at(0));
    let stats = lanes.stats(at(3_000));
    assert_eq!((stats.keys, stats.oldest), (1, Duration::from_secs(3)));
    finish(&mut lanes, &mk_slot("x"), Outcome::Done, at(3_000));
    take(&mut lanes, at(3_000));
    finish(&mut lanes, &mk_slot("y"), Outcome::Done, at(3_000));
    assert_eq!(lanes.stats(at(4_000)).oldest, Duration::ZERO);
}

#[test]
fn a_new_writer_sends_what_the_old_one_left() {
    let mut lanes = Lanes::default();
    lanes.offer(mk_slot("x"), mk_work(1, ""), at(0));
    take(&mut lanes, at(0));
    lanes.reopen(at(10));
    assert_eq!(take(&mut lanes, at(10)), Some(1));
}

#[test]
fn quiet_lanes_are_forgotten() {
    let mut lanes = Lanes::default();
    lanes.offer(mk_slot("x"), mk_work(1, ""), at(0));
    take(&mut lanes, at(0));
    finish(&mut lanes, &mk_slot("x"), Outcome::Done, at(1));
    lanes.prune(at(0) + FORGET / 2);
    assert_eq!(lanes.lanes.len(), 1);
    lanes.prune(at(0) + FORGET * 2);
    assert!(lanes.lanes.is_empty());
}

#[test]
fn what_is_withdrawn_while_it_is_in_flight_is_not_sent_again() {
    for outcome in [
        Some(Outcome::Retry(Failure::Timeout)),
        Some(Outcome::Throttled(None)),
        None,
    ] {
        let mut lanes = Lanes::default();
        lanes.offer(mk_slot("x"), mk_work(1, "5"), at(0));
        assert_eq!(take(&mut lanes, at(0)), Some(1));
        lanes.withdraw(&mk_slot("x"));
        match outcome {
            Some(outcome) => finish(&mut lanes, &mk_slot("x"), outcome, at(10)),
            None => lanes.reopen(at(10)),
        }
        assert_eq!(take(&mut lanes, at(600_000)), None, "{outcome:?}");
        lanes.offer(mk_slot("x"), mk_work(1, "5"), at(600_000));
        assert_eq!(take(&mut lanes, at(600_000)), Some(1), "{outcome:?}");
    }
}

#[test]
fn a_withdrawn_creation_fills_nothing() {
    let mut lanes = Lanes::default();
    let create = Action::Apply {
        create: true,
        main: Bytes::new(),
        status: Bytes::new(),
    };
    let work = Work {
        action: create,
        ..mk_work(1, "")
    };
    lanes.offer(mk_slot("x"), work, at(0));
    assert_eq!(take(&mut lanes, at(0)), Some(1));
    let is_creating = |lanes: &Lanes| lanes.lanes[&mk_slot("x")].is_creating();
    assert!(is_creating(&lanes));
    lanes.withdraw(&mk_slot("x"));
    assert!(!is_creating(&lanes));
}

proptest! {
    /// Whatever the order of offers and outcomes, the last offer is what the server has in the end.
    #[test]
    fn the_last_offer_arrives(steps in proptest::collection::vec((0..4_u8, 1..4_u64), 1..60)) {
        let mut lanes = Lanes::default();
        let mut rng = StdRng::seed_from_u64(7);
        let slot = mk_slot("x");
        let (mut server, mut wanted, mut version) = (0, 0, 0_u64);
        let mut in_flight: Option<u64> = None;
        let mut now = at(0);
        let mut land = |lanes: &mut Lanes, in_flight: &mut Option<u64>, server: &mut u64, version: &mut u64, outcome, now| {
            if let Some(content) = in_flight.take() {
                if outcome == Outcome::Done {
                    *server = content;
                    *version += 1;
                }
                lanes.finish(&slot, outcome, now, &mut rng);
            }
        };
        for (step, content) in steps {
            now = now + Duration::from_millis(20);
            match step {
                0 => wanted = content,
                1 => land(&mut lanes, &mut in_flight, &mut server, &mut version, Outcome::Done, now),
                2 => land(&mut lanes, &mut in_flight, &mut server, &mut version, Outcome::Retry(Failure::Other), now),
                _ => {}
            }
            if wanted == server && in_flight.is_none() {
                lanes.withdraw(&mk_slot("x"));
            } else if wanted != 0 {
                lanes.offer(mk_slot("x"), mk_work(wanted, &version.to_string()), now);
            }
            if in_flight.is_none() {
                in_flight = take(&mut lanes, now);
            }
        }
        for _ in 0..10 {
            now = now + REPEAT_MAX;
            land(&mut lanes, &mut in_flight, &mut server, &mut version, Outcome::Done, now);
            if wanted == server {
                lanes.withdraw(&mk_slot("x"));
            } else if wanted != 0 {
                lanes.offer(mk_slot("x"), mk_work(wanted, &version.to_string()), now);
            }
            now = now + REPEAT_MAX;
            in_flight = take(&mut lanes, now);
        }
        prop_assert_eq!(server, wanted);
    }
}
