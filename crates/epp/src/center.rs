//! The Metadata-Center, as decisions and requests of this endpoint picker use it: picks are made there, and what becomes of
//! requests is reported there.

mod security;

use std::{collections::BTreeMap, fmt, net::SocketAddr, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use futures::{
    FutureExt,
    future::{BoxFuture, ready},
};
use http::HeaderValue;
use metadata::{
    Address, Cluster, RequestId, Sum, choose,
    wire::{cache::Save, load::PromptLength, pick::Pick},
};
use metadata_client::{
    Api, Asked, Charges, Client, ClientCollector, Degraded, Http, Settings, Tasks, TooManyClusters,
    Trace, View,
};
use moment::Clock;
use parking_lot::Mutex;
use process::ConfigError;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
};
use scheduling::inference_lb::Row;
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::{
    args::{CenterApi, CenterEndpointId, CenterFallback, CenterSettings},
    director::{PickElsewhere, ReplyElsewhere},
    llm::{AskedElsewhere, TraceId},
};
pub(crate) use security::Reloads;

/// How long the last reports may take when the program ends.
const FLUSH: Duration = Duration::from_secs(2);

/// Picks and reports through a Metadata-Center.
#[derive(Debug)]
pub(crate) struct Center {
    client: Client<Http>,
    api: Api,
    endpoint_id: CenterEndpointId,
    /// Whether own requests and prompts count where the service returns no load or no caches.
    own_counts: bool,
    timeout: Duration,
    clock: Clock,
    /// By cluster; written when a cluster has its first request.
    charges: ArcSwap<BTreeMap<Cluster, Charges>>,
    /// Held while it is written.
    adding: Mutex<Warned>,
}

/// What is to run for it.
pub(crate) struct CenterTasks {
    pub(crate) client: Tasks<Http>,
    pub(crate) reloads: Reloads,
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
    /// For a host that cannot stand in a URL, and files that cannot be used.
    pub(crate) fn new(
        settings: &CenterSettings,
        epoch_ms: u64,
        clock: Clock,
    ) -> Result<(Self, CenterTasks), ConfigError> {
        let api = match settings.api {
            CenterApi::Isthmus => Api::Isthmus,
            CenterApi::Compat => Api::Compat,
        };
        let (transport, reloads) = security::transport(settings, api)?;
        let client = Settings {
            api,
            caches: settings.cache_enabled,
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
            api,
            endpoint_id: settings.endpoint_id,
            own_counts: settings.fallback == CenterFallback::Own,
            timeout: settings.timeout,
            clock,
            charges: ArcSwap::default(),
            adding: Mutex::default(),
        };
        let tasks = CenterTasks {
            client: tasks,
            reloads,
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

    /// What requests of the cluster report through; none: too many clusters are named, which is warned of.
    fn charges(&self, cluster: &Cluster) -> Option<Charges> {
        if let Some(charges) = self.charges.load().get(cluster) {
            return Some(charges.clone());
        }
        match self.add(cluster) {
            Ok(charges) => Some(charges),
            Err(error) => {
                let mut warned = self.adding.lock();
                let now = Instant::now();
                if warned.is_none_or(|it| now - it >= Duration::from_secs(1)) {
                    *warned = Some(now);
                    warn!(%cluster, %error, "requests are not reported");
                }
                None
            }
        }
    }

    fn with_charges(&self, cluster: &Cluster, report: impl FnOnce(&Charges)) {
        if let Some(charges) = self.charges.load().get(cluster) {
            return report(charges);
        }
        if let Some(charges) = self.charges(cluster) {
            report(&charges);
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
    fn name(&self, endpoint: SocketAddr) -> Address {
        match self.endpoint_id {
            CenterEndpointId::Address => endpoint.into(),
            CenterEndpointId::Ip => endpoint.ip().into(),
        }
    }

    fn within(&self) -> Duration {
        self.timeout
    }

    fn uses_own_caches(&self) -> bool {
        self.api == Api::Compat && self.own_counts
    }

    fn pick(
        &self,
        pick: Pick,
        own_cached: Vec<u32>,
        trace_id: Option<&TraceId>,
        trace_parent: Option<&str>,
    ) -> BoxFuture<'static, ReplyElsewhere> {
        let header = |text: &str| HeaderValue::from_str(text).ok();
        let trace = Trace {
            id: trace_id.and_then(|id| header(id.as_str())),
            parent: trace_parent.and_then(header),
        };
        let client = self.client.clone();
        match self.api {
            Api::Isthmus => pick_there(client, pick, trace, self.clock).boxed(),
            Api::Compat => match self.charges(&pick.cluster) {
                Some(charges) => {
                    let own_cached = self.own_counts.then_some(own_cached);
                    pick_by_view(client, charges, pick, own_cached, trace).boxed()
                }
                None => ready(ReplyElsewhere::default()).boxed(),
            },
        }
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
            charges.put(request.clone(), self.name(endpoint), prefill, true);
        });
    }

    fn prefilled(&self, cluster: &Cluster, request: &RequestId) {
        self.with_charges(cluster, |charges| charges.prompt_done(request));
    }

    fn end(&self, cluster: &Cluster, request: &RequestId) {
        self.with_charges(cluster, |charges| charges.end(request, true));
    }

    fn save(&self, cluster: &Cluster, endpoint: SocketAddr, hashes: &[u64], capacity: Option<u32>) {
        // The former service knows neither.
        let capacity = capacity.filter(|_| self.api == Api::Isthmus);
        self.client.save(Save {
            cluster: cluster.clone(),
            prompt_hash: hashes.to_vec().into(),
            ip: self.name(endpoint),
            ttl_s: None,
            capacity,
        });
    }

    fn forget(&self, endpoint: SocketAddr) {
        for cluster in self.charges.load().keys() {
            self.client.purge(cluster.clone(), self.name(endpoint));
        }
    }
}

/// A pick and its reservation in one call.
async fn pick_there(
    client: Client<Http>,
    pick: Pick,
    trace: Trace,
    clock: Clock,
) -> ReplyElsewhere {
    let start = clock.now();
    let picks = client.pick(&pick, &trace).await;
    let took = clock.now().since(start);
    let picks = picks.inspect_err(|error| {
        debug!(reason = error.reason(), %error, "picked without the Metadata-Center");
    });
    let missing = picks.is_err().then(|| Degraded::Both.kind());
    ReplyElsewhere {
        picks: picks.ok(),
        asked: AskedElsewhere {
            load: pick.params.load_aware_enable.then_some(took),
            cache: pick.params.cache_aware_enable.then_some(took),
            missing,
        },
    }
}

/// The choice is made here, by what a service knows that does not pick itself. Where it gives nothing of what is asked for,
/// there is no choice; where it does not give load or caches, own requests or prompts count, or none. `own_cached`: by candidate how
/// many chunks of the prompt it has from here; none: nothing of our own counts.
async fn pick_by_view(
    client: Client<Http>,
    charges: Charges,
    pick: Pick,
    own_cached: Option<Vec<u32>>,
    trace: Trace,
) -> ReplyElsewhere {
    let params = &pick.params;
    let ips: Vec<_> = pick.candidates.iter().map(|it| it.ip).collect();
    let uses_prompt = params.cache_aware_enable && !pick.prompt_hash.hashes().is_empty();
    let asked = Asked {
        ips: &ips,
        load: params.load_aware_enable,
        prompt: uses_prompt.then_some(&pick.prompt_hash),
    };
    let view = client.view(&charges, &asked, &trace).await;
    let errors = [view.load.as_ref().err(), view.matched.as_ref().err()];
    for error in errors.into_iter().flatten() {
        debug!(reason = error.reason(), %error, "picked without an answer of the Metadata-Center");
    }
    let asked = AskedElsewhere {
        load: view.load_took,
        cache: view.matched_took,
        missing: view.degraded().map(Degraded::kind),
    };
    let rows = rows(view, own_cached);
    ReplyElsewhere {
        picks: rows.and_then(|rows| choose(&pick, &rows, &mut rand::rng())),
        asked,
    }
}

/// What is known of each endpoint; none if the service returned nothing of what was requested. Where it returned no
/// load or no caches, own requests or prompts count, or none do.
fn rows(view: View, own_cached: Option<Vec<u32>>) -> Option<Vec<Row>> {
    let asked = [view.load_took.is_some(), view.matched_took.is_some()];
    let given = [view.load.is_ok(), matches!(view.matched, Ok(Some(_)))];
    let is_given = |(asked, given): (&bool, &bool)| *asked && *given;
    if asked.contains(&true) && !asked.iter().zip(&given).any(is_given) {
        return None;
    }
    let View {
        load, matched, own, ..
    } = view;
    let load = load.unwrap_or_else(|_| {
        if own_cached.is_some() {
            own
        } else {
            vec![Sum::default(); own.len()]
        }
    });
    let mut matched = matched.ok().flatten().or(own_cached).unwrap_or_default();
    matched.resize(load.len(), 0);
    let row = |(load, matched): (Sum, u32)| Row {
        reqs: load.requests,
        prompt: load.prefill,
        matched,
    };
    Some(load.into_iter().zip(matched).map(row).collect())
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

#[cfg(test)]
mod tests {
    use metadata_client::Unavailable;
    use rstest::rstest;

    use super::*;

    const TOOK: Option<Duration> = Some(Duration::from_millis(1));
    const MISSING: Unavailable = Unavailable::BreakerOpen;

    fn sum(requests: i64) -> Sum {
        Sum {
            requests,
            prefill: 10 * requests,
        }
    }

    fn mk_view(load: bool, matched: bool) -> View {
        View {
            load: load.then(|| vec![sum(5), sum(3)]).ok_or(MISSING),
            matched: matched.then(|| Some(vec![0, 2])).ok_or(MISSING),
            own: vec![sum(1), sum(0)],
            load_took: TOOK,
            matched_took: TOOK,
        }
    }

    #[rstest]
    #[case::all(mk_view(true, true), true, Some([(5, 0), (3, 2)]))]
    #[case::no_load(mk_view(false, true), true, Some([(1, 0), (0, 2)]))]
    #[case::no_load_and_own_does_not_count(mk_view(false, true), false, Some([(0, 0), (0, 2)]))]
    #[case::no_caches(mk_view(true, false), true, Some([(5, 1), (3, 0)]))]
    #[case::no_caches_and_own_do_not_count(mk_view(true, false), false, Some([(5, 0), (3, 0)]))]
    #[case::no_calls_for_caches(View { matched: Ok(None), ..mk_view(true, true) }, true, Some([(5, 1), (3, 0)]))]
    #[case::neither_load_nor_calls_for_caches(View { matched: Ok(None), ..mk_view(false, true) }, true, None)]
    #[case::nothing(mk_view(false, false), true, None)]
    #[case::caches_were_all_that_was_asked_for(View { load_took: None, ..mk_view(true, false) }, true, None)]
    #[case::load_was_all_that_was_asked_for(View { matched_took: None, ..mk_view(false, true) }, true, None)]
    fn what_is_not_given_is_replaced_unless_nothing_is_given(
        #[case] view: View,
        #[case] own_counts: bool,
        #[case] want: Option<[(i64, u32); 2]>,
    ) {
        let rows = rows(view, own_counts.then(|| vec![1, 0]));
        let seen = rows.map(|rows| {
            assert!(
                rows.iter().all(|row| row.prompt == 10 * row.reqs),
                "{rows:?}"
            );
            rows.iter()
                .map(|row| (row.reqs, row.matched))
                .collect::<Vec<_>>()
        });
        assert_eq!(seen, want.map(|rows| rows.to_vec()));
    }
}
