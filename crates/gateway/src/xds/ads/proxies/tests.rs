//! Who is connected, who refuses what, and what the streams of a Gateway learn of each other.

use bytes::Bytes;
use futures::FutureExt as _;

use super::*;
use crate::xds::Resource;

const VERSION: u64 = 7;

fn mk_proxy(node: &str) -> Proxy {
    Proxy {
        gateway: Key::new("ns", "gw"),
        node: node.to_owned(),
        version: "1.40.0".to_owned(),
        authenticated: true,
        current: false,
        acknowledged: BTreeMap::new(),
        served: BTreeSet::new(),
    }
}

fn mk_refusal(name: &str) -> Refusal {
    Refusal {
        kind: Kind::Listener,
        name: name.to_owned(),
        version: VERSION,
        message: "bad".to_owned(),
        passing: false,
    }
}

/// An Envoy begins a stream: what it learns that others serve.
pub(crate) fn joins(proxies: &Proxies, node: &str) -> impl Fn() -> Vec<String> + use<> {
    let Joined { others, .. } = proxies.connect(mk_proxy(node), 100).unwrap();
    move || others.borrow().served.iter().cloned().collect()
}

/// Another Envoy begins a stream, and is ready with this edge.
pub(crate) fn becomes_ready(proxies: &Proxies, node: &str, edge: &str) {
    let id = connect(proxies, node);
    let report = Report {
        acknowledged: Vec::new(),
        ..mk_report(&[edge])
    };
    proxies.update(id, report);
}

/// Another Envoy begins a stream, and refuses this edge.
pub(crate) fn refuses(proxies: &Proxies, node: &str, edge: &str) {
    let id = connect(proxies, node);
    proxies.refuse(id, mk_refusal(edge));
}

/// How many refuse the edge of port 80, of how many, and whether others serve.
pub(crate) fn refused(proxies: &Proxies) -> Option<(usize, usize, bool)> {
    let verdict = verdict(proxies, VERSION)?;
    Some((verdict.by, verdict.of, verdict.others_serve))
}

fn connect(proxies: &Proxies, node: &str) -> u64 {
    proxies.connect(mk_proxy(node), 100).unwrap().id
}

/// What the status of the Gateway reports of the resource in this version: how many refuse it, of how many.
fn reported(proxies: &Proxies, version: u64) -> Option<(usize, usize)> {
    let verdict = verdict(proxies, version)?;
    Some((verdict.by, verdict.of))
}

fn verdict(proxies: &Proxies, version: u64) -> Option<Verdict> {
    let resource = Arc::new(Resource {
        version,
        bytes: Bytes::new(),
        needs_endpoints: false,
    });
    let mut snapshot = Snapshot::default();
    snapshot.listeners.insert("edge/80".to_owned(), resource);
    let gateway = Key::new("ns", "gw");
    let snapshots = BTreeMap::from([(gateway.clone(), Arc::new(snapshot))]);
    let refused = proxies.refused(&snapshots);
    refused.get(&gateway)?.values().next().cloned()
}

fn mk_report(served: &[&str]) -> Report {
    let held = BTreeMap::from([("edge/80".to_owned(), VERSION)]);
    Report {
        current: true,
        acknowledged: vec![(Kind::Listener, Arc::new(held))],
        served: served.iter().map(ToString::to_string).collect(),
    }
}

#[test]
fn a_refusal_says_how_many_refuse_and_ends_with_the_content() {
    let proxies = Proxies::default();
    let [a, b, _] = ["a", "b", "c"].map(|node| connect(&proxies, node));
    assert_eq!(reported(&proxies, VERSION), None);
    proxies.refuse(a, mk_refusal("edge/80"));
    assert_eq!(reported(&proxies, VERSION), Some((1, 3)));
    proxies.refuse(b, mk_refusal("edge/80"));
    assert_eq!(reported(&proxies, VERSION), Some((2, 3)));
    let mut other = mk_proxy("d");
    other.gateway = Key::new("ns", "other");
    proxies.connect(other, 100).unwrap();
    assert_eq!(reported(&proxies, VERSION), Some((2, 3)));
    assert_eq!(reported(&proxies, VERSION + 1), None);
    assert_eq!(reported(&proxies, VERSION), None);
}

/// Status does not change back and forth while the only Envoy connects again.
#[test]
fn a_refusal_outlives_the_stream_until_an_envoy_accepts() {
    let proxies = Proxies::default();
    let first = connect(&proxies, "a");
    proxies.refuse(first, mk_refusal("edge/80"));
    proxies.disconnect(first);
    assert_eq!(reported(&proxies, VERSION), Some((0, 0)));
    let second = connect(&proxies, "a");
    assert_eq!(reported(&proxies, VERSION), Some((0, 1)));
    proxies.refuse(second, mk_refusal("edge/80"));
    let third = connect(&proxies, "b");
    proxies.update(third, mk_report(&[]));
    // one that is there refuses it still
    assert_eq!(reported(&proxies, VERSION), Some((1, 2)));
    proxies.disconnect(second);
    assert_eq!(reported(&proxies, VERSION), None);
}

/// One of many that refuses something is one less that serves.
#[test]
fn a_refusal_says_whether_ready_envoys_do_without_it() {
    let proxies = Proxies::default();
    let [a, b] = ["a", "b"].map(|node| connect(&proxies, node));
    proxies.refuse(a, mk_refusal("edge/80"));
    let others_serve = || verdict(&proxies, VERSION).map(|verdict| verdict.others_serve);
    assert_eq!(others_serve(), Some(false), "the other is not ready");
    let ready = Report {
        acknowledged: Vec::new(),
        ..mk_report(&["edge/80"])
    };
    proxies.update(b, ready.clone());
    proxies.update(a, ready.clone());
    assert_eq!(others_serve(), Some(true));
    proxies.refuse(b, mk_refusal("edge/80"));
    assert_eq!(others_serve(), Some(false));
    proxies.recover(b, &(Kind::Listener, "edge/80".to_owned(), VERSION));
    assert_eq!(others_serve(), Some(true));
    proxies.disconnect(b);
    assert_eq!(others_serve(), Some(false));
    proxies.disconnect(a);
    let again = connect(&proxies, "a");
    proxies.update(again, ready);
    assert_eq!(others_serve(), Some(false), "it refused it before");
}

#[test]
fn what_was_refused_for_a_passing_reason_is_accepted_later() {
    let proxies = Proxies::default();
    let id = connect(&proxies, "a");
    proxies.refuse(id, mk_refusal("edge/80"));
    proxies.recover(id, &(Kind::Listener, "edge/80".to_owned(), VERSION));
    assert_eq!(reported(&proxies, VERSION), None);
}

/// An Envoy that is not ready serves nobody.
#[test]
fn streams_learn_what_ready_envoys_of_their_gateway_serve() {
    let proxies = Proxies::default();
    let Joined { id: a, mut others } = proxies.connect(mk_proxy("a"), 100).unwrap();
    let mut is = |edges: &[&str]| {
        let changed = others.has_changed().unwrap();
        let now = Arc::clone(&others.borrow_and_update().served);
        assert!(
            now.iter().map(String::as_str).eq(edges.iter().copied()),
            "{now:?}"
        );
        changed
    };
    assert!(!is(&[]));
    let b = connect(&proxies, "b");
    proxies.update(b, mk_report(&["edge/443", "edge/80"]));
    assert!(is(&["edge/443", "edge/80"]));
    proxies.update(a, mk_report(&["edge/80"]));
    assert!(!is(&["edge/443", "edge/80"]));
    let mut other = mk_proxy("c");
    other.gateway = Key::new("ns", "other");
    let other = proxies.connect(other, 100).unwrap();
    proxies.update(other.id, mk_report(&["edge/8080"]));
    assert!(!is(&["edge/443", "edge/80"]));
    proxies.disconnect(b);
    assert!(is(&["edge/80"]));
}

/// What Envoys of one other replica do: how many there are, which edges the ready ones serve, and whether one refuses this edge.
fn mk_known(connected: usize, served: &[&str], refused: Option<&str>) -> Known {
    let verdict = Verdict {
        message: "bad".to_owned(),
        by: 1,
        of: connected,
        others_serve: false,
    };
    let refused = refused.map(|name| ((Kind::Listener, name.to_owned(), VERSION), verdict));
    Known {
        connected,
        served: served.iter().map(ToString::to_string).collect(),
        refused: refused.into_iter().collect(),
        is_partial: false,
    }
}

fn elsewhere(all: Vec<Known>) -> BTreeMap<Key, Vec<Known>> {
    BTreeMap::from([(Key::new("ns", "gw"), all)])
}

/// A new Envoy waits for what those serve that are connected to another replica.
#[test]
fn streams_learn_what_envoys_of_other_replicas_serve() {
    let proxies = Proxies::default();
    let Joined { mut others, .. } = proxies.connect(mk_proxy("a"), 100).unwrap();
    let mut served = || -> Vec<String> {
        let served = Arc::clone(&others.borrow_and_update().served);
        served.iter().cloned().collect()
    };
    proxies.set_elsewhere(elsewhere(vec![
        mk_known(1, &["edge/80"], None),
        mk_known(1, &["edge/443"], None),
    ]));
    assert_eq!(served(), ["edge/443", "edge/80"]);
    let Joined { others: later, .. } = proxies.connect(mk_proxy("b"), 100).unwrap();
    assert_eq!(later.borrow().served.len(), 2);
    proxies.set_elsewhere(elsewhere(vec![mk_known(1, &["edge/80"], None)]));
    assert_eq!(served(), ["edge/80"]);
    proxies.set_elsewhere(BTreeMap::new());
    assert_eq!(served(), Vec::<String>::new());
}

/// The Envoys of this replica all refuse it, and those of another one serve it.
#[test]
fn status_is_of_the_envoys_of_all_replicas() {
    let proxies = Proxies::default();
    let id = connect(&proxies, "a");
    proxies.refuse(id, mk_refusal("edge/80"));
    let said = || refused(&proxies);
    assert_eq!(said(), Some((1, 1, false)));
    proxies.set_elsewhere(elsewhere(vec![mk_known(2, &["edge/80"], None)]));
    assert_eq!(said(), Some((1, 3, true)));
    proxies.set_elsewhere(elsewhere(vec![mk_known(1, &[], Some("edge/80"))]));
    assert_eq!(said(), Some((2, 2, false)));
    // no Envoy is connected to this one
    proxies.disconnect(id);
    proxies.refused(&BTreeMap::new());
    assert_eq!(said(), Some((1, 1, false)));
    proxies.set_elsewhere(BTreeMap::new());
    assert_eq!(said(), None);
}

#[tokio::test]
async fn what_other_replicas_know_wakes_the_status_where_something_is_refused() {
    let proxies = Proxies::default();
    let is_woken = || proxies.changed().now_or_never().is_some();
    proxies.set_elsewhere(elsewhere(vec![mk_known(1, &["edge/80"], None)]));
    assert!(!is_woken(), "nothing is refused");
    let refuses = || elsewhere(vec![mk_known(1, &["edge/80"], Some("edge/80"))]);
    proxies.set_elsewhere(refuses());
    assert!(is_woken());
    proxies.set_elsewhere(refuses());
    assert!(!is_woken(), "the same");
    proxies.set_elsewhere(BTreeMap::new());
    assert!(is_woken());
}

/// What one replica tells is what another one merges.
#[test]
fn a_replica_tells_of_its_own_envoys_alone() {
    let proxies = Proxies::default();
    proxies.set_elsewhere(elsewhere(vec![mk_known(3, &["edge/443"], Some("edge/80"))]));
    assert_eq!(proxies.known(), BTreeMap::new());
    let [a, b] = ["a", "b"].map(|node| connect(&proxies, node));
    proxies.update(b, mk_report(&["edge/80"]));
    proxies.refuse(a, mk_refusal("edge/80"));
    let known = proxies.known();
    let known = &known[&Key::new("ns", "gw")];
    assert_eq!(known.connected, 2);
    assert!(known.served.iter().eq(["edge/80"]));
    let verdict = known.refused.values().next().unwrap();
    assert_eq!((verdict.by, verdict.of, verdict.others_serve), (1, 2, true));
}

#[test]
fn streams_of_a_gateway_are_bounded() {
    let proxies = Proxies::default();
    let [first, _] = [(); 2].map(|()| proxies.connect(mk_proxy("a"), 2).unwrap().id);
    let one_more = || mk_proxy("a");
    assert_eq!(proxies.connect(one_more(), 2).err(), Some(TooMany));
    let mut other = one_more();
    other.gateway = Key::new("ns", "other");
    assert!(proxies.connect(other, 2).is_ok());
    proxies.disconnect(first);
    assert!(proxies.connect(one_more(), 2).is_ok());
}

/// It is known to streams that begin later too, and forgotten with the Gateway.
#[test]
fn a_denied_stream_is_noted_once_a_second() {
    let proxies = Proxies::default();
    let (gateway, at) = (Key::new("ns", "gw"), Moment::from_millis);
    proxies.note_denied(&gateway, at(1_000));
    let Joined { id, mut others } = proxies.connect(mk_proxy("a"), 100).unwrap();
    assert_eq!(others.borrow_and_update().denied, Some(at(1_000)));
    proxies.note_denied(&gateway, at(1_999));
    assert!(!others.has_changed().unwrap());
    proxies.note_denied(&gateway, at(2_000));
    assert_eq!(others.borrow_and_update().denied, Some(at(2_000)));
    proxies.disconnect(id);
    let snapshots = BTreeMap::from([(gateway, Arc::new(Snapshot::default()))]);
    proxies.refused(&snapshots);
    assert_eq!(proxies.state.lock().gateways.len(), 1);
    proxies.refused(&BTreeMap::new());
    assert!(proxies.state.lock().gateways.is_empty());
}

/// Gateways whose Envoys refuse whatever there may be leave room for what those of others refuse.
#[test]
fn refusals_of_all_gateways_are_bounded() {
    let proxies = Proxies::default();
    for gateway in 0..8 {
        let mut proxy = mk_proxy("a");
        proxy.gateway = Key::new("ns", format!("gw-{gateway}"));
        let id = proxies.connect(proxy, 100).unwrap().id;
        for at in 0..2 * MOST_REFUSED {
            proxies.refuse(id, mk_refusal(&format!("edge/{at}")));
        }
    }
    let state = proxies.state.lock();
    let refused = state.gateways.values().map(|one| one.refused.len());
    let (least, all) = (refused.clone().min().unwrap(), refused.sum::<usize>());
    assert!(least > 0 && all <= MOST_REFUSED_OF_ALL, "{least} {all}");
}

/// Pods that are replaced again and again, each with a name of its own, and one that refuses whatever there may be.
#[test]
fn refusals_are_bounded() {
    let proxies = Proxies::default();
    for round in 0..100 {
        let id = connect(&proxies, &format!("pod-{round}"));
        proxies.refuse(id, mk_refusal("edge/80"));
        proxies.disconnect(id);
    }
    let id = connect(&proxies, "a");
    for at in 0..2 * MOST_REFUSED {
        proxies.refuse(id, mk_refusal(&format!("edge/{at}")));
    }
    let state = proxies.state.lock();
    let refused = &state.gateways[&Key::new("ns", "gw")].refused;
    assert_eq!(refused.len(), MOST_REFUSED);
    let gone: usize = refused.values().map(|refused| refused.gone.len()).sum();
    assert_eq!(gone, KEPT);
    drop(state);
    proxies.disconnect(id);
    assert!(proxies.refused(&BTreeMap::new()).is_empty());
    assert!(proxies.state.lock().gateways.is_empty(), "all is forgotten");
}
