//! The clusters that Redis has, as of the last beat or a call since.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
};

use metadata::Cluster;
use parking_lot::RwLock;
use tokio::sync::Notify;

use super::keys;

#[derive(Debug, Default)]
pub(super) struct Directory {
    known: RwLock<BTreeMap<Cluster, Arc<Known>>>,
    /// Sums over all clusters.
    totals: Counts,
    changed: Notify,
    /// There was a beat.
    listed: AtomicBool,
}

#[derive(Debug)]
pub(super) struct Known {
    pub(super) name: Cluster,
    /// How all its keys begin.
    pub(super) prefix: String,
    /// Since the last beat.
    used: AtomicBool,
    counts: Counts,
    /// Where the next sweep goes on with the endpoints.
    pub(super) endpoints_at: AtomicU64,
    /// Bytes of hashes in an entry of its cache log: of those that this replica appended, the latest most.
    pub(super) mean_bytes: AtomicU64,
}

/// How much there was at the last beat of what is bounded over all clusters.
#[derive(Debug, Default)]
struct Counts {
    requests: AtomicI64,
    leases: AtomicI64,
    instances: AtomicI64,
}

/// One reading of [`Counts`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    pub(super) requests: i64,
    pub(super) leases: i64,
    pub(super) instances: i64,
}

// === impl Directory ===

impl Directory {
    /// The cluster, which is in use.
    pub(super) fn find_used(&self, cluster: &Cluster) -> Option<Arc<Known>> {
        let known = self.find(cluster)?;
        known.mark_used();
        Some(known)
    }

    pub(super) fn find(&self, cluster: &Cluster) -> Option<Arc<Known>> {
        self.known.read().get(cluster).cloned()
    }

    /// The cluster if it is known, else one that is not kept: another replica may know it.
    pub(super) fn find_or_name(&self, cluster: &Cluster) -> Arc<Known> {
        let known = self.find(cluster);
        known.unwrap_or_else(|| Arc::new(Known::new(cluster.clone())))
    }

    pub(super) fn insert(&self, cluster: &Cluster) -> Arc<Known> {
        let mut known = self.known.write();
        let new = || Arc::new(Known::new(cluster.clone()));
        let known = known.entry(cluster.clone()).or_insert_with(new);
        known.mark_used();
        self.changed.notify_one();
        Arc::clone(known)
    }

    pub(super) fn remove(&self, cluster: &Cluster) {
        self.known.write().remove(cluster);
    }

    /// By name.
    pub(super) fn all(&self) -> Vec<Arc<Known>> {
        self.known.read().values().cloned().collect()
    }

    pub(super) fn len(&self) -> u64 {
        self.known.read().len() as u64
    }

    /// Whether Redis was asked which clusters there are.
    pub(super) fn is_listed(&self) -> bool {
        self.listed.load(Ordering::Acquire)
    }

    /// A cluster was added, or the first list came. For one task.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Redis has these clusters, and those that were used since it was asked. Says which ones are gone.
    pub(super) fn update(&self, clusters: &BTreeSet<Cluster>) -> Vec<Cluster> {
        let mut gone = Vec::new();
        let mut known = self.known.write();
        known.retain(|name, it| {
            let stays = clusters.contains(name) || it.used.load(Ordering::Relaxed);
            if !stays {
                gone.push(name.clone());
            }
            stays
        });
        for name in clusters {
            if !known.contains_key(name) {
                known.insert(name.clone(), Arc::new(Known::new(name.clone())));
                self.changed.notify_one();
            }
        }
        if !self.listed.swap(true, Ordering::Release) {
            self.changed.notify_one();
        }
        gone
    }

    pub(super) fn set_totals(&self, totals: Counted) {
        self.totals.set(totals);
    }

    /// So many requests of the cluster ended since the last beat.
    pub(super) fn subtract_requests(&self, known: &Known, ended: i64) {
        for counts in [&self.totals, &known.counts] {
            counts.requests.fetch_sub(ended, Ordering::Relaxed);
        }
    }

    /// How much there is in the other clusters.
    pub(super) fn others(&self, known: &Known) -> Counted {
        let (all, own) = (self.totals.get(), known.counts.get());
        Counted {
            requests: all.requests - own.requests,
            leases: all.leases - own.leases,
            instances: all.instances - own.instances,
        }
    }
}

// === impl Known ===

impl Known {
    fn new(name: Cluster) -> Self {
        Self {
            prefix: keys::prefix(&name),
            name,
            used: AtomicBool::new(false),
            counts: Counts::default(),
            endpoints_at: AtomicU64::new(0),
            mean_bytes: AtomicU64::new(0),
        }
    }

    /// An entry of so many hashes is appended to its cache log.
    pub(super) fn measure(&self, hashes: &[u64]) {
        let bytes = size_of_val(hashes) as u64;
        let mean = self.mean_bytes.load(Ordering::Relaxed);
        // Upwards, or a mean of short entries would stay at nothing.
        let mean = (mean * 63 + bytes).div_ceil(64);
        self.mean_bytes.store(mean, Ordering::Relaxed);
    }

    /// All processors share it: it is written once a beat.
    pub(super) fn mark_used(&self) {
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }

    /// Whether it was used since this was asked before.
    pub(super) fn take_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }

    pub(super) fn set_counts(&self, counts: Counted) {
        self.counts.set(counts);
    }

    pub(super) fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

// === impl Counts ===

impl Counts {
    fn set(&self, counts: Counted) {
        self.requests.store(counts.requests, Ordering::Relaxed);
        self.leases.store(counts.leases, Ordering::Relaxed);
        self.instances.store(counts.instances, Ordering::Relaxed);
    }

    fn get(&self) -> Counted {
        Counted {
            requests: self.requests.load(Ordering::Relaxed),
            leases: self.leases.load(Ordering::Relaxed),
            instances: self.instances.load(Ordering::Relaxed),
        }
    }
}

// === impl Counted ===

impl Counted {
    pub(super) fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.leases += other.leases;
        self.instances += other.instances;
    }
}
