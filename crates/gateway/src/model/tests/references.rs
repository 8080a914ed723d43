//! What routes, pools and imports lead to, and what their status says of it.

use rstest::rstest;

use super::*;
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
