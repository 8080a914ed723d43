//! The testbed as a whole: what to start, and the running thing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node as NodeObject, ServiceAccount};
use kube::Api;

use crate::audit::{self, ApiCall};
use crate::cluster::Cluster;
use crate::error::TestbedError;
use crate::eventually::eventually;
use crate::faults::{ApiServerFaults, PodFaults};
use crate::isolation::{Inside, RunDirectory};
use crate::kubeconfig::merge_kubeconfigs;
use crate::logs::tail;
use crate::network::ClusterNetwork;
use crate::node::Node;
use crate::process::Service;
use crate::tools::Tools;

mod builder;

pub use builder::Builder;

/// A cluster is ready 10 s after its start on a small idle machine; this is for a busy one.
const READY_LIMIT: Duration = Duration::from_mins(2);
/// Lines of a log that an error carries.
const TAIL_LINES: usize = 20;

/// Clusters on this machine; dropping it kills everything in it.
pub struct Testbed {
    run: RunDirectory,
    tools: Tools,
    members: BTreeMap<String, Member>,
    etcd: Service,
}

/// One cluster of a testbed.
pub(crate) struct Member {
    pub(crate) cluster: Cluster,
    pub(crate) api_server: Service,
    network: ClusterNetwork,
    pub(crate) node: Node,
    controller_manager: Service,
}

// === impl Testbed ===

impl Testbed {
    /// A testbed without clusters yet; [`enter`](crate::enter) gives the proof that it will be cleaned up.
    pub fn builder(inside: &Inside) -> Builder {
        Builder::new(inside.run().clone())
    }

    /// The cluster of that name.
    ///
    /// # Errors
    /// When the builder was given no such name.
    pub fn cluster(&self, name: &str) -> Result<&Cluster, TestbedError> {
        Ok(&self.member(name)?.cluster)
    }

    /// All clusters, by name.
    pub fn clusters(&self) -> impl Iterator<Item = &Cluster> {
        self.members.values().map(|member| &member.cluster)
    }

    /// Writes one kubeconfig with a context per cluster, named like it, and says where; it goes when the run ends.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn merged_kubeconfig(&self) -> Result<PathBuf, TestbedError> {
        let files = self
            .clusters()
            .map(|one| (one.name(), one.kubeconfig_path()));
        let path = self.run.state().join("kubeconfig");
        let merged = merge_kubeconfigs(files).map_err(|error| error.to_string());
        let text = merged
            .and_then(|merged| serde_yaml::to_string(&merged).map_err(|error| error.to_string()));
        let text = text.map_err(|problem| TestbedError::Kubeconfig {
            cluster: "all".to_owned(),
            problem,
        })?;
        std::fs::write(&path, text).map_err(|source| TestbedError::File {
            path: path.clone(),
            source,
        })?;
        Ok(path)
    }

    /// The binaries in use.
    pub fn tools(&self) -> &Tools {
        &self.tools
    }

    /// Faults of a pod that runs in a cluster.
    ///
    /// # Errors
    /// When there is no such cluster, or no such pod on its node at this moment.
    pub fn pod(
        &self,
        cluster: &str,
        namespace: &str,
        name: &str,
    ) -> Result<PodFaults, TestbedError> {
        let member = self.member(cluster)?;
        let cell = member.node.pod(namespace, name);
        cell.map(|cell| PodFaults { cell })
            .ok_or_else(|| TestbedError::NoSuchPod {
                cluster: cluster.to_owned(),
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            })
    }

    /// Faults of a cluster's API server.
    ///
    /// # Errors
    /// When there is no such cluster.
    pub fn api_server(&self, cluster: &str) -> Result<ApiServerFaults<'_>, TestbedError> {
        let member = self.member(cluster)?;
        Ok(ApiServerFaults { member })
    }

    /// Cuts the link between two clusters: packets vanish both ways, also of connections that exist.
    /// Clients in this process reach both still: they sit in the hub.
    ///
    /// # Errors
    /// When there is no such cluster or the network refuses.
    pub async fn cut(&self, one: &str, other: &str) -> Result<(), TestbedError> {
        let (one, other) = (&self.member(one)?.network, &self.member(other)?.network);
        one.cut_to(other).await?;
        Ok(other.cut_to(one).await?)
    }

    /// Undoes one [`Testbed::cut`].
    ///
    /// # Errors
    /// When there is no such cluster or they are not cut apart.
    pub async fn heal(&self, one: &str, other: &str) -> Result<(), TestbedError> {
        let (one, other) = (&self.member(one)?.network, &self.member(other)?.network);
        one.heal_to(other).await?;
        Ok(other.heal_to(one).await?)
    }

    /// Where every process logs: `etcd.log`, `<cluster>/apiserver.log`, `<cluster>/audit.log`,
    /// `<cluster>/controller-manager.log`,
    /// `<cluster>/pods/<namespace>/<pod>/<container>.log`. It outlives the run.
    pub fn logs_dir(&self) -> PathBuf {
        self.run.logs()
    }

    /// What service accounts asked of a cluster's API server so far, oldest first.
    ///
    /// # Errors
    /// When there is no such cluster or its log cannot be read.
    pub fn calls(&self, cluster: &str) -> Result<Vec<ApiCall>, TestbedError> {
        let name = self.member(cluster)?.cluster.name();
        audit::read(&audit::log(&self.run.logs(), name))
    }

    /// The last lines of a log, named like its file without `.log`: `east/apiserver`.
    pub fn log_tail(&self, name: &str, lines: usize) -> String {
        tail(&self.run.logs().join(format!("{name}.log")), lines)
    }

    /// Ends everything, in at most some seconds: pods and control planes are killed, for nothing outlives them.
    pub async fn stop(self) {
        let Self { members, etcd, .. } = self;
        let stops = members.into_values().map(Member::stop);
        futures::future::join_all(stops).await;
        etcd.kill().await;
    }

    fn member(&self, name: &str) -> Result<&Member, TestbedError> {
        self.members
            .get(name)
            .ok_or_else(|| TestbedError::NoSuchCluster(name.to_owned()))
    }
}

// === impl Member ===

impl Member {
    /// Waits for what the controllers and the node must have done before a pod can run.
    async fn ready(&self) -> Result<(), TestbedError> {
        let client = self.cluster.client();
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
        let nodes: Api<NodeObject> = Api::all(client);
        let name = self.cluster.name();
        let look = async || {
            accounts
                .get("default")
                .await
                .map_err(|error| error.to_string())?;
            let object = nodes
                .get(self.node.name())
                .await
                .map_err(|error| error.to_string())?;
            if object
                .spec
                .as_ref()
                .is_some_and(|spec| spec.taints.is_some())
            {
                return Err("the node is still tainted".to_owned());
            }
            let conditions = object
                .status
                .and_then(|status| status.conditions)
                .unwrap_or_default();
            let ready = conditions
                .iter()
                .any(|condition| condition.type_ == "Ready" && condition.status == "True");
            ready
                .then_some(())
                .ok_or_else(|| "the node is not Ready".to_owned())
        };
        await_service(
            &format!("controllers and node of {name}"),
            &self.controller_manager,
            READY_LIMIT,
            look,
        )
        .await
    }

    async fn stop(self) {
        drop(self.node);
        self.controller_manager.kill().await;
        self.api_server.kill().await;
    }
}

/// Waits for `/readyz`, and fails early when the process has ended.
pub(crate) async fn await_api_server(
    cluster: &Cluster,
    service: &Service,
    limit: Duration,
) -> Result<(), TestbedError> {
    let client = cluster.client();
    let what = format!("API server of {}", cluster.name());
    await_service(&what, service, limit, async || {
        let request = http::Request::get("/readyz")
            .body(Vec::new())
            .map_err(|error| error.to_string())?;
        client
            .request_text(request)
            .await
            .map_err(|error| error.to_string())
            .map(|_| ())
    })
    .await
}

/// Looks until it is ready, and fails early when the process has ended.
pub(crate) async fn await_service(
    what: &str,
    service: &Service,
    limit: Duration,
    mut look: impl AsyncFnMut() -> Result<(), String>,
) -> Result<(), TestbedError> {
    let log: &Path = service.log();
    // a look tells that the process has ended by an inner error, which ends the wait
    let outcome = eventually(what, limit, async || match service.ended().await {
        Some(status) => Ok(Err(status)),
        None => match tokio::time::timeout(Duration::from_secs(5), look()).await {
            Ok(seen) => seen.map(Ok),
            Err(elapsed) => Err(elapsed.to_string()),
        },
    })
    .await;
    match outcome {
        Ok(Ok(())) => Ok(()),
        Ok(Err(status)) => Err(TestbedError::Ended {
            name: what.to_owned(),
            status,
            log: log.to_owned(),
            tail: tail(log, TAIL_LINES),
        }),
        Err(late) => Err(TestbedError::NotReady {
            what: late.what,
            limit: late.limit,
            last: late.last,
            log: log.to_owned(),
            tail: tail(log, TAIL_LINES),
        }),
    }
}
