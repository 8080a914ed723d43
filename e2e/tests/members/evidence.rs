//! What the controller does when a member's API server, CRD, namespace, link or credentials fail, or when it is restarted
//! itself: nothing is withdrawn without evidence, and nothing is written that is already so.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crd::InferencePoolImport;
use e2e::{
    apart::Apart,
    environment::{CONTROLLER_PODS, CONTROLLER_USER, Environment, PAST_STALE, Way},
    pair::import,
};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use testbed::{ApiCall, Cluster, Manifests, eventually, isthmus};

use crate::entries::{entry_says, keeps_entries, sample, stays, stays_for};

/// Several steps of several programs on a busy machine.
const SOON: Duration = Duration::from_secs(30);

/// T1, and what comes after: a CRD that is deleted tells of each pool's end, and proves none.
pub(crate) async fn a_deleted_crd_of_pools_withdraws_nothing(
    environment: &Environment,
) -> Result<()> {
    const CRD: &str = "crd/inferencepools.inference.networking.k8s.io";
    /// Shorter than `--stale-after`, after which a pool that does not come back with its CRD is gone.
    const WITHOUT_POOLS: Duration = Duration::from_secs(3);
    /// East's endpoint picker is not ready while it has no pool, as the docs have it. That is no withdrawal.
    const NOT_READY: &[&str] = &["NoReadyEndpoint"];
    environment.settle_with(Way::Impatient).await?;
    let before = sample(&environment.west).await?;
    let east = &environment.east;
    let pool = pool_to_recreate(east).await?;
    east.kubectl(&["delete", CRD, "--timeout=25s"]).await?;
    let seen = async {
        entry_says(environment, "Reachable", "False", "CRDMissing").await?;
        stays_for(environment, PAST_STALE, &before, NOT_READY).await
    }
    .await;
    east.apply_file(&Manifests::find().await?.inference_pool)
        .await?;
    // the new kind has no pools at first, which is no evidence either: whoever reinstalls it puts them back
    let returned = stays_for(environment, WITHOUT_POOLS, &before, NOT_READY).await;
    east.apply_yaml(&pool.to_string()).await?;
    seen?;
    returned?;
    entry_says(environment, "Reachable", "True", "Reachable").await?;
    stays_for(environment, PAST_STALE, &before, NOT_READY).await?;
    // from now on an end is one again
    isthmus::withdraw(east).await?;
    environment.no_import(SOON).await
}

/// T2 among others: first the API server goes while it is watched, then the controller starts without it.
pub(crate) async fn a_killed_api_server_takes_no_entry_with_it(
    environment: &Environment,
) -> Result<()> {
    environment.settle_with(Way::Impatient).await?;
    let before = sample(&environment.west).await?;
    let api_server = environment.testbed.api_server("east")?;
    api_server.kill().await;
    let seen = async {
        entry_says(environment, "Reachable", "False", "ConnectionLost").await?;
        restart_controller(environment).await?;
        entry_says(environment, "Reachable", "False", "ConnectionLost").await?;
        stays_for(environment, PAST_STALE, &before, &[]).await?;
        environment.answered(1).await
    }
    .await;
    api_server.restart().await?;
    seen?;
    entry_says(environment, "Reachable", "True", "Reachable").await?;
    stays(environment, &before).await?;
    isthmus::withdraw(&environment.east).await?;
    environment.no_import(SOON).await
}

/// While nothing is heard of a cluster, what happens there is not known; afterwards it is.
pub(crate) async fn what_happens_behind_a_cut_link_is_made_good_after_it(
    environment: &Environment,
) -> Result<()> {
    environment.settle_with(Way::Impatient).await?;
    let apart = Apart::new();
    let outcome = async {
        apart.add_namespace(&environment.west).await?;
        apart.add_pool(&environment.east).await?;
        let unheard = apart.imported(&environment.west, "east").await?;
        let before = sample(&environment.west).await?;
        environment.cut().await?;
        let seen = async {
            apart.delete_pool(&environment.east).await?;
            entry_says(environment, "Reachable", "False", "ConnectionLost").await?;
            // that its pool is gone is not known here
            let imports = apart.imports(&environment.west);
            tokio::try_join!(
                keeps_entries(&imports, PAST_STALE, &unheard, &[]),
                stays_for(environment, PAST_STALE, &before, &[]),
            )?;
            anyhow::Ok(())
        }
        .await;
        environment.heal().await?;
        seen?;
        apart.no_import(&environment.west).await?;
        entry_says(environment, "Reachable", "True", "Reachable").await?;
        stays(environment, &before).await
    }
    .await;
    apart.clear(environment).await?;
    outcome
}

/// T18.
pub(crate) async fn upstreams_crd_takes_the_entries_and_ours_brings_them_back(
    environment: &Environment,
) -> Result<()> {
    environment.settle().await?;
    let apart = Apart::new();
    let west = &environment.west;
    let before = sample(west).await?;
    isthmus::install_upstream_import_crd(west).await?;
    let seen = async {
        eventually("the import in upstream's shape", SOON, async || {
            only_names_east(&import(west).await?.ok_or("NO IMPORT")?)
        })
        .await?;
        // what is still to be said in this shape is said
        apart.add_namespace(west).await?;
        apart.add_pool(&environment.east).await?;
        eventually("a new import in upstream's shape", SOON, async || {
            let import = apart.imports(west).get_opt(&apart.name).await;
            let import = import.map_err(|error| error.to_string())?;
            only_names_east(&import.ok_or("no import")?)
        })
        .await?;
        apart
            .says(
                &environment.east,
                "Exported under upstream's CRD",
                |exported| exported.status == "True",
            )
            .await?;
        apart.delete_pool(&environment.east).await?;
        apart.no_import(west).await?;
        // and what the CRD cannot hold is not tried again and again
        let tried = writes(environment, "west")?.into_iter();
        let refused: Vec<_> = tried.filter(|call| call.code >= 500).collect();
        ensure!(
            refused.len() <= 2,
            "{} refusals: {refused:?}",
            refused.len()
        );
        no_writes(environment, "west", "under upstream's CRD").await
    }
    .await;
    isthmus::install_import_crd(west).await?;
    apart.clear(environment).await?;
    seen?;
    environment.serving().await?;
    let after = sample(west).await?;
    ensure!(
        before.metadata.uid == after.metadata.uid,
        "the import was made anew"
    );
    Ok(())
}

/// All that upstream's CRD can hold.
fn only_names_east(import: &InferencePoolImport) -> Result<(), String> {
    let ours = import.controller(crd::annotations::MCI_CONTROLLER);
    let ours = ours.ok_or("no entry of the controller")?;
    let names = ours.exporting_clusters.iter();
    let names: Vec<&str> = names.map(|cluster| cluster.name.as_str()).collect();
    if import.clusters().is_empty() && names == ["east"] {
        Ok(())
    } else {
        Err(format!("{:?}", import.status))
    }
}

/// T19.
pub(crate) async fn a_namespace_that_ends_is_left_alone_and_a_new_one_is_served(
    environment: &Environment,
) -> Result<()> {
    environment.settle().await?;
    let apart = Apart::new();
    let (east, west) = (&environment.east, &environment.west);
    let outcome = async {
        apart.add_pool(east).await?;
        apart
            .says(east, "the missing namespace is named", |exported| {
                exported.reason == "NamespaceMissing"
            })
            .await?;
        apart.add_namespace(west).await?;
        apart.imported(west, "east").await?;

        let namespaces: Api<Namespace> = Api::all(west.client());
        brake(&namespaces, &apart, json!(["example.net/brake"])).await?;
        let delete = ["delete", "namespace", &apart.name, "--wait=false"];
        west.kubectl(&delete).await?;
        let seen = async {
            apart.no_import(west).await?;
            apart
                .says(east, "the ending namespace is named", |exported| {
                    exported.reason == "NamespaceMissing"
                })
                .await?;
            no_writes(environment, "west", "in a namespace that ends").await
        }
        .await;
        brake(&namespaces, &apart, json!(null)).await?;
        seen?;
        eventually("the namespace is gone", SOON, async || {
            match namespaces.get_opt(&apart.name).await {
                Ok(None) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await?;
        no_writes(environment, "west", "without the namespace").await?;

        apart.add_namespace(west).await?;
        apart.imported(west, "east").await?;
        apart
            .says(east, "Exported is true again", |exported| {
                exported.status == "True"
            })
            .await
    }
    .await;
    apart.clear(environment).await?;
    outcome
}

/// The old token is refused before the controller has the new one: what it cannot do meanwhile it does then.
pub(crate) async fn a_rotated_token_costs_no_event(environment: &Environment) -> Result<()> {
    environment.settle().await?;
    let apart = Apart::new();
    let (east, west) = (&environment.east, &environment.west);
    let before = sample(west).await?;
    let mut members = environment.members();
    let outcome = async {
        apart.add_namespace(west).await?;
        // a token is good for as long as its account lives
        let account = [
            "-n",
            isthmus::NAMESPACE,
            "serviceaccount",
            isthmus::CONTROLLER,
        ];
        east.kubectl(&[&["delete"][..], &account[..]].concat())
            .await?;
        members.insert("east".to_owned(), isthmus::join(east).await?);
        apart.add_pool(east).await?;
        eventually("the old token is refused", SOON, async || {
            let metrics = environment.controller_metrics().await;
            let metrics = metrics.map_err(|error| format!("{error:#}"))?;
            let states = metrics
                .lines()
                .filter(|line| line.starts_with("mci_member_state") && line.contains("east"));
            let states: Vec<&str> = states.collect();
            let refused = states
                .iter()
                .any(|line| line.contains("AuthFailed") && line.ends_with(" 1"));
            if refused {
                Ok(())
            } else {
                Err(states.join("\n"))
            }
        })
        .await?;
        stays(environment, &before).await?;

        isthmus::set_members(west, &members).await?;
        // a node takes up to a minute or two to bring a Secret's new content into a pod; ours takes seconds
        apart.imported(west, "east").await?;
        apart
            .says(east, "Exported, written with the new token", |exported| {
                exported.status == "True"
            })
            .await?;
        entry_says(environment, "Reachable", "True", "Reachable").await?;
        stays(environment, &before).await
    }
    .await;
    environment.remember_members(members);
    apart.clear(environment).await?;
    outcome
}

pub(crate) async fn a_restarted_controller_writes_nothing_that_is_already_so(
    environment: &Environment,
) -> Result<()> {
    environment.settle().await?;
    // what settling has still to write is written
    no_writes(environment, "east", "before the restart").await?;
    let before = (
        writes(environment, "east")?.len(),
        writes(environment, "west")?.len(),
    );
    restart_controller(environment).await?;
    no_writes(environment, "west", "after the restart").await?;
    for (cluster, before) in [("east", before.0), ("west", before.1)] {
        let since = writes(environment, cluster)?.split_off(before);
        ensure!(
            since.is_empty(),
            "the restart wrote in {cluster}: {since:?}"
        );
    }
    Ok(())
}

/// Finalizers of the namespace itself: until they are taken away it is ending, however soon what was in it is gone.
async fn brake(namespaces: &Api<Namespace>, apart: &Apart, finalizers: Value) -> Result<()> {
    let patch = Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
    let params = PatchParams::default();
    namespaces.patch(&apart.name, &params, &patch).await?;
    Ok(())
}

/// Waits until five seconds went by without a write of the controller in this cluster.
async fn no_writes(environment: &Environment, cluster: &str, when: &str) -> Result<()> {
    const QUIET: Duration = Duration::from_secs(5);
    let what = format!("{QUIET:?} without a write in {cluster}, {when}");
    let mut quiet = (tokio::time::Instant::now(), usize::MAX);
    eventually(&what, SOON, async || {
        let writes = writes(environment, cluster).map_err(|error| format!("{error:#}"))?;
        if writes.len() != quiet.1 {
            quiet = (tokio::time::Instant::now(), writes.len());
        }
        if quiet.0.elapsed() >= QUIET {
            Ok(())
        } else {
            let last: Vec<_> = writes.iter().rev().take(5).collect();
            Err(format!("{} writes, the last: {last:?}", writes.len()))
        }
    })
    .await?;
    Ok(())
}

/// What the controller has written or tried to write of imports and pools.
fn writes(environment: &Environment, cluster: &str) -> Result<Vec<ApiCall>> {
    let mut calls = environment.testbed.calls(cluster)?;
    calls.retain(|call| {
        let reads = ["get", "list", "watch"];
        let resource = call.resource.split('/').next().unwrap_or_default();
        call.user == CONTROLLER_USER
            && !reads.contains(&&*call.verb)
            && ["inferencepools", "inferencepoolimports"].contains(&resource)
    });
    Ok(calls)
}

/// The sample pool as its owner would put it back: with all that was asked for, and nothing that the server added.
async fn pool_to_recreate(cluster: &Cluster) -> Result<Value> {
    let pool = cluster
        .kubectl(&[
            "get",
            "inferencepool",
            isthmus::POOL,
            "-n",
            isthmus::POOL_NAMESPACE,
            "-o",
            "json",
        ])
        .await?;
    let pool: Value = serde_json::from_str(&pool)?;
    let metadata = &pool["metadata"];
    Ok(json!({
        "apiVersion": pool["apiVersion"],
        "kind": pool["kind"],
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "labels": metadata["labels"],
            "annotations": metadata["annotations"],
        },
        "spec": pool["spec"],
    }))
}

/// Ends the controller as a roll-out does, and waits until its successor may write: its members are known, and it leads.
pub(crate) async fn restart_controller(environment: &Environment) -> Result<()> {
    let west = &environment.west;
    let pods = async || {
        let pods = environment.pods_of(west, isthmus::NAMESPACE, CONTROLLER_PODS);
        pods.await
    };
    let before = pods().await.map_err(anyhow::Error::msg)?;
    let before = before.keys().next().context("no controller")?;
    let end = [
        "delete",
        "pod",
        before,
        "-n",
        isthmus::NAMESPACE,
        "--wait=false",
    ];
    west.kubectl(&end).await?;
    let what = "the restarted controller is ready and leads";
    eventually(what, SOON, async || {
        let pods = pods().await?;
        if pods.len() != 1 || pods.contains_key(before) {
            return Err(format!("{before} is not replaced yet: {pods:?}"));
        }
        if !environment.controller_is_ready().await? {
            return Err("the restarted controller is still at its gate".to_owned());
        }
        let metrics = environment.controller_metrics().await;
        let metrics = metrics.map_err(|error| format!("{error:#}"))?;
        if metrics.lines().any(|line| line == "mci_leader 1") {
            Ok(())
        } else {
            Err("the restarted controller does not lead".to_owned())
        }
    })
    .await?;
    Ok(())
}
