//! What is written when, against live status.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::diff::{Patch, StatusError, diff};
use super::{Target, Wanted, wanted};
use crate::fixture::{CONTROLLER, key, mk_selection, mk_settings, mk_world};
use crate::model::{Cond, ParentStatus, build};
use crate::select::Selection;
use crate::world::ParentRef;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn mk_wanted() -> BTreeMap<Target, Wanted> {
    let (_, status) = build(&mk_world(), &mk_settings());
    wanted(&status, &mk_selection(&status)).collect()
}

fn compare(target: &Target, live: &Value, now: i64) -> Option<Patch> {
    diff(target, &mk_wanted()[target], live, CONTROLLER, at(now)).unwrap()
}

fn body(patch: Patch) -> Value {
    match patch {
        Patch::Apply(body) | Patch::Replace(body) => body,
    }
}

#[test]
fn nothing_is_written_twice() {
    for target in mk_wanted().keys() {
        let first = compare(target, &Value::Null, 10)
            .map(body)
            .expect("a first write");
        assert_eq!(compare(target, &first, 20), None, "{target:?}");
    }
}

#[test]
fn every_status_is_complete() {
    let bodies: BTreeMap<String, Value> = mk_wanted()
        .keys()
        .map(|target| {
            let first = compare(target, &Value::Null, 10).map(body).unwrap();
            (format!("{} {}", target.api().2, target.key()), first)
        })
        .collect();
    insta::assert_yaml_snapshot!(bodies);
}

#[test]
fn time_moves_only_with_the_status() {
    let target = Target::Gateway(key("gw"));
    let mut live = compare(&target, &Value::Null, 10).map(body).unwrap();
    live["conditions"][0]["message"] = "old words".into();
    live["conditions"][1]["status"] = "False".into();
    let now = compare(&target, &live, 20).map(body).unwrap();
    assert_eq!(
        now["conditions"][0]["lastTransitionTime"],
        "1970-01-01T00:00:10Z"
    );
    assert_eq!(
        now["conditions"][1]["lastTransitionTime"],
        "1970-01-01T00:00:20Z"
    );
}

#[test]
fn newer_generation_is_not_overwritten() {
    let target = Target::Gateway(key("gw"));
    let mut live = compare(&target, &Value::Null, 10).map(body).unwrap();
    live["conditions"][0]["observedGeneration"] = 7.into();
    live["conditions"][0]["reason"] = "Newer".into();
    assert_eq!(compare(&target, &live, 20), None);
}

#[test]
fn entries_of_others_keep_their_place_and_content() {
    for target in [Target::Route(key("chat")), Target::Pool(key("llm"))] {
        let foreign = json!({
            "parentRef": { "name": "gw", "strange": true },
            "controllerName": "example.com/other",
            "conditions": [],
        });
        let live = json!({ "parents": [foreign], "extra": 1 });
        let status = compare(&target, &live, 10).map(body).unwrap();
        assert_eq!(status["parents"][0], foreign);
        assert_eq!(status["parents"][1]["controllerName"], CONTROLLER);
        assert_eq!(status["extra"], 1);
        assert_eq!(compare(&target, &status, 20), None);
    }
}

#[test]
fn own_entries_that_are_not_wanted_go() {
    let target = Target::Pool(key("llm"));
    let live = compare(&target, &Value::Null, 10).map(body).unwrap();
    let none = Wanted::Parents(Vec::new());
    let patch = diff(&target, &none, &live, CONTROLLER, at(20)).unwrap();
    assert_eq!(patch, Some(Patch::Replace(json!({ "parents": [] }))));
    let patch = diff(
        &target,
        &none,
        &json!({ "parents": [] }),
        CONTROLLER,
        at(20),
    )
    .unwrap();
    assert_eq!(patch, None);
    let target = Target::Import(key("llm"));
    let live = compare(&target, &Value::Null, 10).map(body).unwrap();
    let patch = diff(&target, &none, &live, CONTROLLER, at(20)).unwrap();
    assert_eq!(patch, Some(Patch::Apply(json!({}))));
}

#[test]
fn full_list_is_told_and_not_written() {
    let target = Target::Route(key("chat"));
    let foreign = json!({ "parentRef": { "name": "x" }, "controllerName": "example.com/other" });
    let live = json!({ "parents": vec![foreign; 32] });
    let error = diff(&target, &mk_wanted()[&target], &live, CONTROLLER, at(10)).unwrap_err();
    let expected = StatusError::Full {
        list: "parents",
        others: 32,
        max: 32,
    };
    assert_eq!(error, expected);
}

#[test]
fn import_entry_of_the_controller_is_left_alone() {
    let target = Target::Import(key("llm"));
    let live = json!({ "controllers": [{ "name": "isthmus.dev/mci-controller" }], "clusters": [] });
    let status = compare(&target, &live, 10).map(body).unwrap();
    let controllers = status["controllers"].as_array().unwrap();
    assert_eq!(controllers.len(), 1);
    assert_eq!(controllers[0]["name"], CONTROLLER);
    assert!(controllers[0].get("conditions").is_none() && status.get("clusters").is_none());
}

/// The API wants this condition gone where it does not hold.
#[test]
fn overlap_that_is_over_is_taken_away() {
    let target = Target::Gateway(key("gw"));
    let mut live = compare(&target, &Value::Null, 10).map(body).unwrap();
    let overlap = json!({
        "type": "OverlappingTLSConfig", "status": "True", "reason": "OverlappingHostnames", "message": "",
        "observedGeneration": 1, "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let conditions = live["listeners"][0]["conditions"].as_array_mut().unwrap();
    conditions.push(overlap);
    let now = compare(&target, &live, 20).map(body).unwrap();
    let text = now.to_string();
    assert!(!text.contains("OverlappingTLSConfig"), "{text}");
}

/// The list of a policy has another name than that of a route, and room for fewer.
#[test]
fn policies_are_told_for_each_import_beside_what_others_say() {
    let mut world = mk_world();
    let policy = crate::world::SelectionPolicy {
        generation: 1,
        created: 0,
        targets: ["llm".to_owned()].into(),
        policy: Ok(crate::select::Policy::default()),
    };
    world.policies.insert(key("csp"), policy);
    let (_, status) = build(&world, &mk_settings());
    let wanted: BTreeMap<_, _> = wanted(&status, &Selection::default()).collect();
    let target = Target::Policy(key("csp"));
    let compare = |live: &Value| diff(&target, &wanted[&target], live, CONTROLLER, at(10));
    let other = json!({"ancestorRef": {"name": "llm"}, "controllerName": "other/gateway", "conditions": []});
    let Some(Patch::Replace(made)) = compare(&json!({"ancestors": [other]})).unwrap() else {
        panic!("the list is atomic");
    };
    assert_eq!(made["ancestors"][0], other);
    let own = &made["ancestors"][1];
    assert_eq!(own["controllerName"], CONTROLLER);
    let import = json!({
        "group": "inference.networking.x-k8s.io", "kind": "InferencePoolImport", "namespace": "ns", "name": "llm",
    });
    assert_eq!(own["ancestorRef"], import);
    assert_eq!(own["conditions"][0]["reason"], "Accepted");
    assert_eq!(compare(&made).unwrap(), None);
    let error = compare(&json!({"ancestors": vec![other; 16]})).unwrap_err();
    assert_eq!(
        error.to_string(),
        "status.ancestors is full: 16 entries are of others, 16 are allowed"
    );
}

/// The API allows 16 entries, and there may be more Gateways.
#[test]
fn list_of_a_policy_has_as_many_of_its_gateways_as_fit() {
    let entry = |name: String| ParentStatus {
        parent: ParentRef {
            name,
            ..ParentRef::default()
        },
        conditions: vec![Cond::yes("Accepted", 1)],
    };
    let wanted = Wanted::Parents((10..30).map(|n| entry(format!("gw{n}"))).collect());
    let target = Target::TlsPolicy(key("p"));
    let other =
        json!({"ancestorRef": {"name": "x"}, "controllerName": "other/gateway", "conditions": []});
    let live = json!({"ancestors": vec![other; 3]});
    let write = |live: &Value| diff(&target, &wanted, live, CONTROLLER, at(10)).unwrap();
    let made = write(&live).map(body).unwrap();
    let names: Vec<&Value> = made["ancestors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["ancestorRef"]["name"])
        .collect();
    assert_eq!(
        (names.len(), names[2], names[15]),
        (16, &json!("x"), &json!("gw22"))
    );
    assert_eq!(write(&made), None);
}
