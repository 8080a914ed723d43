//! Dashboards and alert rules compared with what a program serves, for its tests.
//!
//! Only names are read here: `promtool` checks the queries themselves.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use serde::Deserialize;
use serde_json::Value;

/// A Prometheus rule file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleFile {
    /// Rules that are evaluated together.
    pub groups: Vec<RuleGroup>,
}

/// Rules that are evaluated together.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleGroup {
    /// Unique in a file.
    pub name: String,
    /// Alerts alone: we record nothing.
    pub rules: Vec<Alert>,
}

/// An alert rule.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Alert {
    /// Its name, also of its section in the runbook.
    pub alert: String,
    /// The query.
    pub expr: String,
    /// How long it must hold.
    #[serde(default, rename = "for")]
    pub lasts: Option<String>,
    /// `severity`.
    pub labels: BTreeMap<String, String>,
    /// `summary` and `runbook_url`.
    pub annotations: BTreeMap<String, String>,
}

/// What a query names.
#[derive(Debug, Default, PartialEq, Eq)]
struct Named {
    /// Metrics, each with the labels that its selector matches.
    metrics: Vec<(String, BTreeSet<String>)>,
    /// Labels that results are grouped or joined by.
    grouping: BTreeSet<String>,
}

/// Labels by metric, as a page has them.
type Served = BTreeMap<String, BTreeSet<String>>;

/// Labels that Prometheus adds to what it scrapes.
const OF_TARGETS: [&str; 5] = ["instance", "job", "namespace", "pod", "service"];
/// What else results may be grouped by: the label that samples of several clusters are told apart by.
const OF_CLUSTERS: &str = "cluster";
/// Words that are followed by a list of labels.
const LISTS: [&str; 6] = [
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
];
/// Words that are no metric.
const OPERATORS: [&str; 8] = [
    "and", "or", "unless", "bool", "offset", "atan2", "inf", "nan",
];

/// Compares the dashboard and alerts of a program, in a chart's directory, with a page that has all its metrics, and the
/// alerts with the runbook, where their names have this prefix.
///
/// # Errors
/// All that does not fit.
pub fn check(chart: &Path, program: &str, prefix: &str, page: &str) -> Result<(), String> {
    let read = |path: &Path| {
        fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
    };
    let served = served(page);
    let mut faults = Vec::new();
    let dashboard = read(&chart.join(format!("dashboards/{program}.json")))?;
    let dashboard: Value = serde_json::from_str(&dashboard).map_err(|error| error.to_string())?;
    let mut queries = Vec::new();
    collect_queries(&dashboard, &mut queries);
    if queries.is_empty() {
        faults.push("the dashboard has no query".to_owned());
    }
    for (query, texts) in &queries {
        faults.extend(check_query(query, texts, &served));
    }
    let rules = read(&chart.join(format!("alerts/{program}.yaml")))?;
    let rules: RuleFile = serde_yaml::from_str(&rules).map_err(|error| error.to_string())?;
    let runbook = read(&chart.join("../../docs/runbook.md"))?;
    let titles = runbook.lines().filter_map(|line| line.strip_prefix("## "));
    let mut sections: BTreeSet<&str> = titles.filter(|it| it.starts_with(prefix)).collect();
    for alert in rules.groups.iter().flat_map(|group| &group.rules) {
        let summary = alert
            .annotations
            .get("summary")
            .cloned()
            .unwrap_or_default();
        faults.extend(check_query(
            &alert.expr,
            std::slice::from_ref(&summary),
            &served,
        ));
        let name = alert.alert.as_str();
        if !sections.remove(name) {
            faults.push(format!(
                "{name} has no section in the runbook, or stands there twice"
            ));
        }
        let url = format!("docs/runbook.md#{}", name.to_lowercase());
        if alert.annotations.get("runbook_url") != Some(&url) {
            faults.push(format!("the runbook_url of {name} is not {url}"));
        }
        let severity = alert.labels.get("severity").map(String::as_str);
        if summary.is_empty() || !matches!(severity, Some("critical" | "warning" | "info")) {
            faults.push(format!("{name} lacks a summary or a severity"));
        }
        if alert
            .lasts
            .as_ref()
            .is_some_and(|lasts| !lasts.ends_with('m'))
        {
            faults.push(format!("{name} does not last whole minutes"));
        }
    }
    let unknown = sections
        .iter()
        .map(|name| format!("the runbook has {name}, which is no alert"));
    faults.extend(unknown);
    if faults.is_empty() {
        Ok(())
    } else {
        Err(faults.join("\n"))
    }
}

/// The samples of a page.
fn served(page: &str) -> Served {
    let mut served = Served::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let Some((sample, _)) = line.rsplit_once(' ') else {
            continue;
        };
        let (name, labels) = sample.split_once('{').unwrap_or((sample, ""));
        let named = read_query(&format!("x{{{labels}"));
        let labels = named.metrics.into_iter().flat_map(|(_, labels)| labels);
        served.entry(name.to_owned()).or_default().extend(labels);
    }
    served
}

/// Queries, each with the texts that name labels of its results.
fn collect_queries(value: &Value, queries: &mut Vec<(String, Vec<String>)>) {
    match value {
        Value::Object(fields) => {
            if let Some(query) = fields.get("expr").and_then(Value::as_str) {
                let legend = fields.get("legendFormat").and_then(Value::as_str);
                let legend = legend.map(ToOwned::to_owned).into_iter().collect();
                queries.push((query.to_owned(), legend));
            }
            // of a variable
            if let Some(definition) = fields.get("definition").and_then(Value::as_str) {
                let inside = definition.strip_prefix("label_values(");
                let inside = inside.and_then(|rest| rest.strip_suffix(')'));
                let (metric, label) = inside
                    .and_then(|it| it.split_once(", "))
                    .unwrap_or_default();
                queries.push((format!("max by ({label}) ({metric})"), Vec::new()));
            }
            fields
                .values()
                .for_each(|field| collect_queries(field, queries));
        }
        Value::Array(items) => items.iter().for_each(|item| collect_queries(item, queries)),
        _ => {}
    }
}

/// What is wrong with a query. `texts` name labels of its results as `{{label}}` or `{{ $labels.label }}`.
fn check_query(query: &str, texts: &[String], served: &Served) -> Vec<String> {
    let named = read_query(query);
    let mut faults = Vec::new();
    let mut known: BTreeSet<&str> = OF_TARGETS.into();
    if named.metrics.is_empty() {
        faults.push(format!("no metric in {query}"));
    }
    for (metric, labels) in &named.metrics {
        let Some(has) = served.get(metric) else {
            faults.push(format!("{metric} is not served: {query}"));
            continue;
        };
        let lacks = labels.iter().filter(|label| !has.contains(*label));
        for label in lacks.filter(|label| !OF_TARGETS.contains(&label.as_str())) {
            faults.push(format!("{metric} has no label {label}: {query}"));
        }
        known.extend(has.iter().map(String::as_str));
    }
    let shown = texts.iter().flat_map(|text| labels_in(text));
    // what is grouped away cannot be shown
    let aggregated = !named.grouping.is_empty();
    for label in named
        .grouping
        .iter()
        .filter(|label| !known.contains(label.as_str()) && *label != OF_CLUSTERS)
    {
        faults.push(format!("no metric has the label {label}: {query}"));
    }
    for label in shown {
        let is_there = if aggregated {
            named.grouping.contains(label)
        } else {
            known.contains(label)
        };
        if !is_there {
            faults.push(format!("results have no label {label}: {query}"));
        }
    }
    faults
}

/// The labels that a text names.
fn labels_in(text: &str) -> impl Iterator<Item = &str> {
    let places = text.split("{{").skip(1);
    places
        .filter_map(|place| Some(place.split_once("}}")?.0.trim()))
        .map(|place| place.strip_prefix("$labels.").unwrap_or(place))
        .filter(|place| !place.starts_with('$'))
}

/// Reads the names of a query, whose form is not checked.
fn read_query(query: &str) -> Named {
    let mut named = Named::default();
    let mut rest = query;
    // what a `{` or a `(` belongs to
    let mut matching = false;
    let mut listing = false;
    while let Some(c) = rest.chars().next() {
        let end = match c {
            '"' => string_end(rest),
            '[' => rest.find(']').map_or(rest.len(), |at| at + 1),
            // a variable of the dashboard
            '$' => 1 + word_end(rest.get(1..).unwrap_or_default()),
            c if c.is_ascii_digit() => rest
                .find(|c: char| !is_word(c) && c != '.')
                .unwrap_or(rest.len()),
            c if is_word(c) => word_end(rest),
            c => c.len_utf8(),
        };
        let (token, after) = rest.split_at_checked(end).unwrap_or((rest, ""));
        let ahead = after.trim_start();
        let next = ahead.chars().next();
        let word = ahead.get(..word_end(ahead)).unwrap_or_default();
        let is_function = next == Some('(') || matches!(word, "by" | "without");
        match c {
            '{' => matching = true,
            '}' => matching = false,
            ')' => listing = false,
            c if is_word(c) && !c.is_ascii_digit() => {
                if matching {
                    if let Some((_, labels)) = named.metrics.last_mut() {
                        labels.insert(token.to_owned());
                    }
                } else if listing {
                    named.grouping.insert(token.to_owned());
                } else if LISTS.contains(&token) {
                    listing = next == Some('(');
                } else if !is_function && !OPERATORS.contains(&token) {
                    named.metrics.push((token.to_owned(), BTreeSet::new()));
                }
            }
            _ => {}
        }
        rest = after;
    }
    named
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == ':'
}

fn word_end(text: &str) -> usize {
    text.find(|c: char| !is_word(c)).unwrap_or(text.len())
}

/// The end of the string that the text begins with.
fn string_end(text: &str) -> usize {
    let mut escaped = false;
    let mut chars = text.char_indices().skip(1);
    let end = chars.find(|(_, c)| {
        let ends = *c == '"' && !escaped;
        escaped = *c == '\\' && !escaped;
        ends
    });
    end.map_or(text.len(), |(at, _)| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str =
        "# TYPE a counter\na_total{x=\"} {\",y=\"2\"} 1\nb 2\nc_bucket{le=\"+Inf\"} 3\n";

    fn faults(query: &str, text: &str) -> Vec<String> {
        check_query(query, &[text.to_owned()], &served(PAGE))
    }

    #[test]
    fn a_query_that_names_what_is_served_has_no_fault() {
        for (query, text) in [
            ("b", ""),
            (
                "sum by (x) (rate(a_total{y=~\"$y|z\", job!=\"}\"}[$__rate_interval])) > 1.5e3",
                "{{x}}",
            ),
            (
                "histogram_quantile(0.99, sum by (le) (rate(c_bucket[5m])))",
                "p99",
            ),
            (
                "max without (y) (a_total) unless on (x) (b > bool 0 or vector(0))",
                "{{ $labels.x }} {{ $value }}",
            ),
            ("a_total offset 5m", "{{namespace}} {{y}}"),
            ("sum by (cluster, y) (a_total)", "{{y}} {{cluster}}"),
        ] {
            assert_eq!(faults(query, text), Vec::<String>::new(), "{query}");
        }
    }

    #[test]
    fn each_name_that_is_not_served_is_a_fault() {
        for (query, text, fault) in [
            ("sum(gone_total)", "", "gone_total is not served"),
            ("a_total{z=\"1\"}", "", "a_total has no label z"),
            ("sum by (z) (b)", "", "no metric has the label z"),
            ("sum by (x) (a_total)", "{{y}}", "results have no label y"),
            ("b", "{{ $labels.x }}", "results have no label x"),
            ("vector(1)", "", "no metric in"),
        ] {
            let found = faults(query, text);
            assert!(
                found.iter().any(|one| one.starts_with(fault)),
                "{query}: {found:?}"
            );
        }
    }
}
