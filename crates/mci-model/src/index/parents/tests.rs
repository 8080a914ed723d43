use super::*;
use crate::{
    fixtures::*,
    index::{World, interest::Interest, memory::MEMBER_MEMORY, update::Update},
};
use moment::Moment;

const NOW: Moment = Moment::from_millis(100_000);

fn update(world: &mut World, update: Update) -> Vec<Key> {
    let changes = world.update(&mk_name("a"), update, NOW);
    assert!(!changes.dirty.all && changes.withdrawals.is_empty());
    changes.dirty.keys.into_iter().collect()
}

fn gateways(gateways: Vec<GatewayFacts>) -> Update {
    Update::Gateways(Change::Listed(gateways))
}

fn routes(routes: Vec<RouteFacts>) -> Update {
    Update::Routes(Change::Listed(routes))
}

/// `x` and `y` in ParentMode by Gateways `gw` and `other`, `z` in EndpointMode, `quiet` not exported.
fn mk_exporter() -> World {
    let mut world = mk_world(&["a"]);
    let mut y = mk_parent_pool("y");
    y.parents = vec![mk_key("other")];
    let mut z = mk_pool("z", Some("ClusterSet"));
    z.parents = vec![mk_key("gw")];
    let mut quiet = mk_pool("quiet", None);
    quiet.parents = vec![mk_key("gw")];
    for pool in [mk_parent_pool("x"), y, z, quiet] {
        world.update(&mk_name("a"), Update::PoolApplied(pool), NOW);
    }
    world
}

#[test]
fn what_exports_in_parent_mode_concerns_is_planned_once_both_kinds_are_known() {
    let mut world = mk_exporter();
    assert_eq!(
        update(&mut world, gateways(vec![mk_gateway("gw")])),
        [mk_key("x")]
    );
    assert!(!member(&world, "a").parents.known());
    assert_eq!(
        update(&mut world, routes(Vec::new())),
        [mk_key("x"), mk_key("y")]
    );
    assert!(member(&world, "a").parents.known());
    // the same again changes nothing
    assert!(update(&mut world, gateways(vec![mk_gateway("gw")])).is_empty());
    assert!(update(&mut world, routes(Vec::new())).is_empty());
}

#[test]
fn a_gateway_concerns_the_pools_that_it_accepted() {
    let mut world = mk_exporter();
    update(
        &mut world,
        gateways(vec![mk_gateway("gw"), mk_gateway("other")]),
    );
    update(&mut world, routes(Vec::new()));
    let mut moved = mk_gateway("gw");
    moved.addresses = vec!["192.0.2.99".to_owned()];
    let applied = Update::Gateways(Change::Applied(moved.clone()));
    assert_eq!(update(&mut world, applied.clone()), [mk_key("x")]);
    assert!(update(&mut world, applied).is_empty());
    let stranger = Update::Gateways(Change::Applied(mk_gateway("stranger")));
    assert!(update(&mut world, stranger).is_empty());
    // a list finds the deletion that a watch missed
    assert_eq!(update(&mut world, gateways(vec![moved])), [mk_key("y")]);
    let deleted = Update::Gateways(Change::Deleted(mk_key("gw")));
    assert_eq!(update(&mut world, deleted.clone()), [mk_key("x")]);
    assert!(update(&mut world, deleted).is_empty());
}

#[test]
fn a_route_concerns_what_it_leads_to_before_and_after() {
    let mut world = mk_exporter();
    update(&mut world, gateways(vec![mk_gateway("gw")]));
    update(&mut world, routes(vec![mk_route("r", "gw", "x")]));
    let found = |world: &World, pool: &str| {
        let routes = member(world, "a").parents.routes_to(&mk_key(pool));
        routes.map(|routes| routes.len())
    };
    assert_eq!((found(&world, "x"), found(&world, "y")), (Some(1), Some(0)));
    let turned = Update::Routes(Change::Applied(mk_route("r", "gw", "y")));
    assert_eq!(update(&mut world, turned), [mk_key("x"), mk_key("y")]);
    assert_eq!((found(&world, "x"), found(&world, "y")), (Some(0), Some(1)));
    // one to a pool in EndpointMode changes nothing
    let aside = Update::Routes(Change::Applied(mk_route("aside", "gw", "z")));
    assert!(update(&mut world, aside).is_empty());
    // by an import, too
    let mut back = mk_route("back", "gw", "z");
    back.imports.insert(mk_key("x"));
    let back = Update::Routes(Change::Applied(back));
    assert_eq!(update(&mut world, back), [mk_key("x")]);
    // one that leads nowhere any more is not kept
    let mut nowhere = mk_route("r", "gw", "y");
    nowhere.pools.clear();
    let nowhere = Update::Routes(Change::Applied(nowhere));
    assert_eq!(update(&mut world, nowhere), [mk_key("y")]);
    assert_eq!(member(&world, "a").parents.routes.items.len(), 2);
    assert_eq!(update(&mut world, routes(Vec::new())), [mk_key("x")]);
    assert!(member(&world, "a").parents.by_target.is_empty());
}

#[test]
fn kinds_that_are_not_to_be_had_are_known_but_not_listed() {
    let mut world = mk_exporter();
    let hidden = Update::ParentsHidden;
    assert_eq!(
        update(&mut world, hidden(ParentKind::Gateways)),
        [mk_key("x"), mk_key("y")]
    );
    update(&mut world, hidden(ParentKind::Routes));
    let parents = &member(&world, "a").parents;
    assert!(parents.known() && !parents.gateways_listed());
    assert!(parents.routes_to(&mk_key("x")).is_none());
    assert!(update(&mut world, hidden(ParentKind::Routes)).is_empty());
    // they are listed, and a later refusal removes nothing
    update(&mut world, routes(vec![mk_route("r", "gw", "x")]));
    assert!(update(&mut world, hidden(ParentKind::Routes)).is_empty());
    let found = member(&world, "a").parents.routes_to(&mk_key("x"));
    assert_eq!(found.map(|routes| routes.len()), Some(1));
}

#[test]
fn of_too_many_gateways_and_routes_those_of_pools_are_kept() {
    let mut world = mk_exporter();
    let crowd = |count: usize| (0..count).map(|n| format!("a{n:05}"));
    let mut many: Vec<GatewayFacts> = crowd(MAX_GATEWAYS).map(|name| mk_gateway(&name)).collect();
    many.push(mk_gateway("gw"));
    update(&mut world, gateways(many));
    let mut many: Vec<RouteFacts> = crowd(MAX_ROUTES)
        .map(|name| mk_route(&name, "gw", "elsewhere"))
        .collect();
    many.push(mk_route("r", "gw", "x"));
    update(&mut world, routes(many));
    let kept = |world: &World| {
        let parents = &member(world, "a").parents;
        (parents.gateways.items.len(), parents.routes.items.len())
    };
    assert_eq!(kept(&world), (MAX_GATEWAYS, MAX_ROUTES));
    let parents = &member(&world, "a").parents;
    assert!(parents.gateways.items.contains_key(&mk_key("gw")));
    assert_eq!(
        parents.routes_to(&mk_key("x")).map(|found| found.len()),
        Some(1)
    );
    // what is new stays out, unless a pool names it
    for gateway in ["stranger", "other"] {
        let applied = Update::Gateways(Change::Applied(mk_gateway(gateway)));
        update(&mut world, applied);
    }
    for (route, pool) in [("s", "elsewhere"), ("t", "y")] {
        let applied = Update::Routes(Change::Applied(mk_route(route, "gw", pool)));
        update(&mut world, applied);
    }
    assert_eq!(kept(&world), (MAX_GATEWAYS + 1, MAX_ROUTES + 1));
    let parents = &member(&world, "a").parents;
    assert!(!parents.gateways.items.contains_key(&mk_key("stranger")));
    assert_eq!(
        parents.routes_to(&mk_key("y")).map(|found| found.len()),
        Some(1)
    );
}

#[test]
fn what_is_not_watched_is_not_remembered() {
    let mut world = mk_exporter();
    update(&mut world, gateways(vec![mk_gateway("gw")]));
    update(&mut world, routes(vec![mk_route("r", "gw", "x")]));
    let dirty = update(&mut world, Update::ParentsUnwatched);
    assert_eq!(dirty, [mk_key("x"), mk_key("y")]);
    let parents = &member(&world, "a").parents;
    assert!(!parents.known() && parents.gateways.items.is_empty());
    assert!(update(&mut world, Update::ParentsUnwatched).is_empty());
}

#[test]
fn gateways_are_of_interest_while_something_is_exported_in_parent_mode() {
    let mut world = mk_world(&["a"]);
    let interest = |world: &World| {
        member(world, "a")
            .interest()
            .map(|interest| interest.parents)
    };
    export(&mut world, "a", "z");
    assert_eq!(interest(&world), Some(false));
    let parent_mode = Update::PoolApplied(mk_parent_pool("x"));
    world.update(&mk_name("a"), parent_mode, NOW);
    assert_eq!(interest(&world), Some(true));
    world.update(&mk_name("a"), Update::PoolApplied(mk_pool("x", None)), NOW);
    assert_eq!(interest(&world), Some(false));
}

#[test]
fn a_pool_that_names_no_mode_has_the_default() {
    let mut world = World::new(mk_rules()).with_default_mode(RoutingMode::ParentMode);
    world.add_member(&mk_name("a"), NOW);
    connect(&mut world, "a", Vec::new(), Vec::new(), NOW);
    export(&mut world, "a", "x");
    let pool = &member(&world, "a").pools.records[&mk_key("x")].facts;
    let mode = member(&world, "a").mode_of(pool);
    assert_eq!(mode, Some(RoutingMode::ParentMode));
    assert!(
        member(&world, "a")
            .interest()
            .is_some_and(|Interest { parents, .. }| parents)
    );
    // a member that comes again has it too
    world.remove_member(&mk_name("a"), moment::Moment::default());
    world.add_member(&mk_name("a"), NOW);
    assert_eq!(member(&world, "a").default_mode, RoutingMode::ParentMode);
}

/// With a host name of so many bytes.
fn mk_large_route(name: &str, pools: &[&str], bytes: usize) -> RouteFacts {
    RouteFacts {
        key: mk_key(name),
        parents: Vec::new(),
        hostnames: vec![crd::Hostname::Exact("x".repeat(bytes))],
        pools: pools.iter().map(|pool| mk_key(pool)).collect(),
        imports: BTreeSet::new(),
    }
}

#[test]
fn a_route_that_leads_nowhere_goes() {
    let mut world = mk_exporter();
    update(&mut world, routes(vec![mk_large_route("route", &["x"], 1)]));
    let changed = mk_large_route("route", &[], 1);
    update(&mut world, Update::Routes(Change::Applied(changed)));
    let parents = &member(&world, "a").parents;
    assert_eq!(
        parents.routes_to(&mk_key("x")).map(|routes| routes.len()),
        Some(0)
    );
}

#[test]
fn of_a_list_that_fits_all_routes_are_kept_whatever_was_kept_before() {
    let mut world = mk_exporter();
    let (small, large) = (1, MEMBER_MEMORY / 4 * 3);
    let list = |first, second| {
        routes(vec![
            mk_large_route("first", &["x"], first),
            mk_large_route("second", &["x"], second),
        ])
    };
    update(&mut world, list(small, large));
    update(&mut world, list(large, small));
    let routes = &member(&world, "a").parents.routes.items;
    assert_eq!(routes.len(), 2);
    assert!(routes.bytes_of(&mk_key("first")) > large);
}
