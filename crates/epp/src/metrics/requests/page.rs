//! The page of requests, written when a scrape asks for it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
};

use super::{
    definitions::{DEFINITIONS, Definition},
    labels::{ModelNames, Names, OTHER},
    queued::Outcome,
    series::Row,
    table::{Requests, Sums, Table},
};

/// Under today's names.
const CURRENT: &str = "llm_d_epp";
/// Sets of labels with histograms, those that were used last. A set has some 200 lines of them, under both names: with all of
/// 1000 sets a client that invents labels would make a page of 50 MB.
pub(super) const MAX_HISTOGRAMS: usize = 100;

/// Under the former ones.
const FORMER: &str = "inference_objective";

/// Serves all series under today's names, and their sums under the former ones. A name is on the page once it has a
/// value.
#[derive(Debug)]
pub(in crate::metrics) struct Page(pub(in crate::metrics) Arc<Requests>);

/// Serves what waits of all series. To be registered under the prefix and the labels of flow control.
#[derive(Debug)]
pub(in crate::metrics) struct QueuePage(pub(in crate::metrics) Arc<Requests>);

/// What the table holds at one moment.
struct View {
    /// The rows, the most recently used first.
    rows: Vec<Arc<Row>>,
    models: BTreeMap<ModelNames, Sums>,
}

type Label<'a> = (&'static str, &'a str);

/// Name, help, value.
type QueueGauge = (&'static str, &'static str, fn(&Row) -> u64);

// === impl Page ===

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let view = View::of(&self.0);
        let encoder = &mut encoder;
        view.current(encoder)?;
        view.former(encoder)
    }
}

// === impl QueuePage ===

impl Collector for QueuePage {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let rows = View::rows(&self.0.table.lock());
        let encoder = &mut encoder;
        let gauges: [QueueGauge; 2] = [
            ("queue_size", "Requests that wait", |row| {
                row.queued.load(Relaxed)
            }),
            ("queue_bytes", "Bytes of request bodies that wait", |row| {
                row.queued_bytes.load(Relaxed)
            }),
        ];
        // A series that never waited has no sample.
        let waited = |row: &&Arc<Row>| {
            let ended = row.waits.iter().any(|wait| wait.read().is_some());
            ended || row.queued.load(Relaxed) > 0
        };
        for (name, help, value) in gauges {
            let samples = rows.iter().filter(waited);
            let samples = samples.map(|row| (row.names.labels(), value(row)));
            let kind = MetricType::Gauge;
            write(name, help, kind, samples, encoder, |n, encoder| {
                ConstGauge::new(n).encode(encoder)
            })?;
        }
        let samples = rows.iter().take(MAX_HISTOGRAMS).flat_map(|row| {
            Outcome::ALL.into_iter().filter_map(|outcome| {
                let reading = row.waits[outcome.index()].read()?;
                let mut labels = row.names.labels();
                labels.push(("outcome", outcome.name()));
                Some((labels, reading))
            })
        });
        write(
            "request_queue_duration_seconds",
            "From a request's coming to its leaving the queue, by outcome",
            MetricType::Histogram,
            samples,
            encoder,
            |reading, encoder| reading.encode(encoder),
        )
    }
}

// === impl View ===

impl View {
    /// Only pointers are taken under the lock. A row that leaves the table from then on is read as if it had stayed.
    fn of(requests: &Requests) -> Self {
        let (rows, left) = {
            let table = requests.table.lock();
            let rows = Self::rows(&table);
            let left: Vec<_> = rows
                .iter()
                .filter_map(|row| table.models.get_key_value(&row.names.model))
                .map(|(names, model)| (names.clone(), Arc::clone(&model.left)))
                .collect();
            (rows, left)
        };
        let mut models: BTreeMap<ModelNames, Sums> = BTreeMap::new();
        for (names, left) in left {
            models.entry(names).or_insert_with(|| (*left).clone());
        }
        for row in &rows {
            models.entry(row.names.model.clone()).or_default().add(row);
        }
        Self { rows, models }
    }

    fn rows(table: &Table) -> Vec<Arc<Row>> {
        let series = table.overflow.iter().chain(table.recent.values());
        series.map(|series| Arc::clone(&series.row)).collect()
    }

    fn current(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let totals = self
            .rows
            .iter()
            .map(|row| (row.names.labels(), row.total.load(Relaxed)));
        counter(
            CURRENT,
            "request",
            "Requests sent to a model server",
            totals,
            encoder,
        )?;
        let errors: Vec<_> = self
            .rows
            .iter()
            .flat_map(|row| {
                let errors = row.errors.lock().clone();
                errors
                    .into_iter()
                    .map(move |(status, n)| (row, code(status), n))
            })
            .collect();
        let errors = errors.iter().map(|(row, code, n)| {
            let mut labels = row.names.labels();
            labels.push(("error_code", code));
            (labels, *n)
        });
        counter(
            CURRENT,
            "request_error",
            "Requests that failed, here or at the server, by HTTP status",
            errors,
            encoder,
        )?;
        let running = self
            .rows
            .iter()
            .map(|row| (row.names.labels(), row.running.load(Relaxed)));
        gauge(
            CURRENT,
            "request_running",
            "Requests in flight",
            running,
            encoder,
        )?;
        for definition in &DEFINITIONS {
            let Definition {
                name, help, parts, ..
            } = definition;
            let latest = self.rows.iter().take(MAX_HISTOGRAMS);
            let samples = latest.flat_map(|row| {
                parts.iter().filter_map(|(measure, streaming)| {
                    let reading = row.histograms[measure.index()].read()?;
                    let mut labels = row.names.labels();
                    labels.extend(streaming.map(|streaming| ("streaming", streaming)));
                    Some((labels, reading))
                })
            });
            let name = format!("{CURRENT}_{name}");
            let kind = MetricType::Histogram;
            write(&name, help, kind, samples, encoder, |reading, encoder| {
                reading.encode(encoder)
            })?;
        }
        Ok(())
    }

    fn former(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let totals = self.models.iter().flat_map(|(names, sums)| {
            sums.total.iter().map(|(priority, n)| {
                let mut labels = names.labels();
                labels.push(("priority", priority));
                (labels, *n)
            })
        });
        counter(
            FORMER,
            "request",
            "Requests sent to a model server",
            totals,
            encoder,
        )?;
        let errors: Vec<_> = self
            .models
            .iter()
            .flat_map(|(names, sums)| {
                let errors = sums.errors.iter();
                errors.map(move |(status, n)| (names, code(*status), *n))
            })
            .collect();
        let errors = errors.iter().map(|(names, code, n)| {
            let mut labels = names.labels();
            labels.push(("error_code", code));
            (labels, *n)
        });
        counter(
            FORMER,
            "request_error",
            "Requests that failed, by HTTP status",
            errors,
            encoder,
        )?;
        let mut running: BTreeMap<&str, u64> = BTreeMap::new();
        for row in &self.rows {
            *running.entry(&row.names.model.model).or_default() += row.running.load(Relaxed);
        }
        let running = running
            .into_iter()
            .map(|(model, n)| (vec![("model_name", model)], n));
        gauge(
            FORMER,
            "running_requests",
            "Requests in flight",
            running,
            encoder,
        )?;
        let latest = self.rows.iter().take(MAX_HISTOGRAMS);
        let latest: BTreeSet<&ModelNames> = latest.map(|row| &row.names.model).collect();
        for definition in &DEFINITIONS {
            let Definition {
                former,
                help,
                parts,
                ..
            } = definition;
            let Some(former) = former else { continue };
            let models = self.models.iter();
            let models = models.filter(|(names, _)| latest.contains(names));
            let samples = models.flat_map(|(names, sums)| {
                parts.iter().filter_map(|(measure, _)| {
                    let reading = sums.histograms[measure.index()].as_ref()?;
                    Some((names.labels(), reading))
                })
            });
            let name = format!("{FORMER}_{former}");
            let kind = MetricType::Histogram;
            write(&name, help, kind, samples, encoder, |reading, encoder| {
                reading.encode(encoder)
            })?;
        }
        Ok(())
    }
}

/// `OpenMetrics` adds `_total` to `name`.
fn counter<'a>(
    prefix: &str,
    name: &str,
    help: &str,
    samples: impl Iterator<Item = (Vec<Label<'a>>, u64)>,
    encoder: &mut DescriptorEncoder<'_>,
) -> fmt::Result {
    let name = format!("{prefix}_{name}");
    let kind = MetricType::Counter;
    write(&name, help, kind, samples, encoder, |n, encoder| {
        ConstCounter::new(n).encode(encoder)
    })
}

fn gauge<'a>(
    prefix: &str,
    name: &str,
    help: &str,
    samples: impl Iterator<Item = (Vec<Label<'a>>, u64)>,
    encoder: &mut DescriptorEncoder<'_>,
) -> fmt::Result {
    let name = format!("{prefix}_{name}");
    let kind = MetricType::Gauge;
    write(&name, help, kind, samples, encoder, |n, encoder| {
        ConstGauge::new(n).encode(encoder)
    })
}

/// Nothing for a name without samples.
fn write<'a, T>(
    name: &str,
    help: &str,
    kind: MetricType,
    samples: impl Iterator<Item = (Vec<Label<'a>>, T)>,
    encoder: &mut DescriptorEncoder<'_>,
    encode: impl Fn(T, prometheus_client::encoding::MetricEncoder<'_>) -> fmt::Result,
) -> fmt::Result {
    let mut samples = samples.peekable();
    if samples.peek().is_none() {
        return Ok(());
    }
    let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
    for (labels, value) in samples {
        encode(value, metric.encode_family(&labels)?)?;
    }
    Ok(())
}

fn code(status: u16) -> String {
    match status {
        0 => OTHER.to_owned(),
        status => status.to_string(),
    }
}

// === impl Names ===

impl Names {
    fn labels(&self) -> Vec<Label<'_>> {
        let mut labels = self.model.labels();
        labels.push(("fairness_id", &self.fairness_id));
        labels.push(("priority", &self.priority));
        labels
    }
}

// === impl ModelNames ===

impl ModelNames {
    fn labels(&self) -> Vec<Label<'_>> {
        vec![
            ("model_name", &self.model),
            ("target_model_name", &self.target),
        ]
    }
}
