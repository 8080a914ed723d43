//! What the service counts. All names begin with `router_`.

use std::{fmt, sync::Arc, time::Duration};

use histogram::{Shape, Single};
use kv_router::{NotBooked, Source, Stats, StreamState};
use moment::Clock;
use processor_api::RouteReply;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{
        MetricType,
        counter::{ConstCounter, Counter},
        family::Family,
        gauge::ConstGauge,
    },
    registry::Registry,
};

use crate::{
    debug::{OFF, not_booked},
    fault::Fault,
    pool::{Pool, Worker},
};

#[cfg(test)]
mod tests;

/// 1 us to 10 ms: a choice among some workers takes microseconds, one among a thousand some hundred.
static TIMES: Shape = Shape::nanos(&[
    1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    5_000_000, 10_000_000,
]);

/// Shares: 0, and tenths.
static SHARES: Shape = Shape::thousandths(&[0, 100, 200, 300, 400, 500, 600, 700, 800, 900, 1000]);

/// Series of three metrics for each worker. What comes after them, by name, is left out.
const MAX_WORKERS: usize = 1000;

/// All that is counted. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Counted>);

#[derive(Debug)]
struct Counted {
    decisions: [Counter; 3],
    refused: Family<ReasonLabel, Counter>,
    not_booked: Family<ReasonLabel, Counter>,
    decision_time: Single,
    overlap_ratio: Single,
    overlap_blocks: Counter,
    prompt_blocks: Counter,
    events: Family<EventLabels, Counter>,
    event_gaps: Counter,
    replays: Family<ResultLabel, Counter>,
    bookings_expired: Counter,
    discovery_errors: Family<KindLabel, Counter>,
    refused_connections: Counter,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EventLabels {
    kind: &'static str,
    result: &'static str,
}

/// Sizes, read when the page is asked for.
#[derive(Debug)]
struct Sizes {
    pool: Arc<Pool>,
    clock: Clock,
}

/// Decisions by source; each is there from the start.
#[derive(Debug)]
struct Decisions(Metrics);

/// In the order of their counters.
const SOURCES: [Source; 3] = [Source::Exact, Source::Predicted, Source::None];

const STATES: [StreamState; 6] = [
    StreamState::Connecting,
    StreamState::Live,
    StreamState::Partial,
    StreamState::Replaying,
    StreamState::NoEvents,
    StreamState::BlockSizeMismatch,
];

// === impl Metrics ===

impl Metrics {
    /// Puts them on the page.
    pub fn register(registry: &mut Registry) -> Self {
        let counted = Counted {
            decisions: Default::default(),
            refused: Family::default(),
            not_booked: Family::default(),
            decision_time: Single::new(&TIMES),
            overlap_ratio: Single::new(&SHARES),
            overlap_blocks: Counter::default(),
            prompt_blocks: Counter::default(),
            events: Family::default(),
            event_gaps: Counter::default(),
            replays: Family::default(),
            bookings_expired: Counter::default(),
            discovery_errors: Family::default(),
            refused_connections: Counter::default(),
        };
        let metrics = Self(Arc::new(counted));
        metrics.register_all(registry.sub_registry_with_prefix("router"));
        metrics
    }

    fn register_all(&self, to: &mut Registry) {
        let Counted {
            decisions: _, // by a collector
            refused,
            not_booked,
            decision_time,
            overlap_ratio,
            overlap_blocks,
            prompt_blocks,
            events,
            event_gaps,
            replays,
            bookings_expired,
            discovery_errors,
            refused_connections,
        } = &*self.0;
        to.register_collector(Box::new(Decisions(self.clone())));
        to.register(
            "refused",
            "Calls that were refused, by the reason in the reply",
            refused.clone(),
        );
        to.register(
            "not_booked",
            "Prompts that were sent to a worker without a booking: their end came first, their name was taken, there were too many bookings, the worker went",
            not_booked.clone(),
        );
        to.register(
            "decision_duration_seconds",
            "From the ids of a prompt to its booking at a worker",
            decision_time.clone(),
        );
        to.register(
            "overlap_ratio",
            "Blocks that the chosen worker had, of those of the prompt",
            overlap_ratio.clone(),
        );
        to.register(
            "overlap_blocks",
            "Blocks of prompts that the chosen workers had",
            overlap_blocks.clone(),
        );
        to.register("prompt_blocks", "Blocks of prompts", prompt_blocks.clone());
        to.register(
            "events",
            "KV events of workers by what became of them",
            events.clone(),
        );
        to.register(
            "event_gaps",
            "Times that messages of a worker were missed",
            event_gaps.clone(),
        );
        to.register(
            "replays",
            "Replays that were asked of workers",
            replays.clone(),
        );
        to.register(
            "bookings_expired",
            "Bookings that ended because no message named them",
            bookings_expired.clone(),
        );
        to.register(
            "discovery_errors",
            "Failures to read who the workers are, and objects or entries that are not as they should be",
            discovery_errors.clone(),
        );
        to.register(
            "refused_connections",
            "Connections over the limit of 10000",
            refused_connections.clone(),
        );
    }

    /// Puts the sizes of this pool on the page too.
    pub(crate) fn register_sizes(registry: &mut Registry, pool: Arc<Pool>, clock: Clock) {
        registry.register_collector(Box::new(Sizes { pool, clock }));
    }

    pub(crate) fn decided(&self, source: Source, reply: &RouteReply, took: Duration) {
        let counted = &*self.0;
        let at = SOURCES.iter().position(|it| *it == source);
        if let Some(decisions) = at.and_then(|at| counted.decisions.get(at)) {
            decisions.inc();
        }
        counted.decision_time.observe_nanos(took);
        let (overlap, blocks) = (reply.overlap_blocks as u64, reply.prompt_blocks as u64);
        counted.overlap_blocks.inc_by(overlap);
        counted.prompt_blocks.inc_by(blocks);
        if let Some(share) = (overlap * 1000).checked_div(blocks) {
            counted.overlap_ratio.observe(share);
        }
    }

    pub(crate) fn refused(&self, fault: &Fault) {
        let reason = fault.reason();
        self.0.refused.get_or_create(&ReasonLabel { reason }).inc();
    }

    pub(crate) fn not_booked(&self, why: NotBooked) {
        let reason = not_booked(why);
        let by = &self.0.not_booked;
        by.get_or_create(&ReasonLabel { reason }).inc();
    }

    pub(crate) fn expired(&self, bookings: usize) {
        self.0.bookings_expired.inc_by(bookings as u64);
    }

    pub(crate) fn discovery_failed(&self, kind: &'static str) {
        let by = &self.0.discovery_errors;
        by.get_or_create(&KindLabel { kind }).inc();
    }

    pub(crate) fn events(&self, kind: &'static str, result: &'static str, count: u64) {
        let by = &self.0.events;
        by.get_or_create(&EventLabels { kind, result })
            .inc_by(count);
    }

    pub(crate) fn event_gap(&self) {
        self.0.event_gaps.inc();
    }

    pub(crate) fn replayed(&self, result: &'static str) {
        self.0.replays.get_or_create(&ResultLabel { result }).inc();
    }

    /// Counts connections over the limit.
    pub(crate) fn refused_connections(&self) -> Counter {
        self.0.refused_connections.clone()
    }
}

impl Default for Metrics {
    /// On no page.
    fn default() -> Self {
        Self::register(&mut Registry::default())
    }
}

// === impl Sizes ===

impl Collector for Sizes {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let to = &mut encoder;
        self.workers(to)?;
        self.by_worker(to)?;
        self.index(to)?;
        let bookings = self.pool.workers.loads.bookings();
        one(
            "router_bookings",
            "Prompts that are booked at workers",
            &ConstGauge::new(signed(bookings)),
            to,
        )
    }
}

impl Sizes {
    fn workers(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let table = self.pool.table();
        let ranks = table.workers().iter().flat_map(|it| it.ranks.iter());
        let states: Vec<_> = ranks.map(|rank| rank.events.state()).collect();
        let count = |state| states.iter().filter(|it| **it == state).count();
        let known = STATES.iter().map(|state| (state.name(), Some(*state)));
        let samples = known.chain([(OFF, None)]);
        gauge(
            "router_workers",
            "Workers, a data parallel rank each, by the state of their KV events",
            samples.map(|(name, state)| ([("state", name)], signed(count(state)))),
            to,
        )
    }

    fn by_worker(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (table, now) = (self.pool.table(), self.clock.now());
        let loads = &self.pool.workers.loads;
        let shown = table.workers().iter().take(MAX_WORKERS);
        let load = |worker: &Worker| {
            let ranks = worker.ranks.iter();
            ranks.filter_map(|rank| loads.of(rank.slot, now)).fold(
                (0, 0, 0),
                |(requests, prefill, decode), load| {
                    (
                        requests + u64::from(load.requests),
                        prefill + load.prefill_tokens,
                        decode + load.decode_blocks,
                    )
                },
            )
        };
        let all: Vec<_> = shown.map(|worker| (&*worker.name, load(worker))).collect();
        let of = |take: fn((u64, u64, u64)) -> u64| {
            let samples = all.iter();
            samples.map(move |(name, load)| {
                let value = i64::try_from(take(*load)).unwrap_or(i64::MAX);
                ([("worker", *name)], value)
            })
        };
        let help = "Prompts that are booked at a worker";
        gauge("router_worker_requests", help, of(|it| it.0), to)?;
        let help = "Ids of prompts that a worker has yet to compute";
        gauge("router_worker_prefill_tokens", help, of(|it| it.1), to)?;
        let help = "Different blocks of the prompts at a worker";
        gauge("router_worker_decode_blocks", help, of(|it| it.2), to)
    }

    fn index(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Stats {
            records,
            bytes,
            evicted,
            ..
        } = self.pool.workers.index.stats();
        let predicted = self.pool.workers.loads.blocks();
        gauge(
            "router_index_blocks",
            "Blocks that workers have by their KV events, once for each 64 workers that have them; and of prompts that were sent to them",
            [("exact", records), ("predicted", predicted)]
                .map(|(kind, blocks)| ([("kind", kind)], signed(blocks))),
            to,
        )?;
        one(
            "router_index_bytes",
            "Memory of what workers have by their KV events, their own tables apart",
            &ConstGauge::new(signed(bytes)),
            to,
        )?;
        let mut metric = to.encode_descriptor(
            "router_index_evictions",
            "Blocks that were forgotten because of --index-max-bytes",
            None,
            MetricType::Counter,
        )?;
        ConstCounter::new(evicted).encode(metric.encode_family(&[("cause", "memory")])?)
    }
}

// === impl Decisions ===

impl Collector for Decisions {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut metric = encoder.encode_descriptor(
            "decisions",
            "Prompts that were sent to a worker, by how it was known what that had of them",
            None,
            MetricType::Counter,
        )?;
        for (source, count) in SOURCES.iter().zip(&self.0.0.decisions) {
            let labels = [("source", source.name())];
            ConstCounter::new(count.get()).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

/// A metric without labels.
fn one(
    name: &str,
    help: &str,
    metric: &impl EncodeMetric,
    to: &mut DescriptorEncoder<'_>,
) -> fmt::Result {
    metric.encode(to.encode_descriptor(name, help, None, metric.metric_type())?)
}

fn gauge<L: EncodeLabelSet>(
    name: &str,
    help: &str,
    samples: impl IntoIterator<Item = (L, i64)>,
    to: &mut DescriptorEncoder<'_>,
) -> fmt::Result {
    let mut metric = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in samples {
        ConstGauge::new(value).encode(metric.encode_family(&labels)?)?;
    }
    Ok(())
}

fn signed(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}
