//! A member that sends objects without end: what is kept is bounded, and what is not kept is not taken for absent.

use crd::{ServiceType, annotations::MCI_CONTROLLER};

use super::*;
use crate::index::{
    digest::LiveStatus,
    entry::ImportStatus,
    facts::{
        GatewayFacts, LiveImport, NamespaceFacts, PoolFacts, Programmed, RouteFacts, ServiceFacts,
        SliceFacts,
    },
    kinds::{MAX_IMPORTS, MAX_NAMESPACES, MAX_SERVICES, MAX_SLICES},
    pools::MAX_POOLS,
    update::{AnyKind, Change, Kind, ParentKind},
};

const LATER: Moment = Moment::from_millis(1_000_000);

fn update(world: &mut World, update: Update) -> Changes {
    world.update(&mk_name("a"), update, LATER)
}

/// Sends so many pools that nobody exports.
fn flood(world: &mut World, pools: usize) {
    for at in 0..pools {
        let pool = mk_pool(&format!("flood-{at}"), None);
        update(world, Update::PoolApplied(pool));
    }
}

/// `b` has an entry of `a`'s pool `x`; `a` has been in contact for so long that pools it lacks are absent.
fn mk_seen() -> World {
    let mut world = mk_restarted();
    connect(&mut world, "a", Vec::new(), Vec::new(), NOW);
    world
}

#[test]
fn pools_without_end_are_not_kept_and_those_exported_still_are() {
    let mut world = mk_world(&["a"]);
    flood(&mut world, MAX_POOLS + 10);
    let kept = member(&world, "a").pools.records.len();
    assert!(kept < MAX_POOLS, "{kept}");
    export(&mut world, "a", "x");
    assert!(has(&world, "a", "x"));
    update(&mut world, Update::PoolApplied(mk_pool("x", None)));
    assert_eq!(
        member(&world, "a").pools.records.len(),
        kept + 1,
        "known ones change"
    );
}

#[test]
fn past_the_cap_what_is_not_kept_is_not_absent() {
    let mut world = mk_seen();
    flood(&mut world, MAX_POOLS);
    let changes = world.tick(NOW + STALE_AFTER);
    assert!(
        changes.withdrawals.is_empty(),
        "x may be among those that are not kept"
    );
    assert!(carried(&mut world, LATER));
    // a list that fits is complete
    list(&mut world, "a", &["y"], mk_crd(), LATER);
    assert!(!carried(&mut world, LATER));
}

#[test]
fn a_list_under_another_crd_proves_nothing_of_what_was_not_kept() {
    let another = CrdCheck::Serving {
        uid: "another".to_owned(),
    };
    for crd in [CrdCheck::Doubtful, another] {
        let mut world = mk_seen();
        flood(&mut world, MAX_POOLS);
        world.tick(NOW + STALE_AFTER);
        list(&mut world, "a", &["y"], crd.clone(), LATER);
        assert!(carried(&mut world, LATER), "{crd:?}");
    }
}

#[test]
fn past_the_cap_evidence_still_counts() {
    let mut world = mk_seen();
    world.tick(NOW + STALE_AFTER);
    export(&mut world, "a", "x");
    assert!(carried(&mut world, LATER));
    flood(&mut world, MAX_POOLS);
    let deleted = Update::PoolDeleted {
        key: mk_key("x"),
        crd: mk_crd(),
    };
    let changes = update(&mut world, deleted);
    assert_eq!(evidence(&changes), [Evidence::PoolDeleted]);
    assert!(!carried(&mut world, LATER));
}

#[test]
fn names_of_pools_without_end_are_not_kept() {
    let mut world = mk_world(&["a"]);
    for at in 0..MAX_POOLS + 10 {
        update(&mut world, Update::PoolOdd(mk_key(&format!("odd-{at}"))));
        let deleted = Update::PoolDeleted {
            key: mk_key(&format!("gone-{at}")),
            crd: mk_crd(),
        };
        update(&mut world, deleted);
    }
    let member = member(&world, "a");
    assert_eq!(member.pools.odd.len(), MAX_POOLS);
    assert!(member.pools.gone.len() <= MAX_POOLS);
    assert!(!member.pools.knows(&mk_key("never-seen")));
}

#[test]
fn namespaces_and_slices_without_end_are_not_kept() {
    let mut world = mk_world(&["a"]);
    let namespace = |at: usize| NamespaceFacts {
        name: format!("ns-{at}").into(),
        terminating: false,
    };
    let slice = |at: usize| SliceFacts {
        key: mk_key(&format!("slice-{at}")),
        ..mk_slice(&["10.0.0.9"])
    };
    let most = MAX_NAMESPACES.max(MAX_SLICES) + 10;
    for at in 0..most {
        let member = world.members.get_mut(&mk_name("a")).expect("a member");
        member.change_namespaces(Change::Applied(namespace(at)));
        member.change_slices(Change::Applied(slice(at)));
    }
    let kept = member(&world, "a");
    assert_eq!(kept.namespaces.items.len(), MAX_NAMESPACES);
    assert_eq!(kept.slices.items.len(), MAX_SLICES);
    // in a list, too; and those known stay
    let namespaces = (most..2 * most).map(namespace).chain([mk_namespace(false)]);
    let namespaces: Vec<_> = namespaces.collect();
    update(&mut world, Update::Namespaces(Change::Listed(namespaces)));
    let slices: Vec<_> = (most..2 * most).map(slice).chain([slice(0)]).collect();
    update(&mut world, Update::Slices(Change::Listed(slices)));
    let kept = member(&world, "a");
    assert_eq!(kept.namespaces.items.len(), MAX_NAMESPACES);
    assert!(kept.namespaces.items.contains_key(NS));
    assert_eq!(kept.slices.items.len(), MAX_SLICES);
    assert!(kept.slices.items.contains_key(&mk_key("slice-0")));
}

#[test]
fn a_member_with_imports_without_end_is_not_written_into() {
    let mut world = mk_restarted();
    assert!(member(&world, "b").imports_known());
    let live = member(&world, "b").imports.items[&mk_key("x")].clone();
    let mk = |at: usize| {
        let mut import = live.clone();
        import.key = mk_key(&format!("import-{at}"));
        *import.status = crd::InferencePoolImportStatus::default();
        import
    };
    let name = mk_name("b");
    let member_b = world.members.get_mut(&name).expect("a member");
    for at in 0..MAX_IMPORTS + 10 {
        member_b.change_imports(Change::Applied(mk(at)), NOW);
    }
    assert_eq!(member_b.imports.items.len(), MAX_IMPORTS);
    assert!(!member_b.imports_known(), "some are not known");
    let many = (0..=MAX_IMPORTS).map(mk).collect();
    member_b.change_imports(Change::Listed(many), NOW);
    assert_eq!(member_b.imports.items.len(), MAX_IMPORTS);
    assert!(!member_b.imports_known());
    assert!(member_b.partial_kinds().contains(&Kind::Imports.into()));
    member_b.change_imports(Change::Listed(vec![live]), NOW);
    assert!(member_b.imports_known() && member_b.partial_kinds().is_empty());
}

#[test]
fn services_past_their_cap_do_not_displace_what_a_pool_names() {
    let service = |name: &str| ServiceFacts {
        key: mk_key(name),
        ..mk_service(ServiceType::LoadBalancer, "192.0.2.1")
    };
    let slice = |at: usize| SliceFacts {
        key: mk_key(&format!("slice-{at}")),
        service: "other".into(),
        ..mk_slice(&["10.0.0.9"])
    };
    let others = || (0..MAX_SERVICES).map(|at| service(&format!("other-{at}")));
    let all = || Update::Services(Change::Listed(others().chain([service("epp")]).collect()));
    let kept = |world: &World| {
        let services = &member(world, "a").services.items;
        services.contains_key(&mk_key("epp"))
    };
    let mut world = mk_world(&["a", "b"]);
    update(&mut world, Update::Services(Change::Listed(Vec::new())));
    // the list came before the pool: the Service is unknown until it is listed again
    update(&mut world, all());
    assert!(!kept(&world));
    export(&mut world, "a", "x");
    settle(&mut world, &mk_policy(), LATER);
    assert_eq!(entries(&world, "b", &mk_key("x")), Vec::<String>::new());
    let partial = member(&world, "a").partial_kinds();
    assert_eq!(partial, BTreeSet::from([Kind::Services.into()]));
    update(&mut world, all());
    assert!(kept(&world) && member(&world, "a").partial_kinds().is_empty());
    assert_eq!(member(&world, "a").services.items.len(), MAX_SERVICES);
    settle(&mut world, &mk_policy(), LATER);
    assert_eq!(entries(&world, "b", &mk_key("x")), ["a"]);
    // events where all is full
    let deleted = Update::Services(Change::Deleted(mk_key("epp")));
    update(&mut world, deleted);
    for one in [service("more"), service("even-more"), service("epp")] {
        update(&mut world, Update::Services(Change::Applied(one)));
    }
    assert!(kept(&world) && member(&world, "a").services.items.len() <= MAX_SERVICES + 1);
    // the same of EndpointSlices
    let slices = (0..=MAX_SLICES).map(slice).chain([mk_slice(&["10.0.0.8"])]);
    update(&mut world, Update::Slices(Change::Listed(slices.collect())));
    let slices = &member(&world, "a").slices.items;
    assert_eq!(slices.len(), MAX_SLICES);
    assert!(slices.contains_key(&mk_slice(&[]).key));
    assert!(member(&world, "a").over_limit().is_some());
}

/// Objects that are this large are too much long before they are too many.
const LARGE: usize = 1024 * 1024;
/// More of them than may be kept of a member.
const MANY: usize = MEMBER_MEMORY / LARGE + 8;

fn mk_large_pool(name: &str, export: Option<&str>) -> PoolFacts {
    let mut pool = mk_pool(name, export);
    let uid = &mut pool.uid;
    uid.push_str(&"x".repeat(LARGE));
    pool
}

/// A large object of a kind, with this number; none: a list of too many.
fn mk_large(kind: AnyKind, at: Option<usize>) -> Update {
    fn change<T>(mk: impl Fn(usize) -> T, at: Option<usize>) -> Change<T> {
        match at {
            Some(at) => Change::Applied(mk(at)),
            None => Change::Listed((0..MANY).map(mk).collect()),
        }
    }
    let text = || "x".repeat(LARGE);
    let key = |at: usize| mk_key(&format!("large-{at}"));
    let service = |at| ServiceFacts {
        key: key(at),
        ingress: vec![text()],
        ..mk_service(ServiceType::LoadBalancer, "192.0.2.1")
    };
    let slice = |at| SliceFacts {
        key: key(at),
        ready: vec!["192.0.2.1".parse().expect("an address"); LARGE / 17],
        ..mk_slice(&["10.0.0.9"])
    };
    let namespace = |at| NamespaceFacts {
        name: format!("{at}-{}", text()).into(),
        terminating: false,
    };
    let gateway = |at| GatewayFacts {
        key: key(at),
        programmed: Programmed::Yes,
        addresses: vec![text()],
        listeners: Vec::new(),
    };
    let route = |at| RouteFacts {
        key: key(at),
        parents: Vec::new(),
        hostnames: vec![crd::Hostname::Exact(text())],
        pools: [mk_key("x")].into(),
        imports: BTreeSet::new(),
    };
    let import = |at| LiveImport {
        key: key(at),
        uid: text(),
        resource_version: String::new(),
        generation: 1,
        claim: Claim::Unclaimed,
        owned_entries: Arc::default(),
        status: LiveStatus::new(ImportStatus::default(), MCI_CONTROLLER),
    };
    match kind {
        AnyKind::Kind(Kind::Services) => Update::Services(change(service, at)),
        AnyKind::Kind(Kind::Slices) => Update::Slices(change(slice, at)),
        AnyKind::Kind(Kind::Namespaces) => Update::Namespaces(change(namespace, at)),
        AnyKind::Kind(Kind::Imports) => Update::Imports(change(import, at)),
        AnyKind::Parent(ParentKind::Gateways) => Update::Gateways(change(gateway, at)),
        AnyKind::Parent(ParentKind::Routes) => Update::Routes(change(route, at)),
        AnyKind::Kind(Kind::Pools) => match at {
            Some(at) => Update::PoolApplied(mk_large_pool(&format!("large-{at}"), None)),
            None => mk_large_pools("new", MANY, mk_crd()),
        },
    }
}

fn mk_large_pools(of: &str, pools: usize, crd: CrdCheck) -> Update {
    let pools = (0..pools).map(|at| mk_large_pool(&format!("{of}-{at}"), None));
    Update::PoolsListed {
        pools: pools.collect(),
        odd: BTreeSet::new(),
        crd,
    }
}

/// Sends large objects of a kind, one by one, until they are too much.
fn fill(world: &mut World, name: &str, kind: AnyKind) {
    for at in 0..MANY {
        let changes = world.update(&mk_name(name), mk_large(kind, Some(at)), LATER);
        assert_eq!(changes.withdrawals, []);
    }
}

#[test]
fn a_kind_that_takes_too_much_stays_as_it_was_and_counts_as_not_listed() {
    for kind in AnyKind::all() {
        // by a list
        let mut world = mk_world(&["a"]);
        let before = member(&world, "a").memory();
        update(&mut world, mk_large(kind, None));
        let kept = member(&world, "a");
        assert_eq!(
            (kept.memory(), kept.partial_kinds()),
            (before, [kind].into())
        );
        // by changes
        let mut world = mk_world(&["a"]);
        fill(&mut world, "a", kind);
        let kept = member(&world, "a");
        let most = MEMBER_MEMORY - 2 * LARGE..=MEMBER_MEMORY;
        assert!(most.contains(&kept.memory()), "{kind:?}: {}", kept.memory());
        assert_eq!(kept.partial_kinds(), [kind].into());
        assert_eq!(kept.over_limit().as_deref(), Some(kind.plural()));
        // a list that fits
        let list = match kind {
            AnyKind::Kind(Kind::Services) => Update::Services(Change::Listed(Vec::new())),
            AnyKind::Kind(Kind::Slices) => Update::Slices(Change::Listed(Vec::new())),
            AnyKind::Kind(Kind::Namespaces) => Update::Namespaces(Change::Listed(Vec::new())),
            AnyKind::Kind(Kind::Imports) => Update::Imports(Change::Listed(Vec::new())),
            AnyKind::Kind(Kind::Pools) => mk_large_pools("new", 0, mk_crd()),
            AnyKind::Parent(ParentKind::Gateways) => Update::Gateways(Change::Listed(Vec::new())),
            AnyKind::Parent(ParentKind::Routes) => Update::Routes(Change::Listed(Vec::new())),
        };
        update(&mut world, list);
        let kept = member(&world, "a");
        assert!(kept.memory() <= before && kept.partial_kinds().is_empty());
        assert_eq!(kept.over_limit(), None);
    }
}

#[test]
fn of_pools_that_take_too_much_those_known_stay_and_the_others_are_not_absent() {
    let mut world = mk_seen();
    export(&mut world, "a", "known");
    for at in 0..MANY {
        let large = mk_large_pool(&format!("large-{at}"), None);
        update(&mut world, Update::PoolApplied(large));
    }
    let kept = member(&world, "a");
    assert!(kept.memory() <= MEMBER_MEMORY && kept.pools.is_overfull());
    assert!(world.tick(NOW + STALE_AFTER).withdrawals.is_empty());
    assert!(
        carried(&mut world, LATER),
        "x may be among those that are not kept"
    );
    // one that is known and grows stays as it was
    let grown = mk_large_pool("known", None);
    let changes = update(&mut world, Update::PoolApplied(grown));
    assert!(changes.withdrawals.is_empty() && has(&world, "a", "known"));
    // nor is anything missing from a list that does not fit
    let changes = update(&mut world, mk_large_pools("new", MANY, mk_crd()));
    assert!(changes.withdrawals.is_empty() && has(&world, "a", "known"));
    assert!(carried(&mut world, LATER));
    // a list that fits is complete, though it fits only without the pools that it lacks
    let changes = update(&mut world, mk_large_pools("new", MANY - 16, mk_crd()));
    assert!(evidence(&changes).contains(&Evidence::PoolAbsent) && !has(&world, "a", "known"));
    assert!(!member(&world, "a").pools.is_overfull() && !carried(&mut world, LATER));
    // where that stays, for its CRD may be gone, it does not fit
    let doubtful = mk_large_pools("other", MANY - 16, CrdCheck::Doubtful);
    update(&mut world, doubtful);
    let kept = member(&world, "a");
    assert!(kept.memory() <= MEMBER_MEMORY && kept.pools.is_overfull());
}

#[test]
fn two_members_that_fill_what_they_may_cost_others_nothing() {
    let all = ["a", "b", "c", "d"];
    let mut world = mk_world(&all);
    for exporter in ["a", "b", "c"] {
        export(&mut world, exporter, "x");
    }
    settle(&mut world, &mk_policy(), NOW);
    let of_x = |world: &World| entries(world, "d", &mk_key("x"));
    assert_eq!(of_x(&world), ["a", "b", "c"]);
    for hostile in ["a", "b"] {
        for kind in AnyKind::all() {
            fill(&mut world, hostile, kind);
            let changes = world.update(&mk_name(hostile), mk_large(kind, None), LATER);
            assert_eq!(changes.withdrawals, []);
        }
        let kept = member(&world, hostile);
        assert!(kept.memory() <= MEMBER_MEMORY, "{}", kept.memory());
        assert_eq!(kept.partial_kinds(), AnyKind::all().collect());
    }
    let changes = world.tick(LATER + STALE_AFTER);
    settle(&mut world, &mk_policy(), LATER + STALE_AFTER);
    assert_eq!(
        (changes.withdrawals, of_x(&world)),
        (Vec::new(), vec!["a".into(), "b".into(), "c".into()])
    );
    // the others go on
    let kept = member(&world, "d");
    assert!(kept.partial_kinds().is_empty() && member(&world, "c").partial_kinds().is_empty());
    export(&mut world, "c", "y");
    settle(&mut world, &mk_policy(), LATER + STALE_AFTER);
    assert_eq!(entries(&world, "d", &mk_key("y")), ["c"]);
}
