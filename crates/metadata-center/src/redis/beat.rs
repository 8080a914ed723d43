//! What each replica asks of Redis once a second.

use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use metadata::{Bound, Cluster, Fault};
use tokio::time::{MissedTickBehavior, interval};
use tracing::{info, warn};

use super::{
    Health, Shared,
    backoff::Backoff,
    directory::{Counted, Known},
    keys,
    link::is_out_of_memory,
    scripts::MAX_ITEMS,
};

const BEAT: Duration = Duration::from_secs(1);
/// One that comes late is no reason to leave a connection that calls use.
const MAX_MISSED: u32 = 3;

/// Boot id, time in seconds and microseconds, clusters.
type Beat = (String, (i64, i64), Vec<String>);

/// Keeps the connection, and what is known of Redis.
pub(super) async fn run(shared: Arc<Shared>) {
    let mut backoff = Backoff::new();
    loop {
        let fault = match shared.link.connect().await {
            Ok(()) => beat_while_connected(&shared, &mut backoff).await,
            Err(fault) => fault,
        };
        shared.link.disconnect();
        shared.set_health(Health::Unreachable);
        warn!(%fault, "no connection to Redis");
        backoff.wait().await;
    }
}

/// Until the connection fails, or too many beats.
async fn beat_while_connected(shared: &Shared, backoff: &mut Backoff) -> Fault {
    let mut beats = interval(BEAT);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut missed = 0;
    loop {
        tokio::select! {
            _ = beats.tick() => {}
            () = shared.link.failed() => {}
        }
        match shared.beat().await {
            Ok(()) => {
                shared.set_health(Health::Up);
                backoff.reset();
                missed = 0;
            }
            Err(fault) if is_out_of_memory(&fault) => {
                shared.set_health(Health::OutOfMemory);
                warn!("Redis is out of memory: raise its maxmemory");
                missed = 0;
            }
            Err(fault) => {
                missed += 1;
                // One that is late is a fork or a slow disk of Redis, which all replicas see at once.
                if missed > 1 || !shared.link.is_connected() {
                    shared.set_health(Health::Unreachable);
                }
                if missed == MAX_MISSED || !shared.link.is_connected() {
                    return fault;
                }
            }
        }
    }
}

// === impl Shared ===

impl Shared {
    /// The cluster, which begins now if it is unknown.
    pub(super) async fn open(&self, cluster: &Cluster) -> Result<Arc<Known>, Fault> {
        if let Some(known) = self.directory.find_used(cluster) {
            return Ok(known);
        }
        if self.open_all(&[cluster]).await? != [true]
            && !(self.make_room().await? && self.open_all(&[cluster]).await? == [true])
        {
            return Err(Fault::Limit(Bound::Clusters));
        }
        Ok(self.directory.insert(cluster))
    }

    async fn beat(&self) -> Result<(), Fault> {
        let mut ask = redis::pipe();
        let fresh = format!("{:016x}", rand::random::<u64>());
        ask.cmd("SET").arg(keys::BOOT).arg(fresh).arg("NX").ignore();
        ask.cmd("GET").arg(keys::BOOT);
        ask.cmd("TIME");
        ask.cmd("ZRANGE").arg(keys::CLUSTERS).arg(0).arg(-1);
        let (boot, (seconds, micros), names): Beat = self.link.query(&ask).await?;
        let ours = i64::try_from(self.clock.now().since_start().as_millis()).unwrap_or(i64::MAX);
        self.redis_epoch_ms
            .store(seconds * 1000 + micros / 1000 - ours, Ordering::Relaxed);
        self.take_boot(&boot);
        let mut clusters: BTreeSet<_> = names.iter().filter_map(|it| it.parse().ok()).collect();
        clusters.extend(self.touch().await?);
        for gone in self.directory.update(&clusters) {
            self.cache.purge_cluster(&gone);
        }
        self.count().await
    }

    fn take_boot(&self, boot: &str) {
        let boot = u64::from_str_radix(boot, 16).unwrap_or(0);
        let before = self.boot.swap(boot, Ordering::Relaxed);
        if before != boot {
            info!(
                boot = format!("{boot:016x}"),
                "a state in Redis begins or is joined"
            );
            // What the endpoints have seen is as true as before.
            self.directory.all().iter().for_each(|it| it.mark_used());
        }
    }

    /// Tells Redis which clusters were used since the last beat; says which these are.
    pub(super) async fn touch(&self) -> Result<Vec<Cluster>, Fault> {
        let mut used = self.directory.all();
        used.retain(|it| it.take_used());
        let mut touched = Vec::with_capacity(used.len());
        for part in used.chunks(MAX_ITEMS) {
            let names: Vec<_> = part.iter().map(|it| &it.name).collect();
            let opened = match self.open_all(&names).await {
                Ok(opened) => opened,
                Err(fault) => {
                    for known in &used {
                        known.mark_used();
                    }
                    return Err(fault);
                }
            };
            let opened = names.into_iter().zip(opened).filter(|(_, opened)| *opened);
            touched.extend(opened.map(|(name, _)| name.clone()));
        }
        Ok(touched)
    }

    async fn open_all(&self, clusters: &[&Cluster]) -> Result<Vec<bool>, Fault> {
        let mut open = self.scripts.open.key(keys::CLUSTERS);
        open.arg(self.limits.clusters);
        for cluster in clusters {
            open.arg(cluster.as_str());
        }
        self.link.invoke(&open).await
    }

    /// Learns how much there is of what is bounded over all clusters.
    pub(super) async fn count(&self) -> Result<(), Fault> {
        let mut totals = Counted::default();
        for part in self.directory.all().chunks(MAX_ITEMS) {
            let mut ask = redis::pipe();
            for known in part {
                ask.cmd("GET").arg(known.key("c"));
                ask.cmd("ZCARD").arg(known.key("lease"));
                ask.cmd("HLEN").arg(known.key("e"));
            }
            let counts: Vec<Option<i64>> = self.link.query(&ask).await?;
            for (known, counts) in part.iter().zip(counts.chunks(3)) {
                let count = |at: usize| counts.get(at).copied().flatten().unwrap_or(0);
                let counted = Counted {
                    requests: count(0),
                    leases: count(1),
                    instances: count(2),
                };
                known.set_counts(counted);
                totals.add(counted);
            }
        }
        self.directory.set_totals(totals);
        Ok(())
    }
}
