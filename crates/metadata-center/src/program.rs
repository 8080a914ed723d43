//! The program: state, ports, tasks, and their end.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::Request,
    middleware::{Next, from_fn},
};
use http_service::{Names, Parts, Security, Server, listen, threads};
use moment::Clock;
use process::{ConfigError, Health, Pulse, Shutdown};
use prometheus_client::registry::Registry;
use tokio::{
    net::TcpListener,
    time::{MissedTickBehavior, interval},
};
use tracing::{info, warn};

use crate::{
    args::{Args, ListenArgs},
    engine::Engine,
    memory::Memory,
    metrics::Metrics,
    redis::{Redis, RedisOptions},
    service::{Service, Settings},
};

/// Between two sweeps.
const SWEEP: Duration = Duration::from_secs(1);

/// A sweep that takes longer is stuck.
const SWEEP_LIMIT: Duration = Duration::from_secs(30);

/// The part of readiness that the engine is.
const ENGINE: &str = "engine";

/// As paths and metrics have it.
const NAMES: Names = Names {
    program: "metadata-center",
    metrics: "metadata_center",
};

/// What the engine does not decide.
struct Made {
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

/// Runs the service until `shutdown`.
///
/// # Errors
/// [`process::ConfigError`] for values that cannot work, before a port is opened; else what made a part end.
pub async fn run(args: Args, shutdown: Shutdown) -> anyhow::Result<()> {
    let Args {
        listen,
        state,
        callers,
        log: _, // the boundary of the program has used it
    } = args;
    listen.check()?;
    let (limits, clock) = (state.limits()?, Clock::start());
    let start = |options: RedisOptions| {
        let url = "--redis-url redis://redis.llm.svc:6379";
        Redis::start(options, clock)
            .map_err(|error| ConfigError::new("--redis-url", error.to_string(), url))
    };
    let redis = state.redis()?.map(start).transpose()?;
    let mut registry = Registry::default();
    let security = Security::of(callers, NAMES, &mut registry)?;
    let made = Made {
        metrics: Metrics::register(&mut registry),
        ports: Ports::open(&listen)?,
        listen,
        accept_joined_hashes: state.accept_joined_hashes,
        security,
        registry,
    };
    match redis {
        None => made.run(Memory::new(limits, clock), shutdown).await,
        Some(redis) => made.run(redis, shutdown).await,
    }
}

// === impl Made ===

impl Made {
    async fn run<E: Engine>(self, engine: E, shutdown: Shutdown) -> anyhow::Result<()> {
        let Self {
            listen,
            accept_joined_hashes,
            mut security,
            ports,
            registry,
            metrics,
        } = self;
        let engine = Arc::new(engine);
        let health = Health::new(&[ENGINE]);
        let probes = process::admin::router(Arc::new(registry), health.clone());
        let probes = with_sizes(probes, Arc::clone(&engine), metrics.clone());
        let mut parts = Parts::new(health.clone(), listen.drain_timeout.0);
        let pulse = health.watch("sweep", SWEEP_LIMIT);
        parts.spawn("sweep", {
            let (engine, metrics) = (Arc::clone(&engine), metrics.clone());
            async move {
                sweep(&*engine, &metrics, &health, &pulse).await;
                Ok(())
            }
        });
        security.spawn(&mut parts)?;
        let refused = metrics.connections_refused().clone();
        let settings = Settings {
            accept_joined_hashes,
            probes: probes.clone(),
            metrics,
            tokens: security.tokens,
        };
        let server = Server {
            handler: Service::new(engine, settings),
            acceptor: security.acceptor,
            threads: threads(),
            refused,
        };
        parts.serve("server", server, ports.calls);
        parts.spawn("admin server", async move {
            // Until the end of the program: a drain is watched.
            Ok(axum::serve(ports.admin, probes).await?)
        });
        info!(
            port = listen.port,
            admin_port = listen.admin_port,
            "started"
        );
        parts.until(shutdown).await
    }
}

// === impl Ports ===

impl Ports {
    fn open(args: &ListenArgs) -> anyhow::Result<Self> {
        let ListenArgs { host, .. } = *args;
        Ok(Self {
            calls: listen(host, args.port, "--port")?,
            admin: listen(host, args.admin_port, "--admin-port")?,
        })
    }
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
