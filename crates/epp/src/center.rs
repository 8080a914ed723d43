//! The Metadata-Center, as decisions and requests of this endpoint picker use it: picks are made there, and what becomes of
//! requests is reported there.

use std::{collections::BTreeMap, fmt, net::SocketAddr, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use futures::{FutureExt, future::BoxFuture};
use http::HeaderValue;
use metadata::{
    Cluster, RequestId,
    wire::{
        cache::{PromptHash, Save},
        load::PromptLength,
        pick::{Pick, Picks},
    },
};
use metadata_client::{
    Api, Charges, Client, ClientCollector, Degraded, HostError, Http, Plaintext, Settings, Tasks,
    TooManyClusters, Trace,
};
use moment::Clock;
use parking_lot::Mutex;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
};
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::{args::CenterSettings, director::PickElsewhere, llm::TraceId};

/// How long the last reports may take when the program ends.
const FLUSH: Duration = Duration::from_secs(2);

/// Picks and reports through a Metadata-Center.
#[derive(Debug)]
pub(crate) struct Center {
    client: Client<Http>,
    /// Prompt caches count.
    uses_caches: bool,
    /// By cluster; written when a cluster has its first request.
    charges: ArcSwap<BTreeMap<Cluster, Charges>>,
    /// Held while it is written.
    adding: Mutex<Warned>,
}

/// That more clusters are named than there can be.
type Warned = Option<Instant>;

/// Serves `llm_degraded`.
struct DegradedCollector(Client<Http>);

// === impl Center ===

impl Center {
    /// Nothing is called before the tasks run. `epoch_ms`: milliseconds since 1970.
    ///
    /// # Errors
    /// [`HostError`] for a host that cannot stand in a URL.
    pub(crate) fn new(
        settings: &CenterSettings,
        epoch_ms: u64,
        clock: Clock,
    ) -> Result<(Self, Tasks<Http>), HostError> {
        let transport = Http::new(&settings.host, settings.port, Api::Isthmus, Plaintext)?;
        let client = Settings {
            api: Api::Isthmus,
            timeout: settings.timeout,
            async_timeout: settings.async_timeout,
            queue_size: settings.queue_size,
            workers: settings.workers,
            instance: settings.instance.clone(),
            epoch: epoch_ms,
            lease: settings.lease,
            flush: FLUSH,
        };
        let (client, tasks) = Client::new(client, transport, clock);
        let center = Self {
            client,
            uses_caches: settings.cache_enabled,
            charges: ArcSwap::default(),
            adding: Mutex::default(),
        };
        Ok((center, tasks))
    }

    /// Serves `epp_metadata_*`.
    pub(crate) fn collector(&self) -> ClientCollector<Http> {
        self.client.collector()
    }

    /// Serves `llm_degraded`.
    pub(crate) fn degraded(&self) -> impl Collector + 'static {
        DegradedCollector(self.client.clone())
    }

    fn with_charges(&self, cluster: &Cluster, report: impl FnOnce(&Charges)) {
        if let Some(charges) = self.charges.load().get(cluster) {
            return report(charges);
        }
        match self.add(cluster) {
            Ok(charges) => report(&charges),
            Err(error) => {
                let mut warned = self.adding.lock();
                let now = Instant::now();
                if warned.is_none_or(|it| now - it >= Duration::from_secs(1)) {
                    *warned = Some(now);
                    warn!(%cluster, %error, "requests are not reported");
                }
            }
        }
    }

    fn add(&self, cluster: &Cluster) -> Result<Charges, TooManyClusters> {
        let _adding = self.adding.lock();
        let charges = self.client.charges(cluster)?;
        let mut all = BTreeMap::clone(&self.charges.load());
        all.insert(cluster.clone(), charges.clone());
        self.charges.store(Arc::new(all));
        Ok(charges)
    }
}

impl PickElsewhere for Center {
    fn pick(
        &self,
        mut pick: Pick,
        trace_id: Option<&TraceId>,
    ) -> BoxFuture<'static, Option<Picks>> {
        if !self.uses_caches {
            pick.params.cache_aware_enable = false;
            pick.prompt_hash = PromptHash::default();
        }
        let id = trace_id.and_then(|id| HeaderValue::from_str(id.as_str()).ok());
        let trace = Trace { id, parent: None };
        let client = self.client.clone();
        async move {
            let picks = client.pick(&pick, &trace).await;
            let picks = picks.inspect_err(|error| {
                debug!(reason = error.reason(), %error, "picked without the Metadata-Center");
            });
            picks.ok()
        }
        .boxed()
    }

    fn discard(&self, cluster: &Cluster, request: &RequestId) {
        self.with_charges(cluster, |charges| charges.end(request, true));
    }

    fn charge(&self, cluster: &Cluster, request: &RequestId, endpoint: SocketAddr, prefill: u64) {
        let prefill = i64::try_from(prefill).unwrap_or(i64::MAX);
        let prefill = prefill.min(i32::MAX.into());
        let prefill = PromptLength::try_from(prefill).unwrap_or_default();
        // Whoever made the pick: a reservation may have been made where the answer was lost.
        self.with_charges(cluster, |charges| {
            charges.put(request.clone(), endpoint.into(), prefill, true);
        });
    }

    fn prefilled(&self, cluster: &Cluster, request: &RequestId) {
        self.with_charges(cluster, |charges| charges.prompt_done(request));
    }

    fn end(&self, cluster: &Cluster, request: &RequestId) {
        self.with_charges(cluster, |charges| charges.end(request, true));
    }

    fn save(&self, cluster: &Cluster, endpoint: SocketAddr, hashes: &[u64], capacity: Option<u32>) {
        if self.uses_caches {
            self.client.save(Save {
                cluster: cluster.clone(),
                prompt_hash: hashes.to_vec().into(),
                ip: endpoint.into(),
                ttl_s: None,
                capacity,
            });
        }
    }

    fn forget(&self, endpoint: SocketAddr) {
        for cluster in self.charges.load().keys() {
            self.client.purge(cluster.clone(), endpoint.into());
        }
    }
}

// === impl DegradedCollector ===

impl Collector for DegradedCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut metric = encoder.encode_descriptor(
            "llm_degraded",
            "1 while the Metadata-Center does not give this: picks are made without it",
            None,
            MetricType::Gauge,
        )?;
        for (kind, is_missing) in self.0.degraded() {
            let value = ConstGauge::new(i64::from(is_missing));
            value.encode(metric.encode_family(&[("kind", Degraded::kind(kind))])?)?;
        }
        Ok(())
    }
}

impl fmt::Debug for DegradedCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DegradedCollector").finish_non_exhaustive()
    }
}
