//! What is counted of the requests of one set of labels.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::Mutex;

use super::{
    definitions::{Measure, WAITS},
    labels::Names,
    queued::Outcome,
    running::Running,
};
use histogram::Histogram;

/// Where requests of the same labels are counted. It stays on the page as long as somebody holds it.
#[derive(Debug)]
pub(crate) struct Series {
    pub(super) row: Arc<Row>,
}

/// One series of the page. It outlives its place in the table only in a page that is being written.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) names: Names,
    pub(super) total: AtomicU64,
    pub(super) running: AtomicU64,
    /// In the queue.
    pub(super) queued: AtomicU64,
    /// Bytes of their bodies.
    pub(super) queued_bytes: AtomicU64,
    /// Times in the queue, by outcome.
    pub(super) waits: [Histogram; Outcome::ALL.len()],
    /// By HTTP status; 0 is any that HTTP does not have.
    pub(super) errors: Mutex<BTreeMap<u16, u64>>,
    pub(super) histograms: [Histogram; Measure::ALL.len()],
}

// === impl Series ===

impl Series {
    pub(super) fn new(names: Names) -> Arc<Self> {
        let row = Row {
            names,
            total: AtomicU64::new(0),
            running: AtomicU64::new(0),
            queued: AtomicU64::new(0),
            queued_bytes: AtomicU64::new(0),
            waits: Outcome::ALL.map(|_| Histogram::new(&WAITS)),
            errors: Mutex::default(),
            histograms: Measure::ALL.map(|measure| Histogram::new(measure.shape())),
        };
        Arc::new(Self { row: Arc::new(row) })
    }

    /// A request begins. `bytes`: the size of its body; 0 is not counted as a size, as the body may just not be seen.
    pub(crate) fn begin(self: Arc<Self>, bytes: usize) -> Running {
        self.row.total.fetch_add(1, Relaxed);
        self.row.running.fetch_add(1, Relaxed);
        if bytes > 0 {
            self.observe(Measure::RequestSize, bytes as u64);
        }
        Running::new(self)
    }

    /// A request failed with this HTTP status.
    pub(crate) fn failed(&self, status: u16) {
        let status = if (100..600).contains(&status) {
            status
        } else {
            0
        };
        *self.row.errors.lock().entry(status).or_default() += 1;
    }

    pub(super) fn observe(&self, measure: Measure, value: u64) {
        self.row.histograms[measure.index()].observe(value);
    }

    pub(super) fn observe_time(&self, measure: Measure, time: Duration) {
        self.row.histograms[measure.index()].observe_micros(time);
    }
}
