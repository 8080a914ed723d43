use rstest::rstest;

use super::*;
use crate::{
    fixtures::*,
    index::{
        entry::Entry,
        facts::RouteParent,
        update::{Change, ParentKind, Update},
    },
    plan::desired_for,
};
use moment::Moment;

const NOW: Moment = Moment::from_millis(100_000);

/// What a member knows when all is well: a Gateway, and a route on it to the pool.
struct Setting {
    gateways: Option<Vec<GatewayFacts>>,
    routes: Option<Vec<RouteFacts>>,
    parents: Vec<Key>,
}

impl Setting {
    fn new() -> Self {
        Self {
            gateways: Some(vec![mk_gateway("gw")]),
            routes: Some(vec![mk_route("llm", "gw", "llm")]),
            parents: vec![mk_key("gw")],
        }
    }

    /// The entry of `a`'s pool in `b`'s import.
    fn entry(self) -> Entry {
        let mut world = mk_world(&["a", "b"]);
        let name = mk_name("a");
        let gateways = match self.gateways {
            Some(gateways) => Update::Gateways(Change::Listed(gateways)),
            None => Update::ParentsHidden(ParentKind::Gateways),
        };
        let routes = match self.routes {
            Some(routes) => Update::Routes(Change::Listed(routes)),
            None => Update::ParentsHidden(ParentKind::Routes),
        };
        let mut pool = mk_parent_pool("llm");
        pool.parents = self.parents;
        for update in [gateways, routes, Update::PoolApplied(pool)] {
            world.update(&name, update, NOW);
        }
        let plan = desired_for(&world, &mk_policy(), &mk_key("llm"), NOW);
        match &plan.imports[&mk_name("b")] {
            crate::plan::ImportPlan::Present(planned) => planned.status.clusters[0].clone(),
            other => panic!("{other:?}"),
        }
    }
}

fn entry_with(change: impl FnOnce(&mut Setting)) -> Entry {
    let mut setting = Setting::new();
    change(&mut setting);
    setting.entry()
}

fn shown(conditions: &[crd::Condition], type_: &str) -> String {
    let condition = conditions::find(conditions, type_).unwrap_or_else(|| panic!("no {type_}"));
    format!("{}/{}", condition.status, condition.reason)
}

fn parent_shown(entry: &crd::ImportedCluster, type_: &str) -> String {
    shown(&entry.parents[0].conditions, type_)
}

fn the_gateway(setting: &mut Setting) -> &mut GatewayFacts {
    &mut setting.gateways.as_mut().expect("listed")[0]
}

fn the_route(setting: &mut Setting) -> &mut RouteFacts {
    &mut setting.routes.as_mut().expect("listed")[0]
}

#[test]
fn a_gateway_is_exported_with_all_that_a_client_needs() {
    let entry = Setting::new().entry();
    assert_eq!(entry.routing_mode, crd::RoutingMode::ParentMode);
    assert_eq!(entry.endpoint_picker, None);
    assert_eq!(entry.target_port_number, 8000);
    let [parent] = entry.parents.as_slice() else {
        panic!("{:?}", entry.parents);
    };
    assert_eq!((&*parent.namespace, &*parent.name), (NS, "gw"));
    let [service] = parent.service.as_slice() else {
        panic!("{:?}", parent.service);
    };
    assert_eq!(service.type_, ServiceType::LoadBalancer);
    assert_eq!(service.addresses, ["192.0.2.10"]);
    let [port] = service.ports.as_slice() else {
        panic!("{:?}", service.ports);
    };
    assert_eq!((port.number, port.name.as_deref()), (80, Some("web")));
    assert_eq!(port.app_protocol.as_deref(), Some("http"));
    assert_eq!(parent.listeners.len(), 1);
    assert_eq!(parent.hostnames, ["llm.example.com"]);
    for (type_, expected) in [
        (PROGRAMMED, "True/Programmed"),
        (HOSTNAMES_KNOWN, "True/HostnamesKnown"),
        (LOOP_FREE, "True/NoLoop"),
    ] {
        assert_eq!(parent_shown(&entry, type_), expected);
    }
    for (type_, expected) in [
        (conditions::ACCEPTED, "True/Accepted"),
        (conditions::RESOLVED_REFS, "True/ResolvedRefs"),
        (conditions::READY, "True/Ready"),
        (conditions::REACHABLE, "True/Reachable"),
    ] {
        assert_eq!(shown(&entry.conditions, type_), expected);
    }
    let mut generations = parent.conditions.iter().map(|one| one.observed_generation);
    assert!(generations.all(|generation| generation == Some(3)));
}

#[rstest]
#[case::not_programmed(|s: &mut Setting| the_gateway(s).programmed = Programmed::No, "NotProgrammed")]
#[case::waits_for_an_address(|s: &mut Setting| the_gateway(s).programmed = Programmed::NoAddress, "AddressNotAssigned")]
#[case::no_address(|s: &mut Setting| the_gateway(s).addresses.clear(), "AddressNotAssigned")]
#[case::no_listener(|s: &mut Setting| the_gateway(s).listeners.clear(), "NotProgrammed")]
#[case::no_gateways(|s: &mut Setting| s.gateways = None, "NotProgrammed")]
fn a_parent_that_cannot_be_used_has_the_reason(
    #[case] change: fn(&mut Setting),
    #[case] reason: &str,
) {
    let entry = entry_with(change);
    assert_eq!(parent_shown(&entry, PROGRAMMED), format!("False/{reason}"));
    let ready = shown(&entry.conditions, conditions::READY);
    assert_eq!(ready, "False/ParentNotProgrammed");
    let accepted = shown(&entry.conditions, conditions::ACCEPTED);
    assert_eq!(accepted, "True/Accepted");
}

#[rstest]
#[case::nobody_accepted_it(|s: &mut Setting| s.parents.clear(), "no Gateway has accepted the pool")]
#[case::gone(|s: &mut Setting| s.gateways = Some(Vec::new()), "ml/gw does not exist")]
fn an_entry_without_parents_stays_and_has_the_reason(
    #[case] change: fn(&mut Setting),
    #[case] why: &str,
) {
    let entry = entry_with(change);
    assert!(entry.parents.is_empty());
    let ready = conditions::find(&entry.conditions, conditions::READY).expect("Ready");
    assert_eq!(ready.reason, "ParentNotProgrammed");
    assert!(ready.message.contains(why), "{}", ready.message);
}

#[test]
fn one_usable_gateway_is_enough_and_comes_first() {
    let entry = entry_with(|setting| {
        let mut idle = mk_gateway("a-gw");
        idle.programmed = Programmed::No;
        setting.gateways = Some(vec![idle, mk_gateway("gw")]);
        setting.parents = vec![mk_key("a-gw"), mk_key("gw")];
    });
    let names: Vec<&str> = entry.parents.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["gw", "a-gw"]);
    assert_eq!(shown(&entry.conditions, conditions::READY), "True/Ready");
}

#[test]
fn addresses_that_mean_something_else_elsewhere_are_left_out() {
    let entry = entry_with(|setting| {
        the_gateway(setting).addresses = vec!["127.0.0.1".to_owned(), "192.0.2.1".to_owned()];
    });
    assert_eq!(entry.parents[0].service[0].addresses, ["192.0.2.1"]);
    let entry = entry_with(|setting| {
        the_gateway(setting).addresses = vec!["127.0.0.1".to_owned()];
    });
    assert!(entry.parents[0].service[0].addresses.is_empty());
    for type_ in [conditions::ACCEPTED, conditions::READY] {
        assert_eq!(shown(&entry.conditions, type_), "False/InvalidAddress");
    }
}

#[rstest]
#[case::exact("*.example.com", &["a.example.com"], &["a.example.com"], "True/HostnamesKnown")]
#[case::narrower_listener("a.example.com", &["*.example.com"], &["a.example.com"], "True/HostnamesKnown")]
#[case::exact_before_wildcard("*", &["*.b.example.com", "z.example.com"], &["z.example.com", "*.b.example.com"], "True/HostnamesKnown")]
#[case::some_do_not_fit("*.example.com", &["a.example.com", "a.example.org"], &["a.example.com"], "True/HostnamesKnown")]
#[case::listener_alone("a.example.com", &["*"], &["a.example.com"], "True/HostnamesKnown")]
#[case::any("*", &["*"], &[], "True/AnyHostname")]
#[case::nothing_in_common("a.example.com", &["b.example.com"], &[], "False/RoutesUnknown")]
fn hostnames_are_what_listener_and_route_have_in_common(
    #[case] listener: &str,
    #[case] route: &[&str],
    #[case] expected: &[&str],
    #[case] known: &str,
) {
    let entry = entry_with(|setting| {
        the_gateway(setting).listeners[0].hostname = Hostname::parse(Some(listener));
        let hosts = route.iter().map(|host| Hostname::parse(Some(host)));
        the_route(setting).hostnames = hosts.collect();
    });
    assert_eq!(entry.parents[0].hostnames, expected);
    assert_eq!(parent_shown(&entry, HOSTNAMES_KNOWN), known);
}

#[rstest]
#[case::by_name(|route: &mut RouteFacts| route.parents[0].section = Some("secure".to_owned()), &["secure"])]
#[case::by_port(|route: &mut RouteFacts| route.parents[0].port = Some(443), &["secure"])]
#[case::all(|_: &mut RouteFacts| {}, &["web", "secure"])]
#[case::from_elsewhere(|route: &mut RouteFacts| route.key = Key::new("other", "llm"), &["secure"])]
#[case::by_another_gateway(|route: &mut RouteFacts| route.parents[0].gateway = mk_key("x"), &["web", "secure", "grpc"])]
fn only_listeners_with_a_route_to_the_pool_are_exported(
    #[case] change: fn(&mut RouteFacts),
    #[case] expected: &[&str],
) {
    let entry = entry_with(|setting| {
        let listeners = &mut the_gateway(setting).listeners;
        let secure = ListenerFacts {
            name: "secure".to_owned(),
            port: 443,
            protocol: ListenerProtocol::Https,
            admits: Admits::AnyNamespace,
            ..listeners[0].clone()
        };
        let grpc = ListenerFacts {
            name: "grpc".to_owned(),
            port: 81,
            admits: Admits::Nobody,
            ..listeners[0].clone()
        };
        listeners.extend([secure, grpc]);
        change(the_route(setting));
    });
    let parent = &entry.parents[0];
    let names: Vec<&str> = parent
        .listeners
        .iter()
        .map(|one| one.name.as_str())
        .collect();
    assert_eq!(names, expected);
    let ports = &parent.service[0].ports;
    assert_eq!(ports.len(), expected.len());
    let encrypted = ports.iter().find(|port| port.number == 443);
    let protocol = encrypted.and_then(|port| port.app_protocol.as_deref());
    assert_eq!(protocol, Some("https"));
}

#[test]
fn listeners_of_one_port_share_it_without_a_name() {
    let entry = entry_with(|setting| {
        let listeners = &mut the_gateway(setting).listeners;
        let more = ListenerFacts {
            name: "more".to_owned(),
            hostname: Hostname::Exact("llm.example.com".to_owned()),
            ..listeners[0].clone()
        };
        listeners.push(more);
    });
    let parent = &entry.parents[0];
    assert_eq!(parent.listeners.len(), 2);
    assert_eq!(
        parent.listeners[1].hostname.as_deref(),
        Some("llm.example.com")
    );
    let [port] = parent.service[0].ports.as_slice() else {
        panic!("{:?}", parent.service);
    };
    assert_eq!((port.number, port.name.as_deref()), (80, None));
}

#[rstest]
#[case::back_by_the_same_route(|s: &mut Setting| { the_route(s).imports.insert(mk_key("llm")); }, "False/LoopRisk")]
#[case::back_by_another_route(|s: &mut Setting| {
    let mut back = mk_route("back", "gw", "other");
    back.imports.insert(mk_key("llm"));
    s.routes.as_mut().expect("listed").push(back);
}, "False/LoopRisk")]
#[case::by_another_gateway(|s: &mut Setting| {
    let mut back = mk_route("back", "x", "other");
    back.imports.insert(mk_key("llm"));
    s.routes.as_mut().expect("listed").push(back);
}, "True/NoLoop")]
#[case::another_import(|s: &mut Setting| { the_route(s).imports.insert(mk_key("other")); }, "True/NoLoop")]
#[case::no_route(|s: &mut Setting| s.routes = Some(Vec::new()), "True/NoLoop")]
#[case::no_routes_to_be_had(|s: &mut Setting| s.routes = None, "Unknown/RoutesUnknown")]
fn a_route_back_to_the_import_is_a_risk(#[case] change: fn(&mut Setting), #[case] expected: &str) {
    let entry = entry_with(change);
    assert_eq!(parent_shown(&entry, LOOP_FREE), expected);
    assert_eq!(shown(&entry.conditions, conditions::READY), "True/Ready");
}

#[test]
fn without_routes_all_listeners_are_exported_and_no_hostname() {
    for routes in [None, Some(Vec::new())] {
        let entry = entry_with(|setting| setting.routes = routes);
        let parent = &entry.parents[0];
        assert_eq!(parent.listeners.len(), 1);
        assert!(parent.hostnames.is_empty());
        assert_eq!(parent_shown(&entry, HOSTNAMES_KNOWN), "False/RoutesUnknown");
        assert_eq!(shown(&entry.conditions, conditions::READY), "True/Ready");
    }
}

#[test]
fn a_pool_without_endpoint_picker_can_be_exported_through_its_gateway() {
    let mut world = mk_world(&["a", "b"]);
    let mut pool = mk_parent_pool("llm");
    pool.epp = None;
    for update in [
        Update::Gateways(Change::Listed(vec![mk_gateway("gw")])),
        Update::Routes(Change::Listed(vec![mk_route("llm", "gw", "llm")])),
        Update::PoolApplied(pool),
    ] {
        world.update(&mk_name("a"), update, NOW);
    }
    settle(&mut world, &mk_policy(), NOW);
    let (status, reason, _) = exported(&world, &mk_policy(), "a", &mk_key("llm"), NOW);
    assert_eq!((&*status, &*reason), ("True", "Exported"));
}

/// A Gateway as large as its CRD admits.
fn mk_large_gateway(name: &str) -> GatewayFacts {
    let mut gateway = mk_gateway(name);
    let host = |n: u16| Hostname::Exact(format!("h{n}.{}.example.com", "x".repeat(60)));
    gateway.addresses = (0..16).map(|n| format!("192.0.2.{n}")).collect();
    gateway.listeners = (0..64)
        .map(|n| ListenerFacts {
            name: format!("l{n}{}", "x".repeat(60)),
            port: 8000 + n,
            protocol: ListenerProtocol::Http,
            hostname: host(n),
            admits: Admits::AnyNamespace,
        })
        .collect();
    gateway
}

#[test]
fn a_large_gateway_is_cut_to_what_the_crd_admits() {
    let entry = entry_with(|setting| {
        setting.gateways = Some(vec![mk_large_gateway("gw")]);
        the_route(setting).hostnames = vec![Hostname::Any];
    });
    let accepted = shown(&entry.conditions, conditions::ACCEPTED);
    assert_eq!(accepted, "True/Truncated");
    let parent = &entry.parents[0];
    assert_eq!(parent.service[0].ports.len(), MAX_LISTENERS);
    assert!(parent.listeners.len() <= MAX_LISTENERS);
    assert!(parent.hostnames.len() <= MAX_HOSTNAMES);
}

#[test]
fn an_entry_of_many_gateways_fits_and_keeps_what_can_be_used() {
    let entry = entry_with(|setting| {
        let keys = (0..32).map(|n| mk_key(&format!("gw{n:02}")));
        setting.parents = keys.collect();
        let mut gateways: Vec<GatewayFacts> = setting
            .parents
            .iter()
            .map(|key| mk_large_gateway(&key.name))
            .collect();
        for gateway in &mut gateways[..31] {
            gateway.programmed = Programmed::No;
        }
        setting.gateways = Some(gateways);
        let mut route = mk_route("llm", "gw00", "llm");
        route.hostnames = vec![Hostname::Any];
        route.parents = setting
            .parents
            .iter()
            .map(|gateway| RouteParent {
                gateway: gateway.clone(),
                section: None,
                port: None,
            })
            .collect();
        setting.routes = Some(vec![route]);
    });
    let size = serde_json::to_vec(&entry).expect("serialises").len();
    assert!(size <= 8 * 1024, "{size}");
    assert!(!entry.parents.is_empty() && entry.parents.len() <= MAX_PARENTS);
    assert_eq!(entry.parents[0].name, "gw31");
    assert_eq!(entry.parents[0].service[0].addresses.len(), 4);
    assert_eq!(parent_shown(&entry, HOSTNAMES_KNOWN), "False/Truncated");
    let accepted = shown(&entry.conditions, conditions::ACCEPTED);
    assert_eq!(accepted, "True/Truncated");
    assert_eq!(shown(&entry.conditions, conditions::READY), "True/Ready");
}
