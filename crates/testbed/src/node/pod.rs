//! One pod on the node: its network, volumes, containers and status, from binding to removal.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, ResourceExt as _};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::NodeContext;
use super::container::{ContainerTask, grace_period};
use super::status::{ContainerView, PodView, State};
use super::volumes::Volumes;
use crate::network::PodNetwork;
use crate::process::Group;

/// One request to the API server.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// Between attempts at what failed.
const RETRY: Duration = Duration::from_millis(500);
/// Changes that come together are written together.
const SETTLE: Duration = Duration::from_millis(50);
/// How often volumes are checked where nothing changed: for tokens that grow old.
const VOLUME_PERIOD: Duration = Duration::from_secs(30);
/// After the grace period: SIGKILL, reaping, and a busy machine.
const KILL_MARGIN: Duration = Duration::from_secs(10);

/// What the tasks of one pod, and the faults, share.
#[derive(Debug)]
pub(crate) struct PodCell {
    view: Mutex<PodView>,
    groups: Mutex<BTreeMap<String, Group>>,
    network: Mutex<Option<PodNetwork>>,
    version: watch::Sender<u64>,
    /// Whether containers that have ended stay so: a fault that tests inject.
    held: watch::Sender<bool>,
}

/// See the module.
pub(crate) struct PodTask {
    context: Arc<NodeContext>,
    pod: Arc<Pod>,
    api: Api<Pod>,
    cell: Arc<PodCell>,
    directory: PathBuf,
}

/// Why a pod ends on this node.
enum Ending {
    /// It is to stop within its grace period; the API server waits for the node's word.
    Deleted(Duration),
    /// The API server does not know it any more.
    Gone,
}

// === impl PodCell ===

impl PodCell {
    fn new(pod: &Pod, context: &NodeContext) -> Self {
        let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        let view = PodView {
            containers: containers
                .map(|container| (container.name.clone(), ContainerView::creating()))
                .collect(),
            pod_ip: None,
            host_ip: context.network.addresses.node().into(),
            terminating: false,
            started: Timestamp::now(),
        };
        Self {
            view: Mutex::new(view),
            groups: Mutex::default(),
            network: Mutex::default(),
            version: watch::Sender::new(0),
            held: watch::Sender::new(false),
        }
    }

    /// Whether containers that have ended stay so.
    pub(crate) fn hold(&self, held: bool) {
        self.held.send_replace(held);
    }

    /// Waits until containers that have ended may be restarted.
    pub(crate) async fn may_restart(&self) {
        // the sender is ours, so the wait ends with the value alone
        let _ = self.held.subscribe().wait_for(|held| !held).await;
    }

    /// Changes what is known of a container; says so only if it is a change.
    pub(crate) fn change(&self, container: &str, change: impl FnOnce(&mut ContainerView)) {
        self.change_pod(|view| {
            if let Some(view) = view.containers.get_mut(container) {
                change(view);
            }
        });
    }

    pub(crate) fn started(&self, container: &str, group: Group) {
        self.groups.lock().insert(container.to_owned(), group);
    }

    /// The process groups of the containers that run, by container.
    pub(crate) fn groups(&self) -> BTreeMap<String, Group> {
        let view = self.view.lock();
        let runs = |name: &String| {
            let container = view.containers.get(name);
            container.is_some_and(|container| matches!(container.state, State::Running { .. }))
        };
        let groups = self.groups.lock();
        groups
            .iter()
            .filter(|(name, _)| runs(name))
            .map(|(name, group)| (name.clone(), *group))
            .collect()
    }

    pub(crate) fn network(&self) -> Option<PodNetwork> {
        self.network.lock().clone()
    }

    fn change_pod(&self, change: impl FnOnce(&mut PodView)) {
        change(&mut self.view.lock());
        self.version.send_modify(|version| *version += 1);
    }
}

// === impl PodTask ===

impl PodTask {
    pub(crate) fn new(context: Arc<NodeContext>, pod: Arc<Pod>) -> Self {
        let namespace = pod.namespace().unwrap_or_default();
        let uid = pod.uid().unwrap_or_default();
        Self {
            api: Api::namespaced(context.client.clone(), &namespace),
            cell: Arc::new(PodCell::new(&pod, &context)),
            directory: context.state.join("pods").join(uid),
            context,
            pod,
        }
    }

    /// Runs the pod until it is gone.
    pub(crate) async fn run(self) {
        let ending = tokio::select! {
            () = self.report() => return,
            ending = self.live() => ending,
        };
        self.context.unregister(&self.pod, &self.cell);
        let network = self.cell.network.lock().take();
        if let Some(network) = network {
            if let Err(error) = network.remove().await {
                tracing::warn!(pod = %self.pod.name_any(), %error, "network not removed");
            }
            self.context
                .pod_addresses
                .lock()
                .release(network.address.into());
        }
        if let Err(error) = tokio::fs::remove_dir_all(&self.directory).await {
            tracing::debug!(pod = %self.pod.name_any(), %error, "directory not removed");
        }
        if let Ending::Deleted(_) = ending {
            self.delete().await;
            // the watch will say so; until then the pod must not be taken for a new one
            let forgotten = async {
                while !matches!(self.ending().await, Ending::Gone) {
                    sleep(SETTLE).await;
                }
            };
            if timeout(REQUEST_LIMIT, forgotten).await.is_err() {
                tracing::debug!(pod = %self.pod.name_any(), "deleted, but still listed");
            }
        }
    }

    /// The pod's life up to the end of its last container.
    async fn live(&self) -> Ending {
        let (stop, stopped) = watch::channel(None);
        let mut containers = JoinSet::new();
        let ending = tokio::select! {
            ending = self.ending() => ending,
            never = self.run_containers(&mut containers, stopped) => match never {},
        };
        self.cell.change_pod(|view| view.terminating = true);
        let grace = match ending {
            Ending::Deleted(grace) => grace,
            Ending::Gone => Duration::ZERO,
        };
        stop.send_replace(Some(Instant::now() + grace));
        let all_ended = async { while containers.join_next().await.is_some() {} };
        if timeout(grace + KILL_MARGIN, all_ended).await.is_err() {
            tracing::warn!(pod = %self.pod.name_any(), "containers did not end; abandoned");
        }
        ending
    }

    /// Waits for the pod's deletion.
    async fn ending(&self) -> Ending {
        let mut changes = self.context.pods.subscribe();
        loop {
            changes.borrow_and_update();
            match self.context.pods.get(
                &self.pod.namespace().unwrap_or_default(),
                &self.pod.name_any(),
            ) {
                Some(pod) if pod.uid() == self.pod.uid() => {
                    if pod.metadata.deletion_timestamp.is_some() {
                        return Ending::Deleted(grace_period(&pod));
                    }
                }
                _ => return Ending::Gone,
            }
            if changes.changed().await.is_err() {
                return Ending::Gone;
            }
        }
    }

    /// Sets everything up, then keeps volumes up to date for as long as the pod lives.
    async fn run_containers(
        &self,
        containers: &mut JoinSet<()>,
        stop: watch::Receiver<Option<Instant>>,
    ) -> std::convert::Infallible {
        let network = self.make_network().await;
        let namespace = self.pod.namespace().unwrap_or_default();
        let lookup = self.context.lookup(&namespace);
        let spec = self.pod.spec.iter();
        let mut volumes = Volumes::new(self.directory.join("volumes"));
        let mut secrets = self.context.secrets.subscribe();
        let mut config_maps = self.context.config_maps.subscribe();
        loop {
            secrets.borrow_and_update();
            config_maps.borrow_and_update();
            let facts = self.context.facts(&self.pod, network.address.into());
            let pause = match volumes.update(&self.context.client, facts, &lookup).await {
                Ok(()) => {
                    if containers.is_empty() {
                        self.cell
                            .change_pod(|view| view.pod_ip = Some(network.address.into()));
                        for container in spec.clone().flat_map(|spec| &spec.containers) {
                            let task = ContainerTask {
                                context: Arc::clone(&self.context),
                                pod: Arc::clone(&self.pod),
                                container: container.clone(),
                                network: network.clone(),
                                directory: self.directory.clone(),
                                cell: Arc::clone(&self.cell),
                                stop: stop.clone(),
                            };
                            containers.spawn(task.run());
                        }
                    }
                    VOLUME_PERIOD
                }
                Err(error) => {
                    if containers.is_empty() {
                        self.wait_for_all("ContainerCreating", &error.to_string());
                    } else {
                        tracing::warn!(pod = %self.pod.name_any(), %error, "volumes not refreshed");
                    }
                    RETRY
                }
            };
            tokio::select! {
                () = sleep(pause) => {}
                _ = secrets.changed() => sleep(SETTLE).await,
                _ = config_maps.changed() => sleep(SETTLE).await,
            }
        }
    }

    async fn make_network(&self) -> PodNetwork {
        loop {
            let problem = {
                let _turn = self.context.setups.acquire().await;
                let address = self.context.pod_addresses.lock().allocate();
                match address {
                    None => "no pod address is free".to_owned(),
                    Some(address) => match self.context.network.make_pod(address).await {
                        Ok(network) => {
                            *self.cell.network.lock() = Some(network.clone());
                            self.context.register(&self.pod, &self.cell);
                            return network;
                        }
                        Err(error) => {
                            self.context.pod_addresses.lock().release(address.into());
                            error.to_string()
                        }
                    },
                }
            };
            self.wait_for_all("ContainerCreating", &problem);
            sleep(RETRY).await;
        }
    }

    fn wait_for_all(&self, reason: &'static str, message: &str) {
        self.cell.change_pod(|view| {
            for container in view.containers.values_mut() {
                container.state = State::Waiting {
                    reason,
                    message: message.to_owned(),
                };
            }
        });
    }

    /// Keeps the pod's status at the API server up to date; the newest wins.
    async fn report(&self) {
        let mut changes = self.cell.version.subscribe();
        let mut live = (*self.pod).clone();
        let mut sent = None;
        loop {
            changes.borrow_and_update();
            let status = self.cell.view.lock().status(&live, Timestamp::now());
            if sent.as_ref() != Some(&status) {
                // the uid keeps it from a pod that has the same name by now
                let patch = json!({"metadata": {"uid": self.pod.metadata.uid}, "status": status});
                let params = PatchParams::default();
                let name = self.pod.name_any();
                let patch = Patch::Merge(&patch);
                match timeout(REQUEST_LIMIT, self.api.patch_status(&name, &params, &patch)).await {
                    Ok(Ok(_)) => {
                        live.status = Some(status.clone());
                        sent = Some(status);
                    }
                    Ok(Err(kube::Error::Api(error))) if error.code == 404 || error.code == 409 => {
                        tracing::debug!(pod = name, %error, "status of a pod that is gone");
                        sleep(RETRY).await;
                    }
                    Ok(Err(error)) => {
                        tracing::warn!(pod = name, %error, "status not written");
                        sleep(RETRY).await;
                        continue;
                    }
                    Err(_) => continue,
                }
            }
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Tells the API server that nothing of the pod is left here; tries until it knows.
    async fn delete(&self) {
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions {
                uid: self.pod.metadata.uid.clone(),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        let name = self.pod.name_any();
        loop {
            match timeout(REQUEST_LIMIT, self.api.delete(&name, &params)).await {
                Ok(Ok(_)) => return,
                // gone, or another pod of the same name
                Ok(Err(kube::Error::Api(error))) if error.code == 404 || error.code == 409 => {
                    return;
                }
                Ok(Err(error)) => tracing::warn!(pod = name, %error, "not deleted"),
                Err(_) => tracing::warn!(
                    pod = name,
                    "not deleted: no answer within {REQUEST_LIMIT:?}"
                ),
            }
            sleep(RETRY).await;
        }
    }
}
