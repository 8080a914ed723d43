//! One follower of KV events: what it sees goes to the worker's state, the loads and the metrics.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use kv_events::{ConnectionError, Engine, Observer, Received, ReplayResult};
use kv_router::{StreamState, WorkerBlocks};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::{
    events::EventPorts,
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
}

// === impl Follow ===

impl Follow {
    pub(crate) fn new(
        service: &Service,
        worker: &Arc<Worker>,
        rank: &Arc<Rank>,
        ports: EventPorts,
    ) -> Self {
        let (events, replay) = ports.of(worker.address, rank.number);
        Self {
            engine: Engine { events, replay },
            seen: SeenBy {
                service: service.clone(),
                worker: Arc::clone(worker),
                rank: Arc::clone(rank),
            },
        }
    }

    /// Until `stop`.
    pub(crate) async fn run(self, blocks: WorkerBlocks, stop: CancellationToken) -> WorkerBlocks {
        let Self { engine, seen } = self;
        let workers = Arc::clone(&seen.service.pool().workers);
        kv_events::follow(engine, blocks, workers, seen, stop).await
    }
}

// === impl SeenBy ===

impl Observer for SeenBy {
    fn state(&self, state: StreamState) {
        let (worker, events) = (&self.worker.name, &self.rank.events);
        debug!(%worker, rank = self.rank.number, state = state.name(), "KV events");
        events.set_state(state);
        let pool = self.service.pool();
        pool.workers
            .loads
            .set_live(self.rank.slot, state == StreamState::Live);
        match state {
            StreamState::BlockSizeMismatch => {
                let ours = pool.workers.index.block_size();
                let reason = format!("the engine's blocks have another size than {ours} ids");
                events.set_reason(Some(reason));
                self.service.warnings().block_size(worker, ours);
            }
            StreamState::Live | StreamState::NoEvents => events.set_reason(None),
            _ => {}
        }
    }

    fn disconnected(&self, error: &ConnectionError) {
        self.rank.events.set_reason(Some(error.to_string()));
    }

    fn received(&self, received: &Received) {
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
        self.service.metrics().events("message", reason, 1);
        self.rank
            .events
            .set_reason(Some(format!("a message was no events: {reason}")));
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
