use std::time::Duration;

use super::*;
use crate::{
    fixtures::mk_name,
    overview::{Active, Counts},
    write::stats::QueueStats,
};

fn mk_overview(gate_open: bool, members: &[(&str, &'static str)]) -> Overview {
    let clusters = members.iter().map(|(name, reason)| MemberView {
        name: mk_name(name),
        link: "Live",
        active: Active {
            status: *reason == "Active",
            reason,
            message: "text",
        },
        source: String::new(),
        detail: None,
        hint: None,
        detail_of: None,
        up: true,
        unusable_credentials: None,
        denied: None,
        uid: None,
        silent: Duration::ZERO,
        flavour: None,
        counts: Counts::default(),
        queue: QueueStats::default(),
    });
    Overview {
        gate_open,
        clusters: clusters.collect(),
        ..Overview::default()
    }
}

fn look(teller: &mut MemberTeller, overview: &Overview) -> Vec<String> {
    let notices = notices(teller, overview, true);
    let told = notices.iter();
    told.map(|notice| format!("{} {}", notice.regarding.name, notice.reason.name()))
        .collect()
}

fn notices(teller: &mut MemberTeller, overview: &Overview, speaking: bool) -> Vec<Notice> {
    notices_with(teller, overview, speaking, usize::MAX)
}

/// Where no more than `room` are taken.
fn notices_with(
    teller: &mut MemberTeller,
    overview: &Overview,
    speaking: bool,
    room: usize,
) -> Vec<Notice> {
    let regarding = |name: Option<&ClusterName>| {
        Some(Regarding {
            api_version: "v1",
            kind: "Secret",
            namespace: "isthmus-system".to_owned(),
            name: name.map_or("lease", ClusterName::as_str).to_owned(),
            uid: "u".to_owned(),
        })
    };
    let mut told = Vec::new();
    let at = Timestamp::UNIX_EPOCH;
    let tell = |notice| {
        let taken = told.len() < room;
        if taken {
            told.push(notice);
        }
        taken
    };
    teller.look(overview, speaking, at, regarding, tell, |_, _| ());
    told
}

/// Subject and topic of what is over.
fn over(teller: &mut MemberTeller, overview: &Overview, speaking: bool) -> Vec<String> {
    let mut over = Vec::new();
    let regarding = |_: Option<&ClusterName>| Some(Regarding::lease("isthmus-system", "prod"));
    teller.look(
        overview,
        speaking,
        Timestamp::UNIX_EPOCH,
        regarding,
        |_| true,
        |subject, topic| over.push(format!("{subject}: {}", topic.name())),
    );
    over
}

#[test]
fn what_is_over_is_not_to_be_told() {
    let mut teller = MemberTeller::default();
    let mut bad = mk_overview(true, &[("a", "AuthFailed"), ("b", "Active")]);
    bad.clusters[1].unusable_credentials = Some("too old".to_owned());
    bad.guard = true;
    assert!(over(&mut teller, &bad, true).is_empty());
    // while it leads, the new word overtakes the old one
    let mut good = mk_overview(true, &[("a", "Active"), ("b", "Active")]);
    let ended = ["IsolationGuard", "Active"].map(|topic| match topic {
        "Active" => "b credentials: Active".to_owned(),
        topic => format!(": {topic}"),
    });
    assert_eq!(over(&mut teller, &good, true), ended);
    assert!(over(&mut teller, &good, true).is_empty());
    // while it does not, nothing does
    let failed = mk_overview(true, &[("a", "AuthFailed"), ("b", "Active")]);
    assert!(over(&mut teller, &failed, true).is_empty());
    assert_eq!(over(&mut teller, &good, false), ["a: Active"]);
    assert!(over(&mut teller, &good, false).is_empty());
    // it is no member any more
    good.clusters.pop();
    assert_eq!(over(&mut teller, &good, true), ["b: Active"]);
}

#[test]
fn a_start_that_works_is_no_news_and_trouble_is() {
    let mut teller = MemberTeller::default();
    let start = mk_overview(false, &[("a", "Connecting"), ("b", "Connecting")]);
    assert!(look(&mut teller, &start).is_empty());
    let settled = mk_overview(true, &[("a", "Active"), ("b", "AuthFailed")]);
    assert_eq!(look(&mut teller, &settled), ["b AuthFailed"]);
    assert!(look(&mut teller, &settled).is_empty());
    let trying = mk_overview(true, &[("a", "Active"), ("b", "Connecting")]);
    assert!(look(&mut teller, &trying).is_empty());
    assert!(look(&mut teller, &settled).is_empty());
    let mended = mk_overview(true, &[("a", "ConnectionLost"), ("b", "Active")]);
    assert_eq!(look(&mut teller, &mended), ["a ConnectionLost", "b Active"]);
}

#[test]
fn a_member_added_later_is_told_of_when_it_works() {
    let mut teller = MemberTeller::default();
    let joined = mk_overview(true, &[("a", "Connecting")]);
    assert!(look(&mut teller, &joined).is_empty());
    let works = mk_overview(true, &[("a", "Active")]);
    assert_eq!(look(&mut teller, &works), ["a Active"]);
}

#[test]
fn the_guard_is_told_when_it_closes() {
    let mut teller = MemberTeller::default();
    let guarded = Overview {
        guard: true,
        ..mk_overview(true, &[])
    };
    assert_eq!(look(&mut teller, &guarded), ["lease IsolationGuard"]);
    assert!(look(&mut teller, &guarded).is_empty());
    assert!(look(&mut teller, &mk_overview(true, &[])).is_empty());
    assert_eq!(look(&mut teller, &guarded), ["lease IsolationGuard"]);
}

#[test]
fn new_credentials_that_do_not_work_are_told_once() {
    let mut teller = MemberTeller::default();
    let mut overview = mk_overview(true, &[("a", "Active")]);
    look(&mut teller, &overview);
    overview.clusters[0].unusable_credentials = Some("403".to_owned());
    assert_eq!(look(&mut teller, &overview), ["a BadCredentials"]);
    assert!(look(&mut teller, &overview).is_empty());
    overview.clusters[0].unusable_credentials = None;
    assert!(look(&mut teller, &overview).is_empty());
}

#[test]
fn what_exactly_is_wrong_is_told() {
    let mut teller = MemberTeller::default();
    let mut overview = mk_overview(true, &[("a", "BadCredentials")]);
    overview.clusters[0].detail = Some("the plugin failed".to_owned());
    overview.clusters[0].detail_of = Some("BadCredentials");
    let told = notices(&mut teller, &overview, true);
    assert_eq!(told[0].note, "member a: the plugin failed");
    let mut hidden = mk_overview(true, &[("b", "AuthFailed")]);
    hidden.clusters[0].denied = Some("get, list and watch services".to_owned());
    let told = notices(&mut teller, &hidden, true);
    assert_eq!(told[0].note, "member b: grant get, list and watch services");
}

#[test]
fn what_was_wrong_before_explains_no_other_trouble() {
    for (reason, up) in [
        ("ConnectionLost", false),
        ("IdentityChanged", false),
        ("AuthFailed", false),
        ("CRDAbsent", true),
        ("Active", true),
    ] {
        let mut teller = MemberTeller::default();
        notices(
            &mut teller,
            &mk_overview(true, &[("a", "Connecting")]),
            true,
        );
        let mut overview = mk_overview(true, &[("a", reason)]);
        let row = &mut overview.clusters[0];
        row.up = up;
        row.denied = Some("get, list and watch services".to_owned());
        row.detail = Some("no kubeconfig (line 3)".to_owned());
        row.detail_of = Some("BadCredentials");
        let told = notices(&mut teller, &overview, true);
        let notes: Vec<&str> = told.iter().map(|notice| &*notice.note).collect();
        assert_eq!(notes, ["member a: text"], "{reason}");
    }
}

#[test]
fn a_member_that_is_removed_is_told_of_no_more_and_is_new_when_it_is_added_again() {
    let mut teller = MemberTeller::default();
    let lost = mk_overview(true, &[("a", "ConnectionLost")]);
    assert_eq!(look(&mut teller, &lost), ["a ConnectionLost"]);
    for reason in ["Active", "AuthFailed"] {
        let mut removed = mk_overview(true, &[("a", reason)]);
        removed.clusters[0].link = Link::Removing.name();
        assert!(look(&mut teller, &removed).is_empty(), "{reason}");
    }
    let added = mk_overview(true, &[("a", "Active")]);
    assert_eq!(look(&mut teller, &added), ["a Active"]);
}

#[test]
fn what_does_not_fit_is_told_at_the_next_look_and_the_guard_goes_first() {
    let mut teller = MemberTeller::default();
    let works = [("a", "Active"), ("b", "Active"), ("c", "Active")];
    look(&mut teller, &mk_overview(true, &works));
    let lost = [("a", "AuthFailed"), ("b", "AuthFailed"), ("c", "Active")];
    let mut overview = mk_overview(true, &lost);
    overview.clusters[2].unusable_credentials = Some("403".to_owned());
    overview.guard = true;
    let mut told = Vec::new();
    for _ in 0..6 {
        let taken = notices_with(&mut teller, &overview, true, 1);
        told.push(taken.iter().map(|one| one.regarding.name.clone()).collect());
    }
    let expected: [&[&str]; 6] = [&["lease"], &["a"], &["b"], &["c"], &[], &[]];
    let told: Vec<Vec<String>> = told;
    assert_eq!(told, expected);
    // what did not fit and is over is no news
    let lost = mk_overview(true, &[("a", "ConnectionLost"), ("b", "ConnectionLost")]);
    assert_eq!(notices_with(&mut teller, &lost, true, 1).len(), 1);
    let mended = mk_overview(true, &[("a", "ConnectionLost"), ("b", "AuthFailed")]);
    assert!(look(&mut teller, &mended).is_empty());
}

#[test]
fn trouble_that_came_while_another_led_is_told_when_we_do() {
    let mut teller = MemberTeller::default();
    let mut overview = mk_overview(true, &[("a", "IdentityChanged"), ("b", "Active")]);
    overview.clusters[1].unusable_credentials = Some("403".to_owned());
    overview.guard = true;
    notices(&mut teller, &overview, false);
    notices(&mut teller, &overview, false);
    assert_eq!(
        look(&mut teller, &overview),
        [
            "lease IsolationGuard",
            "a IdentityChanged",
            "b BadCredentials"
        ]
    );
    assert!(look(&mut teller, &overview).is_empty());
    // what another leader told of and is over is no news
    let mended = mk_overview(true, &[("a", "Active"), ("b", "Active")]);
    let mut other = MemberTeller::default();
    notices(
        &mut other,
        &mk_overview(false, &[("a", "Connecting"), ("b", "Connecting")]),
        false,
    );
    notices(&mut other, &overview, false);
    assert!(look(&mut other, &mended).is_empty());
}
