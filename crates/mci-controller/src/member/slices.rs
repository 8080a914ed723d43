//! The EndpointSlices watch. What it selects follows what the member exports; when that changes, the new selection is
//! listed in full before it replaces the old one.

use futures::{StreamExt, stream::BoxStream};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Api, Client, Resource};
use tokio::sync::watch as channel;

use super::{
    Control, project,
    under_way::{ListMemory, Seen},
    vigil::Sign,
    watches::{Gone, Wires, changed},
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

/// Follows the EndpointSlices of the EPPs.
pub(super) async fn slices(
    wires: Wires,
    client: Client,
    mut control: channel::Receiver<Control>,
) -> Result<(), Gone> {
    let mut current: Option<Selection> = None;
    // listed while the current one goes on
    let mut next: Option<Selection> = None;
    loop {
        let wanted = control
            .borrow_and_update()
            .interest
            .as_ref()
            .map(Interest::scope);
        // a list under way is completed first: were it begun again at each change, it might never end
        if let Some(wanted) = wanted
            && next.is_none()
            && !current.as_ref().is_some_and(|one| one.serves(&wanted))
        {
            if wanted.is_empty() {
                tell(&wires, Vec::new(), wanted.clone()).await?;
                current = Some(Selection::empty(&wires));
            } else {
                next = Some(Selection::new(wanted, &wires, client.clone()));
            }
        }
        tokio::select! {
            told = control.changed() => told.map_err(|_| Gone)?,
            Some(event) = event_of(&mut next) => match event {
                watch::Update::Reset(objects) => {
                    current = next.take();
                    listed(&wires, current.as_ref().map(Selection::parts), objects).await?;
                }
                // before the list comes nothing but failures and what cannot be read
                event => follow(&wires, next.as_ref().map(Selection::list), event).await?,
            },
            Some(event) = event_of(&mut current) => match event {
                watch::Update::Reset(objects) => {
                    listed(&wires, current.as_ref().map(Selection::parts), objects).await?;
                }
                event => follow(&wires, current.as_ref().map(Selection::list), event).await?,
            },
        }
    }
}

async fn tell(wires: &Wires, slices: Vec<SliceFacts>, scope: Scope) -> Result<(), Gone> {
    wires.update(Update::SlicesListed { slices, scope }).await?;
    wires.sign(Sign::Settled(Kind::Slices)).await
}

/// A list is complete. Of one that was too large nothing is kept.
async fn listed(
    wires: &Wires,
    of: Option<(ListMemory, Scope)>,
    objects: Vec<Seen<SliceFacts>>,
) -> Result<(), Gone> {
    match of {
        Some((list, scope)) if list.end() => {
            let slices = objects.into_iter().filter_map(|seen| seen.facts);
            tell(wires, slices.collect(), scope).await
        }
        _ => {
            // a list of the selection before may have fitted meanwhile
            wires.update(Update::OverLimit(Kind::Slices.into())).await?;
            wires.sign(Sign::Settled(Kind::Slices)).await
        }
    }
}

async fn follow(
    wires: &Wires,
    list: Option<ListMemory>,
    event: watch::Update<Seen<SliceFacts>>,
) -> Result<(), Gone> {
    match list {
        Some(list) => changed(wires, Kind::Slices, &list, event, &Update::Slices).await,
        None => Ok(()),
    }
}

/// The next event of a selection; never where there is none.
async fn event_of(selection: &mut Option<Selection>) -> Option<watch::Update<Seen<SliceFacts>>> {
    match selection.as_mut().and_then(|one| one.stream.as_mut()) {
        Some(stream) => stream.next().await,
        None => std::future::pending().await,
    }
}

// === impl Selection ===

impl Selection {
    fn empty(wires: &Wires) -> Self {
        Self {
            scope: Scope::Services(std::collections::BTreeSet::new()),
            stream: None,
            list: ListMemory::new(&wires.under_way),
        }
    }

    fn new(scope: Scope, wires: &Wires, client: Client) -> Self {
        let config = watch_config().labels(&scope.selector());
        let list = ListMemory::new(&wires.under_way);
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

    /// Whether it will do. One that holds too much is narrowed with the next change, and at once when nothing is left.
    fn serves(&self, wanted: &Scope) -> bool {
        self.scope.covers(wanted) && self.scope.is_empty() == wanted.is_empty()
    }
}
