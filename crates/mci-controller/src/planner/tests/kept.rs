//! The plan that is kept is the plan that would be made.

use proptest::prelude::*;

use super::*;
use crate::index::entry::{Entry, ImportStatus};

const MEMBERS: [&str; 3] = ["a", "b", "c"];
const POOLS: [&str; 2] = ["x", "y"];

/// What happens to one member, with regard to one pool.
#[derive(Clone, Copy, Debug)]
enum Op {
    Export,
    Withdraw,
    /// The pool goes; its entry drains for as long as it asked for.
    Delete,
    Lose,
    Return,
    /// Its import is as planned, as after a write.
    Write,
    /// Somebody writes these entries into its import.
    Forge(&'static [&'static str]),
    Unlabel,
    Respec,
    DeleteImport,
    /// Our condition of its pool is written.
    Condition,
    Wait,
}

fn any_op() -> impl Strategy<Value = (Op, usize, usize)> {
    let op = prop::sample::select(vec![
        Op::Export,
        Op::Export,
        Op::Withdraw,
        Op::Delete,
        Op::Lose,
        Op::Return,
        Op::Write,
        Op::Write,
        Op::Write,
        Op::Forge(&[]),
        Op::Forge(&["a", "b", "c", "other"]),
        Op::Unlabel,
        Op::Respec,
        Op::DeleteImport,
        Op::Condition,
        Op::Wait,
    ]);
    (op, 0..MEMBERS.len(), 0..POOLS.len())
}

fn mk_draining_pool(name: &str) -> crate::index::facts::PoolFacts {
    let annotations = [
        (crd::annotations::EXPORT, "ClusterSet"),
        (crd::annotations::DRAIN_SECONDS, "30"),
    ];
    crate::index::facts::PoolFacts {
        export: mk_export(&annotations),
        ..mk_pool(name, None)
    }
}

impl Bench {
    fn forge(&self, name: &str, key: &Key, names: &[&str], version: u64) -> Option<LiveImport> {
        let fresh = desired_for(&self.planner.world, &self.planner.policy, key, at(0));
        let planned = fresh.imports.values().find_map(|import| match import {
            ImportPlan::Present(planned) if !planned.status.clusters.is_empty() => Some(planned),
            _ => None,
        })?;
        let live = mk_live(key, planned, version);
        let entry = live.status.clusters.first()?;
        let others = names.iter().filter(|one| **one != name);
        let forged = others.map(|one| {
            let mut entry = crd::ImportedCluster::clone(entry);
            (*one).clone_into(&mut entry.name);
            Entry::new(entry)
        });
        let status = ImportStatus {
            clusters: forged.collect(),
            ..ImportStatus::clone(&live.status)
        };
        Some(LiveImport {
            status: LiveStatus::new(status, &self.planner.policy.controller_name),
            ..live
        })
    }

    fn live(&self, name: &str, key: &Key) -> Option<LiveImport> {
        let member = self.planner.world.members.get(&mk_name(name))?;
        member.imports.items.get(key).cloned()
    }

    fn run(&mut self, op: Op, name: &str, key: &Key, version: u64, now: Moment) {
        let pool = mk_draining_pool(&key.name);
        let edit = |change: fn(&mut LiveImport)| {
            let mut live = self.live(name, key)?;
            change(&mut live);
            live.resource_version = version.to_string();
            Some(Update::Imports(Change::Applied(live)))
        };
        let update = match op {
            Op::Export => Some(Update::PoolApplied(pool)),
            Op::Withdraw => Some(Update::PoolApplied(mk_pool(&key.name, None))),
            Op::Delete => Some(Update::PoolDeleted {
                key: key.clone(),
                crd: mk_crd(),
            }),
            Op::Lose => Some(Update::Lost(crate::index::member::Fault::ConnectionLost)),
            Op::Return => Some(Update::Live),
            Op::Write => {
                let world = &self.planner.world;
                let plan = desired_for(world, &self.planner.policy, key, now);
                match plan.imports.get(&mk_name(name)) {
                    Some(ImportPlan::Present(planned)) => {
                        let live = mk_live(key, planned, version);
                        Some(Update::Imports(Change::Applied(live)))
                    }
                    _ => None,
                }
            }
            Op::Forge(names) => {
                let live = self.forge(name, key, names, version);
                live.map(|live| Update::Imports(Change::Applied(live)))
            }
            Op::Unlabel => edit(|live| live.claim = Claim::Foreign),
            Op::Respec => edit(|live| live.generation += 1),
            Op::DeleteImport => Some(Update::Imports(Change::Deleted(key.clone()))),
            Op::Condition => {
                let member = self.planner.world.members.get(&mk_name(name));
                let record = member.and_then(|member| member.pools.get(key));
                record.map(|record| {
                    let condition = crd::conditions::make(
                        crd::conditions::EXPORTED,
                        crd::conditions::Status::True,
                        "Exported",
                        format!("version {version}"),
                        Some(1),
                    );
                    Update::PoolApplied(crate::index::facts::PoolFacts {
                        exported: Some(vec![condition]),
                        ..record.facts.clone()
                    })
                })
            }
            Op::Wait => None,
        };
        if let Some(update) = update {
            self.planner.update(&mk_name(name), update, now);
        }
    }

    /// Each kept plan, with its pool conditions planned now, is the plan that would be made now.
    fn check_kept(&mut self, now: Moment) {
        let planner = &mut self.planner;
        for name in POOLS {
            let key = mk_key(name);
            let fresh = desired_for(&planner.world, &planner.policy, &key, now);
            let Some(kept) = planner.plans.get(&key) else {
                let wanted = |import: &ImportPlan| matches!(import, ImportPlan::Present(_));
                assert!(!fresh.imports.values().any(wanted), "no plan of {name}");
                continue;
            };
            let mut plan = kept.plan().clone();
            plan.plan_pools(&planner.world, &planner.policy, &key);
            assert_eq!(plan.imports, fresh.imports, "{name}");
            assert_eq!(plan.pools, fresh.pools, "{name}");
            assert!(
                plan.next_change_at <= fresh.next_change_at || fresh.next_change_at.is_none(),
                "{name}"
            );
        }
    }
}

fn check(ops: impl IntoIterator<Item = (Op, usize, usize)>) {
    let mut bench = Bench::new(&MEMBERS);
    bench.planner.set_leading(true);
    for name in MEMBERS {
        bench.connect(name, Vec::new(), Vec::new());
    }
    bench.plan(at(0));
    for (n, (op, member, pool)) in (1..).zip(ops) {
        let now = at(100_000 + n * 3_000);
        bench.run(op, MEMBERS[member], &mk_key(POOLS[pool]), n, now);
        bench.plan(now);
        while bench.planner.is_behind() || !bench.planner.dirty.is_empty() {
            bench.planner.publish(now, wall());
        }
        bench.check_kept(now);
        bench.planner.check_listed();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn what_is_kept_is_what_would_be_planned(ops in prop::collection::vec(any_op(), 1..40)) {
        check(ops);
    }
}

/// `b` is lost before all its pools are known. That it has one, which is not exported, is known before an import names it.
#[test]
fn a_pool_that_asks_for_no_export_is_remembered_before_an_import_names_it() {
    check([
        (Op::Lose, 1, 0),
        (Op::Lose, 2, 0),
        (Op::Export, 0, 1),
        (Op::Withdraw, 1, 1),
        (Op::Forge(&["b", "c"]), 0, 1),
    ]);
}

/// The body that `b` is to get, as the kept plan has it.
fn planned_for_b(bench: &Bench) -> Arc<crate::plan::PlannedImport> {
    match &bench.planner.plans[&mk_key("llm")].plan().imports[&mk_name("b")] {
        ImportPlan::Present(planned) => planned.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn echoes_make_no_new_plan_and_the_last_settles_the_export() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.planner.set_leading(true);
    bench.connect("a", mk_exported(), Vec::new());
    bench.connect("b", Vec::new(), Vec::new());
    bench.connect("c", Vec::new(), Vec::new());
    bench.plan(at(0));
    let planned = planned_for_b(&bench);
    let key = mk_key("llm");
    for (name, settled) in [("b", false), ("c", true)] {
        let bare = LiveImport {
            status: LiveStatus::new(ImportStatus::default(), "us"),
            ..mk_live(&key, &planned, 1)
        };
        for live in [bare, mk_live(&key, &planned, 2)] {
            let shown = Update::Imports(Change::Applied(live));
            bench.planner.update(&mk_name(name), shown, at(20));
            bench.planner.publish(at(20), wall());
        }
        let reported = bench.take("a", at(20)).map(|(_, action, _)| action);
        assert_eq!(reported, settled.then_some("set Exported"), "{name}");
    }
    assert!(bench.planner.unsettled.keys().is_empty());
    let mut own = mk_pool("llm", Some("ClusterSet"));
    let PoolPlan::Exported { condition, .. } =
        &bench.planner.plans[&key].plan().pools[&mk_name("a")]
    else {
        panic!("not exported");
    };
    own.exported = Some(vec![condition.clone()]);
    bench
        .planner
        .update(&mk_name("a"), Update::PoolApplied(own), at(30));
    bench.plan(at(30));
    assert!(Arc::ptr_eq(&planned, &planned_for_b(&bench)));
}

#[test]
fn an_edit_is_reverted_at_once_and_reported_after_a_second() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.connect("a", mk_exported(), Vec::new());
    bench.connect("b", Vec::new(), Vec::new());
    bench.planner.set_leading(true);
    bench.plan(at(0));
    let key = mk_key("llm");
    let planned = planned_for_b(&bench);
    let show = |bench: &mut Bench, live: LiveImport, now| {
        let shown = Update::Imports(Change::Applied(live));
        bench.planner.update(&mk_name("b"), shown, now);
        bench.planner.publish(now, wall());
    };
    show(&mut bench, mk_live(&key, &planned, 1), at(100));
    assert!(bench.take("b", at(1_000)).is_none(), "as planned");
    while let Some((slot, ..)) = bench.take("a", at(1_000)) {
        bench.queues["a"].finish(&slot, Outcome::Done, at(1_000));
    }
    let mut edited = mk_live(&key, &planned, 2);
    edited.status.clusters.clear();
    show(&mut bench, edited, at(5_000));
    let (_, action, _) = bench.take("b", at(5_000)).expect("at once");
    assert_eq!(action, "apply");
    assert!(bench.take("a", at(5_999)).is_none(), "it may be reverted");
    bench.plan(at(6_000));
    let (_, action, _) = bench.take("a", at(6_000)).expect("it was not");
    assert_eq!(action, "set Exported");
}
