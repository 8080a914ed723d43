//! `observedGeneration`: the import's own on top of it, the exported pool's in its entry, and the pool's in its status.

use crate::export::Export;
use std::time::Duration;

use rstest::rstest;

use super::*;
use crate::index::facts::{CrdCheck, PoolFacts};

/// Of the pool in `a`.
const OF_POOL: i64 = 3;
/// Of the import in `b`.
const OF_IMPORT: i64 = 5;

fn generations<'a>(conditions: impl IntoIterator<Item = &'a crd::Condition>) -> Vec<Option<i64>> {
    let conditions = conditions.into_iter();
    let mut found: Vec<_> = conditions.map(|one| one.observed_generation).collect();
    found.dedup();
    found
}

/// `b` imports what `a` exports, and `c` too, so that there is something to be consistent.
fn mk_imported(pool: PoolFacts) -> World {
    let mut world = mk_world(&["a", "b", "c"]);
    export(&mut world, "c", "llm");
    for update in [
        Update::Gateways(Change::Listed(vec![mk_gateway("gw")])),
        Update::Routes(Change::Listed(vec![mk_route("r", "gw", "llm")])),
        Update::PoolApplied(pool),
    ] {
        world.update(&mk_name("a"), update, NOW);
    }
    settle(&mut world, &mk_policy(), NOW);
    let mut live = member(&world, "b").imports.items[&mk_key("llm")].clone();
    live.generation = OF_IMPORT;
    world.update(&mk_name("b"), Update::Imports(Change::Applied(live)), NOW);
    world
}

/// The pool asks for a drain.
fn draining(mut pool: PoolFacts) -> PoolFacts {
    let Export::Requested(request) = &mut pool.export else {
        panic!("{:?}", pool.export);
    };
    request.drain = Some(Duration::from_secs(30));
    pool
}

fn deleted(world: &mut World) {
    let deleted = Update::PoolDeleted {
        key: mk_key("llm"),
        crd: mk_crd(),
    };
    world.update(&mk_name("a"), deleted, NOW);
}

fn forgotten(world: &mut World) {
    let live = member(world, "b").imports.items[&mk_key("llm")].clone();
    *world = World::new(mk_rules());
    for name in ["a", "b", "c"] {
        world.add_member(&mk_name(name), NOW);
    }
    connect(world, "b", Vec::new(), vec![live], NOW);
}

fn doubted(world: &mut World) {
    let deleted = Update::PoolDeleted {
        key: mk_key("llm"),
        crd: CrdCheck::Doubtful,
    };
    world.update(&mk_name("a"), deleted, NOW);
}

#[rstest]
#[case::published(|_: &mut World| {}, 1)]
#[case::silent(|world: &mut World| lose(world, "a", NOW), 3)]
#[case::stale(|world: &mut World| lose(world, "a", NOW), 60)]
#[case::crd_missing(doubted, 1)]
#[case::carried_after_a_restart(forgotten, 1)]
#[case::draining(deleted, 1)]
fn each_condition_has_the_generation_of_its_object(
    #[case] fault: fn(&mut World),
    #[case] seconds: u64,
    #[values(mk_pool("llm", Some("ClusterSet")), mk_parent_pool("llm"))] pool: PoolFacts,
) {
    let mut world = mk_imported(draining(pool));
    fault(&mut world);
    let now = NOW + Duration::from_secs(seconds);
    let plan = desired_for(&world, &mk_policy(), &mk_key("llm"), now);
    let status = &planned(&plan, "b").status;
    assert_eq!(status.observed_generation, Some(OF_IMPORT));
    let [ours] = &*status.controllers else {
        panic!("{:?}", status.controllers);
    };
    assert_eq!(status.conditions.len(), 3);
    let on_top = status.conditions.iter().chain(&ours.conditions);
    assert_eq!(generations(on_top), [Some(OF_IMPORT)]);
    assert_eq!(names(planned(&plan, "b")), ["a", "c"]);
    for entry in &status.clusters {
        let of_parents = entry.parents.iter().flat_map(|parent| &parent.conditions);
        let in_entry = entry.conditions.iter().chain(of_parents);
        assert_eq!(generations(in_entry), [Some(OF_POOL)]);
    }
    for pool in plan.pools.values() {
        let PoolPlan::Exported { condition, .. } = pool else {
            panic!("{pool:?}");
        };
        assert_eq!(condition.observed_generation, Some(OF_POOL));
    }
}

#[test]
fn a_pool_that_changes_has_its_generation_in_the_condition() {
    let mut world = mk_imported(mk_pool("llm", Some("ClusterSet")));
    let mut pool = member(&world, "a").pools.records[&mk_key("llm")]
        .facts
        .clone();
    pool.generation = 4;
    world.update(&mk_name("a"), Update::PoolApplied(pool), NOW);
    assert!(settle(&mut world, &mk_policy(), NOW) > 0);
    let live = &member(&world, "b").imports.items[&mk_key("llm")];
    let of_entry = generations(&live.status.clusters[0].conditions);
    assert_eq!(of_entry, [Some(4)]);
    let condition = member(&world, "a").pools.records[&mk_key("llm")]
        .facts
        .exported
        .clone();
    assert_eq!(generations(&condition.expect("Exported")), [Some(4)]);
}
