//! What tells of requests beside the metrics: spans, the access log, reports to a Metadata-Center.

use std::{sync::Arc, time::SystemTime};

use anyhow::Context;
use moment::Clock;
use otlp::TracingArgs;
use process::OwnThread;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    hangups,
    running::{ACCESS_LOG, Ends, REPORTS, SPANS, Tasks},
};
use crate::{
    args::{CenterSettings, PoolArgs},
    center::{Center, CenterTasks},
    config::CurrentConfig,
    director::PickElsewhere,
    llm::AccessLogger,
    spans::{SpanMetrics, Tracing},
};

/// Spans of requests, where they are wanted and can be made: an endpoint picker without them is better than none.
pub(super) fn spawn_spans(
    tasks: &mut Tasks,
    args: &TracingArgs,
    pool: &PoolArgs,
    registry: &mut Registry,
    ends: &mut Ends,
) -> Option<Tracing> {
    let setup = args.setup()?;
    let metrics = SpanMetrics::register(registry, "epp");
    match Tracing::begin(&setup, pool.display_name(), metrics) {
        Ok((tracing, export)) => {
            let stop = ends.spans.insert(CancellationToken::new()).clone();
            tasks.spawn(async move {
                export.run(stop).await;
                (SPANS, Ok(()))
            });
            info!(endpoint = setup.endpoint, "sending spans");
            Some(tracing)
        }
        Err(error) => {
            warn!(%error, "no spans are sent: check the variables OTEL_EXPORTER_OTLP_*");
            None
        }
    }
}

/// The Metadata-Center's client, where one is used.
pub(super) fn spawn_center(
    tasks: &mut Tasks,
    settings: &CenterSettings,
    clock: Clock,
    registry: &mut Registry,
    ends: &mut Ends,
) -> anyhow::Result<Option<Arc<dyn PickElsewhere>>> {
    if !settings.enabled {
        return Ok(None);
    }
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let epoch = since_1970.unwrap_or_default().as_millis();
    let epoch = u64::try_from(epoch).unwrap_or(u64::MAX);
    let (center, CenterTasks { client, reloads }) = Center::new(settings, epoch, clock)?;
    registry.register_collector(Box::new(center.collector()));
    registry.register_collector(Box::new(center.degraded()));
    let stop = ends.reports.insert(CancellationToken::new()).clone();
    tasks.spawn(async move { (REPORTS, client.run(stop).await.map_err(Into::into)) });
    if let Some(reload) = reloads.tls {
        let hangups = hangups()?;
        tasks.spawn(async move {
            reload.run(hangups).await;
            ("reload of the Metadata-Center's certificates", Ok(()))
        });
    }
    if let Some(token) = reloads.token {
        let hangups = hangups()?;
        tasks.spawn(async move {
            token.run(hangups).await;
            ("reload of the Metadata-Center's token", Ok(()))
        });
    }
    let CenterSettings {
        host,
        port,
        instance,
        ..
    } = settings;
    info!(host, port, %instance, "sharing load and prompt caches");
    Ok(Some(Arc::new(center)))
}

/// On a thread of its own: a disk that takes no lines delays no request.
pub(super) fn spawn_access_log(
    tasks: &mut Tasks,
    config: CurrentConfig,
    registry: &mut Registry,
    ends: &mut Ends,
) -> anyhow::Result<AccessLogger> {
    let (logger, writer) = AccessLogger::begin(config, registry);
    let stop = ends.access_log.insert(CancellationToken::new()).clone();
    let hangups = hangups()?;
    let thread = OwnThread::start(ACCESS_LOG, move || writer.run(hangups, stop))
        .context("cannot start a thread for the access log")?;
    tasks.spawn(async move {
        let ended = thread.output().await;
        (ACCESS_LOG, ended.map_err(Into::into))
    });
    Ok(logger)
}
