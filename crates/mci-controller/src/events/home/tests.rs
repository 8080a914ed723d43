use std::time::Duration;

use super::*;
use crate::{
    fixtures::mk_name,
    index::{
        member::Refusal,
        origin::{Origin, SourceKind},
    },
    overview::{Active, Counts, MemberView},
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
        pod_cidrs: Vec::new(),
        export_namespaces: None,
        complaints: Vec::new(),
        hint: None,
        detail_of: None,
        up: true,
        unusable_credentials: None,
        denied: None,
        over_limit: None,
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

fn mk_source(name: &str) -> Source {
    Source {
        kind: SourceKind::Secret,
        namespace: "isthmus-system".to_owned(),
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        ..Source::default()
    }
}

/// A recorder, and the Secrets of members `a` to `c`; others are on the Lease.
struct Bench {
    recorder: HomeRecorder,
    sources: BTreeMap<ClusterName, Source>,
    unused: Vec<Unused>,
    seconds: u64,
}

impl Bench {
    fn new() -> Self {
        let lease = crate::events::lease("isthmus-system", "prod");
        let sources = ["a", "b", "c"].map(|name| (mk_name(name), mk_source(name)));
        Self {
            recorder: HomeRecorder::new(Arc::default(), lease),
            sources: sources.into(),
            unused: Vec::new(),
            seconds: 0,
        }
    }

    /// One that has begun, and knows of no member.
    fn started() -> Self {
        let mut bench = Self::new();
        bench.observe(&mk_overview(true, &[]));
        bench
    }

    /// A second later; object and reason of what is sent.
    fn observe(&mut self, overview: &Overview) -> Vec<String> {
        let sent = self.reports(overview, true).into_iter();
        sent.map(|[object, reason, _]| format!("{object} {reason}"))
            .collect()
    }

    fn observe_without_leading(&mut self, overview: &Overview) {
        assert!(self.reports(overview, false).is_empty());
    }

    /// Object, reason and note.
    fn reports(&mut self, overview: &Overview, leading: bool) -> Vec<[String; 3]> {
        self.seconds += 1;
        let now = Moment::from_millis(self.seconds * 1000);
        let source_of = |name: &ClusterName| self.sources.get(name);
        let time = (now, Timestamp::UNIX_EPOCH);
        self.recorder
            .observe(overview, &self.unused, source_of, leading, time);
        self.recorder.queue.drain_all()
    }
}

#[test]
fn a_start_reports_only_members_that_do_not_work() {
    let mut bench = Bench::new();
    let start = mk_overview(false, &[("a", "Connecting"), ("b", "Connecting")]);
    assert!(bench.observe(&start).is_empty());
    let settled = mk_overview(true, &[("a", "Active"), ("b", "AuthFailed")]);
    assert_eq!(bench.observe(&settled), ["b AuthFailed"]);
    // on the way back to contact, after the five minutes
    bench.seconds += 400;
    let trying = mk_overview(true, &[("a", "Active"), ("b", "Connecting")]);
    assert!(bench.observe(&trying).is_empty());
    assert!(bench.observe(&settled).is_empty());
    let mended = mk_overview(true, &[("a", "ConnectionLost"), ("b", "Active")]);
    assert_eq!(bench.observe(&mended), ["a ConnectionLost", "b Active"]);
}

#[test]
fn a_member_added_later_is_reported_when_it_works() {
    let mut bench = Bench::started();
    let joined = mk_overview(true, &[("a", "Connecting")]);
    assert!(bench.observe(&joined).is_empty());
    let works = mk_overview(true, &[("a", "Active")]);
    assert_eq!(bench.observe(&works), ["a Active"]);
}

#[test]
fn the_guard_and_members_of_files_are_on_our_lease() {
    let mut bench = Bench::started();
    let mut overview = mk_overview(true, &[("x", "AuthFailed"), ("y", "AuthFailed")]);
    overview.guard = true;
    let lease = "isthmus-mci-prod";
    let expected =
        ["IsolationGuard", "AuthFailed", "AuthFailed"].map(|reason| format!("{lease} {reason}"));
    assert_eq!(bench.observe(&overview), expected);
    assert!(bench.observe(&overview).is_empty());
    overview.guard = false;
    assert!(bench.observe(&overview).is_empty());
    overview.guard = true;
    bench.seconds += 300;
    assert_eq!(bench.observe(&overview), expected[..1]);
}

#[test]
fn new_credentials_that_do_not_work_are_reported_for_each_cause() {
    let mut bench = Bench::started();
    let mut overview = mk_overview(true, &[("a", "Active")]);
    bench.observe(&overview);
    for why in ["403", "no kubeconfig"] {
        bench.seconds += 300;
        overview.clusters[0].unusable_credentials = Some(why.to_owned());
        let sent = bench.reports(&overview, true);
        let note = format!("member a: the new credentials are not used, the old ones stay: {why}");
        assert_eq!(sent, [["a".to_owned(), "BadCredentials".to_owned(), note]]);
        assert!(bench.observe(&overview).is_empty());
    }
}

#[test]
fn the_note_contains_the_detail() {
    let mut bench = Bench::started();
    let mut overview = mk_overview(true, &[("a", "BadCredentials"), ("b", "AuthFailed")]);
    overview.clusters[0].detail = Some("the plugin failed".to_owned());
    overview.clusters[0].detail_of = Some("BadCredentials");
    overview.clusters[1].denied = Some("get, list and watch services".to_owned());
    let sent = bench.reports(&overview, true);
    let notes = sent.iter().map(|[_, _, note]| note.as_str());
    let expected = [
        "member a: the plugin failed",
        "member b: grant get, list and watch services",
    ];
    assert_eq!(notes.collect::<Vec<_>>(), expected);
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
        let mut bench = Bench::started();
        let mut overview = mk_overview(true, &[("a", reason)]);
        let row = &mut overview.clusters[0];
        row.up = up;
        row.denied = Some("get, list and watch services".to_owned());
        row.detail = Some("no kubeconfig (line 3)".to_owned());
        row.detail_of = Some("BadCredentials");
        let sent = bench.reports(&overview, true);
        let notes: Vec<&str> = sent.iter().map(|[_, _, note]| &**note).collect();
        assert_eq!(notes, ["member a: text"], "{reason}");
    }
}

#[test]
fn of_a_member_that_is_being_removed_nothing_is_reported() {
    let mut bench = Bench::started();
    let lost = mk_overview(true, &[("a", "ConnectionLost")]);
    assert_eq!(bench.observe(&lost), ["a ConnectionLost"]);
    for reason in ["Active", "AuthFailed"] {
        let mut removed = mk_overview(true, &[("a", reason)]);
        removed.clusters[0].link = Link::Removing.name();
        assert!(bench.observe(&removed).is_empty(), "{reason}");
    }
    let added = mk_overview(true, &[("a", "Active")]);
    assert_eq!(bench.observe(&added), ["a Active"]);
}

#[test]
fn trouble_that_came_while_another_led_is_reported_when_we_do() {
    let mut bench = Bench::started();
    let mut overview = mk_overview(true, &[("a", "IdentityChanged"), ("b", "Active")]);
    overview.clusters[1].unusable_credentials = Some("403".to_owned());
    bench.observe_without_leading(&overview);
    let expected = ["a IdentityChanged", "b BadCredentials"];
    assert_eq!(bench.observe(&overview), expected);
    // what is over by then is not, nor that a member works
    let mut other = Bench::started();
    other.observe_without_leading(&overview);
    let mended = mk_overview(true, &[("a", "Active"), ("b", "Active")]);
    other.observe_without_leading(&mended);
    assert!(other.observe(&mended).is_empty());
}

#[test]
fn an_object_that_names_no_member_is_reported_once() {
    let mut bench = Bench::started();
    let origin = Origin {
        source: mk_source("second"),
        ..Origin::default()
    };
    bench.unused.push(Unused {
        origin: Arc::new(origin),
        member: "a".to_owned(),
        refusal: Refusal::DuplicateCluster,
        detail: "taken".to_owned(),
    });
    let overview = mk_overview(true, &[]);
    let sent = bench.reports(&overview, true);
    let expected = ["second", "DuplicateCluster", "not member a: taken"];
    assert_eq!(sent, [expected.map(ToOwned::to_owned)]);
    bench.seconds += 300;
    assert!(bench.observe(&overview).is_empty());
    // of use meanwhile
    let unused = std::mem::take(&mut bench.unused);
    assert!(bench.observe(&overview).is_empty());
    bench.unused = unused;
    assert_eq!(bench.observe(&overview), ["second DuplicateCluster"]);
}
