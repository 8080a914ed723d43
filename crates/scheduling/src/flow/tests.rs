use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use rstest::rstest;

use super::*;

mod model;

const SECOND: Duration = Duration::from_secs(1);

fn at(seconds: u64) -> Moment {
    Moment::from_millis(seconds * 1_000)
}

fn mk_waiting(priority: i32, fairness_id: &str) -> Waiting {
    Waiting {
        priority,
        fairness_id: Arc::from(fairness_id),
        bytes: 10,
        ttl: None,
    }
}

fn mk_band(fairness: Fairness, ordering: Ordering) -> BandConfig {
    BandConfig {
        fairness,
        ordering,
        ..BandConfig::default()
    }
}

fn mk_controller(fairness: Fairness, ordering: Ordering) -> Controller {
    let config = Config {
        default_band: mk_band(fairness, ordering),
        ..Config::default()
    };
    Controller::new(config, Regime::Serving)
}

fn mk_ttls(serving: u64, empty: u64) -> Config {
    Config {
        default_ttl: Duration::from_secs(serving),
        no_endpoint_ttl: Some(Duration::from_secs(empty)),
        ..Config::default()
    }
}

/// Enqueues one request per word, `priority/flow` or `priority/flow/ttl in seconds`, one each second.
fn enqueue_all(controller: &mut Controller, words: &str) -> BTreeMap<Ticket, String> {
    let mut names = BTreeMap::new();
    for (second, word) in (0..).zip(words.split_whitespace()) {
        let mut parts = word.split('/');
        let priority = parts.next().unwrap().parse().unwrap();
        let mut waiting = mk_waiting(priority, parts.next().unwrap());
        waiting.ttl = parts
            .next()
            .map(|ttl| Duration::from_secs(ttl.parse().unwrap()));
        let ticket = controller.enqueue(waiting, at(second)).unwrap();
        names.insert(ticket, word.to_owned());
    }
    names
}

fn dispatch_all(controller: &mut Controller, names: &BTreeMap<Ticket, String>) -> String {
    let mut order = Vec::new();
    while let Some(ticket) = controller.next(at(0), 0.0) {
        order.push(names[&ticket].as_str());
    }
    order.join(" ")
}

fn tickets(expired: Vec<Expired>) -> Vec<Ticket> {
    expired.into_iter().map(|expired| expired.ticket).collect()
}

#[test]
fn the_default_config_is_the_reference() {
    let config = Config::default();
    let band = *config.band(0);
    assert_eq!((band.max_requests, band.max_bytes), (5_000, 1_000_000_000));
    assert_eq!(
        (band.fairness, band.ordering),
        (Fairness::GlobalStrict, Ordering::Fcfs)
    );
    assert_eq!((config.max_requests, config.max_bytes), (None, None));
    assert_eq!(config.default_ttl, 60 * SECOND);
    assert_eq!(config.no_endpoint_ttl, None);
    assert_eq!(*config.band(-1), band);
}

#[rstest]
#[case::configured(-5, 1)]
#[case::negative(-1, 2)]
#[case::zero(0, 3)]
#[case::positive(7, 3)]
fn a_priority_has_its_own_band_or_a_default_one(#[case] priority: i32, #[case] want: u64) {
    let mk = |max_requests| BandConfig {
        max_requests,
        ..BandConfig::default()
    };
    let config = Config {
        bands: BTreeMap::from([(-5, mk(1))]),
        default_band: mk(3),
        default_negative_band: Some(mk(2)),
        ..Config::default()
    };
    assert_eq!(config.band(priority).max_requests, want);
}

#[rstest]
#[case::strict_bands(
    Fairness::GlobalStrict,
    Ordering::Fcfs,
    "-1/a 0/a 5/a 0/b -1/b 5/b",
    "5/a 5/b 0/a 0/b -1/a -1/b"
)]
#[case::one_queue_for_all_flows(
    Fairness::GlobalStrict,
    Ordering::Fcfs,
    "0/b 0/b 0/a 0/b 0/a",
    "0/b 0/b 0/a 0/b 0/a"
)]
#[case::flows_in_turn_from_the_first_that_came(
    Fairness::RoundRobin,
    Ordering::Fcfs,
    "0/b/11 0/b/12 0/b/13 0/a/14 0/a/15 0/c/16",
    "0/b/11 0/a/14 0/c/16 0/b/12 0/a/15 0/b/13"
)]
#[case::bands_before_turns(
    Fairness::RoundRobin,
    Ordering::Fcfs,
    "0/a/11 0/b/12 1/a/13 1/a/14",
    "1/a/13 1/a/14 0/a/11 0/b/12"
)]
#[case::earliest_deadline_of_all_flows(
    Fairness::GlobalStrict,
    Ordering::Edf,
    "0/a 0/a/30 0/b/20 0/b/19",
    "0/b/20 0/b/19 0/a/30 0/a"
)]
#[case::earliest_deadline_in_each_flow(
    Fairness::RoundRobin,
    Ordering::Edf,
    "0/a/30 0/a/20 0/b/15 0/b/10",
    "0/a/20 0/b/10 0/a/30 0/b/15"
)]
fn requests_go_in_order(
    #[case] fairness: Fairness,
    #[case] ordering: Ordering,
    #[case] words: &str,
    #[case] want: &str,
) {
    let mut controller = mk_controller(fairness, ordering);
    let names = enqueue_all(&mut controller, words);
    assert_eq!(dispatch_all(&mut controller, &names), want);
}

#[test]
fn equal_deadlines_go_in_the_order_they_came() {
    let mut controller = mk_controller(Fairness::GlobalStrict, Ordering::Edf);
    let names = enqueue_all(&mut controller, "0/c/12 0/b/11 0/a/10");
    assert_eq!(
        dispatch_all(&mut controller, &names),
        "0/c/12 0/b/11 0/a/10"
    );
}

#[test]
fn a_request_that_may_wait_without_end_is_the_last_by_deadline() {
    let config = Config {
        default_band: mk_band(Fairness::GlobalStrict, Ordering::Edf),
        default_ttl: Duration::ZERO,
        ..Config::default()
    };
    let mut controller = Controller::new(config, Regime::Serving);
    let names = enqueue_all(&mut controller, "0/a 0/b/90");
    assert_eq!(dispatch_all(&mut controller, &names), "0/b/90 0/a");
}

#[test]
fn invented_flows_do_not_delay_one_that_waits() {
    let mut controller = mk_controller(Fairness::RoundRobin, Ordering::Fcfs);
    let first = controller.enqueue(mk_waiting(0, "m"), at(0)).unwrap();
    let second = controller.enqueue(mk_waiting(0, "m"), at(0)).unwrap();
    assert_eq!(controller.next(at(0), 0.0), Some(first));
    // Ids before and after it in any order; each round brings as many new ones as are served.
    let mut dispatched = BTreeSet::new();
    for round in 0..3 {
        for id in [format!("a{round}"), format!("z{round}")] {
            controller.enqueue(mk_waiting(0, &id), at(1)).unwrap();
        }
        dispatched.extend(controller.next(at(1), 0.0));
    }
    assert!(dispatched.contains(&second), "{dispatched:?}");
}

#[rstest]
#[case(0.0, true)]
#[case(0.999, true)]
#[case(1.0, false)]
#[case(7.5, false)]
#[case(f64::NAN, false)]
#[case(f64::INFINITY, false)]
fn nothing_goes_to_a_saturated_pool(#[case] saturation: f64, #[case] goes: bool) {
    let mut controller = mk_controller(Fairness::GlobalStrict, Ordering::Fcfs);
    let ticket = controller.enqueue(mk_waiting(0, "a"), at(0)).unwrap();
    let want = goes.then_some(ticket);
    assert_eq!(controller.next(at(0), saturation), want);
}

#[rstest]
#[case::zero_band_requests(0, 100, None, None, &[10], Some(Full::BandRequests { priority: 0, limit: 0 }))]
#[case::band_requests(2, 100, None, None, &[10, 10, 10], Some(Full::BandRequests { priority: 0, limit: 2 }))]
#[case::band_bytes(9, 25, None, None, &[10, 10, 10], Some(Full::BandBytes { priority: 0, limit: 25 }))]
#[case::band_bytes_exact(9, 30, None, None, &[10, 10, 10], None)]
#[case::band_bytes_overflow(9, u64::MAX, None, None, &[1, u64::MAX], Some(Full::BandBytes { priority: 0, limit: u64::MAX }))]
#[case::requests(9, 100, Some(1), None, &[10, 10], Some(Full::Requests { limit: 1 }))]
#[case::bytes(9, 100, None, Some(15), &[10, 10], Some(Full::Bytes { limit: 15 }))]
#[case::bytes_exact(9, 100, Some(2), Some(20), &[10, 10], None)]
fn a_cap_refuses_the_first_that_exceeds_it(
    #[case] max_requests: u64,
    #[case] max_bytes: u64,
    #[case] all_requests: Option<u64>,
    #[case] all_bytes: Option<u64>,
    #[case] bytes: &[u64],
    #[case] want: Option<Full>,
) {
    let config = Config {
        default_band: BandConfig {
            max_requests,
            max_bytes,
            ..BandConfig::default()
        },
        max_requests: all_requests,
        max_bytes: all_bytes,
        ..Config::default()
    };
    let mut controller = Controller::new(config, Regime::Serving);
    let mut results: Vec<_> = bytes
        .iter()
        .map(|&bytes| {
            let waiting = mk_waiting(0, "a");
            controller.enqueue(Waiting { bytes, ..waiting }, at(0))
        })
        .collect();
    let last = results.pop().unwrap();
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    assert_eq!(last.err(), want);
}

#[test]
fn each_band_has_its_own_caps_and_the_total_may_not_overflow() {
    let config = Config {
        default_band: BandConfig {
            max_requests: 1,
            max_bytes: u64::MAX,
            ..BandConfig::default()
        },
        ..Config::default()
    };
    let mut controller = Controller::new(config, Regime::Serving);
    let mut enqueue = |priority, bytes| {
        let waiting = mk_waiting(priority, "a");
        controller.enqueue(Waiting { bytes, ..waiting }, at(0))
    };
    assert!(enqueue(0, u64::MAX - 1).is_ok());
    assert!(enqueue(1, 1).is_ok());
    assert_eq!(enqueue(2, 1), Err(Full::Bytes { limit: u64::MAX }));
    assert!(enqueue(2, 0).is_ok());
}

#[derive(Clone, Copy, Debug)]
enum Leave {
    Next,
    Cancel,
    Expire,
    Drain,
}

#[rstest]
fn a_place_is_free_as_soon_as_one_leaves(
    #[values(Leave::Next, Leave::Cancel, Leave::Expire, Leave::Drain)] leave: Leave,
    #[values(Fairness::GlobalStrict, Fairness::RoundRobin)] fairness: Fairness,
) {
    let config = Config {
        default_band: BandConfig {
            max_requests: 1,
            max_bytes: 10,
            fairness,
            ..BandConfig::default()
        },
        max_requests: Some(1),
        max_bytes: Some(10),
        ..Config::default()
    };
    let mut controller = Controller::new(config, Regime::Serving);
    let ticket = controller.enqueue(mk_waiting(0, "a"), at(0)).unwrap();
    let full = Full::BandRequests {
        priority: 0,
        limit: 1,
    };
    assert_eq!(controller.enqueue(mk_waiting(0, "a"), at(0)), Err(full));
    let left = match leave {
        Leave::Next => Vec::from_iter(controller.next(at(1), 0.0)),
        Leave::Cancel => Vec::from_iter(controller.cancel(ticket).then_some(ticket)),
        Leave::Expire => tickets(controller.expire(at(60))),
        Leave::Drain => controller.drain(),
    };
    assert_eq!(left, [ticket]);
    assert_eq!(controller.usage(), Usage::default());
    assert_eq!(controller.deadline(), None);
    assert_eq!(controller.bands().count(), 0);
    assert_eq!(controller.flows().count(), 0);
    let refill = controller.enqueue(mk_waiting(0, "a"), at(61)).unwrap();
    assert_ne!(refill, ticket);
    assert!(!controller.cancel(ticket));
    assert_eq!(controller.next(at(61), 0.0), Some(refill));
}

/// Seconds from the start until the time is over of a request that came at 10 and may wait 60 s for a
/// busy pool, 300 s for an empty one.
#[rstest]
#[case::serving(60, 300, &[], 70, Regime::Serving)]
#[case::empty(60, 300, &[(5, Regime::Empty)], 310, Regime::Empty)]
#[case::anew_when_endpoints_came(60, 300, &[(5, Regime::Empty), (200, Regime::Serving)], 260, Regime::Serving)]
#[case::within_the_longer(60, 300, &[(5, Regime::Empty), (290, Regime::Serving)], 310, Regime::Serving)]
#[case::longer_when_the_last_went(60, 300, &[(69, Regime::Empty)], 310, Regime::Empty)]
#[case::flapping_ends(60, 300, &[(60, Regime::Empty), (100, Regime::Serving), (150, Regime::Empty), (290, Regime::Serving), (300, Regime::Empty)], 310, Regime::Empty)]
#[case::same_regime_is_no_change(60, 300, &[(40, Regime::Serving)], 70, Regime::Serving)]
#[case::equal_times_gain_nothing(60, 60, &[(30, Regime::Empty)], 70, Regime::Empty)]
#[case::longer_is_serving(300, 60, &[(20, Regime::Empty), (79, Regime::Serving)], 310, Regime::Serving)]
#[case::no_end_in_the_other(60, 0, &[(20, Regime::Empty), (500, Regime::Serving)], 560, Regime::Serving)]
fn a_change_of_regime_starts_anew_within_the_longer(
    #[case] serving: u64,
    #[case] empty: u64,
    #[case] changes: &[(u64, Regime)],
    #[case] over: u64,
    #[case] regime: Regime,
) {
    let mut controller = Controller::new(mk_ttls(serving, empty), Regime::Serving);
    let (before, after): (Vec<_>, Vec<_>) = changes.iter().partition(|(second, _)| *second < 10);
    for (second, to) in before {
        controller.set_regime(to, at(second));
    }
    let ticket = controller.enqueue(mk_waiting(0, "a"), at(10)).unwrap();
    for (second, to) in after {
        controller.set_regime(to, at(second));
    }
    assert_eq!(controller.deadline(), Some(at(over)));
    let just_before = Moment::from_millis(over * 1_000 - 1);
    assert_eq!(controller.expire(just_before), []);
    assert_eq!(controller.expire(at(over)), [Expired { ticket, regime }]);
    assert_eq!(controller.expire(at(over)), []);
}

#[rstest]
#[case::none(60, None, Some(60))]
#[case::shorter(60, Some(5), Some(5))]
#[case::longer(60, Some(90), Some(60))]
#[case::zero_is_no_wish(60, Some(0), Some(60))]
#[case::without_end(0, None, None)]
#[case::wish_ends_it(0, Some(90), Some(90))]
fn a_client_can_shorten_its_wait(
    #[case] configured: u64,
    #[case] wish: Option<u64>,
    #[case] want: Option<u64>,
) {
    let config = Config {
        default_ttl: Duration::from_secs(configured),
        ..Config::default()
    };
    let mut controller = Controller::new(config, Regime::Serving);
    let mut waiting = mk_waiting(0, "a");
    waiting.ttl = wish.map(Duration::from_secs);
    controller.enqueue(waiting.clone(), at(0)).unwrap();
    assert_eq!(controller.deadline(), want.map(at));
    // What it waits for in an empty pool is another matter: the config alone decides.
    controller.drain();
    controller.set_regime(Regime::Empty, at(0));
    controller.enqueue(waiting, at(0)).unwrap();
    let empty = (configured > 0).then(|| at(configured));
    assert_eq!(controller.deadline(), empty);
}

#[test]
fn an_overdue_request_holds_its_place_but_is_not_dispatched() {
    let config = Config {
        max_requests: Some(1),
        ..Config::default()
    };
    let mut controller = Controller::new(config, Regime::Serving);
    let ticket = controller.enqueue(mk_waiting(0, "a"), at(0)).unwrap();
    assert_eq!(controller.next(at(60), 0.0), None);
    assert_eq!(controller.usage().requests, 1);
    assert_eq!(controller.deadline(), Some(at(60)));
    let full = Full::Requests { limit: 1 };
    assert_eq!(controller.enqueue(mk_waiting(0, "a"), at(60)), Err(full));
    // The regime at the time it was over counts, not the one when it is asked.
    controller.set_regime(Regime::Empty, at(61));
    let regime = Regime::Serving;
    assert_eq!(controller.expire(at(61)), [Expired { ticket, regime }]);
}

#[test]
fn an_overdue_request_can_be_cancelled_or_drained_instead() {
    let mut controller = mk_controller(Fairness::RoundRobin, Ordering::Fcfs);
    let cancelled = controller.enqueue(mk_waiting(0, "a"), at(0)).unwrap();
    let drained = controller.enqueue(mk_waiting(0, "a"), at(0)).unwrap();
    let waiting = controller.enqueue(mk_waiting(0, "a"), at(30)).unwrap();
    assert_eq!(controller.next(at(60), 1.0), None);
    assert!(controller.cancel(cancelled));
    assert_eq!(controller.drain(), [drained, waiting]);
    assert_eq!(controller.expire(at(600)), []);
    assert_eq!(controller.next(at(600), 0.0), None);
}

#[test]
fn the_earliest_to_end_is_reported_first() {
    let mut controller = mk_controller(Fairness::GlobalStrict, Ordering::Fcfs);
    let names = enqueue_all(&mut controller, "0/a 0/a/7 0/b/5");
    let mut expired = tickets(controller.expire(at(8)));
    assert_eq!(controller.deadline(), Some(at(60)));
    expired.extend(tickets(controller.expire(at(60))));
    let expired: Vec<_> = expired.iter().map(|ticket| &names[ticket]).collect();
    assert_eq!(expired, ["0/b/5", "0/a/7", "0/a"]);
}

#[test]
fn a_far_deadline_does_not_overflow() {
    let config = Config {
        default_ttl: Duration::MAX,
        no_endpoint_ttl: Some(Duration::MAX),
        ..Config::default()
    };
    let mut controller = Controller::new(config, Regime::Serving);
    controller.enqueue(mk_waiting(0, "a"), at(10)).unwrap();
    controller.set_regime(Regime::Empty, at(20));
    assert_eq!(controller.deadline(), Some(at(0) + Duration::MAX));
}

#[test]
fn a_reload_loses_nobody_and_refuses_new_ones() {
    let mut controller = Controller::new(mk_ttls(60, 60), Regime::Serving);
    let names = enqueue_all(&mut controller, "0/a 0/b 0/b");
    controller.reconfigure(Config {
        default_band: BandConfig {
            max_requests: 2,
            ..BandConfig::default()
        },
        ..mk_ttls(5, 5)
    });
    assert_eq!(controller.usage().requests, 3);
    assert_eq!(controller.deadline(), Some(at(60)));
    let refused = controller.enqueue(mk_waiting(0, "a"), at(3));
    let (priority, limit) = (0, 2);
    assert_eq!(refused, Err(Full::BandRequests { priority, limit }));
    assert_eq!(dispatch_all(&mut controller, &names), "0/a 0/b 0/b");
    controller.enqueue(mk_waiting(0, "a"), at(3)).unwrap();
    assert_eq!(controller.deadline(), Some(at(8)));
}

#[rstest]
#[case::to_turns(Fairness::RoundRobin, Ordering::Fcfs, "0/a/30 0/b/25 0/a/20")]
#[case::to_deadlines(Fairness::GlobalStrict, Ordering::Edf, "0/a/20 0/b/25 0/a/30")]
#[case::to_both(Fairness::RoundRobin, Ordering::Edf, "0/a/20 0/b/25 0/a/30")]
#[case::to_the_same(Fairness::GlobalStrict, Ordering::Fcfs, "0/a/30 0/a/20 0/b/25")]
fn a_reload_orders_those_who_wait(
    #[case] fairness: Fairness,
    #[case] ordering: Ordering,
    #[case] want: &str,
) {
    let mut controller = mk_controller(Fairness::GlobalStrict, Ordering::Fcfs);
    let names = enqueue_all(&mut controller, "0/a/30 0/a/20 0/b/25");
    controller.reconfigure(Config {
        default_band: mk_band(fairness, ordering),
        ..Config::default()
    });
    assert_eq!(dispatch_all(&mut controller, &names), want);
}

#[test]
fn a_reload_that_changes_nothing_keeps_the_turns() {
    let mut controller = mk_controller(Fairness::RoundRobin, Ordering::Fcfs);
    let names = enqueue_all(&mut controller, "0/a/30 0/a/31 0/b/32");
    let first = controller.next(at(0), 0.0).unwrap();
    assert_eq!(names[&first], "0/a/30");
    controller.reconfigure(Config {
        default_band: mk_band(Fairness::RoundRobin, Ordering::Fcfs),
        max_requests: Some(1),
        ..Config::default()
    });
    assert_eq!(dispatch_all(&mut controller, &names), "0/b/32 0/a/31");
}

#[test]
fn usage_is_known_by_band_and_flow() {
    let mut controller = mk_controller(Fairness::RoundRobin, Ordering::Fcfs);
    enqueue_all(&mut controller, "-1/x 4/b 4/a 4/b");
    let used = |requests| Usage {
        requests,
        bytes: 10 * requests,
    };
    assert_eq!(controller.usage(), used(4));
    let bands: Vec<_> = controller.bands().collect();
    assert_eq!(bands, [(4, used(3)), (-1, used(1))]);
    let flows: Vec<_> = controller
        .flows()
        .map(|flow| (flow.priority, &**flow.fairness_id, flow.usage))
        .collect();
    let want = [(4, "a", used(1)), (4, "b", used(2)), (-1, "x", used(1))];
    assert_eq!(flows, want);
}
