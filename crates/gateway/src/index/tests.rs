//! Updates in, knowledge out.

use std::net::{IpAddr, Ipv4Addr};

use serde_json::json;
use watch::OddObject;

use super::*;

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

fn pool() -> Key {
    Key::new("ns", "llm")
}

fn pods(index: &mut Index, update: Update<Pod>) -> Changes {
    index.on(Event::Pods(pool(), update))
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
    assert!(pods(&mut index, Update::Reset(Vec::new())).endpoints);
    assert_eq!(ips(&index), [ip(1)]);
    // The next list has it no more.
    pods(&mut index, Update::Reset(Vec::new()));
    assert_eq!(ips(&index), Vec::<IpAddr>::new());
}

#[test]
fn routes_and_their_status_outlive_a_list_too() {
    let route = json!({
        "metadata": {"namespace": "ns", "name": "r"},
        "spec": {"parentRefs": [{"name": "gw"}]},
        "status": {"parents": []},
    });
    let route = serde_json::from_value(route).unwrap();
    let mut index = Index::default();
    index.on(Event::Routes(Update::Reset(vec![route])));
    index.on(Event::Routes(odd("r")));
    let changes = index.on(Event::Routes(Update::Reset(Vec::new())));
    assert!(!changes.world);
    let key = Key::new("ns", "r");
    assert!(index.world.routes.contains_key(&key));
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
            "spec": {"type": "ClusterIP", "clusterIPs": ["10.9.0.1"]},
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
    index.on(Event::Services(Update::Apply(service(owner("Gateway")))));
    let infra = &index.world.infra[&Key::new("ns", &long)];
    assert_eq!(infra.addresses, ["10.9.0.1"]);
    let mut index = Index::default();
    index.on(Event::Services(Update::Apply(service(owner("Deployment")))));
    index.on(Event::Services(Update::Apply(service(json!([])))));
    assert!(index.world.infra.is_empty() && index.parts.is_empty());
}

#[test]
fn config_map_that_is_not_there_is_known_only_once_listed() {
    let mut index = Index::default();
    let key = Key::new("ns", "parameters");
    index.on(Event::Classes(Update::Reset(Vec::new())));
    assert_eq!(index.world.parameters.get(&key), None);
    let list = Event::ConfigMap(key.clone(), Update::Reset(Vec::new()));
    assert!(index.on(list).world);
    assert_eq!(index.world.parameters.get(&key), Some(&None));
}
