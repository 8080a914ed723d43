//! The pair of clusters, its known state, and ways to look at it.

use std::{
    collections::BTreeMap,
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
    api::core::v1::{Pod, Service},
};
use kube::{Api, Resource, api::ListParams};
use libtest_mimic::{Arguments, Trial};
use parking_lot::RwLock;
use serde::de::DeserializeOwned;
use testbed::{Cluster, Inside, Requests, Testbed, eventually, isthmus};

use crate::{Test, failed};

/// An answer that takes longer is a hang to a user, whatever its status.
pub(crate) const NO_ANSWER: Duration = Duration::from_secs(10);
/// Label of the sample pool's model servers.
const MODEL_SERVERS: &str = "app=llama";
/// Label of the sample pool's endpoint pickers.
pub(crate) const PICKERS: &str = "app=llama-epp";
/// Label of the controller's pods.
pub(crate) const CONTROLLER_PODS: &str = "app.kubernetes.io/name=isthmus-mci-controller";
/// Several steps of several programs, after a fault, on a busy machine.
const SETTLE_LIMIT: Duration = Duration::from_secs(90);

/// Two clusters with Isthmus: west imports what east exports.
pub(crate) struct Environment {
    pub(crate) east: Cluster,
    pub(crate) west: Cluster,
    /// Through west's gateway.
    pub(crate) gateway: Requests,
    /// IP address and port of west's gateway.
    pub(crate) gateway_address: String,
    pub(crate) testbed: Testbed,
    /// Kubeconfig of each member, by name, as the controller has them.
    members: RwLock<BTreeMap<String, String>>,
    cut: AtomicBool,
}

/// Starts the clusters, runs the tests, ends the clusters.
pub(crate) fn main(arguments: Arguments, tests: &'static [Test]) -> ExitCode {
    let outcome = testbed::enter()
        .context("entering namespaces")
        .and_then(|inside| run(&inside, &arguments, tests));
    outcome.unwrap_or_else(|error| {
        eprintln!("the clusters did not start: {error:#}");
        ExitCode::FAILURE
    })
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
        isthmus::install_gateway(&west).await?;
        isthmus::install_controller(&west, &members).await?;
        isthmus::install_pool(&east).await?;
        isthmus::install_pool(&west).await?;
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
        })
    }

    /// Puts the pair into its known state: nothing is broken, the controller runs and has its members, east's pool is
    /// exported, the route leads to the import alone, and east answers.
    pub(crate) async fn settle(&self) -> Result<()> {
        self.heal().await?;
        self.resume_api(&self.east).await?;
        isthmus::set_members(&self.west, &self.members()).await?;
        self.scale_controller(1).await?;
        for cluster in [&self.east, &self.west] {
            isthmus::install_pool(cluster).await?;
        }
        isthmus::install_route(&self.west).await?;
        isthmus::withdraw(&self.west).await?;
        isthmus::annotate(&self.east, "inference.networking.x-k8s.io/export-mode-").await?;
        isthmus::export(&self.east).await?;
        self.serving().await
    }

    pub(crate) fn members(&self) -> BTreeMap<String, String> {
        self.members.read().clone()
    }

    /// From now on these are the members' kubeconfigs: their tokens are the only ones that are good.
    pub(crate) fn remember_members(&self, members: BTreeMap<String, String>) {
        *self.members.write() = members;
    }

    /// Waits until the import is ready, and east answers so many requests in a row that no other route explains it.
    pub(crate) async fn serving(&self) -> Result<()> {
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
    pub(crate) async fn answered(&self, requests: usize) -> Result<()> {
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

    /// Stops the controller (0) or runs it (1).
    pub(crate) async fn scale_controller(&self, replicas: u8) -> Result<()> {
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
    pub(crate) async fn ready_pods(
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
    pub(crate) async fn controller_is_ready(&self) -> Result<bool, String> {
        let ready = self.ready_pods(&self.west, isthmus::NAMESPACE, CONTROLLER_PODS);
        Ok(!ready.await?.is_empty())
    }

    /// How often the first container of a pod was restarted.
    pub(crate) async fn restarts(
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
    pub(crate) async fn no_import(&self, limit: Duration) -> Result<()> {
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
    pub(crate) async fn pods(&self, cluster: &Cluster) -> Result<BTreeMap<String, String>> {
        let pods = self
            .pods_of(cluster, isthmus::POOL_NAMESPACE, MODEL_SERVERS)
            .await;
        let pods = pods.map_err(anyhow::Error::msg)?;
        ensure!(pods.len() == 3, "{} has {pods:?}", cluster.name());
        Ok(pods)
    }

    /// Pods with this label, name to IP address.
    pub(crate) async fn pods_of(
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
    pub(crate) async fn epp_address(&self, cluster: &Cluster) -> Result<String> {
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

    pub(crate) async fn pool_generation(&self, cluster: &Cluster) -> Result<Option<i64>> {
        let pool = pool(cluster).await.map_err(anyhow::Error::msg)?;
        Ok(pool.metadata.generation)
    }

    pub(crate) async fn epp_metrics(&self, cluster: &Cluster) -> Result<String> {
        let address = self.epp_address(cluster).await?;
        Ok(Requests::new(format!("http://{address}:9090"))
            .get("/metrics")
            .await?
            .text())
    }

    pub(crate) async fn controller_metrics(&self) -> Result<String> {
        self.controller_page("/metrics").await
    }

    /// A page of the controller's admin port.
    pub(crate) async fn controller_page(&self, path: &str) -> Result<String> {
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

    /// The condition of the sample route under its Gateway.
    pub(crate) async fn route_condition(&self, type_: &str) -> Result<Option<Condition>, String> {
        let route: Option<HttpRoute> =
            object(&self.west, isthmus::POOL_NAMESPACE, isthmus::POOL).await?;
        let parents = route
            .and_then(|route| route.status)
            .map(|status| status.parents)
            .unwrap_or_default();
        let conditions = parents.into_iter().next().map(|parent| parent.conditions);
        Ok(conditions.and_then(|conditions| conditions::find(&conditions, type_).cloned()))
    }

    pub(crate) fn kill_pod(&self, cluster: &Cluster, namespace: &str, name: &str) -> Result<()> {
        self.testbed.pod(cluster.name(), namespace, name)?.kill();
        Ok(())
    }

    pub(crate) async fn pause_api(&self, cluster: &Cluster) -> Result<()> {
        self.testbed.api_server(cluster.name())?.pause().await;
        Ok(())
    }

    pub(crate) async fn resume_api(&self, cluster: &Cluster) -> Result<()> {
        self.testbed.api_server(cluster.name())?.resume().await;
        Ok(())
    }

    /// Cuts the link between east and west, until [`heal`](Self::heal).
    pub(crate) async fn cut(&self) -> Result<()> {
        self.cut.store(true, Ordering::Relaxed);
        Ok(self.testbed.cut("east", "west").await?)
    }

    pub(crate) async fn heal(&self) -> Result<()> {
        if self.cut.swap(false, Ordering::Relaxed) {
            self.testbed.heal("east", "west").await?;
        }
        Ok(())
    }
}

/// The import of the sample pool.
pub(crate) async fn import(cluster: &Cluster) -> Result<Option<InferencePoolImport>, String> {
    object(cluster, isthmus::POOL_NAMESPACE, isthmus::POOL).await
}

/// A condition that the controller wrote on the sample pool.
pub(crate) async fn pool_condition(
    cluster: &Cluster,
    type_: &str,
) -> Result<Option<Condition>, String> {
    let pool = pool(cluster).await?;
    Ok(of_controller(&pool).and_then(|conditions| conditions::find(conditions, type_).cloned()))
}

/// The pool's condition `Exported`.
pub(crate) fn exported(pool: &InferencePool) -> Option<Condition> {
    conditions::find(of_controller(pool)?, conditions::EXPORTED).cloned()
}

/// Whether the pod says it is ready.
pub(crate) fn is_ready(pod: &Pod) -> bool {
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
pub(crate) fn sum_metric(text: &str, name: &str) -> f64 {
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
