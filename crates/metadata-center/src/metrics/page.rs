//! The page of metrics.

use std::{fmt, sync::atomic::Ordering::Relaxed};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
};

use super::{Freed, Metrics, Reading, RouteMetrics, STATUSES, Stored};
use crate::route::{Call, PATHS};

/// Writes what is counted.
#[derive(Debug)]
pub(super) struct Page(pub(super) Metrics);

// === impl Page ===

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let to = &mut encoder;
        self.requests(to)?;
        self.engine(to)?;
        let counted = &*self.0.0;
        let counters = [
            (
                "metadata_center_engine_errors",
                "Calls that the engine could not answer",
                &counted.engine_errors,
            ),
            (
                "metadata_center_resync",
                "Batches whose totals differed, so that a full one was asked for",
                &counted.resyncs,
            ),
            (
                "metadata_center_stale_batches",
                "Batches of a lower epoch or an earlier number than the last one",
                &counted.stale_batches,
            ),
            (
                "metadata_center_refused_connections",
                "Connections over the limit of 10000",
                counted.refused_connections.inner(),
            ),
        ];
        for (name, help, counter) in counters {
            one(name, help, &ConstCounter::new(counter.load(Relaxed)), to)?;
        }
        let freed = *counted.freed.lock();
        count(
            "metadata_center_freed",
            "What was freed without a delete: charges of a lease that is over, of an epoch that was replaced, of an instance that ended, left out of a full batch; charges and reservations past their time, chunks of the prompt cache past theirs, unused endpoints and clusters",
            &freed.by_cause(),
            to,
        )?;
        counted.reading.lock().encode(to)
    }
}

impl Page {
    /// Requests by route. A route without a request is not there.
    fn requests(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let known = PATHS.iter().zip(&self.0.0.routes).flat_map(|(path, of)| {
            let name = |(method, _): &(http::Method, Call)| format!("{method} {}", path.template);
            path.calls.iter().map(name).zip(of)
        });
        let other = ("other".to_owned(), &self.0.0.other);
        let routes: Vec<(String, &RouteMetrics)> = known.chain([other]).collect();
        let mut replies = Vec::new();
        for (name, route) in &routes {
            for (status, count) in STATUSES.iter().zip(&route.replies) {
                let count = count.load(Relaxed);
                if count > 0 {
                    let labels = [("route", name.clone()), ("status", status.to_string())];
                    replies.push((labels, count));
                }
            }
        }
        let help = "Requests by method and path, and by the status of the reply";
        count("metadata_center_requests", help, &replies, to)?;
        let mut metric = to.encode_descriptor(
            "metadata_center_request_duration_seconds",
            "From the head of a request to its reply, body and engine included",
            None,
            MetricType::Histogram,
        )?;
        for (name, route) in &routes {
            if let Some(times) = route.time.read() {
                times.encode(metric.encode_family(&[("route", name.as_str())])?)?;
            }
        }
        Ok(())
    }

    fn engine(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut metric = to.encode_descriptor(
            "metadata_center_engine_duration_seconds",
            "What the engine took for a call",
            None,
            MetricType::Histogram,
        )?;
        for (call, times) in Call::ALL.iter().zip(&self.0.0.engine) {
            if let Some(times) = times.read() {
                times.encode(metric.encode_family(&[("op", call.name())])?)?;
            }
        }
        Ok(())
    }
}

// === impl Freed ===

impl Freed {
    fn by_cause(self) -> [([(&'static str, &'static str); 1], u64); 9] {
        let Self {
            lease,
            replaced,
            released,
            left_out,
            expired,
            reservation,
            cache,
            endpoint,
            cluster,
        } = self;
        [
            ([("cause", "lease")], lease),
            ([("cause", "replaced")], replaced),
            ([("cause", "released")], released),
            ([("cause", "left-out")], left_out),
            ([("cause", "expired")], expired),
            ([("cause", "reservation")], reservation),
            ([("cause", "cache")], cache),
            ([("cause", "endpoint")], endpoint),
            ([("cause", "cluster")], cluster),
        ]
    }
}

// === impl Reading ===

impl Reading {
    fn encode(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Self {
            stored,
            cache,
            cache_log,
        } = self;
        one(
            "metadata_center_cache_bytes",
            "Memory of the prompt cache's index",
            &ConstGauge::new(signed(cache.bytes)),
            to,
        )?;
        one(
            "metadata_center_cache_evictions",
            "Chunks of the prompt cache that gave way to others",
            &ConstCounter::new(cache.evictions),
            to,
        )?;
        if let Some(log) = cache_log {
            one(
                "metadata_center_cache_log_lag_seconds",
                "Age of the last entry of the replicas' cache log when this replica read it",
                &ConstGauge::new(log.lag.as_secs_f64()),
                to,
            )?;
            one(
                "metadata_center_cache_append_errors",
                "Saves of prompts that reached no other replica",
                &ConstCounter::new(log.append_errors),
                to,
            )?;
        }
        match stored {
            Some(stored) => stored.encode(to),
            None => Ok(()),
        }
    }
}

// === impl Stored ===

impl Stored {
    fn encode(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Self { sizes, loads } = self;
        let gauges = [
            ("clusters", "Clusters", sizes.clusters),
            ("endpoints", "Endpoints of all clusters", sizes.endpoints),
            (
                // The counter of calls has the name `requests`.
                "charges",
                "Unfinished requests of all clusters, reservations among them",
                sizes.requests,
            ),
            (
                "reservations",
                "Reservations that no batch has confirmed yet",
                sizes.reservations,
            ),
            ("leases", "Leases of instances that report", sizes.leases),
        ];
        for (name, help, value) in gauges {
            let name = format!("metadata_center_{name}");
            one(&name, help, &ConstGauge::new(signed(value)), to)?;
        }
        let engines = sizes.by_cluster.iter().map(|size| {
            let labels = [("model_name", size.cluster.to_string())];
            (labels, signed(size.endpoints))
        });
        let help = "Endpoints of a cluster";
        gauge("model_engine_count", help, engines, to)?;
        let labels = |it: &super::EndpointLoad| {
            [
                ("model_name", it.cluster.to_string()),
                ("engine_ip", it.ip.to_string()),
            ]
        };
        let queued = loads.iter().map(|it| (labels(it), it.queued));
        let help = "Unfinished requests of an endpoint";
        gauge("queued_num", help, queued, to)?;
        let prefill = loads.iter().map(|it| (labels(it), it.prompt_length));
        let help = "Unfinished prefill of an endpoint";
        gauge("prompt_length", help, prefill, to)
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

fn count<L: EncodeLabelSet>(
    name: &str,
    help: &str,
    samples: &[(L, u64)],
    to: &mut DescriptorEncoder<'_>,
) -> fmt::Result {
    let mut metric = to.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (labels, count) in samples {
        ConstCounter::new(*count).encode(metric.encode_family(labels)?)?;
    }
    Ok(())
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
