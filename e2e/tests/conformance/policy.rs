//! `ClusterSelectionPolicy`, which is ours: another gateway need not have it. east and south export a pool, west imports it and
//! has our gateway.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::pair::sum_metric;
use http::HeaderMap;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::ListParams};
use serde_json::{Value, json};
use testbed::{Cluster, Requests, eventually, isthmus};
use tokio::time::Instant;

use crate::{
    scene::Stage,
    stand::{SOON, Stand, model_servers, scale},
};

const POLICY: &str = "llama";
const PICKER: &str = "llama-epp";
/// As in the policy. Its default is 30 s.
const FAILBACK: Duration = Duration::from_secs(10);
/// The share of east follows its queue within this.
const FOLLOWS: Duration = Duration::from_secs(10);
/// A share that has followed: less than the half at first by far more than the policy's hysteresis. With the queue of
/// [`saturate`] it ends at 83.
const FOLLOWED: u64 = 350;
/// Answers that are counted. Of so many, equal shares would give each cluster 30.
const ANSWERS: usize = 60;

/// The local pool first, then the others by name.
pub(crate) async fn an_order_holds_but_while_its_first_cluster_fails_and_some_time_after(
    stage: &Stage,
) -> Result<()> {
    let mut stand = Stand::settle(stage).await?;
    stand.add_local_pool().await?;
    let outcome = fail_over_and_back(&stand).await;
    remove_policy(&stand.west).await?;
    for deployment in [PICKER, isthmus::MODEL_SERVERS] {
        scale(&stand.west, deployment, 0).await?;
    }
    outcome
}

async fn fail_over_and_back(stand: &Stand<'_>) -> Result<()> {
    let rest = json!({
        "type": "ActivePassive",
        "localPool": "Include",
        "failbackSeconds": FAILBACK.as_secs(),
    });
    stand.west.apply_yaml(&policy(rest)).await?;
    stand
        .under_load(async || {
            stand.answered_by(&["west"]).await?;
            scale(&stand.west, PICKER, 0).await?;
            stand.answered_by(&["east"]).await?;
            let back = Instant::now();
            scale(&stand.west, PICKER, 1).await?;
            stand.answered_by(&["west"]).await?;
            let first = stand.first_answer("west", back);
            let waited = first.context("no answer of west")? - back;
            ensure!(waited >= FAILBACK, "requests are back after {waited:.1?}");
            Ok(())
        })
        .await
}

/// Shares are assignments: routes, which may be large, stay as they are.
pub(crate) async fn the_share_of_a_saturated_cluster_falls_within_10_s_without_new_routes(
    stage: &Stage,
) -> Result<()> {
    let stand = Stand::settle(stage).await?;
    let port = json!([{"op": "add", "path": "/spec/ports/-", "value": {
        "name": "http-metrics", "port": 9090, "targetPort": "http-metrics",
    }}]);
    for exporter in [&stand.east, &stand.south] {
        patch_picker(exporter, &port).await?;
    }
    let outcome = saturate(&stand).await;
    remove_policy(&stand.west).await?;
    set_queue(&stand.east, Value::Null).await?;
    let port = json!([
        {"op": "test", "path": "/spec/ports/2/name", "value": "http-metrics"},
        {"op": "remove", "path": "/spec/ports/2"},
    ]);
    for exporter in [&stand.east, &stand.south] {
        patch_picker(exporter, &port).await?;
    }
    outcome
}

async fn saturate(stand: &Stand<'_>) -> Result<()> {
    let rest = json!({"type": "MetricsBased"});
    stand.west.apply_yaml(&policy(rest)).await?;
    let gateway = gateway(&stand.west).await?;
    eventually("the metrics of both clusters are read", SOON, async || {
        for cluster in ["east", "south"] {
            let seen = selection(&gateway, cluster).await?;
            if !seen["metrics"].is_object() || seen["share"].as_u64() <= Some(FOLLOWED) {
                return Err(seen.to_string());
            }
        }
        Ok(())
    })
    .await?;
    stand
        .under_load(async || {
            stand.answered_by(&["east", "south"]).await?;
            let before = responses(&gateway).await?;
            set_queue(&stand.east, json!("ramp:0:50:2s")).await?;
            eventually("the share of east falls", FOLLOWS, async || {
                let seen = selection(&gateway, "east").await?;
                let share = seen["share"].as_u64();
                if share.is_some_and(|share| share < FOLLOWED) {
                    Ok(())
                } else {
                    Err(seen.to_string())
                }
            })
            .await?;
            let since = Instant::now();
            eventually("requests follow the share", SOON, async || {
                let answers = stand.answers_since(since);
                let of = |cluster: &str| answers.get(cluster).copied().unwrap_or(0);
                let (east, south) = (of("east"), of("south"));
                if east + south < ANSWERS {
                    Err(format!("{answers:?}"))
                } else if 2 * east < south + south / 2 {
                    Ok(())
                } else {
                    Err(format!("too many of east: {answers:?}"))
                }
            })
            .await?;
            let after = responses(&gateway).await?;
            let routes = after.routes - before.routes;
            ensure!(routes < 0.5, "{routes} responses with routes");
            ensure!(after.endpoints > before.endpoints, "no new assignment");
            Ok(())
        })
        .await
}

/// A policy for the import, as JSON, which is YAML.
fn policy(rest: Value) -> String {
    let mut policy = json!({
        "apiVersion": "isthmus.dev/v1alpha1",
        "kind": "ClusterSelectionPolicy",
        "metadata": {"name": POLICY, "namespace": isthmus::POOL_NAMESPACE},
        "spec": rest,
    });
    policy["spec"]["targetRefs"] = json!([{
        "group": "inference.networking.x-k8s.io", "kind": "InferencePoolImport", "name": isthmus::POOL,
    }]);
    policy.to_string()
}

async fn remove_policy(west: &Cluster) -> Result<()> {
    let namespace = isthmus::POOL_NAMESPACE;
    let delete = [
        "delete",
        "clusterselectionpolicy",
        POLICY,
        "-n",
        namespace,
        "--ignore-not-found",
    ];
    west.kubectl(&delete).await?;
    Ok(())
}

/// Changes the Service of the endpoint picker by a JSON patch.
async fn patch_picker(cluster: &Cluster, patch: &Value) -> Result<()> {
    let (namespace, patch) = (isthmus::POOL_NAMESPACE, patch.to_string());
    let command = [
        "patch",
        "service",
        PICKER,
        "-n",
        namespace,
        "--type=json",
        "-p",
        &patch,
    ];
    cluster.kubectl(&command).await?;
    Ok(())
}

/// Has the simulated model servers report so many waiting requests, or with `null` as many as there are.
async fn set_queue(cluster: &Cluster, waiting: Value) -> Result<()> {
    let knobs = json!({"metrics": {"waiting": waiting}}).to_string();
    for (name, address) in model_servers(cluster).await? {
        let server = Requests::new(format!("http://{address}:8000"));
        let answer = server.post("/admin/config", HeaderMap::new(), knobs.clone());
        let answer = answer.await?;
        ensure!(answer.status == 200, "{name}: {}", answer.text());
    }
    Ok(())
}

/// The pages of the gateway.
async fn gateway(west: &Cluster) -> Result<Requests> {
    let pods: Api<Pod> = Api::namespaced(west.client(), isthmus::NAMESPACE);
    let label = format!("app.kubernetes.io/name={}", isthmus::GATEWAY);
    let pods = pods.list(&ListParams::default().labels(&label)).await?;
    let address = pods.items.into_iter().find_map(|pod| pod.status?.pod_ip);
    let address = address.context("no gateway")?;
    Ok(Requests::new(format!("http://{address}:8080")))
}

/// What the gateway knows of a cluster of the import.
async fn selection(gateway: &Requests, cluster: &str) -> Result<Value, String> {
    let page = gateway.get("/debug/selection").await;
    let page = page.map_err(|error| error.to_string())?;
    let page: Value = serde_json::from_slice(&page.body).map_err(|error| error.to_string())?;
    let import = format!("{}/{}", isthmus::POOL_NAMESPACE, isthmus::POOL);
    Ok(page[&import]["clusters"][cluster].clone())
}

/// Numbers of ADS responses that the gateway has sent.
struct Responses {
    routes: f64,
    endpoints: f64,
}

async fn responses(gateway: &Requests) -> Result<Responses> {
    let page = gateway.get("/metrics").await?.text();
    let of = |kind: &str| {
        let name = format!(r#"gateway_xds_responses_total{{type="{kind}"}}"#);
        sum_metric(&page, &name)
    };
    let responses = Responses {
        routes: of("rds"),
        endpoints: of("eds"),
    };
    ensure!(responses.routes > 0.0, "no counter of responses in {page}");
    Ok(responses)
}
