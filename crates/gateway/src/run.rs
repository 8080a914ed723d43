//! The program: its tasks, and what ends them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use kube::Client;
use process::{Health, Shutdown, admin};
use prometheus_client::registry::Registry;
use serde_json::Value;
use tls::{Acceptor, MadeTls, PortTls, TlsMetrics};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::args::{Args, Config};
use crate::control::{Control, Decided, SYNCED};
use crate::debug::DebugView;
use crate::index::Index;
use crate::infra::Part;
use crate::infra::credentials::Credentials;
use crate::infra::problems::Problems;
use crate::metrics::{AdsMetrics, ModelMetrics, WriteMetrics};
use crate::pki::{Authority, SERVER_RENEWAL};
use crate::queue::Queue;
use crate::status::{Target, Wanted};
use crate::watches::{EVENTS, Watches};
use crate::world::Key;
use crate::xds::ads::connections::{Limits, Trust, serve};
use crate::xds::ads::proxies::Proxies;
use crate::xds::ads::server::AdsServer;
use crate::{infra, pki, status};
use moment::Clock;

/// A name for what ended, and how.
type Ended = (&'static str, anyhow::Result<()>);

/// Between two looks at the clock, for the server's own certificate.
const RENEWAL_LOOK: Duration = Duration::from_mins(1);

/// The ADS port, before it is opened.
struct Port {
    address: SocketAddr,
    host: String,
    /// Signs its certificate and knows those of Envoys; none without TLS.
    authority: Option<Authority>,
    trust: Trust,
    metrics: PortTls,
}

/// Runs until shutdown.
///
/// # Errors
/// Bad flags, no API server configuration, a taken port, or a task that ended by itself.
pub async fn run(args: Args, shutdown: Shutdown) -> anyhow::Result<()> {
    let Config {
        settings,
        options,
        infra,
        cluster_name,
        namespace,
        ads_address,
        admin_address,
        drain_timeout,
        removal_delay,
    } = args.check()?;
    let mut registry = Registry::default();
    let ads_metrics = AdsMetrics::register(&mut registry);
    let model_metrics = ModelMetrics::register(&mut registry);
    let tls_metrics = TlsMetrics::register(&mut registry, "gateway");
    let client = Client::try_default()
        .await
        .context("no way to an API server: run in a pod, or set KUBECONFIG")?;
    let admin_listener = TcpListener::bind(admin_address)
        .await
        .with_context(|| format!("cannot listen on --admin-address {admin_address}"))?;

    let health = Health::new(&[SYNCED]);
    let proxies = Proxies::default();
    let debug = DebugView::new(proxies.clone());
    let (open, stop, drain, ended) = (
        CancellationToken::new(),
        CancellationToken::new(),
        CancellationToken::new(),
        CancellationToken::new(),
    );
    let (snapshots, newest) = watch::channel(Arc::new(BTreeMap::new()));
    let (sender, events) = mpsc::channel(EVENTS);
    let problems = Problems::default();
    let mut tasks: JoinSet<Ended> = JoinSet::new();
    let (status_metrics, infra_metrics) = (
        WriteMetrics::register(&mut registry, "status"),
        WriteMetrics::register(&mut registry, "infra"),
    );
    let admin = admin::serve(
        admin_listener,
        Arc::new(registry),
        health.clone(),
        debug.router(),
        ended.clone(),
    );
    tasks.spawn(async move { ("admin server", admin.await.map_err(Into::into)) });
    // without it no Envoy can be served, so nothing else begins
    let authority = tokio::select! {
        authority = authority(&client, &namespace, infra.ads_tls) => authority,
        () = shutdown.drain.cancelled() => return Ok(()),
        Some(task) = tasks.join_next() => return Err(early(task)),
    };
    let credentials = authority
        .clone()
        .map(|authority| Credentials::new(&cluster_name, authority));
    let port = Port {
        address: ads_address,
        host: infra.ads_hostname.clone(),
        authority,
        trust: if infra.ads_tls {
            Trust::Cluster(cluster_name.into())
        } else {
            Trust::Anyone
        },
        metrics: tls_metrics.port("ads"),
    };
    let (status, parts) = spawn_writers(
        &mut tasks,
        &client,
        &settings.controller,
        (status_metrics, infra_metrics),
        &stop,
        problems.clone(),
        credentials.clone(),
    );
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
        metrics: model_metrics,
        health: health.clone(),
        debug,
        open: open.clone(),
        decided: Decided::default(),
        clock: Clock::start(),
    };
    let stopped = stop.clone();
    tasks.spawn(async move {
        control.run(stopped).await;
        ("control loop", Ok(()))
    });
    let server = AdsServer {
        snapshots: newest,
        proxies,
        metrics: ads_metrics,
        clock: Clock::start(),
        removal_delay,
        limits: Limits::default(),
        drain: drain.clone(),
    };
    let ads = serve_ads(server, port, open, drain.clone());
    tasks.spawn(async move { ("ADS server", ads.await) });

    tokio::select! {
        Some(task) = tasks.join_next() => return Err(early(task)),
        () = shutdown.drain.cancelled() => {}
    }
    info!("draining: Envoys keep their configuration");
    health.drain();
    drain.cancel();
    stop.cancel();
    // The admin server stays last, so that the drain can be seen.
    tokio::select! {
        finished = timeout(drain_timeout, finish(tasks, ended)) => {
            if finished.is_err() {
                warn!(?drain_timeout, "not everything ended in time");
            }
        }
        () = shutdown.now.cancelled() => {}
    }
    Ok(())
}

async fn finish(mut tasks: JoinSet<Ended>, ended: CancellationToken) {
    while tasks.len() > 1 && tasks.join_next().await.is_some() {}
    ended.cancel();
    while tasks.join_next().await.is_some() {}
}

/// The two queues of writes and the tasks that work on them.
fn spawn_writers(
    tasks: &mut JoinSet<Ended>,
    client: &Client,
    controller: &str,
    (status_metrics, infra_metrics): (WriteMetrics, WriteMetrics),
    stop: &CancellationToken,
    problems: Problems,
    credentials: Option<Credentials>,
) -> (Queue<Target, Wanted>, Queue<(Part, Key), Value>) {
    let (statuses, parts) = (Queue::new(), Queue::new());
    let write = status::writer::make_writer(client.clone(), controller.to_owned(), status_metrics);
    let running = statuses.clone().run(write, stop.clone());
    tasks.spawn(async move {
        running.await;
        ("status writer", Ok(()))
    });
    let write = infra::writer::make_writer(
        client.clone(),
        controller.to_owned(),
        infra_metrics,
        problems,
        credentials,
    );
    let running = parts.clone().run(write, stop.clone());
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
        trust,
        metrics,
    } = port;
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on --ads-address {address}"))?;
    info!(%address, tls = authority.is_some(), "serving ADS");
    let limits = server.limits;
    let Some(authority) = authority else {
        let acceptor = Acceptor::plaintext();
        let serving = serve(
            server,
            listener,
            acceptor,
            trust,
            limits,
            drain.cancelled_owned(),
        );
        return serving.await.context("the ADS server failed");
    };
    let made = authority.issue_server(&host, pki::now())?;
    let (certificate, key) = (made.certificate.into_bytes(), made.key.into_bytes());
    let ca = authority.pem().as_bytes();
    let (acceptor, made) = MadeTls::begin(ca, certificate, key, metrics)?;
    let serving = serve(
        server,
        listener,
        acceptor,
        trust,
        limits,
        drain.cancelled_owned(),
    );
    tokio::select! {
        served = serving => served.context("the ADS server failed"),
        never = renew(&made, &authority, &host) => match never {},
    }
}

/// Gives the server another certificate each half day. By the clock of the wall: a machine that slept has no time left.
async fn renew(made: &MadeTls, authority: &Authority, host: &str) -> std::convert::Infallible {
    let mut last = pki::now();
    loop {
        sleep(RENEWAL_LOOK).await;
        let now = pki::now();
        if now.abs_diff(last) < SERVER_RENEWAL.as_secs() {
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
