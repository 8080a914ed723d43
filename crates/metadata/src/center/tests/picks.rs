//! Picks, reservations and caches.

use super::*;
use crate::wire::cache::Location;

#[test]
fn a_reservation_counts_until_it_is_confirmed_dropped_or_over() {
    let rig = Rig::new();
    for name in ["confirmed", "moved", "dropped", "lost"] {
        let picks = rig.pick(&mk_pick(name, 1), 0);
        assert_eq!((picks.charge, picks.candidates), (100, 1));
    }
    assert_eq!(rig.loads(), [(1, 4, 400)]);
    let batch = mk_batch(
        1,
        true,
        vec![put("confirmed", 1, 100), put("moved", 2, 100)],
        &["dropped"],
    );
    assert_eq!(
        rig.batch(batch, 1),
        Ok(false),
        "reservations are no charges"
    );
    assert_eq!(rig.loads(), [(1, 2, 200), (2, 1, 100)]);
    assert_eq!(
        (rig.center.sizes().requests, rig.center.sizes().reservations),
        (3, 1)
    );
    assert_eq!(rig.center.sweep(at_ms(4_999)).reservations, 0);
    assert_eq!(rig.center.sweep(at_ms(5_000)).reservations, 1);
    assert_eq!(rig.loads(), [(1, 1, 100), (2, 1, 100)]);
}

#[test]
fn a_repeated_pick_gets_the_same_endpoint_and_charges_nothing() {
    let rig = Rig::new();
    let first = rig.pick(&mk_pick("r", 8), 0);
    for _ in 0..20 {
        let again = rig.pick(&mk_pick("r", 8), 1);
        assert_eq!(again, first);
    }
    assert_eq!(rig.center.sizes().requests, 1);
    let elsewhere = Pick {
        candidates: vec![Candidate {
            ip: ip(9),
            bias: 0.0,
        }],
        ..mk_pick("r", 1)
    };
    let again = rig.pick(&elsewhere, 2);
    assert_eq!(
        again.picks[0].ip, first.picks[0].ip,
        "though it is no candidate any more"
    );
}

#[test]
fn picks_see_each_other() {
    let rig = Rig::new();
    for request in 0..100 {
        rig.pick(&mk_pick(&format!("r{request}"), 10), 0);
    }
    let even: Vec<_> = (1..=10).map(|it| (it, 10, 1000)).collect();
    assert_eq!(rig.loads(), even);
}

#[test]
fn a_pick_names_the_best_first_then_the_others_by_score() {
    let rig = Rig::new();
    for (name, endpoint, prefill) in [("x", 1, 5000), ("y", 2, 2000), ("z", 3, 9000)] {
        rig.add(name, endpoint, prefill, 0);
    }
    let mut pick = Pick {
        count: 3,
        ..mk_pick("r", 4)
    };
    pick.candidates[2].bias = 10.0;
    let picks = rig.pick(&pick, 0);
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
    let rig = Rig::new();
    rig.save(2, vec![1, 2, 3]);
    let pick = Pick {
        prompt_hash: vec![1, 2, 3, 4].into(),
        prompt_length: length(4000),
        ..mk_pick("r", 3)
    };
    let picks = rig.pick(&pick, 0);
    assert_eq!(
        (picks.picks[0].ip, picks.picks[0].matched, picks.charge),
        (ip(2), 3, 1000)
    );
    assert_eq!(rig.loads(), [(2, 1, 1000)]);
}

#[test]
fn a_pick_is_taken_to_cache_its_prompt_for_a_minute() {
    let rig = Rig::new();
    let pick = Pick {
        prompt_hash: vec![1, 2].into(),
        ..mk_pick("r", 1)
    };
    rig.pick(&pick, 0);
    let query = mk_query(vec![1, 2], None);
    sweep_seconds(&rig.center, 1, 60);
    let found = rig.center.query(&query, at_ms(60_000)).unwrap().locations;
    assert_eq!(
        found,
        [Location {
            ip: ip(1),
            length: 2
        }]
    );
    sweep_seconds(&rig.center, 61, 62);
    assert_eq!(
        rig.center.query(&query, at_ms(62_000)).unwrap().locations,
        []
    );
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
    let rig = Rig::new();
    for endpoint in 1..=8u8 {
        rig.save(endpoint, (1..=u64::from(endpoint)).collect::<Vec<_>>());
    }
    let found = |query: &Query| -> Vec<_> {
        let found = rig.center.query(query, at_ms(0)).unwrap().locations;
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
    rig.center.purge(&cluster("c"), ip(3));
    assert_eq!(found(&query), [(ip(4), 3), (ip(5), 3)]);
    let elsewhere = Query {
        cluster: cluster("d"),
        ..query
    };
    assert_eq!(found(&elsewhere), []);
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
    let rig = Rig::new();
    rig.batch(mk_batch(1, true, vec![put("x", 1, 7)], &[]), 1000)
        .unwrap();
    rig.pick(
        &Pick {
            prompt_hash: vec![1, 2].into(),
            ..mk_pick("r", 1)
        },
        1000,
    );
    let clusters = rig.center.clusters(at_ms(3000));
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
