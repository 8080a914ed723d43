//! Requests per model and flow, under today's names and the former ones.
//!
//! ```text
//!  request ─ series() ─► table of the 1000 most recently used ─┐
//!     └────► Running ──► counts of one series (atomics) ◄──────┴─ page, when a scrape asks for it
//! ```
//!
//! A request looks its series up once, under one short lock, and then counts without any. The former names have fewer
//! labels; their values are sums made for the page. What the series that left the table counted is kept for these sums
//! as long as the model has a series at all, so that no counter of a model on the page goes back.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use moment::Moment;
use parking_lot::Mutex;
use smallvec::SmallVec;

mod definitions;
mod page;

pub(super) use page::Page;

use super::{
    histogram::{Histogram, Reading},
    recent::{Inserted, Recent},
};
use crate::tap::Usage;
use definitions::Measure;

/// Sets of labels, which come from clients: each takes a few KB, and as much of the page.
const MAX_SERIES: usize = 1000;
/// Bytes of one such value: names of models are far shorter, a body may be 64 MiB.
const MAX_VALUE: usize = 256;
/// Stands for a value longer than [`MAX_VALUE`], for all values of a request that finds no place in the table, and for
/// a status that HTTP does not have.
const OTHER: &str = "other";
/// Stands for the model of a request whose body is not read, or whose model is refused.
const UNKNOWN: &str = "unknown";
/// The flow of requests that name none.
const DEFAULT_FLOW: &str = "default-flow";

/// What a request is counted under.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Labels<'a> {
    /// As the client named it. Absent: it is not known, or refused.
    pub model: Option<&'a str>,
    /// As the server is asked for it.
    pub target: Option<&'a str>,
    /// As the client named it.
    pub fairness_id: Option<&'a str>,
    /// Of the request's objective.
    pub priority: i32,
}

/// Where requests of the same labels are counted. It stays on the page as long as somebody holds it.
#[derive(Debug)]
pub(crate) struct Series {
    row: Arc<Row>,
}

/// Counts one request as running until dropped, and what is measured of it.
#[derive(Debug)]
pub(crate) struct Running {
    series: Arc<Series>,
    first_byte: Option<FirstByte>,
    last_chunk: Option<Moment>,
    /// Absent: no part of the response's body was seen.
    response_bytes: Option<u64>,
    output_tokens: u64,
}

#[derive(Clone, Copy, Debug)]
struct FirstByte {
    after: Duration,
    streaming: bool,
}

/// All series.
#[derive(Debug)]
pub(super) struct Requests {
    table: Mutex<Table>,
}

#[derive(Debug)]
struct Table {
    recent: Recent<Arc<Series>>,
    /// Beside the table.
    overflow: Option<Arc<Series>>,
    models: HashMap<ModelNames, Model>,
}

/// A model with a series in the table.
#[derive(Debug, Default)]
struct Model {
    /// How many.
    series: usize,
    /// Of those that left. Shared with a page that is being written.
    left: Arc<Sums>,
}

/// One series of the page. It outlives its place in the table only in a page that is being written.
#[derive(Debug)]
struct Row {
    names: Names,
    total: AtomicU64,
    running: AtomicU64,
    /// By HTTP status; 0 is [`OTHER`].
    errors: Mutex<BTreeMap<u16, u64>>,
    histograms: [Histogram; Measure::ALL.len()],
}

/// Values of the labels.
#[derive(Debug)]
struct Names {
    model: ModelNames,
    fairness_id: Arc<str>,
    priority: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct ModelNames {
    model: Arc<str>,
    target: Arc<str>,
}

/// What several series of one model counted.
#[derive(Clone, Debug, Default)]
struct Sums {
    /// By priority.
    total: BTreeMap<Arc<str>, u64>,
    errors: BTreeMap<u16, u64>,
    histograms: [Option<Reading>; Measure::ALL.len()],
}

// === impl Labels ===

impl Labels<'_> {
    fn bounded(self) -> Self {
        Self {
            model: self.model.map(bounded),
            target: self.target.map(bounded),
            fairness_id: self.fairness_id.map(bounded),
            priority: self.priority,
        }
    }

    fn values(&self) -> [&str; 3] {
        [
            self.model.unwrap_or(UNKNOWN),
            self.target.unwrap_or(UNKNOWN),
            self.fairness_id.unwrap_or(DEFAULT_FLOW),
        ]
    }

    /// The same for the same labels only: each value begins with its length.
    fn key(&self) -> SmallVec<[u8; 128]> {
        let mut key = SmallVec::new();
        for value in self.values() {
            key.extend_from_slice(&value.len().to_le_bytes());
            key.extend_from_slice(value.as_bytes());
        }
        key.extend_from_slice(&self.priority.to_le_bytes());
        key
    }

    fn names(&self) -> Names {
        let [model, target, fairness_id] = self.values();
        let name: Arc<str> = model.into();
        let target = if target == model {
            Arc::clone(&name)
        } else {
            target.into()
        };
        Names {
            model: ModelNames {
                model: name,
                target,
            },
            fairness_id: fairness_id.into(),
            priority: self.priority.to_string().into(),
        }
    }
}

/// `value`, or [`OTHER`] when it is too long to be kept.
fn bounded(value: &str) -> &str {
    if value.len() > MAX_VALUE {
        OTHER
    } else {
        value
    }
}

// === impl Names ===

impl Names {
    fn other() -> Self {
        let other: Arc<str> = OTHER.into();
        Self {
            model: ModelNames {
                model: Arc::clone(&other),
                target: Arc::clone(&other),
            },
            fairness_id: Arc::clone(&other),
            priority: other,
        }
    }
}

// === impl Series ===

impl Series {
    fn new(names: Names) -> Arc<Self> {
        let row = Row {
            names,
            total: AtomicU64::new(0),
            running: AtomicU64::new(0),
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
        Running {
            series: self,
            first_byte: None,
            last_chunk: None,
            response_bytes: None,
            output_tokens: 0,
        }
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

    fn observe(&self, measure: Measure, value: u64) {
        self.row.histograms[measure.index()].observe(value);
    }

    fn observe_time(&self, measure: Measure, time: Duration) {
        self.row.histograms[measure.index()].observe_micros(time);
    }
}

// === impl Running ===

impl Running {
    /// The response failed with this HTTP status.
    pub(crate) fn failed(&self, status: u16) {
        self.series.failed(status);
    }

    /// The first byte of the response's body came this long after the first message. `streaming`: the client wants the
    /// response as events.
    pub(crate) fn first_byte(&mut self, after: Duration, streaming: bool) {
        let measure = if streaming {
            Measure::FirstByteOfStream
        } else {
            Measure::FirstByte
        };
        self.series.observe_time(measure, after);
        self.first_byte = Some(FirstByte { after, streaming });
    }

    /// A part of the response's body came; it may be empty.
    pub(crate) fn chunk(&mut self, bytes: usize, now: Moment) {
        *self.response_bytes.get_or_insert(0) += bytes as u64;
        if bytes == 0 {
            return;
        }
        let streaming = self.first_byte.is_some_and(|first| first.streaming);
        if let Some(last) = self.last_chunk.replace(now).filter(|_| streaming) {
            self.series
                .observe_time(Measure::BetweenChunks, now.since(last));
        }
    }

    /// Whether a byte of the response's body was seen.
    pub(crate) fn has_body(&self) -> bool {
        self.last_chunk.is_some()
    }

    /// What the server says of the request's tokens.
    pub(crate) fn used(&mut self, usage: Usage) {
        let Usage {
            input_tokens,
            output_tokens,
            cached_tokens,
        } = usage;
        self.output_tokens = output_tokens.unwrap_or(self.output_tokens);
        for (measure, tokens) in [
            (Measure::InputTokens, input_tokens.filter(|some| *some > 0)),
            (
                Measure::OutputTokens,
                output_tokens.filter(|some| *some > 0),
            ),
            (Measure::CachedTokens, cached_tokens),
        ] {
            if let Some(tokens) = tokens {
                self.series.observe(measure, tokens);
            }
        }
    }

    /// The request is complete, this long after the first message.
    pub(crate) fn took(self, duration: Duration) {
        let Self {
            series,
            first_byte,
            response_bytes,
            output_tokens,
            last_chunk: _,
        } = &self;
        series.observe_time(Measure::Duration, duration);
        if let Some(bytes) = response_bytes {
            series.observe(Measure::ResponseSize, *bytes);
        }
        if *output_tokens > 0 {
            series.observe_time(Measure::TimePerToken, per(duration, *output_tokens));
        }
        if let Some(first) = first_byte.filter(|first| first.streaming && *output_tokens > 1) {
            let streamed = duration.saturating_sub(first.after);
            series.observe_time(
                Measure::StreamedTimePerToken,
                per(streamed, output_tokens - 1),
            );
        }
    }
}

fn per(duration: Duration, tokens: u64) -> Duration {
    duration / u32::try_from(tokens).unwrap_or(u32::MAX)
}

impl Drop for Running {
    fn drop(&mut self) {
        self.series.row.running.fetch_sub(1, Relaxed);
    }
}

// === impl Requests ===

impl Requests {
    pub(super) fn new() -> Self {
        Self {
            table: Mutex::new(Table {
                recent: Recent::new(MAX_SERIES),
                overflow: None,
                models: HashMap::new(),
            }),
        }
    }

    pub(super) fn series(&self, labels: &Labels<'_>) -> Arc<Series> {
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
    fn add(&mut self, row: &Row) {
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

#[cfg(test)]
mod tests;
