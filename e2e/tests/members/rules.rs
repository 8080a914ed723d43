//! The rights that the manifests grant the controller.

use std::collections::BTreeSet;

use anyhow::Result;
use e2e::rights::{Right, expand};
use k8s_openapi::api::rbac::v1::{ClusterRole, Role};
use kube::{Api, api::PostParams};
use testbed::{Cluster, isthmus};

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
