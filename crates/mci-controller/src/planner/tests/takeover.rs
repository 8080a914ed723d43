//! Who begins to lead.

use crd::annotations::DRAIN_SECONDS;

use super::*;

#[test]
fn what_happened_before_the_takeover_is_told_though_nothing_changes_with_it() {
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
    let told = bench.queues["a"].outbox().drain();
    assert!(told.is_empty(), "{told:?}");
    bench.planner.speak(true);
    // nothing else is due then
    bench.plan(at(1_001));
    let told = bench.queues["a"].outbox().drain();
    let complaints = told
        .iter()
        .filter(|(reason, _)| *reason == "InvalidExportAnnotation");
    assert_eq!(complaints.count(), 1, "{told:?}");
}
