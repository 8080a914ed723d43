//! `ClusterSelectionPolicy` v1alpha1: how requests to an import are shared among its exporting clusters.
//!
//! A direct policy of Gateway API's form. Absent fields have defaults that the gateway knows; they hold also for imports
//! without a policy.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube::core::{NamespaceResourceScope, Resource};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{import::ParentReference, schema};

/// API group.
pub const GROUP: &str = "isthmus.dev";
/// API version, without the group.
pub const VERSION: &str = "v1alpha1";
/// Kind.
pub const KIND: &str = "ClusterSelectionPolicy";
/// Plural, as in URLs.
pub const PLURAL: &str = "clusterselectionpolicies";

/// Most entries of `spec.order`.
pub const MAX_ORDER: usize = 64;
/// Most entries of `status.ancestors`.
pub const MAX_ANCESTORS: usize = 16;

/// A policy for imports of its namespace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterSelectionPolicy {
    /// Name, namespace and so on.
    pub metadata: ObjectMeta,
    /// What is asked for.
    pub spec: ClusterSelectionPolicySpec,
    /// What came of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<ClusterSelectionPolicyStatus>,
}

/// How requests to the imports are shared among their exporting clusters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterSelectionPolicySpec {
    /// The imports, in the policy's namespace. Where two policies name an import, the older one holds.
    #[schemars(
        length(min = 1, max = 16),
        extend("x-kubernetes-list-type" = "atomic")
    )]
    pub target_refs: Vec<PolicyTarget>,
    /// HealthBased: equal shares of healthy clusters. MetricsBased: shares by free capacity, as the endpoint pickers'
    /// metrics report it. ActivePassive: all requests to the first healthy cluster of the order.
    #[serde(default, rename = "type")]
    pub type_: SelectionType,
    /// Whether the InferencePool of the same namespace and name is one of the clusters, under the name of the gateway's
    /// own cluster.
    #[serde(default)]
    pub local_pool: LocalPool,
    /// ActivePassive: names of clusters, first choice first. Others follow: the gateway's own cluster, then by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::cluster_names")]
    pub order: Vec<String>,
    /// ActivePassive: how long a cluster is healthy again before requests return to it, in seconds; 30 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::up_to_hour")]
    pub failback_seconds: Option<i64>,
    /// MetricsBased: how shares follow metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<MetricsSettings>,
    /// How the health of clusters is probed; only for imports with two clusters or more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthSettings>,
}

/// An import in the policy's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PolicyTarget {
    /// API group of imports.
    #[schemars(schema_with = "schema::import_group")]
    pub group: String,
    /// InferencePoolImport.
    #[schemars(schema_with = "schema::import_kind")]
    pub kind: String,
    /// Name of the import.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// How shares are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SelectionType {
    /// Equal shares of healthy clusters.
    #[default]
    HealthBased,
    /// By free capacity.
    MetricsBased,
    /// All to the first healthy cluster.
    ActivePassive,
}

/// Whether the local pool is one of the clusters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LocalPool {
    /// The local pool is none of the clusters.
    #[default]
    Exclude,
    /// The local pool is one of the clusters.
    Include,
}

/// How shares follow metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MetricsSettings {
    /// Mean number of waiting requests of an endpoint that halves its cluster's share against an idle one; 5 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub queue_target: Option<i64>,
    /// Time in which a share covers half of the way to what the metrics say, in seconds; 5 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 600))]
    pub half_life_seconds: Option<i64>,
    /// Change of a share from which on Envoys are sent new shares, in permille; 50 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 500))]
    pub hysteresis_permille: Option<i64>,
    /// Least share of a healthy cluster, in permille; 20 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 500))]
    pub min_share_permille: Option<i64>,
    /// Age from which on metrics are not used, in seconds; 5 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 2, max = 600))]
    pub stale_after_seconds: Option<i64>,
}

/// How the health of clusters is probed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HealthSettings {
    /// Time between two probes of a cluster, in seconds; 1 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 60))]
    pub interval_seconds: Option<i64>,
    /// How long a probe may take, in seconds; 1 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10))]
    pub timeout_seconds: Option<i64>,
    /// Failed probes in a row that make a cluster unhealthy; 2 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 20))]
    pub unhealthy_after: Option<i64>,
    /// Successful probes in a row that make it healthy again; 2 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 20))]
    pub healthy_after: Option<i64>,
}

/// What came of the policy, for each import.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClusterSelectionPolicyStatus {
    /// One entry for each import and controller.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = MAX_ANCESTORS, "x-kubernetes-list-type" = "atomic"))]
    pub ancestors: Vec<PolicyAncestorStatus>,
}

/// What one controller says of the policy for one import.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyAncestorStatus {
    /// The import.
    pub ancestor_ref: ParentReference,
    /// The controller that wrote this entry.
    #[schemars(length(min = 1, max = 253), extend("pattern" = schema::CONTROLLER_NAME))]
    pub controller_name: String,
    /// Accepted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

impl Resource for ClusterSelectionPolicy {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        KIND.into()
    }

    fn group((): &()) -> Cow<'_, str> {
        GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        VERSION.into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        PLURAL.into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn absent_fields_are_the_defaults() {
        let policy = json!({"metadata": {"name": "a"}, "spec": {"targetRefs": [
            {"group": "inference.networking.x-k8s.io", "kind": "InferencePoolImport", "name": "llm"},
        ]}});
        let policy: ClusterSelectionPolicy = serde_json::from_value(policy).expect("decodes");
        assert_eq!(policy.spec.type_, SelectionType::HealthBased);
        assert_eq!(policy.spec.local_pool, LocalPool::Exclude);
        assert_eq!(policy.spec.target_refs[0].name, "llm");
        assert_eq!(policy.spec.metrics, None);
    }
}
