//! What `join` and `leave` refuse, and what they leave to helm.

use std::process::Stdio;

use anyhow::{Result, ensure};
use k8s_openapi::api::{
    core::v1::{Secret, ServiceAccount},
    rbac::v1::ClusterRoleBinding,
};
use kube::{
    Api, ResourceExt,
    api::{ListParams, PostParams},
};
use serde_json::json;
use testbed::{Cluster, eventually, isthmus};
use tokio::{process::Command, time::timeout};

use crate::stand::{LIMIT, Stand};

/// A cluster or a home that is not the one that was meant, a second name, a name that a key holds: nothing changes.
pub(crate) async fn what_join_and_leave_refuse_changes_nothing(stand: &Stand) -> Result<()> {
    stand.joined().await?;
    refused(
        stand,
        "leave east --home-context east",
        "no Secret in isthmus-system makes east a member, and no controller there knows it",
    )
    .await?;
    refused(
        stand,
        "leave east --context west",
        "context west leads to another cluster",
    )
    .await?;
    refused(
        stand,
        "join orient --context east",
        "context east leads to the cluster that is the member east already",
    )
    .await?;
    refused(
        stand,
        "join west --context east",
        "context east leads to another cluster",
    )
    .await?;

    // the controller goes on with the Secret of east, and calls the key a duplicate
    change_members(stand, json!({"stringData": {"east.yaml": "{}"}})).await?;
    let key = "by key east.yaml of Secret isthmus-system/isthmus-members";
    refused(stand, "join east", key).await?;
    refused(stand, "leave east", key).await?;
    change_members(stand, json!({"data": {"east.yaml": null}})).await?;

    // a member whose cluster is gone
    let secrets: Api<Secret> = Api::namespaced(stand.west.client(), isthmus::NAMESPACE);
    let gone = serde_json::from_value(json!({
        "metadata": {"name": "gone", "labels": {"isthmus.dev/member": "true"}},
    }))?;
    secrets.create(&PostParams::default(), &gone).await?;
    let hint = "if gone is gone for good: --force deletes its Secret";
    refused(stand, "leave gone", hint).await?;
    stand.done("leave gone --force").await?;

    let members = ListParams::default().labels("isthmus.dev/member=true");
    let members = secrets.list(&members).await?;
    let names: Vec<_> = members
        .iter()
        .filter_map(|one| one.metadata.name.as_deref())
        .collect();
    ensure!(names == ["east", "west"], "{names:?}");
    ensure!(has_rights(stand).await?, "the rights are gone");
    Ok(())
}

/// Changes the Secret that the controller mounts.
async fn change_members(stand: &Stand, patch: serde_json::Value) -> Result<()> {
    let patch = patch.to_string();
    let secret = isthmus::MEMBERS_SECRET;
    let patch = [
        "-n",
        isthmus::NAMESPACE,
        "patch",
        "secret",
        secret,
        "--type=merge",
        "-p",
        &patch,
    ];
    stand.west.kubectl(&patch).await?;
    Ok(())
}

/// The command fails, with these words.
async fn refused(stand: &Stand, line: &str, words: &str) -> Result<()> {
    let ended = stand.mci(line).await?;
    ensure!(
        ended.code == Some(1) && ended.err.contains(words),
        "kubectl mci {line}: {words:?} is not in {ended:#?}"
    );
    Ok(())
}

/// While no controller runs nobody ends what it does in a member: the Secret goes, and the rights stay until a controller has
/// let the member go, though home then knows nothing of it.
pub(crate) async fn rights_stay_where_no_controller_lets_the_member_go(
    stand: &Stand,
) -> Result<()> {
    stand.joined().await?;
    let scale = async |replicas: &str| {
        let controller = ["scale", "deployment", isthmus::CONTROLLER];
        let scale = [&controller[..], &["-n", isthmus::NAMESPACE, replicas]].concat();
        stand.west.kubectl(&scale).await
    };
    scale("--replicas=0").await?;
    let leave = "leave east --timeout 100s";
    let nobody = "no controller leads, and none can be asked";
    refused(stand, leave, nobody).await?;
    ensure!(has_rights(stand).await?, "the rights are gone");
    ensure!(is_marked(stand).await?, "nothing says that it was begun");
    // a member again, whoever is its home
    stand.done("join east --token-lifetime 2h").await?;
    ensure!(!is_marked(stand).await?, "the mark is there still");
    refused(stand, leave, nobody).await?;
    scale("--replicas=1").await?;
    isthmus::available(&stand.west, isthmus::NAMESPACE, isthmus::CONTROLLER).await?;
    eventually("the controller has let east go", LIMIT, async || {
        let status = stand.json("status").await?;
        let members = status["clusters"].to_string();
        ensure!(!members.contains("east"), "members: {members}");
        Ok(())
    })
    .await?;
    let left = stand.done("leave east").await?;
    ensure!(!has_rights(stand).await?, "{left}");
    // as before
    stand.joined().await
}

/// Whether `leave` has begun.
async fn is_marked(stand: &Stand) -> Result<bool> {
    let accounts: Api<ServiceAccount> = Api::namespaced(stand.east.client(), isthmus::NAMESPACE);
    let account = accounts.get("isthmus-mci-controller").await?;
    Ok(account.annotations().contains_key("isthmus.dev/leaving"))
}

async fn has_rights(stand: &Stand) -> Result<bool> {
    let bindings: Api<ClusterRoleBinding> = Api::all(stand.east.client());
    let binding = bindings.get_opt("isthmus-mci-controller-member").await?;
    Ok(binding.is_some())
}

/// A chart of another version is an upgrade like any other, though the cluster was joined by the plugin meanwhile.
pub(crate) async fn a_release_is_upgraded_after_its_cluster_was_joined(
    stand: &Stand,
) -> Result<()> {
    stand.install().await?;
    // helm takes over nothing that the plugin made
    stand.done("leave east").await?;
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/isthmus");
    let directory = tempfile::tempdir()?;
    let newer = directory.path().to_string_lossy().into_owned();
    let package = ["package", chart, "--app-version", "9.9.9", "-d", &newer];
    helm(&stand.east, &package).await?;
    let newer = std::fs::read_dir(directory.path())?.next();
    let newer = newer.transpose()?.map(|file| file.path());
    let newer = newer.unwrap_or_default().to_string_lossy().into_owned();

    let release = async |verb, chart| {
        let arguments = [
            verb,
            "isthmus",
            chart,
            "--namespace",
            isthmus::NAMESPACE,
            "--create-namespace",
            "--set=clusterName=east,gateway.enabled=false",
        ];
        helm(&stand.east, &arguments).await
    };
    release("install", chart).await?;
    let joined = stand.done("join east --token-lifetime 2h").await?;
    ensure!(
        joined.contains("ClusterRoleBinding left to helm"),
        "{joined}"
    );
    release("upgrade", &newer).await?;
    let bindings: Api<ClusterRoleBinding> = Api::all(stand.east.client());
    let binding = bindings.get("isthmus-mci-controller-member").await?;
    let labels = binding.metadata.labels.unwrap_or_default();
    let version = labels.get("app.kubernetes.io/version");
    ensure!(
        version.is_some_and(|version| version == "9.9.9"),
        "{labels:?}"
    );
    // helm would make them again
    let left = stand.done("leave east").await?;
    let stays = "which helm has: helm upgrade isthmus";
    ensure!(left.contains(stays) && has_rights(stand).await?, "{left}");
    Ok(())
}

/// The real helm, with nothing of the user's.
async fn helm(cluster: &Cluster, arguments: &[&str]) -> Result<()> {
    let home = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/helm");
    let mut command = Command::new(e2e::tools::helm()?);
    command
        .args(arguments)
        .env("HELM_CACHE_HOME", format!("{home}/cache"))
        .env("HELM_CONFIG_HOME", format!("{home}/config"))
        .env("HELM_DATA_HOME", format!("{home}/data"))
        .env("KUBECONFIG", cluster.kubeconfig_path())
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = timeout(LIMIT, command.output()).await??;
    ensure!(
        output.status.success(),
        "helm {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}
