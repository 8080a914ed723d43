//! The program: its tasks, and what ends them.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, anyhow};
use kube::Client;
use lease::{Claim, Election, Elector, identity};
use process::{Health, Shutdown, admin};
use prometheus_client::registry::Registry;
use tls::{Acceptor, MadeTls, PortTls, TlsMetrics};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::args::{Args, Config};
use crate::control::{Control, Decided, SYNCED, SharedSelector};
use crate::debug::DebugView;
use crate::index::Index;
use crate::infra::credentials::Credentials;
use crate::infra::problems::Problems;
use crate::infra::{Change, Part};
use crate::metrics::{AdsMetrics, Leader, ModelMetrics, ObserveMetrics, WriteMetrics};
use crate::observe::{FACTS, Observers};
use crate::pki::{Authority, SERVER_RENEWAL};
use crate::queue::Queue;
use crate::replicas::Replicas;
use crate::status::pace::Pace;
use crate::status::{Target, Wanted};
use crate::watches::{EVENTS, Watches};
use crate::world::Key;
use crate::xds::ads::budget::{Budgets, Limits};
use crate::xds::ads::connections::{Trust, serve};
use crate::xds::ads::proxies::Proxies;
use crate::xds::ads::server::AdsServer;
use crate::{infra, pki, status};
use moment::Clock;

/// A name for what ended, and how.
type Ended = (&'static str, anyhow::Result<()>);

/// A loop that keeps the Lease without a turn for this long is stuck: `/healthz` fails. Five times the time between two renewals.
const LOOP_LIMIT: Duration = Duration::from_secs(10);

/// The same of the control loop, which has a turn each second. It builds all Gateways in one turn, at worst in some seconds.
const CONTROL_LIMIT: Duration = Duration::from_secs(30);

/// Between two looks at the clock, for the server's own certificate.
const RENEWAL_LOOK: Duration = Duration::from_mins(1);

/// The ADS port, before it is opened.
struct Port {
    address: SocketAddr,
    host: String,
    /// Signs its certificate and knows those of Envoys; none without TLS.
    authority: Option<Authority>,
    cluster: String,
    metrics: PortTls,
}

/// What the tasks count.
struct Metrics {
    ads: AdsMetrics,
    port: PortTls,
    model: ModelMetrics,
    observe: ObserveMetrics,
    /// Of statuses and of infrastructure.
    writes: (WriteMetrics, WriteMetrics),
}

/// What ends the program in order.
struct Ending {
    health: Health,
    drain: CancellationToken,
    stop: CancellationToken,
    ended: CancellationToken,
    drain_timeout: Duration,
    /// Whether this replica writes. It is over after the last write.
    election: Election,
    writers: JoinSet<Ended>,
}

/// Runs until shutdown.
///
/// # Errors
/// Bad flags, no API server configuration, a taken port, or a task that ended by itself.
#[allow(
    clippy::too_many_lines,
    reason = "it connects all parts of the program"
)]
pub async fn run(args: Args, shutdown: Shutdown) -> anyhow::Result<()> {
    let Config {
        settings,
        options,
        infra,
        cluster_name,
        namespace,
        lease,
        ads_address,
        admin_address,
        leader_elect,
        drain_timeout,
        removal_delay,
    } = args.check()?;
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let client = Client::try_default()
        .await
        .context("no way to an API server: run in a pod, or set KUBECONFIG")?;
    let admin_listener = TcpListener::bind(admin_address)
        .await
        .with_context(|| format!("cannot listen on --admin-address {admin_address}"))?;

    let (open, mut ending) = (CancellationToken::new(), Ending::new(drain_timeout));
    let proxies = Proxies::default();
    let (clock, selector) = (Clock::start(), SharedSelector::default());
    let mut tasks: JoinSet<Ended> = JoinSet::new();
    if leader_elect {
        let me = identity();
        let elector = Elector::new(client.clone(), &namespace, &lease, &me, clock);
        ending.election = stand(elector, open.clone(), ending.health.clone());
        let name = format!("{lease}-proxies");
        let others = proxies.clone();
        let replicas = Replicas::new(client.clone(), &namespace, name, &me, others, clock);
        let sharing = replicas.run(ending.stop.clone());
        tasks.spawn(async move {
            sharing.await;
            ("exchange with other replicas", Ok(()))
        });
    }
    let claim = ending.election.claim();
    registry.register_collector(Box::new(Leader::new(claim.clone(), clock)));
    let debug = DebugView::new(proxies.clone(), Arc::clone(&selector), clock);
    let (observed, facts) = mpsc::channel(FACTS);
    let (snapshots, newest) = watch::channel(Arc::new(BTreeMap::new()));
    let (sender, events) = mpsc::channel(EVENTS);
    let problems = Problems::default();
    let admin = admin::serve(
        admin_listener,
        Arc::new(registry),
        ending.health.clone(),
        debug.router(),
        ending.ended.clone(),
    );
    tasks.spawn(async move { ("admin server", admin.await.map_err(Into::into)) });
    // without it no Envoy can be served, so nothing else begins
    let authority = tokio::select! {
        authority = authority(&client, &namespace, infra.ads_tls) => authority,
        () = shutdown.drain.cancelled() => return Ok(()),
        Some(task) = tasks.join_next() => return Err(early(task)),
    };
    if let Some(authority) = authority.clone() {
        let (client, namespace) = (client.clone(), namespace.clone());
        let (drain, stop) = (shutdown.drain.clone(), ending.stop.clone());
        tasks.spawn(async move {
            drain_when_replaced(&client, &namespace, &authority, &drain, &stop).await;
            ("watch on the authority", Ok(()))
        });
    }
    let port = Port {
        address: ads_address,
        host: infra.ads_hostname.clone(),
        authority,
        cluster: cluster_name,
        metrics: metrics.port,
    };
    let credentials = port.credentials();
    let (status, parts) = spawn_writers(
        &mut ending.writers,
        &client,
        &settings.controller,
        metrics.writes,
        (&claim, &ending.stop),
        problems.clone(),
        credentials.clone(),
    );
    let private_channel = ads_address.ip().is_loopback();
    let control = Control {
        index: Index::default(),
        watches: Watches::start(client, sender),
        events,
        settings,
        options,
        infra,
        snapshots,
        proxies: proxies.clone(),
        status,
        parts,
        problems,
        credentials,
        metrics: metrics.model,
        pulse: ending.health.watch("control loop", CONTROL_LIMIT),
        health: ending.health.clone(),
        debug,
        open: open.clone(),
        decided: Decided::default(),
        observers: Observers::new(observed, metrics.observe),
        facts,
        selector,
        pace: Pace::default(),
        clock,
    };
    let stopped = ending.stop.clone();
    tasks.spawn(async move {
        control.run(stopped).await;
        ("control loop", Ok(()))
    });
    let server = AdsServer {
        snapshots: newest,
        proxies,
        metrics: metrics.ads,
        clock: Clock::start(),
        removal_delay,
        budgets: Budgets::new(Limits::default()),
        drain: ending.drain.clone(),
        private_channel,
    };
    let ads = serve_ads(server, port, open, ending.drain.clone());
    tasks.spawn(async move { ("ADS server", ads.await) });

    ending.wait(tasks, shutdown).await
}

async fn finish(
    mut tasks: JoinSet<Ended>,
    mut writers: JoinSet<Ended>,
    election: Election,
    ended: CancellationToken,
) {
    let written = async {
        while writers.join_next().await.is_some() {}
        if !election.end().await {
            warn!("no answer from the API server: the lease is not given back");
        }
    };
    let served = async { while tasks.len() > 1 && tasks.join_next().await.is_some() {} };
    tokio::join!(written, served);
    ended.cancel();
    while tasks.join_next().await.is_some() {}
}

// === impl Port ===

impl Port {
    /// What the Envoys show that it serves.
    fn credentials(&self) -> Option<Credentials> {
        let authority = self.authority.clone()?;
        Some(Credentials::new(&self.cluster, authority))
    }
}

// === impl Metrics ===

impl Metrics {
    fn register(registry: &mut Registry) -> Self {
        Self {
            ads: AdsMetrics::register(registry),
            port: TlsMetrics::register(registry, "gateway").port("ads"),
            model: ModelMetrics::register(registry),
            observe: ObserveMetrics::register(registry),
            writes: (
                WriteMetrics::register(registry, "status"),
                WriteMetrics::register(registry, "infra"),
            ),
        }
    }
}

// === impl Ending ===

impl Ending {
    fn new(drain_timeout: Duration) -> Self {
        Self {
            health: Health::new(&[SYNCED]),
            drain: CancellationToken::new(),
            stop: CancellationToken::new(),
            ended: CancellationToken::new(),
            drain_timeout,
            election: Election::settled(Claim::always()),
            writers: JoinSet::new(),
        }
    }

    /// Until shutdown, and then until all has ended; an error where a task ended by itself.
    async fn wait(self, mut tasks: JoinSet<Ended>, shutdown: Shutdown) -> anyhow::Result<()> {
        let Self {
            health,
            drain,
            stop,
            ended,
            drain_timeout,
            mut election,
            mut writers,
        } = self;
        tokio::select! {
            Some(task) = tasks.join_next() => return Err(early(task)),
            Some(task) = writers.join_next() => return Err(early(task)),
            error = election.failed() => return Err(error),
            () = shutdown.drain.cancelled() => {}
        }
        info!("draining: Envoys keep their configuration");
        health.drain();
        drain.cancel();
        stop.cancel();
        // The admin server stays last, so that the drain can be seen.
        tokio::select! {
            finished = timeout(drain_timeout, finish(tasks, writers, election, ended)) => {
                if finished.is_err() {
                    warn!(?drain_timeout, "not everything ended in time");
                }
            }
            () = shutdown.now.cancelled() => {}
        }
        Ok(())
    }
}

/// Stands for election once all is listed: until then there is nothing to write, and another replica may have something. A process
/// that `/healthz` says is stuck renews nothing, so that another one takes over before this one is restarted.
fn stand((elector, claim): (Elector, Claim), open: CancellationToken, health: Health) -> Election {
    let pulse = OnceLock::new();
    let alive = health.clone();
    let elector = elector.only_while(move || alive.failure().is_none());
    Election::begin((elector, claim), open.cancelled_owned(), move || {
        let pulse = pulse.get_or_init(|| health.watch("lease", LOOP_LIMIT));
        pulse.beat();
    })
}

/// The two queues of writes and the tasks that work on them.
fn spawn_writers(
    tasks: &mut JoinSet<Ended>,
    client: &Client,
    controller: &str,
    (status_metrics, infra_metrics): (WriteMetrics, WriteMetrics),
    (claim, stop): (&Claim, &CancellationToken),
    problems: Problems,
    credentials: Option<Credentials>,
) -> (Queue<Target, Wanted>, Queue<(Part, Key), Change>) {
    let (statuses, parts) = (Queue::new(), Queue::new());
    let write = status::writer::make_writer(client.clone(), controller.to_owned(), status_metrics);
    let running = statuses
        .clone()
        .run(write, || (), claim.clone(), stop.clone());
    tasks.spawn(async move {
        running.await;
        ("status writer", Ok(()))
    });
    let write = infra::writer::make_writer(
        client.clone(),
        controller.to_owned(),
        infra_metrics,
        problems.clone(),
        credentials.clone(),
    );
    let over = move || {
        problems.forget_all();
        if let Some(credentials) = &credentials {
            credentials.keep(|_| false);
        }
    };
    let running = parts.clone().run(write, over, claim.clone(), stop.clone());
    tasks.spawn(async move {
        running.await;
        ("infrastructure writer", Ok(()))
    });
    (statuses, parts)
}

/// The authority of the control channel, where it uses TLS.
async fn authority(client: &Client, namespace: &str, is_wanted: bool) -> Option<Authority> {
    if !is_wanted {
        return None;
    }
    Some(pki::store::load(client, namespace, pki::now).await)
}

/// Ends this process in order once its authority is not that of the Secret any more. It starts again with the other one, as all
/// replicas do: Envoys trust one authority, and are connected to any of them.
async fn drain_when_replaced(
    client: &Client,
    namespace: &str,
    authority: &Authority,
    drain: &CancellationToken,
    stop: &CancellationToken,
) {
    tokio::select! {
        () = pki::store::replaced(client, namespace, authority) => {
            let secret = pki::store::AUTHORITY_SECRET;
            warn!(secret, "the Secret has another authority: ending, to start again with that one");
            drain.cancel();
        }
        () = stop.cancelled() => {}
    }
    stop.cancelled().await;
}

/// Listens only once everything is listed: an Envoy that came earlier would be told that there is
/// nothing.
async fn serve_ads(
    server: AdsServer,
    port: Port,
    open: CancellationToken,
    drain: CancellationToken,
) -> anyhow::Result<()> {
    tokio::select! {
        () = open.cancelled() => {}
        () = drain.cancelled() => return Ok(()),
    }
    let Port {
        address,
        host,
        authority,
        cluster,
        metrics,
    } = port;
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on --ads-address {address}"))?;
    info!(%address, tls = authority.is_some(), "serving ADS");
    let (acceptor, trust, renewed) = match authority {
        None => (Acceptor::plaintext(), Trust::Anyone, None),
        Some(authority) => {
            let issued = authority.issue_server(&host, pki::now())?;
            let (certificate, key) = (issued.certificate.into_bytes(), issued.key.into_bytes());
            let ca = authority.pem().as_bytes();
            let (acceptor, made) = MadeTls::begin(ca, certificate, key, metrics)?;
            let trust = Trust::Cluster(cluster.into());
            (acceptor, trust, Some((made, authority)))
        }
    };
    let stop = drain.cancelled_owned();
    tokio::select! {
        served = serve(server, listener, acceptor, trust, stop) => {
            served.context("the ADS server failed")
        }
        never = renew(renewed, &host) => match never {},
    }
}

/// Gives the server another certificate each half day. By the clock of the wall: a machine that slept has no time left.
async fn renew(renewed: Option<(MadeTls, Authority)>, host: &str) -> Infallible {
    let Some((made, authority)) = renewed else {
        return std::future::pending().await;
    };
    let mut last = pki::now();
    loop {
        sleep(RENEWAL_LOOK).await;
        let now = pki::now();
        // a clock that was set back has made the certificate one of the future
        if (last..last + SERVER_RENEWAL.as_secs()).contains(&now) {
            continue;
        }
        let renewed = authority
            .issue_server(host, now)
            .map_err(anyhow::Error::from);
        let replaced = renewed.and_then(|issued| {
            let (certificate, key) = (issued.certificate.into_bytes(), issued.key.into_bytes());
            made.replace(certificate, key).map_err(Into::into)
        });
        match replaced {
            Ok(()) => last = now,
            Err(error) => error!(error = format!("{error:#}"), "no new certificate for ADS"),
        }
    }
}

fn early(ended: Result<Ended, tokio::task::JoinError>) -> anyhow::Error {
    match ended {
        Ok((name, Ok(()))) => anyhow!("the {name} ended by itself"),
        Ok((name, Err(error))) => error.context(format!("the {name} failed")),
        Err(error) => anyhow!(error).context("a task panicked"),
    }
}

#[cfg(test)]
mod tests;
