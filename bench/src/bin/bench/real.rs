//! The same on three real clusters: etcd, kube-apiserver, and the controller as a pod with the rights of its manifests.

use std::{collections::BTreeMap, future::pending, time::Duration};

use anyhow::{Context, Result};
use bench::{Figure, percentile};
use crd::{InferencePoolImport, inference_pool::InferencePool};
use futures::TryStreamExt;
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, WatchEvent, WatchParams},
};
use serde_json::json;
use testbed::{Cluster, Inside, Testbed, isthmus};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use crate::{PATIENCE, Run, SPACE};

const EXPORTER: &str = "north";
const IMPORTERS: [&str; 2] = ["east", "west"];
/// Namespace of the pool, and its name.
const POOL: &str = "bench";
const EVENTS: u16 = 100;
/// Each event adds one to the first.
const FIRST_PORT: u16 = isthmus::UNSERVED_PORT;
/// One request.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);

/// An import as a watch showed it: whose, its target port, and when.
type Seen = (&'static str, u16, Instant);

// === impl Run ===

impl Run {
    /// An administrator changes an exported pool; the others' imports follow.
    pub(crate) async fn real(&mut self, inside: &Inside) -> Result<()> {
        let mut builder = Testbed::builder(inside)
            .image("isthmus/mci-controller", &self.args.controller)
            .cluster(EXPORTER);
        for name in IMPORTERS {
            builder = builder.cluster(name);
        }
        let testbed = builder.start(|_| {}).await?;
        let outcome = Box::pin(self.measure(&testbed)).await;
        let logs = testbed.logs_dir();
        testbed.stop().await;
        outcome.with_context(|| format!("on real clusters; logs: {}", logs.display()))
    }

    async fn measure(&mut self, testbed: &Testbed) -> Result<()> {
        let mut members = BTreeMap::new();
        for cluster in testbed.clusters() {
            members.insert(cluster.name().to_owned(), isthmus::join(cluster).await?);
            isthmus::add_namespace(cluster, POOL).await?;
        }
        let exporter = testbed.cluster(EXPORTER)?;
        isthmus::export_unserved(exporter, POOL).await?;
        isthmus::install_controller(exporter, &members).await?;

        // dropped at the end, and the watches with it
        let mut watches = JoinSet::new();
        let (sender, mut seen) = mpsc::channel(64);
        for name in IMPORTERS {
            let cluster = testbed.cluster(name)?.clone();
            let sender = sender.clone();
            watches.spawn(async move {
                if let Err(error) = follow(&cluster, name, &sender).await {
                    eprintln!("{name}: {error:#}");
                }
                // the other's reports are waited for, with a limit
                pending::<()>().await;
            });
        }
        applied(&mut seen, FIRST_PORT, PATIENCE).await?;

        let pools: Api<InferencePool> = Api::namespaced(exporter.client(), POOL);
        let (mut all, mut answers) = (Vec::new(), Vec::new());
        for event in 1..=EVENTS {
            let port = FIRST_PORT + event;
            let change = json!({"spec": {"targetPorts": [{"number": port}]}});
            let begin = Instant::now();
            let params = PatchParams::default();
            let change = Patch::Merge(&change);
            let patch = timeout(REQUEST_LIMIT, pools.patch(POOL, &params, &change));
            patch.await.context("no answer to the change")??;
            answers.push(begin.elapsed());
            let last = applied(&mut seen, port, PATIENCE).await?;
            all.push(last.saturating_duration_since(begin));
            sleep(SPACE).await;
        }
        let label = "3 real clusters";
        let time = |what: &str, times: &[Duration], share: f64| {
            Figure::time(
                format!("{label}: {what}, p{:.0}", share * 100.0),
                percentile(times, share),
            )
        };
        self.note(time("the change's own answer", &answers, 0.5));
        self.note(time("change to both imports seen", &all, 0.5));
        self.note(time("change to both imports seen", &all, 0.99));
        Ok(())
    }
}

/// Reports each state of the import until the watch ends.
async fn follow(cluster: &Cluster, name: &'static str, seen: &mpsc::Sender<Seen>) -> Result<()> {
    let imports: Api<InferencePoolImport> = Api::namespaced(cluster.client(), POOL);
    let params = ListParams::default();
    let list = timeout(REQUEST_LIMIT, imports.list(&params));
    let list = list.await.context("no list")??;
    let version = list.metadata.resource_version.unwrap_or_default();
    for import in list.items {
        report(&import, name, seen).await?;
    }
    // longer than all events take
    let params = WatchParams::default().timeout(290);
    let mut events = std::pin::pin!(imports.watch(&params, &version).await?);
    while let Some(event) = events.try_next().await? {
        if let WatchEvent::Added(import) | WatchEvent::Modified(import) = event {
            report(&import, name, seen).await?;
        }
    }
    anyhow::bail!("the watch ended")
}

async fn report(
    import: &InferencePoolImport,
    name: &'static str,
    seen: &mpsc::Sender<Seen>,
) -> Result<()> {
    let entries = import.status.iter().flat_map(|status| &status.clusters);
    for entry in entries {
        seen.send((name, entry.target_port_number, Instant::now()))
            .await?;
    }
    Ok(())
}

/// Waits until all importers have this port: when the last did.
async fn applied(seen: &mut mpsc::Receiver<Seen>, port: u16, limit: Duration) -> Result<Instant> {
    let mut waiting: Vec<&str> = IMPORTERS.to_vec();
    let all = async {
        loop {
            let (name, found, at) = seen.recv().await.context("the watches ended")?;
            if found != port {
                continue;
            }
            waiting.retain(|one| *one != name);
            if waiting.is_empty() {
                return anyhow::Ok(at);
            }
        }
    };
    let outcome = timeout(limit, all).await;
    outcome.with_context(|| format!("port {port} is not in the imports of all after {limit:?}"))?
}
