use super::*;
use crate::listing::Access;
use mci_model::index::origin::Origin;

/// An object of this age that names this member.
fn mk(kind: SourceKind, object: &str, member: &str, age: i64) -> (String, Arc<Listing>) {
    mk_again(kind, object, member, age, "first")
}

fn mk_again(
    kind: SourceKind,
    object: &str,
    member: &str,
    age: i64,
    uid: &str,
) -> (String, Arc<Listing>) {
    let created = jiff::Timestamp::from_second(1_000_000 - age).expect("a time");
    let listing = Listing {
        member: member.to_owned(),
        origin: Arc::new(Origin {
            source: Source {
                kind,
                created: Some(created),
                namespace: "ns".to_owned(),
                name: object.to_owned(),
                uid: uid.to_owned(),
            },
            ..Origin::default()
        }),
        access: Access::Pending,
    };
    (object.to_owned(), Arc::new(listing))
}

fn secrets(of: &[(&str, &str, i64)]) -> Listings {
    of.iter()
        .map(|(object, member, age)| mk(SourceKind::Secret, object, member, *age))
        .collect()
}

fn files(of: &[&str]) -> Listings {
    of.iter()
        .map(|name| mk(SourceKind::File, &format!("{name}.yaml"), name, 0))
        .collect()
}

fn summaries(events: &[InventoryEvent]) -> Vec<String> {
    events
        .iter()
        .map(|event| match event {
            InventoryEvent::Recorded(_) => "recorded".to_owned(),
            InventoryEvent::Upsert(name, listing) => {
                format!("+{name}={}", listing.origin.source.name)
            }
            InventoryEvent::Gone(name) => format!("-{name}"),
            InventoryEvent::Unused(unused) => {
                let all: Vec<String> = unused
                    .iter()
                    .map(|one| format!("{}:{}", one.origin.source.name, one.refusal.reason()))
                    .collect();
                format!("unused {}", all.join(","))
            }
            InventoryEvent::Listed => "listed".to_owned(),
        })
        .collect()
}

#[test]
fn of_two_objects_for_one_name_the_older_is_used_and_the_other_is_reported() {
    let mut roster = Roster::new([SourceKind::Secret]);
    let events = roster.reset(
        SourceKind::Secret,
        secrets(&[("a", "east", 1), ("b", "east", 9)]),
    );
    assert_eq!(
        summaries(&events),
        ["+east=b", "unused a:DuplicateCluster", "listed"]
    );
}

#[test]
fn the_one_that_is_used_stays_whatever_comes_later() {
    let mut roster = Roster::new([SourceKind::File, SourceKind::Secret]);
    assert_eq!(
        summaries(&roster.reset(SourceKind::File, Listings::new())),
        [""; 0]
    );
    let events = roster.reset(SourceKind::Secret, secrets(&[("a", "east", 1)]));
    assert_eq!(summaries(&events), ["+east=a", "listed"]);
    // older, and of a source that comes first
    let events = roster.reset(SourceKind::File, files(&["east"]));
    assert_eq!(summaries(&events), ["unused east.yaml:DuplicateCluster"]);
    let events = roster.reset(
        SourceKind::Secret,
        secrets(&[("a", "east", 1), ("b", "east", 9)]),
    );
    assert_eq!(
        summaries(&events),
        ["unused east.yaml:DuplicateCluster,b:DuplicateCluster"]
    );
}

#[test]
fn at_start_the_sources_win_in_table_order_whichever_answers_first() {
    let mut roster = Roster::new([SourceKind::File, SourceKind::Secret]);
    let events = roster.reset(
        SourceKind::Secret,
        secrets(&[("a", "east", 1), ("b", "west", 1)]),
    );
    assert_eq!(summaries(&events), [""; 0], "the files come first");
    let events = roster.reset(SourceKind::File, files(&["east"]));
    assert_eq!(
        summaries(&events),
        [
            "+east=east.yaml",
            "+west=b",
            "unused a:DuplicateCluster",
            "listed"
        ]
    );
}

#[test]
fn a_name_passes_to_the_next_object_without_a_removal() {
    let mut roster = Roster::new([SourceKind::Secret]);
    roster.reset(
        SourceKind::Secret,
        secrets(&[("a", "east", 9), ("b", "east", 1)]),
    );
    let events = roster.reset(SourceKind::Secret, secrets(&[("b", "east", 1)]));
    assert_eq!(summaries(&events), ["+east=b", "unused "]);
    let events = roster.reset(SourceKind::Secret, Listings::new());
    assert_eq!(summaries(&events), ["-east"]);
}

#[test]
fn an_object_that_did_not_change_is_not_reported_again() {
    let mut roster = Roster::new([SourceKind::Secret]);
    roster.reset(SourceKind::Secret, secrets(&[("a", "east", 1)]));
    let events = roster.reset(SourceKind::Secret, secrets(&[("a", "east", 1)]));
    assert_eq!(summaries(&events), [""; 0]);
    let again = mk_again(SourceKind::Secret, "a", "east", 1, "second");
    let events = roster.reset(SourceKind::Secret, Listings::from([again]));
    assert_eq!(
        summaries(&events),
        ["+east=a"],
        "made again, it is reported"
    );
}

#[test]
fn a_name_that_could_leave_its_url_is_no_member() {
    let mut roster = Roster::new([SourceKind::Secret]);
    let events = roster.reset(SourceKind::Secret, secrets(&[("a", "../x", 1)]));
    assert_eq!(summaries(&events), ["unused a:BadCredentials", "listed"]);
}

#[test]
fn an_object_that_takes_another_name_frees_the_first() {
    let mut roster = Roster::new([SourceKind::Secret]);
    roster.reset(SourceKind::Secret, secrets(&[("a", "east", 1)]));
    let events = roster.reset(SourceKind::Secret, secrets(&[("a", "west", 1)]));
    assert_eq!(summaries(&events), ["-east", "+west=a"]);
}
