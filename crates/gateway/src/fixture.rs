//! A small world for tests: one Gateway, one route to a pool and an import, one to a Service.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use crate::feedback::{Feedback, Infra};
use crate::model::{EppTls, Settings, WantedStatus};
use crate::select::{Policy, Selection, denied};
use crate::world::{
    BackendRef, CertificateRef, Endpoints, Gateway, GatewayClass, HttpRoute, ImportedCluster,
    InferencePool, InferencePoolImport, Key, Listener, ListenerTls, ParametersRef, ParentRef,
    PathMatch, PickerRef, RemoteListener, RemoteParent, RemotePicker, RouteMatch, RouteRule,
    RoutesFrom, SelectionPolicy, Service, ServicePort, Slice, World,
};
use crate::xds::Options;

pub(crate) const CONTROLLER: &str = "isthmus.dev/gateway";

pub(crate) fn mk_settings() -> Settings {
    Settings {
        controller: CONTROLLER.into(),
        cluster_name: "west".into(),
        epp_tls: EppTls::Plaintext,
        pod_cidrs: BTreeMap::new(),
        deny_cidrs: denied(&[]),
        remote_cidrs: Vec::new(),
    }
}

pub(crate) fn mk_options() -> Options {
    Options {
        health_service: "envoy.service.ext_proc.v3.ExternalProcessor".into(),
        stream_idle_timeout: Duration::from_mins(5),
        retry_body_limit: 8 << 20,
        bind_address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        cluster_name: "west".into(),
        roots: "/etc/ssl/certs/ca-certificates.crt".into(),
    }
}

pub(crate) fn key(name: &str) -> Key {
    Key::new("ns", name)
}

pub(crate) fn mk_world() -> World {
    let mut world = World::default();
    world.classes.insert(
        "isthmus".into(),
        GatewayClass {
            generation: 1,
            controller: CONTROLLER.into(),
            parameters: None,
        },
    );
    world.namespaces.insert("ns".into(), BTreeMap::new());
    world.gateways.insert(
        key("gw"),
        mk_gateway("gw", vec![mk_listener("http", 80, None)]),
    );
    world
        .services
        .insert(key("web"), mk_service(&[("http", 8080)]));
    world
        .services
        .insert(key("epp"), mk_service(&[("grpc", 9002), ("health", 9003)]));
    world.pools.insert(key("llm"), mk_pool());
    world
        .imports
        .insert(key("llm"), mk_import(&[("east", "10.2.0.9")]));
    let chat = mk_rule(
        "/v1",
        vec![mk_ref("pool", "llm", 50), mk_ref("import", "llm", 50)],
    );
    add_route(&mut world, mk_route("chat", vec![chat]));
    let web = mk_rule("/", vec![mk_ref("service", "web", 1)]);
    add_route(&mut world, mk_route("web", vec![web]));
    world
}

/// An Envoy runs for the Gateway.
pub(crate) fn mk_feedback() -> Feedback {
    let infra = Infra {
        addresses: vec!["10.1.200.1".into()],
        ports: [80].into(),
        available: 1,
        failure: None,
    };
    Feedback {
        infra: [(key("gw-isthmus"), infra)].into(),
        ..Feedback::default()
    }
}

pub(crate) fn add_route(world: &mut World, route: HttpRoute) {
    world.routes.insert(route.key.clone(), route);
}

/// To a ConfigMap of the Gateway's namespace.
pub(crate) fn mk_own_parameters() -> ParametersRef {
    ParametersRef {
        group: String::new(),
        kind: "ConfigMap".into(),
        namespace: None,
        name: "own".into(),
    }
}

pub(crate) fn mk_gateway(name: &str, listeners: Vec<Listener>) -> Gateway {
    Gateway {
        key: key(name),
        uid: format!("uid-{name}"),
        generation: 1,
        class: "isthmus".into(),
        listeners,
        ..Gateway::default()
    }
}

pub(crate) fn mk_listener(name: &str, port: u16, hostname: Option<&str>) -> Listener {
    Listener {
        name: name.into(),
        port,
        protocol: "HTTP".into(),
        hostname: hostname.map(Into::into),
        tls: None,
        checks_clients: false,
        from: RoutesFrom::Same,
        kinds: Vec::new(),
    }
}

/// With the Secrets of these names in the Gateway's namespace.
pub(crate) fn mk_https_listener(
    name: &str,
    port: u16,
    hostname: Option<&str>,
    secrets: &[&str],
) -> Listener {
    let refs = secrets.iter().map(|name| CertificateRef {
        kind: "Secret".into(),
        name: (*name).into(),
        ..CertificateRef::default()
    });
    Listener {
        protocol: "HTTPS".into(),
        tls: Some(ListenerTls {
            passthrough: false,
            certificates: refs.collect(),
        }),
        ..mk_listener(name, port, hostname)
    }
}

pub(crate) fn mk_service(ports: &[(&str, u16)]) -> Service {
    let port = |(name, port): &(&str, u16)| ServicePort {
        name: (*name).into(),
        port: *port,
        app_protocol: None,
        tcp: true,
    };
    Service {
        ports: ports.iter().map(port).collect(),
        ..Service::default()
    }
}

pub(crate) fn mk_pool() -> InferencePool {
    InferencePool {
        generation: 1,
        selector: BTreeMap::from([("app".into(), "llm".into())]),
        target_ports: vec![8000],
        picker: Some(PickerRef {
            kind: "Service".into(),
            name: "epp".into(),
            port: Some(9002),
            ..PickerRef::default()
        }),
        ..InferencePool::default()
    }
}

/// One accepted entry in `EndpointMode` per (cluster, address of its EPP).
pub(crate) fn mk_import(clusters: &[(&str, &str)]) -> InferencePoolImport {
    let entry = |(name, address): &(&str, &str)| ImportedCluster {
        name: (*name).into(),
        target_ports: vec![8000],
        picker: Some(RemotePicker {
            addresses: vec![(*address).into()],
            port: Some(9002),
            ..RemotePicker::default()
        }),
        pod_cidrs: vec!["10.2.0.0/16".parse().unwrap()],
        accepted: true,
        ..ImportedCluster::default()
    };
    InferencePoolImport {
        generation: 1,
        clusters: clusters.iter().map(entry).collect(),
    }
}

/// An accepted entry in `ParentMode` with one Gateway, whose listeners have HTTPS where their port is 443.
pub(crate) fn mk_parent_entry(
    name: &str,
    address: &str,
    ports: &[u16],
    hostnames: &[&str],
) -> ImportedCluster {
    let listeners = ports.iter().map(|port| RemoteListener {
        port: *port,
        https: *port == 443,
        hostname: None,
    });
    ImportedCluster {
        name: name.into(),
        parent_mode: true,
        target_ports: vec![8000],
        accepted: true,
        parents: vec![RemoteParent {
            addresses: vec![address.into()],
            hostnames: hostnames.iter().map(ToString::to_string).collect(),
            listeners: listeners.collect(),
            unprogrammed: false,
        }],
        ..ImportedCluster::default()
    }
}

pub(crate) fn mk_route(name: &str, rules: Vec<RouteRule>) -> HttpRoute {
    HttpRoute {
        key: key(name),
        generation: 1,
        parents: vec![ParentRef {
            name: "gw".into(),
            ..ParentRef::default()
        }],
        rules,
        ..HttpRoute::default()
    }
}

pub(crate) fn mk_rule(prefix: &str, backends: Vec<BackendRef>) -> RouteRule {
    RouteRule {
        matches: vec![RouteMatch {
            path: PathMatch::Prefix(prefix.into()),
            ..RouteMatch::default()
        }],
        backends,
        ..RouteRule::default()
    }
}

/// `kind`: service, pool or import.
pub(crate) fn mk_ref(kind: &str, name: &str, weight: u32) -> BackendRef {
    let (group, kind, port) = match kind {
        "pool" => ("inference.networking.k8s.io", "InferencePool", None),
        "import" => ("inference.networking.x-k8s.io", "InferencePoolImport", None),
        _ => ("", "Service", Some(8080)),
    };
    BackendRef {
        group: group.into(),
        kind: kind.into(),
        name: name.into(),
        port,
        weight,
        ..BackendRef::default()
    }
}

/// A policy for the import `llm`.
pub(crate) fn add_policy(world: &mut World, policy: Policy) {
    let policy = SelectionPolicy {
        generation: 1,
        created: 0,
        targets: ["llm".to_owned()].into(),
        policy: Ok(policy),
    };
    world.policies.insert(key("csp"), policy);
}

/// The local pool joins the import `llm`.
pub(crate) fn include_local(world: &mut World) {
    let policy = Policy {
        include_local: true,
        ..Policy::default()
    };
    add_policy(world, policy);
}

/// Equal shares of all imports that are used.
pub(crate) fn mk_selection(wanted: &WantedStatus) -> Selection {
    let imports = wanted.imports.values();
    Selection::equal(imports.filter_map(|status| status.import.as_deref()))
}

pub(crate) fn mk_endpoints() -> Endpoints {
    let mut endpoints = Endpoints::default();
    add_slice(
        &mut endpoints,
        "epp",
        "10.1.0.9",
        &[("grpc", 9002), ("health", 9003)],
    );
    add_slice(&mut endpoints, "web", "10.1.0.7", &[("http", 3000)]);
    let pods = [("a", [10, 1, 0, 1]), ("b", [10, 1, 0, 2])];
    let pods = pods.map(|(name, ip)| (name.to_owned(), IpAddr::from(ip)));
    endpoints
        .pods
        .insert(key("llm"), pods.into_iter().collect());
    endpoints
}

pub(crate) fn add_slice(endpoints: &mut Endpoints, service: &str, ip: &str, ports: &[(&str, u16)]) {
    let name = key(&format!("{service}-1"));
    let slice = Slice {
        service: key(service),
        ports: ports.iter().map(|(n, p)| ((*n).into(), *p)).collect(),
        ready: vec![ip.parse().unwrap()],
        ..Slice::default()
    };
    let names = endpoints.by_service.entry(key(service)).or_default();
    names.insert(name.clone());
    endpoints.slices.insert(name, slice);
}
