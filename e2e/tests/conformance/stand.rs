//! Three clusters whose pool `llm/llama` is exported by east and south and imported by west, which has a gateway; and requests
//! to it.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use e2e::pair::NO_ANSWER;
use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt, api::ListParams};
use parking_lot::Mutex;
use testbed::{Cluster, Requests, eventually, isthmus};
use tokio::{
    process::Command,
    time::{Instant, MissedTickBehavior, interval, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{scene::Stage, subject::Controls};

const PAGE: &str = include_str!("../../../docs/tasks/failover.md");
/// The limit for several steps of several programs, one of which drains, on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(90);
/// The waits of the page's commands are shorter.
const COMMANDS: Duration = Duration::from_mins(2);
/// Number of clients, and of requests of each.
const CLIENTS: usize = 4;
const EVERY: Duration = Duration::from_millis(100);
/// Under an even split one cluster alone answers so many by a chance of 1 in 500 000.
const IN_A_ROW: usize = 20;

/// The clusters, and the requests that were sent to them.
pub(crate) struct Stand<'a> {
    pub(crate) controls: &'a Controls,
    pub(crate) east: Cluster,
    pub(crate) south: Cluster,
    pub(crate) west: Cluster,
    pub(crate) gateway: Requests,
    /// The clusters of model servers. Those of east may change, and are not among them.
    served_by: BTreeMap<String, &'static str>,
    asked: Mutex<Vec<Asked>>,
}

/// A request that has ended.
struct Asked {
    sent: Instant,
    took: Duration,
    /// The cluster that answered; the error is what failed.
    by: Result<&'static str, String>,
}

// === impl Stand ===

impl<'a> Stand<'a> {
    /// Exports the pool of both clusters by the commands of the documentation, and waits until both answer.
    pub(crate) async fn settle(stage: &'a Stage) -> Result<Self> {
        let controls = stage.subject.controls().context("no testbed")?;
        let cluster = |name: &str| controls.testbed.cluster(name).cloned();
        let (east, south, west) = (cluster("east")?, cluster("south")?, cluster("west")?);
        isthmus::add_namespace(&west, isthmus::POOL_NAMESPACE).await?;
        tokio::try_join!(
            isthmus::install_gateway(&west),
            isthmus::install_pool(&east),
            isthmus::install_pool(&south),
        )?;
        let url = isthmus::install_route(&west).await?;
        let names = model_servers(&south).await?.into_keys();
        let stand = Self {
            controls,
            east,
            south,
            west,
            gateway: Requests::new(url),
            served_by: names.map(|name| (name, "south")).collect(),
            asked: Mutex::default(),
        };
        let blocks = blocks();
        let export = blocks
            .first()
            .context("no commands in docs/tasks/failover.md")?;
        stand.commands(export).await?;
        stand.import_says("2/2 ready: east,south").await?;
        // before the first answer there may be none
        eventually("both clusters answer", SOON, async || {
            let mut seen = BTreeSet::new();
            for nth in 0..IN_A_ROW {
                seen.insert(stand.ask(&format!("is there anybody, {nth}")).await?);
            }
            if seen.len() == 2 {
                Ok(())
            } else {
                Err(format!("answered by {seen:?}"))
            }
        })
        .await?;
        Ok(stand)
    }

    /// Adds the same pool to west, which does not export it.
    pub(crate) async fn add_local_pool(&mut self) -> Result<()> {
        isthmus::install_pool(&self.west).await?;
        let names = model_servers(&self.west).await?.into_keys();
        self.served_by.extend(names.map(|name| (name, "west")));
        Ok(())
    }

    /// Sends requests while something happens, and fails where one was not answered.
    pub(crate) async fn under_load(&self, happens: impl AsyncFnOnce() -> Result<()>) -> Result<()> {
        self.asked.lock().clear();
        let done = CancellationToken::new();
        let clients = join_all((0..CLIENTS).map(|client| self.load(client, &done)));
        let events = async {
            let _done = done.clone().drop_guard();
            happens().await
        };
        let (_, outcome) = tokio::join!(clients, events);
        let failed = self.failures();
        let asked = self.asked.lock();
        ensure!(
            failed.is_empty(),
            "{} of {} requests failed: {}; {outcome:?}",
            failed.len(),
            asked.len(),
            failed.join("; ")
        );
        let longest = asked.iter().map(|one| one.took).max().unwrap_or_default();
        eprintln!("{} requests, the longest took {longest:.1?}", asked.len());
        outcome?;
        ensure!(longest < NO_ANSWER, "a request waited {longest:?}");
        Ok(())
    }

    /// The requests under load that failed.
    pub(crate) fn failures(&self) -> Vec<String> {
        let asked = self.asked.lock();
        let failed = asked.iter().filter_map(|one| {
            let text = one.by.as_ref().err()?;
            Some(format!("after {:.1?}: {text}", one.took))
        });
        failed.collect()
    }

    /// How many of the requests under load that began since then each cluster has answered.
    pub(crate) fn answers_since(&self, since: Instant) -> BTreeMap<&'static str, usize> {
        let asked = self.asked.lock();
        let mut answers = BTreeMap::new();
        for one in asked.iter().filter(|one| one.sent >= since) {
            *answers
                .entry(*one.by.as_ref().unwrap_or(&"nobody"))
                .or_insert(0) += 1;
        }
        answers
    }

    /// When the first request under load began that this cluster answered, of those that began then or later.
    pub(crate) fn first_answer(&self, cluster: &str, since: Instant) -> Option<Instant> {
        let asked = self.asked.lock();
        let answered = asked
            .iter()
            .filter(|one| one.by.as_ref().is_ok_and(|by| *by == cluster));
        answered
            .map(|one| one.sent)
            .filter(|sent| *sent >= since)
            .min()
    }

    async fn load(&self, client: usize, done: &CancellationToken) {
        let mut pace = interval(EVERY);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut nth = 0;
        while !done.is_cancelled() {
            pace.tick().await;
            let sent = Instant::now();
            // each prompt differs: a known one is sent to where it is cached
            let by = self.ask(&format!("client {client}, request {nth}")).await;
            let took = sent.elapsed();
            self.asked.lock().push(Asked { sent, took, by });
            nth += 1;
        }
    }

    /// Sends a request, and returns the cluster that answers.
    pub(crate) async fn ask(&self, text: &str) -> Result<&'static str, String> {
        let answer = self.gateway.chat(isthmus::POOL, text).await;
        let answer = answer.map_err(|error| error.to_string())?;
        if answer.status != 200 {
            return Err(format!("{}: {}", answer.status, answer.text()));
        }
        let pod = answer.pod().ok_or("answered by no model server")?;
        Ok(self.served_by.get(pod).copied().unwrap_or("east"))
    }

    /// Waits until of the requests that are sent from now on so many in a row are answered by these clusters, each of them.
    pub(crate) async fn answered_by(&self, wanted: &[&str]) -> Result<()> {
        let since = Instant::now();
        let what = format!("{IN_A_ROW} requests in a row are answered by {wanted:?}");
        eventually(&what, SOON, async || {
            let asked = self.asked.lock();
            let later = asked.iter().filter(|one| one.sent >= since);
            let mut counts = BTreeMap::new();
            for one in later.rev().take(IN_A_ROW) {
                *counts
                    .entry(one.by.clone().unwrap_or("nobody"))
                    .or_insert(0) += 1;
            }
            if counts.keys().eq(wanted) && counts.values().sum::<usize>() == IN_A_ROW {
                Ok(())
            } else {
                Err(format!("{counts:?}"))
            }
        })
        .await?;
        Ok(())
    }

    /// Waits until the documentation's command shows this for the import.
    pub(crate) async fn import_says(&self, wanted: &str) -> Result<()> {
        const LOOK: &str = "kubectl --context west -n llm get ipimp llama";
        ensure!(
            PAGE.contains(LOOK),
            "the page looks otherwise than by {LOOK}"
        );
        eventually(&format!("{LOOK} says {wanted}"), SOON, async || {
            let seen = self.commands(LOOK).await;
            let seen = seen.map_err(|error| format!("{error:#}"))?;
            if seen.contains(wanted) {
                Ok(())
            } else {
                Err(seen)
            }
        })
        .await?;
        Ok(())
    }

    /// Runs commands of the page in a shell that finds kubectl, its plugin, and the clusters by contexts of their names.
    pub(crate) async fn commands(&self, commands: &str) -> Result<String> {
        let testbed = &self.controls.testbed;
        let programs = std::env::var_os("ISTHMUS_BIN_DIR").map_or_else(
            || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/debug"),
            PathBuf::from,
        );
        let kubectl = testbed.tools().kubectl.parent().map(Path::to_owned);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let ours = kubectl.into_iter().chain([programs]);
        let path: OsString = std::env::join_paths(ours.chain(std::env::split_paths(&path)))?;
        // the current context is that of the first, where the controller is
        let mut kubeconfigs = vec![self.west.kubeconfig_path()];
        let others = testbed.clusters().filter(|one| one.name() != "west");
        kubeconfigs.extend(others.map(Cluster::kubeconfig_path));
        let mut bash = Command::new("bash");
        bash.args(["-eEuo", "pipefail", "-c", commands])
            .env("KUBECONFIG", std::env::join_paths(kubeconfigs)?)
            .env("PATH", path)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let output = timeout(COMMANDS, bash.output())
            .await
            .with_context(|| format!("{commands}: no end after {COMMANDS:?}"))??;
        let (out, err) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        ensure!(output.status.success(), "{commands}: {out}\n{err}");
        Ok(out.into_owned())
    }
}

/// Sets the number of replicas of a Deployment of the pool.
pub(crate) async fn scale(cluster: &Cluster, deployment: &str, replicas: u8) -> Result<()> {
    let (deployment, replicas) = (
        format!("deployment/{deployment}"),
        format!("--replicas={replicas}"),
    );
    let namespace = isthmus::POOL_NAMESPACE;
    let scale = ["scale", "-n", namespace, &deployment, &replicas];
    cluster.kubectl(&scale).await?;
    Ok(())
}

/// The addresses of the pool's model servers, by name.
pub(crate) async fn model_servers(cluster: &Cluster) -> Result<BTreeMap<String, String>> {
    let pods: Api<Pod> = Api::namespaced(cluster.client(), isthmus::POOL_NAMESPACE);
    let params = ListParams::default().labels("app=llama");
    let pods = pods.list(&params).await?;
    let named = pods.iter().filter_map(|pod| {
        let address = pod.status.as_ref()?.pod_ip.clone()?;
        Some((pod.name_any(), address))
    });
    Ok(named.collect())
}

/// The blocks of shell commands of the documentation, in order.
pub(crate) fn blocks() -> Vec<String> {
    let blocks = PAGE.split("```sh\n").skip(1);
    let blocks = blocks.filter_map(|block| block.split("```").next());
    blocks.map(ToOwned::to_owned).collect()
}
