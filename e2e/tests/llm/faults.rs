//! Parts that die, forget or stand still.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::stand::{REPAIRED, Stand};

const LONG: usize = 12;
/// Its lease of 15 s and the sweep behind it, and some time to look.
const LEASE_OVER: Duration = Duration::from_secs(18);

pub(crate) async fn a_killed_metadata_center_costs_no_request_and_counts_right_in_5_s(
    stand: &Stand,
) -> Result<()> {
    let streams = stand.long_answers(LONG).await?;
    stand.standalone.kill_center().await;
    let without = stand.at_once(30, "without it").await;
    let degraded = stand.standalone.metric("llm_degraded").await;
    stand.standalone.restart_center().await?;
    without?;
    let degraded = degraded.map_err(anyhow::Error::msg)?;
    ensure!(
        degraded.is_some_and(|it| it > 0.0),
        "llm_degraded: {degraded:?}"
    );
    stand.counts(LONG as u64, REPAIRED).await?;
    stand.at_once(30, "with it again").await?;
    drop(streams);
    stand.counts(0, REPAIRED).await
}

pub(crate) async fn an_empty_redis_costs_no_request_and_counts_right_in_5_s(
    stand: &Stand,
) -> Result<()> {
    let streams = stand.long_answers(LONG).await?;
    stand.standalone.restart_redis().await?;
    stand.at_once(30, "just after").await?;
    stand.counts(LONG as u64, REPAIRED).await?;
    drop(streams);
    stand.counts(0, REPAIRED).await
}

pub(crate) async fn what_a_killed_picker_had_is_gone_in_16_s(stand: &Stand) -> Result<()> {
    let streams = stand.long_answers(LONG).await?;
    stand.counts(LONG as u64, REPAIRED).await?;
    let (picker, lost) = stand.busiest().await?;
    stand.standalone.kill_picker(picker).await;
    let counted = stand.counts(LONG as u64 - lost, LEASE_OVER).await;
    stand.standalone.restart_picker(picker).await?;
    counted.context("after its lease")?;
    drop(streams);
    stand.counts(0, REPAIRED).await
}

pub(crate) async fn a_picker_that_was_frozen_past_its_lease_is_right_again_in_5_s(
    stand: &Stand,
) -> Result<()> {
    let streams = stand.long_answers(LONG).await?;
    stand.counts(LONG as u64, REPAIRED).await?;
    let (picker, silent) = stand.busiest().await?;
    stand.standalone.freeze_picker(picker).await;
    let forgotten = stand.counts(LONG as u64 - silent, LEASE_OVER).await;
    stand.standalone.thaw_picker(picker).await;
    forgotten.context("after its lease")?;
    // Envoy gave its connection up meanwhile, and with it these answers.
    stand.counts(LONG as u64 - silent, REPAIRED).await?;
    drop(streams);
    stand.counts(0, REPAIRED).await
}
