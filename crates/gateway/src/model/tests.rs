//! Attachment, isolation, precedence, references and every reason in status.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use rstest::rstest;

use super::*;
use crate::fixture::{
    add_route, key, mk_gateway, mk_import, mk_listener, mk_ref, mk_route, mk_rule, mk_service,
    mk_settings, mk_world,
};
use crate::world::{
    HttpRoute, ParametersRef, ParentRef, PathMatch, ReferenceGrant, Rejection, RouteRule,
    RoutesFrom, ValueMatch,
};
use crate::xds::Kind;

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
    let (_, wanted) = build_all(world);
    say(&wanted.routes[&key(route)][0].conditions)
}

fn has(conditions: &[String], wanted: &str) -> bool {
    conditions.iter().any(|one| one == wanted)
}

fn vhosts(model: &GatewayModel, port: u16) -> BTreeMap<String, Vec<String>> {
    let vhosts = model.ports[&port].vhosts.iter().map(|vhost| {
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
    let imports = &wanted.imports[&key("llm")][0];
    assert_eq!(imports.conditions[2].message, "east 1000");
    for parents in [&wanted.pools[&key("llm")], &wanted.imports[&key("llm")]] {
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

#[rstest]
#[case(&[("HTTPS", 443, None)], &["Accepted=False/UnsupportedProtocol"], "Accepted=False/ListenersNotValid")]
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
fn gateway_says_what_it_waits_for() {
    let mut world = mk_world();
    let reason = |world: &World| {
        let (_, wanted) = build_all(world);
        wanted.gateways[&key("gw")].conditions[1].reason.clone()
    };
    world.infra.get_mut(&key("gw")).unwrap().available = 0;
    assert_eq!(reason(&world), "Pending");
    world.infra.clear();
    assert_eq!(reason(&world), "AddressNotAssigned");
    let refused = Rejection {
        kind: Kind::Routes,
        name: "edge/80".into(),
        message: "no".into(),
    };
    world.rejections.insert(key("gw"), vec![refused]);
    assert_eq!(reason(&world), "Invalid");
}

#[test]
fn refused_cluster_shows_on_the_routes_that_use_it() {
    let mut world = mk_world();
    let refused = Rejection {
        kind: Kind::Cluster,
        name: "epp/ns/llm/east".into(),
        message: "no".into(),
    };
    world.rejections.insert(key("gw"), vec![refused]);
    assert!(has(
        &route_says(&world, "chat"),
        "Programmed=False/ProxyRejected"
    ));
    assert!(!has(
        &route_says(&world, "web"),
        "Programmed=False/ProxyRejected"
    ));
}

#[test]
fn gateway_with_bad_parameters_or_addresses_is_not_accepted() {
    let mut world = mk_world();
    let gateway = world.gateways.get_mut(&key("gw")).unwrap();
    gateway.parameters = Some(ParametersRef {
        group: String::new(),
        kind: "ConfigMap".into(),
        namespace: None,
        name: "none".into(),
    });
    let (models, wanted) = build_all(&world);
    assert!(models.is_empty());
    assert!(has(
        &say(&wanted.gateways[&key("gw")].conditions),
        "Accepted=False/InvalidParameters"
    ));
    let gateway = world.gateways.get_mut(&key("gw")).unwrap();
    gateway.parameters = None;
    gateway.wants_addresses = true;
    let (_, wanted) = build_all(&world);
    assert!(has(
        &say(&wanted.gateways[&key("gw")].conditions),
        "Accepted=False/UnsupportedAddress"
    ));
}

#[rstest]
#[case("service", "none", "BackendNotFound")]
#[case("pool", "none", "BackendNotFound")]
#[case("import", "none", "BackendNotFound")]
fn missing_backend_answers_500_for_its_share(
    #[case] kind: &str,
    #[case] name: &str,
    #[case] reason: &str,
) {
    let mut world = mk_world();
    let rule = mk_rule(
        "/",
        vec![mk_ref(kind, name, 3), mk_ref("service", "web", 1)],
    );
    add_route(&mut world, mk_route("r", vec![rule]));
    assert!(has(
        &route_says(&world, "r"),
        &format!("ResolvedRefs=False/{reason}")
    ));
    let (models, _) = build_all(&world);
    let rule = models[0]
        .rules()
        .find(|rule| rule.id.route == key("r"))
        .unwrap();
    let backends: Vec<_> = rule
        .action
        .backends()
        .iter()
        .map(|b| (b.weight, &b.backend))
        .collect();
    let service = Backend::Service(key("web"), 8080);
    assert_eq!(backends, [(3, &Backend::Invalid), (1, &service)]);
}

#[test]
fn withdrawn_import_answers_500_and_an_empty_one_503() {
    let mut world = mk_world();
    world.routes.clear();
    let rule = mk_rule("/", vec![mk_ref("import", "llm", 1)]);
    add_route(&mut world, mk_route("r", vec![rule]));
    world.imports.insert(key("llm"), mk_import(&[]));
    let (models, wanted) = build_all(&world);
    assert!(models[0].imports[&key("llm")].clusters.is_empty());
    let import = say(&wanted.imports[&key("llm")][0].conditions);
    assert!(has(&import, "Programmed=False/NoUsableCluster"));
    world.imports.clear();
    let (models, _) = build_all(&world);
    let rule = models[0].rules().next().unwrap();
    assert_eq!(rule.action, Action::Status(500));
    assert!(has(
        &route_says(&world, "r"),
        "ResolvedRefs=False/BackendNotFound"
    ));
}

#[test]
fn reference_to_another_namespace_needs_a_grant() {
    let mut world = mk_world();
    world
        .services
        .insert(Key::new("there", "svc"), mk_service(&[("http", 8080)]));
    let mut backend = mk_ref("service", "svc", 1);
    backend.namespace = Some("there".into());
    add_route(&mut world, mk_route("r", vec![mk_rule("/", vec![backend])]));
    assert!(has(
        &route_says(&world, "r"),
        "ResolvedRefs=False/RefNotPermitted"
    ));
    let mut grant = ReferenceGrant {
        from: vec![(
            "gateway.networking.k8s.io".into(),
            "HTTPRoute".into(),
            "ns".into(),
        )],
        to: vec![(String::new(), "Service".into(), Some("svc".into()))],
    };
    world.grants.insert(Key::new("there", "g"), grant.clone());
    assert!(has(
        &route_says(&world, "r"),
        "ResolvedRefs=True/ResolvedRefs"
    ));
    grant.to[0].2 = Some("another".into());
    world.grants.insert(Key::new("there", "g"), grant.clone());
    assert!(has(
        &route_says(&world, "r"),
        "ResolvedRefs=False/RefNotPermitted"
    ));
    grant.to[0].2 = None;
    world.grants.clear();
    world.grants.insert(Key::new("elsewhere", "g"), grant);
    assert!(has(
        &route_says(&world, "r"),
        "ResolvedRefs=False/RefNotPermitted"
    ));
}

#[test]
fn unknown_kind_external_name_and_missing_port_are_bad_references() {
    let mut world = mk_world();
    world.services.get_mut(&key("web")).unwrap().external_name = true;
    assert!(has(
        &route_says(&world, "web"),
        "ResolvedRefs=False/BackendNotFound"
    ));
    let mut odd = mk_ref("service", "epp", 1);
    odd.port = Some(1);
    add_route(
        &mut world,
        mk_route("port", vec![mk_rule("/", vec![odd.clone()])]),
    );
    assert!(has(
        &route_says(&world, "port"),
        "ResolvedRefs=False/BackendNotFound"
    ));
    odd.kind = "Bucket".into();
    add_route(&mut world, mk_route("kind", vec![mk_rule("/", vec![odd])]));
    assert!(has(
        &route_says(&world, "kind"),
        "ResolvedRefs=False/InvalidKind"
    ));
}

#[test]
fn unsupported_rule_answers_500_and_others_work() {
    let mut world = mk_world();
    let mut bad = mk_rule("/bad", vec![mk_ref("service", "web", 1)]);
    bad.filters = vec![RouteFilter::Unsupported("URLRewrite".into())];
    let good = mk_rule("/good", vec![mk_ref("service", "web", 1)]);
    add_route(&mut world, mk_route("r", vec![bad.clone(), good]));
    let said = route_says(&world, "r");
    assert!(
        has(&said, "Accepted=True/Accepted")
            && has(&said, "PartiallyInvalid=True/UnsupportedValue")
    );
    let (models, _) = build_all(&world);
    let rule = models[0]
        .rules()
        .find(|rule| rule.id.route == key("r") && rule.id.rule == 0);
    assert_eq!(rule.unwrap().action, Action::Status(500));
    add_route(&mut world, mk_route("r", vec![bad]));
    assert_eq!(
        route_says(&world, "r")[0],
        "Accepted=False/UnsupportedValue"
    );
}

#[rstest]
#[case::missing("other", Some(9002), "InvalidExtensionRef")]
#[case::port("epp", Some(1), "InvalidExtensionRef")]
#[case::right("epp", Some(9002), "ResolvedRefs")]
fn pool_reports_its_picker(#[case] name: &str, #[case] port: Option<u16>, #[case] reason: &str) {
    let mut world = mk_world();
    let picker = world
        .pools
        .get_mut(&key("llm"))
        .unwrap()
        .picker
        .as_mut()
        .unwrap();
    (picker.name, picker.port) = (name.into(), port);
    let (_, wanted) = build_all(&world);
    assert_eq!(wanted.pools[&key("llm")][0].conditions[1].reason, reason);
}

#[test]
fn pool_without_picker_or_accepted_route_says_so() {
    let mut world = mk_world();
    world.pools.get_mut(&key("llm")).unwrap().picker = None;
    let (models, wanted) = build_all(&world);
    assert_eq!(
        wanted.pools[&key("llm")][0].conditions[0].reason,
        "EndpointPickerRefMissing"
    );
    assert_eq!(models[0].pools[&key("llm")].epp, None);
    let mut world = mk_world();
    world.routes.get_mut(&key("chat")).unwrap().parents[0].section = Some("none".into());
    let (_, wanted) = build_all(&world);
    assert_eq!(
        wanted.pools[&key("llm")][0].conditions[0].reason,
        "HTTPRouteNotAccepted"
    );
    // With its last route the pool loses its parents.
    world.routes.clear();
    let (_, wanted) = build_all(&world);
    assert_eq!(wanted.pools[&key("llm")], []);
}

#[test]
fn entries_that_cannot_be_used_are_named() {
    let mut world = mk_world();
    let mut import = mk_import(&[
        ("denied", "127.0.0.1"),
        ("draining", "10.2.0.7"),
        ("east", "10.2.0.9"),
        ("late", ""),
        ("parent", "10.2.0.5"),
        ("sick", "10.2.0.4"),
        ("south", "epp.south.example"),
        ("strange", "10.2.0.3"),
    ]);
    import.clusters[1].not_ready = Some("Draining".into());
    import.clusters[3]
        .picker
        .as_mut()
        .unwrap()
        .addresses
        .clear();
    import.clusters[4].parent_mode = true;
    import.clusters[5].not_ready = Some("NoReadyEndpoint".into());
    import.clusters[7].accepted = false;
    world.imports.insert(key("llm"), import);
    let (_, wanted) = build_all(&world);
    let programmed = &wanted.imports[&key("llm")][0].conditions[2];
    let expected = "draining Draining, east 500, south 500; denied AddressDenied, late AddressNotAssigned, \
                    parent ParentModeUnsupported, sick NoReadyEndpoint, strange NotAccepted";
    assert_eq!(programmed.message, expected);
}

#[test]
fn route_to_a_foreign_parent_has_no_entry_of_ours() {
    let mut world = mk_world();
    world
        .routes
        .get_mut(&key("chat"))
        .unwrap()
        .parents
        .push(ParentRef {
            kind: Some("Service".into()),
            name: "gw".into(),
            ..ParentRef::default()
        });
    let (_, wanted) = build_all(&world);
    assert_eq!(wanted.routes[&key("chat")].len(), 1);
}

/// A request, as far as matches look at it.
#[derive(Clone, Debug)]
struct Seen {
    path: String,
    method: String,
    headers: Vec<String>,
}

fn matches(rule: &Rule, seen: &Seen) -> bool {
    let path = match &rule.matcher.path {
        PathMatch::Exact(path) => *path == seen.path,
        PathMatch::Prefix(prefix) => {
            let prefix = prefix.trim_end_matches('/');
            let rest = seen.path.strip_prefix(prefix);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        }
        PathMatch::Regex(_) => false,
    };
    let method = rule
        .matcher
        .method
        .as_ref()
        .is_none_or(|method| *method == seen.method);
    path && method
        && rule
            .matcher
            .headers
            .iter()
            .all(|h| seen.headers.contains(&h.name))
}

/// Gateway API's words, one by one: of all that match, strike out those that another beats.
fn naive<'a>(rules: &'a [Arc<Rule>], seen: &Seen) -> Option<&'a RuleId> {
    let beats = |a: &Rule, b: &Rule| -> bool {
        let exact = |rule: &Rule| matches!(rule.matcher.path, PathMatch::Exact(_));
        let length = |rule: &Rule| match &rule.matcher.path {
            PathMatch::Prefix(prefix) => prefix.trim_end_matches('/').len(),
            PathMatch::Exact(_) | PathMatch::Regex(_) => 0,
        };
        if exact(a) != exact(b) {
            return exact(a);
        }
        if length(a) != length(b) {
            return length(a) > length(b);
        }
        if a.matcher.method.is_some() != b.matcher.method.is_some() {
            return a.matcher.method.is_some();
        }
        if a.matcher.headers.len() != b.matcher.headers.len() {
            return a.matcher.headers.len() > b.matcher.headers.len();
        }
        if a.created != b.created {
            return a.created < b.created;
        }
        let place = |rule: &Rule| {
            let id = &rule.id;
            (id.route.to_string(), id.rule, id.index)
        };
        place(a) < place(b)
    };
    let fitting: Vec<_> = rules.iter().filter(|rule| matches(rule, seen)).collect();
    let best = fitting
        .iter()
        .find(|a| fitting.iter().all(|b| a.id == b.id || beats(a, b)));
    best.map(|rule| &rule.id)
}

prop_compose! {
    fn any_match()(
        path in prop::sample::select(vec!["/", "/a", "/a/", "/a/b", "/ab"]),
        exact in any::<bool>(),
        method in prop::option::of(prop::sample::select(vec!["GET", "POST"])),
        headers in prop::collection::btree_set(prop::sample::select(vec!["x", "y"]), 0..=2),
    ) -> RouteMatch {
        let header = |name: &str| ValueMatch { name: name.into(), ..ValueMatch::default() };
        RouteMatch {
            path: if exact { PathMatch::Exact(path.into()) } else { PathMatch::Prefix(path.into()) },
            method: method.map(Into::into),
            headers: headers.into_iter().map(header).collect(),
            query: Vec::new(),
        }
    }
}

prop_compose! {
    fn any_route(name: String)(
        created in 0_i64..3,
        rules in prop::collection::vec(prop::collection::vec(any_match(), 1..3), 1..3),
    ) -> HttpRoute {
        let rule = |matches| RouteRule {
            matches,
            backends: vec![mk_ref("service", "web", 1)],
            ..RouteRule::default()
        };
        let rules = rules.into_iter().map(rule).collect();
        HttpRoute { created, ..mk_route(&name, rules) }
    }
}

proptest! {
    #[test]
    fn first_rule_that_matches_is_the_one_the_api_names(
        routes in (any_route("a".into()), any_route("b".into()), any_route("c".into())),
        path in prop::sample::select(vec!["/", "/a", "/a/b", "/ab", "/a/b/c", "/z"]),
        method in prop::sample::select(vec!["GET", "POST", "PUT"]),
        headers in prop::collection::vec(prop::sample::select(vec!["x", "y"]), 0..=2),
    ) {
        let mut world = mk_world();
        world.routes.clear();
        let (a, b, c) = routes;
        for route in [a, b, c] {
            add_route(&mut world, route);
        }
        let seen = Seen {
            path: path.into(),
            method: method.into(),
            headers: headers.into_iter().map(Into::into).collect(),
        };
        let (models, _) = build_all(&world);
        let rules = &models[0].ports[&80].vhosts[0].rules;
        let first = rules.iter().find(|rule| matches(rule, &seen)).map(|rule| &rule.id);
        prop_assert_eq!(first, naive(rules, &seen));
    }
}
