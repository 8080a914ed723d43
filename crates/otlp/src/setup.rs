//! From the standard variables of OpenTelemetry to spans that are exported.

use std::time::Duration;

use opentelemetry::Key;
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig};
use opentelemetry_sdk::{
    Resource,
    trace::{Sampler, SdkTracerProvider, SpanExporter as _},
};
use tokio::sync::mpsc;
use tracing::warn;

use crate::export::{Enqueue, Export, SpanMetrics};

/// The share of traces that begin here.
const DEFAULT_RATIO: f64 = 0.1;

/// What the variables say. Those of the exporter's headers and timeout, of the service's name and attributes, and of
/// limits of spans are read by the libraries.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Where the collector takes OTLP by gRPC.
    pub endpoint: String,
    /// `OTEL_TRACES_SAMPLER`.
    pub sampler: Option<String>,
    /// `OTEL_TRACES_SAMPLER_ARG`.
    pub sampler_arg: Option<f64>,
    /// Spans that wait to be sent.
    pub queue: usize,
    /// Spans of one batch.
    pub batch: usize,
    /// The longest that a span waits for its batch to fill.
    pub delay: Duration,
    /// For one batch.
    pub timeout: Duration,
}

/// Why there can be no traces.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SetupError(#[from] ExporterBuildError);

// === impl Setup ===

impl Setup {
    /// What makes spans in the name of this program, and what sends them. To be called where tokio runs; nothing is sent
    /// yet.
    ///
    /// # Errors
    /// [`SetupError`] where the endpoint or another variable of the exporter makes no sense.
    pub fn build(
        &self,
        program: &'static str,
        metrics: SpanMetrics,
    ) -> Result<(SdkTracerProvider, Export<SpanExporter>), SetupError> {
        let endpoint = if self.endpoint.contains("://") {
            self.endpoint.clone()
        } else {
            format!("http://{}", self.endpoint)
        };
        let mut exporter = SpanExporter::builder()
            .with_tonic()
            .with_endpoint(endpoint)
            .build()?;
        let resource = resource(program);
        exporter.set_resource(&resource);
        let (sender, spans) = mpsc::channel(self.queue.max(1));
        let enqueue = Enqueue {
            spans: sender,
            metrics: metrics.clone(),
        };
        let provider = SdkTracerProvider::builder()
            .with_span_processor(enqueue)
            .with_sampler(self.sampler())
            .with_resource(resource)
            .build();
        let export = Export {
            exporter,
            spans,
            batch: self.batch.clamp(1, self.queue.max(1)),
            delay: self.delay,
            timeout: self.timeout,
            metrics,
            is_failing: false,
        };
        Ok((provider, export))
    }

    fn sampler(&self) -> Sampler {
        let ratio = |default| Sampler::TraceIdRatioBased(self.sampler_arg.unwrap_or(default));
        let parent_based = |root| Sampler::ParentBased(Box::new(root));
        match self.sampler.as_deref() {
            None => parent_based(ratio(DEFAULT_RATIO)),
            Some("always_on") => Sampler::AlwaysOn,
            Some("always_off") => Sampler::AlwaysOff,
            Some("traceidratio") => ratio(1.0),
            Some("parentbased_always_on") => parent_based(Sampler::AlwaysOn),
            Some("parentbased_always_off") => parent_based(Sampler::AlwaysOff),
            Some("parentbased_traceidratio") => parent_based(ratio(1.0)),
            Some(other) => {
                warn!(
                    sampler = other,
                    "OTEL_TRACES_SAMPLER is none of always_on, always_off, traceidratio, and these after parentbased_: parentbased_traceidratio holds, at 0.1"
                );
                parent_based(Sampler::TraceIdRatioBased(DEFAULT_RATIO))
            }
        }
    }
}

/// Who makes the spans: as the variables say, else the program.
fn resource(program: &'static str) -> Resource {
    let named = Resource::builder().build();
    let name = named.get(&Key::from_static_str("service.name"));
    let is_named = name.is_some_and(|name| !name.as_str().starts_with("unknown_service"));
    if is_named {
        named
    } else {
        Resource::builder().with_service_name(program).build()
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::default(None, None, "ParentBased(TraceIdRatioBased(0.1))")]
    #[case::only_the_ratio(None, Some(0.5), "ParentBased(TraceIdRatioBased(0.5))")]
    #[case::all(Some("always_on"), None, "AlwaysOn")]
    #[case::ratio(Some("traceidratio"), Some(0.25), "TraceIdRatioBased(0.25)")]
    #[case::standard_ratio(
        Some("parentbased_traceidratio"),
        None,
        "ParentBased(TraceIdRatioBased(1.0))"
    )]
    #[case::unknown(Some("xray"), Some(1.0), "ParentBased(TraceIdRatioBased(0.1))")]
    fn the_sampler_is_the_standard_one_and_else_a_tenth(
        #[case] sampler: Option<&str>,
        #[case] sampler_arg: Option<f64>,
        #[case] want: &str,
    ) {
        let setup = Setup {
            endpoint: String::new(),
            sampler: sampler.map(str::to_owned),
            sampler_arg,
            queue: 1,
            batch: 1,
            delay: Duration::ZERO,
            timeout: Duration::ZERO,
        };
        assert_eq!(format!("{:?}", setup.sampler()), want);
    }
}
