//! Checks what `docs/tasks/failover.md` promises, by its own commands: east and south export a pool, west imports it
//! and has a gateway. A part of east is lost, and requests are answered by south.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use e2e::{pair::NO_ANSWER, watching::remains_until};
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
const SOON: Duration = Duration::from_secs(90);
/// The waits of the page's commands are shorter.
const COMMANDS: Duration = Duration::from_mins(2);
/// Number of clients, and of requests of each.
const CLIENTS: usize = 4;
const EVERY: Duration = Duration::from_millis(100);
/// The API server of east stands still for so long: watches, Leases and probes there end or fail meanwhile.
const STANDS_STILL: Duration = Duration::from_secs(30);
/// Under an even split one cluster alone answers so many by a chance of 1 in 500 000.
const IN_A_ROW: usize = 20;

/// The clusters, and the requests that were sent to them.
struct Stand<'a> {
    controls: &'a Controls,
    east: Cluster,
    west: Cluster,
    gateway: Requests,
    /// The model servers of south; every other answer is from east.
    south: BTreeSet<String>,
    asked: Mutex<Vec<Asked>>,
}

/// A request that has ended.
struct Asked {
    sent: Instant,
    took: Duration,
    /// The cluster that answered; the error is what failed.
    by: Result<&'static str, String>,
}

/// The commands of the documentation remove the picker and bring it back.
pub(crate) async fn an_endpoint_picker_that_is_gone_costs_no_request(stage: &Stage) -> Result<()> {
    let stand = Stand::settle(stage).await?;
    let [_, lose, ..] = &*blocks() else {
        anyhow::bail!("docs/tasks/failover.md has no block of commands that lose a picker");
    };
    let restore = lose.replace("--replicas=0", "--replicas=2");
    ensure!(restore != *lose, "no --replicas=0 in {lose}");
    let outcome = stand
        .under_load(async || {
            stand.commands(lose).await?;
            stand.answered_by(&["south"]).await?;
            stand.import_says("1/2 ready: south").await?;
            stand.commands(&restore).await?;
            stand.answered_by(&["east", "south"]).await?;
            stand.import_says("2/2 ready: east,south").await
        })
        .await;
    stand.commands(&restore).await?;
    outcome
}

pub(crate) async fn model_servers_that_are_gone_cost_no_request(stage: &Stage) -> Result<()> {
    let stand = Stand::settle(stage).await?;
    let scale = async |replicas: &str| {
        let deployment = format!("deployment/{}", isthmus::MODEL_SERVERS);
        let scale = [
            "scale",
            "-n",
            isthmus::POOL_NAMESPACE,
            &deployment,
            replicas,
        ];
        stand.east.kubectl(&scale).await
    };
    let outcome = stand
        .under_load(async || {
            scale("--replicas=0").await?;
            stand.answered_by(&["south"]).await?;
            scale("--replicas=3").await?;
            stand.answered_by(&["east", "south"]).await
        })
        .await;
    scale("--replicas=3").await?;
    outcome
}

/// The programs in a cluster continue without its API server.
pub(crate) async fn an_api_server_that_stands_still_costs_no_request(stage: &Stage) -> Result<()> {
    let stand = Stand::settle(stage).await?;
    let api_server = stand.controls.testbed.api_server(stand.east.name())?;
    let outcome = stand
        .under_load(async || {
            api_server.pause().await;
            let outcome = stand.without_api_server().await;
            api_server.resume().await;
            outcome?;
            stand.answered_by(&["east", "south"]).await
        })
        .await;
    api_server.resume().await;
    outcome
}

/// Only requests sent from then on count: one that is in transit when the link is cut may be lost.
pub(crate) async fn a_cluster_that_cannot_be_reached_costs_no_request(stage: &Stage) -> Result<()> {
    let stand = Stand::settle(stage).await?;
    let (testbed, east, west) = (
        &stand.controls.testbed,
        stand.east.name(),
        stand.west.name(),
    );
    testbed.cut(east, west).await?;
    let outcome = stand
        .under_load(async || stand.answered_by(&["south"]).await)
        .await;
    testbed.heal(east, west).await?;
    outcome?;
    stand
        .under_load(async || stand.answered_by(&["east", "south"]).await)
        .await
}

// === impl Stand ===

impl<'a> Stand<'a> {
    /// Exports the pool of both clusters by the commands of the documentation, and waits until both answer.
    async fn settle(stage: &'a Stage) -> Result<Self> {
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
        let pods: Api<Pod> = Api::namespaced(south.client(), isthmus::POOL_NAMESPACE);
        let pods = pods
            .list(&ListParams::default().labels("app=llama"))
            .await?;
        let stand = Self {
            controls,
            east,
            west,
            gateway: Requests::new(url),
            south: pods.iter().map(ResourceExt::name_any).collect(),
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

    /// Sends requests while something happens, and fails where one was not answered.
    async fn under_load(&self, happens: impl AsyncFnOnce() -> Result<()>) -> Result<()> {
        self.asked.lock().clear();
        let done = CancellationToken::new();
        let clients = join_all((0..CLIENTS).map(|client| self.load(client, &done)));
        let events = async {
            let _done = done.clone().drop_guard();
            happens().await
        };
        let (_, outcome) = tokio::join!(clients, events);
        let asked = self.asked.lock();
        let failed: Vec<String> = asked
            .iter()
            .filter_map(|one| {
                Some(format!(
                    "after {:.1?}: {}",
                    one.took,
                    one.by.as_ref().err()?
                ))
            })
            .collect();
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

    /// While the API server of east stands still: every request is answered, in the end by both clusters.
    async fn without_api_server(&self) -> Result<()> {
        let until = Instant::now() + STANDS_STILL;
        let version = ["get", "--raw=/version", "--request-timeout=2s"];
        let answer = self.east.kubectl(&version).await;
        ensure!(
            answer.is_err(),
            "the API server of east answers: {answer:?}"
        );
        remains_until("every request is answered", until, async || {
            let asked = self.asked.lock();
            let failed = asked.iter().find_map(|one| one.by.clone().err());
            failed.map_or(Ok(()), Err)
        })
        .await?;
        self.answered_by(&["east", "south"]).await
    }

    /// Sends a request, and returns the cluster that answers.
    async fn ask(&self, text: &str) -> Result<&'static str, String> {
        let answer = self.gateway.chat(isthmus::POOL, text).await;
        let answer = answer.map_err(|error| error.to_string())?;
        if answer.status != 200 {
            return Err(format!("{}: {}", answer.status, answer.text()));
        }
        let pod = answer.pod().ok_or("answered by no model server")?;
        Ok(if self.south.contains(pod) {
            "south"
        } else {
            "east"
        })
    }

    /// Waits until of the requests that are sent from now on so many in a row are answered by these clusters, each of them.
    async fn answered_by(&self, wanted: &[&str]) -> Result<()> {
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
    async fn import_says(&self, wanted: &str) -> Result<()> {
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
    async fn commands(&self, commands: &str) -> Result<String> {
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

/// The blocks of shell commands of the documentation, in order.
fn blocks() -> Vec<String> {
    let blocks = PAGE.split("```sh\n").skip(1);
    let blocks = blocks.filter_map(|block| block.split("```").next());
    blocks.map(ToOwned::to_owned).collect()
}
