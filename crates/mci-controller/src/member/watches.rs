//! The watches of a session: each turns objects into updates, and its successes and failures into health events.

use std::time::Duration;

use futures::{Stream, StreamExt};
use k8s_openapi::{
    api::core::v1::{Namespace, Service},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{Api, Client, Resource, core::PartialObjectMeta};
use tokio::sync::mpsc;
use watch::{OddObject, WatchFailure};

use super::{
    Interner, Timed,
    health::HealthEvent,
    import_crd,
    project::{self, ImportObject, Ours},
    under_way::{ListMemory, Seen, UnderWay},
};
use crate::{
    client::watch_config,
    index::{
        flavour::ImportCrd,
        member::Fault,
        update::{AnyKind, Change, Kind, Update},
    },
    metrics::MemberMetrics,
    name::{ClusterName, Key, is_label},
};
use moment::Clock;

/// What every watch of a session uses.
#[derive(Clone)]
pub(super) struct WatchContext {
    pub(super) member: ClusterName,
    pub(super) updates: mpsc::Sender<Timed>,
    pub(super) health_events: mpsc::Sender<HealthEvent>,
    pub(super) clock: Clock,
    pub(super) metrics: MemberMetrics,
    pub(super) ours: Ours,
    pub(super) interner: Interner,
    pub(super) under_way: UnderWay,
}

/// The index or the session is gone: the task ends.
#[derive(Debug)]
pub(super) struct Gone;

/// A change of the import CRD.
enum CrdChange {
    Shape(ImportCrd),
    /// Not readable now. Without permission to read it, the results of writes show its shape.
    Hidden,
    Ended,
}

/// Name of our CRD.
const IMPORT_CRD: &str = "inferencepoolimports.inference.networking.x-k8s.io";
/// How long the imports wait for the list of their CRD, which is small; if it arrives later, they are relisted.
const CRD_WAIT: Duration = Duration::from_secs(2);

/// Imports on one page of a list. An import may reach 1 MiB, with its managed fields twice that, where a page may be
/// 32 MiB and 256 Ki JSON objects: this leaves 640 KiB and 5000 objects for each, which is 60 entries of 80 objects.
const IMPORTS_PAGE: u32 = 50;

// === impl WatchContext ===

impl WatchContext {
    /// Waits while the index is behind.
    pub(super) async fn update(&self, update: Update) -> Result<(), Gone> {
        let timed = (update, self.clock.now());
        self.updates.send(timed).await.map_err(|_| Gone)
    }

    /// An object was not kept. If that is because its list is too large, the index is informed.
    pub(super) async fn check_list(&self, kind: AnyKind, list: &ListMemory) -> Result<(), Gone> {
        if list.is_newly_over() {
            self.update(Update::OverLimit(kind)).await?;
        }
        Ok(())
    }

    pub(super) async fn report(&self, event: HealthEvent) -> Result<(), Gone> {
        self.health_events.send(event).await.map_err(|_| Gone)
    }

    /// A watch failed. A kind that is not served counts as settled, since nothing is to come.
    pub(super) async fn failed(&self, kind: Kind, failure: &WatchFailure) -> Result<(), Gone> {
        self.metrics.watch_failed(kind.plural(), failure.reason());
        if failure.is_kind_missing() {
            self.update(Update::NotServed(kind)).await?;
            return self.report(HealthEvent::Settled(kind)).await;
        }
        let relists = failure.relists();
        let event = match failure.status {
            Some(401) => HealthEvent::Unauthorised,
            Some(403) => {
                tracing::warn!(member = %self.member, kind = kind.plural(), error = %failure,
                    "may not watch: grant get, list and watch");
                HealthEvent::Denied { kind, relists }
            }
            _ => HealthEvent::Failing {
                kind,
                fault: Fault::ConnectionLost,
                relists,
            },
        };
        self.report(event).await
    }
}

pub(super) async fn services(ctx: WatchContext, client: Client) -> Result<(), Gone> {
    let list = ListMemory::new(&ctx.under_way);
    let adding = list.clone();
    let stream = watch::reduced(Api::all(client), watch_config(), move |object: Service| {
        let key = project::key_of(object.meta());
        let facts = project::service(object);
        adding.add(Seen { key, facts })
    });
    follow(ctx, Kind::Services, list, stream, Update::Services).await
}

pub(super) async fn namespaces(ctx: WatchContext, client: Client) -> Result<(), Gone> {
    let list = ListMemory::new(&ctx.under_way);
    let adding = list.clone();
    let reduce = move |object: PartialObjectMeta<Namespace>| {
        let name = object.metadata.name.as_deref();
        let label = name.filter(|name| is_label(name));
        let key = label.map(|name| Key::new("", name));
        let facts = project::namespace(object);
        adding.add(Seen { key, facts })
    };
    let stream = watch::reduced_metadata(Api::all(client), watch_config(), reduce);
    follow(ctx, Kind::Namespaces, list, stream, Update::Namespaces).await
}

/// Watches the imports and their CRD. With another shape of the CRD the server returns other fields of the imports (K6),
/// and a running watch would not show that. So the watch of the imports ends at a change of the CRD, and they are
/// relisted after it.
pub(super) async fn imports(ctx: WatchContext, client: Client) -> Result<(), Gone> {
    let config = watch_config().fields(&format!("metadata.name={IMPORT_CRD}"));
    let crds = watch::objects::<CustomResourceDefinition>(Api::all(client.clone()), config);
    let mut crds = std::pin::pin!(crds);
    let mut seen = None;
    // the CRD first, so that the imports need one list only
    let first = tokio::time::timeout(CRD_WAIT, next_crd(&ctx, &mut crds, &mut seen, true));
    if let Ok(change) = first.await {
        send_crd(&ctx, change).await?;
    }
    loop {
        let change = tokio::select! {
            ended = watch_imports(ctx.clone(), client.clone()) => return ended,
            change = next_crd(&ctx, &mut crds, &mut seen, false) => change,
        };
        send_crd(&ctx, change).await?;
    }
}

async fn send_crd(ctx: &WatchContext, change: CrdChange) -> Result<(), Gone> {
    match change {
        CrdChange::Shape(crd) => ctx.update(Update::ImportCrd(crd)).await,
        CrdChange::Hidden => Ok(()),
        CrdChange::Ended => Err(Gone),
    }
}

/// Waits until the CRD is replaced or changes its shape. Other edits are passed on here.
async fn next_crd(
    ctx: &WatchContext,
    crds: &mut (impl Stream<Item = watch::Update<CustomResourceDefinition>> + Unpin),
    seen: &mut Option<ImportCrd>,
    once: bool,
) -> CrdChange {
    while let Some(update) = crds.next().await {
        let crd = match update {
            watch::Update::Reset(crds) => crds.first().map_or(ImportCrd::ABSENT, import_crd::read),
            watch::Update::Apply(crd) => import_crd::read(&crd),
            watch::Update::Delete(_) | watch::Update::OddDelete(_) => ImportCrd::ABSENT,
            watch::Update::Odd(_) | watch::Update::Failed(_) if once => return CrdChange::Hidden,
            watch::Update::Odd(_) | watch::Update::Failed(_) => continue,
        };
        let old = seen.replace(crd.clone());
        let shape = |crd: &ImportCrd| (crd.flavour, crd.uid.clone());
        if old.as_ref().map(shape) != Some(shape(&crd)) {
            return CrdChange::Shape(crd);
        }
        if ctx.update(Update::ImportCrd(crd)).await.is_err() {
            break;
        }
    }
    CrdChange::Ended
}

async fn watch_imports(ctx: WatchContext, client: Client) -> Result<(), Gone> {
    let (ours, interner) = (ctx.ours.clone(), ctx.interner.clone());
    let config = watch_config().page_size(IMPORTS_PAGE);
    let list = ListMemory::new(&ctx.under_way);
    let adding = list.clone();
    let reduce = move |object: ImportObject| {
        let facts = project::import(&object, &ours, &interner)
            .map_err(|error| OddObject::new(object.meta(), &error))?;
        let key = facts.as_ref().map(|import| import.key.clone());
        adding.add(Seen { key, facts })
    };
    let stream = watch::reduced(Api::all(client), config, reduce);
    follow(ctx, Kind::Imports, list, stream, Update::Imports).await
}

/// Watches one kind: sends lists and changes to the index, health events to the session.
async fn follow<F: Send>(
    ctx: WatchContext,
    kind: Kind,
    list: ListMemory,
    stream: impl Stream<Item = watch::Update<Seen<F>>> + Send,
    update: impl Fn(Change<F>) -> Update + Send + Sync,
) -> Result<(), Gone> {
    let mut stream = std::pin::pin!(stream);
    while let Some(event) = stream.next().await {
        match event {
            watch::Update::Reset(objects) => {
                if list.end() {
                    let listed = objects.into_iter().filter_map(|seen| seen.facts).collect();
                    ctx.update(update(Change::Listed(listed))).await?;
                }
                ctx.report(HealthEvent::Settled(kind)).await?;
            }
            event => changed(&ctx, kind, &list, event, &update).await?,
        }
    }
    Ok(())
}

/// Passes on an event of a watch that is not a complete list.
pub(super) async fn changed<F: Send>(
    ctx: &WatchContext,
    kind: Kind,
    list: &ListMemory,
    event: watch::Update<Seen<F>>,
    update: &(impl Fn(Change<F>) -> Update + Sync),
) -> Result<(), Gone> {
    match event {
        watch::Update::Apply(Seen { facts, .. }) => {
            list.end();
            if let Some(facts) = facts {
                ctx.update(update(Change::Applied(facts))).await?;
            }
            ctx.report(HealthEvent::Working(kind)).await
        }
        watch::Update::Delete(Seen { key, .. }) => {
            list.end();
            if let Some(key) = key {
                ctx.update(update(Change::Deleted(key))).await?;
            }
            ctx.report(HealthEvent::Working(kind)).await
        }
        watch::Update::OddDelete(odd) => {
            list.end();
            if let Some(key) = Key::checked(&odd.namespace, &odd.name) {
                ctx.update(update(Change::Deleted(key))).await?;
            }
            ctx.report(HealthEvent::Working(kind)).await
        }
        watch::Update::Failed(failure) => {
            list.end();
            ctx.failed(kind, &failure).await
        }
        watch::Update::Odd(_) => ctx.check_list(kind.into(), list).await,
        watch::Update::Reset(_) => Ok(()),
    }
}
