//! The Gateways and HTTPRoutes of a member, watched only while it exports something in ParentMode.
//!
//! A member that does not serve them, or denies them to us, is still live: its entries then show what is not known.

use std::time::Duration;

use futures::StreamExt;
use kube::{Api, Client, Resource};
use tokio::{
    sync::watch as channel,
    time::{sleep, timeout},
};

use super::{
    Control, project,
    relist::relisting,
    under_way::{ListMemory, Seen},
    watches::{Gone, WatchContext},
};
use crate::{
    client::watch_config,
    index::{
        heap::Heap,
        update::{Change, ParentKind, Update},
    },
    name::Key,
};

/// A kind that is missing or denied is retried after this.
const MISSING_RETRY: Duration = Duration::from_secs(30);
/// The watches outlive the last export in ParentMode by this, so that one that is restored at once costs no list.
const LINGER: Duration = Duration::from_secs(30);

/// Watches the two kinds while they are of interest.
pub(super) async fn parents(
    ctx: WatchContext,
    client: Client,
    mut control: channel::Receiver<Control>,
) -> Result<(), Gone> {
    // what an earlier session left in the index may be stale by the time it is wanted
    if !wanted(&control.borrow()) {
        ctx.update(Update::ParentsUnwatched).await?;
    }
    loop {
        control.wait_for(wanted).await.map_err(|_| Gone)?;
        let gateways = relisting(control.clone(), ParentKind::Gateways.into(), || {
            let (kind, update) = (ParentKind::Gateways, Update::Gateways);
            follow(&ctx, &client, kind, project::gateway, update)
        });
        let routes = relisting(control.clone(), ParentKind::Routes.into(), || {
            let (kind, update) = (ParentKind::Routes, Update::Routes);
            follow(&ctx, &client, kind, project::route, update)
        });
        tokio::select! {
            ended = gateways => ended?,
            ended = routes => ended?,
            over = unwanted(&mut control) => over?,
        }
        ctx.update(Update::ParentsUnwatched).await?;
    }
}

fn wanted(control: &Control) -> bool {
    let interest = control.interest.as_ref();
    interest.is_some_and(|interest| interest.parents)
}

/// Returns once they have been of no interest for a while.
async fn unwanted(control: &mut channel::Receiver<Control>) -> Result<(), Gone> {
    loop {
        let over = control.wait_for(|control| !wanted(control)).await;
        over.map_err(|_| Gone)?;
        match timeout(LINGER, control.wait_for(wanted)).await {
            Err(_) => return Ok(()),
            Ok(again) => drop(again.map_err(|_| Gone)?),
        }
    }
}

/// Watches one kind, for ever.
async fn follow<K, F>(
    ctx: &WatchContext,
    client: &Client,
    kind: ParentKind,
    facts: impl Fn(K) -> Option<F> + Send + Sync,
    update: impl Fn(Change<F>) -> Update,
) -> Result<(), Gone>
where
    K: Resource<DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned
        + Send
        + 'static,
    F: Heap + Send,
{
    let list = ListMemory::new(&ctx.under_way);
    let mut logged = false;
    loop {
        let api: Api<watch::Tolerant<K>> = Api::all(client.clone());
        let reduce = |object: K| {
            let key = project::key_of(object.meta());
            let facts = facts(object);
            list.add(Seen { key, facts })
        };
        let mut stream = std::pin::pin!(watch::reduced(api, watch_config(), reduce));
        while let Some(event) = stream.next().await {
            let change = match event {
                watch::Update::Reset(objects) => {
                    let listed = objects.into_iter().filter_map(|seen| seen.facts);
                    list.end().then(|| Change::Listed(listed.collect()))
                }
                watch::Update::Apply(seen) => {
                    list.end();
                    seen.facts.map(Change::Applied)
                }
                watch::Update::Delete(seen) => {
                    list.end();
                    seen.key.map(Change::Deleted)
                }
                watch::Update::OddDelete(odd) => {
                    list.end();
                    Key::checked(&odd.namespace, &odd.name).map(Change::Deleted)
                }
                watch::Update::Odd(_) => {
                    ctx.check_list(kind.into(), &list).await?;
                    None
                }
                watch::Update::Failed(failure) => {
                    list.end();
                    ctx.metrics.watch_failed(kind.plural(), failure.reason());
                    if failure.is_kind_missing() || failure.status == Some(403) {
                        if !std::mem::replace(&mut logged, true) {
                            tracing::warn!(member = %ctx.member, kind = kind.plural(), error = %failure,
                                "cannot watch what exports in ParentMode need: install Gateway API, or grant get, list and watch");
                        }
                        ctx.update(Update::ParentsHidden(kind)).await?;
                        break;
                    }
                    None
                }
            };
            if let Some(change) = change {
                ctx.update(update(change)).await?;
            }
        }
        sleep(MISSING_RETRY).await;
    }
}
