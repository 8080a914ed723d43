//! Whether other clusters can use an export, by the entries of their imports.

use crd::{InferencePoolImport, RoutingMode, conditions};
use kube::ResourceExt;

use crate::{
    args::FleetArgs,
    cluster::Cluster,
    contexts::Contexts,
    fleet::{Fleet, Look},
    status::{self, Seen},
};

/// The clusters that may import from one exporting cluster.
pub(super) struct Others {
    /// Name of the exporting cluster in the ClusterSet.
    exporter: String,
    /// How to read each of them; the error is why they are not known.
    pub(super) looks: Result<Vec<Look>, String>,
}

/// The entries of an export in the other clusters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reach {
    /// The entries, one for each cluster that has one.
    pub(super) entries: Vec<EntryView>,
    /// Clusters that could not be read, and why.
    pub(super) unseen: Vec<String>,
}

/// The entry of an export in one importing cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EntryView {
    pub(super) cluster: String,
    pub(super) mode: RoutingMode,
    /// Whether the entry is ready; the error is the reason why it is not.
    pub(super) ready: Result<(), String>,
}

// === impl Others ===

impl Others {
    /// Home's members, or the clusters in `--contexts`, except the exporting cluster itself.
    pub(super) async fn of(exporter: &Cluster, args: &FleetArgs, contexts: &Contexts) -> Self {
        let mut others = Self {
            exporter: exporter.name.clone(),
            looks: Ok(Vec::new()),
        };
        let fleet = match Fleet::of(args, contexts).await {
            Ok(fleet) => fleet,
            Err(error) => {
                others.looks = Err(format!("{error:#}"));
                return others;
            }
        };
        others.exporter = fleet.name_of(&exporter.context, contexts);
        let is_exporter = |look: &Look| look.target.context.as_ref() == Some(&exporter.context);
        let named = fleet.looks.iter().find(|look| is_exporter(look));
        if let Some(own) = named {
            others.exporter.clone_from(&own.target.name);
        }
        let looks = fleet.looks.into_iter();
        let looks: Vec<Look> = looks.filter(|look| !is_exporter(look)).collect();
        others.looks = if looks.is_empty() {
            Err(format!(
                "context {} knows no other member: say where home is, --home-context CONTEXT",
                fleet.home.context
            ))
        } else {
            Ok(looks)
        };
        others
    }

    /// The current entries of the pool; none if the clusters are not known.
    pub(super) async fn look(&self, namespace: &str, pool: &str) -> Option<Reach> {
        let looks = self.looks.as_ref().ok()?;
        let seen = status::gather(looks, Some(namespace)).await;
        Some(Reach::of(&seen, &self.exporter, pool))
    }
}

// === impl Reach ===

impl Reach {
    /// Collects the entries from what was read in the pool's namespace of the other clusters. Pure.
    fn of(seen: &[Seen], exporter: &str, pool: &str) -> Self {
        let mut reach = Self::default();
        for one in seen.iter().filter(|one| one.cluster != exporter) {
            let imports = match &one.facts {
                Ok(facts) => facts.imports.as_ref().map_err(|error| &error.problem),
                Err(problem) => Err(problem),
            };
            match imports {
                Ok(imports) => {
                    let import = imports.iter().find(|import| import.name_any() == pool);
                    let entry = import.and_then(|import| entry(import, &one.cluster, exporter));
                    reach.entries.extend(entry);
                }
                Err(problem) => reach.unseen.push(problem.clone()),
            }
        }
        reach
    }

    /// The clusters that cannot use it, and why.
    pub(super) fn unusable(&self) -> Vec<String> {
        let unusable = self.entries.iter().filter_map(|entry| {
            let why = entry.ready.as_ref().err()?;
            Some(format!("{} {why}", entry.cluster))
        });
        unusable.collect()
    }
}

fn entry(import: &InferencePoolImport, cluster: &str, exporter: &str) -> Option<EntryView> {
    let mut entries = import.clusters().iter();
    let entry = entries.find(|entry| entry.name == exporter)?;
    let ready = conditions::find(&entry.conditions, conditions::READY);
    Some(EntryView {
        cluster: cluster.to_owned(),
        mode: entry.routing_mode,
        ready: match ready {
            Some(ready) if ready.status == "True" => Ok(()),
            Some(ready) => Err(format!("{}: {}", ready.reason, ready.message)),
            None => Err("has no condition Ready of it".to_owned()),
        },
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::status::{Facts, Unlisted};

    fn mk_seen(cluster: &str, imports: serde_json::Value) -> Seen {
        Seen {
            cluster: cluster.to_owned(),
            context: None,
            facts: Ok(Facts {
                namespaces: None,
                pools: Ok(Vec::new()),
                imports: Ok(serde_json::from_value(imports).expect("imports")),
                ignored: Vec::new(),
            }),
        }
    }

    #[test]
    fn each_cluster_says_whether_it_can_use_an_export() {
        let import = |status: &str| {
            json!([{
                "metadata": {"name": "llama", "namespace": "llm"},
                "status": {"clusters": [{"name": "east", "routingMode": "EndpointMode", "targetPortNumber": 8000,
                    "conditions": [{"type": "Ready", "status": status, "reason": "BackendNotFound",
                        "message": "no Service", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}]},
            }])
        };
        let mut unlisted = mk_seen("far", json!([]));
        unlisted.facts.as_mut().expect("facts").imports = Err(Unlisted {
            is_served: true,
            problem: "far: forbidden".to_owned(),
        });
        let seen = [
            mk_seen("north", import("True")),
            mk_seen("south", json!([])),
            mk_seen("west", import("False")),
            unlisted,
        ];
        let reach = Reach::of(&seen, "east", "llama");
        assert_eq!(reach.entries.len(), 2);
        assert_eq!(reach.unusable(), ["west BackendNotFound: no Service"]);
        assert_eq!(reach.unseen, ["far: forbidden"]);
    }
}
