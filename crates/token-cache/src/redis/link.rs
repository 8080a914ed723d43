//! The connection to Redis that all operations share, renewed when it fails.

use std::{fmt, sync::Arc, time::Duration};

use arc_swap::ArcSwapOption;
use http_call::{Admission, Breaker, LITTLE, Outcome, TrustFiles};
use moment::Clock;
use parking_lot::Mutex;
use rand::RngExt;
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, Cmd, FromRedisValue, RedisError,
    TlsCertificates, aio::MultiplexedConnection, cmd,
};
use reread::read_at_most;
use tokio::{
    sync::{Notify, Semaphore},
    task::spawn_blocking,
    time::{sleep, timeout},
};
use tracing::{debug, info, warn};

use crate::{endpoint::RedisUrl, error::StoreError};

/// Operations that may wait for Redis at once: 20 times what it answers within one millisecond.
const MAX_CALLS: usize = 1024;
const CONNECT: Duration = Duration::from_secs(1);
/// Between two looks whether the connection still works, so that the first operation after a quiet time finds one that does.
const PING: Duration = Duration::from_secs(5);
/// Before the first attempt to connect again, and at most; each wait is half of it or up to all of it, by chance.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// 1 MiB: a bundle of some hundred CAs.
const MAX_PEM: usize = 1024 * 1024;

pub(crate) struct Link {
    url: RedisUrl,
    tls: TrustFiles,
    current: ArcSwapOption<MultiplexedConnection>,
    places: Semaphore,
    failed: Notify,
    /// Held for some nanoseconds an operation, which costs Redis some microseconds.
    breaker: Mutex<Breaker>,
    clock: Clock,
}

/// An operation that was admitted; what it tells of Redis is recorded in any case.
struct Admitted<'a> {
    link: &'a Link,
    admission: Admission,
    outcome: Outcome,
}

// === impl Link ===

impl Link {
    pub(crate) fn new(url: RedisUrl, tls: TrustFiles) -> Self {
        Self {
            url,
            tls,
            current: ArcSwapOption::empty(),
            places: Semaphore::new(MAX_CALLS),
            failed: Notify::new(),
            breaker: Mutex::new(Breaker::new()),
            clock: Clock::start(),
        }
    }

    /// Connects, and again whenever the connection fails. Never returns.
    pub(crate) async fn keep_connected(&self) {
        let mut wait = BACKOFF.0;
        let mut is_failing = false;
        loop {
            match self.connect().await {
                Ok(connection) => {
                    if is_failing {
                        info!(cache = %self.url, "connected to the token cache again");
                    }
                    is_failing = false;
                    wait = BACKOFF.0;
                    self.current.store(Some(connection.into()));
                    self.watch().await;
                    self.current.store(None);
                    debug!(cache = %self.url, "the connection to the token cache failed");
                }
                Err(error) if !is_failing => {
                    is_failing = true;
                    warn!(cache = %self.url, error, "the token cache cannot be connected to: this is logged once");
                }
                Err(error) => debug!(cache = %self.url, error, "no connection"),
            }
            let part = rand::rng().random_range(0.5..=1.0);
            sleep(wait.mul_f64(part)).await;
            wait = (wait * 2).min(BACKOFF.1);
        }
    }

    /// Until the connection fails.
    async fn watch(&self) {
        loop {
            tokio::select! {
                () = self.failed.notified() => return,
                () = sleep(PING) => {}
            }
            let Some(connection) = self.current.load_full() else {
                return;
            };
            let mut connection = MultiplexedConnection::clone(&connection);
            let ping = cmd("PING");
            let pong = timeout(CONNECT, ping.query_async::<String>(&mut connection)).await;
            if !matches!(pong, Ok(Ok(_))) {
                return;
            }
        }
    }

    /// With the files as they are now.
    async fn connect(&self) -> Result<MultiplexedConnection, String> {
        let (url, tls) = (self.url.clone(), self.tls.clone());
        let client = spawn_blocking(move || client(&url, &tls));
        let client = client.await.map_err(|error| error.to_string())??;
        // operations have their own deadline
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT))
            .set_response_timeout(None);
        let connect = client.get_multiplexed_async_connection_with_config(&config);
        match timeout(CONNECT, connect).await {
            Ok(connected) => connected.map_err(|error| error.to_string()),
            Err(_) => Err(format!("no answer within {CONNECT:?}")),
        }
    }

    pub(crate) async fn query<T: FromRedisValue>(
        &self,
        command: &Cmd,
        within: Duration,
    ) -> Result<T, StoreError> {
        let Ok(_place) = self.places.try_acquire() else {
            return Err(StoreError::Busy);
        };
        let Some(connection) = self.current.load_full() else {
            let why = "there is no connection to Redis";
            return Err(StoreError::Unavailable(why.to_owned()));
        };
        let mut admitted = self.admit()?;
        let mut own = MultiplexedConnection::clone(&connection);
        let Ok(result) = timeout(within, command.query_async::<T>(&mut own)).await else {
            if within >= LITTLE {
                admitted.outcome = Outcome::Failure;
            }
            drop(admitted);
            if self.breaker.lock().is_open(self.clock.now()) {
                // it may be the connection alone that hangs
                self.renew(&connection);
            }
            return Err(StoreError::Late);
        };
        admitted.outcome = match &result {
            Ok(_) => Outcome::Success,
            Err(_) => Outcome::Failure,
        };
        result.map_err(|error| {
            if error.is_unrecoverable_error() || error.is_io_error() {
                self.renew(&connection);
            }
            unavailable(&error)
        })
    }

    fn admit(&self) -> Result<Admitted<'_>, StoreError> {
        let now = self.clock.now();
        match self.breaker.lock().admit(now) {
            Admission::Refused => Err(StoreError::Open),
            admission => Ok(Admitted {
                link: self,
                admission,
                outcome: Outcome::Unknown,
            }),
        }
    }

    /// Unless it was renewed meanwhile.
    fn renew(&self, failed: &Arc<MultiplexedConnection>) {
        let current = self.current.compare_and_swap(failed, None);
        if current.as_ref().is_some_and(|it| Arc::ptr_eq(it, failed)) {
            self.failed.notify_one();
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("url", &self.url)
            .field("connected", &self.current.load().is_some())
            .finish_non_exhaustive()
    }
}

fn client(url: &RedisUrl, tls: &TrustFiles) -> Result<Client, String> {
    let info = url.info().map_err(|error| error.to_string())?;
    // they may be there for other peers
    if !url.is_tls() || *tls == TrustFiles::default() {
        return Client::open(info).map_err(|error| error.to_string());
    }
    let authorities = tls.ca_file.as_deref();
    let root_cert = authorities.map(|path| read_at_most(path, MAX_PEM));
    let client_tls = tls.cert_dir.as_deref().map(|dir| {
        let read = |name: &str| {
            let content = read_at_most(&dir.join(name), MAX_PEM);
            content.map_err(|error| format!("{name} cannot be read: {error}"))
        };
        Ok::<_, String>(ClientTlsConfig {
            client_cert: read("tls.crt")?,
            client_key: read("tls.key")?,
        })
    });
    let files = TlsCertificates {
        client_tls: client_tls.transpose()?,
        root_cert: root_cert
            .transpose()
            .map_err(|error| format!("the file of CAs: {error}"))?,
    };
    Client::build_with_tls(info, files).map_err(|error| error.to_string())
}

fn unavailable(error: &RedisError) -> StoreError {
    let text = error.to_string();
    let why = if text.contains("command not allowed when used memory") {
        "Redis is out of memory".to_owned()
    } else {
        format!("Redis: {text}")
    };
    StoreError::Unavailable(why)
}

// === impl Admitted ===

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        let now = self.link.clock.now();
        let mut breaker = self.link.breaker.lock();
        breaker.record(self.admission, self.outcome, now, &mut rand::rng());
    }
}
