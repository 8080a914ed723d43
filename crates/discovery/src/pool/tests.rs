//! Against an API server of which the test holds every answer.

use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::fake_api::{POOL_PATH, Running, mk_pod};

fn mk_pool(app: &str, port: u16) -> Value {
    json!({
        "apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool",
        "metadata": { "name": "llm", "namespace": "ns", "resourceVersion": "2" },
        "spec": { "selector": { "matchLabels": { "app": app } }, "targetPorts": [{ "number": port }] },
    })
}

/// [`mk_pool`] with ports that are no list.
fn mk_odd_pool() -> Value {
    let mut pool = mk_pool("llm", 8000);
    pool["spec"]["targetPorts"] = json!("8000");
    pool
}

fn start() -> Running {
    Running::start(|client| PoolDiscovery {
        client,
        namespace: "ns".to_owned(),
        name: "llm".to_owned(),
    })
}

#[tokio::test(start_paused = true)]
async fn members_follow_the_pool_and_its_pods() {
    let mut running = start();
    running.api.set(POOL_PATH, &[mk_pool("llm", 8000)]);
    running.api.asked("app=llm").await;
    assert!(!running.is_known(), "the pods are not known yet");
    running.api.set("app=llm", &[mk_pod("a", "10.0.0.1")]);
    running.until(&["10.0.0.1:8000"]).await;
    assert!(running.is_known());
    running
        .api
        .event("app=llm", "ADDED", mk_pod("b", "10.0.0.2"))
        .await;
    running.until(&["10.0.0.1:8000", "10.0.0.2:8000"]).await;
    running
        .api
        .event("app=llm", "DELETED", mk_pod("a", "10.0.0.1"))
        .await;
    running.until(&["10.0.0.2:8000"]).await;
    running
        .api
        .event(POOL_PATH, "MODIFIED", mk_pool("llm", 9000))
        .await;
    running.until(&["10.0.0.2:9000"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_pool_without_pods_is_ready() {
    let mut running = start();
    running.api.set(POOL_PATH, &[mk_pool("llm", 8000)]);
    running.api.set("app=llm", &[]);
    running.until(&[]).await;
    assert!(running.is_known());
}

#[tokio::test(start_paused = true)]
async fn a_changed_selector_keeps_the_members_until_the_new_pods_are_listed() {
    let mut running = start();
    running.api.set(POOL_PATH, &[mk_pool("old", 8000)]);
    running.api.set("app=old", &[mk_pod("a", "10.0.0.1")]);
    running.until(&["10.0.0.1:8000"]).await;
    running
        .api
        .event(POOL_PATH, "MODIFIED", mk_pool("new", 8000))
        .await;
    running.api.asked("app=new").await;
    assert_eq!(running.members(), ["10.0.0.1:8000"]);
    // The old watch still counts.
    running
        .api
        .event("app=old", "ADDED", mk_pod("b", "10.0.0.2"))
        .await;
    running.until(&["10.0.0.1:8000", "10.0.0.2:8000"]).await;
    running.api.set("app=new", &[mk_pod("c", "10.0.0.3")]);
    running.until(&["10.0.0.3:8000"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_pool_has_no_members_until_it_is_back() {
    let mut running = start();
    running.api.set(POOL_PATH, &[mk_pool("llm", 8000)]);
    running.api.set("app=llm", &[mk_pod("a", "10.0.0.1")]);
    running.until(&["10.0.0.1:8000"]).await;
    running
        .api
        .event(POOL_PATH, "DELETED", mk_pool("llm", 8000))
        .await;
    running.until_gone().await;
    running
        .api
        .event(POOL_PATH, "ADDED", mk_pool("llm", 8000))
        .await;
    running.until(&["10.0.0.1:8000"]).await;
    assert!(running.is_known());
}

#[tokio::test(start_paused = true)]
async fn a_pool_listed_but_unreadable_keeps_its_members() {
    let mut running = start();
    running.api.set(POOL_PATH, &[mk_pool("llm", 8000)]);
    running.api.set("app=llm", &[mk_pod("a", "10.0.0.1")]);
    running.until(&["10.0.0.1:8000"]).await;
    running.api.set(POOL_PATH, &[mk_odd_pool()]);
    running.api.relist(POOL_PATH).await;
    assert_eq!(running.members(), ["10.0.0.1:8000"]);
    assert!(running.is_known());
    // It is remembered for one list only.
    running.api.set(POOL_PATH, &[]);
    running.api.relist(POOL_PATH).await;
    running.until_gone().await;
}

#[tokio::test(start_paused = true)]
async fn a_pool_deleted_while_unreadable_is_gone() {
    let mut running = start();
    running.api.set(POOL_PATH, &[mk_pool("llm", 8000)]);
    running.api.set("app=llm", &[mk_pod("a", "10.0.0.1")]);
    running.until(&["10.0.0.1:8000"]).await;
    running
        .api
        .event(POOL_PATH, "MODIFIED", mk_odd_pool())
        .await;
    running.api.event(POOL_PATH, "DELETED", mk_odd_pool()).await;
    running.until_gone().await;
    assert_eq!(running.odd().len(), 1, "{:?}", running.odd());
}

#[tokio::test(start_paused = true)]
async fn a_selector_and_a_port_changed_at_once_never_mix_with_the_old() {
    let mut running = start();
    running.api.set(POOL_PATH, &[mk_pool("old", 8000)]);
    running.api.set("app=old", &[mk_pod("a", "10.0.0.1")]);
    running.until(&["10.0.0.1:8000"]).await;
    running
        .api
        .event(POOL_PATH, "MODIFIED", mk_pool("new", 9000))
        .await;
    running.api.asked("app=new").await;
    // News of an old pod come with the old port.
    running
        .api
        .event("app=old", "ADDED", mk_pod("b", "10.0.0.2"))
        .await;
    running.until(&["10.0.0.1:8000", "10.0.0.2:8000"]).await;
    // The port awaited changes too.
    running
        .api
        .event(POOL_PATH, "MODIFIED", mk_pool("new", 9001))
        .await;
    running.api.set("app=new", &[mk_pod("c", "10.0.0.3")]);
    running.until(&["10.0.0.3:9001"]).await;
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_gone_costs_no_member() {
    let mut running = start();
    running.api.set(POOL_PATH, &[mk_pool("llm", 8000)]);
    running.api.set("app=llm", &[mk_pod("a", "10.0.0.1")]);
    running.until(&["10.0.0.1:8000"]).await;
    running
        .api
        .event("app=llm", "ADDED", mk_pod("b", "10.0.0.2"))
        .await;
    running.until(&["10.0.0.1:8000", "10.0.0.2:8000"]).await;
    running.api.go_down();
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(running.is_known());
    assert_eq!(running.members().len(), 2);
    assert!(running.failures() > 0, "and is reported");
    running.api.come_back();
    running
        .api
        .event("app=llm", "DELETED", mk_pod("b", "10.0.0.2"))
        .await;
    running.until(&["10.0.0.1:8000"]).await;
}

/// [`mk_pod`] with the annotation.
fn mk_limited_pod(name: &str, ip: &str, ports: &str) -> Value {
    let mut pod = mk_pod(name, ip);
    pod["metadata"]["annotations"] = json!({ "llm-d.ai/active-ports": ports });
    pod
}

#[tokio::test(start_paused = true)]
async fn an_annotation_that_names_no_port_of_the_pool_is_reported_once() {
    let mut running = start();
    running.api.set(POOL_PATH, &[mk_pool("llm", 8000)]);
    running
        .api
        .set("app=llm", &[mk_limited_pod("a", "10.0.0.1", "9000")]);
    running.until(&["10.0.0.1:8000"]).await;
    // another event of the same pod, and one of another
    let again = mk_limited_pod("a", "10.0.0.3", "9000");
    running.api.event("app=llm", "MODIFIED", again).await;
    let other = mk_limited_pod("b", "10.0.0.2", "8000");
    running.api.event("app=llm", "ADDED", other).await;
    running.until(&["10.0.0.3:8000", "10.0.0.2:8000"]).await;
    let [(Kind::Pod, name, text)] = &running.odd()[..] else {
        panic!("{:?}", running.odd());
    };
    assert_eq!(name, "a");
    assert!(text.contains("\"9000\" name no port of [8000]"), "{text}");
    // The pool's port changes: now the annotation of b is the wrong one.
    let moved = mk_pool("llm", 9000);
    running.api.event(POOL_PATH, "MODIFIED", moved).await;
    running.until(&["10.0.0.3:9000", "10.0.0.2:9000"]).await;
    assert_eq!(running.odd().len(), 2, "{:?}", running.odd());
    assert_eq!(running.odd()[1].1, "b");
}

#[test]
fn the_selector_is_what_the_api_server_reads() {
    let mut pool = mk_pool("llm", 8000);
    pool["spec"]["selector"]["matchLabels"]["tier"] = json!("gpu");
    pool["spec"]["targetPorts"] = json!([{ "number": 8001 }, { "number": 0 }, { "number": 70000 }]);
    let target = Target::of(&serde_json::from_value(pool).unwrap());
    assert_eq!(target.selector, "app=llm,tier=gpu");
    assert_eq!(target.ports, [8001]);
}
