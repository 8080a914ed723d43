//! The changes that follow from an update of the index, with the evidence.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::member::Refusal;
use crate::{
    evidence::Evidence,
    name::{ClusterName, Key},
};

/// What an update changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Keys whose plan may differ from the last one.
    pub dirty: Dirty,
    /// Exports that ended, with evidence, in the order in which they were found.
    pub withdrawals: Vec<Withdrawal>,
    /// Exports that seem to have ended and are retained, by the evidence that is not certain.
    pub withheld: BTreeMap<Evidence, usize>,
    /// Members to refuse: their cluster is known under another name, or is not the one it was.
    pub refused: Vec<(ClusterName, Refusal)>,
}

/// Keys to plan again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dirty {
    /// Every key, whatever the sets below hold.
    pub all: bool,
    /// Keys of which more changed than the sets below cover.
    pub keys: BTreeSet<Key>,
    /// Keys of which the import in the updated member changed: its plan alone depends on it.
    pub imports: BTreeSet<Key>,
    /// Keys of which our condition of the updated member's pool changed: no plan depends on it.
    pub conditions: BTreeSet<Key>,
}

/// An export that ended, with the evidence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Withdrawal {
    /// The member whose export ended.
    pub exporter: ClusterName,
    /// Namespace and name of its pool.
    pub key: Key,
    /// The evidence that it ended.
    pub evidence: Evidence,
    /// The drain that the pool asked for; none: the operator's.
    pub drain: Option<Duration>,
    /// Only an import shows that there was an export; the evidence is that there is none now.
    pub is_orphan: bool,
}

// === impl Changes ===

impl Changes {
    /// Plan every key again; nothing was withdrawn.
    pub fn all() -> Self {
        Self {
            dirty: Dirty {
                all: true,
                ..Dirty::default()
            },
            ..Self::default()
        }
    }

    /// Adds another update's changes; the counts of withheld exports are added up.
    pub fn merge(&mut self, other: Self) {
        let Self {
            dirty,
            withdrawals,
            withheld,
            refused,
        } = other;
        self.dirty.merge(dirty);
        self.withdrawals.extend(withdrawals);
        for (evidence, count) in withheld {
            self.withhold(evidence, count);
        }
        self.refused.extend(refused);
    }

    pub(super) fn withdraw(
        &mut self,
        exporter: &ClusterName,
        key: &Key,
        evidence: Evidence,
        drain: Option<Duration>,
    ) {
        self.withdrawals.push(Withdrawal {
            exporter: exporter.clone(),
            key: key.clone(),
            evidence,
            drain,
            is_orphan: false,
        });
    }

    /// Withdraws an export that only an import shows, and that is proven not to exist.
    pub(super) fn withdraw_orphan(
        &mut self,
        exporter: &ClusterName,
        key: &Key,
        evidence: Evidence,
    ) {
        self.withdrawals.push(Withdrawal {
            exporter: exporter.clone(),
            key: key.clone(),
            evidence,
            drain: None,
            is_orphan: true,
        });
    }

    pub(super) fn withhold(&mut self, looks_like: Evidence, count: usize) {
        if count > 0 {
            *self.withheld.entry(looks_like).or_default() += count;
        }
    }
}

// === impl Dirty ===

impl Dirty {
    /// Whether there is nothing to plan.
    pub fn is_empty(&self) -> bool {
        let Self {
            all,
            keys,
            imports,
            conditions,
        } = self;
        !all && keys.is_empty() && imports.is_empty() && conditions.is_empty()
    }

    /// Adds the keys of another update.
    pub fn merge(&mut self, other: Self) {
        let Self {
            all,
            keys,
            imports,
            conditions,
        } = other;
        self.all |= all;
        self.keys.extend(keys);
        self.imports.extend(imports);
        self.conditions.extend(conditions);
    }
}
