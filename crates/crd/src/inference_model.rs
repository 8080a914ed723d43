//! InferenceModel: a model that clients of a pool may ask for. Its project has dropped the kind; clusters still have it. Only
//! what we read.

use kube::core::{ApiResource, GroupVersionKind, NotUsed, Object};
use serde::{Deserialize, Serialize};

use crate::pool_ref::PoolRef;

/// An object of the kind.
pub type InferenceModel = Object<InferenceModelSpec, NotUsed>;

/// A model of one pool.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct InferenceModelSpec {
    /// As clients ask for it.
    pub model_name: String,
    /// How much its requests matter; absent: [`Criticality::Standard`].
    #[serde(default)]
    pub criticality: Option<Criticality>,
    /// What servers get instead, one by weight; none: the name as it is.
    #[serde(default)]
    pub target_models: Option<Vec<TargetModel>>,
    /// Of the pool that serves it.
    pub pool_ref: PoolRef,
}

/// How much requests matter.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Criticality {
    /// More than others.
    Critical,
    /// As others. `Default` is its former name.
    #[serde(alias = "Default")]
    Standard,
    /// Less than others.
    Sheddable,
}

/// A model that servers get.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct TargetModel {
    /// Its name.
    pub name: String,
    /// Its share among the targets, 0 for none; absent: 1.
    #[serde(default)]
    pub weight: Option<u32>,
}

/// How it is served.
#[must_use]
pub fn resource() -> ApiResource {
    let kind = GroupVersionKind::gvk(
        "inference.networking.x-k8s.io",
        "v1alpha2",
        "InferenceModel",
    );
    ApiResource::from_gvk_with_plural(&kind, "inferencemodels")
}
