//! What is to be reported, by cluster, and which worker is to send it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use metadata::{
    Address, Cluster, CompatOutbox, Outbox, Reporting, RequestId, wire::load::PromptLength,
};
use moment::{Clock, Moment};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::settings::{Api, Settings};

/// As many as a service has.
const MAX_CLUSTERS: usize = 1024;

/// An outbox for each cluster. None is removed: rules name few, and a renewed lease costs little.
#[derive(Debug)]
pub(crate) struct Outboxes {
    settings: Arc<Settings>,
    clock: Clock,
    all: ArcSwap<Vec<Reports>>,
    by_cluster: Mutex<Vec<Charges>>,
    pub(crate) shards: Arc<[ShardSignal]>,
}

/// The charges of one cluster, as requests report them. Cheap to clone; to be kept where requests of the cluster are
/// served.
#[derive(Clone, Debug)]
pub struct Charges {
    cluster: Cluster,
    pub(crate) reports: Reports,
    shards: Arc<[ShardSignal]>,
    clock: Clock,
}

/// What of one cluster is to be reported, as the service takes it.
#[derive(Clone, Debug)]
pub(crate) enum Reports {
    /// In ordered batches.
    Batches(Arc<Outbox>),
    /// Each change alone.
    Singles(Arc<CompatOutbox>),
}

/// More clusters are named than a service has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("requests of more than {MAX_CLUSTERS} clusters are reported: use fewer names in the rules")]
pub struct TooManyClusters;

/// Between requests and the worker of one shard, of all clusters.
#[derive(Debug, Default)]
pub(crate) struct ShardSignal {
    pub(crate) wake: Notify,
    /// The last call of the worker failed.
    pub(crate) is_failing: AtomicBool,
    /// The oldest change that is in no batch yet; in nanoseconds, 0: there is none.
    changed_at: AtomicU64,
    /// The oldest change that was taken and is not acknowledged.
    sent_at: AtomicU64,
}

// === impl Outboxes ===

impl Outboxes {
    pub(crate) fn new(settings: Arc<Settings>, clock: Clock) -> Self {
        let shards = (0..settings.workers.clamp(1, 64)).map(|_| ShardSignal::default());
        Self {
            settings,
            clock,
            all: ArcSwap::default(),
            by_cluster: Mutex::default(),
            shards: shards.collect(),
        }
    }

    /// What requests of the cluster report through.
    pub(crate) fn charges(&self, cluster: &Cluster) -> Result<Charges, TooManyClusters> {
        let mut known = self.by_cluster.lock();
        if let Some(charges) = known.iter().find(|it| it.cluster == *cluster) {
            return Ok(charges.clone());
        }
        if known.len() == MAX_CLUSTERS {
            return Err(TooManyClusters);
        }
        let charges = Charges {
            cluster: cluster.clone(),
            reports: self.make_reports(cluster.clone()),
            shards: Arc::clone(&self.shards),
            clock: self.clock,
        };
        known.push(charges.clone());
        let all = known.iter().map(|it| it.reports.clone()).collect();
        self.all.store(Arc::new(all));
        self.wake_all();
        Ok(charges)
    }

    fn make_reports(&self, cluster: Cluster) -> Reports {
        let settings = &self.settings;
        let shards = u32::try_from(self.shards.len()).unwrap_or(1);
        let max_waiting = usize::try_from(settings.queue_size).unwrap_or(usize::MAX);
        match settings.api {
            Api::Isthmus => {
                let reporting = Reporting {
                    shards,
                    max_waiting,
                    lease_ms: u32::try_from(settings.lease.as_millis()).unwrap_or(u32::MAX),
                };
                let instance = settings.instance.clone();
                let outbox = Outbox::new(cluster, instance, settings.epoch, reporting);
                Reports::Batches(Arc::new(outbox))
            }
            Api::Compat => {
                Reports::Singles(Arc::new(CompatOutbox::new(cluster, shards, max_waiting)))
            }
        }
    }

    /// In the order in which they were added.
    pub(crate) fn all(&self) -> Arc<Vec<Reports>> {
        self.all.load_full()
    }

    /// The next batches are full.
    pub(crate) fn reset(&self) {
        for reports in self.all().iter() {
            if let Reports::Batches(outbox) = reports {
                outbox.reset();
            }
        }
        self.wake_all();
    }

    pub(crate) fn waiting(&self) -> usize {
        let waiting = |reports: &Reports| match reports {
            Reports::Batches(outbox) => outbox.waiting(),
            Reports::Singles(outbox) => outbox.waiting(),
        };
        self.all().iter().map(waiting).sum()
    }

    pub(crate) fn overflows(&self) -> u64 {
        let overflows = |reports: &Reports| match reports {
            Reports::Batches(outbox) => outbox.overflows(),
            Reports::Singles(outbox) => outbox.overflows(),
        };
        self.all().iter().map(overflows).sum()
    }

    pub(crate) fn is_failing(&self) -> bool {
        self.shards.iter().any(|it| it.is_failing.load(Relaxed))
    }

    /// The age of the oldest change that the service has not acknowledged.
    pub(crate) fn lag(&self, now: Moment) -> Duration {
        let oldest = self.shards.iter().filter_map(ShardSignal::oldest).min();
        oldest.map_or(Duration::ZERO, |oldest| now.since(oldest))
    }

    fn wake_all(&self) {
        self.shards.iter().for_each(|it| it.wake.notify_one());
    }
}

// === impl Charges ===

impl Charges {
    /// Where the endpoints are.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The request is charged to this endpoint from now on. `reserved`: a pick made a reservation for it.
    pub fn put(&self, id: RequestId, ip: Address, prompt: PromptLength, reserved: bool) {
        let shard = match &self.reports {
            Reports::Batches(outbox) => outbox.put(id, ip, prompt, reserved),
            Reports::Singles(outbox) => outbox.put(id, ip, prompt),
        };
        self.wake(shard);
    }

    /// The request's prefill is done.
    pub fn prompt_done(&self, id: &RequestId) {
        let shard = match &self.reports {
            Reports::Batches(outbox) => outbox.prompt_done(id),
            Reports::Singles(outbox) => outbox.prompt_done(id),
        };
        self.wake(shard);
    }

    /// The request ended. `reserved`: a pick may have made a reservation for it, even if its answer never came.
    pub fn end(&self, id: &RequestId, reserved: bool) {
        let shard = match &self.reports {
            Reports::Batches(outbox) => outbox.delete(id, reserved),
            Reports::Singles(outbox) => outbox.delete(id),
        };
        self.wake(shard);
    }

    fn wake(&self, shard: u32) {
        if let Some(signal) = self.shards.get(shard as usize) {
            signal.changed(self.clock.now());
        }
    }
}

// === impl ShardSignal ===

impl ShardSignal {
    fn changed(&self, now: Moment) {
        let nanos = nanos(now).max(1);
        // Mostly there is an older change, or a worker that is awake: then nothing is written.
        if self.changed_at.load(Relaxed) == 0 {
            let _ = self.changed_at.compare_exchange(0, nanos, Relaxed, Relaxed);
        }
        self.wake.notify_one();
    }

    /// The worker takes what changed until now.
    pub(crate) fn take_changed(&self) {
        let changed_at = self.changed_at.swap(0, Relaxed);
        if self.sent_at.load(Relaxed) == 0 {
            self.sent_at.store(changed_at, Relaxed);
        }
    }

    /// The service has all that was taken.
    pub(crate) fn settled(&self) {
        self.sent_at.store(0, Relaxed);
    }

    fn oldest(&self) -> Option<Moment> {
        let moments = [&self.sent_at, &self.changed_at].map(|it| it.load(Relaxed));
        let oldest = moments.into_iter().filter(|it| *it > 0).min()?;
        Some(Moment::after_start(Duration::from_nanos(oldest)))
    }
}

fn nanos(moment: Moment) -> u64 {
    u64::try_from(moment.since_start().as_nanos()).unwrap_or(u64::MAX)
}
