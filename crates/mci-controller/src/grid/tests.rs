use std::{collections::BTreeMap, time::Duration};

use serde_json::json;

use super::{
    cells::{Cell, Mark, Role, cells},
    html::{View, page},
    *,
};
use crate::{
    docs::read,
    explain::{Explanation, Exported, Exporter, Importer, Rule, State},
    name::ClusterName,
    overview::{Active, Counts, MemberView, Overview, UnusedView},
    write::stats::QueueStats,
};

/// What a member could have somebody else's browser do.
const HOSTILE: &str = "\"><script>alert(1)</script><img src=x onerror='alert(1)'>{{nonce}}\u{202e}";

fn mk_member(name: &str, reason: &'static str) -> MemberView {
    let active = Active::of(reason);
    MemberView {
        name: ClusterName::new(name).expect("a label"),
        link: "Live",
        active,
        source: format!("Secret isthmus-system/{name}"),
        detail: None,
        pod_cidrs: vec!["10.2.0.0/16".to_owned()],
        export_namespaces: Some("*".to_owned()),
        complaints: Vec::new(),
        hint: None,
        detail_of: None,
        up: active.status,
        uid: None,
        unusable_credentials: None,
        denied: None,
        over_limit: None,
        silent: Duration::from_secs(if active.status { 0 } else { 300 }),
        flavour: Some("Superset"),
        counts: Counts::default(),
        queue: QueueStats::default(),
    }
}

fn mk_overview(members: Vec<MemberView>) -> Overview {
    Overview {
        leader: true,
        gate_open: true,
        clusters: members,
        ..Overview::default()
    }
}

fn mk_entry(type_: &str, status: &str, reason: &str) -> serde_json::Value {
    json!({"conditions": [{"type": type_, "status": status, "reason": reason, "message": "so it is"}]})
}

fn mk_exporter(
    cluster: &str,
    entry: Option<serde_json::Value>,
    exported: Option<&str>,
) -> Exporter {
    Exporter {
        cluster: cluster.to_owned(),
        mode: Some("EndpointMode".to_owned()),
        entry,
        evidence: "Exported".to_owned(),
        exported: exported.map(|reason| Exported {
            status: if reason == "Exported" {
                "True"
            } else {
                "False"
            }
            .to_owned(),
            reason: reason.to_owned(),
            message: format!("the message of {reason}"),
        }),
    }
}

fn mk_importer(cluster: &str, state: State, reason: &str) -> Importer {
    Importer {
        cluster: cluster.to_owned(),
        state,
        reason: reason.to_owned(),
        flavour: None,
        queued: false,
        last_error: None,
    }
}

fn mk_row(key: &str, exporters: Vec<Exporter>, importers: Vec<Importer>) -> Explanation {
    Explanation {
        key: key.to_owned(),
        exporters,
        importers,
        trace: Vec::new(),
    }
}

fn draw(
    overview: &Overview,
    listing: &Listing,
    rows: &[Explanation],
    docs: Option<&str>,
) -> String {
    let docs: Option<DocsUrl> = docs.map(|url| url.parse().expect("a URL"));
    page(&View {
        overview,
        listing,
        rows,
        is_whole: true,
        filter: &Filter {
            text: HOSTILE.to_owned(),
            only_holes: true,
            page: 1,
        },
        clusters: "",
        docs: docs.as_ref(),
        nonce: "0123",
    })
}

/// The one cell of an explanation with these.
fn one(exporter: Option<Exporter>, importer: Option<Importer>) -> Cell {
    let row = mk_row(
        "ml/llm",
        exporter.into_iter().collect(),
        importer.into_iter().collect(),
    );
    let mut cells = cells(&row, ["a"].into_iter());
    cells.remove(0)
}

#[test]
fn an_importer_is_a_hole_only_where_something_is_in_the_way() {
    let table = [
        (State::Applied, "AsPlanned", Mark::Whole),
        (State::Applied, "AsLastSeen", Mark::Waiting),
        (State::Applied, "NoRemoteCluster", Mark::Absent),
        (State::Pending, "Update", Mark::Waiting),
        (State::Pending, "Conflict", Mark::Hole),
        (State::Skipped, "CRDAbsent", Mark::Hole),
        (State::Skipped, "NamespaceMissing", Mark::Absent),
    ];
    for (state, reason, mark) in table {
        let cell = one(None, Some(mk_importer("a", state, reason)));
        assert_eq!(cell.mark, mark, "{reason}: {cell:?}");
    }
    let failing = Importer {
        last_error: Some("denied".to_owned()),
        ..mk_importer("a", State::Pending, "Update")
    };
    let cell = one(None, Some(failing));
    assert_eq!(
        (cell.mark, cell.note.as_deref()),
        (Mark::Hole, Some("the last write: denied"))
    );
    assert_eq!(one(None, None), Cell::default());
}

#[test]
fn an_exporter_is_whole_when_its_entry_is_ready_and_reachable() {
    let ready = || Some(mk_entry("Ready", "True", "Ready"));
    let table = [
        (ready(), Some("Exported"), Some((Mark::Whole, None))),
        // the others' trouble is in their cells
        (
            ready(),
            Some("PartiallyExported"),
            Some((Mark::Whole, None)),
        ),
        (ready(), None, Some((Mark::Waiting, Some("Exported")))),
        (
            None,
            Some("NotSupported"),
            Some((Mark::Hole, Some("NotSupported"))),
        ),
        (
            Some(mk_entry("Ready", "False", "NoReadyEndpoint")),
            Some("Exported"),
            Some((Mark::Hole, Some("NoReadyEndpoint"))),
        ),
        (
            Some(mk_entry("Reachable", "False", "ConnectionLost")),
            Some("Exported"),
            Some((Mark::Hole, Some("ConnectionLost"))),
        ),
        (None, None, None),
    ];
    for (entry, exported, expected) in table {
        let cell = one(Some(mk_exporter("a", entry, exported)), None);
        let got = (cell.role == Role::Exports).then_some((cell.mark, cell.reason.as_deref()));
        assert_eq!(got, expected, "{exported:?}");
    }
}

#[test]
fn of_a_cluster_that_exports_and_imports_the_worse_is_shown() {
    let exporter = || {
        Some(mk_exporter(
            "a",
            Some(mk_entry("Ready", "True", "")),
            Some("Exported"),
        ))
    };
    let whole = one(
        exporter(),
        Some(mk_importer("a", State::Applied, "AsPlanned")),
    );
    assert_eq!((whole.role, whole.mark), (Role::Exports, Mark::Whole));
    let hole = one(
        exporter(),
        Some(mk_importer("a", State::Skipped, "Conflict")),
    );
    assert_eq!((hole.role, hole.mark), (Role::Exports, Mark::Hole));
    assert_eq!(hole.reason.as_deref(), Some("Conflict"));
}

#[test]
fn what_members_say_is_text_and_nothing_else() {
    let mut overview = mk_overview(vec![MemberView {
        source: HOSTILE.to_owned(),
        hint: Some(HOSTILE.to_owned()),
        denied: Some(HOSTILE.to_owned()),
        over_limit: Some(HOSTILE.to_owned()),
        unusable_credentials: Some(HOSTILE.to_owned()),
        ..mk_member("a", "AuthFailed")
    }]);
    overview.unused = vec![UnusedView {
        source: HOSTILE.to_owned(),
        name: HOSTILE.to_owned(),
        active: Active::of("BadCredentials"),
        detail: HOSTILE.to_owned(),
    }];
    let mut exporter = mk_exporter(
        "a",
        Some(mk_entry("Ready", "False", HOSTILE)),
        Some(HOSTILE),
    );
    exporter.cluster = "a".to_owned();
    let failing = Importer {
        last_error: Some(HOSTILE.to_owned()),
        ..mk_importer("b", State::Skipped, HOSTILE)
    };
    let rows = [mk_row(
        &format!("ml/{HOSTILE}"),
        vec![exporter],
        vec![failing],
    )];
    for members in [1, 12] {
        let names = (0..members).map(|n| mk_member(&format!("b{n}"), "Active"));
        overview.clusters.extend(names);
        let listing = Listing {
            pages: 2,
            page: 1,
            ..Listing::default()
        };
        let text = draw(&overview, &listing, &rows, None);
        assert_eq!(text.matches("<script").count(), 1, "our own");
        assert!(!text.contains("<img"), "{text}");
        assert_eq!(
            text.matches("0123").count(),
            2,
            "of the style and the script"
        );
        assert!(!text.contains('\u{202e}'));
        let shown = "&#34;&#62;&#60;script&#62;alert(1)";
        assert!(text.matches(shown).count() > 8, "it is shown:\n{text}");
    }
}

#[test]
fn each_hole_has_its_reason_and_the_reason_its_explanation() {
    let overview = mk_overview(vec![
        mk_member("east", "Active"),
        mk_member("south", "ConnectionLost"),
        mk_member("west", "Active"),
    ]);
    let rows = [mk_row(
        "ml/llm",
        vec![mk_exporter(
            "east",
            Some(mk_entry("Ready", "True", "")),
            Some("PartiallyExported"),
        )],
        vec![
            mk_importer("south", State::Applied, "AsLastSeen"),
            mk_importer("west", State::Skipped, "CRDAbsent"),
        ],
    )];
    let listing = Listing {
        total: 1,
        with_holes: 1,
        matching: 1,
        page: 1,
        pages: 1,
        ..Listing::default()
    };
    let text = draw(
        &overview,
        &listing,
        &rows,
        Some("https://docs.example.com/isthmus/"),
    );
    for part in [
        "<td data-cluster=\"west\"><i class=h aria-hidden=true></i> <br><a href=\"#reason-CRDAbsent\">CRDAbsent</a>",
        "<dt id=\"reason-CRDAbsent\">",
        "href=\"https://docs.example.com/isthmus/runbook.html#mcimemberwithoutcrd\"",
        "east: the message of PartiallyExported",
        "href=\"debug/explain/ml/llm\"",
        // the member's own
        "its API server does not answer",
        "5 min",
        "<dd>2 of 3</dd>",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    let open = text.matches("<details id=well open>").count();
    assert_eq!(open, 1, "few members are all shown");
}

#[test]
fn many_clusters_are_squares_with_their_holes_in_words() {
    let names: Vec<String> = (0..100).map(|n| format!("c{n:03}")).collect();
    let overview = mk_overview(names.iter().map(|name| mk_member(name, "Active")).collect());
    let importers = names.iter().skip(1).enumerate().map(|(at, name)| match at {
        0..12 => mk_importer(name, State::Skipped, "CRDAbsent"),
        _ => mk_importer(name, State::Applied, "AsPlanned"),
    });
    let exporter = mk_exporter(
        "c000",
        Some(mk_entry("Ready", "True", "")),
        Some("Exported"),
    );
    let rows = [mk_row("ml/llm", vec![exporter], importers.collect())];
    let listing = Listing::default();
    let text = draw(&overview, &listing, &rows, None);
    assert_eq!(text.matches("<i class=i title=").count(), 87);
    assert!(text.contains("exported by c000, imported in 87"), "{text}");
    let words = "CRDAbsent</a>: c001, c002, c003, c004, c005, c006, c007, c008 +4 more";
    assert!(text.contains(words), "{text}");
}

#[test]
fn the_largest_page_is_bounded() {
    let names: Vec<String> = (0..1000)
        .map(|n| format!("{}-{n:03}", "c".repeat(59)))
        .collect();
    let member = |name: &String| MemberView {
        denied: Some("x".repeat(1 << 20)),
        ..mk_member(name, "Active")
    };
    let overview = mk_overview(names.iter().map(member).collect());
    let importers: Vec<Importer> = names
        .iter()
        .map(|name| mk_importer(name, State::Skipped, &"r".repeat(1 << 10)))
        .collect();
    let key = format!("{}/{}", "n".repeat(63), "p".repeat(253));
    let rows = vec![mk_row(&key, Vec::new(), importers); PAGE_SIZE];
    let text = draw(&overview, &Listing::default(), &rows, None);
    assert!(
        text.contains("200 of 1000 clusters are shown, 1000 match"),
        "{}",
        text.len()
    );
    let mebi = text.len() >> 20;
    assert!(mebi <= 2, "{mebi} MiB");
}

#[test]
fn what_is_not_there_yet_is_explained() {
    let closed = Overview::default();
    let text = draw(&closed, &Listing::default(), &[], None);
    for part in [
        "There is no member yet",
        "No pool is exported yet",
        "Nothing is planned or written yet",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    let mut row = mk_row("ml/llm", Vec::new(), Vec::new());
    row.trace.push(Rule {
        rule: "dry-run".to_owned(),
        outcome: "On".to_owned(),
        detail: String::new(),
    });
    let text = draw(&closed, &Listing::default(), &[row], None);
    assert!(text.contains("Dry run"), "{text}");
}

#[test]
fn every_reason_leads_to_a_heading_of_the_documentation() {
    let mut pages: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for reason in reasons::all() {
        assert!(!reason.meaning.is_empty(), "{reason:?}");
        let headings = pages.entry(reason.page).or_insert_with(|| {
            let text = read(&format!("docs/{}.md", reason.page));
            let headings = text.lines().filter(|line| line.starts_with('#'));
            let anchor = |line: &str| {
                line.trim_start_matches('#')
                    .trim()
                    .to_lowercase()
                    .replace(' ', "-")
            };
            headings.map(anchor).collect()
        });
        assert!(
            headings.iter().any(|one| one == reason.anchor),
            "{reason:?}: {headings:?}"
        );
    }
}

#[test]
fn every_reason_of_the_program_is_known_to_the_page() {
    use crate::{explain::ImporterReason, overview::STATES, plan::Hold};
    let whole = ["AsPlanned", "NoRemoteCluster", "Active"];
    let holds = [
        Hold::Unreachable,
        Hold::AuthFailed,
        Hold::IdentityChanged,
        Hold::CrdAbsent,
        Hold::NamespaceMissing,
    ];
    let importers = ImporterReason::ALL.into_iter().map(ImporterReason::reason);
    let all = importers.chain(STATES).chain(holds.map(Hold::reason));
    for reason in all.filter(|reason| !whole.contains(reason)) {
        assert!(reasons::known(reason).is_some(), "{reason}");
    }
}

#[test]
fn a_docs_url_is_a_place_and_no_script() {
    for bad in [
        "javascript:alert(1)",
        "docs",
        "https://a b",
        "https://a/\"x",
        "https://a/?x",
        "https://a/#x",
    ] {
        assert!(bad.parse::<DocsUrl>().is_err(), "{bad}");
    }
}
