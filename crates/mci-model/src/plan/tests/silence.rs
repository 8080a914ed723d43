//! Members that are silent, refused, removed or not seen yet.

use std::time::Duration;

use rstest::rstest;

use super::*;
use crate::index::member::{Fault, Refusal};

/// A restarted controller that has seen only `b`, whose import has an entry of `a`.
fn mk_restarted() -> (World, LiveImport) {
    let mut before = mk_world(&["a", "b"]);
    export(&mut before, "a", "llm");
    settle(&mut before, &mk_policy(), NOW);
    let live = member(&before, "b").imports.items[&mk_key("llm")].clone();
    let mut world = World::new(mk_rules());
    world.add_member(&mk_name("a"), NOW);
    world.add_member(&mk_name("b"), NOW);
    connect(&mut world, "b", Vec::new(), vec![live.clone()], NOW);
    (world, live)
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
fn entries_of_members_not_seen_since_the_start_are_carried_over() {
    let (mut world, live) = mk_restarted();
    let policy = mk_policy();
    let key = mk_key("llm");
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

#[rstest]
fn no_step_of_an_exporters_return_after_a_restart_changes_what_its_entry_leads_to(
    #[values(false, true)] pools_first: bool,
    #[values(None, Some(Fault::ConnectionLost), Some(Fault::AuthFailed))] fault: Option<Fault>,
) {
    let mut steps = first_lists(vec![mk_pool("llm", Some("ClusterSet"))], Vec::new());
    if pools_first {
        let at = steps.iter().position(Update::concerns_pools);
        let pools = steps.remove(at.expect("a list of pools"));
        steps.insert(1, pools);
    }
    let later = NOW + STALE_AFTER * 2;
    for received in 0..=steps.len() {
        let (mut world, live) = mk_restarted();
        for update in steps.iter().take(received).cloned() {
            world.update(&mk_name("a"), update, NOW);
            world.tick(later);
        }
        if let Some(fault) = fault {
            world.update(&mk_name("a"), Update::Lost(fault), NOW);
        }
        let plan = desired_for(&world, &mk_policy(), &mk_key("llm"), later);
        let planned = planned(&plan, "b");
        assert_eq!(names(planned), ["a"], "{received} received");
        assert_eq!(exporting(planned), ["a"], "{received} received");
        let picker = &planned.status.clusters[0].endpoint_picker;
        let before = &live.status.clusters[0].endpoint_picker;
        assert_eq!(picker, before, "{received} received");
    }
}

#[test]
fn a_carried_entry_goes_once_its_exporter_lists_without_it() {
    let (mut world, live) = mk_restarted();
    let policy = mk_policy();
    let key = mk_key("llm");
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
