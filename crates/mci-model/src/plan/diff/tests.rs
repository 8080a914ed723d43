//! Each field that we write, as others may edit it, take it out or add to it.

use std::sync::Arc;

use crd::annotations::MCI_CONTROLLER;
use rstest::rstest;
use serde_json::json;

use super::*;
use crate::{
    fixtures::{mk_key, mk_live, mk_status},
    index::digest::{LiveStatus, digest},
    plan::Audience,
};

fn mk_condition(type_: &str) -> Value {
    json!({"type": type_, "status": "True", "reason": "Good", "message": "all is well", "observedGeneration": 3,
        "lastTransitionTime": "1970-01-01T00:00:00Z"})
}

fn mk_service() -> Value {
    json!([{"type": "LoadBalancer", "addresses": ["192.0.2.1", "192.0.2.2"],
        "ports": [{"number": 9002, "name": "grpc", "protocol": "TCP", "appProtocol": "grpc"}]}])
}

/// A status with everything in it that we may write.
fn mk_status_json() -> Value {
    json!({
        "observedGeneration": 5,
        "conditions": [mk_condition("Accepted"), mk_condition("Ready"), mk_condition("Consistent")],
        "controllers": [{"name": MCI_CONTROLLER, "exportingClusters": [{"name": "a"}, {"name": "b"}],
            "conditions": [mk_condition("Accepted"), mk_condition("Ready")]}],
        "clusters": [{
            "name": "a", "routingMode": "EndpointMode", "targetPortNumber": 8000,
            "targetPorts": [{"number": 8000}, {"number": 8001}], "appProtocol": "http", "labels": {"region": "eu"},
            "drainUntil": "2026-01-01T00:00:00Z",
            "endpointPicker": {"name": "epp", "service": mk_service(), "failureMode": "FailOpen",
                "health": {"port": 9003, "secretRef": {"name": "creds", "namespace": "ml"}},
                "metrics": {"port": 9090, "secretRef": {"name": "creds", "namespace": "ml"}},
                "endpoints": ["10.0.0.1"]},
            "conditions": [mk_condition("Accepted"), mk_condition("Ready")],
        }, {
            "name": "b", "routingMode": "ParentMode", "targetPortNumber": 8000, "targetPorts": [{"number": 8000}],
            "parents": [{"name": "gw", "namespace": "infra", "service": mk_service(), "hostnames": ["x.example"],
                "listeners": [{"name": "http", "port": 80, "protocol": "HTTP", "hostname": "x.example"}],
                "conditions": [mk_condition("Programmed")]}],
            "conditions": [mk_condition("Accepted"), mk_condition("Ready")],
        }],
    })
}

fn read(status: &Value) -> Option<ImportStatus> {
    Some(mk_status(serde_json::from_value(status.clone()).ok()?))
}

fn mk_planned(flavour: Flavour) -> PlannedImport {
    let status = read(&mk_status_json()).expect("a status");
    PlannedImport {
        audience: Audience {
            flavour,
            excluded: None,
            generation: 5,
            carried_over: 0,
        },
        digest: digest(&status, MCI_CONTROLLER),
        status,
    }
}

/// The step for our import with this status; none: no API server would accept it.
fn step(status: &Value) -> Option<Step> {
    let planned = mk_planned(Flavour::Superset);
    let mut live = mk_live(&mk_key("llm"), &planned, 7);
    live.status = LiveStatus::new(read(status)?, MCI_CONTROLLER);
    Some(diff(&ImportPlan::Present(Arc::new(planned)), Some(&live)))
}

/// The pointers to each field and list item, but for times.
fn pointers(value: &Value, at: &str, found: &mut Vec<String>) {
    let children: Vec<(String, &Value)> = match value {
        Value::Object(fields) => fields.iter().map(|(k, v)| (k.clone(), v)).collect(),
        Value::Array(items) => (0..).map(|n: usize| n.to_string()).zip(items).collect(),
        _ => Vec::new(),
    };
    for (name, child) in children {
        if name != "lastTransitionTime" {
            let at = format!("{at}/{name}");
            pointers(child, &at, found);
            found.push(at);
        }
    }
}

/// The same with another value at its end.
fn edited(at: &str) -> Option<Value> {
    let mut status = mk_status_json();
    let value = status.pointer_mut(at)?;
    *value = match &*value {
        Value::Number(number) => json!(number.as_u64()? + 1),
        Value::String(text) => match text.as_str() {
            "True" => json!("False"),
            "EndpointMode" => json!("ParentMode"),
            "ParentMode" => json!("EndpointMode"),
            "FailOpen" => json!("FailClose"),
            "LoadBalancer" => json!("ClusterIP"),
            "HTTP" => json!("HTTPS"),
            "2026-01-01T00:00:00Z" => json!("2026-01-01T00:00:01Z"),
            text => json!(format!("{text}x")),
        },
        _ => return None,
    };
    Some(status)
}

/// The same without it.
fn without(at: &str) -> Value {
    let mut status = mk_status_json();
    let (parent, name) = at.rsplit_once('/').expect("a pointer");
    match status.pointer_mut(parent) {
        Some(Value::Object(fields)) => drop(fields.remove(name)),
        Some(Value::Array(items)) => drop(items.remove(name.parse().expect("an index"))),
        _ => unreachable!("{at} has a parent"),
    }
    status
}

#[test]
fn whatever_is_edited_or_taken_out_is_written_again() {
    let status = mk_status_json();
    assert_eq!(step(&status), Some(Step::None));
    let mut all = Vec::new();
    pointers(&status, "", &mut all);
    let (mut edits, mut gaps) = (0, 0);
    for at in &all {
        if let Some(edited) = edited(at) {
            edits += 1;
            assert_eq!(step(&edited), Some(Step::ApplyStatus), "{at} edited");
        }
        if let Some(step) = step(&without(at)) {
            gaps += 1;
            assert_eq!(step, Step::ApplyStatus, "{at} taken out");
        }
    }
    assert!(edits > 80 && gaps > 60, "{edits} edits, {gaps} gaps");
}

#[rstest]
#[case::app_protocol("/clusters/1", "appProtocol", json!("http"), "/status/clusters/1/appProtocol")]
#[case::label("/clusters/0/labels", "x~y/z", json!("1"), "/status/clusters/0/labels/x~0y~1z")]
#[case::labels("/clusters/1", "labels", json!({"x": "1"}), "/status/clusters/1/labels")]
#[case::drain("/clusters/1", "drainUntil", json!("2026-01-01T00:00:00Z"), "/status/clusters/1/drainUntil")]
#[case::picker("/clusters/1", "endpointPicker", json!({"name": "epp", "service": []}), "/status/clusters/1/endpointPicker")]
#[case::parents("/clusters/0", "parents", json!([{"name": "gw", "namespace": "ml", "service": []}]), "/status/clusters/0/parents")]
fn a_field_that_is_added_to_an_entry_is_removed(
    #[case] at: &str,
    #[case] name: &str,
    #[case] value: Value,
    #[case] removed: &str,
) {
    let mut status = mk_status_json();
    status.pointer_mut(at).expect("there")[name] = value;
    let expected = Step::RemoveForeign(vec![removed.to_owned()]);
    assert_eq!(step(&status), Some(expected));
}

#[test]
fn what_is_added_to_lists_is_removed_from_their_ends() {
    let mut status = mk_status_json();
    let mut push = |at: &str, item: Value| {
        let list = status.pointer_mut(at).and_then(Value::as_array_mut);
        list.expect("a list").push(item);
    };
    push("/clusters/0/conditions", mk_condition("X"));
    push("/clusters/0/conditions", mk_condition("Y"));
    for name in ["x", "y"] {
        let entry = json!({"name": name, "routingMode": "EndpointMode", "targetPortNumber": 1});
        push("/clusters", entry);
    }
    let expected = [
        "/status/clusters/0/conditions/3",
        "/status/clusters/0/conditions/2",
        "/status/clusters/3",
        "/status/clusters/2",
    ];
    let expected = Step::RemoveForeign(expected.map(str::to_owned).into());
    assert_eq!(step(&status), Some(expected));
}

#[test]
fn a_condition_of_ours_that_is_not_planned_is_removed_from_the_top() {
    let mut planned = mk_planned(Flavour::Superset);
    let live = mk_live(&mk_key("llm"), &planned, 7);
    planned.status.conditions.pop();
    planned.digest = digest(&planned.status, MCI_CONTROLLER);
    let step = diff(&ImportPlan::Present(Arc::new(planned)), Some(&live));
    let expected = Step::RemoveForeign(vec!["/status/conditions/2".to_owned()]);
    assert_eq!(step, expected);
}

#[rstest]
#[case::no_controllers(json!([]), Step::ApplyStatus)]
#[case::another_exporter(json!([{"name": MCI_CONTROLLER, "exportingClusters": [{"name": "a"}],
    "conditions": [mk_condition("Accepted"), mk_condition("Ready")]}]), Step::ApplyStatus)]
#[case::no_conditions(json!([{"name": MCI_CONTROLLER, "exportingClusters": [{"name": "a"}, {"name": "b"}]}]), Step::ApplyStatus)]
#[case::as_planned(mk_status_json()["controllers"].clone(), Step::None)]
fn under_upstreams_crd_controllers_alone_count(#[case] controllers: Value, #[case] expected: Step) {
    let planned = mk_planned(Flavour::Upstream);
    let mut live = mk_live(&mk_key("llm"), &planned, 7);
    let status = json!({"controllers": controllers});
    live.status = LiveStatus::new(read(&status).expect("a status"), MCI_CONTROLLER);
    let step = diff(&ImportPlan::Present(Arc::new(planned)), Some(&live));
    assert_eq!(step, expected);
}

#[rstest]
#[case::status(|one: &mut Condition| one.status = "False".to_owned())]
#[case::reason(|one: &mut Condition| one.reason = "Bad".to_owned())]
#[case::message(|one: &mut Condition| one.message = "more".to_owned())]
#[case::generation(|one: &mut Condition| one.observed_generation = Some(4))]
#[case::type_(|one: &mut Condition| one.type_ = "Other".to_owned())]
fn whatever_is_edited_in_a_pools_exported_is_set_again(#[case] edit: fn(&mut Condition)) {
    let condition: Condition = serde_json::from_value(mk_condition("Exported")).expect("one");
    let plan = PoolPlan::Exported {
        condition: condition.clone(),
        settled: true,
    };
    let mut live = vec![condition.clone()];
    assert_eq!(diff_pool(&plan, Some(&live)), PoolStep::None);
    assert_eq!(diff_pool(&PoolPlan::NoEntry, Some(&live)), PoolStep::Remove);
    assert_eq!(diff_pool(&PoolPlan::NoEntry, None), PoolStep::None);
    edit(&mut live[0]);
    let set = PoolStep::Set(condition);
    assert_eq!(diff_pool(&plan, Some(&live)), set);
    assert_eq!(diff_pool(&plan, None), set);
}
