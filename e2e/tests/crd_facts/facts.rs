//! The facts, one function each.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crd::annotations::MCI_CONTROLLER;
use futures::TryStreamExt;
use k8s_openapi::{
    api::rbac::v1::{ClusterRole, ClusterRoleBinding},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, ObjectList, PatchParams, PostParams, WatchEvent, WatchParams},
};
use serde_json::{Value, json};
use testbed::{eventually, isthmus};
use tokio::time::timeout;

use crate::server::{OTHER, Server, entry, names, refusal};

const SOON: Duration = Duration::from_secs(20);
const IMPORT_CRD: &str = "inferencepoolimports.inference.networking.x-k8s.io";

fn condition(type_: &str) -> Value {
    json!({"type": type_, "status": "True", "reason": type_, "message": "1/1 ready: east",
        "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

/// K2: the controller's apply keeps a gateway's parents, and the other way round.
pub(crate) async fn two_managers_share_the_status(server: &Server) -> Result<()> {
    server.create("shared").await?;
    let ours = json!({"clusters": [entry("east")], "controllers": [{"name": MCI_CONTROLLER}]});
    server
        .apply_status("shared", MCI_CONTROLLER, ours.clone())
        .await?;
    let parents = json!([{"parentRef": {"name": "gw"}, "controllerName": OTHER}]);
    let theirs = json!({"controllers": [{"name": OTHER, "parents": parents}]});
    server.apply_status("shared", OTHER, theirs).await?;
    let after = server.apply_status("shared", MCI_CONTROLLER, ours).await?;
    ensure!(names(&after) == ["east"]);
    let other = after
        .controller(OTHER)
        .context("the gateway's entry is gone")?;
    ensure!(other.parents.len() == 1, "{other:?}");
    Ok(())
}

/// K3: what the same manager leaves out goes; another manager's entry stays, even under force.
pub(crate) async fn a_shorter_apply_takes_only_its_own_entries(server: &Server) -> Result<()> {
    server.create("shorter").await?;
    let two = json!({"clusters": [entry("a"), entry("b")]});
    server.apply_status("shorter", MCI_CONTROLLER, two).await?;
    server
        .apply_status("shorter", OTHER, json!({"clusters": [entry("z")]}))
        .await?;
    let force = PatchParams::apply(MCI_CONTROLLER).force();
    let after = server
        .patch_status("shorter", &force, json!({"clusters": [entry("a")]}))
        .await?;
    ensure!(names(&after) == ["a", "z"], "{:?}", names(&after));
    Ok(())
}

/// K4.
pub(crate) async fn an_apply_that_changes_nothing_keeps_the_resource_version(
    server: &Server,
) -> Result<()> {
    server.create("same").await?;
    let status = json!({"clusters": [entry("a")], "conditions": [condition("Ready")]});
    let first = server
        .apply_status("same", MCI_CONTROLLER, status.clone())
        .await?;
    let second = server.apply_status("same", MCI_CONTROLLER, status).await?;
    ensure!(first.metadata.resource_version == second.metadata.resource_version);
    Ok(())
}

/// K5: readers take absent as empty.
pub(crate) async fn an_empty_list_reads_back_absent(server: &Server) -> Result<()> {
    server.create("empty").await?;
    server
        .apply_status("empty", MCI_CONTROLLER, json!({"clusters": [entry("a")]}))
        .await?;
    server
        .apply_status("empty", MCI_CONTROLLER, json!({"clusters": []}))
        .await?;
    let text = server
        .cluster
        .kubectl(&["get", "ipimp", "empty", "-o", "json"])
        .await?;
    let import: Value = serde_json::from_str(&text)?;
    ensure!(
        import["status"].get("clusters").is_none(),
        "{}",
        import["status"]
    );
    let import = server.imports("default").get("empty").await?;
    ensure!(import.clusters().is_empty());
    Ok(())
}

/// K10.
pub(crate) async fn an_apply_over_foreign_fields_is_a_conflict(server: &Server) -> Result<()> {
    server.create("conflict").await?;
    server
        .apply_status("conflict", OTHER, json!({"clusters": [entry("a")]}))
        .await?;
    let mut other = entry("a");
    other["targetPortNumber"] = json!(9000);
    let status = json!({"clusters": [other]});
    let refused = refusal(
        server
            .apply_status("conflict", MCI_CONTROLLER, status)
            .await,
    )?;
    ensure!(refused.code == 409, "{refused:?}");
    let causes = refused
        .details
        .map(|details| details.causes)
        .unwrap_or_default();
    ensure!(
        causes
            .iter()
            .any(|cause| cause.reason == "FieldManagerConflict"),
        "{causes:?}"
    );
    Ok(())
}

/// K9: an apply of the status creates nothing; an apply of the object does, and drops the status it carries.
pub(crate) async fn status_of_a_missing_import_is_404_and_the_main_resource_creates_it(
    server: &Server,
) -> Result<()> {
    let status = json!({"clusters": [entry("a")]});
    let refused = refusal(server.apply_status("missing", MCI_CONTROLLER, status).await)?;
    ensure!(refused.code == 404, "{refused:?}");
    let manifest = "
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: InferencePoolImport
metadata: {name: missing, namespace: default}
spec: {}
status: {clusters: [{name: a, routingMode: EndpointMode, targetPortNumber: 1}]}
";
    server.cluster.apply_yaml(manifest).await?;
    let created = server.imports("default").get("missing").await?;
    ensure!(created.clusters().is_empty(), "{:?}", created.status);
    Ok(())
}

/// K9: what the controller does next depends on which of the two it is.
pub(crate) async fn a_missing_namespace_is_404_and_a_terminating_one_403(
    server: &Server,
) -> Result<()> {
    let apply = async |namespace: &str| {
        let import = crd::InferencePoolImport::new(namespace, "llm");
        let params = PatchParams::apply(MCI_CONTROLLER);
        server
            .imports(namespace)
            .patch("llm", &params, &kube::api::Patch::Apply(&import))
            .await
    };
    let refused = refusal(apply("nowhere").await)?;
    ensure!(refused.code == 404, "{refused:?}");
    let kind = refused
        .details
        .map(|details| details.kind)
        .unwrap_or_default();
    ensure!(kind == "namespaces", "details.kind is {kind:?}");

    // a finalizer of ours holds the namespace in Terminating for as long as the test looks
    let held = "
apiVersion: v1
kind: Namespace
metadata: {name: leaving}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: hold, namespace: leaving, finalizers: [isthmus.dev/test]}
";
    server.cluster.apply_yaml(held).await?;
    server
        .cluster
        .kubectl(&["delete", "namespace", "leaving", "--wait=false"])
        .await?;
    let refused = refusal(apply("leaving").await)?;
    ensure!(refused.code == 403, "{refused:?}");
    let causes = refused
        .details
        .map(|details| details.causes)
        .unwrap_or_default();
    ensure!(
        causes
            .iter()
            .any(|cause| cause.reason == "NamespaceTerminating"),
        "{causes:?}"
    );
    let free = r#"{"metadata":{"finalizers":null}}"#;
    server
        .cluster
        .kubectl(&[
            "patch",
            "configmap",
            "hold",
            "-n",
            "leaving",
            "--type=merge",
            "-p",
            free,
        ])
        .await?;
    Ok(())
}

/// K1: the rules of the schema hold on the server, not only in our types.
pub(crate) async fn values_outside_the_schema_are_refused(server: &Server) -> Result<()> {
    server.create("bounds").await?;
    let with = |key: &str, value: Value| {
        let mut entry = entry("a");
        entry[key] = value;
        json!({"clusters": [entry]})
    };
    let ports: Vec<_> = (1..=9).map(|number| json!({"number": number})).collect();
    let many: Vec<_> = (0..257)
        .map(|number| entry(&format!("c{number}")))
        .collect();
    for (what, status) in [
        ("an unknown mode", with("routingMode", json!("Direct"))),
        ("port 0", with("targetPortNumber", json!(0))),
        ("port 65536", with("targetPortNumber", json!(65536))),
        ("nine target ports", with("targetPorts", json!(ports))),
        ("257 entries", json!({"clusters": many})),
        (
            "a condition without reason",
            json!({"conditions": [{"type": "Ready", "status": "True"}]}),
        ),
        (
            "two entries of one name",
            json!({"clusters": [entry("a"), entry("a")]}),
        ),
        (
            "a controller without domain",
            json!({"controllers": [{"name": "x"}]}),
        ),
    ] {
        let result = server.apply_status("bounds", MCI_CONTROLLER, status).await;
        let refused = refusal(result).with_context(|| format!("{what} was taken"))?;
        ensure!(
            refused.code == 422 || refused.code == 400 || refused.code == 500,
            "{what}: {refused:?}"
        );
    }
    Ok(())
}

pub(crate) async fn columns_show_readiness_and_summary(server: &Server) -> Result<()> {
    server.create("columns").await?;
    let status = json!({"clusters": [entry("east")], "conditions": [condition("Ready"), condition("Accepted")]});
    server
        .apply_status("columns", MCI_CONTROLLER, status)
        .await?;
    let table = server
        .cluster
        .kubectl(&["get", "infpimp", "columns", "-o", "wide"])
        .await?;
    let head: Vec<_> = table
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    ensure!(
        head == ["NAME", "READY", "SUMMARY", "ACCEPTED", "AGE"],
        "{table}"
    );
    let row: Vec<_> = table
        .lines()
        .nth(1)
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    ensure!(
        row.starts_with(&["columns", "True", "1/1", "ready:", "east", "Accepted"]),
        "{table}"
    );
    Ok(())
}

/// K6, K7: under upstream's CRD our fields vanish from reads and our apply is refused; under ours they are back.
pub(crate) async fn upstreams_crd_prunes_our_fields_and_ours_brings_them_back(
    server: &Server,
) -> Result<()> {
    server.create("flavour").await?;
    let status = json!({
        "clusters": [entry("east")], "conditions": [condition("Ready")],
        "controllers": [{"name": MCI_CONTROLLER, "exportingClusters": [{"name": "east"}]}],
    });
    server
        .apply_status("flavour", MCI_CONTROLLER, status.clone())
        .await?;

    isthmus::install_upstream_import_crd(&server.cluster).await?;
    let checked = async {
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

/// K8: the watch says of each object that it is deleted, and only then is the kind gone, which a plain 404 tells. The last
/// fact: nothing puts the CRD back.
pub(crate) async fn a_crd_that_is_deleted_takes_its_objects_first(server: &Server) -> Result<()> {
    server.create("going").await?;
    let imports = server.imports("default");
    let only = WatchParams::default().fields("metadata.name=going");
    let mut events = std::pin::pin!(imports.watch(&only, "0").await?);
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
    Ok(())
}

/// K11: who may read one CRD alone lists it by a field selector, and nothing else.
pub(crate) async fn a_crd_is_read_by_its_name_alone(server: &Server) -> Result<()> {
    let client = server.cluster.client();
    let role = json!({
        "metadata": {"name": "one-crd"},
        "rules": [{"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"],
            "resourceNames": [IMPORT_CRD], "verbs": ["get", "list", "watch"]}],
    });
    let roles: Api<ClusterRole> = Api::all(client.clone());
    let role = serde_json::from_value(role)?;
    roles.create(&PostParams::default(), &role).await?;
    let binding = json!({
        "metadata": {"name": "one-crd"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "one-crd"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "one-crd"}],
    });
    let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
    let binding = serde_json::from_value(binding)?;
    bindings.create(&PostParams::default(), &binding).await?;
    let list = async |query: &str| {
        let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions{query}");
        let request = http::Request::get(path).header("Impersonate-User", "one-crd");
        let request = request.body(Vec::new()).map_err(kube::Error::HttpError)?;
        client
            .request::<ObjectList<CustomResourceDefinition>>(request)
            .await
    };
    let named = format!("?fieldSelector=metadata.name%3D{IMPORT_CRD}");
    eventually("the one is listed", SOON, async || {
        let listed = list(&named).await.map_err(|error| error.to_string())?;
        if listed.items.len() == 1 {
            Ok(())
        } else {
            Err(format!("{} CRDs", listed.items.len()))
        }
    })
    .await?;
    let refused = refusal(list("").await)?;
    ensure!(refused.code == 403, "{refused:?}");
    Ok(())
}
