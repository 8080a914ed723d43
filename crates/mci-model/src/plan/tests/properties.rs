//! What holds for any sequence of events.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crd::{RoutingMode, ServiceType};
use proptest::prelude::*;

use super::super::desired;
use crate::{
    fixtures::*,
    index::{
        World, facts,
        member::Fault,
        update::{Change, ParentKind, Update},
    },
};
use moment::Moment;

const NOW: Moment = Moment::from_millis(100_000);

/// What can happen to three members.
#[derive(Clone, Debug)]
enum Op {
    Export(usize, usize),
    Withdraw(usize, usize),
    Delete(usize, usize),
    Lose(usize),
    Return(usize),
    CrdGone(usize),
    Endpoints(usize, bool),
    ExportByParents(usize, usize),
    /// The member's Gateways are listed, with one that is programmed or not.
    Gateways(usize, bool),
    /// Its routes are listed, with one to the first pool or none.
    Routes(usize, bool),
    /// It serves no Gateways, or no routes.
    ParentsHidden(usize, ParentKind),
    ParentsUnwatched(usize),
    Wait,
    /// The controller restarts: silent members stay unknown to it.
    Restart,
}

/// What the API server of a silent member holds, for when it is met again.
type Held = BTreeMap<usize, (Vec<facts::PoolFacts>, Vec<facts::LiveImport>)>;

/// What is so, whatever the controller knows.
#[derive(Default)]
struct Truth {
    /// What the API servers hold.
    pools: BTreeMap<(usize, usize), facts::PoolFacts>,
    held: Held,
    /// Members whose pools CRD is gone.
    crd_gone: BTreeSet<usize>,
    /// Exports that their owners ended: importers that were silent learn of it later.
    ended: BTreeSet<(usize, usize)>,
}

const MEMBERS: [&str; 3] = ["a", "b", "c"];
const POOLS: [&str; 2] = ["x", "y"];

fn any_op() -> impl Strategy<Value = Op> {
    let (m, p) = (0..MEMBERS.len(), 0..POOLS.len());
    prop_oneof![
        (m.clone(), p.clone()).prop_map(|(m, p)| Op::Export(m, p)),
        (m.clone(), p.clone()).prop_map(|(m, p)| Op::Withdraw(m, p)),
        (m.clone(), p).prop_map(|(m, p)| Op::Delete(m, p)),
        m.clone().prop_map(Op::Lose),
        m.clone().prop_map(Op::Return),
        m.clone().prop_map(Op::CrdGone),
        (m.clone(), any::<bool>()).prop_map(|(m, ready)| Op::Endpoints(m, ready)),
        (m.clone(), 0..POOLS.len()).prop_map(|(m, p)| Op::ExportByParents(m, p)),
        (m.clone(), any::<bool>()).prop_map(|(m, programmed)| Op::Gateways(m, programmed)),
        (m.clone(), any::<bool>()).prop_map(|(m, one)| Op::Routes(m, one)),
        (m.clone(), any::<bool>()).prop_map(|(m, gateways)| Op::ParentsHidden(
            m,
            if gateways {
                ParentKind::Gateways
            } else {
                ParentKind::Routes
            }
        )),
        m.prop_map(Op::ParentsUnwatched),
        Just(Op::Wait),
        Just(Op::Restart),
    ]
}

/// What the operations make of the world.
fn run(world: &mut World, truth: &mut Truth, op: &Op, now: &mut Moment) {
    let update = |world: &mut World, m: usize, update| {
        world.update(&mk_name(MEMBERS[m]), update, *now);
    };
    let silent = |world: &World, m: usize| !member(world, MEMBERS[m]).contact.is_up();
    match *op {
        Op::Export(m, p) if !silent(world, m) => {
            truth.ended.remove(&(m, p));
            let pool = mk_pool(POOLS[p], Some("ClusterSet"));
            update(world, m, truth.apply(m, p, pool));
        }
        Op::Withdraw(m, p) if !silent(world, m) => {
            let pool = mk_pool(POOLS[p], None);
            update(world, m, truth.apply(m, p, pool));
            truth.ended.insert((m, p));
        }
        Op::Delete(m, p) if !silent(world, m) => {
            let key = mk_key(POOLS[p]);
            truth.pools.remove(&(m, p));
            update(world, m, Update::PoolDeleted { key, crd: mk_crd() });
            truth.ended.insert((m, p));
        }
        Op::CrdGone(m) if !silent(world, m) => {
            truth.crd_gone.insert(m);
            truth.pools.retain(|(of, _), _| *of != m);
            for pool in POOLS {
                let (key, crd) = (mk_key(pool), facts::CrdCheck::Doubtful);
                update(world, m, Update::PoolDeleted { key, crd });
            }
        }
        Op::Endpoints(m, ready) if !silent(world, m) => {
            let slice = mk_slice(if ready { &["10.0.0.1"] } else { &[] });
            update(world, m, Update::Slices(Change::Applied(slice)));
        }
        Op::ExportByParents(m, p) if !silent(world, m) => {
            truth.ended.remove(&(m, p));
            let pool = mk_parent_pool(POOLS[p]);
            update(world, m, truth.apply(m, p, pool));
        }
        Op::Gateways(m, programmed) if !silent(world, m) => {
            let mut gateway = mk_gateway("gw");
            if !programmed {
                gateway.programmed = facts::Programmed::No;
            }
            update(world, m, Update::Gateways(Change::Listed(vec![gateway])));
        }
        Op::Routes(m, one) if !silent(world, m) => {
            let route = one.then(|| mk_route("r", "gw", POOLS[0]));
            update(
                world,
                m,
                Update::Routes(Change::Listed(route.into_iter().collect())),
            );
        }
        Op::ParentsHidden(m, kind) if !silent(world, m) => {
            update(world, m, Update::ParentsHidden(kind));
        }
        Op::ParentsUnwatched(m) if !silent(world, m) => {
            update(world, m, Update::ParentsUnwatched);
        }
        Op::Lose(m) => update(world, m, Update::Lost(Fault::ConnectionLost)),
        Op::Return(m) => match truth.held.remove(&m) {
            Some((pools, imports)) => {
                let crd = truth.crd(m);
                connect_under(world, MEMBERS[m], crd, pools, imports, *now);
            }
            None => update(world, m, Update::Live),
        },
        Op::Restart => restart(world, truth, *now),
        Op::Wait => {
            *now = *now + Duration::from_secs(30);
            world.tick(*now);
        }
        _ => {}
    }
}

/// A new controller over the same clusters: it meets those that answer.
fn restart(world: &mut World, truth: &mut Truth, now: Moment) {
    let mut fresh = World::new(mk_rules());
    for (m, name) in MEMBERS.iter().enumerate() {
        fresh.add_member(&mk_name(name), now);
        let old = member(world, name);
        // not by the index of the old controller: what that lost is there all the same
        let pools = truth.of(m).cloned().collect();
        let imports = old.imports.items.values().cloned().collect();
        if old.contact.is_up() {
            connect_under(&mut fresh, name, truth.crd(m), pools, imports, now);
        } else {
            truth.held.entry(m).or_insert((pools, imports));
        }
    }
    *world = fresh;
}

/// Whether each entry of an import has only the fields of its mode.
fn is_of_one_mode(world: &World, importer: &str, pool: &str) -> bool {
    let import = member(world, importer).imports.items.get(&mk_key(pool));
    let mut entries = import.into_iter().flat_map(|live| &live.status.clusters);
    entries.all(|entry| match entry.routing_mode {
        RoutingMode::EndpointMode => entry.endpoint_picker.is_some() && entry.parents.is_empty(),
        RoutingMode::ParentMode => entry.endpoint_picker.is_none(),
    })
}

// === impl Truth ===

impl Truth {
    /// The owner applies a pool; the event that follows.
    fn apply(&mut self, m: usize, p: usize, pool: facts::PoolFacts) -> Update {
        self.pools.insert((m, p), pool.clone());
        Update::PoolApplied(pool)
    }

    /// The pools of a member.
    fn of(&self, m: usize) -> impl Iterator<Item = &facts::PoolFacts> {
        let pools = self.pools.iter();
        pools
            .filter(move |((of, _), _)| *of == m)
            .map(|(_, pool)| pool)
    }

    fn crd(&self, m: usize) -> facts::CrdCheck {
        if self.crd_gone.contains(&m) {
            facts::CrdCheck::Doubtful
        } else {
            mk_crd()
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// P3, P4, P2: an entry goes only by its exporter's will, nobody imports itself, and planning twice writes once.
    #[test]
    fn no_entry_goes_without_evidence(ops in proptest::collection::vec(any_op(), 1..40)) {
        let mut world = mk_world(&MEMBERS);
        let policy = mk_policy();
        let mut now = Moment::from_millis(0);
        let mut truth = Truth::default();
        for op in &ops {
            let before: Vec<Vec<Vec<String>>> = MEMBERS
                .iter()
                .map(|m| POOLS.iter().map(|p| entries(&world, m, &mk_key(p))).collect())
                .collect();
            run(&mut world, &mut truth, op, &mut now);
            settle(&mut world, &policy, now);
            prop_assert_eq!(write_once(&mut world, &policy, now), 0);
            for (m, importer) in MEMBERS.iter().enumerate() {
                let known = member(&world, importer);
                if known.contact.is_up() {
                    let records = known.pools.records.iter();
                    let known = records.filter(|(_, record)| record.doubt.is_none());
                    let known: Vec<_> = known.map(|(key, _)| key.clone()).collect();
                    let real: Vec<_> = truth.of(m).map(|pool| pool.key.clone()).collect();
                    prop_assert_eq!(known, real, "pools of {} by {:?}", importer, op);
                }
                for (p, pool) in POOLS.iter().enumerate() {
                    let after = entries(&world, importer, &mk_key(pool));
                    prop_assert!(is_of_one_mode(&world, importer, pool));
                    prop_assert!(!after.iter().any(|entry| entry == importer));
                    // of an importer that the new controller has not met we see nothing
                    if !member(&world, importer).imports_known() {
                        continue;
                    }
                    for exporter in &before[m][p] {
                        let ended = truth.ended.iter().any(|&(em, ep)| MEMBERS[em] == exporter && ep == p);
                        let kept = after.contains(exporter);
                        prop_assert!(kept || ended, "{} lost {} of {} by {:?}", importer, pool, exporter, op);
                    }
                }
            }
        }
    }

    /// P1: updates of different members and kinds in any order lead to the same plan.
    #[test]
    fn the_plan_ignores_the_order_of_events(order in Just((0..18).collect::<Vec<usize>>()).prop_shuffle()) {
        let make = |order: &[usize]| {
            let mut world = mk_world(&MEMBERS);
            for index in order {
                let name = mk_name(MEMBERS[index / 6]);
                let update = match index % 6 {
                    0 => Update::PoolApplied(mk_pool("x", Some("ClusterSet"))),
                    1 => Update::Services(Change::Applied(mk_service(ServiceType::ClusterIP, "10.0.0.7"))),
                    2 => Update::PoolApplied(mk_parent_pool("y")),
                    3 => Update::Gateways(Change::Listed(vec![mk_gateway("gw")])),
                    4 => Update::Routes(Change::Listed(vec![mk_route("r", "gw", "y")])),
                    _ => Update::Slices(Change::Applied(mk_slice(&["10.0.0.8", "10.0.0.9"]))),
                };
                world.update(&name, update, NOW);
            }
            desired(&world, &mk_policy(), NOW)
        };
        let straight: Vec<usize> = (0..18).collect();
        prop_assert_eq!(make(&order), make(&straight));
    }
}

#[test]
fn a_restart_under_a_crd_that_is_gone_ends_nothing() {
    let mut world = mk_world(&MEMBERS);
    let mut truth = Truth::default();
    let mut now = Moment::from_millis(0);
    for op in [Op::Export(0, 0), Op::CrdGone(0), Op::Restart] {
        run(&mut world, &mut truth, &op, &mut now);
        settle(&mut world, &mk_policy(), now);
    }
    assert_eq!(entries(&world, "b", &mk_key("x")), ["a"]);
}
