//! A Gateway that serves a cluster's own sample pool to others, as ParentMode needs it.

use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::ListParams};
use testbed::{Cluster, eventually, isthmus};

/// Its Envoys end within this; what they have open may take longer.
const ENDS: Duration = Duration::from_secs(30);

/// The host under which it serves the pool.
pub const HOST: &str = "llama.example.com";

/// Of the route's hosts, one is not the listener's.
const MANIFEST: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: front, namespace: llm}
spec:
  gatewayClassName: isthmus
  listeners:
  - {name: web, protocol: HTTP, port: 80, hostname: "*.example.com"}
  - {name: unused, protocol: HTTP, port: 81, hostname: "unused.example.org"}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: front, namespace: llm}
spec:
  parentRefs: [{name: front}]
  hostnames: [llama.example.com, llama.example.net]
  rules:
  - backendRefs:
    - {group: inference.networking.k8s.io, kind: InferencePool, name: llama}
"#;

/// Creates it, with the gateway's control plane; returns its address once it is programmed.
///
/// # Errors
/// When the API server refuses, or it is not programmed in a minute.
pub async fn install(cluster: &Cluster) -> Result<String> {
    isthmus::install_gateway(cluster).await?;
    cluster.apply_yaml(MANIFEST).await?;
    let url = isthmus::gateway_url(cluster, isthmus::POOL_NAMESPACE, "front").await?;
    Ok(url.trim_start_matches("http://").to_owned())
}

/// Deletes the Gateway and its route, and waits until its Envoys end: they answer 404, and would be taken for those of another
/// Gateway of its name.
///
/// # Errors
/// With what kubectl said, or when there are Envoys after half a minute.
pub async fn remove(cluster: &Cluster) -> Result<()> {
    for kind in ["httproute", "gateway"] {
        cluster
            .kubectl(&["delete", kind, "front", "-n", "llm", "--ignore-not-found"])
            .await?;
    }
    let pods: Api<Pod> = Api::namespaced(cluster.client(), isthmus::POOL_NAMESPACE);
    let params = ListParams::default().labels("gateway.networking.k8s.io/gateway-name=front");
    eventually("the Envoys of front end", ENDS, async || {
        let pods = pods.list(&params).await;
        let pods = pods.map_err(|error| error.to_string())?;
        let stays = |pod: &&Pod| pod.metadata.deletion_timestamp.is_none();
        match pods.items.iter().filter(stays).count() {
            0 => Ok(()),
            count => Err(format!("{count} stay")),
        }
    })
    .await?;
    Ok(())
}
