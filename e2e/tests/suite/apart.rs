//! A second pool beside the sample: nobody serves it, so that tests may do with it what they like.

use std::time::Duration;

use anyhow::{Context, Result};
use crd::{Condition, InferencePoolImport, inference_pool::InferencePool};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use testbed::{Cluster, eventually, isthmus};

use crate::environment::{Environment, exported};

/// Namespace and name.
pub(crate) const APART: &str = "apart";

/// Several steps of several programs on a busy machine.
const SOON: Duration = Duration::from_secs(30);

/// The namespace, where the pool's import may then be.
pub(crate) async fn add_namespace(cluster: &Cluster) -> Result<()> {
    Ok(isthmus::add_namespace(cluster, APART).await?)
}

/// The pool, exported, with a picker that has an address and a ready endpoint.
pub(crate) async fn add_pool(cluster: &Cluster) -> Result<()> {
    Ok(isthmus::export_unserved(cluster, APART).await?)
}

pub(crate) async fn delete_pool(cluster: &Cluster) -> Result<()> {
    let command = ["delete", "inferencepool", APART, "-n", APART];
    cluster.kubectl(&command).await?;
    Ok(())
}

/// Away with it, wherever it is.
pub(crate) async fn clear(environment: &Environment) -> Result<()> {
    let clusters = [&environment.east, &environment.west];
    try_join_all(clusters.map(gone))
        .await
        .context("clearing up")?;
    Ok(())
}

async fn gone(cluster: &Cluster) -> Result<()> {
    let delete = [
        "delete",
        "namespace",
        APART,
        "--ignore-not-found",
        "--wait=false",
    ];
    cluster.kubectl(&delete).await?;
    let namespaces: Api<Namespace> = Api::all(cluster.client());
    let what = format!("no namespace {APART} in {}", cluster.name());
    // after a CRD came or went, the namespace controller tries again with growing pauses
    let limit = Duration::from_secs(90);
    eventually(&what, limit, async || {
        match namespaces.get_opt(APART).await {
            Ok(None) => Ok(()),
            Ok(Some(namespace)) => Err(format!("{:?}", namespace.status)),
            Err(error) => Err(error.to_string()),
        }
    })
    .await?;
    Ok(())
}

pub(crate) fn imports(cluster: &Cluster) -> Api<InferencePoolImport> {
    Api::namespaced(cluster.client(), APART)
}

/// Waits until this cluster has the import with an entry of that one.
pub(crate) async fn imported(cluster: &Cluster, from: &str) -> Result<InferencePoolImport> {
    let imports = imports(cluster);
    let what = format!("import {APART} of {from} in {}", cluster.name());
    let seen = eventually(&what, SOON, async || {
        let import = imports.get_opt(APART).await;
        let import = import.map_err(|error| error.to_string())?;
        let import = import.ok_or("no import")?;
        let entries = import.clusters();
        if entries.len() == 1 && entries[0].name == from {
            Ok(import)
        } else {
            Err(format!("{entries:?}"))
        }
    });
    Ok(seen.await?)
}

pub(crate) async fn no_import(cluster: &Cluster) -> Result<()> {
    let imports = imports(cluster);
    let what = format!("no import {APART} in {}", cluster.name());
    let seen = eventually(&what, SOON, async || match imports.get_opt(APART).await {
        Ok(None) => Ok(()),
        Ok(Some(import)) => Err(format!("{:?}", import.status)),
        Err(error) => Err(error.to_string()),
    });
    Ok(seen.await?)
}

/// Waits until the pool's condition Exported is as `wanted`.
pub(crate) async fn says(
    cluster: &Cluster,
    what: &str,
    wanted: impl Fn(&Condition) -> bool,
) -> Result<()> {
    let pools: Api<InferencePool> = Api::namespaced(cluster.client(), APART);
    let seen = eventually(what, SOON, async || {
        let pool = pools.get(APART).await.map_err(|error| error.to_string())?;
        match exported(&pool) {
            Some(exported) if wanted(&exported) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    Ok(seen.await?)
}
