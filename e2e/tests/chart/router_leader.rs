//! Two Routers of a release, of which one answers: what clients see when the leader crashes or ends, and what the next one
//! knows.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::pair::{is_ready, sum_metric};
use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt, api::ListParams};
use testbed::{Requests, eventually};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::{
    dynamo::{NAMESPACE, with_release},
    stand::{SOON, Stand},
};

/// A busy machine must not make a Router late that is there.
const LEADERS: &str =
    "router.replicas=2,router.enableLeaderElection=true,processor.extraArgs={--route-timeout=2s}";
const ROUTERS: &str = "isthmus.dev/component=router";
const CLIENTS: usize = 4;
const EVERY: Duration = Duration::from_millis(100);

/// A Router's process: its pod, and how often that was restarted.
type Process = (String, i32);

pub(crate) async fn the_leader_changes_under_load_and_the_next_one_knows_the_caches(
    stand: &Stand,
) -> Result<()> {
    with_release(stand, &["--set", LEADERS], async || {
        let first = leader(stand, None).await?;
        // the workers get what all clients ask about into their caches
        eventually("choices by KV events", SOON, async || {
            ask(stand, "the first").await?;
            decisions(stand, &first.0).await.and_then(by_events)
        })
        .await?;
        let done = CancellationToken::new();
        let changes = async {
            let _done = done.clone().drop_guard();
            change_leaders(stand, &first).await
        };
        let clients = (0..CLIENTS).map(|client| load(stand, client, &done));
        let (asked, changed) = tokio::join!(join_all(clients), changes);
        changed?;
        let asked: Result<Vec<u32>, String> = asked.into_iter().collect();
        let asked = asked.map_err(anyhow::Error::msg)?;
        ensure!(asked.iter().all(|asked| *asked > 0), "{asked:?} requests");
        Ok(())
    })
    .await
}

async fn change_leaders(stand: &Stand, first: &Process) -> Result<()> {
    let cluster = &stand.cluster;
    let pod = stand.testbed.pod(cluster.name(), NAMESPACE, &first.0)?;
    pod.kill();
    let second = leader(stand, Some(first)).await?;
    knows_the_caches(stand, &second).await?;
    let pod = format!("pod/{}", second.0);
    let delete = ["delete", &*pod, "-n", NAMESPACE, "--wait=false"];
    cluster.kubectl(&delete).await.context(pod.clone())?;
    let third = leader(stand, Some(&second)).await?;
    knows_the_caches(stand, &third).await
}

/// From its first choice on: it followed the workers' events before it led.
async fn knows_the_caches(stand: &Stand, leader: &Process) -> Result<()> {
    let seen = eventually("choices of the next leader", SOON, async || {
        decisions(stand, &leader.0).await.and_then(by_events)
    });
    let without = seen.await?;
    ensure!(
        without < 0.5,
        "{leader:?} chose {without} times without knowing a cache"
    );
    Ok(())
}

/// Where there are choices by events: how many there are by nothing.
fn by_events(decisions: String) -> Result<f64, String> {
    let of = |source| {
        let name = format!("router_decisions_total{{source=\"{source}\"}}");
        sum_metric(&decisions, &name)
    };
    if of("exact") > 0.5 {
        Ok(of("none"))
    } else {
        Err(decisions)
    }
}

/// What a Router counted of its choices.
async fn decisions(stand: &Stand, pod: &str) -> Result<String, String> {
    let page = page(stand, pod).await?;
    let lines = page
        .lines()
        .filter(|line| line.starts_with("router_decisions_total"));
    Ok(lines.collect::<Vec<_>>().join("\n"))
}

/// Waits until one of two Routers leads and is ready, other than the process that did before.
async fn leader(stand: &Stand, former: Option<&Process>) -> Result<Process> {
    let pods: Api<Pod> = Api::namespaced(stand.cluster.client(), NAMESPACE);
    let leader = eventually("one of two Routers leads", SOON, async || {
        let pods = pods.list(&ListParams::default().labels(ROUTERS)).await;
        let pods = pods.map_err(|error| error.to_string())?.items;
        let mut seen = Vec::new();
        for pod in pods {
            if pod.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let page = page(stand, &pod.name_any()).await.unwrap_or_default();
            let leads = is_ready(&pod) && sum_metric(&page, "router_leader") > 0.5;
            let status = pod.status.clone().unwrap_or_default();
            let containers = status.container_statuses.unwrap_or_default();
            let restarts = containers.iter().map(|one| one.restart_count).sum::<i32>();
            seen.push((leads, (pod.name_any(), restarts)));
        }
        let leaders: Vec<&Process> = seen
            .iter()
            .filter_map(|(leads, process)| leads.then_some(process))
            .collect();
        match leaders[..] {
            [leader] if seen.len() == 2 && former != Some(leader) => Ok(leader.clone()),
            _ => Err(format!("{seen:?}")),
        }
    });
    Ok(leader.await?)
}

/// Asks until it is done; says how often, or how the first request failed.
async fn load(stand: &Stand, client: usize, done: &CancellationToken) -> Result<u32, String> {
    let mut pace = interval(EVERY);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut asked = 0;
    while !done.is_cancelled() {
        pace.tick().await;
        let end = format!("client {client}, its {asked}th");
        let answered = ask(stand, &end).await;
        answered.map_err(|error| format!("{end} request: {error}"))?;
        asked += 1;
    }
    Ok(asked)
}

/// A prompt of some hundred blocks that all have, and an end of its own.
async fn ask(stand: &Stand, end: &str) -> Result<(), String> {
    let story = "Tell a story about a lighthouse, in plain words. ".repeat(30);
    let requests = Requests::new(&stand.gateway);
    let answer = requests.chat("llama", &format!("{story} {end}")).await;
    let answer = answer.map_err(|error| error.to_string())?;
    if answer.status == 200 {
        Ok(())
    } else {
        Err(format!("{}: {}", answer.status, answer.text()))
    }
}

/// A Router's metrics.
async fn page(stand: &Stand, pod: &str) -> Result<String, String> {
    let page = format!("/api/v1/namespaces/{NAMESPACE}/pods/{pod}:8080/proxy/metrics");
    let page = stand.cluster.kubectl(&["get", "--raw", &page]).await;
    page.map_err(|error| error.to_string())
}
