use crd::{ImportedCluster, ServiceType, conditions};

use super::*;
use crate::{
    fixtures::*,
    index::{
        facts::LiveImport,
        update::{Change, Update},
    },
    plan::diff::{Step, diff},
};

mod drains;
mod exported;
mod generations;
mod granted;
mod inventory;
mod modes;
mod properties;
mod replan;
mod shapes;
mod silence;
mod steps;

const NOW: Moment = Moment::from_millis(100_000);

fn planned<'a>(plan: &'a KeyPlan, importer: &str) -> &'a PlannedImport {
    match &plan.imports[&mk_name(importer)] {
        ImportPlan::Present(planned) => planned,
        other => panic!("{importer}: {other:?}"),
    }
}

fn names(planned: &PlannedImport) -> Vec<&str> {
    let clusters = planned.status.clusters.iter();
    clusters.map(|entry| entry.name.as_str()).collect()
}

fn exporting(planned: &PlannedImport) -> Vec<&str> {
    let exporting = &planned.status.controllers[0].exporting_clusters;
    exporting.iter().map(|one| one.name.as_str()).collect()
}

fn reason<'a>(entry: &'a ImportedCluster, type_: &str) -> &'a str {
    &conditions::find(&entry.conditions, type_)
        .unwrap_or_else(|| panic!("no {type_}"))
        .reason
}

#[test]
fn each_exporter_goes_to_every_other_member() {
    let mut world = mk_world(&["a", "b", "c"]);
    export(&mut world, "a", "llm");
    export(&mut world, "b", "llm");
    let plan = desired_for(&world, &mk_policy(), &mk_key("llm"), NOW);
    assert_eq!(names(planned(&plan, "a")), ["b"]);
    assert_eq!(names(planned(&plan, "b")), ["a"]);
    assert_eq!(names(planned(&plan, "c")), ["a", "b"]);
    for importer in ["a", "b", "c"] {
        assert_eq!(exporting(planned(&plan, importer)), ["a", "b"]);
    }
}

#[test]
fn a_sole_exporter_has_no_import_of_its_own() {
    let mut world = mk_world(&["a", "b"]);
    export(&mut world, "a", "llm");
    let plan = desired_for(&world, &mk_policy(), &mk_key("llm"), NOW);
    assert_eq!(plan.imports[&mk_name("a")], ImportPlan::Absent);
    assert_eq!(names(planned(&plan, "b")), ["a"]);
}

#[test]
fn importers_that_do_not_export_share_one_body() {
    let mut world = mk_world(&["a", "b", "c", "d"]);
    export(&mut world, "a", "llm");
    let plan = desired_for(&world, &mk_policy(), &mk_key("llm"), NOW);
    let body = |name: &str| match &plan.imports[&mk_name(name)] {
        ImportPlan::Present(planned) => Arc::as_ptr(planned),
        other => panic!("{other:?}"),
    };
    assert_eq!(body("b"), body("c"));
    assert_eq!(body("b"), body("d"));
}

#[test]
fn an_import_shows_how_many_are_ready() {
    let mut world = mk_world(&["a", "b", "c"]);
    export(&mut world, "a", "llm");
    export(&mut world, "b", "llm");
    let none_ready = Update::Slices(Change::Listed(vec![mk_slice(&[])]));
    world.update(&mk_name("b"), none_ready, NOW);
    let plan = desired_for(&world, &mk_policy(), &mk_key("llm"), NOW);
    let status = &planned(&plan, "c").status;
    let ready = conditions::find(&status.conditions, conditions::READY).expect("Ready");
    assert_eq!(
        (ready.status.as_str(), ready.message.as_str()),
        ("True", "1/2 ready: a")
    );
    assert_eq!(status.controllers[0].conditions.len(), 2);
    let consistent = conditions::find(&status.conditions, conditions::CONSISTENT);
    assert_eq!(
        consistent.map(|condition| condition.reason.as_str()),
        Some("Consistent")
    );
    let status = &planned(&plan, "a").status;
    let ready = conditions::find(&status.conditions, conditions::READY).expect("Ready");
    assert_eq!(
        (ready.status.as_str(), ready.reason.as_str()),
        ("False", "NoReadyCluster")
    );
}

#[test]
fn target_ports_that_differ_are_reported_and_kept() {
    let mut world = mk_world(&["a", "b", "c"]);
    export(&mut world, "a", "llm");
    let mut other = mk_pool("llm", Some("ClusterSet"));
    other.target_ports = vec![9000];
    other.created = jiff::Timestamp::from_second(10).expect("in range");
    world.update(&mk_name("b"), Update::PoolApplied(other), NOW);
    let plan = desired_for(&world, &mk_policy(), &mk_key("llm"), NOW);
    let status = &planned(&plan, "c").status;
    assert_eq!(status.clusters.len(), 2);
    let consistent = conditions::find(&status.conditions, conditions::CONSISTENT).expect("there");
    assert_eq!(consistent.reason, "TargetPortsDiffer");
    assert!(
        consistent.message.ends_with("those of a: b"),
        "{}",
        consistent.message
    );
}

#[test]
fn an_app_protocol_that_differs_is_reported_unless_target_ports_do() {
    let mut world = mk_world(&["a", "b", "c", "d"]);
    export(&mut world, "a", "llm");
    let younger = jiff::Timestamp::from_second(10).expect("in range");
    let mut other = mk_pool("llm", Some("ClusterSet"));
    other.app_protocol = Some("kubernetes.io/h2c".to_owned());
    other.created = younger;
    let consistent = |world: &World| {
        let plan = desired_for(world, &mk_policy(), &mk_key("llm"), NOW);
        let status = &planned(&plan, "d").status;
        let found = conditions::find(&status.conditions, conditions::CONSISTENT).expect("there");
        let in_entry = status.clusters[1].app_protocol.clone();
        assert_eq!(in_entry.as_deref(), Some("kubernetes.io/h2c"), "as it is");
        let crd::Condition {
            status,
            reason,
            message,
            ..
        } = found;
        format!("{status} {reason} {message}")
    };
    for name in ["b", "c"] {
        world.update(&mk_name(name), Update::PoolApplied(other.clone()), NOW);
    }
    assert_eq!(
        consistent(&world),
        "False AppProtocolDiffers appProtocol differs from that of a: b,c"
    );
    other.target_ports = vec![9000];
    world.update(&mk_name("c"), Update::PoolApplied(other), NOW);
    assert_eq!(
        consistent(&world),
        "False TargetPortsDiffer target ports differ from those of a: c"
    );
}
