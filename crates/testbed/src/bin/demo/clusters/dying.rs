//! A cluster that dies under load: its endpoint picker and model servers are killed, and requests go to the other one.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use testbed::{PodFaults, Requests, eventually, isthmus};
use tokio::time::{Instant, sleep};

use super::load::Load;
use super::selection::Selection;
use super::show::Pods;
use super::{Demo, EAST, SOON, SOUTH};
use crate::screen::short;

/// Requests are counted for this long before the cluster dies and after that was noticed.
const STEADY: Duration = Duration::from_secs(2);
/// Time in which the gateway is to notice it: two probes, 1 s apart, on a busy machine.
const NOTICED: Duration = Duration::from_secs(10);

/// Fails where a request failed that had ended before the cluster died, or was sent after the gateway had noticed it. Of those
/// in between one may fail, since an answer that has begun cannot be made again; the others are sent to south.
pub(crate) async fn show(demo: &Demo<'_>, requests: &Requests, pods: &Pods) -> Result<()> {
    let begin = Instant::now();
    demo.screen
        .heading("A cluster dies under load: east's endpoint picker and model servers are killed");
    let selection = Selection::of(demo.west).await?;
    let victims = victims(demo).await?;
    let load = Load::new(requests, pods);
    let events = load.during(async || {
        let started = Instant::now();
        sleep(STEADY).await;
        let killed = Instant::now();
        let before = load.tally(started..);
        println!("  before, {}: {before}", short(killed - started));
        before.all_answered("before the cluster died")?;
        victims.iter().for_each(PodFaults::kill_and_hold);
        let why = notice(&selection).await;
        let why = why.with_context(|| load.tally(killed..).to_string())?;
        let noticed = Instant::now();
        sleep(STEADY).await;
        victims.iter().for_each(PodFaults::let_restart);
        let restarted = Instant::now();
        // with those that were under way when the servers were killed
        let meanwhile = load.tally_of(|sent| sent.ended >= killed && sent.at < noticed);
        println!(
            "  {} pods killed; until west's gateway noticed it ({why}), {}: {meanwhile}",
            victims.len(),
            short(noticed - killed),
        );
        println!(
            "  the next {}: {}",
            short(restarted - noticed),
            load.tally(noticed..restarted)
        );
        let back = returns(&load, restarted).await?;
        println!(
            "  started again; east answers after {}: {}",
            short(back - restarted),
            load.tally(restarted..back)
        );
        Ok(noticed)
    });
    let noticed = Box::pin(events).await?;
    // with those that were under way at the end
    let later = load.tally(noticed..);
    later.all_answered("after the gateway had noticed that the cluster was dead")?;
    println!("  {} in all", short(begin.elapsed()));
    Ok(())
}

/// East's endpoint picker and model servers, as its node has them.
async fn victims(demo: &Demo<'_>) -> Result<Vec<PodFaults>> {
    let pods: Api<Pod> = Api::namespaced(demo.east.client(), isthmus::POOL_NAMESPACE);
    let label = ListParams::default().labels("app.kubernetes.io/instance=llama");
    let pods = pods.list(&label).await.context("listing east's pods")?;
    let faults = pods.iter().map(|pod| {
        demo.testbed
            .pod(EAST, isthmus::POOL_NAMESPACE, &pod.name_any())
    });
    Ok(faults.collect::<Result<_, _>>()?)
}

/// Waits until west's gateway sends no new request to east; why that is so.
async fn notice(selection: &Selection) -> Result<String> {
    let what = "west's gateway notices that east is dead";
    Ok(eventually(what, NOTICED, async || {
        let shares = selection.shares().await?;
        match shares.of(EAST) {
            Some(east) if east.permille == 0 => Ok(east.why.clone()),
            _ => Err(shares.to_string()),
        }
    })
    .await?)
}

/// Waits until east answers, and south too.
async fn returns(load: &Load<'_>, since: Instant) -> Result<Instant> {
    eventually("answers of both clusters", SOON, async || {
        let tally = load.tally(since..);
        let both = tally.of(EAST) > 0 && tally.of(SOUTH) > 0;
        if both { Ok(()) } else { Err(tally.to_string()) }
    })
    .await?;
    Ok(Instant::now())
}
