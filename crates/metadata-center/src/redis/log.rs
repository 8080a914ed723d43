//! Which prompts endpoints have seen: kept in this replica, and shared with the others by one stream for each cluster.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use metadata::{
    Address, Cluster, Fault,
    wire::{
        cache::{Locations, Query, Save},
        pick::Pick,
    },
};
use moment::Moment;
use rand::RngExt;
use redis::{
    Cmd, FromRedisValue, Value,
    aio::MultiplexedConnection,
    streams::{StreamId, StreamReadReply},
};
use tokio::{task::yield_now, time::timeout};
use tracing::{debug, warn};

use super::{Shared, backoff::Backoff, directory::Known, link::unavailable};
use crate::engine::CacheLog;

/// For how long a read waits at Redis for something new; a new cluster is read from so long after it is known.
const BLOCK: Duration = Duration::from_secs(1);
/// A read that takes longer has lost its connection.
const READ_LIMIT: Duration = Duration::from_secs(3);
/// A replica serves after so long though it has not read all.
const REPLAY_LIMIT: Duration = Duration::from_secs(5);
/// Entries of one read, of all streams: at most 8 MiB, for the longest prompt has 64 KiB. A slow network brings them within
/// [`READ_LIMIT`].
const READ_ENTRIES: usize = 128;
/// What an entry takes beside its hashes: its number, and the names and texts of its fields.
const ENTRY_BYTES: u64 = 64;
/// No stream is cut shorter, however many there are.
const LEAST_LENGTH: u64 = 64;

/// A save and its entry are so near each other in time, even where Redis is slow.
const BETWEEN: Duration = Duration::from_mins(1);

#[derive(Debug)]
pub(super) struct Log {
    /// Names what this replica appends, so that it does not apply it twice.
    pub(super) origin: String,
    replayed: AtomicBool,
    append_errors: AtomicU64,
    lag_ms: AtomicU64,
}

/// How far the streams are read.
#[derive(Debug, Default)]
struct Progress {
    /// The last entry that was read, by cluster.
    positions: BTreeMap<Cluster, String>,
    /// Purges that were read lately. What this replica saved before it read one is gone here, so entries of its own that
    /// stand behind it are applied again.
    purged: BTreeMap<(Cluster, Address), Moment>,
}

/// Reads what replicas append, from the beginning.
pub(super) async fn follow(shared: Arc<Shared>) {
    let mut backoff = Backoff::new();
    let mut progress = Progress::default();
    let begun = shared.clock.now();
    let mut is_failing = false;
    loop {
        let fault = match shared.link.dedicated().await {
            Ok(connection) => {
                backoff.reset();
                shared.read_log(connection, &mut progress, begun).await
            }
            Err(fault) => fault,
        };
        if std::mem::replace(&mut is_failing, true) {
            debug!(%fault, "the cache log is not read");
        } else {
            warn!(%fault, "the cache log is not read: what other replicas save is not known here");
        }
        shared.replay_ends(begun);
        backoff.wait().await;
    }
}

// === impl Shared ===

impl Shared {
    pub(super) async fn save(&self, save: &Save) -> Result<(), Fault> {
        save.validate()?;
        let opened = self.open(&save.cluster).await;
        if let Err(fault @ Fault::Limit(_)) = opened {
            return Err(fault);
        }
        let ttl_s = save.ttl_s.unwrap_or_else(|| {
            u32::try_from(self.limits.cache_expire.as_secs()).unwrap_or(u32::MAX)
        });
        let hashes = save.prompt_hash.hashes();
        let ttl = Duration::from_secs(ttl_s.into());
        let now = self.clock.now();
        self.cache
            .save(&save.cluster, save.ip, hashes, ttl, save.capacity, now);
        if hashes.is_empty() {
            return Ok(());
        }
        let bytes = bytes_of(hashes);
        let fields = |entry: &mut Cmd| {
            entry.arg("e").arg(save.ip.to_string()).arg("h").arg(bytes);
            entry.arg("x").arg(ttl_s).arg("o").arg(&self.log.origin);
            if let Some(capacity) = save.capacity {
                entry.arg("g").arg(capacity);
            }
        };
        match opened {
            Ok(known) => {
                known.measure(hashes);
                // Where that fails, the other replicas do not know it.
                let _counted = self.append(&known, fields).await;
            }
            Err(fault) => self.log.count_append_error(&fault),
        }
        Ok(())
    }

    /// The endpoint of a pick will have its prompt. The other replicas learn it from the script of the pick.
    pub(super) fn expect_prompt(&self, known: &Known, pick: &Pick, ip: Address, ttl_s: u32) {
        let hashes = pick.prompt_hash.hashes();
        let ttl = Duration::from_secs(ttl_s.into());
        let now = self.clock.now();
        self.cache.insert(&pick.cluster, ip, hashes, ttl, now);
        known.measure(hashes);
    }

    pub(super) fn query(&self, query: &Query) -> Result<Locations, Fault> {
        query.validate()?;
        self.directory.find_used(&query.cluster);
        let hashes = query.prompt_hash.hashes();
        let locations = if let Some(candidates) = &query.candidates {
            self.cache.locations_of(&query.cluster, hashes, candidates)
        } else {
            let mut locations = self.cache.locations(&query.cluster, hashes);
            let top_k = query.limit().unwrap_or(self.limits.cache_top_k);
            locations.truncate(usize::try_from(top_k).unwrap_or(usize::MAX));
            locations
        };
        Ok(Locations { locations })
    }

    /// An error: the other replicas do not know it, so the caller is to repeat it.
    pub(super) async fn purge(&self, cluster: &Cluster, ip: Address) -> Result<(), Fault> {
        self.cache.purge(cluster, ip);
        // Of an unknown cluster nobody has anything.
        match self.directory.find(cluster) {
            Some(known) => {
                let fields = |entry: &mut Cmd| {
                    entry.arg("d").arg(ip.to_string());
                };
                self.append(&known, fields).await
            }
            None => Ok(()),
        }
    }

    /// To how many entries the stream of a cluster is cut: what all may take, in equal parts, by the size of its own.
    pub(super) fn log_length(&self, known: &Known) -> u64 {
        let clusters = self.directory.len().max(1);
        let mean = ENTRY_BYTES + known.mean_bytes.load(Ordering::Relaxed);
        (self.cache_log_max_bytes / clusters / mean).max(LEAST_LENGTH)
    }

    async fn append(&self, known: &Known, fields: impl FnOnce(&mut Cmd)) -> Result<(), Fault> {
        let mut entry = redis::cmd("XADD");
        entry.arg(known.key("k")).arg("MAXLEN").arg("~");
        entry.arg(self.log_length(known)).arg("*");
        fields(&mut entry);
        let mut append = redis::pipe();
        append.add_command(entry).ignore();
        let appended = self.link.query::<()>(&append).await;
        appended.inspect_err(|fault| self.log.count_append_error(fault))
    }

    /// A replica that cannot read what the others saved serves without it, after a while.
    fn replay_ends(&self, begun: Moment) {
        if self.clock.now().since(begun) >= REPLAY_LIMIT {
            self.log.set_replayed();
        }
    }

    /// Reads the streams of all clusters until that fails.
    async fn read_log(
        &self,
        mut connection: MultiplexedConnection,
        progress: &mut Progress,
        begun: Moment,
    ) -> Fault {
        let mut boot = self.boot.load(Ordering::Relaxed);
        loop {
            if boot != self.boot.load(Ordering::Relaxed) {
                boot = self.boot.load(Ordering::Relaxed);
                *progress = Progress::default();
            }
            self.replay_ends(begun);
            let clusters = self.directory.all();
            if clusters.is_empty() {
                // Before the first beat nothing is known; after it there is nothing.
                if self.directory.is_listed() {
                    self.log.set_replayed();
                }
                let _new = timeout(BLOCK, self.directory.changed()).await;
                continue;
            }
            let read = self.read_command(&clusters, progress);
            let entries = match timeout(READ_LIMIT, read.query_async(&mut connection)).await {
                Ok(Ok(entries)) => entries,
                Ok(Err(error)) => return unavailable(&error.to_string()),
                Err(_) => return unavailable("a read does not end"),
            };
            let entries: Option<StreamReadReply> = entries;
            self.take_entries(&clusters, entries.unwrap_or_default(), progress)
                .await;
        }
    }

    fn read_command(&self, clusters: &[Arc<Known>], progress: &Progress) -> Cmd {
        let mut read = redis::cmd("XREAD");
        read.arg("COUNT")
            .arg((READ_ENTRIES / clusters.len()).max(1));
        if self.log.is_replayed() {
            read.arg("BLOCK").arg(BLOCK.as_millis().to_string());
        }
        read.arg("STREAMS");
        for known in clusters {
            read.arg(known.key("k"));
        }
        for known in clusters {
            let position = progress.positions.get(&known.name);
            read.arg(position.map_or("0", String::as_str));
        }
        read
    }

    async fn take_entries(
        &self,
        clusters: &[Arc<Known>],
        read: StreamReadReply,
        progress: &mut Progress,
    ) {
        let known: BTreeMap<_, _> = clusters.iter().map(|it| (it.key("k"), &it.name)).collect();
        let is_known = |name: &Cluster| clusters.iter().any(|it| it.name == *name);
        progress.positions.retain(|name, _| is_known(name));
        if read.keys.is_empty() {
            self.log.set_replayed();
            self.log.set_lag(Duration::ZERO);
        }
        for stream in read.keys {
            let Some(cluster) = known.get(&stream.key) else {
                continue;
            };
            for entry in &stream.ids {
                self.apply_entry(cluster, entry, &mut progress.purged);
                // One of a long prompt takes half a millisecond.
                yield_now().await;
            }
            if let Some(last) = stream.ids.into_iter().last() {
                progress.positions.insert((*cluster).clone(), last.id);
            }
        }
    }

    fn apply_entry(
        &self,
        cluster: &Cluster,
        entry: &StreamId,
        purged: &mut BTreeMap<(Cluster, Address), Moment>,
    ) {
        let (at_ms, _) = entry.id.split_once('-').unwrap_or_default();
        let age_ms = self.redis_ms() - at_ms.parse().unwrap_or(0);
        let age = Duration::from_millis(u64::try_from(age_ms).unwrap_or(0));
        self.log.set_lag(age);
        if let Some(ip) = field::<String>(entry, "d").and_then(|it| it.parse().ok()) {
            self.cache.purge(cluster, ip);
            let now = self.clock.now();
            purged.retain(|_, at| now.since(*at) < BETWEEN);
            purged.insert((cluster.clone(), ip), now);
        }
        let is_own = field::<String>(entry, "o").is_some_and(|it| it == self.log.origin);
        let saved = field::<String>(entry, "e").and_then(|it| it.parse().ok());
        let is_new = |ip: &Address| !is_own || purged.contains_key(&(cluster.clone(), *ip));
        let saved = saved.filter(is_new);
        if let (Some(ip), Some(hashes)) = (saved, field::<Vec<u8>>(entry, "h")) {
            let ttl = Duration::from_secs(field(entry, "x").unwrap_or(0)).saturating_sub(age);
            if !ttl.is_zero() {
                let hashes = hashes_of(&hashes);
                let capacity = field(entry, "g");
                let now = self.clock.now();
                self.cache.save(cluster, ip, &hashes, ttl, capacity, now);
            }
        }
    }
}

fn field<T: FromRedisValue>(entry: &StreamId, name: &str) -> Option<T> {
    let value: &Value = entry.map.get(name)?;
    T::from_redis_value_ref(value).ok()
}

pub(super) fn bytes_of(hashes: &[u64]) -> Vec<u8> {
    hashes.iter().flat_map(|it| it.to_le_bytes()).collect()
}

fn hashes_of(bytes: &[u8]) -> Vec<u64> {
    let (hashes, _) = bytes.as_chunks();
    hashes.iter().map(|it| u64::from_le_bytes(*it)).collect()
}

// === impl Log ===

impl Log {
    pub(super) fn new() -> Self {
        Self {
            origin: format!("{:016x}", rand::rng().random::<u64>()),
            replayed: AtomicBool::new(false),
            append_errors: AtomicU64::new(0),
            lag_ms: AtomicU64::new(0),
        }
    }

    pub(super) fn is_replayed(&self) -> bool {
        self.replayed.load(Ordering::Relaxed)
    }

    pub(super) fn set_replayed(&self) {
        self.replayed.store(true, Ordering::Relaxed);
    }

    pub(super) fn state(&self) -> CacheLog {
        CacheLog {
            append_errors: self.append_errors.load(Ordering::Relaxed),
            lag: Duration::from_millis(self.lag_ms.load(Ordering::Relaxed)),
        }
    }

    fn count_append_error(&self, fault: &Fault) {
        debug!(%fault, "a save stays in this replica");
        self.append_errors.fetch_add(1, Ordering::Relaxed);
    }

    fn set_lag(&self, age: Duration) {
        let age = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        self.lag_ms.store(age, Ordering::Relaxed);
    }
}
