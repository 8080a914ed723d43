//! The external stage, where one is used.

use std::sync::Arc;

use http_call::TrustFiles;
use process::ConfigError;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::{
    hangups,
    running::{BOOKINGS, Ends, Tasks},
};
use crate::{
    args::{ExternalSettings, StageSettings},
    director::Director,
    external::{CallProcessor, Client, ClientSettings, External, ExternalMetrics},
};

/// The director with the stage, as the settings have it.
pub(super) fn spawn_external(
    tasks: &mut Tasks,
    settings: ExternalSettings,
    director: Director,
    registry: &mut Registry,
    ends: &mut Ends,
) -> anyhow::Result<Director> {
    let ExternalSettings {
        names_models,
        stage,
    } = settings;
    if !names_models && stage.is_none() {
        return Ok(director); // it is as if it were not there
    }
    let metrics = ExternalMetrics::register(registry);
    let director = director.naming_models(names_models.then(|| metrics.clone()));
    let Some(stage) = stage else {
        return Ok(director);
    };
    let external = spawn_stage(tasks, stage, metrics, registry, ends)?;
    Ok(director.staging(Some(external)))
}

fn spawn_stage(
    tasks: &mut Tasks,
    stage: StageSettings,
    metrics: ExternalMetrics,
    registry: &mut Registry,
    ends: &mut Ends,
) -> anyhow::Result<Arc<External>> {
    let StageSettings {
        switches,
        base,
        timeout,
        max_in_flight,
        max_reply,
        tls,
    } = stage;
    let tls = if base.is_https() {
        Some(spawn_trust(tasks, tls)?)
    } else {
        None
    };
    info!(url = %base, routes = switches.routes, "asking a Processor");
    let settings = ClientSettings {
        base,
        timeout,
        max_in_flight,
        max_reply,
        tls,
    };
    let (client, reports) = Client::new(settings, metrics.lifecycle_dropped());
    let processor: Arc<dyn CallProcessor> = Arc::new(client);
    registry.register_collector(Box::new(ExternalMetrics::breaker(Arc::clone(&processor))));
    let external = Arc::new(External::new(switches, processor, metrics));
    let stop = ends.bookings.insert(CancellationToken::new()).clone();
    tasks.spawn(async move {
        reports.run(stop).await;
        (BOOKINGS, Ok(()))
    });
    let kept = Arc::clone(&external);
    tasks.spawn(async move {
        kept.keep_alive().await;
        ("keepalive of bookings", Ok(()))
    });
    Ok(external)
}

/// What to believe a Processor by, followed as its files change.
fn spawn_trust(tasks: &mut Tasks, files: TrustFiles) -> anyhow::Result<http_call::Trust> {
    let (trust, reload) = files.begin().map_err(|error| {
        ConfigError::new(
            format!("--external-processor-ca-file or --external-processor-cert-dir: {error}"),
            "certificates in PEM that can be read",
            "--external-processor-ca-file /etc/processor/ca.crt",
        )
    })?;
    if reload.is_needed() {
        let hangups = hangups()?;
        tasks.spawn(async move {
            reload.run(hangups).await;
            ("reload of the Processor's certificates", Ok(()))
        });
    }
    Ok(trust)
}
