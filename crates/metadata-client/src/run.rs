//! The tasks of a client, from the first look for the service to the last report.

use std::{sync::Arc, time::Duration};

use metadata::wire::cache::{PromptHash, Query};
use serde::de::IgnoredAny;
use tokio::{
    task::{JoinError, JoinSet},
    time::{MissedTickBehavior, interval, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::{
    answer::Unavailable,
    backoff::Backoff,
    calls::Named,
    client::Shared,
    saves,
    settings::{Api, Settings},
    transport::Transport,
    worker::Worker,
};

/// Connections that are left when the last call is over close in so long, or are cut.
const CLOSE: Duration = Duration::from_secs(1);
/// What is wrong for long is logged so often.
const WARN_EACH: Duration = Duration::from_secs(1);

/// The tasks of a client, to be run once.
pub struct Tasks<T: Transport> {
    shared: Arc<Shared<T>>,
}

/// A task ended that never does: it is a fault of this program.
#[derive(Debug, thiserror::Error)]
#[error("a task of the Metadata-Center's client died: {0}")]
pub struct TaskDied(String);

// === impl Tasks ===

impl<T: Transport> Tasks<T> {
    pub(crate) fn new(shared: Arc<Shared<T>>) -> Self {
        Self { shared }
    }

    /// Runs them until `stop`; then sends what is left, as long as the settings allow, and gives the lease back. By then
    /// the last request should have ended. Dropping it ends all at once.
    ///
    /// # Errors
    /// [`TaskDied`] if one panicked.
    pub async fn run(self, stop: CancellationToken) -> Result<(), TaskDied> {
        let Self { shared } = self;
        let mut helpers = JoinSet::new();
        helpers.spawn(resolve(Arc::clone(&shared)));
        helpers.spawn(watch_boots(Arc::clone(&shared)));
        helpers.spawn(warn_of_faults(Arc::clone(&shared)));
        helpers.spawn(find_cache_calls(Arc::clone(&shared)));
        let mut writers = JoinSet::new();
        for shard in 0..u32::from(shared.settings.workers.clamp(1, 64)) {
            writers.spawn(Worker::new(Arc::clone(&shared), shard).run(stop.clone()));
        }
        writers.spawn(saves::run(Arc::clone(&shared), stop.clone()));
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            Some(ended) = writers.join_next() => return Err(died(ended)),
            Some(ended) = helpers.join_next() => return Err(died(ended)),
        }
        let mut result = Ok(());
        let flushed = async {
            while let Some(ended) = writers.join_next().await {
                if ended.is_err() {
                    result = Err(died(ended));
                }
            }
        };
        if timeout(shared.settings.flush, flushed).await.is_err() {
            warn!("reports are left that the Metadata-Center did not take in time");
        }
        writers.shutdown().await;
        end_leases(&shared).await;
        helpers.shutdown().await;
        if timeout(CLOSE, shared.service.close()).await.is_err() {
            debug!("connections to the Metadata-Center are left open");
        }
        result
    }
}

fn died(ended: Result<(), JoinError>) -> TaskDied {
    TaskDied(ended.map_or_else(|error| error.to_string(), |()| "it returned".to_owned()))
}

async fn resolve<T: Transport>(shared: Arc<Shared<T>>) {
    shared.service.resolve().await;
}

/// A service that lost its state gets all of it again.
async fn watch_boots<T: Transport>(shared: Arc<Shared<T>>) {
    let mut boots = shared.service.boots();
    let mut known = *boots.borrow_and_update();
    // The sender lives as long as what this holds.
    while boots.changed().await.is_ok() {
        let boot = *boots.borrow_and_update();
        if known.is_some() {
            info!("the Metadata-Center lost its state: all is reported again");
            shared.outboxes.reset();
        }
        known = boot;
    }
}

async fn warn_of_faults<T: Transport>(shared: Arc<Shared<T>>) {
    let mut ticks = interval(WARN_EACH);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut overflows = 0;
    loop {
        ticks.tick().await;
        if shared.outboxes.is_failing() {
            warn!(
                waiting = shared.outboxes.waiting(),
                "the Metadata-Center does not take what is reported: other endpoint pickers do not see our requests"
            );
        }
        let now = shared.outboxes.overflows();
        if now > overflows {
            let more = now - overflows;
            warn!(
                more,
                "more requests changed than may wait for the Metadata-Center: raise --metadata-center-async-queue-size"
            );
        }
        overflows = now;
    }
}

/// Queries the service once at the start for whether it has calls for caches: else only the first prompt would show it. A
/// service that cannot be reached is queried again until it answers.
async fn find_cache_calls<T: Transport>(shared: Arc<Shared<T>>) {
    let mut backoff = Backoff::new();
    while shared.uses_cache_calls() && !shared.has_answered_for_caches().await {
        let wait = backoff.failed(&mut rand::rng());
        sleep(wait).await;
    }
    std::future::pending::<()>().await;
}

impl<T: Transport> Shared<T> {
    /// Whether requests make calls for caches that the service may not have.
    fn uses_cache_calls(&self) -> bool {
        let Settings { api, caches, .. } = *self.settings;
        api == Api::Compat && caches && !self.cache_calls.are_missing()
    }

    /// Makes a query that matches nothing. False if there was no answer.
    async fn has_answered_for_caches(&self) -> bool {
        let Ok(cluster) = self.settings.instance.as_str().parse() else {
            return true;
        };
        let query = Named::query(&Query {
            cluster,
            prompt_hash: PromptHash::from(vec![0]),
            top_k: None,
            topk: None,
            candidates: None,
        });
        let answer = match query {
            Ok(named) => self.write::<IgnoredAny>(named).await,
            Err(error) => Err(error),
        };
        match answer {
            Err(Unavailable::Refused(call)) if call.is_unknown_call() => {
                self.cache_calls.note_missing(self.service.now());
                true
            }
            Ok(_) | Err(Unavailable::Refused(_) | Unavailable::Malformed(_)) => true,
            Err(_) => false,
        }
    }
}

async fn end_leases<T: Transport>(shared: &Shared<T>) {
    if shared.settings.api == Api::Compat || shared.outboxes.all().is_empty() {
        return;
    }
    let ended = shared
        .write::<serde_json::Value>(shared.reporter.end())
        .await;
    if let Err(error) = ended {
        warn!(%error, "the lease at the Metadata-Center was not given back: it ends by itself");
    }
}
