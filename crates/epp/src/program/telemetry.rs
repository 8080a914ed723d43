//! What tells of requests beside the metrics: spans, and the access log.

use anyhow::Context;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    hangups,
    running::{ACCESS_LOG, Ends, SPANS, Tasks},
};
use crate::{
    args::{PoolArgs, TracingArgs},
    config::CurrentConfig,
    llm::AccessLogger,
    spans::{SpanMetrics, Tracing},
    thread::OwnThread,
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
    match setup.build(pool.display_name(), SpanMetrics::register(registry)) {
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
