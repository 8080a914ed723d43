//! The sockets: who subscribes, who asks for a replay, and what a test asks for.

use std::{io, net::SocketAddr, sync::Arc};

use axum::{
    Json,
    extract::{Request, State},
};
use bytes::Bytes;
use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::sync::CancellationToken;
use zmtp::{Connection, Error, Limits, Received, Role};

use super::{FaultPatch, KvEvents, Report};
use crate::{
    api::{ApiError, read_body},
    args::KvEventSettings,
    server::App,
};

/// Ends a replay.
const END: u64 = u64::MAX;
/// Bytes of a replay that wait to go out.
const MAX_UNSENT: usize = 256 << 10;
/// A request for a replay has two short frames.
const MAX_REQUEST: usize = 64 << 10;
/// A patch has four short fields.
const PATCH_LIMIT: usize = 64 << 10;

/// The sockets of one rank, listening.
#[derive(Debug)]
pub(crate) struct Sockets {
    kv_events: Arc<KvEvents>,
    events: TcpListener,
    replay: Option<TcpListener>,
}

/// A port cannot be had.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot publish KV-cache events on {address}: {error}; see --kv-events-port and --kv-replay-port"
)]
pub struct BindError {
    address: SocketAddr,
    error: io::Error,
}

// === impl Sockets ===

impl Sockets {
    pub(crate) async fn bind(kv_events: Arc<KvEvents>) -> Result<Self, BindError> {
        let settings = kv_events.settings;
        let (events, events_at) = listen(settings.events).await?;
        let replay = match settings.replay {
            Some(address) => Some(listen(address).await?),
            None => None,
        };
        let bound = KvEventSettings {
            events: events_at,
            replay: replay.as_ref().map(|(_, at)| *at),
            ..settings
        };
        tracing::info!(events = %bound.events, replay = ?bound.replay, form = ?bound.form, "publishing KV-cache events");
        // sockets are bound once for each server
        let _bound_before = kv_events.bound.set(bound);
        Ok(Self {
            kv_events,
            events,
            replay: replay.map(|(listener, _)| listener),
        })
    }

    pub(crate) async fn serve(self, stop: CancellationToken) {
        let Self {
            kv_events,
            events,
            replay,
        } = self;
        let limits = Limits {
            max_message: MAX_REQUEST,
            ..Limits::default()
        };
        let mut tasks = JoinSet::new();
        if let Some(replay) = replay {
            let (kv_events, stop) = (kv_events.clone(), stop.clone());
            tasks.spawn(async move {
                let answer = |peer| answer(peer, kv_events.clone());
                zmtp::serve(replay, Role::Router, limits, stop, answer).await;
            });
        }
        kv_events.publisher.serve(events, limits, stop).await;
        tasks.join_all().await;
    }
}

async fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), BindError> {
    let fail = |error| BindError { address, error };
    let listener = TcpListener::bind(address).await.map_err(fail)?;
    let bound = listener.local_addr().map_err(fail)?;
    Ok((listener, bound))
}

/// Answers each request with all batches from a number on, and one that ends them.
async fn answer(mut peer: Connection, kv_events: Arc<KvEvents>) -> Result<(), Error> {
    loop {
        let Received::Message(request) = peer.receive().await? else {
            continue;
        };
        let number = request.frames().last();
        let number = number.and_then(|it| Some(u64::from_be_bytes(it.as_ref().try_into().ok()?)));
        let Some(from) = number else {
            tracing::debug!(
                frames = request.frames().len(),
                "not a request for a replay"
            );
            continue;
        };
        let batches = kv_events.life.lock().kept.from(from);
        for (number, batch) in batches.into_iter().chain([(END, Bytes::new())]) {
            peer.push(&kv_events.replayed(number, batch));
            if peer.unsent() > MAX_UNSENT {
                peer.flush().await?;
            }
        }
        peer.flush().await?;
    }
}

// === impl KvEvents ===

impl KvEvents {
    fn report(&self) -> Report {
        let bound = self.bound.get();
        let life = self.life.lock();
        Report {
            events: bound.map(|it| it.events),
            replay: bound.and_then(|it| it.replay),
            subscribers: self.publisher.subscribers(),
            next_sequence: life.next,
            kept_batches: life.kept.len(),
            pending: life.faults,
        }
    }
}

/// `GET /admin/kv-events`
pub(crate) async fn get_kv_events(State(app): State<Arc<App>>) -> Result<Json<Report>, ApiError> {
    Ok(Json(published(&app)?.report()))
}

/// `POST /admin/kv-events`: what is to go wrong.
pub(crate) async fn post_kv_events(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Report>, ApiError> {
    let body = read_body(request.into_body(), PATCH_LIMIT).await?;
    let patch: FaultPatch = serde_json::from_slice(&body)
        .map_err(|error| ApiError::InvalidConfig(error.to_string()))?;
    let kv_events = published(&app)?;
    if patch.restart {
        app.engine.restart();
    }
    // what goes wrong in the life that begins
    kv_events.life.lock().faults.patch(&patch);
    tracing::info!(?patch, "faults of KV-cache events");
    Ok(Json(kv_events.report()))
}

/// `POST /reset_prefix_cache`, as vLLM has it: 200 in any case.
pub(crate) async fn reset_prefix_cache(State(app): State<Arc<App>>) {
    if !app.engine.reset_prefix_cache() {
        tracing::warn!("the prefix cache stays: running requests use some of it");
    }
}

fn published(app: &App) -> Result<&KvEvents, ApiError> {
    app.kv_events.as_deref().ok_or_else(|| {
        let text = "no KV-cache events are published: start it with --kv-events-port 5557";
        ApiError::InvalidConfig(text.to_owned())
    })
}
