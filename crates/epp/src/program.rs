//! The program: parts, ports, tasks, and their end.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, anyhow};
use axum::Router;
use discovery::Updates;
use kube::Client;
use process::{ConfigError, Shutdown, admin};
use prometheus_client::registry::Registry;
use scheduling::Freshness;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::watch,
    task::{JoinError, JoinSet},
    time::{Instant, MissedTickBehavior, interval, sleep_until, timeout, timeout_at},
};
use tokio_stream::wrappers::SignalStream;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    args::{Args, ConfigArgs, ListenArgs, PoolArgs, RequestArgs, TracingArgs},
    budget::Budget,
    config::{
        Config, ConfigFile, ConfigMetrics, CurrentConfig, LoadError, MetricsSource, Refusals,
        Reload,
    },
    debug,
    director::{Director, DirectorCollector, Options, Pool},
    discovery::{Membership, Source},
    extproc::{ExtProc, Limits, Settings},
    health::Readiness,
    metrics::{Metrics, PoolCollector},
    scrape::{EngineTable, OnScraped, Scraper},
    server::{ExtProcServer, listen, serve_health},
    spans::{SpanMetrics, Tracing},
    tls::Certificate,
};
use moment::Clock;

/// A proxy sends a body without pause; a minute of silence is a client that is gone.
const BODY_TIMEOUT: Duration = Duration::from_mins(1);

/// After SIGTERM, still ready: the only pod of a Deployment is asked on until the one in its place is ready, which takes
/// seconds. Where others are ready, Services and gateways leave this one meanwhile, as it is being deleted.
const HANDOVER: Duration = Duration::from_secs(10);

/// Then, not ready: until every proxy's health check has seen it (each 2 s, an answer within 1 s).
const LINGER: Duration = Duration::from_secs(4);

/// After the drain timeout: for the streams' last messages.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// After the streams' end: for the spans that are left.
const LAST_SPANS: Duration = Duration::from_secs(3);

/// Between two looks at endpoints that left and at the sizes of caches.
const TEND: Duration = Duration::from_secs(1);

/// Beyond it, scraped values stop counting.
const STALE_FOR: Duration = Duration::from_secs(10);

/// 1 MiB: headers and attributes beside a body.
const AROUND_BODY: u64 = 1024 * 1024;

const EXT_PROC: &str = "ext_proc server";
const SPANS: &str = "sender of spans";

type Tasks = JoinSet<(&'static str, anyhow::Result<()>)>;

/// Runs the EPP until `shutdown`.
///
/// # Errors
/// [`ConfigError`] for values that cannot work, before a port is opened; else what made a part end.
pub async fn run(args: Args, shutdown: Shutdown) -> anyhow::Result<()> {
    let Args {
        pool,
        config,
        listen,
        requests,
        tracing,
        log: _,
    } = args;
    let freshness = freshness(&pool);
    let (config, reload) = configuration(config, freshness)?;
    let engines = engines(&config.load())?;
    let certificate = certificate(&listen)?;
    let source = Source::of(&pool, config.load().discovery.as_ref())?;
    let source = source.open(connect).await?;
    let ports = Ports::open(&listen).await?;
    let clock = Clock::start();
    let readiness = Readiness::new();
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    metrics.register_flow_control(&mut registry, pool.display_name());
    let parts = Parts {
        pool: Pool::default(),
        clock,
        readiness: readiness.clone(),
        metrics,
    };
    let budget = Budget::new(requests.max_buffered_bytes.0);
    let config_metrics = ConfigMetrics::register(&mut registry);
    config_metrics.report(&config.load());
    registry.register_collector(Box::new(parts.collector(&pool, freshness, &budget)));
    let (ends, mut tasks) = (Ends::default(), Tasks::new());
    let tracing = spawn_spans(&mut tasks, &tracing, &pool, &mut registry, &ends);
    let director = Arc::new(parts.director(config.clone(), &requests, &listen));
    registry.register_collector(Box::new(DirectorCollector {
        pool: pool.display_name().to_owned(),
        director: Arc::clone(&director),
    }));

    if let Some(reload) = reload {
        spawn_reload(&mut tasks, reload, config.clone(), config_metrics)?;
    }
    spawn_director(&mut tasks, &director);
    let interval = pool.refresh_metrics_interval.0;
    let interval = config.load().metrics_source.interval.unwrap_or(interval);
    spawn_members(
        &mut tasks,
        &parts,
        source.updates(),
        (interval, engines),
        &director,
    );
    let server = ExtProcServer {
        service: parts.ext_proc(
            Arc::clone(&director),
            budget,
            &requests,
            &listen,
            ends.drained.clone(),
            tracing,
        ),
        readiness: readiness.clone(),
        certificate,
        max_streams: listen.max_streams,
    };
    spawn_servers(
        &mut tasks,
        server,
        ports,
        ends.goaway.clone(),
        &readiness,
        registry,
        debug_pages(&listen, &director),
    );

    info!(
        pool = pool.display_name(),
        namespace = pool.namespace(),
        port = listen.grpc_port,
        "started"
    );
    serve(tasks, shutdown, listen.drain_timeout.0, &readiness, &ends).await
}

/// What ends in a drain, in this order.
#[derive(Default)]
struct Ends {
    /// No new streams.
    goaway: CancellationToken,
    /// The streams that are left.
    drained: CancellationToken,
    /// Spans are sent that are left.
    spans: CancellationToken,
}

/// Waits for the end of a part, which is an error, or for `shutdown` and the end of the drain.
async fn serve(
    mut tasks: Tasks,
    shutdown: Shutdown,
    drain_timeout: Duration,
    readiness: &Readiness,
    ends: &Ends,
) -> anyhow::Result<()> {
    tokio::select! {
        Some(ended) = tasks.join_next() => {
            let error = unexpected(ended);
            readiness.fail(error.to_string());
            return Err(error);
        }
        () = shutdown.drain.cancelled() => {}
    }
    let drain = drain(
        &mut tasks,
        drain_timeout,
        readiness,
        &ends.goaway,
        &ends.drained,
    );
    tokio::select! {
        result = drain => {
            flush_spans(&mut tasks, &ends.spans).await;
            result
        }
        () = shutdown.now.cancelled() => {
            warn!("ended at once: open streams are cut");
            Ok(())
        }
    }
}

/// The parts that others are made of.
struct Parts {
    pool: Pool,
    clock: Clock,
    readiness: Readiness,
    metrics: Metrics,
}

/// All ports; opened together, so that a taken one ends the program before it does anything.
struct Ports {
    grpc: TcpListener,
    health: TcpListener,
    admin: TcpListener,
}

// === impl Parts ===

impl Parts {
    fn collector(&self, args: &PoolArgs, freshness: Freshness, budget: &Budget) -> PoolCollector {
        PoolCollector {
            name: args.display_name().to_owned(),
            pool: self.pool.clone(),
            freshness,
            clock: self.clock,
            budget: budget.clone(),
        }
    }

    fn membership(
        &self,
        updates: Updates,
        snapshots: watch::Sender<Option<Arc<scheduling::Snapshot>>>,
    ) -> Membership {
        Membership {
            updates,
            pool: self.pool.clone(),
            readiness: self.readiness.clone(),
            metrics: self.metrics.clone(),
            snapshots,
            clock: self.clock,
        }
    }

    fn scraper(
        &self,
        interval: Duration,
        engines: EngineTable,
        director: Arc<Director>,
    ) -> Scraper {
        Scraper {
            interval,
            clock: self.clock,
            metrics: self.metrics.clone(),
            readiness: self.readiness.clone(),
            engines,
            on_scraped: OnScraped(Arc::new(move || director.wake())),
        }
    }

    fn director(
        &self,
        config: CurrentConfig,
        requests: &RequestArgs,
        listen: &ListenArgs,
    ) -> Director {
        let options = Options {
            honour_subset: !requests.disable_endpoint_subset_filter,
            model_match: requests.model_match,
            conformance_headers: requests.conformance_headers,
            emit_scores: requests.emit_endpoint_scores,
        };
        let director = Director::new(self.pool.clone(), config, options, self.clock);
        if listen.enable_debug {
            director.recording()
        } else {
            director
        }
    }

    fn ext_proc(
        &self,
        director: Arc<Director>,
        budget: Budget,
        requests: &RequestArgs,
        listen: &ListenArgs,
        drained: CancellationToken,
        tracing: Option<Tracing>,
    ) -> ExtProc {
        let limits = Limits {
            max_body: requests.max_request_body.0,
            body_timeout: BODY_TIMEOUT,
            budget,
            default_mode: requests.default_body_mode,
        };
        let bytes = |size: u64| usize::try_from(size).unwrap_or(usize::MAX);
        let settings = Settings {
            limits,
            clear_route_cache: requests.clear_route_cache,
            max_message: bytes(max_message(listen, requests)),
            max_reply: bytes(
                listen
                    .grpc_max_send_msg_size
                    .map_or_else(|| max_message(listen, requests), |size| size.0),
            ),
            drained,
        };
        ExtProc::traced(director, self.metrics.clone(), settings, tracing)
    }
}

// === impl Ports ===

impl Ports {
    async fn open(args: &ListenArgs) -> anyhow::Result<Self> {
        let open = async |port: u16, flag: &str| {
            listen(port)
                .await
                .with_context(|| format!("cannot listen on {flag} {port}: is it taken?"))
        };
        Ok(Self {
            grpc: open(args.grpc_port, "--grpc-port").await?,
            health: open(args.grpc_health_port, "--grpc-health-port").await?,
            admin: open(args.metrics_port, "--metrics-port").await?,
        })
    }
}

fn freshness(args: &PoolArgs) -> Freshness {
    let fresh_for = args.metrics_staleness_threshold.0;
    Freshness {
        fresh_for,
        stale_for: fresh_for.max(STALE_FOR),
    }
}

/// The configuration to begin with, and what keeps it up to date if it is a file.
fn configuration(
    args: ConfigArgs,
    freshness: Freshness,
) -> anyhow::Result<(CurrentConfig, Option<Reload>)> {
    let ConfigArgs {
        config_file,
        config_text,
        config_compat: compat,
    } = args;
    let (mut config, reload) = match (config_file, config_text) {
        (Some(path), _) => {
            let source = format!("--config-file {}", path.display());
            let file = ConfigFile {
                path,
                compat,
                freshness,
            };
            let (config, reload) = Reload::begin(file).map_err(|error| match error {
                LoadError::Refused(refusals) => refused(&source, &refusals),
                LoadError::Unreadable(_) => ConfigError::new(
                    format!("{source}: {error}"),
                    "a file of text that can be read, of at most 1 MiB",
                    "--config-file /etc/epp/config.yaml",
                ),
            })?;
            (config, Some(reload))
        }
        (None, Some(text)) => {
            let config = Config::parse(&text, compat)
                .map_err(|refusals| refused("--config-text", &refusals))?;
            (config, None)
        }
        (None, None) => (Config::default(), None),
    };
    config.profile.freshness = freshness;
    warn_of_unused(&config);
    Ok((CurrentConfig::new(config), reload))
}

/// The error that ends the program for what a configuration says.
fn refused(source: &str, refusals: &Refusals) -> ConfigError {
    match refusals.found() {
        [one] => ConfigError::new(
            format!("{source}: {}: {}", one.item, one.problem),
            &one.expected,
            &one.example,
        ),
        _ => ConfigError::new(
            format!("{source}: {refusals}"),
            "an EndpointPickerConfig",
            "{apiVersion: llm-d.ai/v1alpha1, kind: EndpointPickerConfig, plugins: [{type: queue-scorer}]}",
        ),
    }
}

/// What is read and checked, and not acted on yet.
fn warn_of_unused(config: &Config) {
    let default = Config::default();
    let source = MetricsSource {
        interval: config.metrics_source.interval,
        ..default.metrics_source
    };
    let unused = [
        (
            "metrics-data-source but its interval",
            config.metrics_source != source,
        ),
        ("engineLabelKey", config.engines.label_key.is_some()),
        ("requestHandler.parsers", config.parsers != default.parsers),
    ];
    for (item, _) in unused.iter().filter(|(_, given)| *given) {
        warn!(
            item,
            "in the configuration without effect: not supported yet"
        );
    }
}

fn spawn_reload(
    tasks: &mut Tasks,
    reload: Reload,
    current: CurrentConfig,
    metrics: ConfigMetrics,
) -> anyhow::Result<()> {
    let hangups = signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?;
    tasks.spawn(async move {
        let hangups = SignalStream::new(hangups);
        reload.run(current, metrics, hangups).await;
        ("reload of the configuration", Ok(()))
    });
    Ok(())
}

fn engines(config: &Config) -> Result<EngineTable, ConfigError> {
    EngineTable::configured(&config.engines).map_err(|error| {
        ConfigError::new(
            error.to_string(),
            "names of metrics, and a default engine that is one of them",
            "queuedRequestsSpec: my_engine:requests_waiting{model=llama}",
        )
    })
}

fn debug_pages(args: &ListenArgs, director: &Arc<Director>) -> Router {
    if !args.enable_debug {
        return Router::new();
    }
    warn!("--enable-debug: who reaches --metrics-port sees names of pods, models and request ids");
    debug::router(Arc::clone(director))
}

fn spawn_servers(
    tasks: &mut Tasks,
    server: ExtProcServer,
    ports: Ports,
    stop: CancellationToken,
    readiness: &Readiness,
    registry: Registry,
    debug_pages: Router,
) {
    let Ports {
        grpc,
        health,
        admin: admin_port,
    } = ports;
    tasks.spawn(async move { (EXT_PROC, server.serve(grpc, stop).await.map_err(Into::into)) });
    let health_readiness = readiness.clone();
    tasks.spawn(async move {
        let served = serve_health(health, health_readiness).await;
        ("health server", served.map_err(Into::into))
    });
    let admin_health = readiness.admin();
    tasks.spawn(async move {
        let (registry, never) = (Arc::new(registry), CancellationToken::new());
        let served = admin::serve(admin_port, registry, admin_health, debug_pages, never).await;
        ("admin server", served.map_err(Into::into))
    });
}

/// Discovery, and the scrapes of what it finds.
fn spawn_members(
    tasks: &mut Tasks,
    parts: &Parts,
    updates: Updates,
    (interval, engines): (Duration, EngineTable),
    director: &Arc<Director>,
) {
    let (snapshots, members) = watch::channel(None);
    let membership = parts.membership(updates, snapshots);
    tasks.spawn(async move {
        membership.run().await;
        ("discovery", Ok(()))
    });
    let scraper = parts.scraper(interval, engines, Arc::clone(director));
    tasks.spawn(async move { ("scraper", scraper.run(members).await) });
}

fn spawn_director(tasks: &mut Tasks, director: &Arc<Director>) {
    let tended = Arc::clone(director);
    tasks.spawn(async move {
        tend(&tended).await;
        ("director", Ok(()))
    });
    let queued = Arc::clone(director);
    tasks.spawn(async move {
        queued.run_queue().await;
        ("queue", Ok(()))
    });
}

/// Spans of requests, where they are wanted and can be made: an endpoint picker without them is better than none.
fn spawn_spans(
    tasks: &mut Tasks,
    args: &TracingArgs,
    pool: &PoolArgs,
    registry: &mut Registry,
    ends: &Ends,
) -> Option<Tracing> {
    let setup = args.setup()?;
    let stop = ends.spans.clone();
    match setup.build(pool.display_name(), SpanMetrics::register(registry)) {
        Ok((tracing, export)) => {
            tasks.spawn(async move {
                export.run(stop).await;
                (SPANS, Ok(()))
            });
            info!(endpoint = setup.endpoint, "sending spans");
            Some(tracing)
        }
        Err(error) => {
            warn!(%error, "no spans are sent: check the variables OTEL_EXPORTER_OTLP_*");
            None
        }
    }
}

/// Sends the spans that are left.
async fn flush_spans(tasks: &mut Tasks, stop: &CancellationToken) {
    stop.cancel();
    let sent = async {
        while let Some(ended) = tasks.join_next().await {
            if let Ok((SPANS, _)) = ended {
                break;
            }
        }
    };
    if timeout(LAST_SPANS, sent).await.is_err() {
        warn!("spans are left that the collector did not take in time");
    }
}

/// Looks after what picks leave behind, for ever.
async fn tend(director: &Director) {
    let mut ticks = interval(TEND);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        director.tend();
    }
}

/// A body in one message, with what stands around it.
fn max_message(listen: &ListenArgs, requests: &RequestArgs) -> u64 {
    let body = requests.max_request_body.0;
    let enough = body.saturating_add(AROUND_BODY);
    let Some(given) = listen.grpc_max_recv_msg_size else {
        return enough;
    };
    if given.0 < enough {
        warn!(
            "--grpc-max-recv-msg-size is less than --max-request-body and 1 MiB: larger bodies in BUFFERED mode end in a gRPC error"
        );
    }
    given.0
}

fn certificate(args: &ListenArgs) -> anyhow::Result<Option<Certificate>> {
    match (args.secure_serving, &args.cert_path) {
        (false, None) => Ok(None),
        (false, Some(_)) => {
            warn!("--cert-path has no effect with --secure-serving=false");
            Ok(None)
        }
        (true, None) => Ok(Some(Certificate::self_signed()?)),
        (true, Some(dir)) => {
            let read = Certificate::read(dir).map_err(|error| {
                ConfigError::new(
                    format!("--cert-path {}: {error}", dir.display()),
                    "a directory with tls.crt and tls.key in PEM",
                    "--cert-path /etc/epp/tls",
                )
            });
            Ok(Some(read?))
        }
    }
}

/// The API server of the pod's ServiceAccount or of `$KUBECONFIG`. Nothing is sent yet.
async fn connect() -> anyhow::Result<Client> {
    let config = kube::Config::infer().await.map_err(|error| {
        ConfigError::new(
            format!("no Kubernetes API server: {error}"),
            "to run in a pod with a ServiceAccount, or $KUBECONFIG to name a readable file",
            "KUBECONFIG=$HOME/.kube/config",
        )
    })?;
    Client::try_from(config).context("cannot make a Kubernetes client")
}

/// Lets another take over, then proxies notice, then streams end, then ends them.
async fn drain(
    tasks: &mut Tasks,
    limit: Duration,
    readiness: &Readiness,
    goaway: &CancellationToken,
    drained: &CancellationToken,
) -> anyhow::Result<()> {
    let start = Instant::now();
    let (handover, linger) = phases(limit);
    info!(timeout = ?limit, ready_for = ?handover, "draining: new streams are still served for a while");
    sleep_until(start + handover).await;
    readiness.drain();
    info!("not ready any more");
    sleep_until(start + handover + linger).await;
    goaway.cancel();
    if let Ok(result) = timeout_at(start + limit, served(tasks)).await {
        return result;
    }
    warn!("the drain timeout is over: ending the streams that are left");
    drained.cancel();
    match timeout(LAST_WORDS, served(tasks)).await {
        Ok(result) => result,
        Err(_) => Ok(()),
    }
}

/// How long a drain of at most `limit` stays ready, and how long it then takes new streams. Half of the time is for the
/// end of streams; what is left goes to the proxies first.
fn phases(limit: Duration) -> (Duration, Duration) {
    let linger = LINGER.min(limit / 2);
    let handover = HANDOVER.min((limit / 2).saturating_sub(linger));
    (handover, linger)
}

/// Waits for the end of the ext_proc server, and of it alone.
async fn served(tasks: &mut Tasks) -> anyhow::Result<()> {
    match tasks.join_next().await {
        Some(Ok((EXT_PROC, result))) => result.context(EXT_PROC),
        Some(ended) => Err(unexpected(ended)),
        None => Ok(()),
    }
}

fn unexpected(ended: Result<(&'static str, anyhow::Result<()>), JoinError>) -> anyhow::Error {
    match ended {
        Ok((part, Ok(()))) => anyhow!("the {part} ended"),
        Ok((part, Err(error))) => error.context(format!("the {part} ended")),
        Err(error) => anyhow!("a part died: {error}"),
    }
}

#[cfg(test)]
mod tests;
