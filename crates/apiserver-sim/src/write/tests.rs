//! The facts K2-K5, K7, K9 and K10 of the specification; `e2e/tests/crd_facts` holds them against a real API server.

use super::*;
use crate::{
    hand::Flavour,
    kinds::{IMPORTS, NAMESPACES, POOLS},
};

pub(super) const OURS: &str = "isthmus.dev/mci-controller";
pub(super) const OTHER: &str = "example.net/gateway";

pub(super) fn mk_store() -> Store {
    let mut store = Store::new("s");
    store.import_fields = schema::import_fields(&schema::import_crd());
    store.import_schema = schema::of_imports(Flavour::Superset);
    store.put(&NAMESPACES, json!({"metadata": {"name": "ml"}}));
    store
}

pub(super) fn at(name: &str, status: bool) -> At<'_> {
    At {
        kind: &IMPORTS,
        namespace: "ml",
        name,
        status,
    }
}

pub(super) fn apply_main(store: &mut Store, name: &str, manager: &str) -> Result<Written> {
    let body = json!({"apiVersion": IMPORTS.api_version(), "kind": IMPORTS.kind,
        "metadata": {"namespace": "ml", "name": name, "labels": {"by": manager}}, "status": {"observedGeneration": 9}});
    let type_ = PatchType::Apply { force: false };
    patch(
        store,
        at(name, false),
        manager,
        type_,
        &body.to_string().into(),
    )
}

fn apply_status(
    store: &mut Store,
    name: &str,
    manager: &str,
    force: bool,
    status: Value,
) -> Result<Value> {
    let body = json!({"apiVersion": IMPORTS.api_version(), "kind": IMPORTS.kind,
        "metadata": {"namespace": "ml", "name": name}, "status": status});
    let type_ = PatchType::Apply { force };
    let written = patch(
        store,
        at(name, true),
        manager,
        type_,
        &body.to_string().into(),
    )?;
    Ok(written.object.value())
}

pub(super) fn entry(name: &str) -> Value {
    json!({"name": name, "routingMode": "EndpointMode", "targetPortNumber": 8000})
}

fn names(value: &Value) -> Vec<&str> {
    let entries = value.pointer("/status/clusters").and_then(Value::as_array);
    entries
        .into_iter()
        .flatten()
        .filter_map(|entry| entry["name"].as_str())
        .collect()
}

#[test]
fn two_managers_share_the_status() {
    let mut store = mk_store();
    apply_main(&mut store, "a", OURS).expect("created");
    let ours = json!({"clusters": [entry("east")], "controllers": [{"name": OURS}]});
    apply_status(&mut store, "a", OURS, false, ours.clone()).expect("applied");
    let parents = json!([{"parentRef": {"name": "gw"}, "controllerName": OTHER}]);
    let theirs = json!({"controllers": [{"name": OTHER, "parents": parents}]});
    apply_status(&mut store, "a", OTHER, false, theirs).expect("applied");
    let after = apply_status(&mut store, "a", OURS, false, ours).expect("applied");
    assert_eq!(names(&after), ["east"]);
    let controllers = after["status"]["controllers"].as_array().expect("a list");
    let other = controllers
        .iter()
        .find(|one| one["name"] == OTHER)
        .expect("the gateway's");
    assert_eq!(other["parents"].as_array().map(Vec::len), Some(1));
}

#[test]
fn a_shorter_apply_takes_only_its_own_entries() {
    let mut store = mk_store();
    apply_main(&mut store, "a", OURS).expect("created");
    apply_status(
        &mut store,
        "a",
        OURS,
        false,
        json!({"clusters": [entry("a"), entry("b")]}),
    )
    .expect("applied");
    apply_status(
        &mut store,
        "a",
        OTHER,
        false,
        json!({"clusters": [entry("z")]}),
    )
    .expect("applied");
    let after = apply_status(
        &mut store,
        "a",
        OURS,
        true,
        json!({"clusters": [entry("a")]}),
    )
    .expect("applied");
    assert_eq!(names(&after), ["a", "z"]);
}

#[test]
fn fields_that_are_no_longer_applied_go() {
    let mut store = mk_store();
    apply_main(&mut store, "a", OURS).expect("created");
    let mut full = entry("a");
    full["labels"] = json!({"region": "r"});
    full["conditions"] = json!([{"type": "Ready", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
    apply_status(&mut store, "a", OURS, false, json!({"clusters": [full]})).expect("applied");
    let after = apply_status(
        &mut store,
        "a",
        OURS,
        false,
        json!({"clusters": [entry("a")]}),
    )
    .expect("applied");
    assert_eq!(after["status"]["clusters"][0], entry("a"));
}

#[test]
fn an_apply_that_changes_nothing_keeps_the_resource_version() {
    let mut store = mk_store();
    apply_main(&mut store, "a", OURS).expect("created");
    let status = json!({"clusters": [entry("a")]});
    let first = apply_status(&mut store, "a", OURS, false, status.clone()).expect("applied");
    let second = apply_status(&mut store, "a", OURS, false, status).expect("applied");
    assert_eq!(first, second);
    let again = apply_main(&mut store, "a", OURS).expect("applied");
    assert_eq!(again.object.value(), second);
    assert!(!again.created);
}

#[test]
fn an_empty_list_reads_back_absent() {
    let mut store = mk_store();
    apply_main(&mut store, "a", OURS).expect("created");
    apply_status(
        &mut store,
        "a",
        OURS,
        false,
        json!({"clusters": [entry("a")]}),
    )
    .expect("applied");
    let after =
        apply_status(&mut store, "a", OURS, false, json!({"clusters": []})).expect("applied");
    assert_eq!(after["status"].get("clusters"), None);
}

#[test]
fn an_apply_over_foreign_fields_is_a_conflict_unless_forced() {
    let mut store = mk_store();
    apply_main(&mut store, "a", OURS).expect("created");
    apply_status(
        &mut store,
        "a",
        OTHER,
        false,
        json!({"clusters": [entry("a")]}),
    )
    .expect("applied");
    // the same value may be shared
    apply_status(
        &mut store,
        "a",
        "third",
        false,
        json!({"clusters": [entry("a")]}),
    )
    .expect("applied");
    let mut other = entry("a");
    other["targetPortNumber"] = json!(9000);
    let status = json!({"clusters": [other]});
    let refused =
        apply_status(&mut store, "a", OURS, false, status.clone()).expect_err("a conflict");
    assert_eq!(refused.code, 409);
    assert_eq!(
        refused.details["causes"][0]["reason"],
        "FieldManagerConflict"
    );
    let after = apply_status(&mut store, "a", OURS, true, status).expect("forced");
    assert_eq!(after["status"]["clusters"][0]["targetPortNumber"], 9000);
}

#[test]
fn the_status_of_a_missing_import_is_404_and_the_main_resource_creates_it() {
    let mut store = mk_store();
    let refused = apply_status(&mut store, "a", OURS, false, json!({})).expect_err("missing");
    assert_eq!(
        (refused.code, refused.details["kind"].as_str()),
        (404, Some("inferencepoolimports"))
    );
    let written = apply_main(&mut store, "a", OURS).expect("created");
    assert!(written.created);
    assert_eq!(written.object.value().get("status"), None);
}

#[test]
fn a_missing_namespace_is_404_and_a_terminating_one_403() {
    let mut store = mk_store();
    let elsewhere = At {
        namespace: "nowhere",
        ..at("a", false)
    };
    let body = Bytes::from_static(br#"{"metadata": {}}"#);
    let type_ = PatchType::Apply { force: false };
    let refused = patch(&mut store, elsewhere, OURS, type_, &body).expect_err("missing");
    assert_eq!(
        (refused.code, refused.details["kind"].as_str()),
        (404, Some("namespaces"))
    );
    store.put(
        &NAMESPACES,
        json!({"metadata": {"name": "ml", "deletionTimestamp": "2026-01-01T00:00:00Z"}}),
    );
    let refused = apply_main(&mut store, "a", OURS).expect_err("terminating");
    assert_eq!(refused.code, 403);
    assert_eq!(
        refused.details["causes"][0]["reason"],
        "NamespaceTerminating"
    );
}

#[test]
fn upstreams_crd_refuses_our_fields() {
    let mut store = mk_store();
    apply_main(&mut store, "a", OURS).expect("created");
    store.import_schema = schema::of_imports(Flavour::Upstream);
    let refused = apply_status(
        &mut store,
        "a",
        OURS,
        false,
        json!({"clusters": [entry("a")]}),
    )
    .expect_err("refused");
    assert_eq!(refused.code, 500);
    assert!(
        refused
            .message
            .contains(".status.clusters: field not declared in schema"),
        "{refused:?}"
    );
    apply_status(
        &mut store,
        "a",
        OURS,
        false,
        json!({"controllers": [{"name": OURS}]}),
    )
    .expect("upstream's field");
}

#[test]
fn an_edit_by_hand_takes_the_fields_it_changes() {
    let mut store = mk_store();
    apply_main(&mut store, "a", OURS).expect("created");
    let live = apply_status(
        &mut store,
        "a",
        OURS,
        false,
        json!({"clusters": [entry("a")]}),
    )
    .expect("applied");
    let mut edited = live.clone();
    edited["status"]["clusters"][0]["targetPortNumber"] = json!(1);
    edited["status"]["clusters"]
        .as_array_mut()
        .expect("a list")
        .push(entry("intruder"));
    update(&mut store, at("a", true), "kubectl-edit", edited).expect("updated");
    let refused = apply_status(
        &mut store,
        "a",
        OURS,
        false,
        json!({"clusters": [entry("a")]}),
    )
    .expect_err("theirs now");
    assert_eq!(refused.code, 409);
    let after = apply_status(
        &mut store,
        "a",
        OURS,
        true,
        json!({"clusters": [entry("a")]}),
    )
    .expect("forced");
    assert_eq!(after["status"]["clusters"][0]["targetPortNumber"], 8000);
    assert_eq!(names(&after), ["a", "intruder"]);
    let managed = after["metadata"]["managedFields"].to_string();
    assert!(
        managed.contains("intruder") && managed.contains("kubectl-edit"),
        "{managed}"
    );
    let patch_body = json!([{"op": "test", "path": "/metadata/resourceVersion", "value": after["metadata"]["resourceVersion"]},
        {"op": "remove", "path": "/status/clusters/1"}]);
    let patched = patch(
        &mut store,
        at("a", true),
        OURS,
        PatchType::Json,
        &patch_body.to_string().into(),
    )
    .expect("patched");
    assert_eq!(names(&patched.object.value()), ["a"]);
    let stale = patch(
        &mut store,
        at("a", true),
        OURS,
        PatchType::Json,
        &patch_body.to_string().into(),
    );
    assert_eq!(stale.expect_err("stale").code, 422);
}

#[test]
fn updates_and_deletions_hold_for_what_was_seen() {
    let mut store = mk_store();
    let pool = json!({"metadata": {"name": "p", "namespace": "ml"}, "spec": {"x": 1}});
    let place = At {
        kind: &POOLS,
        namespace: "ml",
        name: "p",
        status: false,
    };
    let made = create(&mut store, place, "kubectl", pool)
        .expect("created")
        .object;
    let mut status = made.value();
    status["status"] = json!({"parents": [1]});
    status["spec"] = json!({"x": 2});
    let on_status = At {
        status: true,
        ..place
    };
    let after = update(&mut store, on_status, "gw", status.clone())
        .expect("updated")
        .object;
    assert_eq!(
        after.value()["spec"]["x"],
        1,
        "a status update changes nothing else"
    );
    assert_eq!(
        update(&mut store, on_status, "gw", status)
            .expect_err("stale")
            .code,
        409
    );
    let options = |uid: &str, version: u64| json!({"preconditions": {"uid": uid, "resourceVersion": version.to_string()}});
    let refused = delete(&mut store, place, &options(&made.uid, made.version)).expect_err("stale");
    assert_eq!(refused.code, 409);
    assert_eq!(
        delete(&mut store, place, &options("other", after.version))
            .expect_err("another")
            .code,
        409
    );
    delete(&mut store, place, &options(&made.uid, after.version)).expect("deleted");
    assert_eq!(
        delete(&mut store, place, &json!({}))
            .expect_err("gone")
            .code,
        404
    );
}

#[test]
fn entries_stand_in_the_order_of_the_apply_and_those_of_others_where_they_stood() {
    let mut store = mk_store();
    apply_main(&mut store, "a", OURS).expect("created");
    let mut apply = |manager, entries: &[&str]| {
        let entries: Vec<Value> = entries.iter().map(|name| entry(name)).collect();
        let after = apply_status(
            &mut store,
            "a",
            manager,
            false,
            json!({"clusters": entries}),
        );
        let after = after.expect("applied");
        names(&after).join(" ")
    };
    assert_eq!(apply(OURS, &["a", "b", "c"]), "a b c");
    assert_eq!(apply(OTHER, &["y", "b", "z"]), "a y b c z");
    assert_eq!(apply(OURS, &["c", "n", "a"]), "y b c z n a");
}
