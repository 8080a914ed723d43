//! Two endpoint pickers of one pool, of which one answers: who is ready, and what clients see when the leader ends or crashes.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use http::HeaderMap;
use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams},
};
use parking_lot::Mutex;
use serde_json::json;
use testbed::{Requests, eventually, isthmus};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::rolling::{EPP, LOCAL_ROUTE};
use e2e::environment::{Environment, PICKERS};
use e2e::lease::{AFTER_CRASH, AFTER_END, Election};
use e2e::pair::{NO_ANSWER, is_ready, sum_metric};

const DOCS: &str = include_str!("../../../docs/epp-security.md");
/// The Lease in the pool's namespace, whose holder answers.
const LEASE: &str = "epp-llm-llama.isthmus.dev";
/// Past every promise: what takes longer never happens.
const EVER: Duration = Duration::from_mins(1);
/// Once another is ready, requests are answered within this: Envoy checks its health each 2 s, and [`WELL`] take one where the
/// machine has nothing else to do.
const NOTICED: Duration = Duration::from_secs(20);
/// All old pods end together where pickers have a leader, and each answers for 10 s more. Where the new leader is ready within half
/// of that, Envoy has the other half to notice it, and no request fails.
const IN_TIME: Duration = Duration::from_secs(5);
/// 20 requests a second.
const EVERY: Duration = Duration::from_millis(50);
/// So many are answered in a row when all is well.
const WELL: u32 = 20;

const BINDING: &str = r"
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: llama-epp-leader, namespace: llm}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: llama-epp-leader}
subjects:
- {kind: ServiceAccount, name: llama-epp, namespace: llm}
";

/// A picker's process: its pod, and how often that was restarted.
type Process = (String, i32);

/// What the load has seen.
#[derive(Default)]
struct Seen {
    /// Answered since the last that was not.
    in_a_row: u32,
    failures: Vec<Failure>,
}

struct Failure {
    sent: Instant,
    ended: Instant,
    what: String,
}

pub(crate) async fn another_picker_leads_within_17_s_of_a_crash_and_3_s_of_the_leaders_end(
    environment: &Environment,
) -> Result<()> {
    environment.settle().await?;
    let west = &environment.west;
    west.apply_yaml(LOCAL_ROUTE).await?;
    let (seen, done) = (Mutex::default(), CancellationToken::new());
    let events = async {
        let _done = done.clone().drop_guard();
        // answered by the picker that is there, without a leader
        well(&seen).await?;
        change_leaders(environment, &seen).await
    };
    let ((), outcome) = tokio::join!(load(environment, &seen, &done), events);
    // the next test installs it as the manifests have it
    for object in [EPP, "role/llama-epp-leader", "rolebinding/llama-epp-leader"] {
        delete(environment, object).await?;
    }
    delete(environment, "httproute/local").await?;
    outcome
}

async fn change_leaders(environment: &Environment, seen: &Mutex<Seen>) -> Result<()> {
    let west = &environment.west;
    west.apply_yaml(role()).await?;
    west.apply_yaml(BINDING).await?;
    let patch = json!({"spec": {
        "replicas": 2,
        "strategy": {"rollingUpdate": {"maxUnavailable": "100%", "maxSurge": "100%"}},
        "template": {"spec": {"containers": [{"name": "epp", "args": [
            "--pool-name=llama", "--pool-namespace=$(POD_NAMESPACE)", "--ha-enable-leader-election",
        ]}]}},
    }});
    let patch = patch.to_string();
    let patch = ["patch", EPP, "-n", isthmus::POOL_NAMESPACE, "-p", &patch];
    let changed = Instant::now();
    west.kubectl(&patch).await?;
    let election = Election::new(west, isthmus::POOL_NAMESPACE, LEASE);
    let first = leader_of_two(environment).await?;
    let took = changed.elapsed();
    well(seen).await?;
    // On a busy machine the pickers of the new mode may begin later than the former one has drained, as the pages say.
    if took > IN_TIME {
        eprintln!("pickers with a leader were ready only after {took:.1?}");
        seen.lock().failures.clear();
    }

    let faults = environment
        .testbed
        .pod(west.name(), isthmus::POOL_NAMESPACE, &first.0)?;
    let leader = election.between_renewals().await?;
    let (crashed, crashed_at) = (Instant::now(), Timestamp::now());
    // not restarted meanwhile: it would be one more process that can take over
    faults.kill_and_hold();
    let crash = election.taken_over(&leader, crashed_at).await?;
    eprintln!("another picker leads {crash:.1?} after a crash");
    ensure!(
        crash <= AFTER_CRASH,
        "another leads {crash:?} after a crash"
    );
    another(environment, &first).await?;
    let ready = Instant::now();
    well(seen).await?;
    let recovered = Instant::now();
    let noticed = recovered - ready;
    ensure!(noticed <= NOTICED, "answers only {noticed:.1?} later");
    faults.let_restart();

    let second = leader_of_two(environment).await?;
    let leader = election.claim().await.map_err(anyhow::Error::msg)?;
    let pods: Api<Pod> = Api::namespaced(west.client(), isthmus::POOL_NAMESPACE);
    let deleted = Timestamp::now();
    pods.delete(&second.0, &DeleteParams::default()).await?;
    let clean = election.taken_over(&leader, deleted).await?;
    eprintln!("another picker leads {clean:.1?} after the end of the leader");
    ensure!(clean <= AFTER_END, "another leads only after {clean:?}");
    another(environment, &second).await?;
    eventually("the former leader is gone", EVER, async || {
        match pods.get_opt(&second.0).await {
            Ok(None) => Ok(()),
            Ok(Some(_)) => Err("it drains".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    })
    .await?;
    well(seen).await?;

    let excused = |failure: &Failure| {
        failure.ended >= crashed
            && failure.sent <= recovered
            && failure.ended - failure.sent < NO_ANSWER
    };
    let seen = seen.lock();
    let mut failures = seen.failures.iter();
    if let Some(Failure { sent, ended, what }) = failures.find(|failure| !excused(failure)) {
        let took = *ended - *sent;
        match sent.checked_duration_since(crashed) {
            Some(after) => bail!("sent {after:.1?} after the crash, took {took:.1?}: {what}"),
            None => bail!(
                "sent {:.1?} before the crash, took {took:.1?}: {what}",
                crashed - *sent
            ),
        }
    }
    Ok(())
}

/// The Role of the docs.
fn role() -> &'static str {
    let blocks = DOCS.split("```yaml\n").skip(1);
    let mut blocks = blocks.filter_map(|block| block.split("```").next());
    let role = blocks.find(|block| block.contains("kind: Role\n") && block.contains("leases"));
    role.unwrap_or_default()
}

/// Sends requests to the local pool until it is done.
async fn load(environment: &Environment, seen: &Mutex<Seen>, done: &CancellationToken) {
    let body = json!({"model": "llama", "prompt": "hello", "max_tokens": 5}).to_string();
    let mut pace = interval(EVERY);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !done.is_cancelled() {
        pace.tick().await;
        let sent = Instant::now();
        let answer = environment
            .gateway
            .post("/v1/completions", HeaderMap::new(), body.clone())
            .await;
        let failure = match answer {
            Ok(answer) if answer.status == 200 && answer.json()["usage"].is_object() => None,
            Ok(answer) => Some(format!("{}: {}", answer.status, answer.text())),
            Err(error) => Some(error.to_string()),
        };
        let mut seen = seen.lock();
        match failure {
            None => seen.in_a_row += 1,
            Some(what) => {
                seen.in_a_row = 0;
                let ended = Instant::now();
                seen.failures.push(Failure { sent, ended, what });
            }
        }
    }
}

/// Waits until requests are answered one after another, counting from now.
async fn well(seen: &Mutex<Seen>) -> Result<()> {
    seen.lock().in_a_row = 0;
    eventually("requests are answered", EVER, async || {
        let seen = seen.lock();
        if seen.in_a_row >= WELL {
            return Ok(());
        }
        let last = seen.failures.last().map(|failure| failure.what.clone());
        Err(format!(
            "{} in a row; the last failure: {last:?}",
            seen.in_a_row
        ))
    })
    .await?;
    Ok(())
}

/// Waits until there are two pickers in leader mode, and the one that leads is the one that is ready.
async fn leader_of_two(environment: &Environment) -> Result<Process> {
    let leader = eventually("one of two pickers leads", EVER, async || {
        let pickers = pickers(environment).await?;
        match &*pickers {
            [one, other] => match (one.leads, other.leads) {
                (Some(true), Some(false)) if one.ready && !other.ready => Ok(one.process()),
                (Some(false), Some(true)) if other.ready && !one.ready => Ok(other.process()),
                _ => Err(format!("{pickers:?}")),
            },
            _ => Err(format!("{pickers:?}")),
        }
    });
    Ok(leader.await?)
}

/// Waits until a process other than this one leads and is ready: its node probes it every second.
async fn another(environment: &Environment, former: &Process) -> Result<()> {
    eventually("another picker leads", EVER, async || {
        let pickers = pickers(environment).await?;
        let mut leaders = pickers.iter().filter(|one| one.leads == Some(true));
        match leaders.next() {
            Some(leader) if leader.ready && leader.process() != *former => Ok(()),
            _ => Err(format!("{pickers:?}")),
        }
    })
    .await?;
    Ok(())
}

/// A picker that is not being deleted.
#[derive(Debug)]
struct Picker {
    pod: String,
    restarts: i32,
    /// By its health on 9003, which its node asks for.
    ready: bool,
    /// Absent: it does not say, or not yet.
    leads: Option<bool>,
}

// === impl Picker ===

impl Picker {
    fn process(&self) -> Process {
        (self.pod.clone(), self.restarts)
    }
}

async fn pickers(environment: &Environment) -> Result<Vec<Picker>, String> {
    let pods: Api<Pod> = Api::namespaced(environment.west.client(), isthmus::POOL_NAMESPACE);
    let pods = pods.list(&ListParams::default().labels(PICKERS)).await;
    let pods = pods.map_err(|error| error.to_string())?.items;
    let mut pickers = Vec::new();
    for pod in pods {
        if pod.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let (name, ready) = (pod.name_any(), is_ready(&pod));
        let status = pod.status.unwrap_or_default();
        let address = status.pod_ip.unwrap_or_default();
        let containers = status.container_statuses.unwrap_or_default();
        let page = Requests::new(format!("http://{address}:9090"));
        let page = page.get("/metrics").await.map(|page| page.text()).ok();
        let page = page.filter(|page| page.contains("\nepp_leader "));
        pickers.push(Picker {
            pod: name,
            restarts: containers.iter().map(|one| one.restart_count).sum(),
            ready,
            leads: page.map(|page| sum_metric(&page, "epp_leader") > 0.5),
        });
    }
    Ok(pickers)
}

async fn delete(environment: &Environment, object: &str) -> Result<()> {
    let delete = [
        "delete",
        object,
        "-n",
        isthmus::POOL_NAMESPACE,
        "--ignore-not-found",
        "--wait=false",
    ];
    let deleted = environment.west.kubectl(&delete).await;
    deleted.with_context(|| format!("deleting {object}"))?;
    Ok(())
}
