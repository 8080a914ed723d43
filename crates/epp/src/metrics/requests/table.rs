//! All series, of which the most recently used stay, and the sums of those that left.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, atomic::Ordering::Relaxed},
};

use histogram::Reading;
use parking_lot::Mutex;

use super::{
    definitions::Measure,
    labels::{Labels, ModelNames, Names},
    series::{Row, Series},
};
use crate::metrics::recent::{Inserted, Recent};

/// Sets of labels, which come from clients: each takes a few KB, and as much of the page.
pub(super) const MAX_SERIES: usize = 1000;

/// All series.
#[derive(Debug)]
pub(in crate::metrics) struct Requests {
    pub(super) table: Mutex<Table>,
}

#[derive(Debug)]
pub(super) struct Table {
    pub(super) recent: Recent<Arc<Series>>,
    /// Beside the table.
    pub(super) overflow: Option<Arc<Series>>,
    pub(super) models: HashMap<ModelNames, Model>,
}

/// A model with a series in the table.
#[derive(Debug, Default)]
pub(super) struct Model {
    /// How many.
    pub(super) series: usize,
    /// Of those that left. Shared with a page that is being written.
    pub(super) left: Arc<Sums>,
}

/// What several series of one model counted.
#[derive(Clone, Debug, Default)]
pub(super) struct Sums {
    /// By priority.
    pub(super) total: BTreeMap<Arc<str>, u64>,
    pub(super) errors: BTreeMap<u16, u64>,
    pub(super) histograms: [Option<Reading>; Measure::ALL.len()],
}

// === impl Requests ===

impl Requests {
    pub(in crate::metrics) fn new() -> Self {
        Self {
            table: Mutex::new(Table {
                recent: Recent::new(MAX_SERIES),
                overflow: None,
                models: HashMap::new(),
            }),
        }
    }

    pub(in crate::metrics) fn series(&self, labels: &Labels<'_>) -> Arc<Series> {
        let labels = labels.bounded();
        let key = labels.key();
        let (series, left) = self.table.lock().series(&labels, &key);
        drop(left); // its memory is given back without the lock
        series
    }
}

// === impl Table ===

impl Table {
    /// The series of these labels, and one that left the table for it.
    fn series(&mut self, labels: &Labels<'_>, key: &[u8]) -> (Arc<Series>, Option<Arc<Series>>) {
        if let Some(known) = self.recent.get(key) {
            return (Arc::clone(known), None);
        }
        let series = Series::new(labels.names());
        // Handles are made under this lock only: what nobody else holds now has no request and gets none.
        let in_use = |series: &Arc<Series>| Arc::strong_count(series) > 1;
        let left = match self.recent.insert(key, Arc::clone(&series), in_use) {
            Inserted::Added => None,
            Inserted::Replaced(left) => {
                self.remove_from_model(&left);
                Some(left)
            }
            Inserted::Refused(_) => return (self.overflow(), None),
        };
        self.add_to_model(&series);
        (series, left)
    }

    fn overflow(&mut self) -> Arc<Series> {
        if let Some(overflow) = &self.overflow {
            return Arc::clone(overflow);
        }
        let overflow = Series::new(Names::other());
        self.add_to_model(&overflow);
        self.overflow = Some(Arc::clone(&overflow));
        overflow
    }

    fn add_to_model(&mut self, series: &Series) {
        let model = series.row.names.model.clone();
        self.models.entry(model).or_default().series += 1;
    }

    fn remove_from_model(&mut self, left: &Series) {
        let names = &left.row.names.model;
        let Some(model) = self.models.get_mut(names) else {
            return;
        };
        model.series -= 1;
        if model.series == 0 {
            self.models.remove(names);
        } else {
            Arc::make_mut(&mut model.left).add(&left.row);
        }
    }
}

// === impl Sums ===

impl Sums {
    pub(super) fn add(&mut self, row: &Row) {
        let priority = Arc::clone(&row.names.priority);
        *self.total.entry(priority).or_default() += row.total.load(Relaxed);
        for (status, count) in row.errors.lock().iter() {
            *self.errors.entry(*status).or_default() += count;
        }
        for (sum, histogram) in self.histograms.iter_mut().zip(&row.histograms) {
            match (sum, histogram.read()) {
                (Some(sum), Some(reading)) => sum.add(&reading),
                (sum @ None, reading) => *sum = reading,
                (Some(_), None) => {}
            }
        }
    }
}
