//! What a pool is in each cluster, from its explanation. Pure.

use serde_json::Value;

use crate::explain::{Explanation, Exporter, Importer, State};

/// A pool in one cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) role: Role,
    pub(super) mark: Mark,
    /// Why it is not whole.
    pub(super) reason: Option<String>,
    /// More about that.
    pub(super) note: Option<String>,
}

/// What a cluster does with a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Role {
    #[default]
    None,
    Imports,
    /// It may import the pool as well, from other exporters.
    Exports,
}

/// The state of a cell; the worse, the greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mark {
    /// There is nothing, and nothing is missing.
    #[default]
    Absent,
    /// As it should be.
    Whole,
    /// On its way, or as last seen.
    Waiting,
    /// Something is in the way.
    Hole,
}

/// The cells of a pool in these clusters, in their order.
pub(super) fn cells<'a>(
    explanation: &Explanation,
    clusters: impl Iterator<Item = &'a str>,
) -> Vec<Cell> {
    clusters.map(|name| cell(explanation, name)).collect()
}

fn cell(explanation: &Explanation, cluster: &str) -> Cell {
    // both lists are by name, as the members are
    let exporters = &explanation.exporters;
    let exporter = exporters.binary_search_by(|one| one.cluster.as_str().cmp(cluster));
    let exporter = exporter.ok().and_then(|at| exporters.get(at));
    let importers = &explanation.importers;
    let importer = importers.binary_search_by(|one| one.cluster.as_str().cmp(cluster));
    let importer = importer.ok().and_then(|at| importers.get(at));
    let import = importer.map(of_importer).unwrap_or_default();
    match exporter.and_then(of_exporter) {
        // the worse of the two has the word
        Some(export) if import.mark > export.mark => Cell {
            role: Role::Exports,
            ..import
        },
        Some(export) => export,
        None => import,
    }
}

/// None if it asks for no export and has none.
fn of_exporter(exporter: &Exporter) -> Option<Cell> {
    let (mark, reason, note) = match (&exporter.exported, &exporter.entry) {
        (None, None) => return None,
        // it ended, and drains
        (None, Some(_)) => (Mark::Waiting, exporter.evidence.as_str(), ""),
        (Some(exported), Some(entry)) if exported.reason != "NotSupported" => of_entry(entry),
        (Some(exported), _) => (
            Mark::Hole,
            exported.reason.as_str(),
            exported.message.as_str(),
        ),
    };
    Some(Cell::new(Role::Exports, mark, reason, note))
}

/// An entry is whole when it can be reached and is ready.
fn of_entry(entry: &Value) -> (Mark, &str, &str) {
    let conditions = entry.get("conditions").and_then(Value::as_array);
    let conditions = conditions.map(Vec::as_slice).unwrap_or_default();
    let bad = ["Reachable", "Ready"].into_iter().find_map(|type_| {
        let mut conditions = conditions.iter();
        let found = conditions.find(|condition| condition["type"] == type_)?;
        (found["status"] != "True").then_some(found)
    });
    let Some(bad) = bad else {
        return (Mark::Whole, "", "");
    };
    let field = |name| bad.get(name).and_then(Value::as_str).unwrap_or_default();
    (Mark::Hole, field("reason"), field("message"))
}

fn of_importer(importer: &Importer) -> Cell {
    let reason = importer.reason.as_str();
    let (role, mark, reason) = match (importer.state, reason) {
        (State::Applied, "AsPlanned") => (Role::Imports, Mark::Whole, ""),
        (State::Applied, "NoRemoteCluster") => (Role::None, Mark::Absent, ""),
        (State::Pending, "Conflict") => (Role::Imports, Mark::Hole, reason),
        (State::Pending, _) if importer.last_error.is_some() => (Role::Imports, Mark::Hole, reason),
        (State::Applied | State::Pending, _) => (Role::Imports, Mark::Waiting, reason),
        (State::Skipped, "NamespaceMissing" | "NotOurs") => (Role::None, Mark::Absent, reason),
        (State::Skipped, _) => (Role::None, Mark::Hole, reason),
    };
    let error = importer.last_error.as_ref();
    let note = error.map(|error| format!("the last write: {error}"));
    Cell::new(role, mark, reason, &note.unwrap_or_default())
}

// === impl Cell ===

impl Cell {
    fn new(role: Role, mark: Mark, reason: &str, note: &str) -> Self {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Self {
            role,
            mark,
            reason: some(reason),
            note: some(note),
        }
    }
}
