//! InferenceObjective: how much the requests matter that name it. Only what we read.

use kube::core::{ApiResource, GroupVersionKind, NotUsed, Object};
use serde::{Deserialize, Serialize};

use crate::pool_ref::PoolRef;

/// An object of the kind, whatever its group.
pub type InferenceObjective = Object<InferenceObjectiveSpec, NotUsed>;

/// How much requests matter.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct InferenceObjectiveSpec {
    /// Of the pool that it is for.
    pub pool_ref: PoolRef,
    /// The higher, the more they matter; absent: 0.
    #[serde(default)]
    pub priority: Option<i32>,
}

/// Under which groups it may be served, the current one first.
#[must_use]
pub fn resources() -> [ApiResource; 2] {
    ["llm-d.ai", "inference.networking.x-k8s.io"].map(|group| {
        let kind = GroupVersionKind::gvk(group, "v1alpha2", "InferenceObjective");
        ApiResource::from_gvk_with_plural(&kind, "inferenceobjectives")
    })
}
