//! Who begins to lead, and what is told then.

use crd::annotations::DRAIN_SECONDS;

use super::*;
use crate::events::fill;

/// A planner that does not lead, and knows of a bad annotation.
fn mk_complaint() -> Bench {
    let mut bench = Bench::new(&["a", "b"]);
    bench.connect("a", mk_exported(), Vec::new());
    bench.connect("b", Vec::new(), Vec::new());
    bench.plan(at(0));
    assert!(bench.planner.is_open());
    let mut pool = mk_exported().remove(0);
    let annotations = &mut pool.annotations;
    annotations.insert(DRAIN_SECONDS.to_owned(), "soon".to_owned());
    let applied = Update::PoolApplied(pool);
    bench.planner.update(&mk_name("a"), applied, at(1_000));
    bench.plan(at(1_000));
    bench
}

fn complaints(bench: &Bench) -> usize {
    let told = bench.queues["a"].outbox().drain();
    let told = told.iter();
    told.filter(|(reason, _)| *reason == "InvalidExportAnnotation")
        .count()
}

#[test]
fn what_happened_before_the_takeover_is_told_though_nothing_changes_with_it() {
    let mut bench = mk_complaint();
    let told = bench.queues["a"].outbox().drain();
    assert!(told.is_empty(), "{told:?}");
    bench.planner.speak(true);
    // nothing else is due then
    bench.plan(at(1_001));
    assert_eq!(complaints(&bench), 1);
}

#[test]
fn what_did_not_fit_the_outbox_is_told_when_there_is_room_though_nothing_changes() {
    let mut bench = mk_complaint();
    fill(bench.queues["a"].outbox(), at(1_000));
    bench.planner.speak(true);
    bench.plan(at(1_001));
    bench.planner.housekeep(at(1_002));
    bench.plan(at(1_003));
    assert_eq!(complaints(&bench), 0, "there is no room");
    // that made some
    for told in [1, 0] {
        bench.planner.housekeep(at(1_004));
        bench.plan(at(1_005));
        assert_eq!(complaints(&bench), told);
    }
}
