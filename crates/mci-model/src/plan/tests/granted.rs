//! What home grants a member: the networks of its pods in its entries, and the namespaces that it exports.

use std::sync::Arc;

use super::*;
use crate::{
    evidence::Evidence,
    index::{
        Changes,
        grant::Stated,
        origin::{Origin, Source, SourceKind},
    },
};

/// The origin that results from the values of an object.
fn mk_origin(pod_cidrs: Option<&str>, namespaces: Option<&str>) -> Origin {
    fn stated<T, E>(text: Option<&str>, parse: impl Fn(&str) -> Result<T, E>) -> Stated<T> {
        match text.map(parse) {
            None => Stated::Absent,
            Some(Ok(value)) => Stated::Known(value),
            Some(Err(_)) => Stated::Unreadable,
        }
    }
    Origin {
        source: Source {
            kind: SourceKind::Secret,
            namespace: "isthmus-system".to_owned(),
            name: "a".to_owned(),
            ..Source::default()
        },
        pod_cidrs: stated(pod_cidrs, crd::networks::parse_pod_cidrs),
        export_namespaces: stated(namespaces, str::parse),
        ..Origin::default()
    }
}

fn describe(world: &mut World, pod_cidrs: Option<&str>, namespaces: Option<&str>) -> Changes {
    let origin = mk_origin(pod_cidrs, namespaces);
    world.describe(&mk_name("a"), &Arc::new(origin))
}

fn condition(plan: &KeyPlan, exporter: &str) -> (String, String) {
    match &plan.pools[&mk_name(exporter)] {
        PoolPlan::Exported { condition, .. } => {
            (condition.reason.clone(), condition.message.clone())
        }
        PoolPlan::NoEntry => panic!("no entry"),
    }
}

#[test]
fn networks_of_its_object_go_into_a_members_entries() {
    let mut world = mk_world(&["a", "b", "c"]);
    export(&mut world, "a", "llm");
    describe(&mut world, Some("10.2.0.0/16,fd00:2::/56"), None);
    let earlier = Update::ImportCrd(mk_import_crd(Flavour::Earlier));
    world.update(&mk_name("c"), earlier, NOW);
    let listed = Update::Imports(Change::Listed(Vec::new()));
    world.update(&mk_name("c"), listed, NOW);
    let networks = |world: &World, importer: &str| {
        let plan = desired_for(world, &mk_policy(), &mk_key("llm"), NOW);
        let clusters = &planned(&plan, importer).status.clusters;
        clusters[0].pod_cidrs.clone()
    };
    assert_eq!(networks(&world, "b"), ["10.2.0.0/16", "fd00:2::/56"]);
    // an older CRD rejects fields that it does not declare
    assert_eq!(networks(&world, "c"), [""; 0]);
    // a value that cannot be read leaves the earlier one in force
    describe(&mut world, Some("everywhere"), None);
    assert_eq!(networks(&world, "b"), ["10.2.0.0/16", "fd00:2::/56"]);
    describe(&mut world, None, None);
    assert_eq!(networks(&world, "b"), [""; 0]);
}

#[test]
fn a_namespace_that_a_member_may_not_export_is_withdrawn_and_said() {
    let mut world = mk_world(&["a", "b"]);
    export(&mut world, "a", "llm");
    describe(&mut world, None, Some("ml"));
    let policy = mk_policy();
    settle(&mut world, &policy, NOW);
    assert_eq!(entries(&world, "b", &mk_key("llm")), ["a"]);
    let changes = describe(&mut world, None, Some("team-*"));
    let withdrawn = changes.withdrawals.iter().map(|one| one.evidence);
    assert_eq!(withdrawn.collect::<Vec<_>>(), [Evidence::NotAllowed]);
    let plan = desired_for(&world, &policy, &mk_key("llm"), NOW);
    assert_eq!(plan.imports[&mk_name("b")], ImportPlan::Absent);
    let (reason, message) = condition(&plan, "a");
    assert_eq!(reason, "NotAllowed");
    for said in ["namespace ml", "Secret isthmus-system/a", "team-*"] {
        assert!(message.contains(said), "{message}");
    }
    // a repeated statement withdraws the pool only once, and the pool can be exported again
    assert_eq!(describe(&mut world, None, Some("team-*")).withdrawals, []);
    assert_eq!(describe(&mut world, None, Some("*")).withdrawals, []);
    let plan = desired_for(&world, &policy, &mk_key("llm"), NOW);
    assert_eq!(names(planned(&plan, "b")), ["a"]);
}

#[rstest::rstest]
#[case::not_allowed(Some("other"), false)]
#[case::unreadable(Some("ML"), true)]
#[case::allowed(Some("ml"), true)]
fn a_right_that_ended_is_withdrawn_of_a_member_that_was_not_seen_since_the_start(
    #[case] namespaces: Option<&str>,
    #[case] stays: bool,
) {
    let mut before = mk_world(&["a", "b"]);
    export(&mut before, "a", "llm");
    settle(&mut before, &mk_policy(), NOW);
    let live = member(&before, "b").imports.items[&mk_key("llm")].clone();
    let mut world = World::new(mk_rules());
    for name in ["a", "b"] {
        world.add_member(&mk_name(name), NOW);
    }
    describe(&mut world, Some("10.2.0.0/16"), namespaces);
    connect(&mut world, "b", Vec::new(), vec![live], NOW);
    settle(&mut world, &mk_policy(), NOW);
    let expected: &[&str] = if stays { &["a"] } else { &[] };
    assert_eq!(entries(&world, "b", &mk_key("llm")), expected);
}

#[test]
fn one_that_may_not_export_a_pool_imports_it() {
    let mut world = mk_world(&["a", "b"]);
    export(&mut world, "a", "llm");
    export(&mut world, "b", "llm");
    describe(&mut world, None, Some("other"));
    let plan = desired_for(&world, &mk_policy(), &mk_key("llm"), NOW);
    assert_eq!(exporting(planned(&plan, "a")), ["b"]);
    assert_eq!(plan.imports[&mk_name("b")], ImportPlan::Absent);
}

#[rstest::rstest]
#[case::both(Some("10.0.0.0/33"), Some("ML"))]
#[case::networks(Some("10.2.0.0/160"), Some("ml"))]
#[case::namespaces(Some("10.2.0.0/16"), Some("ML"))]
fn a_rule_that_cannot_be_read_takes_away_nothing_and_adds_nothing(
    #[case] pod_cidrs: Option<&str>,
    #[case] namespaces: Option<&str>,
) {
    let mut before = mk_world(&["a", "b"]);
    export(&mut before, "a", "llm");
    describe(&mut before, Some("10.2.0.0/16"), Some("ml"));
    settle(&mut before, &mk_policy(), NOW);
    let live = member(&before, "b").imports.items[&mk_key("llm")].clone();
    assert_eq!(live.status.clusters[0].pod_cidrs, ["10.2.0.0/16"]);
    // a controller that starts with such a rule has not seen the earlier value
    let mut world = World::new(mk_rules());
    for name in ["a", "b"] {
        world.add_member(&mk_name(name), NOW);
    }
    describe(&mut world, pod_cidrs, namespaces);
    connect(&mut world, "a", Vec::new(), Vec::new(), NOW);
    connect(&mut world, "b", Vec::new(), vec![live], NOW);
    export(&mut world, "a", "llm");
    export(&mut world, "a", "new");
    let plan = desired_for(&world, &mk_policy(), &mk_key("llm"), NOW);
    let import = planned(&plan, "b");
    assert_eq!(names(import), ["a"]);
    assert_eq!(import.status.clusters[0].pod_cidrs, ["10.2.0.0/16"]);
    let plan = desired_for(&world, &mk_policy(), &mk_key("new"), NOW);
    assert_eq!(plan.imports[&mk_name("b")], ImportPlan::Absent);
}
