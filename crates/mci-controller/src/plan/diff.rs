//! What to send, if anything, to get from the live object to the planned one. Times never count.

use crd::{
    Condition, InferencePoolImportStatus,
    conditions::{self, ACCEPTED, CONSISTENT, READY},
};

use super::{ImportPlan, PoolPlan, same_entry};
use crate::index::facts::{Claim, LiveImport};

/// What to do about an import.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    None,
    /// Apply the object with our labels, then its status.
    CreateMain,
    ApplyStatus,
    /// Entries at these positions belong to another manager: an apply does not remove them (K3). Highest first.
    RemoveForeign(Vec<usize>),
    Delete,
    /// Somebody else's import bears this name: hands off.
    Conflict,
}

/// What to do about our entry in a pool's status.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PoolStep {
    None,
    Set(Condition),
    Remove,
}

/// Compares an import with its plan.
pub(crate) fn diff(plan: &ImportPlan, live: Option<&LiveImport>) -> Step {
    match (plan, live) {
        (ImportPlan::Hold(_), _) | (ImportPlan::Absent, None) => Step::None,
        (ImportPlan::Absent, Some(live)) => match live.claim {
            Claim::Ours => Step::Delete,
            Claim::Unclaimed | Claim::Foreign => Step::None,
        },
        (ImportPlan::Present(_), None) => Step::CreateMain,
        (ImportPlan::Present(planned), Some(live)) => match live.claim {
            Claim::Foreign => Step::Conflict,
            Claim::Unclaimed => Step::CreateMain,
            Claim::Ours => diff_status(&planned.status, live),
        },
    }
}

/// Compares our entry in a pool's status with its plan.
pub(crate) fn diff_pool(plan: &PoolPlan, live: Option<&[Condition]>) -> PoolStep {
    match (plan, live) {
        (PoolPlan::NoEntry, None) => PoolStep::None,
        (PoolPlan::NoEntry, Some(_)) => PoolStep::Remove,
        (PoolPlan::Exported { condition, .. }, live) => {
            let same =
                live.is_some_and(|live| conditions::same(live, std::slice::from_ref(condition)));
            if same {
                PoolStep::None
            } else {
                PoolStep::Set(condition.clone())
            }
        }
    }
}

fn diff_status(planned: &InferencePoolImportStatus, live: &LiveImport) -> Step {
    let entries_same = planned.clusters.iter().all(|entry| {
        let found = live
            .status
            .clusters
            .iter()
            .find(|one| one.name == entry.name);
        found.is_some_and(|found| same_entry(entry, found))
    });
    let surplus: Vec<usize> = live
        .status
        .clusters
        .iter()
        .enumerate()
        .filter(|(_, entry)| !planned.clusters.iter().any(|one| one.name == entry.name))
        .map(|(position, _)| position)
        .collect();
    let ours_is_surplus = surplus
        .iter()
        .filter_map(|&position| live.status.clusters.get(position))
        .any(|entry| live.owned_entries.contains(&entry.name));
    if !entries_same || ours_is_surplus || !same_head(planned, &live.status) {
        Step::ApplyStatus
    } else if surplus.is_empty() {
        Step::None
    } else {
        Step::RemoveForeign(surplus.into_iter().rev().collect())
    }
}

/// Everything but the entries. Condition types and `controllers` entries of others stay, and so do `parents` that a
/// gateway put into ours.
fn same_head(planned: &InferencePoolImportStatus, live: &InferencePoolImportStatus) -> bool {
    let controllers = planned.controllers.iter().all(|wanted| {
        let found = live.controllers.iter().find(|one| one.name == wanted.name);
        found.is_some_and(|found| {
            found.exporting_clusters == wanted.exporting_clusters
                && conditions::same(&ours(&found.conditions), &wanted.conditions)
        })
    });
    controllers
        && planned.observed_generation == live.observed_generation
        && conditions::same(&ours(&live.conditions), &planned.conditions)
}

/// The conditions of the types that we write.
fn ours(conditions: &[Condition]) -> Vec<Condition> {
    conditions
        .iter()
        .filter(|condition| [ACCEPTED, READY, CONSISTENT].contains(&condition.type_.as_str()))
        .cloned()
        .collect()
}
