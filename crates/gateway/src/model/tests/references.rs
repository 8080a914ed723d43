//! What routes, pools and imports lead to, and what their status says of it.

use rstest::rstest;

use super::*;
use crate::fixture::include_local;
use crate::world::{
    HeaderEdit, NewPath, PathMatch, Redirect, ReferenceGrant, Rewrite, RouteMatch, ValueMatch,
};

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
    let import = say(&import_conditions(&wanted, "llm"));
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
fn a_backend_that_went_with_its_crd_still_serves_and_the_condition_says_so() {
    let mut world = mk_world();
    let (before, _) = build_all(&world);
    world.kept.insert(("InferencePoolImport", key("llm")));
    let (models, _) = build_all(&world);
    assert_eq!(models, before);
    assert!(has(
        &route_says(&world, "chat"),
        "ResolvedRefs=True/CRDMissing"
    ));
    assert!(has(
        &route_says(&world, "web"),
        "ResolvedRefs=True/ResolvedRefs"
    ));
}

#[test]
fn a_pool_says_that_its_selector_is_refused() {
    let mut world = mk_world();
    world
        .bad_selectors
        .insert(key("llm"), "no label key".into());
    let (_, wanted) = build_all(&world);
    let [pool] = &wanted.pools[&key("llm")][..] else {
        panic!("{:?}", wanted.pools);
    };
    assert!(has(
        &say(&pool.conditions),
        "ResolvedRefs=False/InvalidSelector"
    ));
    let message = &pool.conditions.last().unwrap().message;
    assert!(message.contains("no label key"), "{message}");
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

#[rstest]
#[case::https("https", "ResolvedRefs=False/UnsupportedProtocol")]
#[case::websocket("kubernetes.io/wss", "ResolvedRefs=False/UnsupportedProtocol")]
#[case::plain_websocket("kubernetes.io/ws", "ResolvedRefs=True/ResolvedRefs")]
#[case::plain_http2("kubernetes.io/h2c", "ResolvedRefs=True/ResolvedRefs")]
#[case::plain("http", "ResolvedRefs=True/ResolvedRefs")]
fn service_that_needs_tls_is_no_backend(#[case] protocol: &str, #[case] resolved: &str) {
    let mut world = mk_world();
    let service = world.services.get_mut(&key("web")).unwrap();
    service.ports[0].app_protocol = Some(protocol.into());
    let said = route_says(&world, "web");
    assert!(has(&said, resolved), "{said:?}");
}

#[test]
fn unsupported_rule_answers_500_and_others_work() {
    let mut world = mk_world();
    let mut bad = mk_rule("/bad", vec![mk_ref("service", "web", 1)]);
    bad.filters = vec![RouteFilter::Unsupported("RequestMirror".into())];
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

/// Envoy cannot rewrite the path for one of several backends, nor redirect there.
#[rstest]
#[case::redirect(RouteFilter::Redirect(Redirect::default()), "RequestRedirect")]
#[case::rewrite(rewrite(Some("a.example"), None), "URLRewrite")]
fn filter_of_a_whole_rule_is_refused_at_a_backend(#[case] filter: RouteFilter, #[case] kind: &str) {
    let mut rule = mk_rule("/", vec![mk_ref("service", "web", 1)]);
    rule.backends[0].filters = vec![filter];
    let mut world = mk_world();
    add_route(&mut world, mk_route("r", vec![rule]));
    let (_, wanted) = build_all(&world);
    let accepted = &wanted.routes[&key("r")][0].conditions[0];
    assert_eq!(accepted.reason, "UnsupportedValue");
    let wanted = format!("{kind} on a backendRef is not supported");
    assert!(accepted.message.contains(&wanted), "{}", accepted.message);
}

/// Without its match the requests of such a rule would be answered by a rule that is less specific.
#[test]
fn requests_of_a_match_that_is_not_supported_are_answered_by_no_other_rule() {
    let value = |name: &str| ValueMatch {
        name: name.into(),
        value: ".*".into(),
        inexact: true,
    };
    let mut rule = mk_rule("/", vec![mk_ref("service", "web", 1)]);
    rule.matches = vec![
        RouteMatch {
            path: PathMatch::Regex("/admin/.*".into()),
            ..RouteMatch::default()
        },
        RouteMatch {
            headers: vec![value("x-user")],
            ..RouteMatch::default()
        },
        RouteMatch {
            query: vec![value("user")],
            ..RouteMatch::default()
        },
    ];
    let mut world = mk_world();
    world.routes.clear();
    add_route(&mut world, mk_route("refused", vec![rule]));
    let others =
        ["/", "/admin", "/admin/open"].map(|path| mk_rule(path, vec![mk_ref("service", "web", 1)]));
    add_route(&mut world, mk_route("others", others.to_vec()));
    let (models, wanted) = build_all(&world);
    let rules = &models[0].ports[&80].chains[0].vhosts[0].rules;
    let order = rules.iter().map(|rule| {
        format!(
            "{}/{} {:?}",
            rule.id.rule,
            rule.id.index,
            rule.action == Action::Status(500)
        )
    });
    let order: Vec<String> = order.collect();
    // The last two are those of headers and of the query, which go before the other rule for all paths.
    assert_eq!(
        order,
        [
            "2/0 false",
            "0/0 true",
            "1/0 false",
            "0/1 true",
            "0/2 true",
            "0/0 false"
        ]
    );
    let accepted = &wanted.routes[&key("refused")][0].conditions[0];
    assert_eq!(accepted.reason, "UnsupportedValue");
    assert!(
        accepted.message.contains("RegularExpression"),
        "{}",
        accepted.message
    );
}

#[test]
fn rule_with_something_unknown_answers_500_and_says_what() {
    let mut rule = mk_rule("/", vec![mk_ref("service", "web", 1)]);
    rule.problem = Some("field \"retry\" of a rule is not supported".into());
    let mut world = mk_world();
    add_route(&mut world, mk_route("r", vec![rule]));
    let (models, wanted) = build_all(&world);
    let mut rules = models[0].rules();
    let rule = rules.find(|rule| rule.id.route == key("r")).unwrap();
    assert_eq!(rule.action, Action::Status(500));
    let accepted = &wanted.routes[&key("r")][0].conditions[0];
    assert_eq!(accepted.reason, "UnsupportedValue");
    assert!(
        accepted.message.contains("\"retry\""),
        "{}",
        accepted.message
    );
}

fn set(name: &str, value: &str) -> RouteFilter {
    RouteFilter::RequestHeaders(HeaderEdit {
        set: vec![(name.into(), value.into())],
        ..HeaderEdit::default()
    })
}

fn remove(name: &str) -> RouteFilter {
    RouteFilter::ResponseHeaders(HeaderEdit {
        remove: vec![name.into()],
        ..HeaderEdit::default()
    })
}

fn redirect(hostname: &str, path: &str) -> RouteFilter {
    RouteFilter::Redirect(Redirect {
        hostname: Some(hostname.into()),
        path: Some(NewPath::Full(path.into())),
        ..Redirect::default()
    })
}

fn rewrite(hostname: Option<&str>, path: Option<NewPath>) -> RouteFilter {
    RouteFilter::Rewrite(Rewrite {
        hostname: hostname.map(Into::into),
        path,
    })
}

/// Filters that Envoy refuses, and the route table with them; or that lead to another host or query than they name.
pub(crate) fn refused_filters() -> Vec<RouteFilter> {
    vec![
        set("Host", "a.example"),
        set(":authority", "a.example"),
        set("", "x"),
        set("x y", "x"),
        set("x-a", "line\nbreak"),
        set("x-a", "null\0"),
        remove("host"),
        remove(":path"),
        remove(""),
        remove("x\r\n"),
        redirect("a.example\r\n", "/"),
        redirect("a.example", "/a\r\nb"),
        redirect("a.example", ".attacker.example"),
        redirect("a.example", ""),
        RouteFilter::Redirect(Redirect {
            path: Some(NewPath::Prefix("b".into())),
            ..Redirect::default()
        }),
        RouteFilter::Redirect(Redirect {
            scheme: Some("javascript".into()),
            ..Redirect::default()
        }),
        RouteFilter::Redirect(Redirect {
            code: 418,
            ..Redirect::default()
        }),
        rewrite(Some("a.example:80"), None),
        rewrite(Some(""), None),
        rewrite(None, Some(NewPath::Full(String::new()))),
        rewrite(None, Some(NewPath::Full("a".into()))),
        rewrite(None, Some(NewPath::Full("/a?b=c".into()))),
        rewrite(None, Some(NewPath::Prefix("a/".into()))),
        rewrite(None, Some(NewPath::Prefix("/a#b".into()))),
        rewrite(None, Some(NewPath::Prefix("/a\n".into()))),
    ]
}

#[test]
fn values_that_envoy_refuses_make_their_own_rule_answer_500() {
    for filter in refused_filters() {
        for of_backend in [false, true] {
            let mut bad = mk_rule("/bad", vec![mk_ref("service", "web", 1)]);
            if of_backend {
                bad.backends[0].filters = vec![filter.clone()];
            } else {
                bad.filters = vec![filter.clone()];
            }
            let good = mk_rule("/good", vec![mk_ref("service", "web", 1)]);
            let mut world = mk_world();
            add_route(&mut world, mk_route("r", vec![bad, good]));
            let said = route_says(&world, "r");
            assert!(
                has(&said, "PartiallyInvalid=True/UnsupportedValue"),
                "{filter:?} {said:?}"
            );
            let (models, _) = build_all(&world);
            let rule = models[0]
                .rules()
                .find(|rule| rule.id.route == key("r") && rule.id.rule == 0)
                .unwrap();
            assert_eq!(rule.action, Action::Status(500), "{filter:?}");
            assert_eq!(rule.filters, [], "{filter:?}");
        }
    }
}

#[test]
fn usual_values_are_supported() {
    let mut world = mk_world();
    let mut rule = mk_rule("/", vec![mk_ref("service", "web", 1)]);
    rule.filters = vec![set("X-Under_score", "a\tb ü 100%"), remove("Server")];
    let mut moved = mk_rule("/", Vec::new());
    moved.filters = vec![redirect("b.example", "/a%20b?c=d")];
    let mut rewritten = mk_rule("/", vec![mk_ref("service", "web", 1)]);
    rewritten.filters = vec![rewrite(
        Some("c.example"),
        Some(NewPath::Prefix(String::new())),
    )];
    add_route(&mut world, mk_route("r", vec![rule, moved, rewritten]));
    let said = route_says(&world, "r");
    assert!(
        !said.iter().any(|one| one.starts_with("Partially")),
        "{said:?}"
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
    import.clusters[4] = mk_parent_entry("parent", "10.2.0.5", &[443], &[]);
    import.clusters[5].not_ready = Some("NoReadyEndpoint".into());
    import.clusters[7].accepted = false;
    world.imports.insert(key("llm"), import);
    let (_, wanted) = build_all(&world);
    let programmed = &import_conditions(&wanted, "llm")[2];
    let expected = "draining Draining, east 500, south 500; denied AddressDenied (address \"127.0.0.1\" is not allowed), late AddressNotAssigned, \
                    parent HostnameUnknown (its Gateways listen for HTTPS and name no host without a wildcard, so there is none by which \
                    their certificates can always be verified: give the listener or the HTTPRoute there such a hostname), sick NoReadyEndpoint, strange NotAccepted";
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

#[test]
fn entry_goes_to_the_networks_that_are_said_of_it_and_to_no_others() {
    let mut world = mk_world();
    world.own_networks = vec![
        "10.2.255.2/32".parse().unwrap(),
        "10.9.0.0/16".parse().unwrap(),
    ];
    let usable = |world: &World, settings: &Settings| {
        let (models, wanted) = build(world, settings);
        let import = models[0].imports[&key("llm")].clone();
        let message = import_conditions(&wanted, "llm")[2].message.clone();
        let texts = |networks: &[Cidr]| -> Vec<String> {
            networks.iter().map(ToString::to_string).collect()
        };
        let mode = import.clusters[0].mode.clone();
        mode.map(|mode| {
            let Mode::Endpoint(mode) = mode else {
                panic!("{mode:?}");
            };
            (texts(&mode.cidrs), texts(&mode.denied))
        })
        .map_err(|why| format!("{}: {message}", why.reason()))
    };
    let mut settings = mk_settings();
    // only the denied networks that are within them
    let (cidrs, denied) = usable(&world, &settings).unwrap();
    assert_eq!(cidrs, ["10.2.0.0/16"]);
    assert_eq!(denied, ["10.2.255.2/32"]);
    // the ranges of this cluster's pods, where both clusters use the same network
    let own = std::mem::replace(
        &mut world.own_networks,
        vec!["10.2.4.0/24".parse().unwrap()],
    );
    assert_eq!(usable(&world, &settings).unwrap().1, ["10.2.4.0/24"]);
    // many nodes result in few rules
    world.own_networks = (0..3000u32)
        .map(|node| Cidr::host(std::net::Ipv4Addr::from(0x0a02_0101 + 2 * node).into()))
        .collect();
    let denied = usable(&world, &settings).unwrap().1;
    assert!(denied.len() <= 128, "{denied:?}");
    world.own_networks = own;
    // an entry's own network may contain networks that are always denied
    let import = world.imports.get_mut(&key("llm")).unwrap();
    let shared = vec!["100.64.0.0/10".parse().unwrap()];
    let stated = std::mem::replace(&mut import.clusters[0].pod_cidrs, shared);
    let clouds = ["100.80.80.80/32", "100.96.0.96/32", "100.100.100.200/32"];
    assert_eq!(usable(&world, &settings).unwrap().1, clouds);
    let import = world.imports.get_mut(&key("llm")).unwrap();
    import.clusters[0].pod_cidrs = stated;
    // the flag for the cluster overrides the entry, the flag for all clusters does not
    let any = vec!["10.0.0.0/8".parse().unwrap()];
    settings.pod_cidrs.insert("*".into(), any);
    assert_eq!(usable(&world, &settings).unwrap().0, ["10.2.0.0/16"]);
    let east = vec!["10.2.1.0/24".parse().unwrap()];
    settings.pod_cidrs.insert("east".into(), east);
    assert_eq!(usable(&world, &settings).unwrap().0, ["10.2.1.0/24"]);
    // all of them are this cluster's own
    let own = vec!["10.9.1.0/24".parse().unwrap()];
    settings.pod_cidrs.insert("east".into(), own);
    let refused = usable(&world, &settings).unwrap_err();
    assert!(
        refused.starts_with("AddressDenied: east AddressDenied (all networks"),
        "{refused}"
    );
    // neither a flag nor the entry has a network
    settings.pod_cidrs.clear();
    let import = world.imports.get_mut(&key("llm")).unwrap();
    import.clusters[0].pod_cidrs.clear();
    let refused = usable(&world, &settings).unwrap_err();
    for said in [
        "AddressDenied",
        "isthmus.dev/pod-cidrs",
        "pod-cidrs of east at home (kubectl mci check",
        "the CRD of InferencePoolImport here",
        "--pod-cidr east=CIDR",
    ] {
        assert!(refused.contains(said), "{refused}");
    }
}

/// No route names the pool.
#[test]
fn local_pool_of_an_import_has_the_users_and_refusals_of_the_import() {
    let mut world = mk_world();
    world.routes.clear();
    world
        .imports
        .insert(key("llm"), mk_import(&[("east", "10.2.0.9")]));
    let rule = mk_rule("/", vec![mk_ref("import", "llm", 1)]);
    add_route(&mut world, mk_route("r", vec![rule]));
    let says = |world: &World, name: &str| {
        let mut world = world.clone();
        let refused = Rejection {
            kind: Kind::Cluster,
            name: name.into(),
            message: "no".into(),
            others_serve: false,
        };
        world.rejections.insert(key("gw"), vec![refused]);
        let said = route_says(&world, "r");
        let users = build_all(&world).1.pools[&key("llm")].len();
        (has(&said, "Programmed=False/ProxyRejected"), users)
    };
    for name in ["pool/ns/llm", "epp/ns/llm"] {
        assert_eq!(says(&world, name), (false, 0), "{name}");
    }
    include_local(&mut world);
    for name in ["pool/ns/llm", "epp/ns/llm", "import/ns/llm"] {
        assert_eq!(says(&world, name), (true, 1), "{name}");
    }
    assert_eq!(says(&world, "pool/ns/other"), (false, 1));
}
