//! A member that sends objects without end: what is kept is bounded, and what is not kept is not taken for absent.

use super::*;
use crate::index::{
    facts::{NamespaceFacts, SliceFacts},
    kinds::{MAX_IMPORTS, MAX_NAMESPACES, MAX_SLICES},
    pools::MAX_POOLS,
    update::Change,
};

const LATER: Moment = Moment::from_millis(1_000_000);

fn update(world: &mut World, update: Update) -> Changes {
    world.update(&mk_name("a"), update, LATER)
}

/// Sends so many pools that nobody exports.
fn flood(world: &mut World, pools: usize) {
    for at in 0..pools {
        let pool = mk_pool(&format!("flood-{at}"), None);
        update(world, Update::PoolApplied(pool));
    }
}

/// `a`'s pool `x` is carried by `b`; `a` has been heard for so long that what it lacks is absent.
fn mk_heard() -> World {
    let mut world = mk_restarted();
    connect(&mut world, "a", Vec::new(), Vec::new(), NOW);
    world
}

#[test]
fn pools_without_end_are_not_kept_and_those_exported_still_are() {
    let mut world = mk_world(&["a"]);
    flood(&mut world, MAX_POOLS + 10);
    let kept = member(&world, "a").pools.len();
    assert!(kept < MAX_POOLS, "{kept}");
    export(&mut world, "a", "x");
    assert!(has(&world, "a", "x"));
    update(&mut world, Update::PoolApplied(mk_pool("x", None)));
    assert_eq!(
        member(&world, "a").pools.len(),
        kept + 1,
        "known ones change"
    );
}

#[test]
fn past_the_cap_what_is_not_kept_is_not_absent() {
    let mut world = mk_heard();
    flood(&mut world, MAX_POOLS);
    let changes = world.tick(NOW + STALE_AFTER);
    assert!(
        changes.withdrawals.is_empty(),
        "x may be among those left out"
    );
    assert!(carried(&mut world, LATER));
    // a list that fits says what there is
    list(&mut world, "a", &["y"], mk_crd(), LATER);
    assert!(!carried(&mut world, LATER));
}

#[test]
fn past_the_cap_evidence_still_counts() {
    let mut world = mk_heard();
    world.tick(NOW + STALE_AFTER);
    export(&mut world, "a", "x");
    assert!(carried(&mut world, LATER));
    flood(&mut world, MAX_POOLS);
    let deleted = Update::PoolDeleted {
        key: mk_key("x"),
        crd: mk_crd(),
    };
    let changes = update(&mut world, deleted);
    assert_eq!(evidence(&changes), [Evidence::PoolDeleted]);
    assert!(!carried(&mut world, LATER));
}

#[test]
fn names_of_pools_without_end_are_not_kept() {
    let mut world = mk_world(&["a"]);
    for at in 0..MAX_POOLS + 10 {
        update(&mut world, Update::PoolOdd(mk_key(&format!("odd-{at}"))));
        let deleted = Update::PoolDeleted {
            key: mk_key(&format!("gone-{at}")),
            crd: mk_crd(),
        };
        update(&mut world, deleted);
    }
    let member = member(&world, "a");
    assert_eq!(member.odd_pools.len(), MAX_POOLS);
    assert!(member.gone_pools.len() <= MAX_POOLS);
    assert!(!member.knows_pool(&mk_key("never-heard-of")));
}

#[test]
fn namespaces_and_slices_without_end_are_not_kept() {
    let mut world = mk_world(&["a"]);
    let namespace = |at: usize| NamespaceFacts {
        name: format!("ns-{at}").into(),
        terminating: false,
    };
    let slice = |at: usize| SliceFacts {
        key: mk_key(&format!("slice-{at}")),
        ..mk_slice(&["10.0.0.9"])
    };
    let most = MAX_NAMESPACES.max(MAX_SLICES) + 10;
    for at in 0..most {
        let member = world.members.get_mut(&mk_name("a")).expect("a member");
        member.change_namespaces(Change::Applied(namespace(at)));
        member.change_slices(Change::Applied(slice(at)));
    }
    let kept = member(&world, "a");
    assert_eq!(kept.namespaces.items.len(), MAX_NAMESPACES);
    assert_eq!(kept.slices.items.len(), MAX_SLICES);
    // in a list, too; and those known stay
    let namespaces = (most..2 * most).map(namespace).chain([mk_namespace(false)]);
    let namespaces: Vec<_> = namespaces.collect();
    update(&mut world, Update::Namespaces(Change::Listed(namespaces)));
    let slices: Vec<_> = (most..2 * most).map(slice).chain([slice(0)]).collect();
    update(&mut world, Update::Slices(Change::Listed(slices)));
    let kept = member(&world, "a");
    assert_eq!(kept.namespaces.items.len(), MAX_NAMESPACES);
    assert!(kept.namespaces.items.contains_key(NS));
    assert_eq!(kept.slices.items.len(), MAX_SLICES);
    assert!(kept.slices.items.contains_key(&mk_key("slice-0")));
}

#[test]
fn a_member_with_imports_without_end_is_not_written_into() {
    let mut world = mk_restarted();
    assert!(member(&world, "b").imports_known());
    let live = member(&world, "b").imports.items[&mk_key("x")].clone();
    let mk = |at: usize| {
        let mut import = live.clone();
        import.key = mk_key(&format!("import-{at}"));
        *import.status = crd::InferencePoolImportStatus::default();
        import
    };
    let name = mk_name("b");
    let member_b = world.members.get_mut(&name).expect("a member");
    for at in 0..MAX_IMPORTS + 10 {
        member_b.change_imports(Change::Applied(mk(at)), NOW);
    }
    assert_eq!(member_b.imports.items.len(), MAX_IMPORTS);
    assert!(!member_b.imports_known(), "some are not known");
    let many = (0..=MAX_IMPORTS).map(mk).collect();
    member_b.change_imports(Change::Listed(many), NOW);
    assert_eq!(member_b.imports.items.len(), MAX_IMPORTS);
    assert!(!member_b.imports_known());
    member_b.change_imports(Change::Listed(vec![live]), NOW);
    assert!(member_b.imports_known());
}
