use std::time::Duration;

use jiff::Timestamp;

use super::{super::update::Update, *};
use crate::{
    fixtures::*,
    index::{flavour::Flavour, rules::Rules, update::Change},
};
use moment::Moment;

const NOW: Moment = Moment::from_millis(100_000);
const POOLS: usize = 10;

/// A controller that has just started, and two importers that carry ten pools of each of `a` and `b`, of which
/// these list this one alone.
fn mk_restarted(left: &str) -> World {
    let names: Vec<String> = (0..POOLS).map(|at| format!("p{at}")).collect();
    let mut before = mk_world(&["a", "b", "c", "d"]);
    for name in &names {
        export(&mut before, "a", name);
        export(&mut before, "b", name);
    }
    settle(&mut before, &mk_policy(), NOW);
    let mut world = World::new(mk_rules());
    for name in ["a", "b", "c", "d"] {
        world.add_member(&mk_name(name), NOW);
    }
    world.inventory_listed(NOW);
    for name in ["c", "d"] {
        let imports = member(&before, name).imports.items.values();
        connect(
            &mut world,
            name,
            Vec::new(),
            imports.cloned().collect(),
            NOW,
        );
    }
    for name in ["a", "b"] {
        let pools = vec![mk_pool(left, Some("ClusterSet"))];
        connect(&mut world, name, pools, Vec::new(), NOW);
    }
    world
}

#[test]
fn doubts_that_end_together_cost_one_pass() {
    let mut world = mk_restarted("p0");
    world.orphans.checked = 0;
    let changes = world.tick(NOW + STALE_AFTER);
    assert_eq!(changes.withdrawals.len(), 2 * (POOLS - 1));
    assert_eq!(world.orphans.checked, 2 * POOLS, "each import once");
}

#[test]
fn a_pool_that_shows_checks_its_own_imports_only() {
    let mut world = mk_restarted("p0");
    world.orphans.checked = 0;
    for _ in 0..5 {
        let gone = Update::PoolApplied(mk_pool("p1", None));
        let changes = world.update(&mk_name("a"), gone, NOW);
        assert!(changes.withdrawals.len() <= 1, "reported once");
    }
    assert!(world.orphans.checked <= 2, "{}", world.orphans.checked);
}

#[test]
fn a_first_list_checks_what_it_lists_only() {
    let mut world = mk_restarted("p0");
    let mut fresh = World::new(mk_rules());
    for (name, known) in &world.members {
        fresh.add_member(name, NOW);
        let imports = known.imports.items.values().cloned().collect();
        if name.as_str() != "a" {
            connect(&mut fresh, name.as_str(), Vec::new(), imports, NOW);
        }
    }
    world = fresh;
    world.orphans.checked = 0;
    let listed = Update::PoolsListed {
        pools: vec![mk_pool("p1", None)],
        odd: BTreeSet::new(),
        crd: mk_crd(),
    };
    let changes = world.update(&mk_name("a"), listed, NOW);
    assert_eq!(changes.withdrawals.len(), 1);
    assert_eq!(world.orphans.checked, 2);
}

/// An import that a member lists as ours, with entries of these names.
fn mk_forged(pool: &str, names: &[String]) -> LiveImport {
    let mut world = mk_world(&["x", "y"]);
    export(&mut world, "x", pool);
    settle(&mut world, &mk_policy(), NOW);
    let mut import = member(&world, "y").imports.items[&mk_key(pool)].clone();
    let entry = import.status.clusters[0].clone();
    import.status.clusters = names
        .iter()
        .map(|name| {
            let mut entry = entry.clone();
            entry.name.clone_from(name);
            entry
        })
        .collect();
    import
}

/// The same under other names.
fn rename(import: &LiveImport, pool: &str) -> LiveImport {
    LiveImport {
        key: mk_key(pool),
        ..import.clone()
    }
}

fn show(world: &mut World, importer: &str, imports: Vec<LiveImport>) -> Changes {
    let listed = Update::Imports(Change::Listed(imports));
    world.update(&mk_name(importer), listed, NOW)
}

/// Relists the imports of `t`, as through another CRD.
fn swap_crd(world: &mut World, flavour: Flavour) {
    let crd = Update::ImportCrd(mk_import_crd(flavour));
    world.update(&mk_name("t"), crd, NOW);
}

/// `a` exports nothing, which is known; `t` is in contact and has not listed its imports.
fn mk_before_the_list(rules: Rules) -> World {
    let mut world = World::new(rules);
    for name in ["a", "t"] {
        world.add_member(&mk_name(name), NOW);
    }
    world.recall([(mk_name("gone"), mk_record("cluster-gone"))].into());
    world.inventory_listed(NOW);
    for name in ["a", "t"] {
        connect(&mut world, name, Vec::new(), Vec::new(), NOW);
    }
    world.tick(NOW + STALE_AFTER);
    swap_crd(&mut world, Flavour::Upstream);
    world
}

#[test]
fn names_that_were_never_members_are_nobodys_exports() {
    let mut world = mk_before_the_list(mk_rules());
    let names: Vec<String> = (0..200).map(|n| format!("made-up-{n}")).collect();
    let names: Vec<String> = names.into_iter().chain(["gone".to_owned()]).collect();
    let changes = show(&mut world, "t", vec![mk_forged("p", &names)]);
    let reported: Vec<&str> = changes
        .withdrawals
        .iter()
        .map(|one| one.exporter.as_str())
        .collect();
    assert_eq!(
        reported,
        ["gone"],
        "it was a member, and left while none ran"
    );
    assert_eq!(world.orphans.reported.len(), 1);
}

#[test]
fn one_importer_reports_so_many_and_no_more_however_often_it_is_read() {
    let mut world = mk_before_the_list(mk_rules());
    let one = mk_forged("p", &["a".to_owned(), "gone".to_owned()]);
    let many: Vec<LiveImport> = (0..MAX_SHOWN)
        .map(|n| rename(&one, &format!("p{n}")))
        .collect();
    let changes = show(&mut world, "t", many.clone());
    assert_eq!(changes.withdrawals.len(), MAX_SHOWN);
    swap_crd(&mut world, Flavour::Superset);
    assert!(show(&mut world, "t", many).withdrawals.is_empty());
    assert_eq!(world.orphans.reported.len(), MAX_SHOWN);
    // another importer still reports
    world.add_member(&mk_name("c"), NOW);
    let other = mk_forged("other", &["a".to_owned()]);
    assert_eq!(show(&mut world, "c", vec![other]).withdrawals.len(), 1);
    // and a removed member takes its reports with it
    world.forget(&mk_name("t"));
    assert_eq!(world.orphans.reported.len(), 1);
    world.forget(&mk_name("a"));
    assert!(world.orphans.reported.is_empty());
    assert!(world.orphans.counts.values().all(|count| *count == 0));
}

#[test]
fn forged_entries_take_no_drain_from_what_a_member_withdraws() {
    const FORGED: usize = 3000;
    let rules = Rules {
        drain: Duration::from_secs(30),
        ..mk_rules()
    };
    let mut world = mk_before_the_list(rules);
    world.set_wall(NOW, Timestamp::UNIX_EPOCH);
    let one = mk_forged("p", &["a".to_owned()]);
    let many: Vec<LiveImport> = (0..FORGED)
        .map(|n| rename(&one, &format!("p{n}")))
        .collect();
    assert_eq!(show(&mut world, "t", many).withdrawals.len(), FORGED);
    let until = |world: &World, pool: &str| member(world, "a").pools.draining.until(&mk_key(pool));
    assert!(until(&world, "p0").is_some(), "it is an ended export too");
    export(&mut world, "a", "real");
    let ended = Update::PoolApplied(mk_pool("real", None));
    let changes = world.update(&mk_name("a"), ended, NOW);
    assert_eq!(changes.withdrawals.len(), 1);
    assert!(until(&world, "real").is_some());
    // all of them end
    world.tick(NOW + Duration::from_secs(31));
    assert_eq!(until(&world, "p0").or(until(&world, "real")), None);
}
