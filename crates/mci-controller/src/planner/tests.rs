mod kept;
mod listing;
mod model;
mod takeover;
mod undo;

use bytes::Bytes;
use jiff::Timestamp;
use prometheus_client::registry::Registry;
use serde_json::json;

use super::{publish::SLICE, *};
use crate::{
    fixtures::*,
    index::{digest::LiveStatus, facts::LiveImport, update::Change},
    plan::{Hold, ImportPlan, KeyPlan, PoolPlan, desired_for},
    write::action::{Action, Outcome, Slot},
};

const GATE: Duration = Duration::from_secs(30);

const fn at(millis: u64) -> Moment {
    Moment::from_millis(millis)
}

fn wall() -> Timestamp {
    Timestamp::from_second(1_000).expect("in range")
}

struct Bench {
    planner: Planner,
    queues: BTreeMap<String, Arc<Queue>>,
}

impl Bench {
    fn new(names: &[&str]) -> Self {
        let metrics = Metrics::register(&mut Registry::default());
        let mut planner = Planner::new(mk_policy(), mk_rules(), GATE, metrics);
        let mut queues = BTreeMap::new();
        for name in names {
            let queue = Arc::new(Queue::default());
            planner.add_member(&mk_name(name), queue.clone(), at(0));
            queues.insert((*name).to_owned(), queue);
        }
        planner.inventory_listed(at(0));
        Self { planner, queues }
    }

    fn connect(
        &mut self,
        name: &str,
        pools: Vec<crate::index::facts::PoolFacts>,
        imports: Vec<LiveImport>,
    ) {
        for update in first_lists(pools, imports) {
            let update = match update {
                Update::Connected { .. } => Update::Connected {
                    uid: format!("cluster-{name}"),
                    clusterset: None,
                },
                other => other,
            };
            self.planner.update(&mk_name(name), update, at(0));
        }
    }

    fn plan(&mut self, now: Moment) {
        self.planner.tick(now);
        self.planner.publish(now, wall());
    }

    /// What a member's queue gives now: the action's name and its body, if it has one.
    fn take(&self, name: &str, now: Moment) -> Option<(Slot, &'static str, serde_json::Value)> {
        let (slot, work) = self.queues[name].take(now)?;
        let body = match &work.action {
            Action::Apply { status, .. } => status.clone(),
            Action::Patch(patch) => patch.clone(),
            Action::Delete { .. } | Action::Pool(_) => Bytes::new(),
        };
        let body = serde_json::from_slice(&body).unwrap_or_default();
        Some((slot, work.action.name(), body))
    }
}

fn mk_exported() -> Vec<crate::index::facts::PoolFacts> {
    vec![mk_pool("llm", Some("ClusterSet"))]
}

#[test]
fn nothing_is_written_before_all_members_are_synced() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.connect("a", mk_exported(), Vec::new());
    bench.plan(at(1_000));
    assert!(!bench.planner.is_open());
    assert!(bench.take("a", at(1_000)).is_none());
    bench.connect("b", Vec::new(), Vec::new());
    bench.plan(at(2_000));
    assert!(bench.planner.is_open());
    let (_, action, body) = bench.take("b", at(2_000)).expect("a write");
    assert_eq!(action, "create");
    assert_eq!(body["status"]["clusters"][0]["name"], "a");
    assert_eq!(body["metadata"]["name"], "llm");
}

#[test]
fn a_member_that_has_not_listed_everything_is_waited_for() {
    let steps = first_lists(Vec::new(), Vec::new());
    for (received, last) in steps.iter().enumerate() {
        let mut bench = Bench::new(&["a", "b"]);
        bench.connect("b", Vec::new(), Vec::new());
        let failed = Update::Lost(crate::index::member::Fault::ConnectionLost);
        for update in steps.iter().take(received).chain([&failed]) {
            bench.plan(at(1_000));
            assert!(!bench.planner.is_open(), "before {update:?}");
            bench
                .planner
                .update(&mk_name("a"), update.clone(), at(1_000));
        }
        bench.plan(at(1_000));
        assert!(!bench.planner.is_open(), "lost before {last:?}");
    }
}

#[test]
fn the_inventory_must_have_been_read() {
    let metrics = Metrics::register(&mut Registry::default());
    let mut planner = Planner::new(mk_policy(), mk_rules(), GATE, metrics);
    planner.tick(at(60_000));
    assert!(!planner.is_open());
    planner.inventory_listed(at(0));
    planner.tick(at(60_001));
    assert!(planner.is_open());
}

#[test]
fn members_have_the_whole_time_from_when_the_inventory_was_read() {
    let metrics = Metrics::register(&mut Registry::default());
    let mut planner = Planner::new(mk_policy(), mk_rules(), GATE, metrics);
    // home was slow
    planner.add_member(&mk_name("a"), Arc::new(Queue::default()), at(40_000));
    planner.inventory_listed(at(40_000));
    planner.tick(at(69_999));
    assert!(!planner.is_open());
    planner.tick(at(70_000));
    assert!(planner.is_open());
}

#[test]
fn a_member_that_never_answers_is_waited_for_so_long_and_no_longer() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.connect("b", Vec::new(), Vec::new());
    bench.plan(at(29_999));
    assert!(!bench.planner.is_open());
    bench.plan(at(30_000));
    assert!(bench.planner.is_open());
}

#[test]
fn after_a_restart_with_its_exporter_down_an_import_stays() {
    let mut world = mk_world(&["a", "b"]);
    export(&mut world, "a", "llm");
    settle(&mut world, &mk_policy(), at(0));
    let live = member(&world, "b").imports.items[&mk_key("llm")].clone();
    let mut bench = Bench::new(&["a", "b"]);
    bench.connect("b", Vec::new(), vec![live]);
    bench.plan(at(30_000));
    let (_, action, body) = bench.take("b", at(30_000)).expect("Reachable changed");
    assert_eq!(action, "apply");
    let entry = &body["status"]["clusters"][0];
    assert_eq!(entry["name"], "a");
    assert_eq!(
        entry["endpointPicker"]["service"][0]["addresses"][0],
        "192.0.2.1"
    );
    assert_eq!(entry["conditions"][3]["reason"], "ConnectionLost");
}

#[test]
fn an_orphan_is_swept_once_its_exporter_is_known_to_be_gone() {
    let mut world = mk_world(&["a", "b"]);
    export(&mut world, "a", "llm");
    settle(&mut world, &mk_policy(), at(0));
    let live = member(&world, "b").imports.items[&mk_key("llm")].clone();
    let mut bench = Bench::new(&["a", "b"]);
    bench.connect("b", Vec::new(), vec![live]);
    bench.plan(at(1_000));
    assert!(bench.take("b", at(1_000)).is_none());
    bench.connect("a", Vec::new(), Vec::new());
    // its CRD may be new: what it lacks has a minute to appear
    bench.plan(at(59_999));
    let (slot, action, _) = bench.take("b", at(59_999)).expect("Reachable changed");
    assert_eq!(action, "apply");
    bench.queues["b"].finish(&slot, Outcome::Done, at(60_000));
    bench.plan(at(60_000));
    let (_, action, _) = bench.take("b", at(61_000)).expect("a write");
    assert_eq!(action, "delete");
    assert!(bench.take("b", at(61_000)).is_none(), "once");
}

#[test]
fn an_event_that_changes_nothing_writes_nothing() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.connect("a", mk_exported(), Vec::new());
    bench.connect("b", Vec::new(), Vec::new());
    bench.plan(at(0));
    while bench.take("b", at(0)).is_some() {}
    let same = Update::PoolApplied(mk_pool("llm", Some("ClusterSet")));
    bench.planner.update(&mk_name("a"), same, at(100));
    let slices = Update::Slices(Change::Listed(vec![mk_slice(&["10.0.0.1"])]));
    bench.planner.update(&mk_name("a"), slices, at(100));
    bench.plan(at(200));
    assert!(bench.take("b", at(200)).is_none());
}

#[test]
fn exported_waits_a_second_for_the_importers() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.connect("a", mk_exported(), Vec::new());
    bench.connect("b", Vec::new(), Vec::new());
    bench.plan(at(0));
    assert!(bench.take("a", at(0)).is_none());
    bench.plan(at(999));
    assert!(bench.take("a", at(999)).is_none());
    bench.plan(at(1_000));
    let (slot, action, _) = bench.take("a", at(1_000)).expect("a write");
    assert_eq!((slot, action), (Slot::Pool(mk_key("llm")), "set Exported"));
}

#[test]
fn a_member_without_the_namespace_is_reported_at_once() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.connect("a", mk_exported(), Vec::new());
    bench.connect("b", Vec::new(), Vec::new());
    let empty = Update::Namespaces(Change::Listed(Vec::new()));
    bench.planner.update(&mk_name("b"), empty, at(0));
    bench.plan(at(0));
    assert!(bench.take("a", at(0)).is_some());
    assert!(bench.take("b", at(0)).is_none());
    let plan = desired_for(
        &bench.planner.world,
        &bench.planner.policy,
        &mk_key("llm"),
        at(0),
    );
    assert_eq!(
        plan.imports[&mk_name("b")],
        ImportPlan::Hold(Hold::NamespaceMissing)
    );
}

#[test]
fn importers_share_one_body_and_one_time() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.connect("a", mk_exported(), Vec::new());
    bench.connect("b", Vec::new(), Vec::new());
    bench.connect("c", Vec::new(), Vec::new());
    bench.plan(at(0));
    let (_, _, b) = bench.take("b", at(0)).expect("a write");
    let (_, _, c) = bench.take("c", at(0)).expect("a write");
    assert_eq!(b, c);
    assert_eq!(
        b["status"]["conditions"][0]["lastTransitionTime"],
        "1970-01-01T00:16:40Z"
    );
}

#[test]
fn a_removed_member_is_clean_when_its_imports_are_gone() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.connect("a", mk_exported(), Vec::new());
    let mut world = mk_world(&["a", "b"]);
    export(&mut world, "a", "llm");
    settle(&mut world, &mk_policy(), at(0));
    let live = member(&world, "b").imports.items[&mk_key("llm")].clone();
    bench.connect("b", Vec::new(), vec![live.clone()]);
    bench.plan(at(0));
    bench.planner.remove_member(&mk_name("b"), at(10));
    bench.plan(at(10));
    assert!(!bench.planner.is_clean(&mk_name("b")));
    let (_, action, _) = bench.take("b", at(100)).expect("a write");
    assert_eq!(action, "delete");
    let gone = Update::Imports(Change::Deleted(live.key));
    bench.planner.update(&mk_name("b"), gone, at(200));
    assert!(bench.planner.is_clean(&mk_name("b")));
}

#[test]
fn what_users_add_to_our_entries_is_patched_out_and_hinders_no_export() {
    let mut world = mk_world(&["a", "b"]);
    export(&mut world, "a", "llm");
    settle(&mut world, &mk_policy(), at(0));
    let mut live = member(&world, "b").imports.items[&mk_key("llm")].clone();
    let entry = &mut *live.status.clusters[0];
    entry.labels = BTreeMap::from([("team/x".to_owned(), "y".to_owned())]);
    entry.drain_until = serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a time");
    entry.conditions.insert(0, entry.conditions[0].clone());
    entry.conditions[0].type_ = "Users".to_owned();
    let consistent = crd::Condition {
        type_: crd::conditions::CONSISTENT.to_owned(),
        ..live.status.conditions[0].clone()
    };
    live.status.conditions.push(consistent);
    let mut bench = Bench::new(&["a", "b"]);
    bench.connect("a", mk_exported(), Vec::new());
    bench.connect("b", Vec::new(), vec![live.clone()]);
    bench.plan(at(0));
    let (_, _, patch) = bench.take("b", at(0)).expect("a write");
    let operations = patch.as_array().expect("a list");
    let mut paths: Vec<&str> = operations[1..]
        .iter()
        .map(|operation| operation["path"].as_str().expect("a path"))
        .collect();
    paths.sort_unstable();
    assert_eq!(
        paths,
        [
            "/status/clusters/0/conditions/0",
            "/status/clusters/0/drainUntil",
            "/status/clusters/0/labels",
            "/status/conditions/2",
        ]
    );
    let now = at(0);
    let plan = desired_for(&bench.planner.world, &mk_policy(), &mk_key("llm"), now);
    let PoolPlan::Exported { condition, settled } = &plan.pools[&mk_name("a")] else {
        panic!("not exported");
    };
    assert!(*settled && condition.reason == "Exported", "{condition:?}");
}

#[test]
fn a_removed_member_that_never_listed_is_not_clean() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.connect("a", mk_exported(), Vec::new());
    bench.planner.remove_member(&mk_name("b"), at(10));
    assert!(!bench.planner.is_clean(&mk_name("b")));
    bench.connect("b", Vec::new(), Vec::new());
    assert!(bench.planner.is_clean(&mk_name("b")));
}

#[test]
fn a_pool_that_goes_while_its_export_is_pending_is_planned_no_more() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.connect("a", mk_exported(), Vec::new());
    bench.connect("b", Vec::new(), Vec::new());
    bench.plan(at(0));
    assert!(!bench.planner.unsettled.keys().is_empty());
    let deleted = Update::PoolDeleted {
        key: mk_key("llm"),
        crd: mk_crd(),
    };
    bench.planner.update(&mk_name("a"), deleted, at(100));
    bench.plan(at(200));
    assert!(bench.planner.unsettled.keys().is_empty());
    bench.planner.tick(at(5_000));
    assert!(bench.planner.dirty.is_empty() && !bench.planner.is_behind());
}

#[test]
fn others_entries_are_patched_out_under_the_version_that_was_seen() {
    let mut world = mk_world(&["a", "b"]);
    export(&mut world, "a", "llm");
    settle(&mut world, &mk_policy(), at(0));
    let mut live = member(&world, "b").imports.items[&mk_key("llm")].clone();
    let mut intruder = live.status.clusters[0].clone();
    intruder.name = "intruder".to_owned();
    live.status.clusters.push(intruder);
    let mut bench = Bench::new(&["a", "b"]);
    bench.connect("a", mk_exported(), Vec::new());
    bench.connect("b", Vec::new(), vec![live.clone()]);
    bench.plan(at(0));
    let (_, _, patch) = bench.take("b", at(0)).expect("a write");
    assert_eq!(patch[0]["op"], "test");
    assert_eq!(patch[0]["value"], live.resource_version);
    assert_eq!(patch[1]["path"], "/status/clusters/1");
}

/// More pools than one go holds for three members.
fn mk_many() -> Vec<crate::index::facts::PoolFacts> {
    let pools = 0..SLICE / 3 + 100;
    let pools = pools.map(|at| mk_pool(&format!("llm-{at}"), Some("ClusterSet")));
    pools.collect()
}

/// Keys planned so far, as no importer shows any.
fn planned(bench: &Bench) -> usize {
    bench.planner.unsettled.keys().len()
}

#[test]
fn what_gathered_before_the_gate_opens_is_planned_a_slice_at_a_time() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    let pools = mk_many();
    let all = pools.len();
    bench.connect("a", pools, Vec::new());
    bench.connect("b", Vec::new(), Vec::new());
    bench.connect("c", Vec::new(), Vec::new());
    bench.plan(at(0));
    assert!(planned(&bench) <= SLICE / 3 + 2, "{}", planned(&bench));
    assert!(bench.planner.is_behind());
    bench.planner.publish(at(0), wall());
    assert_eq!(planned(&bench), all);
    assert!(!bench.planner.is_behind());
}

#[test]
fn a_list_that_touches_every_key_is_planned_a_slice_at_a_time() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    for name in ["a", "b", "c"] {
        bench.connect(name, Vec::new(), Vec::new());
    }
    bench.plan(at(0));
    let pools = mk_many();
    let all = pools.len();
    let listed = Update::PoolsListed {
        pools,
        odd: BTreeSet::new(),
        crd: mk_crd(),
    };
    bench.planner.update(&mk_name("a"), listed, at(0));
    bench.plan(at(0));
    assert!(planned(&bench) <= SLICE / 3 + 2, "{}", planned(&bench));
    // what comes meanwhile goes first, and what waits goes on
    let new = Update::PoolApplied(mk_pool("zz", Some("ClusterSet")));
    bench.planner.update(&mk_name("b"), new, at(0));
    bench.plan(at(0));
    assert!(bench.planner.unsettled.keys().contains(&&mk_key("zz")));
    assert_eq!(planned(&bench), all + 1);
}

#[test]
fn a_member_that_never_shows_its_writes_is_planned_ever_more_seldom() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.connect("a", mk_exported(), Vec::new());
    bench.connect("b", Vec::new(), Vec::new());
    bench.connect("c", Vec::new(), Vec::new());
    let mut checks = 0;
    for tick in 0..4 * 120 {
        bench.planner.tick(at(tick * 250));
        let planner = &bench.planner;
        checks += usize::from(planner.is_behind() || !planner.dirty.is_empty());
        bench.planner.publish(at(tick * 250), wall());
    }
    // at 0, 1, 3, 7, 15, 31 and 63 s; and at 60 s, when the pools' absence begins to count
    assert!((2..=8).contains(&checks), "{checks} checks in two minutes");
}

#[test]
fn what_an_importer_shows_is_reported_at_once_however_long_the_others_take() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.connect("a", mk_exported(), Vec::new());
    bench.connect("b", Vec::new(), Vec::new());
    bench.connect("c", Vec::new(), Vec::new());
    for tick in 0..4 * 40 {
        bench.plan(at(tick * 250));
    }
    while let Some((slot, ..)) = bench.take("a", at(40_000)) {
        bench.queues["a"].finish(&slot, Outcome::Done, at(40_000));
    }
    let plan = desired_for(
        &bench.planner.world,
        &bench.planner.policy,
        &mk_key("llm"),
        at(40_000),
    );
    let ImportPlan::Present(planned) = &plan.imports[&mk_name("b")] else {
        panic!("no import");
    };
    let live = mk_live(&mk_key("llm"), planned, 1);
    let shown = Update::Imports(Change::Applied(live));
    bench.planner.update(&mk_name("b"), shown, at(41_000));
    bench.plan(at(41_000));
    let (_, action, _) = bench.take("a", at(41_000)).expect("half of it is reported");
    assert_eq!(action, "set Exported");
}

#[test]
fn a_full_status_is_written_once_there_is_room() {
    let mut bench = Bench::new(&["a", "b"]);
    let mut pool = mk_pool("llm", Some("ClusterSet"));
    pool.status_full = true;
    bench.connect("a", vec![pool.clone()], Vec::new());
    bench.connect("b", Vec::new(), Vec::new());
    for tick in 0..4 * 60 {
        bench.plan(at(tick * 250));
        assert_eq!(bench.take("a", at(tick * 250)), None, "there is no place");
    }
    pool.status_full = false;
    let room = Update::PoolApplied(pool);
    bench.planner.update(&mk_name("a"), room, at(60_000));
    bench.plan(at(60_000));
    let (_, action, _) = bench.take("a", at(60_000)).expect("there is room");
    assert_eq!(action, "set Exported");
}
