//! The pool as its members are, computed when the page is asked for.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::gauge::ConstGauge,
};
use scheduling::{Averages, Endpoint, Freshness, Quality};

use crate::{budget::Budget, director::Pool};
use moment::Clock;

/// Serves the pool's gauges under `llm_d_epp_` and, for older dashboards, `inference_pool_`.
#[derive(Debug)]
pub struct PoolCollector {
    /// Label `name`.
    pub name: String,
    /// The members.
    pub pool: Pool,
    /// How long scraped values count.
    pub freshness: Freshness,
    /// Time.
    pub clock: Clock,
    /// Memory of request bodies.
    pub budget: Budget,
}

// === impl PoolCollector ===

impl PoolCollector {
    fn averages(
        &self,
        prefix: &str,
        averages: Averages,
        encoder: &mut DescriptorEncoder<'_>,
    ) -> fmt::Result {
        // The queue as the servers tell it: these names mean that elsewhere too.
        let Averages {
            waiting: _,
            scraped_waiting,
            running,
            kv,
        } = averages;
        let gauges = [
            (
                "average_kv_cache_utilization",
                "Mean used share of the KV caches, 0 to 1",
                kv,
            ),
            (
                "average_queue_size",
                "Mean number of waiting requests",
                scraped_waiting,
            ),
            (
                "average_running_requests",
                "Mean number of running requests",
                running,
            ),
        ];
        for (name, help, value) in gauges {
            self.gauge(&format!("{prefix}_{name}"), help, value, encoder)?;
        }
        Ok(())
    }

    fn gauge(
        &self,
        name: &str,
        help: &str,
        value: f64,
        encoder: &mut DescriptorEncoder<'_>,
    ) -> fmt::Result {
        let gauge = ConstGauge::new(value);
        let mut metric = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
        gauge.encode(metric.encode_family(&[("name", self.name.as_str())])?)
    }

    fn queues(
        &self,
        name: &str,
        label: &str,
        members: &[(&Endpoint, f64)],
        encoder: &mut DescriptorEncoder<'_>,
    ) -> fmt::Result {
        let help = "Waiting requests of one endpoint";
        let kind = ConstGauge::new(0.0).metric_type();
        let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
        for (endpoint, waiting) in members {
            let labels = [
                ("name", self.name.clone()),
                (label, endpoint.id().to_string()),
            ];
            ConstGauge::new(*waiting).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

impl Collector for PoolCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let snapshot = self.pool.snapshot();
        let table = snapshot.read(self.clock.now(), self.freshness);
        let averages = Averages::of(&table);
        let count = table.len() as f64;
        let encoder = &mut encoder;
        self.gauge(
            "llm_d_epp_ready_endpoints",
            "Ready endpoints of the pool",
            count,
            encoder,
        )?;
        self.gauge(
            "inference_pool_ready_pods",
            "Ready endpoints of the pool",
            count,
            encoder,
        )?;
        self.averages("llm_d_epp", averages, encoder)?;
        self.averages("inference_pool", averages, encoder)?;

        let endpoints = snapshot.endpoints().map(AsRef::as_ref);
        let waiting = table.scraped_waiting.iter().copied();
        let members: Vec<_> = endpoints.zip(waiting).collect();
        self.queues(
            "llm_d_epp_per_endpoint_queue_size",
            "model_server_endpoint",
            &members,
            encoder,
        )?;
        self.queues(
            "inference_pool_per_pod_queue_size",
            "model_server_pod",
            &members,
            encoder,
        )?;

        let kind = ConstGauge::new(0.0).metric_type();
        let help = "Endpoints by how much their metrics can be trusted";
        let mut metric = encoder.encode_descriptor("epp_endpoints", help, None, kind)?;
        for quality in Quality::ALL {
            let count = table.quality.iter().filter(|one| **one == quality).count();
            ConstGauge::new(count as f64)
                .encode(metric.encode_family(&[("quality", quality.name())])?)?;
        }
        let gauge = ConstGauge::new(self.budget.used() as f64);
        let help = "Bytes of request bodies held";
        gauge.encode(encoder.encode_descriptor(
            "epp_buffered_bytes",
            help,
            None,
            gauge.metric_type(),
        )?)
    }
}
