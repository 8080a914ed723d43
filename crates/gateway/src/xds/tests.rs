//! Golden resources per kind of backend, and the same resources as a static bootstrap that the real
//! Envoy must accept.

use std::path::{Path, PathBuf};
use std::process::Command;

use ::tls::test_pki::Ca;
use prost::Message as _;

use crate::fixture::{
    add_route, key, mk_endpoints, mk_https_listener, mk_import, mk_options, mk_parent_entry,
    mk_ref, mk_route, mk_rule, mk_selection, mk_settings, mk_world,
};
use crate::model::{EppTls, Settings, build};
use crate::world::secrets::mk_certificate;
use crate::world::{
    BadSecret, HeaderEdit, NewPath, PathMatch, Redirect, Rewrite, RouteFilter, RouteMatch,
    ValueMatch, World,
};

use super::proto::{
    bootstrap, cluster, core, endpoint, google, hcm, listener, matching, route, tls,
};
use super::{Kind, Snapshot, assign, translate};

mod former;
mod imports;
mod text;

use hcm::http_connection_manager::RouteSpecifier;

fn mk_snapshot(world: &World, settings: &Settings) -> Snapshot {
    let (models, wanted) = build(world, settings);
    let plan = translate(&models[0], &mk_options());
    assign(&plan, &mk_endpoints(), &mk_selection(&wanted))
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

/// Of each filter chain.
fn with_manager(made: &mut listener::Listener, change: impl Fn(&mut hcm::HttpConnectionManager)) {
    for chain in &mut made.filter_chains {
        let filter = &mut chain.filters[0];
        let Some(listener::filter::ConfigType::TypedConfig(config)) = &mut filter.config_type
        else {
            panic!("a typed filter");
        };
        let mut manager = hcm::HttpConnectionManager::decode(&config.value[..]).unwrap();
        change(&mut manager);
        config.value = manager.encode_to_vec();
    }
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

fn mk_https_world() -> World {
    let mut world = mk_world();
    let listeners = &mut world.gateways.get_mut(&key("gw")).unwrap().listeners;
    listeners.extend([
        mk_https_listener("https", 443, None, &["cert"]),
        mk_https_listener("wild", 443, Some("*.a.b"), &["cert", "other"]),
        mk_https_listener("exact", 443, Some("x.a.b"), &["other"]),
        mk_https_listener("waiting", 8443, None, &["gone"]),
    ]);
    for name in ["cert", "other"] {
        let certificate = mk_certificate(name, &Ca::new("a"), "x.a.b");
        world.certificates.insert(key(name), Ok(certificate));
    }
    world
        .certificates
        .insert(key("gone"), Err(BadSecret::NotFound));
    world
}

#[test]
fn https_edge_has_a_chain_for_each_host_name() {
    let snapshot = mk_snapshot(&mk_https_world(), &mk_settings());
    let mut made = without_errors(&snapshot.listeners["edge/443"].bytes);
    // as that of HTTP, but for the name of its table
    with_manager(&mut made, |manager| {
        *manager = hcm::HttpConnectionManager {
            stat_prefix: std::mem::take(&mut manager.stat_prefix),
            route_specifier: manager.route_specifier.take(),
            ..hcm::HttpConnectionManager::default()
        };
    });
    let shown = text::show(Kind::Listener.type_url(), &made.encode_to_vec());
    insta::assert_snapshot!("https_edge", shown);
    let table = show(&snapshot, Kind::Routes, "edge/443/x.a.b");
    insta::assert_snapshot!("https_routes", table);
    // Envoy takes no listener without a chain
    let edges: Vec<_> = snapshot.listeners.keys().collect();
    assert_eq!(edges, ["edge/443", "edge/80", "hop/ns/llm/east"]);
    let tables: Vec<_> = snapshot.routes.keys().collect();
    let of_tls = ["edge/443/*", "edge/443/*.a.b", "edge/443/x.a.b"];
    assert_eq!(tables[..3], of_tls);
    let secrets: Vec<_> = snapshot.secrets.keys().collect();
    assert_eq!(secrets, ["cert/ns/cert", "cert/ns/other"]);
}

#[test]
fn rotated_certificate_changes_its_secret_alone() {
    let before = mk_snapshot(&mk_https_world(), &mk_settings());
    let after = mk_snapshot(&mk_https_world(), &mk_settings());
    assert_ne!(before.secrets, after.secrets);
    assert_eq!(before.without_secrets(), after.without_secrets());
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

/// The endpoint picker is to see the path that the model server gets: what it reads in the body depends on it.
#[test]
fn new_path_puts_a_hop_before_the_pool() {
    let mut world = mk_world();
    let mut rule = mk_rule("/team", vec![mk_ref("pool", "llm", 1)]);
    rule.filters = vec![RouteFilter::Rewrite(Rewrite {
        hostname: Some("models.example".into()),
        path: Some(NewPath::Prefix("/".into())),
    })];
    world.routes.clear();
    add_route(&mut world, mk_route("team", vec![rule]));
    let snapshot = mk_snapshot(&world, &mk_settings());
    insta::assert_snapshot!("rewrite", show(&snapshot, Kind::Routes, "edge/80"));
    assert!(snapshot.routes.contains_key("hop/ns/llm/@pool"));
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

/// A client that came by a port that is mapped to 80 is not sent to that port by HTTPS. One that names 80 itself gets no port.
#[test]
fn redirect_to_a_scheme_has_a_route_for_hosts_with_a_port() {
    use route::header_matcher::HeaderMatchSpecifier;
    let mut world = mk_world();
    let mut secure = mk_rule("/secure", Vec::new());
    secure.filters = vec![RouteFilter::Redirect(Redirect {
        scheme: Some("https".into()),
        ..Redirect::default()
    })];
    add_route(&mut world, mk_route("secure", vec![secure]));
    let snapshot = mk_snapshot(&world, &mk_settings());
    let bytes = &snapshot.routes["edge/80"].bytes;
    let table = route::RouteConfiguration::decode(bytes.clone()).unwrap();
    let routes = table.virtual_hosts.into_iter().flat_map(|host| host.routes);
    let made = routes.filter_map(|one| match one.action {
        Some(route::route::Action::Redirect(to)) => {
            let hosts = one.r#match.unwrap().headers.into_iter();
            let hosts = hosts.map(|host| {
                assert_eq!(host.name, ":authority");
                let matched = host.header_match_specifier;
                let Some(HeaderMatchSpecifier::StringMatch(matched)) = matched else {
                    panic!("{matched:?}");
                };
                (host.invert_match, matched)
            });
            Some((hosts.collect::<Vec<_>>(), to.port_redirect))
        }
        _ => None,
    });
    let hosts = [(false, ".*:[0-9]+"), (true, ".*:80")];
    let hosts = hosts.map(|(inverted, regex)| (inverted, matching(regex.to_owned())));
    assert_eq!(
        made.collect::<Vec<_>>(),
        [(hosts.to_vec(), 443), (Vec::new(), 0)]
    );
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
        path: Some(NewPath::Prefix("/".into())),
        code: 301,
        ..Redirect::default()
    })];
    let mut rules = vec![rule, moved];
    for path in [
        NewPath::Full(r"/a\1%b".into()),
        NewPath::Prefix(String::new()),
        NewPath::Prefix("/new/".into()),
    ] {
        let mut rule = mk_rule("/rewritten.[", vec![mk_ref("pool", "llm", 1)]);
        rule.filters = vec![RouteFilter::Rewrite(Rewrite {
            hostname: Some("a.example".into()),
            path: Some(path),
        })];
        rules.push(rule);
    }
    let inexact = ValueMatch {
        name: "x".into(),
        value: "(".into(),
        inexact: true,
    };
    let mut rule = mk_rule("/", vec![mk_ref("service", "web", 1)]);
    rule.matches = ["/a/(", "("]
        .map(|path| RouteMatch {
            path: PathMatch::Regex(path.into()),
            headers: vec![inexact.clone()],
            query: vec![inexact.clone()],
            ..RouteMatch::default()
        })
        .into();
    rules.push(rule);
    for filter in crate::model::tests::references::refused_filters() {
        let mut rule = mk_rule("/odd", vec![mk_ref("service", "web", 1)]);
        rule.filters = vec![filter.clone()];
        rules.push(rule.clone());
        rule.filters.clear();
        rule.backends[0].filters = vec![filter];
        rules.push(rule);
    }
    add_route(&mut world, mk_route("more", rules));
    let mut snapshots = vec![mk_snapshot(&mk_https_world(), &mk_settings())];
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
        with_manager(&mut made, |manager| {
            let Some(RouteSpecifier::Rds(rds)) = &manager.route_specifier else {
                panic!("a table by name");
            };
            let table = &snapshot.routes[&rds.route_config_name].bytes;
            let mut table = route::RouteConfiguration::decode(&table[..]).unwrap();
            // As by RDS: an invalid backend is a cluster that is not there.
            table.validate_clusters = Some(google::BoolValue { value: false });
            manager.route_specifier = Some(RouteSpecifier::RouteConfig(table));
        });
        made.filter_chains.iter_mut().for_each(name_static_secrets);
        made
    });
    let secrets = snapshot.secrets.values();
    let secrets = secrets.map(|secret| tls::Secret::decode(&secret.bytes[..]).unwrap());
    bootstrap::Bootstrap {
        static_resources: Some(bootstrap::bootstrap::StaticResources {
            clusters: clusters.collect(),
            listeners: listeners.collect(),
            secrets: secrets.collect(),
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

/// Without a source a name is that of a static secret.
fn name_static_secrets(chain: &mut listener::FilterChain) {
    let Some(socket) = &mut chain.transport_socket else {
        return;
    };
    let Some(core::transport_socket::ConfigType::TypedConfig(config)) = &mut socket.config_type
    else {
        panic!("a typed socket");
    };
    let mut made = tls::DownstreamTlsContext::decode(&config.value[..]).unwrap();
    let common = made.common_tls_context.as_mut().unwrap();
    for secret in &mut common.tls_certificate_sds_secret_configs {
        assert!(secret.sds_config.take().is_some());
    }
    config.value = made.encode_to_vec();
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
