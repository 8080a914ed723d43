//! Charges: owner-less ones, and those that instances report.

use rstest::rstest;

use super::*;

#[test]
fn a_charge_counts_until_its_prefill_and_its_request_end() {
    let rig = Rig::new();
    assert_eq!(rig.center.loads(&cluster("c")), None);
    rig.add("r", 1, 100, 1);
    rig.add("r", 2, 200, 2);
    assert_eq!(
        rig.loads(),
        [(1, 1, 100)],
        "a known request is not charged again"
    );
    rig.center.prompt_done(&id("r"), false, at_ms(3)).unwrap();
    rig.center.prompt_done(&id("r"), false, at_ms(4)).unwrap();
    assert_eq!(rig.loads(), [(1, 1, 0)]);
    rig.center.remove(&id("r"), false, at_ms(5)).unwrap();
    let idle = Load::new(ip(1), 0, 0, 5_000_000);
    assert_eq!(rig.center.loads(&cluster("c")), Some(vec![idle]));
}

#[test]
fn a_delete_waits_two_seconds_for_its_add() {
    let rig = Rig::new();
    rig.center.remove(&id("gone"), false, at_ms(0)).unwrap();
    rig.center
        .prompt_done(&id("begun"), false, at_ms(0))
        .unwrap();
    rig.center.remove(&id("late"), false, at_ms(0)).unwrap();
    rig.add("gone", 1, 100, 1999);
    rig.add("begun", 2, 100, 1999);
    rig.add("late", 3, 100, 2000);
    assert_eq!(rig.loads(), [(2, 1, 0), (3, 1, 100)]);
}

#[test]
fn strictness_names_what_is_unknown_or_charged_elsewhere() {
    let rig = Rig::new();
    let unknown = Fault::UnknownRequest("r".into());
    assert_eq!(
        rig.center.prompt_done(&id("r"), true, at_ms(0)),
        Err(unknown.clone())
    );
    assert_eq!(rig.center.remove(&id("r"), true, at_ms(0)), Err(unknown));
    rig.center.add(mk_add("r", 1, 100), true, at_ms(1)).unwrap();
    assert_eq!(rig.loads(), [], "the delete came first");
    rig.center
        .add(mk_add("r", 1, 100), true, at_ms(2000))
        .unwrap();
    assert_eq!(
        rig.center.add(mk_add("r", 1, 100), true, at_ms(2000)),
        Ok(())
    );
    let elsewhere = Err(Fault::Duplicate("r".into()));
    assert_eq!(
        rig.center.add(mk_add("r", 2, 100), true, at_ms(2000)),
        elsewhere
    );
}

#[test]
fn what_nobody_uses_goes_after_660_seconds() {
    let rig = Rig::new();
    rig.add("r", 1, 100, 0);
    rig.center.sweep(at_ms(659_999));
    assert_eq!(rig.loads(), [(1, 1, 100)]);
    assert_eq!(rig.center.sweep(at_ms(660_000)).expired, 1);
    assert_eq!(rig.center.sizes().requests, 0);
    let swept = rig.center.sweep(at_ms(1_319_999));
    assert_eq!((swept.endpoints, swept.clusters), (0, 0));
    let swept = rig.center.sweep(at_ms(1_320_000));
    assert_eq!((swept.endpoints, swept.clusters), (1, 1));
    assert_eq!(rig.center.loads(&cluster("c")), None);
}

#[test]
fn a_batch_adds_moves_lowers_and_deletes() {
    let rig = Rig::new();
    let begin = mk_batch(1, true, vec![put("x", 1, 100), put("y", 1, 50)], &[]);
    assert_eq!(rig.batch(begin, 0), Ok(false));
    assert_eq!(rig.loads(), [(1, 2, 150)]);
    let move_and_lower = mk_batch(2, false, vec![put("x", 2, 100), put("y", 1, 0)], &["never"]);
    assert_eq!(rig.batch(move_and_lower, 1), Ok(false));
    assert_eq!(rig.loads(), [(1, 1, 0), (2, 1, 100)]);
    let delete = mk_batch(3, false, vec![], &["x", "y"]);
    assert_eq!(rig.batch(delete, 2), Ok(false));
    assert_eq!(rig.loads(), []);
    let full = mk_batch(4, true, vec![put("z", 3, 1)], &[]);
    assert_eq!(rig.batch(full, 3), Ok(false));
    let other = mk_batch(5, true, vec![put("w", 4, 1)], &[]);
    assert_eq!(rig.batch(other, 4), Ok(false));
    assert_eq!(rig.loads(), [(4, 1, 1)], "a full batch is all there is");
}

#[test]
fn unlike_totals_ask_for_a_full_batch() {
    let rig = Rig::new();
    rig.begin(vec![put("x", 1, 100)]);
    let count = mk_empty(2, 2, 100);
    assert_eq!(rig.batch(count, 0), Ok(true));
    let sum = mk_empty(3, 1, 99);
    assert_eq!(rig.batch(sum, 0), Ok(true));
    let right = mk_empty(4, 1, 100);
    assert_eq!(rig.batch(right, 0), Ok(false));
}

#[test]
fn a_late_batch_revives_nothing() {
    let rig = Rig::new();
    rig.batch(mk_batch(5, true, vec![put("x", 1, 100)], &[]), 0)
        .unwrap();
    rig.batch(mk_batch(6, false, vec![], &["x"]), 0).unwrap();
    let stale = |applied| Err(Fault::StaleSeq { last: 6, applied });
    let late = mk_batch(5, true, vec![put("x", 1, 100)], &[]);
    assert_eq!(rig.batch(late.clone(), 1), stale(false));
    let retry = mk_batch(6, false, vec![put("x", 1, 100)], &[]);
    assert_eq!(rig.batch(retry, 1), stale(true));
    // Also when the lease ended between.
    sweep_seconds(&rig.center, 1, 20);
    assert_eq!(rig.batch(late, 20_000), stale(false));
    let last = mk_batch(6, true, vec![put("x", 1, 100)], &[]);
    let what_it_did_is_gone = Err(Fault::LeaseLost);
    assert_eq!(rig.batch(last, 20_000), what_it_did_is_gone);
    assert_eq!(rig.loads(), []);
}

#[test]
fn charges_of_a_silent_owner_go_and_only_a_full_batch_brings_them_back() {
    let rig = Rig::new();
    assert_eq!(
        rig.batch(mk_batch(1, false, vec![], &[]), 0),
        Err(Fault::LeaseLost)
    );
    rig.batch(mk_batch(2, true, vec![put("x", 1, 100)], &[]), 0)
        .unwrap();
    let empty = mk_empty(3, 1, 100);
    assert_eq!(rig.batch(empty, 9_999), Ok(false), "an empty batch renews");
    sweep_seconds(&rig.center, 1, 19);
    assert_eq!(rig.loads(), [(1, 1, 100)]);
    let swept = rig.center.sweep(at_ms(20_000));
    assert_eq!((swept.leases, swept.charges), (1, 1));
    assert_eq!(rig.loads(), []);
    let put_y = || vec![put("y", 2, 5)];
    let lost = rig.batch(mk_batch(4, false, put_y(), &[]), 20_001);
    assert_eq!(lost, Err(Fault::LeaseLost));
    assert_eq!(
        rig.batch(mk_batch(5, true, put_y(), &[]), 20_001),
        Ok(false)
    );
    assert_eq!(rig.loads(), [(2, 1, 5)]);
}

#[test]
fn a_lease_is_over_at_its_end_also_before_a_sweep() {
    let rig = Rig::new();
    rig.begin(vec![put("x", 1, 100)]);
    let late = rig.batch(mk_batch(2, false, vec![], &[]), 10_000);
    assert_eq!(late, Err(Fault::LeaseLost));
    assert_eq!(rig.loads(), []);
}

#[test]
fn a_higher_epoch_replaces_the_lower_ones() {
    let rig = Rig::new();
    let shard = |shard, batch| Batch { shard, ..batch };
    rig.batch(shard(0, mk_batch(1, true, vec![put("x", 1, 1)], &[])), 0)
        .unwrap();
    rig.batch(shard(1, mk_batch(1, true, vec![put("x", 2, 2)], &[])), 0)
        .unwrap();
    assert_eq!(
        rig.loads(),
        [(1, 1, 1), (2, 1, 2)],
        "ids are scoped by owner"
    );
    let next = Batch {
        epoch: 2,
        ..mk_batch(1, true, vec![put("z", 3, 3)], &[])
    };
    assert_eq!(rig.batch(next, 1), Ok(false));
    assert_eq!(rig.loads(), [(3, 1, 3)]);
    let former = rig.batch(mk_batch(9, true, vec![], &[]), 2);
    assert_eq!(former, Err(Fault::StaleEpoch { current: 2 }));
}

#[test]
fn a_graceful_end_frees_all_at_once() {
    let rig = Rig::new();
    rig.begin(vec![put("x", 1, 1)]);
    let instance = "a".parse().unwrap();
    rig.center.end_leases(&instance, 0, at_ms(1));
    assert_eq!(rig.loads(), [(1, 1, 1)], "the lease is of a later epoch");
    rig.center.end_leases(&instance, 1, at_ms(1));
    assert_eq!(rig.loads(), []);
    assert_eq!(rig.center.sizes().leases, 0);
}

#[test]
fn what_calls_free_is_counted_by_cause_with_the_next_sweep() {
    let rig = Rig::new();
    let batch = |epoch, seq, names: &[&str], now| {
        let puts = names.iter().map(|it| put(it, 1, 1)).collect();
        let batch = Batch {
            epoch,
            ..mk_batch(seq, true, puts, &[])
        };
        rig.batch(batch, now).unwrap();
    };
    let swept = |now, expected| {
        assert_eq!(rig.center.sweep(now), expected);
        assert_eq!(
            rig.center.sweep(now),
            Swept::default(),
            "each is counted once"
        );
    };
    batch(1, 1, &["x", "y", "z"], 0);
    batch(1, 2, &["x", "y"], 0);
    batch(2, 1, &["x", "y", "z", "w"], 0);
    swept(
        at_ms(0),
        Swept {
            left_out: 1,
            replaced: 2,
            ..Swept::default()
        },
    );
    batch(2, 2, &["v"], 10_000);
    rig.center
        .end_leases(&"a".parse().unwrap(), 2, at_ms(10_000));
    swept(
        at_ms(10_000),
        Swept {
            leases: 1,
            charges: 4,
            released: 1,
            ..Swept::default()
        },
    );
    rig.add("u", 1, 1, 20_000);
    rig.center.remove(&id("u"), false, at_ms(680_000)).unwrap();
    for now in [680_000, 690_000] {
        rig.pick(&mk_pick("r", 1), now);
    }
    swept(
        at_ms(690_000),
        Swept {
            expired: 1,
            reservations: 1,
            ..Swept::default()
        },
    );
}

#[rstest]
#[case(Batch { lease_ms: 999, ..mk_batch(1, true, vec![], &[]) }, "lease_ms")]
#[case(Batch { lease_ms: 60_001, ..mk_batch(1, true, vec![], &[]) }, "lease_ms")]
#[case(Batch { shard: 64, ..mk_batch(1, true, vec![], &[]) }, "shard")]
#[case(mk_batch(1, true, vec![put("x", 1, 1), put("x", 1, 1)], &[]), "puts[1].request_id")]
#[case(mk_batch(1, true, vec![put("x", 1, 1)], &["y", "x"]), "deletes[1]")]
fn a_batch_out_of_range_names_its_field(#[case] batch: Batch, #[case] field: &str) {
    let rig = Rig::new();
    assert_eq!(
        field_of(rig.center.batch(batch, at_ms(0)).unwrap_err()),
        field
    );
    assert_eq!(
        rig.center.sizes(),
        Rig::new().center.sizes(),
        "nothing is stored"
    );
}
