//! A cluster with the chart of the gateway and a Gateway, and another one with nothing but the CRDs.

use std::time::Duration;

use anyhow::{Context, Result};
use e2e::programs::Programs;
use serde_json::json;
use testbed::{Cluster, Inside, Manifests, Testbed, isthmus};

use crate::{
    helm::{CRDS, Helm, SYSTEM},
    system::helm_on,
};

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
  name: isthmus-system
  labels: {pod-security.kubernetes.io/enforce: restricted, pod-security.kubernetes.io/warn: restricted}
---
apiVersion: v1
kind: Namespace
metadata:
  name: gateways
  labels: {pod-security.kubernetes.io/enforce: restricted}
---
apiVersion: v1
kind: Namespace
metadata:
  name: shared
  labels: {pod-security.kubernetes.io/enforce: restricted}
---
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
";

/// Several steps of several programs on a busy machine.
pub(crate) const SOON: Duration = Duration::from_mins(1);

pub(crate) struct Stand {
    pub(crate) testbed: Testbed,
    /// A member with a gateway.
    pub(crate) cluster: Cluster,
    /// Nothing is installed there but the CRDs.
    pub(crate) home: Cluster,
    pub(crate) helm: Helm,
    /// URL of the Gateway.
    pub(crate) gateway: String,
}

// === impl Stand ===

impl Programs for Stand {
    async fn start(inside: &Inside) -> Result<Self> {
        let helm = Helm::find()?;
        let manifests = Manifests::find().await?;
        let mut builder = isthmus::with_programs(Testbed::builder(inside))?
            .image("valkey/valkey", redis_server::find()?)
            .cluster("east")
            .cluster("west")
            .without_definitions()
            .manifest(manifests.inference_pool);
        for definition in manifests.gateway_api {
            builder = builder.manifest(definition);
        }
        let testbed = builder.start(|_| {}).await?;
        let cluster = testbed.cluster("east")?.clone();
        cluster.apply_yaml(OPTIONAL_KINDS).await?;
        for (group, kind, plural) in OPTIONAL_KINDS_OF_THE_OTHER_GROUP {
            cluster.apply_yaml(&definition(group, kind, plural)).await?;
        }
        let mut stand = Self {
            home: testbed.cluster("west")?.clone(),
            gateway: String::new(),
            testbed,
            cluster,
            helm,
        };
        for cluster in [&stand.cluster, &stand.home] {
            cluster.apply_yaml(NAMESPACES).await?;
            helm_on(&stand, cluster, CRDS, "install", &[]).await?;
        }
        let values = [
            "--set",
            "clusterName=east,gateway.image.registry=registry.example.com",
        ];
        helm_on(&stand, &stand.cluster, SYSTEM, "install", &values).await?;
        stand.cluster.apply_yaml(GATEWAY).await?;
        let gateway = isthmus::gateway_url(&stand.cluster, "gateways", "inference-gateway").await;
        stand.gateway = gateway.context("the Gateway")?;
        Ok(stand)
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
