//! The status for people.

use super::{Cell, ClusterRow, Hole, Kind, Status};
use crate::output::{Paint, Tone, plain, table};

/// A table of pools × clusters, then the holes, the annotations without effect, and the clusters that could not be looked at.
pub(crate) fn render(status: &Status, paint: Paint) -> String {
    let mut text = String::new();
    if status.pools.is_empty() {
        let all_seen = status
            .clusters
            .iter()
            .all(|one| one.problems().next().is_none());
        text.push_str(if all_seen {
            "No cluster exports a pool: kubectl mci export POOL -n NAMESPACE --context CONTEXT\n"
        } else {
            "No pool that is exported was seen, and not all could be looked at\n"
        });
    } else {
        let names = status.clusters.iter().map(|one| one.name.to_uppercase());
        let head: Vec<String> = std::iter::once("POOL".to_owned()).chain(names).collect();
        let head: Vec<&str> = head.iter().map(String::as_str).collect();
        let rows = status.pools.iter().map(|pool| {
            let name = format!("{}/{}", pool.namespace, pool.name);
            let cells = pool.cells.iter().map(word);
            std::iter::once(name).chain(cells).collect()
        });
        text.push_str(&table(&head, &rows.collect::<Vec<_>>()));
    }
    let holes = holes(status);
    if !holes.is_empty() {
        text.push('\n');
        let head = ["POOL", "IN", "FROM", "REASON", "MESSAGE"];
        text.push_str(&paint.paint(Tone::Warning, &table(&head, &holes)));
    }
    for ignored in &status.ignored {
        text.push('\n');
        let line = plain(&format!("ignored: {ignored}"));
        text.push_str(&paint.paint(Tone::Warning, &line));
        text.push('\n');
    }
    let unseen = status.clusters.iter().flat_map(ClusterRow::problems);
    for problem in unseen {
        text.push('\n');
        text.push_str(&paint.paint(Tone::Bad, &format!("not seen: {}", plain(problem))));
        text.push('\n');
    }
    text
}

fn holes(status: &Status) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for pool in &status.pools {
        for cell in &pool.cells {
            rows.extend(cell.holes.iter().map(|hole| {
                vec![
                    format!("{}/{}", pool.namespace, pool.name),
                    cell.cluster.clone(),
                    hole.from.clone().unwrap_or_else(|| "-".to_owned()),
                    hole.reason.clone(),
                    message(hole),
                ]
            }));
        }
    }
    rows
}

fn message(hole: &Hole) -> String {
    match &hole.gateway {
        Some(gateway) => format!("Gateway {gateway}: {}", hole.message),
        None => hole.message.clone(),
    }
}

/// `exports, imports 1/2!`: the state of a pool in a cluster; `!` marks a problem, `?` that objects could not be read,
/// with their kind where others could.
fn word(cell: &Cell) -> String {
    if !cell.seen {
        return "?".to_owned();
    }
    let mut parts = Vec::new();
    if cell.exports.is_some() {
        parts.push("exports".to_owned());
    } else if cell.has_unlisted(Kind::InferencePool) {
        parts.push("exports ?".to_owned());
    } else if cell.has_unlisted(Kind::InferencePoolImport) && cell.has_pool {
        parts.push("local".to_owned());
    }
    if let Some(imports) = &cell.imports {
        let ready = imports.ready.len();
        let all = ready + imports.not_ready.len();
        parts.push(format!("imports {ready}/{all}"));
    } else if cell.has_unlisted(Kind::InferencePoolImport) {
        parts.push("imports ?".to_owned());
    }
    if parts.iter().all(|part| part.ends_with('?')) && !parts.is_empty() {
        parts = vec!["?".to_owned()];
    }
    if parts.is_empty() {
        parts.push(if cell.has_pool { "local" } else { "-" }.to_owned());
    }
    let mark = if cell.holes.is_empty() { "" } else { "!" };
    format!("{}{mark}", parts.join(", "))
}
