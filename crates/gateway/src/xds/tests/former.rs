//! The hop of a mode that the only cluster of an import has no more.

use std::sync::Arc;
use std::time::Duration;

use moment::Moment;
use rstest::rstest;

use crate::fixture::include_local;
use crate::world::ImportedCluster;
use crate::xds::former::OUTLIVES;
use crate::xds::{Resource, Served};

use super::imports::show_shares;
use super::*;

/// When the mode changes.
const CHANGED: Moment = Moment::from_millis(1_000);

fn by_picker(name: &str) -> ImportedCluster {
    mk_import(&[(name, "10.2.0.9")]).clusters.remove(0)
}

fn by_gateway(name: &str) -> ImportedCluster {
    mk_parent_entry(name, "10.3.0.7", &[80], &[])
}

fn mk_world_of(entries: &[ImportedCluster]) -> World {
    let mut world = mk_world();
    let import = world.imports.get_mut(&key("llm")).unwrap();
    import.clusters = entries.to_vec();
    world
}

fn plan(served: &mut Served, world: &World, at: Moment) {
    let (models, wanted) = build(world, &mk_settings());
    let selection = mk_selection(&wanted);
    let (options, endpoints) = (mk_options(), mk_endpoints());
    served.plan(
        &key("gw"),
        models.first(),
        &options,
        &endpoints,
        &selection,
        at,
    );
    served.assign_all(&endpoints, &selection);
}

fn snapshot(served: &Served) -> Arc<Snapshot> {
    Arc::clone(&served.snapshots[&key("gw")])
}

/// Of a Gateway whose Envoys have always had this.
fn from_nothing(world: &World) -> Arc<Snapshot> {
    let mut served = Served::default();
    plan(&mut served, world, CHANGED);
    snapshot(&served)
}

/// After the first mode, and the second one.
fn changed(first: &ImportedCluster, second: &ImportedCluster) -> Served {
    let mut served = Served::default();
    plan(
        &mut served,
        &mk_world_of(std::slice::from_ref(first)),
        Moment::START,
    );
    plan(
        &mut served,
        &mk_world_of(std::slice::from_ref(second)),
        CHANGED,
    );
    served
}

fn expire(served: &mut Served, world: &World, at: Moment) -> bool {
    let (_, wanted) = build(world, &mk_settings());
    served.expire(&mk_endpoints(), &mk_selection(&wanted), at)
}

#[rstest]
#[case::to_parents(by_picker("east"), by_gateway("east"), ["east/@parent 1000", "east 1"])]
#[case::to_endpoints(by_gateway("east"), by_picker("east"), ["east 1000", "east/@parent 1"])]
fn former_hop_comes_after_the_new_one_until_its_time_is_over(
    #[case] first: ImportedCluster,
    #[case] second: ImportedCluster,
    #[case] shares: [&str; 2],
) {
    let worlds = [&first, &second].map(|entry| mk_world_of(std::slice::from_ref(entry)));
    let mut served = changed(&first, &second);
    let during = snapshot(&served);
    assert_eq!(show_shares(&during), shares.map(|one| [one]));
    // all that both lead to is there, as it was
    for alone in worlds.each_ref().map(from_nothing) {
        for kind in Kind::ALL {
            let is_there = |(name, one): (&String, &Arc<Resource>)| {
                // it leads to both, and the pool's is another matter
                name == "import/ns/llm" || during.of(kind).get(name) == Some(one)
            };
            assert!(alone.of(kind).iter().all(is_there), "{kind:?}");
        }
    }
    // another change of the Gateway does not prolong it
    let last = CHANGED.plus(OUTLIVES);
    let before = Moment::from_millis(999).plus(OUTLIVES);
    plan(&mut served, &worlds[1], before);
    assert_eq!(snapshot(&served), during);
    assert!(!expire(&mut served, &worlds[1], before));
    assert!(expire(&mut served, &worlds[1], last));
    assert_eq!(snapshot(&served), from_nothing(&worlds[1]));
    assert!(!expire(&mut served, &worlds[1], last.plus(OUTLIVES)));
}

#[test]
fn hop_of_a_mode_that_is_back_is_the_former_one_no_more() {
    let mut served = changed(&by_picker("east"), &by_gateway("east"));
    let world = mk_world_of(&[by_picker("east")]);
    plan(&mut served, &world, CHANGED.plus(Duration::from_secs(1)));
    let shares = show_shares(&snapshot(&served));
    assert_eq!(shares, [["east 1000"], ["east/@parent 1"]]);
    // of that there is one as long as the last change says
    let first = CHANGED.plus(OUTLIVES);
    assert!(!expire(&mut served, &world, first));
    assert!(expire(
        &mut served,
        &world,
        first.plus(Duration::from_secs(1))
    ));
}

/// A cluster that cannot take requests in its new mode yet is still one whose owner exports.
#[test]
fn former_hop_gets_all_while_the_new_mode_is_not_ready() {
    let mut unready = by_gateway("east");
    unready.parents[0].unprogrammed = true;
    let served = changed(&by_picker("east"), &unready);
    assert_eq!(show_shares(&snapshot(&served)), [["east 1"]]);
}

#[rstest]
#[case::withdrawn(vec![], None)]
#[case::another_cluster_there(vec![by_gateway("east"), by_gateway("south")], None)]
#[case::another_cluster_instead(vec![by_gateway("south")], None)]
#[case::draining(vec![ImportedCluster { drain_until: Some(9), ..by_gateway("east") }], Some("hop/ns/llm/east"))]
fn nothing_new_goes_to_a_former_hop_once_it_is_not_the_only_way_or_not_wanted(
    #[case] entries: Vec<ImportedCluster>,
    #[case] stays: Option<&str>,
) {
    let mut served = changed(&by_picker("east"), &by_gateway("east"));
    let world = mk_world_of(&entries);
    plan(&mut served, &world, CHANGED);
    let (during, alone) = (snapshot(&served), from_nothing(&world));
    assert_eq!(show_shares(&during), show_shares(&alone));
    let more = during.listeners.keys();
    let more: Vec<_> = more
        .filter(|name| !alone.listeners.contains_key(*name))
        .collect();
    assert_eq!(more, stays.into_iter().collect::<Vec<_>>());
}

/// A Gateway that was deleted and made again is another one.
#[test]
fn former_hop_is_none_of_a_gateway_that_is_made_again() {
    let mut served = Served::default();
    plan(&mut served, &mk_world_of(&[by_picker("east")]), CHANGED);
    let mut world = mk_world_of(&[by_gateway("east")]);
    world.gateways.get_mut(&key("gw")).unwrap().uid = "another".into();
    plan(&mut served, &world, CHANGED);
    assert_eq!(snapshot(&served), from_nothing(&world));
}

/// Its clusters are those of the pool.
#[test]
fn pool_of_this_cluster_leaves_no_former_hop() {
    let mut local = mk_world_of(&[]);
    include_local(&mut local);
    let mut served = Served::default();
    plan(&mut served, &local, CHANGED);
    let world = mk_world_of(&[by_gateway("west")]);
    plan(&mut served, &world, CHANGED);
    assert_eq!(snapshot(&served), from_nothing(&world));
}
