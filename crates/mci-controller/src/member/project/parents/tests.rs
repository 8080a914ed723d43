use rstest::rstest;
use serde_json::{Value, json};

use super::*;

fn mk_gateway(change: impl FnOnce(&mut Value)) -> Option<GatewayFacts> {
    let mut object = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"namespace": "infra", "name": "gw"},
        "spec": {"gatewayClassName": "isthmus", "listeners": [
            {"name": "web", "port": 80, "protocol": "HTTP"},
            {"name": "secure", "port": 443, "protocol": "HTTPS", "hostname": "*.example.com",
             "tls": {"mode": "SomethingNew"}, "allowedRoutes": {"namespaces": {"from": "All"}}},
            {"name": "raw", "port": 9000, "protocol": "TCP"}]},
        "status": {
            "addresses": [{"type": "IPAddress", "value": "192.0.2.1"}, {"value": "gw.example.com"},
                {"type": "example.com/pool", "value": "x"}],
            "conditions": [condition("Accepted", "True", "Accepted"),
                condition("Programmed", "True", "Programmed")]},
    });
    change(&mut object);
    gateway(serde_json::from_value(object).expect("decodes"))
}

fn condition(type_: &str, status: &str, reason: &str) -> Value {
    json!({"type": type_, "status": status, "reason": reason, "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

#[test]
fn a_gateway_keeps_its_addresses_and_http_listeners() {
    let facts = mk_gateway(|_| {}).expect("a key");
    assert_eq!(facts.key, Key::new("infra", "gw"));
    assert_eq!(facts.programmed, Programmed::Yes);
    assert_eq!(facts.addresses, ["192.0.2.1", "gw.example.com"]);
    let listeners = [
        ListenerFacts {
            name: "web".to_owned(),
            port: 80,
            protocol: ListenerProtocol::Http,
            hostname: Hostname::Any,
            admits: Admits::SameNamespace,
        },
        ListenerFacts {
            name: "secure".to_owned(),
            port: 443,
            protocol: ListenerProtocol::Https,
            hostname: Hostname::Suffix("example.com".to_owned()),
            admits: Admits::AnyNamespace,
        },
    ];
    assert_eq!(facts.listeners, listeners);
}

#[rstest]
#[case::no_status(json!([]), Programmed::No)]
#[case::pending(json!([condition("Programmed", "False", "Pending")]), Programmed::No)]
#[case::unknown(json!([condition("Programmed", "Unknown", "Pending")]), Programmed::No)]
#[case::no_address(json!([condition("Programmed", "False", "AddressNotAssigned")]), Programmed::NoAddress)]
#[case::bad_address(json!([condition("Programmed", "False", "AddressNotUsable")]), Programmed::NoAddress)]
#[case::not_accepted(json!([condition("Programmed", "True", "Programmed"),
    condition("Accepted", "False", "InvalidParameters")]), Programmed::No)]
fn a_gateway_is_programmed_only_with_that_condition(
    #[case] conditions: Value,
    #[case] expected: Programmed,
) {
    let facts = mk_gateway(|object| object["status"]["conditions"] = conditions);
    assert_eq!(facts.map(|facts| facts.programmed), Some(expected));
}

#[rstest]
#[case::accepted_no("Accepted", "False", &["secure"])]
#[case::programmed_no("Programmed", "False", &["secure"])]
#[case::conflicted("Conflicted", "True", &["secure"])]
#[case::refs_only("ResolvedRefs", "False", &["web", "secure"])]
fn a_listener_whose_status_shows_a_fault_is_left_out(
    #[case] type_: &str,
    #[case] status: &str,
    #[case] expected: &[&str],
) {
    let facts = mk_gateway(|object| {
        object["status"]["listeners"] = json!([{"name": "web", "attachedRoutes": 0,
            "conditions": [condition(type_, status, "Because")]}]);
    });
    let listeners = facts.expect("a key").listeners;
    let names: Vec<&str> = listeners.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, expected);
}

#[rstest]
#[case::bad_host(json!({"name": "web", "port": 80, "protocol": "HTTP", "hostname": "a b"}), None)]
#[case::bad_name(json!({"name": "../web", "port": 80, "protocol": "HTTP"}), None)]
#[case::bad_port(json!({"name": "web", "port": 70000, "protocol": "HTTP"}), None)]
#[case::other_kinds(json!({"name": "web", "port": 80, "protocol": "HTTP",
    "allowedRoutes": {"kinds": [{"kind": "GRPCRoute"}]}}), Some(Admits::Nobody))]
#[case::our_kind(json!({"name": "web", "port": 80, "protocol": "HTTP", "allowedRoutes":
    {"kinds": [{"kind": "HTTPRoute"}], "namespaces": {"from": "Selector"}}}), Some(Admits::AnyNamespace))]
#[case::new_rule(json!({"name": "web", "port": 80, "protocol": "HTTP",
    "allowedRoutes": {"namespaces": {"from": "None"}}}), Some(Admits::Nobody))]
fn a_listener_admits_what_its_spec_allows(
    #[case] listener: Value,
    #[case] expected: Option<Admits>,
) {
    let facts = mk_gateway(|object| object["spec"]["listeners"] = json!([listener]));
    let listeners = facts.expect("a key").listeners;
    assert_eq!(listeners.first().map(|one| one.admits), expected);
}

fn mk_route(change: impl FnOnce(&mut Value)) -> RouteFacts {
    let parent = json!({"name": "gw", "namespace": "infra", "sectionName": "web"});
    let mut object = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": {"namespace": "ml", "name": "llm"},
        "spec": {"parentRefs": [parent], "hostnames": ["a.example.com", "*.b.example.com"],
            "rules": [
                {"filters": [{"type": "SomethingNew"}], "backendRefs": [
                    {"group": POOL_GROUP, "kind": POOL_KIND, "name": "llm"},
                    {"group": IMPORT_GROUP, "kind": IMPORT_KIND, "name": "llm", "weight": 50},
                    {"group": POOL_GROUP, "kind": POOL_KIND, "name": "idle", "weight": 0},
                    {"group": POOL_GROUP, "kind": POOL_KIND, "name": "far", "namespace": "other"},
                    {"group": POOL_GROUP, "kind": POOL_KIND, "name": "../x"},
                    {"name": "svc", "port": 80}]},
                {}]},
        "status": {"parents": [{"parentRef": parent, "controllerName": "x.io/gw",
            "conditions": [condition("Accepted", "True", "Accepted")]}]},
    });
    change(&mut object);
    route(serde_json::from_value(object).expect("decodes")).expect("a key")
}

#[test]
fn a_route_keeps_where_it_hangs_and_where_it_leads() {
    let facts = mk_route(|_| {});
    let parent = RouteParent {
        gateway: Key::new("infra", "gw"),
        section: Some("web".to_owned()),
        port: None,
    };
    assert_eq!(facts.parents, [parent]);
    let pools = BTreeSet::from([Key::new("ml", "llm"), Key::new("other", "far")]);
    assert_eq!(facts.pools, pools);
    assert_eq!(facts.imports, BTreeSet::from([Key::new("ml", "llm")]));
    let hosts: Vec<String> = facts.hostnames.iter().map(ToString::to_string).collect();
    assert_eq!(hosts, ["a.example.com", "*.b.example.com"]);
}

#[test]
fn a_route_without_hostnames_takes_any() {
    let facts = mk_route(|object| object["spec"]["hostnames"] = json!([]));
    assert_eq!(facts.hostnames, [Hostname::Any]);
    // malformed ones do not widen it
    let facts = mk_route(|object| object["spec"]["hostnames"] = json!(["a b", "x."]));
    assert!(facts.hostnames.is_empty() && facts.pools.is_empty());
}

#[rstest]
#[case::refused(|object: &mut Value| object["status"]["parents"][0]["conditions"][0]["status"] = json!("False"))]
#[case::no_status(|object: &mut Value| object["status"] = Value::Null)]
#[case::other_section(|object: &mut Value| object["status"]["parents"][0]["parentRef"]["sectionName"] = json!("x"))]
#[case::left(|object: &mut Value| object["spec"]["parentRefs"][0]["name"] = json!("other"))]
#[case::other_kind(|object: &mut Value| {
    object["spec"]["parentRefs"][0]["kind"] = json!("Service");
    object["status"]["parents"][0]["parentRef"]["kind"] = json!("Service");
})]
fn a_route_leads_nowhere_unless_a_gateway_accepted_it(#[case] change: fn(&mut Value)) {
    let facts = mk_route(change);
    assert!(facts.parents.is_empty() && facts.pools.is_empty() && facts.imports.is_empty());
}

#[test]
fn only_gateways_that_accepted_the_pool_are_its_parents() {
    let parent = |reference: Value, status: &str| json!({"parentRef": reference, "conditions": [condition("Accepted", status, "x")]});
    let parents = json!([
        parent(json!({"name": "z"}), "True"),
        parent(
            json!({"name": "gw", "namespace": "infra", "group": GATEWAY_GROUP, "kind": "Gateway"}),
            "True"
        ),
        parent(json!({"name": "refusing"}), "False"),
        parent(json!({"name": "default", "kind": "Status"}), "True"),
        parent(
            json!({"name": "llm", "group": IMPORT_GROUP, "kind": IMPORT_KIND}),
            "True"
        ),
        parent(json!({"name": "../x"}), "True"),
        json!({"parentRef": {"name": "silent"}}),
    ]);
    let parents: Vec<InferencePoolStatusParents> =
        serde_json::from_value(parents).expect("decodes");
    let keys = accepting_gateways(&parents, "ml");
    assert_eq!(keys, [Key::new("infra", "gw"), Key::new("ml", "z")]);
}

#[test]
fn a_server_that_admits_more_than_the_crds_is_not_followed() {
    let facts = mk_gateway(|object| {
        let address = json!({"value": "192.0.2.1"});
        object["status"]["addresses"] = json!(vec![address; 100]);
        let listener = json!({"name": "web", "port": 80, "protocol": "HTTP"});
        object["spec"]["listeners"] = json!(vec![listener; 100]);
    });
    let facts = facts.expect("a key");
    assert_eq!(facts.addresses.len(), MAX_ADDRESSES);
    assert_eq!(facts.listeners.len(), MAX_LISTENERS);
    let facts = mk_route(|object| {
        let hosts: Vec<String> = (0..100).map(|n| format!("h{n}.example.com")).collect();
        object["spec"]["hostnames"] = json!(hosts);
        let targets: Vec<Value> = (0..500)
            .map(|n| json!({"group": POOL_GROUP, "kind": POOL_KIND, "name": format!("p{n}")}))
            .collect();
        object["spec"]["rules"] = json!([{"backendRefs": targets}]);
    });
    assert_eq!(facts.hostnames.len(), MAX_HOSTNAMES);
    assert_eq!(facts.pools.len(), MAX_TARGETS);
}

#[test]
fn a_host_is_as_long_as_the_imports_crd_admits_with_its_star() {
    let label = "x".repeat(49);
    // 251 characters, and 253 behind a star
    let fits = [label.as_str(); 5].join(".") + ".c";
    assert_eq!(fits.len(), 251);
    assert!(hostname(&format!("*.{fits}")).is_some());
    assert!(hostname(&format!("*.x{fits}")).is_none());
    assert!(hostname(&format!("x{fits}")).is_some());
}
