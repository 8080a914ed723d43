//! A cluster with a Gateway and nothing of the chart yet.

use std::time::Duration;

use anyhow::{Context, Result};
use e2e::programs::Programs;
use serde_json::json;
use testbed::{Cluster, Inside, Testbed, isthmus};

use crate::helm::Helm;

/// Kinds that the endpoint picker watches where they are there.
const OPTIONAL_KINDS: &str = include_str!("../suite/objects/crds.yaml");
/// The same ones of the other group, which only have to be there.
const OPTIONAL_KINDS_OF_THE_OTHER_GROUP: [(&str, &str, &str); 2] = [
    ("llm-d.ai", "InferenceObjective", "inferenceobjectives"),
    (
        "inference.networking.x-k8s.io",
        "InferenceModelRewrite",
        "inferencemodelrewrites",
    ),
];

/// Where no pod is let in that Pod Security admission would not let in at its strictest level.
const NAMESPACES: &str = "
apiVersion: v1
kind: Namespace
metadata:
  name: llm
  labels: {pod-security.kubernetes.io/enforce: restricted, pod-security.kubernetes.io/warn: restricted}
---
apiVersion: v1
kind: Namespace
metadata:
  name: dynamo
  labels: {pod-security.kubernetes.io/enforce: restricted}
---
apiVersion: v1
kind: Namespace
metadata:
  name: rights
  labels: {pod-security.kubernetes.io/enforce: restricted}
";

const GATEWAY: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: inference-gateway, namespace: gateways}
spec:
  gatewayClassName: isthmus
  listeners:
  - {name: http, protocol: HTTP, port: 80, allowedRoutes: {namespaces: {from: All}}}
---
apiVersion: v1
kind: Namespace
metadata: {name: gateways}
";

/// Several steps of several programs on a busy machine.
pub(crate) const SOON: Duration = Duration::from_mins(1);

pub(crate) struct Stand {
    pub(crate) testbed: Testbed,
    pub(crate) cluster: Cluster,
    pub(crate) helm: Helm,
    /// URL of the Gateway.
    pub(crate) gateway: String,
}

// === impl Stand ===

impl Programs for Stand {
    async fn start(inside: &Inside) -> Result<Self> {
        let helm = Helm::find()?;
        let testbed = isthmus::with_programs(Testbed::builder(inside))?
            .image("valkey/valkey", redis_server::find()?)
            .cluster("east")
            .start(|_| {})
            .await?;
        let cluster = testbed.cluster("east")?.clone();
        cluster.apply_yaml(OPTIONAL_KINDS).await?;
        for (group, kind, plural) in OPTIONAL_KINDS_OF_THE_OTHER_GROUP {
            cluster.apply_yaml(&definition(group, kind, plural)).await?;
        }
        cluster.apply_yaml(NAMESPACES).await?;
        isthmus::install_gateway(&cluster).await?;
        cluster.apply_yaml(GATEWAY).await?;
        let gateway = isthmus::gateway_url(&cluster, "gateways", "inference-gateway").await;
        Ok(Self {
            gateway: gateway.context("the Gateway")?,
            testbed,
            cluster,
            helm,
        })
    }

    async fn stop(self) {
        self.testbed.stop().await;
    }
}

fn definition(group: &str, kind: &str, plural: &str) -> String {
    let singular = kind.to_lowercase();
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": singular},
            "versions": [{"name": "v1alpha2", "served": true, "storage": true, "schema": schema}],
        },
    })
    .to_string()
}
