//! Labelled Secrets.

use anyhow::Result;
use testbed::isthmus;

use super::{
    GONE, SOON, clients, delete_binding, end_token, entry_of, member_is, put_secret, rebuilt,
    restore, set_files, token, told, with_token,
};
use e2e::{
    apart::Apart,
    environment::{Environment, Way},
};

use crate::entries::{sample, stays};

const GARBAGE: &str = "apiVersion: v1\nclusters: {{{";

/// A Secret joins, beside one that cannot be used; it goes, and its entries with it; the other is mended, and the same
/// cluster is a member again under the other's name.
pub(crate) async fn a_labelled_secret_is_a_member_until_it_is_deleted(
    environment: &Environment,
) -> Result<()> {
    environment.settle_with(Way::Quick).await?;
    let (east, west) = (&environment.east, &environment.west);
    let kubeconfig = environment.members()["east"].clone();
    let apart = Apart::new();
    let outcome = async {
        set_files(environment, &["west"]).await?;
        environment.no_import(GONE).await?;
        put_secret(environment, "north", GARBAGE, &[]).await?;
        told(
            environment,
            "secret/north",
            "BadCredentials",
            "no kubeconfig",
        )
        .await?;

        // by the annotation, as the Secret has another name
        let named = [("isthmus.dev/cluster-name", "east")];
        put_secret(environment, "cluster-of-the-east", &kubeconfig, &named).await?;
        told(environment, "secret/cluster-of-the-east", "Active", "east").await?;
        environment.serving().await?;
        entry_of(environment, "east").await?;
        apart.add_namespace(east).await?;
        apart.add_pool(west).await?;
        apart.imported(east, "west").await?;
        member_is(environment, "north", "still refused", SOON, |row| {
            row["active"]["reason"] == "BadCredentials"
                && row["source"] == "Secret isthmus-system/north"
        })
        .await?;

        let delete = [
            "delete",
            "secret",
            "cluster-of-the-east",
            "-n",
            isthmus::NAMESPACE,
        ];
        west.kubectl(&delete).await?;
        environment.no_import(GONE).await?;
        // what it imported goes as well, with the last of its credentials
        apart.no_import(east).await?;

        put_secret(environment, "north", &kubeconfig, &[]).await?;
        told(environment, "secret/north", "Active", "north").await?;
        entry_of(environment, "north").await?;
        apart.imported(east, "west").await?;

        // the same cluster, by its old name again: the one that is there stays until it leaves
        set_files(environment, &["east", "west"]).await?;
        member_is(environment, "east", "a duplicate", SOON, |row| {
            row["active"]["reason"] == "DuplicateCluster"
        })
        .await?;
        entry_of(environment, "north").await?;
        west.kubectl(&["delete", "secret", "north", "-n", isthmus::NAMESPACE])
            .await?;
        entry_of(environment, "east").await?;
        environment.serving().await
    }
    .await;
    restore(environment, &apart).await?;
    outcome
}

/// From a file to a Secret, to garbage, to a new token: the member is the same all the time.
pub(crate) async fn a_secrets_new_token_is_tried_before_it_takes_over(
    environment: &Environment,
) -> Result<()> {
    const OBJECTS: [&str; 2] = ["first-token", "second-token"];
    environment.settle_with(Way::Quick).await?;
    let (east, west) = (&environment.east, &environment.west);
    let before = sample(west).await?;
    let kubeconfig = environment.members()["east"].clone();
    let clients = clients(environment).await.map_err(anyhow::Error::msg)?;
    let apart = Apart::new();
    let outcome = async {
        let [first, second] = OBJECTS;
        let first_token = with_token(&kubeconfig, &token(east, first).await?)?;
        let second_token = with_token(&kubeconfig, &token(east, second).await?)?;
        put_secret(environment, "east", &first_token, &[]).await?;
        // the file has the name for as long as it is there
        told(
            environment,
            "secret/east",
            "DuplicateCluster",
            "gives this name too",
        )
        .await?;
        set_files(environment, &["west"]).await?;
        member_is(environment, "east", "named by the Secret", GONE, |row| {
            row["source"] == "Secret isthmus-system/east" && row["active"]["reason"] == "Active"
        })
        .await?;
        rebuilt(environment, clients, 1).await?;
        stays(environment, &before).await?;

        put_secret(environment, "east", GARBAGE, &[]).await?;
        told(
            environment,
            "secret/east",
            "BadCredentials",
            "the old ones stay",
        )
        .await?;
        apart.add_namespace(west).await?;
        apart.add_pool(east).await?;
        apart.imported(west, "east").await?;

        put_secret(environment, "east", &second_token, &[]).await?;
        rebuilt(environment, clients, 2).await?;
        member_is(environment, "east", "satisfied", SOON, |row| {
            row.get("unusableCredentials").is_none() && row["active"]["reason"] == "Active"
        })
        .await?;
        end_token(east, first, &first_token).await?;
        // both ways by the second
        apart.delete_pool(east).await?;
        apart.no_import(west).await?;
        apart.add_pool(west).await?;
        apart.imported(east, "west").await?;
        rebuilt(environment, clients, 2).await?;
        stays(environment, &before).await
    }
    .await;
    restore(environment, &apart).await?;
    for object in OBJECTS {
        delete_binding(east, object).await?;
    }
    outcome
}
