//! The import of two clusters, one of which changes to ParentMode: requests go through a Gateway of that cluster.

use std::time::Duration;

use anyhow::{Result, ensure};
use crd::RoutingMode;
use testbed::{Requests, eventually, isthmus};
use tokio::time::{Instant, sleep};

use super::load::{Load, THROUGH};
use super::show::Pods;
use super::{Demo, EAST, SOON, SOUTH};
use crate::screen::short;

/// Requests are counted for this long after the change.
const STEADY: Duration = Duration::from_secs(1);
/// Of each entry in ParentMode: cluster, mode, and where its first Gateway is.
const PARENTS: &str = "jsonpath={range .status.clusters[?(@.routingMode==\"ParentMode\")]}{.name}: {.routingMode}, \
     Gateway {.parents[0].name} at {.parents[0].service[0].addresses[0]}:{.parents[0].service[0].ports[0].number}{\"\\n\"}{end}";

/// Lets south export the pool, too, and east change its mode and back; the URL of east's Gateway.
pub(crate) async fn show(demo: &Demo<'_>, requests: &Requests, pods: &Pods) -> Result<String> {
    let begin = Instant::now();
    let screen = demo.screen;
    screen.heading("South exports the pool, too, and east changes to ParentMode under load: by a Gateway of its own");
    let front = screen
        .step(
            "east: a Gateway for other clusters",
            isthmus::install_front(demo.east),
        )
        .await?;
    let export = "inference.networking.x-k8s.io/export=ClusterSet";
    demo.annotate(demo.south, export).await?;
    demo.imported(&[
        (EAST, RoutingMode::EndpointMode),
        (SOUTH, RoutingMode::EndpointMode),
    ])
    .await?;
    let load = Load::new(requests, pods);
    let changes = load.during(async || {
        let asked = Instant::now();
        eventually("answers of both clusters", SOON, async || {
            let tally = load.tally(asked..);
            let both = tally.of(EAST) > 0 && tally.of(SOUTH) > 0;
            if both { Ok(()) } else { Err(tally.to_string()) }
        })
        .await?;
        change(demo, &load).await?;
        change_back(demo, &load).await
    });
    Box::pin(changes).await?;
    println!("  {} in all", short(begin.elapsed()));
    Ok(front)
}

async fn change(demo: &Demo<'_>, load: &Load<'_>) -> Result<()> {
    let asked = Instant::now();
    let mode = "inference.networking.x-k8s.io/export-mode=ParentMode";
    demo.annotate(demo.east, mode).await?;
    demo.imported(&[
        (EAST, RoutingMode::ParentMode),
        (SOUTH, RoutingMode::EndpointMode),
    ])
    .await?;
    let get = [
        "get",
        "inferencepoolimport",
        "llama",
        "-n",
        "llm",
        "-o",
        PARENTS,
    ];
    demo.screen.kubectl(demo.west, &get).await?;
    eventually("an answer through east's Gateway", SOON, async || {
        let tally = load.tally(asked..);
        if tally.through > 0 {
            Ok(())
        } else {
            Err(tally.to_string())
        }
    })
    .await?;
    let changed = Instant::now();
    sleep(STEADY).await;
    let (meanwhile, then) = (load.tally(asked..changed), load.tally(changed..));
    println!(
        "  after {} answers of east have the header {THROUGH}, which the route of its Gateway adds",
        short(changed - asked)
    );
    println!("  until then: {meanwhile}");
    println!(
        "  from then on: {then}; {} of {} of east through its Gateway",
        then.through,
        then.of(EAST)
    );
    load.tally(asked..)
        .all_answered("during the change of mode and after it")?;
    ensure!(then.through > 0, "no answer came through east's Gateway");
    Ok(())
}

async fn change_back(demo: &Demo<'_>, load: &Load<'_>) -> Result<()> {
    let asked = Instant::now();
    demo.annotate(demo.east, "inference.networking.x-k8s.io/export-mode-")
        .await?;
    demo.imported(&[
        (EAST, RoutingMode::EndpointMode),
        (SOUTH, RoutingMode::EndpointMode),
    ])
    .await?;
    let imported = Instant::now();
    eventually(
        "an answer of east not through its Gateway",
        SOON,
        async || {
            let tally = load.tally(imported..);
            if tally.of(EAST) > tally.through {
                Ok(())
            } else {
                Err(tally.to_string())
            }
        },
    )
    .await?;
    let tally = load.tally(asked..);
    println!("  and back in {}: {tally}", short(asked.elapsed()));
    tally.all_answered("during the change back")?;
    Ok(())
}
