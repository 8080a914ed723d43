//! Who begins to lead, and what is reported then.

use crd::annotations::{DRAIN_SECONDS, EXPORT};

use super::*;

/// A planner that does not lead, and knows of a bad annotation.
fn mk_complaint() -> Bench {
    let mut bench = Bench::new(&["a", "b"]);
    bench.connect("a", mk_exported(), Vec::new());
    bench.connect("b", Vec::new(), Vec::new());
    bench.plan(at(0));
    assert!(bench.planner.is_open());
    let mut pool = mk_exported().remove(0);
    pool.export = mk_export(&[(EXPORT, "ClusterSet"), (DRAIN_SECONDS, "soon")]);
    let applied = Update::PoolApplied(pool);
    bench.planner.update(&mk_name("a"), applied, at(1_000));
    bench.plan(at(1_000));
    bench
}

fn complaints(bench: &mut Bench) -> usize {
    let reports = bench.planner.event_queue(&mk_name("a")).drain();
    let reports = reports.iter();
    reports
        .filter(|(reason, _)| reason == "InvalidExportAnnotation")
        .count()
}

#[test]
fn what_happened_before_the_takeover_is_reported_though_nothing_changes_with_it() {
    let mut bench = mk_complaint();
    assert_eq!(complaints(&mut bench), 0);
    bench.planner.set_leading(true);
    // nothing else is due then
    bench.plan(at(1_001));
    assert_eq!(complaints(&mut bench), 1);
}

#[test]
fn what_did_not_fit_the_queue_is_reported_by_the_slow_pass() {
    let mut bench = mk_complaint();
    bench.planner.event_queue(&mk_name("a")).fill();
    bench.planner.set_leading(true);
    bench.plan(at(1_001));
    assert_eq!(complaints(&mut bench), 0, "there is no room");
    bench.planner.compare_all();
    for reports in [1, 0] {
        bench.plan(at(1_002));
        assert_eq!(complaints(&mut bench), reports);
    }
}
