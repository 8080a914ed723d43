//! From what discovery reports to the workers of the pool, the followers of their KV events, and readiness.

use std::{collections::HashMap, sync::Arc, time::Duration};

use anyhow::Context;
use discovery::{Update, Updates};
use futures::StreamExt;
use kv_router::{Slot, StreamState, WorkerBlocks};
use process::Health;
use scheduling::Member;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, timeout_at},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    events::EventPorts,
    follow::Follow,
    pool::{Changes, Pool, Rank, Worker},
    service::Service,
};

#[cfg(test)]
mod tests;

/// Keeps the workers as the source reports them.
pub struct Membership {
    /// What the source reports.
    pub updates: Updates,
    /// Gets the workers.
    pub service: Service,
    /// Where KV events are published; none: they are not followed.
    pub events: Option<EventPorts>,
    /// Data parallel ranks behind an address, where target ports are none.
    pub ranks: u8,
    /// Told when there are workers.
    pub warm: Warm,
}

/// Whether prompts could be routed: the pool is known, one worker of it, and what its workers have published, for which it
/// waits 5 s at most. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Warm {
    health: Health,
    is_warm: Arc<watch::Sender<bool>>,
}

/// Who has the blocks of each rank.
struct Followers {
    service: Service,
    events: Option<EventPorts>,
    /// A task for each rank whose events are followed; it returns the blocks.
    tasks: JoinSet<WorkerBlocks>,
    stops: HashMap<Slot, CancellationToken>,
    /// Of ranks without a task.
    held: HashMap<Slot, WorkerBlocks>,
}

/// How long a Router that has workers waits for what they have published, before it is ready and contends for a lease: as
/// long as a replay may take.
const CATCH_UP: Duration = Duration::from_secs(5);

/// The part of readiness that the workers are.
pub(crate) const WORKERS: &str = "workers";

// === impl Membership ===

impl Membership {
    /// Follows the source for ever.
    ///
    /// # Errors
    /// When a follower of events died.
    pub async fn run(self) -> anyhow::Result<()> {
        let Self {
            mut updates,
            service,
            events,
            ranks,
            warm,
        } = self;
        let mut followers = Followers {
            service: service.clone(),
            events,
            tasks: JoinSet::new(),
            stops: HashMap::new(),
            held: HashMap::new(),
        };
        // Since when there are workers, while it is not warm.
        let mut since = None;
        loop {
            tokio::select! {
                update = updates.next() => {
                    let Some(update) = update else { return Ok(()) };
                    if let Some(members) = members(update, &service) {
                        let changes = service.pool().replace(&members, ranks);
                        followers.change(changes);
                        if service.pool().table().slots().is_empty() {
                            since = None;
                            warm.set(false);
                        } else if !warm.is() {
                            since.get_or_insert_with(Instant::now);
                        }
                    }
                }
                () = caught_up(service.pool(), since) => {
                    since = None;
                    warm.set(true);
                }
                Some(ended) = followers.tasks.join_next() => {
                    let blocks = ended.context("a follower of KV events died")?;
                    followers.ended(blocks);
                }
            }
        }
    }
}

/// Waits until what the workers have cached is known, or [`CATCH_UP`] after there were workers.
async fn caught_up(pool: &Pool, since: Option<Instant>) {
    let Some(since) = since else {
        return std::future::pending().await;
    };
    let known = async {
        while !pool.table().are_caches_known() {
            pool.stream_changed.notified().await;
        }
    };
    // Prompts are routed without the events of a worker that cannot be reached.
    let _ = timeout_at(since + CATCH_UP, known).await;
}

/// The members, if the update names them.
fn members(update: Update, service: &Service) -> Option<Vec<Member>> {
    let metrics = service.metrics();
    match update {
        Update::Listed(_) => None,
        Update::Members(members) => {
            info!(workers = members.len(), "workers of the pool");
            Some(members)
        }
        Update::Gone { pool } => {
            warn!(pool, "no such InferencePool: not ready until it is created");
            Some(Vec::new())
        }
        Update::Failed {
            kind,
            reason,
            error,
        } => {
            let kind = kind.as_str();
            warn!(kind, reason, error, "discovery failed: workers stay");
            metrics.discovery_failed(kind);
            None
        }
        Update::Odd { kind, name, error } => {
            let kind = kind.as_str();
            warn!(kind, name, error, "not as it should be");
            metrics.discovery_failed(kind);
            None
        }
    }
}

// === impl Followers ===

impl Followers {
    fn change(&mut self, changes: Changes) {
        let Changes {
            added,
            removed,
            left_out,
        } = changes;
        for worker in removed {
            for rank in &worker.ranks {
                self.stop(rank.slot);
            }
        }
        for (worker, blocks) in added {
            for (rank, blocks) in worker.ranks.iter().zip(blocks) {
                self.start(&worker, rank, blocks);
            }
        }
        if let Some(first) = left_out.first() {
            let workers = left_out.len();
            warn!(workers, %first, "too many workers: these get no prompts");
        }
    }

    fn start(&mut self, worker: &Arc<Worker>, rank: &Arc<Rank>, blocks: WorkerBlocks) {
        let Some(ports) = &self.events else {
            self.held.insert(rank.slot, blocks);
            return;
        };
        let follow = match Follow::new(&self.service, worker, rank, ports) {
            Ok(follow) => follow,
            Err(error) => {
                warn!(worker = %worker.name, "{error}");
                rank.events.set_reason(Some(error.to_string()));
                self.held.insert(rank.slot, blocks);
                return;
            }
        };
        rank.events.set_state(StreamState::Connecting);
        let stop = CancellationToken::new();
        self.stops.insert(rank.slot, stop.clone());
        self.tasks.spawn(follow.run(blocks, stop));
    }

    fn stop(&mut self, slot: Slot) {
        // No booking finds it again, whatever its follower does.
        self.service.pool().workers.loads.remove(slot);
        if let Some(blocks) = self.held.remove(&slot) {
            self.service.pool().workers.remove(blocks);
        }
        if let Some(stop) = self.stops.get(&slot) {
            stop.cancel();
        }
    }

    /// A follower gave the blocks back, because it was stopped.
    fn ended(&mut self, blocks: WorkerBlocks) {
        self.stops.remove(&blocks.slot());
        self.service.pool().workers.remove(blocks);
    }
}

// === impl Warm ===

impl Warm {
    /// Not yet.
    pub fn new(health: Health) -> Self {
        health.set(WORKERS, false);
        Self {
            health,
            is_warm: Arc::default(),
        }
    }

    pub(crate) fn set(&self, is_warm: bool) {
        self.health.set(WORKERS, is_warm);
        self.is_warm.send_if_modified(|before| {
            let changed = *before != is_warm;
            *before = is_warm;
            changed
        });
    }

    fn is(&self) -> bool {
        *self.is_warm.borrow()
    }

    /// Waits until it is so.
    pub(crate) async fn until(&self, is_warm: bool) {
        let mut changes = self.is_warm.subscribe();
        // No error: the sender is of this value.
        let _ = changes.wait_for(|now| *now == is_warm).await;
    }
}
