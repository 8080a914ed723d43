//! Checks what `docs/tasks/failover.md` promises, by its own commands: east and south export a pool, west imports it
//! and has a gateway. A part of east is lost, and requests are answered by south.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::watching::remains_until;
use testbed::isthmus;
use tokio::time::Instant;

use crate::{
    scene::Stage,
    stand::{Stand, blocks, scale},
};

/// The API server of east stands still for so long: watches, Leases and probes there end or fail meanwhile.
const STANDS_STILL: Duration = Duration::from_secs(30);

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
    let scale = async |replicas| scale(&stand.east, isthmus::MODEL_SERVERS, replicas).await;
    let outcome = stand
        .under_load(async || {
            scale(0).await?;
            stand.answered_by(&["south"]).await?;
            scale(3).await?;
            stand.answered_by(&["east", "south"]).await
        })
        .await;
    scale(3).await?;
    outcome
}

/// The programs in a cluster continue without its API server.
pub(crate) async fn an_api_server_that_stands_still_costs_no_request(stage: &Stage) -> Result<()> {
    let stand = Stand::settle(stage).await?;
    let api_server = stand.controls.testbed.api_server(stand.east.name())?;
    let outcome = stand
        .under_load(async || {
            api_server.pause().await;
            let outcome = without_api_server(&stand).await;
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

/// While the API server of east stands still: every request is answered, in the end by both clusters.
async fn without_api_server(stand: &Stand<'_>) -> Result<()> {
    let until = Instant::now() + STANDS_STILL;
    let version = ["get", "--raw=/version", "--request-timeout=2s"];
    let answer = stand.east.kubectl(&version).await;
    ensure!(
        answer.is_err(),
        "the API server of east answers: {answer:?}"
    );
    let answered = || stand.failures().into_iter().next().map_or(Ok(()), Err);
    remains_until("every request is answered", until, async || answered()).await?;
    stand.answered_by(&["east", "south"]).await
}
