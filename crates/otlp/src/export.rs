//! Ended spans on their way to the collector, off the path of requests.

use std::{fmt, time::Duration};

use opentelemetry_sdk::{
    error::OTelSdkResult,
    trace::{SpanData, SpanExporter, SpanProcessor},
};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use tokio::{
    sync::mpsc::{Receiver, Sender},
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

/// Counts spans by what became of them. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SpanMetrics {
    exported: Counter,
    failed: Counter,
    dropped: Counter,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// Puts ended spans into the queue; one that finds no room is dropped.
pub(crate) struct Enqueue {
    pub(crate) spans: Sender<SpanData>,
    pub(crate) metrics: SpanMetrics,
}

/// Sends spans to the collector in batches.
#[derive(Debug)]
pub struct Export<E> {
    pub(crate) exporter: E,
    pub(crate) spans: Receiver<SpanData>,
    /// Spans of one batch.
    pub(crate) batch: usize,
    /// The longest that a span waits for its batch to fill.
    pub(crate) delay: Duration,
    /// For one batch.
    pub(crate) timeout: Duration,
    pub(crate) metrics: SpanMetrics,
    /// The last batch did not arrive, and that was said.
    pub(crate) is_failing: bool,
}

// === impl SpanMetrics ===

impl SpanMetrics {
    /// Registers them; their names begin with that of the program.
    pub fn register(registry: &mut Registry, program: &str) -> Self {
        let spans = Family::<ResultLabel, Counter>::default();
        let by = |result| spans.get_or_create_owned(&ResultLabel { result });
        let metrics = Self {
            exported: by("exported"),
            failed: by("failed"),
            dropped: by("dropped"),
        };
        registry.register(
            format!("{program}_spans"),
            "Spans of traces by what became of them",
            spans,
        );
        metrics
    }
}

// === impl Enqueue ===

impl SpanProcessor for Enqueue {
    fn on_start(&self, _: &mut opentelemetry_sdk::trace::Span, _: &opentelemetry::Context) {}

    fn on_end(&self, span: SpanData) {
        if self.spans.try_send(span).is_err() {
            self.metrics.dropped.inc();
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

impl fmt::Debug for Enqueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Enqueue").finish_non_exhaustive()
    }
}

// === impl Export ===

impl<E: SpanExporter> Export<E> {
    /// Sends spans until `stop`, then those that are left.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut batch = Vec::with_capacity(self.batch);
        while !stop.is_cancelled() {
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.fill(&mut batch) => {}
            }
            self.send(&mut batch).await;
        }
        self.spans.close();
        while self.spans.recv_many(&mut batch, self.batch).await > 0 {
            self.send(&mut batch).await;
        }
    }

    /// Waits until a batch is full, or its first span has waited long enough. What is there stays if this is cancelled.
    async fn fill(&mut self, batch: &mut Vec<SpanData>) {
        if self.spans.recv_many(batch, self.batch).await == 0 {
            std::future::pending::<()>().await; // nobody makes spans any more
        }
        let due = Instant::now() + self.delay;
        while batch.len() < self.batch {
            let room = self.batch - batch.len();
            tokio::select! {
                () = sleep_until(due) => return,
                count = self.spans.recv_many(batch, room) => if count == 0 {
                    return;
                },
            }
        }
    }

    async fn send(&mut self, batch: &mut Vec<SpanData>) {
        if batch.is_empty() {
            return;
        }
        let count = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        let spans = std::mem::replace(batch, Vec::with_capacity(self.batch));
        let error = match timeout(self.timeout, self.exporter.export(spans)).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("no answer within {:?}", self.timeout)),
        };
        match error {
            None => {
                self.metrics.exported.inc_by(count);
                if std::mem::take(&mut self.is_failing) {
                    info!("spans arrive at the collector again");
                }
            }
            Some(error) => {
                self.metrics.failed.inc_by(count);
                if std::mem::replace(&mut self.is_failing, true) {
                    debug!(error, count, "spans lost");
                } else {
                    warn!(
                        error,
                        "spans do not arrive at the collector and are lost; this is said once until they do"
                    );
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        borrow::Cow,
        sync::{
            Arc,
            atomic::{AtomicBool, Ordering},
        },
        time::SystemTime,
    };

    use opentelemetry::{
        InstrumentationScope,
        trace::{SpanContext, SpanId, SpanKind, Status},
    };
    use opentelemetry_sdk::{
        error::OTelSdkError,
        trace::{SpanEvents, SpanLinks},
    };
    use prometheus_client::encoding::text::encode;
    use tokio::sync::mpsc;

    use super::*;

    /// Takes batches, fails, or never answers.
    #[derive(Clone, Debug)]
    struct Collector {
        batches: mpsc::Sender<usize>,
        fails: Arc<AtomicBool>,
        hangs: bool,
    }

    impl SpanExporter for Collector {
        async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
            self.batches.send(batch.len()).await.unwrap();
            if self.hangs {
                std::future::pending::<()>().await;
            }
            if self.fails.load(Ordering::Relaxed) {
                return Err(OTelSdkError::InternalFailure("no".to_owned()));
            }
            Ok(())
        }
    }

    struct Bed {
        enqueue: Enqueue,
        batches: mpsc::Receiver<usize>,
        fails: Arc<AtomicBool>,
        registry: Registry,
        stop: CancellationToken,
        running: tokio::task::JoinSet<()>,
    }

    impl Bed {
        fn start(hangs: bool) -> Self {
            let mut registry = Registry::default();
            let metrics = SpanMetrics::register(&mut registry, "epp");
            let (sender, spans) = mpsc::channel(8);
            let (batch_sender, batches) = mpsc::channel(100);
            let fails = Arc::new(AtomicBool::new(false));
            let export = Export {
                exporter: Collector {
                    batches: batch_sender,
                    fails: Arc::clone(&fails),
                    hangs,
                },
                spans,
                batch: 4,
                delay: Duration::from_secs(5),
                timeout: Duration::from_secs(30),
                metrics: metrics.clone(),
                is_failing: false,
            };
            let stop = CancellationToken::new();
            let mut running = tokio::task::JoinSet::new();
            running.spawn(export.run(stop.clone()));
            let enqueue = Enqueue {
                spans: sender,
                metrics,
            };
            Self {
                enqueue,
                batches,
                fails,
                registry,
                stop,
                running,
            }
        }

        fn end_spans(&self, count: usize) {
            for _ in 0..count {
                self.enqueue.on_end(mk_span());
            }
        }

        fn count(&self, result: &str) -> u64 {
            let mut page = String::new();
            encode(&mut page, &self.registry).unwrap();
            let name = format!("epp_spans_total{{result=\"{result}\"}} ");
            let value = page.lines().find_map(|line| line.strip_prefix(&name));
            value.unwrap().parse().unwrap()
        }
    }

    fn mk_span() -> SpanData {
        SpanData {
            span_context: SpanContext::empty_context(),
            parent_span_id: SpanId::INVALID,
            parent_span_is_remote: false,
            span_kind: SpanKind::Internal,
            name: Cow::Borrowed("s"),
            start_time: SystemTime::UNIX_EPOCH,
            end_time: SystemTime::UNIX_EPOCH,
            attributes: Vec::new(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: InstrumentationScope::default(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_goes_when_it_is_full_or_its_time_is_over_or_at_the_end() {
        let mut bed = Bed::start(false);
        let start = Instant::now();
        bed.end_spans(5);
        assert_eq!(bed.batches.recv().await, Some(4));
        assert_eq!(start.elapsed(), Duration::ZERO);
        assert_eq!(bed.batches.recv().await, Some(1));
        assert_eq!(start.elapsed().as_secs(), 5);
        bed.end_spans(6);
        bed.stop.cancel();
        bed.running.join_next().await.unwrap().unwrap();
        assert_eq!(start.elapsed().as_secs(), 5, "nothing waits at the end");
        assert_eq!(bed.count("exported"), 11);
    }

    #[tokio::test(start_paused = true)]
    async fn spans_that_find_no_room_are_dropped_and_counted() {
        let mut bed = Bed::start(true);
        bed.end_spans(4);
        assert_eq!(bed.batches.recv().await, Some(4), "the collector hangs");
        bed.end_spans(8 + 3);
        assert_eq!(bed.count("dropped"), 3);
        assert_eq!(
            bed.batches.recv().await,
            Some(4),
            "after its time it is given up"
        );
        assert_eq!(bed.count("failed"), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn a_collector_that_fails_loses_its_batches_and_no_more() {
        let mut bed = Bed::start(false);
        for (fails, exported, failed) in [(true, 0, 4), (true, 0, 8), (false, 4, 8)] {
            bed.fails.store(fails, Ordering::Relaxed);
            bed.end_spans(4);
            assert_eq!(bed.batches.recv().await, Some(4));
            tokio::time::sleep(Duration::from_millis(1)).await;
            assert_eq!(
                (bed.count("exported"), bed.count("failed")),
                (exported, failed)
            );
        }
    }
}
