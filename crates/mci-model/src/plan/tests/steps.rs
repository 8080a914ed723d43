//! What a plan makes of what is live: steps, and the times of conditions.

use super::*;
use crate::index::facts::Claim;

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
    Arc::make_mut(&mut added.owned_entries).push("intruder".to_owned());
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
    *live.status = ledger.stamp(&key, planned(&plan, "b"), &[], time);
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
    // a new controller takes its times from the live imports
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
        let pools = old
            .pools
            .records
            .values()
            .map(|record| record.facts.clone());
        let imports = old.imports.items.values().cloned();
        connect(&mut world, name, pools.collect(), imports.collect(), NOW);
    }
    assert_eq!(settle(&mut world, &policy, NOW), 0);
}
