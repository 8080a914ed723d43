//! A member that sends objects without end: what is kept is bounded, and what is not kept is not taken for absent.

use crd::{ImportedCluster, ServiceType, annotations::MCI_CONTROLLER};

use super::*;
use crate::index::{
    digest::LiveStatus,
    entry::{Entry, ImportStatus},
    facts::{GatewayFacts, LiveImport, NamespaceFacts, PoolFacts, RouteFacts, ServiceFacts},
    facts::{Programmed, SliceFacts},
    kinds::{MAX_IMPORTS, MAX_NAMESPACES, MAX_SLICES},
    pools::MAX_POOLS,
    update::Change,
    weighed::{IMPORT_BYTES, KIND_BYTES},
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

/// `a`'s pool `x` is carried by `b`; `a` has been heard for so long that what it lacks is absent.
fn mk_heard() -> World {
    let mut world = mk_restarted();
    connect(&mut world, "a", Vec::new(), Vec::new(), NOW);
    world
}

#[test]
fn pools_without_end_are_not_kept_and_those_exported_still_are() {
    let mut world = mk_world(&["a"]);
    flood(&mut world, MAX_POOLS + 10);
    let kept = member(&world, "a").pools.len();
    assert!(kept < MAX_POOLS, "{kept}");
    export(&mut world, "a", "x");
    assert!(has(&world, "a", "x"));
    update(&mut world, Update::PoolApplied(mk_pool("x", None)));
    assert_eq!(
        member(&world, "a").pools.len(),
        kept + 1,
        "known ones change"
    );
}

#[test]
fn past_the_cap_what_is_not_kept_is_not_absent() {
    let mut world = mk_heard();
    flood(&mut world, MAX_POOLS);
    let changes = world.tick(NOW + STALE_AFTER);
    assert!(
        changes.withdrawals.is_empty(),
        "x may be among those left out"
    );
    assert!(carried(&mut world, LATER));
    // a list that fits says what there is
    list(&mut world, "a", &["y"], mk_crd(), LATER);
    assert!(!carried(&mut world, LATER));
}

#[test]
fn a_list_under_another_crd_proves_nothing_of_what_was_left_out() {
    let another = CrdCheck::Serving {
        uid: "another".to_owned(),
    };
    for crd in [CrdCheck::Doubtful, another] {
        let mut world = mk_heard();
        flood(&mut world, MAX_POOLS);
        world.tick(NOW + STALE_AFTER);
        list(&mut world, "a", &["y"], crd.clone(), LATER);
        assert!(carried(&mut world, LATER), "{crd:?}");
    }
}

#[test]
fn past_the_cap_evidence_still_counts() {
    let mut world = mk_heard();
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
    assert_eq!(member.odd_pools.len(), MAX_POOLS);
    assert!(member.gone_pools.len() <= MAX_POOLS);
    assert!(!member.knows_pool(&mk_key("never-heard-of")));
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
    member_b.change_imports(Change::Listed(vec![live]), NOW);
    assert!(member_b.imports_known());
}

/// Objects that are this large are too much long before they are too many.
const LARGE: usize = 1024 * 1024;
/// More of them than any kind but imports may take.
const MANY: usize = KIND_BYTES / LARGE + 8;

fn mk_large_pool(name: &str, export: Option<&str>) -> PoolFacts {
    let mut pool = mk_pool(name, export);
    let uid = &mut pool.uid;
    uid.push_str(&"x".repeat(LARGE));
    pool
}

#[test]
fn large_pools_are_not_kept_without_end_and_what_is_not_kept_is_not_absent() {
    let mut world = mk_heard();
    export(&mut world, "a", "known");
    for at in 0..MANY {
        let large = mk_large_pool(&format!("large-{at}"), None);
        update(&mut world, Update::PoolApplied(large));
    }
    let kept = member(&world, "a");
    assert!(kept.pools.bytes() <= KIND_BYTES && kept.pools.len() < MANY);
    assert!(world.tick(NOW + STALE_AFTER).withdrawals.is_empty());
    assert!(carried(&mut world, LATER), "x may be among those left out");
    // one that is known and grows stays as it was
    let grown = mk_large_pool("known", None);
    let changes = update(&mut world, Update::PoolApplied(grown));
    assert!(changes.withdrawals.is_empty() && has(&world, "a", "known"));
    // a list that fits says what there is
    list(&mut world, "a", &["y"], mk_crd(), LATER);
    assert!(!carried(&mut world, LATER));
}

/// Imports that are each as large as [`LARGE`], and else as this one.
fn mk_large(live: &LiveImport) -> impl Fn(usize) -> LiveImport + use<> {
    let live = live.clone();
    let large = mk_long(&live.status, LARGE);
    move |at| LiveImport {
        key: mk_key(&format!("import-{at}")),
        status: large.clone(),
        ..live.clone()
    }
}

/// This status with a name of so many bytes in its first entry.
fn mk_long(status: &ImportStatus, bytes: usize) -> LiveStatus {
    let mut status = status.clone();
    let name = "x".repeat(bytes);
    let entry = (*status.clusters[0]).clone();
    status.clusters[0] = Entry::new(ImportedCluster { name, ..entry });
    LiveStatus::new(status, MCI_CONTROLLER)
}

#[test]
fn large_imports_count_as_not_known() {
    let mut world = mk_restarted();
    let live = member(&world, "b").imports.items[&mk_key("x")].clone();
    let mk = mk_large(&live);
    let most = IMPORT_BYTES / LARGE + 8;
    let name = mk_name("b");
    let member_b = world.members.get_mut(&name).expect("a member");
    for at in 0..most {
        member_b.change_imports(Change::Applied(mk(at)), NOW);
    }
    assert!(member_b.imports.items.bytes() <= IMPORT_BYTES);
    assert!(!member_b.imports_known(), "some are not known");
    member_b.change_imports(Change::Listed((0..most).map(&mk).collect()), NOW);
    assert!(member_b.imports.items.bytes() <= IMPORT_BYTES);
    assert!(!member_b.imports_known());
    member_b.change_imports(Change::Listed(vec![live.clone()]), NOW);
    assert!(member_b.imports_known());
    // one that is known and grows past all says no more what it said
    let most = most - 16;
    let many = (0..most).map(&mk).chain([live.clone()]).collect();
    member_b.change_imports(Change::Listed(many), NOW);
    assert!(member_b.imports_known());
    let grown = LiveImport {
        status: mk_long(&live.status, 17 * LARGE),
        ..live.clone()
    };
    member_b.change_imports(Change::Applied(grown), NOW);
    assert!(!member_b.imports_known() && !member_b.imports.items.contains_key(&live.key));
}

#[test]
fn a_member_whose_imports_fit_again_is_written_into() {
    let mut world = mk_restarted();
    let live = member(&world, "b").imports.items[&mk_key("x")].clone();
    let mk = mk_large(&live);
    let name = mk_name("b");
    let change = |world: &mut World, change| world.update(&name, Update::Imports(change), NOW);
    let lists = |world: &World| member(world, "b").lists().imports;
    let most = IMPORT_BYTES / LARGE + 8;
    // what did not fit is deleted
    for at in 0..most {
        change(&mut world, Change::Applied(mk(at)));
    }
    assert!(!member(&world, "b").imports_known());
    for at in (0..most).rev() {
        change(&mut world, Change::Deleted(mk(at).key));
    }
    assert!(member(&world, "b").imports_known());
    assert_eq!(lists(&world), 0, "no list is needed");
    // what did not fit is there, and what was in its way is deleted: a list tells what it is now
    for at in 0..most {
        change(&mut world, Change::Applied(mk(at)));
    }
    change(&mut world, Change::Applied(live.clone()));
    let kept =
        |world: &World, at: usize| member(world, "b").imports.items.contains_key(&mk(at).key);
    for at in (0..most).filter(|at| *at > 10) {
        if kept(&world, at) {
            change(&mut world, Change::Deleted(mk(at).key));
        }
    }
    assert!(!member(&world, "b").imports_known());
    assert_eq!(lists(&world), 1);
    let changes = change(
        &mut world,
        Change::Listed((0..20).map(&mk).chain([live.clone()]).collect()),
    );
    assert!(changes.dirty.all && member(&world, "b").imports_known());
    assert_eq!(lists(&world), 1);
}

#[test]
fn a_member_whose_pools_fit_again_is_believed_again() {
    let mut world = mk_heard();
    let large = |at: usize| mk_large_pool(&format!("large-{at}"), None);
    for at in 0..MANY {
        update(&mut world, Update::PoolApplied(large(at)));
    }
    world.tick(NOW + STALE_AFTER);
    assert!(carried(&mut world, LATER), "x may be among those left out");
    let delete = |world: &mut World, at: usize| {
        let deleted = Update::PoolDeleted {
            key: large(at).key,
            crd: mk_crd(),
        };
        update(world, deleted)
    };
    let left_out: Vec<usize> = (0..MANY)
        .filter(|at| !member(&world, "a").pools.contains_key(&large(*at).key))
        .collect();
    for at in 1..left_out.len() {
        delete(&mut world, at);
    }
    assert_eq!(member(&world, "a").lists().pools, 0);
    assert!(carried(&mut world, LATER));
    delete(&mut world, 0);
    assert_eq!(
        member(&world, "a").lists().pools,
        1,
        "there is room for them"
    );
    // one is told of again, the others go
    update(&mut world, Update::PoolApplied(large(left_out[0])));
    for at in &left_out[1..] {
        assert!(carried(&mut world, LATER));
        delete(&mut world, *at);
    }
    assert!(!carried(&mut world, LATER));
}

#[test]
fn large_objects_of_other_kinds_are_not_kept_without_end() {
    let text = "x".repeat(LARGE);
    let key = |at: usize| mk_key(&format!("large-{at}"));
    let service = |at: usize| ServiceFacts {
        key: key(at),
        ingress: vec![text.clone()],
        ..mk_service(ServiceType::LoadBalancer, "192.0.2.1")
    };
    let slice = |at: usize| SliceFacts {
        key: key(at),
        ready: vec!["192.0.2.1".parse().expect("an address"); LARGE / 17],
        ..mk_slice(&["10.0.0.9"])
    };
    let gateway = |at: usize| GatewayFacts {
        key: key(at),
        programmed: Programmed::Yes,
        addresses: vec![text.clone()],
        listeners: Vec::new(),
    };
    let route = |at: usize| RouteFacts {
        key: key(at),
        parents: Vec::new(),
        hostnames: vec![crd::Hostname::Exact(text.clone())],
        pools: [mk_key("x")].into(),
        imports: BTreeSet::new(),
    };
    let listed = |listed: bool| {
        let mut world = mk_world(&["a"]);
        let member = world.members.get_mut(&mk_name("a")).expect("a member");
        let all = 0..MANY;
        if listed {
            member.change_services(Change::Listed(all.clone().map(service).collect()));
            member.change_slices(Change::Listed(all.clone().map(slice).collect()));
            member.change_gateways(Change::Listed(all.clone().map(gateway).collect()));
            member.change_routes(Change::Listed(all.map(route).collect()));
        } else {
            member.change_routes(Change::Listed(Vec::new()));
            for at in all {
                member.change_services(Change::Applied(service(at)));
                member.change_slices(Change::Applied(slice(at)));
                member.change_gateways(Change::Applied(gateway(at)));
                member.change_routes(Change::Applied(route(at)));
            }
        }
        world
    };
    for world in [listed(true), listed(false)] {
        let kept = member(&world, "a");
        let parents = &kept.parents;
        let (services, slices) = (&kept.services.items, &kept.slices.items);
        for (what, bytes, count) in [
            ("Services", services.bytes(), services.len()),
            ("slices", slices.bytes(), slices.len()),
            (
                "Gateways",
                parents.gateways.items.bytes(),
                parents.gateways.items.len(),
            ),
        ] {
            assert!(
                bytes <= KIND_BYTES && count < MANY && count > 1,
                "{what}: {count}"
            );
        }
        let routes = parents
            .routes_to(&mk_key("x"))
            .map_or(0, |routes| routes.len());
        assert!(routes < MANY && routes > 1, "{routes}");
    }
}

#[test]
fn what_a_pool_names_is_kept_whatever_else_there_is() {
    let text = "x".repeat(LARGE);
    let service = |name: &str| ServiceFacts {
        key: mk_key(name),
        ingress: vec![text.clone()],
        ..mk_service(ServiceType::LoadBalancer, "192.0.2.1")
    };
    let slice = |of: &str| SliceFacts {
        key: mk_key(&format!("{of}-1")),
        service: of.into(),
        ready: vec!["192.0.2.1".parse().expect("an address"); LARGE / 17],
        ..mk_slice(&["10.0.0.9"])
    };
    let names: Vec<String> = (0..MANY).map(|at| format!("large-{at}")).collect();
    let names = || names.iter().map(String::as_str).chain(["epp"]);
    for listed in [true, false] {
        let mut world = mk_world(&["a"]);
        export(&mut world, "a", "x");
        let member = world.members.get_mut(&mk_name("a")).expect("a member");
        if listed {
            member.change_services(Change::Listed(names().map(service).collect()));
            member.change_slices(Change::Listed(names().map(slice).collect()));
        } else {
            for name in names() {
                member.change_services(Change::Applied(service(name)));
                member.change_slices(Change::Applied(slice(name)));
            }
        }
        let (services, slices) = (&member.services.items, &member.slices.items);
        assert!(services.bytes() <= KIND_BYTES && slices.bytes() <= KIND_BYTES);
        assert_eq!(
            services.get(&mk_key("epp")),
            Some(&service("epp")),
            "{listed}"
        );
        assert_eq!(
            slices.get(&mk_key("epp-1")),
            Some(&slice("epp")),
            "{listed}"
        );
        // no more went than had to
        assert!(services.len() > MANY / 2 && slices.len() > MANY / 2);
    }
}

#[test]
fn an_endpoint_slice_of_a_pool_takes_the_place_of_another() {
    let mut world = mk_world(&["a"]);
    export(&mut world, "a", "x");
    let member = world.members.get_mut(&mk_name("a")).expect("a member");
    let other = |at: usize| SliceFacts {
        key: mk_key(&format!("slice-{at}")),
        service: "other".into(),
        ..mk_slice(&["10.0.0.9"])
    };
    let known = member.slices.items.len();
    for at in known..MAX_SLICES {
        member.change_slices(Change::Applied(other(at)));
    }
    let ours = SliceFacts {
        key: mk_key("epp-2"),
        ..mk_slice(&["10.0.0.8"])
    };
    member.change_slices(Change::Applied(ours.clone()));
    assert_eq!(member.slices.items.get(&ours.key), Some(&ours));
    assert_eq!(member.slices.items.len(), MAX_SLICES);
}

#[test]
fn what_a_list_lacks_makes_room_for_what_it_has_and_is_known_to_be_gone() {
    let all = |of: &str, pools: usize| {
        let pools = (0..pools).map(|at| mk_large_pool(&format!("{of}-{at}"), None));
        Update::PoolsListed {
            pools: pools.collect(),
            odd: BTreeSet::new(),
            crd: mk_crd(),
        }
    };
    let mut world = mk_heard();
    world.tick(NOW + STALE_AFTER);
    export(&mut world, "a", "x");
    assert!(carried(&mut world, LATER));
    update(&mut world, all("old", MANY - 16));
    assert!(!member(&world, "a").is_overfull() && !carried(&mut world, LATER));
    update(&mut world, all("new", MANY - 16));
    assert!(!member(&world, "a").is_overfull());
    // not where it has more than can be kept
    let mut world = mk_heard();
    world.tick(NOW + STALE_AFTER);
    export(&mut world, "a", "x");
    assert!(carried(&mut world, LATER));
    update(&mut world, all("new", MANY));
    assert!(member(&world, "a").is_overfull());
    assert!(!carried(&mut world, LATER));
}
