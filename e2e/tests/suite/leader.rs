//! Two controllers, of which one writes: what happens when it crashes, ends, or stops for a while.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, ensure};
use k8s_openapi::jiff::Timestamp;
use serde_json::json;
use testbed::{Requests, eventually, isthmus};
use tokio::time::{Instant, sleep, sleep_until};

use e2e::{
    apart::Apart,
    environment::{CONTROLLER_PODS, CONTROLLER_USER, Environment},
    pair::sum_metric,
};

/// A lease runs out after 15 s, a standby looks each 2 s at least.
const CRASH: Duration = Duration::from_secs(17);
/// A standby looks each 2 s at least, and then writes.
const CLEAN: Duration = Duration::from_secs(3);
/// For the write itself and what this test does meanwhile, on a busy machine.
const MARGIN: Duration = Duration::from_secs(3);
/// Past every promise: what takes longer never happens.
const EVER: Duration = Duration::from_mins(1);
/// How long the leader is stopped (T17).
const STOP: Duration = Duration::from_secs(40);
/// How long it is watched when it goes on.
const RESUMED: Duration = Duration::from_secs(10);

pub(crate) async fn a_standby_takes_over_within_17_s_of_a_crash_and_3_s_of_a_clean_end(
    environment: &Environment,
) -> Result<()> {
    environment.settle().await?;
    let apart = Apart::new();
    let seen = async {
        let leader = two_controllers(environment, &apart).await?;
        // restarted by its node, it is another process, and no holder of the lease
        environment.kill_pod(&environment.west, isthmus::NAMESPACE, &leader)?;
        let crash = written_after(environment, &apart, 8001).await?;
        eprintln!("taken over {:.1} s after a crash", crash.as_secs_f64());
        ensure!(crash <= CRASH + MARGIN, "taken over after {crash:?}");

        let leader = two_controllers(environment, &apart).await?;
        let end = [
            "delete",
            "pod",
            &leader,
            "-n",
            isthmus::NAMESPACE,
            "--wait=false",
        ];
        environment.west.kubectl(&end).await?;
        let clean = written_after(environment, &apart, 8002).await?;
        eprintln!("taken over {:.1} s after a clean end", clean.as_secs_f64());
        ensure!(clean <= CLEAN + MARGIN, "taken over after {clean:?}");
        Ok(())
    }
    .await;
    one_controller(environment, &apart).await?;
    seen
}

/// T17: it believes to lead until it looks at its clock, and it looks before each write.
pub(crate) async fn a_leader_that_was_stopped_writes_nothing_once_another_leads(
    environment: &Environment,
) -> Result<()> {
    environment.settle().await?;
    let apart = Apart::new();
    let seen = async {
        let leader = two_controllers(environment, &apart).await?;
        let address = addresses(environment).await?;
        let address = address.get(&leader).context("the leader has no address")?;
        let own = writes(environment, address, Timestamp::default())?;
        ensure!(
            !own.is_empty(),
            "no write of the leader at {address} in the audit logs"
        );

        let faults =
            environment
                .testbed
                .pod(environment.west.name(), isthmus::NAMESPACE, &leader)?;
        faults.pause();
        let (stopped, stopped_at) = (Timestamp::now(), Instant::now());
        let outcome = async {
            let taken = written_after(environment, &apart, 8003).await?;
            eprintln!("taken over {:.1} s after a stop", taken.as_secs_f64());
            ensure!(taken <= CRASH + MARGIN, "taken over after {taken:?}");
            sleep_until(stopped_at + STOP).await;
            // what it finds to do when it goes on
            set_port(environment, &apart, 8004).await
        }
        .await;
        faults.resume();
        outcome?;
        shows(environment, &apart, 8004).await?;
        // time enough for whatever it had begun or still believed
        sleep(RESUMED).await;
        let late = writes(environment, address, stopped)?;
        ensure!(late.is_empty(), "written after it was stopped: {late:?}");
        ensure!(!leads(address).await?, "it leads again");
        shows(environment, &apart, 8004).await
    }
    .await;
    one_controller(environment, &apart).await?;
    seen
}

/// Two controllers, both ready, and an import to be kept by them. Returns the name of the one that leads.
async fn two_controllers(environment: &Environment, apart: &Apart) -> Result<String> {
    // a probe would have the stopped one restarted
    let patch = json!({"spec": {"replicas": 2, "template": {"spec": {"containers": [
        {"name": "mci-controller", "livenessProbe": null},
    ]}}}});
    let deployment = format!("deployment/{}", isthmus::CONTROLLER);
    let patch = patch.to_string();
    let patch = [
        "patch",
        "-n",
        isthmus::NAMESPACE,
        &deployment,
        "--patch",
        &patch,
    ];
    environment.west.kubectl(&patch).await?;
    isthmus::available(&environment.west, isthmus::NAMESPACE, isthmus::CONTROLLER).await?;
    apart.add_namespace(&environment.west).await?;
    apart.add_pool(&environment.east).await?;
    let leader = eventually("one of two controllers leads", EVER, async || {
        let pods = addresses(environment)
            .await
            .map_err(|error| format!("{error:#}"))?;
        let mut leading = Vec::new();
        for (name, address) in &pods {
            if leads(address).await.map_err(|error| format!("{error:#}"))? {
                leading.push(name.clone());
            }
        }
        match &*leading {
            [one] if pods.len() == 2 => Ok(one.clone()),
            _ => Err(format!("{leading:?} of {pods:?}")),
        }
    })
    .await?;
    apart.imported(&environment.west, "east").await?;
    Ok(leader)
}

/// As the manifests have it.
async fn one_controller(environment: &Environment, apart: &Apart) -> Result<()> {
    isthmus::install_controller(&environment.west, &environment.members()).await?;
    apart.clear(environment).await
}

/// The controllers' pods, name to IP address.
async fn addresses(environment: &Environment) -> Result<BTreeMap<String, String>> {
    let pods = environment.pods_of(&environment.west, isthmus::NAMESPACE, CONTROLLER_PODS);
    pods.await.map_err(anyhow::Error::msg)
}

async fn leads(address: &str) -> Result<bool> {
    let page = Requests::new(format!("http://{address}:8080"));
    let page = page.get("/metrics").await?;
    Ok(sum_metric(&page.text(), "mci_leader") > 0.5)
}

/// Changes the exported pool now, and waits until the import shows it; how long that took.
async fn written_after(environment: &Environment, apart: &Apart, port: u16) -> Result<Duration> {
    let started = Instant::now();
    set_port(environment, apart, port).await?;
    shows(environment, apart, port).await?;
    Ok(started.elapsed())
}

async fn set_port(environment: &Environment, apart: &Apart, port: u16) -> Result<()> {
    let patch = json!({"spec": {"targetPorts": [{"number": port}]}}).to_string();
    let command = [
        "patch",
        "inferencepool",
        &apart.name,
        "-n",
        &apart.name,
        "--type=merge",
        "--patch",
        &patch,
    ];
    environment.east.kubectl(&command).await?;
    Ok(())
}

async fn shows(environment: &Environment, apart: &Apart, port: u16) -> Result<()> {
    let imports = apart.imports(&environment.west);
    let what = format!("west's import shows port {port}");
    eventually(&what, EVER, async || {
        let import = imports.get(&apart.name).await;
        let import = import.map_err(|error| error.to_string())?;
        let ports: Vec<u16> = import
            .clusters()
            .iter()
            .map(|entry| entry.target_port_number)
            .collect();
        if ports == [port] {
            Ok(())
        } else {
            Err(format!("{ports:?}"))
        }
    })
    .await?;
    Ok(())
}

/// What the controller at this address wrote into either member since then, as their API servers saw it.
fn writes(environment: &Environment, address: &str, since: Timestamp) -> Result<Vec<String>> {
    let mut writes = Vec::new();
    for cluster in [&environment.east, &environment.west] {
        let calls = environment.testbed.calls(cluster.name())?;
        let late = calls.into_iter().filter(|call| {
            call.user == CONTROLLER_USER
                && call.source == address
                && call.received >= since
                && !["get", "list", "watch"].contains(&&*call.verb)
                && ["inferencepoolimports", "inferencepools"]
                    .iter()
                    .any(|kind| call.resource.starts_with(kind))
        });
        writes.extend(late.map(|call| format!("{}: {call:?}", cluster.name())));
    }
    Ok(writes)
}
