//! ClusterProfile (multicluster.x-k8s.io, KEP-4322 and KEP-5339): a cluster of a fleet. Only what we read; unknown fields
//! are no fault.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Property that holds a cluster's name in its ClusterSet.
pub const CLUSTER_NAME_PROPERTY: &str = "cluster.clusterset.k8s.io";
/// Labels of a ClusterProfile's namespace that name the ClusterSet; the first that is there counts.
pub const CLUSTERSET_LABELS: [&str; 2] = [
    "multicluster.x-k8s.io/clusterset",
    "clusterset.multicluster.x-k8s.io",
];
/// Condition: the cluster is part of the fleet.
pub const JOINED: &str = "Joined";
/// Condition: the cluster's control plane answers, as the fleet manager sees it.
pub const CONTROL_PLANE_HEALTHY: &str = "ControlPlaneHealthy";

/// What the fleet manager wants; nothing of it is read.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "multicluster.x-k8s.io",
    version = "v1alpha1",
    kind = "ClusterProfile",
    plural = "clusterprofiles",
    namespaced,
    status = "ClusterProfileStatus",
    schema = "disabled"
)]
pub struct ClusterProfileSpec {}

/// What the fleet manager knows of the cluster.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ClusterProfileStatus {
    /// See [`JOINED`] and [`CONTROL_PLANE_HEALTHY`].
    #[serde(default)]
    pub conditions: Option<Vec<Condition>>,
    /// See [`CLUSTER_NAME_PROPERTY`].
    #[serde(default)]
    pub properties: Option<Vec<Property>>,
    /// How the cluster is reached, by provider.
    #[serde(default)]
    pub access_providers: Option<Vec<AccessProvider>>,
    /// The same under its old name: an entry of [`Self::access_providers`] with the same name wins.
    #[serde(default)]
    pub credential_providers: Option<Vec<AccessProvider>>,
}

/// A fact about the cluster.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct Property {
    /// Unique among the properties.
    #[serde(default)]
    pub name: String,
    /// Free text.
    #[serde(default)]
    pub value: String,
}

/// One way to reach the cluster.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct AccessProvider {
    /// Of the provider that issues credentials for it.
    #[serde(default)]
    pub name: String,
    /// As in a kubeconfig's `cluster`.
    #[serde(default)]
    pub cluster: Value,
}

impl ClusterProfileStatus {
    /// Every way to reach the cluster, one per name.
    pub fn providers(&self) -> impl Iterator<Item = &AccessProvider> {
        let current = self.access_providers.iter().flatten();
        let old = self.credential_providers.iter().flatten();
        let known = |name: &str| {
            let mut current = self.access_providers.iter().flatten();
            current.any(|provider| provider.name == name)
        };
        current.chain(old.filter(move |provider| !known(&provider.name)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_current_list_wins_by_name_over_the_old_one() {
        let status: ClusterProfileStatus = serde_json::from_value(json!({
            "accessProviders": [{"name": "a", "cluster": {"server": "new"}}],
            "credentialProviders": [
                {"name": "a", "cluster": {"server": "old"}},
                {"name": "b", "cluster": {"server": "old"}},
            ],
            "version": {"kubernetes": "1.34"},
        }))
        .expect("a status");
        let seen: Vec<(&str, &str)> = status
            .providers()
            .map(|one| {
                (
                    one.name.as_str(),
                    one.cluster["server"].as_str().unwrap_or(""),
                )
            })
            .collect();
        assert_eq!(seen, [("a", "new"), ("b", "old")]);
    }

    #[test]
    fn a_profile_that_says_nothing_is_read() {
        let profile: ClusterProfile = serde_json::from_value(json!({
            "apiVersion": "multicluster.x-k8s.io/v1alpha1", "kind": "ClusterProfile",
            "metadata": {"name": "east"},
            "spec": {"displayName": "East", "clusterManager": {"name": "x"}},
        }))
        .expect("a profile");
        assert!(profile.status.is_none());
    }
}
