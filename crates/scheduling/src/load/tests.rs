use std::time::Duration;

use rstest::rstest;

use super::*;
use crate::fixtures::{NOW, at, book, mk_page, mk_snapshot, scrape};

const MEAN: Values<f64> = Values {
    waiting: 4.0,
    running: 2.0,
    kv: 0.5,
};

fn mk_endpoint() -> Arc<Endpoint> {
    at(&mk_snapshot(1), 0)
}

fn read(endpoint: &Endpoint, now: Moment) -> (Values<f64>, Quality) {
    let reading = endpoint.load().read(now, Freshness::default());
    (reading.filled(MEAN), reading.quality)
}

fn waiting(endpoint: &Endpoint) -> u32 {
    let (values, _) = read(endpoint, NOW);
    (0..100)
        .find(|n| (f64::from(*n) - values.waiting).abs() < 1e-9)
        .unwrap()
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
    scrape(&endpoint, mk_page(7.0, 1.0, 0.25));
    let (values, got) = read(&endpoint, NOW.plus(Duration::from_millis(age_ms)));
    assert_eq!((values.waiting, values.kv, got), (waiting, kv, quality));
}

#[test]
fn an_endpoint_never_scraped_counts_the_mean_and_its_own() {
    let endpoint = mk_endpoint();
    let _bookings = [book(&endpoint, 0), book(&endpoint, 0)];
    let (values, quality) = read(&endpoint, NOW);
    assert_eq!((values.waiting, values.kv), (6.0, 0.5));
    assert_eq!(quality, Quality::Unknown);
}

/// A gateway far away delivers its request long after the pick: scrapes between the two do not show it.
#[test]
fn a_pick_comes_on_top_until_a_scrape_began_after_its_arrival() {
    let endpoint = mk_endpoint();
    let load = endpoint.load();
    let transit = Duration::from_millis(80);
    let _far = Booking::new(Arc::clone(&endpoint), 0, None, NOW, transit);
    for (begun_after, want) in [(0, 4), (80, 4), (81, 3)] {
        let start = load.scrape_starts(NOW.plus(Duration::from_millis(begun_after)));
        assert_eq!(load.scraped(start, mk_page(3.0, 0.0, 0.0)), Ok(()));
        assert_eq!(
            waiting(&endpoint),
            want,
            "scrape {begun_after} ms after the pick"
        );
    }
}

#[test]
fn no_transit_is_believed_that_lasts_for_ever() {
    let endpoint = mk_endpoint();
    let _booking = Booking::new(Arc::clone(&endpoint), 0, None, NOW, Duration::MAX);
    let load = endpoint.load();
    let start = load.scrape_starts(NOW.plus(MAX_TRANSIT + Duration::from_millis(1)));
    assert_eq!(load.scraped(start, mk_page(3.0, 0.0, 0.0)), Ok(()));
    assert_eq!(waiting(&endpoint), 3);
}

#[test]
fn no_more_picks_come_on_top_than_are_in_flight() {
    let endpoint = mk_endpoint();
    scrape(&endpoint, mk_page(3.0, 0.0, 0.0));
    let bookings = [book(&endpoint, 0), book(&endpoint, 0)];
    assert_eq!(waiting(&endpoint), 5);
    drop(bookings);
    assert_eq!(waiting(&endpoint), 3);
}

#[test]
fn past_the_cap_the_oldest_pick_counts_as_seen() {
    let endpoint = mk_endpoint();
    let picks = || (0..=MAX_UNSEEN).map(|_| book(&endpoint, 0));
    let bookings: Vec<_> = picks().collect();
    let reading = endpoint.load().read(NOW, Freshness::default());
    assert_eq!(usize::try_from(reading.unseen).unwrap(), MAX_UNSEEN);
    assert_eq!(usize::try_from(reading.in_flight).unwrap(), MAX_UNSEEN + 1);
    drop(bookings);
}

/// An engine that never tells its queue would else keep the adapters of requests that ended long ago.
#[test]
fn picks_of_requests_that_ended_are_not_kept_for_ever() {
    let endpoint = mk_endpoint();
    let pick = |name: String| {
        let adapter = Some(name.into());
        Booking::new(Arc::clone(&endpoint), 0, adapter, NOW, Duration::ZERO)
    };
    for index in 0..1_000 {
        drop(pick(format!("adapter-{index}")));
    }
    let _last = pick("last".to_owned());
    let mut adapters = Vec::new();
    endpoint.load().unseen_adapters(&mut adapters);
    assert_eq!(adapters, [Arc::from("last")]);
}

#[test]
fn prompt_tokens_are_released_at_the_first_byte_and_once() {
    let endpoint = mk_endpoint();
    let tokens = || endpoint.load().read(NOW, Freshness::default()).tokens;
    let (mut one, other) = (book(&endpoint, 100), book(&endpoint, 10));
    assert_eq!(tokens(), 110);
    one.respond();
    one.respond();
    assert_eq!((tokens(), endpoint.load().in_flight()), (10, 2));
    drop((one, other));
    assert_eq!((tokens(), endpoint.load().in_flight()), (0, 0));
    assert_eq!(endpoint.load().picks(), 2, "of all times");
}

#[test]
fn three_scrapes_without_answer_make_a_suspect_until_one_is_answered() {
    let endpoint = mk_endpoint();
    let load = endpoint.load();
    let quality = || read(&endpoint, NOW).1;
    scrape(&endpoint, mk_page(0.0, 0.0, 0.0));
    load.scrape_failed(ScrapeFailure::Unreachable);
    load.scrape_failed(ScrapeFailure::Unreachable);
    assert_eq!(quality(), Quality::Fresh);
    load.scrape_failed(ScrapeFailure::Unreachable);
    assert_eq!(quality(), Quality::Suspect);
    scrape(&endpoint, mk_page(0.0, 0.0, 0.0));
    assert_eq!(quality(), Quality::Fresh);
    for _ in 0..3 {
        load.scrape_failed(ScrapeFailure::Unreachable);
    }
    load.scrape_failed(ScrapeFailure::Useless);
    assert_eq!(quality(), Quality::Fresh, "an error page is an answer");
}

#[test]
fn bad_pages_alone_never_make_a_suspect() {
    let endpoint = mk_endpoint();
    let load = endpoint.load();
    for _ in 0..10 {
        load.scrape_failed(ScrapeFailure::Unreachable);
        load.scrape_failed(ScrapeFailure::Useless);
        assert_eq!(
            load.scraped(load.scrape_starts(NOW), Scraped::default()),
            Err(ScrapeFailure::Useless)
        );
    }
    assert_eq!(read(&endpoint, NOW).1, Quality::Unknown);
}

/// Each value ages by itself: a page with the cache alone says nothing of the queue.
#[test]
fn a_page_that_lacks_a_value_does_not_freshen_it() {
    let endpoint = mk_endpoint();
    let load = endpoint.load();
    scrape(&endpoint, mk_page(3.0, 1.0, 0.75));
    let later = NOW.plus(Duration::from_secs(5));
    let _since = book(&endpoint, 0);
    let partial = Scraped {
        kv: Some(0.25),
        ..Scraped::default()
    };
    assert_eq!(
        load.scraped(load.scrape_starts(later), partial.clone()),
        Ok(())
    );
    let (values, quality) = read(&endpoint, later);
    assert_eq!(
        (values.waiting, values.kv),
        (4.0, 0.25),
        "our own still comes on top"
    );
    assert_eq!(quality, Quality::Stale);
    let much_later = NOW.plus(Duration::from_secs(11));
    assert_eq!(
        load.scraped(load.scrape_starts(much_later), partial),
        Ok(())
    );
    let (values, quality) = read(&endpoint, much_later);
    assert_eq!(
        (values.waiting, values.kv),
        (5.0, 0.25),
        "the mean stands in"
    );
    assert_eq!(quality, Quality::Unknown);
}

#[test]
fn a_request_served_elsewhere_is_counted_there_alone() {
    let snapshot = mk_snapshot(2);
    let (picked, served) = (at(&snapshot, 0), at(&snapshot, 1));
    let counts = |endpoint: &Endpoint| {
        let reading = endpoint.load().read(NOW, Freshness::default());
        (reading.in_flight, reading.tokens)
    };
    let mut booking = book(&picked, 7);
    for _ in 0..2 {
        booking.move_to(Arc::clone(&served));
        assert_eq!((counts(&picked), counts(&served)), ((0, 0), (1, 7)));
    }
    drop(booking);
    assert_eq!((counts(&picked), counts(&served)), ((0, 0), (0, 0)));
}

#[test]
fn a_request_that_none_of_the_pool_serves_counts_nowhere() {
    let snapshot = mk_snapshot(2);
    let (picked, other) = (at(&snapshot, 0), at(&snapshot, 1));
    let mut booking = book(&picked, 7).charged(3);
    let counts = |endpoint: &Endpoint| {
        let load = endpoint.load().read(NOW, Freshness::default());
        (load.in_flight, load.tokens, load.prefill)
    };
    assert_eq!(counts(&picked), (1, 7, 3));
    for _ in 0..2 {
        booking.release();
        booking.respond();
        booking.move_to(Arc::clone(&other));
        assert_eq!((counts(&picked), counts(&other)), ((0, 0, 0), (0, 0, 0)));
    }
    drop(booking);
    assert_eq!(counts(&picked), (0, 0, 0));
}

#[test]
fn another_start_time_is_another_process() {
    let endpoint = mk_endpoint();
    let page = |started| Scraped {
        started,
        ..mk_page(0.0, 0.0, 0.0)
    };
    for (started, restarts) in [
        (None, 0),
        (Some(1.5), 0),
        (None, 0),
        (Some(3.5), 0), // as exact as a page is
        (Some(9.0), 1),
    ] {
        scrape(&endpoint, page(started));
        assert_eq!(endpoint.load().restarts(), restarts, "{started:?}");
    }
}

#[test]
fn adapters_and_layout_stay_until_a_page_tells_others() {
    let endpoint = mk_endpoint();
    let lora = Lora {
        running: vec!["a".into()],
        waiting: Vec::new(),
        max: 2,
    };
    let layout = CacheLayout {
        block_tokens: 16,
        blocks: 1024,
    };
    scrape(
        &endpoint,
        Scraped {
            lora: PageLora::Now(lora.clone()),
            cache: Some(layout),
            ..mk_page(0.0, 0.0, 0.0)
        },
    );
    scrape(&endpoint, mk_page(1.0, 0.0, 0.0));
    let told = |now| endpoint.load().lora(now, Freshness::default());
    assert_eq!(told(NOW).as_deref(), Some(&lora));
    assert_eq!(endpoint.load().cache(), Some(layout));
    // Further pages arrive, without any adapters.
    let later = NOW.plus(Duration::from_secs(11));
    let start = endpoint.load().scrape_starts(later);
    endpoint
        .load()
        .scraped(start, mk_page(1.0, 0.0, 0.0))
        .unwrap();
    assert_eq!(told(later), None, "too long ago");
    let unchanged = Scraped {
        lora: PageLora::Unchanged,
        ..mk_page(1.0, 0.0, 0.0)
    };
    endpoint.load().scraped(start, unchanged).unwrap();
    assert_eq!(told(later).as_deref(), Some(&lora));
}

/// Otherwise the requests of an adapter would all be sent to the one engine that must load it again.
#[test]
fn a_restarted_engine_has_no_adapters_until_it_tells_them() {
    let endpoint = mk_endpoint();
    let lora = |name: &str| Lora {
        running: vec![name.into()],
        waiting: Vec::new(),
        max: 2,
    };
    for (started, page, want) in [
        (1.0, PageLora::Now(lora("a")), Some("a")),
        (1.0, PageLora::Absent, Some("a")),
        (100.0, PageLora::Absent, None),
        (100.0, PageLora::Now(lora("b")), Some("b")),
        // loaded again before the first page
        (200.0, PageLora::Unchanged, Some("b")),
        (300.0, PageLora::Now(Lora::default()), Some("")),
    ] {
        let page = Scraped {
            lora: page,
            started: Some(started),
            ..mk_page(0.0, 0.0, 0.0)
        };
        scrape(&endpoint, page);
        let told = endpoint.load().lora(NOW, Freshness::default());
        let told = told.map(|lora| lora.running.concat());
        assert_eq!(told.as_deref(), want, "{started}");
    }
}

#[test]
fn an_age_before_the_scrape_is_fresh() {
    let endpoint = mk_endpoint();
    scrape(&endpoint, mk_page(0.0, 0.0, 0.0));
    assert_eq!(read(&endpoint, Moment::START).1, Quality::Fresh);
}

/// On pages of operators, and in alerts.
#[test]
fn qualities_keep_their_names() {
    let names = Quality::ALL.map(Quality::name);
    assert_eq!(names, ["fresh", "stale", "unknown", "suspect"]);
}

#[test]
fn a_charge_moves_with_its_request_and_ends_when_the_response_begins() {
    let snapshot = mk_snapshot(2);
    let (one, other) = (at(&snapshot, 0), at(&snapshot, 1));
    let prefill = || (one.load().prefill(), other.load().prefill());
    let mut first = book(&one, 0).charged(700);
    let second = book(&one, 0).charged(50);
    assert_eq!(prefill(), (750, 0));
    first.move_to(Arc::clone(&other));
    assert_eq!(prefill(), (50, 700));
    first.respond();
    first.respond();
    assert_eq!(prefill(), (50, 0));
    first.move_to(Arc::clone(&one));
    assert_eq!(prefill(), (50, 0));
    drop((first, second));
    assert_eq!(prefill(), (0, 0));
    assert_eq!(one.load().in_flight(), 0);
}
