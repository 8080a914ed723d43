//! What to send, if anything, to get from the live object to the planned one. Times never count.

use crd::{
    Condition, InferencePoolImportStatus,
    conditions::{self, ACCEPTED, CONSISTENT, READY},
};

use serde_json::Value;

use super::{ImportPlan, PoolPlan, covers_conditions, covers_entry};
use crate::index::facts::{Claim, LiveImport};

/// What to do about an import.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    None,
    /// Apply the object with our labels, then its status.
    CreateMain,
    ApplyStatus,
    /// Others put these into what is ours: an apply does not remove them (K3). JSON pointers, in an order in which no
    /// removal shifts a later one.
    RemoveForeign(Vec<String>),
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
        found.is_some_and(|found| covers_entry(found, entry))
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
        return Step::ApplyStatus;
    }
    let mut pointers = surplus_fields(planned, &live.status);
    pointers.extend(
        surplus
            .iter()
            .rev()
            .map(|at| format!("/status/clusters/{at}")),
    );
    if pointers.is_empty() {
        Step::None
    } else {
        Step::RemoveForeign(pointers)
    }
}

/// What is in our own entries, and among the conditions of our types, beyond the plan.
fn surplus_fields(
    planned: &InferencePoolImportStatus,
    live: &InferencePoolImportStatus,
) -> Vec<String> {
    let mut pointers = Vec::new();
    for (at, found) in live.clusters.iter().enumerate() {
        let wanted = planned.clusters.iter().find(|one| one.name == found.name);
        if let Some(wanted) = wanted {
            let path = format!("/status/clusters/{at}");
            surplus_conditions(&wanted.conditions, &found.conditions, &path, &mut pointers);
            let (wanted, found) = (serde_json::json!(wanted), serde_json::json!(found));
            surplus_keys(&wanted, &found, &path, &mut pointers);
        }
    }
    let live_top = ours(&live.conditions);
    let extra = live_top
        .iter()
        .any(|one| conditions::find(&planned.conditions, &one.type_).is_none());
    if extra {
        let stays = |one: &&Condition| ours(std::slice::from_ref(*one)).is_empty();
        let mut allowed: Vec<Condition> = live.conditions.iter().filter(stays).cloned().collect();
        allowed.extend(planned.conditions.iter().cloned());
        surplus_conditions(&allowed, &live.conditions, "/status", &mut pointers);
    }
    pointers
}

/// Conditions of types that the plan lacks, last first.
fn surplus_conditions(
    planned: &[Condition],
    live: &[Condition],
    path: &str,
    pointers: &mut Vec<String>,
) {
    let surplus = live.iter().enumerate().rev();
    let surplus = surplus.filter(|(_, one)| conditions::find(planned, &one.type_).is_none());
    pointers.extend(surplus.map(|(at, _)| format!("{path}/conditions/{at}")));
}

/// Fields that the plan lacks, at any depth outside of lists: those are replaced as a whole.
fn surplus_keys(planned: &Value, live: &Value, path: &str, pointers: &mut Vec<String>) {
    let (Value::Object(planned), Value::Object(live)) = (planned, live) else {
        return;
    };
    for (key, found) in live {
        let path = format!("{path}/{}", key.replace('~', "~0").replace('/', "~1"));
        match planned.get(key) {
            Some(wanted) => surplus_keys(wanted, found, &path, pointers),
            None => pointers.push(path),
        }
    }
}

/// Everything but the entries. Condition types and `controllers` entries of others stay, and so do `parents` that a
/// gateway put into ours.
fn same_head(planned: &InferencePoolImportStatus, live: &InferencePoolImportStatus) -> bool {
    let controllers = planned.controllers.iter().all(|wanted| {
        let found = live.controllers.iter().find(|one| one.name == wanted.name);
        found.is_some_and(|found| {
            found.exporting_clusters == wanted.exporting_clusters
                && covers_conditions(&found.conditions, &wanted.conditions)
        })
    });
    controllers
        && planned.observed_generation == live.observed_generation
        && covers_conditions(&live.conditions, &planned.conditions)
}

/// The conditions of the types that we write.
fn ours(conditions: &[Condition]) -> Vec<Condition> {
    conditions
        .iter()
        .filter(|condition| [ACCEPTED, READY, CONSISTENT].contains(&condition.type_.as_str()))
        .cloned()
        .collect()
}
