use rstest::rstest;

use super::*;
use crate::{
    fixtures::{NOW, at, book, mk_page, mk_snapshot, read, scrape},
    load::Freshness,
};

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-9
}

#[rstest]
#[case::idle(&[(0.0, 0.0), (0.0, 0.0)], 0.0)]
#[case::queue(&[(5.0, 0.0), (0.0, 0.0)], 0.5)]
#[case::cache(&[(0.0, 0.8), (0.0, 0.4)], 0.75)]
#[case::greater_of_both(&[(10.0, 0.8)], 2.0)]
fn utilization_is_the_mean_over_members(#[case] pages: &[(f64, f64)], #[case] want: f64) {
    let snapshot = mk_snapshot(u8::try_from(pages.len()).unwrap());
    for (endpoint, (waiting, kv)) in snapshot.endpoints().zip(pages) {
        scrape(endpoint, mk_page(*waiting, 0.0, *kv));
    }
    let got = Detector::default().saturation(&read(&snapshot));
    assert!(close(got, want), "{got}");
}

#[test]
fn an_empty_pool_is_saturated() {
    let table = read(&mk_snapshot(0));
    assert!(close(Detector::default().saturation(&table), 1.0));
    assert!(close(Detector::CONCURRENCY.saturation(&table), 1.0));
}

/// Metrics that nobody can refresh, however bad, neither shed nor lock up.
#[test]
fn without_a_fresh_member_our_own_requests_decide() {
    let snapshot = mk_snapshot(1);
    scrape(&at(&snapshot, 0), mk_page(1_000.0, 0.0, 1.0));
    let _booking = book(&at(&snapshot, 0), 0);
    let later = NOW.plus(std::time::Duration::from_secs(3));
    let table = snapshot.read(later, Freshness::default());
    let got = Detector::default().saturation(&table);
    assert!(close(got, 0.01), "{got}");
}

/// A pod with a bad page and many live streams must not shed the requests that nine idle ones could take.
#[test]
fn of_a_member_without_fresh_metrics_our_own_requests_decide() {
    let snapshot = mk_snapshot(2);
    scrape(&at(&snapshot, 0), mk_page(0.0, 0.0, 0.0));
    let _bookings: Vec<_> = (0..50).map(|_| book(&at(&snapshot, 1), 0)).collect();
    let got = Detector::default().saturation(&read(&snapshot));
    assert!(close(got, 0.25), "{got}");
}

#[rstest]
#[case(ConcurrencyMode::Requests, 0.2)]
#[case(ConcurrencyMode::Tokens, 0.5)]
#[case(ConcurrencyMode::Hybrid, 0.5)]
fn concurrency_counts_what_is_in_flight(#[case] mode: ConcurrencyMode, #[case] want: f64) {
    let snapshot = mk_snapshot(1);
    let _bookings = [book(&at(&snapshot, 0), 300), book(&at(&snapshot, 0), 200)];
    let detector = Detector::Concurrency {
        mode,
        max_requests: 10.0,
        max_tokens: 1000.0,
        headroom: 0.0,
    };
    let got = detector.saturation(&read(&snapshot));
    assert!(close(got, want), "{got}");
}

#[test]
fn a_limit_of_nothing_is_reached() {
    let table = read(&mk_snapshot(1));
    let none = Detector::Concurrency {
        mode: ConcurrencyMode::Requests,
        max_requests: 0.0,
        max_tokens: 0.0,
        headroom: 0.0,
    };
    assert!(close(none.saturation(&table), 1.0));
}

#[test]
fn requests_without_an_endpoint_yet_count_evenly() {
    let snapshot = mk_snapshot(2);
    let table = read(&snapshot);
    let unplaced = Unplaced {
        requests: 100.0,
        tokens: 500_000.0,
    };
    let saturation = |mode| {
        let detector = Detector::Concurrency {
            mode,
            max_requests: 100.0,
            max_tokens: 1_000_000.0,
            headroom: 0.0,
        };
        detector.saturation_with(&table, unplaced)
    };
    assert!(close(saturation(ConcurrencyMode::Requests), 0.5));
    assert!(close(saturation(ConcurrencyMode::Tokens), 0.25));
    for member in 0..2 {
        scrape(&at(&snapshot, member), mk_page(1.0, 0.0, 0.0));
    }
    let waiting = Detector::default().saturation_with(&read(&snapshot), unplaced);
    assert!(close(waiting, 51.0 / 5.0), "{waiting}");
}
