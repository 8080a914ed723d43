//! What another CRD does to an import, and to who watches it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crd::{InferencePoolImport, annotations::MCI_CONTROLLER};
use futures::{StreamExt, TryStreamExt, stream::BoxStream};
use http::header::{CONTENT_TYPE, WARNING};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api,
    api::{DeleteParams, ListParams, WatchEvent, WatchParams},
    client::Body,
};
use serde_json::{Value, json};
use testbed::{eventually, isthmus};
use tokio::time::timeout;

use crate::server::{IMPORT_CRD, SOON, Server, condition, entry, names, refusal};

type Watch = BoxStream<'static, kube::Result<WatchEvent<InferencePoolImport>>>;

/// A watch ends on its own, in a second on an idle machine.
const WATCH_ENDS: Duration = Duration::from_secs(20);

/// Waits until a watch has ended, in whatever way.
async fn ended(mut watch: Watch) -> Result<()> {
    let end = async { while let Ok(Some(_)) = watch.try_next().await {} };
    timeout(WATCH_ENDS, end).await.context("the watch goes on")
}

/// Merges an entry into the status of an import: the warning in the answer, and the object.
async fn merge_entries(server: &Server, name: &str) -> Result<(String, Value)> {
    let path = format!(
        "/apis/{}/namespaces/default/inferencepoolimports/{name}/status",
        crd::import::API_VERSION
    );
    let patch = json!({"status": {"clusters": [entry("west")]}});
    let request = http::Request::patch(path)
        .header(CONTENT_TYPE, "application/merge-patch+json")
        .body(Body::from(patch.to_string().into_bytes()))?;
    let answer = server.cluster.client().send(request).await?;
    ensure!(answer.status().is_success(), "{}", answer.status());
    let warnings = answer.headers().get_all(WARNING).into_iter();
    let warnings: Vec<String> = warnings
        .map(|warning| String::from_utf8_lossy(warning.as_bytes()).into_owned())
        .collect();
    let body = answer.into_body().collect_bytes().await?;
    Ok((warnings.join("; "), serde_json::from_slice(&body)?))
}

/// K6, K7: upstream's CRD ends watches; under it our fields vanish from reads, our apply is refused and a merge patch drops
/// them with a warning. Under ours they are back.
pub(crate) async fn upstreams_crd_prunes_our_fields_and_ours_brings_them_back(
    server: &Server,
) -> Result<()> {
    let status = json!({
        "clusters": [entry("east")], "conditions": [condition("Ready")],
        "controllers": [{"name": MCI_CONTROLLER, "exportingClusters": [{"name": "east"}]}],
    });
    // a patch writes what reads show, and so loses what is stored: it has an import of its own
    for name in ["flavour", "merged"] {
        server.create(name).await?;
        let applied = server.apply_status(name, MCI_CONTROLLER, status.clone());
        applied.await?;
    }
    let only = WatchParams::default().fields("metadata.name=flavour");
    let imports = server.imports("default");
    let watch = imports.watch(&only, "0").await?.boxed();
    isthmus::install_upstream_import_crd(&server.cluster).await?;
    let checked = async {
        ended(watch).await?;
        eventually("clusters are pruned from reads", SOON, async || {
            let import = server
                .imports("default")
                .get("flavour")
                .await
                .map_err(|error| error.to_string())?;
            if import.clusters().is_empty() && import.conditions().is_empty() {
                Ok(())
            } else {
                Err(format!("{:?}", import.status))
            }
        })
        .await?;
        let import = server.imports("default").get("flavour").await?;
        let ours = import
            .controller(MCI_CONTROLLER)
            .context("controllers are pruned too")?;
        ensure!(ours.exporting_clusters.len() == 1, "{ours:?}");
        let refused = refusal(server.apply_status("flavour", MCI_CONTROLLER, status).await)?;
        ensure!(refused.code == 500, "{refused:?}");
        ensure!(
            refused.message.contains("field not declared in schema"),
            "{refused:?}"
        );
        let (warning, patched) = merge_entries(server, "merged").await?;
        ensure!(warning.contains("status.clusters"), "warning: {warning:?}");
        ensure!(patched["status"].get("clusters").is_none(), "{patched}");
        anyhow::Ok(())
    }
    .await;
    isthmus::install_import_crd(&server.cluster).await?;
    checked?;
    eventually("clusters are back", SOON, async || {
        let import = server
            .imports("default")
            .get("flavour")
            .await
            .map_err(|error| error.to_string())?;
        if names(&import) == ["east"] {
            Ok(())
        } else {
            Err(format!("{:?}", import.status))
        }
    })
    .await?;
    Ok(())
}

/// K8: the watch says of each object that it is deleted, only then is the kind gone, which a plain 404 tells, and at last the
/// watch ends. The last fact: nothing puts the CRD back.
pub(crate) async fn a_crd_that_is_deleted_takes_its_objects_first(server: &Server) -> Result<()> {
    server.create("going").await?;
    let imports = server.imports("default");
    let only = WatchParams::default().fields("metadata.name=going");
    let mut events = imports.watch(&only, "0").await?.boxed();
    let crds: Api<CustomResourceDefinition> = Api::all(server.cluster.client());
    crds.delete(IMPORT_CRD, &DeleteParams::default()).await?;
    let gone = timeout(SOON, async {
        while let Some(event) = events.try_next().await? {
            if matches!(event, WatchEvent::Deleted(_)) {
                return anyhow::Ok(true);
            }
        }
        Ok(false)
    });
    ensure!(
        gone.await.context("no event says that it is deleted")??,
        "the watch ended without a word"
    );
    eventually("the kind is not served", SOON, async || {
        match refusal(imports.list(&ListParams::default()).await) {
            Ok(status) if status.code == 404 && status.details.is_none() => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    ended(events).await
}
