//! The watches of a session: each turns what it sees into updates, and its health into signs.

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
    Interner, Timed, import_crd,
    project::{self, ImportObject, Ours},
    under_way::{ListMemory, Seen, UnderWay},
    vigil::Sign,
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

/// What every watch of a session needs.
#[derive(Clone)]
pub(super) struct Wires {
    pub(super) member: ClusterName,
    pub(super) updates: mpsc::Sender<Timed>,
    pub(super) signs: mpsc::Sender<Sign>,
    pub(super) clock: Clock,
    pub(super) metrics: MemberMetrics,
    pub(super) ours: Ours,
    pub(super) interner: Interner,
    pub(super) under_way: UnderWay,
}

/// The index or the session is gone: the task ends.
#[derive(Debug)]
pub(super) struct Gone;

/// What is new of the import CRD.
enum CrdNews {
    Shape(ImportCrd),
    /// Not to be seen now. Without leave to see it, we find out by writing.
    Hidden,
    Ended,
}

/// Name of our CRD.
const IMPORT_CRD: &str = "inferencepoolimports.inference.networking.x-k8s.io";
/// The imports wait so long for the news of their CRD: it is one small list, and they are listed again if it comes late.
const CRD_FIRST: Duration = Duration::from_secs(2);

/// Imports on one page of a list. An import may reach 1 MiB, with its managed fields twice that, where a page may be
/// 32 MiB and 256 Ki JSON objects: this leaves 640 KiB and 5000 objects for each, which is 60 entries of 80 objects.
const IMPORTS_PAGE: u32 = 50;

// === impl Wires ===

impl Wires {
    /// Waits while the index is behind.
    pub(super) async fn update(&self, update: Update) -> Result<(), Gone> {
        let timed = (update, self.clock.now());
        self.updates.send(timed).await.map_err(|_| Gone)
    }

    /// An object was not kept. Where that is for its list takes too much, the index has to know.
    pub(super) async fn check_list(&self, kind: AnyKind, list: &ListMemory) -> Result<(), Gone> {
        if list.is_newly_over() {
            self.update(Update::OverLimit(kind)).await?;
        }
        Ok(())
    }

    pub(super) async fn sign(&self, sign: Sign) -> Result<(), Gone> {
        self.signs.send(sign).await.map_err(|_| Gone)
    }

    /// A watch failed. A kind that is not served counts as settled: there is nothing to wait for.
    pub(super) async fn failed(&self, kind: Kind, failure: &WatchFailure) -> Result<(), Gone> {
        self.metrics.watch_failed(kind.plural(), failure.reason());
        if failure.is_kind_missing() {
            self.update(Update::NotServed(kind)).await?;
            return self.sign(Sign::Settled(kind)).await;
        }
        let relists = failure.relists();
        let sign = match failure.status {
            Some(401) => Sign::Unauthorised,
            Some(403) => {
                tracing::warn!(member = %self.member, kind = kind.plural(), error = %failure,
                    "may not watch: grant get, list and watch");
                Sign::Denied { kind, relists }
            }
            _ => Sign::Failing {
                kind,
                fault: Fault::ConnectionLost,
                relists,
            },
        };
        self.sign(sign).await
    }
}

pub(super) async fn services(wires: Wires, client: Client) -> Result<(), Gone> {
    let list = ListMemory::new(&wires.under_way);
    let adding = list.clone();
    let stream = watch::reduced(Api::all(client), watch_config(), move |object: Service| {
        let key = project::key_of(object.meta());
        let facts = project::service(object);
        adding.add(Seen { key, facts })
    });
    follow(wires, Kind::Services, list, stream, Update::Services).await
}

pub(super) async fn namespaces(wires: Wires, client: Client) -> Result<(), Gone> {
    let list = ListMemory::new(&wires.under_way);
    let adding = list.clone();
    let reduce = move |object: PartialObjectMeta<Namespace>| {
        let name = object.metadata.name.as_deref();
        let name = name.filter(|name| is_label(name));
        let key = name.map(|name| Key::new("", name));
        let facts = project::namespace(object);
        adding.add(Seen { key, facts })
    };
    let stream = watch::reduced_metadata(Api::all(client), watch_config(), reduce);
    follow(wires, Kind::Namespaces, list, stream, Update::Namespaces).await
}

/// The imports, and their CRD: another shape of it shows other parts of them (K6), and a watch that goes on from where
/// it was would not tell. So no word of the imports as they read before follows the news of the CRD, and they are listed
/// again after it.
pub(super) async fn imports(wires: Wires, client: Client) -> Result<(), Gone> {
    let config = watch_config().fields(&format!("metadata.name={IMPORT_CRD}"));
    let crds = watch::objects::<CustomResourceDefinition>(Api::all(client.clone()), config);
    let mut crds = std::pin::pin!(crds);
    let mut seen = None;
    // first, so that one list does
    let first = tokio::time::timeout(CRD_FIRST, next_crd(&wires, &mut crds, &mut seen, true));
    if let Ok(news) = first.await {
        tell_crd(&wires, news).await?;
    }
    loop {
        let news = tokio::select! {
            ended = watch_imports(wires.clone(), client.clone()) => return ended,
            news = next_crd(&wires, &mut crds, &mut seen, false) => news,
        };
        tell_crd(&wires, news).await?;
    }
}

async fn tell_crd(wires: &Wires, news: CrdNews) -> Result<(), Gone> {
    match news {
        CrdNews::Shape(crd) => wires.update(Update::ImportCrd(crd)).await,
        CrdNews::Hidden => Ok(()),
        CrdNews::Ended => Err(Gone),
    }
}

/// Waits until the CRD is another, or takes another shape. An edit that changes neither is passed on here.
async fn next_crd(
    wires: &Wires,
    crds: &mut (impl Stream<Item = watch::Update<CustomResourceDefinition>> + Unpin),
    seen: &mut Option<ImportCrd>,
    once: bool,
) -> CrdNews {
    while let Some(update) = crds.next().await {
        let crd = match update {
            watch::Update::Reset(crds) => crds.first().map_or(ImportCrd::ABSENT, import_crd::read),
            watch::Update::Apply(crd) => import_crd::read(&crd),
            watch::Update::Delete(_) | watch::Update::OddDelete(_) => ImportCrd::ABSENT,
            watch::Update::Odd(_) | watch::Update::Failed(_) if once => return CrdNews::Hidden,
            watch::Update::Odd(_) | watch::Update::Failed(_) => continue,
        };
        let old = seen.replace(crd.clone());
        let shape = |crd: &ImportCrd| (crd.flavour, crd.uid.clone());
        if old.as_ref().map(shape) != Some(shape(&crd)) {
            return CrdNews::Shape(crd);
        }
        if wires.update(Update::ImportCrd(crd)).await.is_err() {
            break;
        }
    }
    CrdNews::Ended
}

async fn watch_imports(wires: Wires, client: Client) -> Result<(), Gone> {
    let (ours, interner) = (wires.ours.clone(), wires.interner.clone());
    let config = watch_config().page_size(IMPORTS_PAGE);
    let list = ListMemory::new(&wires.under_way);
    let adding = list.clone();
    let reduce = move |object: ImportObject| {
        let facts = project::import(&object, &ours, &interner);
        let facts = facts.map_err(|error| OddObject::new(object.meta(), &error))?;
        let key = facts.as_ref().map(|import| import.key.clone());
        adding.add(Seen { key, facts })
    };
    let stream = watch::reduced(Api::all(client), config, reduce);
    follow(wires, Kind::Imports, list, stream, Update::Imports).await
}

/// Follows one kind: lists and changes go to the index, health to the session.
async fn follow<F: Send>(
    wires: Wires,
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
                    wires.update(update(Change::Listed(listed))).await?;
                }
                wires.sign(Sign::Settled(kind)).await?;
            }
            event => changed(&wires, kind, &list, event, &update).await?,
        }
    }
    Ok(())
}

/// Passes on what a watch reports beside its lists.
pub(super) async fn changed<F: Send>(
    wires: &Wires,
    kind: Kind,
    list: &ListMemory,
    event: watch::Update<Seen<F>>,
    update: &(impl Fn(Change<F>) -> Update + Sync),
) -> Result<(), Gone> {
    match event {
        watch::Update::Apply(Seen { facts, .. }) => {
            list.end();
            if let Some(facts) = facts {
                wires.update(update(Change::Applied(facts))).await?;
            }
            wires.sign(Sign::Working(kind)).await
        }
        watch::Update::Delete(Seen { key, .. }) => {
            list.end();
            if let Some(key) = key {
                wires.update(update(Change::Deleted(key))).await?;
            }
            wires.sign(Sign::Working(kind)).await
        }
        watch::Update::OddDelete(odd) => {
            list.end();
            if let Some(key) = Key::checked(&odd.namespace, &odd.name) {
                wires.update(update(Change::Deleted(key))).await?;
            }
            wires.sign(Sign::Working(kind)).await
        }
        watch::Update::Failed(failure) => {
            list.end();
            wires.failed(kind, &failure).await
        }
        watch::Update::Odd(_) => wires.check_list(kind.into(), list).await,
        watch::Update::Reset(_) => Ok(()),
    }
}
