//! What becomes of an import that several write, one function for each fact.

use anyhow::{Context, Result, ensure};
use crd::annotations::MCI_CONTROLLER;
use kube::api::PatchParams;
use serde_json::{Value, json};

use crate::server::{OTHER, Server, condition, entry, names, refusal};

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
