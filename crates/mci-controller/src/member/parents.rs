//! The Gateways and HTTPRoutes of a member, watched only while it exports something in ParentMode.
//!
//! A member without them, or that denies them to us, is no less live: its entries then say what is not known.

use std::time::Duration;

use futures::StreamExt;
use kube::{Api, Client, Resource};
use tokio::{
    sync::watch as channel,
    time::{sleep, timeout},
};

use super::{
    Control, project,
    watches::{Gone, Wires, config},
};
use crate::{
    index::update::{Change, ParentKind, Update},
    name::Key,
};

/// A kind that is missing or denied is asked for again after this.
const MISSING_RETRY: Duration = Duration::from_secs(30);
/// The watches outlive the last export in ParentMode by this, so that one that is taken back at once costs no list.
const LINGER: Duration = Duration::from_secs(30);

/// Follows the two kinds while they are of interest.
pub(super) async fn parents(
    wires: Wires,
    client: Client,
    mut control: channel::Receiver<Control>,
) -> Result<(), Gone> {
    // what an earlier session left may be old by the time it is wanted
    if !wanted(&control.borrow()) {
        wires.update(Update::ParentsUnwatched).await?;
    }
    loop {
        control.wait_for(wanted).await.map_err(|_| Gone)?;
        let gateways = follow(
            &wires,
            &client,
            ParentKind::Gateways,
            project::gateway,
            Update::Gateways,
        );
        let routes = follow(
            &wires,
            &client,
            ParentKind::Routes,
            project::route,
            Update::Routes,
        );
        tokio::select! {
            ended = gateways => ended?,
            ended = routes => ended?,
            over = unwanted(&mut control) => over?,
        }
        wires.update(Update::ParentsUnwatched).await?;
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

/// Follows one kind, for ever.
async fn follow<K, F>(
    wires: &Wires,
    client: &Client,
    kind: ParentKind,
    facts: impl Fn(K) -> Option<F>,
    update: impl Fn(Change<F>) -> Update,
) -> Result<(), Gone>
where
    K: Resource<DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned
        + Send
        + 'static,
{
    let mut told = false;
    loop {
        let api: Api<watch::Tolerant<K>> = Api::all(client.clone());
        let mut stream = std::pin::pin!(watch::objects::<K>(api, config()));
        while let Some(event) = stream.next().await {
            let change = match event {
                watch::Update::Reset(objects) => Some(Change::Listed(
                    objects.into_iter().filter_map(&facts).collect(),
                )),
                watch::Update::Apply(object) => facts(object).map(Change::Applied),
                watch::Update::Delete(object) => {
                    project::key_of(object.meta()).map(Change::Deleted)
                }
                watch::Update::OddDelete(odd) => {
                    Key::checked(&odd.namespace, &odd.name).map(Change::Deleted)
                }
                watch::Update::Odd(_) => None,
                watch::Update::Failed(failure) => {
                    wires.metrics.watch_failed(kind.plural(), failure.reason());
                    if failure.is_kind_missing() || failure.status == Some(403) {
                        if !std::mem::replace(&mut told, true) {
                            tracing::warn!(member = %wires.member, kind = kind.plural(), error = %failure,
                                "cannot watch what exports in ParentMode need: install Gateway API, or grant get, list and watch");
                        }
                        wires.update(Update::ParentsHidden(kind)).await?;
                        break;
                    }
                    None
                }
            };
            if let Some(change) = change {
                wires.update(update(change)).await?;
            }
        }
        sleep(MISSING_RETRY).await;
    }
}
