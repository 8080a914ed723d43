//! Which cluster each member is, beyond the controller's life.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testbed::{Cluster, eventually, isthmus};

use super::{GONE, SOON, entry_of, member_is, put_secret, restore, set_files, told};
use e2e::{
    apart::Apart,
    environment::{Environment, Way},
};

use crate::entries::{sample, stays};

/// The ConfigMap at home.
const RECORD: &str = "configmap/isthmus-mci-default-members";

/// Somebody mixes up the kubeconfigs of two members while the controller is down. It finds out, touches neither, and takes
/// them for what they are now only when it is told to.
pub(crate) async fn a_member_that_is_another_cluster_now_waits_to_be_accepted(
    environment: &Environment,
) -> Result<()> {
    environment.settle_with(Way::Quick).await?;
    let (east, west) = (&environment.east, &environment.west);
    let members = environment.members();
    let (of_east, of_west) = (&members["east"], &members["west"]);
    let apart = Apart::new();
    let outcome = async {
        let (uid_east, uid_west) = (identity(east).await?, identity(west).await?);
        put_secret(environment, "east", of_east, &[]).await?;
        put_secret(environment, "west", of_west, &[]).await?;
        set_files(environment, &[]).await?;
        for name in ["east", "west"] {
            let source = format!("Secret isthmus-system/{name}");
            member_is(environment, name, "named by its Secret", GONE, |row| {
                row["source"] == *source && row["active"]["reason"] == "Active"
            })
            .await?;
        }
        recorded(environment, &uid_east, &uid_west).await?;
        let before = sample(west).await?;

        environment.scale_controller(0).await?;
        put_secret(environment, "east", of_west, &[]).await?;
        put_secret(environment, "west", of_east, &[]).await?;
        environment.scale_controller(1).await?;
        for name in ["east", "west"] {
            let object = format!("secret/{name}");
            told(
                environment,
                &object,
                "IdentityChanged",
                "another cluster than before",
            )
            .await?;
        }
        // neither exports nor imports
        apart.add_pool(east).await?;
        apart.add_namespace(west).await?;
        stays(environment, &before).await?;
        let none = apart.imports(west).get_opt(&apart.name).await?;
        ensure!(none.is_none(), "{none:?}");
        recorded(environment, &uid_east, &uid_west).await?;

        // one is not accepted by the other's word, nor by a wrong one
        let accept = "isthmus.dev/accept-identity";
        put_secret(environment, "east", of_west, &[(accept, &uid_west)]).await?;
        put_secret(environment, "west", of_east, &[(accept, &uid_west)]).await?;
        told(environment, "secret/east", "Active", "east").await?;
        member_is(environment, "west", "still refused", SOON, |row| {
            row["active"]["reason"] == "IdentityChanged"
        })
        .await?;
        put_secret(environment, "west", of_east, &[(accept, &uid_east)]).await?;
        told(environment, "secret/west", "Active", "west").await?;
        // the names have changed places
        entry_of(environment, "west").await?;
        apart.imported(west, "west").await?;
        recorded(environment, &uid_west, &uid_east).await
    }
    .await;
    // as at the very first start
    environment.scale_controller(0).await?;
    let forget = [
        "delete",
        RECORD,
        "-n",
        isthmus::NAMESPACE,
        "--ignore-not-found",
    ];
    west.kubectl(&forget).await?;
    let delete = [
        "delete",
        "secret",
        "east",
        "west",
        "-n",
        isthmus::NAMESPACE,
        "--ignore-not-found",
    ];
    west.kubectl(&delete).await?;
    restore(environment, &apart).await?;
    outcome?;
    entry_of(environment, "east").await
}

/// Uid of the cluster's kube-system namespace.
async fn identity(cluster: &Cluster) -> Result<String> {
    let get = [
        "get",
        "namespace",
        "kube-system",
        "-o",
        "jsonpath={.metadata.uid}",
    ];
    let uid = cluster.kubectl(&get).await?;
    ensure!(
        !uid.is_empty(),
        "kube-system of {} has no uid",
        cluster.name()
    );
    Ok(uid)
}

/// Waits until the record at home has these clusters behind the two names, with the time when they were first seen.
async fn recorded(environment: &Environment, east: &str, west: &str) -> Result<()> {
    let get = [
        "get",
        RECORD,
        "-n",
        isthmus::NAMESPACE,
        "-o",
        "jsonpath={.data}",
    ];
    let wanted = BTreeMap::from([("east", east), ("west", west)]);
    eventually("the record of identities", SOON, async || {
        let data = environment.west.kubectl(&get).await;
        let data = data.map_err(|error| error.to_string())?;
        let lines: BTreeMap<String, String> =
            serde_json::from_str(&data).map_err(|error| format!("{error}: {data}"))?;
        let mut found = BTreeMap::new();
        for (name, line) in &lines {
            let record: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
            let dated = record["firstSeen"].is_string() && record["source"].is_string();
            let uid = record["uid"].as_str().filter(|_| dated);
            found.insert(
                name.as_str(),
                uid.map(ToOwned::to_owned).unwrap_or_default(),
            );
        }
        let is_as_wanted = found.len() == wanted.len()
            && wanted
                .iter()
                .all(|(name, uid)| found.get(name).is_some_and(|found| found == uid));
        if is_as_wanted { Ok(()) } else { Err(data) }
    })
    .await
    .context("see docs/reference.md, Labels and names")?;
    Ok(())
}
