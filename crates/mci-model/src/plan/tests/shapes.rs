//! Flavours of the import CRD, imports in exporters, and the limits of an import.

use crd::conditions;
use jiff::Timestamp;

use super::*;
use crate::{
    index::flavour::{Flavour, ImportCrd},
    plan::diff::diff,
};

fn serve(world: &mut World, name: &str, flavour: Flavour) -> crate::index::Changes {
    let crd = mk_import_crd(flavour);
    world.update(&mk_name(name), Update::ImportCrd(crd), NOW)
}

fn live(world: &World, name: &str) -> LiveImport {
    member(world, name).imports.items[&mk_key("llm")].clone()
}

/// As reads under upstream's CRD show it (K6).
fn prune(world: &mut World, name: &str) {
    let mut import = live(world, name);
    *import.status = crd::InferencePoolImportStatus {
        controllers: import.status.controllers.clone(),
        ..crd::InferencePoolImportStatus::default()
    };
    import.owned_entries = Arc::default();
    let listed = Update::Imports(Change::Listed(vec![import]));
    world.update(&mk_name(name), listed, NOW);
}

/// The imports as they are stored, or as they were pruned.
fn relist(world: &mut World, name: &str) {
    let imports = member(world, name).imports.items.values().cloned();
    let listed = Update::Imports(Change::Listed(imports.collect()));
    world.update(&mk_name(name), listed, NOW);
}

/// `t` imports from `a` and `b`; then the controller restarts and sees the two others. Returns what `t` stores.
fn mk_restarted_without_a() -> (World, LiveImport) {
    let mut before = mk_world(&["a", "b", "t"]);
    for exporter in ["a", "b"] {
        export(&mut before, exporter, "llm");
    }
    settle(&mut before, &mk_policy(), NOW);
    let stored = live(&before, "t");
    let mut world = World::new(mk_rules());
    for name in ["a", "b", "t"] {
        world.add_member(&mk_name(name), NOW);
    }
    let pool = mk_pool("llm", Some("ClusterSet"));
    connect(&mut world, "b", vec![pool], Vec::new(), NOW);
    connect(&mut world, "t", Vec::new(), vec![stored.clone()], NOW);
    (world, stored)
}

#[test]
fn when_our_crd_is_back_nothing_is_written_over_what_was_read_through_the_other() {
    let (mut world, stored) = mk_restarted_without_a();
    let policy = mk_policy();
    let key = mk_key("llm");
    // as after a start under upstream's CRD: the entries were never seen
    serve(&mut world, "t", Flavour::Upstream);
    prune(&mut world, "t");
    let t = world.members.get_mut(&mk_name("t")).expect("a member");
    t.remembered.take();
    let step = |world: &World| {
        let plan = desired_for(world, &policy, &key, NOW);
        let found = member(world, "t").imports.items.get(&key);
        diff(&plan.imports[&mk_name("t")], found)
    };
    assert_eq!(step(&world), Step::None, "a write would cut the entry of a");
    serve(&mut world, "t", Flavour::Superset);
    assert_eq!(step(&world), Step::None, "not listed through ours");
    prune(&mut world, "t");
    assert_eq!(step(&world), Step::None, "another server was behind");
    let listed = Update::Imports(Change::Listed(vec![stored]));
    world.update(&mk_name("t"), listed, NOW);
    let plan = desired_for(&world, &policy, &key, NOW);
    assert_eq!(names(planned(&plan, "t")), ["a", "b"]);
}

#[test]
fn entries_that_upstreams_crd_hides_count_and_are_put_back() {
    let (mut world, _) = mk_restarted_without_a();
    let policy = mk_policy();
    let key = mk_key("llm");
    settle(&mut world, &policy, NOW);
    serve(&mut world, "t", Flavour::Upstream);
    prune(&mut world, "t");
    let plan = desired_for(&world, &policy, &key, NOW);
    assert_eq!(
        diff(&plan.imports[&mk_name("t")], Some(&live(&world, "t"))),
        Step::None,
        "nothing is new"
    );
    // somebody wrote through upstream's CRD, and the entries are lost for good
    serve(&mut world, "t", Flavour::Superset);
    prune(&mut world, "t");
    settle(&mut world, &policy, NOW);
    assert_eq!(entries(&world, "t", &key), ["a", "b"]);
    assert!(member(&world, "t").remembered.is_empty());
}

#[test]
fn upstreams_crd_gets_controllers_alone_and_all_is_written_again_when_ours_is_back() {
    let mut world = mk_world(&["a", "b", "c"]);
    let policy = mk_policy();
    export(&mut world, "a", "llm");
    settle(&mut world, &policy, NOW);
    let changes = serve(&mut world, "b", Flavour::Upstream);
    assert!(changes.dirty.all);
    prune(&mut world, "b");
    let plan = desired_for(&world, &policy, &mk_key("llm"), NOW);
    let status = &planned(&plan, "b").status;
    assert!(status.clusters.is_empty() && status.conditions.is_empty());
    assert_eq!(status.observed_generation, None);
    assert_eq!(exporting(planned(&plan, "b")), ["a"]);
    // the import is as planned already: no error loop, and no write but that of Exported
    assert_eq!(settle(&mut world, &policy, NOW), 1);
    let (_, reason, message) = exported(&world, &policy, "a", &mk_key("llm"), NOW);
    assert_eq!(reason, "Exported");
    assert_eq!(message, "exported to 2/2: b UpstreamCRD");
    // others are none the worse
    assert_eq!(names(planned(&plan, "c")), ["a"]);
    serve(&mut world, "b", Flavour::Superset);
    relist(&mut world, "b");
    assert_eq!(
        settle(&mut world, &policy, NOW),
        3,
        "the import, and twice Exported"
    );
    assert_eq!(live(&world, "b").status, live(&world, "c").status);
}

#[test]
fn under_upstreams_crd_a_restart_keeps_the_names_of_the_silent() {
    let mut world = mk_world(&["a", "b"]);
    let policy = mk_policy();
    export(&mut world, "a", "llm");
    settle(&mut world, &policy, NOW);
    serve(&mut world, "b", Flavour::Upstream);
    prune(&mut world, "b");
    let import = live(&world, "b");
    let mut world = World::new(mk_rules());
    for name in ["a", "b"] {
        world.add_member(&mk_name(name), NOW);
    }
    connect(&mut world, "b", Vec::new(), vec![import.clone()], NOW);
    serve(&mut world, "b", Flavour::Upstream);
    relist(&mut world, "b");
    let plan = desired_for(&world, &policy, &mk_key("llm"), NOW);
    assert_eq!(exporting(planned(&plan, "b")), ["a"]);
    // our CRD comes back before the exporter does: there is nothing to write
    serve(&mut world, "b", Flavour::Superset);
    relist(&mut world, "b");
    let plan = desired_for(&world, &policy, &mk_key("llm"), NOW);
    assert_eq!(
        plan.imports[&mk_name("b")],
        ImportPlan::Hold(Hold::Unreachable)
    );
    assert_eq!(
        diff(&plan.imports[&mk_name("b")], Some(&import)),
        Step::None
    );
}

#[test]
fn an_absent_crd_pauses_and_deletes_nothing() {
    let mut world = mk_world(&["a", "b"]);
    let policy = mk_policy();
    export(&mut world, "a", "llm");
    settle(&mut world, &policy, NOW);
    world.update(&mk_name("b"), Update::ImportCrd(ImportCrd::ABSENT), NOW);
    assert_eq!(write_once(&mut world, &policy, NOW), 1, "Exported alone");
    let (status, reason, message) = exported(&world, &policy, "a", &mk_key("llm"), NOW);
    assert_eq!(
        (status.as_str(), reason.as_str()),
        ("False", "PartiallyExported")
    );
    assert_eq!(message, "exported to 0/1: b CRDAbsent");
}

#[test]
fn a_crd_that_was_reinstalled_has_none_of_the_old_imports() {
    let mut world = mk_world(&["a", "b"]);
    let policy = mk_policy();
    export(&mut world, "a", "llm");
    settle(&mut world, &policy, NOW);
    let newer = |uid: &str, generation| ImportCrd {
        uid: Some(uid.to_owned()),
        generation,
        ..mk_import_crd(Flavour::Superset)
    };
    world.update(
        &mk_name("b"),
        Update::ImportCrd(newer("import-crd-1", 2)),
        NOW,
    );
    assert_eq!(settle(&mut world, &policy, NOW), 0, "the same CRD, edited");
    world.update(&mk_name("b"), Update::ImportCrd(ImportCrd::ABSENT), NOW);
    world.update(
        &mk_name("b"),
        Update::ImportCrd(newer("import-crd-2", 1)),
        NOW,
    );
    relist(&mut world, "b");
    let plan = desired_for(&world, &policy, &mk_key("llm"), NOW);
    let found = member(&world, "b").imports.items.get(&mk_key("llm"));
    assert_eq!(diff(&plan.imports[&mk_name("b")], found), Step::CreateMain);
}

#[test]
fn a_sole_exporter_may_keep_an_import_that_names_itself() {
    let mut world = mk_world(&["a", "b"]);
    let policy = Policy {
        import_in_exporter: ImportInExporter::Always,
        ..mk_policy()
    };
    export(&mut world, "a", "llm");
    let plan = desired_for(&world, &policy, &mk_key("llm"), NOW);
    let own = planned(&plan, "a");
    assert!(names(own).is_empty());
    assert_eq!(exporting(own), ["a"]);
    let condition = |type_| conditions::find(&own.status.conditions, type_).expect("there");
    let ready = condition(conditions::READY);
    assert_eq!(
        (ready.status.as_str(), ready.reason.as_str()),
        ("False", "NoRemoteCluster")
    );
    assert_eq!(condition(conditions::ACCEPTED).status, "True");
    settle(&mut world, &policy, NOW);
    // it stays when a second exporter comes and goes
    export(&mut world, "b", "llm");
    settle(&mut world, &policy, NOW);
    assert_eq!(entries(&world, "a", &mk_key("llm")), ["b"]);
    world.update(
        &mk_name("b"),
        Update::PoolApplied(mk_pool("llm", None)),
        NOW,
    );
    settle(&mut world, &policy, NOW);
    assert!(
        member(&world, "a")
            .imports
            .items
            .contains_key(&mk_key("llm"))
    );
    world.update(
        &mk_name("a"),
        Update::PoolApplied(mk_pool("llm", None)),
        NOW,
    );
    settle(&mut world, &policy, NOW);
    assert!(member(&world, "a").imports.items.is_empty());
}

fn mk_numbered(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("m{n:03}")).collect()
}

/// The picker's Service with so many addresses that its entry takes several KiB.
fn mk_large_service() -> Update {
    let long = "x".repeat(60);
    let mut service = mk_service(ServiceType::LoadBalancer, "192.0.2.1");
    service.ingress = (0..40)
        .map(|n| format!("lb-{n}.{long}.{long}.example.com"))
        .collect();
    Update::Services(Change::Applied(service))
}

/// All but the first export the same pool, behind such a Service.
fn mk_crowd(every: &[String]) -> World {
    let every: Vec<&str> = every.iter().map(String::as_str).collect();
    let mut world = mk_world(&every);
    for name in &every[1..] {
        world.update(&mk_name(name), mk_large_service(), NOW);
        export(&mut world, name, "llm");
    }
    world
}

#[test]
fn past_256_entries_the_oldest_pools_stay_and_the_others_are_named() {
    let every = mk_numbered(258);
    let every: Vec<&str> = every.iter().map(String::as_str).collect();
    let mut world = mk_world(&every);
    for (n, name) in every.iter().enumerate().take(257) {
        let mut pool = mk_pool("llm", Some("ClusterSet"));
        // the first by name is the youngest
        let second = if n == 0 {
            5_000
        } else {
            1_000 + i64::try_from(n).expect("small")
        };
        pool.created = Timestamp::from_second(second).expect("in range");
        world.update(&mk_name(name), Update::PoolApplied(pool), NOW);
    }
    let plan = desired_for(&world, &mk_policy(), &mk_key("llm"), NOW);
    let found = names(planned(&plan, "m257"));
    assert_eq!(found.len(), 256);
    assert_eq!(found[0], "m001");
    let crowded: Vec<&str> = plan.crowded_out.iter().map(ClusterName::as_str).collect();
    assert_eq!(crowded, ["m000"]);
    settle(&mut world, &mk_policy(), NOW);
    let (_, reason, message) = exported(&world, &mk_policy(), "m000", &mk_key("llm"), NOW);
    assert_eq!(reason, "PartiallyExported");
    assert!(message.contains("m001 TooManyExporters"), "{message}");
}

#[test]
fn entries_that_are_carried_over_take_their_room_and_who_finds_none_is_named() {
    let every = mk_numbered(258);
    let every: Vec<&str> = every.iter().map(String::as_str).collect();
    let mut before = mk_world(&["m000", "m257"]);
    export(&mut before, "m000", "llm");
    settle(&mut before, &mk_policy(), NOW);
    let stored = live(&before, "m257");
    // restarted, without m000
    let mut world = mk_world(&every[1..257]);
    for name in ["m000", "m257"] {
        world.add_member(&mk_name(name), NOW);
    }
    connect(&mut world, "m257", Vec::new(), vec![stored], NOW);
    for (n, name) in every[1..257].iter().enumerate() {
        let mut pool = mk_pool("llm", Some("ClusterSet"));
        let second = 1_000 + i64::try_from(n).expect("small");
        pool.created = Timestamp::from_second(second).expect("in range");
        world.update(&mk_name(name), Update::PoolApplied(pool), NOW);
    }
    let plan = desired_for(&world, &mk_policy(), &mk_key("llm"), NOW);
    let found = names(planned(&plan, "m257"));
    assert_eq!(found.len(), 256);
    assert_eq!(found[0], "m000");
    let crowded: Vec<&str> = plan.crowded_out.iter().map(ClusterName::as_str).collect();
    assert_eq!(crowded, ["m256"], "the youngest");
}

#[test]
fn an_import_holds_no_more_than_a_mebibyte_of_entries() {
    let every = mk_numbered(200);
    let mut world = mk_crowd(&every);
    let plan = desired_for(&world, &mk_policy(), &mk_key("llm"), NOW);
    let clusters = &planned(&plan, "m000").status.clusters;
    let size = serde_json::to_vec(clusters).expect("JSON").len();
    assert!(size <= 1024 * 1024, "{size}");
    assert!(size > 1000 * 1024, "{size}: more would fit");
    assert_eq!(clusters.len() + plan.crowded_out.len(), 199);

    // those that are cut have the reason, under either CRD
    let upstream = Update::ImportCrd(mk_import_crd(Flavour::Upstream));
    world.update(&mk_name("m000"), upstream, NOW);
    let read_again = Update::Imports(Change::Listed(Vec::new()));
    world.update(&mk_name("m000"), read_again, NOW);
    settle(&mut world, &mk_policy(), NOW);
    let plan = desired_for(&world, &mk_policy(), &mk_key("llm"), NOW);
    let last = plan.crowded_out.last().expect("some are cut");
    let PoolPlan::Exported { condition, settled } = &plan.pools[last] else {
        panic!("no condition");
    };
    assert!(settled, "{condition:?}");
    assert_eq!(condition.reason, "PartiallyExported");
    let named = ["m000 TooManyExporters", "m001 TooManyExporters"];
    assert!(
        named.iter().all(|one| condition.message.contains(one)),
        "{condition:?}"
    );
}

/// Entries carried over count towards the size limit, and exporters without room have the reason.
#[test]
fn an_import_is_no_larger_for_what_it_carries_over_and_names_who_has_no_room() {
    let every = mk_numbered(130);
    let mut world = mk_crowd(&every);
    settle(&mut world, &mk_policy(), NOW);
    let live = member(&world, "m000").imports.items[&mk_key("llm")].clone();
    // as after a restart: forty are not seen yet, and their entries are forged to be huge
    let mut forged = live;
    for entry in forged.status.clusters.iter_mut().take(40) {
        let picker = entry.endpoint_picker.as_mut().expect("a picker");
        picker.name = "x".repeat(10_000);
    }
    let mut again = World::new(mk_rules());
    for (n, name) in every.iter().enumerate() {
        again.add_member(&mk_name(name), NOW);
        let imports = if n == 0 {
            vec![forged.clone()]
        } else {
            Vec::new()
        };
        if n == 0 || n > 40 {
            let pool = mk_pool("llm", Some("ClusterSet"));
            let pools = if n == 0 { Vec::new() } else { vec![pool] };
            connect(&mut again, name, pools, imports, NOW);
        }
        if n > 40 {
            again.update(&mk_name(name), mk_large_service(), NOW);
        }
    }
    let plan = desired_for(&again, &mk_policy(), &mk_key("llm"), NOW);
    let clusters = &planned(&plan, "m000").status.clusters;
    let size = serde_json::to_vec(clusters).expect("JSON").len();
    assert!(size <= 1024 * 1024, "{size}");
    assert!(clusters.iter().any(|entry| entry.name == "m001"), "carried");
    assert_eq!(clusters.len() + plan.crowded_out.len(), 129);
    assert!(!plan.crowded_out.is_empty());
}

#[test]
fn ready_pods_of_the_picker_are_named_if_asked_for() {
    let mut world = mk_world(&["a", "b"]);
    export(&mut world, "a", "llm");
    let many: Vec<String> = (0..150).map(|n| format!("10.0.1.{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    world.update(
        &mk_name("a"),
        Update::Slices(Change::Listed(vec![mk_slice(&many)])),
        NOW,
    );
    let endpoints = |policy: &Policy| {
        let plan = desired_for(&world, policy, &mk_key("llm"), NOW);
        let entry = &planned(&plan, "b").status.clusters[0];
        let picker = entry.endpoint_picker.as_ref().expect("a picker");
        picker.endpoints.len()
    };
    assert_eq!(endpoints(&mk_policy()), 0);
    let asked = Policy {
        epp_endpoints: true,
        ..mk_policy()
    };
    assert_eq!(endpoints(&asked), 100);
}

#[test]
fn a_member_exports_two_thousand_pools_and_no_more() {
    let mut world = mk_world(&["a", "b"]);
    let names: Vec<String> = (0..2001).map(|n| format!("p{n:04}")).collect();
    for pool in &names {
        export(&mut world, "a", pool);
    }
    let over = mk_key("p2000");
    let plan = desired_for(&world, &mk_policy(), &over, NOW);
    assert_eq!(plan.imports[&mk_name("b")], ImportPlan::Absent);
    let PoolPlan::Exported { condition, .. } = &plan.pools[&mk_name("a")] else {
        panic!("no condition");
    };
    assert_eq!(condition.reason, "NotSupported");
    // one goes: the next takes its place
    let gone = Update::PoolApplied(mk_pool("p0000", None));
    let changes = world.update(&mk_name("a"), gone, NOW);
    assert!(changes.dirty.keys.contains(&over));
    let plan = desired_for(&world, &mk_policy(), &over, NOW);
    assert_eq!(super::names(planned(&plan, "b")), ["a"]);
}
