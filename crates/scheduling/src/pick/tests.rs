use std::collections::BTreeMap;

use proptest::prelude::*;
use rand::{SeedableRng, rngs::StdRng};

use super::*;
use crate::{
    endpoint::EndpointId,
    facts::Subset,
    load::{ScrapeFailure, Scraped},
    snapshot::Member,
};

const NOW: Moment = Moment::from_millis(1_000);

fn mk_snapshot(count: u8) -> Snapshot {
    let members = (0..count).map(|index| Member {
        id: EndpointId {
            namespace: "ns".into(),
            pod: format!("pod-{index:03}").into(),
            rank: 0,
            uid: format!("uid-{index}").into(),
        },
        address: format!("10.0.0.{index}:8000").parse().unwrap(),
        engine: "".into(),
    });
    Snapshot::default().next(members.collect())
}

fn scrape(endpoint: &Endpoint, waiting: f64, kv: f64) {
    let start = endpoint.load().scrape_starts(NOW);
    assert_eq!(
        endpoint.load().scraped(
            start,
            Scraped {
                waiting: Some(waiting),
                running: Some(0.0),
                kv: Some(kv),
            },
        ),
        Ok(())
    );
}

fn mk_rng() -> StdRng {
    StdRng::seed_from_u64(7)
}

fn go(snapshot: &Snapshot, facts: &Facts) -> Result<Pick, NoPick> {
    pick(snapshot, facts, &Profile::default(), NOW, &mut mk_rng())
}

fn pods(pick: &Pick) -> Vec<String> {
    pick.ranked
        .iter()
        .map(|ranked| ranked.endpoint.id().pod.to_string())
        .collect()
}

fn mk_subset(list: &str) -> Facts {
    let mut subset = Subset::default();
    subset.extend_from_list(list);
    Facts {
        subset: Some(subset),
        list: 1,
    }
}

#[test]
fn the_least_loaded_endpoint_wins() {
    let snapshot = mk_snapshot(3);
    for (endpoint, (waiting, kv)) in
        snapshot
            .endpoints()
            .iter()
            .zip([(5.0, 0.2), (1.0, 0.3), (5.0, 0.1)])
    {
        scrape(endpoint, waiting, kv);
    }
    let pick = go(&snapshot, &Facts::default()).unwrap();
    assert_eq!(pods(&pick), ["pod-001"]);
    let want = 2.0 * 1.0 + 2.0 * (1.0 - 0.3);
    assert!((pick.ranked[0].score - want).abs() < 1e-12);
}

#[test]
fn a_list_names_the_best_first_and_each_once() {
    let snapshot = mk_snapshot(5);
    for (endpoint, waiting) in snapshot.endpoints().iter().zip([4.0, 0.0, 3.0, 1.0, 2.0]) {
        scrape(endpoint, waiting, 0.0);
    }
    let pick = go(
        &snapshot,
        &Facts {
            subset: None,
            list: 4,
        },
    )
    .unwrap();
    assert_eq!(pods(&pick), ["pod-001", "pod-003", "pod-004", "pod-002"]);
    assert_eq!(
        pods(
            &go(
                &snapshot,
                &Facts {
                    subset: None,
                    list: 200
                }
            )
            .unwrap()
        )
        .len(),
        5,
        "no more than there are"
    );
    assert_eq!(
        go(
            &snapshot,
            &Facts {
                subset: None,
                list: 0
            }
        )
        .unwrap()
        .ranked
        .len(),
        1,
        "no list is a list of one"
    );
}

#[test]
fn hundred_picks_between_two_scrapes_spread_evenly() {
    let snapshot = mk_snapshot(10);
    for endpoint in snapshot.endpoints() {
        scrape(endpoint, 0.0, 0.0);
    }
    let mut rng = mk_rng();
    let guards: Vec<_> = (0..100)
        .map(|_| {
            pick(
                &snapshot,
                &Facts::default(),
                &Profile::default(),
                NOW,
                &mut rng,
            )
            .unwrap()
            .guard
        })
        .collect();
    let counts: Vec<_> = snapshot
        .endpoints()
        .iter()
        .map(|endpoint| endpoint.load().in_flight())
        .collect();
    let (min, max) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
    assert!(max - min <= 2, "{counts:?}");
    drop(guards);
    assert!(
        snapshot
            .endpoints()
            .iter()
            .all(|endpoint| endpoint.load().in_flight() == 0)
    );
}

#[test]
fn requests_that_never_overlap_get_even_shares() {
    let snapshot = mk_snapshot(4);
    for endpoint in snapshot.endpoints() {
        scrape(endpoint, 0.0, 0.0);
    }
    let mut rng = mk_rng();
    let mut shares = BTreeMap::<String, u32>::new();
    for _ in 0..4_000 {
        let pick = pick(
            &snapshot,
            &Facts::default(),
            &Profile::default(),
            NOW,
            &mut rng,
        )
        .unwrap();
        *shares.entry(pods(&pick).remove(0)).or_default() += 1;
    }
    assert_eq!(shares.len(), 4);
    assert!(
        shares.values().all(|share| (850..1_150).contains(share)),
        "{shares:?}"
    );
}

#[test]
fn a_lone_member_with_dead_metrics_is_served() {
    let snapshot = mk_snapshot(1);
    for _ in 0..5 {
        snapshot.endpoints()[0]
            .load()
            .scrape_failed(ScrapeFailure::Unreachable);
    }
    assert_eq!(
        pods(&go(&snapshot, &Facts::default()).unwrap()),
        ["pod-000"]
    );
}

#[test]
fn suspects_are_avoided_while_another_is_left() {
    let snapshot = mk_snapshot(2);
    scrape(&snapshot.endpoints()[0], 0.0, 0.0);
    scrape(&snapshot.endpoints()[1], 100.0, 1.0);
    for _ in 0..3 {
        snapshot.endpoints()[0]
            .load()
            .scrape_failed(ScrapeFailure::Unreachable);
    }
    assert_eq!(
        pods(
            &go(
                &snapshot,
                &Facts {
                    subset: None,
                    list: 8
                }
            )
            .unwrap()
        ),
        ["pod-001"]
    );
    assert_eq!(
        pods(&go(&snapshot, &mk_subset("10.0.0.0")).unwrap()),
        ["pod-000"],
        "all that is allowed is suspect"
    );
}

#[test]
fn an_empty_pool_and_an_empty_subset_name_nothing() {
    let empty = go(&Snapshot::default(), &Facts::default()).unwrap_err();
    assert_eq!((empty, empty.reason()), (NoPick::EmptyPool, "no-endpoints"));
    let snapshot = mk_snapshot(2);
    assert_eq!(
        go(&snapshot, &mk_subset("10.9.9.9")).unwrap_err(),
        NoPick::EmptySubset
    );
    assert_eq!(
        go(&snapshot, &mk_subset("")).unwrap_err(),
        NoPick::EmptySubset
    );
    assert!(
        snapshot
            .endpoints()
            .iter()
            .all(|endpoint| endpoint.load().picks() == 0)
    );
}

#[test]
fn a_nan_scores_zero() {
    let snapshot = mk_snapshot(2);
    scrape(&snapshot.endpoints()[0], 0.0, f64::NAN);
    scrape(&snapshot.endpoints()[1], 0.0, 0.9);
    let pick = go(&snapshot, &Facts::default()).unwrap();
    assert_eq!(pods(&pick), ["pod-001"]);
}

proptest! {
    #[test]
    fn no_pick_leaves_the_subset(allowed in proptest::collection::btree_set(0u8..20, 0..20), list in 0u8..12, seed: u64) {
        let snapshot = mk_snapshot(20);
        let text: Vec<_> = allowed.iter().map(|index| format!("10.0.0.{index}:8000")).collect();
        let facts = Facts { list, ..mk_subset(&text.join(",")) };
        match pick(&snapshot, &facts, &Profile::default(), NOW, &mut StdRng::seed_from_u64(seed)) {
            Err(error) => prop_assert!(allowed.is_empty() && error == NoPick::EmptySubset),
            Ok(pick) => {
                let named: std::collections::BTreeSet<_> =
                    pick.ranked.iter().map(|ranked| ranked.endpoint.address().to_string()).collect();
                prop_assert_eq!(named.len(), usize::from(list.clamp(1, 8)).min(allowed.len()), "each once");
                prop_assert!(named.iter().all(|address| text.contains(address)));
            }
        }
    }
}
