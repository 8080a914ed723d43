//! Explains why each member has or lacks an entry of a pool (spec 4.9): `GET /debug/explain/{namespace}/{name}`, and the
//! command `explain` that prints it.
//!
//! ```text
//!  mci-controller explain ── GET ──► admin port ── Question ──► the world's loop ── explain() ──► Explanation
//! ```

mod command;
mod page;
mod reasons;
mod text;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(crate) use self::{
    command::{ExplainArgs, run_explain},
    page::router,
    reasons::{ExplainInput, explain},
};

/// The explanation of one key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Explanation {
    /// `namespace/name`.
    pub(crate) key: String,
    pub(crate) exporters: Vec<Exporter>,
    pub(crate) importers: Vec<Importer>,
    /// The rules that were applied, in order.
    pub(crate) trace: Vec<Rule>,
}

/// A member that has the pool, or an entry in the others' imports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Exporter {
    pub(crate) cluster: String,
    /// `EndpointMode` or `ParentMode`; absent where it does not ask for an export.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mode: Option<String>,
    /// Its entry as importers should have it; absent where they should have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) entry: Option<Value>,
    /// Why it is exported, kept or gone.
    pub(crate) evidence: String,
    /// The pool's condition `Exported` as it should be; absent where the pool asks for no export.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) exported: Option<Exported>,
}

/// The condition `Exported` of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Exported {
    pub(crate) status: String,
    pub(crate) reason: String,
    pub(crate) message: String,
}

/// A member as a place for the import.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Importer {
    pub(crate) cluster: String,
    pub(crate) state: State,
    pub(crate) reason: String,
    /// Its import CRD; absent until it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) flavour: Option<String>,
    /// Whether a write waits or is in flight.
    pub(crate) queued: bool,
    /// How the last write ended, where it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last_error: Option<String>,
}

/// The state of an importer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum State {
    /// Its live import is as planned; or it has none, as planned.
    Applied,
    /// A write is due.
    Pending,
    /// Nothing is written there.
    Skipped,
}

/// The reason of an importer's state, for states that the decision table does not determine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ImporterReason {
    /// Its live import is as planned.
    AsPlanned,
    /// The same, as last seen: it is silent.
    AsLastSeen,
    /// It needs none: no other member exports the pool.
    NoRemoteCluster,
    /// It needs none; the live import is not ours to delete.
    NotOurs,
    /// The import is somebody else's, or somebody keeps undoing ours.
    Conflict,
    GateClosed,
    NotLeading,
    Create,
    Update,
    /// Entries of another writer are removed.
    RemoveForeign,
    Delete,
}

/// A rule, its outcome, and the members or details.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rule {
    pub(crate) rule: String,
    pub(crate) outcome: String,
    pub(crate) detail: String,
}

// === impl State ===

impl State {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Applied => "Applied",
            Self::Pending => "Pending",
            Self::Skipped => "Skipped",
        }
    }
}

// === impl ImporterReason ===

impl ImporterReason {
    /// For the test that compares the reference with it.
    #[cfg(test)]
    pub(crate) const ALL: [Self; 11] = [
        Self::AsPlanned,
        Self::AsLastSeen,
        Self::NoRemoteCluster,
        Self::NotOurs,
        Self::Conflict,
        Self::GateClosed,
        Self::NotLeading,
        Self::Create,
        Self::Update,
        Self::RemoveForeign,
        Self::Delete,
    ];

    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::AsPlanned => "AsPlanned",
            Self::AsLastSeen => "AsLastSeen",
            Self::NoRemoteCluster => "NoRemoteCluster",
            Self::NotOurs => "NotOurs",
            Self::Conflict => "Conflict",
            Self::GateClosed => "GateClosed",
            Self::NotLeading => "NotLeading",
            Self::Create => "Create",
            Self::Update => "Update",
            Self::RemoveForeign => "RemoveForeign",
            Self::Delete => "Delete",
        }
    }
}

// === impl Rule ===

impl Rule {
    fn new(rule: &str, outcome: &str, detail: impl Into<String>) -> Self {
        Self {
            rule: rule.to_owned(),
            outcome: outcome.to_owned(),
            detail: detail.into(),
        }
    }
}
