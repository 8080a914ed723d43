//! `kubectl mci export` and `unexport`: a pool's annotations, and the wait for what the controller makes of them.

mod progress;
mod reach;

use std::{io::Write, time::Duration};

use anyhow::{anyhow, bail};
use crd::{
    RoutingMode,
    annotations::{EXPORT, EXPORT_CLUSTER_SET, EXPORT_MODE},
    inference_pool::InferencePool,
};
use kube::{
    ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout_at};

pub(crate) use self::progress::exported_condition;
use self::{
    progress::{Change, Progress, exported, usable, withdrawn},
    reach::{Others, Reach},
};
use crate::{
    args::{ExportArgs, FleetArgs, PoolArgs, UnexportArgs, WaitArgs},
    cluster::{Cluster, FIELD_MANAGER},
    contexts::Contexts,
    output::{Format, plain},
};

/// Between two looks at a pool.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Number of pools named where one is not found.
const MAX_NAMED: usize = 8;

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
    let ExportArgs {
        pool,
        mode,
        contexts: named,
        home,
        wait,
    } = args;
    let place = Place::of(&pool, contexts).await?;
    let mut annotations = json!({EXPORT: EXPORT_CLUSTER_SET});
    if let Some(mode) = mode {
        annotations[EXPORT_MODE] = mode.name().into();
    }
    let change = place.annotate(annotations).await?;
    writeln!(out, "{place}: exported to the ClusterSet")?;
    if !wait.wait {
        return Ok(());
    }
    let fleet = FleetArgs {
        contexts: named,
        context: None,
        home,
        output: Format::Text,
    };
    let others = Others::of(&place.cluster, &fleet, contexts).await;
    let look = async |pool: &InferencePool, since: Duration| {
        let is_there = exported_condition(pool).is_some_and(|one| one.status == "True");
        let reach = if is_there {
            let left = wait.timeout.0.saturating_sub(since);
            let until = Instant::now() + left.max(LOOK_EVERY);
            others.look(&place.namespace, &place.pool, until).await
        } else {
            None
        };
        let reach = reach.as_ref();
        match exported(pool, &change, reach, since) {
            Progress::Done(text) => usable(text, reach),
            waiting => waiting,
        }
    };
    place.wait(&wait, out, look).await?;
    if let Err(problem) = &others.looks {
        let problem = plain(problem);
        eprintln!("note: whether other clusters can use it was not looked at: {problem}");
    }
    Ok(())
}

pub(crate) async fn unexport(
    args: UnexportArgs,
    contexts: &Contexts,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let UnexportArgs { pool, wait } = args;
    let place = Place::of(&pool, contexts).await?;
    let annotations = json!({EXPORT: Value::Null, EXPORT_MODE: Value::Null});
    place.annotate(annotations).await?;
    writeln!(
        out,
        "{place}: not exported any more; routes of other clusters that name nothing else answer 500"
    )?;
    place
        .wait(&wait, out, async |pool: &InferencePool, _| withdrawn(pool))
        .await
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

    async fn annotate(&self, annotations: Value) -> anyhow::Result<Change> {
        let before = self.read().await?;
        let patch = json!({"metadata": {"annotations": annotations}});
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let api = self.cluster.api::<InferencePool>(&self.namespace);
        let what = format!("annotate InferencePool {}/{}", self.namespace, self.pool);
        let patch = Patch::Merge(patch);
        let call = api.patch(&self.pool, &params, &patch);
        let after = self.cluster.call(&what, call).await?;
        Ok(Change::of(before.as_ref(), &after))
    }

    /// Waits if that was asked for; the last thing seen is in the error. `progress` gets the time since the change.
    async fn wait(
        &self,
        wait: &WaitArgs,
        out: &mut impl Write,
        progress: impl AsyncFn(&InferencePool, Duration) -> Progress,
    ) -> anyhow::Result<()> {
        let WaitArgs { wait, timeout } = wait;
        if !wait {
            return Ok(());
        }
        let start = Instant::now();
        let end = start + timeout.0;
        loop {
            // a look that fails, or is not answered, is not the end
            let look = timeout_at(end.max(Instant::now() + LOOK_EVERY), self.read());
            let seen = match look.await {
                Ok(Ok(Some(pool))) => progress(&pool, start.elapsed()).await,
                Ok(Ok(None)) => Progress::Refused("the pool was deleted".to_owned()),
                Ok(Err(error)) => Progress::Waiting(format!("{error:#}")),
                Err(_) => Progress::Waiting("its API server does not answer".to_owned()),
            };
            match seen {
                Progress::Done(text) => {
                    for line in text.lines() {
                        writeln!(out, "{self}: {}", plain(line))?;
                    }
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
