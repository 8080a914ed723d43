//! Headers that no filter may change.

use rstest::rstest;

use super::*;
use crate::world::{HeaderEdit, RouteRule};

/// Each way in which a filter can name a header, of requests and responses, of a rule and of a backend.
fn ways(name: &str) -> Vec<RouteRule> {
    let pair = || vec![(name.to_owned(), "3".to_owned())];
    let edits = [
        HeaderEdit {
            set: pair(),
            ..HeaderEdit::default()
        },
        HeaderEdit {
            add: pair(),
            ..HeaderEdit::default()
        },
        HeaderEdit {
            remove: vec![name.to_owned()],
            ..HeaderEdit::default()
        },
    ];
    let mut rules = Vec::new();
    for edit in edits {
        for kind in [RouteFilter::RequestHeaders, RouteFilter::ResponseHeaders] {
            let rule = mk_rule("/a", vec![mk_ref("service", "web", 1)]);
            let mut of_rule = rule.clone();
            of_rule.filters = vec![kind(edit.clone())];
            let mut of_backend = rule;
            of_backend.backends[0].filters = vec![kind(edit.clone())];
            rules.extend([of_rule, of_backend]);
        }
    }
    rules
}

/// The action of the rule, and the condition in the route's status.
fn outcome(rule: RouteRule) -> (Action, Cond) {
    let mut world = mk_world();
    add_route(&mut world, mk_route("r", vec![rule]));
    let (models, wanted) = build_all(&world);
    let mut rules = models[0].rules();
    let rule = rules.find(|rule| rule.id.route == key("r")).unwrap();
    let accepted = wanted.routes[&key("r")][0].conditions[0].clone();
    (rule.action.clone(), accepted)
}

#[rstest]
#[case::length("Content-Length")]
#[case::coding("transfer-encoding")]
#[case::connection("Connection")]
#[case::keep_alive("keep-alive")]
#[case::proxy_connection("Proxy-Connection")]
#[case::te("TE")]
#[case::trailer("trailer")]
#[case::upgrade("Upgrade")]
#[case::settings("HTTP2-Settings")]
#[case::expect("Expect")]
#[case::host("Host")]
#[case::pseudo(":path")]
#[case::failover("x-isthmus-failover")]
#[case::ours("X-Isthmus-Anything")]
#[case::pick("x-gateway-destination-endpoint")]
#[case::served("X-Gateway-Destination-Endpoint-Served")]
#[case::envoy("x-envoy-attempt-count")]
#[case::envoys("X-Envoy-Upstream-Rq-Timeout-Ms")]
fn header_that_steers_connections_or_the_gateway_is_refused_in_each_place(#[case] name: &str) {
    for rule in ways(name) {
        let text = format!("{:?} {:?}", rule.filters, rule.backends);
        let (action, accepted) = outcome(rule);
        assert_eq!(action, Action::Status(500), "{text}");
        assert_eq!(accepted.reason, "UnsupportedValue", "{text}");
        let message = accepted.message.to_ascii_lowercase();
        assert!(message.contains(&name.to_ascii_lowercase()), "{message}");
    }
}

#[rstest]
#[case::forwarded("x-forwarded-for")]
#[case::credentials("Authorization")]
#[case::of_a_proxy("proxy-authorization")]
#[case::fairness("x-gateway-inference-fairness-id")]
#[case::near("x-isthmus")]
fn other_headers_can_be_changed_in_each_place(#[case] name: &str) {
    for rule in ways(name) {
        let text = format!("{:?} {:?}", rule.filters, rule.backends);
        let (action, accepted) = outcome(rule);
        assert!(matches!(action, Action::Forward(_)), "{text}");
        assert_eq!(accepted.reason, "Accepted", "{text}");
    }
}
