//! `kubectl mci explain`: what the controller says of one pool; where it cannot be asked, what conditions say.

use std::{fmt::Write as _, io::Write};

use anyhow::bail;
use kube::ResourceExt;
use mci_model::explain::{Explanation, render};
use serde::Serialize;

use crate::{
    args::ExplainArgs,
    cluster::Cluster,
    contexts::Contexts,
    controller::{self, PageError},
    fleet::Fleet,
    ignored::Ignored,
    output::{Paint, plain, table},
    status::{self, ClusterRow, GatewayView, Seen},
};

pub(crate) async fn explain(
    args: ExplainArgs,
    contexts: &Contexts,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let ExplainArgs {
        pool,
        namespace,
        fleet: fleet_args,
    } = args;
    let home_namespace = &fleet_args.home.home_namespace;
    let home_context = contexts.choose(fleet_args.home_context(), "--home-context")?;
    let (namespace, name) = pool.of(namespace.as_deref(), contexts.namespace(&home_context));
    let home = Cluster::connect(contexts, &home_context, &home_context).await?;
    let path = format!("/debug/explain/{namespace}/{name}");
    let problem = match controller::page(&home, home_namespace, &path).await {
        Ok(page) => match serde_json::from_str::<Explanation>(&page) {
            Ok(explanation) => {
                let seen = match Fleet::of(&fleet_args, contexts).await {
                    Ok(fleet) => Ok(status::gather(&fleet.looks, Some(&namespace)).await),
                    Err(error) => Err(format!("{error:#}")),
                };
                let explained = Explained::new(explanation, seen, &name);
                let format = fleet_args.output;
                let text = format.render(&explained, || readable(&explained))?;
                return Ok(out.write_all(text.as_bytes())?);
            }
            Err(error) => {
                format!("the controller answers in another way than this version does: {error}")
            }
        },
        Err(PageError::Call(error)) if error.is_not_found() => bail!(
            "{namespace}/{name} is unknown: no member that the controller has listed has an InferencePool or InferencePoolImport of this name; see kubectl mci status, and kubectl mci check for the members"
        ),
        Err(error) => error.to_string(),
    };
    let problem = plain(&problem);
    eprintln!("note: {problem}\nnote: what follows is from the conditions of the objects alone");
    let fleet = Fleet::of(&fleet_args, contexts).await?;
    fleet.note_unseen_secrets();
    let mut seen = status::judge(&status::gather(&fleet.looks, Some(&namespace)).await);
    seen.pools.retain(|one| one.name == name);
    seen.ignored.retain(|one| one.name == name);
    let mut problems = seen.clusters.iter().flat_map(ClusterRow::problems);
    if seen.pools.is_empty() && problems.next().is_none() {
        bail!("{namespace}/{name}: no cluster exports it or has an import of it");
    }
    let format = fleet_args.output;
    let text = format.render(&seen, || status::render(&seen, Paint::of_stdout()))?;
    Ok(out.write_all(text.as_bytes())?)
}

/// The explanation of the controller, and the conditions of gateways, which the controller does not know.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Explained {
    #[serde(flatten)]
    explanation: Explanation,
    gateways: Vec<GatewayView>,
    /// Why the gateways of a cluster could not be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_seen: Vec<String>,
    /// Annotations of the pools and imports that have no effect.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ignored: Vec<Ignored>,
}

// === impl Explained ===

impl Explained {
    /// With what was seen in the clusters, or why nothing was.
    fn new(explanation: Explanation, seen: Result<Vec<Seen>, String>, name: &str) -> Self {
        let (seen, problem) = match seen {
            Ok(seen) => (seen, None),
            Err(problem) => (Vec::new(), Some(problem)),
        };
        let (gateways, mut not_seen) = gateways(&seen, name);
        not_seen.extend(problem);
        let mut ignored = status::judge(&seen).ignored;
        ignored.retain(|one| one.name == name);
        Self {
            explanation,
            gateways,
            not_seen,
            ignored,
        }
    }
}

/// The conditions that the gateways of each cluster report for its import, and why those of some cluster could not be
/// read.
fn gateways(seen: &[Seen], name: &str) -> (Vec<GatewayView>, Vec<String>) {
    let mut found = Vec::new();
    let mut not_seen = Vec::new();
    for seen in seen {
        let imports = match &seen.facts {
            Ok(facts) => facts.imports.as_ref().map_err(|error| &error.problem),
            Err(problem) => Err(problem),
        };
        match imports {
            Ok(imports) => {
                let import = imports.iter().find(|import| import.name_any() == name);
                found.extend(import.map(|import| status::gateways(&seen.cluster, import)));
            }
            Err(problem) => not_seen.push(problem.clone()),
        }
    }
    (found.concat(), not_seen)
}

/// The controller's tables and that of gateways, line by line without what would move a cursor.
fn readable(explained: &Explained) -> String {
    let Explained {
        explanation,
        gateways,
        not_seen,
        ignored,
    } = explained;
    let mut text = render(explanation);
    let rows = gateways.iter().map(|view| {
        vec![
            view.cluster.clone(),
            view.gateway.clone(),
            view.programmed.clone().unwrap_or_else(|| "-".to_owned()),
            view.reason.clone(),
            view.message.clone(),
        ]
    });
    let head = ["CLUSTER", "GATEWAY", "PROGRAMMED", "REASON", "MESSAGE"];
    text.push_str("GATEWAYS\n");
    if gateways.is_empty() {
        text.push_str("  none\n");
    } else {
        for line in table(&head, &rows.collect::<Vec<_>>()).lines() {
            text.push_str("  ");
            text.push_str(line);
            text.push('\n');
        }
    }
    for problem in not_seen {
        text.push_str("  not seen: ");
        text.push_str(problem);
        text.push('\n');
    }
    for ignored in ignored {
        // writing to a String cannot fail
        let _ = writeln!(text, "ignored: {ignored}");
    }
    let lines = text.lines().map(plain);
    lines.fold(String::new(), |all, line| all + &line + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_gateway_says_stands_beside_what_the_controller_says() {
        let explained = Explained {
            explanation: Explanation {
                key: "llm/llama".to_owned(),
                exporters: Vec::new(),
                importers: Vec::new(),
                trace: Vec::new(),
            },
            gateways: vec![GatewayView {
                cluster: "west".to_owned(),
                gateway: "llm/inference".to_owned(),
                programmed: Some("False".to_owned()),
                reason: "NoUsableCluster".to_owned(),
                message: "east HostnameUnknown".to_owned(),
            }],
            not_seen: vec!["north: no answer".to_owned()],
            ignored: Vec::new(),
        };
        let text = readable(&explained);
        let lines: Vec<&str> = text.lines().rev().take(3).collect();
        assert_eq!(lines[0], "  not seen: north: no answer");
        let words: Vec<&str> = lines[1].split_whitespace().collect();
        assert_eq!(
            words,
            [
                "west",
                "llm/inference",
                "False",
                "NoUsableCluster",
                "east",
                "HostnameUnknown"
            ]
        );
        let json = serde_json::to_value(&explained).expect("JSON");
        assert_eq!(json["key"], "llm/llama");
        assert_eq!(json["gateways"][0]["reason"], "NoUsableCluster");
    }
}
