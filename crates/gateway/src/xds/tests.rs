//! Golden resources per kind of backend, and the same resources as a static bootstrap that the real
//! Envoy must accept.

use std::path::{Path, PathBuf};
use std::process::Command;

use prost::Message as _;

use crate::fixture::{
    add_route, key, mk_endpoints, mk_import, mk_options, mk_ref, mk_route, mk_rule, mk_settings,
    mk_world,
};
use crate::model::{EppTls, Settings, build};
use crate::world::{HeaderEdit, Redirect, RouteFilter, World};

use super::proto::{bootstrap, cluster, core, endpoint, google, hcm, listener, route};
use super::{Kind, Snapshot, assign, translate};

mod text;

fn mk_snapshot(world: &World, settings: &Settings) -> Snapshot {
    let (models, _) = build(world, settings);
    assign(&translate(&models[0], &mk_options()), &mk_endpoints())
}

fn show(snapshot: &Snapshot, kind: Kind, name: &str) -> String {
    let resource = snapshot.of(kind).get(name);
    let resource =
        resource.unwrap_or_else(|| panic!("no {name} in {:?}", snapshot.of(kind).keys()));
    if kind == Kind::Listener {
        let made = without_errors(&resource.bytes);
        return text::show(kind.type_url(), &made.encode_to_vec());
    }
    text::show(kind.type_url(), &resource.bytes)
}

/// Errors are the same for all listeners of a kind, and have tests of their own.
fn without_errors(bytes: &[u8]) -> listener::Listener {
    let mut made = listener::Listener::decode(bytes).unwrap();
    with_manager(&mut made, |manager| {
        assert!(manager.local_reply_config.take().is_some());
    });
    made
}

fn with_manager(
    made: &mut listener::Listener,
    change: impl FnOnce(&mut hcm::HttpConnectionManager),
) {
    let filter = &mut made.filter_chains[0].filters[0];
    let Some(listener::filter::ConfigType::TypedConfig(config)) = &mut filter.config_type else {
        panic!("a typed filter");
    };
    let mut manager = hcm::HttpConnectionManager::decode(&config.value[..]).unwrap();
    change(&mut manager);
    config.value = manager.encode_to_vec();
}

#[test]
fn edge_strips_headers_and_asks_no_epp_by_default() {
    let snapshot = mk_snapshot(&mk_world(), &mk_settings());
    insta::assert_snapshot!(show(&snapshot, Kind::Listener, "edge/80"));
}

#[test]
fn edge_routes_split_between_pool_and_import() {
    let snapshot = mk_snapshot(&mk_world(), &mk_settings());
    insta::assert_snapshot!(show(&snapshot, Kind::Routes, "edge/80"));
}

#[test]
fn service_is_a_cluster_of_its_endpoints() {
    let snapshot = mk_snapshot(&mk_world(), &mk_settings());
    insta::assert_snapshot!("service", show(&snapshot, Kind::Cluster, "svc/ns/web/8080"));
    insta::assert_snapshot!(
        "service_eds",
        show(&snapshot, Kind::Endpoints, "svc/ns/web/8080")
    );
}

#[test]
fn pool_that_fails_closed_has_no_fallback() {
    let snapshot = mk_snapshot(&mk_world(), &mk_settings());
    insta::assert_snapshot!("pool_closed", show(&snapshot, Kind::Cluster, "pool/ns/llm"));
    insta::assert_snapshot!("pool_eds", show(&snapshot, Kind::Endpoints, "pool/ns/llm"));
}

#[test]
fn pool_that_fails_open_falls_back_to_any_pod() {
    let mut world = mk_world();
    open_pool(&mut world);
    let snapshot = mk_snapshot(&world, &mk_settings());
    insta::assert_snapshot!("pool_open", show(&snapshot, Kind::Cluster, "pool/ns/llm"));
    let routes = show(&snapshot, Kind::Routes, "edge/80");
    assert!(
        routes.contains("failure_mode_allow: Some(BoolValue { value: true })"),
        "{routes}"
    );
}

#[test]
fn epp_is_checked_by_its_health_port_in_plaintext() {
    let settings = Settings {
        epp_tls: EppTls::Unverified,
        ..mk_settings()
    };
    let snapshot = mk_snapshot(&mk_world(), &settings);
    insta::assert_snapshot!("epp_tls", show(&snapshot, Kind::Cluster, "epp/ns/llm"));
    insta::assert_snapshot!("epp_eds", show(&snapshot, Kind::Endpoints, "epp/ns/llm"));
}

/// A number need not be a port of the Service.
#[test]
fn health_port_given_as_a_number_is_the_pods_own() {
    let mut world = mk_world();
    let pool = world.pools.get_mut(&key("llm")).unwrap();
    pool.health_port = Some("9123".into());
    let snapshot = mk_snapshot(&world, &mk_settings());
    let hosts = show(&snapshot, Kind::Endpoints, "epp/ns/llm");
    assert!(hosts.contains("port_value: 9123"), "{hosts}");
    let cluster = show(&snapshot, Kind::Cluster, "epp/ns/llm");
    assert!(cluster.contains("GrpcHealthCheck"), "{cluster}");
}

#[test]
fn import_goes_through_a_hop_per_cluster() {
    let mut world = mk_world();
    let import = mk_import(&[("south", "10.3.0.9"), ("east", "10.2.0.9")]);
    world.imports.insert(key("llm"), import);
    let snapshot = mk_snapshot(&world, &mk_settings());
    insta::assert_snapshot!("import", show(&snapshot, Kind::Cluster, "import/ns/llm"));
    insta::assert_snapshot!(
        "import_eds",
        show(&snapshot, Kind::Endpoints, "import/ns/llm")
    );
    insta::assert_snapshot!("hop", show(&snapshot, Kind::Listener, "hop/ns/llm/east"));
    insta::assert_snapshot!(
        "hop_routes",
        show(&snapshot, Kind::Routes, "hop/ns/llm/east")
    );
    insta::assert_snapshot!("hop_epp", show(&snapshot, Kind::Cluster, "epp/ns/llm/east"));
    insta::assert_snapshot!(
        "hop_pods",
        show(&snapshot, Kind::Cluster, "pods/ns/llm/east")
    );
}

/// A cluster made anew ends the streams of the one before: on a rollout only the assignment may differ.
#[test]
fn new_addresses_of_a_remote_epp_change_its_assignment_alone() {
    let mk = |endpoints: &[&str], addresses: &[&str]| {
        let mut import = mk_import(&[("east", "10.2.0.9")]);
        let picker = import.clusters[0].picker.as_mut().unwrap();
        picker.name = "epp".into();
        picker.health_port = Some(9003);
        picker.endpoints = endpoints.iter().map(ToString::to_string).collect();
        picker.addresses = addresses.iter().map(ToString::to_string).collect();
        let mut world = mk_world();
        world.imports.insert(key("llm"), import);
        mk_snapshot(&world, &mk_settings())
    };
    let one = mk(&[], &["10.2.0.9"]);
    let others = [
        mk(&[], &["10.2.0.7"]),
        mk(&[], &["10.2.0.7", "10.2.0.9"]),
        mk(&[], &["fd00::7"]),
        mk(&["10.2.0.8"], &["10.2.0.9"]),
    ];
    for other in others {
        assert_eq!(one.clusters, other.clusters);
        assert_eq!(one.routes, other.routes);
        assert_eq!(one.listeners, other.listeners);
        assert_ne!(one.endpoints, other.endpoints);
    }
    let cluster = show(&one, Kind::Cluster, "epp/ns/llm/east");
    assert!(cluster.contains(r#"authority: "epp.east""#), "{cluster}");
}

#[test]
fn time_limit_puts_a_hop_before_the_pool() {
    let mut world = mk_world();
    open_pool(&mut world);
    limit(&mut world, "2s");
    let snapshot = mk_snapshot(&world, &mk_settings());
    insta::assert_snapshot!(
        "pool_hop",
        show(&snapshot, Kind::Routes, "hop/ns/llm/@pool")
    );
    let edge = show(&snapshot, Kind::Routes, "edge/80");
    assert!(edge.contains("hopped/ns/llm"), "{edge}");
}

/// An attempt that took too long is no reason for another: it would do the work twice.
#[test]
fn attempt_whose_own_time_is_over_is_not_made_again() {
    let mut world = mk_world();
    let mut rule = mk_rule("/limited", vec![mk_ref("service", "web", 1)]);
    rule.backend_timeout = Some("1s".into());
    add_route(&mut world, mk_route("web", vec![rule]));
    let routes = show(
        &mk_snapshot(&world, &mk_settings()),
        Kind::Routes,
        "edge/80",
    );
    let wanted = r#"retry_on: "connect-failure,refused-stream,reset-before-request","#;
    assert!(routes.contains(wanted), "{routes}");
}

#[test]
fn same_world_gives_the_same_bytes() {
    let world = mk_world();
    assert_eq!(
        mk_snapshot(&world, &mk_settings()),
        mk_snapshot(&world, &mk_settings())
    );
}

/// Everything we can make, accepted by the real program.
#[test]
fn envoy_accepts_every_resource() {
    let envoy = find_envoy();
    let mut world = mk_world();
    let import = mk_import(&[("east", "10.2.0.9"), ("south", "epp.south.example")]);
    world.imports.insert(key("llm"), import);
    let filters = vec![
        RouteFilter::RequestHeaders(HeaderEdit {
            set: vec![("x-a".into(), "100%".into())],
            add: vec![("x-b".into(), "b".into())],
            remove: vec!["x-c".into()],
        }),
        RouteFilter::ResponseHeaders(HeaderEdit::default()),
    ];
    let mut rule = mk_rule(
        "/edited",
        vec![mk_ref("pool", "llm", 1), mk_ref("service", "no", 2)],
    );
    rule.filters = filters;
    rule.request_timeout = Some("2s".into());
    rule.backend_timeout = Some("1s".into());
    let mut moved = mk_rule("/old", Vec::new());
    moved.filters = vec![RouteFilter::Redirect(Redirect {
        prefix: Some("/".into()),
        code: 301,
        ..Redirect::default()
    })];
    let mut rules = vec![rule, moved];
    for filter in crate::model::tests::references::refused_filters() {
        let mut rule = mk_rule("/odd", vec![mk_ref("service", "web", 1)]);
        rule.filters = vec![filter.clone()];
        rules.push(rule.clone());
        rule.filters.clear();
        rule.backends[0].filters = vec![filter];
        rules.push(rule);
    }
    add_route(&mut world, mk_route("more", rules));
    let mut snapshots = Vec::new();
    for epp_tls in [EppTls::Plaintext, EppTls::Unverified] {
        let settings = Settings {
            epp_tls,
            ..mk_settings()
        };
        snapshots.push(mk_snapshot(&world, &settings));
        let mut open = world.clone();
        open_pool(&mut open);
        snapshots.push(mk_snapshot(&open, &settings));
    }
    for snapshot in &snapshots {
        validate(&envoy, snapshot);
    }
}

fn open_pool(world: &mut World) {
    let pool = world.pools.get_mut(&key("llm")).unwrap();
    pool.picker.as_mut().unwrap().fail_open = true;
}

fn limit(world: &mut World, timeout: &str) {
    let route = world.routes.get_mut(&key("chat")).unwrap();
    route.rules[0].request_timeout = Some(timeout.into());
}

fn validate(envoy: &Path, snapshot: &Snapshot) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("bootstrap.pb");
    std::fs::write(&file, mk_bootstrap(snapshot).encode_to_vec()).unwrap();
    let output = Command::new(envoy)
        .args(["--mode", "validate", "--log-level", "warning", "-c"])
        .arg(&file)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

/// The resources in static form: assignments and route tables inline.
fn mk_bootstrap(snapshot: &Snapshot) -> bootstrap::Bootstrap {
    let clusters = snapshot.clusters.values().map(|resource| {
        let mut made = cluster::Cluster::decode(&resource.bytes[..]).unwrap();
        if made.eds_cluster_config.take().is_some() {
            let hosts = &snapshot.endpoints[&made.name].bytes;
            made.load_assignment = endpoint::ClusterLoadAssignment::decode(&hosts[..]).ok();
            let kind = cluster::cluster::DiscoveryType::Static;
            made.cluster_discovery_type =
                Some(cluster::cluster::ClusterDiscoveryType::Type(kind.into()));
        }
        made
    });
    let listeners = snapshot.listeners.values().map(|resource| {
        let mut made = listener::Listener::decode(&resource.bytes[..]).unwrap();
        let table = &snapshot.routes[&made.name].bytes;
        let mut table = route::RouteConfiguration::decode(&table[..]).unwrap();
        // As by RDS: an invalid backend is a cluster that is not there.
        table.validate_clusters = Some(google::BoolValue { value: false });
        with_manager(&mut made, |manager| {
            let table = hcm::http_connection_manager::RouteSpecifier::RouteConfig(table);
            manager.route_specifier = Some(table);
        });
        made
    });
    bootstrap::Bootstrap {
        static_resources: Some(bootstrap::bootstrap::StaticResources {
            clusters: clusters.collect(),
            listeners: listeners.collect(),
            ..Default::default()
        }),
        bootstrap_extensions: vec![core::TypedExtensionConfig {
            name: "envoy.bootstrap.internal_listener".into(),
            typed_config: Some(google::Any {
                type_url: "type.googleapis.com/envoy.extensions.bootstrap.internal_listener.v3.InternalListener".into(),
                value: Vec::new(),
            }),
        }],
        ..Default::default()
    }
}

/// `ENVOY_BIN`, else `PATH`, else the tools directory of the workspace.
///
/// # Panics
/// Where it is nowhere: a test that needs it must not pass without it.
pub(crate) fn find_envoy() -> PathBuf {
    if let Some(named) = std::env::var_os("ENVOY_BIN").filter(|name| !name.is_empty()) {
        let named = PathBuf::from(named);
        assert!(
            named.is_file(),
            "ENVOY_BIN is set, but {} is no program: correct or unset it",
            named.display()
        );
        return named;
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools");
    std::env::split_paths(&path)
        .chain([tools.clone()])
        .map(|directory| directory.join("envoy"))
        .find(|file| file.is_file())
        .unwrap_or_else(|| {
            panic!(
                "no Envoy: looked in ENVOY_BIN (not set), for envoy on PATH, and in {}; run `cargo xtask tools`, or set ENVOY_BIN \
                 to an Envoy 1.40",
                tools.display()
            )
        })
}
