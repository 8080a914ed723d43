//! The program: its tasks, and what ends them.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use kube::Client;
use process::{Health, Shutdown, admin};
use prometheus_client::registry::Registry;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tracing::{info, warn};

use crate::args::{Args, Config};
use crate::control::{Control, Decided, SYNCED};
use crate::debug::DebugView;
use crate::index::Index;
use crate::infra::Part;
use crate::infra::problems::Problems;
use crate::metrics::{AdsMetrics, ModelMetrics, WriteMetrics};
use crate::queue::Queue;
use crate::status::{Target, Wanted};
use crate::watches::{EVENTS, Watches};
use crate::world::Key;
use crate::xds::ads::server::{AdsServer, Proxies};
use crate::xds::proto::discovery::aggregated_discovery_service_server::AggregatedDiscoveryServiceServer;
use crate::{infra, status};
use moment::Clock;

/// A name for what ended, and how.
type Ended = (&'static str, anyhow::Result<()>);

/// An Envoy that says nothing for this long is asked, and gone after [`PING_LIMIT`] more.
const PING: std::time::Duration = std::time::Duration::from_secs(20);
const PING_LIMIT: std::time::Duration = std::time::Duration::from_secs(10);

/// An Envoy that reconnects names each resource it has, about 100 bytes: 160,000 of them.
const MAX_REQUEST: usize = 16 << 20;

/// Runs until shutdown.
///
/// # Errors
/// Bad flags, no API server configuration, a taken port, or a task that ended by itself.
pub async fn run(args: Args, shutdown: Shutdown) -> anyhow::Result<()> {
    let Config {
        settings,
        options,
        infra,
        ads_address,
        admin_address,
        drain_timeout,
        removal_delay,
    } = args.check()?;
    let mut registry = Registry::default();
    let ads_metrics = AdsMetrics::register(&mut registry);
    let model_metrics = ModelMetrics::register(&mut registry);
    let client = Client::try_default()
        .await
        .context("no way to an API server: run in a pod, or set KUBECONFIG")?;
    let admin_listener = TcpListener::bind(admin_address)
        .await
        .with_context(|| format!("cannot listen on --admin-address {admin_address}"))?;

    let health = Health::new(&[SYNCED]);
    let proxies = Proxies::default();
    let debug = DebugView::new(proxies.clone());
    let [open, stop, drain, ended] = std::array::from_fn(|_| CancellationToken::new());
    let (snapshots, newest) = watch::channel(Arc::new(BTreeMap::new()));
    let (sender, events) = mpsc::channel(EVENTS);
    let problems = Problems::default();
    let mut tasks: JoinSet<Ended> = JoinSet::new();
    let (status, parts) = spawn_writers(
        &mut tasks,
        &client,
        &settings.controller,
        &mut registry,
        &stop,
        problems.clone(),
    );
    let admin = admin::serve(
        admin_listener,
        Arc::new(registry),
        health.clone(),
        debug.router(),
        ended.clone(),
    );
    tasks.spawn(async move { ("admin server", admin.await.map_err(Into::into)) });
    let private_channel = settings.private_channel;
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
        drain: drain.clone(),
        private_channel,
    };
    let ads = serve_ads(server, ads_address, open, drain.clone());
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
    registry: &mut Registry,
    stop: &CancellationToken,
    problems: Problems,
) -> (Queue<Target, Wanted>, Queue<(Part, Key), Value>) {
    let (statuses, parts) = (Queue::new(), Queue::new());
    let metrics = WriteMetrics::register(registry, "status");
    let write = status::writer::make_writer(client.clone(), controller.to_owned(), metrics);
    let running = statuses.clone().run(write, stop.clone());
    tasks.spawn(async move {
        running.await;
        ("status writer", Ok(()))
    });
    let metrics = WriteMetrics::register(registry, "infra");
    let write =
        infra::writer::make_writer(client.clone(), controller.to_owned(), metrics, problems);
    let running = parts.clone().run(write, stop.clone());
    tasks.spawn(async move {
        running.await;
        ("infrastructure writer", Ok(()))
    });
    (statuses, parts)
}

/// Listens only once everything is listed: an Envoy that came earlier would be told that there is
/// nothing.
async fn serve_ads(
    server: AdsServer,
    address: std::net::SocketAddr,
    open: CancellationToken,
    drain: CancellationToken,
) -> anyhow::Result<()> {
    tokio::select! {
        () = open.cancelled() => {}
        () = drain.cancelled() => return Ok(()),
    }
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on --ads-address {address}"))?;
    info!(%address, "serving ADS");
    let service = AggregatedDiscoveryServiceServer::new(server);
    Server::builder()
        .http2_keepalive_interval(Some(PING))
        .http2_keepalive_timeout(Some(PING_LIMIT))
        .add_service(service.max_decoding_message_size(MAX_REQUEST))
        .serve_with_incoming_shutdown(TcpListenerStream::new(listener), drain.cancelled_owned())
        .await
        .context("the ADS server failed")
}

fn early(ended: Result<Ended, tokio::task::JoinError>) -> anyhow::Error {
    match ended {
        Ok((name, Ok(()))) => anyhow!("the {name} ended by itself"),
        Ok((name, Err(error))) => error.context(format!("the {name} failed")),
        Err(error) => anyhow!(error).context("a task panicked"),
    }
}
