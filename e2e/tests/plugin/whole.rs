//! The way of a user: join, export, look, route, leave.

use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::{core::v1::Secret, rbac::v1::ClusterRole};
use kube::Api;
use testbed::{Requests, eventually, isthmus};

use crate::stand::Stand;

/// Writes to two clusters at a time.
const GONE: Duration = Duration::from_secs(30);
/// An Envoy starts, and gets its routes.
const SERVED: Duration = Duration::from_secs(30);

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
    // a controller that is new to both of them needs a moment
    let exported = stand.done("export llm/llama --context east --wait").await?;
    ensure!(exported.contains("exported to 1/1"), "{exported}");

    let status = stand.done("status").await?;
    ensure!(
        status.contains("llm/llama   exports   imports 1/1\n"),
        "{status}"
    );
    let explained = stand.done("explain llm/llama").await?;
    ensure!(explained.contains("AsPlanned"), "{explained}");
    let explanation = stand.json("explain llm/llama").await?;
    ensure!(explanation["key"] == "llm/llama", "{explanation:#}");
    let unknown = stand.mci("explain llm/other").await?;
    ensure!(unknown.err.contains("llm/other is unknown"), "{unknown:#?}");

    let route = stand.done("route llama -n llm").await?;
    stand.west.apply_yaml(&route).await?;
    let url = isthmus::gateway_url(&stand.west, "llm", "inference").await?;
    let gateway = Requests::new(url);
    eventually("a pod of east answers", SERVED, async || {
        let answer = gateway.chat("llama", "hello").await;
        let answer = answer.map_err(|error| error.to_string())?;
        if answer.status == 200 {
            Ok(())
        } else {
            Err(format!("{}: {}", answer.status, answer.text()))
        }
    })
    .await?;
    // now that there is a Gateway, the route attaches to it
    let route = stand.done("route llama -n llm").await?;
    ensure!(!route.contains("kind: Gateway\n"), "{route}");
    Ok(())
}

pub(crate) async fn a_cluster_that_leaves_is_clean_but_for_what_is_named(
    stand: &Stand,
) -> Result<()> {
    stand.joined().await?;
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
    // the annotation stays, and nobody acts on it
    eventually("nothing is exported or imported", GONE, async || {
        let status = stand.json("status --contexts east,west").await;
        let status = status.map_err(|error| format!("{error:#}"))?;
        let cells = &status["pools"][0]["cells"];
        if cells[0]["exports"]["exported"] == false && cells[1]["imports"].is_null() {
            Ok(())
        } else {
            Err(format!("{status:#}"))
        }
    })
    .await?;
    // home is a member too, and the controller runs there by the same account
    let left = stand.done("leave west").await?;
    let kept = left.contains("by which the controller runs there");
    ensure!(kept, "{left}");
    stand
        .done("unexport llama -n llm --context east --wait")
        .await?;
    Ok(())
}
