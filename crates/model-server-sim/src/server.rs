//! One simulated server: its routes and its life.

use std::{
    io,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use axum::{
    Json, Router,
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    middleware::map_response,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use jiff::Timestamp;
use process::Shutdown;
use processor_api::DP_RANK_HEADER;
use serde::Serialize;
use tokio::{
    net::TcpListener,
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use xxhash_rust::xxh64::xxh64;

use crate::{
    admin::{self, Admin},
    api::{self, ApiError, Input},
    args::Settings,
    engine::{Content, Dice, Engine, Latency},
    kv_events::{self, BindError, KvEvents, Sockets},
    listen::{ConnectionLimits, ConnectionNumber, listen},
    metrics::{self, AdapterSet, Facts, SharedPage},
    models::Models,
};

const POD: HeaderName = HeaderName::from_static("x-inference-pod");
const NAMESPACE: HeaderName = HeaderName::from_static("x-inference-namespace");
const PORT: HeaderName = HeaderName::from_static("x-inference-port");

/// A simulated server without its port.
#[derive(Clone, Debug)]
pub struct Server {
    app: Arc<App>,
}

/// Why a server ended early.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The listener has no address.
    #[error("the listening socket has no address")]
    Listener(#[source] io::Error),
    /// The engine's task ended while requests were served: a bug.
    #[error("the engine ended while the server was running: this is a bug, please report it")]
    EngineEnded,
    /// A port for KV-cache events cannot be had.
    #[error(transparent)]
    KvEvents(#[from] BindError),
    /// A server's task panicked: a bug.
    #[error("a server panicked: this is a bug, please report it")]
    Panicked,
}

/// What every handler sees.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) settings: Settings,
    pub(crate) engine: Engine,
    pub(crate) admin: Admin,
    pub(crate) models: Models,
    pub(crate) tokens: api::Tokens,
    /// By API server.
    responses: Vec<api::Responses>,
    /// Where several API servers share the metrics page.
    shared_page: Option<SharedPage>,
    pub(crate) started: Timestamp,
    /// When the simulated loading of the model ends.
    loaded: Instant,
    /// What is published of the KV cache, if anything is.
    pub(crate) kv_events: Option<Arc<KvEvents>>,
    draining: CancellationToken,
    /// Answers made.
    answers: AtomicU64,
    /// All ranks of the server in order, where its ports accept requests for all of them.
    ranks: OnceLock<Vec<Weak<App>>>,
    /// Number of requests that named no rank.
    unranked: AtomicU64,
}

/// One of the processes that accept requests for the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ApiServer(usize);

/// Serves until the drain is over: after `shutdown.drain` nothing new is accepted and what was begun may
/// finish within the drain timeout, or until `shutdown.now`.
///
/// # Errors
/// [`ServeError`] when it could not start, or when a part of it ended by itself.
pub async fn serve(
    listener: TcpListener,
    settings: Settings,
    shutdown: Shutdown,
) -> Result<(), ServeError> {
    let server = Server::new(settings, shutdown.drain.clone());
    serve_at(listener, server, shutdown).await
}

pub(crate) async fn serve_at(
    listener: TcpListener,
    server: Server,
    shutdown: Shutdown,
) -> Result<(), ServeError> {
    let port = listener.local_addr().map_err(ServeError::Listener)?.port();
    let limits = ConnectionLimits {
        keep_alive: server.app.settings.keep_alive_timeout,
        drain: server.app.settings.drain_timeout,
    };
    let stop = CancellationToken::new();
    let mut engine = JoinSet::new();
    if let Some(kv_events) = &server.app.kv_events {
        let sockets = Sockets::bind(kv_events.clone()).await?;
        engine.spawn(sockets.serve(stop.clone()));
    }
    engine.spawn(server.engine().run(stop.clone()));
    tokio::select! {
        () = listen(listener, server.router(port), &shutdown, limits) => {
            stop.cancel();
            while engine.join_next().await.is_some() {}
            Ok(())
        }
        _ = engine.join_next() => Err(ServeError::EngineEnded),
    }
}

// === impl ServeError ===

impl ServeError {
    /// Stable: log field.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Listener(_) => "listener",
            Self::EngineEnded => "engine-ended",
            Self::KvEvents(_) => "kv-events",
            Self::Panicked => "panicked",
        }
    }
}

// === impl Server ===

impl Server {
    /// A server whose simulated start begins now. It is not ready while `draining` is cancelled. Needs a runtime if
    /// there is a token cache.
    pub fn new(settings: Settings, draining: CancellationToken) -> Self {
        let latency = Latency::from(&settings.knobs.latency);
        let kv_events = KvEvents::new(&settings).map(Arc::new);
        let api_servers = usize::from(settings.api_servers.get());
        let app = App {
            engine: Engine::new(settings.limits, latency, Dice::new(settings.chance_seed)),
            admin: Admin::new(settings.knobs.clone(), settings.chance_seed),
            models: Models::new(&settings.served_models, &settings.lora_modules),
            tokens: api::Tokens::start(settings.tokens.clone()),
            responses: (0..api_servers)
                .map(|nth| api::Responses::new(ApiServer(nth), settings.responses_store))
                .collect(),
            shared_page: (api_servers > 1).then(|| SharedPage::new(api_servers)),
            started: Timestamp::now(),
            loaded: Instant::now() + settings.startup_duration,
            draining,
            kv_events,
            answers: AtomicU64::new(0),
            ranks: OnceLock::new(),
            unranked: AtomicU64::new(0),
            settings,
        };
        if let Some(kv_events) = &app.kv_events {
            app.engine.set_listener(kv_events.clone());
        }
        Self { app: Arc::new(app) }
    }

    /// The engine: nothing is answered unless somebody runs it ([`Engine::run`]).
    pub fn engine(&self) -> Engine {
        self.app.engine.clone()
    }

    pub(crate) fn app(&self) -> &Arc<App> {
        &self.app
    }

    /// Whether the other app is a rank of the same server, which has shared ports.
    pub(crate) fn is_rank_beside(&self, other: &Self) -> bool {
        let (one, other) = (&self.app.settings, &other.app.settings);
        one.has_shared_ports && one.address.ip() == other.address.ip()
    }

    /// Makes its port accept requests for these ranks, which include its own; an empty list means its own rank alone.
    pub(crate) fn share_port(&self, ranks: Vec<Weak<App>>) {
        // once for each server
        let _shared_before = self.app.ranks.set(ranks);
    }

    /// All routes; every response names the pod and `port`.
    pub fn router(&self, port: u16) -> Router {
        let identity = &self.app.settings.identity;
        let (pod, namespace) = (identity.pod.clone(), identity.namespace.clone());
        api::routes(self.app.settings.engine)
            .route("/health", get(alive))
            .route("/health/ready", get(ready))
            .route("/metrics", get(metrics_page))
            .route(
                "/admin/config",
                get(admin::get_config).post(admin::post_config),
            )
            .route("/admin/requests", get(admin::requests))
            .route(
                "/admin/kv-events",
                get(kv_events::get_kv_events).post(kv_events::post_kv_events),
            )
            .route("/reset_prefix_cache", post(kv_events::reset_prefix_cache))
            .fallback(api::not_found)
            .method_not_allowed_fallback(api::method_not_allowed)
            .with_state(self.app.clone())
            .layer(map_response(move |mut response: Response| {
                let headers = response.headers_mut();
                headers.insert(POD, pod.clone());
                headers.insert(NAMESPACE, namespace.clone());
                headers.insert(PORT, HeaderValue::from(port));
                std::future::ready(response)
            }))
    }
}

// === impl App ===

impl App {
    /// The simulated loading of the model is over.
    pub(crate) fn started_up(&self) -> bool {
        Instant::now() >= self.loaded
    }

    /// Requests may be sent here.
    pub(crate) fn is_ready(&self) -> bool {
        self.started_up() && !self.draining.is_cancelled() && self.admin.knobs().ready
    }

    /// The rank that runs a request: the one that its headers name, else each in turn. As in vLLM, what is no number is
    /// ignored.
    ///
    /// # Errors
    /// [`ApiError`] when there is no such rank behind the port.
    pub(crate) fn rank_for(self: &Arc<Self>, headers: &HeaderMap) -> Result<Arc<Self>, ApiError> {
        let ranks = self.ranks.get().map(Vec::as_slice).unwrap_or_default();
        let count = ranks.len().max(1);
        let named = headers.get(DP_RANK_HEADER);
        let named: Option<i64> = named.and_then(|it| it.to_str().ok()?.parse().ok());
        let place = if let Some(rank) = named {
            usize::try_from(rank).ok()
        } else {
            let turn = self.unranked.fetch_add(1, Ordering::Relaxed);
            usize::try_from(turn % count as u64).ok()
        };
        let Some(place) = place.filter(|place| *place < count) else {
            return Err(ApiError::InvalidField {
                field: DP_RANK_HEADER,
                message: format!("{} is out of range [0, {count})", named.unwrap_or(-1)),
            });
        };
        let rank = ranks.get(place).and_then(Weak::upgrade);
        Ok(rank.unwrap_or_else(|| Arc::clone(self)))
    }

    /// The API server that has the connection of a request. A request without a connection is of the first.
    pub(crate) fn api_server(&self, request: &Request) -> ApiServer {
        let connection = request.extensions().get::<ConnectionNumber>();
        let connection = connection.map_or(0, |ConnectionNumber(number)| *number);
        ApiServer(connection % self.responses.len())
    }

    /// The responses that this API server keeps.
    pub(crate) fn responses(&self, ApiServer(number): ApiServer) -> &api::Responses {
        &self.responses[number]
    }

    /// Differs from answer to answer and from pod to pod; the same row for the same seed.
    pub(crate) fn next_id(&self) -> String {
        let number = self.answers.fetch_add(1, Ordering::Relaxed).to_le_bytes();
        let pod = xxh64(
            self.settings.identity.pod.as_bytes(),
            self.settings.chance_seed,
        );
        format!("{:016x}", xxh64(&number, pod))
    }

    /// What the blocks of a prompt are made of, if anybody is told.
    pub(crate) fn content(&self, input: &Input) -> Option<Content> {
        let block_tokens = self.settings.limits.block_tokens;
        let is_told = self.kv_events.is_some();
        is_told.then(|| input.content(block_tokens))
    }

    /// The page of `/metrics` as it is now.
    pub(crate) fn make_page(&self) -> String {
        let settings = &self.settings;
        let engine = self.engine.snapshot();
        let now = Timestamp::now().as_duration().as_secs_f64();
        let set = AdapterSet::of(&engine);
        let adapter_sets = match &self.shared_page {
            Some(page) => page.update(set, now),
            None => vec![(set, now)],
        };
        let started = self.started.as_duration().as_secs_f64();
        let max_adapters = Some(settings.limits.max_adapters);
        let facts = Facts {
            kind: settings.engine,
            model_name: settings.served_models.first().unwrap_or(&settings.model),
            rank: settings.rank,
            block_size: settings.limits.block_tokens,
            blocks: settings.limits.blocks,
            max_running: settings.limits.max_running,
            legacy_names: settings.legacy_metric_names,
            max_adapters: max_adapters.filter(|_| settings.lora || self.models.has_adapters()),
            adapter_sets,
            process_start: self.shared_page.is_none().then_some(started),
            padding_lines: settings.metrics_padding_lines,
            fake: self.admin.fake_values(),
        };
        metrics::render(&facts, &engine)
    }
}

/// `GET /health`: the process serves.
async fn alive() -> StatusCode {
    StatusCode::OK
}

/// `GET /health/ready`: requests may be sent here.
async fn ready(State(app): State<Arc<App>>) -> Response {
    #[derive(Serialize)]
    struct Readiness {
        started_up: bool,
        draining: bool,
        switched_off: bool,
    }
    let status = if app.is_ready() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let readiness = Readiness {
        started_up: app.started_up(),
        draining: app.draining.is_cancelled(),
        switched_off: !app.admin.knobs().ready,
    };
    (status, Json(readiness)).into_response()
}

/// `GET /metrics`
async fn metrics_page(State(app): State<Arc<App>>) -> Response {
    let knobs = app.admin.knobs().metrics;
    let delay = knobs.delay.get();
    // even a sleep of no time would wait for the next tick of the timer
    if !delay.is_zero() {
        sleep(delay).await;
    }
    let status = knobs.status.map(StatusCode::from_u16);
    if let Some(Ok(status)) = status {
        return (status, "as /admin/config says\n").into_response();
    }
    let page = app.admin.page(|| app.make_page());
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], page).into_response()
}
