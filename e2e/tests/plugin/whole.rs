//! The way of a user: join, export, look, leave.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{core::v1::Secret, rbac::v1::ClusterRole};
use kube::Api;
use testbed::isthmus;

use crate::stand::Stand;

pub(crate) async fn two_clusters_are_joined_and_a_request_is_answered_by_the_other(
    stand: &Stand,
) -> Result<()> {
    stand.install().await?;
    stand.west.kubectl(&["create", "namespace", "llm"]).await?;
    stand.done("join east --token-lifetime 2h").await?;
    stand.done("join west").await?;
    // again: a new token, and nothing else
    let again = stand.done("join east").await?;
    ensure!(again.contains("token until"), "{again}");

    let exported = stand.done("export llm/llama --context east --wait").await?;
    ensure!(exported.contains("exported to 1/1"), "{exported}");
    let status = stand.done("status").await?;
    ensure!(
        status.contains("llm/llama   exports   imports 1/1"),
        "{status}"
    );
    Ok(())
}

pub(crate) async fn a_cluster_that_leaves_is_clean_but_for_what_is_named(
    stand: &Stand,
) -> Result<()> {
    stand.install().await?;
    stand.done("join east").await?;
    let left = stand.done("leave east").await?;
    ensure!(
        left.contains("Left in east: namespace isthmus-system"),
        "{left}"
    );
    let secrets: Api<Secret> = Api::namespaced(stand.west.client(), isthmus::NAMESPACE);
    ensure!(
        secrets.get_opt("east").await?.is_none(),
        "the Secret is still there"
    );
    let roles: Api<ClusterRole> = Api::all(stand.east.client());
    let role = roles.get_opt("isthmus-mci-controller-member").await?;
    ensure!(role.is_none(), "the role is still there");
    // once more: nothing is left to do
    stand.done("leave east").await?;
    let status = stand.json("status --contexts east,west").await?;
    let cells = status["pools"][0]["cells"].as_array();
    let cells = cells.context("a pool")?;
    ensure!(cells[1].get("imports").is_none(), "{status:#}");
    Ok(())
}
