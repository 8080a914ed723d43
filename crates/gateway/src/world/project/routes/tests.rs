//! What a later version of the API may have in a route, which this version does not know.

use rstest::rstest;
use serde_json::{Value, json};

use super::*;

fn mk_object(rule: &Value) -> RawRoute {
    let object = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": {"namespace": "ns", "name": "r"},
        "spec": {"parentRefs": [{"name": "gw", "port": 80}], "hostnames": ["a.b"], "rules": [rule]}});
    serde_json::from_value(object).unwrap()
}

fn mk_rule(rule: &Value) -> RouteRule {
    http_route(&mk_object(rule)).rules.remove(0)
}

#[rstest]
#[case::later_filter(json!({"filters": [{"type": "ExternalAuth", "externalAuth": {}}]}), "ExternalAuth")]
#[case::field_of_a_filter(json!({"filters": [{"type": "URLRewrite", "urlRewrite": {"query": "a"}}]}), "`query`")]
#[case::field_of_a_redirect(json!({"filters": [{"type": "RequestRedirect", "requestRedirect": {"query": "a"}}]}), "`query`")]
#[case::way_to_change_a_path(json!({"filters": [{"type": "URLRewrite", "urlRewrite": {"path": {"type": "ReplaceRegex"}}}]}), "ReplaceRegex")]
#[case::header_without_a_value(json!({"filters": [{"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": [{"name": "a"}]}}]}), "`value`")]
#[case::untyped(json!({"filters": [{}]}), "`type`")]
#[case::field_beside_its_settings(json!({"filters": [{"type": "URLRewrite", "urlRewrite": {"hostname": "a"}, "when": "never"}]}), "\"when\"")]
#[case::field_of_a_new_path(json!({"filters": [{"type": "URLRewrite", "urlRewrite": {
    "path": {"type": "ReplaceFullPath", "replaceFullPath": "/a", "when": "never"}}}]}), "`when`")]
fn filter_that_is_not_known_is_kept_as_unsupported(#[case] rule: Value, #[case] named: &str) {
    let mut of_backend = rule.clone();
    of_backend["name"] = "web".into();
    for rule in [
        mk_rule(&rule),
        mk_rule(&json!({"backendRefs": [of_backend]})),
    ] {
        assert_eq!(rule.problem, None);
        let of_backends = rule.backends.iter().flat_map(|one| &one.filters);
        let filters: Vec<_> = rule.filters.iter().chain(of_backends).collect();
        let [RouteFilter::Unsupported(what)] = filters[..] else {
            panic!("{filters:?}");
        };
        assert!(what.contains(named), "{what}");
    }
}

#[rstest]
#[case::retry(json!({"retry": {"attempts": 2}}), "\"retry\"")]
#[case::session(json!({"sessionPersistence": {}}), "\"sessionPersistence\"")]
#[case::time(json!({"timeouts": {"idle": "1s"}}), "`idle`")]
#[case::backend(json!({"backendRefs": [{"name": "web", "port": 80, "subset": "a"}]}), "\"subset\"")]
#[case::unnamed_backend(json!({"backendRefs": [{"port": 80}]}), "`name`")]
#[case::field_of_a_match(json!({"matches": [{"path": {"value": "/a"}, "cookies": []}]}), "\"cookies\"")]
#[case::field_of_a_path(json!({"matches": [{"path": {"value": "/a", "ignoreCase": true}}]}), "\"ignoreCase\"")]
#[case::field_of_a_header(json!({"matches": [{"headers": [{"name": "a", "value": "1", "invert": true}]}]}), "\"invert\"")]
#[case::field_of_a_parameter(json!({"matches": [{"queryParams": [{"name": "a", "value": "1", "invert": true}]}]}), "\"invert\"")]
#[case::path(json!({"matches": [{"path": {"type": "Suffix", "value": "/a"}}]}), "\"Suffix\"")]
#[case::header(json!({"matches": [{"headers": [{"type": "Present", "name": "a", "value": ""}]}]}), "\"Present\"")]
#[case::parameter(json!({"matches": [{"queryParams": [{"name": "a"}]}]}), "`value`")]
#[case::shape(json!({"matches": "all"}), "sequence")]
#[case::no_rule(json!("all"), "all")]
fn rule_says_what_of_it_is_not_known(#[case] rule: Value, #[case] named: &str) {
    let problem = mk_rule(&rule).problem.expect("a problem");
    assert!(problem.contains(named), "{problem}");
}

#[rstest]
#[case::of_a_parent("/parentRefs/0", "field \"when\" of a parentRef is not supported")]
#[case::of_the_route("", "field \"when\" of a route is not supported")]
fn field_of_the_whole_route_is_a_problem_of_each_rule(#[case] at: &str, #[case] problem: &str) {
    let mut object = json!({
        "metadata": {"namespace": "ns", "name": "r"},
        "spec": {
            "parentRefs": [{"name": "gw"}], "useDefaultGateways": "All",
            "rules": [{"matches": [{"path": {"value": "/a"}}]}, {}],
        },
    });
    let problems = |object: &Value| {
        let rules = http_route(&serde_json::from_value(object.clone()).unwrap()).rules;
        let problems = rules.into_iter().map(|rule| rule.problem);
        problems.collect::<Vec<_>>()
    };
    assert_eq!(problems(&object), [None, None]);
    object["spec"].pointer_mut(at).unwrap()["when"] = "never".into();
    let problem = Some(problem.to_owned());
    assert_eq!(problems(&object), [problem.clone(), problem]);
}

/// So that the requests are not answered by another rule.
#[test]
fn match_that_is_not_known_is_replaced_by_a_wider_one() {
    let rule = mk_rule(&json!({"matches": [
        {"path": {"type": "Suffix", "value": "/a"}, "method": "GET"},
        {"path": {"type": "Exact", "value": "/b"}, "headers": [{"type": "Present", "name": "a", "value": "1"}]},
        {"path": 7},
        {"path": {"value": "/c", "ignoreCase": true}},
        {"headers": [{"name": "a", "value": "1", "invert": true}, {"name": "b", "value": "1"}]},
    ]}));
    let any = PathMatch::Regex(String::new());
    assert_eq!(rule.matches[0].path, any);
    assert_eq!(rule.matches[0].method.as_deref(), Some("GET"));
    assert_eq!(rule.matches[1].path, PathMatch::Exact("/b".into()));
    assert!(rule.matches[1].headers[0].inexact);
    assert_eq!(rule.matches[2].path, any);
    assert_eq!(rule.matches[3].path, any);
    let names = rule.matches[4].headers.iter().map(|one| &*one.name);
    assert_eq!(names.collect::<Vec<_>>(), ["b"]);
}

#[test]
fn all_that_is_known_is_read() {
    let path = json!({"type": "ReplacePrefixMatch", "replacePrefixMatch": "/b"});
    let full = json!({"type": "ReplaceFullPath", "replaceFullPath": "/c"});
    let rule = mk_rule(&json!({
        "name": "named",
        "matches": [{
            "path": {"type": "PathPrefix", "value": "/a"}, "method": "POST",
            "headers": [{"type": "Exact", "name": "h", "value": "1"}],
            "queryParams": [{"name": "q", "value": "2"}, {"type": "RegularExpression", "name": "p", "value": "3"}],
        }],
        "filters": [
            {"type": "URLRewrite", "urlRewrite": {"hostname": "x.y", "path": path}},
            {"type": "RequestRedirect", "requestRedirect": {"scheme": "https", "port": 8443, "statusCode": 307, "path": full}},
        ],
        "backendRefs": [{"name": "web", "port": 80, "weight": 3, "namespace": "there"}],
        "timeouts": {"request": "2s", "backendRequest": "1s"},
    }));
    let value = |name: &str, value: &str, inexact| ValueMatch {
        name: name.into(),
        value: value.into(),
        inexact,
    };
    let wanted = RouteRule {
        matches: vec![RouteMatch {
            path: PathMatch::Prefix("/a".into()),
            method: Some("POST".into()),
            headers: vec![value("h", "1", false)],
            query: vec![value("q", "2", false), value("p", "3", true)],
        }],
        filters: vec![
            RouteFilter::Rewrite(Rewrite {
                hostname: Some("x.y".into()),
                path: Some(NewPath::Prefix("/b".into())),
            }),
            RouteFilter::Redirect(Redirect {
                scheme: Some("https".into()),
                hostname: None,
                port: Some(8443),
                path: Some(NewPath::Full("/c".into())),
                code: 307,
            }),
        ],
        backends: vec![BackendRef {
            kind: "Service".into(),
            namespace: Some("there".into()),
            name: "web".into(),
            port: Some(80),
            weight: 3,
            ..BackendRef::default()
        }],
        request_timeout: Some("2s".into()),
        backend_timeout: Some("1s".into()),
        problem: None,
    };
    assert_eq!(rule, wanted);
}

#[test]
fn headers_are_not_in_the_debug_text_of_an_object() {
    let edit = json!({"set": [{"name": "authorization", "value": "hidden"}]});
    let filter = json!({"type": "RequestHeaderModifier", "requestHeaderModifier": edit});
    let text = format!("{:?}", mk_object(&json!({"filters": [filter]})));
    assert!(text.contains('r') && !text.contains("hidden"), "{text}");
}
