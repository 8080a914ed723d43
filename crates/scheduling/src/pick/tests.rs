use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use rand::{SeedableRng, rngs::StdRng};

use super::*;
use crate::{
    explanation::{Scores, Verdict},
    filter::{Filter, Role},
    fixtures::{
        NOW, at, book, mk_labelled, mk_member, mk_page, mk_rng, mk_snapshot, mk_subset, read,
        scrape,
    },
    load::ScrapeFailure,
    profile::{Picker, WeightedScorer},
    registry::Registry,
    scorer::Scorer,
    snapshot::Snapshot,
};

fn go(snapshot: &Snapshot, request: &Request) -> Result<Choice, NoPick> {
    choose(
        &read(snapshot),
        request,
        &[],
        &Profile::default(),
        &mut mk_rng(),
    )
}

fn members(choice: &Choice) -> Vec<usize> {
    choice.iter().map(|chosen| chosen.member).collect()
}

fn mk_list(list: u8) -> Request {
    Request {
        list,
        ..Request::default()
    }
}

fn suspect(snapshot: &Snapshot, index: usize) {
    for _ in 0..3 {
        at(snapshot, index)
            .load()
            .scrape_failed(ScrapeFailure::Unreachable);
    }
}

#[test]
fn the_least_loaded_endpoint_wins() {
    let snapshot = mk_snapshot(3);
    for (endpoint, (waiting, kv)) in snapshot
        .endpoints()
        .zip([(5.0, 0.2), (1.0, 0.3), (5.0, 0.1)])
    {
        scrape(endpoint, mk_page(waiting, 0.0, kv));
    }
    let choice = go(&snapshot, &Request::default()).unwrap();
    assert_eq!(members(&choice), [1]);
    let want = 2.0 * 1.0 + 2.0 * (1.0 - 0.3);
    assert!((choice[0].score - want).abs() < 1e-12);
}

#[test]
fn a_cached_prompt_outweighs_a_short_queue() {
    let snapshot = mk_snapshot(3);
    for (endpoint, waiting) in snapshot.endpoints().zip([0.0, 1.0, 1.0]) {
        scrape(endpoint, mk_page(waiting, 0.0, 0.0));
    }
    let request = Request {
        prefix: (0..8).collect(),
        block_tokens: 64,
        ..Request::default()
    };
    let table = read(&snapshot);
    let mut rng = mk_rng();
    let choice = choose(&table, &request, &[0, 2, 8], &Profile::default(), &mut rng).unwrap();
    assert_eq!(members(&choice), [2]);
}

#[test]
fn a_list_names_the_best_first_and_each_once() {
    let snapshot = mk_snapshot(5);
    for (endpoint, waiting) in snapshot.endpoints().zip([4.0, 0.0, 3.0, 1.0, 2.0]) {
        scrape(endpoint, mk_page(waiting, 0.0, 0.0));
    }
    let names = |list| members(&go(&snapshot, &mk_list(list)).unwrap());
    assert_eq!(names(4), [1, 3, 4, 2]);
    assert_eq!(names(200).len(), 5, "no more than there are");
    assert_eq!(names(0).len(), 1, "no list is a list of one");
    let profile = Profile {
        picker: Picker {
            max_endpoints: 3,
            ..Picker::default()
        },
        ..Profile::default()
    };
    let choice = choose(&read(&snapshot), &mk_list(1), &[], &profile, &mut mk_rng());
    assert_eq!(
        members(&choice.unwrap()),
        [1, 3, 4],
        "the picker asks for three"
    );
}

#[test]
fn hundred_picks_between_two_scrapes_spread_evenly() {
    let snapshot = mk_snapshot(10);
    for endpoint in snapshot.endpoints() {
        scrape(endpoint, mk_page(0.0, 0.0, 0.0));
    }
    let mut rng = mk_rng();
    let mut bookings = Vec::new();
    for _ in 0..100 {
        let request = Request::default();
        let table = read(&snapshot);
        let choice = choose(&table, &request, &[], &Profile::default(), &mut rng).unwrap();
        bookings.push(book(&at(&snapshot, choice[0].member), 0));
    }
    let in_flight = || snapshot.endpoints().map(|one| one.load().in_flight());
    let (min, max) = (in_flight().min().unwrap(), in_flight().max().unwrap());
    assert!(max - min <= 2, "{:?}", in_flight().collect::<Vec<_>>());
    drop(bookings);
    assert!(in_flight().all(|count| count == 0));
}

#[test]
fn requests_that_never_overlap_get_even_shares() {
    let snapshot = mk_snapshot(4);
    for endpoint in snapshot.endpoints() {
        scrape(endpoint, mk_page(0.0, 0.0, 0.0));
    }
    let (table, mut rng) = (read(&snapshot), mk_rng());
    let mut shares = BTreeMap::<usize, u32>::new();
    for _ in 0..4_000 {
        let request = Request::default();
        let choice = choose(&table, &request, &[], &Profile::default(), &mut rng).unwrap();
        *shares.entry(choice[0].member).or_default() += 1;
    }
    assert_eq!(shares.len(), 4);
    assert!(
        shares.values().all(|share| (850..1_150).contains(share)),
        "{shares:?}"
    );
}

/// Three endpoints whose scores are 0, 1/4 and 3/4.
fn mk_scored() -> Snapshot {
    let snapshot = mk_snapshot(3);
    for (endpoint, kv) in snapshot.endpoints().zip([1.0, 0.75, 0.25]) {
        scrape(endpoint, mk_page(0.0, 0.0, kv));
    }
    snapshot
}

fn mk_profile(kind: PickerKind, weight: f64) -> Profile {
    Profile {
        scorers: vec![WeightedScorer {
            scorer: Scorer::KvCacheUtilization,
            weight,
        }],
        picker: Picker {
            kind,
            max_endpoints: 1,
        },
        ..Profile::default()
    }
}

/// Shares of 10,000 choices of them, whose scores are parts of `weight`.
fn shares(kind: PickerKind, weight: f64) -> [u32; 3] {
    let (snapshot, profile) = (mk_scored(), mk_profile(kind, weight));
    let (table, mut rng) = (read(&snapshot), mk_rng());
    let mut shares = [0; 3];
    for _ in 0..10_000 {
        let choice = choose(&table, &Request::default(), &[], &profile, &mut rng).unwrap();
        shares[choice[0].member] += 1;
    }
    shares
}

#[test]
fn chance_follows_the_scores_or_nothing() {
    for weight in [1.0, 0.01, 1e-6] {
        let [none, small, large] = shares(PickerKind::WeightedRandom, weight);
        assert_eq!(none, 0, "score 0 comes last");
        assert!(
            (2_300..2_700).contains(&small) && large == 10_000 - small,
            "{small} with scores of {weight}"
        );
    }
    let even = shares(PickerKind::Random, 1.0);
    assert!(
        even.iter().all(|share| (3_100..3_570).contains(share)),
        "{even:?}"
    );
    assert_eq!(shares(PickerKind::MaxScore, 1.0), [0, 0, 10_000]);
    let [none, second, best] = shares(PickerKind::TopPercent { percent: 67 }, 1.0);
    assert_eq!(none, 0, "two of three are the best");
    assert!(second.abs_diff(best) < 400, "{second} {best}");
}

#[test]
fn after_one_of_the_best_a_list_goes_on_by_score() {
    let (table, request) = (read(&mk_scored()), mk_list(3));
    let profile = mk_profile(PickerKind::TopPercent { percent: 100 }, 1.0);
    let mut rng = mk_rng();
    let mut lists = BTreeSet::new();
    for _ in 0..100 {
        let choice = choose(&table, &request, &[], &profile, &mut rng).unwrap();
        lists.insert(members(&choice));
    }
    let want = [vec![0, 2, 1], vec![1, 2, 0], vec![2, 1, 0]];
    assert_eq!(lists, BTreeSet::from(want));
}

/// The members are ordered by name, which is not the order of their addresses.
#[test]
fn endpoints_take_turns_in_the_order_of_their_addresses() {
    let addresses = [
        "10.0.0.9:80",
        "10.0.0.10:80",
        "10.0.0.2:8001",
        "10.0.0.2:80",
    ];
    let pods = addresses.iter().zip(["a", "b", "c", "d"]);
    let pods = pods.map(|(address, pod)| mk_member(pod, pod, address));
    let snapshot = Registry::default().update(pods.collect(), NOW);
    let table = read(&snapshot);
    let profile = mk_profile(PickerKind::RoundRobin, 1.0);
    let pick = |turn, list| {
        let request = Request {
            turn,
            ..mk_list(list)
        };
        members(&choose(&table, &request, &[], &profile, &mut mk_rng()).unwrap())
    };
    let firsts: Vec<_> = (0..8).map(|turn| pick(turn, 1)[0]).collect();
    assert_eq!(firsts, [3, 2, 0, 1, 3, 2, 0, 1]);
    assert_eq!(pick(u64::MAX, 3), [1, 3, 2], "the list goes on in turn");
}

#[test]
fn a_lone_member_with_dead_metrics_is_served() {
    let snapshot = mk_snapshot(1);
    suspect(&snapshot, 0);
    assert_eq!(members(&go(&snapshot, &Request::default()).unwrap()), [0]);
}

#[test]
fn suspects_are_avoided_while_another_is_left() {
    let snapshot = mk_snapshot(2);
    scrape(&at(&snapshot, 0), mk_page(0.0, 0.0, 0.0));
    scrape(&at(&snapshot, 1), mk_page(100.0, 0.0, 1.0));
    suspect(&snapshot, 0);
    assert_eq!(members(&go(&snapshot, &mk_list(8)).unwrap()), [1]);
    let only = go(&snapshot, &mk_subset("10.0.0.0")).unwrap();
    assert_eq!(members(&only), [0], "all that is allowed is suspect");
}

/// Their metrics hang, they do not: the pods of the wanted role are served though others are no suspects.
#[test]
fn a_filter_that_leaves_only_suspects_leaves_them() {
    let snapshot = mk_labelled(&[
        &[("llm-d.ai/role", "decode")],
        &[("llm-d.ai/role", "prefill")],
    ]);
    suspect(&snapshot, 0);
    let profile = Profile {
        filters: vec![Filter::Role(Role::Decode)],
        ..Profile::default()
    };
    let choice = choose(
        &read(&snapshot),
        &Request::default(),
        &[],
        &profile,
        &mut mk_rng(),
    );
    assert_eq!(members(&choice.unwrap()), [0]);
}

#[test]
fn nothing_is_named_where_nothing_is_left() {
    let empty = go(&mk_snapshot(0), &Request::default()).unwrap_err();
    assert_eq!((empty, empty.reason()), (NoPick::EmptyPool, "no-endpoints"));
    let snapshot = mk_labelled(&[&[("llm-d.ai/role", "prefill")], &[]]);
    for subset in ["10.9.9.9", "", "10.0.0.1:9"] {
        let none = go(&snapshot, &mk_subset(subset)).unwrap_err();
        assert_eq!(none, NoPick::EmptySubset, "{subset}");
    }
    let profile = Profile {
        filters: vec![Filter::Role(Role::Decode)],
        ..Profile::default()
    };
    let table = read(&snapshot);
    let first = mk_subset("10.0.0.0");
    let other_role = choose(&table, &first, &[], &profile, &mut mk_rng()).unwrap_err();
    assert_eq!(
        (other_role, other_role.reason()),
        (NoPick::NoRole, "no-endpoints")
    );
    let labelled = Profile {
        filters: vec![Filter::ByLabel {
            label: "gpu".into(),
            valid_values: ["h100".into()].into(),
            allows_no_label: false,
        }],
        ..Profile::default()
    };
    let filtered = choose(&table, &first, &[], &labelled, &mut mk_rng()).unwrap_err();
    assert_eq!(
        (filtered, filtered.reason()),
        (NoPick::Filtered, "saturated")
    );
    let decode = choose(&table, &Request::default(), &[], &profile, &mut mk_rng());
    assert_eq!(members(&decode.unwrap()), [1]);
}

#[test]
fn a_nan_scores_zero() {
    let snapshot = mk_snapshot(2);
    scrape(&at(&snapshot, 0), mk_page(0.0, 0.0, f64::NAN));
    scrape(&at(&snapshot, 1), mk_page(0.0, 0.0, 0.9));
    assert_eq!(members(&go(&snapshot, &Request::default()).unwrap()), [1]);
}

proptest! {
    #[test]
    fn no_pick_leaves_the_subset(allowed in proptest::collection::btree_set(0u8..20, 0..20), list in 0u8..12, seed: u64) {
        let snapshot = mk_snapshot(20);
        let text: Vec<_> = allowed.iter().map(|index| format!("10.0.0.{index}:8000")).collect();
        let request = Request { list, ..mk_subset(&text.join(",")) };
        let mut rng = StdRng::seed_from_u64(seed);
        match choose(&read(&snapshot), &request, &[], &Profile::default(), &mut rng) {
            Err(error) => prop_assert!(allowed.is_empty() && error == NoPick::EmptySubset),
            Ok(choice) => {
                let named: BTreeSet<_> = members(&choice).into_iter().collect();
                prop_assert_eq!(named.len(), usize::from(list.clamp(1, 8)).min(allowed.len()), "each once");
                prop_assert!(named.iter().all(|member| allowed.contains(&u8::try_from(*member).unwrap())));
            }
        }
    }
}

/// A choice with all that can exclude a member: the subset, a suspect, a filter.
fn mk_excluding() -> (Snapshot, Request, Profile) {
    let decode = [("llm-d.ai/role", "decode")];
    let prefill = [("llm-d.ai/role", "prefill")];
    let snapshot = mk_labelled(&[&decode, &decode, &prefill, &decode, &decode]);
    for (index, waiting) in [(0, 4.0), (4, 0.0)] {
        scrape(&at(&snapshot, index), mk_page(waiting, 0.0, 0.5));
    }
    suspect(&snapshot, 1);
    let request = mk_subset("10.0.0.0,10.0.0.1,10.0.0.2,10.0.0.4");
    let profile = Profile {
        filters: vec![Filter::SessionAffinity, Filter::Role(Role::Decode)],
        ..Profile::default()
    };
    (snapshot, request, profile)
}

#[test]
fn an_explanation_says_of_each_member_what_excluded_it_or_how_it_scored() {
    let (snapshot, request, profile) = mk_excluding();
    let mut told = Explanation::default();
    let table = read(&snapshot);
    let choice =
        choose_explained(&table, &request, &[], &profile, &mut mk_rng(), &mut told).unwrap();
    let scored = |each: [f64; 3], sum| {
        Verdict::Scored(Scores {
            each: each.into_iter().collect(),
            sum,
        })
    };
    let want = [
        scored([0.0, 0.5, 0.0], 1.0),
        Verdict::Excluded(Exclusion::Suspect),
        Verdict::Excluded(Exclusion::Filter(1)),
        Verdict::Excluded(Exclusion::Subset),
        scored([1.0, 0.5, 0.0], 3.0),
    ];
    assert_eq!(told.verdicts(), want);
    assert_eq!(
        choice[0],
        Chosen {
            member: 4,
            score: 3.0,
            raw: 0.0
        }
    );
}

#[test]
fn nobody_passes_and_the_explanation_says_which_filter_it_was() {
    let (snapshot, request, mut profile) = mk_excluding();
    profile.filters.push(Filter::Role(Role::Encode));
    let mut told = Explanation::default();
    let table = read(&snapshot);
    let choice = choose_explained(&table, &request, &[], &profile, &mut mk_rng(), &mut told);
    assert_eq!(choice, Err(NoPick::NoRole));
    let filter = |place| Verdict::Excluded(Exclusion::Filter(place));
    let subset = Verdict::Excluded(Exclusion::Subset);
    // The suspect was let in again before all were refused.
    let want = [filter(2), filter(2), filter(1), subset, filter(2)];
    assert_eq!(told.verdicts(), want);
}

/// The pool of the worked example: A(8, 4096, 0 of 3), B(2, 1024, 2 of 3), C(5, 2048, 1 of 3).
fn mk_worked() -> (Snapshot, Request, Vec<crate::Booking>) {
    let snapshot = mk_snapshot(3);
    let loads: [(usize, u64); 3] = [(8, 4096), (2, 1024), (5, 2048)];
    let mut held = Vec::new();
    for (member, (requests, prefill)) in loads.into_iter().enumerate() {
        held.extend((1..requests).map(|_| book(&at(&snapshot, member), 0)));
        held.push(book(&at(&snapshot, member), 0).charged(prefill));
    }
    let request = Request {
        chunks: 3,
        cached_chunks: vec![0, 2, 1],
        list: 3,
        ..Request::default()
    };
    (snapshot, request, held)
}

fn mk_inference_lb() -> Profile {
    Profile {
        scorers: vec![WeightedScorer {
            scorer: Scorer::InferenceLb {
                params: crate::inference_lb::Params::default(),
                charge: crate::inference_lb::PrefillCharge::default(),
            },
            weight: 1.0,
        }],
        picker: Picker {
            kind: PickerKind::TopPercent { percent: 10 },
            ..Picker::default()
        },
        ..Profile::default()
    }
}

#[test]
fn load_of_bookings_and_cached_chunks_choose_as_in_the_worked_example() {
    let (snapshot, request, _held) = mk_worked();
    let (table, profile) = (read(&snapshot), mk_inference_lb());
    let choice = choose(&table, &request, &[], &profile, &mut mk_rng()).unwrap();
    assert_eq!(members(&choice), [1, 2, 0]);
    let near = |got: f64, want: f64| assert!((got - want).abs() < 5e-6, "{got} is not {want}");
    near(choice[0].raw, 0.583_333);
    near(choice[0].score, 0.771_505);
}

#[test]
fn narrowing_and_choosing_among_the_rest_is_the_same_choice() {
    let (snapshot, request, _held) = mk_worked();
    let (table, mut profile) = (read(&snapshot), mk_inference_lb());
    scrape(&at(&snapshot, 0), mk_page(0.0, 0.0, 0.0));
    let kv = WeightedScorer {
        scorer: Scorer::KvCacheUtilization,
        weight: 0.5,
    };
    profile.scorers.push(kv);
    let mut told = Explanation::default();
    let narrowed = narrow(&table, &request, &[], &profile, Some(&mut told)).unwrap();
    let biases: Vec<_> = narrowed.candidates().collect();
    assert_eq!(biases, [(0, 0.5), (1, 0.5), (2, 0.5)]);
    let two_steps = choose_among(&table, &request, narrowed, &profile, &mut mk_rng(), None);
    let one_step =
        choose_explained(&table, &request, &[], &profile, &mut mk_rng(), &mut told).unwrap();
    assert_eq!(two_steps, one_step);
    let Verdict::Scored(scores) = &told.verdicts()[1] else {
        panic!("no candidate")
    };
    assert!((scores.each[0] - 0.771_505).abs() < 5e-6, "{scores:?}");
    assert!((scores.each[1] - 1.0).abs() < 1e-9, "{scores:?}");
}

#[test]
fn a_request_goes_only_to_endpoints_with_its_labels() {
    let snapshot = mk_labelled(&[
        &[("gpu", "h100")],
        &[("gpu", "a100"), ("zone", "b")],
        &[("gpu", "a100"), ("zone", "a")],
    ]);
    let labels = |pairs: &[(&str, &str)]| {
        let pairs = pairs.iter().map(|&(key, value)| (key.into(), value.into()));
        std::sync::Arc::new(pairs.collect())
    };
    let labelled = |pairs: &[(&str, &str)], subset: Option<&str>| {
        let mut request = subset.map_or_else(Request::default, mk_subset);
        request.list = 3;
        request.labels = pairs.iter().map(|pair| labels(&[*pair])).collect();
        go(&snapshot, &request).map(|choice| members(&choice))
    };
    let both = [("gpu", "a100"), ("zone", "a")];
    assert_eq!(labelled(&both, None), Ok(vec![2]));
    assert_eq!(labelled(&both, Some("10.0.0.1")), Err(NoPick::EmptySubset));
    let other = [("gpu", "b200")];
    assert_eq!(labelled(&other, None), Err(NoPick::Unlabelled));
    assert_eq!(labelled(&other, Some("10.9.9.9")), Err(NoPick::EmptySubset));
}
