//! Filters: which candidates a request may go to at all.

use std::{collections::BTreeSet, sync::Arc};

use crate::{
    candidates::Candidates, endpoint::Labels, request::Request, saturation::Detector,
    scorer::serves_session,
};

/// A filter with its parameters, named as in the configuration file.
#[derive(Clone, Debug, PartialEq)]
pub enum Filter {
    /// `label-selector-filter`: pods that the selector matches.
    LabelSelector(Selector),
    /// `by-label`: pods whose label has one of these values.
    ByLabel {
        /// The label.
        label: Arc<str>,
        /// Its values.
        valid_values: BTreeSet<Arc<str>>,
        /// Pods without the label pass too.
        allows_no_label: bool,
    },
    /// `decode-filter`, `prefill-filter`, `encode-filter`: pods that do this part of the work.
    Role(Role),
    /// `session-affinity-filter`: where the session is served; all, if it is served nowhere.
    SessionAffinity,
    /// A saturation detector as a filter: endpoints that are not saturated; all, if each is.
    Saturation(Detector),
}

/// A part of the work on a request, which label `llm-d.ai/role` assigns to pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Computes tokens one after the other; pods without a role do it.
    Decode,
    /// Computes the prompt.
    Prefill,
    /// Computes images and the like.
    Encode,
}

/// A label selector of Kubernetes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    /// Labels and their values, all of which a pod must have.
    pub labels: Vec<(Arc<str>, Arc<str>)>,
    /// What else must hold.
    pub expressions: Vec<Expression>,
}

/// One of `matchExpressions`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expression {
    /// The label.
    pub key: Arc<str>,
    /// What must hold of it.
    pub operator: Operator,
}

/// What must hold of a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operator {
    /// It has one of these values.
    In(BTreeSet<Arc<str>>),
    /// It has none of these values, or is absent.
    NotIn(BTreeSet<Arc<str>>),
    /// It is there.
    Exists,
    /// It is absent.
    DoesNotExist,
}

/// The role of a pod.
const ROLE: &str = "llm-d.ai/role";
/// Its former name.
const FORMER_ROLE: &str = "inference.networking.k8s.io/role";

// === impl Filter ===

impl Filter {
    /// Its type in the configuration file.
    pub fn name(&self) -> &'static str {
        match self {
            Self::LabelSelector(_) => "label-selector-filter",
            Self::ByLabel { .. } => "by-label",
            Self::Role(Role::Decode) => "decode-filter",
            Self::Role(Role::Prefill) => "prefill-filter",
            Self::Role(Role::Encode) => "encode-filter",
            Self::SessionAffinity => "session-affinity-filter",
            Self::Saturation(detector) => detector.name(),
        }
    }

    /// Whether a pod with these labels does the part of the work that this filter is for; all do, of a filter of another kind.
    pub(crate) fn admits_role(&self, labels: &Labels) -> bool {
        match self {
            Self::Role(role) => role.is_of(labels),
            Self::LabelSelector(_)
            | Self::ByLabel { .. }
            | Self::SessionAffinity
            | Self::Saturation(_) => true,
        }
    }

    /// Takes away the candidates that do not pass.
    pub fn apply(&self, request: &Request, candidates: &mut Candidates<'_>) {
        let table = candidates.table();
        let labels = |member: usize| table.roster().labels.get(member);
        match self {
            Self::LabelSelector(selector) => {
                candidates
                    .retain(|member| labels(member).is_some_and(|labels| selector.matches(labels)));
            }
            Self::ByLabel {
                label,
                valid_values,
                allows_no_label,
            } => candidates.retain(|member| {
                let value = labels(member).and_then(|labels| labels.get(label));
                value.map_or(*allows_no_label, |value| valid_values.contains(value))
            }),
            Self::Role(role) => {
                candidates.retain(|member| labels(member).is_some_and(|labels| role.is_of(labels)));
            }
            Self::SessionAffinity => {
                let seen = candidates.clone();
                candidates.prefer(|member| serves_session(request, &seen, member));
            }
            Self::Saturation(detector) => {
                candidates.prefer(|member| !detector.is_saturated(table, member));
            }
        }
    }
}

// === impl Role ===

impl Role {
    /// Whether a pod with these labels has the role; `prefill-decode` has both, and so has `both`.
    fn is_of(self, labels: &Labels) -> bool {
        let role = labels.get(ROLE).or_else(|| labels.get(FORMER_ROLE));
        let Some(role) = role else {
            return self == Self::Decode;
        };
        role.split('-').any(|part| match part {
            "both" => self != Self::Encode,
            "decode" => self == Self::Decode,
            "prefill" => self == Self::Prefill,
            "encode" => self == Self::Encode,
            _ => false,
        })
    }
}

// === impl Selector ===

impl Selector {
    /// Whether an object with these labels is selected.
    pub fn matches(&self, labels: &Labels) -> bool {
        let equal = |(key, value): &(Arc<str>, Arc<str>)| labels.get(key) == Some(value);
        self.labels.iter().all(equal)
            && self
                .expressions
                .iter()
                .all(|expression| expression.matches(labels))
    }
}

impl Expression {
    fn matches(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        match &self.operator {
            Operator::In(values) => value.is_some_and(|value| values.contains(value)),
            Operator::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

#[cfg(test)]
mod tests;
