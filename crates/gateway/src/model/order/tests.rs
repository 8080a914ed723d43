//! The order of rules against a naive reading of the API's words.

use std::sync::Arc;

use proptest::prelude::*;
use rstest::rstest;

use crate::fixture::{add_route, key, mk_ref, mk_route, mk_settings, mk_world};
use crate::model::order::{literal_start, prefix_of};
use crate::model::{Rule, RuleId, build};
use crate::world::{HttpRoute, PathMatch, RouteMatch, RouteRule, RoutesFrom, ValueMatch, World};

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
        let (models, _) = build(&world, &mk_settings());
        let rules = &models[0].ports[&80].chains[0].vhosts[0].rules;
        let first = rules.iter().find(|rule| matches(rule, &seen)).map(|rule| &rule.id);
        prop_assert_eq!(first, naive(rules, &seen));
    }
}

#[rstest]
#[case::literal("/v1/models", "/v1/models")]
#[case::anchored("^/v1/.*$", "/v1/")]
#[case::group("/v1/(chat|completions)", "/v1/")]
#[case::class("/v1/[a-z]+", "/v1/")]
#[case::at_least_one("/v1+", "/v1")]
#[case::perhaps("/v1?", "/v")]
#[case::perhaps_after_a_wide_character("/vé*", "/v")]
#[case::counted("/v1{0}/a", "/v")]
#[case::escaped(r"/v1\.5", "/v1")]
#[case::alternatives("/a|/b", "")]
#[case::alternatives_after_a_group("/a(b)|/c", "")]
#[case::alternatives_after_a_class("/a[(]|/c", "")]
#[case::alternatives_after_a_quote(r"/a\Q(\E|/c", "")]
#[case::without_case("(?i)/a", "")]
#[case::anything(".*", "")]
#[case::no_path("v1", "")]
fn start_of_an_expression_is_that_of_all_its_paths(#[case] regex: &str, #[case] start: &str) {
    assert_eq!(literal_start(regex), start);
}

/// Without routes, and with a listener for those of all namespaces.
fn mk_shared_world() -> World {
    let mut world = mk_world();
    world.routes.clear();
    let gateway = world.gateways.get_mut(&key("gw")).unwrap();
    gateway.listeners[0].from = RoutesFrom::All;
    world
}

/// The route in another namespace.
fn moved(mut route: HttpRoute) -> HttpRoute {
    route.key.namespace = "other".into();
    route.parents[0].namespace = Some("ns".into());
    route
}

/// `p`, of another namespace, has the path of a plain rule, and `x` that of a regular expression.
#[rstest]
#[case::the_same_start("/admin/.*", "/admin", true)]
#[case::the_same_start_with_a_slash("/admin/(a|b)", "/admin/", true)]
#[case::anything(".*", "/", true)]
#[case::a_longer_prefix("/admin/.*", "/admin/a", true)]
#[case::a_shorter_prefix("/admin/.*", "/", false)]
fn expression_takes_no_request_of_another_namespaces_rule_that_is_as_specific(
    #[case] regex: &str,
    #[case] prefix: &str,
    #[case] plain_first: bool,
) {
    let mk = |name: &str, created, path| {
        let matcher = RouteMatch {
            path,
            ..RouteMatch::default()
        };
        let rule = RouteRule {
            matches: vec![matcher],
            backends: vec![mk_ref("service", "web", 1)],
            ..RouteRule::default()
        };
        HttpRoute {
            created,
            ..mk_route(name, vec![rule])
        }
    };
    let first = |routes: Vec<HttpRoute>| {
        let mut world = mk_shared_world();
        for route in routes {
            add_route(&mut world, route);
        }
        let (models, _) = build(&world, &mk_settings());
        let rules = &models[0].ports[&80].chains[0].vhosts[0].rules;
        (rules[0].id.route.name.clone(), rules[0].id.rule)
    };
    // It is older.
    let odd = mk("x", 1, PathMatch::Regex(regex.into()));
    let plain = mk("p", 2, PathMatch::Prefix(prefix.into()));
    let expected = if plain_first { "p" } else { "x" };
    let other = moved(plain.clone());
    assert_eq!(first(vec![odd.clone(), other]).0, expected);
    // Within a route the expression goes first, so that what it denies does not fall to what it allows.
    let mut both = odd;
    both.rules.extend(plain.rules);
    let is_longer = prefix_of(prefix).len() > prefix_of(literal_start(regex)).len();
    assert_eq!(first(vec![both]), ("x".into(), usize::from(is_longer)));
}

/// A header that is matched by an expression is there with any value.
#[test]
fn expression_of_a_header_takes_no_request_of_another_namespaces_rule_that_is_as_specific() {
    let mk = |name: &str, created, inexact| {
        let header = ValueMatch {
            name: "user-agent".into(),
            value: "a".into(),
            inexact,
        };
        let rule = RouteRule {
            matches: vec![RouteMatch {
                headers: vec![header],
                ..RouteMatch::default()
            }],
            backends: vec![mk_ref("service", "web", 1)],
            ..RouteRule::default()
        };
        HttpRoute {
            created,
            ..mk_route(name, vec![rule])
        }
    };
    let mut world = mk_shared_world();
    add_route(&mut world, mk("x", 1, true));
    add_route(&mut world, moved(mk("p", 2, false)));
    let (models, _) = build(&world, &mk_settings());
    let rules = &models[0].ports[&80].chains[0].vhosts[0].rules;
    assert_eq!(rules[0].id.route.name, "p");
}

/// The oldest route wins among equals, whatever else its namespace has.
#[rstest]
#[case::expression_in_an_older_route(0, "/admin/(x|y)")]
#[case::expression_in_a_newer_route(3, "/admin/(x|y)")]
#[case::expression_of_other_paths(0, "/other/(x|y)")]
fn expression_costs_its_namespace_no_request_of_a_plain_rule_that_is_older(
    #[case] created: i64,
    #[case] regex: &str,
) {
    let mk = |name: &str, created, path| {
        let rule = RouteRule {
            matches: vec![RouteMatch {
                path,
                ..RouteMatch::default()
            }],
            backends: vec![mk_ref("service", "web", 1)],
            ..RouteRule::default()
        };
        HttpRoute {
            created,
            ..mk_route(name, vec![rule])
        }
    };
    let plain = PathMatch::Prefix("/admin".into());
    let mut world = mk_shared_world();
    add_route(&mut world, mk("older", 1, plain.clone()));
    add_route(
        &mut world,
        mk("odd", created, PathMatch::Regex(regex.into())),
    );
    add_route(&mut world, moved(mk("newer", 2, plain)));
    let (models, _) = build(&world, &mk_settings());
    let rules = &models[0].ports[&80].chains[0].vhosts[0].rules;
    let names = rules.iter().map(|rule| rule.id.route.name.as_str());
    let names: Vec<&str> = names.filter(|name| *name != "odd").collect();
    assert_eq!(names, ["older", "newer"]);
    let place = |name: &str| rules.iter().position(|rule| rule.id.route.name == name);
    // What the expression denies does not fall to a rule of its own namespace that would take it.
    assert!(!regex.starts_with("/admin") || place("odd") < place("older"));
}
