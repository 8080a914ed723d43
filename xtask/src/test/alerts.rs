//! The alert rules of the charts and the queries of their dashboards, by promtool.

use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};

use crate::workspace;

/// Checks the rules, runs their tests, and checks the dashboards' queries.
pub(super) fn commands(promtool: &Path) -> Result<[Command; 3]> {
    let charts = workspace::root().join("charts");
    let rules = files(&charts, "alerts", ".yaml")?;
    let tests = files(&charts, "tests", ".alerts.yaml")?;
    ensure!(
        rules.len() == tests.len(),
        "each file of alerts has one of tests: {rules:?} {tests:?}"
    );
    let mut queries = String::from("groups:\n- name: dashboards\n  rules:\n");
    for dashboard in files(&charts, "dashboards", ".json")? {
        let text = fs::read_to_string(&dashboard)
            .with_context(|| format!("reading {}", dashboard.display()))?;
        queries.push_str(&as_rules(&text));
    }
    let made = workspace::target().join("dashboards.rules.yaml");
    fs::write(&made, queries).with_context(|| format!("writing {}", made.display()))?;
    let command = |what: &[&str], files: &[PathBuf]| {
        let mut command = Command::new(promtool);
        // without files it would read them from there
        command.args(what).args(files).stdin(Stdio::null());
        command
    };
    Ok([
        command(&["check", "rules"], &rules),
        command(&["test", "rules"], &tests),
        // panels may ask for the same
        command(&["check", "rules", "--lint=none"], &[made]),
    ])
}

/// The files of this ending in this directory of each chart.
fn files(charts: &Path, directory: &str, ending: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for chart in fs::read_dir(charts).context("reading charts")? {
        let Ok(entries) = fs::read_dir(chart?.path().join(directory)) else {
            continue;
        };
        for entry in entries {
            let path = entry?.path();
            if path.to_string_lossy().ends_with(ending) {
                found.push(path);
            }
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// A recording rule for each query of a dashboard. A string of JSON is one of YAML too, so it is taken as it stands.
fn as_rules(dashboard: &str) -> String {
    let lines = dashboard.lines().map(str::trim);
    let queries = lines.filter_map(|line| line.strip_prefix("\"expr\": "));
    let mut rules = String::new();
    for (number, query) in queries.enumerate() {
        let query = query
            .trim_end_matches(',')
            .replace("$__rate_interval", "5m");
        // names must differ, and writing to a String cannot fail
        let _ = writeln!(
            rules,
            "  - record: query\n    labels: {{number: \"{number}\"}}\n    expr: {query}"
        );
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_query_of_a_dashboard_is_a_rule() {
        let dashboard =
            "{\n \"expr\": \"rate(a{b=~\\\"$b\\\"}[$__rate_interval])\",\n \"title\": \"x\"\n}\n";
        let expected = "  - record: query\n    labels: {number: \"0\"}\n    expr: \"rate(a{b=~\\\"$b\\\"}[5m])\"\n";
        assert_eq!(as_rules(dashboard), expected);
    }
}
