//! Explains why each member has or lacks an entry of a pool (spec 4.9): `GET /debug/explain/{namespace}/{name}`, and the
//! command `explain` that prints it.
//!
//! ```text
//!  mci-controller explain ── GET ──► admin port ── Question ──► the world's loop ── explain() ──► Explanation
//! ```

mod command;
mod page;
mod reasons;

use mci_model::explain::render;
pub(crate) use mci_model::explain::{Explanation, Exported, Exporter, Importer, Rule, State};

pub(crate) use self::{
    command::{ExplainArgs, run_explain},
    page::router,
    reasons::{ExplainInput, explain},
};

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
