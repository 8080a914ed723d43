//! What there is, for those who ask.

use std::collections::BTreeMap;

use metadata::{
    Cluster, ClusterSize, Fault, Sizes,
    wire::{
        batch::{ClusterState, Lease},
        load::Load,
    },
};

use super::{Shared, directory::Known, keys, scripts::MAX_ITEMS};

/// Clusters whose endpoints one call reads.
const AT_ONCE: usize = 16;

/// By endpoint.
type Sums = BTreeMap<String, i64>;
/// Endpoints and requests; the deadlines of leases; the prompt sums of owners.
type State = (u64, Option<i64>, Vec<(String, i64)>, Vec<(String, i64)>);
/// Requests and prefill of each endpoint; reservations and leases.
type Size = (Vec<i64>, Vec<i64>, usize, usize);

// === impl Shared ===

impl Shared {
    pub(super) async fn loads(&self, cluster: &Cluster) -> Result<Option<Vec<Load>>, Fault> {
        let known = self.directory.find_or_name(cluster);
        let script = self.scripts.loads.key(&known.prefix);
        let (requests, prefill, changed): (Sums, Sums, Sums) = self.link.invoke(&script).await?;
        if requests.is_empty() && !self.exists(cluster).await? {
            return Ok(None);
        }
        let load = |(endpoint, requests): (&String, &i64)| {
            let prefill = prefill.get(endpoint).copied().unwrap_or(0);
            let changed_ms = changed.get(endpoint).copied().unwrap_or(0);
            let ip = endpoint.parse().ok()?;
            let changed_ns = changed_ms.saturating_mul(1_000_000);
            Some(Load::new(ip, *requests, prefill, changed_ns))
        };
        let mut loads: Vec<_> = requests.iter().filter_map(load).collect();
        loads.sort_unstable_by_key(|it| it.ip);
        Ok(Some(loads))
    }

    pub(super) async fn clusters(&self) -> Result<Vec<ClusterState>, Fault> {
        let mut clusters = Vec::new();
        for known in self.directory.all() {
            let mut ask = redis::pipe();
            ask.cmd("HLEN").arg(known.key("n"));
            ask.cmd("GET").arg(known.key("c"));
            ask.cmd("ZRANGE").arg(known.key("lease")).arg(0).arg(-1);
            ask.arg("WITHSCORES");
            ask.cmd("HGETALL").arg(known.key("s"));
            let (endpoints, requests, leases, owners): State = self.link.query(&ask).await?;
            let totals = self.totals(&known, &owners).await?;
            let mut leases = self.read_leases(&leases, &totals);
            leases.sort_unstable_by(|a, b| a.instance.cmp(&b.instance));
            clusters.push(ClusterState {
                cluster: known.name.clone(),
                endpoints,
                requests: u64::try_from(requests.unwrap_or(0)).unwrap_or(0),
                chunks: self.cache.chunks(&known.name),
                leases,
            });
        }
        Ok(clusters)
    }

    pub(super) async fn sizes(&self) -> Result<Sizes, Fault> {
        let cache = self.cache.stats();
        let mut sizes = Sizes {
            cache_entries: cache.entries,
            cache_bytes: cache.bytes,
            cache_evictions: cache.evictions,
            cache_refusals: self.cache.refusals(),
            ..Sizes::default()
        };
        for part in self.directory.all().chunks(AT_ONCE) {
            let mut ask = redis::pipe();
            for known in part {
                ask.cmd("HVALS").arg(known.key("n"));
                ask.cmd("HVALS").arg(known.key("p"));
                ask.cmd("ZCARD").arg(known.key("v"));
                ask.cmd("ZCARD").arg(known.key("lease"));
            }
            let answers: Vec<redis::Value> = self.link.query(&ask).await?;
            for (known, answer) in part.iter().zip(answers.chunks(4)) {
                let answer = redis::Value::Array(answer.to_vec());
                let answer: Size = redis::from_redis_value(answer).map_err(|_| Fault::Internal)?;
                let (requests, prefill, reservations, leases) = answer;
                let all: i64 = requests.iter().sum();
                sizes.clusters += 1;
                sizes.endpoints += requests.len();
                sizes.requests += usize::try_from(all).unwrap_or(0);
                sizes.reservations += reservations;
                sizes.leases += leases;
                sizes.by_cluster.push(ClusterSize {
                    cluster: known.name.clone(),
                    endpoints: requests.len(),
                    requests: all,
                    prefill: prefill.iter().sum(),
                });
            }
        }
        Ok(sizes)
    }

    async fn exists(&self, cluster: &Cluster) -> Result<bool, Fault> {
        let mut ask = redis::pipe();
        ask.cmd("ZSCORE").arg(keys::CLUSTERS).arg(cluster.as_str());
        let (used,): (Option<String>,) = self.link.query(&ask).await?;
        Ok(used.is_some())
    }

    /// Charges and their prefill by lease, from the prompt sums of its owners.
    async fn totals(
        &self,
        known: &Known,
        owners: &[(String, i64)],
    ) -> Result<BTreeMap<String, (u64, i64)>, Fault> {
        let mut totals = BTreeMap::new();
        for part in owners.chunks(MAX_ITEMS) {
            let mut ask = redis::pipe();
            for (owner, _) in part {
                ask.cmd("HLEN").arg(known.key(&format!("r:{owner}")));
            }
            let live: Vec<u64> = self.link.query(&ask).await?;
            for ((owner, sum), live) in part.iter().zip(live) {
                // The shard is last, after the instance and its epoch.
                let (lease, _) = owner.rsplit_once(':').unwrap_or((owner, ""));
                let total: &mut (u64, i64) = totals.entry(lease.to_owned()).or_default();
                *total = (total.0 + live, total.1 + sum);
            }
        }
        Ok(totals)
    }

    fn read_leases(
        &self,
        leases: &[(String, i64)],
        totals: &BTreeMap<String, (u64, i64)>,
    ) -> Vec<Lease> {
        let lease = |(lease, deadline_ms): &(String, i64)| {
            let (instance, epoch) = lease.rsplit_once('@')?;
            let remaining_ms = u64::try_from(deadline_ms - self.redis_ms()).ok()?;
            let (live, prompt_sum) = totals.get(lease).copied().unwrap_or_default();
            Some(Lease {
                instance: instance.parse().ok()?,
                epoch: epoch.parse().ok()?,
                live,
                prompt_sum,
                remaining_ms,
            })
        };
        leases.iter().filter_map(lease).collect()
    }
}
