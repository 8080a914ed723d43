//! The program: state, ports, tasks, and their end.

mod security;

use std::{
    net::SocketAddr, num::NonZeroUsize, sync::Arc, thread::available_parallelism, time::Duration,
};

use anyhow::{Context, anyhow};
use axum::{
    Router,
    extract::Request,
    middleware::{Next, from_fn},
};
use moment::Clock;
use process::{Health, Pulse, Shutdown};
use prometheus_client::registry::Registry;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    task::{JoinError, JoinSet},
    time::{Instant, MissedTickBehavior, interval, sleep_until, timeout_at},
};
use tokio_stream::wrappers::SignalStream;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use security::Security;

use crate::{
    args::{Args, Backend, ListenArgs},
    engine::Engine,
    memory::Memory,
    metrics::Metrics,
    server::Server,
    service::{Service, Settings},
};

/// Between two sweeps.
const SWEEP: Duration = Duration::from_secs(1);

/// A sweep that takes longer is stuck.
const SWEEP_LIMIT: Duration = Duration::from_secs(30);

/// After SIGTERM: until nobody sends calls here any more, as endpoints of Services go away with a pod's readiness.
const LINGER: Duration = Duration::from_secs(5);

/// The part of readiness that the engine is.
const ENGINE: &str = "engine";

/// The part that drains wait for.
const SERVER: &str = "server";

/// Parts by name.
type Tasks = JoinSet<(&'static str, anyhow::Result<()>)>;

/// What the engine does not decide.
struct Parts {
    listen: ListenArgs,
    accept_joined_hashes: bool,
    security: Security,
    ports: Ports,
    registry: Registry,
    metrics: Metrics,
}

/// Both ports; opened together, so that a taken one ends the program before it does anything.
struct Ports {
    calls: TcpListener,
    admin: TcpListener,
}

/// All that runs.
struct Running {
    tasks: Tasks,
    health: Health,
    stop: CancellationToken,
    drain_timeout: Duration,
}

/// Runs the service until `shutdown`.
///
/// # Errors
/// [`process::ConfigError`] for values that cannot work, before a port is opened; else what made a part end.
pub async fn run(args: Args, shutdown: Shutdown) -> anyhow::Result<()> {
    let Args {
        listen,
        state,
        tls,
        log: _, // the boundary of the program has used it
    } = args;
    listen.check()?;
    let limits = state.limits()?;
    let mut registry = Registry::default();
    let security = Security::of(tls, &mut registry)?;
    let parts = Parts {
        metrics: Metrics::register(&mut registry),
        ports: Ports::open(&listen).await?,
        listen,
        accept_joined_hashes: state.accept_joined_hashes,
        security,
        registry,
    };
    match state.backend {
        Backend::Memory => {
            let engine = Memory::new(limits, Clock::start());
            parts.run(engine, shutdown).await
        }
    }
}

// === impl Parts ===

impl Parts {
    async fn run<E: Engine>(self, engine: E, shutdown: Shutdown) -> anyhow::Result<()> {
        let Self {
            listen,
            accept_joined_hashes,
            security,
            ports,
            registry,
            metrics,
        } = self;
        let engine = Arc::new(engine);
        let health = Health::new(&[ENGINE]);
        let probes = process::admin::router(Arc::new(registry), health.clone());
        let probes = with_sizes(probes, Arc::clone(&engine), metrics.clone());
        let stop = CancellationToken::new();
        let mut tasks = Tasks::new();
        let pulse = health.watch("sweep", SWEEP_LIMIT);
        tasks.spawn({
            let (engine, health) = (Arc::clone(&engine), health.clone());
            let metrics = metrics.clone();
            async move {
                sweep(&*engine, &metrics, &health, &pulse).await;
                ("sweep", Ok(()))
            }
        });
        // Always, so that SIGHUP ends no program.
        let (of_certificates, of_tokens) = (hangups()?, hangups()?);
        if let Some(reload) = security.certificates {
            tasks.spawn(async {
                reload.run(of_certificates).await;
                ("reload of certificates", Ok(()))
            });
        }
        if let Some(file) = security.token_file {
            tasks.spawn(async {
                file.run(of_tokens).await;
                ("reload of tokens", Ok(()))
            });
        }
        let settings = Settings {
            accept_joined_hashes,
            probes: probes.clone(),
            metrics,
            tokens: security.tokens,
        };
        let server = Server {
            service: Service::new(engine, settings),
            acceptor: security.acceptor,
            threads: available_parallelism().unwrap_or(NonZeroUsize::MIN),
        };
        let serving = server.serve(ports.calls, stop.clone());
        tasks.spawn(async { (SERVER, serving.await.map_err(Into::into)) });
        tasks.spawn(async move {
            // Until the end of the program: a drain is watched.
            let admin = axum::serve(ports.admin, probes);
            ("admin server", admin.await.map_err(Into::into))
        });
        info!(
            port = listen.port,
            admin_port = listen.admin_port,
            "started"
        );
        let running = Running {
            tasks,
            health,
            stop,
            drain_timeout: listen.drain_timeout.0,
        };
        running.until(shutdown).await
    }
}

// === impl Ports ===

impl Ports {
    async fn open(args: &ListenArgs) -> anyhow::Result<Self> {
        let open = async |port: u16, flag: &str| {
            let address = SocketAddr::new(args.host, port);
            let listener = TcpListener::bind(address).await;
            listener.with_context(|| format!("cannot listen on {address} ({flag}): is it taken?"))
        };
        Ok(Self {
            calls: open(args.port, "--port").await?,
            admin: open(args.admin_port, "--admin-port").await?,
        })
    }
}

// === impl Running ===

impl Running {
    /// Runs until a part ends, or until `shutdown`.
    async fn until(mut self, shutdown: Shutdown) -> anyhow::Result<()> {
        tokio::select! {
            Some(ended) = self.tasks.join_next() => {
                let error = unexpected(ended);
                self.health.fail(error.to_string());
                return Err(error);
            }
            () = shutdown.drain.cancelled() => {}
        }
        tokio::select! {
            result = self.drain() => result,
            () = shutdown.now.cancelled() => {
                warn!("ended at once: calls in progress are cut");
                Ok(())
            }
        }
    }

    /// Not ready, then no new calls, then the end.
    async fn drain(&mut self) -> anyhow::Result<()> {
        let (start, limit) = (Instant::now(), self.drain_timeout);
        let linger = LINGER.min(limit / 2);
        self.health.drain();
        info!(timeout = ?limit, served_for = ?linger, "draining: not ready any more");
        sleep_until(start + linger).await;
        self.stop.cancel();
        if let Ok(result) = timeout_at(start + limit, self.served()).await {
            return result;
        }
        warn!("the drain timeout is over: calls in progress are cut");
        Ok(())
    }

    /// Waits for the end of the server. Another part that ends first is an error, but cuts no call.
    async fn served(&mut self) -> anyhow::Result<()> {
        let mut result = Ok(());
        while let Some(ended) = self.tasks.join_next().await {
            match ended {
                Ok((SERVER, served)) => return result.and(served.context(SERVER)),
                ended => {
                    let error = unexpected(ended);
                    warn!(%error, "still draining");
                    result = result.and(Err(error));
                }
            }
        }
        result
    }
}

fn unexpected(ended: Result<(&'static str, anyhow::Result<()>), JoinError>) -> anyhow::Error {
    match ended {
        Ok((part, Ok(()))) => anyhow!("the {part} ended"),
        Ok((part, Err(error))) => error.context(format!("the {part} ended")),
        Err(error) => anyhow!("a part died: {error}"),
    }
}

fn hangups() -> anyhow::Result<SignalStream> {
    let hangups = signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?;
    Ok(SignalStream::new(hangups))
}

/// Looks how large the state is before each page of metrics.
fn with_sizes<E: Engine>(probes: Router, engine: Arc<E>, metrics: Metrics) -> Router {
    probes.layer(from_fn(move |request: Request, next: Next| {
        let (engine, metrics) = (Arc::clone(&engine), metrics.clone());
        async move {
            if request.uri().path() == "/metrics" {
                metrics.read(&*engine).await;
            }
            next.run(request).await
        }
    }))
}

/// Frees what is over and watches whether the engine can be used, for ever.
async fn sweep<E: Engine>(engine: &E, metrics: &Metrics, health: &Health, pulse: &Pulse) {
    let mut ticks = interval(SWEEP);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut known = None;
    loop {
        ticks.tick().await;
        let unready = engine.unready();
        health.set(ENGINE, unready.is_none());
        if known != Some(unready) {
            known = Some(unready);
            if let Some(reason) = unready {
                warn!(reason, "the engine cannot be used");
            } else {
                info!("the engine can be used");
            }
        }
        match engine.sweep().await {
            Ok(swept) => metrics.swept(&swept),
            Err(fault) => {
                metrics.engine_failed();
                warn!(reason = fault.reason(), error = %fault, "cannot sweep");
            }
        }
        pulse.beat();
    }
}

#[cfg(test)]
mod tests;
