use super::*;

const BLOCK: usize = 4;

fn at(seconds: u64) -> Moment {
    Moment::from_millis(seconds * 1000)
}

fn slot(index: u32) -> Slot {
    Slot {
        index,
        generation: 0,
    }
}

/// Two workers.
fn mk_loads(limits: Limits) -> Loads {
    let loads = Loads::new(Limits {
        block_size: BLOCK,
        ..limits
    });
    loads.add(slot(0));
    loads.add(slot(1));
    loads
}

/// Blocks of their own after `shared` that all have, and two ids more.
fn mk_booking(number: u64, shared: u64, own: u64) -> NewBooking {
    let names = (0..shared).chain(number * 1000 + 500..number * 1000 + 500 + own);
    NewBooking {
        slot: slot(0),
        chain: names.map(|name| Seq::from_u64(name + 1)).collect(),
        ids: u32::try_from(shared + own).unwrap() * 4 + 2,
        cached: 0,
        decays: false,
    }
}

fn mk_load(prefill_tokens: u64, decode_blocks: u64, requests: u32) -> Load {
    Load {
        prefill_tokens,
        decode_blocks,
        requests,
    }
}

#[test]
fn shared_blocks_count_once_and_what_is_cached_is_not_computed() {
    let loads = mk_loads(Limits::default());
    loads.book("a", mk_booking(1, 5, 3), at(1)).unwrap();
    assert_eq!(loads.of(slot(0), at(1)), Some(mk_load(34, 9, 1)));
    let second = NewBooking {
        cached: 20,
        ..mk_booking(2, 5, 4)
    };
    loads.book("b", second, at(1)).unwrap();
    assert_eq!(loads.of(slot(0), at(1)), Some(mk_load(34 + 18, 9 + 5, 2)));
    assert!(loads.prefill_complete("a", Some(slot(0)), at(2)));
    assert!(loads.prefill_complete("a", None, at(2)));
    assert_eq!(loads.of(slot(0), at(2)), Some(mk_load(18, 14, 2)));
    assert!(loads.free("a", at(3)));
    assert_eq!(loads.of(slot(0), at(3)), Some(mk_load(18, 10, 1)));
    assert!(loads.free("b", at(3)));
    assert_eq!(loads.of(slot(0), at(3)), Some(mk_load(0, 0, 0)));
    assert_eq!(
        (loads.bookings(), loads.blocks.load(Ordering::Relaxed)),
        (0, 0)
    );
}

#[test]
fn a_stream_of_an_hour_lives_and_silence_ends_a_booking() {
    let loads = mk_loads(Limits::default());
    loads.book("long", mk_booking(1, 0, 3), at(0)).unwrap();
    loads.book("silent", mk_booking(2, 0, 3), at(0)).unwrap();
    loads.prefill_complete("silent", None, at(2));
    let mut ended = Vec::new();
    for second in (0..3600).step_by(15) {
        assert!(loads.keepalive("long", at(second)));
        if loads.expire(at(second)) > 0 {
            ended.push(second);
        }
    }
    // 60 s after the last message, at the next look
    assert_eq!(ended, [75]);
    assert_eq!(loads.of(slot(0), at(3600)), Some(mk_load(14, 4, 1)));
    assert!(!loads.keepalive("silent", at(3600)));
    assert!(!loads.prefill_complete("silent", None, at(3600)));
}

#[test]
fn an_end_that_comes_first_keeps_its_booking_out() {
    let loads = mk_loads(Limits::default());
    assert!(!loads.free("a", at(1)));
    let again = loads.book("a", mk_booking(1, 0, 3), at(10));
    assert_eq!(again, Err(NotBooked::Ended));
    loads.expire(at(11));
    loads.book("a", mk_booking(1, 0, 3), at(11)).unwrap();
    assert_eq!(
        loads.book("a", mk_booking(1, 0, 3), at(11)),
        Err(NotBooked::Duplicate)
    );
    assert_eq!(loads.of(slot(0), at(11)), Some(mk_load(14, 4, 1)));
}

#[test]
fn what_another_worker_served_is_its_load_and_its_cache() {
    let loads = mk_loads(Limits::default());
    let new = mk_booking(1, 0, 3);
    loads.book("a", new.clone(), at(1)).unwrap();
    assert!(loads.prefill_complete("a", Some(slot(1)), at(2)));
    assert_eq!(loads.of(slot(0), at(2)), Some(mk_load(0, 0, 0)));
    assert_eq!(loads.of(slot(1), at(2)), Some(mk_load(0, 4, 1)));
    let view = |index| loads.view(slot(index), &new.chain, at(3)).unwrap();
    assert_eq!((view(0).predicted, view(1).predicted), (0, 3));
    loads.free("a", at(3));
    assert_eq!(loads.of(slot(1), at(3)), Some(mk_load(0, 0, 0)));
}

#[test]
fn a_computed_prompt_counts_as_cached_for_longer_where_nothing_else_is_known() {
    let loads = mk_loads(Limits::default());
    loads.set_live(slot(1), true);
    let chain = mk_booking(1, 0, 3).chain;
    for (index, id) in [(0, "a"), (1, "b")] {
        let new = NewBooking {
            slot: slot(index),
            ..mk_booking(1, 0, 3)
        };
        loads.book(id, new, at(0)).unwrap();
    }
    let predicted = |second| {
        [0, 1].map(|index| {
            loads
                .view(slot(index), &chain, at(second))
                .unwrap()
                .predicted
        })
    };
    // it waits to be computed for as long as it has to
    assert_eq!(predicted(50), [3, 3]);
    for id in ["a", "b"] {
        loads.prefill_complete(id, None, at(50));
        loads.free(id, at(51));
    }
    assert_eq!(predicted(59), [3, 3]);
    assert_eq!(predicted(60), [3, 0]);
    assert_eq!(predicted(169), [3, 0]);
    assert_eq!(predicted(170), [0, 0]);
}

#[test]
fn a_cancelled_prompt_is_not_expected_to_be_cached() {
    let loads = mk_loads(Limits::default());
    let new = mk_booking(1, 0, 3);
    loads.book("a", new.clone(), at(0)).unwrap();
    loads.free("a", at(1));
    assert_eq!(
        loads.view(slot(0), &new.chain, at(1)),
        Some(View::default())
    );
}

#[test]
fn prompts_of_callers_that_report_nothing_decay() {
    let loads = mk_loads(Limits::default());
    let new = NewBooking {
        ids: 30_000,
        decays: true,
        ..mk_booking(1, 0, 3)
    };
    loads.book("a", new.clone(), at(10)).unwrap();
    let prefill = |second| loads.of(slot(0), at(second)).unwrap().prefill_tokens;
    assert_eq!([10, 11, 12].map(prefill), [30_000, 20_000, 10_000]);
    loads.book("b", new, at(12)).unwrap();
    assert_eq!(prefill(12), 40_000);
    // what one of them has left goes with it
    assert!(loads.free("b", at(13)));
    assert_eq!(prefill(13), 10_000);
    assert_eq!(prefill(15), 0);
}

#[test]
fn there_are_no_more_bookings_than_allowed_and_a_worker_takes_its_own_along() {
    let loads = mk_loads(Limits {
        bookings: 3,
        ..Limits::default()
    });
    for number in 0..3 {
        let new = NewBooking {
            slot: slot(u32::from(number > 0)),
            ..mk_booking(number, 0, 2)
        };
        loads.book(&number.to_string(), new, at(0)).unwrap();
    }
    assert_eq!(
        loads.book("3", mk_booking(3, 0, 2), at(0)),
        Err(NotBooked::Full)
    );
    loads.remove(slot(1));
    assert_eq!((loads.bookings(), loads.of(slot(1), at(0))), (1, None));
    let gone = NewBooking {
        slot: slot(1),
        ..mk_booking(4, 0, 2)
    };
    assert_eq!(loads.book("4", gone, at(0)), Err(NotBooked::Gone));
    loads.book("4", mk_booking(4, 0, 2), at(0)).unwrap();
    assert_eq!(loads.blocks.load(Ordering::Relaxed), 4);
    // another worker at the same place
    loads.add(Slot {
        index: 0,
        generation: 1,
    });
    assert_eq!(loads.of(slot(0), at(0)), None);
}

#[test]
fn all_bookings_end_when_others_were_asked_meanwhile() {
    let loads = mk_loads(Limits::default());
    loads.book("a", mk_booking(1, 0, 3), at(1)).unwrap();
    loads.book("b", mk_booking(2, 0, 5), at(1)).unwrap();
    assert_eq!(loads.slot_of("a"), Some(slot(0)));
    assert_eq!(loads.blocks(), 8);
    loads.clear(at(2));
    assert_eq!(loads.slot_of("a"), None);
    assert_eq!(
        (loads.bookings(), loads.blocks.load(Ordering::Relaxed)),
        (0, 0)
    );
    assert_eq!(loads.of(slot(0), at(2)), Some(mk_load(0, 0, 0)));
}

#[test]
fn what_nobody_reports_is_cached_once_it_is_computed() {
    let loads = mk_loads(Limits::default());
    let new = NewBooking {
        decays: true,
        ..mk_booking(1, 0, 3)
    };
    loads.book("a", new.clone(), at(0)).unwrap();
    let predicted = |second| {
        loads.expire(at(second));
        let view = loads.view(slot(0), &new.chain, at(second));
        view.unwrap().predicted
    };
    // computed at the first look, over after 60 s, and remembered for 120 s
    assert_eq!([1, 60, 120, 121].map(predicted), [3, 3, 3, 0]);
    assert_eq!(loads.of(slot(0), at(121)), Some(mk_load(0, 0, 0)));
}
