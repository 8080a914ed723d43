//! What is not known yet. That changes are followed is held by the tests of the control loop.

use std::time::Duration;

use super::*;
use crate::fixture::{
    key, mk_feedback, mk_https_listener, mk_own_parameters, mk_settings, mk_world,
};
use crate::world::{BackendTlsPolicy, BadSecret, TlsTarget};

/// What was touched is built again.
fn update(built: &mut Built, world: &World, touched: &Touched) {
    let Delta { unreported, .. } = built.update(world, &mk_settings(), touched);
    built.report(world, &mk_feedback(), &mk_settings(), unreported);
}

fn build_again(built: &mut Built, world: &World) {
    update(built, world, &Touched::all());
}

fn accepted(built: &Built) -> &str {
    &built.wanted.gateways[&key("gw")].conditions[0].reason
}

#[test]
fn gateway_stays_as_it_is_until_its_parameters_are_listed() {
    let mut world = mk_world();
    let mut built = Built::default();
    build_again(&mut built, &world);
    let (models, gateways) = (built.models.clone(), built.wanted.gateways.clone());
    let gateway = world.gateways.get_mut(&key("gw")).unwrap();
    gateway.parameters = Some(mk_own_parameters());
    build_again(&mut built, &world);
    assert_eq!(built.models, models);
    assert_eq!(built.wanted.gateways, gateways);
    // A Gateway that was not there before waits without a word.
    let mut new = Built::default();
    build_again(&mut new, &world);
    assert_eq!((new.models.len(), new.wanted.gateways.len()), (0, 0));
    world.parameters.insert(key("own"), None);
    build_again(&mut built, &world);
    assert_eq!(built.models, models, "they are of its Envoys alone");
    assert_eq!(accepted(&built), "InvalidParameters");
    world
        .parameters
        .insert(key("own"), Some(parameters::parse("replicas: 1")));
    build_again(&mut built, &world);
    assert_eq!(built.models, models);
    assert_eq!(accepted(&built), "Accepted");
}

#[test]
fn gateway_stays_as_it_is_until_its_secrets_are_listed() {
    let mut world = mk_world();
    let mut built = Built::default();
    build_again(&mut built, &world);
    let (models, gateways) = (built.models.clone(), built.wanted.gateways.clone());
    let gateway = world.gateways.get_mut(&key("gw")).unwrap();
    gateway
        .listeners
        .push(mk_https_listener("https", 443, None, &["cert"]));
    build_again(&mut built, &world);
    assert_eq!(built.models, models);
    assert_eq!(built.wanted.gateways, gateways);
    // Neither does a route that changes meanwhile.
    world.routes.remove(&key("web"));
    let touched = Touched {
        routes: [key("web")].into(),
        ..Touched::default()
    };
    update(&mut built, &world, &touched);
    assert_eq!(built.models, models);
    world
        .certificates
        .insert(key("cert"), Err(BadSecret::NotFound));
    build_again(&mut built, &world);
    let ports: Vec<_> = built.models[&key("gw")].ports.keys().copied().collect();
    assert_eq!(ports, [80, 443]);
    assert_eq!(built.wanted.gateways[&key("gw")].listeners.len(), 2);
}

/// Everything that a class says stays too.
#[test]
fn class_says_what_it_said_until_its_parameters_are_listed() {
    let mut world = mk_world();
    let mut built = Built::default();
    build_again(&mut built, &world);
    let classes = built.wanted.classes.clone();
    let mut reference = mk_own_parameters();
    reference.namespace = Some("ns".to_owned());
    let class = world.classes.get_mut("isthmus").unwrap();
    (class.parameters, class.generation) = (Some(reference), 2);
    build_again(&mut built, &world);
    assert_eq!(built.wanted.classes, classes);
    world.parameters.insert(key("own"), None);
    build_again(&mut built, &world);
    assert_ne!(built.wanted.classes, classes);
}

/// Another drain time is another listener, which ends connections.
#[test]
fn parameters_that_cannot_be_read_change_no_listener() {
    let mut world = mk_world();
    let gateway = world.gateways.get_mut(&key("gw")).unwrap();
    gateway.parameters = Some(mk_own_parameters());
    let set = |world: &mut World, text: Option<&str>| {
        let parsed = text.map(parameters::parse);
        world.parameters.insert(key("own"), parsed);
    };
    let drain = |built: &Built| built.models[&key("gw")].ports[&80].drain;
    set(&mut world, Some("drainSeconds: 8"));
    let mut built = Built::default();
    build_again(&mut built, &world);
    let before = built.models.clone();
    assert_eq!(drain(&built), Duration::from_secs(8));
    for text in [Some("drainSecond: 9"), Some("drainSeconds: 4000"), None] {
        set(&mut world, text);
        build_again(&mut built, &world);
        assert_eq!(built.models, before, "{text:?}");
        assert_eq!(accepted(&built), "InvalidParameters");
    }
    set(&mut world, Some("drainSeconds: 9"));
    build_again(&mut built, &world);
    assert_eq!(drain(&built), Duration::from_secs(9));
}

/// Others are not looked at for each event.
#[test]
fn policies_for_tls_are_told_of_routes_that_may_lead_to_their_targets() {
    let mut world = mk_world();
    let found = |world: &World| {
        let mut built = Built::default();
        build_again(&mut built, world);
        let tls = TlsPolicies::new(world, Arc::clone(&built.tls));
        let routes = built.naming_targets(&tls).into_iter();
        routes.map(|key| key.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(found(&world), [""; 0]);
    let cases: [(&str, &str, &str, &[&str]); 5] = [
        ("", "Service", "web", &["web"]),
        ("", "Service", "epp", &["chat"]),
        (IMPORT_GROUP, "InferencePoolImport", "llm", &["chat"]),
        (IMPORT_GROUP, "InferencePoolImport", "web", &[]),
        ("", "Service", "llm", &[]),
    ];
    for (group, kind, name, expected) in cases {
        let policy = BackendTlsPolicy {
            generation: 1,
            created: 0,
            targets: vec![TlsTarget {
                group: group.into(),
                kind: kind.into(),
                name: name.into(),
                section: None,
            }],
            validation: Err("none".into()),
        };
        world.tls_policies = [(key("p"), policy)].into();
        assert_eq!(found(&world), expected, "{kind} {name}");
    }
}
