//! The clusters, what listens where, and the objects of their API servers.

use std::net::{Ipv4Addr, SocketAddr};

use apiserver_sim::{
    ENDPOINT_SLICES, GATEWAY_CLASSES, GATEWAYS, HTTP_ROUTES, IMPORTS, Kind, NAMESPACES, PODS,
    POOLS, REFERENCE_GRANTS, SERVICES, Server,
};
use serde_json::{Value, json};

use super::Way;
use crate::gateway::class;

pub(super) const NS: &str = "ml";
/// The Gateway, and the objects that run it.
pub(super) const GATEWAY: &str = "gw";
pub(super) const DEPLOYMENT: &str = "gw-isthmus";

/// The pools of each cluster, which have the same pods, and the Services of their endpoint pickers.
const POOL: &str = "llm";
const PICKER: &str = "epp";
const FLOOR_POOL: &str = "llm-floor";
const FLOOR: &str = "floor";
/// A Service with the same pods.
const WEB: &str = "web";
/// Model servers of each cluster, and the port of all.
const MODEL_SERVERS: u8 = 4;
const PORT: u16 = 8000;
/// The first port of the Service of an endpoint picker.
const PICKER_PORT: u16 = 9002;

/// A cluster: a network of addresses, and ports that no other cluster has, because some programs listen at all addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cluster {
    pub(super) name: &'static str,
    /// Of the network 10.N.0.0/16. Those of the testbed's clusters begin at 1.
    number: u8,
}

/// The importing cluster.
pub(super) const WEST: Cluster = Cluster {
    name: "west",
    number: 201,
};
pub(super) const EAST: Cluster = Cluster {
    name: "east",
    number: 202,
};
const SOUTH: Cluster = Cluster {
    name: "south",
    number: 203,
};
pub(super) const CLUSTERS: [Cluster; 3] = [WEST, EAST, SOUTH];

// === impl Cluster ===

impl Cluster {
    pub(super) fn network(self) -> String {
        format!("10.{}.0.0/16", self.number)
    }

    fn ip(self, host: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, self.number, 0, host)
    }

    fn port(self, last: u16) -> u16 {
        u16::from(self.number) * 100 + last
    }

    /// Where clients reach its Envoy.
    pub(super) fn edge(self) -> SocketAddr {
        (self.ip(1), self.port(80)).into()
    }

    /// Where its endpoint picker serves `ext_proc`, health and metrics.
    pub(super) fn picker(self) -> [SocketAddr; 3] {
        [2, 3, 90].map(|port| (self.ip(2), self.port(port)).into())
    }

    /// Where the floor serves `ext_proc`.
    pub(super) fn floor(self) -> SocketAddr {
        (self.ip(3), self.port(4)).into()
    }

    pub(super) fn model_servers(self) -> Vec<SocketAddr> {
        let hosts = (1..=MODEL_SERVERS).map(|number| 10 + number);
        hosts.map(|host| (self.ip(host), PORT).into()).collect()
    }

    /// A Gateway, pools with their endpoint pickers, and a Service that has the same pods.
    pub(super) fn fill(self, server: &Server) {
        for kind in [&GATEWAY_CLASSES, &REFERENCE_GRANTS] {
            server.install_crd(kind);
        }
        server.put(&NAMESPACES, json!({"metadata": {"name": NS}}));
        server.put(&GATEWAY_CLASSES, class());
        let listener = json!({"name": "http", "port": self.edge().port(), "protocol": "HTTP"});
        let spec = json!({"gatewayClassName": "isthmus", "listeners": [listener]});
        put(server, &GATEWAYS, GATEWAY, &spec);
        let [ext_proc, health, _] = self.picker();
        let ports = [("grpc", ext_proc.port()), ("health", health.port())];
        put_pool(server, POOL, PICKER, ext_proc, &ports);
        let floor = self.floor();
        put_pool(server, FLOOR_POOL, FLOOR, floor, &[("grpc", floor.port())]);
        for (number, at) in self.model_servers().iter().enumerate() {
            server.put(&PODS, pod(number, at));
        }
        let port = json!({"name": "http", "port": 80, "protocol": "TCP"});
        let spec = json!({"clusterIP": "10.96.0.8", "ports": [port]});
        put(server, &SERVICES, WEB, &spec);
        let web = slice(WEB, &self.model_servers(), &[("http", PORT)]);
        server.put(&ENDPOINT_SLICES, web);
    }

    fn endpoint_entry(self) -> Value {
        let [ext_proc, health, _] = self.picker();
        let port = json!({"number": ext_proc.port(), "appProtocol": "kubernetes.io/h2c"});
        let mut entry = self.entry("EndpointMode");
        entry["podCIDRs"] = json!([self.network()]);
        entry["endpointPicker"] = json!({
            "name": PICKER,
            "service": [{"type": "LoadBalancer", "addresses": [ext_proc.ip()], "ports": [port]}],
            "health": {"port": health.port()},
        });
        entry
    }

    fn parent_entry(self) -> Value {
        let edge = self.edge();
        let mut entry = self.entry("ParentMode");
        let port = json!({"number": edge.port(), "appProtocol": "http"});
        entry["parents"] = json!([{
            "name": GATEWAY,
            "namespace": NS,
            "service": [{"type": "LoadBalancer", "addresses": [edge.ip()], "ports": [port]}],
            "listeners": [{"name": "http", "port": edge.port(), "protocol": "HTTP"}],
        }]);
        entry
    }

    fn entry(self, mode: &str) -> Value {
        let conditions = ["Accepted", "Ready"].map(|kind| {
            json!({
                "type": kind, "status": "True", "reason": kind, "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            })
        });
        json!({
            "name": self.name,
            "routingMode": mode,
            "targetPortNumber": PORT,
            "conditions": conditions,
        })
    }
}

// === impl Way ===

impl Way {
    pub(super) const ALL: [Self; 6] = [
        Self::Service,
        Self::Pool,
        Self::Floor,
        Self::Endpoint,
        Self::Two,
        Self::Parent,
    ];

    /// The name of its route and, where it has one, of its import.
    fn name(self) -> &'static str {
        match self {
            Self::Service => "service",
            Self::Pool => "pool",
            Self::Floor => "floor",
            Self::Endpoint => "endpoint",
            Self::Two => "two",
            Self::Parent => "parent",
        }
    }

    pub(super) fn host(self) -> String {
        format!("{}.example", self.name())
    }

    /// The clusters whose model servers answer.
    pub(super) fn clusters(self) -> Vec<Cluster> {
        match self {
            Self::Service | Self::Pool | Self::Floor => vec![WEST],
            Self::Endpoint | Self::Parent => vec![EAST],
            Self::Two => vec![EAST, SOUTH],
        }
    }

    fn entries(self) -> Vec<Value> {
        let clusters = self.clusters().into_iter();
        match self {
            Self::Service | Self::Pool | Self::Floor => Vec::new(),
            Self::Endpoint | Self::Two => clusters.map(Cluster::endpoint_entry).collect(),
            Self::Parent => clusters.map(Cluster::parent_entry).collect(),
        }
    }

    /// Its route in the importing cluster, and its import.
    pub(super) fn put(self, server: &Server) {
        let backend = match self {
            Self::Service => json!({"name": WEB, "port": 80}),
            Self::Pool => to_pool(POOL),
            Self::Floor => to_pool(FLOOR_POOL),
            Self::Endpoint | Self::Two | Self::Parent => {
                json!({"group": IMPORTS.group, "kind": IMPORTS.kind, "name": self.name()})
            }
        };
        let entries = self.entries();
        if !entries.is_empty() {
            let import = json!({
                "metadata": {"namespace": NS, "name": self.name(), "generation": 1},
                "status": {"clusters": entries},
            });
            server.put(&IMPORTS, import);
        }
        put_route(server, self.name(), &json!([self.host()]), &backend);
    }
}

/// In the exporting cluster: all hosts lead to the pool.
pub(super) fn put_route_to_pool(server: &Server) {
    put_route(server, POOL, &json!([]), &to_pool(POOL));
}

fn to_pool(name: &str) -> Value {
    json!({"group": POOLS.group, "kind": POOLS.kind, "name": name})
}

/// A pool, and the Service of its endpoint picker with the ports of the process.
fn put_pool(server: &Server, name: &str, picker: &str, at: SocketAddr, ports: &[(&str, u16)]) {
    let reference = json!({
        "name": picker, "port": {"number": PICKER_PORT}, "failureMode": "FailClose",
    });
    let spec = json!({
        "selector": {"matchLabels": {"app": POOL}},
        "targetPorts": [{"number": PORT}],
        "endpointPickerRef": reference,
    });
    put(server, &POOLS, name, &spec);
    let service_ports = (PICKER_PORT..).zip(ports).map(|(number, (name, _))| {
        json!({"name": name, "port": number, "protocol": "TCP", "appProtocol": "kubernetes.io/h2c"})
    });
    let service_ports: Vec<Value> = service_ports.collect();
    let spec = json!({"clusterIP": "10.96.0.9", "ports": service_ports});
    put(server, &SERVICES, picker, &spec);
    server.put(&ENDPOINT_SLICES, slice(picker, &[at], ports));
}

fn put_route(server: &Server, name: &str, hosts: &Value, backend: &Value) {
    let matches = json!([{"path": {"type": "PathPrefix", "value": "/v1"}}]);
    let spec = json!({
        "parentRefs": [{"name": GATEWAY}],
        "hostnames": hosts,
        "rules": [{"matches": matches, "backendRefs": [backend]}],
    });
    put(server, &HTTP_ROUTES, name, &spec);
}

fn put(server: &Server, kind: &'static Kind, name: &str, spec: &Value) {
    let metadata = json!({"namespace": NS, "name": name, "generation": 1});
    server.put(kind, json!({"metadata": metadata, "spec": spec}));
}

fn pod(number: usize, at: &SocketAddr) -> Value {
    json!({
        "metadata": {"namespace": NS, "name": format!("{POOL}-{number}"), "labels": {"app": POOL}},
        "spec": {"containers": [{"name": "server", "image": "server"}]},
        "status": {"podIP": at.ip(), "conditions": [{"type": "Ready", "status": "True"}]},
    })
}

fn slice(service: &str, at: &[SocketAddr], ports: &[(&str, u16)]) -> Value {
    let endpoints = at
        .iter()
        .map(|at| json!({"addresses": [at.ip()], "conditions": {"ready": true}}));
    let ports = ports
        .iter()
        .map(|(name, port)| json!({"name": name, "port": port, "protocol": "TCP"}));
    let labels = json!({"kubernetes.io/service-name": service});
    json!({
        "metadata": {"namespace": NS, "name": format!("{service}-1"), "labels": labels},
        "addressType": "IPv4",
        "endpoints": endpoints.collect::<Vec<_>>(),
        "ports": ports.collect::<Vec<_>>(),
    })
}
