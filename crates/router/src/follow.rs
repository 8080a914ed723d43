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
        // a batch of blocks of another size is received, too
        if events.state() != Some(StreamState::BlockSizeMismatch) {
            events.set_reason(None);
        }
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

#[cfg(test)]
mod tests {
    use kv_events::Counts;
    use kv_router::{Limits, Policy, Preset};
    use moment::Clock;

    use super::*;
    use crate::{
        metrics::Metrics,
        pool::tests::{mk_member, mk_pool},
        service::Parts,
    };

    fn mk_seen() -> SeenBy {
        let pool = Arc::new(mk_pool(Limits::default()));
        let (worker, _) = pool
            .replace(&[mk_member("a", "1", 1, 0)], 1)
            .added
            .remove(0);
        let policy = Policy {
            weights: Preset::Isthmus.weights(),
            temperature: 0.0,
            busy_tokens: None,
        };
        let service = Service::new(Parts {
            pool,
            policy,
            clock: Clock::start(),
            metrics: Metrics::default(),
            follows_events: true,
            routes: None,
        });
        let rank = Arc::clone(&worker.ranks[0]);
        SeenBy {
            service,
            worker,
            rank,
        }
    }

    #[tokio::test]
    async fn a_reason_stands_until_a_good_message_and_that_of_another_block_size_while_it_is_so() {
        let seen = mk_seen();
        let message = Received {
            number: 7,
            counts: Counts::default(),
            blocks: 0,
            age: None,
            is_replayed: false,
        };
        for (state, is_cleared) in [
            (StreamState::Live, true),
            (StreamState::Partial, true),
            (StreamState::BlockSizeMismatch, false),
        ] {
            seen.state(state);
            seen.malformed("truncated");
            assert!(seen.rank.events.reason().is_some());
            seen.received(&message);
            assert_eq!(seen.rank.events.reason().is_none(), is_cleared, "{state:?}");
        }
    }
}
