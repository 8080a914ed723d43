//! The controller has exactly the rights of `config/rbac`, needs each of them, and says which one is missing.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    authorization::v1::{ResourceRule, SelfSubjectRulesReview, SelfSubjectRulesReviewSpec},
    core::v1::ServiceAccount,
    rbac::v1::{ClusterRole, PolicyRule},
};
use kube::{
    Api, Client, Config,
    api::PostParams,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::json;
use testbed::{Cluster, eventually, isthmus};

use crate::{
    apart::{self, APART},
    environment::Environment,
    members::{CONTROLLER_USER, entry_says},
};

/// Verb, API group, resource, and the object's name where the right is to one object alone.
type Right = (String, String, String, String);

const ROLE: &str = "isthmus-mci-controller-member";

/// Rights that no call of this suite bears the name of, and why they are granted all the same.
const UNUSED: &[(&str, &str, &str)] = &[
    (
        "get",
        "clusterproperties",
        "read only where no flag names the ClusterSet",
    ),
    (
        "create",
        "inferencepoolimports",
        "an apply that creates is a patch, and must be allowed both",
    ),
    (
        "patch",
        "events",
        "an event that comes again is counted up, 5 minutes later at the earliest",
    ),
];

pub(crate) async fn the_controller_has_the_rights_of_the_manifest_and_no_other(
    environment: &Environment,
) -> Result<()> {
    environment.settle().await?;
    let east = &environment.east;
    // what every account has, by whatever the cluster grants to all
    let stranger = json!({"metadata": {"name": "stranger", "namespace": APART}});
    let outcome = async {
        apart::add_namespace(east).await?;
        let accounts: Api<ServiceAccount> = Api::namespaced(east.client(), APART);
        let stranger = serde_json::from_value(stranger)?;
        accounts.create(&PostParams::default(), &stranger).await?;
        let stranger = east.service_account_kubeconfig(APART, "stranger").await?;
        let granted = granted(east).await?;
        // any namespace will do: the rights are to all
        for namespace in [isthmus::POOL_NAMESPACE, "kube-system"] {
            let everyones = review(&stranger, namespace).await?;
            let own = review(&environment.members()["east"], namespace).await?;
            let own: BTreeSet<Right> = own.difference(&everyones).cloned().collect();
            ensure!(
                own == granted,
                "in {namespace}: too many {:?}, missing {:?}",
                own.difference(&granted),
                granted.difference(&own)
            );
        }
        let never = ["secrets", "*"];
        let mut rights = granted.iter();
        let excess = rights.find(|(verb, group, resource, _)| {
            never.contains(&&**resource) || [verb, group].contains(&&"*".to_owned())
        });
        ensure!(excess.is_none(), "{excess:?}");
        anyhow::Ok(())
    }
    .await;
    apart::clear(environment).await?;
    outcome
}

/// Both ways: what is granted is used, and what is used is granted.
pub(crate) async fn every_right_of_the_manifest_is_used(environment: &Environment) -> Result<()> {
    environment.settle().await?;
    let (east, west) = (&environment.east, &environment.west);
    let outcome = async {
        // east imports, and its import goes again
        apart::add_namespace(east).await?;
        apart::add_pool(west).await?;
        apart::imported(east, "west").await?;
        apart::delete_pool(west).await?;
        apart::no_import(east).await?;
        // a pool of east asks for what it has not got
        apart::add_pool(east).await?;
        let mode = "inference.networking.x-k8s.io/export-mode=ParentMode";
        let pool = format!("inferencepool/{APART}");
        east.kubectl(&["annotate", "-n", APART, &pool, mode])
            .await?;
        let wrong = "isthmus.dev/drain-seconds=never";
        east.kubectl(&["annotate", "-n", APART, &pool, wrong])
            .await?;

        let granted = granted(east).await?;
        let what = "a use of every right";
        eventually(what, std::time::Duration::from_secs(30), async || {
            let calls = environment.testbed.calls("east");
            let calls = calls.map_err(|error| error.to_string())?;
            let used: BTreeSet<(String, String, String)> = calls
                .into_iter()
                .filter(|call| call.user == CONTROLLER_USER && !call.denied)
                .map(|call| (call.verb, call.group, call.resource))
                .collect();
            let unused: Vec<&Right> = granted
                .iter()
                .filter(|(verb, group, resource, _)| {
                    let is_used = |verb: &str| {
                        used.contains(&(verb.to_owned(), group.clone(), resource.clone()))
                    };
                    let reads = ["get", "list", "watch"];
                    // who may list may as well watch and get: the three are one right
                    let used = if reads.contains(&&**verb) {
                        reads.into_iter().any(is_used)
                    } else {
                        is_used(verb)
                    };
                    let known = UNUSED
                        .iter()
                        .any(|(v, r, _)| (v, r) == (&&**verb, &&**resource));
                    !used && !known
                })
                .collect();
            if unused.is_empty() {
                Ok(())
            } else {
                Err(format!("unused: {unused:?}"))
            }
        })
        .await?;
        anyhow::Ok(())
    }
    .await;
    apart::clear(environment).await?;
    outcome?;
    for cluster in ["east", "west"] {
        let calls = environment.testbed.calls(cluster)?.into_iter();
        let denied: Vec<_> = calls
            .filter(|call| call.user == CONTROLLER_USER && call.denied)
            .map(|call| (call.verb, call.group, call.resource, call.name))
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect();
        ensure!(denied.is_empty(), "denied in {cluster}: {denied:?}");
    }
    Ok(())
}

pub(crate) async fn a_right_that_is_taken_away_is_named(environment: &Environment) -> Result<()> {
    environment.settle().await?;
    let east = &environment.east;
    let roles: Api<ClusterRole> = Api::all(east.client());
    let whole = roles.get(ROLE).await?;
    let mut less = whole.clone();
    for rule in less.rules.iter_mut().flatten() {
        if let Some(resources) = &mut rule.resources {
            resources.retain(|resource| resource != "services");
        }
    }
    roles.replace(ROLE, &PostParams::default(), &less).await?;
    let seen = async {
        // a watch that stands is not asked again
        environment
            .restart_controller(std::time::Duration::from_mins(1))
            .await?;
        let reachable = entry_says(environment, "Reachable", "False", "AuthFailed").await?;
        ensure!(
            reachable.message.contains("list") && reachable.message.contains("services"),
            "{reachable:?}"
        );
        anyhow::Ok(())
    }
    .await;
    isthmus::join(east).await?;
    seen?;
    entry_says(environment, "Reachable", "True", "Reachable").await?;
    Ok(())
}

/// What the role says, one right each.
async fn granted(cluster: &Cluster) -> Result<BTreeSet<Right>> {
    let roles: Api<ClusterRole> = Api::all(cluster.client());
    let rules = roles.get(ROLE).await?.rules.unwrap_or_default();
    Ok(rules
        .into_iter()
        .flat_map(|rule: PolicyRule| {
            rights(
                rule.verbs,
                rule.api_groups,
                rule.resources,
                rule.resource_names,
            )
        })
        .collect())
}

/// What the API server says that the user of this kubeconfig may do in a namespace.
async fn review(kubeconfig: &str, namespace: &str) -> Result<BTreeSet<Right>> {
    let reviews: Api<SelfSubjectRulesReview> = Api::all(client(kubeconfig).await?);
    let review = SelfSubjectRulesReview {
        spec: SelfSubjectRulesReviewSpec {
            namespace: Some(namespace.to_owned()),
        },
        ..SelfSubjectRulesReview::default()
    };
    let answer = reviews.create(&PostParams::default(), &review).await?;
    let status = answer.status.context("the review says nothing")?;
    ensure!(!status.incomplete, "{:?}", status.evaluation_error);
    Ok(status
        .resource_rules
        .into_iter()
        .flat_map(|rule: ResourceRule| {
            rights(
                rule.verbs,
                rule.api_groups,
                rule.resources,
                rule.resource_names,
            )
        })
        .collect())
}

fn rights(
    verbs: Vec<String>,
    groups: Option<Vec<String>>,
    resources: Option<Vec<String>>,
    names: Option<Vec<String>>,
) -> Vec<Right> {
    let names = names.filter(|names| !names.is_empty());
    let names = names.unwrap_or_else(|| vec![String::new()]);
    let mut rights = Vec::new();
    for verb in &verbs {
        for group in groups.iter().flatten() {
            for resource in resources.iter().flatten() {
                for name in &names {
                    let right = (verb.clone(), group.clone(), resource.clone(), name.clone());
                    rights.push(right);
                }
            }
        }
    }
    rights
}

async fn client(kubeconfig: &str) -> Result<Client> {
    let kubeconfig = Kubeconfig::from_yaml(kubeconfig)?;
    let mut config =
        Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    // an environment's proxy is not for addresses of this machine
    config.proxy_url = None;
    Ok(Client::try_from(config)?)
}
