//! The charts' alert rules on what the programs serve while all is well.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use e2e::{
    environment::{CONTROLLER_PODS, Environment},
    tools,
    watching::remains_until,
};
use serde_json::{Value, json};
use testbed::{Requests, eventually, isthmus};
use tokio::time::Instant;

use crate::gateway::GATEWAY_PODS;

const RULES: [&str; 3] = [
    "isthmus/alerts/mci-controller.yaml",
    "isthmus/alerts/gateway.yaml",
    "isthmus-pool/alerts/epp.yaml",
];
/// One metric of each of them: without it there is nothing to see.
const SERVED: [&str; 3] = [
    "mci_leader{",
    "gateway_import_clusters{",
    "llm_d_epp_ready_endpoints{",
];
/// What a program counts each second shows a little later.
const LIMIT: Duration = Duration::from_secs(20);
/// From then on no alert may fire: several checks, so that one of two pages is not enough.
const STAYS: Duration = Duration::from_secs(2);
/// Longer than any alert waits, and than any window of a rate.
const AFTER: &str = "90m";

/// Each page's samples, held still for two hours, are put through the rules: one that cannot be evaluated fails too, as one does
/// that fires because a program serves nothing. Counters stand still too, so rules on rates are only evaluated. That each fires
/// when it should is tested beside the rules.
pub(crate) async fn no_alert_fires_while_all_is_well(environment: &Environment) -> Result<()> {
    environment.settle().await?;
    let promtool = tools::promtool()?;
    let charts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts");
    let charts = charts.canonicalize().context("charts")?;
    let rules = RULES.map(|file| charts.join(file));
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("tests.json");
    let look = async || {
        let samples = samples(environment).await;
        let samples = samples.map_err(|error| format!("{error:#}"))?;
        check(&promtool, &file, &rules, &samples).map_err(|error| format!("{error:#}"))
    };
    eventually("no alert fires", LIMIT, &look).await?;
    remains_until("no alert fires", Instant::now() + STAYS, &look).await
}

/// All that the programs serve, each sample with the labels that a scrape gives it.
async fn samples(environment: &Environment) -> Result<Vec<(String, String)>> {
    let mut all = Vec::new();
    for (job, pods) in [
        ("isthmus-mci-controller", CONTROLLER_PODS),
        ("isthmus-gateway", GATEWAY_PODS),
    ] {
        let pods = environment.pods_of(&environment.west, isthmus::NAMESPACE, pods);
        for (pod, address) in pods.await.map_err(anyhow::Error::msg)? {
            let page = Requests::new(format!("http://{address}:8080"));
            let page = page.get("/metrics").await?.text();
            let namespace = ("namespace", isthmus::NAMESPACE);
            read(&page, &[("job", job), namespace, ("pod", &pod)], &mut all);
        }
    }
    for pod in environment.pickers(&environment.east).await?.into_keys() {
        let page = environment.page(&environment.east, &pod, 9090, "/metrics");
        let labels = [
            ("job", "llama-epp"),
            ("namespace", isthmus::POOL_NAMESPACE),
            ("pod", &pod),
        ];
        read(&page.await?, &labels, &mut all);
    }
    Ok(all)
}

/// Adds the samples of a page, with these labels where they have none of that name: series and value.
fn read(page: &str, labels: &[(&str, &str)], samples: &mut Vec<(String, String)>) {
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let Some((name, own, value)) = split(line) else {
            continue;
        };
        let given = labels.iter().filter_map(|(label, text)| {
            let is_new = !format!(",{own}").contains(&format!(",{label}=\""));
            is_new.then(|| format!("{label}=\"{text}\""))
        });
        let own = (!own.is_empty()).then(|| own.to_owned());
        let all: Vec<String> = own.into_iter().chain(given).collect();
        samples.push((format!("{name}{{{}}}", all.join(",")), value));
    }
}

/// Name, labels and value of a sample; none if it is no finite number.
fn split(line: &str) -> Option<(&str, &str, String)> {
    let name = line.split(['{', ' ']).next()?;
    let rest = line.strip_prefix(name)?;
    let (labels, value) = match rest.strip_prefix('{') {
        Some(rest) => {
            let mut quoted = false;
            let mut escaped = false;
            let end = rest.find(|c: char| {
                quoted ^= c == '"' && !escaped;
                escaped = c == '\\' && !escaped;
                c == '}' && !quoted
            })?;
            let (labels, value) = rest.split_at(end);
            (labels, value.strip_prefix('}')?)
        }
        None => ("", rest),
    };
    // a timestamp or an exemplar may follow
    let value: f64 = value.split_whitespace().next()?.parse().ok()?;
    value.is_finite().then(|| (name, labels, value.to_string()))
}

/// Has promtool evaluate the rules on these samples, and expects no alert.
fn check(
    promtool: &Path,
    file: &Path,
    rules: &[PathBuf],
    samples: &[(String, String)],
) -> Result<()> {
    let mut alerts = Vec::new();
    for rules in rules {
        let text = std::fs::read_to_string(rules)?;
        let lines = text.lines().map(str::trim);
        let names = lines.filter_map(|line| line.strip_prefix("- alert: "));
        alerts.extend(
            names.map(|name| json!({"eval_time": AFTER, "alertname": name, "exp_alerts": []})),
        );
    }
    for name in SERVED {
        let mut samples = samples.iter();
        let is_served = samples.any(|(series, _)| series.starts_with(name));
        ensure!(is_served, "no {name}}}");
    }
    let series = samples.iter();
    let series =
        series.map(|(series, value)| json!({"series": series, "values": format!("{value}x120")}));
    let test = json!({
        "rule_files": rules,
        "evaluation_interval": "1m",
        "tests": [{
            "interval": "1m",
            "input_series": series.collect::<Vec<Value>>(),
            "alert_rule_test": alerts,
        }],
    });
    std::fs::write(file, test.to_string())?;
    let mut command = Command::new(promtool);
    let output = command
        .args(["test", "rules"])
        .arg(file)
        .stdin(Stdio::null())
        .output();
    let output = output.with_context(|| format!("running {}", promtool.display()))?;
    let said = [output.stdout, output.stderr].concat();
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&said)
    );
    Ok(())
}
