//! The program: parts, ports, tasks, and their end.

mod configuration;
mod external;
mod running;
mod security;
mod telemetry;

use std::{num::NonZeroUsize, sync::Arc, thread::available_parallelism, time::Duration};

use anyhow::Context;
use axum::Router;
use discovery::{ObjectDiscovery, Opened};
use futures::future::BoxFuture;
use kube::Client;
use process::{ConfigError, OwnThread, Shutdown};
use prometheus_client::registry::Registry;
use scheduling::{Freshness, Snapshot};
use tls::{TlsMetrics, TlsReload};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::{OnceCell, watch},
    time::{MissedTickBehavior, interval, timeout},
};
use tokio_stream::wrappers::SignalStream;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    admin::{AdminServer, Readers, Reviewer},
    args::{Args, CenterFallback, CenterSettings, ListenArgs, PoolArgs, RequestArgs},
    budget::Budget,
    config::{ConfigFile, ConfigMetrics, CurrentConfig, Reloaded},
    debug,
    director::{Director, DirectorCollector, Options, Pool},
    discovery::{Membership, ObjectsInForce, named_source},
    extproc::{ExtProc, Limits, Settings},
    health::Readiness,
    leader::{Election, LeaseName},
    metrics::{Metrics, PoolCollector},
    scrape::{OnScraped, Plan, Planner, Scraper},
    server::{ExtProcServer, listen, serve_health},
    spans::Tracing,
};
use configuration::{configuration, freshness, refused};
use external::spawn_external;
use moment::Clock;
use running::{EXT_PROC, Ends, Running, Tasks};
use security::Security;
use telemetry::{spawn_access_log, spawn_center, spawn_spans};

/// A proxy sends a body without pause; a minute of silence is a client that is gone.
const BODY_TIMEOUT: Duration = Duration::from_mins(1);

/// Between two looks at endpoints that left and at the sizes of caches.
const TEND: Duration = Duration::from_secs(1);

/// At the start: for the objects that say more of the pool's models. An API server that lists the pool lists them as fast.
const OBJECTS_WITHIN: Duration = Duration::from_secs(2);

/// 1 MiB: headers and attributes beside a body.
const AROUND_BODY: u64 = 1024 * 1024;

/// Where errors of what only scraping reads come from.
const SCRAPING: &str = "the configuration";

/// Runs the EPP until `shutdown`.
///
/// # Errors
/// [`ConfigError`] for values that cannot work, before a port is opened; else what made a part end.
pub async fn run(args: Args, shutdown: Shutdown) -> anyhow::Result<()> {
    let Args {
        pool,
        config,
        listen,
        tls,
        election,
        requests,
        center,
        external,
        tracing,
        log: _,
        unused,
    } = args;
    unused.check()?;
    let center = center.settings(&mut rand::rng())?;
    let external = external.settings()?;
    let freshness = freshness(&pool);
    let (config, reloads) = configuration(config, freshness, external.stage.is_some())?;
    config.use_caches(center.cache_enabled);
    let (planner, plans) = Planner::begin(config.clone())
        .map_err(|refusal| refused(SCRAPING, &refusal.into(), ConfigFile::EXPECTED))?;
    let mut registry = Registry::default();
    let auth = tls.metrics_endpoint_auth;
    let security = Security::of(tls, &TlsMetrics::register(&mut registry, "epp"))?;
    let source = named_source(&pool, config.load().discovery.as_ref())?;
    let elected = election.ha_enable_leader_election;
    let lease = elected.then(|| LeaseName::of(&source)).transpose()?;
    let api = ApiServer::default();
    let source = source.open(|| api.client()).await?;
    let readers = api.readers(auth).await?;
    let ports = Ports::open(&listen).await?;
    let clock = Clock::start();
    let readiness = Readiness::new();
    let election = api.election(lease, clock, &readiness, &mut registry);
    let election = election.await?;
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
    config_metrics.report(config.load().ignored());
    registry.register_collector(Box::new(parts.collector(&pool, freshness, &budget)));
    let (mut ends, mut tasks) = (Ends::default(), Tasks::new());
    let tracing = spawn_spans(&mut tasks, &tracing, &pool, &mut registry, &mut ends);
    let director = parts.director(config.clone(), &requests, &listen, &center);
    let log = spawn_access_log(&mut tasks, config.clone(), &mut registry, &mut ends)?;
    let center = spawn_center(&mut tasks, &center, clock, &mut registry, &mut ends)?;
    let director = director.named(pool.namespace(), pool.display_name());
    let director = director.logging_to(log).asking(center);
    let director = spawn_external(&mut tasks, external, director, &mut registry, &mut ends)?;
    let director = Arc::new(director);
    collect(&mut registry, &pool, &director);
    reloads.spawn(&mut tasks, &config, &config_metrics)?;
    for reload in security.reloads {
        spawn_tls_reload(&mut tasks, reload)?;
    }
    let members = parts.spawn_discovery(&mut tasks, source, config.clone());
    spawn_director(&mut tasks, &director);
    let interval = pool.refresh_metrics_interval.0;
    let scraper = parts.scraper(interval, plans, Arc::clone(&director));
    spawn_scraper(&mut tasks, scraper, planner, members)?;
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
        acceptor: security.ext_proc,
        max_streams: listen.max_streams,
        threads: available_parallelism().unwrap_or(NonZeroUsize::MIN),
    };
    let admin = process::admin::router(Arc::new(registry), readiness.admin());
    let admin = AdminServer {
        router: admin.merge(debug_pages(&listen, &director)),
        acceptor: security.admin,
        readers,
    };
    let goaway = ends.goaway.clone();
    spawn_servers(&mut tasks, server, ports, goaway, &readiness, admin);
    let (name, namespace) = (pool.display_name(), pool.namespace());
    info!(pool = name, namespace, port = listen.grpc_port, "started");
    let running = Running {
        tasks,
        election,
        readiness,
        ends,
        drain_timeout: listen.drain_timeout.0,
    };
    running.until(shutdown).await
}

/// Serves what the director knows.
fn collect(registry: &mut Registry, pool: &PoolArgs, director: &Arc<Director>) {
    registry.register_collector(Box::new(DirectorCollector {
        pool: pool.display_name().to_owned(),
        director: Arc::clone(director),
    }));
}

/// The parts that others are made of.
struct Parts {
    pool: Pool,
    clock: Clock,
    readiness: Readiness,
    metrics: Metrics,
}

/// The API server, and a client of it once somebody needs one.
#[derive(Default)]
struct ApiServer(OnceCell<Client>);

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

    /// Follows the source, and the cluster's objects if there can be any.
    fn spawn_discovery(
        &self,
        tasks: &mut Tasks,
        source: Opened,
        config: CurrentConfig,
    ) -> watch::Receiver<Option<Arc<Snapshot>>> {
        let Opened { members, objects } = source;
        let (snapshots, receiver) = watch::channel(None);
        let membership = Membership {
            updates: members.updates(),
            pool: self.pool.clone(),
            readiness: self.readiness.clone(),
            metrics: self.metrics.clone(),
            snapshots,
            clock: self.clock,
            rest: self.spawn_objects(tasks, objects, config),
        };
        tasks.spawn(async move {
            membership.run().await;
            ("discovery", Ok(()))
        });
        receiver
    }

    /// What it returns ends once the objects are known, or have had their time.
    fn spawn_objects(
        &self,
        tasks: &mut Tasks,
        objects: Option<ObjectDiscovery>,
        config: CurrentConfig,
    ) -> BoxFuture<'static, ()> {
        let settled = CancellationToken::new();
        let Some(objects) = objects else {
            return Box::pin(std::future::ready(()));
        };
        let objects = ObjectsInForce {
            updates: objects.updates(),
            config,
            metrics: self.metrics.clone(),
            settled: settled.clone(),
        };
        tasks.spawn(async move {
            objects.run().await;
            ("discovery of objects", Ok(()))
        });
        Box::pin(async move {
            if timeout(OBJECTS_WITHIN, settled.cancelled()).await.is_err() {
                warn!("going on without objectives, rewrites and models until they can be listed");
            }
        })
    }

    fn scraper(
        &self,
        interval: Duration,
        plans: watch::Receiver<Plan>,
        director: Arc<Director>,
    ) -> Scraper {
        Scraper {
            interval,
            clock: self.clock,
            metrics: self.metrics.clone(),
            readiness: self.readiness.clone(),
            plans,
            on_scraped: OnScraped(Arc::new(move || director.wake())),
        }
    }

    fn director(
        &self,
        config: CurrentConfig,
        requests: &RequestArgs,
        listen: &ListenArgs,
        center: &CenterSettings,
    ) -> Director {
        let options = Options {
            honour_subset: !requests.disable_endpoint_subset_filter,
            model_match: requests.model_match,
            conformance_headers: requests.conformance_headers,
            emit_scores: requests.emit_endpoint_scores,
            own_view: center.fallback == CenterFallback::Own,
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

// === impl ApiServer ===

impl ApiServer {
    async fn client(&self) -> anyhow::Result<Client> {
        self.0.get_or_try_init(connect).await.cloned()
    }

    /// Those whom it lets read metrics, unless everyone may.
    async fn readers(&self, needed: bool) -> anyhow::Result<Option<Readers>> {
        if !needed {
            return Ok(None);
        }
        let reviewer = Reviewer::new(self.client().await?);
        Ok(Some(Readers::new(reviewer)))
    }

    async fn election(
        &self,
        lease: Option<LeaseName>,
        clock: Clock,
        readiness: &Readiness,
        registry: &mut Registry,
    ) -> anyhow::Result<Election> {
        let Some(lease) = lease else {
            return Ok(Election::none());
        };
        let client = self.client().await?;
        Ok(Election::begin(client, &lease, clock, readiness, registry))
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

fn debug_pages(args: &ListenArgs, director: &Arc<Director>) -> Router {
    if !args.enable_debug {
        return Router::new();
    }
    warn!("--enable-debug: who reaches --metrics-port sees names of pods, models and request ids");
    debug::router(Arc::clone(director))
}

fn spawn_tls_reload(tasks: &mut Tasks, reload: TlsReload) -> anyhow::Result<()> {
    let hangups = hangups()?;
    tasks.spawn(async move {
        reload.run(hangups).await;
        ("reload of certificates", Ok(()))
    });
    Ok(())
}

fn hangups() -> anyhow::Result<SignalStream> {
    let hangups = signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?;
    Ok(SignalStream::new(hangups))
}

fn spawn_servers(
    tasks: &mut Tasks,
    server: ExtProcServer,
    ports: Ports,
    stop: CancellationToken,
    readiness: &Readiness,
    admin: AdminServer,
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
    tasks.spawn(async move {
        let served = admin.serve(admin_port).await;
        ("admin server", served.map_err(Into::into))
    });
}

/// On a thread of its own: pages of many endpoints are read while requests are picked for, and delay none.
fn spawn_scraper(
    tasks: &mut Tasks,
    scraper: Scraper,
    planner: Planner,
    members: watch::Receiver<Option<Arc<Snapshot>>>,
) -> anyhow::Result<()> {
    let thread = OwnThread::start("scraper", move || scraper.run(members))
        .context("cannot start a thread for scrapes")?;
    tasks.spawn(async move {
        let ended = thread.output().await;
        (
            "scraper",
            ended.unwrap_or_else(|panicked| Err(panicked.into())),
        )
    });
    // Each program has this one, so that SIGHUP ends none.
    let hangups = hangups()?;
    tasks.spawn(async move {
        planner.run(hangups).await;
        ("reload of scraping", Ok(()))
    });
    Ok(())
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
