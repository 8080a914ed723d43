//! The pair of clusters, its known state, and ways to look at it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use crd::{
    Condition, InferencePoolImport, conditions, http_route::HttpRoute,
    inference_pool::InferencePool,
};
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        apps::v1::Deployment,
        core::v1::{Pod, Service},
    },
};
use kube::{
    Api, Resource,
    api::{ListParams, Patch, PatchParams},
};
use libtest_mimic::{Arguments, Failed, Trial};
use parking_lot::{Mutex, RwLock};
use serde::de::DeserializeOwned;
use serde_json::json;
use testbed::{Cluster, Inside, Requests, Testbed, eventually, isthmus};

use crate::Test;

/// An answer that takes longer is a hang to a user, whatever its status.
pub const NO_ANSWER: Duration = Duration::from_secs(10);
/// Label of the sample pool's model servers.
const MODEL_SERVERS: &str = "app=llama";
/// Label of the sample pool's endpoint pickers.
pub const PICKERS: &str = "app=llama-epp";
/// Label of the controller's pods.
pub const CONTROLLER_PODS: &str = "app.kubernetes.io/name=isthmus-mci-controller";
/// The controller, as its members' API servers know it.
pub const CONTROLLER_USER: &str = "system:serviceaccount:isthmus-system:isthmus-mci-controller";
/// Several steps of several programs, after a fault, on a busy machine.
const SETTLE_LIMIT: Duration = Duration::from_secs(90);

/// Two clusters with Isthmus: west imports what east exports.
pub struct Environment {
    /// Exports the sample pool.
    pub east: Cluster,
    /// Imports it; the controller and the gateway run there.
    pub west: Cluster,
    /// Through west's gateway.
    pub gateway: Requests,
    /// IP address and port of west's gateway.
    pub gateway_address: String,
    /// What both run on: for faults, logs and calls.
    pub testbed: Testbed,
    /// Kubeconfig of each member, by name, as the controller has them.
    members: RwLock<BTreeMap<String, String>>,
    cut: AtomicBool,
    way: Mutex<Way>,
}

/// How the controller runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By its manifest.
    Manifest,
    /// Where neither is the subject: without the isolation guard, which has a removal wait 10 s, and with a start that waits
    /// 5 s for a member that does not answer, instead of 30 s.
    Quick,
}

/// Variables of the controller in [`Way::Quick`].
const QUICK: [(&str, &str); 2] = [("ISOLATION_GUARD", "false"), ("INITIAL_SYNC_TIMEOUT", "5s")];

/// Starts the clusters, runs the tests, ends the clusters.
pub(crate) fn main(arguments: &Arguments, tests: &'static [Test]) -> ExitCode {
    let outcome = testbed::enter()
        .context("entering namespaces")
        .and_then(|inside| run(&inside, arguments, tests));
    outcome.unwrap_or_else(|error| {
        eprintln!("the clusters did not start: {error:#}");
        ExitCode::FAILURE
    })
}

/// What a runner shows of a failure.
fn failed(error: &anyhow::Error, logs: &str) -> Failed {
    format!("{error:#}\nlogs: {logs}").into()
}

fn run(inside: &Inside, arguments: &Arguments, tests: &'static [Test]) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let environment = Arc::new(runtime.block_on(Environment::start(inside))?);
    let logs = environment.testbed.logs_dir().display().to_string();
    let handle = runtime.handle();
    let trials = tests.iter().map(|test| {
        let (environment, handle, logs) = (environment.clone(), handle.clone(), logs.clone());
        Trial::test(test.name, move || {
            handle
                .block_on((test.run)(&environment))
                .map_err(|error| failed(&error, &logs))
        })
    });
    let conclusion = libtest_mimic::run(arguments, trials.collect());
    let environment = Arc::into_inner(environment).context("a test kept the environment")?;
    runtime.block_on(environment.testbed.stop());
    Ok(conclusion.exit_code())
}

// === impl Environment ===

impl Environment {
    async fn start(inside: &Inside) -> Result<Self> {
        let builder = isthmus::with_programs(Testbed::builder(inside))?;
        let testbed = builder
            .cluster("east")
            .cluster("west")
            .start(|_| {})
            .await?;
        let logs = testbed.logs_dir();
        let installed = Self::install(testbed).await;
        installed.with_context(|| format!("installing Isthmus; logs: {}", logs.display()))
    }

    async fn install(testbed: Testbed) -> Result<Self> {
        let (east, west) = (
            testbed.cluster("east")?.clone(),
            testbed.cluster("west")?.clone(),
        );
        let members = BTreeMap::from([
            ("east".to_owned(), isthmus::join(&east).await?),
            ("west".to_owned(), isthmus::join(&west).await?),
        ]);
        tokio::try_join!(
            isthmus::install_gateway(&west),
            isthmus::install_controller(&west, &members),
            isthmus::install_pool(&east),
            isthmus::install_pool(&west),
        )?;
        let url = isthmus::install_route(&west).await?;
        let gateway_address = format!("{}:80", url.trim_start_matches("http://"));
        Ok(Self {
            east,
            west,
            gateway: Requests::new(url),
            gateway_address,
            members: RwLock::new(members),
            testbed,
            cut: AtomicBool::new(false),
            way: Mutex::new(Way::Manifest),
        })
    }

    /// Puts the pair into its known state: nothing is broken, the controller runs and has its members, east's pool is
    /// exported, the route leads to the import alone, and east answers.
    ///
    /// # Errors
    /// When it does not come to that in time, with what was seen last.
    pub async fn settle(&self) -> Result<()> {
        self.settle_with(Way::Manifest).await
    }

    /// [`settle`](Self::settle), with the controller running this way.
    ///
    /// # Errors
    /// When it does not come to that in time, with what was seen last.
    pub async fn settle_with(&self, way: Way) -> Result<()> {
        self.heal().await?;
        self.resume_api(&self.east).await?;
        isthmus::set_members(&self.west, &self.members()).await?;
        self.run_controller(way).await?;
        let settling = async |cluster| isthmus::install_pool(cluster).await;
        tokio::try_join!(settling(&self.east), settling(&self.west))?;
        isthmus::install_route(&self.west).await?;
        isthmus::withdraw(&self.west).await?;
        isthmus::annotate(&self.east, "inference.networking.x-k8s.io/export-mode-").await?;
        isthmus::export(&self.east).await?;
        self.serving().await
    }

    /// Kubeconfig of each member, by name, as the controller has them.
    #[must_use]
    pub fn members(&self) -> BTreeMap<String, String> {
        self.members.read().clone()
    }

    /// From now on these are the members' kubeconfigs: their tokens are the only ones that are good.
    pub fn remember_members(&self, members: BTreeMap<String, String>) {
        *self.members.write() = members;
    }

    /// Waits until the import is ready, and east answers so many requests in a row that no other route explains it.
    ///
    /// # Errors
    /// When it does not come to that in time, with what was seen last.
    pub async fn serving(&self) -> Result<()> {
        /// Under an even split a run of 12 is a chance of 1 in 4096 a look.
        const IN_A_ROW: usize = 12;
        eventually(
            "the import is ready and east answers",
            SETTLE_LIMIT,
            async || {
                let import = import(&self.west).await?.ok_or("no import")?;
                if !conditions::is_true(import.conditions(), conditions::READY) {
                    return Err(format!("{:?}", import.conditions()));
                }
                let east = self
                    .pods(&self.east)
                    .await
                    .map_err(|error| format!("{error:#}"))?;
                for _ in 0..IN_A_ROW {
                    let answer = self.gateway.chat("llama", "hello").await;
                    let answer = answer.map_err(|error| error.to_string())?;
                    if answer.status != 200 {
                        return Err(format!("{}: {}", answer.status, answer.text()));
                    }
                    if !answer.pod().is_some_and(|pod| east.contains_key(pod)) {
                        return Err(format!("answered by {:?}, not by east", answer.pod()));
                    }
                }
                Ok(())
            },
        )
        .await?;
        Ok(())
    }

    /// Sends so many requests, each of which must be answered 200.
    ///
    /// # Errors
    /// With the first that was not.
    pub async fn answered(&self, requests: usize) -> Result<()> {
        for number in 0..requests {
            let answer = self.gateway.chat("llama", "hello").await?;
            ensure!(
                answer.status == 200,
                "request {number}: {}: {}",
                answer.status,
                answer.text()
            );
        }
        Ok(())
    }

    /// Has the controller run this way, one of it; a change is a new pod, and takes seconds.
    async fn run_controller(&self, way: Way) -> Result<()> {
        if *self.way.lock() != way {
            let variables = QUICK.map(|(name, value)| match way {
                Way::Manifest => json!({"name": name, "$patch": "delete"}),
                Way::Quick => json!({"name": name, "value": value}),
            });
            let patch = json!({"spec": {"template": {"spec": {"containers": [{
                "name": "mci-controller", "env": variables,
            }]}}}});
            let deployments: Api<Deployment> =
                Api::namespaced(self.west.client(), isthmus::NAMESPACE);
            let params = PatchParams::default();
            let patch = Patch::Strategic(&patch);
            deployments
                .patch(isthmus::CONTROLLER, &params, &patch)
                .await?;
            *self.way.lock() = way;
        }
        self.scale_controller(1).await
    }

    /// Stops the controller (0) or runs it (1).
    ///
    /// # Errors
    /// When it does not come to that in time, with what was seen last.
    pub async fn scale_controller(&self, replicas: u8) -> Result<()> {
        let replicas_flag = format!("--replicas={replicas}");
        let deployment = format!("deployment/{}", isthmus::CONTROLLER);
        let scale = [
            "scale",
            "-n",
            isthmus::NAMESPACE,
            &deployment,
            &replicas_flag,
        ];
        self.west.kubectl(&scale).await?;
        isthmus::available(&self.west, isthmus::NAMESPACE, isthmus::CONTROLLER).await?;
        Ok(())
    }

    /// Names of the ready pods with this label.
    ///
    /// # Errors
    /// When an API server refuses or does not answer.
    pub async fn ready_pods(
        &self,
        cluster: &Cluster,
        namespace: &str,
        label: &str,
    ) -> Result<Vec<String>, String> {
        let api: Api<Pod> = Api::namespaced(cluster.client(), namespace);
        let pods = api.list(&ListParams::default().labels(label)).await;
        let pods = pods.map_err(|error| error.to_string())?;
        let ready = pods.items.into_iter().filter(is_ready);
        Ok(ready.filter_map(|pod| pod.metadata.name).collect())
    }

    /// Whether the controller's pod is ready: it has begun to write.
    ///
    /// # Errors
    /// When an API server refuses or does not answer.
    pub async fn controller_is_ready(&self) -> Result<bool, String> {
        let ready = self.ready_pods(&self.west, isthmus::NAMESPACE, CONTROLLER_PODS);
        Ok(!ready.await?.is_empty())
    }

    /// How often the first container of a pod was restarted.
    ///
    /// # Errors
    /// When it has none.
    pub async fn restarts(
        &self,
        cluster: &Cluster,
        namespace: &str,
        name: &str,
    ) -> Result<i32, String> {
        let pod: Option<Pod> = object(cluster, namespace, name).await?;
        let containers = pod
            .and_then(|pod| pod.status)
            .and_then(|status| status.container_statuses);
        let first = containers.and_then(|containers| containers.into_iter().next());
        first
            .map(|container| container.restart_count)
            .ok_or_else(|| format!("no container of {name}"))
    }

    /// Waits until west has no import of the sample pool.
    ///
    /// # Errors
    /// When it does not come to that in time, with what was seen last.
    pub async fn no_import(&self, limit: Duration) -> Result<()> {
        eventually("no import in west", limit, async || {
            match import(&self.west).await? {
                None => Ok(()),
                Some(import) => Err(format!("{:?}", import.status)),
            }
        })
        .await?;
        Ok(())
    }

    /// The sample pool's model servers, name to IP address.
    ///
    /// # Errors
    /// When they are not three.
    pub async fn pods(&self, cluster: &Cluster) -> Result<BTreeMap<String, String>> {
        let pods = self
            .pods_of(cluster, isthmus::POOL_NAMESPACE, MODEL_SERVERS)
            .await;
        let pods = pods.map_err(anyhow::Error::msg)?;
        ensure!(pods.len() == 3, "{} has {pods:?}", cluster.name());
        Ok(pods)
    }

    /// Pods with this label, name to IP address.
    ///
    /// # Errors
    /// When an API server refuses or does not answer.
    pub async fn pods_of(
        &self,
        cluster: &Cluster,
        namespace: &str,
        label: &str,
    ) -> Result<BTreeMap<String, String>, String> {
        let api: Api<Pod> = Api::namespaced(cluster.client(), namespace);
        let params = ListParams::default().labels(label);
        let pods = api.list(&params).await.map_err(|error| error.to_string())?;
        let named = pods.items.into_iter().map(|pod| {
            let address = pod
                .status
                .and_then(|status| status.pod_ip)
                .unwrap_or_default();
            (pod.metadata.name.unwrap_or_default(), address)
        });
        Ok(named.collect())
    }

    /// The address of the sample pool's endpoint picker.
    ///
    /// # Errors
    /// When it has none.
    pub async fn epp_address(&self, cluster: &Cluster) -> Result<String> {
        let services: Api<Service> = Api::namespaced(cluster.client(), isthmus::POOL_NAMESPACE);
        let status = services.get("llama-epp").await?.status;
        let balancer = status.and_then(|status| status.load_balancer);
        let ingress = balancer
            .and_then(|balancer| balancer.ingress)
            .unwrap_or_default();
        ingress
            .into_iter()
            .find_map(|ingress| ingress.ip)
            .context("no address of the endpoint picker")
    }

    /// Generation of the sample pool.
    ///
    /// # Errors
    /// When there is no pool.
    pub async fn pool_generation(&self, cluster: &Cluster) -> Result<Option<i64>> {
        let pool = pool(cluster).await.map_err(anyhow::Error::msg)?;
        Ok(pool.metadata.generation)
    }

    /// Metrics of the sample pool's endpoint picker.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn epp_metrics(&self, cluster: &Cluster) -> Result<String> {
        let address = self.epp_address(cluster).await?;
        Ok(Requests::new(format!("http://{address}:9090"))
            .get("/metrics")
            .await?
            .text())
    }

    /// Metrics of the controller.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn controller_metrics(&self) -> Result<String> {
        self.controller_page("/metrics").await
    }

    /// A page of the controller's admin port.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn controller_page(&self, path: &str) -> Result<String> {
        let pods = self
            .pods_of(&self.west, isthmus::NAMESPACE, CONTROLLER_PODS)
            .await;
        let pods = pods.map_err(anyhow::Error::msg)?;
        let address = pods.values().next().context("no controller")?;
        Ok(Requests::new(format!("http://{address}:8080"))
            .get(path)
            .await?
            .text())
    }

    /// Sees that no member refused the controller anything so far.
    ///
    /// # Errors
    /// With what was refused.
    pub fn denied_nothing(&self) -> Result<()> {
        for cluster in ["east", "west"] {
            let calls = self.testbed.calls(cluster)?.into_iter();
            let denied: BTreeSet<_> = calls
                .filter(|call| call.user == CONTROLLER_USER && call.denied)
                .map(|call| (call.verb, call.group, call.resource, call.name))
                .collect();
            ensure!(denied.is_empty(), "denied in {cluster}: {denied:?}");
        }
        Ok(())
    }

    /// The condition of the sample route under its Gateway.
    ///
    /// # Errors
    /// When an API server refuses or does not answer.
    pub async fn route_condition(&self, type_: &str) -> Result<Option<Condition>, String> {
        let route: Option<HttpRoute> =
            object(&self.west, isthmus::POOL_NAMESPACE, isthmus::POOL).await?;
        let parents = route
            .and_then(|route| route.status)
            .map(|status| status.parents)
            .unwrap_or_default();
        let conditions = parents.into_iter().next().map(|parent| parent.conditions);
        Ok(conditions.and_then(|conditions| conditions::find(&conditions, type_).cloned()))
    }

    /// SIGKILL to the containers of a pod; its node restarts them.
    ///
    /// # Errors
    /// When there is no such pod.
    pub fn kill_pod(&self, cluster: &Cluster, namespace: &str, name: &str) -> Result<()> {
        self.testbed.pod(cluster.name(), namespace, name)?.kill();
        Ok(())
    }

    /// SIGSTOP to a cluster's API server, until [`resume_api`](Self::resume_api).
    ///
    /// # Errors
    /// When there is no such cluster.
    pub async fn pause_api(&self, cluster: &Cluster) -> Result<()> {
        self.testbed.api_server(cluster.name())?.pause().await;
        Ok(())
    }

    /// SIGCONT.
    ///
    /// # Errors
    /// When there is no such cluster.
    pub async fn resume_api(&self, cluster: &Cluster) -> Result<()> {
        self.testbed.api_server(cluster.name())?.resume().await;
        Ok(())
    }

    /// Cuts the link between east and west, until [`heal`](Self::heal).
    ///
    /// # Errors
    /// When the network refuses.
    pub async fn cut(&self) -> Result<()> {
        self.cut.store(true, Ordering::Relaxed);
        Ok(self.testbed.cut("east", "west").await?)
    }

    /// Undoes [`cut`](Self::cut), if it was cut.
    ///
    /// # Errors
    /// When the network refuses.
    pub async fn heal(&self) -> Result<()> {
        if self.cut.swap(false, Ordering::Relaxed) {
            self.testbed.heal("east", "west").await?;
        }
        Ok(())
    }
}

/// The import of the sample pool.
///
/// # Errors
/// When an API server refuses or does not answer.
pub async fn import(cluster: &Cluster) -> Result<Option<InferencePoolImport>, String> {
    object(cluster, isthmus::POOL_NAMESPACE, isthmus::POOL).await
}

/// A condition that the controller wrote on the sample pool.
///
/// # Errors
/// When an API server refuses or does not answer.
pub async fn pool_condition(cluster: &Cluster, type_: &str) -> Result<Option<Condition>, String> {
    let pool = pool(cluster).await?;
    Ok(of_controller(&pool).and_then(|conditions| conditions::find(conditions, type_).cloned()))
}

/// The pool's condition `Exported`.
#[must_use]
pub fn exported(pool: &InferencePool) -> Option<Condition> {
    conditions::find(of_controller(pool)?, conditions::EXPORTED).cloned()
}

/// Whether the pod says it is ready, and is not being deleted.
#[must_use]
pub fn is_ready(pod: &Pod) -> bool {
    if pod.metadata.deletion_timestamp.is_some() {
        return false;
    }
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|conditions| {
        conditions
            .iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True")
    })
}

/// Sum of all series of a metric in Prometheus text.
#[must_use]
pub fn sum_metric(text: &str, name: &str) -> f64 {
    text.lines()
        .filter(|line| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with('{') || rest.starts_with(' '))
        })
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

async fn pool(cluster: &Cluster) -> Result<InferencePool, String> {
    let pool = object(cluster, isthmus::POOL_NAMESPACE, isthmus::POOL).await?;
    pool.ok_or_else(|| "no pool".to_owned())
}

fn of_controller(pool: &InferencePool) -> Option<&Vec<Condition>> {
    let parents = pool.status.as_ref()?.parents.as_ref()?;
    let ours = |name: &Option<String>| name.as_deref() == Some(crd::annotations::MCI_CONTROLLER);
    parents
        .iter()
        .find(|parent| ours(&parent.controller_name))?
        .conditions
        .as_ref()
}

async fn object<K>(cluster: &Cluster, namespace: &str, name: &str) -> Result<Option<K>, String>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(cluster.client(), namespace);
    api.get_opt(name).await.map_err(|error| error.to_string())
}
