use std::{collections::BTreeSet, time::Duration};

use rstest::rstest;

use super::*;
use crate::{
    fixtures::*,
    index::{member::Fault, rules::Rules, update::Update},
};

const NOW: Moment = Moment::from_millis(1_000_000);
const HOLD: Duration = Duration::from_mins(5);

fn at(seconds: u64) -> Moment {
    NOW + Duration::from_secs(seconds)
}

/// Four members in contact that each export a pool of their own name, under the guard.
fn mk_guarded(withdraw_after: Option<Duration>) -> World {
    let rules = Rules {
        isolation_guard: true,
        withdraw_after,
        removal_hold: HOLD,
        ..mk_rules()
    };
    let mut world = World::new(rules);
    for name in ["a", "b", "c", "d"] {
        world.add_member(&mk_name(name), NOW);
        let pools = vec![mk_pool(name, Some("ClusterSet"))];
        connect(&mut world, name, pools, Vec::new(), NOW);
    }
    world
}

fn lose_at(world: &mut World, name: &str, second: u64) {
    let lost = Update::Lost(Fault::ConnectionLost);
    world.update(&mk_name(name), lost, at(second));
}

fn evidence(changes: &Changes) -> Vec<(String, Evidence)> {
    let withdrawals = changes.withdrawals.iter();
    withdrawals
        .map(|one| (one.exporter.to_string(), one.evidence))
        .collect()
}

fn removing(world: &World, name: &str) -> bool {
    member(world, name).contact.link == Link::Removing
}

#[test]
fn one_member_is_removed_when_it_is_clear_that_the_others_stay() {
    let mut world = mk_guarded(None);
    let changes = world.remove_member(&mk_name("a"), at(0));
    assert!(changes.withdrawals.is_empty() && changes.withheld.is_empty());
    assert!(world.tick(at(9)).withdrawals.is_empty());
    let changes = world.tick(at(10));
    assert_eq!(
        evidence(&changes),
        [("a".to_owned(), Evidence::MemberRemoved)]
    );
    assert!(removing(&world, "a"));
}

#[test]
fn members_that_leave_one_by_one_are_held_if_they_are_most() {
    let mut world = mk_guarded(None);
    for (name, second) in [("a", 0), ("b", 4), ("c", 8)] {
        world.remove_member(&mk_name(name), at(second));
        assert!(world.tick(at(second)).withdrawals.is_empty());
    }
    assert!(world.is_guarded());
    // nobody is silent, so the guard ends; the removals wait on
    assert!(world.tick(at(38)).withdrawals.is_empty());
    assert!(!world.is_guarded());
    assert!(world.tick(at(299)).withdrawals.is_empty());
    let changes = world.tick(at(300));
    assert_eq!(
        evidence(&changes),
        [("a".to_owned(), Evidence::MemberRemoved)]
    );
    world.keep_member(&mk_name("b"));
    world.tick(at(400));
    assert!(!removing(&world, "b") && removing(&world, "c"));
}

#[test]
fn one_that_left_is_gone_though_it_answers_again() {
    let mut world = mk_guarded(None);
    lose_at(&mut world, "a", 0);
    world.remove_member(&mk_name("a"), at(1));
    world.update(&mk_name("a"), Update::Live, at(2));
    for name in ["b", "c"] {
        world.remove_member(&mk_name(name), at(3));
    }
    assert!(world.is_guarded());
    assert!(world.tick(at(20)).withdrawals.is_empty());
}

/// One that is back in the inventory counts from when it fell silent.
#[rstest]
#[case::lost_now(1, true)]
#[case::silent_for_long(100, false)]
fn one_that_is_back_and_silent_is_gone_if_that_is_new(#[case] left: u64, #[case] guarded: bool) {
    let mut world = mk_guarded(None);
    lose_at(&mut world, "a", 0);
    world.remove_member(&mk_name("a"), at(left));
    world.keep_member(&mk_name("a"));
    for name in ["b", "c"] {
        world.remove_member(&mk_name(name), at(left + 2));
    }
    assert_eq!(world.is_guarded(), guarded);
}

#[test]
fn held_removals_are_counted_by_their_exports() {
    let mut world = mk_guarded(None);
    let mut withheld = 0;
    for name in ["a", "b", "c"] {
        let changes = world.remove_member(&mk_name(name), at(0));
        withheld += changes.withheld.get(&Evidence::MemberRemoved).unwrap_or(&0);
    }
    assert_eq!(withheld, 3);
}

#[test]
fn without_the_guard_a_removal_counts_at_once() {
    let mut world = mk_world(&["a", "b", "c"]);
    export(&mut world, "a", "x");
    let changes = world.remove_member(&mk_name("a"), NOW);
    assert_eq!(
        evidence(&changes),
        [("a".to_owned(), Evidence::MemberRemoved)]
    );
}

#[test]
fn readiness_does_not_turn_unknown_while_most_are_silent() {
    let mut world = mk_guarded(None);
    for name in ["a", "b", "c"] {
        lose_at(&mut world, name, 0);
    }
    assert!(world.is_guarded());
    let reach = |world: &World, second| world.reach(member(world, "a"), at(second));
    assert_eq!(reach(&world, 60), Reach::Lost(Fault::ConnectionLost));
    for name in ["b", "c"] {
        world.update(&mk_name(name), Update::Live, at(100));
    }
    world.tick(at(100));
    world.tick(at(130));
    assert!(!world.is_guarded());
    assert_eq!(reach(&world, 130), Reach::Stale(Fault::ConnectionLost));
}

#[test]
fn what_was_unknown_before_the_guard_stays_so() {
    let mut world = mk_guarded(None);
    lose_at(&mut world, "a", 0);
    for name in ["b", "c", "d"] {
        lose_at(&mut world, name, 100);
    }
    assert!(world.is_guarded());
    let stale = Reach::Stale(Fault::ConnectionLost);
    assert_eq!(world.reach(member(&world, "a"), at(200)), stale);
    let lost = Reach::Lost(Fault::ConnectionLost);
    assert_eq!(world.reach(member(&world, "b"), at(200)), lost);
}

#[test]
fn under_the_guard_a_gap_in_a_list_is_held_and_a_deletion_counts() {
    let mut world = mk_guarded(None);
    for name in ["a", "b", "c"] {
        lose_at(&mut world, name, 0);
    }
    let empty = Update::PoolsListed {
        pools: Vec::new(),
        odd: BTreeSet::new(),
        crd: mk_crd(),
    };
    let changes = world.update(&mk_name("d"), empty, at(1));
    assert!(changes.withdrawals.is_empty());
    assert_eq!(changes.withheld.get(&Evidence::PoolAbsent), Some(&1));
    assert!(world.tick(at(200)).withdrawals.is_empty());
    for name in ["a", "b", "c"] {
        world.update(&mk_name(name), Update::Live, at(200));
    }
    world.tick(at(200));
    let changes = world.tick(at(230));
    assert_eq!(evidence(&changes), [("d".to_owned(), Evidence::PoolAbsent)]);

    let mut world = mk_guarded(None);
    for name in ["a", "b", "c"] {
        lose_at(&mut world, name, 0);
    }
    let deleted = Update::PoolDeleted {
        key: mk_key("d"),
        crd: mk_crd(),
    };
    let changes = world.update(&mk_name("d"), deleted, at(1));
    assert_eq!(
        evidence(&changes),
        [("d".to_owned(), Evidence::PoolDeleted)]
    );
}

#[test]
fn long_silence_withdraws_only_if_the_operator_allows_it() {
    let mut world = mk_guarded(None);
    lose_at(&mut world, "a", 0);
    assert!(world.tick(at(1_000_000)).withdrawals.is_empty());

    let mut world = mk_guarded(Some(Duration::from_mins(10)));
    lose_at(&mut world, "a", 0);
    assert!(world.tick(at(599)).withdrawals.is_empty());
    let changes = world.tick(at(600));
    assert_eq!(
        evidence(&changes),
        [("a".to_owned(), Evidence::WithdrawAfter)]
    );
    assert!(world.tick(at(601)).withdrawals.is_empty(), "reported once");
    let entries_of = |world: &mut World, second| {
        settle(world, &mk_policy(), at(second));
        entries(world, "b", &mk_key("a"))
    };
    assert!(entries_of(&mut world, 601).is_empty());
    world.update(&mk_name("a"), Update::Live, at(700));
    assert_eq!(entries_of(&mut world, 700), ["a"]);
}

#[test]
fn under_the_guard_long_silence_is_held_and_counted_once() {
    let mut world = mk_guarded(Some(Duration::from_mins(10)));
    for name in ["a", "b", "c"] {
        lose_at(&mut world, name, 0);
    }
    let changes = world.tick(at(600));
    assert!(changes.withdrawals.is_empty());
    assert_eq!(changes.withheld.get(&Evidence::WithdrawAfter), Some(&3));
    assert!(world.tick(at(601)).withheld.is_empty());
}

#[test]
fn a_member_that_is_another_cluster_now_is_not_silent() {
    let mut world = mk_guarded(Some(Duration::from_mins(10)));
    let refused = Update::Refused(Refusal::IdentityChanged);
    world.update(&mk_name("a"), refused, at(0));
    assert!(world.tick(at(1_000)).withdrawals.is_empty());
}

/// A start that finds these members in the inventory and those in the record.
fn mk_started(inventory: &[&str], recorded: &[&str]) -> (World, Changes) {
    let mut world = mk_guarded(None);
    world = World::new(world.rules);
    for name in inventory {
        world.add_member(&mk_name(name), at(0));
    }
    world.recall(
        recorded
            .iter()
            .map(|name| (mk_name(name), mk_record(&format!("cluster-{name}"))))
            .collect(),
    );
    let changes = world.inventory_listed(at(0));
    (world, changes)
}

#[test]
fn a_start_that_misses_most_recorded_members_keeps_them_for_a_while() {
    let (mut world, changes) = mk_started(&["a"], &["a", "b", "c"]);
    assert_eq!(changes.withheld.get(&Evidence::MemberRemoved), Some(&2));
    assert!(world.is_guarded());
    assert!(member(&world, "b").settled(), "nobody waits for it");
    world.tick(at(299));
    assert!(!removing(&world, "b"));
    world.tick(at(300));
    assert!(removing(&world, "b") && removing(&world, "c"));
}

#[test]
fn a_start_that_misses_a_few_recorded_members_forgets_them() {
    let (world, changes) = mk_started(&["a", "b"], &["a", "b", "c"]);
    assert!(changes.withheld.is_empty() && !world.is_guarded());
    assert!(!world.members.contains_key(&mk_name("c")));
}

#[test]
fn after_a_start_entries_of_members_that_are_held_stay_and_those_of_strangers_go() {
    let mut before = mk_guarded(None);
    settle(&mut before, &mk_policy(), at(0));
    let live: Vec<_> = member(&before, "d")
        .imports
        .items
        .values()
        .cloned()
        .collect();
    for (recorded, stays) in [(vec!["a", "b", "c", "d"], true), (vec!["d"], false)] {
        let (mut world, _) = mk_started(&["d"], &recorded);
        let pools = vec![mk_pool("d", Some("ClusterSet"))];
        connect(&mut world, "d", pools, live.clone(), at(1));
        settle(&mut world, &mk_policy(), at(3));
        let found = !entries(&world, "d", &mk_key("a")).is_empty();
        assert_eq!(found, stays, "{recorded:?}");
    }
}
