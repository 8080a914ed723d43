use std::time::Duration;

use crd::{ImportedCluster, ServiceType, conditions};

mod drains;
mod inventory;
mod model;
mod modes;
mod properties;
mod shapes;

use super::*;
use crate::{
    fixtures::*,
    index::{
        facts::{Claim, LiveImport},
        member::{Fault, Refusal},
        update::{Change, Update},
    },
    plan::diff::{Step, diff},
};

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
fn an_import_says_how_many_are_ready() {
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
fn target_ports_that_differ_are_told_and_kept() {
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
fn without_the_namespace_there_is_no_import_until_it_appears() {
    let mut world = mk_world(&["a", "b"]);
    let policy = mk_policy();
    let key = mk_key("llm");
    export(&mut world, "a", "llm");
    world.update(
        &mk_name("b"),
        Update::Namespaces(Change::Listed(Vec::new())),
        NOW,
    );
    let plan = desired_for(&world, &policy, &key, NOW);
    assert_eq!(
        plan.imports[&mk_name("b")],
        ImportPlan::Hold(Hold::NamespaceMissing)
    );
    let (status, reason, message) = exported(&world, &policy, "a", &key, NOW);
    assert_eq!(
        (status.as_str(), reason.as_str()),
        ("False", "NamespaceMissing")
    );
    assert_eq!(message, "exported to 0/0: b NamespaceMissing");

    let terminating = Update::Namespaces(Change::Applied(mk_namespace(true)));
    world.update(&mk_name("b"), terminating, NOW);
    let plan = desired_for(&world, &policy, &key, NOW);
    assert_eq!(
        plan.imports[&mk_name("b")],
        ImportPlan::Hold(Hold::NamespaceMissing)
    );

    let appears = Update::Namespaces(Change::Applied(mk_namespace(false)));
    let changes = world.update(&mk_name("b"), appears, NOW);
    assert!(
        changes.dirty.keys.contains(&key),
        "the namespace makes its keys dirty"
    );
    settle(&mut world, &policy, NOW);
    assert_eq!(entries(&world, "b", &key), ["a"]);
    let (status, reason, message) = exported(&world, &policy, "a", &key, NOW);
    assert_eq!((status.as_str(), reason.as_str()), ("True", "Exported"));
    assert_eq!(message, "exported to 1/1");
}

#[test]
fn exported_counts_what_the_live_imports_carry() {
    let mut world = mk_world(&["a", "b", "c", "d"]);
    let policy = mk_policy();
    let key = mk_key("llm");
    export(&mut world, "a", "llm");
    let (status, reason, message) = exported(&world, &policy, "a", &key, NOW);
    assert_eq!(
        (status.as_str(), reason.as_str()),
        ("False", "PartiallyExported")
    );
    assert_eq!(message, "exported to 0/3: b Pending; c Pending; d Pending");
    lose(&mut world, "c", Moment::default());
    world.update(
        &mk_name("d"),
        Update::Namespaces(Change::Listed(Vec::new())),
        NOW,
    );
    settle(&mut world, &policy, NOW);
    let (_, reason, message) = exported(&world, &policy, "a", &key, NOW);
    assert_eq!(reason, "PartiallyExported");
    assert_eq!(
        message,
        "exported to 1/2: c Unreachable; d NamespaceMissing"
    );
    let strict = Policy {
        strict_exported: true,
        ..policy
    };
    let (_, _, message) = exported(&world, &strict, "a", &key, NOW);
    assert_eq!(
        message,
        "exported to 1/3: c Unreachable; d NamespaceMissing"
    );
}

#[test]
fn a_pool_alone_in_its_clusterset_has_nowhere_to_go() {
    let mut world = mk_world(&["a"]);
    export(&mut world, "a", "llm");
    let (status, reason, _) = exported(&world, &mk_policy(), "a", &mk_key("llm"), NOW);
    assert_eq!(
        (status.as_str(), reason.as_str()),
        ("False", "NoOtherMember")
    );
}

#[test]
fn an_illegal_export_value_exports_nothing_and_says_so() {
    let mut world = mk_world(&["a", "b"]);
    let pool = mk_pool("llm", Some("cluster-set"));
    world.update(&mk_name("a"), Update::PoolApplied(pool), NOW);
    let policy = mk_policy();
    let plan = desired_for(&world, &policy, &mk_key("llm"), NOW);
    assert_eq!(plan.imports[&mk_name("b")], ImportPlan::Absent);
    let (status, reason, message) = exported(&world, &policy, "a", &mk_key("llm"), NOW);
    assert_eq!(
        (status.as_str(), reason.as_str()),
        ("False", "NotSupported")
    );
    assert!(
        message.contains("cluster-set") && message.contains("ClusterSet"),
        "{message}"
    );
}

#[test]
fn an_external_name_is_exported_unaccepted_and_without_addresses() {
    let mut world = mk_world(&["a", "b"]);
    export(&mut world, "a", "llm");
    let service = mk_service(ServiceType::ExternalName, "192.0.2.1");
    world.update(
        &mk_name("a"),
        Update::Services(Change::Applied(service)),
        NOW,
    );
    let policy = mk_policy();
    let plan = desired_for(&world, &policy, &mk_key("llm"), NOW);
    let entry = &planned(&plan, "b").status.clusters[0];
    assert_eq!(
        reason(entry, conditions::ACCEPTED),
        "UnsupportedServiceType"
    );
    let picker = entry.endpoint_picker.as_ref().expect("named");
    assert!(
        picker
            .service
            .iter()
            .all(|service| service.addresses.is_empty())
    );
    let (status, reason, _) = exported(&world, &policy, "a", &mk_key("llm"), NOW);
    assert_eq!(
        (status.as_str(), reason.as_str()),
        ("False", "NotSupported")
    );
}

#[test]
fn a_lost_exporter_is_marked_then_stale_and_never_withdrawn() {
    let mut world = mk_world(&["a", "b"]);
    let policy = mk_policy();
    let key = mk_key("llm");
    export(&mut world, "a", "llm");
    settle(&mut world, &policy, NOW);
    lose(&mut world, "a", NOW);
    let at = |seconds: u64| NOW + Duration::from_secs(seconds);
    let entry_at = |world: &World, now| {
        let plan = desired_for(world, &policy, &key, now);
        planned(&plan, "b").status.clusters[0].clone()
    };
    assert_eq!(
        reason(&entry_at(&world, at(1)), conditions::REACHABLE),
        "Reachable"
    );
    let lost = entry_at(&world, at(3));
    assert_eq!(reason(&lost, conditions::REACHABLE), "ConnectionLost");
    assert_eq!(reason(&lost, conditions::READY), "Ready");
    let stale = entry_at(&world, at(60));
    assert_eq!(reason(&stale, conditions::READY), "Stale");
    let plan = desired_for(&world, &policy, &key, at(60));
    let top = &planned(&plan, "b").status.conditions;
    let ready = conditions::find(top, conditions::READY).expect("there");
    assert_eq!(
        (ready.status.as_str(), ready.reason.as_str()),
        ("Unknown", "AllStale")
    );
    assert_eq!(entry_at(&world, at(1_000_000)).name, "a");
}

#[test]
fn entries_of_members_not_heard_of_since_the_start_are_carried() {
    let mut before = mk_world(&["a", "b"]);
    let policy = mk_policy();
    let key = mk_key("llm");
    export(&mut before, "a", "llm");
    settle(&mut before, &policy, NOW);
    let live = member(&before, "b").imports.items[&key].clone();

    let mut world = World::new(mk_rules());
    world.add_member(&mk_name("a"), NOW);
    world.add_member(&mk_name("b"), NOW);
    connect(&mut world, "b", Vec::new(), vec![live.clone()], NOW);
    let plan = desired_for(&world, &policy, &key, NOW);
    let carried = &planned(&plan, "b").status.clusters[0];
    let old = &live.status.clusters[0];
    assert_eq!(reason(carried, conditions::REACHABLE), "ConnectionLost");
    assert_eq!(
        reason(carried, conditions::READY),
        reason(old, conditions::READY)
    );
    assert_eq!(carried.endpoint_picker, old.endpoint_picker);
    // it comes back: nothing but Reachable had changed, and nothing is left to write
    let pool = mk_pool("llm", Some("ClusterSet"));
    connect(&mut world, "a", vec![pool], Vec::new(), NOW);
    let plan = desired_for(&world, &policy, &key, NOW);
    assert_eq!(diff(&plan.imports[&mk_name("b")], Some(&live)), Step::None);
}

#[test]
fn a_carried_entry_goes_once_its_exporter_lists_without_it() {
    let mut before = mk_world(&["a", "b"]);
    let policy = mk_policy();
    let key = mk_key("llm");
    export(&mut before, "a", "llm");
    settle(&mut before, &policy, NOW);
    let live = member(&before, "b").imports.items[&key].clone();
    let mut world = World::new(mk_rules());
    for name in ["a", "b"] {
        world.add_member(&mk_name(name), NOW);
    }
    connect(&mut world, "b", Vec::new(), vec![live.clone()], NOW);
    connect(&mut world, "a", Vec::new(), Vec::new(), NOW);
    world.tick(NOW + STALE_AFTER);
    let plan = desired_for(&world, &policy, &key, NOW + STALE_AFTER);
    assert_eq!(
        diff(&plan.imports[&mk_name("b")], Some(&live)),
        Step::Delete
    );
}

#[test]
fn a_refused_member_keeps_its_entries() {
    let mut world = mk_world(&["a", "b"]);
    let policy = mk_policy();
    export(&mut world, "a", "llm");
    settle(&mut world, &policy, NOW);
    let refused = Update::Refused(Refusal::BadCredentials);
    world.update(&mk_name("a"), refused, NOW);
    settle(&mut world, &policy, NOW + Duration::from_secs(3));
    assert_eq!(entries(&world, "b", &mk_key("llm")), ["a"]);
    let entry = &member(&world, "b").imports.items[&mk_key("llm")]
        .status
        .clusters[0];
    assert_eq!(
        reason(entry, conditions::REACHABLE),
        Fault::AuthFailed.reason()
    );
}

#[test]
fn a_removed_member_loses_its_entries_and_its_imports() {
    let mut world = mk_world(&["a", "b", "c"]);
    let policy = mk_policy();
    export(&mut world, "a", "llm");
    export(&mut world, "b", "other");
    settle(&mut world, &policy, NOW);
    world.remove_member(&mk_name("a"), NOW);
    let plan = desired_for(&world, &policy, &mk_key("llm"), NOW);
    assert_eq!(plan.imports[&mk_name("b")], ImportPlan::Absent);
    let plan = desired_for(&world, &policy, &mk_key("other"), NOW);
    assert_eq!(plan.imports[&mk_name("a")], ImportPlan::Absent);
    assert_eq!(names(planned(&plan, "c")), ["b"]);
}

#[test]
fn imports_of_others_are_left_alone() {
    let mut world = mk_world(&["a", "b"]);
    let key = mk_key("llm");
    export(&mut world, "a", "llm");
    let plan = desired_for(&world, &mk_policy(), &key, NOW);
    let mut live = mk_live(&key, planned(&plan, "b"), 7);
    live.claim = Claim::Foreign;
    let import = &plan.imports[&mk_name("b")];
    assert_eq!(diff(import, Some(&live)), Step::Conflict);
    assert_eq!(diff(&ImportPlan::Absent, Some(&live)), Step::None);
    live.claim = Claim::Unclaimed;
    assert_eq!(diff(import, Some(&live)), Step::CreateMain);
    assert_eq!(diff(&ImportPlan::Absent, Some(&live)), Step::None);
    world.update(
        &mk_name("b"),
        Update::Imports(Change::Applied(LiveImport {
            claim: Claim::Foreign,
            ..live
        })),
        NOW,
    );
    let (_, _, message) = exported(&world, &mk_policy(), "a", &key, NOW);
    assert_eq!(message, "exported to 0/1: b Conflict");
}

#[test]
fn what_users_change_is_written_again_and_what_they_add_is_removed() {
    let mut world = mk_world(&["a", "b"]);
    let key = mk_key("llm");
    export(&mut world, "a", "llm");
    let plan = desired_for(&world, &mk_policy(), &key, NOW);
    let import = &plan.imports[&mk_name("b")];
    let live = mk_live(&key, planned(&plan, "b"), 7);
    assert_eq!(diff(import, Some(&live)), Step::None);

    let mut edited = live.clone();
    edited.status.clusters[0].target_port_number = 1;
    assert_eq!(diff(import, Some(&edited)), Step::ApplyStatus);

    let mut added = live.clone();
    let mut entry = live.status.clusters[0].clone();
    entry.name = "intruder".to_owned();
    added.status.clusters.push(entry);
    assert_eq!(
        diff(import, Some(&added)),
        Step::RemoveForeign(vec!["/status/clusters/1".to_owned()])
    );
    added.owned_entries.push("intruder".to_owned());
    assert_eq!(diff(import, Some(&added)), Step::ApplyStatus);
}

#[test]
fn what_gateways_write_beside_us_stays() {
    let mut world = mk_world(&["a", "b"]);
    let key = mk_key("llm");
    export(&mut world, "a", "llm");
    let plan = desired_for(&world, &mk_policy(), &key, NOW);
    let mut live = mk_live(&key, planned(&plan, "b"), 7);
    live.status.controllers[0]
        .parents
        .push(crd::ControllerParent {
            parent_ref: crd::ParentReference {
                group: None,
                kind: None,
                name: "gw".to_owned(),
                namespace: None,
            },
            controller_name: None,
            conditions: Vec::new(),
        });
    live.status.controllers.push(crd::ControllerStatus {
        name: "example.com/gateway".to_owned(),
        ..crd::ControllerStatus::default()
    });
    let theirs = conditions::make("TheirOwn", conditions::Status::True, "Yes", "", None);
    live.status.conditions.push(theirs);
    assert_eq!(diff(&plan.imports[&mk_name("b")], Some(&live)), Step::None);
}

#[test]
fn differing_only_in_times_is_no_difference() {
    let mut world = mk_world(&["a", "b"]);
    let key = mk_key("llm");
    export(&mut world, "a", "llm");
    let plan = desired_for(&world, &mk_policy(), &key, NOW);
    let mut ledger = ledger::Ledger::default();
    let time = jiff::Timestamp::from_second(1_000).expect("in range");
    let mut live = mk_live(&key, planned(&plan, "b"), 7);
    live.status = ledger.stamp(&key, planned(&plan, "b"), &[], time);
    assert_eq!(
        live.status.clusters[0].conditions[0].last_transition_time.0,
        time
    );
    assert_eq!(diff(&plan.imports[&mk_name("b")], Some(&live)), Step::None);
}

#[test]
fn times_stay_until_the_status_flips() {
    let mut world = mk_world(&["a", "b"]);
    let key = mk_key("llm");
    export(&mut world, "a", "llm");
    let second = |second| jiff::Timestamp::from_second(second).expect("in range");
    let mut ledger = ledger::Ledger::default();
    let plan = desired_for(&world, &mk_policy(), &key, NOW);
    let live = ledger.stamp(&key, planned(&plan, "b"), &[], second(10));
    // a new controller seeds its book from what is live
    let mut ledger = ledger::Ledger::default();
    let again = ledger.stamp(&key, planned(&plan, "b"), &[&live], second(20));
    assert_eq!(again, live);
    let gone = Update::Slices(Change::Listed(vec![mk_slice(&[])]));
    world.update(&mk_name("a"), gone, NOW);
    let plan = desired_for(&world, &mk_policy(), &key, NOW);
    let flipped = ledger.stamp(&key, planned(&plan, "b"), &[&live], second(30));
    let time = |type_| {
        let conditions = &flipped.clusters[0].conditions;
        let condition = conditions::find(conditions, type_).expect("there");
        condition.last_transition_time.0
    };
    assert_eq!(time(conditions::READY), second(30));
    assert_eq!(time(conditions::ACCEPTED), second(10));
}

#[test]
fn a_restart_finds_nothing_to_write() {
    let mut before = mk_world(&["a", "b", "c"]);
    let policy = mk_policy();
    export(&mut before, "a", "llm");
    export(&mut before, "b", "llm");
    settle(&mut before, &policy, NOW);
    let mut world = World::new(mk_rules());
    for name in ["a", "b", "c"] {
        world.add_member(&mk_name(name), NOW);
        let old = member(&before, name);
        let pools = old.pools.values().map(|record| record.facts.clone());
        let imports = old.imports.items.values().cloned();
        connect(&mut world, name, pools.collect(), imports.collect(), NOW);
    }
    assert_eq!(settle(&mut world, &policy, NOW), 0);
}

#[test]
fn an_importer_whose_content_is_unknown_is_not_written_to() {
    let mut world = mk_world(&["a", "b"]);
    export(&mut world, "a", "llm");
    world.add_member(&mk_name("c"), NOW);
    let plan = desired_for(&world, &mk_policy(), &mk_key("llm"), NOW);
    assert_eq!(
        plan.imports[&mk_name("c")],
        ImportPlan::Hold(Hold::Unreachable)
    );
    world.update(
        &mk_name("b"),
        Update::ImportCrd(mk_import_crd(Flavour::Absent)),
        NOW,
    );
    let plan = desired_for(&world, &mk_policy(), &mk_key("llm"), NOW);
    assert_eq!(
        plan.imports[&mk_name("b")],
        ImportPlan::Hold(Hold::CrdAbsent)
    );
}
