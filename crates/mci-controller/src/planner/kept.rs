//! A kept plan, and the imports that do not show it yet.

use std::collections::BTreeMap;

use crate::{name::ClusterName, plan::KeyPlan};

/// The plan of a key, from one change of what it is made of to the next.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) plan: KeyPlan,
    pub(super) standings: Standings,
}

/// How an import stands to its plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It is as planned, or nothing can be done about it.
    Shown,
    /// Something is to be written.
    Pending,
    /// Somebody else owns it, or keeps undoing what is written.
    Conflict,
}

/// The imports of a key that do not show its plan.
#[derive(Debug, Default)]
pub(super) struct Standings {
    others: BTreeMap<ClusterName, Standing>,
    pending: usize,
}

// === impl Standing ===

impl Standing {
    /// As `Exported` sees it: it waits for no importer that does not count by its import.
    pub(super) fn awaited(self, is_awaited: bool) -> Self {
        match self {
            Self::Pending if !is_awaited => Self::Shown,
            other => other,
        }
    }
}

// === impl Standings ===

impl Standings {
    /// Returns whether it stood otherwise before.
    pub(super) fn set(&mut self, name: &ClusterName, standing: Standing) -> bool {
        let before = match standing {
            Standing::Shown => self.others.remove(name),
            Standing::Pending | Standing::Conflict => self.others.insert(name.clone(), standing),
        };
        let before = before.unwrap_or(Standing::Shown);
        self.pending -= usize::from(before == Standing::Pending);
        self.pending += usize::from(standing == Standing::Pending);
        before != standing
    }

    /// Whether every import shows the plan, or nothing can be done about it.
    pub(super) fn none(&self) -> bool {
        self.others.is_empty()
    }

    /// Whether no import is on its way to the plan.
    pub(super) fn all_shown(&self) -> bool {
        self.pending == 0
    }
}
