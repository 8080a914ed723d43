//! The EndpointSlices watch. What it selects follows what the member exports; when that changes, the new selection is
//! listed in full before it replaces the old one.

use futures::{StreamExt, stream::BoxStream};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Api, Client, Resource};
use tokio::sync::watch as channel;

use super::{
    Control, project,
    vigil::Sign,
    watches::{Gone, Wires, changed, config},
};
use crate::index::{
    interest::{Interest, Scope},
    update::{Kind, Update},
};

/// A selection, and its watch.
struct Selection {
    scope: Scope,
    /// None: the scope is empty.
    stream: Option<BoxStream<'static, watch::Update<EndpointSlice>>>,
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
        // a list under way is completed first: were it begun anew at each change, it might never end
        if let Some(wanted) = wanted
            && next.is_none()
            && !current.as_ref().is_some_and(|one| one.serves(&wanted))
        {
            if wanted.is_empty() {
                tell(&wires, Vec::new(), wanted.clone()).await?;
                current = Some(Selection::empty());
            } else {
                next = Some(Selection::new(wanted, client.clone()));
            }
        }
        tokio::select! {
            told = control.changed() => told.map_err(|_| Gone)?,
            Some(event) = event_of(&mut next) => match event {
                watch::Update::Reset(objects) => {
                    current = next.take();
                    if let Some(selection) = &current {
                        tell(&wires, objects, selection.scope.clone()).await?;
                    }
                }
                watch::Update::Failed(failure) => wires.failed(Kind::Slices, &failure).await?,
                // nothing else comes before the list
                _ => {}
            },
            Some(event) = event_of(&mut current) => match event {
                watch::Update::Reset(objects) => {
                    if let Some(selection) = &current {
                        tell(&wires, objects, selection.scope.clone()).await?;
                    }
                }
                event => {
                    let key = |slice: &EndpointSlice| project::key_of(slice.meta());
                    changed(&wires, Kind::Slices, event, &project::slice, &key, &Update::Slices).await?;
                }
            },
        }
    }
}

async fn tell(wires: &Wires, objects: Vec<EndpointSlice>, scope: Scope) -> Result<(), Gone> {
    let slices = objects.into_iter().filter_map(project::slice).collect();
    wires.update(Update::SlicesListed { slices, scope }).await?;
    wires.sign(Sign::Settled(Kind::Slices)).await
}

/// The next event of a selection; never where there is none.
async fn event_of(selection: &mut Option<Selection>) -> Option<watch::Update<EndpointSlice>> {
    match selection.as_mut().and_then(|one| one.stream.as_mut()) {
        Some(stream) => stream.next().await,
        None => std::future::pending().await,
    }
}

// === impl Selection ===

impl Selection {
    fn empty() -> Self {
        Self {
            scope: Scope::Services(std::collections::BTreeSet::new()),
            stream: None,
        }
    }

    fn new(scope: Scope, client: Client) -> Self {
        let config = config().labels(&scope.selector());
        Self {
            scope,
            stream: Some(watch::objects::<EndpointSlice>(Api::all(client), config).boxed()),
        }
    }

    /// Whether it will do. One that holds too much is narrowed with the next change, and at once when nothing is left.
    fn serves(&self, wanted: &Scope) -> bool {
        self.scope.covers(wanted) && self.scope.is_empty() == wanted.is_empty()
    }
}
