//! What operations cost, and how full a cache in memory is.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use histogram::{Histogram, Shape};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
};

use crate::{error::StoreError, store::Inner};

/// 5 us to 1 s: in memory some microseconds, over a network some hundred, and none may take longer than 200 ms.
static TIMES: Shape = Shape::nanos(&[
    5_000,
    25_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    200_000_000,
    400_000_000,
    1_000_000_000,
]);

/// What an operation comes to where it does not fail.
const SUCCESSES: [&str; 5] = ["stored", "same", "hit", "miss", "deleted"];

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Put = 0,
    Get = 1,
    Delete = 2,
}

/// Operations by what they came to, without a lock.
#[derive(Debug)]
pub(crate) struct Operations {
    results: [[AtomicU64; SUCCESSES.len() + StoreError::REASONS.len()]; Verb::ALL.len()],
    times: [Histogram; Verb::ALL.len()],
}

/// Serves `token_cache_*`, computed when the page is asked for.
#[derive(Debug)]
pub(crate) struct CacheCollector(pub(crate) Arc<Inner>);

// === impl Verb ===

impl Verb {
    const ALL: [Self; 3] = [Self::Put, Self::Get, Self::Delete];

    fn label(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Get => "get",
            Self::Delete => "delete",
        }
    }
}

// === impl Operations ===

impl Operations {
    pub(crate) fn new() -> Self {
        Self {
            results: Verb::ALL.map(|_| std::array::from_fn(|_| AtomicU64::new(0))),
            times: Verb::ALL.map(|_| Histogram::new(&TIMES)),
        }
    }

    pub(crate) fn count(&self, verb: Verb, result: &'static str, took: Duration) {
        let place = results().position(|it| it == result);
        let row = self.results.get(verb as usize);
        if let Some(count) = row.zip(place).and_then(|(row, place)| row.get(place)) {
            count.fetch_add(1, Relaxed);
        }
        if let Some(times) = self.times.get(verb as usize) {
            times.observe(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        }
    }

    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut family = encoder.encode_descriptor(
            "token_cache_operations",
            "Operations of the token cache by what they came to",
            None,
            MetricType::Counter,
        )?;
        for (verb, row) in Verb::ALL.into_iter().zip(&self.results) {
            for (result, count) in results().zip(row) {
                let count = count.load(Relaxed);
                if count > 0 {
                    let labels = [("op", verb.label()), ("result", result)];
                    ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
                }
            }
        }
        let mut family = encoder.encode_descriptor(
            "token_cache_operation_duration_seconds",
            "How long operations of the token cache took",
            None,
            MetricType::Histogram,
        )?;
        for (verb, times) in Verb::ALL.into_iter().zip(&self.times) {
            if let Some(reading) = times.read() {
                reading.encode(family.encode_family(&[("op", verb.label())])?)?;
            }
        }
        Ok(())
    }
}

fn results() -> impl Iterator<Item = &'static str> {
    SUCCESSES.into_iter().chain(StoreError::REASONS)
}

// === impl CacheCollector ===

impl Collector for CacheCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.0.operations.encode(&mut encoder)?;
        let Some(sizes) = self.0.sizes() else {
            return Ok(());
        };
        let gauges = [
            (
                "token_cache_bytes",
                "Bytes that entries of the token cache in memory take",
                sizes.bytes,
            ),
            (
                "token_cache_entries",
                "Entries of the token cache in memory",
                sizes.entries,
            ),
        ];
        for (name, help, value) in gauges {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            let metric = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
            gauge.encode(metric)?;
        }
        let mut family = encoder.encode_descriptor(
            "token_cache_evictions",
            "Entries of the token cache in memory that nobody deleted, by why they went",
            None,
            MetricType::Counter,
        )?;
        let causes = [
            ("expired", sizes.evictions.expired),
            ("full", sizes.evictions.full),
        ];
        for (cause, count) in causes {
            let labels = [("cause", cause)];
            ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
