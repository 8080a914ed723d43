//! The program: its tasks, and what ends them.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use process::{Health, Shutdown, admin};
use prometheus_client::registry::Registry;
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
use crate::metrics::{AdsMetrics, ModelMetrics, WriteMetrics};
use crate::moment::Clock;
use crate::queue::Queue;
use crate::watches::{EVENTS, Watches};
use crate::xds::ads::server::{AdsServer, Proxies};
use crate::xds::proto::discovery::aggregated_discovery_service_server::AggregatedDiscoveryServiceServer;
use crate::{infra, status};

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
    let status_metrics = WriteMetrics::register(&mut registry, "status");
    let infra_metrics = WriteMetrics::register(&mut registry, "infra");
    let model_metrics = ModelMetrics::register(&mut registry);
    let client = kube::Client::try_default()
        .await
        .context("no way to an API server: run in a pod, or set KUBECONFIG")?;
    let admin_listener = TcpListener::bind(admin_address)
        .await
        .with_context(|| format!("cannot listen on --admin-address {admin_address}"))?;

    let health = Health::new(&[SYNCED]);
    let proxies = Proxies::default();
    let debug = DebugView::new(proxies.clone());
    let (open, stop, drain) = (
        CancellationToken::new(),
        CancellationToken::new(),
        CancellationToken::new(),
    );
    let (snapshots, newest) = watch::channel(Arc::new(BTreeMap::new()));
    let (sender, events) = mpsc::channel(EVENTS);
    let (status_queue, part_queue) = (Queue::new(), Queue::new());
    let controller = settings.controller.clone();
    let mut tasks: JoinSet<Ended> = JoinSet::new();

    let admin = admin::serve(
        admin_listener,
        Arc::new(registry),
        health.clone(),
        debug.router(),
        stop.clone(),
    );
    tasks.spawn(async move { ("admin", admin.await.map_err(Into::into)) });
    let control = Control {
        index: Index::default(),
        watches: Watches::start(client.clone(), sender),
        events,
        settings,
        options,
        infra,
        snapshots,
        proxies: proxies.clone(),
        status: status_queue.clone(),
        parts: part_queue.clone(),
        metrics: model_metrics,
        health: health.clone(),
        debug,
        open: open.clone(),
        decided: Decided::default(),
    };
    let stopped = stop.clone();
    tasks.spawn(async move {
        control.run(stopped).await;
        ("control loop", Ok(()))
    });
    let write = status::writer::make_writer(client.clone(), controller.clone(), status_metrics);
    let writer = status_queue.run(write, stop.clone());
    tasks.spawn(async move {
        writer.await;
        ("status writer", Ok(()))
    });
    let write = infra::writer::make_writer(client, controller, infra_metrics);
    let writer = part_queue.run(write, stop.clone());
    tasks.spawn(async move {
        writer.await;
        ("infrastructure writer", Ok(()))
    });
    let server = AdsServer {
        snapshots: newest,
        proxies,
        metrics: ads_metrics,
        clock: Clock::start(),
        removal_delay,
        drain: drain.clone(),
    };
    let ads = serve_ads(server, ads_address, open, drain.clone());
    tasks.spawn(async move { ("ADS", ads.await) });

    tokio::select! {
        Some(ended) = tasks.join_next() => return Err(early(ended)),
        () = shutdown.drain.cancelled() => {}
    }
    info!("draining: Envoys keep their configuration");
    health.drain();
    drain.cancel();
    stop.cancel();
    let finish = async { while tasks.join_next().await.is_some() {} };
    tokio::select! {
        ended = timeout(drain_timeout, finish) => {
            if ended.is_err() {
                warn!(?drain_timeout, "not everything ended in time");
            }
        }
        () = shutdown.now.cancelled() => {}
    }
    Ok(())
}

/// Listens only once everything is listed: an Envoy that came earlier would be told that there is
/// nothing.
pub(crate) async fn serve_ads(
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
