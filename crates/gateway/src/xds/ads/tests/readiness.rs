//! When an Envoy gets the route table that makes it ready.

use std::collections::BTreeSet;

use rstest::rstest;

use super::*;
use crate::xds::ads::ready::READY;

const EDGE: &str = "edge/80";

/// The requests of an Envoy that starts: the table of the bootstrap's listener, all clusters and all listeners.
fn start(ads: &mut Ads) -> (Obedient, Vec<Effect>) {
    let mut envoy = Obedient::default();
    let effects = ads.on(subscribe(Kind::Routes, &[READY]), ms(0));
    assert_eq!(brief(&effects), Vec::<String>::new());
    let effects = ads.on(subscribe(Kind::Cluster, &[]), ms(0));
    envoy.run(ads, effects, ms(0));
    let effects = ads.on(subscribe(Kind::Listener, &[]), ms(0));
    (envoy, effects)
}

#[test]
fn the_table_comes_after_that_of_an_edge() {
    let mut ads = Ads::new(DELAY);
    ads.on(Input::Snapshot(mk_snapshot(&[("a", "1")], "x")), ms(0));
    let (mut envoy, effects) = start(&mut ads);
    envoy.run(&mut ads, effects, ms(0));
    let expected = [
        "cds +a",
        "eds +a",
        "lds +edge/80",
        "rds +edge/80",
        "rds +ready",
    ];
    assert_eq!(envoy.log, expected);
    assert!(ads.is_current());
}

/// Filter chains of HTTPS have tables of their own.
#[test]
fn a_table_of_a_chain_is_one_of_its_edge() {
    let mut snapshot = (*mk_snapshot(&[], "x")).clone();
    snapshot.listeners = BTreeMap::from([("edge/443".to_owned(), mk_resource("edge", false))]);
    for (table, is_its_own) in [("edge/443/*.b", true), ("edge/4430/*.b", false)] {
        snapshot.routes = BTreeMap::from([(table.to_owned(), mk_resource("table", false))]);
        let mut ads = Ads::new(DELAY);
        ads.on(Input::Snapshot(Arc::new(snapshot.clone())), ms(0));
        let (_, effects) = start(&mut ads);
        ads.on(answer(sent(&effects)[0], None), ms(1));
        let effects = ads.on(subscribe(Kind::Routes, &[table]), ms(2));
        let effects = ads.on(answer(sent(&effects)[0], None), ms(3));
        let expected: &[&str] = if is_its_own { &["rds +ready"] } else { &[] };
        assert_eq!(brief(&effects), expected, "{table}");
    }
}

#[test]
fn a_gateway_without_listeners_keeps_no_envoy_waiting() {
    let mut ads = Ads::new(DELAY);
    ads.on(subscribe(Kind::Routes, &[READY]), ms(0));
    let effects = ads.on(Input::Snapshot(Arc::default()), ms(0));
    assert_eq!(brief(&effects), ["rds +ready"]);
}

/// Envoy counts an answer that it refuses as one, and an empty one too.
#[test]
fn an_envoy_without_an_edge_is_not_ready() {
    let mut ads = Ads::new(DELAY);
    ads.on(Input::Snapshot(mk_snapshot(&[], "x")), ms(0));
    let (_, effects) = start(&mut ads);
    let effects = ads.on(answer(sent(&effects)[0], Some("bad listener")), ms(1));
    assert_eq!(brief(&effects), Vec::<String>::new());
    assert_eq!(
        brief(&ads.on(Input::Tick, ms(600_000))),
        Vec::<String>::new()
    );
    let mut mended = (*mk_snapshot(&[], "x")).clone();
    mended
        .listeners
        .insert(EDGE.into(), mk_resource("mended", false));
    let mut envoy = Obedient::default();
    let effects = ads.on(Input::Snapshot(Arc::new(mended)), ms(700_000));
    envoy.run(&mut ads, effects, ms(700_001));
    let expected = ["lds +edge/80", "rds +edge/80", "rds +ready"];
    assert_eq!(envoy.log, expected);
}

/// An edge whose table is refused answers 404 alone.
#[test]
fn an_edge_without_its_table_is_none() {
    let mut ads = Ads::new(DELAY);
    ads.on(Input::Snapshot(mk_snapshot(&[], "x")), ms(0));
    let (_, effects) = start(&mut ads);
    let listeners = sent(&effects)[0].clone();
    let effects = ads.on(subscribe(Kind::Routes, &[EDGE]), ms(1));
    assert_eq!(brief(&effects), ["rds +edge/80"]);
    ads.on(answer(&listeners, None), ms(1));
    let effects = ads.on(answer(sent(&effects)[0], Some("bad route")), ms(2));
    assert_eq!(brief(&effects), Vec::<String>::new());
    assert_eq!(
        brief(&ads.on(Input::Tick, ms(600_000))),
        Vec::<String>::new()
    );
}

fn served(edges: &[&str]) -> Input {
    let edges: BTreeSet<String> = edges.iter().map(ToString::to_string).collect();
    Input::Served(Arc::new(edges))
}

/// A stream whose Envoy takes the edge of port 80 and refuses that of 443, in the second 1, where others serve these.
fn mk_half(others: &[&str]) -> Ads {
    let mut snapshot = (*mk_snapshot(&[], "x")).clone();
    for kind in [&mut snapshot.listeners, &mut snapshot.routes] {
        kind.insert("edge/443".to_owned(), mk_resource("tls", false));
    }
    let mut ads = Ads::new(DELAY);
    ads.on(served(others), ms(0));
    ads.on(Input::Snapshot(Arc::new(snapshot)), ms(0));
    let (_, effects) = start(&mut ads);
    assert_eq!(brief(&effects), ["lds +edge/443 +edge/80"]);
    let listeners = sent(&effects)[0].clone();
    let effects = ads.on(subscribe(Kind::Routes, &[EDGE]), ms(1));
    let table = sent(&effects)[0].clone();
    let text = "Error adding/updating listener(s) edge/443: bad";
    ads.on(answer(&listeners, Some(text)), ms(2));
    assert_eq!(brief(&ads.on(answer(&table, None), ms(3))), [] as [&str; 0]);
    ads
}

/// What others serve when the Envoy has refused an edge, what happens then, and whether it is ready after that.
#[rstest]
#[case::at_once(&[], Input::Tick, 1_000, false)]
#[case::alone(&[], Input::Tick, 30_000, true)]
#[case::others_serve_no_more(&[EDGE], Input::Tick, 30_000, true)]
#[case::others_serve_it(&[EDGE, "edge/443"], Input::Tick, 3_600_000, false)]
#[case::others_served_it(&["edge/443"], served(&[EDGE]), 30_000, true)]
#[case::others_come_to_serve_it(&[], served(&["edge/443"]), 30_000, false)]
#[case::others_serve_what_is_gone(&["edge/8080"], Input::Tick, 30_000, true)]
fn an_envoy_that_refuses_an_edge_is_ready_where_no_other_serves_it(
    #[case] others: &[&str],
    #[case] event: Input,
    #[case] at: u64,
    #[case] is_ready: bool,
) {
    let mut ads = mk_half(others);
    assert_eq!(ads.wake_at(ms(3)), Some(ms(30_000)));
    let expected: &[&str] = if is_ready { &["rds +ready"] } else { &[] };
    assert_eq!(brief(&ads.on(event, ms(at))), expected);
    assert!(!ads.is_ready(), "it has not answered yet");
}

/// When streams of Envoys with a former certificate were denied, in seconds, and when the Envoy that refuses an edge is ready.
#[rstest]
#[case::before_the_stream(&[0], 45)]
#[case::once(&[20], 65)]
#[case::again(&[20, 50], 95)]
#[case::after_its_patience(&[31], 30)]
#[case::all_the_time(&[0, 30, 60, 90, 120, 150, 180, 210, 240, 270, 299], 300)]
fn an_envoy_that_refuses_an_edge_waits_for_those_that_were_denied(
    #[case] denied: &[u64],
    #[case] expected: u64,
) {
    let mut ads = mk_half(&[]);
    let mut denied = denied.iter().map(|second| second * 1_000).peekable();
    let mut ready = None;
    let mut now = 3;
    while ready.is_none() {
        let next = denied.peek().copied().unwrap_or(u64::MAX);
        let wake = ads.wake_at(ms(now)).map(|at| at.since(ms(0)).as_millis());
        let wake = wake
            .and_then(|at| u64::try_from(at).ok())
            .expect("it wakes");
        let input = if next <= wake {
            denied.next();
            now = now.max(next);
            Input::Denied(ms(next))
        } else {
            now = wake;
            Input::Tick
        };
        if !brief(&ads.on(input, ms(now))).is_empty() {
            ready = Some(now);
        }
    }
    assert_eq!(ready, Some(expected * 1_000));
}

/// One that was denied comes back, and serves the edge.
#[test]
fn an_envoy_that_comes_back_with_the_edge_keeps_others_waiting() {
    let mut ads = mk_half(&[]);
    ads.on(Input::Denied(ms(10_000)), ms(10_000));
    ads.on(Input::Tick, ms(30_000));
    ads.on(served(&["edge/443"]), ms(50_000));
    assert_eq!(brief(&ads.on(Input::Tick, ms(3_600_000))), [] as [&str; 0]);
}

/// Two Envoys that each refuse what the other takes do not wait for each other: what counts is what ready ones serve.
#[test]
fn an_envoy_tells_what_it_serves_once_it_is_ready() {
    let mut ads = mk_half(&[]);
    assert_eq!(ads.report().served, BTreeSet::new());
    let effects = ads.on(Input::Tick, ms(30_000));
    let report = ads.report();
    assert_eq!(report.served, BTreeSet::new());
    assert_eq!(report.acknowledged.len(), 0, "nothing has changed");
    ads.on(answer(sent(&effects)[0], None), ms(30_001));
    let report = ads.report();
    assert_eq!(report.served, BTreeSet::from([EDGE.to_owned()]));
    assert_eq!(report.acknowledged.len(), 1);
    assert_eq!(ads.wake_at(ms(30_002)), None);
}

/// The listener is of an older version, which is served on.
#[test]
fn an_envoy_serves_an_edge_in_an_older_version_too() {
    let mut ads = Ads::new(DELAY);
    ads.on(Input::Snapshot(mk_snapshot(&[], "x")), ms(0));
    let (mut envoy, effects) = start(&mut ads);
    envoy.run(&mut ads, effects, ms(1));
    let mut spoiled = (*mk_snapshot(&[], "x")).clone();
    spoiled
        .listeners
        .insert(EDGE.into(), mk_resource("bad", false));
    let effects = ads.on(Input::Snapshot(Arc::new(spoiled)), ms(2));
    ads.on(answer(sent(&effects)[0], Some("bad listener")), ms(3));
    assert_eq!(ads.report().served, BTreeSet::from([EDGE.to_owned()]));
}
