//! A kept plan, and the imports that do not show it yet.

use std::{collections::BTreeMap, sync::Arc};

use crd::conditions;

use crate::{
    index::World,
    name::{ClusterName, Key},
    plan::{ImportPlan, KeyPlan, Policy, PoolPlan, Replanned},
};
use moment::Moment;

/// The plan of a key, from one change of what it is made of to the next.
#[derive(Debug)]
pub(super) struct Kept {
    plan: KeyPlan,
    pub(super) standings: Standings,
    /// See [`names_holes`]: it is found when the plan changes, for an import that follows its plan does not change it.
    names_holes: bool,
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

// === impl Kept ===

impl Kept {
    pub(super) fn new(plan: KeyPlan, standings: Standings) -> Self {
        Self {
            names_holes: names_holes(&plan),
            plan,
            standings,
        }
    }

    pub(super) fn plan(&self) -> &KeyPlan {
        &self.plan
    }

    /// See [`KeyPlan::replan_import`].
    pub(super) fn replan_import(
        &mut self,
        world: &World,
        policy: &Policy,
        key: &Key,
        name: &ClusterName,
        now: Moment,
    ) -> Replanned {
        let replanned = self.plan.replan_import(world, policy, key, name, now);
        if replanned == Replanned::Changed {
            self.names_holes = names_holes(&self.plan);
        }
        replanned
    }

    /// See [`KeyPlan::plan_pools`].
    pub(super) fn plan_pools(&mut self, world: &World, policy: &Policy, key: &Key) {
        self.plan.plan_pools(world, policy, key);
        self.names_holes = names_holes(&self.plan);
    }

    /// Whether some exporter is not ready, or some import not as planned.
    pub(super) fn has_holes(&self) -> bool {
        self.names_holes || !self.standings.none()
    }
}

/// Whether the plan itself says that an export is not complete, or an entry not ready or out of reach.
pub(super) fn names_holes(plan: &KeyPlan) -> bool {
    let is_true = |one: &crd::Condition| one.status == "True";
    let incomplete = plan.pools.values().any(|pool| match pool {
        PoolPlan::NoEntry => false,
        PoolPlan::Exported { condition, .. } => !is_true(condition),
    });
    let mut last = None;
    incomplete
        || plan.imports.values().any(|import| {
            let ImportPlan::Present(planned) = import else {
                return false;
            };
            // most members share one plan
            let address = Arc::as_ptr(planned);
            if last.replace(address) == Some(address) {
                return false;
            }
            planned.status.clusters.iter().any(|entry| {
                [conditions::READY, conditions::REACHABLE]
                    .into_iter()
                    .filter_map(|type_| conditions::find(&entry.conditions, type_))
                    .any(|condition| !is_true(condition))
            })
        })
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
