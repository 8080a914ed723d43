use std::collections::BTreeSet;

use super::{facts::CrdCheck, member::*, update::Update, *};
use crate::fixtures::*;

mod caps;

const NOW: Moment = Moment::from_millis(100_000);

fn list(world: &mut World, name: &str, pools: &[&str], crd: CrdCheck, now: Moment) -> Changes {
    let pools = pools
        .iter()
        .map(|pool| mk_pool(pool, Some("ClusterSet")))
        .collect();
    let odd = BTreeSet::new();
    world.update(&mk_name(name), Update::PoolsListed { pools, odd, crd }, now)
}

fn evidence(changes: &Changes) -> Vec<Evidence> {
    changes
        .withdrawals
        .iter()
        .map(|withdrawal| withdrawal.evidence)
        .collect()
}

fn has(world: &World, name: &str, pool: &str) -> bool {
    member(world, name)
        .pools
        .records
        .contains_key(&mk_key(pool))
}

#[test]
fn a_pool_missing_from_a_complete_list_is_gone() {
    let mut world = mk_world(&["a"]);
    list(&mut world, "a", &["x", "y"], mk_crd(), NOW);
    let changes = list(&mut world, "a", &["y"], mk_crd(), NOW);
    assert_eq!(evidence(&changes), [Evidence::PoolAbsent]);
    assert!(!has(&world, "a", "x") && has(&world, "a", "y"));
}

#[test]
fn a_deleted_pool_is_gone_only_while_its_crd_stands() {
    let mut world = mk_world(&["a"]);
    list(&mut world, "a", &["x", "y"], mk_crd(), NOW);
    let deleted = |pool: &str, crd| Update::PoolDeleted {
        key: mk_key(pool),
        crd,
    };
    let changes = world.update(&mk_name("a"), deleted("x", CrdCheck::Doubtful), NOW);
    assert!(changes.withdrawals.is_empty());
    assert_eq!(
        changes.withheld,
        BTreeMap::from([(Evidence::PoolAbsent, 1)])
    );
    assert!(has(&world, "a", "x"));
    let other = CrdCheck::Serving {
        uid: "crd-2".to_owned(),
    };
    world.update(&mk_name("a"), deleted("y", other), NOW);
    assert!(
        has(&world, "a", "y"),
        "another CRD proves nothing of this one's objects"
    );
    let changes = world.update(&mk_name("a"), deleted("y", mk_crd()), NOW);
    assert_eq!(evidence(&changes), [Evidence::PoolDeleted]);
}

#[test]
fn a_reinstalled_crd_gives_its_pools_time_to_come_back() {
    let mut world = mk_world(&["a"]);
    list(&mut world, "a", &["x", "y"], mk_crd(), NOW);
    let new_crd = CrdCheck::Serving {
        uid: "crd-2".to_owned(),
    };
    list(&mut world, "a", &["y"], new_crd.clone(), NOW);
    assert!(has(&world, "a", "x"));
    assert!(world.tick(NOW + STALE_AFTER / 2).withdrawals.is_empty());
    // lists under the new CRD prove nothing earlier
    list(&mut world, "a", &["y"], new_crd, NOW + STALE_AFTER / 2);
    assert!(has(&world, "a", "x"));
    let changes = world.tick(NOW + STALE_AFTER);
    assert_eq!(evidence(&changes), [Evidence::PoolAbsent]);
    assert!(!has(&world, "a", "x") && has(&world, "a", "y"));
}

#[test]
fn a_pool_that_comes_back_ends_the_doubt() {
    let mut world = mk_world(&["a"]);
    list(&mut world, "a", &["x"], mk_crd(), NOW);
    let new_crd = CrdCheck::Serving {
        uid: "crd-2".to_owned(),
    };
    list(&mut world, "a", &[], new_crd, NOW);
    export(&mut world, "a", "x");
    assert!(world.tick(NOW + STALE_AFTER * 2).withdrawals.is_empty());
    assert!(has(&world, "a", "x"));
}

#[test]
fn a_pool_that_cannot_be_read_is_not_absent() {
    let mut world = mk_world(&["a"]);
    list(&mut world, "a", &["x"], mk_crd(), NOW);
    let odd = BTreeSet::from([mk_key("x")]);
    let listed = Update::PoolsListed {
        pools: Vec::new(),
        odd,
        crd: mk_crd(),
    };
    let changes = world.update(&mk_name("a"), listed, NOW);
    assert!(changes.withdrawals.is_empty());
    assert!(has(&world, "a", "x"));
}

/// A controller that has just started, and an importer that holds an entry of `a`'s pool `x`.
fn mk_restarted() -> World {
    let mut before = mk_world(&["a", "b"]);
    export(&mut before, "a", "x");
    settle(&mut before, &mk_policy(), NOW);
    let live = member(&before, "b").imports.items[&mk_key("x")].clone();
    let mut world = World::new(mk_rules());
    for name in ["a", "b"] {
        world.add_member(&mk_name(name), NOW);
    }
    connect(&mut world, "b", Vec::new(), vec![live], NOW);
    world
}

fn carried(world: &mut World, now: Moment) -> bool {
    settle(world, &mk_policy(), now);
    !entries(world, "b", &mk_key("x")).is_empty()
}

#[test]
fn after_a_start_a_list_under_a_crd_that_is_going_ends_nothing() {
    let mut world = mk_restarted();
    connect_under(
        &mut world,
        "a",
        CrdCheck::Doubtful,
        Vec::new(),
        Vec::new(),
        NOW,
    );
    let later = NOW + STALE_AFTER * 100;
    assert!(world.tick(later).withdrawals.is_empty());
    assert!(carried(&mut world, later));
    // its CRD is back: from now on its pools have time
    list(&mut world, "a", &[], mk_crd(), later);
    assert!(world.tick(later + STALE_AFTER / 2).withdrawals.is_empty());
    assert!(carried(&mut world, later));
    let changes = world.tick(later + STALE_AFTER);
    assert_eq!(evidence(&changes), [Evidence::PoolAbsent]);
    assert!(!carried(&mut world, later + STALE_AFTER));
}

#[test]
fn after_a_start_a_crd_that_goes_once_more_ends_no_doubt() {
    let mut world = mk_restarted();
    connect(&mut world, "a", Vec::new(), Vec::new(), NOW);
    world.update(&mk_name("a"), Update::NotServed(update::Kind::Pools), NOW);
    assert!(world.tick(NOW + STALE_AFTER * 2).withdrawals.is_empty());
    assert!(carried(&mut world, NOW + STALE_AFTER * 2));
}

#[test]
fn after_a_start_a_pool_that_is_listed_and_then_deleted_goes_at_once() {
    let mut world = mk_restarted();
    let pools = vec![mk_pool("x", Some("ClusterSet"))];
    connect(&mut world, "a", pools, Vec::new(), NOW);
    let deleted = Update::PoolDeleted {
        key: mk_key("x"),
        crd: mk_crd(),
    };
    let changes = world.update(&mk_name("a"), deleted, NOW);
    assert_eq!(evidence(&changes), [Evidence::PoolDeleted]);
    assert!(!carried(&mut world, NOW));
}

#[test]
fn an_annotation_that_went_while_no_controller_ran_is_reported_once() {
    let mut world = mk_restarted();
    let listed = |pools| Update::PoolsListed {
        pools,
        odd: BTreeSet::new(),
        crd: mk_crd(),
    };
    let changes = world.update(&mk_name("a"), listed(vec![mk_pool("x", None)]), NOW);
    assert_eq!(evidence(&changes), [Evidence::AnnotationGone]);
    let changes = world.update(&mk_name("a"), listed(vec![mk_pool("x", None)]), NOW);
    assert!(changes.withdrawals.is_empty());
}

#[test]
fn pools_listed_under_a_crd_that_is_going_are_not_gone_with_the_next_crd() {
    let mut world = World::new(mk_rules());
    world.add_member(&mk_name("a"), NOW);
    let pools = vec![mk_pool("x", Some("ClusterSet"))];
    connect_under(&mut world, "a", CrdCheck::Doubtful, pools, Vec::new(), NOW);
    let changes = list(&mut world, "a", &[], mk_crd(), NOW);
    assert!(changes.withdrawals.is_empty());
    assert!(has(&world, "a", "x"));
}

#[test]
fn silence_forgets_nothing() {
    let mut world = mk_world(&["a"]);
    list(&mut world, "a", &["x"], mk_crd(), NOW);
    let before = member(&world, "a").pools.records.clone();
    lose(&mut world, "a", NOW);
    assert_eq!(*member(&world, "a").pools.records, *before);
    assert!(world.tick(NOW + STALE_AFTER * 100).withdrawals.is_empty());
}

#[test]
fn taking_the_annotation_away_is_evidence() {
    let mut world = mk_world(&["a"]);
    export(&mut world, "a", "x");
    let gone = Update::PoolApplied(mk_pool("x", None));
    let changes = world.update(&mk_name("a"), gone, NOW);
    assert_eq!(evidence(&changes), [Evidence::AnnotationGone]);
    export(&mut world, "a", "x");
    let invalid = Update::PoolApplied(mk_pool("x", Some("clusterset")));
    let changes = world.update(&mk_name("a"), invalid, NOW);
    assert_eq!(evidence(&changes), [Evidence::AnnotationInvalid]);
}

#[test]
fn removing_a_member_is_evidence_and_keeps_it_until_forgotten() {
    let mut world = mk_world(&["a"]);
    export(&mut world, "a", "x");
    let changes = world.remove_member(&mk_name("a"), NOW);
    assert_eq!(evidence(&changes), [Evidence::MemberRemoved]);
    assert_eq!(member(&world, "a").contact.link, Link::Removing);
    world.forget(&mk_name("a"));
    assert!(world.members.is_empty());
}

#[test]
fn an_event_without_a_change_makes_nothing_dirty() {
    let mut world = mk_world(&["a"]);
    export(&mut world, "a", "x");
    let again = Update::PoolApplied(mk_pool("x", Some("ClusterSet")));
    assert_eq!(world.update(&mk_name("a"), again, NOW), Changes::default());
    let slice = Update::Slices(update::Change::Applied(mk_slice(&["10.0.0.1"])));
    assert_eq!(world.update(&mk_name("a"), slice, NOW), Changes::default());
    let quiet = Update::PoolApplied(mk_pool("unexported", None));
    assert_eq!(world.update(&mk_name("a"), quiet, NOW), Changes::default());
}

#[test]
fn a_changed_endpoint_concerns_the_pools_of_its_service_alone() {
    let mut world = mk_world(&["a"]);
    export(&mut world, "a", "x");
    let mut other = mk_pool("y", Some("ClusterSet"));
    other.epp.as_mut().expect("a reference").name = "other".to_owned();
    world.update(&mk_name("a"), Update::PoolApplied(other), NOW);
    let slice = Update::Slices(update::Change::Applied(mk_slice(&[])));
    let changes = world.update(&mk_name("a"), slice, NOW);
    assert_eq!(changes.dirty.keys, BTreeSet::from([mk_key("x")]));
    assert!(!changes.dirty.all);
}

#[test]
fn a_refused_member_stays_refused_until_it_connects() {
    let mut world = mk_world(&["a"]);
    let refused = Update::Refused(Refusal::InsecureCredentials);
    world.update(&mk_name("a"), refused, NOW);
    assert_eq!(
        member(&world, "a").contact.link,
        Link::Refused(Refusal::InsecureCredentials)
    );
    // it stays silent, but its refusal changes the plan
    let another = || Update::Refused(Refusal::NoAccessProvider);
    assert!(world.update(&mk_name("a"), another(), NOW).dirty.all);
    assert!(!world.update(&mk_name("a"), another(), NOW).dirty.all);
    connect(&mut world, "a", Vec::new(), Vec::new(), NOW);
    assert_eq!(member(&world, "a").contact.link, Link::Live);
}

#[test]
fn pools_of_a_kind_that_is_not_served_are_kept_and_marked() {
    let mut world = mk_world(&["a", "b"]);
    let policy = mk_policy();
    export(&mut world, "a", "x");
    settle(&mut world, &policy, NOW);
    let reachable = |world: &World| {
        let import = &member(world, "b").imports.items[&mk_key("x")];
        let conditions = &import.status.clusters[0].conditions;
        let found = crd::conditions::find(conditions, crd::conditions::REACHABLE);
        found.map(|one| one.reason.clone())
    };
    // a watch that was broken meanwhile sent no deletion
    let gone = Update::NotServed(update::Kind::Pools);
    let changes = world.update(&mk_name("a"), gone, NOW);
    assert!(changes.withdrawals.is_empty());
    assert!(changes.dirty.keys.contains(&mk_key("x")));
    settle(&mut world, &policy, NOW);
    assert_eq!(reachable(&world).as_deref(), Some("CRDMissing"));
    let back = Update::PoolsListed {
        pools: vec![mk_pool("x", Some("ClusterSet"))],
        odd: BTreeSet::new(),
        crd: mk_crd(),
    };
    world.update(&mk_name("a"), back, NOW);
    settle(&mut world, &policy, NOW);
    assert_eq!(reachable(&world).as_deref(), Some("Reachable"));
}
