//! Entries that drain after their export has ended.

use std::time::Duration;

use crd::{annotations, conditions};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;
use crate::index::{entry::Entry, facts::PoolFacts, rules::Rules};

fn at(seconds: u64) -> Moment {
    NOW + Duration::from_secs(seconds)
}

fn wall(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).expect("in range")
}

fn mk_draining_pool(seconds: &str) -> PoolFacts {
    let mut pool = mk_pool("llm", Some("ClusterSet"));
    pool.export = mk_export(&[
        (annotations::EXPORT, "ClusterSet"),
        (annotations::DRAIN_SECONDS, seconds),
    ]);
    pool
}

/// `a` has exported its pool to `b`.
fn mk_exporting(rules: Rules, pool: PoolFacts) -> World {
    let mut world = World::new(rules);
    world.set_wall(NOW, wall(0));
    for name in ["a", "b"] {
        world.add_member(&mk_name(name), NOW);
        connect(&mut world, name, Vec::new(), Vec::new(), NOW);
    }
    world.update(&mk_name("a"), Update::PoolApplied(pool), NOW);
    settle(&mut world, &mk_policy(), NOW);
    assert_eq!(entries(&world, "b", &mk_key("llm")), ["a"]);
    world
}

fn delete(world: &mut World, now: Moment) {
    let deleted = Update::PoolDeleted {
        key: mk_key("llm"),
        crd: mk_crd(),
    };
    world.update(&mk_name("a"), deleted, now);
    settle(world, &mk_policy(), now);
}

/// The entry of `a` in `b`, if it is there.
fn entry(world: &World) -> Option<Entry> {
    let live = member(world, "b").imports.items.get(&mk_key("llm"))?;
    live.status.clusters.first().cloned()
}

#[test]
fn an_entry_drains_for_as_long_as_its_pool_wished_and_then_goes() {
    let mut world = mk_exporting(mk_rules(), mk_draining_pool("30"));
    delete(&mut world, at(10));
    let draining = entry(&world).expect("it stays");
    assert_eq!(draining.drain_until, Some(Time(wall(40))));
    assert_eq!(reason(&draining, conditions::READY), "Draining");
    assert_eq!(reason(&draining, conditions::REACHABLE), "Reachable");
    let plan = desired_for(&world, &mk_policy(), &mk_key("llm"), at(20));
    assert_eq!(plan.next_change_at, Some(at(40)));
    // nothing moves while it drains
    assert_eq!(settle(&mut world, &mk_policy(), at(39)), 0);
    settle(&mut world, &mk_policy(), at(40));
    assert_eq!(entry(&world), None);
}

#[test]
fn the_pools_exported_goes_at_once() {
    let mut world = mk_exporting(mk_rules(), mk_draining_pool("30"));
    let gone = Update::PoolApplied(PoolFacts {
        exported: member(&world, "a").pools.records[&mk_key("llm")]
            .facts
            .exported
            .clone(),
        ..mk_pool("llm", None)
    });
    world.update(&mk_name("a"), gone, at(0));
    let plan = desired_for(&world, &mk_policy(), &mk_key("llm"), at(0));
    assert_eq!(plan.pools[&mk_name("a")], PoolPlan::NoEntry);
    assert_eq!(names(planned(&plan, "b")), ["a"]);
}

#[test]
fn the_drain_of_the_operator_counts_where_the_pool_has_none() {
    let rules = Rules {
        drain: Duration::from_secs(5),
        ..mk_rules()
    };
    let mut world = mk_exporting(rules, mk_pool("llm", Some("ClusterSet")));
    delete(&mut world, at(0));
    assert_eq!(
        entry(&world).and_then(|one| one.drain_until.clone()),
        Some(Time(wall(5)))
    );
    let mut world = mk_exporting(rules, mk_draining_pool("0"));
    delete(&mut world, at(0));
    assert_eq!(entry(&world), None);
}

#[test]
fn an_export_that_comes_back_ends_the_drain() {
    let mut world = mk_exporting(mk_rules(), mk_draining_pool("30"));
    delete(&mut world, at(0));
    world.update(
        &mk_name("a"),
        Update::PoolApplied(mk_draining_pool("30")),
        at(5),
    );
    settle(&mut world, &mk_policy(), at(5));
    let found = entry(&world).expect("there");
    assert_eq!(found.drain_until, None);
    assert_eq!(reason(&found, conditions::READY), "Ready");
    world.tick(at(100));
    settle(&mut world, &mk_policy(), at(100));
    assert!(entry(&world).is_some());
}

#[test]
fn a_removed_member_drains_nothing() {
    let mut world = mk_exporting(mk_rules(), mk_draining_pool("30"));
    delete(&mut world, at(0));
    world.remove_member(&mk_name("a"), at(1));
    settle(&mut world, &mk_policy(), at(1));
    assert_eq!(entry(&world), None);
}

/// A new controller that knows `a` does not export, while `b` holds this import.
fn restart(mut live: LiveImport, until: Option<i64>) -> World {
    let time = until.map(|second| Time(wall(second)));
    live.status.clusters[0].drain_until = time;
    let mut world = World::new(mk_rules());
    world.set_wall(NOW, wall(0));
    for name in ["a", "b"] {
        world.add_member(&mk_name(name), NOW);
    }
    connect(&mut world, "b", Vec::new(), vec![live], NOW);
    let pools = vec![mk_pool("llm", None)];
    connect(&mut world, "a", pools, Vec::new(), NOW);
    settle(&mut world, &mk_policy(), NOW);
    world
}

#[test]
fn a_restart_goes_on_with_the_drain_that_it_finds() {
    let world = mk_exporting(mk_rules(), mk_pool("llm", Some("ClusterSet")));
    let live = member(&world, "b").imports.items[&mk_key("llm")].clone();
    let mut resumed = restart(live.clone(), Some(20));
    assert_eq!(
        entry(&resumed).and_then(|one| one.drain_until.clone()),
        Some(Time(wall(20)))
    );
    let plan = desired_for(&resumed, &mk_policy(), &mk_key("llm"), at(0));
    assert_eq!(plan.next_change_at, Some(at(20)));
    settle(&mut resumed, &mk_policy(), at(20));
    assert_eq!(entry(&resumed), None);
    assert_eq!(entry(&restart(live.clone(), Some(-1))), None, "it is over");
    assert_eq!(entry(&restart(live, None)), None, "it never was");
}

#[test]
fn a_drain_that_an_importer_forged_ends_within_an_hour() {
    let world = mk_exporting(mk_rules(), mk_pool("llm", Some("ClusterSet")));
    let live = member(&world, "b").imports.items[&mk_key("llm")].clone();
    let mut forged = restart(live, Some(1_000_000));
    assert_eq!(
        entry(&forged).and_then(|one| one.drain_until.clone()),
        Some(Time(wall(3600)))
    );
    assert_eq!(settle(&mut forged, &mk_policy(), at(100)), 0, "fixed once");
    settle(&mut forged, &mk_policy(), at(3600));
    assert_eq!(entry(&forged), None);
}

#[test]
fn a_draining_entry_outlives_a_restart_while_its_exporter_is_silent() {
    let mut world = mk_exporting(mk_rules(), mk_draining_pool("30"));
    delete(&mut world, at(0));
    let live = member(&world, "b").imports.items[&mk_key("llm")].clone();
    let mut world = World::new(mk_rules());
    world.set_wall(NOW, wall(0));
    for name in ["a", "b"] {
        world.add_member(&mk_name(name), NOW);
    }
    connect(&mut world, "b", Vec::new(), vec![live], NOW);
    settle(&mut world, &mk_policy(), at(1000));
    let found = entry(&world).expect("what it exports now is not known");
    assert_eq!(reason(&found, conditions::READY), "Draining");
}
