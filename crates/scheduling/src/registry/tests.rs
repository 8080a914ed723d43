use std::collections::BTreeMap;

use super::*;
use crate::fixtures::{NOW, at, book, mk_member, mk_members};

fn after(seconds: u64) -> Moment {
    NOW.plus(Duration::from_secs(seconds))
}

fn slots(snapshot: &Snapshot) -> BTreeMap<String, Slot> {
    let members = snapshot.endpoints();
    members
        .map(|endpoint| (endpoint.id().pod.to_string(), endpoint.slot()))
        .collect()
}

#[test]
fn a_member_that_stays_keeps_its_load_whatever_its_labels() {
    let mut registry = Registry::default();
    let first = registry.update(vec![mk_member("a", "1", "10.0.0.1:80")], NOW);
    let _booking = book(&at(&first, 0), 0);
    let mut edited = mk_member("a", "1", "10.0.0.1:80");
    edited.engine = "sglang".into();
    edited.labels = Arc::new([("k".into(), "v".into())].into());
    let second = registry.update(vec![mk_member("b", "2", "10.0.0.2:80"), edited], NOW);
    let found = second.at("10.0.0.1:80".parse().unwrap()).unwrap();
    assert_eq!(
        (found.load().in_flight(), found.slot()),
        (1, at(&first, 0).slot())
    );
    assert_eq!(&*second.members()[0].engine, "sglang");
    assert_eq!(second.members()[0].labels.len(), 1);
    assert_eq!(second.members()[1].endpoint.id().to_string(), "ns/b-rank-0");
    assert!(second.version() > first.version());
}

/// A readiness blip must not make a server with a hundred live streams look idle.
#[test]
fn a_member_that_comes_back_in_time_has_its_load() {
    let mut registry = Registry::default();
    let first = registry.update(mk_members(1), NOW);
    let booking = book(&at(&first, 0), 0);
    registry.update(Vec::new(), after(1));
    assert_eq!(
        registry.sweep(after(3_600)),
        [],
        "its request is still there"
    );
    let back = registry.update(mk_members(1), after(3_601));
    assert_eq!(at(&back, 0).load().in_flight(), 1);
    assert_eq!(registry.leaving(), 0);
    drop(booking);
    registry.update(Vec::new(), after(4_000));
    assert_eq!(registry.sweep(after(4_059)), []);
    assert_eq!(registry.sweep(after(4_060)), [at(&first, 0).slot()]);
    let anew = registry.update(mk_members(1), after(4_061));
    assert!(!Arc::ptr_eq(&at(&anew, 0), &at(&first, 0)));
}

#[test]
fn the_minute_begins_when_the_last_request_ended() {
    let mut registry = Registry::default();
    let first = registry.update(mk_members(1), NOW);
    let booking = book(&at(&first, 0), 0);
    registry.update(Vec::new(), after(0));
    assert_eq!(registry.sweep(after(100)), []);
    drop(booking);
    assert_eq!(registry.sweep(after(159)), []);
    assert_eq!(registry.sweep(after(160)).len(), 1);
}

#[test]
fn a_slot_is_given_again_with_the_next_generation() {
    let mut registry = Registry::default();
    registry.update(mk_members(2), NOW);
    registry.update(mk_members(1), NOW);
    let freed = registry.sweep(after(61));
    let third = registry.update(
        vec![
            mk_member("pod-000", "pod-000", "10.0.0.0:8000"),
            mk_member("new", "new", "10.0.0.9:8000"),
        ],
        after(62),
    );
    let slot = slots(&third)["new"];
    assert_eq!(
        freed,
        [Slot {
            generation: 0,
            ..slot
        }]
    );
    assert_eq!(slot.generation, 1);
    let indexes: std::collections::BTreeSet<_> =
        slots(&third).values().map(|slot| slot.index).collect();
    assert_eq!(indexes.len(), 2, "no place is given twice");
}

/// An engine that starts again in its pod has nothing cached; so has another endpoint in its slot.
#[test]
fn each_life_of_an_engine_has_a_place_of_its_own_for_what_it_cached() {
    let mut registry = Registry::default();
    let first = registry.update(mk_members(1), NOW);
    let place = |snapshot: &Snapshot| crate::fixtures::read(snapshot).cache_slots[0];
    let started = |since: f64| {
        let page = crate::fixtures::mk_page(0.0, 0.0, 0.0);
        let started = Some(since);
        crate::fixtures::scrape(&at(&first, 0), crate::Scraped { started, ..page });
        place(&first)
    };
    let places = [started(1.0), started(100.0), started(200.0)];
    registry.update(Vec::new(), NOW);
    registry.sweep(after(61));
    let next = place(&registry.update(vec![mk_member("b", "b", "10.0.0.9:1")], after(62)));
    let all: std::collections::BTreeSet<_> = places.into_iter().chain([next]).collect();
    assert_eq!(all.len(), 4, "{places:?} {next:?}");
    assert_eq!(
        all.last(),
        Some(&next),
        "later lives have greater generations"
    );
}

#[test]
fn a_pod_made_anew_and_a_moved_one_are_other_endpoints() {
    let mut registry = Registry::default();
    let first = registry.update(vec![mk_member("a", "1", "10.0.0.1:80")], NOW);
    let _booking = book(&at(&first, 0), 0);
    for member in [
        mk_member("a", "2", "10.0.0.1:80"),
        mk_member("a", "1", "10.0.0.9:80"),
    ] {
        let next = registry.update(vec![member.clone()], NOW);
        assert_eq!(at(&next, 0).load().in_flight(), 0, "{member:?}");
        assert!(next.at(member.address).is_some());
    }
}

#[test]
fn a_member_given_twice_is_one_endpoint() {
    let member = mk_member("a", "1", "10.0.0.1:80");
    let snapshot = Registry::default().update(vec![member.clone(), member], NOW);
    assert_eq!(snapshot.members().len(), 1);
}

#[test]
fn past_the_cap_idle_ones_that_left_first_are_forgotten() {
    let mut registry = Registry::default();
    let member = |index: usize| {
        let pod = format!("p{index}");
        mk_member(
            &pod,
            &pod,
            &format!("10.0.{}.{}:80", index / 250, index % 250),
        )
    };
    let all = MAX_LEAVING + 2;
    let first = registry.update((0..all).map(member).collect(), NOW);
    let kept = first.at("10.0.0.0:80".parse().unwrap()).unwrap();
    let _booking = book(kept, 0);
    for index in 0..all {
        registry.update((index + 1..all).map(member).collect(), NOW);
    }
    let forgotten = registry.sweep(NOW);
    assert_eq!((forgotten.len(), registry.leaving()), (2, MAX_LEAVING));
    assert!(!forgotten.contains(&kept.slot()), "it has a request");
}
