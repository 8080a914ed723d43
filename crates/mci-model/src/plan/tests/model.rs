//! Random events against the index and the plan, judged by a naive oracle that was written apart from both.
//!
//! Clusters are kept as their API servers would hold them; the controller is told what a watch would tell, and no more.
//! After each event its plan is written into the clusters in contact. `PROPTEST_CASES` scales it.

mod bench;
mod clusters;
mod oracle;
mod steps;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crd::conditions;
use proptest::prelude::*;

use self::{
    bench::{Bench, index},
    clusters::CrdState,
};
use super::super::{ImportPlan, KeyPlan, PoolPlan, desired};
use crate::{
    fixtures::*,
    index::{flavour::Flavour, rules::Rules},
    name::Key,
};

/// What can happen.
#[derive(Clone, Debug)]
enum Op {
    /// With so many seconds of drain; none: the operator's default.
    Export(usize, usize, Option<u32>),
    Unexport(usize, usize),
    Invalidate(usize, usize),
    Delete(usize, usize),
    /// There, going, or missing.
    Namespace(usize, Option<bool>),
    PoolsCrd(usize, CrdState),
    ImportCrd(usize, Flavour),
    ReinstallImportCrd(usize),
    Lose(usize, bool),
    Refuse(usize),
    Return(usize),
    Remove(usize),
    Readd(usize),
    Forge(usize, usize, usize),
    Restart,
    Wait(u64),
}

const MEMBERS: [&str; 5] = ["a", "b", "c", "d", "e"];
const POOLS: [&str; 2] = ["x", "y"];

fn any_op(members: usize) -> impl Strategy<Value = Op> {
    let m = move || 0..members;
    let p = || 0..POOLS.len();
    let crd = prop_oneof![
        Just(CrdState::Stands),
        Just(CrdState::Reinstalled),
        Just(CrdState::Going),
        Just(CrdState::Gone),
        Just(CrdState::GoneUnseen)
    ];
    let flavour = prop_oneof![
        3 => Just(Flavour::Superset),
        1 => Just(Flavour::Upstream),
        1 => Just(Flavour::Absent)
    ];
    let drain = prop_oneof![Just(None), Just(Some(0)), Just(Some(20)), Just(Some(3600))];
    let namespace = prop_oneof![3 => Just(Some(false)), 1 => Just(Some(true)), 1 => Just(None)];
    let wait = prop_oneof![
        Just(1),
        Just(4),
        Just(12),
        Just(31),
        Just(61),
        Just(310),
        Just(4000)
    ];
    prop_oneof![
        6 => (m(), p(), drain).prop_map(|(m, p, drain)| Op::Export(m, p, drain)),
        3 => (m(), p()).prop_map(|(m, p)| Op::Unexport(m, p)),
        1 => (m(), p()).prop_map(|(m, p)| Op::Invalidate(m, p)),
        2 => (m(), p()).prop_map(|(m, p)| Op::Delete(m, p)),
        2 => (m(), namespace).prop_map(|(m, state)| Op::Namespace(m, state)),
        2 => (m(), crd).prop_map(|(m, state)| Op::PoolsCrd(m, state)),
        2 => (m(), flavour).prop_map(|(m, flavour)| Op::ImportCrd(m, flavour)),
        1 => m().prop_map(Op::ReinstallImportCrd),
        3 => (m(), any::<bool>()).prop_map(|(m, denied)| Op::Lose(m, denied)),
        1 => m().prop_map(Op::Refuse),
        5 => m().prop_map(Op::Return),
        1 => m().prop_map(Op::Remove),
        3 => m().prop_map(Op::Readd),
        1 => (m(), m(), p()).prop_map(|(t, m, p)| Op::Forge(t, m, p)),
        2 => Just(Op::Restart),
        5 => wait.prop_map(Op::Wait),
    ]
}

fn any_rules() -> impl Strategy<Value = Rules> {
    (any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(guard, impatient, drain)| Rules {
        isolation_guard: guard,
        withdraw_after: impatient.then_some(Duration::from_mins(4)),
        drain: Duration::from_secs(if drain { 30 } else { 0 }),
        ..mk_rules()
    })
}

fn any_run() -> impl Strategy<Value = (usize, Rules, Vec<Op>)> {
    (3..=MEMBERS.len(), any_rules()).prop_flat_map(|(members, rules)| {
        let ops = proptest::collection::vec(any_op(members), 1..40);
        (Just(members), Just(rules), ops)
    })
}

fn check(members: usize, rules: Rules, ops: &[Op]) -> Result<(), TestCaseError> {
    let mut bench = Bench::new(members, rules);
    for op in ops {
        let mut before = bench.entries();
        let was_quiet = bench.settle() == 0 && bench.is_quiet(&before);
        bench.step(op);
        if let Op::ImportCrd(m, Flavour::Superset) = op {
            // what is stored shows again, and was not seen yet
            before[*m] = bench.entries().swap_remove(*m);
            bench.clusters[*m].excused = false;
        }
        let mut writes = bench.settle();
        bench.relist_imports();
        writes += bench.settle();
        // P5: whatever was dirty, the whole is the fold of its keys
        let whole = desired(&bench.world, &mk_policy(), bench.now);
        for (key, plan) in &whole {
            let cached = bench.cache.get(key).cloned().unwrap_or_default();
            for m in bench.world.members.keys() {
                // a pool that nobody exports is none
                let word = |plan: &KeyPlan| {
                    let pool = plan.pools.get(m).cloned();
                    pool.filter(|pool| *pool != PoolPlan::NoEntry)
                };
                let same =
                    cached.imports.get(m) == plan.imports.get(m) && word(&cached) == word(plan);
                prop_assert!(same, "the plan of {} in {} is old after {:?}", key, m, op);
            }
        }
        check_marks(&bench, &whole)?;
        // P2, P6
        prop_assert_eq!(bench.settle(), 0, "writes again after {:?}", op);
        if matches!(op, Op::Restart) && was_quiet {
            prop_assert_eq!(writes, 0, "a restart writes");
        }
        let after = bench.entries();
        for (t, pools) in after.iter().enumerate() {
            for (p, found) in pools.iter().enumerate() {
                // P4
                prop_assert!(
                    !found.contains_key(MEMBERS[t]),
                    "{} lists itself",
                    MEMBERS[t]
                );
                // what a removed member imports is taken away
                if bench.clusters[t].excused || !bench.clusters[t].listed {
                    continue;
                }
                // P3
                for (exporter, drains) in &before[t][p] {
                    let may = bench
                        .oracle
                        .may_go(index(&mk_name(exporter)), p, *drains, bench.now);
                    prop_assert!(
                        found.contains_key(exporter) || may,
                        "{} lost {} of {} by {:?}",
                        MEMBERS[t],
                        exporter,
                        POOLS[p],
                        op
                    );
                }
            }
        }
        for cluster in &mut bench.clusters {
            cluster.excused = false;
        }
    }
    settle_all(&mut bench)
}

/// Entries of pools whose CRD is not served say so.
fn check_marks(bench: &Bench, whole: &BTreeMap<Key, KeyPlan>) -> Result<(), TestCaseError> {
    for (key, plan) in whole {
        let imports = plan.imports.values();
        let planned = imports.filter_map(|import| match import {
            ImportPlan::Present(planned) => Some(planned),
            ImportPlan::Absent | ImportPlan::Hold(_) => None,
        });
        let entries = planned.flat_map(|planned| &planned.status.clusters);
        for entry in entries.filter(|entry| entry.drain_until.is_none()) {
            let exporter = mk_name(&entry.name);
            let known = &bench.world.members[&exporter];
            let served = bench.clusters[index(&exporter)].serves_pools();
            let reachable = conditions::is_true(&entry.conditions, conditions::REACHABLE);
            prop_assert!(
                served || !known.contact.is_up() || !reachable,
                "{} of {} is as if its CRD were there",
                key,
                exporter
            );
        }
    }
    Ok(())
}

/// Everything heals: then imports are what the clusters ask for, and nothing else.
fn settle_all(bench: &mut Bench) -> Result<(), TestCaseError> {
    for m in 0..bench.clusters.len() {
        for op in [
            Op::Return(m),
            Op::Namespace(m, Some(false)),
            Op::PoolsCrd(m, CrdState::Stands),
            Op::ImportCrd(m, Flavour::Superset),
        ] {
            bench.step(&op);
            bench.settle();
            bench.relist_imports();
            bench.settle();
        }
    }
    // doubts, then holds and drains end
    for _ in 0..3 {
        bench.step(&Op::Wait(4000));
        bench.settle();
    }
    for (t, pools) in bench.entries().iter().enumerate() {
        for (p, found) in pools.iter().enumerate() {
            let exporters: BTreeSet<&str> = (0..bench.clusters.len())
                .filter(|&m| m != t && bench.clusters[m].listed && bench.clusters[t].listed)
                .filter(|&m| bench.clusters[m].exports(POOLS[p]))
                .map(|m| MEMBERS[m])
                .collect();
            let found: BTreeSet<&str> = found.keys().map(String::as_str).collect();
            if bench.clusters[t].listed {
                prop_assert_eq!(&found, &exporters, "{} of {}", POOLS[p], MEMBERS[t]);
                let import = bench.clusters[t].has_import(&mk_key(POOLS[p]));
                prop_assert_eq!(import, !exporters.is_empty());
            }
        }
    }
    let others = bench.clusters.iter().filter(|one| one.listed).count();
    for (key, plan) in desired(&bench.world, &mk_policy(), bench.now) {
        for (exporter, pool) in &plan.pools {
            if let PoolPlan::Exported { condition, settled } = pool
                && others > 1
                && condition.reason != "NotSupported"
            {
                prop_assert!(
                    *settled && condition.reason == "Exported",
                    "{} of {}: {:?}",
                    key,
                    exporter,
                    condition
                );
            }
        }
    }
    Ok(())
}

/// 64 runs of up to 40 events take a few seconds; `PROPTEST_CASES` asks for more.
fn config() -> ProptestConfig {
    let asked = ProptestConfig::default();
    let cases = if asked.cases == 256 { 64 } else { asked.cases };
    ProptestConfig {
        cases,
        max_shrink_iters: 2000,
        ..asked
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn no_sequence_of_events_withdraws_without_evidence((members, rules, ops) in any_run()) {
        check(members, rules, &ops)?;
    }
}
