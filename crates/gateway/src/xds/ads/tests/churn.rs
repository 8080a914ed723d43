//! What changes faster than an Envoy acknowledges it.

use super::*;

/// Pods come and go faster than this Envoy acknowledges their assignments.
#[test]
fn assignments_that_change_fast_do_not_hold_back_hops_listeners_and_routes() {
    let (clusters, import) = (("a", "1"), ("import/ns/x", "1"));
    let mut ads = mk_settled(&mk_snapshot(&[clusters, import], "x"));
    let mut next = (*mk_snapshot(&[clusters, import], "x")).clone();
    for kind in [&mut next.listeners, &mut next.routes] {
        kind.insert("edge/443".to_owned(), mk_resource("new", false));
    }
    let table = mk_resource("a", false);
    next.routes.insert("edge/80".to_owned(), table);
    let mut log = Vec::new();
    let mut unanswered: Vec<Response> = Vec::new();
    for round in 0..30_u64 {
        for name in ["a", "import/ns/x"] {
            let hosts = mk_resource(&format!("{round} of {name}"), false);
            next.endpoints.insert(name.to_owned(), hosts);
        }
        let mut effects = ads.on(Input::Snapshot(Arc::new(next.clone())), ms(100 * round));
        // the answer comes when there is something newer already
        for response in std::mem::take(&mut unanswered) {
            let at = ms(100 * round + 50);
            effects.extend(ads.on(answer(&response, None), at));
            if response.kind == Kind::Listener {
                effects.extend(ads.on(subscribe(Kind::Routes, &["edge/443"]), at));
            }
        }
        let responses = sent(&effects);
        let (hosts, others): (Vec<_>, Vec<_>) = brief(&effects)
            .into_iter()
            .partition(|line| line.starts_with("eds"));
        log.extend(others);
        unanswered.extend(responses.into_iter().cloned());
        // the first ones wait for the listener and its table, which come before
        let are_in_time = round < 4 || hosts == ["eds +a +import/ns/x"];
        assert!(are_in_time, "hosts of hops in round {round}: {hosts:?}");
        assert!(
            unanswered.iter().any(|one| one.kind == Kind::Endpoints),
            "assignments are always on their way"
        );
    }
    assert_eq!(log, ["lds +edge/443", "rds +edge/443", "rds +edge/80"]);
}

/// A pool flips between two clusters faster than this Envoy acknowledges them.
#[test]
fn a_cluster_that_changes_fast_does_not_hold_back_listeners_and_routes() {
    let mut ads = mk_settled(&mk_snapshot(&[("a", "1")], "x"));
    let mut log = Vec::new();
    let mut unanswered: Vec<Response> = Vec::new();
    for round in 0..30_u64 {
        let content = format!("flip {}", round % 2);
        let mut next = (*mk_snapshot(&[("a", &content)], "x")).clone();
        next.routes
            .insert("edge/80".to_owned(), mk_resource("new", false));
        next.listeners
            .insert("edge/80".to_owned(), mk_resource("new", false));
        let mut effects = ads.on(Input::Snapshot(Arc::new(next)), ms(500 * round));
        for response in std::mem::take(&mut unanswered) {
            effects.extend(ads.on(answer(&response, None), ms(500 * round + 400)));
        }
        let others = brief(&effects).into_iter();
        log.extend(others.filter(|line| !line.starts_with("eds") && !line.starts_with("cds")));
        unanswered.extend(sent(&effects).into_iter().cloned());
    }
    assert_eq!(log, ["lds +edge/80", "rds +edge/80"]);
}

/// There are always more of other versions than a response has room for.
#[test]
fn new_clusters_come_before_other_versions() {
    let names: Vec<String> = (0..=BATCH).map(|n| format!("c{n:04}")).collect();
    let of = |content: &'static str| names.iter().map(move |name| (name.as_str(), content));
    let mut ads = mk_settled(&mk_snapshot(&of("1").collect::<Vec<_>>(), "x"));
    let changed: Vec<(&str, &str)> = of("2").chain([("new", "1")]).collect();
    let effects = ads.on(Input::Snapshot(mk_snapshot(&changed, "x")), ms(1));
    let first = sent(&effects)[0];
    assert_eq!(first.resources.len(), BATCH);
    assert!(first.resources.iter().any(|(name, _)| name == "new"));
}

/// Pods change more assignments than a response has room for.
#[test]
fn hosts_that_are_hops_come_before_other_hosts() {
    let names: Vec<String> = (0..=BATCH).map(|n| format!("c{n:04}")).collect();
    let clusters = names.iter().map(|name| (name.as_str(), "1"));
    let clusters: Vec<(&str, &str)> = clusters.chain([("import/ns/x", "1")]).collect();
    let mut ads = mk_settled(&mk_snapshot(&clusters, "x"));
    let effects = ads.on(Input::Snapshot(mk_snapshot(&clusters, "y")), ms(1));
    let first = sent(&effects)[0];
    assert_eq!(first.resources.len(), BATCH);
    let mut hosts = first.resources.iter();
    assert!(hosts.any(|(name, _)| name == "import/ns/x"));
}
