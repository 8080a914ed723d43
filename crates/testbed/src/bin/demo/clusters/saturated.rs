//! A cluster that saturates: its own users fill its model servers, and requests of other clusters go elsewhere, as far as
//! its metrics say.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use futures::future::join_all;
use http::HeaderMap;
use serde_json::json;
use testbed::{Requests, eventually, isthmus};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::selection::{Selection, Shares};
use super::show::{self, Pods};
use super::{Demo, EAST, SOON};
use crate::screen::short;

/// Users of east alone: with three model servers that make 5 answers at a time, 45 requests wait, 15 of each server.
const USERS: usize = 60;
/// Tokens of an answer to one of them: half a second, of 5 ms each.
const TOKENS: u32 = 100;
/// Least time between two requests of a user, and how many it sends at most: longer than the scene goes on.
const PACE: Duration = Duration::from_millis(50);
const MOST: usize = 1_000;
/// Requests into west's gateway that are counted.
const COUNTED: usize = 120;
/// Permille: half of east's share without load.
const HALVED: u64 = 250;

/// By the last second's metrics, nearly: the default `halfLifeSeconds` of 5 takes five times as long.
const POLICY: &str = "
apiVersion: isthmus.dev/v1alpha1
kind: ClusterSelectionPolicy
metadata: {name: llama, namespace: llm}
spec:
  targetRefs: [{group: inference.networking.x-k8s.io, kind: InferencePoolImport, name: llama}]
  type: MetricsBased
  metrics: {queueTarget: 5, halfLifeSeconds: 1}
";
/// The endpoint picker's metrics, where other clusters reach it.
const METRICS_PORT: &str = r#"[{"op":"add","path":"/spec/ports/-","value":{"name":"http-metrics","port":9090,"targetPort":"http-metrics"}}]"#;

pub(crate) async fn show(
    demo: &Demo<'_>,
    requests: &Requests,
    front: &str,
    pods: &Pods,
) -> Result<()> {
    let begin = Instant::now();
    demo.screen.heading(
        "A cluster saturates: a ClusterSelectionPolicy shares requests by the clusters' metrics",
    );
    for cluster in [demo.east, demo.south] {
        let patch = [
            "patch",
            "service",
            "llama-epp",
            "-n",
            "llm",
            "--type=json",
            "-p",
            METRICS_PORT,
        ];
        demo.screen.kubectl(cluster, &patch).await?;
    }
    demo.west.apply_yaml(POLICY).await?;
    println!(
        "  ClusterSelectionPolicy llama in west: type MetricsBased, queueTarget 5, halfLifeSeconds 1"
    );
    let selection = Selection::of(demo.west).await?;
    let idle = eventually("equal shares by metrics", SOON, async || {
        let shares = selection.shares().await?;
        let is_even = shares
            .of(EAST)
            .is_some_and(|east| (400..=600).contains(&east.permille));
        if is_even && shares.are_measured() {
            Ok(shares)
        } else {
            Err(format!("{shares:?}"))
        }
    })
    .await?;
    print(requests, pods, "no other load", &idle).await?;

    let own = Requests::new(front);
    tokio::select! {
        outcome = fall(&selection, requests, pods) => outcome?,
        () = fill(&own) => bail!("the users of east ended before"),
    }
    let delete = ["delete", "clusterselectionpolicy", "llama", "-n", "llm"];
    demo.screen.kubectl(demo.west, &delete).await?;
    println!("  {} in all", short(begin.elapsed()));
    Ok(())
}

/// Waits until east's share has fallen by half, and shows who answers then.
async fn fall(selection: &Selection, requests: &Requests, pods: &Pods) -> Result<()> {
    let begin = Instant::now();
    let shares = eventually("east's share falls by half", SOON, async || {
        let shares = selection.shares().await?;
        match shares.of(EAST) {
            Some(east) if east.permille <= HALVED => Ok(shares),
            _ => Err(format!("{shares:?}")),
        }
    })
    .await?;
    let queue = shares.of(EAST).and_then(|east| east.queue).unwrap_or(0.0);
    ensure!(queue > 0.0, "nothing waits in east: {shares:?}");
    println!("  {USERS} users of east fill its servers: {queue:.0} requests wait at each of them");
    let when = format!("after {}", short(begin.elapsed()));
    print(requests, pods, &when, &shares).await
}

/// Shares as decided, and of requests as sent.
async fn print(requests: &Requests, pods: &Pods, when: &str, shares: &Shares) -> Result<()> {
    let counts = show::count_at_once(requests, pods, COUNTED).await?;
    println!(
        "  {when}: shares {shares} of 1000; of {COUNTED} requests {}",
        show::counted(&counts)
    );
    Ok(())
}

/// Sends requests of east's own users into its Gateway, one after another for each of them.
async fn fill(own: &Requests) {
    let user = async |user: usize| {
        let mut pace = interval(PACE);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for nth in 0..MOST {
            pace.tick().await;
            let body = json!({
                "model": isthmus::POOL,
                "messages": [{"role": "user", "content": format!("user {user}, request {nth}")}],
                "max_tokens": TOKENS,
            });
            // where they fail nothing waits in east, and the scene says so
            let _ = own
                .post("/v1/chat/completions", HeaderMap::new(), body.to_string())
                .await;
        }
    };
    join_all((0..USERS).map(user)).await;
}
