use rstest::rstest;

use super::*;
use crate::{
    fixtures::{at, book, mk_page, mk_snapshot, read, scrape},
    load::{Lora, PageLora, Scraped},
};

/// (waiting, running, kv) of each candidate.
type Pages<'a> = &'a [(f64, f64, f64)];

fn score(scorer: &Scorer, pages: Pages<'_>, request: &Request, matched: &[u32]) -> Vec<f64> {
    let snapshot = mk_snapshot(u8::try_from(pages.len()).unwrap());
    for (endpoint, (waiting, running, kv)) in snapshot.endpoints().zip(pages) {
        scrape(endpoint, mk_page(*waiting, *running, *kv));
    }
    of_all(scorer, &read(&snapshot), request, matched)
}

fn of_all(scorer: &Scorer, table: &crate::Table, request: &Request, matched: &[u32]) -> Vec<f64> {
    let candidates = Candidates::new(table, table.allowed(None), matched);
    let mut scores = vec![9.0; candidates.len()];
    scorer.score(request, &candidates, &mut scores);
    scores
}

#[rstest]
#[case::spread(Scorer::QUEUE, &[(0.0, 9.0, 0.0), (5.0, 0.0, 0.0), (10.0, 3.0, 0.0)], &[1.0, 0.5, 0.0])]
#[case::equal(Scorer::QUEUE, &[(3.0, 1.0, 0.0), (3.0, 2.0, 0.0)], &[1.0, 1.0])]
#[case::alone(Scorer::QUEUE, &[(7.0, 0.0, 0.0)], &[1.0])]
#[case::running(Scorer::RunningRequests, &[(9.0, 0.0, 0.0), (0.0, 4.0, 0.0), (1.0, 1.0, 0.0)], &[1.0, 0.0, 0.75])]
#[case::kv(Scorer::KvCacheUtilization, &[(0.0, 0.0, 0.0), (0.0, 0.0, 0.25), (0.0, 0.0, 1.0)], &[1.0, 0.75, 0.0])]
#[case::load(Scorer::LoadAware { threshold: 4.0 }, &[(0.0, 0.0, 0.0), (1.0, 0.0, 0.0), (9.0, 0.0, 0.0)], &[0.5, 0.375, 0.0])]
fn load_scores_are_the_golden_ones(
    #[case] scorer: Scorer,
    #[case] pages: Pages<'_>,
    #[case] want: &[f64],
) {
    assert_eq!(score(&scorer, pages, &Request::default(), &[]), want);
}

#[test]
fn unscraped_picks_count_as_waiting_unless_they_shall_not() {
    let snapshot = mk_snapshot(2);
    for endpoint in snapshot.endpoints() {
        scrape(endpoint, mk_page(0.0, 0.0, 0.0));
    }
    let _booking = book(&at(&snapshot, 0), 0);
    let table = read(&snapshot);
    let request = Request::default();
    assert_eq!(of_all(&Scorer::QUEUE, &table, &request, &[]), [0.0, 1.0]);
    let scraped = Scorer::Queue {
        count_unscraped: false,
    };
    assert_eq!(of_all(&scraped, &table, &request, &[]), [1.0, 1.0]);
}

#[rstest]
#[case::share(0.0, 4, &[0, 1, 4], &[0.0, 0.25, 1.0])]
#[case::length(0.5, 4, &[0, 2, 4], &[0.0, 0.5 + 0.5 * 0.0625, 1.0 + 0.5 * 0.25])]
#[case::blind(0.5, 0, &[0, 0], &[0.0, 0.0])]
fn a_cached_prefix_scores_by_share_and_length(
    #[case] match_length_weight: f64,
    #[case] blocks: u64,
    #[case] matched: &[u32],
    #[case] want: &[f64],
) {
    let scorer = Scorer::PrefixCache {
        match_length_weight,
        match_length_scale_tokens: 512.0,
    };
    let request = Request {
        prefix: (0..blocks).collect(),
        block_tokens: 64,
        ..Request::default()
    };
    let pages = vec![(0.0, 0.0, 0.0); matched.len()];
    assert_eq!(score(&scorer, &pages, &request, matched), want);
}

#[rstest]
#[case::loaded(&["x"], &[], 1, &[], 1.0)]
#[case::free(&["a"], &["b"], 3, &[], 0.8)]
#[case::full(&["a"], &["b"], 2, &[], 0.0)]
#[case::waited_for(&["a"], &["x"], 2, &[], 0.6)]
#[case::waited_for_and_free(&["a"], &["x"], 3, &[], 0.8)]
#[case::our_own_fills_it(&["a"], &[], 2, &["shown"], 0.0)]
#[case::a_base_model_takes_no_place(&["a"], &[], 2, &["base"], 0.8)]
#[case::a_base_model_alone(&[], &[], 1, &["base"], 0.8)]
#[case::our_own_waits(&["a"], &[], 2, &["x"], 0.6)]
#[case::our_own_is_loaded_already(&["a"], &[], 2, &["a"], 0.8)]
fn adapters_score_by_where_they_are(
    #[case] running: &[&str],
    #[case] waiting: &[&str],
    #[case] max: u32,
    #[case] unseen: &[&str],
    #[case] want: f64,
) {
    let snapshot = mk_snapshot(3);
    let names = |list: &[&str]| list.iter().map(|name| (*name).into()).collect();
    let page = Scraped {
        lora: PageLora::Now(Lora {
            running: names(running),
            waiting: names(waiting),
            max,
        }),
        ..mk_page(0.0, 0.0, 0.0)
    };
    scrape(&at(&snapshot, 0), page);
    let elsewhere = Scraped {
        lora: PageLora::Now(Lora {
            running: names(&["shown", "x"]),
            waiting: Vec::new(),
            max: 1,
        }),
        ..mk_page(0.0, 0.0, 0.0)
    };
    scrape(&at(&snapshot, 2), elsewhere);
    let _bookings: Vec<_> = unseen
        .iter()
        .map(|adapter| {
            let adapter = Some((*adapter).into());
            let now = crate::fixtures::NOW;
            crate::Booking::new(at(&snapshot, 0), 0, adapter, now, Duration::ZERO)
        })
        .collect();
    let mut request = Request {
        model: Some("x".into()),
        ..Request::default()
    };
    let table = read(&snapshot);
    let got = of_all(&Scorer::LoraAffinity, &table, &request, &[]);
    assert_eq!(got, [want, 0.0, 1.0], "the second tells no adapters");
    request.model = None;
    assert_eq!(
        of_all(&Scorer::LoraAffinity, &table, &request, &[]),
        [0.0, 0.0, 0.0]
    );
}

/// The base model is in flight at all members, and no page shows it as an adapter.
#[test]
fn a_name_is_searched_for_once_however_many_members_have_it() {
    let unseen = std::iter::repeat_n(["base", "a"], 100).flatten();
    let mut searched = Vec::new();
    let places = Places::of(unseen, |name| {
        searched.push(name.to_owned());
        name == "a"
    });
    assert_eq!(
        ["base", "a"].map(|name| places.takes_one(name)),
        [false, true]
    );
    assert_eq!(searched, ["base", "a"]);
}

#[rstest]
#[case(0, 1.0, &[0, 1, 4], &[1.0, 0.75, 0.0])]
#[case(1, 0.5, &[0, 1, 2, 4], &[1.0, 1.0, 0.25, 0.0])]
fn busy_endpoints_score_by_their_requests_in_flight(
    #[case] idle_threshold: u32,
    #[case] max_busy_score: f64,
    #[case] in_flight: &[usize],
    #[case] want: &[f64],
) {
    let snapshot = mk_snapshot(u8::try_from(in_flight.len()).unwrap());
    let endpoints = snapshot.endpoints().zip(in_flight);
    let _bookings: Vec<_> = endpoints
        .flat_map(|(endpoint, count)| (0..*count).map(|_| book(endpoint, 0)))
        .collect();
    let scorer = Scorer::ActiveRequest {
        idle_threshold,
        max_busy_score,
    };
    assert_eq!(
        of_all(&scorer, &read(&snapshot), &Request::default(), &[]),
        want
    );
}

#[test]
fn tokens_in_flight_count_with_those_of_the_request_that_are_not_cached() {
    let snapshot = mk_snapshot(3);
    let _booking = book(&at(&snapshot, 0), 512);
    let scorer = Scorer::TokenLoad {
        queue_threshold_tokens: 1024.0,
    };
    let request = Request {
        prompt_tokens: 256,
        block_tokens: 64,
        ..Request::default()
    };
    let got = of_all(&scorer, &read(&snapshot), &request, &[0, 0, 3]);
    assert_eq!(got, [0.25, 0.75, 0.9375]);
    let large = Request {
        prompt_tokens: 9_000,
        ..request
    };
    assert_eq!(
        of_all(&scorer, &read(&snapshot), &large, &[]),
        [0.0, 0.0, 0.0]
    );
}

#[test]
fn a_session_scores_where_it_is_served() {
    let scorer = Scorer::SessionAffinity(SessionStrategy::EncodedEndpointHeader);
    let snapshot = mk_snapshot(2);
    let table = read(&snapshot);
    let score = |session| {
        let request = Request {
            session,
            ..Request::default()
        };
        of_all(&scorer, &table, &request, &[])
    };
    assert_eq!(score(None), [0.0, 0.0]);
    let slot = at(&snapshot, 1).slot();
    assert_eq!(score(Some(SessionAt::Slot(slot))), [0.0, 1.0]);
    let former = crate::Slot {
        generation: slot.generation + 1,
        ..slot
    };
    assert_eq!(score(Some(SessionAt::Slot(former))), [0.0, 0.0]);
    let pod = |namespace: &str| SessionAt::Pod {
        namespace: namespace.into(),
        pod: "pod-000".into(),
    };
    assert_eq!(score(Some(pod("ns"))), [1.0, 0.0]);
    assert_eq!(score(Some(pod("other"))), [0.0, 0.0]);
}

#[rstest]
#[case(Scorer::QUEUE, "queue-scorer")]
#[case(Scorer::RunningRequests, "running-requests-size-scorer")]
#[case(Scorer::KvCacheUtilization, "kv-cache-utilization-scorer")]
#[case(Scorer::PREFIX_CACHE, "prefix-cache-scorer")]
#[case(Scorer::LoraAffinity, "lora-affinity-scorer")]
#[case(Scorer::LoadAware { threshold: 1.0 }, "load-aware-scorer")]
#[case(Scorer::ActiveRequest { idle_threshold: 0, max_busy_score: 1.0 }, "active-request-scorer")]
#[case(Scorer::TokenLoad { queue_threshold_tokens: 1.0 }, "token-load-scorer")]
#[case(
    Scorer::SessionAffinity(SessionStrategy::EncodedEndpointHeader),
    "session-affinity-scorer"
)]
fn scorers_are_called_by_their_types(#[case] scorer: Scorer, #[case] want: &str) {
    assert_eq!(scorer.name(), want);
}
