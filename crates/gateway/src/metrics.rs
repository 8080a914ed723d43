//! Metrics, one struct per module that counts.

use std::fmt;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use lease::Claim;
use moment::Clock;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelSet, EncodeLabelValue, EncodeMetric, LabelValueEncoder,
};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::model::{Import, Readiness};
use crate::select::{Health, Selection};
use crate::xds::Kind;
use crate::xds::ads::proxies::Proxy;
use crate::xds::proto::discovery::DeltaDiscoveryResponse;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TypeLabel {
    r#type: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DeniedLabel {
    reason: Denied,
}

/// Why a connection or stream of ADS is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Denied {
    /// The certificate is of no Gateway, or of another one.
    Identity,
    /// Too many connections.
    Connections,
    /// Too many streams of one Gateway.
    Streams,
    /// Too many names on one stream, or on all of a Gateway.
    Names,
    /// No memory for a connection or for names: that of all Gateways is in use.
    Memory,
    /// Too much at once that is to be read.
    Requests,
    /// No answer to a response, while others wait for it.
    Responses,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WriteLabel {
    kind: &'static str,
    result: WriteResult,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ProxyLabel {
    gateway: String,
    version: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ImportLabel {
    namespace: String,
    name: String,
    state: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ShareLabel {
    namespace: String,
    name: String,
    cluster: String,
}

/// How a write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum WriteResult {
    Written,
    /// The object said so already.
    Unneeded,
    /// The object is gone.
    Gone,
    Failed,
}

/// Counted on ADS streams.
#[derive(Clone, Default)]
pub(crate) struct AdsMetrics {
    responses: Family<TypeLabel, Counter>,
    bytes: Family<TypeLabel, Counter>,
    nacks: Family<TypeLabel, Counter>,
    denied: Family<DeniedLabel, Counter>,
}

/// Counted where objects are written.
#[derive(Clone, Default)]
pub(crate) struct WriteMetrics {
    writes: Family<WriteLabel, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// Counted where the clusters of imports are observed.
#[derive(Clone, Default)]
pub(crate) struct ObserveMetrics {
    probes: Family<ResultLabel, Counter>,
    scrapes: Family<ResultLabel, Counter>,
}

/// Set when the model is built.
#[derive(Clone)]
pub(crate) struct ModelMetrics {
    build: Histogram,
    proxies: Family<ProxyLabel, Gauge<i64, AtomicI64>>,
    clusters: Family<ImportLabel, Gauge<i64, AtomicI64>>,
    shares: Family<ShareLabel, Gauge<i64, AtomicI64>>,
}

/// Whether this replica is the one that writes, as the registry sees it.
#[derive(Debug)]
pub(crate) struct Leader {
    claim: Claim,
    clock: Clock,
}

// === impl Leader ===

impl Leader {
    pub(crate) fn new(claim: Claim, clock: Clock) -> Self {
        Self { claim, clock }
    }
}

impl Collector for Leader {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let is_leader = self.claim.is_valid(self.clock.now());
        let gauge = ConstGauge::new(i64::from(is_leader));
        let help = "1 in the replica that writes status and what runs Envoys";
        let metric =
            encoder.encode_descriptor("gateway_leader", help, None, gauge.metric_type())?;
        gauge.encode(metric)
    }
}

// === impl AdsMetrics ===

impl AdsMetrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let Self {
            responses,
            bytes,
            nacks,
            denied,
        } = metrics.clone();
        registry.register(
            "gateway_xds_responses",
            "ADS responses sent to Envoys",
            responses,
        );
        registry.register_with_unit(
            "gateway_xds",
            "Size of ADS responses sent to Envoys",
            Unit::Bytes,
            bytes,
        );
        registry.register("gateway_xds_nacks", "Resources that Envoys refused", nacks);
        registry.register(
            "gateway_xds_denied",
            "Connections and streams of ADS that were not served, by reason",
            denied,
        );
        // a rate needs a zero before the first count
        for kind in Kind::ALL {
            let label = TypeLabel {
                r#type: kind.as_str(),
            };
            metrics.nacks.get_or_create(&label).inc_by(0);
        }
        metrics
    }

    pub(crate) fn denied(&self, reason: Denied) {
        self.denied.get_or_create(&DeniedLabel { reason }).inc();
    }

    #[cfg(test)]
    pub(crate) fn denied_so_far(&self, reason: Denied) -> u64 {
        self.denied.get_or_create(&DeniedLabel { reason }).get()
    }

    pub(crate) fn sent(&self, response: &DeltaDiscoveryResponse) {
        let kind = Kind::of_type_url(&response.type_url).map_or("other", Kind::as_str);
        let label = TypeLabel { r#type: kind };
        self.responses.get_or_create(&label).inc();
        let size = prost::Message::encoded_len(response);
        let size = u64::try_from(size).unwrap_or(u64::MAX);
        self.bytes.get_or_create(&label).inc_by(size);
    }

    pub(crate) fn refused(&self, kind: Kind) {
        let label = TypeLabel {
            r#type: kind.as_str(),
        };
        self.nacks.get_or_create(&label).inc();
    }
}

// === impl WriteMetrics ===

impl WriteMetrics {
    /// `what`: `status` or `infra`.
    pub(crate) fn register(registry: &mut Registry, what: &str) -> Self {
        let metrics = Self::default();
        registry.register(
            format!("gateway_{what}_writes"),
            format!("Writes of {what} to the API server"),
            metrics.writes.clone(),
        );
        metrics
    }

    pub(crate) fn count(&self, kind: &'static str, result: WriteResult) {
        self.writes
            .get_or_create(&WriteLabel { kind, result })
            .inc();
    }
}

// === impl ObserveMetrics ===

impl ObserveMetrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "gateway_probes",
            "Health probes of exporting clusters, by result",
            metrics.probes.clone(),
        );
        registry.register(
            "gateway_scrapes",
            "Scrapes of the metrics of exporting clusters' endpoint pickers, by result",
            metrics.scrapes.clone(),
        );
        metrics
    }

    pub(crate) fn probed(&self, succeeded: bool) {
        self.probes.get_or_create(&ResultLabel::of(succeeded)).inc();
    }

    pub(crate) fn scraped(&self, succeeded: bool) {
        let label = ResultLabel::of(succeeded);
        self.scrapes.get_or_create(&label).inc();
    }
}

impl ResultLabel {
    fn of(succeeded: bool) -> Self {
        Self {
            result: if succeeded { "success" } else { "failure" },
        }
    }
}

impl EncodeLabelValue for Denied {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        let text = match self {
            Self::Identity => "identity",
            Self::Connections => "connections",
            Self::Streams => "streams",
            Self::Names => "names",
            Self::Memory => "memory",
            Self::Requests => "requests",
            Self::Responses => "responses",
        };
        text.encode(encoder)
    }
}

impl EncodeLabelValue for WriteResult {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        let text = match self {
            Self::Written => "written",
            Self::Unneeded => "unneeded",
            Self::Gone => "gone",
            Self::Failed => "failed",
        };
        text.encode(encoder)
    }
}

// === impl ModelMetrics ===

impl ModelMetrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        // From a small cluster's tenths of a millisecond to ten times the figure for 1000 routes.
        let buckets = [0.0001, 0.0005, 0.001, 0.005, 0.01, 0.02, 0.05, 0.2];
        let metrics = Self {
            build: Histogram::new(buckets),
            proxies: Family::default(),
            clusters: Family::default(),
            shares: Family::default(),
        };
        let Self {
            build,
            proxies,
            clusters,
            shares,
        } = metrics.clone();
        registry.register_with_unit(
            "gateway_build_duration",
            "Time from the world to the snapshots of all Gateways",
            Unit::Seconds,
            build,
        );
        registry.register("gateway_proxies", "Connected Envoys", proxies);
        registry.register(
            "gateway_import_clusters",
            "Exporting clusters of imports in use, by state: usable, Draining, Unhealthy or why not",
            clusters,
        );
        registry.register(
            "gateway_import_share",
            "Share of new requests of an import that each exporting cluster gets, in permille",
            shares,
        );
        metrics
    }

    pub(crate) fn built(&self, took: Duration) {
        self.build.observe(took.as_secs_f64());
    }

    pub(crate) fn connected(&self, proxies: &[Proxy]) {
        self.proxies.clear();
        for proxy in proxies {
            let label = ProxyLabel {
                gateway: proxy.gateway.to_string(),
                version: proxy.version.clone(),
            };
            self.proxies.get_or_create(&label).inc();
        }
    }

    pub(crate) fn imports<'a>(
        &self,
        imports: impl Iterator<Item = &'a Import>,
        selection: &Selection,
    ) {
        self.clusters.clear();
        self.shares.clear();
        for import in imports {
            let (namespace, name) = (&import.key.namespace, &import.key.name);
            for cluster in &import.clusters {
                let assigned = selection.of(&import.key, &cluster.name);
                let state = match (cluster.eligible(), &cluster.readiness, assigned) {
                    (Err(why), ..) => why.label(),
                    (Ok(_), Readiness::Draining { .. }, _) => "Draining",
                    (Ok(_), _, Some(one)) if one.health == Health::Unhealthy => "Unhealthy",
                    (Ok(_), ..) => "usable",
                };
                let label = ImportLabel {
                    namespace: namespace.clone(),
                    name: name.clone(),
                    state: state.to_owned(),
                };
                self.clusters.get_or_create(&label).inc();
                if cluster.eligible().is_err() {
                    continue;
                }
                let label = ShareLabel {
                    namespace: namespace.clone(),
                    name: name.clone(),
                    cluster: cluster.name.clone(),
                };
                let share = assigned.filter(|one| one.health == Health::Healthy);
                let share = share.map_or(0, |one| one.weight);
                self.shares.get_or_create(&label).set(share.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use lease::ByHand;
    use prometheus_client::encoding::text::encode;

    use super::*;

    /// All that the program serves, with a value each.
    fn page() -> String {
        let mut registry = Registry::default();
        let ads = AdsMetrics::register(&mut registry);
        ads.refused(Kind::Cluster);
        ads.denied(Denied::Identity);
        ads.sent(&DeltaDiscoveryResponse::default());
        let observed = ObserveMetrics::register(&mut registry);
        observed.probed(true);
        observed.scraped(false);
        for what in ["status", "infra"] {
            WriteMetrics::register(&mut registry, what).count("Gateway", WriteResult::Failed);
        }
        let model = ModelMetrics::register(&mut registry);
        model.built(Duration::from_millis(1));
        let text = |text: &str| text.to_owned();
        let proxy = ProxyLabel {
            gateway: text("ns/gw"),
            version: text("1"),
        };
        model.proxies.get_or_create(&proxy).inc();
        let clusters = ImportLabel {
            namespace: text("ns"),
            name: text("llm"),
            state: text("usable"),
        };
        model.clusters.get_or_create(&clusters).inc();
        let share = ShareLabel {
            namespace: text("ns"),
            name: text("llm"),
            cluster: text("east"),
        };
        model.shares.get_or_create(&share).inc();
        let leader = Leader::new(Claim::always(), Clock::start());
        registry.register_collector(Box::new(leader));
        let mut page = String::new();
        encode(&mut page, &registry).expect("encodes");
        page
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_holds_the_lease_leads_until_it_runs_out() {
        let clock = Clock::start();
        let (hand, claim) = ByHand::new(clock);
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Leader::new(claim, clock)));
        let says = |wanted: &str| {
            let mut page = String::new();
            encode(&mut page, &registry).expect("encodes");
            assert!(
                page.contains(&format!("\ngateway_leader {wanted}\n")),
                "{page}"
            );
        };
        says("0");
        hand.hold(Duration::from_secs(10));
        says("1");
        tokio::time::advance(Duration::from_secs(10)).await;
        says("0");
    }

    #[test]
    fn dashboard_and_alerts_name_what_is_served_and_the_runbook_has_each_alert() {
        let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/isthmus");
        let checked = process::queries::check(&chart, "gateway", "Gateway", &page());
        checked.unwrap_or_else(|faults| panic!("{faults}"));
    }
}
