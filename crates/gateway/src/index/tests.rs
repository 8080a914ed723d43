//! Updates in, knowledge out.

use std::net::{IpAddr, Ipv4Addr};

use serde_json::json;
use tls::test_pki::Ca;
use watch::OddObject;

use super::*;
use crate::world::{BadSecret, secrets};
use crate::xds::Reads;

mod backend_tls;

fn mk_pod(name: &str, last: u8) -> Pod {
    let pod = json!({
        "metadata": {"namespace": "ns", "name": name},
        "status": {
            "podIP": format!("10.0.0.{last}"),
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    });
    serde_json::from_value(pod).unwrap()
}

fn odd<K>(name: &str) -> Update<K> {
    Update::Odd(OddObject {
        namespace: "ns".into(),
        name: name.into(),
        error: "no".into(),
    })
}

fn denied<K>() -> Update<K> {
    let text = json!({"kind": "Status", "status": "Failure", "code": 403, "message": "no", "reason": "Forbidden"});
    let status = serde_json::from_value(text).unwrap();
    let error = kube::runtime::watcher::Error::InitialListFailed(kube::Error::Api(status));
    Update::Failed(watch::WatchFailure::from(&error))
}

fn pool() -> Key {
    Key::new("ns", "llm")
}

fn on(index: &mut Index, event: Event) -> Changes {
    index.on(event, Moment::START)
}

fn pods(index: &mut Index, update: Update<Pod>) -> Changes {
    on(index, Event::Pods(pool(), update))
}

fn ips(index: &Index) -> Vec<IpAddr> {
    let pods = index.endpoints.pods.get(&pool()).into_iter().flatten();
    pods.map(|(_, ip)| *ip).collect()
}

fn ip(last: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, last).into()
}

#[test]
fn object_that_no_longer_decodes_outlives_the_next_list() {
    let mut index = Index::default();
    pods(
        &mut index,
        Update::Reset(vec![mk_pod("a", 1), mk_pod("b", 2)]),
    );
    pods(&mut index, odd("a"));
    // The list has it, but it does not decode.
    let changes = pods(&mut index, Update::Reset(Vec::new()));
    assert_eq!(changes.endpoints, [Reads::Pool(pool())].into());
    assert_eq!(ips(&index), [ip(1)]);
    // The next list has it no more.
    pods(&mut index, Update::Reset(Vec::new()));
    assert_eq!(ips(&index), Vec::<IpAddr>::new());
}

#[test]
fn routes_and_their_status_outlive_a_list_too() {
    let route = json!({
        "metadata": {"namespace": "ns", "name": "r"},
        "spec": {"parentRefs": [{"name": "gw"}], "rules": [{"filters": []}]},
        "status": {"parents": []},
    });
    let route = serde_json::from_value(route).unwrap();
    let mut index = Index::default();
    on(&mut index, Event::Routes(Update::Reset(vec![route])));
    let key = Key::new("ns", "r");
    assert_eq!(index.world.routes[&key].rules[0].problem, None);
    let changes = on(&mut index, Event::Routes(odd("r")));
    assert_eq!(changes.world.routes, [key.clone()].into());
    let changes = on(&mut index, Event::Routes(Update::Reset(Vec::new())));
    assert!(changes.world.is_empty());
    // Nobody knows what it says now, so nothing is served by it.
    let rules = &index.world.routes[&key].rules;
    assert!(rules[0].problem.is_some(), "{rules:?}");
    assert!(index.live.contains_key(&Target::Route(key)));
}

#[test]
fn pods_of_an_edited_selector_stay_until_the_new_list() {
    let mut index = Index::default();
    let source = Source::Pods(pool());
    pods(&mut index, Update::Reset(vec![mk_pod("a", 1)]));
    index.replaced(&source);
    assert_eq!(ips(&index), [ip(1)]);
    pods(&mut index, Update::Reset(vec![mk_pod("b", 2)]));
    assert_eq!(ips(&index), [ip(2)]);
    index.forget(&source);
    assert_eq!(ips(&index), Vec::<IpAddr>::new());
}

#[test]
fn infrastructure_belongs_to_the_gateway_that_controls_it() {
    let long = "g".repeat(70);
    let service = |owner: serde_json::Value| -> Service {
        let service = json!({
            "metadata": {
                "namespace": "ns",
                "name": "any",
                "labels": {"app.kubernetes.io/managed-by": "isthmus-gateway"},
                "ownerReferences": owner,
            },
            "spec": {"type": "ClusterIP", "clusterIPs": ["10.9.0.1"], "ports": [{"port": 80}]},
        });
        serde_json::from_value(service).unwrap()
    };
    let owner = |kind: &str| {
        json!([{
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": kind,
            "name": long,
            "uid": "u",
            "controller": true,
        }])
    };
    let mut index = Index::default();
    on(
        &mut index,
        Event::Services(Update::Apply(service(owner("Gateway")))),
    );
    let infra = &index.feedback.infra[&Key::new("ns", "any")];
    assert_eq!(infra.addresses, ["10.9.0.1"]);
    assert_eq!(infra.ports, [80].into());
    // that of another class, which the Gateway had before, goes
    let mut former = service(owner("Gateway"));
    former.metadata.name = Some("former".to_owned());
    on(&mut index, Event::Services(Update::Apply(former.clone())));
    on(&mut index, Event::Services(Update::Delete(former)));
    let left: Vec<_> = index.feedback.infra.keys().collect();
    assert_eq!(left, [&Key::new("ns", "any")]);
    let mut index = Index::default();
    on(
        &mut index,
        Event::Services(Update::Apply(service(owner("Deployment")))),
    );
    on(
        &mut index,
        Event::Services(Update::Apply(service(json!([])))),
    );
    assert!(index.feedback.infra.is_empty() && index.parts.is_empty());
}

#[test]
fn config_map_that_is_not_there_is_known_only_once_listed() {
    let mut index = Index::default();
    let key = Key::new("ns", "parameters");
    on(&mut index, Event::Classes(Update::Reset(Vec::new())));
    assert_eq!(index.world.parameters.get(&key), None);
    let list = Event::ConfigMap(key.clone(), Update::Reset(Vec::new()));
    assert!(on(&mut index, list).world.all);
    assert_eq!(index.world.parameters.get(&key), Some(&None));
}

#[test]
fn serving_waits_for_all_kinds_but_disruption_budgets() {
    let mut index = Index::default();
    let kinds = KINDS.map(Source::Kind);
    index.listed.extend(kinds[1..].to_vec());
    assert!(!index.has_listed(&BTreeSet::new()));
    index.listed.extend(kinds);
    assert!(index.has_listed(&BTreeSet::new()));
    assert!(!index.has_listed_budgets());
    on(
        &mut index,
        Event::DisruptionBudgets(Update::Reset(Vec::new())),
    );
    assert!(index.has_listed_budgets());
}

fn mk_import(entries: &[&str]) -> crd::InferencePoolImport {
    let clusters = entries
        .iter()
        .map(|name| json!({"name": name, "routingMode": "EndpointMode", "targetPortNumber": 8000}));
    let import = json!({
        "metadata": {"namespace": "ns", "name": "llm"},
        "status": {"clusters": clusters.collect::<Vec<_>>()},
    });
    serde_json::from_value(import).unwrap()
}

fn entries(index: &Index) -> Vec<String> {
    let imports = index.world.imports.values();
    let entries = imports.flat_map(|import| &import.clusters);
    entries.map(|entry| entry.name.clone()).collect()
}

fn missing_kind<K>() -> Update<K> {
    let text = r#"{"kind": "Status", "status": "Failure", "code": 404, "message": "no such page", "reason": "NotFound"}"#;
    let status = serde_json::from_str(text).unwrap();
    let error = kube::runtime::watcher::Error::InitialListFailed(kube::Error::Api(status));
    Update::Failed(watch::WatchFailure::from(&error))
}

/// As a real API server shows it (K8), and as our controller writes the imports again.
#[test]
fn deleting_the_crd_of_imports_and_its_return_change_nothing() {
    let mut index = Index::default();
    let list = |entries: &[&[&str]]| {
        Event::Imports(Update::Reset(
            entries.iter().map(|one| mk_import(one)).collect(),
        ))
    };
    let apply = |entries: &[&str]| Event::Imports(Update::Apply(mk_import(entries)));
    let delete = || Event::Imports(Update::Delete(mk_import(&[])));
    on(&mut index, Event::Confirmed(IMPORT, true));
    on(&mut index, list(&[&["east"]]));
    assert!(index.world.kept.is_empty());

    on(&mut index, Event::Confirmed(IMPORT, false));
    assert!(on(&mut index, delete()).world.all, "the condition says so");
    assert_eq!(index.world.kept, BTreeSet::from([(IMPORT, pool())]));
    on(&mut index, Event::Imports(missing_kind()));
    on(&mut index, list(&[]));
    assert_eq!(entries(&index), ["east"]);
    // created again, and its status only after that
    on(&mut index, apply(&[]));
    assert_eq!(entries(&index), ["east"]);
    on(&mut index, list(&[&[]]));
    assert_eq!(entries(&index), ["east"]);

    on(&mut index, apply(&["east", "north"]));
    assert_eq!(entries(&index), ["east", "north"]);
    assert!(index.world.kept.is_empty());
    // from now on it is an import like any other
    on(&mut index, apply(&[]));
    assert_eq!(entries(&index), Vec::<String>::new());
    on(&mut index, Event::Confirmed(IMPORT, true));
    on(&mut index, delete());
    assert!(index.world.imports.is_empty());
}

#[test]
fn an_import_whose_crd_stays_away_goes_after_ten_minutes() {
    let mut index = Index::default();
    on(&mut index, Event::Confirmed(IMPORT, true));
    let list = Update::Reset(vec![mk_import(&["east"])]);
    on(&mut index, Event::Imports(list));
    on(&mut index, Event::Imports(missing_kind()));
    assert!(!index.expire(Moment::from_millis(599_999)).any());
    assert!(index.expire(Moment::from_millis(600_000)).world.all);
    assert!(index.world.imports.is_empty() && index.world.kept.is_empty());
}

/// An import whose cluster is ready in one of the modes.
fn mk_ready_import(mode: &str) -> crd::InferencePoolImport {
    let service = json!({"type": "LoadBalancer", "addresses": ["10.3.0.7"], "ports": [{"number": 80, "appProtocol": "http"}]});
    let accepted = json!({
        "type": "Accepted", "status": "True", "reason": "Accepted", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let import = json!({
        "metadata": {"namespace": "ns", "name": "llm"},
        "status": {"clusters": [{
            "name": "east", "routingMode": mode, "targetPortNumber": 8000, "conditions": [accepted],
            "endpointPicker": {"name": "epp", "service": [service]},
            "parents": [{"name": "gw", "namespace": "ns", "listeners": [], "service": [service]}],
        }]},
    });
    serde_json::from_value(import).unwrap()
}

/// By a watch event, and by a list that the watch begins again with.
#[rstest::rstest]
#[case::watched(Update::Apply)]
#[case::listed(|import| Update::Reset(vec![import]))]
fn change_of_mode_leaves_the_former_one_until_its_time_is_over(
    #[case] update: fn(crd::InferencePoolImport) -> Update<crd::InferencePoolImport>,
) {
    let mut index = Index::default();
    let mut show = |mode: &str| {
        let event = Event::Imports(update(mk_ready_import(mode)));
        on(&mut index, event);
        let former = index.world.formers.of(&pool(), "east");
        former.map(|former| former.parent_mode)
    };
    assert_eq!(show("EndpointMode"), None);
    assert_eq!(show("ParentMode"), Some(false));
    assert_eq!(show("ParentMode"), Some(false), "it stays");
    assert!(!index.expire(Moment::from_millis(29_999)).any());
    let changes = index.expire(Moment::from_millis(30_000));
    assert_eq!(changes.world.imports, [pool()].into());
    assert_eq!(index.world.formers.of(&pool(), "east"), None);
}

fn mk_policy() -> crate::world::SelectionPolicy {
    crate::world::SelectionPolicy {
        generation: 1,
        created: 0,
        targets: BTreeSet::from(["llm".to_owned()]),
        policy: Ok(crate::select::Policy::default()),
    }
}

fn mk_tls_policy() -> crate::world::BackendTlsPolicy {
    crate::world::BackendTlsPolicy {
        generation: 1,
        created: 0,
        targets: Vec::new(),
        validation: Err("none".to_owned()),
    }
}

#[test]
fn policies_hold_nothing_back_where_a_role_does_not_allow_them() {
    let mut index = Index::default();
    let kinds = KINDS
        .iter()
        .filter(|kind| ![POLICY, TLS_POLICY].contains(kind));
    index.listed.extend(kinds.map(|kind| Source::Kind(kind)));
    on(&mut index, Event::Policies(denied()));
    assert!(!index.has_listed(&BTreeSet::new()));
    // Backends would be connected to without TLS by what an API server that starts denies for a moment.
    for _ in 0..3 {
        on(&mut index, Event::TlsPolicies(denied()));
        assert!(!index.has_listed(&BTreeSet::new()));
    }
    on(&mut index, Event::TlsPolicies(denied()));
    assert!(index.has_listed(&BTreeSet::new()));
}

#[test]
fn every_kind_that_a_crd_defines_outlives_it() {
    for (kind, _) in CRDS {
        let mut index = Index {
            world: crate::fixture::mk_world(),
            ..Index::default()
        };
        index
            .world
            .grants
            .insert(pool(), crate::world::ReferenceGrant::default());
        index.world.policies.insert(pool(), mk_policy());
        index.world.tls_policies.insert(pool(), mk_tls_policy());
        let before = index.keys(kind);
        assert!(!before.is_empty(), "{kind}");
        on(&mut index, Event::Confirmed(kind, false));
        for key in &before {
            let event = deletion(kind, key.clone()).unwrap();
            on(&mut index, event);
        }
        assert_eq!(index.keys(kind), before);
        index.expire(Moment::from_millis(600_000));
        assert_eq!(index.keys(kind), [], "{kind}");
    }
}

#[test]
fn a_pool_whose_selector_is_refused_holds_nothing_back() {
    fn refused<K>(message: &str) -> Update<K> {
        let text = json!({"kind": "Status", "status": "Failure", "code": 400, "message": message, "reason": "BadRequest"});
        let status = serde_json::from_value(text).unwrap();
        let error = kube::runtime::watcher::Error::InitialListFailed(kube::Error::Api(status));
        Update::Failed(watch::WatchFailure::from(&error))
    }
    let mut index = Index::default();
    pods(&mut index, Update::Reset(vec![mk_pod("a", 1)]));
    index.forget(&Source::Pods(pool()));
    assert!(!index.listed.contains(&Source::Pods(pool())));
    let changes = pods(&mut index, refused("unable to parse"));
    assert_eq!(changes.world.pools, [pool()].into());
    assert!(index.listed.contains(&Source::Pods(pool())));
    assert_eq!(ips(&index), Vec::<IpAddr>::new());
    assert!(index.world.bad_selectors[&pool()].contains("unable to parse"));
    let changes = pods(&mut index, refused("unable to parse"));
    assert!(changes.world.is_empty());
    // mended
    let changes = pods(&mut index, Update::Reset(vec![mk_pod("a", 1)]));
    assert_eq!(changes.world.pools, [pool()].into());
    assert_eq!(ips(&index), [ip(1)]);
    assert!(index.world.bad_selectors.is_empty());

    // a Gateway can name a ConfigMap that no field selector can ask for
    let key = Key::new("ns", "a,b");
    let event = Event::ConfigMap(key.clone(), refused("no field selector"));
    on(&mut index, event);
    assert!(index.listed.contains(&Source::ConfigMap(key.clone())));
    assert_eq!(index.world.parameters.get(&key), Some(&None));
}

#[test]
fn own_services_and_nodes_are_known_and_hold_nothing_back() {
    let services = json!({"metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/12", "fd00:96::/112"]}});
    let services: ServiceCIDR = serde_json::from_value(services).unwrap();
    let node = json!({"metadata": {"name": "n1"}, "spec": {"podCIDR": "10.244.3.0/24", "podCIDRs": ["10.244.3.0/24", "odd"]}, "status": {"addresses": [
        {"type": "Hostname", "address": "n1"}, {"type": "InternalIP", "address": "192.0.2.7"}]}});
    let node: Node = serde_json::from_value(node).unwrap();
    let mut index = Index::default();
    let networks = |index: &Index| -> Vec<String> {
        let networks = index.world.own_networks.iter();
        networks.map(ToString::to_string).collect()
    };
    assert!(
        on(
            &mut index,
            Event::ServiceCidrs(Update::Reset(vec![services]))
        )
        .world
        .all
    );
    assert!(
        on(&mut index, Event::Nodes(Update::Reset(vec![node.clone()])))
            .world
            .all
    );
    assert_eq!(
        networks(&index),
        [
            "10.96.0.0/12",
            "10.244.3.0/24",
            "192.0.2.7/32",
            "fd00:96::/112"
        ]
    );
    let shown = |all: &[Cidr]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(shown(&index.world.own_pods), ["10.244.3.0/24"]);
    let others = ["10.96.0.0/12", "192.0.2.7/32", "fd00:96::/112"];
    assert_eq!(shown(&index.world.own_but_pods), others);
    // A heartbeat changes nothing.
    assert!(!on(&mut index, Event::Nodes(Update::Apply(node))).world.all);

    // Load balancers and API servers may be elsewhere. What makers of Services choose denies nobody anything.
    let balanced = json!({"metadata": {"namespace": "ns", "name": "web"}, "spec": {"type": "LoadBalancer", "externalIPs": ["203.0.113.1"]},
        "status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.4"}, {"hostname": "web.example"}]}}});
    let balanced: Service = serde_json::from_value(balanced).unwrap();
    let slice = json!({"metadata": {"namespace": "default", "name": "kubernetes", "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "addressType": "IPv4", "endpoints": [{"addresses": ["198.51.100.9"]}], "ports": [{"name": "https", "port": 6443}]});
    let slice: EndpointSlice = serde_json::from_value(slice).unwrap();
    let before = networks(&index);
    assert!(
        on(&mut index, Event::Services(Update::Apply(balanced.clone())))
            .world
            .all
    );
    assert!(
        on(&mut index, Event::Slices(Update::Apply(slice.clone())))
            .world
            .all
    );
    let news: Vec<String> = networks(&index)
        .into_iter()
        .filter(|one| !before.contains(one))
        .collect();
    assert_eq!(news, ["198.51.100.4/32", "198.51.100.9/32"]);
    on(&mut index, Event::Services(Update::Delete(balanced)));
    on(&mut index, Event::Slices(Update::Delete(slice)));
    assert_eq!(networks(&index), before);

    // This cluster has no ServiceCIDR API, and the gateway has an older role.
    let mut older = Index::default();
    on(&mut older, Event::ServiceCidrs(missing_kind()));
    on(&mut older, Event::Nodes(denied()));
    assert!(older.listed.contains(&Source::Kind(SERVICE_CIDR)));
    assert!(older.listed.contains(&Source::Kind(NODE)));
}

#[test]
fn certificate_follows_its_secret() {
    let (cert, source) = (
        Key::new("ns", "cert"),
        Source::Secret(Key::new("ns", "cert")),
    );
    let mk = |name: &str, host: &str| {
        let (chain, key) = secrets::mk_pem(&Ca::new("a"), host);
        secrets::mk_secret(name, "kubernetes.io/tls", &chain, &key)
    };
    let mut index = Index::default();
    let feed = |index: &mut Index, update| on(index, Event::Secret(cert.clone(), update)).world.all;
    let bad = |index: &Index| index.world.certificates[&cert].clone().err();
    assert!(feed(&mut index, Update::Reset(vec![mk("other", "a.b")])));
    assert_eq!(bad(&index), Some(BadSecret::NotFound));
    assert!(index.listed.contains(&source));
    let first = mk("cert", "a.b");
    assert!(feed(&mut index, Update::Apply(first.clone())));
    assert!(!feed(&mut index, Update::Apply(first.clone())));
    assert_eq!(index.world.certificates[&cert], first.content);
    assert!(feed(&mut index, Update::Apply(mk("cert", "c.b"))));
    assert_eq!(bad(&index), None);
    // what is known stays
    assert!(!feed(&mut index, denied()));
    assert!(!feed(&mut index, odd("cert")));
    assert!(!feed(&mut index, Update::Reset(Vec::new())));
    assert_eq!(bad(&index), None);
    assert!(feed(&mut index, Update::Delete(mk("cert", "c.b"))));
    assert_eq!(bad(&index), Some(BadSecret::NotFound));
    index.forget(&source);
    assert!(index.world.certificates.is_empty() && !index.listed.contains(&source));
}

/// A role may allow some Secrets only: what it does not allow must not hold up a start.
#[test]
fn secret_that_cannot_be_read_is_known_to_be_so() {
    let cert = Key::new("ns", "cert");
    for (updates, expected) in [
        ((0..4).map(|_| denied()).collect(), BadSecret::Denied),
        (
            vec![odd("cert"), Update::Reset(Vec::new())],
            BadSecret::Undecodable,
        ),
    ] {
        let mut index = Index::default();
        for update in updates {
            on(&mut index, Event::Secret(cert.clone(), update));
        }
        assert_eq!(index.world.certificates[&cert], Err(expected));
    }
}

/// An API server that has just started may deny what it allows a moment later, and one Secret is no reason to serve nobody.
#[test]
fn secret_that_is_denied_for_a_moment_is_not_known_and_holds_nothing_else_back() {
    let cert = Key::new("ns", "cert");
    let mut index = Index::default();
    for _ in 0..3 {
        on(&mut index, Event::Secret(cert.clone(), denied()));
        assert!(!index.world.certificates.contains_key(&cert));
    }
    let kinds = KINDS.map(Source::Kind);
    index.listed.extend(kinds);
    let more = [Source::Secret(cert.clone()), Source::Pods(cert)];
    assert!(index.has_listed(&more[..1].iter().cloned().collect()));
    assert!(!index.has_listed(&more.into_iter().collect()));
}
