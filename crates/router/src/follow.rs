//! One follower of KV events, which updates the worker's state, the loads, the metrics and the log.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use kv_events::{ConnectionError, Engine, Observer, Received, ReplayResult};
use kv_router::{StreamState, WorkerBlocks};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::{
    events::{EventPorts, NoPorts},
    pool::{Rank, Worker},
    service::Service,
};

/// The stream of one rank of a worker.
pub(crate) struct Follow {
    engine: Engine,
    seen: SeenBy,
}

/// Sees what happens to it.
struct SeenBy {
    service: Service,
    worker: Arc<Worker>,
    rank: Arc<Rank>,
    logged: Mutex<Logged>,
}

/// What the log has of states that do not end by themselves.
///
/// A state is logged when it begins or its reason changes, but at most once in [`WARN_EACH`]. What could not be logged then
/// is logged later, if it is still so: a stream that is live for a moment and lost again logs one line a minute, and the
/// last line is true.
#[derive(Debug, Default)]
struct Logged {
    connecting_since: Option<Instant>,
    /// The state that does not end by itself and its reason, while the stream is in it.
    current: Option<Problem>,
    /// The problem of the last line; none if that line was about the end of one.
    last: Option<Problem>,
    /// When each state was logged last.
    warned: Vec<(StreamState, Instant)>,
}

/// A state that does not end by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Problem {
    state: StreamState,
    reason: Option<String>,
}

/// What is logged about a state.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    /// The state will not end without an action of the user.
    Warning(Problem),
    /// The state ended.
    Recovered,
}

/// How long a connection may be missing before it is logged: an engine that restarts is back by then.
const CONNECTING: Duration = Duration::from_secs(30);

/// Between two warnings about the same state of one stream.
const WARN_EACH: Duration = Duration::from_mins(1);

// === impl Follow ===

impl Follow {
    pub(crate) fn new(
        service: &Service,
        worker: &Arc<Worker>,
        rank: &Arc<Rank>,
        ports: &EventPorts,
    ) -> Result<Self, NoPorts> {
        let (events, replay) = ports.of(worker.address, rank.number, &worker.labels)?;
        Ok(Self {
            engine: Engine { events, replay },
            seen: SeenBy {
                service: service.clone(),
                worker: Arc::clone(worker),
                rank: Arc::clone(rank),
                logged: Mutex::default(),
            },
        })
    }

    /// Until `stop`.
    pub(crate) async fn run(self, blocks: WorkerBlocks, stop: CancellationToken) -> WorkerBlocks {
        let Self { engine, seen } = self;
        let workers = Arc::clone(&seen.service.pool().workers);
        kv_events::follow(engine, blocks, workers, seen, stop).await
    }
}

// === impl Logged ===

impl Logged {
    fn state(&mut self, state: StreamState, reason: Option<&str>, now: Instant) -> Option<Entry> {
        if state != StreamState::Connecting {
            self.connecting_since = None;
        }
        self.current = None;
        match state {
            StreamState::Connecting => {
                self.connecting_since.get_or_insert(now);
                None
            }
            StreamState::Live => self.last.take().map(|_| Entry::Recovered),
            StreamState::Partial | StreamState::BlockSizeMismatch => {
                let reason = reason.map(str::to_owned);
                self.current = Some(Problem { state, reason });
                self.overdue(now)
            }
            StreamState::NoEvents | StreamState::Replaying => None,
        }
    }

    /// Records that there is still no connection.
    fn disconnected(&mut self, error: &str, now: Instant) -> Option<Entry> {
        let since = self.connecting_since?;
        if now.duration_since(since) < CONNECTING {
            return None;
        }
        let state = StreamState::Connecting;
        // the next tries of the same outage may fail otherwise
        if self.current.is_none() {
            let reason = Some(error.to_owned());
            self.current = Some(Problem { state, reason });
        }
        self.overdue(now)
    }

    /// The warning about the state that the stream is in, unless it is the last one that was logged, or the state was logged
    /// less than [`WARN_EACH`] ago.
    fn overdue(&mut self, now: Instant) -> Option<Entry> {
        let current = self
            .current
            .as_ref()
            .filter(|it| self.last.as_ref() != Some(*it))?;
        match self
            .warned
            .iter_mut()
            .find(|(state, _)| *state == current.state)
        {
            Some((_, at)) if now.duration_since(*at) < WARN_EACH => return None,
            Some((_, at)) => *at = now,
            None => self.warned.push((current.state, now)),
        }
        self.last.clone_from(&self.current);
        self.last.clone().map(Entry::Warning)
    }
}

// === impl SeenBy ===

impl SeenBy {
    fn log(&self, entry: Option<Entry>) {
        let (worker, rank) = (&self.worker.name, self.rank.number);
        match entry {
            Some(Entry::Warning(Problem { state, reason })) => {
                let reason = reason.unwrap_or_default();
                warn!(%worker, rank, state = state.name(), reason, "not all KV events of this worker are known; see docs/kv-events.md");
            }
            Some(Entry::Recovered) => {
                info!(%worker, rank, "all KV events of this worker are known");
            }
            None => {}
        }
    }
}

impl Observer for SeenBy {
    fn state(&self, state: StreamState, reason: Option<&str>) {
        let (worker, events) = (&self.worker.name, &self.rank.events);
        debug!(%worker, rank = self.rank.number, state = state.name(), reason, "KV events");
        events.set_state(state);
        let pool = self.service.pool();
        pool.workers
            .loads
            .set_live(self.rank.slot, state == StreamState::Live);
        pool.stream_changed.notify_one();
        // the reason for a missing connection was recorded before
        if state != StreamState::Connecting {
            events.set_reason(reason.map(str::to_owned));
        }
        let entry = self.logged.lock().state(state, reason, Instant::now());
        self.log(entry);
    }

    fn disconnected(&self, error: &ConnectionError) {
        let error = error.to_string();
        let entry = self.logged.lock().disconnected(&error, Instant::now());
        self.log(entry);
        self.rank.events.set_reason(Some(error));
    }

    fn received(&self, received: &Received) {
        let entry = self.logged.lock().overdue(Instant::now());
        self.log(entry);
        let events = &self.rank.events;
        events.set_sequence(received.number);
        events.blocks.store(received.blocks, Relaxed);
        if let Some(age) = received.age.filter(|_| !received.is_replayed) {
            let millis = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
            events.lag_ms.store(millis, Relaxed);
        }
        let metrics = self.service.metrics();
        for (kind, result, count) in received.counts.iter() {
            metrics.events(kind.name(), result.name(), count.into());
        }
        self.service.warnings().events();
    }

    fn malformed(&self, reason: &'static str) {
        let (worker, rank) = (&self.worker.name, self.rank.number);
        debug!(%worker, rank, reason, "a message of KV events was skipped");
        self.service.metrics().events("message", reason, 1);
    }

    fn gap(&self, missing: u64) {
        debug!(worker = %self.worker.name, missing, "messages of KV events were missed");
        self.service.metrics().event_gap();
    }

    fn forgotten(&self) {
        self.rank.events.blocks.store(0, Relaxed);
    }

    fn replayed(&self, result: ReplayResult) {
        self.service.metrics().replayed(result.name());
    }
}

#[cfg(test)]
mod tests;
