//! Random events against the controller without its tasks, judged by a naive oracle that was written apart from it.
//!
//! ```text
//!  users, faults ─► scripted API servers ── objects ─► projection ─► Planner ─► queues ─► Sender ── requests ─┐
//!                       ▲      └── what is stored ─► judge ◄─ oracle (what the controller was told)           │
//!                       └──────────── applied, merged; or refused, lost, answered too late ◄──────────────────┘
//! ```
//! All between the objects and the requests is what the program runs; time is a number. After each event the controller
//! settles, and all that it answers for is judged. `PROPTEST_CASES` scales it.

mod cluster;
mod judge;
mod oracle;
mod rig;
mod steps;

use std::time::Duration;

use proptest::{prelude::*, test_runner::RngSeed};
use serde_json::{Value, json};

use self::{
    cluster::{CrdState, Epp, Fault},
    judge::{GATEWAY, GATEWAYS_CONDITION},
    rig::Rig,
};
use crate::{
    fixtures::*,
    index::{flavour::Flavour, rules::Rules},
};

/// What can happen.
#[derive(Clone, Debug)]
enum Op {
    /// With so many seconds of drain; none: the operator's default.
    Export(usize, usize, Option<u32>),
    Unexport(usize, usize),
    Invalidate(usize, usize),
    Delete(usize, usize),
    /// Its target port is another.
    Port(usize, usize, u16),
    Epp(usize, Epp),
    /// There, going, or missing.
    Namespace(usize, Option<bool>),
    PoolsCrd(usize, CrdState),
    ImportCrd(usize, Flavour),
    ReinstallImportCrd(usize),
    /// Somebody changes an import.
    Edit(usize, usize, Edit),
    /// This becomes of the next write.
    Break(usize, Fault),
    Lose(usize, bool),
    Refuse(usize),
    Return(usize),
    Remove(usize),
    Readd(usize),
    Restart,
    Wait(u64),
}

/// What somebody does to an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Edit {
    Address,
    Port,
    EntryCondition,
    EntryLabel,
    DropEntry,
    AddEntry,
    /// It shall drain for ever.
    Drain,
    Summary,
    Generation,
    Exporting,
    /// What a gateway writes beside us.
    Gateway,
    Spec,
    Delete,
    /// It is another controller's, or another makes one.
    Stranger,
    /// Makes one that says nothing.
    Bare,
}

const MEMBERS: [&str; 5] = ["a", "b", "c", "d", "e"];
const POOLS: [&str; 2] = ["x", "y"];

// === impl Edit ===

impl Edit {
    fn make(self, import: &mut Value) {
        if self == Self::Stranger {
            import["metadata"]["labels"]["isthmus.dev/clusterset"] = "another".into();
        }
        if self == Self::Spec {
            let generation = &import["metadata"]["generation"];
            import["spec"] = json!({"edit": generation});
        }
        let Some(status) = import.get_mut("status") else {
            return;
        };
        match self {
            Self::Summary => status["conditions"][0]["status"] = "Unknown".into(),
            Self::Generation => status["observedGeneration"] = 99.into(),
            Self::Exporting => {
                for controller in status["controllers"].as_array_mut().into_iter().flatten() {
                    controller["exportingClusters"] = json!([{"name": "intruder"}]);
                }
            }
            Self::Gateway => {
                let condition = |type_: &str| {
                    json!({"type": type_, "status": "True", "reason": "Good", "message": "",
                        "lastTransitionTime": "2026-01-01T00:00:00Z"})
                };
                let parents =
                    json!([{"parentRef": {"name": "gw"}, "conditions": [condition("Accepted")]}]);
                add(
                    status,
                    "controllers",
                    &json!({"name": GATEWAY, "parents": parents}),
                    "name",
                );
                add(status, "conditions", &condition(GATEWAYS_CONDITION), "type");
            }
            Self::AddEntry => {
                let entry = json!({"name": "intruder", "routingMode": "EndpointMode", "targetPortNumber": 1});
                add(status, "clusters", &entry, "name");
            }
            _ => {}
        }
        let entries = status.get_mut("clusters").and_then(Value::as_array_mut);
        let Some(entries) = entries.filter(|entries| !entries.is_empty()) else {
            return;
        };
        let entry = &mut entries[0];
        match self {
            Self::Address => {
                if let Some(service) = entry.pointer_mut("/endpointPicker/service/0") {
                    service["addresses"] = json!(["192.0.2.66"]);
                }
            }
            Self::Port => entry["targetPortNumber"] = 6666.into(),
            Self::EntryCondition => entry["conditions"][0]["reason"] = "Edited".into(),
            Self::EntryLabel => entry["labels"] = json!({"team": "x"}),
            Self::Drain => entry["drainUntil"] = "2603-10-11T11:33:20Z".into(),
            Self::DropEntry => drop(entries.remove(0)),
            _ => {}
        }
    }
}

/// Adds to a list that is a map by this field.
fn add(status: &mut Value, field: &str, item: &Value, by: &str) {
    if let Some(list) = status.get_mut(field).and_then(Value::as_array_mut)
        && !list.iter().any(|one| one[by] == item[by])
    {
        list.push(item.clone());
    }
}

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
    let epp = prop_oneof![
        3 => (1..5_u8).prop_map(Epp::At),
        1 => (1..5_u8).prop_map(Epp::ClusterIp),
        1 => Just(Epp::Unassigned),
        1 => Just(Epp::Loopback),
        1 => Just(Epp::Idle(1)),
        1 => Just(Epp::NoMetrics),
        1 => Just(Epp::NoPort),
        1 => Just(Epp::Gone)
    ];
    let edit = proptest::sample::select(vec![
        Edit::Address,
        Edit::Port,
        Edit::EntryCondition,
        Edit::EntryLabel,
        Edit::DropEntry,
        Edit::AddEntry,
        Edit::Drain,
        Edit::Summary,
        Edit::Generation,
        Edit::Exporting,
        Edit::Gateway,
        Edit::Spec,
        Edit::Delete,
        Edit::Stranger,
        Edit::Bare,
    ]);
    let fault = prop_oneof![
        2 => Just(Fault::Conflict),
        1 => Just(Fault::Lost),
        1 => Just(Fault::Unanswered),
        3 => Just(Fault::Late)
    ];
    let drain = prop_oneof![Just(None), Just(Some(0)), Just(Some(20)), Just(Some(3600))];
    let namespace = prop_oneof![3 => Just(Some(false)), 1 => Just(Some(true)), 1 => Just(None)];
    let wait = proptest::sample::select(vec![1, 4, 12, 31, 61, 310, 4000]);
    let port = prop_oneof![Just(8000), Just(9000)];
    prop_oneof![
        8 => (m(), p(), drain).prop_map(|(m, p, drain)| Op::Export(m, p, drain)),
        3 => (m(), p()).prop_map(|(m, p)| Op::Unexport(m, p)),
        1 => (m(), p()).prop_map(|(m, p)| Op::Invalidate(m, p)),
        2 => (m(), p()).prop_map(|(m, p)| Op::Delete(m, p)),
        2 => (m(), p(), port).prop_map(|(m, p, port)| Op::Port(m, p, port)),
        3 => (m(), epp).prop_map(|(m, epp)| Op::Epp(m, epp)),
        2 => (m(), namespace).prop_map(|(m, state)| Op::Namespace(m, state)),
        2 => (m(), crd).prop_map(|(m, state)| Op::PoolsCrd(m, state)),
        2 => (m(), flavour).prop_map(|(m, flavour)| Op::ImportCrd(m, flavour)),
        1 => m().prop_map(Op::ReinstallImportCrd),
        8 => (m(), p(), edit).prop_map(|(m, p, edit)| Op::Edit(m, p, edit)),
        6 => (m(), fault).prop_map(|(m, fault)| Op::Break(m, fault)),
        3 => (m(), any::<bool>()).prop_map(|(m, denied)| Op::Lose(m, denied)),
        1 => m().prop_map(Op::Refuse),
        5 => m().prop_map(Op::Return),
        1 => m().prop_map(Op::Remove),
        3 => m().prop_map(Op::Readd),
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

fn check(members: usize, rules: Rules, ops: &[Op]) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime");
    // for the servers, and the deadlines of calls: nothing waits for it
    let _inside = runtime.enter();
    let mut rig = Rig::new(members, rules);
    rig.settle();
    for op in ops {
        let was_quiet = rig.is_quiet();
        let late: Vec<_> = rig
            .clusters
            .iter()
            .map(|one| one.wire.take_late())
            .collect();
        let was_quiet = was_quiet && late.iter().all(Vec::is_empty);
        rig.step(op);
        let mut writes = rig.settle();
        rig.relist_imports();
        writes.extend(rig.settle());
        if matches!(op, Op::Restart) && was_quiet {
            assert!(writes.is_empty(), "a restart writes (R27): {writes:?}");
        }
        rig.deliver(late);
        rig.settle();
        rig.judge(false);
        // whatever was taken for dirty, all that is known leads to the same (P2, P5, P6)
        let again = rig.compare_all();
        assert!(again.is_empty(), "writes again after {op:?}: {again:?}");
    }
    heal(&mut rig);
    rig.judge(true);
}

/// Everything works again, and what waited for time has had it.
fn heal(rig: &mut Rig) {
    for m in 0..rig.clusters.len() {
        for op in [
            Op::Return(m),
            Op::Namespace(m, Some(false)),
            Op::PoolsCrd(m, CrdState::Stands),
            Op::ImportCrd(m, Flavour::Superset),
            Op::Edit(m, 0, Edit::Delete),
            Op::Edit(m, 1, Edit::Delete),
        ] {
            rig.step(&op);
            rig.settle();
            rig.relist_imports();
            rig.settle();
        }
    }
    // doubts, then holds and drains end
    for _ in 0..3 {
        rig.step(&Op::Wait(4000));
        rig.settle();
    }
}

/// 48 runs of up to 40 events take some seconds, and are the same ones each time: what one run in thousands finds is
/// looked for with `PROPTEST_CASES`, which asks for more and for others, not by whoever tests something else.
fn config() -> ProptestConfig {
    let asked = ProptestConfig {
        max_shrink_iters: 1000,
        ..ProptestConfig::default()
    };
    if asked.cases == 256 {
        ProptestConfig {
            cases: 48,
            rng_seed: RngSeed::Fixed(1),
            ..asked
        }
    } else {
        asked
    }
}

/// What once went wrong.
#[rstest::rstest]
#[case(None, &[Op::ImportCrd(0, Flavour::Upstream), Op::Lose(1, false), Op::Export(2, 1, None), Op::Unexport(2, 1),
    Op::Return(1), Op::Restart])]
#[case(None, &[Op::Export(2, 0, None), Op::Unexport(2, 0), Op::Remove(2), Op::Lose(2, false), Op::Lose(0, false),
    Op::Wait(31)])]
// of an entry that ends, somebody owns a part
#[case(None, &[Op::Export(2, 1, Some(0)), Op::Lose(0, false), Op::Delete(2, 1), Op::Export(1, 1, None),
    Op::Edit(0, 1, Edit::Address), Op::Return(0)])]
// an entry that nobody can write again: its pool went with the CRD, before the controller started
#[case(None, &[Op::Export(1, 0, None), Op::PoolsCrd(1, CrdState::Reinstalled), Op::Restart, Op::Edit(0, 0, Edit::DropEntry)])]
#[case(None, &[Op::Export(1, 1, None), Op::Export(2, 1, None), Op::Unexport(1, 1), Op::Edit(0, 1, Edit::Address),
    Op::Wait(61)])]
#[case(FOUR_MINUTES, &[Op::Remove(2), Op::Remove(0), Op::Export(0, 0, None), Op::Restart, Op::Refuse(2)])]
#[case(FOUR_MINUTES, &[Op::Export(0, 0, None), Op::Lose(0, false), Op::Remove(0), Op::Return(0), Op::Remove(1), Op::Wait(12)])]
fn it_went_wrong_once(#[case] withdraw_after: Option<Duration>, #[case] ops: &[Op]) {
    let rules = Rules {
        isolation_guard: true,
        withdraw_after,
        drain: Duration::from_secs(30),
        ..mk_rules()
    };
    check(3, rules, ops);
}

const FOUR_MINUTES: Option<Duration> = Some(Duration::from_mins(4));

proptest! {
    #![proptest_config(config())]

    #[test]
    fn whatever_happens_imports_say_what_the_controller_was_told((members, rules, ops) in any_run()) {
        check(members, rules, &ops);
    }
}
