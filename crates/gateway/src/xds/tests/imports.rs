//! What Envoys have of an import, and what of it follows from how requests are shared.

use crate::fixture::{add_policy, include_local};
use crate::model::GatewayModel;
use crate::select::{Assigned, Health, OrderRule, Policy, Selection, Strategy};
use crate::world::ImportedCluster;
use crate::xds::Plan;

use super::*;

fn mk_model(change: impl FnOnce(&mut Vec<ImportedCluster>)) -> GatewayModel {
    let mut import = mk_import(&[("east", "10.2.0.9"), ("south", "10.3.0.9")]);
    change(&mut import.clusters);
    let mut world = mk_world();
    world.imports.insert(key("llm"), import);
    let (mut models, _) = build(&world, &mk_settings());
    models.remove(0)
}

fn mk_plan(model: &GatewayModel) -> Plan {
    translate(model, &mk_options())
}

fn show_hops(model: &GatewayModel, selection: &Selection) -> Vec<Vec<String>> {
    show_shares(&assign(&mk_plan(model), &mk_endpoints(), selection))
}

/// Of each priority the clusters with their weight; `anew` are those that become another host when their former mode is over.
pub(super) fn show_shares(snapshot: &Snapshot) -> Vec<Vec<String>> {
    let bytes = &snapshot.endpoints["import/ns/llm"].bytes;
    let made = endpoint::ClusterLoadAssignment::decode(&bytes[..]).unwrap();
    let strict = made
        .policy
        .and_then(|policy| policy.overprovisioning_factor);
    assert_eq!(strict.is_some(), made.endpoints.len() > 1);
    for (number, locality) in made.endpoints.iter().enumerate() {
        assert_eq!(usize::try_from(locality.priority), Ok(number));
    }
    let localities = made.endpoints.iter().map(|locality| {
        let hosts = locality.lb_endpoints.iter().map(show_hop);
        hosts.collect()
    });
    localities.collect()
}

fn show_hop(host: &endpoint::LbEndpoint) -> String {
    let Some(endpoint::lb_endpoint::HostIdentifier::Endpoint(at)) = &host.host_identifier else {
        panic!("{host:?}");
    };
    let address = at.address.as_ref().unwrap().address.as_ref();
    let Some(core::address::Address::EnvoyInternalAddress(address)) = address else {
        panic!("{host:?}");
    };
    let Some(core::envoy_internal_address::AddressNameSpecifier::ServerListenerName(name)) =
        &address.address_name_specifier
    else {
        panic!("{host:?}");
    };
    assert_eq!(host.health_status(), core::HealthStatus::Unknown);
    let weight = host.load_balancing_weight.map_or(0, |weight| weight.value);
    let cluster = name.strip_prefix("hop/ns/llm/").unwrap();
    let anew = if address.endpoint_id.is_empty() {
        ""
    } else {
        " anew"
    };
    format!("{cluster} {weight}{anew}")
}

/// The edge table of a Gateway may have 1000 routes, and each change of it goes to each Envoy.
#[test]
fn readiness_changes_the_assignment_of_its_import_and_nothing_else() {
    let ready = mk_model(|_| {});
    let selection = |model: &GatewayModel| Selection::equal(model.imports.values().map(|i| &**i));
    let before = show_hops(&ready, &selection(&ready));
    assert_eq!(before, [["east 500", "south 500"]]);
    let changes: [fn(&mut ImportedCluster); 3] = [
        |entry| entry.not_ready = Some("NoReadyEndpoint".into()),
        |entry| entry.not_ready = Some("Draining".into()),
        |entry| entry.drain_until = Some(1),
    ];
    for (nth, change) in changes.into_iter().enumerate() {
        let after = mk_model(|clusters| change(&mut clusters[1]));
        assert_eq!(mk_plan(&after), mk_plan(&ready), "{nth}");
        let hops = show_hops(&after, &selection(&after));
        assert_eq!(hops, [["east 1000"]], "{nth}");
    }
}

/// Envoy refuses an assignment whose priorities have gaps, and spares the last host of all that are there.
#[test]
fn priorities_are_numbered_without_gaps_and_those_that_get_nothing_are_left_out() {
    let model = mk_model(|clusters| {
        for name in ["north", "west", "ebb"] {
            let entry = ImportedCluster {
                name: name.into(),
                ..clusters[0].clone()
            };
            clusters.push(entry);
        }
    });
    let one = |weight, priority, health| Assigned {
        weight,
        priority,
        health,
    };
    let assigned = [
        ("east", one(1000, 7, Health::Healthy)),
        ("south", one(700, 2, Health::Unhealthy)),
        ("north", one(700, 5, Health::Healthy)),
        ("west", one(0, 2, Health::Healthy)),
        ("ebb", one(300, 5, Health::Draining)),
        ("gone", one(1000, 0, Health::Healthy)),
    ];
    let assigned = assigned.map(|(name, one)| (name.to_owned(), one));
    let mut selection = Selection::default();
    assert_eq!(show_hops(&model, &selection), [[""; 0]]);
    selection.insert(key("llm"), assigned.into());
    let hops = show_hops(&model, &selection);
    assert_eq!(hops, [["north 700"], ["east 1000"]]);
}

fn mk_world_with(entries: Vec<ImportedCluster>) -> World {
    let mut world = mk_world();
    let import = world.imports.get_mut(&key("llm")).unwrap();
    import.clusters = entries;
    world
}

#[test]
fn parent_is_reached_through_a_hop_that_picks_nothing() {
    let hosts = ["llm.south.example", "*.models.example"];
    let entry = mk_parent_entry("south", "10.3.0.7", &[443], &hosts);
    let snapshot = mk_snapshot(&mk_world_with(vec![entry]), &mk_settings());
    let cluster = show(&snapshot, Kind::Cluster, "parent/ns/llm/south");
    insta::assert_snapshot!("parent_https", cluster);
    let routes = show(&snapshot, Kind::Routes, "hop/ns/llm/south/@parent");
    insta::assert_snapshot!("parent_routes", routes);
    let listener = show(&snapshot, Kind::Listener, "hop/ns/llm/south/@parent");
    assert!(!listener.contains("ExternalProcessor"), "{listener}");
    let hosts = show(&snapshot, Kind::Endpoints, "parent/ns/llm/south");
    assert!(hosts.contains("10.3.0.7"), "{hosts}");
}

/// Envoy takes over a listener and its table one after the other. Where both differ under one name, requests meet the filters of
/// one mode and the routes of the other in between, and on connections to the former listener after it.
#[test]
fn modes_of_a_cluster_share_no_listener_that_differs() {
    let plan = |entry| {
        let (models, _) = build(&mk_world_with(vec![entry]), &mk_settings());
        mk_plan(&models[0])
    };
    let by_picker = mk_import(&[("south", "10.3.0.9")]).clusters.remove(0);
    let by_gateway = mk_parent_entry("south", "10.3.0.7", &[80], &[]);
    let (by_picker, by_gateway) = (plan(by_picker), plan(by_gateway));
    let hops = |plan: &Plan| {
        let names = plan.listeners.keys();
        names.filter(|name| name.starts_with("hop/")).count()
    };
    assert_eq!((hops(&by_picker), hops(&by_gateway)), (1, 1));
    for (name, listener) in &by_picker.listeners {
        let other = by_gateway.listeners.get(name);
        assert!(other.is_none_or(|other| other == listener), "{name}");
    }
}

#[test]
fn parent_without_tls_is_another_kind_of_cluster_alone() {
    let entry = mk_parent_entry("south", "lb.south.example", &[80], &[]);
    let snapshot = mk_snapshot(&mk_world_with(vec![entry]), &mk_settings());
    let cluster = show(&snapshot, Kind::Cluster, "parent/ns/llm/south");
    insta::assert_snapshot!("parent_http", cluster);
}

#[test]
fn hosts_are_kept_where_the_gateways_have_them_and_else_become_the_first_one() {
    // per virtual host its domains, and the host that requests get
    let rewriting = |hosts: &[&str]| -> Vec<String> {
        let entry = mk_parent_entry("south", "10.3.0.7", &[80], hosts);
        let snapshot = mk_snapshot(&mk_world_with(vec![entry]), &mk_settings());
        let bytes = &snapshot.routes["hop/ns/llm/south/@parent"].bytes;
        let made = route::RouteConfiguration::decode(&bytes[..]).unwrap();
        assert!(made.ignore_port_in_host_matching);
        let hosts = made.virtual_hosts.iter().map(|host| {
            let Some(route::route::Action::Route(action)) = &host.routes[1].action else {
                panic!("{host:?}");
            };
            let to = match &action.host_rewrite_specifier {
                Some(route::route_action::HostRewriteSpecifier::HostRewriteLiteral(to)) => {
                    to.as_str()
                }
                None => "kept",
                other => panic!("{other:?}"),
            };
            format!("{} {to}", host.domains.join(","))
        });
        hosts.collect()
    };
    assert_eq!(rewriting(&[]), ["* kept"]);
    assert_eq!(rewriting(&["*.a.example"]), ["* kept"]);
    let expected = ["*.a.example,b.example,c.example kept", "* b.example"];
    assert_eq!(
        rewriting(&["*.a.example", "b.example", "c.example"]),
        expected
    );
}

/// A wildcard of a certificate stands for one label, and one of Envoy's domains for any number.
#[test]
fn with_tls_hosts_are_kept_that_certificates_have_for_certain() {
    use route::route_action::HostRewriteSpecifier::HostRewriteLiteral;
    let hosts = ["*.a.example", "b.example", "*.x.a.example", "*.c.example"];
    let entry = mk_parent_entry("south", "10.3.0.7", &[443], &hosts);
    let snapshot = mk_snapshot(&mk_world_with(vec![entry]), &mk_settings());
    let bytes = &snapshot.routes["hop/ns/llm/south/@parent"].bytes;
    let made = route::RouteConfiguration::decode(&bytes[..]).unwrap();
    let show = |one: &route::Route| {
        let Some(route::route::Action::Route(action)) = &one.action else {
            panic!("{one:?}");
        };
        let to = match &action.host_rewrite_specifier {
            Some(HostRewriteLiteral(to)) => to.as_str(),
            _ => "kept",
        };
        let headers = &one.r#match.as_ref().unwrap().headers;
        let regex = headers.iter().map(|header| format!("{header:?}"));
        let regex = regex.map(|text| {
            text.split('"')
                .find(|part| part.starts_with('['))
                .unwrap()
                .to_owned()
        });
        format!("{}{to}", regex.collect::<String>())
    };
    let shown = made.virtual_hosts.iter().map(|host| {
        let routes: Vec<_> = host.routes.iter().skip(1).map(show).collect();
        format!("{} {}", host.domains.join(","), routes.join(" "))
    });
    let label = "[-0-9A-Za-z_]+";
    let of = |more: usize| {
        // as Debug writes it
        format!(r"{label}(\\.{label}){{{more}}}(:[0-9]+)?kept b.example")
    };
    let expected = [
        "b.example kept".to_owned(),
        format!("*.a.example,*.c.example {}", of(2)),
        format!("*.x.a.example {}", of(3)),
        "* b.example".to_owned(),
    ];
    assert_eq!(shown.collect::<Vec<_>>(), expected);
}

/// Envoy makes a cluster that changes anew, and what is sent for that may lead to a hop that it lacks.
#[test]
fn one_cluster_more_or_less_changes_neither_the_clusters_nor_the_edge() {
    let clusters = [("east", "10.2.0.9"), ("south", "10.3.0.9")];
    let made = [0, 1, 2].map(|count| {
        let world = mk_world_with(mk_import(&clusters[..count]).clusters);
        let snapshot = mk_snapshot(&world, &mk_settings());
        let cluster = show(&snapshot, Kind::Cluster, "import/ns/llm");
        assert!(cluster.contains("OutlierDetection"), "{cluster}");
        (cluster, show(&snapshot, Kind::Routes, "edge/80"))
    });
    assert_eq!(made[0], made[1]);
    assert_eq!(made[1], made[2]);
}

/// Where no attempt but the last goes on without its EPP, each answers 503 before.
#[test]
fn local_pool_that_fails_open_is_never_set_aside() {
    let is_detected = |world: &World| {
        let snapshot = mk_snapshot(world, &mk_settings());
        show(&snapshot, Kind::Cluster, "import/ns/llm").contains("OutlierDetection")
    };
    let mut world = mk_mixed_world();
    open_pool(&mut world);
    assert!(is_detected(&world), "it is not included");
    include_local(&mut world);
    assert!(!is_detected(&world));
    let pool = world.pools.get_mut(&key("llm")).unwrap();
    pool.picker.as_mut().unwrap().fail_open = false;
    assert!(is_detected(&world), "it fails closed");
}

fn mk_mixed_world() -> World {
    let east = mk_import(&[("east", "10.2.0.9")]).clusters.remove(0);
    let south = mk_parent_entry("south", "10.3.0.7", &[443], &["llm.south.example"]);
    let north = mk_parent_entry("north", "lb.north.example", &[80], &[]);
    mk_world_with(vec![east, south, north])
}

#[test]
fn local_pool_joins_its_import_under_the_name_of_this_cluster() {
    let mut world = mk_mixed_world();
    include_local(&mut world);
    let import = world.imports.get_mut(&key("llm")).unwrap();
    // an entry of that name is not the pool
    let mut same = import.clusters[0].clone();
    same.name = "west".into();
    import.clusters.push(same);
    let hop = |world: &World| {
        let snapshot = mk_snapshot(world, &mk_settings());
        assert!(!snapshot.clusters.contains_key("pods/ns/llm/west"));
        let table = show(&snapshot, Kind::Routes, "hop/ns/llm/west");
        assert!(table.contains(r#"Cluster("pool/ns/llm")"#), "{table}");
        let listener = show(&snapshot, Kind::Listener, "hop/ns/llm/west");
        // its picker may choose the path
        assert!(listener.contains(r#"regex: "^(auth"#), "{listener}");
        table
    };
    let closed = hop(&world);
    assert!(!closed.contains("RangeMatch"), "{closed}");
    // four clusters: three retries
    open_pool(&mut world);
    let open = hop(&world);
    assert!(open.contains("start: 4"), "{open}");
    let edge = show(
        &mk_snapshot(&world, &mk_settings()),
        Kind::Routes,
        "edge/80",
    );
    let retries = "num_retries: Some(\n           UInt32Value {\n            value: 3,";
    assert!(edge.contains(retries), "{edge}");
}

/// The pool has clusters of its own also where no route names it.
#[test]
fn local_pool_of_an_import_needs_no_route_of_its_own() {
    let mut world = mk_mixed_world();
    include_local(&mut world);
    let route = world.routes.get_mut(&key("chat")).unwrap();
    route.rules[0].backends.remove(0);
    let snapshot = mk_snapshot(&world, &mk_settings());
    for name in ["pool/ns/llm", "epp/ns/llm"] {
        assert!(snapshot.clusters.contains_key(name), "{name}");
    }
}

#[test]
fn readiness_of_parents_changes_nothing_else_either() {
    let plan = |unprogrammed| {
        let mut world = mk_mixed_world();
        let clusters = &mut world.imports.get_mut(&key("llm")).unwrap().clusters;
        for entry in clusters.iter_mut().skip(1) {
            entry.parents[0].unprogrammed = unprogrammed;
        }
        let (models, wanted) = build(&world, &mk_settings());
        let said = crate::select::summary(&models[0].imports[&key("llm")], &mk_selection(&wanted));
        (mk_plan(&models[0]), said)
    };
    let (ready, unready) = (plan(false), plan(true));
    assert_eq!(ready.0, unready.0);
    assert_eq!(ready.1, "east 333, north 333, south 333");
    let said = "east 1000; north ParentNotProgrammed, south ParentNotProgrammed";
    assert_eq!(unready.1, said);
}

fn mk_ordered() -> Policy {
    Policy {
        strategy: Strategy::ActivePassive(OrderRule::default()),
        ..Policy::default()
    }
}

#[test]
fn retries_go_to_the_next_priority() {
    let snapshot = mk_snapshot(&mk_mixed_world(), &mk_settings());
    let edge = show(&snapshot, Kind::Routes, "edge/80");
    assert!(edge.contains("envoy.retry_priorities.previous_priorities"));
}

#[test]
fn envoy_accepts_imports_of_every_mode() {
    let envoy = find_envoy();
    let mut world = mk_mixed_world();
    let policy = Policy {
        include_local: true,
        ..mk_ordered()
    };
    add_policy(&mut world, policy);
    let import = world.imports.get_mut(&key("llm")).unwrap();
    let wild = mk_parent_entry(
        "wild",
        "10.3.0.8",
        &[443],
        &["*.models.example", "a.models.example"],
    );
    let named = mk_parent_entry("named", "lb.named.example", &[443], &["a.example"]);
    let mut far = import.clusters[0].clone();
    far.name = "far".into();
    far.picker.as_mut().unwrap().addresses = vec!["epp.far.example".into()];
    let mut h2c = mk_parent_entry("plain", "10.3.0.9", &[80], &["a.example", "b.example"]);
    h2c.app_protocol = Some("kubernetes.io/h2c".into());
    import.clusters.extend([wild, named, far, h2c]);
    open_pool(&mut world);
    validate(&envoy, &mk_snapshot(&world, &mk_settings()));
}
