use std::{sync::Arc, time::Duration};

use rstest::rstest;

use super::*;
use crate::{
    endpoint::{Endpoint, EndpointId},
    snapshot::Member,
};
use moment::Moment;

fn mk_endpoint() -> Arc<Endpoint> {
    let id = EndpointId {
        namespace: "ns".into(),
        pod: "a".into(),
        rank: 0,
        uid: "1".into(),
    };
    Arc::new(Endpoint::new(Member {
        id,
        address: "10.0.0.1:8000".parse().unwrap(),
        engine: "".into(),
    }))
}

fn mk_page(waiting: f64, kv: f64) -> Scraped {
    Scraped {
        waiting: Some(waiting),
        running: Some(1.0),
        kv: Some(kv),
    }
}

fn view(endpoint: &Endpoint, now: Moment) -> LoadView {
    LoadView::new(
        endpoint.load().read(now, Freshness::default()),
        (4.0, 2.0, 0.5),
    )
}

#[rstest]
#[case::fresh(2_000, Quality::Fresh, 7.0, 0.25)]
#[case::stale(2_001, Quality::Stale, 7.0, 0.25)]
#[case::still_stale(10_000, Quality::Stale, 7.0, 0.25)]
#[case::unknown(10_001, Quality::Unknown, 4.0, 0.5)]
fn values_age_through_the_qualities(
    #[case] age_ms: u64,
    #[case] quality: Quality,
    #[case] waiting: f64,
    #[case] kv: f64,
) {
    let endpoint = mk_endpoint();
    let start = endpoint.load().scrape_starts(Moment::from_millis(1_000));
    assert_eq!(endpoint.load().scraped(start, mk_page(7.0, 0.25)), Ok(()));
    let got = view(&endpoint, Moment::from_millis(1_000 + age_ms));
    assert_eq!(
        got,
        LoadView {
            waiting,
            running: got.running,
            kv,
            in_flight: 0,
            quality
        }
    );
}

#[test]
fn an_endpoint_never_scraped_counts_the_mean_and_its_own() {
    let endpoint = mk_endpoint();
    let _guards = [
        InFlight::at(Arc::clone(&endpoint)),
        InFlight::at(Arc::clone(&endpoint)),
    ];
    let got = view(&endpoint, Moment::START);
    assert_eq!(
        (got.waiting, got.kv, got.quality),
        (6.0, 0.5, Quality::Unknown)
    );
}

#[test]
#[expect(clippy::float_cmp, reason = "small whole numbers are exact")]
fn only_picks_since_the_scrape_began_come_on_top() {
    let endpoint = mk_endpoint();
    let before = InFlight::at(Arc::clone(&endpoint));
    let start = endpoint.load().scrape_starts(Moment::START);
    let during = InFlight::at(Arc::clone(&endpoint));
    assert_eq!(endpoint.load().scraped(start, mk_page(3.0, 0.0)), Ok(()));
    assert_eq!(
        view(&endpoint, Moment::START).waiting,
        4.0,
        "the page holds the first request already"
    );
    drop(before);
    assert_eq!(
        view(&endpoint, Moment::START).waiting,
        4.0,
        "one of ours is still in flight"
    );
    drop(during);
    assert_eq!(
        view(&endpoint, Moment::START).waiting,
        3.0,
        "none is: the page alone counts"
    );
}

#[test]
fn three_scrapes_without_answer_make_a_suspect_until_one_succeeds() {
    let endpoint = mk_endpoint();
    let quality = || view(&endpoint, Moment::START).quality;
    assert_eq!(
        endpoint.load().scraped(
            endpoint.load().scrape_starts(Moment::START),
            mk_page(0.0, 0.0),
        ),
        Ok(())
    );
    endpoint.load().scrape_failed(ScrapeFailure::Unreachable);
    endpoint.load().scrape_failed(ScrapeFailure::Unreachable);
    assert_eq!(quality(), Quality::Fresh);
    endpoint.load().scrape_failed(ScrapeFailure::Unreachable);
    assert_eq!(quality(), Quality::Suspect);
    endpoint.load().scrape_failed(ScrapeFailure::Useless);
    assert_eq!(quality(), Quality::Suspect, "an error page is no success");
    assert_eq!(
        endpoint.load().scraped(
            endpoint.load().scrape_starts(Moment::START),
            mk_page(0.0, 0.0),
        ),
        Ok(())
    );
    assert_eq!(quality(), Quality::Fresh);
}

#[test]
fn bad_pages_alone_never_make_a_suspect() {
    let endpoint = mk_endpoint();
    for _ in 0..10 {
        endpoint.load().scrape_failed(ScrapeFailure::Unreachable);
        endpoint.load().scrape_failed(ScrapeFailure::Useless);
        assert_eq!(
            endpoint.load().scraped(
                endpoint.load().scrape_starts(Moment::START),
                Scraped::default(),
            ),
            Err(ScrapeFailure::Useless)
        );
    }
    assert_eq!(view(&endpoint, Moment::START).quality, Quality::Unknown);
}

#[test]
fn a_page_that_lacks_a_value_updates_the_others() {
    let endpoint = mk_endpoint();
    assert_eq!(
        endpoint.load().scraped(
            endpoint.load().scrape_starts(Moment::START),
            mk_page(3.0, 0.75),
        ),
        Ok(())
    );
    let partial = Scraped {
        waiting: Some(9.0),
        running: None,
        kv: None,
    };
    assert_eq!(
        endpoint
            .load()
            .scraped(endpoint.load().scrape_starts(Moment::START), partial),
        Ok(())
    );
    let got = view(&endpoint, Moment::START);
    assert_eq!((got.waiting, got.running, got.kv), (9.0, 1.0, 0.75));
}

#[test]
fn a_request_served_elsewhere_is_counted_there_alone() {
    let (picked, served) = (mk_endpoint(), mk_endpoint());
    let mut guard = InFlight::at(Arc::clone(&picked));
    guard.move_to(Arc::clone(&served));
    assert_eq!(
        (picked.load().in_flight(), served.load().in_flight()),
        (0, 1)
    );
    guard.move_to(Arc::clone(&served));
    assert_eq!(
        served.load().in_flight(),
        1,
        "moving to where it is changes nothing"
    );
    drop(guard);
    assert_eq!(
        (picked.load().in_flight(), served.load().in_flight()),
        (0, 0)
    );
}

#[test]
fn an_age_before_the_scrape_is_fresh() {
    let endpoint = mk_endpoint();
    assert_eq!(
        endpoint.load().scraped(
            endpoint.load().scrape_starts(Moment::from_millis(50)),
            mk_page(0.0, 0.0),
        ),
        Ok(())
    );
    assert_eq!(
        view(&endpoint, Moment::START).quality,
        Quality::Fresh,
        "clock reads may race, ages stay zero"
    );
    assert_eq!(Freshness::default().fresh_for, Duration::from_secs(2));
}
