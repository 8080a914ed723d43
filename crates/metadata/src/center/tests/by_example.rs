use rstest::rstest;

use super::*;
use crate::wire::cache::Location;

fn apply(center: &Center, batch: Batch, now: Now) -> Result<bool, Fault> {
    center.batch(batch, now).map(|it| it.resync)
}

#[test]
fn a_charge_counts_until_its_prefill_and_its_request_end() {
    let center = Center::new(Limits::default());
    assert_eq!(center.loads(&cluster("c")), None);
    center.add(mk_add("r", 1, 100), false, at_ms(1)).unwrap();
    center.add(mk_add("r", 2, 200), false, at_ms(2)).unwrap();
    assert_eq!(
        loads(&center),
        [(1, 1, 100)],
        "a known request is not charged again"
    );
    center.prompt_done(&id("r"), false, at_ms(3)).unwrap();
    center.prompt_done(&id("r"), false, at_ms(4)).unwrap();
    assert_eq!(loads(&center), [(1, 1, 0)]);
    center.remove(&id("r"), false, at_ms(5)).unwrap();
    let idle = Load::new(ip(1), 0, 0, 5_000_000);
    assert_eq!(center.loads(&cluster("c")), Some(vec![idle]));
}

#[test]
fn a_delete_waits_two_seconds_for_its_add() {
    let center = Center::new(Limits::default());
    center.remove(&id("gone"), false, at_ms(0)).unwrap();
    center.prompt_done(&id("begun"), false, at_ms(0)).unwrap();
    center.remove(&id("late"), false, at_ms(0)).unwrap();
    center
        .add(mk_add("gone", 1, 100), false, at_ms(1999))
        .unwrap();
    center
        .add(mk_add("begun", 2, 100), false, at_ms(1999))
        .unwrap();
    center
        .add(mk_add("late", 3, 100), false, at_ms(2000))
        .unwrap();
    assert_eq!(loads(&center), [(2, 1, 0), (3, 1, 100)]);
}

#[test]
fn strictness_names_what_is_unknown_or_charged_elsewhere() {
    let center = Center::new(Limits::default());
    let unknown = Fault::UnknownRequest("r".into());
    assert_eq!(
        center.prompt_done(&id("r"), true, at_ms(0)),
        Err(unknown.clone())
    );
    assert_eq!(center.remove(&id("r"), true, at_ms(0)), Err(unknown));
    center.add(mk_add("r", 1, 100), true, at_ms(0)).unwrap();
    assert_eq!(center.add(mk_add("r", 1, 100), true, at_ms(0)), Ok(()));
    let elsewhere = Err(Fault::Duplicate("r".into()));
    assert_eq!(center.add(mk_add("r", 2, 100), true, at_ms(0)), elsewhere);
}

#[test]
fn what_nobody_uses_goes_after_660_seconds() {
    let center = Center::new(Limits::default());
    center.add(mk_add("r", 1, 100), false, at_ms(0)).unwrap();
    center.sweep(at_ms(659_999));
    assert_eq!(loads(&center), [(1, 1, 100)]);
    assert_eq!(center.sweep(at_ms(660_000)).expired, 1);
    assert_eq!(center.sizes().requests, 0);
    let swept = center.sweep(at_ms(1_319_999));
    assert_eq!((swept.endpoints, swept.clusters), (0, 0));
    let swept = center.sweep(at_ms(1_320_000));
    assert_eq!((swept.endpoints, swept.clusters), (1, 1));
    assert_eq!(center.loads(&cluster("c")), None);
}

#[test]
fn a_batch_adds_moves_lowers_and_deletes() {
    let center = Center::new(Limits::default());
    let begin = mk_batch(1, true, vec![put("x", 1, 100), put("y", 1, 50)], &[]);
    assert_eq!(apply(&center, begin, at_ms(0)), Ok(false));
    assert_eq!(loads(&center), [(1, 2, 150)]);
    let move_and_lower = mk_batch(2, false, vec![put("x", 2, 100), put("y", 1, 0)], &["never"]);
    assert_eq!(apply(&center, move_and_lower, at_ms(1)), Ok(false));
    assert_eq!(loads(&center), [(1, 1, 0), (2, 1, 100)]);
    let delete = mk_batch(3, false, vec![], &["x", "y"]);
    assert_eq!(apply(&center, delete, at_ms(2)), Ok(false));
    assert_eq!(loads(&center), []);
    let full = mk_batch(4, true, vec![put("z", 3, 1)], &[]);
    assert_eq!(apply(&center, full, at_ms(3)), Ok(false));
    let other = mk_batch(5, true, vec![put("w", 4, 1)], &[]);
    assert_eq!(apply(&center, other, at_ms(4)), Ok(false));
    assert_eq!(loads(&center), [(4, 1, 1)], "a full batch is all there is");
}

#[test]
fn unlike_totals_ask_for_a_full_batch() {
    let center = Center::new(Limits::default());
    apply(
        &center,
        mk_batch(1, true, vec![put("x", 1, 100)], &[]),
        at_ms(0),
    )
    .unwrap();
    let count = Batch {
        live: 2,
        prompt_sum: 100,
        ..mk_batch(2, false, vec![], &[])
    };
    assert_eq!(apply(&center, count, at_ms(0)), Ok(true));
    let sum = Batch {
        live: 1,
        prompt_sum: 99,
        ..mk_batch(3, false, vec![], &[])
    };
    assert_eq!(apply(&center, sum, at_ms(0)), Ok(true));
    let right = Batch {
        live: 1,
        prompt_sum: 100,
        ..mk_batch(4, false, vec![], &[])
    };
    assert_eq!(apply(&center, right, at_ms(0)), Ok(false));
}

#[test]
fn a_late_batch_revives_nothing() {
    let center = Center::new(Limits::default());
    apply(
        &center,
        mk_batch(5, true, vec![put("x", 1, 100)], &[]),
        at_ms(0),
    )
    .unwrap();
    apply(&center, mk_batch(6, false, vec![], &["x"]), at_ms(0)).unwrap();
    let stale = |applied| Err(Fault::StaleSeq { last: 6, applied });
    let late = mk_batch(5, true, vec![put("x", 1, 100)], &[]);
    assert_eq!(apply(&center, late.clone(), at_ms(1)), stale(false));
    let retry = mk_batch(6, false, vec![put("x", 1, 100)], &[]);
    assert_eq!(apply(&center, retry, at_ms(1)), stale(true));
    // Also when the lease ended between.
    sweep_seconds(&center, 1, 20);
    assert_eq!(apply(&center, late, at_ms(20_000)), stale(false));
    let last = mk_batch(6, true, vec![put("x", 1, 100)], &[]);
    let what_it_did_is_gone = Err(Fault::LeaseLost);
    assert_eq!(apply(&center, last, at_ms(20_000)), what_it_did_is_gone);
    assert_eq!(loads(&center), []);
}

#[test]
fn charges_of_a_silent_owner_go_and_only_a_full_batch_brings_them_back() {
    let center = Center::new(Limits::default());
    assert_eq!(
        apply(&center, mk_batch(1, false, vec![], &[]), at_ms(0)),
        Err(Fault::LeaseLost)
    );
    apply(
        &center,
        mk_batch(2, true, vec![put("x", 1, 100)], &[]),
        at_ms(0),
    )
    .unwrap();
    let empty = Batch {
        live: 1,
        prompt_sum: 100,
        ..mk_batch(3, false, vec![], &[])
    };
    assert_eq!(
        apply(&center, empty, at_ms(9_999)),
        Ok(false),
        "an empty batch renews"
    );
    sweep_seconds(&center, 1, 19);
    assert_eq!(loads(&center), [(1, 1, 100)]);
    let swept = center.sweep(at_ms(20_000));
    assert_eq!((swept.leases, swept.charges), (1, 1));
    assert_eq!(loads(&center), []);
    let put_y = || vec![put("y", 2, 5)];
    let lost = apply(&center, mk_batch(4, false, put_y(), &[]), at_ms(20_001));
    assert_eq!(lost, Err(Fault::LeaseLost));
    assert_eq!(
        apply(&center, mk_batch(5, true, put_y(), &[]), at_ms(20_001)),
        Ok(false)
    );
    assert_eq!(loads(&center), [(2, 1, 5)]);
}

#[test]
fn a_lease_is_over_at_its_end_also_before_a_sweep() {
    let center = Center::new(Limits::default());
    apply(
        &center,
        mk_batch(1, true, vec![put("x", 1, 100)], &[]),
        at_ms(0),
    )
    .unwrap();
    let late = apply(&center, mk_batch(2, false, vec![], &[]), at_ms(10_000));
    assert_eq!(late, Err(Fault::LeaseLost));
    assert_eq!(loads(&center), []);
}

#[test]
fn a_higher_epoch_replaces_the_lower_ones() {
    let center = Center::new(Limits::default());
    let shard = |shard, batch| Batch { shard, ..batch };
    apply(
        &center,
        shard(0, mk_batch(1, true, vec![put("x", 1, 1)], &[])),
        at_ms(0),
    )
    .unwrap();
    apply(
        &center,
        shard(1, mk_batch(1, true, vec![put("x", 2, 2)], &[])),
        at_ms(0),
    )
    .unwrap();
    assert_eq!(
        loads(&center),
        [(1, 1, 1), (2, 1, 2)],
        "ids are scoped by owner"
    );
    let next = Batch {
        epoch: 2,
        ..mk_batch(1, true, vec![put("z", 3, 3)], &[])
    };
    assert_eq!(apply(&center, next, at_ms(1)), Ok(false));
    assert_eq!(loads(&center), [(3, 1, 3)]);
    let former = apply(&center, mk_batch(9, true, vec![], &[]), at_ms(2));
    assert_eq!(former, Err(Fault::StaleEpoch { current: 2 }));
}

#[test]
fn a_graceful_end_frees_all_at_once() {
    let center = Center::new(Limits::default());
    apply(
        &center,
        mk_batch(1, true, vec![put("x", 1, 1)], &[]),
        at_ms(0),
    )
    .unwrap();
    let instance = "a".parse().unwrap();
    center.end_leases(&instance, 0, at_ms(1));
    assert_eq!(loads(&center), [(1, 1, 1)], "the lease is of a later epoch");
    center.end_leases(&instance, 1, at_ms(1));
    assert_eq!(loads(&center), []);
    assert_eq!(center.sizes().leases, 0);
}

#[test]
fn what_calls_free_is_counted_by_cause_with_the_next_sweep() {
    let center = Center::new(Limits::default());
    let batch = |epoch, seq, names: &[&str], now| {
        let puts = names.iter().map(|it| put(it, 1, 1)).collect();
        let batch = Batch {
            epoch,
            ..mk_batch(seq, true, puts, &[])
        };
        apply(&center, batch, now).unwrap();
    };
    let swept = |now, expected| {
        assert_eq!(center.sweep(now), expected);
        assert_eq!(center.sweep(now), Swept::default(), "each is counted once");
    };
    batch(1, 1, &["x", "y", "z"], at_ms(0));
    batch(1, 2, &["x", "y"], at_ms(0));
    batch(2, 1, &["x", "y", "z", "w"], at_ms(0));
    swept(
        at_ms(0),
        Swept {
            left_out: 1,
            replaced: 2,
            ..Swept::default()
        },
    );
    batch(2, 2, &["v"], at_ms(10_000));
    center.end_leases(&"a".parse().unwrap(), 2, at_ms(10_000));
    swept(
        at_ms(10_000),
        Swept {
            leases: 1,
            charges: 4,
            released: 1,
            ..Swept::default()
        },
    );
    center.add(mk_add("u", 1, 1), false, at_ms(20_000)).unwrap();
    center.remove(&id("u"), false, at_ms(680_000)).unwrap();
    let rng = &mut mk_rng();
    for now in [at_ms(680_000), at_ms(690_000)] {
        center.pick(&mk_pick("r", 1), rng, now).unwrap();
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

#[test]
fn a_reservation_counts_until_it_is_confirmed_dropped_or_over() {
    let center = Center::new(Limits::default());
    let rng = &mut mk_rng();
    for name in ["confirmed", "moved", "dropped", "lost"] {
        let picks = center.pick(&mk_pick(name, 1), rng, at_ms(0)).unwrap();
        assert_eq!((picks.charge, picks.candidates), (100, 1));
    }
    assert_eq!(loads(&center), [(1, 4, 400)]);
    let batch = mk_batch(
        1,
        true,
        vec![put("confirmed", 1, 100), put("moved", 2, 100)],
        &["dropped"],
    );
    assert_eq!(
        apply(&center, batch, at_ms(1)),
        Ok(false),
        "reservations are no charges"
    );
    assert_eq!(loads(&center), [(1, 2, 200), (2, 1, 100)]);
    assert_eq!(
        (center.sizes().requests, center.sizes().reservations),
        (3, 1)
    );
    assert_eq!(center.sweep(at_ms(4_999)).reservations, 0);
    assert_eq!(center.sweep(at_ms(5_000)).reservations, 1);
    assert_eq!(loads(&center), [(1, 1, 100), (2, 1, 100)]);
}

#[test]
fn a_repeated_pick_gets_the_same_endpoint_and_charges_nothing() {
    let center = Center::new(Limits::default());
    let rng = &mut mk_rng();
    let first = center.pick(&mk_pick("r", 8), rng, at_ms(0)).unwrap();
    for _ in 0..20 {
        let again = center.pick(&mk_pick("r", 8), rng, at_ms(1)).unwrap();
        assert_eq!(again, first);
    }
    assert_eq!(center.sizes().requests, 1);
    let elsewhere = Pick {
        candidates: vec![Candidate {
            ip: ip(9),
            bias: 0.0,
        }],
        ..mk_pick("r", 1)
    };
    let again = center.pick(&elsewhere, rng, at_ms(2)).unwrap();
    assert_eq!(
        again.picks[0].ip, first.picks[0].ip,
        "though it is no candidate any more"
    );
}

#[test]
fn picks_see_each_other() {
    let center = Center::new(Limits::default());
    let rng = &mut mk_rng();
    for request in 0..100 {
        center
            .pick(&mk_pick(&format!("r{request}"), 10), rng, at_ms(0))
            .unwrap();
    }
    let even: Vec<_> = (1..=10).map(|it| (it, 10, 1000)).collect();
    assert_eq!(loads(&center), even);
}

#[test]
fn a_pick_names_the_best_first_then_the_others_by_score() {
    let center = Center::new(Limits::default());
    for (name, endpoint, prefill) in [("x", 1, 5000), ("y", 2, 2000), ("z", 3, 9000)] {
        center
            .add(mk_add(name, endpoint, prefill), false, at_ms(0))
            .unwrap();
    }
    let mut pick = Pick {
        count: 3,
        ..mk_pick("r", 4)
    };
    pick.candidates[2].bias = 10.0;
    let picks = center.pick(&pick, &mut mk_rng(), at_ms(0)).unwrap();
    let order: Vec<_> = picks.picks.iter().map(|it| it.ip).collect();
    assert_eq!(order, [ip(3), ip(4), ip(2)]);
    let best = picks.picks[0];
    assert_eq!(
        (best.queued_req_num, best.prompt_length),
        (1, 9000),
        "as before the pick"
    );
}

#[test]
fn a_cached_prompt_draws_picks_and_is_charged_for_the_rest() {
    let center = Center::new(Limits::default());
    let save = Save {
        cluster: cluster("c"),
        prompt_hash: vec![1, 2, 3].into(),
        ip: ip(2),
        ttl_s: None,
        capacity: None,
    };
    center.save(&save, at_ms(0)).unwrap();
    let pick = Pick {
        prompt_hash: vec![1, 2, 3, 4].into(),
        prompt_length: length(4000),
        ..mk_pick("r", 3)
    };
    let picks = center.pick(&pick, &mut mk_rng(), at_ms(0)).unwrap();
    assert_eq!(
        (picks.picks[0].ip, picks.picks[0].matched, picks.charge),
        (ip(2), 3, 1000)
    );
    assert_eq!(loads(&center), [(2, 1, 1000)]);
}

#[test]
fn a_pick_is_taken_to_cache_its_prompt_for_a_minute() {
    let center = Center::new(Limits::default());
    let pick = Pick {
        prompt_hash: vec![1, 2].into(),
        ..mk_pick("r", 1)
    };
    center.pick(&pick, &mut mk_rng(), at_ms(0)).unwrap();
    let query = mk_query(vec![1, 2], None);
    sweep_seconds(&center, 1, 60);
    let found = center.query(&query, at_ms(60_000)).unwrap().locations;
    assert_eq!(
        found,
        [Location {
            ip: ip(1),
            length: 2
        }]
    );
    sweep_seconds(&center, 61, 62);
    assert_eq!(center.query(&query, at_ms(62_000)).unwrap().locations, []);
}

fn mk_query(hashes: Vec<u64>, top_k: Option<u32>) -> Query {
    Query {
        cluster: cluster("c"),
        prompt_hash: hashes.into(),
        top_k,
        topk: None,
        candidates: None,
    }
}

#[test]
fn a_query_names_the_longest_matches_or_all_of_the_candidates() {
    let center = Center::new(Limits::default());
    for endpoint in 1..=8u8 {
        let save = Save {
            cluster: cluster("c"),
            prompt_hash: (1..=u64::from(endpoint)).collect::<Vec<_>>().into(),
            ip: ip(endpoint),
            ttl_s: None,
            capacity: None,
        };
        center.save(&save, at_ms(0)).unwrap();
    }
    let found = |query: &Query| -> Vec<_> {
        let found = center.query(query, at_ms(0)).unwrap().locations;
        found.iter().map(|it| (it.ip, it.length)).collect()
    };
    let query = mk_query(vec![1, 2, 3, 99], Some(2));
    assert_eq!(found(&query), [(ip(3), 3), (ip(4), 3)]);
    assert_eq!(
        found(&Query {
            topk: Some(7),
            ..query.clone()
        })
        .len(),
        2,
        "top_k wins"
    );
    assert_eq!(
        found(&Query {
            top_k: None,
            topk: Some(7),
            ..query.clone()
        })
        .len(),
        7
    );
    assert_eq!(
        found(&Query {
            top_k: Some(0),
            ..query.clone()
        })
        .len(),
        5
    );
    let candidates = Some((1..=7).map(ip).chain([ip(99)]).collect());
    assert_eq!(
        found(&Query {
            candidates,
            ..query.clone()
        })
        .len(),
        7
    );
    center.purge(&cluster("c"), ip(3));
    assert_eq!(found(&query), [(ip(4), 3), (ip(5), 3)]);
    let elsewhere = Query {
        cluster: cluster("d"),
        ..query
    };
    assert_eq!(found(&elsewhere), []);
}

#[rstest]
#[case(Batch { lease_ms: 999, ..mk_batch(1, true, vec![], &[]) }, "lease_ms")]
#[case(Batch { lease_ms: 60_001, ..mk_batch(1, true, vec![], &[]) }, "lease_ms")]
#[case(Batch { shard: 64, ..mk_batch(1, true, vec![], &[]) }, "shard")]
#[case(mk_batch(1, true, vec![put("x", 1, 1), put("x", 1, 1)], &[]), "puts[1].request_id")]
#[case(mk_batch(1, true, vec![put("x", 1, 1)], &["y", "x"]), "deletes[1]")]
fn a_batch_out_of_range_names_its_field(#[case] batch: Batch, #[case] field: &str) {
    let center = Center::new(Limits::default());
    assert_eq!(field_of(center.batch(batch, at_ms(0)).unwrap_err()), field);
    assert_eq!(
        center.sizes(),
        Center::new(Limits::default()).sizes(),
        "nothing is stored"
    );
}

fn field_of(fault: Fault) -> String {
    match fault {
        Fault::InvalidParameter { field, .. } => field,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_pick_out_of_range_names_its_field() {
    let field = |change: fn(&mut Pick)| {
        let mut pick = mk_pick("r", 2);
        change(&mut pick);
        field_of(pick.validate().unwrap_err())
    };
    assert_eq!(field(|it| it.count = 0), "count");
    assert_eq!(field(|it| it.count = 9), "count");
    assert_eq!(field(|it| it.reserve_ms = 60_001), "reserve_ms");
    assert_eq!(field(|it| it.candidates.clear()), "candidates");
    assert_eq!(field(|it| it.candidates[1].ip = ip(1)), "candidates[1].ip");
    assert_eq!(
        field(|it| it.candidates[1].bias = f64::NAN),
        "candidates[1].bias"
    );
    assert_eq!(field(|it| it.params.weight = -1.0), "params.weight");
    assert_eq!(
        field(|it| it.params.candidate_percent = 101),
        "params.candidate_percent"
    );
    let many = |it: &mut Pick| {
        let one = it.candidates[0];
        it.candidates = vec![one; 4097];
    };
    assert_eq!(field(many), "candidates");
}

#[test]
fn clusters_are_listed_with_their_leases() {
    let center = Center::new(Limits::default());
    apply(
        &center,
        mk_batch(1, true, vec![put("x", 1, 7)], &[]),
        at_ms(1000),
    )
    .unwrap();
    center
        .pick(
            &Pick {
                prompt_hash: vec![1, 2].into(),
                ..mk_pick("r", 1)
            },
            &mut mk_rng(),
            at_ms(1000),
        )
        .unwrap();
    let clusters = center.clusters(at_ms(3000));
    assert_eq!(clusters.len(), 1);
    let ClusterState {
        endpoints,
        requests,
        chunks,
        leases,
        ..
    } = &clusters[0];
    assert_eq!((*endpoints, *requests, *chunks), (1, 2, 2));
    let lease = &leases[0];
    assert_eq!(
        (
            lease.epoch,
            lease.live,
            lease.prompt_sum,
            lease.remaining_ms
        ),
        (1, 1, 7, 8000)
    );
}
