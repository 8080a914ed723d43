//! The values themselves: described, and within the schema.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value};

use crate::helm::{CHARTS, Chart, Helm};

const AGAIN: &str = "UPDATE_DOCS=1 cargo test -p e2e --test chart -- values::";

/// A value of `values.yaml`.
#[derive(Debug, PartialEq, Eq)]
struct Described {
    /// As for `--set`.
    path: String,
    /// As it is written.
    default: String,
    text: String,
}

pub(crate) fn each_readme_has_a_row_for_each_value(_: &Helm) -> Result<()> {
    CHARTS.into_iter().try_for_each(check_readme)
}

fn check_readme(chart: Chart) -> Result<()> {
    let described = described(chart)?;
    let mut table = String::from("| value | default | |\n|---|---|---|\n");
    for Described {
        path,
        default,
        text,
    } in described
    {
        use std::fmt::Write as _;
        let cell = process::docs::cell;
        writeln!(
            table,
            "| `{path}` | `{}` | {} |",
            cell(&default),
            cell(&text)
        )?;
    }
    process::docs::check_part(&chart.path().join("README.md"), "values", &table, AGAIN)
        .map_err(anyhow::Error::msg)
}

/// Both ways: helm itself refuses a default that the schema does not have.
pub(crate) fn each_value_is_in_the_schema_and_has_a_default(_: &Helm) -> Result<()> {
    CHARTS.into_iter().try_for_each(check_schema)
}

fn check_schema(chart: Chart) -> Result<()> {
    let described = described(chart)?;
    let schema = std::fs::read_to_string(chart.path().join("values.schema.json"))?;
    let schema: Value = serde_json::from_str(&schema)?;
    let mut in_schema = BTreeSet::new();
    paths(&schema, "", &mut in_schema);
    // helm's own, for charts of charts
    in_schema.remove("global");
    for path in &in_schema {
        let found = described.iter().any(|value| value.path == *path);
        ensure!(
            found,
            "{path} is in the schema, and values.yaml has no default for it"
        );
    }
    for value in &described {
        ensure!(
            in_schema.contains(&value.path),
            "{}: {} is not in the schema",
            chart.name,
            value.path
        );
    }
    Ok(())
}

fn described(chart: Chart) -> Result<Vec<Described>> {
    let values = std::fs::read_to_string(chart.path().join("values.yaml"))?;
    read(&values).context(chart.name)
}

/// The ends of the tree of objects whose fields are fixed.
fn paths(schema: &Value, prefix: &str, found: &mut BTreeSet<String>) {
    let empty = Map::new();
    for (name, value) in schema["properties"].as_object().unwrap_or(&empty) {
        let path = format!("{prefix}{name}");
        if value.get("properties").is_some() {
            paths(value, &format!("{path}."), found);
        } else {
            found.insert(path);
        }
    }
}

/// Reads `values.yaml` line by line: each value has a comment above it that begins with `# --`, and stands on one line; what
/// has other values below it has none.
fn read(yaml: &str) -> Result<Vec<Described>> {
    let mut parents: Vec<&str> = Vec::new();
    let mut comment: Option<&str> = None;
    let mut found = Vec::new();
    for (nth, line) in yaml.lines().enumerate() {
        let plain = line.trim_start();
        let depth = (line.len() - plain.len()) / 2;
        if plain.is_empty() {
            comment = None;
        } else if let Some(text) = plain.strip_prefix("# -- ") {
            comment = Some(text);
        } else if !plain.starts_with('#') {
            let (name, default) = plain
                .split_once(':')
                .with_context(|| format!("line {}: no value", nth + 1))?;
            parents.truncate(depth);
            parents.push(name);
            match (comment.take(), default.trim()) {
                (None, "") => {}
                (Some(text), default) if !default.is_empty() => found.push(Described {
                    path: parents.join("."),
                    default: default.to_owned(),
                    text: text.to_owned(),
                }),
                _ => bail!(
                    "line {}: {name} needs both a comment and a default, or neither",
                    nth + 1
                ),
            }
        }
    }
    Ok(found)
}
