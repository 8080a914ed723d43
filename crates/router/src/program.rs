//! The program: state, ports, tasks, and their end.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use discovery::Opened;
use http_service::{Names, Security, Server, listen, threads};
use kube::Client;
use kv_router::Workers;
use moment::Clock;
use process::{ConfigError, Health, Pulse, Shutdown};
use prometheus_client::registry::Registry;
use tokio::{
    net::TcpListener,
    sync::OnceCell,
    time::{MissedTickBehavior, interval},
};
use tracing::info;

use crate::{
    args::{Args, ListenArgs},
    calls::Calls,
    debug::{Pages, Routes},
    leader::{Election, Follower, LeaseName},
    membership::{Membership, Warm},
    metrics::Metrics,
    pool::Pool,
    service::{Parts, Service},
};

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

/// Runs the Router until `shutdown`.
///
/// # Errors
/// [`process::ConfigError`] for values that cannot work, before a port is opened; else what made a part end.
pub async fn run(args: Args, shutdown: Shutdown) -> anyhow::Result<()> {
    let Args {
        pool,
        events,
        choice,
        state,
        listen,
        callers,
        election,
        log: _, // the boundary of the program has used it
    } = args;
    listen.check()?;
    let ports = events.ports()?;
    let limits = state.limits(events.block_size)?;
    let policy = choice.policy()?;
    let source = pool.source()?;
    let lease = election
        .ha_enable_leader_election
        .then(|| LeaseName::of(&source))
        .transpose()?;
    let mut registry = Registry::default();
    let names = Names {
        program: "router",
        metrics: "router",
    };
    let mut security = Security::of(callers, names, &mut registry)?;
    let api = ApiServer::default();
    let Opened { members, .. } = source.open(|| api.client()).await?;
    let opened = Ports::open(&listen).await?;

    let clock = Clock::start();
    let index_max_bytes = usize::try_from(state.index_max_bytes.0).unwrap_or(usize::MAX);
    let workers = Arc::new(Pool::new(Workers::new(limits, index_max_bytes)));
    Metrics::register_sizes(&mut registry, Arc::clone(&workers), clock);
    let routes = listen.enable_debug.then(Routes::new);
    let service = Service::new(Parts {
        pool: Arc::clone(&workers),
        policy,
        clock,
        metrics: Metrics::register(&mut registry),
        follows_events: ports.is_some(),
        routes: routes.clone(),
    });
    let health = Health::new(&[]);
    let warm = Warm::new(health.clone());
    let calls = Calls::new(service.clone(), security.tokens.clone());
    let mut parts = http_service::Parts::new(health.clone(), listen.drain_timeout.0);
    if let Some(lease) = lease {
        let (warm, health) = (warm.clone(), health.clone());
        let follower = Follower::new(warm, health, calls.clone(), service.clone(), &mut registry);
        let election = Election {
            client: api.client().await?,
            lease,
            clock,
            follower,
        };
        election.spawn(&mut parts, shutdown.drain.clone());
    }
    let membership = Membership {
        updates: members.updates(),
        service: service.clone(),
        events: ports,
        ranks: events.kv_event_ranks,
        warm,
    };
    parts.spawn("membership", membership.run());
    let pulse = health.watch("sweep", SWEEP_LIMIT);
    let swept = service.clone();
    parts.spawn("sweep", async move { sweep(&swept, &pulse).await });
    security.spawn(&mut parts)?;
    let admin = process::admin::router(Arc::new(registry), health);
    let admin = match routes {
        Some(routes) => admin.merge(
            Pages {
                pool: workers,
                policy,
                routes,
                clock,
            }
            .router(),
        ),
        None => admin,
    };
    parts.spawn("admin server", async move {
        // Until the end of the program: a drain is watched.
        Ok(axum::serve(opened.admin, admin).await?)
    });
    let server = Server {
        handler: calls,
        acceptor: security.acceptor,
        threads: threads(),
        refused: service.metrics().refused_connections(),
    };
    parts.serve("server", server, opened.calls);
    let (port, admin_port) = (listen.http_port, listen.admin_port);
    info!(port, admin_port, block_size = events.block_size, "started");
    parts.until(shutdown).await
}

// === impl Ports ===

impl Ports {
    async fn open(args: &ListenArgs) -> anyhow::Result<Self> {
        Ok(Self {
            calls: listen(args.host, args.http_port, "--http-port").await?,
            admin: listen(args.host, args.admin_port, "--admin-port").await?,
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
