//! What Istio does not do with InferencePools. Where one of these fails, Istio does it by now: `docs/istio.md` says otherwise.

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::{
    dump, pool,
    stand::{OF_GATEWAY_API, Stand},
};

/// Of the route that the chart makes.
const ROUTE: &str = "llm.llama.0";
const EXT_PROC: &str = "envoy.filters.http.ext_proc";

pub(crate) async fn a_rule_with_two_pools_asks_the_picker_of_one(stand: &Stand) -> Result<()> {
    stand.release(pool::VALUES, "llama", &[]).await?;
    stand.apply("An import as a pool without pods").await?;
    stand.forget("llama-import").await?;
    let route = "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: halves, namespace: llm}
spec:
  parentRefs: [{name: gw}]
  rules:
  - matches: [{path: {type: PathPrefix, value: /halves}}]
    backendRefs:
    - {group: inference.networking.k8s.io, kind: InferencePool, name: llama, weight: 1}
    - {group: inference.networking.k8s.io, kind: InferencePool, name: llama-import, weight: 1}
";
    stand.cluster.apply_yaml(route).await?;
    let what = "a rule leads to two pools and asks one picker";
    let outcome = stand
        .configured(OF_GATEWAY_API, what, |dump| {
            let route = dump::route(dump, "llm.halves.0")?;
            let clusters = &route["route"]["weighted_clusters"]["clusters"];
            let pools = clusters.as_array().map_or(0, Vec::len);
            ensure!(pools == 2, "{pools} pools: {route}");
            // of the clusters themselves, none has a picker of its own
            ensure!(!clusters.to_string().contains(EXT_PROC), "{clusters}");
            let picker = picker(&route);
            let last = "outbound|9002||llama-import-epp.llm.svc.cluster.local";
            ensure!(picker == Some(last), "{picker:?}");
            Ok(())
        })
        .await;
    stand.forget("halves").await?;
    outcome
}

pub(crate) async fn a_cors_filter_drops_the_picker(stand: &Stand) -> Result<()> {
    let route = "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: cors, namespace: llm}
spec:
  parentRefs: [{name: gw}]
  rules:
  - matches: [{path: {type: PathPrefix, value: /cors}}]
    filters: [{type: CORS, cors: {allowOrigins: ['https://example.com']}}]
    backendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: llama}]
";
    stand.release(pool::VALUES, "llama", &[]).await?;
    stand.cluster.apply_yaml(route).await?;
    let what = "of two routes to a pool the one with CORS asks no picker";
    let outcome = stand
        .configured(OF_GATEWAY_API, what, |dump| {
            let with = dump::route(dump, "llm.cors.0")?;
            let pool = with["route"]["cluster"].as_str().unwrap_or_default();
            ensure!(pool.starts_with("outbound|54321||llama-ip-"), "{with}");
            ensure!(picker(&with).is_none(), "{with}");
            let without = dump::route(dump, ROUTE)?;
            ensure!(picker(&without).is_some(), "{without}");
            Ok(())
        })
        .await;
    stand.forget("cors").await?;
    outcome
}

/// The cluster of the endpoint picker that a route asks.
fn picker(route: &Value) -> Option<&str> {
    let own = &route["typed_per_filter_config"][EXT_PROC]["overrides"];
    own["grpc_service"]["envoy_grpc"]["cluster_name"].as_str()
}
