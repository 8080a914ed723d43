//! Clusters that cannot be read, conditions of gateways, and advice that can be followed.

use crd::annotations::{EXPORT_NAMESPACES, POD_CIDRS};

use super::*;
use crate::{check::facts::Held, known::Granted, status::Unlisted};

fn unlisted(is_served: bool) -> Unlisted {
    Unlisted {
        is_served,
        problem: "east: its inferencepools could not be listed".to_owned(),
    }
}

#[test]
fn a_list_that_failed_is_not_seen() {
    each_is_one_line(&[
        (
            |f| f.seen[0].facts.as_mut().expect("seen").pools = Err(unlisted(false)),
            Level::Unknown,
            "could not be listed",
        ),
        (
            |f| f.seen[1].facts.as_mut().expect("seen").imports = Err(unlisted(true)),
            Level::Unknown,
            "could not be listed",
        ),
        (
            // the CRDs could be read, and the pools could not
            |f| f.seen[0].facts = Err("east: cannot list: forbidden".to_owned()),
            Level::Unknown,
            "east: cannot list: forbidden",
        ),
    ]);
}

#[test]
fn a_gateway_that_cannot_use_an_import_is_wrong() {
    let mut facts = mk_facts();
    let mut import = mk_import();
    import[0]["status"]["controllers"] = json!([{"name": "isthmus.dev/gateway", "parents": [{
        "parentRef": {"name": "inference"},
        "conditions": [{"type": "Programmed", "status": "False", "reason": "NoUsableCluster",
            "message": "east HostnameUnknown", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
    }]}]);
    facts.seen[1] = mk_seen("west", json!([]), import);
    let groups = judge(&facts).groups.into_iter();
    let lines = groups.flat_map(|group| group.lines);
    let bad: Vec<Line> = lines.filter(|line| line.level != Level::Good).collect();
    assert_eq!(bad.len(), 1, "{bad:?}");
    assert_eq!(bad[0].level, Level::Bad);
    let text = "llm/llama in west, by Gateway llm/inference: NoUsableCluster";
    assert_eq!(bad[0].text, text);
    assert_eq!(bad[0].next.as_deref(), Some("east HostnameUnknown"));
}

/// All the advice, as text.
fn advice(facts: &Facts) -> String {
    let groups = judge(facts).groups.into_iter();
    let lines = groups.flat_map(|group| group.lines);
    let next: Vec<String> = lines.filter_map(|line| line.next).collect();
    next.join("\n")
}

#[test]
fn where_another_controller_writes_no_second_home_is_advised() {
    let mut facts = mk_facts();
    facts.home.controller = Ok(None);
    facts.home.renewed = Ok(None);
    facts.home.view = None;
    facts.home.members = Vec::new();
    let found = wrong(&facts);
    assert!(found[0].1.ends_with("is home elsewhere?"), "{found:?}");
    let text = advice(&facts);
    assert!(text.contains("--home-context CONTEXT"), "{text}");
    assert!(!text.contains("kubectl mci join"), "{text}");
    // no controller has written anything: this cluster is about to become home
    facts.seen.clear();
    let text = advice(&facts);
    let join = "kubectl mci join CLUSTER --context CONTEXT --home-context west";
    assert!(text.contains(join), "{text}");
}

#[test]
fn advice_for_a_name_that_join_refuses_says_first_how_it_is_given_up() {
    let mut facts = mk_facts();
    facts.home.members[0].held = Some(Held {
        renewal: "put another kubeconfig into key east.yaml".to_owned(),
        removal: "kubectl patch secret".to_owned(),
        granted: Granted::of(Some("10.2.0.0/16"), Some("llm")),
    });
    facts.token(0).tried = Tried::Refused("Unauthorized".to_owned());
    let text = advice(&facts);
    let expected = "put another kubeconfig into key east.yaml, or make it a member by join: kubectl patch secret; then kubectl mci join east";
    assert!(text.contains(expected), "{text}");
    // the new Secret is to record what the old object does
    let rights = "--home-context west --pod-cidr 10.2.0.0/16 --namespaces llm";
    assert!(text.contains(rights), "{text}");
    // missing rights need no new membership
    facts.token(0).tried = Tried::Works(None);
    facts.inside(0).denied = Some(Ok(mk_denied("isthmus-mci-controller", 1)));
    let text = advice(&facts);
    assert!(text.contains("kubectl --context east apply"), "{text}");
    assert!(!text.contains("kubectl mci join"), "{text}");
}

/// A change of what the controller says of a member, and how the last advice ends.
type Advised = (fn(&mut MemberView), &'static str);

#[test]
fn a_join_that_is_to_change_what_its_secret_says_has_the_flag_for_it() {
    // join keeps what the Secret has, unless a flag says otherwise
    let cases: [Advised; 4] = [
        (
            |member| member.pod_cidrs = Some(vec!["10.244.0.0/16".to_owned()]),
            " --home-context west --pod-cidr CIDR",
        ),
        (
            |member| {
                member.pod_cidrs = Some(Vec::new());
                member.complaints = vec![format!("{POD_CIDRS} is not used")];
            },
            " --home-context west --pod-cidr CIDR",
        ),
        (
            |member| {
                member.export_namespaces = None;
                member.complaints = vec![format!("{EXPORT_NAMESPACES} is not used")];
            },
            " --home-context west --namespaces NAMES",
        ),
        (
            |member| member.pod_cidrs = Some(Vec::new()),
            " --home-context west",
        ),
    ];
    for (change, end) in cases {
        let mut facts = mk_facts();
        change(&mut facts.view().clusters[0]);
        let text = advice(&facts);
        assert!(text.ends_with(end), "{end}: {text}");
    }
    // an object that join does not write has no use for a flag
    let mut facts = mk_facts();
    facts.view().clusters[0].pod_cidrs = Some(vec!["10.244.0.0/16".to_owned()]);
    facts.view().clusters[0].source = "file east.yaml".to_owned();
    let text = advice(&facts);
    assert!(text.ends_with("beside its kubeconfig"), "{text}");
}

#[test]
fn a_certificate_is_reported_with_what_mends_it() {
    for (why, mended) in [
        (
            CertificateProblem::Untrusted,
            "a new one: kubectl mci join east",
        ),
        (CertificateProblem::Expired, "renew the serving certificate"),
        (CertificateProblem::NameMismatch, "tls-server-name"),
    ] {
        let mut facts = mk_facts();
        facts.token(0).tried = mk_rejected(why);
        let text = advice(&facts);
        assert!(text.contains(mended), "{text}");
    }
}
