//! Two members, of which something is broken on purpose and mended again.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use testbed::{eventually, isthmus};

use crate::stand::Stand;

/// The controller relists within seconds.
const SOON: Duration = Duration::from_secs(30);
/// Namespace and name of a pool.
const ALONE: &str = "alone";

/// A token that nobody issued, then a right that is taken away, then a namespace that is missing.
pub(crate) async fn check_and_status_name_what_is_wrong(stand: &Stand) -> Result<()> {
    stand.joined().await?;
    all_is_well(stand).await?;

    // east's own, with a token that nobody issued
    let file = std::fs::read(stand.east.kubeconfig_path())?;
    let mut kubeconfig: Value = serde_json::from_slice(&file)?;
    kubeconfig["users"][0]["user"] = json!({"token": "nobody-issued-this"});
    let patch = json!({"stringData": {"kubeconfig": kubeconfig.to_string()}}).to_string();
    let patch = [
        "-n",
        isthmus::NAMESPACE,
        "patch",
        "secret",
        "east",
        "--type=merge",
        "-p",
        &patch,
    ];
    stand.west.kubectl(&patch).await?;
    let text = fails(stand, "refuses the token in Secret isthmus-system/east").await?;
    ensure!(!text.contains("nobody-issued-this"), "{text}");
    // that is how it is mended
    stand.done("join east --token-lifetime 2h").await?;

    let role = "clusterrole/isthmus-mci-controller-member";
    let patch = r#"[{"op": "remove", "path": "/rules/0"}]"#;
    let patch = ["patch", role, "--type=json", "-p", patch];
    stand.east.kubectl(&patch).await?;
    fails(
        stand,
        "the controller may not: get inferencepools.inference.networking.k8s.io",
    )
    .await?;
    let refused = stand.mci("join east").await?;
    ensure!(refused.err.contains("--force-conflicts"), "{refused:#?}");
    stand.done("join east --force-conflicts").await?;

    // a pool in a namespace that nobody else has
    isthmus::export_unserved(&stand.east, ALONE).await?;
    let exported = format!("export {ALONE}/{ALONE} --context east --wait --timeout 2s");
    let waited = stand.mci(&exported).await?;
    let ended = waited.code == Some(1) && waited.err.contains("not within 2s");
    ensure!(ended, "{waited:#?}");
    fails(stand, "alone/alone in west, from east: NamespaceMissing").await?;
    let status = stand.json("status -n alone").await?;
    let hole = &status["pools"][0]["cells"][1]["holes"][0];
    ensure!(hole["reason"] == "NamespaceMissing", "{status:#}");
    stand.east.kubectl(&["delete", "namespace", ALONE]).await?;
    Ok(())
}

/// Looks at pools and asks the controller, and sees no Secret.
const VIEWER: &str = "
apiVersion: v1
kind: ServiceAccount
metadata: {name: viewer, namespace: isthmus-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: viewer}
rules:
- {apiGroups: [inference.networking.k8s.io, inference.networking.x-k8s.io], resources: ['*'], verbs: [get, list]}
- {apiGroups: [''], resources: [pods, configmaps], verbs: [get, list]}
- {apiGroups: [''], resources: [pods/proxy], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: viewer}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: viewer}
subjects: [{kind: ServiceAccount, name: viewer, namespace: isthmus-system}]
";

pub(crate) async fn who_may_not_read_secrets_looks_at_pools_all_the_same(
    stand: &Stand,
) -> Result<()> {
    stand.joined().await?;
    stand.west.apply_yaml(VIEWER).await?;
    let kubeconfig = stand
        .west
        .service_account_kubeconfig(isthmus::NAMESPACE, "viewer")
        .await?;
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), kubeconfig)?;
    let mci = async |line: &str| {
        let line = format!("{line} --kubeconfig {}", file.path().display());
        stand.mci(&line).await
    };
    let explained = mci("explain llm/llama").await?;
    let asked = explained.code == Some(0) && explained.out.contains("AsPlanned");
    ensure!(asked && explained.err.is_empty(), "{explained:#?}");
    let status = mci("status").await?;
    let seen = status.code == Some(0) && status.out.contains("imports 1/1");
    let noted = "members are those that the controller has met";
    ensure!(seen && status.err.contains(noted), "{status:#?}");
    // of the same, check says that it has not seen all
    let checked = mci("check").await?;
    ensure!(checked.code == Some(2), "{checked:#?}");
    Ok(())
}

async fn all_is_well(stand: &Stand) -> Result<()> {
    eventually("check finds nothing wrong", SOON, async || {
        let ended = stand
            .mci("check")
            .await
            .map_err(|error| format!("{error:#}"))?;
        if ended.code == Some(0) {
            Ok(())
        } else {
            Err(format!("{ended:#?}"))
        }
    })
    .await?;
    Ok(())
}

/// `check` fails, and has these words.
async fn fails(stand: &Stand, words: &str) -> Result<String> {
    let ended = stand.mci("check").await?;
    ensure!(
        ended.code == Some(1) && ended.out.contains(words),
        "{words:?} is not in {ended:#?}"
    );
    Ok(ended.out)
}
