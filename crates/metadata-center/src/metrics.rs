//! What the service counts. The names that existing dashboards know keep their names; ours begin with `metadata_center_`.

mod page;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use histogram::{Histogram, Shape};
use metadata::{Address, Cluster, Fault, Sizes, Swept};
use parking_lot::Mutex;
use prometheus_client::{metrics::counter::Counter, registry::Registry};
use tokio::time::timeout;

use crate::{
    engine::{CacheLog, CacheSize, Engine},
    route::{Call, Found, PATHS},
};

/// 10 us to 2.5 s: calls in memory take some microseconds, those of a store some hundred, and none takes longer than 2 s.
static TIMES: Shape = Shape::nanos(&[
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
]);

/// Of all replies that there are: those of the codes, and success.
const STATUSES: [u16; 10] = [200, 400, 401, 404, 405, 409, 413, 429, 500, 503];

/// Series under the known names, two for each endpoint. What comes after them, by cluster and address, is left out.
const MAX_ENDPOINTS: usize = 5_000;

/// A page without sizes is better than none: who asks for it waits for some seconds.
const READ_WITHIN: Duration = Duration::from_secs(2);

/// All that is counted. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Counted>);

#[derive(Debug)]
struct Counted {
    /// As in [`PATHS`], by path and method.
    routes: Vec<Vec<RouteMetrics>>,
    /// Requests that no route was found for.
    other: RouteMetrics,
    /// By call.
    engine: [Histogram; Call::ALL.len()],
    engine_errors: AtomicU64,
    resyncs: AtomicU64,
    stale_batches: AtomicU64,
    refused_connections: Counter,
    freed: Mutex<Freed>,
    reading: Mutex<Reading>,
}

/// Requests of one route.
#[derive(Debug)]
pub(crate) struct RouteMetrics {
    /// By status.
    replies: [AtomicU64; STATUSES.len()],
    time: Histogram,
}

/// Sums of what was freed without a delete.
#[derive(Clone, Copy, Debug, Default)]
struct Freed {
    lease: u64,
    replaced: u64,
    released: u64,
    left_out: u64,
    expired: u64,
    reservation: u64,
    cache: u64,
    endpoint: u64,
    cluster: u64,
}

/// How large the state was when the page was asked for.
#[derive(Debug, Default)]
struct Reading {
    /// Absent: where it is does not answer.
    stored: Option<Stored>,
    cache: CacheSize,
    cache_log: Option<CacheLog>,
}

#[derive(Debug)]
struct Stored {
    sizes: Sizes,
    loads: Vec<EndpointLoad>,
}

#[derive(Debug)]
struct EndpointLoad {
    cluster: Cluster,
    ip: Address,
    queued: i64,
    prompt_length: i64,
}

// === impl Metrics ===

impl Metrics {
    /// Puts them on the page.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register_collector(Box::new(page::Page(metrics.clone())));
        metrics
    }

    /// Of the requests of a route.
    pub(crate) fn route(&self, found: Option<&Found<'_>>) -> &RouteMetrics {
        let route = found.and_then(|found| self.0.routes.get(found.path)?.get(found.method));
        route.unwrap_or(&self.0.other)
    }

    /// What the engine did for a call.
    pub(crate) fn engine<T>(&self, call: Call, time: Duration, result: &Result<T, Fault>) {
        if let Some(times) = self.0.engine.get(call as usize) {
            times.observe(nanos(time));
        }
        match result {
            Err(Fault::BackendUnavailable(_) | Fault::Internal) => self.engine_failed(),
            Err(Fault::StaleEpoch { .. } | Fault::StaleSeq { .. }) => {
                self.0.stale_batches.fetch_add(1, Relaxed);
            }
            _ => {}
        }
    }

    pub(crate) fn engine_failed(&self) {
        self.0.engine_errors.fetch_add(1, Relaxed);
    }

    pub(crate) fn resync(&self) {
        self.0.resyncs.fetch_add(1, Relaxed);
    }

    pub(crate) fn connections_refused(&self) -> &Counter {
        &self.0.refused_connections
    }

    pub(crate) fn swept(&self, swept: &Swept) {
        let mut freed = self.0.freed.lock();
        freed.lease += swept.charges as u64;
        freed.replaced += swept.replaced as u64;
        freed.released += swept.released as u64;
        freed.left_out += swept.left_out as u64;
        freed.expired += swept.expired as u64;
        freed.reservation += swept.reservations as u64;
        freed.cache += swept.cache_entries as u64;
        freed.endpoint += swept.endpoints as u64;
        freed.cluster += swept.clusters as u64;
    }

    /// Looks how large the state is, for the next page. Without an answer the page has only what this process holds.
    pub(crate) async fn read<E: Engine>(&self, engine: &E) {
        let stored = timeout(READ_WITHIN, Stored::of(engine)).await;
        let stored = stored.ok().and_then(Result::ok);
        if stored.is_none() {
            self.engine_failed();
        }
        *self.0.reading.lock() = Reading {
            stored,
            cache: engine.cache_size(),
            cache_log: engine.cache_log(),
        };
    }
}

impl Default for Metrics {
    /// On no page.
    fn default() -> Self {
        let methods = |path: &crate::route::Path| path.calls.len();
        let routes = PATHS.iter().map(|path| {
            let route = |_| RouteMetrics::new();
            (0..methods(path)).map(route).collect()
        });
        Self(Arc::new(Counted {
            routes: routes.collect(),
            other: RouteMetrics::new(),
            engine: Call::ALL.map(|_| Histogram::new(&TIMES)),
            engine_errors: AtomicU64::new(0),
            resyncs: AtomicU64::new(0),
            stale_batches: AtomicU64::new(0),
            refused_connections: Counter::default(),
            freed: Mutex::default(),
            reading: Mutex::default(),
        }))
    }
}

// === impl RouteMetrics ===

impl RouteMetrics {
    fn new() -> Self {
        Self {
            replies: STATUSES.map(|_| AtomicU64::new(0)),
            time: Histogram::new(&TIMES),
        }
    }

    pub(crate) fn replied(&self, status: http::StatusCode, time: Duration) {
        let at = STATUSES.iter().position(|it| *it == status.as_u16());
        if let Some(replies) = at.and_then(|at| self.replies.get(at)) {
            replies.fetch_add(1, Relaxed);
        }
        self.time.observe(nanos(time));
    }
}

// === impl Stored ===

impl Stored {
    async fn of<E: Engine>(engine: &E) -> Result<Self, Fault> {
        let sizes = engine.sizes().await?;
        let mut loads = Vec::new();
        for size in &sizes.by_cluster {
            let room = MAX_ENDPOINTS.saturating_sub(loads.len());
            if room == 0 {
                break;
            }
            let known = engine.loads(&size.cluster).await?.unwrap_or_default();
            loads.extend(known.into_iter().take(room).map(|load| EndpointLoad {
                cluster: size.cluster.clone(),
                ip: load.ip,
                queued: load.queued_req_num.into(),
                prompt_length: load.prompt_length.into(),
            }));
        }
        Ok(Self { sizes, loads })
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
