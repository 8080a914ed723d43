//! The write, if any, that turns the live object into the planned one. Times are ignored.

use crd::{Condition, conditions};
use serde_json::Value;

use super::{
    ImportPlan, PlannedImport, PoolPlan,
    cover::{covers_conditions, covers_entry, is_exact},
};
use crate::index::{
    digest::is_ours,
    entry::{Entry, ImportStatus},
    facts::{Claim, LiveImport},
    flavour::Flavour,
};

/// What to do about an import.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The live import is as planned, or nothing may be done about it.
    None,
    /// Apply the object with our labels, then its status.
    CreateMain,
    /// Ours, and its status differs from the plan.
    ApplyStatus,
    /// Others put these into what is ours: an apply does not remove them (K3). JSON pointers, in an order in which no
    /// removal shifts a later one.
    RemoveForeign(Vec<String>),
    /// Ours, and none is planned.
    Delete,
    /// Somebody else's import bears this name: hands off.
    Conflict,
}

/// What to do about our entry in a pool's status.
#[derive(Clone, Debug, PartialEq)]
pub enum PoolStep {
    /// The entry is as planned, or there is none and none is planned.
    None,
    /// Write the entry with this condition alone; its time is not set yet.
    Set(Condition),
    /// Take our entry out: the pool asks for no export.
    Remove,
}

/// Compares an import with its plan.
pub fn diff(plan: &ImportPlan, live: Option<&LiveImport>) -> Step {
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
            Claim::Ours if is_as_planned(live, planned) => {
                debug_assert_eq!(
                    diff_status(planned, live),
                    Step::None,
                    "{key}",
                    key = live.key
                );
                Step::None
            }
            Claim::Ours => diff_status(planned, live),
        },
    }
}

/// Whether an import of ours is exactly as planned; false also where only a full comparison can decide that.
fn is_as_planned(live: &LiveImport, planned: &PlannedImport) -> bool {
    live.status.digest() == Some(planned.digest)
}

/// Compares our entry in a pool's status with its plan.
pub fn diff_pool(plan: &PoolPlan, live: Option<&[Condition]>) -> PoolStep {
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

fn diff_status(planned: &PlannedImport, live: &LiveImport) -> Step {
    let PlannedImport {
        audience, status, ..
    } = planned;
    if audience.flavour == Flavour::Upstream {
        // its CRD lets us write or remove nothing else
        return if same_controllers(status, &live.status) {
            Step::None
        } else {
            Step::ApplyStatus
        };
    }
    let live_entries = &live.status.clusters;
    // both are sorted by name, unless somebody else changed the list
    let find = |at: usize, name: &str| match live_entries.get(at) {
        Some(entry) if entry.name == name => Some(entry),
        _ => live_entries.iter().find(|entry| entry.name == name),
    };
    let mut exact = live_entries.len() == status.clusters.len();
    let mut entries = status.clusters.iter().enumerate();
    let entries_same = entries.all(|(at, entry)| {
        find(at, &entry.name).is_some_and(|found| {
            let same = found.same_digest(entry);
            debug_assert!(!same || (covers_entry(found, entry) && is_exact(found, entry)));
            if !same {
                exact &= is_exact(found, entry);
            }
            same || covers_entry(found, entry)
        })
    });
    if !entries_same || !same_head(status, &live.status) {
        return Step::ApplyStatus;
    }
    let mut pointers = surplus_conditions_on_top(status, &live.status);
    if !exact {
        if owns_surplus(status, live) {
            return Step::ApplyStatus;
        }
        pointers.splice(0..0, surplus_of_entries(status, &live.status));
        pointers.extend(surplus_entries(status, &live.status));
    }
    if pointers.is_empty() {
        Step::None
    } else {
        Step::RemoveForeign(pointers)
    }
}

/// Whether we own an entry that is not planned: an apply removes it.
fn owns_surplus(planned: &ImportStatus, live: &LiveImport) -> bool {
    let mut entries = live.status.clusters.iter();
    entries.any(|entry| {
        live.owned_entries.contains(&entry.name)
            && !planned.clusters.iter().any(|one| one.name == entry.name)
    })
}

/// Entries that are not planned, last first.
fn surplus_entries(planned: &ImportStatus, live: &ImportStatus) -> Vec<String> {
    let is_planned = |entry: &Entry| planned.clusters.iter().any(|one| one.name == entry.name);
    let entries = live.clusters.iter().enumerate().rev();
    entries
        .filter(|(_, entry)| !is_planned(entry))
        .map(|(at, _)| format!("/status/clusters/{at}"))
        .collect()
}

/// What our own entries have beyond the plan.
fn surplus_of_entries(planned: &ImportStatus, live: &ImportStatus) -> Vec<String> {
    let mut pointers = Vec::new();
    for (at, found) in live.clusters.iter().enumerate() {
        let wanted = planned.clusters.iter().find(|one| one.name == found.name);
        if let Some(wanted) = wanted.filter(|wanted| !is_exact(found, wanted)) {
            let path = format!("/status/clusters/{at}");
            surplus_conditions(&wanted.conditions, &found.conditions, &path, &mut pointers);
            let (wanted, found) = (serde_json::json!(wanted), serde_json::json!(found));
            surplus_keys(&wanted, &found, &path, &mut pointers);
        }
    }
    pointers
}

/// Conditions of the import as a whole that are of our types and not planned.
fn surplus_conditions_on_top(planned: &ImportStatus, live: &ImportStatus) -> Vec<String> {
    let is_planned = |one: &Condition| conditions::find(&planned.conditions, &one.type_).is_some();
    let conditions = live.conditions.iter().enumerate().rev();
    conditions
        .filter(|(_, one)| is_ours(one) && !is_planned(one))
        .map(|(at, _)| format!("/status/conditions/{at}"))
        .collect()
}

/// Conditions of types that the plan lacks, last first.
fn surplus_conditions(
    planned: &[Condition],
    live: &[Condition],
    path: &str,
    pointers: &mut Vec<String>,
) {
    for (at, condition) in live.iter().enumerate().rev() {
        if conditions::find(planned, &condition.type_).is_none() {
            pointers.push(format!("{path}/conditions/{at}"));
        }
    }
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

/// Whether all but the entries is as planned. Conditions and `controllers` entries of others are ignored, and so are
/// `parents` that a gateway put into ours.
fn same_head(planned: &ImportStatus, live: &ImportStatus) -> bool {
    same_controllers(planned, live)
        && planned.observed_generation == live.observed_generation
        && covers_conditions(&live.conditions, &planned.conditions)
}

fn same_controllers(planned: &ImportStatus, live: &ImportStatus) -> bool {
    planned.controllers.iter().all(|wanted| {
        let found = live.controllers.iter().find(|one| one.name == wanted.name);
        found.is_some_and(|found| {
            found.exporting_clusters == wanted.exporting_clusters
                && covers_conditions(&found.conditions, &wanted.conditions)
        })
    })
}

#[cfg(test)]
mod tests;
