//! Spans of prompts: `router.route`, from a call to its reply.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use http::HeaderMap;
use opentelemetry::{
    Context, KeyValue,
    propagation::{Extractor, TextMapPropagator},
    trace::{Span, SpanBuilder, SpanKind, Status, Tracer, TracerProvider},
};
use opentelemetry_sdk::{
    propagation::TraceContextPropagator,
    trace::{SdkTracer, SdkTracerProvider},
};
use processor_api::RouteReply;

use crate::fault::Fault;

/// Makes the spans of prompts. Cheap to clone.
#[derive(Clone)]
pub struct Spans {
    tracer: SdkTracer,
    /// Its end would end all spans.
    _provider: SdkTracerProvider,
}

struct Headers<'a>(&'a HeaderMap);

// === impl Spans ===

impl Spans {
    /// By this provider.
    pub fn new(provider: SdkTracerProvider) -> Self {
        Self {
            tracer: provider.tracer("router"),
            _provider: provider,
        }
    }

    /// The span of a prompt that was routed or refused, which took so long; none where its trace is not sampled.
    pub(crate) fn routed(
        &self,
        headers: &HeaderMap,
        routed: &Result<RouteReply, Fault>,
        took: Duration,
    ) {
        let parent =
            TraceContextPropagator::new().extract_with_context(&Context::new(), &Headers(headers));
        let now = SystemTime::now();
        let span = SpanBuilder::from_name("router.route")
            .with_kind(SpanKind::Server)
            .with_start_time(now.checked_sub(took).unwrap_or(now));
        let mut span = self.tracer.build_with_context(span, &parent);
        if !span.is_recording() {
            return;
        }
        match routed {
            Ok(reply) => {
                let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
                let worker = reply.worker_id.clone().unwrap_or_default();
                span.set_attribute(KeyValue::new("router.worker", worker));
                let overlap = count(reply.overlap_blocks);
                span.set_attribute(KeyValue::new("router.overlap_blocks", overlap));
                let blocks = count(reply.prompt_blocks);
                span.set_attribute(KeyValue::new("router.prompt_blocks", blocks));
            }
            Err(fault) => {
                span.set_attribute(KeyValue::new("router.reason", fault.reason()));
                span.set_status(Status::error(fault.reason()));
            }
        }
        span.end_with_timestamp(now);
    }
}

impl fmt::Debug for Spans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spans").finish_non_exhaustive()
    }
}

// === impl Headers ===

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(http::HeaderName::as_str).collect()
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use kv_router::NoWorker;
    use opentelemetry_sdk::{
        error::OTelSdkResult,
        trace::{Sampler, SpanData, SpanProcessor},
    };
    use processor_api::RouteSource;
    use tokio::sync::mpsc;

    use super::*;

    /// Passes ended spans on.
    #[derive(Debug)]
    struct Ended(mpsc::Sender<SpanData>);

    impl SpanProcessor for Ended {
        fn on_start(&self, _: &mut opentelemetry_sdk::trace::Span, _: &Context) {}

        fn on_end(&self, span: SpanData) {
            self.0.try_send(span).unwrap();
        }

        fn force_flush(&self) -> OTelSdkResult {
            Ok(())
        }

        fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
            Ok(())
        }
    }

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

    #[test]
    fn a_sampled_prompt_has_a_span_under_its_caller_and_another_has_none() {
        let (sender, mut ended) = mpsc::channel(9);
        let provider = SdkTracerProvider::builder()
            .with_span_processor(Ended(sender))
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::AlwaysOff)))
            .build();
        let spans = Spans::new(provider);
        let reply = RouteReply {
            worker_address: "10.0.0.1:8000".to_owned(),
            worker_id: Some("default/a-rank-0".to_owned()),
            dp_rank: None,
            overlap_blocks: 3,
            prompt_blocks: 5,
            block_size: 16,
            fallbacks: Vec::new(),
            reservation_id: None,
            source: RouteSource::Exact,
        };
        let took = Duration::from_millis(2);
        let under = |flags: &str| {
            let parent = format!("00-{TRACE}-b7ad6b7169203331-{flags}");
            HeaderMap::from_iter([(
                http::HeaderName::from_static("traceparent"),
                HeaderValue::from_str(&parent).unwrap(),
            )])
        };
        spans.routed(&HeaderMap::new(), &Ok(reply.clone()), took);
        spans.routed(&under("00"), &Ok(reply.clone()), took);
        spans.routed(&under("01"), &Ok(reply), took);
        spans.routed(&under("01"), &Err(NoWorker::Unknown.into()), took);
        let made: Vec<_> = std::iter::from_fn(|| ended.try_recv().ok()).collect();
        assert_eq!(made.len(), 2, "{made:?}");
        for span in &made {
            assert_eq!(span.span_context.trace_id().to_string(), TRACE);
            assert_eq!(span.parent_span_id.to_string(), "b7ad6b7169203331");
            assert_eq!(span.end_time.duration_since(span.start_time).unwrap(), took);
        }
        let has = |at: usize, name: &str, value: &str| {
            let all = made[at].attributes.iter();
            let mut found = all.filter(|it| it.key.as_str() == name);
            found.any(|it| it.value.to_string() == value)
        };
        assert!(
            has(0, "router.overlap_blocks", "3") && has(0, "router.worker", "default/a-rank-0")
        );
        assert!(has(1, "router.reason", "no-workers"));
    }
}
