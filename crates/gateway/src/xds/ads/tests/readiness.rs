//! When an Envoy gets the route table that makes it ready.

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
    let mut ads = Ads::new(DELAY, BTreeSet::new());
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
        let mut ads = Ads::new(DELAY, BTreeSet::new());
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
    let mut ads = Ads::new(DELAY, BTreeSet::new());
    ads.on(subscribe(Kind::Routes, &[READY]), ms(0));
    let effects = ads.on(Input::Snapshot(Arc::default()), ms(0));
    assert_eq!(brief(&effects), ["rds +ready"]);
}

/// Envoy counts an answer that it refuses as one, and an empty one too.
#[test]
fn an_envoy_without_an_edge_is_not_ready() {
    let snapshot = mk_snapshot(&[], "x");
    let mut refusing = Ads::new(DELAY, BTreeSet::new());
    refusing.on(Input::Snapshot(Arc::clone(&snapshot)), ms(0));
    let (_, effects) = start(&mut refusing);
    let effects = refusing.on(answer(sent(&effects)[0], Some("bad listener")), ms(1));
    assert_eq!(brief(&effects), Vec::<String>::new());

    let version = snapshot.listeners[EDGE].version;
    let withheld = BTreeSet::from([(Kind::Listener, EDGE.to_owned(), version)]);
    let mut spared = Ads::new(DELAY, withheld);
    spared.on(Input::Snapshot(snapshot), ms(0));
    let (mut envoy, effects) = start(&mut spared);
    envoy.run(&mut spared, effects, ms(0));
    assert_eq!(envoy.log, ["cds", "lds"]);

    let mut mended = (*mk_snapshot(&[], "x")).clone();
    let listener = mk_resource("mended", false);
    mended.listeners.insert(EDGE.into(), listener);
    let mended = Arc::new(mended);
    for ads in [&mut refusing, &mut spared] {
        assert_eq!(
            brief(&ads.on(Input::Tick, ms(60_000))),
            Vec::<String>::new()
        );
        let mut envoy = Obedient::default();
        let effects = ads.on(Input::Snapshot(Arc::clone(&mended)), ms(70_000));
        envoy.run(ads, effects, ms(70_001));
        let expected = ["lds +edge/80", "rds +edge/80", "rds +ready"];
        assert_eq!(envoy.log, expected);
    }
}

/// An edge whose table is refused answers 404 alone.
#[test]
fn an_edge_without_its_table_is_none() {
    let mut ads = Ads::new(DELAY, BTreeSet::new());
    ads.on(Input::Snapshot(mk_snapshot(&[], "x")), ms(0));
    let (_, effects) = start(&mut ads);
    let listeners = sent(&effects)[0].clone();
    let effects = ads.on(subscribe(Kind::Routes, &[EDGE]), ms(1));
    assert_eq!(brief(&effects), ["rds +edge/80"]);
    ads.on(answer(&listeners, None), ms(1));
    let effects = ads.on(answer(sent(&effects)[0], Some("bad route")), ms(2));
    assert_eq!(brief(&effects), Vec::<String>::new());
    assert_eq!(
        brief(&ads.on(Input::Tick, ms(60_000))),
        Vec::<String>::new()
    );
}
