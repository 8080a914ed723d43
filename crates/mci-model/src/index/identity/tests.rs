use jiff::Timestamp;

use super::*;
use crate::{
    fixtures::{member, mk_name, mk_rules, mk_world},
    index::{
        origin::{Source, SourceKind},
        update::Update,
    },
};
use moment::Moment;

const NOW: Moment = Moment::from_millis(100_000);

fn connect(world: &mut World, name: &str, uid: &str) -> Vec<(String, Refusal)> {
    connect_of(world, name, uid, None)
}

/// Reports which cluster answered under the name, and applies the refusals as the planner does.
fn connect_of(
    world: &mut World,
    name: &str,
    uid: &str,
    clusterset: Option<&str>,
) -> Vec<(String, Refusal)> {
    let update = Update::Connected {
        uid: uid.to_owned(),
        clusterset: clusterset.map(ToOwned::to_owned),
    };
    let refused = world.update(&mk_name(name), update, NOW).refused;
    for (name, refusal) in &refused {
        world.update(name, Update::Refused(*refusal), NOW);
    }
    let named = refused.into_iter();
    named.map(|(name, why)| (name.to_string(), why)).collect()
}

fn add(world: &mut World, name: &str, origin: Origin) {
    world.add_member(&mk_name(name), NOW);
    world.describe(&mk_name(name), &Arc::new(origin));
}

/// Removes a member, and lets the time pass after which that counts.
fn remove(world: &mut World, name: &str) {
    world.remove_member(&mk_name(name), NOW);
    world.tick(NOW + std::time::Duration::from_mins(1));
}

fn from(kind: SourceKind, age: i64) -> Origin {
    let created = Timestamp::from_second(1_000_000 - age).expect("a time");
    Origin {
        source: Source {
            kind,
            created: Some(created),
            ..Source::default()
        },
        ..Origin::default()
    }
}

fn duplicate(name: &str) -> Vec<(String, Refusal)> {
    vec![(name.to_owned(), Refusal::DuplicateCluster)]
}

#[test]
fn one_cluster_under_two_names_is_used_once() {
    let mut world = World::new(mk_rules());
    for name in ["a", "b"] {
        add(&mut world, name, Origin::default());
    }
    assert!(connect(&mut world, "b", "same").is_empty());
    // neither was in contact: the first by name stays
    assert_eq!(connect(&mut world, "a", "same"), duplicate("b"));
    world.update(&mk_name("a"), Update::Live, NOW);
    // one in contact stays, whatever its name and source
    add(&mut world, "0", from(SourceKind::Home, 9));
    assert_eq!(connect(&mut world, "0", "same"), duplicate("0"));
}

#[test]
fn before_either_is_in_contact_the_first_source_wins_then_the_oldest() {
    let mut world = World::new(mk_rules());
    add(&mut world, "a", from(SourceKind::ClusterProfile, 9));
    add(&mut world, "b", from(SourceKind::Secret, 1));
    add(&mut world, "c", from(SourceKind::Secret, 2));
    assert!(connect(&mut world, "a", "same").is_empty());
    assert_eq!(connect(&mut world, "b", "same"), duplicate("a"));
    assert_eq!(connect(&mut world, "c", "same"), duplicate("b"));
}

#[test]
fn the_name_that_was_used_in_an_earlier_run_stays_in_use() {
    let mut world = World::new(mk_rules());
    let record = Record {
        uid: "same".to_owned(),
        source: String::new(),
        first_seen: Some(Timestamp::UNIX_EPOCH),
    };
    world.recall(BTreeMap::from([(mk_name("b"), record)]));
    add(&mut world, "a", from(SourceKind::Home, 9));
    add(&mut world, "b", from(SourceKind::Secret, 1));
    assert!(connect(&mut world, "a", "same").is_empty());
    assert_eq!(connect(&mut world, "b", "same"), duplicate("a"));
}

#[test]
fn a_duplicate_is_used_once_its_rival_is_gone() {
    let mut world = mk_world(&["a"]);
    add(&mut world, "b", Origin::default());
    assert_eq!(connect(&mut world, "b", "cluster-a"), duplicate("b"));
    assert!(world.successors(&mk_name("a")).is_empty());
    remove(&mut world, "a");
    // two names would write into one cluster: one to take away, one to put back
    assert_eq!(connect(&mut world, "b", "cluster-a"), duplicate("b"));
    assert_eq!(world.successors(&mk_name("a")), [mk_name("b")]);
    world.forget(&mk_name("a"));
    assert!(connect(&mut world, "b", "cluster-a").is_empty());
}

#[test]
fn a_name_that_leads_to_another_cluster_is_not_followed() {
    let mut world = mk_world(&["a"]);
    let changed = vec![("a".to_owned(), Refusal::IdentityChanged)];
    assert_eq!(connect(&mut world, "a", "another"), changed);
    assert_eq!(member(&world, "a").uid.as_deref(), Some("cluster-a"));
    // nor after a restart
    let recorded = world.recorded().clone();
    let mut world = World::new(mk_rules());
    world.recall(recorded);
    add(&mut world, "a", Origin::default());
    assert_eq!(connect(&mut world, "a", "another"), changed);
    assert!(connect(&mut world, "a", "cluster-a").is_empty());
}

#[test]
fn another_cluster_is_followed_once_it_is_accepted_by_its_uid() {
    let mut world = mk_world(&["a"]);
    let accepting = |uid: &str| Origin {
        accepted_identity: Some(uid.to_owned()),
        ..Origin::default()
    };
    world.describe(&mk_name("a"), &Arc::new(accepting("third")));
    assert_eq!(connect(&mut world, "a", "another").len(), 1);
    world.describe(&mk_name("a"), &Arc::new(accepting("another")));
    assert!(connect(&mut world, "a", "another").is_empty());
    assert_eq!(world.recorded()[&mk_name("a")].uid, "another");
    // what was accepted once is now the one to be
    assert_eq!(connect(&mut world, "a", "cluster-a").len(), 1);
}

#[test]
fn a_member_that_is_removed_and_added_again_may_be_another_cluster() {
    let mut world = mk_world(&["a"]);
    remove(&mut world, "a");
    add(&mut world, "a", Origin::default());
    assert!(connect(&mut world, "a", "another").is_empty());
    remove(&mut world, "a");
    world.forget(&mk_name("a"));
    assert!(world.recorded().is_empty());
}

#[test]
fn a_member_of_another_clusterset_is_refused() {
    let mut world = World::new(mk_rules());
    world.clusterset = Some("prod".to_owned());
    for name in ["a", "b", "c"] {
        add(&mut world, name, Origin::default());
    }
    assert!(connect_of(&mut world, "a", "1", Some("prod")).is_empty());
    assert!(connect_of(&mut world, "b", "2", None).is_empty());
    let refused = vec![("c".to_owned(), Refusal::ClusterSetMismatch)];
    assert_eq!(connect_of(&mut world, "c", "3", Some("test")), refused);
    assert_eq!(
        member(&world, "c").contact.link,
        Link::Refused(Refusal::ClusterSetMismatch)
    );
}

#[test]
fn only_what_shows_in_entries_makes_a_new_plan() {
    let mut world = mk_world(&["a"]);
    let mut origin = Origin {
        accepted_identity: Some("x".to_owned()),
        ..Origin::default()
    };
    let changes = world.describe(&mk_name("a"), &Arc::new(origin.clone()));
    assert!(changes.dirty.is_empty());
    let label = ("region".to_owned(), "eu".to_owned());
    origin.labels = BTreeMap::from([label]);
    let changes = world.describe(&mk_name("a"), &Arc::new(origin));
    assert!(changes.dirty.all);
}
