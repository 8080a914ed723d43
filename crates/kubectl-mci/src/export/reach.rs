//! Whether other clusters can use an export, by the entries of their imports.

use std::slice;

use crd::{InferencePoolImport, RoutingMode, conditions};
use futures::{StreamExt, stream};
use kube::ResourceExt;
use tokio::time::{Instant, timeout_at};

use crate::{
    args::{FleetArgs, NamedContext},
    cluster::Cluster,
    contexts::Contexts,
    fleet::{Fleet, Look, find_behind},
    known::{Definition, Known},
    status::{self, Seen},
};

/// Clusters looked at side by side.
const AT_ONCE: usize = 16;

/// The exporting cluster, as the user names it.
struct Named<'a> {
    context: &'a str,
    /// None: it is not known which cluster it is.
    uid: Option<&'a str>,
    /// Of `--contexts`.
    contexts: &'a [NamedContext],
}

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
        let no_other = format!(
            "context {} knows no other member: say where home is, --home-context CONTEXT",
            fleet.home.context
        );
        if fleet.members.is_empty() && args.contexts.is_empty() {
            others.looks = Err(no_other);
            return others;
        }
        let uid = exporter.uid().await.ok().flatten();
        let named = Named {
            context: &exporter.context,
            uid: uid.as_deref(),
            contexts: &args.contexts,
        };
        match named.member(&fleet.known, &fleet.members, contexts) {
            Ok(name) => others.exporter = name,
            Err(problem) => {
                others.looks = Err(problem);
                return others;
            }
        }
        let is_exporter = |look: &Look| {
            look.target.name == others.exporter
                || look.target.context.as_ref() == Some(&exporter.context)
        };
        let looks = fleet.looks.into_iter();
        let looks: Vec<Look> = looks.filter(|look| !is_exporter(look)).collect();
        others.looks = if looks.is_empty() {
            Err(no_other)
        } else {
            Ok(looks)
        };
        others
    }

    /// The current entries of the pool; none if the clusters are not known. What has not answered by `until` is not seen.
    pub(super) async fn look(&self, namespace: &str, pool: &str, until: Instant) -> Option<Reach> {
        let looks = self.looks.as_ref().ok()?;
        let seen = looks.iter().map(async |look| {
            let seen = status::gather(slice::from_ref(look), Some(namespace));
            let late = |_| {
                let name = &look.target.name;
                vec![Seen {
                    cluster: name.clone(),
                    context: look.target.context.clone(),
                    facts: Err(format!("{name}: no answer within --timeout")),
                }]
            };
            timeout_at(until, seen).await.unwrap_or_else(late)
        });
        let seen: Vec<Vec<Seen>> = stream::iter(seen).buffered(AT_ONCE).collect().await;
        Some(Reach::of(&seen.concat(), &self.exporter, pool))
    }
}

// === impl Named ===

impl Named<'_> {
    /// Its name in the ClusterSet: as `--contexts` says, else by its identity, else by the context's name or server. Pure.
    /// # Errors
    /// Where none of these is a member's: entries of it could not be found.
    fn member(
        &self,
        known: &Known,
        members: &[Definition],
        contexts: &Contexts,
    ) -> Result<String, String> {
        let context = self.context;
        let mut said = self.contexts.iter().filter(|one| one.context == context);
        if let Some(name) = said.find_map(|one| one.member.clone()) {
            return Ok(name);
        }
        let is_it = |one: &&Definition| {
            self.uid
                .is_some_and(|uid| known.uids(&one.name).contains(uid))
        };
        if let Some(found) = members.iter().find(is_it) {
            return Ok(found.name.clone());
        }
        let is_another =
            |one: &&Definition| self.uid.is_some() && !known.uids(&one.name).is_empty();
        let found = find_behind(context, members, contexts).filter(|one| !is_another(one));
        match found {
            Some(found) => Ok(found.name.clone()),
            None if members.is_empty() => Ok(context.to_owned()),
            None => Err(format!(
                "it is not known which member context {context} leads to: say it, and where the others are, --contexts MEMBER={context},OTHER=CONTEXT,…"
            )),
        }
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
    use std::time::Duration;

    use http::{Request, Response};
    use kube::client::Body;
    use rstest::rstest;
    use serde_json::json;
    use tower_test::mock;

    use super::*;
    use crate::{
        fleet::Target,
        known::{Met, mk_secret, of_secret},
        status::{Facts, Unlisted},
    };

    const CONTEXTS: &str = r"
clusters:
- {name: e, cluster: {server: 'https://127.0.0.1:40001'}}
- {name: w, cluster: {server: 'https://west.example.com:6443'}}
contexts:
- {name: kind-east, context: {cluster: e, user: u}}
- {name: west, context: {cluster: e, user: u}}
- {name: admin, context: {cluster: w, user: u}}
current-context: kind-east
";

    /// The controller reaches the members elsewhere than this kubeconfig does, and has met both.
    fn mk_known() -> Known {
        let met = |name: &str| {
            let met = Met {
                uids: [format!("uid-{name}")].into(),
                ..Met::default()
            };
            (name.to_owned(), met)
        };
        Known {
            definitions: vec![
                of_secret(&mk_secret("east", "https://10.1.255.1:6443")),
                of_secret(&mk_secret("west", "https://west.example.com:6443")),
            ],
            met: [met("east"), met("west")].into(),
            ..Known::default()
        }
    }

    #[rstest]
    #[case::by_its_identity("kind-east", Some("uid-east"), &[], Ok("east"))]
    #[case::by_its_identity_whatever_the_name("west", Some("uid-east"), &[], Ok("east"))]
    #[case::as_it_is_said("kind-east", Some("uid-east"), &["south=kind-east"], Ok("south"))]
    #[case::by_its_server("admin", None, &[], Ok("west"))]
    #[case::by_its_name("west", None, &[], Ok("west"))]
    #[case::not_known("kind-east", None, &[], Err("--contexts MEMBER=kind-east,"))]
    #[case::another_cluster("west", Some("uid-new"), &["west"], Err("--contexts MEMBER=west,"))]
    fn the_exporter_has_its_name_in_the_clusterset(
        #[case] context: &str,
        #[case] uid: Option<&str>,
        #[case] said: &[&str],
        #[case] expected: Result<&str, &str>,
    ) {
        let said: Vec<NamedContext> = said
            .iter()
            .map(|one| one.parse().expect("parses"))
            .collect();
        let named = Named {
            context,
            uid,
            contexts: &said,
        };
        let known = mk_known();
        let found = named.member(&known, &known.members(), &Contexts::parse(CONTEXTS));
        match (&found, expected) {
            (Ok(name), Ok(expected)) => assert_eq!(name, expected),
            (Err(problem), Err(words)) => assert!(problem.contains(words), "{problem}"),
            _ => panic!("{found:?}"),
        }
    }

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

    #[tokio::test(start_paused = true)]
    async fn a_cluster_that_does_not_answer_is_waited_for_no_longer_than_was_said() {
        let (service, _handle) = mock::pair::<Request<Body>, Response<Body>>();
        let client = kube::Client::new(service, "default");
        let others = Others {
            exporter: "east".to_owned(),
            looks: Ok(vec![Look {
                target: Target {
                    name: "west".to_owned(),
                    context: None,
                },
                cluster: Ok(Cluster::behind(client, "west", "west")),
            }]),
        };
        let start = Instant::now();
        let limit = Duration::from_secs(2);
        let reach = others.look("llm", "llama", start + limit).await;
        assert_eq!(start.elapsed(), limit);
        let unseen = reach.expect("looked").unseen;
        assert_eq!(unseen, ["west: no answer within --timeout"]);
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
