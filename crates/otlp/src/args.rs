//! Flags of traces.

use std::{str::FromStr, time::Duration};

use clap::ArgAction;
use tracing::warn;

use crate::setup::Setup;

/// Spans of half a KB each: 50 MB, whatever a variable says.
const MAX_SPANS: usize = 100_000;

/// Flags of traces. All but the first are the standard variables of `OpenTelemetry`, which have flags as all others.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Tracing")]
pub struct TracingArgs {
    /// Make spans of requests, a tenth of those without a parent, and send them by OTLP over gRPC, if
    /// `$OTEL_EXPORTER_OTLP_ENDPOINT` names a collector. The standard variables OTEL_* are obeyed.
    #[arg(long, env, value_name = "BOOL", action = ArgAction::Set, default_value_t = true,
          num_args = 0..=1, default_missing_value = "true")]
    pub tracing: bool,
    /// The collector, such as `http://otel-collector:4317`.
    #[arg(long, env, value_name = "URL", hide = true)]
    pub otel_exporter_otlp_endpoint: Option<String>,
    /// The collector of traces; counts more.
    #[arg(long, env, value_name = "URL", hide = true)]
    pub otel_exporter_otlp_traces_endpoint: Option<String>,
    /// Only grpc is spoken.
    #[arg(long, env, value_name = "PROTOCOL", hide = true)]
    pub otel_exporter_otlp_protocol: Option<String>,
    /// That of traces; counts more.
    #[arg(long, env, value_name = "PROTOCOL", hide = true)]
    pub otel_exporter_otlp_traces_protocol: Option<String>,
    /// Where spans go: otlp or none.
    #[arg(long, env, value_name = "NAME", default_value = "otlp", hide = true)]
    pub otel_traces_exporter: String,
    /// true: no traces.
    #[arg(long, env, value_name = "BOOL", default_value = "false", hide = true)]
    pub otel_sdk_disabled: String,
    /// Which traces are made.
    #[arg(long, env, value_name = "SAMPLER", hide = true)]
    pub otel_traces_sampler: Option<String>,
    /// Its share.
    #[arg(long, env, value_name = "SHARE", hide = true)]
    pub otel_traces_sampler_arg: Option<String>,
    /// Spans that wait to be sent.
    #[arg(long, env, value_name = "N", hide = true)]
    pub otel_bsp_max_queue_size: Option<String>,
    /// Spans of one batch.
    #[arg(long, env, value_name = "N", hide = true)]
    pub otel_bsp_max_export_batch_size: Option<String>,
    /// Milliseconds that a span waits for its batch to fill.
    #[arg(long, env, value_name = "MS", hide = true)]
    pub otel_bsp_schedule_delay: Option<String>,
    /// Milliseconds for one batch.
    #[arg(long, env, value_name = "MS", hide = true)]
    pub otel_bsp_export_timeout: Option<String>,
}

// === impl TracingArgs ===

impl TracingArgs {
    /// How spans are made and sent; none, if they are not.
    pub fn setup(&self) -> Option<Setup> {
        let set = |value: &Option<String>| value.clone().filter(|value| !value.is_empty());
        let is_off = !self.tracing
            || self.otel_traces_exporter == "none"
            || self.otel_sdk_disabled.eq_ignore_ascii_case("true");
        let endpoint = set(&self.otel_exporter_otlp_traces_endpoint)
            .or_else(|| set(&self.otel_exporter_otlp_endpoint))
            .filter(|_| !is_off)?;
        let protocol = set(&self.otel_exporter_otlp_traces_protocol)
            .or_else(|| set(&self.otel_exporter_otlp_protocol));
        if let Some(other) = protocol.filter(|protocol| protocol != "grpc") {
            warn!(
                protocol = other,
                "no spans are sent: OTLP is spoken over gRPC alone; set OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=grpc and OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
            );
            return None;
        }
        let queue = number(
            "OTEL_BSP_MAX_QUEUE_SIZE",
            self.otel_bsp_max_queue_size.as_deref(),
        );
        let batch = number(
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
            self.otel_bsp_max_export_batch_size.as_deref(),
        );
        let delay = number(
            "OTEL_BSP_SCHEDULE_DELAY",
            self.otel_bsp_schedule_delay.as_deref(),
        );
        let timeout = number(
            "OTEL_BSP_EXPORT_TIMEOUT",
            self.otel_bsp_export_timeout.as_deref(),
        );
        Some(Setup {
            endpoint,
            sampler: set(&self.otel_traces_sampler),
            sampler_arg: number(
                "OTEL_TRACES_SAMPLER_ARG",
                self.otel_traces_sampler_arg.as_deref(),
            ),
            queue: queue.unwrap_or(2048).min(MAX_SPANS),
            batch: batch.unwrap_or(512),
            delay: Duration::from_millis(delay.unwrap_or(5_000)),
            timeout: Duration::from_millis(timeout.unwrap_or(30_000)),
        })
    }
}

/// The value of a variable of OpenTelemetry, which says that an empty one is as none, and that one which cannot be read is
/// ignored with a warning.
fn number<T: FromStr>(variable: &str, text: Option<&str>) -> Option<T> {
    let text = text.filter(|text| !text.is_empty())?;
    let number = text.parse().ok();
    if number.is_none() {
        warn!(variable, value = text, "no number: the default holds");
    }
    number
}
