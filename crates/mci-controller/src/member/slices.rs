//! The EndpointSlices watch. It selects the EndpointSlices of what the member exports; when that changes, the new
//! selection is listed in full before it replaces the old one.

use futures::{StreamExt, stream::BoxStream};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Api, Client, Resource};
use tokio::sync::watch as channel;

use super::{
    Control,
    health::HealthEvent,
    project,
    under_way::{ListMemory, Seen},
    watches::{Gone, WatchContext, changed},
};
use crate::{
    client::watch_config,
    index::{
        facts::SliceFacts,
        interest::{Interest, Scope},
        update::{Kind, Update},
    },
};

/// A selection, and its watch.
struct Selection {
    scope: Scope,
    /// None: the scope is empty.
    stream: Option<BoxStream<'static, watch::Update<Seen<SliceFacts>>>>,
    list: ListMemory,
}

/// Watches the EndpointSlices of the EPPs.
pub(super) async fn slices(
    ctx: WatchContext,
    client: Client,
    mut control: channel::Receiver<Control>,
) -> Result<(), Gone> {
    let mut current: Option<Selection> = None;
    // listed while the current one is still watched
    let mut next: Option<Selection> = None;
    loop {
        let wanted = control
            .borrow_and_update()
            .interest
            .as_ref()
            .map(Interest::scope);
        // a list in progress is completed first: restarted at each change, it might never end
        if let Some(wanted) = wanted
            && next.is_none()
            && !current.as_ref().is_some_and(|one| one.serves(&wanted))
        {
            if wanted.is_empty() {
                send_list(&ctx, Vec::new(), wanted.clone()).await?;
                current = Some(Selection::empty(&ctx));
            } else {
                next = Some(Selection::new(wanted, &ctx, client.clone()));
            }
        }
        tokio::select! {
            changed = control.changed() => changed.map_err(|_| Gone)?,
            Some(event) = event_of(&mut next) => match event {
                watch::Update::Reset(objects) => {
                    current = next.take();
                    listed(&ctx, current.as_ref().map(Selection::parts), objects).await?;
                }
                // before the list come only failures and unreadable objects
                event => follow(&ctx, next.as_ref().map(Selection::list), event).await?,
            },
            Some(event) = event_of(&mut current) => match event {
                watch::Update::Reset(objects) => {
                    listed(&ctx, current.as_ref().map(Selection::parts), objects).await?;
                }
                event => follow(&ctx, current.as_ref().map(Selection::list), event).await?,
            },
        }
    }
}

async fn send_list(ctx: &WatchContext, slices: Vec<SliceFacts>, scope: Scope) -> Result<(), Gone> {
    ctx.update(Update::SlicesListed { slices, scope }).await?;
    ctx.report(HealthEvent::Settled(Kind::Slices)).await
}

/// Reports a complete list. Of one that was too large nothing is kept.
async fn listed(
    ctx: &WatchContext,
    of: Option<(ListMemory, Scope)>,
    objects: Vec<Seen<SliceFacts>>,
) -> Result<(), Gone> {
    match of {
        Some((list, scope)) if list.end() => {
            let slices = objects.into_iter().filter_map(|seen| seen.facts);
            send_list(ctx, slices.collect(), scope).await
        }
        _ => {
            // the list of the earlier selection may have fitted
            ctx.update(Update::OverLimit(Kind::Slices.into())).await?;
            ctx.report(HealthEvent::Settled(Kind::Slices)).await
        }
    }
}

async fn follow(
    ctx: &WatchContext,
    list: Option<ListMemory>,
    event: watch::Update<Seen<SliceFacts>>,
) -> Result<(), Gone> {
    match list {
        Some(list) => changed(ctx, Kind::Slices, &list, event, &Update::Slices).await,
        None => Ok(()),
    }
}

/// The next event of a selection; waits for ever without one.
async fn event_of(selection: &mut Option<Selection>) -> Option<watch::Update<Seen<SliceFacts>>> {
    match selection.as_mut().and_then(|one| one.stream.as_mut()) {
        Some(stream) => stream.next().await,
        None => std::future::pending().await,
    }
}

// === impl Selection ===

impl Selection {
    fn empty(ctx: &WatchContext) -> Self {
        Self {
            scope: Scope::Services(std::collections::BTreeSet::new()),
            stream: None,
            list: ListMemory::new(&ctx.under_way),
        }
    }

    fn new(scope: Scope, ctx: &WatchContext, client: Client) -> Self {
        let config = watch_config().labels(&scope.selector());
        let list = ListMemory::new(&ctx.under_way);
        let adding = list.clone();
        let stream = watch::reduced(Api::all(client), config, move |object: EndpointSlice| {
            let key = project::key_of(object.meta());
            let facts = project::slice(object);
            adding.add(Seen { key, facts })
        });
        Self {
            scope,
            stream: Some(stream.boxed()),
            list,
        }
    }

    fn list(&self) -> ListMemory {
        self.list.clone()
    }

    fn parts(&self) -> (ListMemory, Scope) {
        (self.list(), self.scope.clone())
    }

    /// Whether it can stay in use: one that is too wide is narrowed at the next change, and at once if nothing is wanted.
    fn serves(&self, wanted: &Scope) -> bool {
        self.scope.covers(wanted) && self.scope.is_empty() == wanted.is_empty()
    }
}
