//! Exported pools: whether others can reach their endpoint pickers, and who imports them.

use crate::check::{
    Group, Level, Line,
    facts::{Facts, Picker, Read, ServiceKind},
};
use crate::status::{self, Cell, ClusterRow, Hole, PoolRow};

/// Number of clusters named.
const MAX_NAMED: usize = 8;

/// The results for exported pools; none where no pool is exported and all clusters could be read.
pub(super) fn group(facts: &Facts) -> Option<Group> {
    let status = status::judge(&facts.seen);
    let mut lines: Vec<Line> = status
        .clusters
        .iter()
        .flat_map(|row| unseen(row, facts))
        .collect();
    if status.pools.is_empty() && status.ignored.is_empty() && lines.is_empty() {
        return None;
    }
    for pool in &status.pools {
        lines.extend(pickers(pool, facts));
        lines.extend(imports(pool));
    }
    let ignored = status.ignored.iter();
    lines.extend(ignored.map(|ignored| Line::of(Level::Warning, ignored.to_string(), None)));
    Some(Group {
        title: "pools".to_owned(),
        lines,
    })
}

/// Lists that failed, except those of a cluster that could not be read at all: its own group reports that.
fn unseen<'a>(row: &'a ClusterRow, facts: &Facts) -> impl Iterator<Item = Line> + use<'a> {
    let cluster = facts.clusters.iter().find(|one| one.name == row.name);
    let is_told = cluster.is_some_and(|one| one.inside.is_err());
    let problem = row.problem.as_ref().filter(|_| !is_told);
    let problems = problem.into_iter().chain(&row.unlisted);
    problems.map(|problem| Line::unknown(problem))
}

fn pickers(pool: &PoolRow, facts: &Facts) -> Vec<Line> {
    let key = (pool.namespace.clone(), pool.name.clone());
    let mut lines = Vec::new();
    for cluster in &facts.clusters {
        let Ok(inside) = &cluster.inside else {
            continue;
        };
        if let Some(picker) = inside.pickers.get(&key) {
            let what = format!("{}/{} in {}", pool.namespace, pool.name, cluster.name);
            lines.push(judge(&what, picker));
            if let Ok(Picker::Service { ignored, .. }) = picker {
                let ignored = ignored.iter();
                lines.extend(
                    ignored.map(|message| {
                        Line::of(Level::Warning, format!("{what}: {message}"), None)
                    }),
                );
            }
        }
    }
    lines
}

fn judge(what: &str, picker: &Read<Picker>) -> Line {
    let picker = match picker {
        Err(problem) => return Line::unknown(problem),
        Ok(picker) => picker,
    };
    match picker {
        Picker::NotNamed => Line::bad(
            format!("{what} names no Service as its endpoint picker"),
            "set endpointPickerRef of the pool, or export it in ParentMode",
        ),
        Picker::NoService(name) => Line::bad(
            format!("{what}: there is no Service {name}, its endpoint picker"),
            "make it, or set endpointPickerRef of the pool",
        ),
        Picker::Service {
            name,
            kind,
            addresses,
            ready,
            ignored: _,
        } => service(what, name, *kind, addresses, *ready),
    }
}

fn service(what: &str, name: &str, kind: ServiceKind, addresses: &[String], ready: usize) -> Line {
    let at = addresses.join(", ");
    match kind {
        ServiceKind::ExternalName => Line::bad(
            format!("{what}: Service {name} is an ExternalName, which is never exported"),
            "make it headless (clusterIP: None) or of type LoadBalancer",
        ),
        ServiceKind::LoadBalancer if addresses.is_empty() => Line::bad(
            format!("{what}: Service {name} waits for the address of a load balancer"),
            "is there one in this cluster? Else make the Service headless (clusterIP: None), where pods are reached from other clusters",
        ),
        _ if ready == 0 => Line::bad(
            format!("{what}: Service {name} has no ready endpoint"),
            "see the pods of the endpoint picker",
        ),
        ServiceKind::Virtual => Line::warning(
            format!(
                "{what}: Service {name} has the address {at}, which mostly means nothing in another cluster"
            ),
            "make it headless (clusterIP: None) where pods are reached from other clusters, else of type LoadBalancer",
        ),
        ServiceKind::LoadBalancer => Line::good(format!(
            "{what}: other clusters reach its endpoint picker at {at}"
        )),
        ServiceKind::Headless => Line::good(format!(
            "{what}: other clusters reach its endpoint picker at {ready} pods"
        )),
    }
}

/// A line for each reason, and one where all is well.
fn imports(pool: &PoolRow) -> Vec<Line> {
    let name = format!("{}/{}", pool.namespace, pool.name);
    let mut lines = Vec::new();
    let exporters: Vec<&Cell> = pool
        .cells
        .iter()
        .filter(|cell| cell.exports.is_some())
        .collect();
    let others = pool.cells.iter().filter(|cell| cell.exports.is_none());
    let with_namespace = others.clone().filter(|cell| {
        cell.seen
            && !cell
                .holes
                .iter()
                .any(|hole| hole.reason == "NamespaceMissing")
    });
    let somebody_can = with_namespace.count() > 0 || exporters.len() > 1;
    for cell in &pool.cells {
        lines.extend(
            cell.holes
                .iter()
                .map(|hole| line(&name, cell, hole, somebody_can)),
        );
    }
    if lines.is_empty() && !exporters.is_empty() {
        let importers = pool.cells.iter().filter(|cell| cell.imports.is_some());
        let mut text = format!(
            "{name}: exported by {}, imported by {}",
            names(exporters.into_iter()),
            names(importers)
        );
        let mut unseen = pool.cells.iter();
        if unseen.any(|cell| !cell.seen || !cell.unlisted.is_empty()) {
            text.push_str("; not all clusters were seen");
        }
        lines.push(Line::good(text));
    }
    lines
}

/// The clusters of these cells; many are only counted.
fn names<'a>(cells: impl Iterator<Item = &'a Cell>) -> String {
    let names: Vec<&str> = cells.map(|cell| cell.cluster.as_str()).collect();
    match names.len() {
        0 => "none".to_owned(),
        1..=MAX_NAMED => names.join(", "),
        all => format!("{all} clusters"),
    }
}

/// A namespace that one cluster lacks may be meant; one that all others lack is not.
fn line(name: &str, cell: &Cell, hole: &Hole, somebody_can: bool) -> Line {
    let level = if hole.reason == "NamespaceMissing" && somebody_can {
        Level::Warning
    } else {
        Level::Bad
    };
    let from = hole.from.as_ref();
    let from = from.map_or_else(String::new, |from| format!(", from {from}"));
    let by = hole.gateway.as_ref();
    let by = by.map_or_else(String::new, |by| format!(", by Gateway {by}"));
    Line::of(
        level,
        format!("{name} in {}{from}{by}: {}", cell.cluster, hole.reason),
        Some(hole.message.clone()),
    )
}
