//! The state in a Redis or Valkey that replicas of the service share.
//!
//! Load is there, changed by scripts that are atomic in one cluster. Which prompts endpoints have seen is in the memory
//! of each replica, and a stream of each cluster brings what the other replicas saved.
//!
//! ```text
//!  calls ──► load, pick ──► Link ──scripts──► Redis ◄──XREAD── Log ──► CacheIndex ◄── query, pick
//!  each second: beat (boot id, clusters, how much others have)        ▲
//!               sweep (what is over)                     save, purge ─┘──XADD──► Redis
//! ```

mod backoff;
mod beat;
mod directory;
mod keys;
mod link;
mod load;
mod log;
mod pick;
mod scripts;
mod sweep;
mod view;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU8, AtomicU64, Ordering},
    },
    time::Duration,
};

use metadata::{
    Address, CacheIndex, Cluster, Fault, Instance, Limits, RequestId, Sizes, Swept,
    wire::{
        batch::{Applied, Batch, ClusterState},
        cache::{Locations, Query, Save},
        load::{Add, Load},
        pick::{Pick, Picks},
    },
};
use moment::Clock;
use parking_lot::Mutex;
use tokio::task::JoinSet;

pub use self::link::RedisUrlError;
use self::{directory::Directory, link::Link, log::Log, scripts::Scripts};
use crate::engine::{BootId, CacheLog, CacheSize, Engine};

/// Where the Redis is, and the bounds of what is kept there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisOptions {
    /// Where it is.
    pub url: RedisUrl,
    /// Each call to Redis ends after so long.
    pub timeout: Duration,
    /// As of the memory engine. `cache_max_bytes` is of this replica.
    pub limits: Limits,
    /// Bytes in Redis for what replicas save of prompts, so that one that starts learns it.
    pub cache_log_max_bytes: u64,
}

/// `redis://`, `rediss://` or `unix://`, with the password if it needs one, which no debug output has.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl(String);

/// The state in a Redis.
///
/// It begins to connect at once and goes on for as long as it lives; until it succeeds, and whenever Redis is away, calls
/// answer with [`Fault::BackendUnavailable`] but for queries of the cache, which need no Redis.
#[derive(Debug)]
pub struct Redis {
    shared: Arc<Shared>,
    /// Ends with this value.
    _tasks: JoinSet<()>,
}

/// What calls and tasks have in common.
#[derive(Debug)]
struct Shared {
    limits: Limits,
    cache_log_max_bytes: u64,
    clock: Clock,
    link: Link,
    scripts: Scripts,
    directory: Directory,
    cache: CacheIndex,
    log: Log,
    /// What calls freed since the last sweep; they do so seldom.
    freed: Mutex<Swept>,
    boot: AtomicU64,
    /// Milliseconds since 1970 at Redis when our clock started.
    redis_epoch_ms: AtomicI64,
    /// A [`Health`].
    health: AtomicU8,
}

/// How Redis was at the last beat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Health {
    Unreachable,
    OutOfMemory,
    Up,
}

// === impl RedisOptions ===

impl RedisOptions {
    /// With the default deadline and bounds.
    pub fn new(url: impl Into<RedisUrl>) -> Self {
        Self {
            url: url.into(),
            timeout: Duration::from_millis(50),
            limits: Limits::default(),
            cache_log_max_bytes: 256 << 20,
        }
    }
}

// === impl RedisUrl ===

impl From<String> for RedisUrl {
    fn from(url: String) -> Self {
        Self(url)
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RedisUrl(..)")
    }
}

// === impl Redis ===

impl Redis {
    /// Begins to connect. Needs a tokio runtime with time and I/O.
    ///
    /// # Errors
    /// Of a URL that is none.
    pub fn start(options: RedisOptions, clock: Clock) -> Result<Self, RedisUrlError> {
        let shared = Arc::new(Shared::new(options, clock)?);
        let mut tasks = JoinSet::new();
        tasks.spawn(beat::run(Arc::clone(&shared)));
        tasks.spawn(log::follow(Arc::clone(&shared)));
        Ok(Self {
            shared,
            _tasks: tasks,
        })
    }
}

// === impl Shared ===

impl Shared {
    fn new(options: RedisOptions, clock: Clock) -> Result<Self, RedisUrlError> {
        let RedisOptions {
            url,
            timeout,
            limits,
            cache_log_max_bytes,
        } = options;
        Ok(Self {
            limits,
            cache_log_max_bytes,
            clock,
            link: Link::new(&url.0, timeout)?,
            scripts: Scripts::new(ToOwned::to_owned),
            directory: Directory::default(),
            cache: CacheIndex::new(limits.cache_max_bytes),
            log: Log::new(),
            freed: Mutex::default(),
            boot: AtomicU64::new(rand::random()),
            redis_epoch_ms: AtomicI64::new(0),
            health: AtomicU8::new(Health::Unreachable as u8),
        })
    }

    fn set_health(&self, health: Health) {
        self.health.store(health as u8, Ordering::Relaxed);
    }

    /// Milliseconds since 1970 as Redis has it.
    fn redis_ms(&self) -> i64 {
        let ours = self.clock.now().since_start().as_millis();
        let ours = i64::try_from(ours).unwrap_or(i64::MAX);
        self.redis_epoch_ms
            .load(Ordering::Relaxed)
            .saturating_add(ours)
    }
}

// === impl Engine ===

impl Engine for Redis {
    fn boot(&self) -> BootId {
        BootId(self.shared.boot.load(Ordering::Relaxed))
    }

    fn unready(&self) -> Option<&'static str> {
        let health = self.shared.health.load(Ordering::Relaxed);
        if health == Health::OutOfMemory as u8 {
            Some("Redis is out of memory")
        } else if health != Health::Up as u8 {
            Some("Redis does not answer")
        } else if !self.shared.log.is_replayed() {
            Some("the cache log is being read")
        } else {
            None
        }
    }

    fn cache_size(&self) -> CacheSize {
        let stats = self.shared.cache.stats();
        CacheSize {
            bytes: stats.bytes,
            evictions: stats.evictions,
        }
    }

    fn cache_log(&self) -> Option<CacheLog> {
        Some(self.shared.log.state())
    }

    async fn loads(&self, cluster: &Cluster) -> Result<Option<Vec<Load>>, Fault> {
        self.shared.loads(cluster).await
    }

    async fn add(&self, add: Add, strict: bool) -> Result<(), Fault> {
        self.shared.add(add, strict).await
    }

    async fn prompt_done(&self, id: &RequestId, strict: bool) -> Result<(), Fault> {
        self.shared.delete(id, false, strict).await
    }

    async fn remove(&self, id: &RequestId, strict: bool) -> Result<(), Fault> {
        self.shared.delete(id, true, strict).await
    }

    async fn batch(&self, batch: Batch) -> Result<Applied, Fault> {
        self.shared.batch(batch).await
    }

    async fn end_leases(&self, instance: &Instance, epoch: u64) -> Result<(), Fault> {
        self.shared.end_leases(instance, epoch).await
    }

    async fn pick(&self, pick: &Pick) -> Result<Picks, Fault> {
        self.shared.pick(pick).await
    }

    async fn save(&self, save: &Save) -> Result<(), Fault> {
        self.shared.save(save).await
    }

    async fn query(&self, query: &Query) -> Result<Locations, Fault> {
        self.shared.query(query)
    }

    async fn purge(&self, cluster: &Cluster, ip: Address) -> Result<(), Fault> {
        self.shared.purge(cluster, ip).await
    }

    async fn clusters(&self) -> Result<Vec<ClusterState>, Fault> {
        self.shared.clusters().await
    }

    async fn sweep(&self) -> Result<Swept, Fault> {
        self.shared.sweep().await
    }

    async fn sizes(&self) -> Result<Sizes, Fault> {
        self.shared.sizes().await
    }
}

#[cfg(test)]
mod tests;
