//! The simulated node of a cluster: stands in for scheduler, kubelet, kube-proxy, DNS and load balancer.

mod container;
mod environment;
mod load_balancers;
mod names;
mod pod;
mod probe;
mod registration;
mod services;
mod status;
mod store;
mod volumes;

pub use self::volumes::write_volume;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::jiff::Timestamp;
use kube::{Client, ResourceExt as _};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::addresses::AddressPool;
use crate::network::ClusterNetwork;
use crate::tools::Images;

use environment::{Facts, Lookup};
use store::{Key, Store};

pub(crate) use pod::PodCell;

/// A large real node has 250 pods; each is at least one process here.
const MAX_PODS: usize = 250;
/// Pods whose network is made at the same time: one per core of a small machine keeps the queue moving.
const CONCURRENT_SETUPS: usize = 4;

/// What all tasks of one node share.
pub(crate) struct NodeContext {
    pub(crate) node_name: String,
    pub(crate) client: Client,
    pub(crate) network: ClusterNetwork,
    pub(crate) images: Images,
    /// Where pods keep their volumes.
    pub(crate) state: PathBuf,
    /// Where containers log to.
    pub(crate) logs: PathBuf,
    pub(crate) started: Timestamp,
    pub(crate) pods: Store<Pod>,
    pub(crate) secrets: Store<Secret>,
    pub(crate) config_maps: Store<ConfigMap>,
    pub(crate) services: Store<Service>,
    pub(crate) slices: Store<EndpointSlice>,
    pub(crate) pod_addresses: Mutex<AddressPool>,
    pub(crate) setups: Semaphore,
    running: Mutex<BTreeMap<Key, Arc<PodCell>>>,
}

/// A running node; dropping it ends its tasks and kills its pods' processes.
pub(crate) struct Node {
    context: Arc<NodeContext>,
    again: watch::Sender<u64>,
    _tasks: JoinSet<()>,
}

/// The objects of one namespace.
pub(crate) struct NamespaceLookup<'a> {
    context: &'a NodeContext,
    namespace: &'a str,
}

// === impl Node ===

impl Node {
    /// Starts the tasks of the node of `cluster`. Must be called on a tokio runtime.
    pub(crate) fn start(
        cluster: &str,
        client: Client,
        network: ClusterNetwork,
        images: Images,
        state: PathBuf,
        logs: PathBuf,
    ) -> Self {
        let context = Arc::new(NodeContext {
            node_name: format!("{cluster}-node"),
            pod_addresses: Mutex::new(network.addresses.pods()),
            client: client.clone(),
            network,
            images,
            state,
            logs,
            started: Timestamp::now(),
            pods: Store::new(),
            secrets: Store::new(),
            config_maps: Store::new(),
            services: Store::new(),
            slices: Store::new(),
            setups: Semaphore::new(CONCURRENT_SETUPS),
            running: Mutex::default(),
        });
        if let Err(error) = names::make(&context.state) {
            tracing::error!(%error, "no file for the names of Services");
        }
        let mut tasks = JoinSet::new();
        let again = watch::Sender::new(0);
        tasks.spawn(
            context
                .pods
                .clone()
                .follow(client.clone(), again.subscribe()),
        );
        tasks.spawn(
            context
                .secrets
                .clone()
                .follow(client.clone(), again.subscribe()),
        );
        tasks.spawn(
            context
                .config_maps
                .clone()
                .follow(client.clone(), again.subscribe()),
        );
        tasks.spawn(
            context
                .services
                .clone()
                .follow(client.clone(), again.subscribe()),
        );
        tasks.spawn(
            context
                .slices
                .clone()
                .follow(client.clone(), again.subscribe()),
        );
        tasks.spawn(registration::keep_registered(Arc::clone(&context)));
        tasks.spawn(registration::bind_pods(Arc::clone(&context)));
        tasks.spawn(services::forward_services(Arc::clone(&context)));
        tasks.spawn(names::follow(Arc::clone(&context)));
        tasks.spawn(load_balancers::assign_load_balancers(Arc::clone(&context)));
        tasks.spawn(run_pods(Arc::clone(&context)));
        Self {
            context,
            again,
            _tasks: tasks,
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.context.node_name
    }

    /// The API server is back: watches need not wait for the end of their backoff.
    pub(crate) fn reconnect(&self) {
        self.again.send_modify(|times| *times += 1);
    }

    /// The pod of that name, if it runs here.
    pub(crate) fn pod(&self, namespace: &str, name: &str) -> Option<Arc<PodCell>> {
        let key = (namespace.to_owned(), name.to_owned());
        self.context.running.lock().get(&key).cloned()
    }
}

// === impl NodeContext ===

impl NodeContext {
    fn facts<'a>(&'a self, pod: &'a Pod, pod_ip: std::net::IpAddr) -> Facts<'a> {
        Facts {
            pod,
            pod_ip,
            host_ip: self.network.addresses.node().into(),
            node_name: &self.node_name,
        }
    }

    fn lookup<'a>(&'a self, namespace: &'a str) -> NamespaceLookup<'a> {
        NamespaceLookup {
            context: self,
            namespace,
        }
    }

    /// `<logs>/pods/<namespace>/<pod>`
    fn pod_logs(&self, pod: &Pod) -> PathBuf {
        let namespace = pod.namespace().unwrap_or_default();
        self.logs.join("pods").join(namespace).join(pod.name_any())
    }

    fn register(&self, pod: &Pod, cell: &Arc<PodCell>) {
        self.running.lock().insert(pod_key(pod), Arc::clone(cell));
    }

    /// Only if it is still this one: a pod of the same name may have taken its place.
    fn unregister(&self, pod: &Pod, cell: &Arc<PodCell>) {
        let mut running = self.running.lock();
        let key = pod_key(pod);
        if running
            .get(&key)
            .is_some_and(|other| Arc::ptr_eq(other, cell))
        {
            running.remove(&key);
        }
    }
}

// === impl NamespaceLookup ===

impl Lookup for NamespaceLookup<'_> {
    fn secret(&self, name: &str) -> Option<Arc<Secret>> {
        self.context.secrets.get(self.namespace, name)
    }

    fn config_map(&self, name: &str) -> Option<Arc<ConfigMap>> {
        self.context.config_maps.get(self.namespace, name)
    }
}

fn pod_key(pod: &Pod) -> Key {
    (pod.namespace().unwrap_or_default(), pod.name_any())
}

/// A task for each pod that is bound to this node; never ends.
async fn run_pods(context: Arc<NodeContext>) {
    let mut changes = context.pods.subscribe();
    let mut running = BTreeSet::new();
    let mut tasks: JoinSet<String> = JoinSet::new();
    let mut owners = BTreeMap::new();
    loop {
        changes.borrow_and_update();
        for pod in context.pods.all() {
            let Some(uid) = pod.uid() else { continue };
            let bound = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            let over = pod
                .status
                .as_ref()
                .and_then(|status| status.phase.as_deref());
            let over = matches!(over, Some("Succeeded" | "Failed"))
                && pod.metadata.deletion_timestamp.is_none();
            if bound != Some(&context.node_name) || over || !running.insert(uid.clone()) {
                continue;
            }
            let task = pod::PodTask::new(Arc::clone(&context), pod);
            let own = uid.clone();
            let handle = tasks.spawn(async move {
                task.run().await;
                own
            });
            owners.insert(handle.id(), uid);
        }
        tokio::select! {
            _ = changes.changed() => {}
            Some(ended) = tasks.join_next_with_id() => {
                let id = match &ended {
                    Ok((id, _)) => *id,
                    Err(error) => {
                        tracing::error!(%error, "the task of a pod ended badly");
                        error.id()
                    }
                };
                if let Some(uid) = owners.remove(&id) {
                    running.remove(&uid);
                }
            }
        }
    }
}
