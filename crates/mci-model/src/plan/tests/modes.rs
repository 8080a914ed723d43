//! ParentMode beside EndpointMode: switches, mixes, restarts.

use crd::RoutingMode;

use super::*;
use crate::index::{entry::Entry, facts::Programmed, update::ParentKind};

/// The first lists of a member's Gateways and routes.
fn parents() -> [Update; 2] {
    [
        Update::Gateways(Change::Listed(vec![mk_gateway("gw")])),
        Update::Routes(Change::Listed(vec![mk_route("llm", "gw", "llm")])),
    ]
}

fn update(world: &mut World, name: &str, updates: impl IntoIterator<Item = Update>) {
    for update in updates {
        world.update(&mk_name(name), update, NOW);
    }
}

fn export_by_parents(world: &mut World, name: &str) {
    update(world, name, parents());
    update(world, name, [Update::PoolApplied(mk_parent_pool("llm"))]);
}

/// The live entry of an exporter in an import.
fn live(world: &World, importer: &str, exporter: &str) -> Option<Entry> {
    let import = member(world, importer).imports.items.get(&mk_key("llm"))?;
    let mut clusters = import.status.clusters.iter();
    clusters.find(|entry| entry.name == exporter).cloned()
}

fn mode(world: &World, importer: &str, exporter: &str) -> Option<RoutingMode> {
    live(world, importer, exporter).map(|entry| entry.routing_mode)
}

/// The same clusters under a controller that has just started.
fn restarted(before: &World, names: &[&str]) -> World {
    let mut world = World::new(mk_rules());
    for name in names {
        world.add_member(&mk_name(name), NOW);
        let old = member(before, name);
        let pools = old
            .pools
            .records
            .values()
            .map(|record| record.facts.clone());
        let imports = old.imports.items.values().cloned();
        connect(&mut world, name, pools.collect(), imports.collect(), NOW);
    }
    world
}

#[test]
fn two_exporters_may_differ_in_mode() {
    let mut world = mk_world(&["a", "b", "c"]);
    export(&mut world, "a", "llm");
    export_by_parents(&mut world, "b");
    settle(&mut world, &mk_policy(), NOW);
    assert_eq!(mode(&world, "c", "a"), Some(RoutingMode::EndpointMode));
    assert_eq!(mode(&world, "c", "b"), Some(RoutingMode::ParentMode));
    assert_eq!(mode(&world, "a", "b"), Some(RoutingMode::ParentMode));
    assert_eq!(mode(&world, "b", "a"), Some(RoutingMode::EndpointMode));
    for entry in ["a", "b"].map(|name| live(&world, "c", name).expect("there")) {
        let parent_mode = entry.routing_mode == RoutingMode::ParentMode;
        assert_eq!(entry.endpoint_picker.is_none(), parent_mode);
        assert_eq!(entry.parents.is_empty(), !parent_mode);
    }
    let plan = desired_for(&world, &mk_policy(), &mk_key("llm"), NOW);
    let consistent = &planned(&plan, "c").status.conditions;
    assert!(conditions::is_true(consistent, conditions::CONSISTENT));
}

/// How often each import was written.
fn writes(world: &World) -> [u64; 2] {
    ["b", "c"].map(|name| {
        let import = &member(world, name).imports.items[&mk_key("llm")];
        import.resource_version.parse().expect("a number")
    })
}

#[test]
fn a_mode_switch_is_one_write_per_import_and_no_entry_vanishes() {
    let mut world = mk_world(&["a", "b", "c"]);
    export(&mut world, "a", "llm");
    settle(&mut world, &mk_policy(), NOW);
    let first = writes(&world);
    let exported = member(&world, "a").pools.records[&mk_key("llm")]
        .facts
        .exported
        .clone();
    // not before its Gateways and routes are known
    let mut switched = mk_parent_pool("llm");
    switched.exported = exported.clone();
    update(&mut world, "a", [Update::PoolApplied(switched)]);
    assert_eq!(settle(&mut world, &mk_policy(), NOW), 0);
    let [gateways, routes] = parents();
    update(&mut world, "a", [gateways]);
    assert_eq!(settle(&mut world, &mk_policy(), NOW), 0);
    assert_eq!(mode(&world, "b", "a"), Some(RoutingMode::EndpointMode));
    update(&mut world, "a", [routes]);
    settle(&mut world, &mk_policy(), NOW);
    assert_eq!(writes(&world), first.map(|count| count + 1));
    assert_eq!(mode(&world, "b", "a"), Some(RoutingMode::ParentMode));
    assert_eq!(mode(&world, "c", "a"), Some(RoutingMode::ParentMode));
    // and back
    let mut back = mk_pool("llm", Some("ClusterSet"));
    back.exported = exported;
    update(&mut world, "a", [Update::PoolApplied(back)]);
    settle(&mut world, &mk_policy(), NOW);
    assert_eq!(writes(&world), first.map(|count| count + 2));
    let entry = live(&world, "b", "a").expect("there");
    assert_eq!(entry.routing_mode, RoutingMode::EndpointMode);
    assert!(entry.parents.is_empty() && entry.endpoint_picker.is_some());
}

#[test]
fn a_restart_writes_nothing_before_or_after_the_gateways_are_known() {
    let names = ["a", "b", "c"];
    let mut before = mk_world(&names);
    export_by_parents(&mut before, "a");
    export(&mut before, "b", "llm");
    settle(&mut before, &mk_policy(), NOW);
    let mut world = restarted(&before, &names);
    assert_eq!(settle(&mut world, &mk_policy(), NOW), 0);
    let exporting = |world: &World| {
        let plan = desired_for(world, &mk_policy(), &mk_key("llm"), NOW);
        exporting(planned(&plan, "a")).join(",")
    };
    assert_eq!(exporting(&world), "a,b");
    update(&mut world, "a", parents());
    assert_eq!(settle(&mut world, &mk_policy(), NOW), 0);
    assert_eq!(exporting(&world), "a,b");
}

#[test]
fn what_is_kept_keeps_its_place_among_the_others() {
    let names = ["a", "b", "c"];
    let mut before = mk_world(&names);
    export_by_parents(&mut before, "a");
    let mut other = mk_pool("llm", Some("ClusterSet"));
    other.target_ports = vec![9000];
    update(&mut before, "b", [Update::PoolApplied(other)]);
    settle(&mut before, &mk_policy(), NOW);
    let text = |world: &World| {
        let import = &member(world, "c").imports.items[&mk_key("llm")];
        let found = conditions::find(&import.status.conditions, conditions::CONSISTENT);
        found.expect("two entries").message.clone()
    };
    assert_eq!(text(&before), "target ports differ from those of a: b");
    // the oldest pool is the reference, even while its Gateways are not known
    let mut world = restarted(&before, &names);
    assert_eq!(settle(&mut world, &mk_policy(), NOW), 0);
}

#[test]
fn a_first_export_is_pending_until_the_gateways_are_known() {
    let mut world = mk_world(&["a", "b"]);
    let pool = Update::PoolApplied(mk_parent_pool("llm"));
    update(&mut world, "a", [pool]);
    let plan = desired_for(&world, &mk_policy(), &mk_key("llm"), NOW);
    assert_eq!(plan.imports[&mk_name("a")], ImportPlan::Absent);
    assert_eq!(plan.imports[&mk_name("b")], ImportPlan::Absent);
    let (status, _, message) = exported(&world, &mk_policy(), "a", &mk_key("llm"), NOW);
    assert_eq!(
        (&*status, &*message),
        ("False", "exported to 0/1: b Pending")
    );
    update(&mut world, "a", parents());
    settle(&mut world, &mk_policy(), NOW);
    assert_eq!(mode(&world, "b", "a"), Some(RoutingMode::ParentMode));
    let (status, ..) = exported(&world, &mk_policy(), "a", &mk_key("llm"), NOW);
    assert_eq!(status, "True");
}

#[test]
fn a_member_without_gateway_api_has_the_reason_in_its_entry() {
    let mut world = mk_world(&["a", "b"]);
    let hidden = [ParentKind::Gateways, ParentKind::Routes].map(Update::ParentsHidden);
    update(&mut world, "a", hidden);
    let pool = Update::PoolApplied(mk_parent_pool("llm"));
    update(&mut world, "a", [pool]);
    settle(&mut world, &mk_policy(), NOW);
    let entry = live(&world, "b", "a").expect("there");
    assert_eq!(reason(&entry, conditions::READY), "ParentNotProgrammed");
    let parent = &entry.parents[0].conditions;
    assert!(conditions::is_false(parent, conditions::HOSTNAMES_KNOWN));
    // Gateway API is installed later
    update(&mut world, "a", parents());
    settle(&mut world, &mk_policy(), NOW);
    let entry = live(&world, "b", "a").expect("there");
    assert_eq!(reason(&entry, conditions::READY), "Ready");
}

#[test]
fn silence_keeps_the_parents_as_they_were() {
    let mut world = mk_world(&["a", "b"]);
    export_by_parents(&mut world, "a");
    settle(&mut world, &mk_policy(), NOW);
    let before = live(&world, "b", "a").expect("there").parents.clone();
    lose(&mut world, "a", NOW);
    let later = NOW + STALE_AFTER * 2;
    settle(&mut world, &mk_policy(), later);
    let entry = live(&world, "b", "a").expect("there");
    assert_eq!(entry.parents, before);
    assert_eq!(reason(&entry, conditions::READY), "Stale");
    assert_eq!(reason(&entry, conditions::REACHABLE), "ConnectionLost");
}

#[test]
fn carried_parents_are_checked_like_any_others() {
    let mut before = mk_world(&["a", "b"]);
    export_by_parents(&mut before, "a");
    settle(&mut before, &mk_policy(), NOW);
    let mut forged = member(&before, "b").imports.items[&mk_key("llm")].clone();
    let parent = &mut forged.status.clusters[0].parents[0];
    parent.service[0].addresses = vec!["169.254.169.254".to_owned(), "192.0.2.10".to_owned()];
    let mut world = World::new(mk_rules());
    for name in ["a", "b"] {
        world.add_member(&mk_name(name), NOW);
    }
    connect(&mut world, "b", Vec::new(), vec![forged], NOW);
    settle(&mut world, &mk_policy(), NOW);
    let entry = live(&world, "b", "a").expect("carried");
    assert_eq!(entry.parents[0].service[0].addresses, ["192.0.2.10"]);
}

#[test]
fn what_others_write_into_a_parent_is_set_right() {
    let mut world = mk_world(&["a", "b"]);
    export_by_parents(&mut world, "a");
    settle(&mut world, &mk_policy(), NOW);
    let key = mk_key("llm");
    let plan = desired_for(&world, &mk_policy(), &key, NOW);
    let import = plan.imports[&mk_name("b")].clone();
    let right = member(&world, "b").imports.items[&key].clone();
    let step = |change: fn(&mut crd::Parent)| {
        let mut live = right.clone();
        change(&mut live.status.clusters[0].parents[0]);
        diff(&import, Some(&live))
    };
    assert_eq!(step(|_| {}), Step::None);
    let later = jiff::Timestamp::from_second(99).expect("in range");
    assert_eq!(
        diff(&import, Some(&with_times(&right, later))),
        Step::None,
        "times are no difference"
    );
    assert_eq!(step(|parent| parent.hostnames.clear()), Step::ApplyStatus);
    let forged = step(|parent| parent.service[0].addresses.push("192.0.2.66".to_owned()));
    assert_eq!(forged, Step::ApplyStatus);
    let flipped = step(|parent| parent.conditions[0].status = "False".to_owned());
    assert_eq!(flipped, Step::ApplyStatus);
}

fn with_times(live: &LiveImport, time: jiff::Timestamp) -> LiveImport {
    let mut live = live.clone();
    for parent in &mut live.status.clusters[0].parents {
        for condition in &mut parent.conditions {
            condition.last_transition_time.0 = time;
        }
    }
    live
}

#[test]
fn times_of_a_parents_conditions_stay_until_their_status_flips() {
    let mut world = mk_world(&["a", "b"]);
    export_by_parents(&mut world, "a");
    let key = mk_key("llm");
    let second = |second| jiff::Timestamp::from_second(second).expect("in range");
    let mut ledger = ledger::Ledger::default();
    let plan = desired_for(&world, &mk_policy(), &key, NOW);
    let first = ledger.stamp(&key, planned(&plan, "b"), &[], second(10));
    let mut ledger = ledger::Ledger::default();
    let again = ledger.stamp(&key, planned(&plan, "b"), &[&first], second(20));
    assert_eq!(again, first);
    let mut down = mk_gateway("gw");
    down.programmed = Programmed::No;
    update(&mut world, "a", [Update::Gateways(Change::Applied(down))]);
    let plan = desired_for(&world, &mk_policy(), &key, NOW);
    let flipped = ledger.stamp(&key, planned(&plan, "b"), &[&first], second(30));
    let time = |type_| {
        let conditions = &flipped.clusters[0].parents[0].conditions;
        let condition = conditions::find(conditions, type_).expect("there");
        condition.last_transition_time.0
    };
    assert_eq!(time(conditions::PROGRAMMED), second(30));
    // one that leaves and comes back is a new one
    update(
        &mut world,
        "a",
        [Update::Gateways(Change::Listed(Vec::new()))],
    );
    let plan = desired_for(&world, &mk_policy(), &key, NOW);
    ledger.stamp(&key, planned(&plan, "b"), &[], second(40));
    update(
        &mut world,
        "a",
        [Update::Gateways(Change::Applied(mk_gateway("gw")))],
    );
    let plan = desired_for(&world, &mk_policy(), &key, NOW);
    let back = ledger.stamp(&key, planned(&plan, "b"), &[], second(50));
    let conditions = &back.clusters[0].parents[0].conditions;
    let free = conditions::find(conditions, conditions::LOOP_FREE).expect("there");
    assert_eq!(free.last_transition_time.0, second(50));
    assert_eq!(time(conditions::LOOP_FREE), second(10));
}
