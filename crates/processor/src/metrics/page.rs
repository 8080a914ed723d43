//! The part of the page that is read when it is asked for.

use std::{fmt, sync::Arc};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::Unit,
};
use tokenization::SegmentCache;

use super::{Metrics, Stage};
use crate::{encoders::Encoders, models::Models};

/// Reads it.
#[derive(Debug)]
pub(crate) struct Page {
    pub(super) metrics: Metrics,
    pub(super) models: Models,
    pub(super) encoders: Arc<Encoders>,
    pub(super) cache: SegmentCache,
}

// === impl Page ===

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let to = &mut encoder;
        let mut stages = to.encode_descriptor(
            "processor_stage_duration_seconds",
            "What a stage took: the wait for a thread, render, encode, route, store",
            None,
            MetricType::Histogram,
        )?;
        for (stage, times) in Stage::ALL.iter().zip(&*self.metrics.stages) {
            if let Some(times) = times.read() {
                times.encode(stages.encode_family(&[("stage", stage.name())])?)?;
            }
        }
        let bytes = self.cache.encoded();
        counters(
            "processor_encode_bytes",
            "Bytes of text whose ids were made: cold by the tokenizer, or known from the segment cache",
            "source",
            &[("cold", bytes.cold), ("cached", bytes.cached)],
            to,
        )?;
        gauge(
            "processor_segment_cache",
            "Memory of the segment cache",
            Some(&Unit::Bytes),
            self.cache.bytes(),
            to,
        )?;
        let waiting = u64::try_from(self.encoders.waiting()).unwrap_or(u64::MAX);
        gauge(
            "processor_queue_depth",
            "Calls that wait for a thread to be rendered and encoded on",
            None,
            waiting,
            to,
        )?;
        let mut failed = Vec::new();
        self.models.for_each(|name, model| {
            failed.push((name.to_owned(), model.verify_failed()));
        });
        let failed: Vec<_> = failed
            .iter()
            .map(|(name, count)| (&**name, *count))
            .collect();
        counters(
            "processor_segment_verify_failed",
            "Prompts that had other ids in parts than as a whole: the model's prompts are encoded whole since",
            "model",
            &failed,
            to,
        )?;
        counters(
            "processor_catalogue_loads",
            "Loads of the models file: ok, or failed and the former one is in force",
            "result",
            &self.metrics.catalogue.read(),
            to,
        )?;
        let (loaded, failed) = self.models.counts();
        let mut models = to.encode_descriptor(
            "processor_models",
            "Models of the catalogue: loaded, or failed",
            None,
            MetricType::Gauge,
        )?;
        for (state, count) in [("loaded", loaded), ("failed", failed)] {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            let labels = [("state", state)];
            ConstGauge::new(count).encode(models.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

fn gauge(
    name: &str,
    help: &str,
    unit: Option<&Unit>,
    value: u64,
    to: &mut DescriptorEncoder<'_>,
) -> fmt::Result {
    let value = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
    let encoder = to.encode_descriptor(name, help, unit, value.metric_type())?;
    value.encode(encoder)
}

fn counters(
    name: &str,
    help: &str,
    label: &str,
    values: &[(&str, u64)],
    to: &mut DescriptorEncoder<'_>,
) -> fmt::Result {
    let mut family = to.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (value, count) in values {
        let labels = [(label, *value)];
        ConstCounter::new(*count).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}
