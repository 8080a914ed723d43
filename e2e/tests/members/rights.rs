//! The controller has exactly the rights of `config/rbac`, needs each of them, and says which one is missing.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::{Api, api::PostParams};
use serde_json::{Value, json};
use testbed::{ApiCall, Cluster, eventually, isthmus};

use e2e::{
    apart::Apart,
    environment::{CONTROLLER_USER, Environment, Way},
    rights::{self, Right},
};

use crate::{entries::entry_says, evidence::restart_controller, rules};

/// Several steps of several programs on a busy machine.
const SOON: Duration = Duration::from_secs(30);

/// Rights that no call of this suite bears the name of, and why they are granted all the same.
const UNUSED: &[(&str, &str, &str)] = &[
    (
        "create",
        "inferencepoolimports",
        "an apply that creates is a patch, and must be allowed both",
    ),
    (
        "create",
        "events",
        "an apply that creates is a patch, and must be allowed both",
    ),
    (
        "list",
        "clusterprofiles",
        "read only where a flag names their namespace",
    ),
    (
        "update",
        "configmaps",
        "the members' record is written anew when there is a member more or less",
    ),
];

pub(crate) async fn the_controller_has_the_rights_of_the_manifests_and_no_other(
    environment: &Environment,
) -> Result<()> {
    environment.settle().await?;
    let (east, west) = (&environment.east, &environment.west);
    let apart = Apart::new();
    let outcome = async {
        for cluster in [east, west] {
            apart.add_namespace(cluster).await?;
            let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client(), &apart.name);
            let stranger = json!({"metadata": {"name": "stranger"}});
            let stranger = serde_json::from_value(stranger)?;
            accounts.create(&PostParams::default(), &stranger).await?;
        }
        let member = rules::of_member(east).await?;
        // any namespace will do: a member's rights are to all, and none is to its Secrets
        for namespace in [isthmus::POOL_NAMESPACE, isthmus::NAMESPACE, "kube-system"] {
            are_exactly(environment, &apart, east, namespace, &member).await?;
        }
        // west is home as well
        let mut home = rules::of_member(west).await?;
        home.extend(rules::of_home(west).await?);
        are_exactly(environment, &apart, west, isthmus::POOL_NAMESPACE, &home).await?;
        home.extend(rules::of_home_namespace(west).await?);
        are_exactly(environment, &apart, west, isthmus::NAMESPACE, &home).await?;
        let mut rights = home.iter().chain(&member);
        let wild = rights.find(|right| {
            [&right.verb, &right.group, &right.resource]
                .into_iter()
                .any(|part| part.contains('*'))
        });
        ensure!(wild.is_none(), "{wild:?}");
        let mut rights = member.iter();
        let secret = rights.find(|right| right.resource.starts_with("secrets"));
        ensure!(secret.is_none(), "{secret:?}");
        anyhow::Ok(())
    }
    .await;
    apart.clear(environment).await?;
    outcome
}

/// Both ways: what is granted is used, and what is used is granted.
pub(crate) async fn every_right_of_the_manifests_is_used(environment: &Environment) -> Result<()> {
    environment.settle().await?;
    let (east, west) = (&environment.east, &environment.west);
    let apart = Apart::new();
    let outcome = async {
        // east imports, and its import goes again
        apart.add_namespace(east).await?;
        apart.add_pool(west).await?;
        apart.imported(east, "west").await?;
        apart.delete_pool(west).await?;
        apart.no_import(east).await?;
        // a pool of east asks for what it has not got
        apart.add_pool(east).await?;
        let pool = format!("inferencepool/{}", apart.name);
        for annotation in [
            "inference.networking.x-k8s.io/export-mode=ParentMode",
            "isthmus.dev/drain-seconds=never",
        ] {
            let annotate = ["annotate", "-n", &apart.name, &pool, annotation];
            east.kubectl(&annotate).await?;
        }
        let member = rules::of_member(east).await?;
        are_used(environment, "east", &member, |_| true).await?;
        // at home an event says why a kubeconfig is of no use
        let mut members = environment.members();
        members.insert("north".to_owned(), "no kubeconfig".to_owned());
        isthmus::set_members(west, &members).await?;
        let home = rules::of_home(west).await?;
        are_used(environment, "west", &home, |_| true).await?;
        let home = rules::of_home_namespace(west).await?;
        are_used(environment, "west", &home, |call| {
            call.namespace == isthmus::NAMESPACE
        })
        .await
    }
    .await;
    isthmus::set_members(west, &environment.members()).await?;
    apart.clear(environment).await?;
    outcome?;
    // the guard keeps it for 10 s, and what the pools say of it is written after that
    eventually("member north is gone", SOON, async || {
        let page = environment.controller_page("/debug/clusters").await;
        let page = page.map_err(|error| format!("{error:#}"))?;
        if page.contains("\"north\"") {
            Err(page)
        } else {
            Ok(())
        }
    })
    .await?;
    environment.denied_nothing()
}

pub(crate) async fn a_right_that_is_taken_away_is_named(environment: &Environment) -> Result<()> {
    environment.settle_with(Way::Quick).await?;
    let (east, west) = (&environment.east, &environment.west);
    let apart = Apart::new();
    rules::take_away(east, "services").await?;
    let seen = async {
        // a watch that stands is not asked again
        restart_controller(environment).await?;
        entry_says(environment, "Reachable", "False", "AuthFailed").await?;
        eventually("the missing right is named", SOON, async || {
            let page = environment.controller_page("/debug/clusters").await;
            let page = page.map_err(|error| format!("{error:#}"))?;
            let page: Value = serde_json::from_str(&page).map_err(|error| error.to_string())?;
            let mut members = page["clusters"].as_array().into_iter().flatten();
            let member = members
                .find(|member| member["name"] == "east")
                .ok_or("no member east")?;
            let denied = member["denied"].as_str().unwrap_or_default();
            if denied.contains("list") && denied.contains("services") {
                Ok(())
            } else {
                Err(format!("{member:#}"))
            }
        })
        .await?;
        // what it may still do it does: east cannot export, but it imports
        apart.add_namespace(east).await?;
        apart.add_pool(west).await?;
        apart.imported(east, "west").await?;
        anyhow::Ok(())
    }
    .await;
    isthmus::join(east).await?;
    apart.clear(environment).await?;
    seen?;
    entry_says(environment, "Reachable", "True", "Reachable").await?;
    Ok(())
}

/// What the controller has in a namespace, less what every account has.
async fn are_exactly(
    environment: &Environment,
    apart: &Apart,
    cluster: &Cluster,
    namespace: &str,
    granted: &BTreeSet<Right>,
) -> Result<()> {
    let stranger = cluster
        .service_account_kubeconfig(&apart.name, "stranger")
        .await?;
    let everyones = rights::review(&stranger, namespace).await?;
    let own = rights::review(&environment.members()[cluster.name()], namespace).await?;
    let own: BTreeSet<Right> = own.difference(&everyones).cloned().collect();
    ensure!(
        own == *granted,
        "in {namespace} of {}: too many {:?}, missing {:?}",
        cluster.name(),
        own.difference(granted),
        granted.difference(&own)
    );
    Ok(())
}

/// Waits until the controller has used each of these rights in calls of this kind.
async fn are_used(
    environment: &Environment,
    cluster: &str,
    granted: &BTreeSet<Right>,
    counts: impl Fn(&ApiCall) -> bool,
) -> Result<()> {
    let what = format!("a use of every right in {cluster}");
    eventually(&what, SOON, async || {
        let calls = environment.testbed.calls(cluster);
        let calls = calls.map_err(|error| error.to_string())?;
        let used: BTreeSet<(String, String, String)> = calls
            .into_iter()
            .filter(|call| call.user == CONTROLLER_USER && !call.denied && counts(call))
            .map(|call| (call.verb, call.group, call.resource))
            .collect();
        let unused: Vec<&Right> = granted
            .iter()
            .filter(|right| !is_used(right, &used))
            .collect();
        if unused.is_empty() {
            Ok(())
        } else {
            Err(format!("unused: {unused:?}"))
        }
    })
    .await?;
    Ok(())
}

fn is_used(right: &Right, used: &BTreeSet<(String, String, String)>) -> bool {
    let reads = ["get", "list", "watch"];
    // who may list may as well watch and get: the three are one right
    let alike: &[&str] = if reads.contains(&&*right.verb) {
        &reads
    } else {
        &[&right.verb]
    };
    alike.iter().any(|&verb| {
        let call = (verb.to_owned(), right.group.clone(), right.resource.clone());
        let justified = UNUSED
            .iter()
            .any(|(unused, resource, _)| (*unused, *resource) == (verb, &*right.resource));
        justified || used.contains(&call)
    })
}
