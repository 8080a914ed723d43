use crd::annotations::{
    DRAIN_SECONDS, EXPORT, EXPORT_MODE, HEALTH_PORT, HEALTH_SECRET, METRICS_PORT,
};
use rstest::rstest;

use super::*;
use crate::{
    fixtures::*,
    index::update::{Change, Update},
    plan::desired_for,
};

/// A world of members, and what is reported of the pool `llm`.
struct Bench {
    world: World,
    recorder: PoolRecorder,
}

type Reports = Vec<(String, String)>;

impl Bench {
    fn new(names: &[&str]) -> Self {
        Self {
            world: mk_world(names),
            recorder: PoolRecorder::default(),
        }
    }

    /// `a` exports to `b` and `c`, and has the condition.
    fn exported() -> Self {
        let mut bench = Self::new(&["a", "b", "c"]);
        export(&mut bench.world, "a", "llm");
        bench.settle(0);
        assert!(bench.plan(0, true).is_empty());
        bench
    }

    /// Plans, and gives what is sent about the pool in `a`: reasons and notes.
    fn reports(&mut self, seconds: u64, leading: bool, change: impl Fn(&mut KeyPlan)) -> Reports {
        let now = Moment::from_millis(seconds * 1000);
        let mut plan = desired_for(&self.world, &mk_policy(), &mk_key("llm"), now);
        change(&mut plan);
        let time = (now, Timestamp::UNIX_EPOCH);
        self.recorder
            .observe(&self.world, &mk_key("llm"), &plan, leading, time);
        assert!(self.recorder.queue(&mk_name("b")).drain().is_empty());
        self.recorder.queue(&mk_name("a")).drain()
    }

    fn plan(&mut self, seconds: u64, leading: bool) -> Vec<String> {
        let reports = self.reports(seconds, leading, |_| {}).into_iter();
        reports.map(|(reason, _)| reason).collect()
    }

    fn settle(&mut self, seconds: u64) {
        let now = Moment::from_millis(seconds * 1000);
        settle(&mut self.world, &mk_policy(), now);
    }

    fn update(&mut self, name: &str, update: Update) {
        self.world.update(&mk_name(name), update, Moment::default());
    }

    /// Changes the pool of `a`.
    fn edit(&mut self, edit: impl FnOnce(&mut PoolFacts)) {
        let mut pool = member(&self.world, "a").pools.records[&mk_key("llm")]
            .facts
            .clone();
        edit(&mut pool);
        self.update("a", Update::PoolApplied(pool));
    }

    /// Exports the pool of `a` with these annotations too.
    fn annotate(&mut self, annotations: &[(&str, &str)]) {
        let annotations = [&[(EXPORT, "ClusterSet")], annotations].concat();
        self.edit(|pool| pool.export = mk_export(&annotations));
    }
}

#[test]
fn an_export_is_reported_once_it_stands_and_not_again() {
    let mut bench = Bench::new(&["a", "b"]);
    export(&mut bench.world, "a", "llm");
    assert!(bench.plan(0, true).is_empty(), "nothing stands yet");
    bench.settle(1);
    assert_eq!(bench.plan(1, true), ["Exported"]);
    assert!(bench.plan(700, true).is_empty());
}

#[test]
fn until_a_condition_is_settled_the_last_one_holds() {
    let mut bench = Bench::exported();
    // an import that is not written yet
    let other = mk_service(crd::ServiceType::LoadBalancer, "198.51.100.7");
    bench.update("a", Update::Services(Change::Applied(other)));
    for (seconds, moving) in [(1_000, true), (1_001, false)] {
        let plan = desired_for(
            &bench.world,
            &mk_policy(),
            &mk_key("llm"),
            Moment::from_millis(seconds * 1000),
        );
        let settled = matches!(
            plan.pools[&mk_name("a")],
            PoolPlan::Exported { settled: true, .. }
        );
        assert_eq!(settled, !moving);
        assert!(bench.plan(seconds, true).is_empty());
        bench.settle(seconds);
    }
}

#[test]
fn after_a_restart_what_stands_beside_the_condition_is_not_new() {
    let mut bench = Bench::new(&["a", "b"]);
    export(&mut bench.world, "a", "llm");
    bench.annotate(&[(HEALTH_PORT, "0")]);
    bench.settle(0);
    assert!(bench.plan(0, true).is_empty());
    // what changes afterwards is
    lose(&mut bench.world, "b", Moment::from_millis(1_000));
    let expected = ["ClusterUnreachable", "PartiallyExported"];
    assert_eq!(bench.plan(4, true), expected);
}

#[test]
fn a_recovery_that_came_too_soon_is_reported_though_the_condition_shows_it_by_then() {
    let mut bench = Bench::new(&["a", "b"]);
    export(&mut bench.world, "a", "llm");
    bench.plan(0, true);
    bench.settle(1);
    assert_eq!(bench.plan(1, true), ["Exported"]);
    lose(&mut bench.world, "b", Moment::from_millis(2_000));
    assert!(
        bench
            .plan(5, true)
            .contains(&"PartiallyExported".to_owned())
    );
    bench.settle(5);
    let back = Moment::from_millis(6_000);
    bench.world.update(&mk_name("b"), Update::Live, back);
    for (seconds, sent) in [(9, vec![]), (300, vec![]), (301, vec!["Exported"])] {
        assert_eq!(bench.plan(seconds, true), sent);
        bench.settle(seconds);
    }
}

#[test]
fn without_leading_nothing_is_reported_nor_repeated_later() {
    let mut bench = Bench::new(&["a", "b"]);
    export(&mut bench.world, "a", "llm");
    assert!(bench.plan(0, false).is_empty());
    bench.settle(1);
    assert!(bench.plan(1, false).is_empty());
    assert!(bench.plan(2, true).is_empty());
}

#[test]
fn trouble_that_came_while_nobody_led_is_reported_by_who_leads_next() {
    let mut bench = Bench::exported();
    bench.annotate(&[(DRAIN_SECONDS, "soon")]);
    lose(&mut bench.world, "b", Moment::from_millis(1_000));
    assert!(bench.plan(4, false).is_empty());
    let sent = bench.plan(6, true);
    let expected = [
        "ClusterUnreachable",
        "InvalidExportAnnotation",
        "PartiallyExported",
    ];
    assert_eq!(sent, expected);
    assert!(bench.plan(7, true).is_empty());
}

#[test]
fn an_export_that_ended_is_reported_when_it_begins_again() {
    let mut bench = Bench::new(&["a", "b"]);
    for seconds in [0, 1_000] {
        export(&mut bench.world, "a", "llm");
        bench.plan(seconds, true);
        bench.settle(seconds + 1);
        assert_eq!(bench.plan(seconds + 1, true), ["Exported"]);
        bench.edit(|pool| pool.export = mk_export(&[]));
        bench.plan(seconds + 2, true);
        bench.settle(seconds + 2);
        bench.plan(seconds + 2, true);
    }
}

#[rstest]
#[case::bad_value(&[(DRAIN_SECONDS, "soon"), (HEALTH_SECRET, "other/creds")], &["seconds from 0", "of another namespace"])]
#[case::no_such_port(&[(HEALTH_PORT, "1234")], &["no such port"])]
#[case::illegal(&[(EXPORT_MODE, "SideMode")], &["use EndpointMode or ParentMode"])]
fn what_is_wrong_with_annotations_is_one_event(
    #[case] annotations: &[(&str, &str)],
    #[case] texts: &[&str],
) {
    let mut bench = Bench::exported();
    bench.annotate(annotations);
    let reports = bench.reports(1, true, |_| {});
    let [(reason, note)] = reports.as_slice() else {
        panic!("{reports:?}");
    };
    assert_eq!(reason, "InvalidExportAnnotation");
    let is_said = |text: &&str| note.contains(*text);
    assert!(texts.iter().all(is_said), "{note}");
    // repeated in full when one is added
    bench.annotate(&[annotations, &[(METRICS_PORT, "70000")]].concat());
    let is_one_more = !annotations.contains(&(EXPORT_MODE, "SideMode"));
    let again = bench.reports(301, true, |_| {});
    assert_eq!(again.len(), usize::from(is_one_more), "{again:?}");
    assert!(
        again
            .iter()
            .all(|(_, note)| texts.iter().all(|text| note.contains(text)))
    );
}

#[test]
fn an_annotation_alone_is_reported_of_a_pool_that_is_not_exported() {
    let mut bench = Bench::new(&["a", "b"]);
    let mut pool = mk_pool("llm", None);
    pool.export = mk_export(&[(EXPORT_MODE, "EndpointMode")]);
    bench.update("a", Update::PoolApplied(pool));
    let reports = bench.reports(0, true, |_| {});
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert!(
        reports[0].1.contains("set that to ClusterSet"),
        "{reports:?}"
    );
}

#[test]
fn what_stands_in_the_way_is_reported_by_member_and_not_of_the_exporter() {
    let mut bench = Bench::exported();
    let gone = |name: &str| Update::Namespaces(Change::Deleted(Key::new("", name)));
    bench.update("a", gone(NS));
    bench.update("b", gone(NS));
    let mut foreign = member(&bench.world, "c").imports.items[&mk_key("llm")].clone();
    foreign.claim = Claim::Foreign;
    bench.update("c", Update::Imports(Change::Applied(foreign)));
    let reports = bench.reports(1, true, |_| {});
    let ends = |reason: &str, members: &str| {
        let mut reports = reports.iter();
        reports.any(|(of, note)| of == reason && note.ends_with(members))
    };
    assert!(ends("NamespaceMissing", ": b"), "{reports:?}");
    assert!(ends("ImportConflict", ": c"), "{reports:?}");
}

#[rstest]
#[case::no_health_port("HealthPortNotFound", |bench: &mut Bench| {
    let mut service = mk_service(crd::ServiceType::LoadBalancer, "192.0.2.1");
    service.ports.retain(|port| port.name != "health");
    bench.update("a", Update::Services(Change::Applied(service)));
})]
#[case::address("AddressRejected", |bench: &mut Bench| {
    let service = mk_service(crd::ServiceType::LoadBalancer, "127.0.0.1");
    bench.update("a", Update::Services(Change::Applied(service)));
})]
#[case::external_name("NotSupported", |bench: &mut Bench| {
    let service = mk_service(crd::ServiceType::ExternalName, "192.0.2.1");
    bench.update("a", Update::Services(Change::Applied(service)));
})]
#[case::full("PoolStatusFull", |bench: &mut Bench| bench.edit(|pool| pool.status_full = true))]
#[case::unreachable("ClusterUnreachable", |bench: &mut Bench| {
    lose(&mut bench.world, "b", Moment::from_millis(1_000));
})]
fn each_cause_has_its_reason(#[case] reason: &str, #[case] change: fn(&mut Bench)) {
    let mut bench = Bench::exported();
    change(&mut bench);
    let sent = bench.plan(10, true);
    assert!(sent.contains(&reason.to_owned()), "{sent:?}");
    assert!(bench.plan(400, true).is_empty());
}

#[test]
fn a_pool_that_no_import_has_room_for_is_reported() {
    let mut bench = Bench::exported();
    let crowd_out = |plan: &mut KeyPlan| {
        plan.crowded_out.insert(mk_name("a"));
    };
    let reports = bench.reports(1, true, crowd_out);
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert_eq!(reports[0].0, "TooManyExporters");
}

#[test]
fn a_pool_or_member_that_is_gone_is_forgotten() {
    let mut bench = Bench::exported();
    let known = |bench: &Bench| {
        bench
            .recorder
            .pools
            .values()
            .map(BTreeMap::len)
            .sum::<usize>()
    };
    assert_eq!(known(&bench), 1);
    bench.recorder.forget(&mk_name("a"));
    assert_eq!(known(&bench), 0);
    bench.plan(1, true);
    assert_eq!(known(&bench), 1);
    bench.update(
        "a",
        Update::PoolDeleted {
            key: mk_key("llm"),
            crd: mk_crd(),
        },
    );
    bench.plan(2, true);
    assert_eq!(known(&bench), 0);
}
