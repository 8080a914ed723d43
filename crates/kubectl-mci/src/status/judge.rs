//! What is where, and what is missing. Pure.

use std::collections::{BTreeMap, BTreeSet};

use crd::{
    ImportedCluster, InferencePoolImport,
    annotations::{MANAGED_BY, MANAGED_BY_CONTROLLER, MCI_CONTROLLER},
    conditions,
    inference_pool::InferencePool,
};
use kube::ResourceExt;
use mci_model::export::{Export, parse_export};

use super::{Cell, ClusterRow, Exports, Facts, Hole, Imports, PoolRow, Seen, Status};
use crate::export::{ModeName, exported_condition};

/// Namespace and name.
type Key = (String, String);

/// Reasons of `Exported` that sum up how it stands in the importers.
const SUMMARIES: [&str; 2] = ["NamespaceMissing", "PartiallyExported"];

/// Who exports a pool, by what was seen.
struct Exporters<'a> {
    /// A legal export.
    exporting: BTreeSet<&'a str>,
    /// Clusters that were seen, whether they export or not.
    seen: BTreeSet<&'a str>,
}

/// Pools × clusters, and the holes.
pub(crate) fn judge(seen: &[Seen]) -> Status {
    let clusters = seen.iter().map(|one| ClusterRow {
        name: one.cluster.clone(),
        context: one.context.clone(),
        problem: one.facts.as_ref().err().cloned(),
    });
    let pools = keys(seen).into_iter().map(|key| row(&key, seen));
    Status {
        clusters: clusters.collect(),
        pools: pools.collect(),
    }
}

/// All that anybody exports or has an import of; pools that stay at home are nobody's business.
fn keys(seen: &[Seen]) -> BTreeSet<Key> {
    let mut keys = BTreeSet::new();
    for facts in seen.iter().filter_map(|one| one.facts.as_ref().ok()) {
        let pools = facts.pools.iter().flatten();
        let asked = pools.filter(|pool| !matches!(export_of(pool), Export::NotRequested { .. }));
        keys.extend(asked.map(key_of));
        keys.extend(facts.imports.iter().flatten().map(key_of));
    }
    keys
}

fn row(key: &Key, seen: &[Seen]) -> PoolRow {
    let mut exporters = Exporters {
        exporting: BTreeSet::new(),
        seen: BTreeSet::new(),
    };
    for one in seen {
        if let Ok(facts) = &one.facts {
            exporters.seen.insert(&one.cluster);
            let pool = pool_of(facts, key);
            if pool.is_some_and(|pool| matches!(export_of(pool), Export::Requested(_))) {
                exporters.exporting.insert(&one.cluster);
            }
        }
    }
    let cells = seen.iter().map(|one| cell(key, one, &exporters));
    let mut cells: Vec<Cell> = cells.collect();
    let is_importers = |hole: &Hole| hole.from.is_some();
    // who lacks it, and why, is better told where it is lacking
    if cells.iter().flat_map(|cell| &cell.holes).any(is_importers) {
        for cell in &mut cells {
            cell.holes
                .retain(|hole| is_importers(hole) || !SUMMARIES.contains(&hole.reason.as_str()));
        }
    }
    PoolRow {
        namespace: key.0.clone(),
        name: key.1.clone(),
        cells,
    }
}

fn cell(key: &Key, seen: &Seen, exporters: &Exporters<'_>) -> Cell {
    let mut cell = Cell {
        cluster: seen.cluster.clone(),
        ..Cell::default()
    };
    let Ok(facts) = &seen.facts else {
        return cell;
    };
    cell.seen = true;
    if let Some(pool) = pool_of(facts, key) {
        cell.has_pool = true;
        (cell.exports, cell.holes) = export_state(pool);
    }
    let import = facts
        .imports
        .iter()
        .flatten()
        .find(|import| key_of(*import) == *key);
    let wanted = exporters
        .exporting
        .iter()
        .filter(|name| **name != seen.cluster);
    let wanted: Vec<&str> = wanted.copied().collect();
    match import {
        Some(import) => {
            let (imports, holes) = entries(import, &wanted, exporters);
            cell.imports = Some(imports);
            cell.holes.extend(holes);
        }
        None if !wanted.is_empty() => {
            let (reason, message) = absent(key, facts);
            cell.holes.push(Hole {
                from: Some(wanted.join(", ")),
                reason: reason.to_owned(),
                message,
            });
        }
        None => {}
    }
    cell
}

/// Why there is no import.
fn absent(key: &Key, facts: &Facts) -> (&'static str, String) {
    let namespace = &key.0;
    if facts.imports.is_none() {
        let text = "it has no CRD of InferencePoolImport: install the chart isthmus-crds there";
        return ("CRDAbsent", text.to_owned());
    }
    let namespaces = facts.namespaces.as_ref();
    if namespaces.is_some_and(|names| !names.contains(namespace)) {
        let text = format!(
            "it has no namespace {namespace}, so its owner wants no import: kubectl create namespace {namespace}"
        );
        return ("NamespaceMissing", text);
    }
    let text = "the controller has written no import: kubectl mci check, kubectl mci explain";
    ("NoImport", text.to_owned())
}

/// What a pool's own cluster says of its export.
fn export_state(pool: &InferencePool) -> (Option<Exports>, Vec<Hole>) {
    let mode = match export_of(pool) {
        Export::NotRequested { .. } => return (None, Vec::new()),
        Export::Invalid(_) => None,
        Export::Requested(request) => request.mode.map(|mode| mode.name().to_owned()),
    };
    let condition = exported_condition(pool);
    let exported = condition.is_some_and(|condition| condition.status == "True");
    let (reason, message) = condition.map_or_else(
        || {
            let text =
                "no controller has looked at it: is its cluster a member (kubectl mci check)?";
            ("NotSeen".to_owned(), text.to_owned())
        },
        |condition| (condition.reason.clone(), condition.message.clone()),
    );
    let exports = Exports {
        exported,
        mode,
        message: message.clone(),
    };
    let hole = (!exported).then_some(Hole {
        from: None,
        reason,
        message,
    });
    (Some(exports), hole.into_iter().collect())
}

/// What an import has, and lacks.
fn entries(
    import: &InferencePoolImport,
    wanted: &[&str],
    exporters: &Exporters<'_>,
) -> (Imports, Vec<Hole>) {
    let mut imports = Imports::default();
    let mut holes = Vec::new();
    let hole = |from: &str, reason: &str, message: String| Hole {
        from: Some(from.to_owned()),
        reason: reason.to_owned(),
        message,
    };
    let mut listed: BTreeMap<&str, Option<&ImportedCluster>> = names_only(import);
    listed.extend(
        import
            .clusters()
            .iter()
            .map(|entry| (entry.name.as_str(), Some(entry))),
    );
    for (name, entry) in &listed {
        let gone = exporters.seen.contains(name) && !exporters.exporting.contains(name);
        let problem = entry.and_then(not_ready);
        if problem.is_none() {
            imports.ready.push((*name).to_owned());
        } else {
            imports.not_ready.push((*name).to_owned());
        }
        if let Some((reason, message)) = problem {
            holes.push(hole(name, &reason, message));
        } else if gone {
            let text = "it exports the pool no more, and the entry is still there";
            holes.push(hole(name, "NotWithdrawn", text.to_owned()));
        }
    }
    let ours = import
        .labels()
        .get(MANAGED_BY)
        .is_some_and(|by| by == MANAGED_BY_CONTROLLER);
    for name in wanted.iter().filter(|name| !listed.contains_key(**name)) {
        let (reason, text) = if ours {
            (
                "NoEntry",
                "the import has no entry of it: kubectl mci check, kubectl mci explain",
            )
        } else {
            (
                "Conflict",
                "the import is another's: the controller writes none beside it",
            )
        };
        holes.push(hole(name, reason, text.to_owned()));
    }
    (imports, holes)
}

/// Why an entry is not ready; none where it is.
fn not_ready(entry: &ImportedCluster) -> Option<(String, String)> {
    let ready = conditions::find(&entry.conditions, conditions::READY);
    match ready {
        Some(ready) if ready.status == "True" => None,
        Some(ready) => Some((ready.reason.clone(), ready.message.clone())),
        None => Some((
            "Unknown".to_owned(),
            "the entry has no condition Ready".to_owned(),
        )),
    }
}

/// Upstream's shape names exporters and says nothing else of them.
fn names_only(import: &InferencePoolImport) -> BTreeMap<&str, Option<&ImportedCluster>> {
    if !import.clusters().is_empty() {
        return BTreeMap::new();
    }
    let controller = import.controller(MCI_CONTROLLER);
    let names = controller.map(|one| &one.exporting_clusters);
    let names = names.into_iter().flatten();
    names.map(|one| (one.name.as_str(), None)).collect()
}

fn export_of(pool: &InferencePool) -> Export {
    parse_export(pool.annotations())
}

fn pool_of<'a>(facts: &'a Facts, key: &Key) -> Option<&'a InferencePool> {
    let mut pools = facts.pools.iter().flatten();
    pools.find(|pool| key_of(*pool) == *key)
}

fn key_of(object: &impl ResourceExt) -> Key {
    (object.namespace().unwrap_or_default(), object.name_any())
}
