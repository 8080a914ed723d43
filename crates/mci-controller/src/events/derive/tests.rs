use rstest::rstest;

use super::*;
use crate::fixtures::mk_name;

fn mk_verdict(reason: &str, message: &str) -> Verdict {
    Verdict {
        reason: reason.to_owned(),
        message: message.to_owned(),
        annotation: false,
        written: false,
    }
}

fn all_news(old: &Signs, new: &Signs) -> Vec<News> {
    let mut told = Vec::new();
    derive(old, new.clone(), |news| {
        told.push(news);
        true
    });
    told
}

fn reasons(old: &Signs, new: &Signs) -> Vec<&'static str> {
    let told = all_news(old, new);
    told.iter().map(|news| news.reason.name()).collect()
}

/// Each sign there is.
fn mk_signs() -> Signs {
    Signs {
        uid: String::new(),
        exported: Some(mk_verdict("PartiallyExported", "0/4")),
        complaints: ["annotation x".to_owned()].into(),
        namespace_missing: names(&["a"]),
        conflicts: names(&["b"]),
        contested: names(&["d"]),
        unreachable: names(&["c"]),
        no_health_port: true,
        crowded_out: true,
        status_full: true,
        rejected: [("Unroutable", 1)].into(),
    }
}

fn names(names: &[&str]) -> BTreeSet<ClusterName> {
    names.iter().map(|name| mk_name(name)).collect()
}

type Change = fn(&mut Signs);

#[test]
fn what_is_over_is_known_by_the_next_look() {
    let old = mk_signs();
    let over_with = |change: Change| {
        let mut new = mk_signs();
        change(&mut new);
        let over = over(&old, &new);
        let over = over
            .iter()
            .map(|(reason, subject)| (reason.name(), *subject));
        over.collect::<Vec<_>>()
    };
    let cases: [(Change, &[(&str, &str)]); 14] = [
        (|_| (), &[]),
        // while it moves, what it last said stands
        (|signs| signs.exported = None, &[]),
        // the new one is told, and overtakes the old one
        (
            |signs| signs.exported = Some(mk_verdict("Exported", "")),
            &[],
        ),
        (
            |signs| signs.exported = Some(mk_verdict("NoOtherMember", "")),
            &[("Exported", "")],
        ),
        (
            |signs| {
                signs.exported = Some(Verdict {
                    written: true,
                    ..mk_verdict("Exported", "")
                });
            },
            &[("Exported", "")],
        ),
        (
            |signs| signs.complaints.clear(),
            &[("InvalidExportAnnotation", "")],
        ),
        (
            |signs| signs.namespace_missing.clear(),
            &[("NamespaceMissing", "")],
        ),
        (|signs| signs.conflicts.clear(), &[("ImportConflict", "")]),
        (
            |signs| signs.contested.clear(),
            &[("ImportConflict", CONTESTED)],
        ),
        (
            |signs| signs.unreachable.clear(),
            &[("ClusterUnreachable", "")],
        ),
        (
            |signs| signs.no_health_port = false,
            &[("HealthPortNotFound", "")],
        ),
        (
            |signs| signs.crowded_out = false,
            &[("TooManyExporters", "")],
        ),
        (|signs| signs.status_full = false, &[("PoolStatusFull", "")]),
        (|signs| signs.rejected.clear(), &[("AddressRejected", "")]),
    ];
    for (change, expected) in cases {
        assert_eq!(over_with(change), expected);
    }
    assert!(over(&Signs::default(), &Signs::default()).is_empty());
}

#[test]
fn what_is_over_in_part_is_over_and_the_rest_of_it_is_news() {
    let more = |signs: &mut Signs| {
        signs.complaints.insert("annotation y".to_owned());
        for set in [
            &mut signs.namespace_missing,
            &mut signs.conflicts,
            &mut signs.contested,
            &mut signs.unreachable,
        ] {
            set.insert(mk_name("z"));
        }
        signs.rejected.insert("Denied", 1);
    };
    let (mut old, new) = (mk_signs(), mk_signs());
    more(&mut old);
    let over = over(&old, &new);
    let expected = [
        (Reason::InvalidExportAnnotation, ""),
        (Reason::NamespaceMissing, ""),
        (Reason::ImportConflict, ""),
        (Reason::ImportConflict, CONTESTED),
        (Reason::ClusterUnreachable, ""),
        (Reason::AddressRejected, ""),
    ];
    assert_eq!(over, expected);
    for (reason, subject) in expected {
        let mut told = old.clone();
        untell(&mut told, reason, subject);
        let news = all_news(&told, &new);
        assert_eq!(news.len(), 1, "{news:?}");
        assert_eq!((news[0].reason, news[0].subject), (reason, subject));
    }
    // what grows is not over
    assert!(super::over(&new, &old).is_empty());
}

#[rstest]
#[case("Exported", &["Exported"])]
#[case("PartiallyExported", &["PartiallyExported"])]
#[case("NotSupported", &["NotSupported"])]
#[case("NoOtherMember", &[])]
#[case("NamespaceMissing", &[])]
fn verdicts_are_told_by_reason(#[case] reason: &str, #[case] told: &[&str]) {
    let new = Signs {
        exported: Some(mk_verdict(reason, "1/2")),
        ..Signs::default()
    };
    assert_eq!(reasons(&Signs::default(), &new), told);
    assert!(reasons(&new, &new).is_empty());
    let other_count = Signs {
        exported: Some(mk_verdict(reason, "2/3")),
        ..Signs::default()
    };
    assert!(reasons(&new, &other_count).is_empty());
}

#[test]
fn a_set_of_members_is_told_when_it_grows_and_in_full() {
    let one = Signs {
        unreachable: names(&["c"]),
        ..Signs::default()
    };
    let two = Signs {
        unreachable: names(&["b", "c"]),
        ..Signs::default()
    };
    let news = all_news(&one, &two);
    assert_eq!(news.len(), 1);
    assert!(news[0].note.contains("b,c"), "{news:?}");
    assert!(reasons(&two, &one).is_empty());
}

#[test]
fn every_sign_has_its_reason() {
    let new = mk_signs();
    assert_eq!(
        reasons(&Signs::default(), &new),
        [
            "PartiallyExported",
            "InvalidExportAnnotation",
            "NamespaceMissing",
            "ImportConflict",
            "ImportConflict",
            "ClusterUnreachable",
            "HealthPortNotFound",
            "TooManyExporters",
            "PoolStatusFull",
            "AddressRejected",
        ]
    );
    assert!(reasons(&new, &new).is_empty());
    assert!(reasons(&new, &Signs::default()).is_empty());
}

#[test]
fn what_nobody_takes_stays_news_while_it_stands() {
    let new = mk_signs();
    let untold = derive(&Signs::default(), new.clone(), |_| false);
    assert_eq!(
        reasons(&untold, &new),
        reasons(&Signs::default(), &new),
        "{untold:?}"
    );
    let told = derive(&untold, new.clone(), |_| true);
    assert_eq!(told, new);
    // what was told and is over is news when it comes again
    let over = derive(&told, Signs::default(), |_| false);
    assert_eq!(over.complaints.len() + over.unreachable.len(), 0);
    // the condition says it: that was told with it
    let written = Signs {
        exported: new.exported.clone().map(|verdict| Verdict {
            written: true,
            ..verdict
        }),
        ..new
    };
    let looked_on = derive(&Signs::default(), written.clone(), |_| false);
    assert_eq!(looked_on.exported, written.exported);
    assert!(looked_on.complaints.is_empty(), "{looked_on:?}");
}

#[test]
fn imports_of_others_and_imports_that_others_undo_are_told_apart() {
    let told = all_news(&Signs::default(), &mk_signs());
    let conflicts = told
        .iter()
        .filter(|news| news.reason == Reason::ImportConflict);
    let subjects: BTreeSet<&str> = conflicts.map(|news| news.subject).collect();
    assert_eq!(subjects.len(), 2, "{told:?}");
}
