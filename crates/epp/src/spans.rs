//! Spans of requests: `gateway.request` of the whole, `epp.queue` of the wait, `epp.external` of the question to a Processor,
//! `epp.pick` of the choice; under the LLM filter also `llm.rule`, `llm.hash` and, where a Metadata-Center is asked,
//! `metadata.pick`.
//!
//! ```text
//!  stream ─► RequestTrace ─► SDK span ─ end ─► bounded queue ─► Export (a task) ─► collector
//! ```
//!
//! A request that is not sampled has no trace: it costs the look at `traceparent` and two random numbers.

use std::{
    borrow::Cow,
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use opentelemetry::{
    Context, KeyValue,
    propagation::{Extractor, TextMapPropagator},
    trace::{Span, SpanBuilder, SpanKind, Status, TraceContextExt, Tracer, TracerProvider},
};
use opentelemetry_sdk::{
    propagation::TraceContextPropagator,
    trace::{SdkTracer, SdkTracerProvider},
};

use otlp::SpanExporter;
pub use otlp::{Export, Setup, SetupError, SpanMetrics};

use crate::{
    extproc::{Answer, RequestHead},
    llm::{LlmRequest, Phases},
    reject::Reject,
};
use moment::Moment;

/// Bytes of a text that a client chose.
const MAX_TEXT: usize = 256;

const MODEL: &str = "gen_ai.request.model";
const POOL: &str = "epp.pool";
const ENDPOINT: &str = "epp.endpoint";
const SCORE_CACHED: &str = "epp.prefix.cached_tokens";
const REASON: &str = "epp.reason";
const OUTCOME: &str = "epp.external.outcome";
const STATUS: &str = "http.response.status_code";

/// Makes the traces of one pool's requests. Cheap to clone.
#[derive(Clone)]
pub struct Tracing {
    tracer: SdkTracer,
    /// Its end would end all spans.
    _provider: SdkTracerProvider,
    pool: Arc<str>,
}

/// The spans of one request that is sampled; its end is that of `gateway.request`.
pub(crate) struct RequestTrace {
    tracing: Tracing,
    /// Of `gateway.request`.
    context: Context,
    queue: Option<opentelemetry_sdk::trace::Span>,
    external: Option<opentelemetry_sdk::trace::Span>,
}

struct Head<'a>(&'a RequestHead);

// === impl Tracing ===

impl Tracing {
    /// What makes traces of the requests of `pool`, and what sends them. To be called where tokio runs; nothing is sent
    /// yet.
    ///
    /// # Errors
    /// [`SetupError`] where the endpoint or another variable of the exporter makes no sense.
    pub fn begin(
        setup: &Setup,
        pool: &str,
        metrics: SpanMetrics,
    ) -> Result<(Self, Export<SpanExporter>), SetupError> {
        let (provider, export) = setup.build("epp", metrics)?;
        Ok((Self::new(provider, pool), export))
    }

    pub(crate) fn new(provider: SdkTracerProvider, pool: &str) -> Self {
        Self {
            tracer: provider.tracer("epp"),
            _provider: provider,
            pool: pool.into(),
        }
    }

    /// The trace of a request that began `ago`; none, if it is not sampled.
    pub(crate) fn request(&self, head: &RequestHead, ago: Duration) -> Option<Box<RequestTrace>> {
        let parent =
            TraceContextPropagator::new().extract_with_context(&Context::new(), &Head(head));
        let span = SpanBuilder::from_name("gateway.request")
            .with_kind(SpanKind::Server)
            .with_start_time(before(ago));
        let mut span = self.tracer.build_with_context(span, &parent);
        if !span.is_recording() {
            return None;
        }
        span.set_attribute(KeyValue::new(POOL, Arc::clone(&self.pool)));
        Some(Box::new(RequestTrace {
            tracing: self.clone(),
            context: parent.with_span(span),
            queue: None,
            external: None,
        }))
    }
}

impl fmt::Debug for Tracing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracing")
            .field("pool", &self.pool)
            .finish_non_exhaustive()
    }
}

// === impl RequestTrace ===

impl RequestTrace {
    /// The model is known.
    pub(crate) fn model(&self, model: &str) {
        let model = shortened(model).to_owned();
        self.context
            .span()
            .set_attribute(KeyValue::new(MODEL, model));
    }

    /// The request waits from now on.
    pub(crate) fn queued(&mut self) {
        self.queue = Some(self.child("epp.queue", Duration::ZERO));
    }

    /// A Processor is asked about it: the `traceparent` of what that does.
    pub(crate) fn staged(&mut self) -> String {
        drop(self.queue.take());
        let span = self.child("epp.external", Duration::ZERO);
        let context = span.span_context();
        let (trace, id) = (context.trace_id(), context.span_id());
        let parent = format!("00-{trace}-{id}-{:02x}", context.trace_flags());
        self.external = Some(span);
        parent
    }

    /// It was asked, and this came of it.
    pub(crate) fn stage_ends(&mut self, told: &'static str) {
        if let Some(mut span) = self.external.take() {
            span.set_attribute(KeyValue::new(OUTCOME, told));
        }
    }

    /// It was picked for, which took `scheduling`, or refused.
    pub(crate) fn decided(&mut self, decision: &Result<Box<Answer>, Reject>, now: Moment) {
        let waited = self.queue.take();
        match decision {
            Ok(answer) => {
                drop(waited);
                if let Some(llm) = &answer.llm {
                    self.phases(llm, now);
                }
                let mut pick = self.child("epp.pick", answer.scheduling);
                if let Some(first) = answer.endpoints.first() {
                    let endpoint = KeyValue::new(ENDPOINT, first.destination().to_owned());
                    pick.set_attribute(endpoint.clone());
                    self.context.span().set_attribute(endpoint);
                }
                if let Some(prefix) = answer.prefix {
                    pick.set_attribute(KeyValue::new(SCORE_CACHED, i64::from(prefix.cached)));
                }
            }
            Err(reject) => {
                // What refused it is where the time went: the queue, or the choice.
                let mut span = waited.unwrap_or_else(|| self.child("epp.pick", Duration::ZERO));
                span.set_attribute(KeyValue::new(REASON, reject.reason()));
                span.set_status(Status::error(reject.reason()));
            }
        }
    }

    /// The parts of a decision under the LLM filter, which are over.
    fn phases(&self, llm: &LlmRequest, now: Moment) {
        let Phases { rule, hash, asked } = llm.phases;
        let place = KeyValue::new("llm.rule", llm.found.rule.place.to_string());
        let chunks = i64::try_from(llm.hashes().len()).unwrap_or(i64::MAX);
        let chunks = KeyValue::new("llm.prompt.chunks", chunks);
        let missing = llm.asked.missing.unwrap_or_default();
        let missing = KeyValue::new("metadata.degraded", missing);
        let phases = [
            ("llm.rule", rule, place),
            ("llm.hash", hash, chunks),
            ("metadata.pick", asked, missing),
        ];
        for (name, times, attribute) in phases {
            if let Some([from, to]) = times {
                let mut span = self.child(name, now.since(from));
                span.set_attribute(attribute);
                span.end_with_timestamp(before(now.since(to)));
            }
        }
    }

    /// The request is answered here instead of going on.
    pub(crate) fn refused(&self, reject: &Reject) {
        let span = self.context.span();
        span.set_attribute(KeyValue::new(REASON, reject.reason()));
        span.set_attribute(KeyValue::new(STATUS, i64::from(reject.status())));
        span.set_status(Status::error(Cow::Borrowed(reject.reason())));
    }

    /// The server responds. As for all servers, only 5xx are errors of this span.
    pub(crate) fn responding(&self, status: u16) {
        let span = self.context.span();
        span.set_attribute(KeyValue::new(STATUS, i64::from(status)));
        if status >= 500 {
            span.set_status(Status::error("the model server failed"));
        }
    }

    /// Another endpoint than the picked one responds.
    pub(crate) fn served_by(&self, address: std::net::SocketAddr) {
        let endpoint = KeyValue::new(ENDPOINT, address.to_string());
        self.context.span().set_attribute(endpoint);
    }

    fn child(&self, name: &'static str, ago: Duration) -> opentelemetry_sdk::trace::Span {
        let span = SpanBuilder::from_name(name).with_start_time(before(ago));
        let mut span = self.tracing.tracer.build_with_context(span, &self.context);
        span.set_attribute(KeyValue::new(POOL, Arc::clone(&self.tracing.pool)));
        span
    }
}

impl Drop for RequestTrace {
    fn drop(&mut self) {
        // children end before their parent
        drop(self.queue.take());
        drop(self.external.take());
        self.context.span().end();
    }
}

// === impl Head ===

impl Extractor for Head<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.field(&[key])
    }

    fn keys(&self) -> Vec<&str> {
        Vec::new()
    }
}

fn before(ago: Duration) -> SystemTime {
    let now = opentelemetry::time::now();
    now.checked_sub(ago).unwrap_or(now)
}

/// At most [`MAX_TEXT`] bytes of a text.
fn shortened(text: &str) -> &str {
    let mut end = text.len().min(MAX_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn what_a_processor_does_belongs_to_the_span_of_its_question() {
        let tracing = Tracing::new(SdkTracerProvider::builder().build(), "llm");
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        let parent = format!("00-{trace}-00f067aa0ba902b7-01");
        let head = RequestHead {
            fields: vec![(Bytes::from("traceparent"), Bytes::from(parent.clone()))],
            ..RequestHead::default()
        };
        let mut request = tracing.request(&head, Duration::ZERO).unwrap();
        let given = request.staged();
        request.stage_ends("replied");
        let parts: Vec<_> = given.split('-').collect();
        let &[version, of, span, flags] = &*parts else {
            panic!("{given}")
        };
        assert_eq!((version, of, flags, span.len()), ("00", trace, "01", 16));
        assert_ne!(given, parent, "a span of its own");
    }
}
