//! The protocol step by step.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::*;

mod churn;
mod random;
mod readiness;
mod refusals;
mod returning;
mod wire;

const DELAY: Duration = Duration::from_secs(30);

/// Content and, for route tables and imports, the names it leads to.
fn mk_resource(content: &str, needs_endpoints: bool) -> Arc<Resource> {
    let bytes = Bytes::copy_from_slice(content.as_bytes());
    Arc::new(Resource {
        version: xxhash_rust::xxh3::xxh3_64(&bytes),
        bytes,
        needs_endpoints,
    })
}

/// Clusters by name and content, each with an assignment; one edge that routes to all of them.
fn mk_snapshot(clusters: &[(&str, &str)], endpoints: &str) -> Arc<Snapshot> {
    let mut snapshot = Snapshot::default();
    for (name, content) in clusters {
        snapshot
            .clusters
            .insert((*name).into(), mk_resource(content, true));
        let hosts = mk_resource(&format!("{endpoints} of {name}"), false);
        snapshot.endpoints.insert((*name).into(), hosts);
    }
    let names: Vec<&str> = clusters.iter().map(|(name, _)| *name).collect();
    snapshot
        .listeners
        .insert("edge/80".into(), mk_resource("edge", false));
    snapshot
        .routes
        .insert("edge/80".into(), mk_resource(&names.join(","), false));
    Arc::new(snapshot)
}

fn ms(millis: u64) -> Moment {
    Moment::from_millis(millis)
}

fn subscribe(kind: Kind, names: &[&str]) -> Input {
    Input::Request(Request {
        kind: Some(kind),
        subscribe: names.iter().map(ToString::to_string).collect(),
        ..Request::default()
    })
}

fn answer(response: &Response, error: Option<&str>) -> Input {
    Input::Request(Request {
        kind: Some(response.kind),
        nonce: Some(response.nonce),
        error: error.map(Into::into),
        ..Request::default()
    })
}

fn sent(effects: &[Effect]) -> Vec<&Response> {
    let responses = effects.iter().filter_map(|effect| match effect {
        Effect::Send(response) => Some(response),
        Effect::Refused(_) | Effect::Recovered(..) => None,
    });
    responses.collect()
}

/// `cds +a -b` for each response.
fn brief(effects: &[Effect]) -> Vec<String> {
    let text = |response: &&Response| {
        let mut text = response.kind.as_str().to_owned();
        for (name, _) in &response.resources {
            text = text + " +" + name;
        }
        for name in &response.removed {
            text = text + " -" + name;
        }
        text
    };
    sent(effects).iter().map(text).collect()
}

/// Of listeners whose content is `tls: <names>`.
fn certificates(response: &Response) -> Vec<String> {
    let texts = response.resources.iter();
    let texts = texts.map(|(_, resource)| String::from_utf8(resource.bytes.to_vec()).unwrap());
    texts
        .filter_map(|text| Some(text.strip_prefix("tls: ")?.to_owned()))
        .flat_map(|names| names.split(' ').map(ToOwned::to_owned).collect::<Vec<_>>())
        .collect()
}

/// An Envoy that obeys: it subscribes to what it got and acknowledges all at once.
#[derive(Default)]
struct Obedient {
    log: Vec<String>,
}

impl Obedient {
    fn run(&mut self, ads: &mut Ads, effects: Vec<Effect>, now: Moment) {
        let mut waiting: Vec<Response> = sent(&effects).into_iter().cloned().collect();
        self.log.extend(brief(&effects));
        while !waiting.is_empty() {
            let response = waiting.remove(0);
            let names: Vec<String> = response.resources.iter().map(|(n, _)| n.clone()).collect();
            let wants = match response.kind {
                Kind::Cluster => vec![(Kind::Endpoints, names)],
                Kind::Listener => vec![
                    (Kind::Routes, names),
                    (Kind::Secret, certificates(&response)),
                ],
                Kind::Endpoints | Kind::Secret | Kind::Routes => Vec::new(),
            };
            let mut more = Vec::new();
            for (kind, names) in wants {
                let known = ads.types[kind as usize].subscribed.clone();
                let new = names.iter().filter(|name| !known.contains(*name));
                let new: Vec<&str> = new.map(String::as_str).collect();
                if !new.is_empty() {
                    more.extend(ads.on(subscribe(kind, &new), now));
                }
            }
            more.extend(ads.on(answer(&response, None), now));
            self.log.extend(brief(&more));
            waiting.extend(sent(&more).into_iter().cloned());
        }
    }
}

/// A stream whose Envoy has the snapshot.
fn mk_settled(snapshot: &Arc<Snapshot>) -> Ads {
    let mut ads = Ads::new(DELAY);
    let mut envoy = Obedient::default();
    ads.on(Input::Snapshot(Arc::clone(snapshot)), ms(0));
    for kind in [Kind::Cluster, Kind::Listener] {
        let effects = ads.on(subscribe(kind, &[]), ms(0));
        envoy.run(&mut ads, effects, ms(0));
    }
    assert!(ads.is_current());
    ads
}

#[test]
fn new_envoy_gets_clusters_endpoints_listeners_routes() {
    let mut ads = Ads::new(DELAY);
    let mut envoy = Obedient::default();
    assert_eq!(ads.on(subscribe(Kind::Cluster, &[]), ms(0)), []);
    let effects = ads.on(Input::Snapshot(mk_snapshot(&[("a", "1")], "x")), ms(0));
    envoy.run(&mut ads, effects, ms(0));
    let effects = ads.on(subscribe(Kind::Listener, &[]), ms(0));
    envoy.run(&mut ads, effects, ms(0));
    assert_eq!(
        envoy.log,
        ["cds +a", "eds +a", "lds +edge/80", "rds +edge/80"]
    );
}

/// Envoy asks for listeners only once it has had a response of clusters, and is not ready before either.
#[test]
fn an_empty_snapshot_is_answered_once_for_each_wildcard() {
    let mut ads = Ads::new(DELAY);
    ads.on(Input::Snapshot(Arc::default()), ms(0));
    let clusters = ads.on(subscribe(Kind::Cluster, &[]), ms(0));
    assert_eq!(brief(&clusters), ["cds"]);
    assert_eq!(
        brief(&ads.on(answer(sent(&clusters)[0], None), ms(1))),
        Vec::<String>::new()
    );
    let listeners = ads.on(subscribe(Kind::Listener, &[]), ms(2));
    assert_eq!(brief(&listeners), ["lds"]);
    assert_eq!(
        brief(&ads.on(answer(sent(&listeners)[0], None), ms(3))),
        Vec::<String>::new()
    );
    assert_eq!(brief(&ads.on(Input::Tick, ms(9_000))), Vec::<String>::new());
}

#[test]
fn nothing_changed_sends_nothing() {
    let mut ads = mk_settled(&mk_snapshot(&[("a", "1")], "x"));
    let again = mk_snapshot(&[("a", "1")], "x");
    assert_eq!(ads.on(Input::Snapshot(again), ms(1)), []);
    assert_eq!(ads.wake_at(ms(1)), None);
}

#[test]
fn route_to_a_new_cluster_waits_for_its_endpoints() {
    let mut ads = mk_settled(&mk_snapshot(&[("a", "1")], "x"));
    let effects = ads.on(
        Input::Snapshot(mk_snapshot(&[("a", "1"), ("b", "1")], "x")),
        ms(1),
    );
    assert_eq!(brief(&effects), ["cds +b"]);
    let clusters = sent(&effects)[0].clone();
    // Envoy asks for endpoints before it acknowledges the cluster.
    let effects = ads.on(subscribe(Kind::Endpoints, &["b"]), ms(2));
    assert_eq!(brief(&effects), ["eds +b"]);
    let endpoints = sent(&effects)[0].clone();
    assert_eq!(ads.on(answer(&clusters, None), ms(3)), []);
    let effects = ads.on(answer(&endpoints, None), ms(4));
    assert_eq!(brief(&effects), ["rds +edge/80"]);
}

#[test]
fn assignment_is_sent_again_after_its_cluster_changed() {
    let mut ads = mk_settled(&mk_snapshot(&[("a", "1")], "x"));
    let effects = ads.on(Input::Snapshot(mk_snapshot(&[("a", "2")], "x")), ms(1));
    assert_eq!(brief(&effects), ["cds +a", "eds +a"]);
}

#[test]
fn assignment_is_still_sent_again_when_its_cluster_went_and_came_back() {
    let mut ads = mk_settled(&mk_snapshot(&[("a", "1")], "x"));
    // Endpoints are on their way, so those for the changed cluster must wait.
    let effects = ads.on(Input::Snapshot(mk_snapshot(&[("a", "1")], "y")), ms(1));
    let endpoints = sent(&effects)[0].clone();
    let changed = mk_snapshot(&[("a", "2")], "y");
    let effects = ads.on(Input::Snapshot(Arc::clone(&changed)), ms(2));
    assert_eq!(brief(&effects), ["cds +a"]);
    ads.on(Input::Snapshot(mk_snapshot(&[], "y")), ms(3));
    ads.on(answer(sent(&effects)[0], None), ms(4));
    ads.on(Input::Snapshot(changed), ms(5));
    assert_eq!(brief(&ads.on(answer(&endpoints, None), ms(6)))[0], "eds +a");
}

#[test]
fn endpoints_alone_change_nothing_else() {
    let mut ads = mk_settled(&mk_snapshot(&[("a", "1"), ("b", "1")], "x"));
    let mut next = (*mk_snapshot(&[("a", "1"), ("b", "1")], "x")).clone();
    next.endpoints
        .insert("b".into(), mk_resource("other hosts", false));
    assert_eq!(
        brief(&ads.on(Input::Snapshot(Arc::new(next)), ms(1))),
        ["eds +b"]
    );
}

#[test]
fn cluster_goes_after_its_routes_and_a_delay() {
    let mut ads = mk_settled(&mk_snapshot(&[("a", "1"), ("b", "1")], "x"));
    let effects = ads.on(Input::Snapshot(mk_snapshot(&[("a", "1")], "x")), ms(1_000));
    assert_eq!(brief(&effects), ["rds +edge/80"]);
    let mut envoy = Obedient::default();
    envoy.run(&mut ads, effects, ms(1_000));
    let due = ms(31_000);
    assert_eq!(ads.wake_at(ms(1_001)), Some(due));
    assert_eq!(ads.on(Input::Tick, ms(30_999)), []);
    assert_eq!(brief(&ads.on(Input::Tick, due)), ["cds -b"]);
}

#[test]
fn cluster_that_comes_back_in_time_stays() {
    let both = mk_snapshot(&[("a", "1"), ("b", "1")], "x");
    let mut ads = mk_settled(&both);
    let mut envoy = Obedient::default();
    let effects = ads.on(Input::Snapshot(mk_snapshot(&[("a", "1")], "x")), ms(1_000));
    envoy.run(&mut ads, effects, ms(1_000));
    let effects = ads.on(Input::Snapshot(both), ms(2_000));
    assert_eq!(brief(&effects), ["rds +edge/80"]);
    envoy.run(&mut ads, effects, ms(2_000));
    assert_eq!(ads.on(Input::Tick, ms(40_000)), []);
}

#[test]
fn new_hop_comes_before_the_import_that_names_it() {
    let mut before = (*mk_snapshot(&[("import/ns/x", "1")], "one hop")).clone();
    let mut ads = mk_settled(&Arc::new(before.clone()));
    let hop = "hop/ns/x/east";
    before
        .listeners
        .insert(hop.into(), mk_resource("hop", false));
    before.routes.insert(hop.into(), mk_resource("", false));
    before
        .endpoints
        .insert("import/ns/x".into(), mk_resource("two hops", false));
    let effects = ads.on(Input::Snapshot(Arc::new(before)), ms(1));
    let mut envoy = Obedient::default();
    envoy.run(&mut ads, effects, ms(1));
    assert_eq!(
        envoy.log,
        [
            "lds +hop/ns/x/east",
            "rds +hop/ns/x/east",
            "eds +import/ns/x"
        ]
    );
}

#[test]
fn slow_ack_delays_the_next_step_by_two_seconds_at_most() {
    let mut ads = mk_settled(&mk_snapshot(&[("a", "1")], "x"));
    let effects = ads.on(
        Input::Snapshot(mk_snapshot(&[("a", "2"), ("b", "1")], "x")),
        ms(0),
    );
    assert_eq!(brief(&effects), ["cds +a +b", "eds +a"]);
    assert_eq!(ads.on(Input::Tick, ms(1_999)), []);
    assert_eq!(ads.wake_at(ms(1_999)), Some(ms(2_000)));
    assert_eq!(brief(&ads.on(Input::Tick, ms(2_000))), ["rds +edge/80"]);
}

/// While an edge waits for a new cluster another one comes, and the edge leads to that one as well.
#[test]
fn an_edge_waits_for_the_clusters_that_it_began_to_wait_for() {
    let mut ads = mk_settled(&mk_snapshot(&[("a", "1")], "x"));
    let two = mk_snapshot(&[("a", "1"), ("b", "1")], "x");
    let effects = ads.on(Input::Snapshot(two), ms(1));
    let clusters = sent(&effects)[0].clone();
    let effects = ads.on(subscribe(Kind::Endpoints, &["b"]), ms(2));
    let endpoints = sent(&effects)[0].clone();
    let three = mk_snapshot(&[("a", "1"), ("b", "1"), ("c", "1")], "x");
    assert_eq!(ads.on(Input::Snapshot(Arc::clone(&three)), ms(3)), []);
    ads.on(answer(&endpoints, None), ms(4));
    let effects = ads.on(answer(&clusters, None), ms(5));
    assert_eq!(brief(&effects), ["cds +c", "rds +edge/80"]);
    let table = sent(&effects)[1];
    assert_eq!(table.resources[0].1.bytes, "a,b".as_bytes());
    let mut envoy = Obedient::default();
    envoy.run(&mut ads, effects.clone(), ms(6));
    assert_eq!(
        envoy.log,
        ["cds +c", "rds +edge/80", "eds +c", "rds +edge/80"]
    );
    assert!(ads.is_current());
    assert_eq!(
        ads.acknowledged(Kind::Routes)["edge/80"],
        three.routes["edge/80"].version
    );
}

/// The hosts of an import name a hop that Envoy does not have, and others change meanwhile.
#[test]
fn hosts_do_not_name_hops_of_a_later_snapshot() {
    let import = "import/ns/x";
    let with_hops = |hops: &[&str], share: &str| {
        let mut snapshot = (*mk_snapshot(&[(import, "1")], "x")).clone();
        for hop in hops {
            let hop = format!("hop/ns/x/{hop}");
            snapshot
                .listeners
                .insert(hop.clone(), mk_resource("hop", false));
            snapshot.routes.insert(hop, mk_resource("", false));
        }
        let hosts = format!("{} {share}", hops.join(" "));
        snapshot
            .endpoints
            .insert(import.into(), mk_resource(&hosts, false));
        Arc::new(snapshot)
    };
    let hosts = |effects: &[Effect]| -> Vec<String> {
        let all = sent(effects)
            .into_iter()
            .filter(|one| one.kind == Kind::Endpoints);
        let all = all.flat_map(|one| one.resources.clone());
        all.map(|(_, one)| String::from_utf8(one.bytes.to_vec()).unwrap())
            .collect()
    };
    let mut ads = mk_settled(&with_hops(&["east"], "1"));
    let effects = ads.on(Input::Snapshot(with_hops(&["east", "north"], "2")), ms(1));
    assert_eq!(brief(&effects), ["lds +hop/ns/x/north"]);
    let effects_later = ads.on(
        Input::Snapshot(with_hops(&["east", "north", "south"], "3")),
        ms(2),
    );
    assert_eq!(effects_later, []);
    let listener = sent(&effects)[0].clone();
    let effects = ads.on(subscribe(Kind::Routes, &["hop/ns/x/north"]), ms(3));
    let table = sent(&effects)[0].clone();
    ads.on(answer(&listener, None), ms(4));
    let effects = ads.on(answer(&table, None), ms(5));
    assert_eq!(hosts(&effects), ["east north 2"]);
    assert_eq!(brief(&effects), ["eds +import/ns/x", "lds +hop/ns/x/south"]);
}

/// An edge waits for a new cluster meanwhile.
#[test]
fn shares_of_hops_that_envoy_has_wait_for_no_cluster() {
    let import = "import/ns/x";
    let with_share = |clusters: &[(&str, &str)], share: &str| {
        let mut snapshot = (*mk_snapshot(clusters, "x")).clone();
        let hosts = mk_resource(share, false);
        snapshot.endpoints.insert(import.into(), hosts);
        Arc::new(snapshot)
    };
    let mut ads = mk_settled(&with_share(&[(import, "1")], "1"));
    let both = [(import, "1"), ("b", "1")];
    let effects = ads.on(Input::Snapshot(with_share(&both, "1")), ms(1));
    assert_eq!(brief(&effects), ["cds +b"]);
    let effects = ads.on(Input::Snapshot(with_share(&both, "2")), ms(2));
    assert_eq!(brief(&effects), ["eds +import/ns/x"]);
}

#[test]
fn stale_nonce_acknowledges_nothing() {
    let mut ads = mk_settled(&mk_snapshot(&[("a", "1")], "x"));
    let effects = ads.on(Input::Snapshot(mk_snapshot(&[("a", "1")], "y")), ms(1));
    let mut stale = sent(&effects)[0].clone();
    stale.nonce -= 1;
    ads.on(answer(&stale, None), ms(2));
    assert!(!ads.is_current());
    ads.on(answer(sent(&effects)[0], None), ms(3));
    assert!(ads.is_current());
}

#[test]
fn reconnecting_envoy_gets_the_differences() {
    let old = mk_snapshot(&[("a", "1"), ("b", "1")], "x");
    let new = mk_snapshot(&[("a", "1"), ("b", "2")], "x");
    let mut ads = Ads::new(DELAY);
    ads.on(Input::Snapshot(new), ms(0));
    let versions = |kind: Kind| {
        let all = old.of(kind).iter();
        all.map(|(name, resource)| (name.clone(), resource.version))
            .collect()
    };
    let mut log = Vec::new();
    for (kind, names) in [
        (Kind::Cluster, &[][..]),
        (Kind::Endpoints, &["a", "b"]),
        (Kind::Listener, &[]),
        (Kind::Routes, &["edge/80"]),
    ] {
        let Input::Request(mut request) = subscribe(kind, names) else {
            continue;
        };
        request.initial = versions(kind);
        log.extend(brief(&ads.on(Input::Request(request), ms(0))));
    }
    // Endpoints always: clusters may still wait for theirs.
    assert_eq!(log, ["cds +b", "eds +a +b"]);
}

#[test]
fn name_that_is_asked_for_and_not_there_is_told_so_once() {
    let mut ads = mk_settled(&mk_snapshot(&[("a", "1")], "x"));
    let effects = ads.on(subscribe(Kind::Endpoints, &["none"]), ms(1));
    assert_eq!(brief(&effects), ["eds -none"]);
    assert_eq!(ads.on(answer(sent(&effects)[0], None), ms(2)), []);
}

#[test]
fn large_snapshot_comes_in_parts() {
    let names: Vec<String> = (0..=BATCH).map(|n| format!("c{n:04}")).collect();
    let clusters: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "1")).collect();
    let mut ads = Ads::new(DELAY);
    ads.on(Input::Snapshot(mk_snapshot(&clusters, "x")), ms(0));
    let effects = ads.on(subscribe(Kind::Cluster, &[]), ms(0));
    let first = sent(&effects)[0].clone();
    assert_eq!(first.resources.len(), BATCH);
    let effects = ads.on(answer(&first, None), ms(1));
    assert_eq!(sent(&effects)[0].resources.len(), 1);
}

#[test]
fn edge_waits_for_every_part_of_the_clusters_to_be_sent() {
    let mut ads = mk_settled(&mk_snapshot(&[("a", "1")], "x"));
    let names: Vec<String> = (0..=BATCH).map(|n| format!("c{n:04}")).collect();
    let clusters: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "1")).collect();
    let effects = ads.on(Input::Snapshot(mk_snapshot(&clusters, "x")), ms(1));
    assert_eq!(sent(&effects)[0].resources.len(), BATCH);
    // However slow the ACK is, the last cluster is not there yet.
    assert_eq!(
        brief(&ads.on(Input::Tick, ms(60_000))),
        Vec::<String>::new()
    );
    let effects = ads.on(answer(sent(&effects)[0], None), ms(60_001));
    assert_eq!(brief(&effects), ["cds +c0500"]);
}

/// A snapshot whose edge has TLS with this certificate.
fn mk_tls_snapshot(name: &str, content: &str) -> Arc<Snapshot> {
    let mut snapshot = (*mk_snapshot(&[("a", "1")], "x")).clone();
    let listener = mk_resource(&format!("tls: {name}"), false);
    snapshot.listeners.insert("edge/80".into(), listener);
    snapshot
        .secrets
        .insert(name.into(), mk_resource(content, false));
    Arc::new(snapshot)
}

#[test]
fn secret_is_sent_to_who_asks_and_replaced_alone() {
    let mut ads = mk_settled(&mk_tls_snapshot("cert/a", "1"));
    let mut envoy = Obedient::default();
    let secrets = |ads: &Ads| {
        ads.acknowledged(Kind::Secret)
            .into_keys()
            .collect::<Vec<_>>()
    };
    assert_eq!(secrets(&ads), ["cert/a"]);
    // a rotation
    let effects = ads.on(Input::Snapshot(mk_tls_snapshot("cert/a", "2")), ms(1));
    envoy.run(&mut ads, effects, ms(1));
    assert_eq!(envoy.log, ["sds +cert/a"]);
    // another one: Envoy has it before it uses the new listener, which asks for it
    let effects = ads.on(Input::Snapshot(mk_tls_snapshot("cert/b", "1")), ms(2));
    envoy.log.clear();
    envoy.run(&mut ads, effects, ms(2));
    assert_eq!(envoy.log, ["lds +edge/80", "sds +cert/b"]);
    assert!(ads.is_current());
}

#[test]
fn secret_that_envoy_refuses_holds_nothing_back() {
    let mut ads = mk_settled(&mk_tls_snapshot("cert/a", "1"));
    let next = mk_tls_snapshot("cert/a", "bad");
    let effects = ads.on(Input::Snapshot(Arc::clone(&next)), ms(1));
    let effects = ads.on(answer(sent(&effects)[0], Some("no such key")), ms(1));
    let Effect::Refused(refusal) = &effects[0] else {
        panic!("{effects:?}");
    };
    assert_eq!(
        (refusal.kind, refusal.name.as_str()),
        (Kind::Secret, "cert/a")
    );
    assert_eq!(brief(&effects), [] as [&str; 0]);
    // what comes next is sent all the same
    let mut snapshot = (*next).clone();
    snapshot
        .routes
        .insert("edge/80".into(), mk_resource("", false));
    let effects = ads.on(Input::Snapshot(Arc::new(snapshot)), ms(2));
    assert_eq!(brief(&effects), ["rds +edge/80"]);
}
