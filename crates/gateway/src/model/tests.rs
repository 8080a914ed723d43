//! Attachment, isolation, precedence, references and every reason in status.

use std::collections::BTreeMap;

use rstest::rstest;

use super::*;
use crate::feedback::{Feedback, Refused, Rejection};
use crate::fixture::{
    add_route, key, mk_feedback, mk_gateway, mk_import, mk_listener, mk_own_parameters,
    mk_parent_entry, mk_ref, mk_route, mk_rule, mk_selection, mk_service, mk_settings, mk_world,
};
use crate::world::{Gateway, HttpRoute, ParentRef, RoutesFrom};

mod backend_tls;
mod headers;
mod imports;
mod messages;
pub(crate) mod references;
mod tls;

fn build_all(world: &World) -> (Vec<GatewayModel>, WantedStatus) {
    build(world, &mk_settings())
}

/// `Type=Status/Reason` of each condition.
fn say(conditions: &[Cond]) -> Vec<String> {
    let text = |cond: &Cond| {
        let status = if cond.status == Truth::True {
            "True"
        } else {
            "False"
        };
        format!("{}={status}/{}", cond.kind, cond.reason)
    };
    conditions.iter().map(text).collect()
}

fn route_says(world: &World, route: &str) -> Vec<String> {
    route_says_with(world, &mk_feedback(), route)
}

fn route_says_with(world: &World, feedback: &Feedback, route: &str) -> Vec<String> {
    let (_, wanted) = build_with(world, feedback, &mk_settings());
    say(&wanted.routes[&key(route)][0].conditions)
}

/// Of the Gateway of the fixture.
fn reported(feedback: &Feedback) -> GatewayStatus {
    let (_, mut wanted) = build_with(&mk_world(), feedback, &mk_settings());
    wanted.gateways.remove(&key("gw")).unwrap()
}

fn mk_rejection(of: Refused, name: &str) -> Rejection {
    Rejection {
        of,
        name: name.into(),
        message: "no".into(),
        others_serve: false,
    }
}

/// Of the first Gateway that uses it, at equal shares.
fn import_conditions(wanted: &WantedStatus, import: &str) -> Vec<Cond> {
    let parents = wanted.imports[&key(import)].parents(&mk_selection(wanted));
    parents[0].conditions.clone()
}

fn has(conditions: &[String], wanted: &str) -> bool {
    conditions.iter().any(|one| one == wanted)
}

fn vhosts(model: &GatewayModel, port: u16) -> BTreeMap<String, Vec<String>> {
    let vhosts = model.ports[&port].chains[0].vhosts.iter().map(|vhost| {
        let routes = vhost.rules.iter().map(|rule| rule.id.route.name.clone());
        (vhost.domain.to_string(), routes.collect())
    });
    vhosts.collect()
}

fn hosted(name: &str, hosts: &[&str], section: Option<&str>) -> HttpRoute {
    let mut route = mk_route(name, vec![mk_rule("/", vec![mk_ref("service", "web", 1)])]);
    route.hostnames = hosts.iter().map(ToString::to_string).collect();
    route.parents[0].section = section.map(Into::into);
    route
}

#[test]
fn accepted_world_is_programmed() {
    let (models, wanted) = build_all(&mk_world());
    assert_eq!(models.len(), 1);
    let gateway = &wanted.gateways[&key("gw")];
    assert_eq!(
        say(&gateway.conditions),
        ["Accepted=True/Accepted", "Programmed=True/Programmed"]
    );
    let listener = &gateway.listeners[0];
    assert_eq!(listener.attached, 2);
    assert_eq!(
        say(&listener.conditions),
        [
            "Accepted=True/Accepted",
            "Conflicted=False/NoConflicts",
            "ResolvedRefs=True/ResolvedRefs",
            "Programmed=True/Programmed"
        ]
    );
    assert_eq!(
        say(&wanted.classes["isthmus"].conditions),
        ["Accepted=True/Accepted"]
    );
    let imports = wanted.imports[&key("llm")].parents(&mk_selection(&wanted));
    assert_eq!(imports[0].conditions[2].message, "east 1000");
    for parents in [&wanted.pools[&key("llm")], &imports] {
        assert!(has(&say(&parents[0].conditions), "Accepted=True/Accepted"));
        assert_eq!(parents[0].parent.namespace.as_deref(), Some("ns"));
    }
}

#[test]
fn class_of_another_controller_is_none_of_ours() {
    let mut world = mk_world();
    world.classes.get_mut("isthmus").unwrap().controller = "example.com/other".into();
    let (models, wanted) = build_all(&world);
    assert!(models.is_empty() && wanted.gateways.is_empty() && wanted.classes.is_empty());
    // Entries that we had are to go.
    assert_eq!(wanted.routes[&key("chat")], []);
}

#[rstest]
#[case(RoutesFrom::Same, "ns", true)]
#[case(RoutesFrom::Same, "other", false)]
#[case(RoutesFrom::All, "other", true)]
#[case(RoutesFrom::None, "other", false)]
fn namespaces_attach_as_the_listener_allows(
    #[case] from: RoutesFrom,
    #[case] namespace: &str,
    #[case] allowed: bool,
) {
    let mut world = mk_world();
    world.gateways.get_mut(&key("gw")).unwrap().listeners[0].from = from;
    let mut route = hosted("mine", &[], None);
    route.key.namespace = namespace.into();
    route.parents[0].namespace = Some("ns".into());
    let id = route.key.clone();
    add_route(&mut world, route);
    let (_, wanted) = build_all(&world);
    let accepted = &wanted.routes[&id][0].conditions[0];
    let reason = if allowed {
        "Accepted"
    } else {
        "NotAllowedByListeners"
    };
    assert_eq!(accepted.reason, reason);
}

#[test]
fn parent_names_section_port_and_hostname() {
    let mut world = mk_world();
    let listeners = vec![
        mk_listener("a", 80, Some("*.a.com")),
        mk_listener("b", 8080, None),
    ];
    world
        .gateways
        .insert(key("gw"), mk_gateway("gw", listeners));
    world.routes.clear();
    for (name, host, section, port, reason) in [
        ("fits", "x.a.com", Some("a"), Some(80), "Accepted"),
        ("no-section", "x.a.com", Some("c"), None, "NoMatchingParent"),
        (
            "no-port",
            "x.a.com",
            Some("a"),
            Some(8080),
            "NoMatchingParent",
        ),
        (
            "no-host",
            "x.b.com",
            Some("a"),
            None,
            "NoMatchingListenerHostname",
        ),
        ("other-listener", "x.b.com", None, None, "Accepted"),
    ] {
        let mut route = hosted(name, &[host], section);
        route.parents[0].port = port;
        add_route(&mut world, route);
        let (_, wanted) = build_all(&world);
        assert_eq!(
            wanted.routes[&key(name)][0].conditions[0].reason,
            reason,
            "{name}"
        );
    }
}

#[test]
fn host_belongs_to_the_most_specific_listener() {
    let mut world = mk_world();
    let listeners = vec![
        mk_listener("any", 80, None),
        mk_listener("wild", 80, Some("*.a.com")),
        mk_listener("exact", 80, Some("x.a.com")),
    ];
    world
        .gateways
        .insert(key("gw"), mk_gateway("gw", listeners));
    world.routes.clear();
    add_route(&mut world, hosted("any", &[], Some("any")));
    add_route(
        &mut world,
        hosted("wild", &["*.a.com", "y.a.com"], Some("wild")),
    );
    let (models, _) = build_all(&world);
    let expected = [
        ("*", vec!["any"]),
        ("*.a.com", vec!["wild"]),
        ("x.a.com", vec![]), // its listener has no route: 404
        ("y.a.com", vec!["wild"]),
    ];
    let expected = expected.map(|(host, routes)| {
        (
            host.to_owned(),
            routes.into_iter().map(str::to_owned).collect::<Vec<_>>(),
        )
    });
    assert_eq!(vhosts(&models[0], 80), expected.into_iter().collect());
}

#[test]
fn vhost_holds_the_rules_of_wider_hosts_after_its_own() {
    let mut world = mk_world();
    world.routes.clear();
    add_route(&mut world, hosted("all", &[], None));
    add_route(&mut world, hosted("wide", &["*.a.com"], None));
    add_route(&mut world, hosted("exact", &["x.a.com"], None));
    let (models, _) = build_all(&world);
    assert_eq!(vhosts(&models[0], 80)["x.a.com"], ["exact", "wide", "all"]);
    assert_eq!(vhosts(&models[0], 80)["*"], ["all"]);
}

/// A host name in full goes before one with a wildcard, and both before none, whichever host the listener leaves of them.
#[test]
fn route_that_names_the_host_most_precisely_answers() {
    let mut world = mk_world();
    world.routes.clear();
    let listeners = vec![mk_listener("only", 80, Some("x.a.com"))];
    world
        .gateways
        .insert(key("gw"), mk_gateway("gw", listeners));
    for (name, hosts, created) in [
        ("all", &[][..], 1),
        ("wide", &["*.com"], 2),
        ("near", &["*.a.com"], 3),
        ("exact", &["x.a.com"], 4),
    ] {
        let mut route = hosted(name, hosts, None);
        route.created = created;
        add_route(&mut world, route);
    }
    let (models, _) = build_all(&world);
    let order = vhosts(&models[0], 80);
    assert_eq!(order["x.a.com"], ["exact", "near", "wide", "all"]);
}

#[rstest]
#[case(&[("TLS", 443, None)], &["Accepted=False/UnsupportedProtocol"], "Accepted=False/ListenersNotValid")]
#[case(&[("HTTP", 19001, None)], &["Accepted=False/PortUnavailable"], "Accepted=False/ListenersNotValid")]
#[case(&[("HTTP", 80, None), ("TCP", 80, None)], &["Conflicted=True/ProtocolConflict", "Accepted=False/UnsupportedProtocol"], "Accepted=False/ListenersNotValid")]
#[case(&[("HTTP", 80, Some("a.b")), ("HTTP", 80, Some("A.b")), ("HTTP", 81, None)], &["Conflicted=True/HostnameConflict", "Conflicted=True/HostnameConflict", "Conflicted=False/NoConflicts"], "Accepted=True/ListenersNotValid")]
fn listeners_that_cannot_work_say_why(
    #[case] listeners: &[(&str, u16, Option<&str>)],
    #[case] each: &[&str],
    #[case] gateway: &str,
) {
    let mut world = mk_world();
    let made = listeners
        .iter()
        .enumerate()
        .map(|(index, (protocol, port, host))| {
            let mut listener = mk_listener(&format!("l{index}"), *port, *host);
            listener.protocol = (*protocol).into();
            listener
        });
    world
        .gateways
        .insert(key("gw"), mk_gateway("gw", made.collect()));
    let (_, wanted) = build_all(&world);
    let status = &wanted.gateways[&key("gw")];
    for (listener, expected) in status.listeners.iter().zip(each) {
        assert!(
            has(&say(&listener.conditions), expected),
            "{:?}",
            say(&listener.conditions)
        );
    }
    assert!(
        has(&say(&status.conditions), gateway),
        "{:?}",
        say(&status.conditions)
    );
}

#[test]
fn odd_route_kinds_are_reported_and_the_rest_served() {
    let mut world = mk_world();
    let listener = &mut world.gateways.get_mut(&key("gw")).unwrap().listeners[0];
    let group = "gateway.networking.k8s.io".to_owned();
    listener.kinds = vec![
        (group.clone(), "TCPRoute".into()),
        (group, "HTTPRoute".into()),
    ];
    let (_, wanted) = build_all(&world);
    let listener = &wanted.gateways[&key("gw")].listeners[0];
    assert!(has(
        &say(&listener.conditions),
        "ResolvedRefs=False/InvalidRouteKinds"
    ));
    assert!(listener.serves_http_routes && listener.attached == 2);
}

#[test]
fn object_of_another_in_its_place_is_told() {
    let mut feedback = mk_feedback();
    let taken = "Service ns/gw-isthmus".to_owned();
    feedback.taken.insert(key("gw"), taken);
    let programmed = &reported(&feedback).conditions[1];
    assert_eq!(
        say(std::slice::from_ref(programmed)),
        ["Programmed=False/Invalid"]
    );
    assert!(programmed.message.contains("gw-isthmus"));
}

#[test]
fn gateway_says_what_it_waits_for() {
    let mut feedback = mk_feedback();
    let programmed = |feedback: &Feedback| reported(feedback).conditions[1].clone();
    let reason = |feedback: &Feedback| programmed(feedback).reason;
    let infra = feedback.infra.get_mut(&key("gw-isthmus")).unwrap();
    infra.available = 0;
    assert_eq!(reason(&feedback), "Pending");
    let infra = feedback.infra.get_mut(&key("gw-isthmus")).unwrap();
    (infra.failure, infra.addresses) = (Some("pods are forbidden".into()), Vec::new());
    let none = programmed(&feedback);
    assert_eq!((none.status, &*none.reason), (Truth::False, "Pending"));
    assert!(none.message.ends_with("pods are forbidden"), "{none:?}");
    let infra = feedback.infra.get_mut(&key("gw-isthmus")).unwrap();
    (infra.available, infra.addresses) = (1, vec!["10.1.200.1".into()]);
    let before = programmed(&feedback);
    assert_eq!(
        (before.status, &*before.reason),
        (Truth::True, "Programmed")
    );
    assert!(before.message.ends_with("pods are forbidden"), "{before:?}");
    let infra = feedback.infra.get_mut(&key("gw-isthmus")).unwrap();
    infra.failure = None;
    let refused = "Service is refused".to_owned();
    feedback.refused.insert(key("gw"), refused);
    let before = programmed(&feedback);
    assert_eq!(
        (before.status, &*before.reason),
        (Truth::True, "Programmed")
    );
    assert!(before.message.ends_with("Service is refused"), "{before:?}");
    feedback = Feedback::default();
    assert_eq!(reason(&feedback), "AddressNotAssigned");
    let table = Refused::Table {
        port: 80,
        hostname: None,
    };
    let refused = mk_rejection(table, "edge/80");
    feedback.rejections.insert(key("gw"), vec![refused]);
    assert_eq!(reason(&feedback), "Invalid");
}

/// The Gateway is served as before, which is not enough for a listener that it did not have before.
#[test]
fn listener_waits_for_its_port_of_the_service() {
    let mut feedback = mk_feedback();
    let programmed = |feedback: &Feedback| reported(feedback).listeners[0].conditions[3].clone();
    assert_eq!(programmed(&feedback).status, Truth::True);
    let infra = feedback.infra.get_mut(&key("gw-isthmus")).unwrap();
    infra.ports = [8080].into();
    let refused = "Service is refused".to_owned();
    feedback.refused.insert(key("gw"), refused);
    let waiting = programmed(&feedback);
    assert_eq!(
        (waiting.status, &*waiting.reason),
        (Truth::False, "Pending")
    );
    assert!(
        waiting.message.ends_with("Service is refused"),
        "{waiting:?}"
    );
}

/// One Envoy of fifty that refuses something takes no Gateway out of service.
#[test]
fn what_ready_envoys_do_not_refuse_is_programmed() {
    let mut feedback = mk_feedback();
    let refuse = |feedback: &mut Feedback, others_serve| {
        let refused = [
            (Refused::Port(80), "edge/80"),
            (Refused::Import(key("llm")), "epp/ns/llm/east"),
        ];
        let refused = refused.map(|(of, name)| Rejection {
            message: "1 of 50 Envoys refuse it".into(),
            others_serve,
            ..mk_rejection(of, name)
        });
        feedback.rejections.insert(key("gw"), refused.into());
        let status = reported(feedback);
        let said = [&status.conditions[1], &status.listeners[0].conditions[3]];
        said.map(|one| (one.status, one.message.contains("1 of 50")))
    };
    let rejected = "Programmed=False/ProxyRejected";
    let chat = |feedback: &Feedback| route_says_with(&mk_world(), feedback, "chat");
    assert_eq!(refuse(&mut feedback, true), [(Truth::True, true); 2]);
    assert!(!has(&chat(&feedback), rejected));
    assert_eq!(refuse(&mut feedback, false), [(Truth::False, true); 2]);
    assert!(has(&chat(&feedback), rejected));
}

#[test]
fn refused_cluster_shows_on_the_routes_that_use_it() {
    let mut feedback = mk_feedback();
    let refused = mk_rejection(Refused::Import(key("llm")), "epp/ns/llm/east");
    feedback.rejections.insert(key("gw"), vec![refused]);
    let says = |route: &str| route_says_with(&mk_world(), &feedback, route);
    assert!(has(&says("chat"), "Programmed=False/ProxyRejected"));
    assert!(!has(&says("web"), "Programmed=False/ProxyRejected"));
}

/// What a Gateway that was accepted serves after a change: parameters are of its Envoys alone, all else is of what they serve.
#[rstest]
#[case::parameters(|gateway: &mut Gateway| gateway.parameters = Some(mk_own_parameters()),
    "InvalidParameters", true)]
#[case::addresses(|gateway: &mut Gateway| gateway.wants_addresses = true,
    "UnsupportedAddress", false)]
#[case::listeners(|gateway: &mut Gateway| gateway.listeners[0].protocol = "TCP".into(),
    "ListenersNotValid", false)]
#[case::no_listeners(|gateway: &mut Gateway| gateway.listeners.clear(), "Accepted", false)]
fn gateway_that_is_not_accepted_any_more_is_not_served(
    #[case] change: fn(&mut Gateway),
    #[case] reason: &str,
    #[case] is_served: bool,
) {
    let mut world = mk_world();
    let before = build_all(&world).0;
    world.parameters.insert(key("own"), None);
    change(world.gateways.get_mut(&key("gw")).unwrap());
    let (models, wanted) = build_all(&world);
    let accepted = &wanted.gateways[&key("gw")].conditions[0];
    assert_eq!(accepted.reason, reason);
    let ports = &models[0].ports;
    if is_served {
        assert_eq!(*ports, before[0].ports);
    } else {
        assert!(ports.is_empty(), "{ports:?}");
    }
}
