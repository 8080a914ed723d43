//! InferenceModelRewrite: which model servers get for the one that clients ask for. Only what we read.

use kube::core::{ApiResource, GroupVersionKind, NotUsed, Object};
use serde::{Deserialize, Serialize};

use crate::pool_ref::PoolRef;

/// An object of the kind, whatever its group.
pub type InferenceModelRewrite = Object<InferenceModelRewriteSpec, NotUsed>;

/// Rules of one pool.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct InferenceModelRewriteSpec {
    /// Of the pool that they are for.
    pub pool_ref: PoolRef,
    /// The first that applies counts.
    pub rules: Vec<Rule>,
}

/// What is asked for, and what servers get instead.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct Rule {
    /// Any of them; none: every request.
    #[serde(default)]
    pub matches: Option<Vec<Match>>,
    /// One is chosen by weight.
    #[serde(default)]
    pub targets: Option<Vec<Target>>,
}

/// A condition on a request.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Match {
    /// On the model that it asks for.
    pub model: ModelMatch,
}

/// A condition on the name of a model.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct ModelMatch {
    /// Absent: [`MatchType::Exact`].
    #[serde(default, rename = "type")]
    pub match_type: Option<MatchType>,
    /// What the name is compared with.
    pub value: String,
}

/// How names are compared.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatchType {
    /// The very name.
    Exact,
}

/// A model that servers get.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// Its name.
    pub model_rewrite: String,
    /// Its share among the targets of the rule; absent: 1.
    #[serde(default)]
    pub weight: Option<u32>,
}

/// Under which groups it may be served, the current one first.
#[must_use]
pub fn resources() -> [ApiResource; 2] {
    ["llm-d.ai", "inference.networking.x-k8s.io"].map(|group| {
        let kind = GroupVersionKind::gvk(group, "v1alpha2", "InferenceModelRewrite");
        ApiResource::from_gvk_with_plural(&kind, "inferencemodelrewrites")
    })
}
