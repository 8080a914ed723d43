//! An endpoint picker is replaced under load: no request fails, no answer is cut.

use std::{collections::BTreeSet, fmt, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt, stream::FuturesUnordered};
use http::HeaderMap;
use parking_lot::Mutex;
use serde_json::{Value, json};
use testbed::{Cluster, eventually, isthmus};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use e2e::environment::{Environment, MODEL_SERVERS, PICKERS};
use e2e::pair::import;

const SOON: Duration = Duration::from_secs(30);
/// The picker's drain, and the API server's word for it.
const DRAINED: Duration = Duration::from_secs(45);
/// 20 requests a second.
const EVERY: Duration = Duration::from_millis(50);
/// Losses that a failure shows.
const SHOWN: usize = 40;
pub(crate) const EPP: &str = "deployment/llama-epp";
/// In a failure's message: no answer, or not one of the model's.
const FAILED: &str = "FAILED";
/// An answer of the model's that ended too early.
const CUT: &str = "CUT";

/// Leads to west's own pool what does not go to the import.
pub(crate) const LOCAL_ROUTE: &str = r"
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: local, namespace: llm}
spec:
  parentRefs: [{name: inference}]
  rules:
  - matches: [{path: {type: Exact, value: /v1/completions}}]
    backendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: llama}]
";

/// The picker's pods, without an address of their own.
const HEADLESS: &str = r"
apiVersion: v1
kind: Service
metadata: {name: llama-epp-headless, namespace: llm}
spec:
  clusterIP: None
  selector: {app: llama-epp}
  ports:
  - {name: grpc-ext-proc, port: 9002, targetPort: grpc-ext-proc, appProtocol: http2}
  - {name: grpc-health, port: 9003, targetPort: grpc-health}
";
const HEADLESS_NAME: &str = "llama-epp-headless";

/// What happened, and when, for a failure's message.
struct Story {
    began: Instant,
    lines: Mutex<Vec<String>>,
}

/// One request of the load, by its number.
#[derive(Clone, Copy)]
struct Asked {
    number: u32,
    local: bool,
    streamed: bool,
    tokens: u32,
}

/// Model servers by cluster: who may answer.
struct Servers {
    east: BTreeSet<String>,
    west: BTreeSet<String>,
}

pub(crate) async fn no_request_is_lost_while_an_endpoint_picker_behind_one_address_is_rolled(
    environment: &Environment,
) -> Result<()> {
    environment.settle().await?;
    rolled_under_load(environment).await
}

pub(crate) async fn no_request_is_lost_while_a_headless_endpoint_picker_is_rolled(
    environment: &Environment,
) -> Result<()> {
    environment.settle().await?;
    let refer = |name: &str| json!({"spec": {"endpointPickerRef": {"name": name}}}).to_string();
    for cluster in [&environment.east, &environment.west] {
        cluster.apply_yaml(HEADLESS).await?;
        patch_pool(cluster, &refer(HEADLESS_NAME)).await?;
    }
    let outcome = async {
        eventually("the import names the headless picker", SOON, async || {
            let import = import(&environment.west).await?.ok_or("no import")?;
            let pickers = import
                .clusters()
                .iter()
                .filter_map(|one| one.endpoint_picker.as_ref());
            let names: Vec<_> = pickers.map(|picker| picker.name.clone()).collect();
            if names == [HEADLESS_NAME] {
                Ok(())
            } else {
                Err(format!("{names:?}"))
            }
        })
        .await?;
        environment.serving().await?;
        rolled_under_load(environment).await
    }
    .await;
    for cluster in [&environment.east, &environment.west] {
        patch_pool(cluster, &refer("llama-epp")).await?;
        let delete = [
            "delete",
            "service",
            HEADLESS_NAME,
            "-n",
            isthmus::POOL_NAMESPACE,
        ];
        cluster.kubectl(&delete).await?;
    }
    outcome
}

/// Replaces the pickers of both clusters in each way, while west's gateway asks both.
async fn rolled_under_load(environment: &Environment) -> Result<()> {
    let both = [&environment.east, &environment.west];
    environment.west.apply_yaml(LOCAL_ROUTE).await?;
    let outcome = async {
        each(both, |cluster| probe_servers(environment, cluster, 10)).await?;
        loaded(environment).await
    }
    .await;
    each(both, |cluster| scale(cluster, 1)).await?;
    each(both, |cluster| probe_servers(environment, cluster, 1)).await?;
    let delete = [
        "delete",
        "httproute",
        "local",
        "-n",
        isthmus::POOL_NAMESPACE,
    ];
    environment.west.kubectl(&delete).await?;
    outcome
}

async fn loaded(environment: &Environment) -> Result<()> {
    let servers = Servers {
        east: environment
            .pods(&environment.east)
            .await?
            .into_keys()
            .collect(),
        west: environment
            .pods(&environment.west)
            .await?
            .into_keys()
            .collect(),
    };
    eventually("both pools answer", SOON, async || {
        for number in 0..8 {
            ask(environment, Asked::of(number), &servers).await?;
        }
        Ok::<_, String>(())
    })
    .await?;
    let story = Arc::new(Story {
        began: Instant::now(),
        lines: Mutex::default(),
    });
    let done = CancellationToken::new();
    let events = async {
        let _done = done.clone().drop_guard();
        replaced(environment, &story).await
    };
    let (sent, outcome) = tokio::join!(load(environment, &servers, &story, &done), events);
    let lines = story.lines.lock();
    let count = |how: &str| lines.iter().filter(|line| line.contains(how)).count();
    let (failed, cut) = (count(FAILED), count(CUT));
    if failed + cut > 0 {
        let mut shown: Vec<_> = lines.iter().take(SHOWN).map(String::as_str).collect();
        if lines.len() > SHOWN {
            shown.push("and so on");
        }
        bail!(
            "of {sent} requests {failed} failed, {cut} were cut:\n{}",
            shown.join("\n")
        );
    }
    outcome.with_context(|| lines.join("\n"))?;
    ensure!(sent > 300, "only {sent} requests: the load was not steady");
    Ok(())
}

async fn replaced(environment: &Environment, story: &Story) -> Result<()> {
    let both = [&environment.east, &environment.west];
    story.add("roll the only picker");
    each(both, roll).await?;
    story.add("rolled; the old one drains");
    each(both, |cluster| drained(environment, cluster, 1)).await?;
    story.add("delete the only picker");
    each(both, |cluster| delete_one(environment, cluster, 1)).await?;
    story.add("another is ready; scale to two");
    each(both, |cluster| scale(cluster, 2)).await?;
    story.add("roll two pickers");
    each(both, roll).await?;
    story.add("rolled; delete one of two");
    each(both, |cluster| delete_one(environment, cluster, 2)).await?;
    story.add("another is ready; the old ones drain");
    each(both, |cluster| drained(environment, cluster, 2)).await?;
    story.add("all are gone");
    Ok(())
}

/// Gives the model servers' readiness probe so many seconds. With the sample's one a busy machine makes servers unready
/// now and then, which is no loss of a picker's.
async fn probe_servers(environment: &Environment, cluster: &Cluster, seconds: u32) -> Result<()> {
    let patch = json!({"spec": {"template": {"spec": {"containers": [
        {"name": "model-server", "readinessProbe": {"timeoutSeconds": seconds}},
    ]}}}});
    let deployment = format!("deployment/{}", isthmus::MODEL_SERVERS);
    let patch = patch.to_string();
    let command = [
        "patch",
        &deployment,
        "-n",
        isthmus::POOL_NAMESPACE,
        "-p",
        &patch,
    ];
    cluster.kubectl(&command).await?;
    isthmus::available(cluster, isthmus::POOL_NAMESPACE, isthmus::MODEL_SERVERS).await?;
    eventually("only the new model servers are left", SOON, async || {
        let pods = environment.pods_of(cluster, isthmus::POOL_NAMESPACE, MODEL_SERVERS);
        match pods.await? {
            pods if pods.len() == 3 => Ok(()),
            pods => Err(format!("{pods:?}")),
        }
    })
    .await?;
    Ok(())
}

async fn each<'a, F: Future<Output = Result<()>>>(
    clusters: [&'a Cluster; 2],
    act: impl Fn(&'a Cluster) -> F,
) -> Result<()> {
    let [one, other] = clusters.map(act);
    tokio::try_join!(one, other)?;
    Ok(())
}

async fn roll(cluster: &Cluster) -> Result<()> {
    let restart = ["rollout", "restart", EPP, "-n", isthmus::POOL_NAMESPACE];
    cluster.kubectl(&restart).await?;
    Ok(isthmus::available(cluster, isthmus::POOL_NAMESPACE, "llama-epp").await?)
}

async fn scale(cluster: &Cluster, replicas: usize) -> Result<()> {
    let replicas = format!("--replicas={replicas}");
    let scale = ["scale", EPP, "-n", isthmus::POOL_NAMESPACE, &replicas];
    cluster.kubectl(&scale).await?;
    Ok(isthmus::available(cluster, isthmus::POOL_NAMESPACE, "llama-epp").await?)
}

/// Deletes one of so many pickers, with its grace period, and waits until they are so many again.
async fn delete_one(environment: &Environment, cluster: &Cluster, replicas: usize) -> Result<()> {
    let ready = async || {
        let ready = environment.ready_pods(cluster, isthmus::POOL_NAMESPACE, PICKERS);
        ready.await
    };
    let victim = ready().await.map_err(anyhow::Error::msg)?;
    let victim = victim.into_iter().next().context("no picker is ready")?;
    let delete = [
        "delete",
        "pod",
        &victim,
        "-n",
        isthmus::POOL_NAMESPACE,
        "--wait=false",
    ];
    cluster.kubectl(&delete).await?;
    eventually("another picker is ready", SOON, async || {
        let ready = ready().await?;
        if ready.len() == replicas && !ready.contains(&victim) {
            Ok(())
        } else {
            Err(format!("{ready:?}"))
        }
    })
    .await?;
    Ok(())
}

/// Waits until only so many pickers are left, with those that drain.
async fn drained(environment: &Environment, cluster: &Cluster, replicas: usize) -> Result<()> {
    eventually("the old pickers are gone", DRAINED, async || {
        let pods = environment
            .pods_of(cluster, isthmus::POOL_NAMESPACE, PICKERS)
            .await?;
        if pods.len() == replicas {
            Ok(())
        } else {
            Err(format!("{pods:?}"))
        }
    })
    .await?;
    Ok(())
}

async fn patch_pool(cluster: &Cluster, patch: &str) -> Result<()> {
    let command = [
        "patch",
        "inferencepool",
        isthmus::POOL,
        "-n",
        isthmus::POOL_NAMESPACE,
        "--type=merge",
        "-p",
        patch,
    ];
    cluster.kubectl(&command).await?;
    Ok(())
}

/// Sends requests at an even pace until it is done, and waits for their answers.
async fn load(
    environment: &Environment,
    servers: &Servers,
    story: &Story,
    done: &CancellationToken,
) -> u32 {
    let mut pace = interval(EVERY);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut open = FuturesUnordered::new();
    let mut sent = 0;
    loop {
        tokio::select! {
            () = done.cancelled() => break,
            _ = pace.tick() => {
                let asked = Asked::of(sent);
                open.push(watched(environment, asked, servers, story));
                sent += 1;
            }
            Some(()) = open.next() => {}
        }
    }
    while open.next().await.is_some() {}
    sent
}

async fn watched(environment: &Environment, asked: Asked, servers: &Servers, story: &Story) {
    let sent = Instant::now();
    if let Err(problem) = ask(environment, asked, servers).await {
        let after = sent.elapsed();
        story.add(&format!("{asked}, sent {after:.1?} before: {problem}"));
    }
}

async fn ask(environment: &Environment, asked: Asked, servers: &Servers) -> Result<(), String> {
    let (path, body) = asked.body();
    let answer = environment
        .gateway
        .post(path, HeaderMap::new(), body.to_string())
        .await;
    let answer = answer.map_err(|error| {
        let problem = error.to_string();
        let how = if problem.contains("broke off") {
            CUT
        } else {
            FAILED
        };
        format!("{how}: {problem}")
    })?;
    if answer.status != 200 {
        return Err(format!("{FAILED}: {}: {}", answer.status, answer.text()));
    }
    let whole = if asked.streamed {
        answer.text().trim_end().ends_with("data: [DONE]")
    } else {
        answer.json()["usage"].is_object()
    };
    if !whole {
        return Err(format!("{CUT} after {} bytes", answer.body.len()));
    }
    let wanted = if asked.local {
        &servers.west
    } else {
        &servers.east
    };
    match answer.pod() {
        Some(pod) if wanted.contains(pod) => Ok(()),
        pod => Err(format!("{FAILED}: answered by {pod:?}")),
    }
}

// === impl Story ===

impl Story {
    fn add(&self, what: &str) {
        let at = self.began.elapsed().as_secs_f64();
        self.lines.lock().push(format!("{at:6.2} s: {what}"));
    }
}

// === impl Asked ===

impl Asked {
    /// In turn: the import and the local pool, whole and as events; one in eight takes 4 s.
    fn of(number: u32) -> Self {
        Self {
            number,
            local: number % 2 == 1,
            streamed: number / 2 % 2 == 1,
            tokens: if number / 4 % 4 == 3 { 800 } else { 60 },
        }
    }

    fn body(self) -> (&'static str, Value) {
        let mut body =
            json!({"model": "llama", "max_tokens": self.tokens, "stream": self.streamed});
        let text = format!("request {}", self.number);
        let path = if self.local {
            body["prompt"] = json!(text);
            "/v1/completions"
        } else {
            body["messages"] = json!([{"role": "user", "content": text}]);
            "/v1/chat/completions"
        };
        (path, body)
    }
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            number,
            local,
            streamed,
            tokens,
        } = self;
        let to = if *local { "pool" } else { "import" };
        let kind = if *streamed { "SSE" } else { "JSON" };
        write!(f, "request {number} ({to}, {kind}, {tokens} tokens)")
    }
}
