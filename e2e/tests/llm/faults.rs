//! Parts that die, forget or stand still.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testbed::eventually;

use crate::stand::{REPAIRED, SOON, Stand};

const LONG: usize = 12;
/// A lease of 15 s, counted from the last report, which may be the moment of the fault, and a sweep each second. The half
/// second is for the test's own looks, 200 ms apart: without it a lease that ends just after a sweep is seen too late.
const LEASE_OVER: Duration = Duration::from_millis(16_500);
/// A metric of the endpoint picker: full reports that it made after its lease had expired.
const REPORTED_AGAIN: &str = "epp_metadata_full_batches_total{cause=\"lease-lost\"}";

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
    stand.counts(0, SOON).await
}

pub(crate) async fn an_empty_redis_costs_no_request_and_counts_right_in_5_s(
    stand: &Stand,
) -> Result<()> {
    let streams = stand.long_answers(LONG).await?;
    stand.standalone.restart_redis().await?;
    stand.at_once(30, "just after").await?;
    stand.counts(LONG as u64, REPAIRED).await?;
    drop(streams);
    stand.counts(0, SOON).await
}

pub(crate) async fn what_a_killed_picker_had_is_gone_in_16_s(stand: &Stand) -> Result<()> {
    let streams = stand.long_answers(LONG).await?;
    stand.counts(LONG as u64, SOON).await?;
    let (picker, lost) = stand.busiest().await?;
    stand.standalone.kill_picker(picker).await;
    let counted = stand.counts(LONG as u64 - lost, LEASE_OVER).await;
    stand.standalone.restart_picker(picker).await?;
    counted.context("after its lease")?;
    drop(streams);
    stand.counts(0, SOON).await
}

pub(crate) async fn a_picker_that_was_frozen_past_its_lease_is_right_again_in_5_s(
    stand: &Stand,
) -> Result<()> {
    let streams = stand.long_answers(LONG).await?;
    stand.counts(LONG as u64, SOON).await?;
    let (picker, silent) = stand.busiest().await?;
    let left = LONG as u64 - silent;
    let before = stand.of_picker(picker, REPORTED_AGAIN).await;
    let before = before.map_err(anyhow::Error::msg)?;
    stand.standalone.freeze_picker(picker).await;
    let forgotten = stand.counts(left, LEASE_OVER).await;
    stand.standalone.thaw_picker(picker).await;
    forgotten.context("after its lease")?;
    // Envoy closed its connection meanwhile, and with it these answers were lost. The picker detects both, and reports
    // again. Until then the count proves nothing.
    eventually("all is right again", REPAIRED, async || {
        let again = stand.of_picker(picker, REPORTED_AGAIN).await?;
        let running = stand.running(picker).await?;
        let counted = stand.counted().await?;
        if again > before && running == 0 && counted == (left, 0) {
            Ok(())
        } else {
            Err(format!(
                "full reports {before}, then {again}; {running} at the picker; requests and prompts {counted:?}"
            ))
        }
    })
    .await?;
    drop(streams);
    stand.counts(0, SOON).await
}
