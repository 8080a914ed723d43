//! The API server, and requests on imports as the controller and a gateway send them.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result};
use crd::{InferencePoolImport, annotations};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use testbed::{Cluster, Inside, Testbed};

/// A gateway of somebody else: another writer of the same status.
pub(crate) const OTHER: &str = "example.net/gateway";

/// What the API server does, it does within this.
pub(crate) const SOON: Duration = Duration::from_secs(20);
pub(crate) const IMPORT_CRD: &str = "inferencepoolimports.inference.networking.x-k8s.io";

pub(crate) struct Server {
    testbed: Testbed,
    pub(crate) cluster: Cluster,
}

// === impl Server ===

impl Server {
    pub(crate) async fn start(inside: &Inside) -> Result<Self> {
        let testbed = Testbed::builder(inside)
            .cluster("lab")
            .start(|_| {})
            .await?;
        let cluster = testbed.cluster("lab")?.clone();
        Ok(Self { testbed, cluster })
    }

    pub(crate) fn logs(&self) -> PathBuf {
        self.testbed.logs_dir()
    }

    pub(crate) async fn stop(self) {
        self.testbed.stop().await;
    }

    pub(crate) fn imports(&self, namespace: &str) -> Api<InferencePoolImport> {
        Api::namespaced(self.cluster.client(), namespace)
    }

    /// A fresh import in `default`, without status.
    pub(crate) async fn create(&self, name: &str) -> Result<InferencePoolImport> {
        let import = InferencePoolImport::new("default", name);
        let params = PatchParams::apply(annotations::MCI_CONTROLLER);
        let created = self
            .imports("default")
            .patch(name, &params, &Patch::Apply(&import))
            .await;
        created.with_context(|| format!("creating {name}"))
    }

    /// Applies a status as this manager, not forced.
    pub(crate) async fn apply_status(
        &self,
        name: &str,
        manager: &str,
        status: Value,
    ) -> Result<InferencePoolImport, kube::Error> {
        let params = PatchParams::apply(manager);
        self.patch_status(name, &params, status).await
    }

    pub(crate) async fn patch_status(
        &self,
        name: &str,
        params: &PatchParams,
        status: Value,
    ) -> Result<InferencePoolImport, kube::Error> {
        let patch = json!({
            "apiVersion": crd::import::API_VERSION, "kind": annotations::IMPORT_KIND, "status": status,
        });
        self.imports("default")
            .patch_status(name, params, &Patch::Apply(&patch))
            .await
    }
}

/// A minimal entry.
pub(crate) fn entry(name: &str) -> Value {
    json!({"name": name, "routingMode": "EndpointMode", "targetPortNumber": 8000})
}

/// A condition that is true.
pub(crate) fn condition(type_: &str) -> Value {
    json!({"type": type_, "status": "True", "reason": type_, "message": "1/1 ready: east",
        "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

/// Names of the entries, in order.
pub(crate) fn names(import: &InferencePoolImport) -> Vec<&str> {
    import
        .clusters()
        .iter()
        .map(|entry| entry.name.as_str())
        .collect()
}

/// The status of an API server's refusal.
pub(crate) fn refusal<T>(result: Result<T, kube::Error>) -> Result<kube::core::Status> {
    match result {
        Err(kube::Error::Api(status)) => Ok(*status),
        Err(error) => Err(error).context("expected an answer of the API server"),
        Ok(_) => anyhow::bail!("expected a refusal"),
    }
}
