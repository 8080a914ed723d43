//! Rights, one by one: as roles grant them, and as an API server says that a user has them.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    authorization::v1::{ResourceRule, SelfSubjectRulesReview, SelfSubjectRulesReviewSpec},
    rbac::v1::{ClusterRole, PolicyRule, Role},
};
use kube::{
    Api, Client, Config,
    api::PostParams,
    config::{KubeConfigOptions, Kubeconfig},
};
use testbed::{Cluster, isthmus};

/// One verb on one resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Right {
    pub(crate) verb: String,
    pub(crate) group: String,
    pub(crate) resource: String,
    /// Empty: on all of them.
    pub(crate) name: String,
}

/// In every member: config/rbac/member.yaml.
const MEMBER: &str = "isthmus-mci-controller-member";
/// Where the controller runs: config/rbac/home.yaml.
const HOME: &str = "isthmus-mci-controller-home";

/// What the controller is granted as a user of a member's kubeconfig.
pub(crate) async fn of_member(cluster: &Cluster) -> Result<BTreeSet<Right>> {
    cluster_role(cluster, MEMBER).await
}

/// What it is granted at home, in all namespaces.
pub(crate) async fn of_home(cluster: &Cluster) -> Result<BTreeSet<Right>> {
    cluster_role(cluster, HOME).await
}

/// What it is granted at home, in its own namespace.
pub(crate) async fn of_home_namespace(cluster: &Cluster) -> Result<BTreeSet<Right>> {
    let roles: Api<Role> = Api::namespaced(cluster.client(), isthmus::NAMESPACE);
    Ok(expand(roles.get(HOME).await?.rules))
}

/// Takes all rights to a resource away from the controller in a member, until [`isthmus::join`] puts them back.
pub(crate) async fn take_away(cluster: &Cluster, resource: &str) -> Result<()> {
    let roles: Api<ClusterRole> = Api::all(cluster.client());
    let mut role = roles.get(MEMBER).await?;
    for rule in role.rules.iter_mut().flatten() {
        if let Some(resources) = &mut rule.resources {
            resources.retain(|one| one != resource);
        }
    }
    roles.replace(MEMBER, &PostParams::default(), &role).await?;
    Ok(())
}

async fn cluster_role(cluster: &Cluster, name: &str) -> Result<BTreeSet<Right>> {
    let roles: Api<ClusterRole> = Api::all(cluster.client());
    Ok(expand(roles.get(name).await?.rules))
}

fn expand(rules: Option<Vec<PolicyRule>>) -> BTreeSet<Right> {
    let rules = rules.into_iter().flatten();
    let rights = rules.flat_map(|rule| {
        rights(
            rule.verbs,
            rule.api_groups,
            rule.resources,
            rule.resource_names,
        )
    });
    rights.collect()
}

/// What the API server says that the user of this kubeconfig may do in a namespace.
pub(crate) async fn review(kubeconfig: &str, namespace: &str) -> Result<BTreeSet<Right>> {
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
                    rights.push(Right {
                        verb: verb.clone(),
                        group: group.clone(),
                        resource: resource.clone(),
                        name: name.clone(),
                    });
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
