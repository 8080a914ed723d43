//! What the director holds, computed when the page of metrics is asked for.

use std::{fmt, sync::Arc};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
};
use scheduling::Load;

use super::Director;
use crate::metrics::PREFIX_INDEX;

/// Serves the gauges of the prefix index and of the pool's saturation.
#[derive(Debug)]
pub struct DirectorCollector {
    /// Label `inference_pool`.
    pub pool: String,
    /// Whose they are.
    pub director: Arc<Director>,
}

/// Name, help, labels, value.
type Gauge<'a> = (
    &'static str,
    &'static str,
    &'a [(&'static str, &'a str)],
    f64,
);

/// Name, help, value.
type OfLoad = (&'static str, &'static str, fn(&Load) -> f64);

impl Collector for DirectorCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let stats = self.director.prefix_stats();
        let decided = [("inference_pool", self.pool.as_str()), ("stage", "pick")];
        let none: [(&str, &str); 0] = [];
        let gauges: [Gauge<'_>; 3] = [
            (
                "llm_d_epp_prefix_indexer_size",
                "Blocks of prompts that endpoints are believed to have cached",
                &PREFIX_INDEX,
                stats.entries as f64,
            ),
            (
                "epp_prefix_index_bytes",
                "Memory of the prefix index",
                &none,
                stats.bytes as f64,
            ),
            (
                "llm_d_epp_flow_control_pool_saturation",
                "1 and above: the pool takes nothing more",
                &decided,
                self.director.saturation(),
            ),
        ];
        self.encode_endpoints(&mut encoder)?;
        let removed = &self.director.transfers_removed;
        removed.encode(encoder.encode_descriptor(
            "epp_client_transfers_removed",
            "Parameters of KV transfers that clients gave, and that did not go on",
            None,
            removed.metric_type(),
        )?)?;
        for (name, help, labels, value) in gauges {
            let gauge = ConstGauge::new(value);
            let mut metric = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
            gauge.encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

impl DirectorCollector {
    /// What the LLM filter weighs, while there is something that does.
    fn encode_endpoints(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let config = self.director.config();
        if config.llm_filter().is_none() && !config.profile.uses_chunks() {
            return Ok(());
        }
        let snapshot = self.director.pool().snapshot();
        if snapshot.members().is_empty() {
            return Ok(());
        }
        let overlapping = ConstGauge::new(self.director.overlapping() as f64);
        overlapping.encode(encoder.encode_descriptor(
            "llm_overlapping_endpoints",
            "Endpoints that belong to more than one cluster of the LLM filter",
            None,
            MetricType::Gauge,
        )?)?;
        let gauges: [OfLoad; 2] = [
            (
                "llm_endpoint_queue_depth",
                "Unfinished requests of this endpoint picker",
                |load| load.in_flight().into(),
            ),
            (
                "llm_endpoint_prefill_length",
                "Unfinished prefill of prompts, as it is charged: bytes, or tokens with that length_unit",
                |load| load.prefill() as f64,
            ),
        ];
        for (name, help, value) in gauges {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for endpoint in snapshot.endpoints() {
                let node = [("node", endpoint.destination())];
                let gauge = ConstGauge::new(value(endpoint.load()));
                gauge.encode(metric.encode_family(&node)?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::{encoding::text::encode, registry::Registry};

    use super::*;
    use crate::{
        config::{Config, CurrentConfig, Prefix},
        director::{Options, Pool},
    };

    #[test]
    fn an_empty_pool_is_saturated_and_its_index_empty() {
        let prefix = Prefix {
            max_bytes: 1 << 20,
            ..Prefix::default()
        };
        let config = CurrentConfig::new(Config {
            prefix,
            ..Config::default()
        });
        let clock = moment::Clock::start();
        let director = Director::new(Pool::default(), config, Options::default(), clock);
        let mut registry = Registry::default();
        registry.register_collector(Box::new(DirectorCollector {
            pool: "llm".to_owned(),
            director: Arc::new(director),
        }));
        let mut page = String::new();
        encode(&mut page, &registry).unwrap();
        for line in [
            "llm_d_epp_flow_control_pool_saturation{inference_pool=\"llm\",stage=\"pick\"} 1",
            "llm_d_epp_prefix_indexer_size{plugin_name=\"approx-prefix-cache-producer\",plugin_type=\"approx-prefix-cache-producer\"} 0",
            "epp_prefix_index_bytes ",
            "epp_client_transfers_removed_total 0",
        ] {
            assert!(page.contains(line), "{line} is not in {page}");
        }
    }
}
