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

use super::{
    Cell, ClusterRow, Exports, Facts, Hole, Imports, Kind, PoolRow, Seen, Status, gateways,
};
use crate::{
    export::{ModeName, exported_condition},
    ignored::{self, Ignored},
};

/// Namespace and name.
type Key = (String, String);

/// Reasons of `Exported` that sum up how it stands in the importers.
const SUMMARIES: [&str; 2] = ["NamespaceMissing", "PartiallyExported"];

/// Who exports a pool, by what was seen.
struct Exporters<'a> {
    /// A legal export.
    exporting: BTreeSet<&'a str>,
    /// Clusters whose pools could be read, whether they export or not.
    seen: BTreeSet<&'a str>,
}

/// Pools × clusters, and the holes.
pub(crate) fn judge(seen: &[Seen]) -> Status {
    let clusters = seen.iter().map(|one| ClusterRow {
        name: one.cluster.clone(),
        context: one.context.clone(),
        problem: one.facts.as_ref().err().cloned(),
        unlisted: one.facts.as_ref().map_or_else(|_| Vec::new(), unlisted),
    });
    let pools = keys(seen).into_iter().map(|key| row(&key, seen));
    Status {
        clusters: clusters.collect(),
        pools: pools.collect(),
        ignored: ignored(seen),
    }
}

/// Annotations that have no effect, by cluster.
fn ignored(seen: &[Seen]) -> Vec<Ignored> {
    let mut found = Vec::new();
    for one in seen {
        let Ok(facts) = &one.facts else { continue };
        let pools = facts.pools.iter().flatten();
        found.extend(pools.flat_map(|pool| ignored::of_pool(&one.cluster, pool)));
        let imports = facts.imports.iter().flatten();
        found.extend(imports.flat_map(|import| ignored::of_import(&one.cluster, import)));
        found.extend(facts.ignored.iter().cloned());
    }
    found
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
            // a list that failed does not prove that there is nothing
            if facts.pools.is_ok() {
                exporters.seen.insert(&one.cluster);
            }
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
    let kinds = [
        (Kind::InferencePool, facts.pools.is_err()),
        (Kind::InferencePoolImport, facts.imports.is_err()),
    ];
    let unlisted = kinds.iter().filter(|(_, is_unlisted)| *is_unlisted);
    cell.unlisted = unlisted.map(|(kind, _)| *kind).collect();
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
            cell.holes.extend(gateways::holes(import));
        }
        None if !wanted.is_empty() => {
            cell.holes
                .extend(absent(key, facts).map(|(reason, message)| Hole {
                    from: Some(wanted.join(", ")),
                    gateway: None,
                    reason: reason.to_owned(),
                    message,
                }));
        }
        None => {}
    }
    cell
}

fn unlisted(facts: &Facts) -> Vec<String> {
    let problems = [facts.pools.as_ref().err(), facts.imports.as_ref().err()];
    let problems = problems.into_iter().flatten();
    problems.map(|one| one.problem.clone()).collect()
}

/// Why there is no import; none if it is not known whether there is one.
fn absent(key: &Key, facts: &Facts) -> Option<(&'static str, String)> {
    let namespace = &key.0;
    match &facts.imports {
        Ok(_) => {}
        Err(unlisted) if unlisted.is_served => return None,
        Err(_) => {
            let text = format!(
                "it does not serve {}, the version of InferencePoolImport that is read: install or upgrade the chart isthmus-crds there",
                crd::import::API_VERSION
            );
            return Some(("CRDAbsent", text));
        }
    }
    let namespaces = facts.namespaces.as_ref();
    if namespaces.is_some_and(|names| !names.contains(namespace)) {
        let text = format!(
            "it has no namespace {namespace}, so its owner wants no import: kubectl create namespace {namespace}"
        );
        return Some(("NamespaceMissing", text));
    }
    let mut text = "the controller has written no import: see kubectl mci check and explain, with the same flags"
        .to_owned();
    if namespaces.is_none() {
        let unseen = format!("; whether the cluster has namespace {namespace} was not seen");
        text.push_str(&unseen);
    }
    Some(("NoImport", text))
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
        gateway: None,
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
        gateway: None,
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
                "the import has no entry of it: see kubectl mci check and explain, with the same flags",
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
