//! What is over is freed, a little at a time. Each replica does it; what one has done another finds done.

use std::{mem, sync::atomic::Ordering};

use futures::future::try_join_all;
use metadata::{Cluster, Fault, Swept};

use super::{Shared, directory::Known, keys};

/// Clusters at a time.
const AT_ONCE: usize = 32;
/// Clusters that one sweep removes at most.
const MAX_CLOSED: usize = 64;

type Expired = (usize, usize, usize, bool, String, Vec<String>);

// === impl Shared ===

impl Shared {
    pub(super) async fn sweep(&self) -> Result<Swept, Fault> {
        let mut swept = Swept {
            cache_entries: self.cache.sweep(self.clock.now()),
            ..mem::take(&mut *self.freed.lock())
        };
        for part in self.directory.all().chunks(AT_ONCE) {
            for one in try_join_all(part.iter().map(|it| self.sweep_cluster(it))).await? {
                swept.leases += one.leases;
                swept.charges += one.charges;
                swept.expired += one.expired;
                swept.reservations += one.reservations;
                swept.endpoints += one.endpoints;
            }
        }
        // Before that a cluster that others keep for its cache looks empty here.
        let may_close = self.log.is_replayed();
        for cluster in self.unused().await? {
            if may_close && !self.cache.has(&cluster) {
                swept.clusters += usize::from(self.close(&cluster).await?);
            }
        }
        Ok(swept)
    }

    /// Removes the cluster that was unused for longest, if that is long: it is kept for its cache only. Says whether
    /// there was one.
    pub(super) async fn make_room(&self) -> Result<bool, Fault> {
        for cluster in self.unused().await? {
            if self.close(&cluster).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn sweep_cluster(&self, known: &Known) -> Result<Swept, Fault> {
        let mut swept = Swept::default();
        loop {
            let cursor = known.endpoints_at.load(Ordering::Relaxed);
            let mut expire = self.scripts.expire.key(&known.prefix);
            expire.arg(self.expire_ms()).arg(cursor);
            let expired: Expired = self.link.invoke(&expire).await?;
            let (reservations, unowned, endpoints, more, cursor, leases) = expired;
            known
                .endpoints_at
                .store(cursor.parse().unwrap_or(0), Ordering::Relaxed);
            swept.reservations += reservations;
            swept.expired += unowned;
            swept.endpoints += endpoints;
            // Its instance may be one to forget by now.
            let more = more || !leases.is_empty();
            for lease in leases {
                // The instance may have this character in its name, the epoch has not.
                let Some((instance, epoch)) = lease.rsplit_once('@') else {
                    continue;
                };
                let epoch = epoch.parse().unwrap_or(0);
                let freed = self.free(known, instance, epoch, false).await?;
                swept.charges += freed.charges;
                swept.leases += freed.leases;
            }
            if !more {
                return Ok(swept);
            }
        }
    }

    /// Clusters without use for long, the longest first.
    async fn unused(&self) -> Result<Vec<Cluster>, Fault> {
        let mut ask = redis::pipe();
        ask.cmd("ZRANGEBYSCORE").arg(keys::CLUSTERS).arg("-inf");
        ask.arg(self.long_ago()).arg("LIMIT").arg(0).arg(MAX_CLOSED);
        let (unused,): (Vec<String>,) = self.link.query(&ask).await?;
        Ok(unused.iter().filter_map(|it| it.parse().ok()).collect())
    }

    /// Removes the cluster, unless it has load or a lease, or is in use again.
    async fn close(&self, cluster: &Cluster) -> Result<bool, Fault> {
        let prefix = keys::prefix(cluster);
        let clear = self.scripts.clear.key(prefix);
        if !self.link.invoke::<bool>(&clear).await? {
            return Ok(false);
        }
        let mut close = self.scripts.close.key(keys::CLUSTERS);
        close.arg(cluster.as_str()).arg(self.long_ago());
        if !self.link.invoke::<bool>(&close).await? {
            return Ok(false);
        }
        self.directory.remove(cluster);
        self.cache.purge_cluster(cluster);
        Ok(true)
    }

    fn long_ago(&self) -> i64 {
        let expire = i64::try_from(self.expire_ms()).unwrap_or(i64::MAX);
        self.redis_ms().saturating_sub(expire)
    }
}
