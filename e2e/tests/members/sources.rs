//! Members that the home cluster's own objects name: labelled Secrets, ClusterProfiles, and the record of who they are.

mod identities;
mod profiles;
mod secrets;
mod self_name;

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, ensure};
use crd::{InferencePoolImport, conditions};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use testbed::{Cluster, eventually, isthmus};

pub(crate) use self::{
    identities::a_member_that_is_another_cluster_now_waits_to_be_accepted,
    profiles::a_cluster_profile_is_a_member_by_its_plugins_credentials,
    secrets::{
        a_labelled_secret_is_a_member_until_it_is_deleted,
        a_secrets_new_token_is_tried_before_it_takes_over,
    },
    self_name::home_is_a_member_by_its_own_account,
};
use e2e::{apart::Apart, environment::Environment, pair::import};

/// Several steps of several programs on a busy machine.
const SOON: Duration = Duration::from_secs(30);
/// A node brings a Secret's new content into a pod, two readings of the directory 2 s apart lack the file, a removal counts
/// after 10 s; then the steps of [`SOON`].
const GONE: Duration = Duration::from_secs(50);

/// The members that are files; those that are not may be Secrets or ClusterProfiles.
async fn set_files(environment: &Environment, names: &[&str]) -> Result<()> {
    let mut files = environment.members();
    files.retain(|name, _| names.contains(&name.as_str()));
    Ok(isthmus::set_members(&environment.west, &files).await?)
}

/// All members are files again, and the controller runs by its manifest.
async fn restore(environment: &Environment, apart: &Apart) -> Result<()> {
    isthmus::install_controller(&environment.west, &environment.members()).await?;
    let delete = [
        "delete",
        "secret",
        "-n",
        isthmus::NAMESPACE,
        "-l",
        "isthmus.dev/member=true",
    ];
    environment.west.kubectl(&delete).await?;
    apart.clear(environment).await
}

/// A Secret at home that is a member.
async fn put_secret(
    environment: &Environment,
    name: &str,
    kubeconfig: &str,
    annotations: &[(&str, &str)],
) -> Result<()> {
    let of_all = [("isthmus.dev/pod-cidrs", isthmus::POD_CIDRS)];
    let annotations = of_all.into_iter().chain(annotations.iter().copied());
    let annotations: BTreeMap<_, _> = annotations.collect();
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": name,
            "labels": {"isthmus.dev/member": "true"},
            "annotations": annotations,
        },
        "stringData": {"kubeconfig": kubeconfig},
    });
    let params = PatchParams::apply("testbed").force();
    let patch = Patch::Apply(secret);
    home_secrets(environment)
        .patch(name, &params, &patch)
        .await?;
    Ok(())
}

fn home_secrets(environment: &Environment) -> Api<Secret> {
    Api::namespaced(environment.west.client(), isthmus::NAMESPACE)
}

/// Waits until kubectl shows an event of this reason with these words on an object at home.
async fn told(environment: &Environment, object: &str, reason: &str, words: &str) -> Result<()> {
    let what = format!("event {reason} on {object}, with {words:?}");
    let look = ["events", "-n", isthmus::NAMESPACE, "--for", object];
    eventually(&what, SOON, async || {
        let events = environment.west.kubectl(&look).await;
        let events = events.map_err(|error| error.to_string())?;
        let mut lines = events.lines();
        if lines.any(|line| line.contains(reason) && line.contains(words)) {
            Ok(())
        } else {
            Err(format!("{events}\n{:#}", members(environment).await?))
        }
    })
    .await?;
    Ok(())
}

/// `/debug/clusters`.
async fn members(environment: &Environment) -> Result<Value, String> {
    let page = environment.controller_page("/debug/clusters").await;
    let page = page.map_err(|error| format!("{error:#}"))?;
    serde_json::from_str(&page).map_err(|error| format!("{error}: {page}"))
}

/// Waits until the controller's row of this member is as `wanted`.
async fn member_is(
    environment: &Environment,
    name: &str,
    what: &str,
    limit: Duration,
    wanted: impl Fn(&Value) -> bool,
) -> Result<()> {
    let what = format!("member {name}: {what}");
    eventually(&what, limit, async || {
        let page = members(environment).await?;
        let mut rows = page["clusters"].as_array().into_iter().flatten();
        let row = rows.find(|row| row["name"] == name);
        if row.is_some_and(&wanted) {
            Ok(())
        } else {
            Err(format!("{page:#}"))
        }
    })
    .await?;
    Ok(())
}

/// Clients of east made anew: for new credentials, and for credentials that were refused.
async fn clients(environment: &Environment) -> Result<(u64, u64), String> {
    let page = environment.controller_metrics().await;
    let page = page.map_err(|error| format!("{error:#}"))?;
    let count = |reason: &str| {
        let series = format!("mci_client_rebuilds_total{{cluster=\"east\",reason=\"{reason}\"}} ");
        let value = page.lines().find_map(|line| line.strip_prefix(&series));
        value.map_or(Ok(0), |value| {
            value.parse().map_err(|_| format!("{series}{value}"))
        })
    };
    Ok((
        count("NewCredentials")?,
        count("Unauthorised")? + count("AuthFailed")?,
    ))
}

/// Waits until new credentials of east have taken over so often since `before`, and sees that none were refused.
async fn rebuilt(environment: &Environment, before: (u64, u64), times: u64) -> Result<()> {
    let what = format!("{times} clients for new credentials of east, and none for refused ones");
    eventually(&what, SOON, async || {
        let now = clients(environment).await?;
        if now == (before.0 + times, before.1) {
            Ok(())
        } else {
            Err(format!("(new, refused): {now:?}, were {before:?}"))
        }
    })
    .await?;
    Ok(())
}

/// Waits until west's import has one entry, of this name, and it is ready.
async fn entry_of(environment: &Environment, name: &str) -> Result<()> {
    let what = format!("one entry, {name}, in west's import");
    let is_ready =
        |import: &InferencePoolImport| conditions::is_true(import.conditions(), conditions::READY);
    eventually(&what, GONE, async || {
        let import = import(&environment.west).await?.ok_or("no import")?;
        match import.clusters() {
            [entry] if entry.name == name && is_ready(&import) => Ok(()),
            _ => Err(format!("{:?}", import.status)),
        }
    })
    .await?;
    Ok(())
}

/// A token of the controller's account in a member. It ends with the object `bound_to`, which is made for it: see
/// [`end_token`].
async fn token(cluster: &Cluster, bound_to: &str) -> Result<String> {
    let create = [
        "create",
        "secret",
        "generic",
        bound_to,
        "-n",
        isthmus::NAMESPACE,
    ];
    cluster.kubectl(&create).await?;
    let create = [
        "create",
        "token",
        isthmus::CONTROLLER,
        "-n",
        isthmus::NAMESPACE,
        "--bound-object-kind=Secret",
        "--bound-object-name",
        bound_to,
    ];
    Ok(cluster.kubectl(&create).await?.trim().to_owned())
}

/// Waits until the API server refuses the token, which it remembers for a while.
async fn end_token(cluster: &Cluster, bound_to: &str, kubeconfig: &str) -> Result<()> {
    delete_binding(cluster, bound_to).await?;
    eventually(
        "the old token is refused",
        SOON,
        async || match e2e::rights::review(kubeconfig, isthmus::NAMESPACE).await {
            Ok(_) => Err("it is not".to_owned()),
            Err(error) if format!("{error:#}").contains("Unauthorized") => Ok(()),
            Err(error) => Err(format!("{error:#}")),
        },
    )
    .await?;
    Ok(())
}

async fn delete_binding(cluster: &Cluster, bound_to: &str) -> Result<()> {
    let delete = [
        "delete",
        "secret",
        bound_to,
        "-n",
        isthmus::NAMESPACE,
        "--ignore-not-found",
    ];
    cluster.kubectl(&delete).await?;
    Ok(())
}

/// The kubeconfig with another token.
fn with_token(kubeconfig: &str, token: &str) -> Result<String> {
    let mut config: Value = serde_json::from_str(kubeconfig).context("the member's kubeconfig")?;
    let known = &mut config["users"][0]["user"]["token"];
    ensure!(known.is_string(), "no token to replace");
    *known = json!(token);
    Ok(config.to_string())
}
