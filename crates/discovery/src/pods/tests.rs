use ::watch::OddObject;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::engine::ENGINE;

fn mk_pod(name: &str, ip: &str, change: Value) -> Pod {
    let mut pod = json!({
        "metadata": { "name": name, "namespace": "ns", "uid": format!("uid-{name}") },
        "status": { "phase": "Running", "podIP": ip, "conditions": [{ "type": "Ready", "status": "True" }] },
    });
    merge(&mut pod, &change);
    serde_json::from_value(pod).unwrap()
}

fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}

fn addresses(members: &Pods, ports: &[u16]) -> Vec<String> {
    members
        .list("ns", ports)
        .iter()
        .map(|member| member.address.to_string())
        .collect()
}

fn after(updates: impl IntoIterator<Item = Update<Pod>>) -> Pods {
    let mut members = Pods::default();
    updates.into_iter().for_each(|update| members.on(update));
    members
}

fn mk_odd(name: &str) -> Update<Pod> {
    Update::Odd(OddObject {
        namespace: "ns".into(),
        name: name.into(),
        error: "odd".into(),
    })
}

#[test]
fn a_member_is_a_ready_pod_and_a_target_port() {
    let members = after([Update::Reset(vec![
        mk_pod("a", "10.0.0.1", json!({})),
        mk_pod("b", "fd00::2", json!({})),
    ])]);
    let list = members.list("ns", &[8000, 8001]);
    let addresses: Vec<_> = list
        .iter()
        .map(|member| member.address.to_string())
        .collect();
    assert_eq!(
        addresses,
        [
            "10.0.0.1:8000",
            "10.0.0.1:8001",
            "[fd00::2]:8000",
            "[fd00::2]:8001"
        ]
    );
    assert_eq!(list[1].id.to_string(), "ns/a-rank-1");
    assert_eq!(&*list[1].id.uid, "uid-a");
}

#[rstest]
#[case::not_ready(json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } }))]
#[case::no_condition(json!({ "status": { "conditions": [] } }))]
#[case::deleting(json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }))]
#[case::no_address(json!({ "status": { "podIP": null } }))]
#[case::failed(json!({ "status": { "phase": "Failed" } }))]
#[case::succeeded(json!({ "status": { "phase": "Succeeded" } }))]
#[case::no_status(json!({ "status": null }))]
fn a_pod_that_cannot_serve_is_no_member_and_leaves(#[case] change: Value) {
    let pod = |change| mk_pod("a", "10.0.0.1", change);
    assert!(addresses(&after([Update::Apply(pod(change.clone()))]), &[8000]).is_empty());
    let left = after([Update::Apply(pod(json!({}))), Update::Apply(pod(change))]);
    assert!(addresses(&left, &[8000]).is_empty());
}

#[rstest]
#[case("8001", &[8001], false)]
#[case("8001,9999", &[8001], false)]
#[case(" 8001 , x, 8000", &[8000, 8001], false)]
#[case("9999", &[8000, 8001], true)]
#[case("none", &[8000, 8001], true)]
#[case("", &[8000, 8001], true)]
fn the_annotation_limits_the_ports(
    #[case] text: &str,
    #[case] ports: &[u16],
    #[case] ignored: bool,
) {
    for key in ACTIVE_PORTS {
        let pod = mk_pod(
            "a",
            "10.0.0.1",
            json!({ "metadata": { "annotations": { key: text } } }),
        );
        let pods = after([Update::Apply(pod)]);
        assert_eq!(
            pods.ignored_ports(&[8000, 8001]).len(),
            usize::from(ignored)
        );
        let list = pods.list("ns", &[8000, 8001]);
        assert_eq!(
            list.iter()
                .map(|member| member.address.port())
                .collect::<Vec<_>>(),
            ports
        );
        assert!(
            list.iter()
                .all(|member| u16::from(member.id.rank) == member.address.port() - 8000),
            "ranks stay"
        );
    }
}

/// As on a host's network: requests are sent to addresses, and the lists for proxies would name one server twice.
#[test]
fn pods_of_one_address_are_one_endpoint() {
    let mut pods = after([Update::Reset(vec![
        mk_pod("b", "10.0.0.1", json!({})),
        mk_pod("a", "10.0.0.1", json!({})),
        mk_pod("c", "10.0.0.2", json!({})),
    ])]);
    let ports = [8000, 8300];
    let list = pods.list("ns", &ports);
    let ids: Vec<_> = list.iter().map(|member| member.id.to_string()).collect();
    assert_eq!(
        ids,
        ["ns/a-rank-0", "ns/a-rank-1", "ns/c-rank-0", "ns/c-rank-1"]
    );
    let taken = |port| TakenAddress {
        pod: "b".to_owned(),
        by: "a".to_owned(),
        address: SocketAddr::new("10.0.0.1".parse().unwrap(), port),
    };
    assert_eq!(
        pods.taken_addresses(&ports),
        [taken(8000), taken(8300)].into()
    );

    let port =
        |port: &str| json!({ "metadata": { "annotations": { "llm-d.ai/active-ports": port } } });
    pods.on(Update::Apply(mk_pod("a", "10.0.0.1", port("8000"))));
    pods.on(Update::Apply(mk_pod("b", "10.0.0.1", port("8300"))));
    let ids: Vec<_> = pods
        .list("ns", &ports)
        .iter()
        .map(|member| member.id.to_string())
        .collect();
    assert_eq!(
        ids,
        ["ns/a-rank-0", "ns/b-rank-1", "ns/c-rank-0", "ns/c-rank-1"]
    );
    assert!(pods.taken_addresses(&ports).is_empty());
}

#[test]
fn the_engine_comes_from_either_label() {
    for key in ENGINE {
        let pod = mk_pod(
            "a",
            "10.0.0.1",
            json!({ "metadata": { "labels": { key: "sglang" } } }),
        );
        assert_eq!(
            &*after([Update::Apply(pod)]).list("ns", &[1])[0].engine,
            "sglang"
        );
    }
}

#[test]
fn a_list_says_who_is_left() {
    let both = Update::Reset(vec![
        mk_pod("a", "10.0.0.1", json!({})),
        mk_pod("b", "10.0.0.2", json!({})),
    ]);
    let mut members = after([both]);
    members.on(Update::Delete(mk_pod("x", "10.0.0.9", json!({}))));
    assert_eq!(addresses(&members, &[8000]).len(), 2);
    members.on(Update::Reset(vec![mk_pod("b", "10.0.0.2", json!({}))]));
    assert_eq!(addresses(&members, &[8000]), ["10.0.0.2:8000"]);
}

#[test]
fn a_pod_that_turned_odd_keeps_its_last_state() {
    let mut members = after([
        Update::Apply(mk_pod("a", "10.0.0.1", json!({}))),
        mk_odd("a"),
        Update::Reset(vec![]),
    ]);
    assert_eq!(addresses(&members, &[8000]), ["10.0.0.1:8000"]);
    members.on(Update::Reset(vec![]));
    assert!(
        addresses(&members, &[8000]).is_empty(),
        "the next list has it no more"
    );
}
