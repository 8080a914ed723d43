//! Somebody undoes what we write.

use super::*;
use crate::plan::diff::{Step, diff};

/// An import in `b`, and whoever else writes it.
struct Duel {
    bench: Bench,
    version: u64,
}

// === impl Duel ===

impl Duel {
    fn new() -> Self {
        let mut bench = Bench::new(&["a", "b"]);
        bench.planner.set_leading(true);
        bench.connect("a", mk_exported(), Vec::new());
        bench.connect("b", Vec::new(), Vec::new());
        let mut duel = Self { bench, version: 0 };
        duel.bench.plan(at(0));
        assert!(duel.answer(at(0)));
        duel
    }

    fn show(&mut self, live: LiveImport, now: Moment) {
        let applied = Update::Imports(Change::Applied(live));
        self.bench.planner.update(&mk_name("b"), applied, now);
        self.bench.plan(now);
    }

    /// Sends what is due to `b`, and shows what came of it; whether something was.
    fn answer(&mut self, now: Moment) -> bool {
        let Some((slot, work)) = self.bench.queues["b"].take(now) else {
            return false;
        };
        assert_eq!(slot, Slot::Import(mk_key("llm")));
        self.bench.queues["b"].finish(&slot, Outcome::Done, now);
        let status = match &work.action {
            Action::Apply { status, .. } => status.clone(),
            other => panic!("{other:?}"),
        };
        let plan = self.plan(now);
        let ImportPlan::Present(planned) = &plan.imports[&mk_name("b")] else {
            panic!("no import is planned");
        };
        self.version += 1;
        let live = mk_live(&mk_key("llm"), planned, self.version);
        let sent: serde_json::Value = serde_json::from_slice(&status).expect("JSON");
        assert_eq!(sent["status"]["clusters"][0]["targetPortNumber"], 8000);
        self.show(live, now);
        true
    }

    /// Another writer changes an entry.
    fn undo(&mut self, now: Moment) {
        let mut live = self.live().clone();
        self.version += 1;
        live.resource_version = self.version.to_string();
        live.status.clusters[0].target_port_number = 1;
        self.show(live, now);
    }

    fn live(&self) -> &LiveImport {
        &member(&self.bench.planner.world, "b").imports.items[&mk_key("llm")]
    }

    fn plan(&self, now: Moment) -> KeyPlan {
        desired_for(&self.bench.planner.world, &mk_policy(), &mk_key("llm"), now)
    }

    fn is_reverted(&self, now: Moment) -> bool {
        diff(&self.plan(now).imports[&mk_name("b")], Some(self.live())) == Step::None
    }

    /// Reason and message of `Exported`.
    fn exported(&self, now: Moment) -> (String, String) {
        match &self.plan(now).pools[&mk_name("a")] {
            PoolPlan::Exported { condition, .. } => {
                (condition.reason.clone(), condition.message.clone())
            }
            PoolPlan::NoEntry => panic!("no condition"),
        }
    }

    fn conflicts(&mut self, now: Moment) -> usize {
        self.bench.planner.housekeep(now).conflicts
    }
}

#[test]
fn an_edit_is_reverted_at_once_and_a_second_one_too() {
    let mut duel = Duel::new();
    for round in 1..=2 {
        let now = at(round * 5_000);
        duel.undo(now);
        assert!(!duel.is_reverted(now));
        assert!(duel.answer(now), "round {round}");
        assert!(duel.is_reverted(now));
        assert_eq!(duel.exported(now).0, "Exported");
        assert_eq!(duel.conflicts(now), 0);
    }
}

#[test]
fn the_third_round_within_a_minute_is_a_conflict_and_waits() {
    let mut duel = Duel::new();
    for round in 1..=2 {
        duel.undo(at(round * 5_000));
        assert!(duel.answer(at(round * 5_000)));
    }
    let third = at(15_000);
    duel.undo(third);
    duel.bench.plan(third);
    assert!(!duel.answer(at(24_999)), "hands off for 10 s");
    let (reason, message) = duel.exported(third);
    assert_eq!(reason, "PartiallyExported");
    assert!(message.contains("b Conflict"), "{message}");
    assert_eq!(duel.conflicts(third), 1);
    let events = duel.bench.planner.event_queue(&mk_name("a"));
    let reports = events.drain();
    let mut found = reports.iter();
    assert!(
        found.any(|(reason, note)| reason == "ImportConflict" && note.contains("keeps undoing")),
        "{reports:?}"
    );
    let explanation = duel.bench.planner.explain(&mk_key("llm"), true, third);
    let explanation = explanation.expect("known");
    let b = explanation.importers.iter().find(|one| one.cluster == "b");
    assert_eq!(b.expect("b").reason, "Conflict");

    // tried again, undone again: twice as long
    assert!(duel.answer(at(25_000)));
    duel.undo(at(25_100));
    assert!(!duel.answer(at(45_099)));
    assert!(duel.answer(at(45_100)));

    // left alone, it counts again after ten minutes
    assert!(duel.exported(at(600_000)).1.contains("b Conflict"));
    duel.bench.plan(at(645_099));
    assert_eq!(duel.conflicts(at(645_099)), 1);
    duel.bench.plan(at(645_100));
    assert_eq!(duel.exported(at(645_100)).0, "Exported");
    assert_eq!(duel.conflicts(at(645_100)), 0);
    // the queue forgets within a minute, too
    assert_eq!(duel.conflicts(at(710_000)), 0);
    duel.undo(at(711_000));
    assert!(duel.answer(at(711_000)), "an edit again");
}

#[test]
fn what_ends_a_contested_export_does_not_wait() {
    let mut duel = Duel::new();
    for round in 1..=3 {
        duel.undo(at(round * 5_000));
        assert_eq!(duel.answer(at(round * 5_000)), round < 3);
    }
    let ended = Update::PoolApplied(mk_pool("llm", None));
    duel.bench.planner.update(&mk_name("a"), ended, at(16_000));
    duel.bench.plan(at(16_000));
    let (_, action, _) = duel.bench.take("b", at(16_000)).expect("a write");
    assert_eq!(action, "delete");
    assert_eq!(duel.conflicts(at(16_000)), 0);
}

#[test]
fn an_import_that_somebody_makes_again_is_deleted_ever_more_slowly() {
    let Duel { mut bench, .. } = Duel::new();
    let live = member(&bench.planner.world, "b").imports.items[&mk_key("llm")].clone();
    let ended = Update::PoolApplied(mk_pool("llm", None));
    bench.planner.update(&mk_name("a"), ended, at(1_000));
    bench.plan(at(1_000));
    let mut now = at(1_000);
    let mut waits = Vec::new();
    for version in 2..7 {
        let queue = &bench.queues["b"];
        let due = queue.next_due().expect("it is deleted").max(now);
        waits.push(due.since(now).as_secs());
        let (slot, work) = queue.take(due).expect("due");
        assert_eq!(work.action.name(), "delete");
        queue.finish(&slot, Outcome::Done, due);
        let gone = Change::Deleted(live.key.clone());
        let again = Change::Applied(LiveImport {
            resource_version: version.to_string(),
            ..live.clone()
        });
        for change in [gone, again] {
            now = due.max(now) + Duration::from_millis(600);
            let update = Update::Imports(change);
            bench.planner.update(&mk_name("b"), update, now);
            bench.plan(now);
        }
    }
    assert_eq!(waits, [0, 0, 0, 10, 20]);
    assert_eq!(bench.planner.housekeep(now).conflicts, 1);
}

#[test]
fn whoever_does_not_write_sees_no_conflict() {
    let mut duel = Duel::new();
    duel.bench.planner.set_leading(false);
    for round in 1..=5 {
        duel.undo(at(round * 5_000));
        duel.answer(at(round * 5_000));
    }
    assert_eq!(duel.conflicts(at(30_000)), 0);
}

#[test]
fn an_entry_that_somebody_takes_out_of_a_pool_is_set_again_ever_more_slowly() {
    let Duel { mut bench, .. } = Duel::new();
    let show = |bench: &mut Bench, exported, now| {
        let mut pool = mk_pool("llm", Some("ClusterSet"));
        pool.exported = exported;
        let applied = Update::PoolApplied(pool);
        bench.planner.update(&mk_name("a"), applied, now);
        bench.plan(now);
    };
    let mut now = at(1_000);
    let mut waits = Vec::new();
    for _ in 0..6 {
        show(&mut bench, None, now);
        let queue = &bench.queues["a"];
        let due = queue.next_due().expect("it is set again").max(now);
        waits.push(due.since(now).as_secs());
        let (slot, work) = queue.take(due).expect("due");
        let Action::Pool(Some(condition)) = &work.action else {
            panic!("{:?}", work.action);
        };
        queue.finish(&slot, Outcome::Done, due);
        show(&mut bench, Some(vec![condition.clone()]), due);
        now = due + Duration::from_millis(100);
    }
    // what was not there yet, two edits, and a conflict
    assert_eq!(waits, [0, 0, 0, 1, 2, 4]);
}
