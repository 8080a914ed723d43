use std::collections::BTreeSet;

use super::{facts::CrdCheck, member::*, update::Update, *};
use crate::fixtures::*;

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
    member(world, name).pools.contains_key(&mk_key(pool))
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
    assert_eq!(changes.withheld, 1);
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

#[test]
fn silence_forgets_nothing() {
    let mut world = mk_world(&["a"]);
    list(&mut world, "a", &["x"], mk_crd(), NOW);
    let before = member(&world, "a").pools.clone();
    lose(&mut world, "a", NOW);
    assert_eq!(member(&world, "a").pools, before);
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
    let changes = world.remove_member(&mk_name("a"));
    assert_eq!(evidence(&changes), [Evidence::MemberRemoved]);
    assert_eq!(member(&world, "a").link, Link::Removing);
    world.forget(&mk_name("a"));
    assert!(world.members.is_empty());
}

#[test]
fn an_event_that_says_nothing_new_makes_nothing_dirty() {
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
fn one_cluster_under_two_names_is_used_once() {
    let mut world = World::new(STALE_AFTER);
    for name in ["a", "b"] {
        world.add_member(&mk_name(name), NOW);
    }
    let connected = || Update::Connected {
        uid: "same".to_owned(),
    };
    assert!(
        world
            .update(&mk_name("b"), connected(), NOW)
            .refused
            .is_empty()
    );
    // neither was in contact: the first by name stays
    let changes = world.update(&mk_name("a"), connected(), NOW);
    assert_eq!(changes.refused, [(mk_name("b"), Refusal::DuplicateCluster)]);
    let refused = Update::Refused(Refusal::DuplicateCluster);
    world.update(&mk_name("b"), refused, NOW);
    world.update(&mk_name("a"), Update::Live, NOW);
    // one in contact stays, whatever its name
    world.add_member(&mk_name("0"), NOW);
    let changes = world.update(&mk_name("0"), connected(), NOW);
    assert_eq!(changes.refused, [(mk_name("0"), Refusal::DuplicateCluster)]);
}

#[test]
fn a_name_that_leads_to_another_cluster_is_not_followed() {
    let mut world = mk_world(&["a"]);
    let other = Update::Connected {
        uid: "another".to_owned(),
    };
    let changes = world.update(&mk_name("a"), other, NOW);
    assert_eq!(changes.refused, [(mk_name("a"), Refusal::IdentityChanged)]);
}

#[test]
fn a_refused_member_stays_refused_until_it_connects() {
    let mut world = mk_world(&["a"]);
    let refused = Update::Refused(Refusal::InsecureCredentials);
    world.update(&mk_name("a"), refused, NOW);
    assert_eq!(
        member(&world, "a").link,
        Link::Refused(Refusal::InsecureCredentials)
    );
    connect(&mut world, "a", Vec::new(), Vec::new(), NOW);
    assert_eq!(member(&world, "a").link, Link::Live);
}
