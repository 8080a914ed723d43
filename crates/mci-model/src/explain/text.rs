//! An explanation for people: tables that fit a terminal.

use std::fmt::Write;

use serde_json::Value;

use super::{Explanation, Exporter, Importer, Rule};

/// As `mci-controller explain` and `kubectl mci explain` print it.
pub fn render(explanation: &Explanation) -> String {
    let Explanation {
        key,
        exporters,
        importers,
        trace,
    } = explanation;
    let mut text = format!("{key}\n\n");
    let rows = exporters.iter().map(exporter).collect();
    section(
        &mut text,
        "EXPORTERS",
        &["CLUSTER", "MODE", "ENTRY", "READY", "EVIDENCE"],
        rows,
    );
    let rows = importers.iter().map(importer).collect();
    section(
        &mut text,
        "IMPORTERS",
        &["CLUSTER", "STATE", "REASON", "CRD", "QUEUED", "LAST ERROR"],
        rows,
    );
    let rows = trace.iter().map(rule).collect();
    section(&mut text, "WHY", &["RULE", "OUTCOME", "DETAIL"], rows);
    text
}

fn exporter(exporter: &Exporter) -> Vec<String> {
    let Exporter {
        cluster,
        mode,
        entry,
        evidence,
        // the trace has it
        exported: _,
    } = exporter;
    vec![
        cluster.clone(),
        mode.clone().unwrap_or_else(|| "-".to_owned()),
        if entry.is_some() { "yes" } else { "no" }.to_owned(),
        entry.as_ref().map_or_else(|| "-".to_owned(), ready),
        evidence.clone(),
    ]
}

/// Status of the entry's condition `Ready`, and its reason unless the status is `True`.
fn ready(entry: &Value) -> String {
    let conditions = entry.get("conditions").and_then(Value::as_array);
    let found = conditions
        .into_iter()
        .flatten()
        .find(|condition| condition["type"] == "Ready");
    let text = |field: &str| {
        found
            .and_then(|found| found.get(field)?.as_str())
            .unwrap_or("")
    };
    match (text("status"), text("reason")) {
        ("", _) => "-".to_owned(),
        ("True", _) => "True".to_owned(),
        (status, reason) => format!("{status} ({reason})"),
    }
}

fn importer(importer: &Importer) -> Vec<String> {
    let Importer {
        cluster,
        state,
        reason,
        flavour,
        queued,
        last_error,
    } = importer;
    let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    vec![
        cluster.clone(),
        state.name().to_owned(),
        reason.clone(),
        or_dash(flavour),
        if *queued { "yes" } else { "no" }.to_owned(),
        or_dash(last_error),
    ]
}

fn rule(rule: &Rule) -> Vec<String> {
    let Rule {
        rule,
        outcome,
        detail,
    } = rule;
    vec![rule.clone(), outcome.clone(), detail.clone()]
}

/// A titled table with columns as wide as they need; the last one is not padded.
fn section(text: &mut String, title: &str, head: &[&str], rows: Vec<Vec<String>>) {
    // writing to a String cannot fail
    let _ = writeln!(text, "{title}");
    if rows.is_empty() {
        let _ = writeln!(text, "  none\n");
        return;
    }
    let head = head.iter().map(|cell| (*cell).to_owned()).collect();
    let table: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
    let width_of = |column: usize| {
        let cells = table.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    for row in &table {
        let mut line = String::from(" ");
        for (column, cell) in row.iter().enumerate() {
            let width = if column + 1 == row.len() {
                0
            } else {
                width_of(column) + 1
            };
            let _ = write!(line, " {cell:<width$}");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text.push('\n');
}
