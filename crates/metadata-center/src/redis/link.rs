//! The connection that all calls share, renewed when it fails.

use std::{fmt, time::Duration};

use arc_swap::ArcSwapOption;
use metadata::Fault;
use redis::{
    AsyncConnectionConfig, Client, FromRedisValue, Pipeline, RedisError, RedisResult,
    ScriptInvocation, aio::MultiplexedConnection,
};
use thiserror::Error;
use tokio::{
    sync::{Notify, Semaphore},
    time::timeout,
};

/// Calls that may wait for Redis at once: 20 times what it answers within one millisecond.
const MAX_CALLS: usize = 1024;
const CONNECT_LIMIT: Duration = Duration::from_secs(1);

pub(super) struct Link {
    client: Client,
    timeout: Duration,
    current: ArcSwapOption<MultiplexedConnection>,
    places: Semaphore,
    failed: Notify,
}

/// A URL that leads to no Redis.
#[derive(Debug, Error)]
#[error("expected redis://HOST:PORT, rediss://HOST:PORT or unix:///PATH: {0}")]
pub struct RedisUrlError(String);

// === impl Link ===

impl Link {
    pub(super) fn new(url: &str, timeout: Duration) -> Result<Self, RedisUrlError> {
        let client = Client::open(url).map_err(|error| RedisUrlError(error.to_string()))?;
        Ok(Self {
            client,
            timeout,
            current: ArcSwapOption::empty(),
            places: Semaphore::new(MAX_CALLS),
            failed: Notify::new(),
        })
    }

    /// Makes the connection that calls use from now on.
    pub(super) async fn connect(&self) -> Result<(), Fault> {
        let connection = self.dedicated().await?;
        self.current.store(Some(connection.into()));
        Ok(())
    }

    pub(super) fn is_connected(&self) -> bool {
        self.current.load().is_some()
    }

    pub(super) fn disconnect(&self) {
        self.current.store(None);
    }

    /// A connection apart from the calls, for one that blocks.
    pub(super) async fn dedicated(&self) -> Result<MultiplexedConnection, Fault> {
        // Calls have their own deadline.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_LIMIT))
            .set_response_timeout(None);
        let connect = self
            .client
            .get_multiplexed_async_connection_with_config(&config);
        match timeout(CONNECT_LIMIT, connect).await {
            Ok(connected) => connected.map_err(|error| fault(&error)),
            Err(_) => Err(no_answer(CONNECT_LIMIT)),
        }
    }

    /// A call met a broken connection.
    pub(super) async fn failed(&self) {
        self.failed.notified().await;
    }

    pub(super) async fn invoke<T: FromRedisValue>(
        &self,
        script: &ScriptInvocation<'_>,
    ) -> Result<T, Fault> {
        self.run(async |mut connection| script.invoke_async(&mut connection).await)
            .await
    }

    pub(super) async fn query<T: FromRedisValue>(&self, pipe: &Pipeline) -> Result<T, Fault> {
        self.run(async |mut connection| pipe.query_async(&mut connection).await)
            .await
    }

    async fn run<T>(
        &self,
        call: impl AsyncFnOnce(MultiplexedConnection) -> RedisResult<T>,
    ) -> Result<T, Fault> {
        let Ok(_place) = self.places.try_acquire() else {
            return Err(unavailable("too many calls wait for Redis"));
        };
        let Some(connection) = self.current.load_full() else {
            return Err(unavailable("there is no connection to Redis"));
        };
        match timeout(
            self.timeout,
            call(MultiplexedConnection::clone(&connection)),
        )
        .await
        {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => {
                if error.is_unrecoverable_error() || error.is_io_error() {
                    // Unless it was renewed meanwhile.
                    self.current.compare_and_swap(&connection, None);
                    self.failed.notify_one();
                }
                Err(fault(&error))
            }
            Err(_) => Err(no_answer(self.timeout)),
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The client knows the password.
        f.debug_struct("Link")
            .field("connected", &self.is_connected())
            .finish_non_exhaustive()
    }
}

/// The text by which Redis refuses what needs memory.
const OUT_OF_MEMORY: &str = "Redis is out of memory";

/// Redis answers, but takes nothing more.
pub(super) fn is_out_of_memory(fault: &Fault) -> bool {
    matches!(fault, Fault::BackendUnavailable(why) if why == OUT_OF_MEMORY)
}

fn fault(error: &RedisError) -> Fault {
    let text = error.to_string();
    // Alone, of a script and within a pipeline it is worded differently around this.
    if text.contains("command not allowed when used memory") {
        return unavailable(OUT_OF_MEMORY);
    }
    Fault::BackendUnavailable(format!("Redis: {text}"))
}

fn no_answer(limit: Duration) -> Fault {
    Fault::BackendUnavailable(format!("Redis does not answer within {limit:?}"))
}

pub(super) fn unavailable(why: &str) -> Fault {
    Fault::BackendUnavailable(why.to_owned())
}
