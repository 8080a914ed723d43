//! Two gateways, of which one writes: the other writes nothing, and takes over when the first crashes or ends.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, ensure};
use crd::{conditions, http_route::HttpRoute};
use k8s_openapi::{api::core::v1::ConfigMap, jiff::Timestamp};
use kube::Api;
use testbed::{PodFaults, Requests, eventually, isthmus};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::gateway::GATEWAY_PODS;
use e2e::environment::Environment;
use e2e::lease::{AFTER_CRASH, AFTER_END, Election};
use e2e::pair::sum_metric;

/// The Lease in the gateway's namespace, whose holder writes.
const LEASE: &str = "isthmus-gateway";
/// What both know of their Envoys, in the same namespace.
const SHARED: &str = "isthmus-gateway-proxies";
const USER: &str = "system:serviceaccount:isthmus-system:isthmus-gateway";
/// Longer than every promise: what takes longer never happens.
const EVER: Duration = Duration::from_mins(1);
/// Answers in a row that Envoys of either gateway give.
const IN_A_ROW: u32 = 12;
/// Between two renewals of the Lease for a leader that has crashed.
const RENEW: Duration = Duration::from_secs(2);
/// Between two requests of the traffic, which leaves the machine to what is tested.
const PAUSE: Duration = Duration::from_millis(50);

/// One of the two gateways.
struct Replica {
    name: String,
    address: String,
}

pub(crate) async fn another_gateway_writes_within_17_s_of_a_crash_and_3_s_of_a_clean_end(
    environment: &Environment,
) -> Result<()> {
    environment.settle().await?;
    let done = CancellationToken::new();
    let traffic = async {
        let mut sent = 0;
        while !done.is_cancelled() {
            let answered = environment.answered(1).await;
            answered.with_context(|| format!("after {sent} requests"))?;
            sent += 1;
            sleep(PAUSE).await;
        }
        anyhow::Ok(())
    };
    let events = async {
        let _done = done.clone().drop_guard();
        scale(environment, 2).await?;
        after_crash(environment).await?;
        after_end(environment).await
    };
    let (answered, outcome) = tokio::join!(traffic, events);
    scale(environment, 1).await?;
    for name in ["both", "crashed", "ended"] {
        let delete = [
            "delete",
            "httproute",
            name,
            "-n",
            isthmus::POOL_NAMESPACE,
            "--ignore-not-found",
        ];
        environment.west.kubectl(&delete).await?;
    }
    outcome?;
    answered.context("while gateways came and went")
}

async fn after_crash(environment: &Environment) -> Result<()> {
    let election = Election::new(&environment.west, isthmus::NAMESPACE, LEASE);
    let (leader, other) = two_gateways(environment).await?;
    shared(environment).await?;
    let both = Timestamp::now();
    add_route(environment, "both").await?;
    accepted(environment, "both").await?;
    ensure!(
        !writes(environment, &leader, both)?.is_empty(),
        "no write of the leader {} in the audit log",
        leader.name
    );
    let fought = writes(environment, &other, both)?;
    ensure!(fought.is_empty(), "the other wrote too: {fought:?}");

    let claim = election.between_renewals().await?;
    let faults = faults(environment, &leader)?;
    // not restarted meanwhile: it would be one more process that can take over
    faults.kill_and_hold();
    let outcome = async {
        add_route(environment, "crashed").await?;
        // However busy the machine is, none leads until Envoys have the route: they need no leader.
        let renewing = async {
            loop {
                if let Err(error) = election.renew().await {
                    break error;
                }
                sleep(RENEW).await;
            }
        };
        tokio::select! {
            served = served(environment, "crashed") => served?,
            error = renewing => return Err(error.context("renewing the Lease")),
        }
        let crashed = election.renew().await?;
        let taken = election.taken_over(&claim, crashed).await?;
        eprintln!("another gateway writes {taken:.1?} after a crash");
        ensure!(taken <= AFTER_CRASH, "taken over only after {taken:?}");
        accepted(environment, "crashed").await?;
        let acquired = election.claim().await.map_err(anyhow::Error::msg)?.acquired;
        let mut early = writes(environment, &other, both)?;
        early.retain(|(received, _)| *received < acquired);
        ensure!(early.is_empty(), "written before it led: {early:?}");
        anyhow::Ok(())
    }
    .await;
    faults.let_restart();
    outcome
}

async fn after_end(environment: &Environment) -> Result<()> {
    let election = Election::new(&environment.west, isthmus::NAMESPACE, LEASE);
    let (leader, _) = two_gateways(environment).await?;
    let claim = election.claim().await.map_err(anyhow::Error::msg)?;
    let ended = Timestamp::now();
    let faults = faults(environment, &leader)?;
    faults.terminate_and_hold();
    let outcome = async {
        let taken = election.taken_over(&claim, ended).await?;
        eprintln!("another gateway writes {taken:.1?} after a clean end");
        ensure!(taken <= AFTER_END, "taken over only after {taken:?}");
        add_route(environment, "ended").await?;
        accepted(environment, "ended").await
    }
    .await;
    faults.let_restart();
    outcome
}

async fn scale(environment: &Environment, replicas: u8) -> Result<()> {
    let replicas = format!("--replicas={replicas}");
    let deployment = format!("deployment/{}", isthmus::GATEWAY);
    let scale = ["scale", "-n", isthmus::NAMESPACE, &deployment, &replicas];
    environment.west.kubectl(&scale).await?;
    isthmus::available(&environment.west, isthmus::NAMESPACE, isthmus::GATEWAY).await?;
    Ok(())
}

/// Waits until both are ready and one leads: that one, and the other.
async fn two_gateways(environment: &Environment) -> Result<(Replica, Replica)> {
    let west = &environment.west;
    let replicas = eventually("one of two gateways leads", EVER, async || {
        let ready = environment.ready_pods(west, isthmus::NAMESPACE, GATEWAY_PODS);
        let ready = ready.await?;
        let pods = environment.pods_of(west, isthmus::NAMESPACE, GATEWAY_PODS);
        let pods: BTreeMap<String, String> = pods.await?;
        let (mut leaders, mut others) = (Vec::new(), Vec::new());
        for (name, address) in pods.into_iter().filter(|(name, _)| ready.contains(name)) {
            let leads = leads(&address).await;
            let leads = leads.map_err(|error| format!("{name}: {error:#}"))?;
            let replica = Replica { name, address };
            if leads {
                leaders.push(replica);
            } else {
                others.push(replica);
            }
        }
        match (leaders.pop(), others.pop()) {
            (Some(leader), Some(other)) if leaders.is_empty() && others.is_empty() => {
                Ok((leader, other))
            }
            _ => Err(format!("{ready:?}")),
        }
    });
    Ok(replicas.await?)
}

async fn leads(address: &str) -> Result<bool> {
    let page = Requests::new(format!("http://{address}:8080"));
    let page = page.get("/metrics").await?.text();
    ensure!(
        page.contains("\ngateway_leader "),
        "no gateway_leader in {page}"
    );
    Ok(sum_metric(&page, "gateway_leader") > 0.5)
}

fn faults(environment: &Environment, replica: &Replica) -> Result<PodFaults> {
    let west = environment.west.name();
    let pod = environment
        .testbed
        .pod(west, isthmus::NAMESPACE, &replica.name);
    Ok(pod?)
}

/// Adds a route that answers 500 at its name, since it has no backend; without it the answer is 404.
async fn add_route(environment: &Environment, name: &str) -> Result<()> {
    let route = format!(
        "apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: {name}, namespace: llm}}
spec:
  parentRefs: [{{name: inference}}]
  rules:
  - matches: [{{path: {{value: /{name}}}}}]
"
    );
    environment.west.apply_yaml(&route).await?;
    Ok(())
}

/// Waits until every Envoy has the route.
async fn served(environment: &Environment, name: &str) -> Result<()> {
    let what = format!("Envoys have route {name}");
    eventually(&what, EVER, async || {
        for _ in 0..IN_A_ROW {
            let answer = environment.gateway.get(&format!("/{name}")).await;
            let status = answer.map_err(|error| error.to_string())?.status;
            if status != 500 {
                return Err(status.to_string());
            }
        }
        Ok(())
    })
    .await?;
    Ok(())
}

/// Waits until the route's status says that it is accepted.
async fn accepted(environment: &Environment, name: &str) -> Result<()> {
    let what = format!("route {name} is accepted");
    let routes: Api<HttpRoute> =
        Api::namespaced(environment.west.client(), isthmus::POOL_NAMESPACE);
    eventually(&what, EVER, async || {
        let route = routes.get(name).await;
        let status = route.map_err(|error| error.to_string())?.status;
        let parents = status.map(|status| status.parents).unwrap_or_default();
        let parent = parents.into_iter().next().ok_or("no status")?;
        if conditions::is_true(&parent.conditions, conditions::ACCEPTED) {
            Ok(())
        } else {
            Err(format!("{:?}", parent.conditions))
        }
    })
    .await?;
    Ok(())
}

/// Waits until two replicas have told each other what they know, one of them of the Envoys that are connected to it.
async fn shared(environment: &Environment) -> Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(environment.west.client(), isthmus::NAMESPACE);
    let gateway = format!("\"{}/inference\"", isthmus::POOL_NAMESPACE);
    eventually("entries of both gateways", EVER, async || {
        let map = maps.get(SHARED).await;
        let entries = map.map_err(|error| error.to_string())?.data;
        let entries = entries.unwrap_or_default();
        let is_known = entries.values().any(|entry| entry.contains(&gateway));
        if entries.len() > 1 && is_known {
            Ok(())
        } else {
            Err(format!("{entries:?}"))
        }
    })
    .await?;
    Ok(())
}

/// What this gateway wrote since then, but for its Lease and what it knows of its own Envoys, as the API server saw it, and when.
fn writes(
    environment: &Environment,
    replica: &Replica,
    since: Timestamp,
) -> Result<Vec<(Timestamp, String)>> {
    let calls = environment.testbed.calls(environment.west.name())?;
    let writes = calls.into_iter().filter(|call| {
        call.user == USER
            && call.source == replica.address
            && call.received >= since
            && !["leases", "configmaps"].contains(&&*call.resource)
            && !["get", "list", "watch"].contains(&&*call.verb)
    });
    Ok(writes
        .map(|call| (call.received, format!("{call:?}")))
        .collect())
}
