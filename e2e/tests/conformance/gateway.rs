//! What every gateway must do that has a route to an `InferencePoolImport`: a gateway in the last cluster, a pool of the first one.
//!
//! The pool has an endpoint picker and model servers, and its own cluster has a Gateway with a route to it, for ParentMode. With
//! clusters that were given all of this is there already.

use std::time::Duration;

use anyhow::{Context, Result};
use crd::{
    InferencePoolImport, RoutingMode, annotations, conditions, inference_pool::InferencePool,
};
use e2e::{
    front,
    watching::{becomes, within},
};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use testbed::{Requests, eventually, isthmus};

use crate::{scene::Stage, stand::Stand};

/// The limit for several steps of several programs on a busy machine.
const SOON: Duration = Duration::from_mins(1);
/// So many requests in a row are answered.
const IN_A_ROW: usize = 20;

/// A pool, its import, and the gateway that serves it.
struct Route<'a> {
    exporter: Api<InferencePool>,
    importer: Api<InferencePoolImport>,
    gateway: Requests,
    name: String,
    model: String,
    /// The annotations of the pool as they were.
    before: [Option<String>; 2],
    stand: Option<Stand<'a>>,
}

/// An entry has one mode, so it is the way of this mode that requests take.
pub(crate) async fn an_import_is_answered_in_each_mode(stage: &Stage) -> Result<()> {
    let route = Route::settle(stage).await?;
    let outcome = async {
        for mode in [
            RoutingMode::EndpointMode,
            RoutingMode::ParentMode,
            RoutingMode::EndpointMode,
        ] {
            route.export(mode).await?;
            route.is_answered().await?;
        }
        anyhow::Ok(())
    }
    .await;
    route.clear().await?;
    outcome
}

pub(crate) async fn an_import_without_exporters_answers_an_error(stage: &Stage) -> Result<()> {
    let route = Route::settle(stage).await?;
    let outcome = async {
        route.export(RoutingMode::EndpointMode).await?;
        route.is_answered().await?;
        route.annotate([None, None]).await?;
        eventually("an error of a server", SOON, async || {
            let answer = route.gateway.chat(&route.model, "hello").await;
            let answer = answer.map_err(|error| error.to_string())?;
            if answer.status.is_server_error() {
                Ok(())
            } else {
                Err(answer.status.to_string())
            }
        })
        .await?;
        anyhow::Ok(())
    }
    .await;
    route.clear().await?;
    outcome
}

// === impl Route ===

impl<'a> Route<'a> {
    async fn settle(stage: &'a Stage) -> Result<Self> {
        let [first, .., last] = stage.subject.members() else {
            anyhow::bail!("one cluster is no ClusterSet");
        };
        let (gateway, namespace, name, model, stand) = if let Some(served) = stage.subject.served()
        {
            (
                Requests::new(&served.url),
                &*served.namespace,
                &*served.pool,
                &*served.model,
                None,
            )
        } else {
            let stand = Stand::settle(stage).await?;
            isthmus::withdraw(&stand.south).await?;
            front::install(&stand.east).await?;
            let gateway = stand.gateway.clone();
            let (namespace, name) = (isthmus::POOL_NAMESPACE, isthmus::POOL);
            (gateway, namespace, name, name, Some(stand))
        };
        let exporter: Api<InferencePool> = Api::namespaced(first.client.clone(), namespace);
        let pool = within("getting the pool", exporter.get(name)).await?;
        let found = pool.metadata.annotations.unwrap_or_default();
        let before = [annotations::EXPORT, annotations::EXPORT_MODE];
        Ok(Self {
            exporter,
            importer: Api::namespaced(last.client.clone(), namespace),
            gateway,
            name: name.to_owned(),
            model: model.to_owned(),
            before: before.map(|key| found.get(key).cloned()),
            stand,
        })
    }

    /// Exports the pool, and waits until its import has the pool's only entry in this mode.
    async fn export(&self, mode: RoutingMode) -> Result<()> {
        let value = match mode {
            RoutingMode::EndpointMode => "EndpointMode",
            RoutingMode::ParentMode => "ParentMode",
        };
        let export = annotations::EXPORT_CLUSTER_SET;
        self.annotate([Some(export), Some(value)]).await?;
        let what = format!("the only entry of import {} is in {value}", self.name);
        becomes(&self.importer, &self.name, &what, |import| {
            match import.ok_or("no import")?.clusters() {
                [entry]
                    if entry.routing_mode == mode
                        && !conditions::is_false(&entry.conditions, conditions::READY) =>
                {
                    Ok(())
                }
                other => Err(format!("{other:?}")),
            }
        })
        .await
    }

    /// Waits until so many requests in a row are answered.
    async fn is_answered(&self) -> Result<()> {
        let what = format!("{IN_A_ROW} requests in a row are answered");
        eventually(&what, SOON, async || {
            for nth in 0..IN_A_ROW {
                let answer = self
                    .gateway
                    .chat(&self.model, &format!("hello, {nth}"))
                    .await;
                let answer = answer.map_err(|error| error.to_string())?;
                if answer.status != 200 {
                    return Err(format!("{}: {}", answer.status, answer.text()));
                }
            }
            Ok(())
        })
        .await?;
        Ok(())
    }

    /// The export and its mode; none: without.
    async fn annotate(&self, [export, mode]: [Option<&str>; 2]) -> Result<()> {
        let wanted: Value = json!({annotations::EXPORT: export, annotations::EXPORT_MODE: mode});
        let patch = Patch::Merge(json!({"metadata": {"annotations": wanted}}));
        let params = PatchParams::default();
        let request = self.exporter.patch(&self.name, &params, &patch);
        let written = within("annotating the pool", request).await;
        written.map(|_| ()).context("a pool of the first cluster")
    }

    /// The pool's annotations as they were.
    async fn clear(self) -> Result<()> {
        let [export, mode] = &self.before;
        self.annotate([export.as_deref(), mode.as_deref()]).await?;
        if let Some(stand) = &self.stand {
            front::remove(&stand.east).await?;
        }
        Ok(())
    }
}
