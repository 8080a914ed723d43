//! From what a source reports to the pool, the scraper, readiness and metrics.
//!
//! ```text
//!  Source (flags) ─► crate discovery ─► Update ─► Pool ─► director
//!                                         ├─► snapshots ─► scraper
//!                                         └─► readiness, metrics, log
//!     └─ with a pool ─► crate discovery ─► ObjectUpdate ─► CurrentConfig, metrics, log
//! ```

use std::sync::Arc;

use ::discovery::{Kind, Update, Updates};
use futures::{FutureExt, StreamExt, future::BoxFuture};
use moment::Clock;
use scheduling::{Member, Snapshot};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::{
    director::Pool,
    health::{Part, Readiness},
    metrics::Metrics,
};

mod objects;
mod source;

pub(crate) use objects::ObjectsInForce;
pub(crate) use source::named_source;

/// Keeps the members as the source reports them.
pub(crate) struct Membership {
    /// What the source reports.
    pub updates: Updates,
    /// Gets the members.
    pub pool: Pool,
    /// Told when the members are known, and when the pool is gone.
    pub readiness: Readiness,
    /// Counts failures.
    pub metrics: Metrics,
    /// Gets each new snapshot; `None` until the first.
    pub snapshots: watch::Sender<Option<Arc<Snapshot>>>,
    /// Time.
    pub clock: Clock,
    /// Ends when the rest is known that answers depend on, or has had its time: not ready before.
    pub rest: BoxFuture<'static, ()>,
}

// === impl Membership ===

impl Membership {
    /// Follows the source for ever.
    pub(crate) async fn run(mut self) {
        let mut rest = std::mem::replace(&mut self.rest, std::future::pending().boxed());
        let (mut known, mut rested) = (false, false);
        loop {
            tokio::select! {
                biased;
                () = &mut rest, if !rested => rested = true,
                update = self.updates.next() => {
                    let Some(update) = update else { return };
                    match &update {
                        Update::Members(_) => known = true,
                        Update::Gone { .. } => known = false,
                        _ => {}
                    }
                    self.on(update);
                }
            }
            self.readiness.set(Part::Discovery, known && rested);
        }
    }

    fn on(&self, update: Update) {
        match update {
            Update::Listed(kind) => self.metrics.discovery_synced(kind.as_str(), true),
            Update::Members(members) => {
                info!(members = members.len(), "members of the pool");
                self.send(members);
            }
            Update::Gone { pool } => {
                warn!(
                    pool,
                    "no such InferencePool: not ready, every request gets 503 until it is created"
                );
                self.metrics.discovery_synced(Kind::Pod.as_str(), false);
                if self.snapshots.borrow().is_some() {
                    self.send(Vec::new());
                }
            }
            Update::Failed {
                kind,
                reason,
                error,
            } => {
                let kind = kind.as_str();
                warn!(kind, reason, error, "discovery failed: members stay");
                self.metrics.discovery_error(kind);
            }
            Update::Odd { kind, name, error } => {
                let kind = kind.as_str();
                warn!(kind, name, error, "not as it should be");
                self.metrics.discovery_error(kind);
            }
        }
    }

    fn send(&self, members: Vec<Member>) {
        self.snapshots
            .send_replace(Some(self.pool.replace(members, self.clock.now())));
    }
}

#[cfg(test)]
mod tests;
