//! The program: state, ports, tasks, and their end.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use discovery::{Discovery, Opened};
use http_service::{Names, Security, Server, listen, threads};
use kube::Client;
use kv_router::{Limits, Policy, Workers};
use moment::Clock;
use otlp::SpanMetrics;
use process::{ConfigError, Health, Pulse, Shutdown};
use prometheus_client::registry::Registry;
use tokio::{
    net::TcpListener,
    sync::OnceCell,
    time::{MissedTickBehavior, interval},
};
use tracing::{info, warn};

use crate::{
    args::{Args, ListenArgs},
    calls::Calls,
    debug::{Pages, Routes},
    events::EventPorts,
    leader::{Election, Follower, LeaseName},
    membership::{Membership, Warm},
    metrics::Metrics,
    pool::Pool,
    service::{Parts, Service},
    spans::Spans,
};

#[cfg(test)]
mod tests;

/// Between two sweeps.
const SWEEP: Duration = Duration::from_secs(1);

/// A sweep that takes longer is stuck.
const SWEEP_LIMIT: Duration = Duration::from_secs(30);

/// Blocks of workers that are gone, forgotten at once: some 100 us, for which streams of events may wait.
const SWEPT: usize = 4096;

/// Both ports; opened together, so that a taken one ends the program before it does anything.
struct Ports {
    calls: TcpListener,
    admin: TcpListener,
}

/// The API server, and a client of it once somebody needs one.
#[derive(Default)]
struct ApiServer(OnceCell<Client>);

/// Checked flags, before a port is opened.
struct Setup {
    block_size: usize,
    limits: Limits,
    index_max_bytes: usize,
    policy: Policy,
    events: Option<EventPorts>,
    ranks: u8,
    members: Box<dyn Discovery>,
    lease: Option<(Client, LeaseName)>,
    spans: Option<otlp::Setup>,
    registry: Registry,
    security: Security,
    enable_debug: bool,
    drain_timeout: Duration,
}

/// Runs the Router until `shutdown`.
///
/// # Errors
/// [`process::ConfigError`] for values that cannot work, before a port is opened; else what made a part end.
pub async fn run(args: Args, shutdown: Shutdown) -> anyhow::Result<()> {
    let listen = args.listen.clone();
    let setup = Setup::of(args).await?;
    let ports = Ports::open(&listen)?;
    let (port, admin_port) = (listen.http_port, listen.admin_port);
    info!(port, admin_port, block_size = setup.block_size, "started");
    setup.run(ports, shutdown).await
}

// === impl Setup ===

impl Setup {
    async fn of(args: Args) -> anyhow::Result<Self> {
        let Args {
            pool,
            events,
            choice,
            state,
            listen,
            callers,
            election,
            tracing,
            log: _, // the boundary of the program has used it
        } = args;
        listen.check()?;
        let (ports, policy) = (events.ports()?, choice.policy()?);
        let limits = state.limits(events.block_size)?;
        let source = pool.source()?;
        let is_elected = election.ha_enable_leader_election;
        let lease = is_elected.then(|| LeaseName::of(&source)).transpose()?;
        let mut registry = Registry::default();
        let names = Names {
            program: "router",
            metrics: "router",
        };
        let security = Security::of(callers, names, &mut registry)?;
        let api = ApiServer::default();
        let Opened { members, .. } = source.open(|| api.client()).await?;
        let lease = match lease {
            Some(lease) => Some((api.client().await?, lease)),
            None => None,
        };
        Ok(Self {
            block_size: events.block_size,
            limits,
            index_max_bytes: usize::try_from(state.index_max_bytes.0).unwrap_or(usize::MAX),
            policy,
            events: ports,
            ranks: events.kv_event_ranks,
            members,
            lease,
            spans: tracing.setup(),
            registry,
            security,
            enable_debug: listen.enable_debug,
            drain_timeout: listen.drain_timeout.0,
        })
    }

    async fn run(self, ports: Ports, shutdown: Shutdown) -> anyhow::Result<()> {
        let Self {
            block_size: _,
            limits,
            index_max_bytes,
            policy,
            events,
            ranks,
            members,
            lease,
            spans,
            mut registry,
            mut security,
            enable_debug,
            drain_timeout,
        } = self;
        let clock = Clock::start();
        let pool = Arc::new(Pool::new(Workers::new(limits, index_max_bytes)));
        Metrics::register_sizes(&mut registry, Arc::clone(&pool), clock);
        let routes = enable_debug.then(Routes::new);
        let service = Service::new(Parts {
            pool: Arc::clone(&pool),
            policy,
            clock,
            metrics: Metrics::register(&mut registry),
            follows_events: events.is_some(),
            routes: routes.clone(),
        });
        let health = Health::new(&[]);
        let warm = Warm::new(health.clone());
        let mut parts = http_service::Parts::new(health.clone(), drain_timeout);
        let spans = spans.and_then(|it| spawn_spans(&it, &mut parts, &mut registry));
        let calls = Calls::new(service.clone(), security.tokens.clone(), spans);
        if let Some((client, lease)) = lease {
            let (warm, health) = (warm.clone(), health.clone());
            let (calls, service) = (calls.clone(), service.clone());
            let election = Election {
                client,
                lease,
                clock,
                follower: Follower::new(warm, health, calls, service, &mut registry),
            };
            election.spawn(&mut parts, shutdown.drain.clone());
        }
        let membership = Membership {
            updates: members.updates(),
            service: service.clone(),
            events,
            ranks,
            warm,
        };
        parts.spawn("membership", membership.run());
        let pulse = health.watch("sweep", SWEEP_LIMIT);
        let swept = service.clone();
        parts.spawn("sweep", async move { sweep(&swept, &pulse).await });
        security.spawn(&mut parts)?;
        let mut admin = process::admin::router(Arc::new(registry), health);
        if let Some(routes) = routes {
            let pages = Pages {
                pool,
                policy,
                routes,
                clock,
            };
            admin = admin.merge(pages.router());
        }
        parts.spawn("admin server", async move {
            // Until the end of the program: a drain is watched.
            Ok(axum::serve(ports.admin, admin).await?)
        });
        let server = Server {
            handler: calls,
            acceptor: security.acceptor,
            threads: threads(),
            refused: service.metrics().refused_connections(),
        };
        parts.serve("server", server, ports.calls);
        parts.until(shutdown).await
    }
}

// === impl Ports ===

impl Ports {
    fn open(args: &ListenArgs) -> anyhow::Result<Self> {
        Ok(Self {
            calls: listen(args.host, args.http_port, "--http-port")?,
            admin: listen(args.host, args.admin_port, "--admin-port")?,
        })
    }
}

// === impl ApiServer ===

impl ApiServer {
    async fn client(&self) -> anyhow::Result<Client> {
        self.0.get_or_try_init(connect).await.cloned()
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

/// Spans of prompts, where they can be made: a Router without them is better than none.
fn spawn_spans(
    setup: &otlp::Setup,
    parts: &mut http_service::Parts,
    registry: &mut Registry,
) -> Option<Spans> {
    let metrics = SpanMetrics::register(registry, "router");
    match setup.build("router", metrics) {
        Ok((provider, export)) => {
            let stop = parts.stop();
            parts.spawn("spans", async move {
                export.run(stop).await;
                // A part that ends ends the program.
                std::future::pending().await
            });
            info!(endpoint = setup.endpoint, "sending spans");
            Some(Spans::new(provider))
        }
        Err(error) => {
            warn!(%error, "no spans are sent: check the variables OTEL_EXPORTER_OTLP_*");
            None
        }
    }
}

/// Ends bookings that nobody names and frees what workers left that are gone, for ever.
async fn sweep(service: &Service, pulse: &Pulse) -> anyhow::Result<()> {
    let mut ticks = interval(SWEEP);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        service.expire();
        while service.pool().workers.index.sweep(SWEPT) == SWEPT {
            tokio::task::yield_now().await;
        }
        pulse.beat();
    }
}
