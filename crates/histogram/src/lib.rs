//! Histograms for a page of metrics that are counted in without a lock and take no memory before their first value.
//!
//! They know nothing of labels: who has several keeps them, and encodes a [`Reading`] of each.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use prometheus_client::{
    encoding::{EncodeMetric, MetricEncoder, NoLabelSet},
    metrics::MetricType,
};

/// Times the last bound, the most that one value adds to the sum: 2^64 then leaves room for 10^10 such values, whatever
/// a server says of its tokens.
const MAX_BOUNDS: u64 = 1024;

/// Buckets and unit of a histogram.
#[derive(Debug)]
pub struct Shape {
    /// Upper bounds, included, ascending, in the unit of the values.
    bounds: &'static [u64],
    /// How many units of the values make one of the page.
    per_page_unit: f64,
}

/// Counts values.
#[derive(Debug)]
pub struct Histogram {
    shape: &'static Shape,
    cells: OnceLock<Cells>,
}

#[derive(Debug)]
struct Cells {
    /// One more than there are bounds.
    buckets: Box<[AtomicU64]>,
    sum: AtomicU64,
}

/// A reading of one histogram, or of several of one shape.
#[derive(Clone, Debug)]
pub struct Reading {
    shape: &'static Shape,
    /// Each without the ones below it.
    buckets: Vec<u64>,
    sum: u64,
}

/// A histogram without labels.
#[derive(Clone, Debug)]
pub struct Single(Arc<Histogram>);

// === impl Shape ===

impl Shape {
    /// Values are microseconds, the page has seconds. A sum of microseconds lasts 58 years at 10,000 requests in flight.
    pub const fn micros(bounds: &'static [u64]) -> Self {
        Self {
            bounds,
            per_page_unit: 1e6,
        }
    }

    /// Values are nanoseconds, the page has seconds.
    pub const fn nanos(bounds: &'static [u64]) -> Self {
        Self {
            bounds,
            per_page_unit: 1e9,
        }
    }

    /// Values are thousandths, the page has ones.
    pub const fn thousandths(bounds: &'static [u64]) -> Self {
        Self {
            bounds,
            per_page_unit: 1e3,
        }
    }

    /// Values are bytes or tokens.
    pub const fn units(bounds: &'static [u64]) -> Self {
        Self {
            bounds,
            per_page_unit: 1.0,
        }
    }
}

// === impl Histogram ===

impl Histogram {
    /// Without a value.
    pub fn new(shape: &'static Shape) -> Self {
        Self {
            shape,
            cells: OnceLock::new(),
        }
    }

    /// Counts a value, in the unit of the bounds.
    pub fn observe(&self, value: u64) {
        let Shape { bounds, .. } = self.shape;
        let cells = self.cells.get_or_init(|| Cells {
            buckets: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0),
        });
        let most = bounds
            .last()
            .map_or(value, |last| last.saturating_mul(MAX_BOUNDS));
        let bucket = bounds.partition_point(|bound| *bound < value);
        if let Some(bucket) = cells.buckets.get(bucket) {
            bucket.fetch_add(1, Relaxed);
        }
        cells.sum.fetch_add(value.min(most), Relaxed);
    }

    /// Counts a time, in microseconds.
    pub fn observe_micros(&self, time: Duration) {
        self.observe(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }

    /// What was counted; absent: nothing yet.
    pub fn read(&self) -> Option<Reading> {
        let Cells { buckets, sum } = self.cells.get()?;
        Some(Reading {
            shape: self.shape,
            buckets: buckets.iter().map(|bucket| bucket.load(Relaxed)).collect(),
            sum: sum.load(Relaxed),
        })
    }
}

// === impl Reading ===

impl Reading {
    /// Adds a reading of the same shape.
    pub fn add(&mut self, other: &Self) {
        for (bucket, more) in self.buckets.iter_mut().zip(&other.buckets) {
            *bucket += more;
        }
        self.sum = self.sum.wrapping_add(other.sum);
    }

    /// Writes it to a page.
    ///
    /// # Errors
    /// Those of the page.
    pub fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let Shape {
            bounds,
            per_page_unit,
        } = self.shape;
        let bounds = bounds.iter().map(|bound| *bound as f64 / per_page_unit);
        let buckets: Vec<_> = bounds
            .chain([f64::INFINITY])
            .zip(self.buckets.iter().copied())
            .collect();
        let count = self.buckets.iter().sum();
        let sum = self.sum as f64 / per_page_unit;
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }
}

// === impl Single ===

impl Single {
    /// Without a value.
    pub fn new(shape: &'static Shape) -> Self {
        Self(Arc::new(Histogram::new(shape)))
    }

    /// Counts a value, in the unit of the bounds.
    pub fn observe(&self, value: u64) {
        self.0.observe(value);
    }

    /// Counts a time, in nanoseconds.
    pub fn observe_nanos(&self, time: Duration) {
        self.0
            .observe(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Counts a time, in microseconds.
    pub fn observe_micros(&self, time: Duration) {
        self.0.observe_micros(time);
    }
}

impl EncodeMetric for Single {
    fn encode(&self, encoder: MetricEncoder<'_>) -> fmt::Result {
        let nothing = || Reading {
            shape: self.0.shape,
            buckets: vec![0; self.0.shape.bounds.len() + 1],
            sum: 0,
        };
        self.0.read().unwrap_or_else(nothing).encode(encoder)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::{encoding::text::encode, registry::Registry};

    use super::*;

    static SHAPE: Shape = Shape::micros(&[500, 1_000_000]);

    fn page(histogram: &Single) -> String {
        let mut registry = Registry::default();
        registry.register("h", "help", histogram.clone());
        let mut page = String::new();
        encode(&mut page, &registry).unwrap();
        page
    }

    #[test]
    fn a_value_counts_in_the_first_bucket_that_holds_it() {
        let histogram = Single::new(&SHAPE);
        for micros in [500, 501, 1_000_000, 3_000_000] {
            histogram.observe_micros(Duration::from_micros(micros));
        }
        let page = page(&histogram);
        for line in [
            "h_bucket{le=\"0.0005\"} 1\n",
            "h_bucket{le=\"1.0\"} 3\n",
            "h_bucket{le=\"+Inf\"} 4\n",
            "h_count 4\n",
            "h_sum 4.001001\n",
        ] {
            assert!(page.contains(line), "{line} is not in {page}");
        }
    }

    #[test]
    fn a_senseless_value_does_not_wrap_the_sum() {
        let histogram = Single::new(&SHAPE);
        histogram.0.observe(u64::MAX);
        histogram.0.observe(u64::MAX);
        let page = page(&histogram);
        assert!(page.contains("h_sum 2048.0\n"), "{page}");
    }

    #[test]
    fn a_histogram_takes_no_memory_before_its_first_value() {
        let histogram = Histogram::new(&SHAPE);
        assert!(histogram.read().is_none());
        assert!(histogram.cells.get().is_none());
    }
}
