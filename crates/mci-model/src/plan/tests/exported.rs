//! The condition Exported of the exporter's pool.

use super::*;

#[test]
fn without_the_namespace_there_is_no_import_until_it_appears() {
    let mut world = mk_world(&["a", "b"]);
    let policy = mk_policy();
    let key = mk_key("llm");
    export(&mut world, "a", "llm");
    world.update(
        &mk_name("b"),
        Update::Namespaces(Change::Listed(Vec::new())),
        NOW,
    );
    let plan = desired_for(&world, &policy, &key, NOW);
    assert_eq!(
        plan.imports[&mk_name("b")],
        ImportPlan::Hold(Hold::NamespaceMissing)
    );
    let (status, reason, message) = exported(&world, &policy, "a", &key, NOW);
    assert_eq!(
        (status.as_str(), reason.as_str()),
        ("False", "NamespaceMissing")
    );
    assert_eq!(message, "exported to 0/0: b NamespaceMissing");

    let terminating = Update::Namespaces(Change::Applied(mk_namespace(true)));
    world.update(&mk_name("b"), terminating, NOW);
    let plan = desired_for(&world, &policy, &key, NOW);
    assert_eq!(
        plan.imports[&mk_name("b")],
        ImportPlan::Hold(Hold::NamespaceMissing)
    );

    let appears = Update::Namespaces(Change::Applied(mk_namespace(false)));
    let changes = world.update(&mk_name("b"), appears, NOW);
    assert!(
        changes.dirty.keys.contains(&key),
        "the namespace makes its keys dirty"
    );
    settle(&mut world, &policy, NOW);
    assert_eq!(entries(&world, "b", &key), ["a"]);
    let (status, reason, message) = exported(&world, &policy, "a", &key, NOW);
    assert_eq!((status.as_str(), reason.as_str()), ("True", "Exported"));
    assert_eq!(message, "exported to 1/1");
}

#[test]
fn exported_counts_what_the_live_imports_carry() {
    let mut world = mk_world(&["a", "b", "c", "d"]);
    let policy = mk_policy();
    let key = mk_key("llm");
    export(&mut world, "a", "llm");
    let (status, reason, message) = exported(&world, &policy, "a", &key, NOW);
    assert_eq!(
        (status.as_str(), reason.as_str()),
        ("False", "PartiallyExported")
    );
    assert_eq!(message, "exported to 0/3: b Pending; c Pending; d Pending");
    lose(&mut world, "c", Moment::default());
    world.update(
        &mk_name("d"),
        Update::Namespaces(Change::Listed(Vec::new())),
        NOW,
    );
    settle(&mut world, &policy, NOW);
    let (_, reason, message) = exported(&world, &policy, "a", &key, NOW);
    assert_eq!(reason, "PartiallyExported");
    assert_eq!(
        message,
        "exported to 1/2: c Unreachable; d NamespaceMissing"
    );
    let strict = Policy {
        strict_exported: true,
        ..policy
    };
    let (_, _, message) = exported(&world, &strict, "a", &key, NOW);
    assert_eq!(
        message,
        "exported to 1/3: c Unreachable; d NamespaceMissing"
    );
}

#[test]
fn a_pool_alone_in_its_clusterset_has_nowhere_to_go() {
    let mut world = mk_world(&["a"]);
    export(&mut world, "a", "llm");
    let (status, reason, _) = exported(&world, &mk_policy(), "a", &mk_key("llm"), NOW);
    assert_eq!(
        (status.as_str(), reason.as_str()),
        ("False", "NoOtherMember")
    );
}

#[test]
fn an_illegal_export_value_exports_nothing_and_is_reported() {
    let mut world = mk_world(&["a", "b"]);
    let pool = mk_pool("llm", Some("cluster-set"));
    world.update(&mk_name("a"), Update::PoolApplied(pool), NOW);
    let policy = mk_policy();
    let plan = desired_for(&world, &policy, &mk_key("llm"), NOW);
    assert_eq!(plan.imports[&mk_name("b")], ImportPlan::Absent);
    let (status, reason, message) = exported(&world, &policy, "a", &mk_key("llm"), NOW);
    assert_eq!(
        (status.as_str(), reason.as_str()),
        ("False", "NotSupported")
    );
    assert!(
        message.contains("cluster-set") && message.contains("ClusterSet"),
        "{message}"
    );
}

#[test]
fn an_external_name_is_exported_unaccepted_and_without_addresses() {
    let mut world = mk_world(&["a", "b"]);
    export(&mut world, "a", "llm");
    let service = mk_service(ServiceType::ExternalName, "192.0.2.1");
    world.update(
        &mk_name("a"),
        Update::Services(Change::Applied(service)),
        NOW,
    );
    let policy = mk_policy();
    let plan = desired_for(&world, &policy, &mk_key("llm"), NOW);
    let entry = &planned(&plan, "b").status.clusters[0];
    assert_eq!(
        reason(entry, conditions::ACCEPTED),
        "UnsupportedServiceType"
    );
    let picker = entry.endpoint_picker.as_ref().expect("named");
    assert!(
        picker
            .service
            .iter()
            .all(|service| service.addresses.is_empty())
    );
    let (status, reason, _) = exported(&world, &policy, "a", &mk_key("llm"), NOW);
    assert_eq!(
        (status.as_str(), reason.as_str()),
        ("False", "NotSupported")
    );
}

#[test]
fn annotations_without_effect_are_listed_by_exporter() {
    for (port, ignored) in [("9003", false), ("1234", true)] {
        let mut world = mk_world(&["a", "b"]);
        let mut pool = mk_pool("llm", None);
        pool.export = mk_export(&[
            (crd::annotations::EXPORT, "ClusterSet"),
            (crd::annotations::HEALTH_PORT, port),
        ]);
        world.update(&mk_name("a"), Update::PoolApplied(pool), NOW);
        let plan = desired_for(&world, &mk_policy(), &mk_key("llm"), NOW);
        let expected = ignored.then(|| (mk_name("a"), vec![crd::annotations::HEALTH_PORT]));
        assert_eq!(plan.ignored, expected.into_iter().collect(), "{port}");
    }
}

#[test]
fn an_export_that_nobody_can_use_says_so_to_its_owner() {
    let mut world = mk_world(&["a", "b"]);
    let policy = mk_policy();
    let key = mk_key("llm");
    let mut pool = mk_pool("llm", Some("ClusterSet"));
    let epp = pool.epp.as_mut().expect("an endpoint picker");
    epp.group = "extensions.higress.io".to_owned();
    epp.kind = "WasmPlugin".to_owned();
    world.update(&mk_name("a"), Update::PoolApplied(pool), NOW);
    settle(&mut world, &policy, NOW);
    let (status, reason, message) = exported(&world, &policy, "a", &key, NOW);
    assert_eq!((status.as_str(), reason.as_str()), ("True", "Exported"));
    assert_eq!(
        message,
        "exported to 1/1; usable by none: InvalidKind: the endpoint picker is of kind extensions.higress.io/WasmPlugin: only a core Service can be exported"
    );
}
