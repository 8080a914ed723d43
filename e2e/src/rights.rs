//! Rights, one by one: as roles grant them, and as an API server says that a user has them.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    authorization::v1::{ResourceRule, SelfSubjectRulesReview, SelfSubjectRulesReviewSpec},
    rbac::v1::PolicyRule,
};
use kube::{
    Api, Client, Config,
    api::PostParams,
    config::{KubeConfigOptions, Kubeconfig},
};

/// One verb on one resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    /// As RBAC names it.
    pub verb: String,
    /// API group; empty for the core's.
    pub group: String,
    /// Resource, with a slash and its subresource where it has one.
    pub resource: String,
    /// Empty: on all of them.
    pub name: String,
}

/// What rules grant.
#[must_use]
pub fn expand(rules: Option<Vec<PolicyRule>>) -> BTreeSet<Right> {
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
///
/// # Errors
/// When the API server refuses, or does not know all.
pub async fn review(kubeconfig: &str, namespace: &str) -> Result<BTreeSet<Right>> {
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
