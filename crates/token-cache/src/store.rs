//! A cache, wherever it is.

use std::{path::PathBuf, sync::Arc, time::Duration};

use futures::stream;
use http_call::{Trust, TrustError, TrustFiles, TrustReload};
use moment::Clock;
use processor_api::TokenKey;
use prometheus_client::registry::Registry;
use reread::{read_at_most, reread};
use tokio::time::{Instant, interval};
use tracing::error;

use crate::{
    endpoint::Endpoint,
    entry::{Entry, MAX_IDS},
    error::StoreError,
    memory::{MemoryStore, Put, Sizes},
    metrics::{CacheCollector, Operations, Verb},
    redis::{Link, Redis},
    remote::{BearerToken, Remote},
};

/// Bytes of a bearer token's file: far more than a token has.
const MAX_TOKEN: usize = 64 << 10;
/// Between two looks for entries whose time is over.
const SWEEP: Duration = Duration::from_secs(5);

/// How a cache is used.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long entries stay. Over HTTP the server decides.
    pub ttl: Duration,
    /// Bytes of the cache in memory.
    pub max_bytes: usize,
    /// TLS of https and rediss; for others they are not read.
    pub tls: TrustFiles,
    /// File with the bearer token that the cache wants over HTTP, in its first line.
    pub token_file: Option<PathBuf>,
}

/// A cache. Cheap to clone; clones share it.
#[derive(Clone, Debug)]
pub struct Store(Arc<Inner>);

/// Why a cache cannot be used at all. No variant repeats a credential.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// TLS.
    #[error("the token cache's file of CAs, or its certificate: {0}")]
    Tls(#[from] TrustError),
    /// The bearer token.
    #[error("the file of the token cache's bearer token: {0}")]
    Token(String),
}

/// What a cache needs to be done beside its operations.
#[derive(Debug)]
pub struct Upkeep {
    store: Store,
    trust: Option<TrustReload>,
    token: Option<(PathBuf, Arc<BearerToken>)>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    backend: Backend,
    clock: Clock,
    pub(crate) operations: Operations,
}

#[derive(Debug)]
enum Backend {
    Memory(MemoryStore),
    Http(Remote),
    Redis(Box<Redis>),
}

// === impl Settings ===

impl Default for Settings {
    /// 5 min, 1 GiB.
    fn default() -> Self {
        Self {
            ttl: Duration::from_mins(5),
            max_bytes: 1 << 30,
            tls: TrustFiles::default(),
            token_file: None,
        }
    }
}

// === impl Store ===

impl Store {
    /// Nothing is connected to yet; [`Upkeep`] is to be run for as long as the cache is used.
    ///
    /// # Errors
    /// [`OpenError`] when a file cannot be used.
    pub fn open(endpoint: Endpoint, settings: Settings) -> Result<(Self, Upkeep), OpenError> {
        let Settings {
            ttl,
            max_bytes,
            tls,
            token_file,
        } = settings;
        let mut trust = None;
        let mut token = None;
        let backend = match endpoint {
            Endpoint::Memory => Backend::Memory(MemoryStore::new(max_bytes, ttl)),
            Endpoint::Redis(url) => {
                if url.is_tls() {
                    // what cannot be used at the start is refused; each connection reads the files anew
                    tls.clone().begin()?;
                }
                Backend::Redis(Box::new(Redis {
                    link: Link::new(url, tls),
                    ttl,
                }))
            }
            Endpoint::Http(base) => {
                let own: Option<Trust> = if base.is_https() {
                    let (own, reload) = tls.begin()?;
                    trust = Some(reload).filter(TrustReload::is_needed);
                    Some(own)
                } else {
                    None
                };
                let bearer = Arc::<BearerToken>::default();
                if let Some(path) = token_file {
                    let content = read_at_most(&path, MAX_TOKEN).map_err(OpenError::Token)?;
                    let set = bearer.set(&content);
                    set.map_err(|why| OpenError::Token(why.to_owned()))?;
                    token = Some((path, Arc::clone(&bearer)));
                }
                Backend::Http(Remote::new(base, own, bearer))
            }
        };
        let store = Self(Arc::new(Inner {
            backend,
            clock: Clock::start(),
            operations: Operations::new(),
        }));
        let upkeep = Upkeep {
            store: store.clone(),
            trust,
            token,
        };
        Ok((store, upkeep))
    }

    /// Serves `token_cache_*` of this cache.
    pub fn register(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(CacheCollector(Arc::clone(&self.0))));
    }

    /// Whether entries are in this process.
    pub fn is_memory(&self) -> bool {
        matches!(self.0.backend, Backend::Memory(_))
    }

    /// Keeps an entry.
    ///
    /// # Errors
    /// [`StoreError`] when it is not kept, or nobody knows `within` that time.
    pub async fn put(
        &self,
        key: TokenKey,
        entry: Entry,
        within: Duration,
    ) -> Result<Put, StoreError> {
        let start = self.0.clock.now();
        let result = match &self.0.backend {
            _ if entry.ids.len() > MAX_IDS => Err(StoreError::TooLarge),
            Backend::Memory(memory) => memory.put(key, entry, start).map_err(StoreError::from),
            Backend::Http(remote) => remote.put(&key, &entry, within).await,
            Backend::Redis(redis) => redis.put(&key, &entry, within).await,
        };
        let label = match &result {
            Ok(Put::Stored) => "stored",
            Ok(Put::Same) => "same",
            Err(error) => error.reason(),
        };
        self.count(Verb::Put, label, start);
        result
    }

    /// The entry of a key. One that is damaged counts as missing.
    ///
    /// # Errors
    /// [`StoreError`] when nobody knows `within` that time.
    pub async fn get(&self, key: TokenKey, within: Duration) -> Result<Option<Entry>, StoreError> {
        let start = self.0.clock.now();
        let result = match &self.0.backend {
            Backend::Memory(memory) => Ok(memory.get(&key, start)),
            Backend::Http(remote) => remote.get(&key, within).await,
            Backend::Redis(redis) => redis.get(&key, within).await,
        };
        let label = match &result {
            Ok(Some(_)) => "hit",
            Ok(None) => "miss",
            Err(error) => error.reason(),
        };
        self.count(Verb::Get, label, start);
        match result {
            Err(StoreError::Damaged) => Ok(None),
            result => result,
        }
    }

    /// As [`get`](Self::get), and once more if the cache could not be used and there is time left of `within`.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn fetch(
        &self,
        key: TokenKey,
        within: Duration,
    ) -> Result<Option<Entry>, StoreError> {
        let until = Instant::now() + within;
        match self.get(key, within).await {
            Err(StoreError::Unavailable(_)) => {
                self.get(key, until.saturating_duration_since(Instant::now()))
                    .await
            }
            result => result,
        }
    }

    /// Lets go of an entry, if there is one.
    ///
    /// # Errors
    /// [`StoreError`] when nobody knows `within` that time.
    pub async fn delete(&self, key: TokenKey, within: Duration) -> Result<(), StoreError> {
        let start = self.0.clock.now();
        let result = match &self.0.backend {
            Backend::Memory(memory) => {
                memory.delete(&key, start);
                Ok(())
            }
            Backend::Http(remote) => remote.delete(&key, within).await,
            Backend::Redis(redis) => redis.delete(&key, within).await,
        };
        let label = match &result {
            Ok(()) => "deleted",
            Err(error) => error.reason(),
        };
        self.count(Verb::Delete, label, start);
        result
    }

    fn count(&self, verb: Verb, result: &'static str, start: moment::Moment) {
        let took = self.0.clock.now().since(start);
        self.0.operations.count(verb, result, took);
    }
}

// === impl Inner ===

impl Inner {
    /// Of a cache in memory.
    pub(crate) fn sizes(&self) -> Option<Sizes> {
        match &self.backend {
            Backend::Memory(memory) => Some(memory.sizes()),
            Backend::Http(_) | Backend::Redis(_) => None,
        }
    }
}

// === impl Upkeep ===

impl Upkeep {
    /// Lets go of old entries, keeps the connection, and reads files again. Never returns.
    pub async fn run(self) {
        let Self {
            store,
            trust,
            token,
        } = self;
        let files = async {
            if let Some(trust) = trust {
                trust.run(stream::pending()).await;
            }
        };
        let tokens = async {
            if let Some((path, bearer)) = token {
                follow_token(path, &bearer).await;
            }
        };
        let backend = async {
            match &store.0.backend {
                Backend::Memory(memory) => {
                    let mut ticks = interval(SWEEP);
                    loop {
                        ticks.tick().await;
                        memory.sweep(store.0.clock.now());
                    }
                }
                Backend::Redis(redis) => redis.link.keep_connected().await,
                Backend::Http(_) => std::future::pending().await,
            }
        };
        tokio::join!(files, tokens, backend);
    }
}

async fn follow_token(path: PathBuf, bearer: &BearerToken) {
    let mut last = None;
    let read = move || read_at_most(&path, MAX_TOKEN);
    reread(read, stream::pending(), |content, _| {
        if last.as_ref() == Some(&content) {
            return;
        }
        let set = content.as_ref().map_err(String::clone);
        let set = set.and_then(|token| bearer.set(token).map_err(str::to_owned));
        if let Err(error) = set {
            error!(
                error,
                "the token cache's bearer token cannot be read: the former one is used"
            );
        }
        last = Some(content);
    })
    .await;
}
