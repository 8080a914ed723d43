//! Compares docs/reference.md, docs/runbook.md, the dashboard and the alerts with the program.
//!
//! With `UPDATE_DOCS=1` in the environment, the tests write the generated tables instead of comparing them.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use clap::CommandFactory;
use process::{
    docs::{self, cell, flags},
    queries::{self, RuleFile},
};

use crate::{args::Args, metrics::sample_page, overview::STATES};

mod names;

const ALERTS: &str = "charts/isthmus/alerts/mci-controller.yaml";

fn place(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}

/// A file of the repository.
pub(crate) fn read(path: &str) -> String {
    std::fs::read_to_string(place(path)).expect(path)
}

/// Compares or writes a generated part of the reference.
fn check_part(part: &str, made: &str) {
    let again = "UPDATE_DOCS=1 cargo test -p mci-controller docs:: -- --test-threads=1";
    let checked = docs::check_part(&place("docs/reference.md"), part, made, again);
    checked.unwrap_or_else(|error| panic!("{error}"));
}

/// Names of metrics in an exposition page, as queries use them.
fn metric_names(page: &str) -> BTreeSet<String> {
    let samples = page.lines().filter(|line| !line.starts_with('#'));
    let names = samples.filter_map(|line| line.split(['{', ' ']).next());
    names.map(ToOwned::to_owned).collect()
}

#[test]
fn every_flag_is_in_the_reference() {
    check_part("flags", &flags(Args::command().get_arguments()));
}

#[test]
fn every_metric_is_in_the_reference() {
    let page = sample_page();
    let mut text = "| metric | type | labels | |\n|---|---|---|---|\n".to_owned();
    for line in page.lines() {
        let Some((name, type_)) = line
            .strip_prefix("# TYPE ")
            .and_then(|rest| rest.split_once(' '))
        else {
            continue;
        };
        let suffix = if type_ == "counter" { "_total" } else { "" };
        let help = page
            .lines()
            .find_map(|line| line.strip_prefix(&format!("# HELP {name} ")))
            .expect(name)
            .trim_end_matches('.');
        let mut samples = page
            .lines()
            .filter(|line| line.starts_with(&format!("{name}{suffix}{{")));
        let sample_labels = samples
            .next()
            .and_then(|line| Some(line.split_once('{')?.1.split_once('}')?.0));
        let labels: Vec<&str> = sample_labels
            .unwrap_or_default()
            .split(',')
            .filter_map(|label| Some(label.split_once('=')?.0))
            .collect();
        let labels = labels.join(", ");
        let row = format!(
            "| `{name}{suffix}` | {type_} | {labels} | {} |\n",
            cell(help)
        );
        text.push_str(&row);
    }
    check_part("metrics", &text);
}

#[test]
fn every_reason_of_a_watch_that_begins_again_is_in_the_reference() {
    let mut text = "| reason | |\n|---|---|\n".to_owned();
    text.extend(
        watch::FailureReason::ALL
            .map(|reason| format!("| {} | {} |\n", reason.as_str(), cell(reason.meaning()))),
    );
    check_part("watch-restarts", &text);
}

#[test]
fn the_command_explain_is_in_the_reference() {
    let command = Args::command();
    let explain = command.find_subcommand("explain").expect("there");
    let mut text = "| argument | default | |\n|---|---|---|\n".to_owned();
    let positional = explain.get_positionals().map(|arg| {
        let help = arg.get_help().expect("help").to_string();
        format!("| `NAMESPACE/NAME` | | {} |\n", cell(&help))
    });
    text.extend(positional);
    text.extend(explain.get_arguments().filter_map(docs::flag_row));
    check_part("explain", &text);
}

#[test]
fn all_metrics_of_the_specification_are_served() {
    let served = metric_names(&sample_page());
    for name in [
        "mci_leader",
        "mci_isolation_guard",
        "mci_conflicts",
        "mci_member_up",
        "mci_member_state",
        "mci_member_last_contact_seconds",
        "mci_member_crd_flavour",
        "mci_exported_pools",
        "mci_imports",
        "mci_import_entries",
        "mci_queue_keys",
        "mci_queue_oldest_seconds",
        "mci_inflight_limit",
        "mci_breaker_open",
        "mci_propagation_seconds_bucket",
        "mci_patches_total",
        "mci_watch_restarts_total",
        "mci_rejected_addresses_total",
        "mci_client_rebuilds_total",
        "mci_withdrawals_total",
        "mci_withheld_withdrawals_total",
    ] {
        assert!(served.contains(name), "{name} is not served: {served:?}");
    }
}

#[test]
fn dashboard_and_alerts_name_what_is_served_and_the_runbook_has_each_alert() {
    let chart = place("charts/isthmus");
    let checked = queries::check(&chart, "mci-controller", "Mci", &sample_page());
    checked.unwrap_or_else(|faults| panic!("{faults}"));
}

#[test]
fn reasons_in_alerts_are_reasons_of_members() {
    let file: RuleFile = serde_yaml::from_str(&read(ALERTS)).expect("a rule file");
    let mut used = Vec::new();
    let alerts = file.groups.iter().flat_map(|group| &group.rules);
    for alert in alerts.filter(|alert| alert.expr.contains("mci_member_state")) {
        let (_, rest) = alert.expr.split_once("reason=").unwrap_or_else(|| {
            panic!("{} is for no reason: {}", alert.alert, alert.expr);
        });
        let quoted = rest.split('"').nth(1).expect("quoted");
        for reason in quoted.split('|') {
            assert!(STATES.contains(&reason), "{reason} of {}", alert.alert);
            used.push(reason);
        }
    }
    // the others need nobody's hand, or have an alert by another metric
    let is_fine = ["Active", "CRDAbsent", "Connecting"];
    for reason in STATES.iter().filter(|reason| !is_fine.contains(*reason)) {
        assert!(used.contains(reason), "no alert on {reason}: {used:?}");
    }
}
