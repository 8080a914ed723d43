//! A member: a scripted API server, what its users do there, and what a watch would say of it.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use apiserver_sim::{
    CRDS, ENDPOINT_SLICES, IMPORTS, Kind, NAMESPACES, POOLS, Recorded, SERVICES, Server, pool,
};
use bytes::Bytes;
use crd::annotations::{CLUSTERSET, DRAIN_SECONDS, EXPORT};
use http::{Method, Request, Response, StatusCode};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tower::BoxError;

use super::{Edit, POOLS as NAMES};
use crate::{
    fixtures::*,
    index::{
        facts::{CrdCheck, LiveImport, NamespaceFacts, PoolFacts, ServiceFacts, SliceFacts},
        flavour::{Flavour, ImportCrd},
        update::{Change, Kind as Listed, Update},
    },
    member::{Interner, Ours, import_crd, project},
    name::Key,
};

/// What may become of the pools CRD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CrdState {
    Stands,
    /// Deleted and installed again: another uid, and no pools.
    Reinstalled,
    /// Being deleted: its pools go, and their going proves nothing.
    Going,
    Gone,
    /// The same, while our watch was broken: nobody tells of the pools.
    GoneUnseen,
}

/// The Service and the endpoints behind a cluster's pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Epp {
    /// Behind a load balancer with this address.
    At(u8),
    ClusterIp(u8),
    Unassigned,
    /// An address that means another thing in each cluster.
    Loopback,
    /// No endpoint is ready.
    Idle(u8),
    NoMetrics,
    /// The Service lacks the port that the pools name.
    NoPort,
    Gone,
}

/// What becomes of a write on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// 409, and nothing is written: because somebody changes the object just before, where that is what a 409 takes.
    Conflict,
    /// It never arrives.
    Lost,
    /// It takes effect, and its answer is lost.
    Unanswered,
    /// It takes effect a step later.
    Late,
}

/// The way of writes to a server.
pub(super) struct Wire {
    pub(super) server: Server,
    way: Mutex<Way>,
}

#[derive(Default)]
struct Way {
    faults: VecDeque<Fault>,
    late: Vec<Request<Bytes>>,
    /// Writes that took effect.
    taken: Vec<String>,
    /// Whether the last one did.
    is_taken: bool,
}

pub(super) struct Cluster {
    /// In the inventory.
    pub(super) listed: bool,
    /// Answers us.
    pub(super) up: bool,
    /// Terminating; none: missing.
    pub(super) namespace: Option<bool>,
    pub(super) wire: Arc<Wire>,
    pub(super) epp: Epp,
    pub(super) flavour: Flavour,
    pools_crd: CrdState,
    crd_generation: i64,
    /// Imports that are somebody else's, as he left them.
    pub(super) foreign: BTreeMap<&'static str, Value>,
    /// Imports that a gateway wrote its part into, by uid.
    pub(super) gateways: BTreeSet<String>,
    ours: Ours,
    alike: Interner,
}

/// What a watch is kept on.
const WATCHED: [&Kind; 5] = [&NAMESPACES, &SERVICES, &ENDPOINT_SLICES, &POOLS, &IMPORTS];

// === impl Wire ===

impl Wire {
    /// Answers a request of ours, or does not.
    pub(super) fn answer(&self, request: &Request<Bytes>) -> Result<Response<Bytes>, BoxError> {
        let mut way = self.way.lock();
        if request.method() == Method::GET {
            return Ok(self.server.answer(request));
        }
        way.is_taken = false;
        let fault = way.faults.pop_front();
        match fault {
            Some(Fault::Lost) => return Err("lost".into()),
            Some(Fault::Late) => {
                way.late.push(request.clone());
                return Err("late".into());
            }
            Some(Fault::Conflict) => {
                let type_ = request.headers().get(http::header::CONTENT_TYPE);
                if type_.is_some_and(|type_| type_ == "application/apply-patch+yaml") {
                    let mut refused = Response::new(Bytes::from_static(CONFLICT.as_bytes()));
                    *refused.status_mut() = StatusCode::CONFLICT;
                    return Ok(refused);
                }
                let kind = if is_import(request) { &IMPORTS } else { &POOLS };
                let touched = format!("{:p}", request.body().as_ptr());
                self.server.edit(kind, NS, name_of(request), |object| {
                    object["metadata"]["annotations"]["touched"] = touched.into();
                });
            }
            None | Some(Fault::Unanswered) => {}
        }
        let response = self.server.answer(request);
        way.is_taken = response.status().is_success();
        if way.is_taken {
            let body = String::from_utf8_lossy(request.body());
            way.taken
                .push(format!("{} {} {body}", request.method(), request.uri()));
        }
        match fault {
            Some(Fault::Unanswered) => Err("not answered".into()),
            _ => Ok(response),
        }
    }

    pub(super) fn break_next(&self, fault: Fault) {
        self.way.lock().faults.push_back(fault);
    }

    /// Writes that took effect since the last call.
    pub(super) fn take_taken(&self) -> Vec<String> {
        std::mem::take(&mut self.way.lock().taken)
    }

    pub(super) fn is_last_taken(&self) -> bool {
        self.way.lock().is_taken
    }

    pub(super) fn take_late(&self) -> Vec<Request<Bytes>> {
        std::mem::take(&mut self.way.lock().late)
    }
}

const CONFLICT: &str = r#"{"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
    "reason": "Conflict", "message": "the object has been modified", "code": 409}"#;

pub(super) fn is_import(request: &Request<Bytes>) -> bool {
    request.uri().path().contains(IMPORTS.plural)
}

/// Name of the object.
pub(super) fn name_of(request: &Request<Bytes>) -> &str {
    let mut parts = request.uri().path().split('/');
    parts.nth(7).unwrap_or_default()
}

fn read<T: DeserializeOwned>(text: &[u8]) -> T {
    serde_json::from_slice(text).expect("an object of its kind")
}

// === impl Cluster ===

impl Cluster {
    /// Call it within a runtime.
    pub(super) fn new(name: &str) -> Self {
        let server = Server::builder(name).start().expect("an API server");
        for kind in WATCHED {
            server.record(kind, 10_000);
        }
        let way = Mutex::default();
        let policy = mk_policy();
        let mut cluster = Self {
            listed: true,
            up: true,
            namespace: None,
            wire: Arc::new(Wire { server, way }),
            epp: Epp::At(1),
            flavour: Flavour::Superset,
            pools_crd: CrdState::Stands,
            crd_generation: 1,
            foreign: BTreeMap::new(),
            gateways: BTreeSet::new(),
            ours: Ours {
                clusterset: policy.clusterset,
                instance: policy.instance,
                controller_name: policy.controller_name,
            },
            alike: Interner::default(),
        };
        cluster.set_namespace(Some(false));
        cluster
    }

    pub(super) fn server(&self) -> &Server {
        &self.wire.server
    }

    // --- what users do ---

    /// Sets a pool's annotations, and makes the pool, where its API server takes it.
    pub(super) fn annotate(&mut self, name: &str, value: Option<&str>, drain: Option<u32>) {
        if self.namespace != Some(false) || self.pools_crd != CrdState::Stands {
            return;
        }
        if self.server().get(&POOLS, NS, name).is_none() {
            let mut pool = pool(NS, name);
            // one clock for all clusters
            pool["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
            self.server().put(&POOLS, pool);
        }
        let value = value.map(|value| (EXPORT, value.to_owned()));
        let drain = drain.map(|drain| (DRAIN_SECONDS, drain.to_string()));
        let annotations: BTreeMap<_, _> = value.into_iter().chain(drain).collect();
        self.server().edit(&POOLS, NS, name, |pool| {
            pool["metadata"]["annotations"] = json!(annotations);
        });
    }

    pub(super) fn set_port(&self, name: &str, port: u16) {
        self.server().edit(&POOLS, NS, name, |pool| {
            pool["spec"]["targetPorts"] = json!([{"number": port}]);
        });
    }

    pub(super) fn set_epp(&mut self, epp: Epp) {
        self.epp = epp;
        if self.namespace.is_none() {
            return;
        }
        let address = match epp {
            Epp::Loopback => "127.0.0.1".to_owned(),
            Epp::At(n) | Epp::Idle(n) | Epp::ClusterIp(n) => address(n),
            _ => address(1),
        };
        let mut service = apiserver_sim::load_balancer(NS, "epp", &address);
        let ports = service["spec"]["ports"].as_array_mut().expect("a list");
        match epp {
            Epp::NoMetrics => ports.retain(|port| port["name"] != "metrics"),
            Epp::NoPort => ports.retain(|port| port["name"] != "grpc"),
            Epp::ClusterIp(_) => {
                service["spec"]["type"] = "ClusterIP".into();
                service["spec"]["clusterIPs"] = json!([address]);
                service["status"] = json!({});
            }
            Epp::Unassigned => service["status"] = json!({}),
            _ => {}
        }
        let ready = if matches!(epp, Epp::Idle(_)) {
            [].as_slice()
        } else {
            &["10.0.0.1"]
        };
        let slice = apiserver_sim::endpoint_slice(NS, "epp", ready);
        self.server().put(&ENDPOINT_SLICES, slice);
        if epp == Epp::Gone {
            self.server().delete(&SERVICES, NS, "epp");
        } else {
            self.server().put(&SERVICES, service);
        }
    }

    pub(super) fn set_namespace(&mut self, state: Option<bool>) {
        if state == self.namespace {
            return;
        }
        match state {
            Some(true) if self.namespace.is_some() => self.server().terminate_namespace(NS),
            // one that is going goes before there is another
            Some(_) | None => {
                self.server().delete_namespace(NS);
                self.forget_imports();
            }
        }
        if state == Some(true) && self.namespace.is_none() {
            return self.namespace = None;
        }
        self.namespace = state;
        if state == Some(false) {
            let namespace = json!({"metadata": {"name": NS}});
            self.server().put(&NAMESPACES, namespace);
            self.set_epp(self.epp);
        }
    }

    fn forget_imports(&mut self) {
        self.foreign.clear();
        self.gateways.clear();
    }

    pub(super) fn set_pools_crd(&mut self, state: CrdState) {
        let server = self.server();
        match (self.pools_crd, state) {
            (CrdState::Stands, CrdState::Stands) => {}
            (_, CrdState::Stands | CrdState::Reinstalled) => {
                server.delete_crd(&POOLS);
                server.install_crd(&POOLS);
            }
            (CrdState::Gone | CrdState::GoneUnseen, CrdState::Going) => return,
            (_, CrdState::Going) => {
                server.terminate_crd(&POOLS);
                for name in NAMES {
                    server.delete(&POOLS, NS, name);
                }
            }
            (_, CrdState::Gone | CrdState::GoneUnseen) => server.delete_crd(&POOLS),
        }
        if state == CrdState::GoneUnseen {
            server.take_recorded(&POOLS);
        }
        self.pools_crd = match state {
            CrdState::Reinstalled => CrdState::Stands,
            other => other,
        };
    }

    pub(super) fn set_flavour(&mut self, flavour: Flavour) {
        if self.flavour == flavour {
            return;
        }
        // another shape leaves out what the gateway wrote (K6)
        self.gateways.clear();
        if flavour == Flavour::Absent {
            self.server().delete_crd(&IMPORTS);
            self.forget_imports();
        } else {
            self.install_import_crd(flavour);
        }
        self.flavour = flavour;
    }

    pub(super) fn reinstall_import_crd(&mut self) {
        if self.flavour != Flavour::Absent {
            self.server().delete_crd(&IMPORTS);
            self.forget_imports();
            self.install_import_crd(self.flavour);
        }
    }

    fn install_import_crd(&mut self, flavour: Flavour) {
        self.crd_generation += 1;
        let generation = self.crd_generation;
        let server = self.server();
        server.install_import_crd(if flavour == Flavour::Upstream {
            apiserver_sim::Flavour::Upstream
        } else {
            apiserver_sim::Flavour::Superset
        });
        let mut crd = server.get(&CRDS, "", &IMPORTS.crd_name()).expect("there");
        crd["metadata"]["generation"] = generation.into();
        server.put(&CRDS, crd);
    }

    /// Whether there was something to edit.
    pub(super) fn edit(&mut self, name: &'static str, edit: Edit) -> bool {
        if self.flavour != Flavour::Superset || self.namespace != Some(false) {
            return false;
        }
        let Some(live) = self.import(name) else {
            let labels = match edit {
                Edit::Stranger => json!({CLUSTERSET: "another"}),
                Edit::Bare => json!({}),
                _ => return false,
            };
            let import =
                json!({"metadata": {"namespace": NS, "name": name, "labels": labels}, "spec": {}});
            self.server().put(&IMPORTS, import);
            if edit == Edit::Stranger {
                self.keep_foreign(name);
            }
            return true;
        };
        if edit == Edit::Delete {
            self.foreign.remove(name);
            return self.server().delete(&IMPORTS, NS, name);
        }
        let edited = self
            .server()
            .edit(&IMPORTS, NS, name, |import| edit.make(import));
        if edit == Edit::Stranger || self.foreign.contains_key(name) {
            self.keep_foreign(name);
        } else if edit == Edit::Gateway && live.get("status").is_some() {
            self.gateways.insert(text(&live, "/metadata/uid"));
        }
        edited
    }

    fn keep_foreign(&mut self, name: &'static str) {
        let import = self.import(name).expect("just written");
        self.foreign.insert(name, import);
    }

    // --- what is so ---

    /// An import as it is stored.
    pub(super) fn import(&self, name: &str) -> Option<Value> {
        self.server().get(&IMPORTS, NS, name)
    }

    /// Entries of an import, as it reads, by exporter.
    pub(super) fn entries(&self, name: &str) -> BTreeMap<String, Value> {
        let import = self
            .import(name)
            .filter(|_| self.flavour == Flavour::Superset);
        let entries = import.map(|import| list(&import, "/status/clusters"));
        let entries = entries.unwrap_or_default().into_iter();
        entries
            .map(|entry| (text(&entry, "/name"), entry))
            .collect()
    }

    pub(super) fn pool(&self, name: &str) -> Option<Value> {
        self.server().get(&POOLS, NS, name)
    }

    pub(super) fn exports(&self, name: &str) -> bool {
        let pool = self.pool(name);
        pool.is_some_and(|pool| pool["metadata"]["annotations"][EXPORT] == "ClusterSet")
    }

    pub(super) fn serves_pools(&self) -> bool {
        !matches!(self.pools_crd, CrdState::Gone | CrdState::GoneUnseen)
    }

    pub(super) fn crd_stands(&self) -> bool {
        self.pools_crd == CrdState::Stands
    }

    // --- what a watch says ---

    pub(super) fn crd_check(&self) -> CrdCheck {
        let crd = self.server().get(&CRDS, "", &POOLS.crd_name());
        let crd = crd.filter(|crd| crd["metadata"].get("deletionTimestamp").is_none());
        crd.map_or(CrdCheck::Doubtful, |crd| CrdCheck::Serving {
            uid: text(&crd, "/metadata/uid"),
        })
    }

    pub(super) fn import_crd(&self) -> ImportCrd {
        let crd = self.server().get(&CRDS, "", &IMPORTS.crd_name());
        crd.map_or(ImportCrd::ABSENT, |crd| {
            import_crd::read(&serde_json::from_value(crd).expect("a CRD"))
        })
    }

    /// The lists of a new session; what happened before is in them.
    pub(super) fn lists(&self, uid: String) -> Vec<Update> {
        self.events();
        let namespaces = self.list(&NAMESPACES, Self::read_namespace);
        let services = self.list(&SERVICES, Self::read_service);
        let slices = self.list(&ENDPOINT_SLICES, Self::read_slice);
        vec![
            Update::Connected {
                uid,
                clusterset: None,
            },
            Update::ImportCrd(self.import_crd()),
            Update::Namespaces(Change::Listed(namespaces)),
            Update::Services(Change::Listed(services)),
            Update::Slices(Change::Listed(slices)),
            self.imports(),
            self.pools(),
            Update::Live,
        ]
    }

    /// A new list of imports, after what was told of them before.
    pub(super) fn imports(&self) -> Update {
        self.server().take_recorded(&IMPORTS);
        if self.flavour == Flavour::Absent {
            return Update::NotServed(Listed::Imports);
        }
        Update::Imports(Change::Listed(
            self.list(&IMPORTS, |text| self.read_import(text)),
        ))
    }

    pub(super) fn pools(&self) -> Update {
        if !self.serves_pools() {
            return Update::NotServed(Listed::Pools);
        }
        Update::PoolsListed {
            pools: self.list(&POOLS, |text| self.read_pool(text)),
            odd: BTreeSet::new(),
            crd: self.crd_check(),
        }
    }

    /// What happened since the last call.
    pub(super) fn events(&self) -> Vec<Update> {
        let mut updates = Vec::new();
        self.follow(&SERVICES, &mut updates, |one| {
            Update::Services(change(one, Self::read_service))
        });
        self.follow(&ENDPOINT_SLICES, &mut updates, |one| {
            Update::Slices(change(one, Self::read_slice))
        });
        self.follow(&POOLS, &mut updates, |one| {
            match change(one, |text| self.read_pool(text)) {
                Change::Deleted(key) => Update::PoolDeleted {
                    key,
                    crd: self.crd_check(),
                },
                Change::Applied(pool) => Update::PoolApplied(pool),
                Change::Listed(_) => unreachable!("one object"),
            }
        });
        self.follow(&IMPORTS, &mut updates, |one| {
            Update::Imports(change(one, |text| self.read_import(text)))
        });
        self.follow(&NAMESPACES, &mut updates, |one| {
            Update::Namespaces(change(one, Self::read_namespace))
        });
        updates
    }

    fn follow(
        &self,
        kind: &'static Kind,
        updates: &mut Vec<Update>,
        update: impl Fn(&Recorded) -> Update,
    ) {
        let recorded = self.server().take_recorded(kind).changes;
        updates.extend(recorded.iter().map(update));
    }

    fn list<F>(&self, kind: &'static Kind, read: impl Fn(&[u8]) -> F) -> Vec<F> {
        let texts = self.server().texts(kind);
        texts.iter().map(|(_, text)| read(text)).collect()
    }

    fn read_namespace(text: &[u8]) -> NamespaceFacts {
        project::namespace(read(text)).expect("a namespace")
    }

    fn read_service(text: &[u8]) -> ServiceFacts {
        project::service(read(text)).expect("a Service")
    }

    fn read_slice(text: &[u8]) -> SliceFacts {
        project::slice(read(text)).expect("a slice")
    }

    fn read_pool(&self, text: &[u8]) -> PoolFacts {
        project::pool(read(text), &self.ours).expect("a pool")
    }

    /// Under upstream's CRD all but `controllers` is left out (K6).
    fn read_import(&self, text: &[u8]) -> LiveImport {
        let mut shown = Bytes::copy_from_slice(text);
        if self.flavour == Flavour::Upstream {
            let mut import: Value = read(text);
            if let Some(status) = import.get_mut("status").and_then(Value::as_object_mut) {
                status.retain(|field, _| field == "controllers");
            }
            shown = import.to_string().into();
        }
        let import = project::import(&read(&shown), &self.ours, &self.alike);
        import.expect("a status").expect("an import")
    }
}

/// What a watch says of one change.
fn change<F>(one: &Recorded, read: impl Fn(&[u8]) -> F) -> Change<F> {
    if one.deleted {
        Change::Deleted(Key::new(&one.namespace, &one.name))
    } else {
        Change::Applied(read(&one.text))
    }
}

pub(super) fn address(n: u8) -> String {
    format!("192.0.2.{n}")
}

/// A text in an object; empty where there is none.
pub(super) fn text(object: &Value, pointer: &str) -> String {
    let text = object.pointer(pointer).and_then(Value::as_str);
    text.unwrap_or_default().to_owned()
}

/// A list in an object; empty where there is none.
pub(super) fn list(object: &Value, pointer: &str) -> Vec<Value> {
    let list = object.pointer(pointer).and_then(Value::as_array);
    list.cloned().unwrap_or_default()
}
