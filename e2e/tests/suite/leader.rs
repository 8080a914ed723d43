//! Two controllers, of which one writes: what happens when it crashes, ends, or stops for a while.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, ensure};
use k8s_openapi::jiff::Timestamp;
use serde_json::json;
use testbed::{PodFaults, Requests, eventually, isthmus};
use tokio::time::Instant;

use e2e::{
    apart::Apart,
    environment::{CONTROLLER_PODS, CONTROLLER_USER, Environment},
    lease::{AFTER_CRASH, AFTER_END, Claim, Election, UNCHANGED},
    pair::sum_metric,
    watching::remains_until,
};

/// The Lease in the controller's namespace, whose holder writes.
const LEASE: &str = "isthmus-mci-default";
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
    let election = Election::new(&environment.west, isthmus::NAMESPACE, LEASE);
    let seen = async {
        let (_, faults) = two_controllers(environment, &apart).await?;
        let leader = election.between_renewals().await?;
        let crashed = Timestamp::now();
        // not restarted meanwhile: it would be one more process that can take over
        faults.kill_and_hold();
        let outcome = async {
            taken_over_in_time(&election, &leader, crashed).await?;
            moved(environment, &apart, 8001).await
        }
        .await;
        faults.let_restart();
        outcome?;

        let (_, faults) = two_controllers(environment, &apart).await?;
        let leader = election.claim().await.map_err(anyhow::Error::msg)?;
        let ended = Timestamp::now();
        faults.terminate_and_hold();
        let outcome = async {
            let clean = election.taken_over(&leader, ended).await?;
            eprintln!("taken over {clean:.1?} after a clean end");
            ensure!(clean <= AFTER_END, "taken over {clean:?} after a clean end");
            moved(environment, &apart, 8002).await
        }
        .await;
        faults.let_restart();
        outcome
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
    let election = Election::new(&environment.west, isthmus::NAMESPACE, LEASE);
    let seen = async {
        let (name, faults) = two_controllers(environment, &apart).await?;
        let address = addresses(environment).await?;
        let address = address.get(&name).context("the leader has no address")?;
        let own = writes(environment, address, Timestamp::default())?;
        ensure!(
            !own.is_empty(),
            "no write of the leader at {address} in the audit logs"
        );

        let leader = election.between_renewals().await?;
        faults.pause();
        let (stopped, stopped_at) = (Timestamp::now(), Instant::now());
        let outcome = async {
            taken_over_in_time(&election, &leader, stopped).await?;
            moved(environment, &apart, 8003).await?;
            remains_until(
                "another leads",
                stopped_at + STOP,
                async || match election.claim().await {
                    Ok(claim) if claim.holder != leader.holder => Ok(()),
                    other => Err(format!("{other:?}")),
                },
            )
            .await?;
            // what it finds to do when it goes on
            set_port(environment, &apart, 8004).await
        }
        .await;
        let resumed = Timestamp::now();
        faults.resume();
        outcome?;
        shows(environment, &apart, 8004).await?;
        looked_at_its_lease(environment, address, resumed).await?;
        // allows for calls that it had started before it noticed the loss of the Lease
        let deadline = Instant::now() + RESUMED;
        remains_until("it writes nothing", deadline, async || {
            let late = writes(environment, address, stopped)?;
            ensure!(late.is_empty(), "written after it was stopped: {late:?}");
            ensure!(!leads(address).await?, "it leads again");
            Ok(())
        })
        .await?;
        shows(environment, &apart, 8004).await
    }
    .await;
    one_controller(environment, &apart).await?;
    seen
}

/// Checks that the Lease of a leader that crashed or was stopped `since` is taken over in time, and not too soon.
async fn taken_over_in_time(election: &Election, leader: &Claim, since: Timestamp) -> Result<()> {
    let last = election.claim().await.map_err(anyhow::Error::msg)?;
    ensure!(last.holder == leader.holder, "it did not lead: {last:?}");
    let taken = election.taken_over(leader, since).await?;
    eprintln!("taken over {taken:.1?} after a crash or a stop");
    ensure!(taken <= AFTER_CRASH, "taken over only after {taken:?}");
    let unchanged = election.taken_over(leader, last.renewed).await?;
    ensure!(
        unchanged >= UNCHANGED,
        "taken over already {unchanged:?} after its renewal"
    );
    Ok(())
}

/// Waits until the controller at this address has read its lease after this time.
async fn looked_at_its_lease(
    environment: &Environment,
    address: &str,
    since: Timestamp,
) -> Result<()> {
    eventually("it looks at the lease when it goes on", EVER, async || {
        let calls = environment.testbed.calls(environment.west.name());
        let calls = calls.map_err(|error| error.to_string())?;
        let mut later = calls.iter().filter(|call| {
            call.user == CONTROLLER_USER && call.source == address && call.received >= since
        });
        if later.any(|call| call.resource == "leases") {
            Ok(())
        } else {
            Err("no call for leases".to_owned())
        }
    })
    .await?;
    Ok(())
}

/// Two controllers, both ready, and an import to be kept by them. Returns the name of the one that leads, and its faults.
async fn two_controllers(environment: &Environment, apart: &Apart) -> Result<(String, PodFaults)> {
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
    let west = environment.west.name();
    let faults = environment.testbed.pod(west, isthmus::NAMESPACE, &leader)?;
    Ok((leader, faults))
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
    let page = page.get("/metrics").await?.text();
    ensure!(page.contains("\nmci_leader "), "no mci_leader in {page}");
    Ok(sum_metric(&page, "mci_leader") > 0.5)
}

/// Changes the exported pool, and waits until the import shows it: some controller writes.
async fn moved(environment: &Environment, apart: &Apart, port: u16) -> Result<()> {
    set_port(environment, apart, port).await?;
    shows(environment, apart, port).await
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
