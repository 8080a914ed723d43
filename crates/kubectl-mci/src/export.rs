//! `kubectl mci export` and `unexport`: a pool's annotations, and the wait for what the controller makes of them.

use std::{io::Write, time::Duration};

use anyhow::{anyhow, bail};
use crd::{
    Condition, RoutingMode,
    annotations::{EXPORT, EXPORT_CLUSTER_SET, EXPORT_MODE, MCI_CONTROLLER},
    conditions,
    inference_pool::InferencePool,
};
use kube::{
    ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    args::{ExportArgs, PoolArgs, UnexportArgs, WaitArgs},
    cluster::{Cluster, FIELD_MANAGER},
    contexts::Contexts,
    output::plain,
};

/// Between two looks at a pool.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Number of pools named where one is not found.
const MAX_NAMED: usize = 8;

/// How far an export is.
#[derive(Debug, PartialEq, Eq)]
enum Progress {
    Done(String),
    Waiting(String),
    /// It will not come without a change.
    Refused(String),
}

/// A pool in a cluster.
struct Place {
    cluster: Cluster,
    namespace: String,
    pool: String,
}

pub(crate) async fn export(
    args: ExportArgs,
    contexts: &Contexts,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let ExportArgs { pool, mode, wait } = args;
    let place = Place::of(&pool, contexts).await?;
    let mut annotations = json!({EXPORT: EXPORT_CLUSTER_SET});
    if let Some(mode) = mode {
        annotations[EXPORT_MODE] = mode.name().into();
    }
    place.annotate(annotations).await?;
    writeln!(out, "{place}: exported to the ClusterSet")?;
    place.wait(&wait, exported, out).await
}

pub(crate) async fn unexport(
    args: UnexportArgs,
    contexts: &Contexts,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let UnexportArgs { pool, wait } = args;
    let place = Place::of(&pool, contexts).await?;
    place
        .annotate(json!({EXPORT: Value::Null, EXPORT_MODE: Value::Null}))
        .await?;
    writeln!(
        out,
        "{place}: not exported any more; routes of other clusters that name nothing else answer 500"
    )?;
    place.wait(&wait, withdrawn, out).await
}

/// The condition `Exported` that our controller wrote on a pool.
pub(crate) fn exported_condition(pool: &InferencePool) -> Option<&Condition> {
    let parents = pool.status.as_ref()?.parents.as_ref()?;
    let ours = parents
        .iter()
        .find(|parent| parent.controller_name.as_deref() == Some(MCI_CONTROLLER))?;
    conditions::find(ours.conditions.as_ref()?, conditions::EXPORTED)
}

fn exported(pool: &InferencePool) -> Progress {
    let Some(condition) = exported_condition(pool) else {
        return Progress::Waiting(
            "no controller has seen it yet: is its cluster a member, and a controller running (kubectl mci check)?"
                .to_owned(),
        );
    };
    let text = format!("{}: {}", condition.reason, condition.message);
    match (condition.status.as_str(), condition.reason.as_str()) {
        ("True", _) => Progress::Done(condition.message.clone()),
        (_, "NotSupported" | "NoOtherMember") => Progress::Refused(text),
        _ => Progress::Waiting(text),
    }
}

/// The controller's entry goes with the last entry of the pool in an import.
fn withdrawn(pool: &InferencePool) -> Progress {
    match exported_condition(pool) {
        None => Progress::Done("withdrawn".to_owned()),
        Some(condition) => Progress::Waiting(format!(
            "the controller has not withdrawn it yet ({})",
            condition.reason
        )),
    }
}

// === impl Place ===

impl Place {
    async fn of(args: &PoolArgs, contexts: &Contexts) -> anyhow::Result<Self> {
        let context = contexts.choose(args.context.as_deref(), "--context")?;
        let (namespace, pool) = args.name(contexts.namespace(&context));
        let cluster = Cluster::connect(contexts, &context, &context).await?;
        let place = Self {
            cluster,
            namespace,
            pool,
        };
        if place.read().await?.is_none() {
            return Err(place.unknown().await);
        }
        Ok(place)
    }

    async fn read(&self) -> anyhow::Result<Option<InferencePool>> {
        Ok(self.cluster.get(&self.namespace, &self.pool).await?)
    }

    /// There is no such pool: which ones there are.
    async fn unknown(&self) -> anyhow::Error {
        let params = ListParams::default();
        let listed = self.cluster.list::<InferencePool>(None, &params);
        let pools = match listed.await {
            Ok(pools) => pools,
            Err(error) => return error.into(),
        };
        let named = |pool: &InferencePool| {
            format!(
                "{}/{}",
                pool.namespace().unwrap_or_default(),
                pool.name_any()
            )
        };
        let names: Vec<String> = pools.iter().take(MAX_NAMED).map(named).collect();
        let known = if names.is_empty() {
            "it has no pools".to_owned()
        } else {
            format!("it has {}", names.join(", "))
        };
        anyhow!("{self}: no such InferencePool; {known}: see -n and --context")
    }

    async fn annotate(&self, annotations: Value) -> anyhow::Result<()> {
        let patch = json!({"metadata": {"annotations": annotations}});
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let api = self.cluster.api::<InferencePool>(&self.namespace);
        let what = format!("annotate InferencePool {}/{}", self.namespace, self.pool);
        let patch = Patch::Merge(patch);
        self.cluster
            .call(&what, api.patch(&self.pool, &params, &patch))
            .await?;
        Ok(())
    }

    /// Waits if that was asked for; the last thing seen is in the error.
    async fn wait(
        &self,
        wait: &WaitArgs,
        progress: fn(&InferencePool) -> Progress,
        out: &mut impl Write,
    ) -> anyhow::Result<()> {
        let WaitArgs { wait, timeout } = wait;
        if !wait {
            return Ok(());
        }
        let end = Instant::now() + timeout.0;
        loop {
            let seen = match self.read().await? {
                Some(pool) => progress(&pool),
                None => Progress::Refused("the pool was deleted".to_owned()),
            };
            match seen {
                Progress::Done(text) => {
                    writeln!(out, "{self}: {}", plain(&text))?;
                    return Ok(());
                }
                Progress::Refused(text) => bail!("{self}: {text}"),
                Progress::Waiting(text) if Instant::now() >= end => {
                    bail!("{self}: not within {:?}: {text}", timeout.0)
                }
                Progress::Waiting(_) => sleep(LOOK_EVERY).await,
            }
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}/{}", self.cluster.name, self.namespace, self.pool)
    }
}

/// How an export's mode is called in its annotation.
pub(crate) trait ModeName {
    fn name(self) -> &'static str;
}

impl ModeName for RoutingMode {
    fn name(self) -> &'static str {
        match self {
            Self::EndpointMode => "EndpointMode",
            Self::ParentMode => "ParentMode",
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn mk_pool(status: &str, reason: &str, message: &str) -> InferencePool {
        serde_json::from_value(json!({
            "apiVersion": "inference.networking.k8s.io/v1",
            "kind": "InferencePool",
            "metadata": {"name": "llama", "namespace": "llm"},
            "spec": {"selector": {"matchLabels": {}}, "targetPorts": []},
            "status": {"parents": [
                {"parentRef": {"name": "gw"}, "controllerName": "example.com/other", "conditions": []},
                {"parentRef": {"name": "default"}, "controllerName": MCI_CONTROLLER, "conditions": [{
                    "type": "Exported", "status": status, "reason": reason, "message": message,
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }]},
            ]},
        }))
        .expect("a pool")
    }

    #[rstest]
    #[case("True", "Exported", true, false)]
    #[case("False", "PartiallyExported", false, false)]
    #[case("False", "NamespaceMissing", false, false)]
    #[case("False", "NotSupported", false, true)]
    #[case("False", "NoOtherMember", false, true)]
    fn an_export_is_done_refused_or_on_its_way(
        #[case] status: &str,
        #[case] reason: &str,
        #[case] done: bool,
        #[case] refused: bool,
    ) {
        let progress = exported(&mk_pool(status, reason, "why"));
        assert_eq!(matches!(progress, Progress::Done(_)), done);
        assert_eq!(matches!(progress, Progress::Refused(_)), refused);
    }

    #[test]
    fn a_pool_without_our_condition_was_not_seen_or_is_withdrawn() {
        let mut pool = mk_pool("True", "Exported", "exported to 1/1");
        assert!(matches!(withdrawn(&pool), Progress::Waiting(_)));
        pool.status = None;
        assert!(matches!(exported(&pool), Progress::Waiting(_)));
        assert!(matches!(withdrawn(&pool), Progress::Done(_)));
    }
}
