//! A second pool beside the sample: nobody serves it, so that tests may do with it what they like.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use anyhow::{Context, Result};
use crd::{Condition, InferencePoolImport, inference_pool::InferencePool};
use futures::future::try_join_all;
use kube::Api;
use testbed::{Cluster, eventually, isthmus};

use crate::{environment::Environment, pair::exported};

/// A namespace that no other test has, and the pool in it.
#[derive(Debug)]
pub struct Apart {
    /// Of both.
    pub name: String,
}

/// Several steps of several programs on a busy machine.
const SOON: Duration = Duration::from_secs(30);

// === impl Apart ===

impl Apart {
    /// A name; nothing is there yet.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "each is another")]
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(1);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        Self {
            name: format!("apart-{number}"),
        }
    }

    /// The namespace, where the pool's import may then be.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn add_namespace(&self, cluster: &Cluster) -> Result<()> {
        Ok(isthmus::add_namespace(cluster, &self.name).await?)
    }

    /// The pool, exported, with a picker that has an address and a ready endpoint.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn add_pool(&self, cluster: &Cluster) -> Result<()> {
        Ok(isthmus::export_unserved(cluster, &self.name).await?)
    }

    /// The pool goes, the namespace stays.
    ///
    /// # Errors
    /// When there is no such pool.
    pub async fn delete_pool(&self, cluster: &Cluster) -> Result<()> {
        let command = ["delete", "inferencepool", &self.name, "-n", &self.name];
        cluster.kubectl(&command).await?;
        Ok(())
    }

    /// Away with it, wherever it is. Nobody waits for its end: no other test has this name.
    ///
    /// # Errors
    /// When an API server refuses.
    pub async fn clear(&self, environment: &Environment) -> Result<()> {
        let clearing = [&environment.east, &environment.west].map(async |cluster| {
            let delete = [
                "delete",
                "namespace",
                &self.name,
                "--ignore-not-found",
                "--wait=false",
            ];
            cluster.kubectl(&delete).await
        });
        try_join_all(clearing).await.context("clearing up")?;
        Ok(())
    }

    /// The imports in a cluster's namespace of this name.
    #[must_use]
    pub fn imports(&self, cluster: &Cluster) -> Api<InferencePoolImport> {
        Api::namespaced(cluster.client(), &self.name)
    }

    /// Waits until this cluster has the import with an entry of that one.
    ///
    /// # Errors
    /// After 30 s, with what was seen last.
    pub async fn imported(&self, cluster: &Cluster, from: &str) -> Result<InferencePoolImport> {
        let imports = self.imports(cluster);
        let what = format!("import {} of {from} in {}", self.name, cluster.name());
        let seen = eventually(&what, SOON, async || {
            let import = imports.get_opt(&self.name).await;
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

    /// Waits until this cluster has no import of the pool.
    ///
    /// # Errors
    /// After 30 s, with what was seen last.
    pub async fn no_import(&self, cluster: &Cluster) -> Result<()> {
        let imports = self.imports(cluster);
        let what = format!("no import {} in {}", self.name, cluster.name());
        let seen = eventually(&what, SOON, async || {
            match imports.get_opt(&self.name).await {
                Ok(None) => Ok(()),
                Ok(Some(import)) => Err(format!("{:?}", import.status)),
                Err(error) => Err(error.to_string()),
            }
        });
        Ok(seen.await?)
    }

    /// Waits until the pool's condition Exported is as `wanted`.
    ///
    /// # Errors
    /// After 30 s, with what was seen last.
    pub async fn says(
        &self,
        cluster: &Cluster,
        what: &str,
        wanted: impl Fn(&Condition) -> bool,
    ) -> Result<()> {
        let pools: Api<InferencePool> = Api::namespaced(cluster.client(), &self.name);
        let seen = eventually(what, SOON, async || {
            let pool = pools.get(&self.name).await;
            match exported(&pool.map_err(|error| error.to_string())?) {
                Some(exported) if wanted(&exported) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
        Ok(seen.await?)
    }
}
