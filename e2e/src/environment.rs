//! A pair of clusters of the testbed: its known state, its faults, and what only its programs tell.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Deref,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use libtest_mimic::Arguments;
use parking_lot::{Mutex, RwLock};
use serde_json::json;
use testbed::{Cluster, Inside, Requests, Testbed, isthmus};

use crate::{
    Test,
    pair::{Pair, object},
};

/// Label of the sample pool's model servers.
pub const MODEL_SERVERS: &str = "app=llama";
/// Label of the sample pool's endpoint pickers.
pub const PICKERS: &str = "app=llama-epp";
/// Label of the controller's pods.
pub const CONTROLLER_PODS: &str = "app.kubernetes.io/name=isthmus-mci-controller";
/// The controller, as its members' API servers know it.
pub const CONTROLLER_USER: &str = "system:serviceaccount:isthmus-system:isthmus-mci-controller";

/// A pair of the testbed; the controller runs in west. What any pair has is the [`Pair`]'s.
pub struct Environment {
    pair: Pair,
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
    /// Like [`Way::Quick`], with a `--stale-after` that is shorter than a test, so that a removal after it is seen.
    Impatient,
}

/// Variables of the controller that a [`Way`] may set: name, and value in [`Way::Quick`] and in [`Way::Impatient`].
const VARIABLES: [(&str, Option<&str>, Option<&str>); 3] = [
    ("ISOLATION_GUARD", Some("false"), Some("false")),
    ("INITIAL_SYNC_TIMEOUT", Some("5s"), Some("5s")),
    ("STALE_AFTER", None, Some("8s")),
];
/// The `--stale-after` of [`Way::Impatient`], and some time for the controller.
pub const PAST_STALE: Duration = Duration::from_secs(11);

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

fn run(inside: &Inside, arguments: &Arguments, tests: &'static [Test]) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let environment = Arc::new(runtime.block_on(Environment::start(inside))?);
    let hint = format!("\nlogs: {}", environment.testbed.logs_dir().display());
    let conclusion = crate::run(arguments, tests, &environment, runtime.handle(), &hint);
    let environment = Arc::into_inner(environment).context("a test kept the environment")?;
    runtime.block_on(environment.testbed.stop());
    Ok(conclusion.exit_code())
}

impl Deref for Environment {
    type Target = Pair;

    fn deref(&self) -> &Pair {
        &self.pair
    }
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
        Ok(Self {
            pair: Pair::new(east, west, &url),
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
        self.pair.settle().await
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

    /// Has the controller run this way, one of it; a change is a new pod, and takes seconds.
    async fn run_controller(&self, way: Way) -> Result<()> {
        if *self.way.lock() != way {
            let variables = VARIABLES.map(|(name, quick, impatient)| {
                let value = match way {
                    Way::Manifest => None,
                    Way::Quick => quick,
                    Way::Impatient => impatient,
                };
                match value {
                    None => json!({"name": name, "$patch": "delete"}),
                    Some(value) => json!({"name": name, "value": value}),
                }
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

    /// Checks that the controller called each member so far, and that no member denied a call.
    ///
    /// # Errors
    /// The calls that were denied, or the member that received no call of the controller.
    pub fn denied_nothing(&self) -> Result<()> {
        for cluster in ["east", "west"] {
            let mut calls = self.testbed.calls(cluster)?;
            calls.retain(|call| call.user == CONTROLLER_USER);
            ensure!(
                !calls.is_empty(),
                "the audit log of {cluster} has no call of {CONTROLLER_USER}"
            );
            let denied: BTreeSet<_> = calls
                .into_iter()
                .filter(|call| call.denied)
                .map(|call| (call.verb, call.group, call.resource, call.name))
                .collect();
            ensure!(denied.is_empty(), "denied in {cluster}: {denied:?}");
        }
        Ok(())
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
