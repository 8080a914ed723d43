//! A histogram of times that is counted in without a lock.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use prometheus_client::encoding::{MetricEncoder, NoLabelSet};

/// In microseconds: 250 us to 5 s. A pick is to take 1 ms at the median and at most 100 ms; other calls 500 ms.
const BOUNDS: [u64; 14] = [
    250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 5_000_000,
];

#[derive(Debug, Default)]
pub(crate) struct Histogram {
    /// Each without those below it; the last is of what is longer.
    buckets: [AtomicU64; BOUNDS.len() + 1],
    /// Microseconds: lasts 584,000 years.
    sum: AtomicU64,
}

// === impl Histogram ===

impl Histogram {
    pub(crate) fn observe(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let at = BOUNDS.partition_point(|bound| *bound < micros);
        if let Some(bucket) = self.buckets.get(at) {
            bucket.fetch_add(1, Relaxed);
        }
        self.sum.fetch_add(micros, Relaxed);
    }

    pub(crate) fn count(&self) -> u64 {
        self.buckets.iter().map(|it| it.load(Relaxed)).sum()
    }

    pub(crate) fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let bounds = BOUNDS.iter().map(|bound| *bound as f64 / 1e6);
        let counts = self.buckets.iter().map(|it| it.load(Relaxed));
        let buckets: Vec<_> = bounds.chain([f64::INFINITY]).zip(counts).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = self.sum.load(Relaxed) as f64 / 1e6;
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }
}
