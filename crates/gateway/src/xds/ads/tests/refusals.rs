//! What Envoy refuses: quarantined, tried again or looked for, and what it serves on meanwhile.

use super::*;

fn refused(effects: &[Effect]) -> Vec<&Refusal> {
    let refusals = effects.iter().filter_map(|effect| match effect {
        Effect::Refused(refusal) => Some(refusal),
        Effect::Send(_) | Effect::Recovered(..) => None,
    });
    refusals.collect()
}

#[test]
fn named_resource_is_quarantined_and_the_others_taken_as_applied() {
    let mut ads = mk_settled(&mk_snapshot(&[], "x"));
    let effects = ads.on(
        Input::Snapshot(mk_snapshot(&[("a", "1"), ("b", "1")], "x")),
        ms(1),
    );
    let clusters = sent(&effects)[0].clone();
    let text = "Error adding/updating cluster(s) b: bad thing";
    let effects = ads.on(answer(&clusters, Some(text)), ms(2));
    let Some(Effect::Refused(refusal)) = effects.first() else {
        panic!("{effects:?}")
    };
    assert_eq!((refusal.kind, refusal.name.as_str()), (Kind::Cluster, "b"));
    assert!(ads.acknowledged(Kind::Cluster).contains_key("a"));
    // Never again unchanged on this stream; the next one is asked anew, and changed it is sent.
    let mut next = Ads::new(DELAY);
    next.on(
        Input::Snapshot(mk_snapshot(&[("a", "1"), ("b", "1")], "x")),
        ms(0),
    );
    assert_eq!(
        brief(&next.on(subscribe(Kind::Cluster, &[]), ms(0))),
        ["cds +a +b"]
    );
    let effects = ads.on(
        Input::Snapshot(mk_snapshot(&[("a", "1"), ("b", "2")], "x")),
        ms(3),
    );
    assert_eq!(brief(&effects), ["cds +b"]);
}

#[test]
fn unnamed_refusal_is_found_by_sending_one_by_one() {
    let mut ads = mk_settled(&mk_snapshot(&[], "x"));
    let all = mk_snapshot(&[("a", "1"), ("b", "bad"), ("c", "1")], "x");
    let mut effects = ads.on(Input::Snapshot(all), ms(1));
    let mut log = Vec::new();
    let mut refused = Vec::new();
    for _ in 0..10 {
        log.extend(brief(&effects));
        let Some(response) = sent(&effects)
            .into_iter()
            .find(|r| r.kind == Kind::Cluster)
            .cloned()
        else {
            break;
        };
        let bad = response.resources.iter().any(|(name, _)| name == "b");
        effects = ads.on(
            answer(&response, bad.then_some("something is wrong")),
            ms(2),
        );
        refused.extend(effects.iter().filter_map(|effect| match effect {
            Effect::Refused(refusal) => Some(refusal.name.clone()),
            Effect::Send(_) | Effect::Recovered(..) => None,
        }));
    }
    assert_eq!(log, ["cds +a +b +c", "cds +a", "cds +b", "cds +c"]);
    assert_eq!(refused, ["b"]);
}

/// Envoy takes clusters one after the other; a response with anything that breaks a rule of the
/// schema, and one of routes or endpoints, may be lost as a whole.
#[test]
fn rest_of_a_refused_response_is_sent_again_where_envoy_may_have_dropped_it() {
    let all = [("a", "1"), ("b", "1"), ("c", "1")];
    let mut ads = mk_settled(&mk_snapshot(&all, "x"));
    let effects = ads.on(Input::Snapshot(mk_snapshot(&all, "y")), ms(1));
    assert_eq!(brief(&effects), ["eds +a +b +c"]);
    let text = "cluster b: bad address";
    let effects = ads.on(answer(sent(&effects)[0], Some(text)), ms(2));
    assert_eq!(refused(&effects)[0].name, "b");
    assert_eq!(brief(&effects), ["eds +a"]);
    let effects = ads.on(answer(sent(&effects)[0], None), ms(3));
    assert_eq!(brief(&effects), ["eds +c"]);
    ads.on(answer(sent(&effects)[0], None), ms(4));
    assert!(ads.is_current());

    let changed = [("a", "2"), ("b", "2")];
    let mut ads = mk_settled(&mk_snapshot(&[("a", "1"), ("b", "1")], "x"));
    let effects = ads.on(Input::Snapshot(mk_snapshot(&changed, "x")), ms(1));
    let clusters = sent(&effects)[0].clone();
    let text = "Proto constraint validation failed (ClusterValidationError.Name): b";
    let effects = ads.on(answer(&clusters, Some(text)), ms(2));
    assert_eq!(refused(&effects)[0].name, "b");
    assert!(
        brief(&effects).contains(&"cds +a".to_owned()),
        "{effects:?}"
    );
}

/// Sent again because its cluster changed: the version is one that Envoy has.
#[test]
fn assignment_in_a_refused_response_is_pushed_again_for_its_cluster() {
    let mut ads = mk_settled(&mk_snapshot(&[("a", "1"), ("b", "1")], "x"));
    let mut next = (*mk_snapshot(&[("a", "2"), ("b", "1")], "x")).clone();
    next.endpoints.insert("b".into(), mk_resource("bad", false));
    let effects = ads.on(Input::Snapshot(Arc::new(next)), ms(1));
    assert_eq!(brief(&effects), ["cds +a", "eds +a +b"]);
    let effects = ads.on(answer(sent(&effects)[1], Some("b: bad")), ms(2));
    assert_eq!(brief(&effects), ["eds +a"]);
}

#[test]
fn nothing_goes_that_a_refused_table_may_use_in_its_older_version() {
    let mut ads = mk_settled(&mk_snapshot(&[("a", "1"), ("b", "1")], "x"));
    let effects = ads.on(Input::Snapshot(mk_snapshot(&[("a", "1")], "x")), ms(0));
    assert_eq!(brief(&effects), ["rds +edge/80"]);
    let effects = ads.on(answer(sent(&effects)[0], Some("bad route")), ms(1));
    assert_eq!(refused(&effects)[0].name, "edge/80");
    for at in [30_000, 60_000, 3_600_000] {
        assert_eq!(brief(&ads.on(Input::Tick, ms(at))), Vec::<String>::new());
    }
    // A table that Envoy takes ends that, and the delay begins.
    let mut mended = (*mk_snapshot(&[("a", "1")], "x")).clone();
    mended
        .routes
        .insert("edge/80".into(), mk_resource("mended,a", false));
    let effects = ads.on(Input::Snapshot(Arc::new(mended)), ms(4_000_000));
    assert_eq!(brief(&effects), ["rds +edge/80"]);
    assert_eq!(
        brief(&ads.on(answer(sent(&effects)[0], None), ms(4_000_001))),
        Vec::<String>::new()
    );
    assert_eq!(brief(&ads.on(Input::Tick, ms(4_030_000))), ["cds -b"]);
}

/// An Envoy that connects again asks for listeners before it asks for their tables, of which it serves an older one.
#[test]
fn nothing_goes_on_a_new_stream_that_a_refused_table_may_use() {
    let hop = "hop/ns/x/@pool";
    let mut old = (*mk_snapshot(&[("hopped/ns/x", "1")], "hop")).clone();
    old.listeners.insert(hop.into(), mk_resource("hop", false));
    old.routes.insert(hop.into(), mk_resource("", false));
    let new = mk_snapshot(&[], "x");
    let mut ads = Ads::new(DELAY);
    ads.on(Input::Snapshot(new), ms(0));
    let mut log = Vec::new();
    for (kind, names) in [
        (Kind::Cluster, &[][..]),
        (Kind::Endpoints, &["hopped/ns/x"]),
        (Kind::Listener, &[]),
        (Kind::Routes, &["edge/80", hop]),
    ] {
        let Input::Request(mut request) = subscribe(kind, names) else {
            continue;
        };
        let held = old.of(kind).iter();
        let held = held.map(|(name, resource)| (name.clone(), resource.version));
        request.initial = held.collect();
        let effects = ads.on(Input::Request(request), ms(1));
        log.extend(brief(&effects));
        if kind == Kind::Routes {
            let effects = ads.on(answer(sent(&effects)[0], Some("edge/80: bad")), ms(2));
            assert_eq!(refused(&effects).len(), 1);
            log.extend(brief(&effects));
        }
    }
    log.extend(brief(&ads.on(Input::Tick, ms(3_600_000))));
    // the first answers of both wildcards are empty
    assert_eq!(log, ["cds", "lds", "rds +edge/80"]);
}

#[test]
fn no_hop_goes_while_its_import_is_refused() {
    let hop = "hop/ns/x/east";
    let mut one = (*mk_snapshot(&[("import/ns/x", "1")], "one hop")).clone();
    one.listeners.insert(hop.into(), mk_resource("hop", false));
    one.routes.insert(hop.into(), mk_resource("", false));
    let mut ads = mk_settled(&Arc::new(one));
    let none = mk_snapshot(&[("import/ns/x", "1")], "no hop");
    let effects = ads.on(Input::Snapshot(none), ms(0));
    assert_eq!(brief(&effects), ["eds +import/ns/x"]);
    let effects = ads.on(answer(sent(&effects)[0], Some("bad")), ms(1));
    assert_eq!(brief(&effects), Vec::<String>::new());
    assert_eq!(
        brief(&ads.on(Input::Tick, ms(60_000))),
        Vec::<String>::new()
    );
    // Once there is an assignment that Envoy takes, the hop goes.
    let none = mk_snapshot(&[("import/ns/x", "1")], "no hop at all");
    let effects = ads.on(Input::Snapshot(none), ms(70_000));
    let effects = ads.on(answer(sent(&effects)[0], None), ms(70_001));
    assert_eq!(brief(&effects), ["lds -hop/ns/x/east"]);
}

/// Port 80 binds 10080; a listener on 10080 takes over from it.
#[test]
fn listener_whose_port_is_not_free_yet_is_tried_again() {
    let mut ads = mk_settled(&mk_snapshot(&[], "x"));
    let mut next = Snapshot::default();
    let name = "edge/10080";
    next.listeners
        .insert(name.into(), mk_resource("new", false));
    next.routes.insert(name.into(), mk_resource("", false));
    let effects = ads.on(Input::Snapshot(Arc::new(next)), ms(0));
    assert_eq!(brief(&effects), ["lds +edge/10080"]);
    let text = "Error adding/updating listener(s) edge/10080: error adding listener: 'edge/10080' has duplicate \
                address '0.0.0.0:10080' as existing listener";
    let effects = ads.on(answer(sent(&effects)[0], Some(text)), ms(1));
    assert!(refused(&effects)[0].passing);
    // Meanwhile the other one goes.
    assert_eq!(brief(&effects), ["lds -edge/80"]);
    ads.on(answer(sent(&effects)[0], None), ms(2));
    assert_eq!(ads.wake_at(ms(3)), Some(ms(101)));
    let effects = ads.on(Input::Tick, ms(101));
    assert_eq!(brief(&effects), ["lds +edge/10080"]);
    let effects = ads.on(answer(sent(&effects)[0], Some(text)), ms(102));
    assert_eq!(brief(&effects), Vec::<String>::new());
    assert_eq!(ads.wake_at(ms(103)), Some(ms(302)));
    let effects = ads.on(Input::Tick, ms(302));
    let effects = ads.on(answer(sent(&effects)[0], None), ms(303));
    assert!(
        matches!(&effects[0], Effect::Recovered(Kind::Listener, done, _) if done == name),
        "{effects:?}"
    );
    assert_eq!(ads.wake_at(ms(304)), None);
}
