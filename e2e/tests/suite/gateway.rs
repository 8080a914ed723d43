//! The gateway when the objects it depends on are bad, or vanish.

use std::time::Duration;

use anyhow::{Context, Result};
use crd::{conditions, inference_pool::InferencePool};
use kube::Api;
use testbed::{Manifests, eventually, isthmus};
use tokio_util::sync::CancellationToken;

use e2e::environment::Environment;
use e2e::pair::import;

/// Several steps of several programs on a busy machine.
const SOON: Duration = Duration::from_secs(30);
pub(crate) const GATEWAY_PODS: &str = "app.kubernetes.io/name=isthmus-gateway";
const ENVOY_PODS: &str = "gateway.networking.k8s.io/gateway-name";

/// The API server admits it, and refuses to list pods by it.
const ODD: &str = r#"
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: odd, namespace: llm}
spec:
  selector: {matchLabels: {"a b": x}}
  targetPorts: [{number: 8000}]
  endpointPickerRef: {name: llama-epp, port: {number: 9002}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: odd, namespace: llm}
spec:
  parentRefs: [{name: inference}]
  rules:
  - matches: [{path: {value: /odd}}]
    backendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: odd}]
"#;

/// G18. What starts while such a pool exists works: the gateway, and an Envoy that has no configuration yet.
pub(crate) async fn a_pool_with_an_illegal_selector_stops_nobody_else(
    environment: &Environment,
) -> Result<()> {
    environment.settle().await?;
    let west = &environment.west;
    west.apply_yaml(ODD).await?;
    let outcome = async {
        restarted(environment, isthmus::NAMESPACE, GATEWAY_PODS).await?;
        restarted(environment, isthmus::POOL_NAMESPACE, ENVOY_PODS).await?;
        environment.serving().await?;
        eventually("the odd pool alone says why", SOON, async || {
            let (status, reason, message) = resolved_refs(environment, "odd").await?;
            if status == "False"
                && reason == "InvalidSelector"
                && message.contains("unable to parse")
            {
                Ok(())
            } else {
                Err(format!("{status}/{reason}: {message}"))
            }
        })
        .await?;
        anyhow::Ok(())
    }
    .await;
    for kind in ["httproute", "inferencepool"] {
        west.kubectl(&["delete", kind, "odd", "-n", isthmus::POOL_NAMESPACE])
            .await?;
    }
    outcome
}

/// Kills what runs in the one pod with this label, and waits until it is ready again.
async fn restarted(environment: &Environment, namespace: &str, label: &str) -> Result<()> {
    let west = &environment.west;
    let pods = environment.pods_of(west, namespace, label).await;
    let pods = pods.map_err(anyhow::Error::msg)?;
    let name = pods.keys().next().context("no pod to restart")?;
    let restarts = async || environment.restarts(west, namespace, name).await;
    let before = restarts().await.map_err(anyhow::Error::msg)?;
    environment.kill_pod(west, namespace, name)?;
    eventually(&format!("{name} is ready again"), SOON, async || {
        let ready = environment.ready_pods(west, namespace, label).await?;
        if restarts().await? > before && ready.contains(name) {
            Ok(())
        } else {
            Err(format!("ready: {ready:?}"))
        }
    })
    .await?;
    Ok(())
}

/// What the gateway says of a pool's references: status, reason, message.
async fn resolved_refs(
    environment: &Environment,
    pool: &str,
) -> Result<(String, String, String), String> {
    let pools: Api<InferencePool> =
        Api::namespaced(environment.west.client(), isthmus::POOL_NAMESPACE);
    let pool = pools.get(pool).await.map_err(|error| error.to_string())?;
    let parents = pool.status.and_then(|status| status.parents);
    let mut conditions = parents.into_iter().flatten().filter_map(|parent| {
        conditions::find(&parent.conditions?, conditions::RESOLVED_REFS).cloned()
    });
    let found = conditions.next().ok_or("no condition ResolvedRefs")?;
    Ok((found.status, found.reason, found.message))
}

/// K8: the CRD's end is not the end of each import, and neither is its empty return.
pub(crate) async fn no_request_fails_while_the_import_crd_goes_and_returns(
    environment: &Environment,
) -> Result<()> {
    const CRD: &str = "crd/inferencepoolimports.inference.networking.x-k8s.io";
    environment.settle().await?;
    let west = &environment.west;
    let done = CancellationToken::new();
    let traffic = async {
        let mut sent = 0;
        while !done.is_cancelled() {
            environment
                .answered(1)
                .await
                .with_context(|| format!("after {sent} requests with the CRD gone, or back"))?;
            sent += 1;
        }
        anyhow::Ok(sent)
    };
    let events = async {
        let _done = done.clone().drop_guard();
        west.kubectl(&["delete", CRD, "--timeout=25s"]).await?;
        route_says(environment, "CRDMissing").await?;
        environment.answered(5).await?;
        for file in &Manifests::find().await?.own {
            west.apply_file(file).await?;
        }
        eventually("the import is written again", SOON, async || {
            let import = import(west).await?.ok_or("no import")?;
            if import.clusters().is_empty() {
                return Err("no entries".to_owned());
            }
            Ok(())
        })
        .await?;
        route_says(environment, "ResolvedRefs").await
    };
    let (answered, outcome) = tokio::join!(traffic, events);
    if outcome.is_err() {
        for file in &Manifests::find().await?.own {
            west.apply_file(file).await?;
        }
    }
    outcome?;
    answered.context("while the CRD went and returned")?;
    // under the new CRD an end is one again
    environment.serving().await?;
    isthmus::withdraw(&environment.east).await?;
    environment.no_import(SOON).await?;
    eventually("a withdrawn import is answered 500", SOON, async || {
        let answer = environment.gateway.chat("llama", "hello").await;
        let status = answer.map_err(|error| error.to_string())?.status;
        if status == 500 {
            Ok(())
        } else {
            Err(status.to_string())
        }
    })
    .await?;
    Ok(())
}

/// Waits until the sample route's references are resolved, for this reason.
async fn route_says(environment: &Environment, reason: &str) -> Result<()> {
    let what = format!("the route says ResolvedRefs=True/{reason}");
    eventually(&what, SOON, async || {
        let condition = environment
            .route_condition(conditions::RESOLVED_REFS)
            .await?;
        let condition = condition.ok_or("no condition ResolvedRefs")?;
        if condition.status == "True" && condition.reason == reason {
            Ok(())
        } else {
            Err(format!("{condition:?}"))
        }
    })
    .await?;
    Ok(())
}
