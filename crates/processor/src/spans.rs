//! Spans of calls that have ids: `processor.process`, and below it what took the time.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::{
    Context, KeyValue,
    propagation::{Extractor, Injector, TextMapPropagator},
    trace::{Span, SpanBuilder, SpanKind, TraceContextExt, Tracer, TracerProvider},
};
use opentelemetry_sdk::{
    propagation::TraceContextPropagator,
    trace::{SdkTracer, SdkTracerProvider},
};
use processor_api::ProcessReply;
use tokio::time::Instant;

use crate::metrics::Stage;

/// Makes the spans. Cheap to clone.
#[derive(Clone)]
pub struct Spans {
    tracer: SdkTracer,
    /// Its end would end all spans.
    _provider: SdkTracerProvider,
}

/// The spans of one call that is sampled; its end is that of `processor.process`.
#[derive(Debug)]
pub(crate) struct Trace {
    spans: Spans,
    /// Of `processor.process`.
    context: Context,
}

struct Headers<'a>(&'a HeaderMap);
struct HeadersMut<'a>(&'a mut HeaderMap);

// === impl Spans ===

impl Spans {
    /// By this provider.
    pub fn new(provider: SdkTracerProvider) -> Self {
        Self {
            tracer: provider.tracer("processor"),
            _provider: provider,
        }
    }

    /// The spans of a call that came at `begun`, under the caller's in `headers`; none, if it is not sampled.
    pub(crate) fn begin(&self, headers: &HeaderMap, begun: Instant) -> Option<Trace> {
        let parent =
            TraceContextPropagator::new().extract_with_context(&Context::new(), &Headers(headers));
        let span = SpanBuilder::from_name("processor.process")
            .with_kind(SpanKind::Server)
            .with_start_time(before(SystemTime::now(), begun.elapsed()));
        let span = self.tracer.build_with_context(span, &parent);
        span.is_recording().then(|| Trace {
            spans: self.clone(),
            context: parent.with_span(span),
        })
    }
}

impl fmt::Debug for Spans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spans").finish_non_exhaustive()
    }
}

// === impl Trace ===

impl Trace {
    /// A stage that began at `begun` and took so long.
    pub(crate) fn stage(&self, stage: Stage, begun: Instant, took: Duration) {
        let start = before(SystemTime::now(), begun.elapsed());
        let span = SpanBuilder::from_name(stage.span()).with_start_time(start);
        let mut span = self.spans.tracer.build_with_context(span, &self.context);
        span.end_with_timestamp(start + took);
    }

    /// What others are called with belongs under this call.
    pub(crate) fn inject(&self, headers: &mut HeaderMap) {
        let propagator = TraceContextPropagator::new();
        propagator.inject_context(&self.context, &mut HeadersMut(headers));
    }

    /// The reply is made.
    pub(crate) fn end(self, model: &str, reply: &ProcessReply) {
        let span = self.context.span();
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        span.set_attribute(KeyValue::new("processor.model", model.to_owned()));
        if let Some(ids) = reply.token_count {
            span.set_attribute(KeyValue::new("processor.tokens", count(ids)));
        }
        if !reply.degraded.is_empty() {
            let reasons: Vec<_> = reply.degraded.iter().map(|it| it.reason()).collect();
            let reasons = reasons.join(",");
            span.set_attribute(KeyValue::new("processor.degraded", reasons));
        }
        span.end();
    }
}

fn before(now: SystemTime, ago: Duration) -> SystemTime {
    now.checked_sub(ago).unwrap_or(now)
}

// === impl Headers ===

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(HeaderName::as_str).collect()
    }
}

impl Injector for HeadersMut<'_> {
    fn set(&mut self, key: &str, value: String) {
        let name = HeaderName::from_bytes(key.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(&value)) {
            self.0.insert(name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry_sdk::{
        error::OTelSdkResult,
        trace::{Sampler, SpanData, SpanProcessor},
    };
    use processor_api::Degraded;
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

    fn under(flags: &str) -> HeaderMap {
        let parent = format!("00-{TRACE}-b7ad6b7169203331-{flags}");
        let name = HeaderName::from_static("traceparent");
        HeaderMap::from_iter([(name, HeaderValue::from_str(&parent).unwrap())])
    }

    #[test]
    fn a_sampled_call_has_spans_under_its_caller_and_the_router_is_called_under_them() {
        let (sender, mut ended) = mpsc::channel(9);
        let provider = SdkTracerProvider::builder()
            .with_span_processor(Ended(sender))
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::AlwaysOff)))
            .build();
        let spans = Spans::new(provider);
        let begun = Instant::now();
        assert!(spans.begin(&HeaderMap::new(), begun).is_none());
        assert!(spans.begin(&under("00"), begun).is_none());
        let mut headers = under("01");
        let trace = spans.begin(&headers, begun).unwrap();
        trace.inject(&mut headers);
        trace.stage(Stage::Encode, begun, Duration::from_millis(2));
        let reply = ProcessReply {
            token_count: Some(7),
            degraded: vec![Degraded::NoRouter],
            ..ProcessReply::default()
        };
        trace.end("tiny", &reply);
        let [stage, process] = [ended.try_recv().unwrap(), ended.try_recv().unwrap()];
        let own = process.span_context.span_id();
        let told = headers["traceparent"].to_str().unwrap();
        assert_eq!(told, format!("00-{TRACE}-{own}-01"));
        assert_eq!(
            (&*process.name, process.parent_span_id.to_string().as_str()),
            ("processor.process", "b7ad6b7169203331")
        );
        assert_eq!(
            (&*stage.name, stage.parent_span_id),
            ("processor.encode", own)
        );
        let took = stage.end_time.duration_since(stage.start_time).unwrap();
        assert_eq!(took, Duration::from_millis(2));
        let attributes: Vec<_> = process
            .attributes
            .iter()
            .map(|it| format!("{}={}", it.key, it.value))
            .collect();
        let want = [
            "processor.model=tiny",
            "processor.tokens=7",
            "processor.degraded=no-router",
        ];
        assert_eq!(attributes, want);
    }
}
