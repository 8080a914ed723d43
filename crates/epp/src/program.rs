//! The program: parts, ports, tasks, and their end.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, anyhow};
use axum::Router;
use kube::Client;
use process::{ConfigError, Shutdown, admin};
use prometheus_client::registry::Registry;
use scheduling::{Freshness, Profile};
use tokio::{
    net::TcpListener,
    sync::watch,
    task::{JoinError, JoinSet},
    time::{Instant, sleep_until, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    args::{Args, ListenArgs, PoolArgs, RequestArgs},
    budget::Budget,
    director::{Director, Pool},
    discovery::Discovery,
    extproc::{ExtProc, Limits, Settings},
    health::Readiness,
    metrics::{Metrics, PoolCollector},
    scrape::Scraper,
    server::{ExtProcServer, listen, serve_health},
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

/// Beyond it, scraped values stop counting.
const STALE_FOR: Duration = Duration::from_secs(10);

/// 1 MiB: headers and attributes beside a body.
const AROUND_BODY: u64 = 1024 * 1024;

const EXT_PROC: &str = "ext_proc server";

type Tasks = JoinSet<(&'static str, anyhow::Result<()>)>;

/// Runs the EPP until `shutdown`.
///
/// # Errors
/// [`ConfigError`] for values that cannot work, before a port is opened; else what made a part end.
pub async fn run(args: Args, shutdown: Shutdown) -> anyhow::Result<()> {
    let Args {
        pool,
        listen,
        requests,
        log: _,
    } = args;
    let certificate = certificate(&listen)?;
    let client = connect().await?;
    let ports = Ports::open(&listen).await?;
    let clock = Clock::start();
    let readiness = Readiness::new();
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let parts = Parts {
        pool: Pool::default(),
        clock,
        readiness: readiness.clone(),
        metrics,
    };
    let budget = Budget::new(requests.max_buffered_bytes.0);
    let profile = profile(&pool);
    registry.register_collector(Box::new(parts.collector(&pool, &profile, &budget)));

    let (drained, goaway) = (CancellationToken::new(), CancellationToken::new());
    let mut tasks = Tasks::new();
    let (snapshots, members) = watch::channel(None);
    let discovery = parts.discovery(client, &pool, snapshots);
    tasks.spawn(async move {
        discovery.run().await;
        ("discovery", Ok(()))
    });
    let scraper = parts.scraper(&pool);
    tasks.spawn(async move { ("scraper", scraper.run(members).await) });
    let server = ExtProcServer {
        service: parts.ext_proc(profile, budget, &requests, &listen, drained.clone()),
        readiness: readiness.clone(),
        certificate,
        max_streams: listen.max_streams,
    };
    let Ports {
        grpc,
        health,
        admin: admin_port,
    } = ports;
    let stop = goaway.clone();
    tasks.spawn(async move { (EXT_PROC, server.serve(grpc, stop).await.map_err(Into::into)) });
    let health_readiness = readiness.clone();
    tasks.spawn(async move {
        (
            "health server",
            serve_health(health, health_readiness)
                .await
                .map_err(Into::into),
        )
    });
    let admin_health = readiness.admin();
    tasks.spawn(async move {
        let never = CancellationToken::new();
        let served = admin::serve(
            admin_port,
            Arc::new(registry),
            admin_health,
            Router::new(),
            never,
        )
        .await;
        ("admin server", served.map_err(Into::into))
    });

    info!(
        pool = pool.pool_name,
        namespace = pool.namespace(),
        port = listen.grpc_port,
        "started"
    );
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
        listen.drain_timeout.0,
        &readiness,
        &goaway,
        &drained,
    );
    tokio::select! {
        result = drain => result,
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
    fn collector(&self, args: &PoolArgs, profile: &Profile, budget: &Budget) -> PoolCollector {
        PoolCollector {
            name: args.pool_name.clone(),
            pool: self.pool.clone(),
            freshness: profile.freshness,
            clock: self.clock,
            budget: budget.clone(),
        }
    }

    fn discovery(
        &self,
        client: Client,
        args: &PoolArgs,
        snapshots: watch::Sender<Option<Arc<scheduling::Snapshot>>>,
    ) -> Discovery {
        Discovery {
            client,
            namespace: args.namespace().to_owned(),
            name: args.pool_name.clone(),
            pool: self.pool.clone(),
            readiness: self.readiness.clone(),
            metrics: self.metrics.clone(),
            snapshots,
            clock: self.clock,
        }
    }

    fn scraper(&self, args: &PoolArgs) -> Scraper {
        Scraper {
            interval: args.refresh_metrics_interval.0,
            clock: self.clock,
            metrics: self.metrics.clone(),
            readiness: self.readiness.clone(),
        }
    }

    fn ext_proc(
        &self,
        profile: Profile,
        budget: Budget,
        requests: &RequestArgs,
        listen: &ListenArgs,
        drained: CancellationToken,
    ) -> ExtProc {
        let director = Director {
            pool: self.pool.clone(),
            profile,
            clock: self.clock,
            honour_subset: !requests.disable_endpoint_subset_filter,
        };
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
            max_reply: bytes(listen.grpc_max_send_msg_size.0),
            drained,
        };
        ExtProc::new(director, self.metrics.clone(), settings)
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

fn profile(args: &PoolArgs) -> Profile {
    let fresh_for = args.metrics_staleness_threshold.0;
    let freshness = Freshness {
        fresh_for,
        stale_for: fresh_for.max(STALE_FOR),
    };
    Profile {
        freshness,
        ..Profile::default()
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
mod tests {
    use super::*;

    const fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn streams_have_half_of_a_drain_and_proxies_come_before_the_handover() {
        assert_eq!(phases(secs(30)), (secs(10), secs(4)));
        assert_eq!(phases(secs(300)), (secs(10), secs(4)));
        assert_eq!(phases(secs(10)), (secs(1), secs(4)));
        assert_eq!(phases(secs(2)), (secs(0), secs(1)));
        assert_eq!(phases(secs(0)), (secs(0), secs(0)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_draining_epp_stays_ready_for_its_successor_and_then_for_proxies_takes_streams() {
        let readiness = Readiness::new();
        for part in [crate::Part::Discovery, crate::Part::Metrics] {
            readiness.set(part, true);
        }
        let (goaway, drained) = (CancellationToken::new(), CancellationToken::new());
        let mut tasks = Tasks::new();
        let stop = goaway.clone();
        tasks.spawn(async move {
            stop.cancelled().await;
            (EXT_PROC, Ok(()))
        });
        let start = Instant::now();
        let seen = async {
            while readiness.is_ready() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            let unready = start.elapsed();
            goaway.cancelled().await;
            (unready, start.elapsed())
        };
        let drain = drain(&mut tasks, secs(30), &readiness, &goaway, &drained);
        let (result, (unready, went)) = tokio::join!(drain, seen);
        result.expect("drains");
        assert!(unready >= secs(10) && unready < secs(11), "{unready:?}");
        assert_eq!(went, secs(14));
    }
}
