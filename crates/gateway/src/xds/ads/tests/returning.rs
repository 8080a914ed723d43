//! What the snapshot has again before Envoy has answered its removal.

use super::*;

const NOTHING: [&str; 0] = [];

#[test]
fn cluster_that_returns_during_its_removal_is_sent_before_its_routes() {
    let both = mk_snapshot(&[("a", "1"), ("b", "1")], "x");
    let mut ads = mk_settled(&both);
    let effects = ads.on(Input::Snapshot(mk_snapshot(&[("a", "1")], "x")), ms(0));
    Obedient::default().run(&mut ads, effects, ms(0));
    let removal = ads.on(Input::Tick, ms(30_000));
    assert_eq!(brief(&removal), ["cds -b"]);
    assert_eq!(
        brief(&ads.on(Input::Snapshot(both), ms(30_001))),
        NOTHING,
        "a route to a cluster that is not there"
    );
    let effects = ads.on(answer(sent(&removal)[0], None), ms(30_002));
    let mut envoy = Obedient::default();
    envoy.run(&mut ads, effects, ms(30_002));
    assert_eq!(envoy.log, ["cds +b", "eds +b", "rds +edge/80"]);
}

/// An import whose assignment leads to this hop alone.
fn mk_import(hop: &str) -> Arc<Snapshot> {
    let mut snapshot = (*mk_snapshot(&[("import/ns/x", "1")], "x")).clone();
    for kind in [&mut snapshot.listeners, &mut snapshot.routes] {
        kind.insert(hop.to_owned(), mk_resource("", false));
    }
    let hosts = mk_resource(hop, false);
    snapshot.endpoints.insert("import/ns/x".to_owned(), hosts);
    Arc::new(snapshot)
}

#[test]
fn hop_that_returns_during_its_removal_is_sent_before_the_assignment_that_leads_there() {
    let (first, second) = ("hop/ns/x/a", "hop/ns/x/b");
    let mut ads = mk_settled(&mk_import(first));
    let listener = ads.on(Input::Snapshot(mk_import(second)), ms(1));
    assert_eq!(brief(&listener), ["lds +hop/ns/x/b"]);
    let table = ads.on(subscribe(Kind::Routes, &[second]), ms(2));
    assert_eq!(brief(&table), ["rds +hop/ns/x/b"]);
    ads.on(answer(sent(&listener)[0], None), ms(3));
    let hosts = ads.on(answer(sent(&table)[0], None), ms(4));
    assert_eq!(brief(&hosts), ["eds +import/ns/x"]);
    let removal = ads.on(answer(sent(&hosts)[0], None), ms(5));
    assert_eq!(brief(&removal), ["lds -hop/ns/x/a"]);
    let early = ads.on(Input::Snapshot(mk_import(first)), ms(6));
    assert_eq!(brief(&early), NOTHING, "an assignment to no listener");
    let listener = ads.on(answer(sent(&removal)[0], None), ms(7));
    assert_eq!(brief(&listener), ["lds +hop/ns/x/a"]);
    let table = ads.on(subscribe(Kind::Routes, &[first]), ms(8));
    assert_eq!(brief(&table), ["rds +hop/ns/x/a"]);
    ads.on(answer(sent(&listener)[0], None), ms(9));
    let hosts = ads.on(answer(sent(&table)[0], None), ms(10));
    assert_eq!(brief(&hosts), ["eds +import/ns/x"]);
}

#[test]
fn edge_that_returns_during_its_removal_is_not_served() {
    let without = mk_snapshot(&[], "x");
    let mut with = (*without).clone();
    for kind in [&mut with.listeners, &mut with.routes] {
        kind.insert("edge/443".to_owned(), mk_resource("", false));
    }
    let with = Arc::new(with);
    let mut ads = mk_settled(&with);
    assert!(ads.may_be_ready());
    let removal = ads.on(Input::Snapshot(without), ms(1));
    assert_eq!(brief(&removal), ["lds -edge/443"]);
    ads.on(Input::Snapshot(with), ms(2));
    assert!(!ads.may_be_ready());
    let listener = ads.on(answer(sent(&removal)[0], None), ms(3));
    assert_eq!(brief(&listener), ["lds +edge/443"]);
}
