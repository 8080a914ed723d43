//! The task that empties a member's queue while there is contact.

use std::{sync::Arc, time::Duration};

use kube::Client;
use tokio::{sync::Notify, task::JoinSet, time::sleep_until};
use tokio_util::sync::CancellationToken;

use super::{
    Queue,
    action::{Failure, Outcome, Slot},
    send::Sender,
};
use crate::{metrics::Metrics, name::ClusterName};
use moment::{Clock, Moment};

/// What writers of all members share.
#[derive(Clone)]
pub(crate) struct WriterSettings {
    pub(crate) controller_name: String,
    pub(crate) write_timeout: Duration,
    pub(crate) clock: Clock,
    pub(crate) metrics: Metrics,
    /// Cancelled: begin nothing new, finish what is in flight.
    pub(crate) drain: CancellationToken,
    /// Say what would be written, and write nothing.
    pub(crate) dry_run: bool,
}

/// Sends what the queue has due, until drained; dropped with the session that owns it. Rings `unauthorised` when the
/// server does not take the credentials.
pub(crate) async fn run_writer(
    member: ClusterName,
    queue: Arc<Queue>,
    client: Client,
    settings: WriterSettings,
    unauthorised: Arc<Notify>,
) {
    let WriterSettings {
        controller_name,
        write_timeout,
        clock,
        metrics,
        drain,
        dry_run,
    } = settings;
    let sender = Sender {
        client,
        controller_name,
        write_timeout,
    };
    let counters = metrics.member(&member);
    queue.reopen(clock.now());
    let mut flights: JoinSet<(Slot, Outcome, Moment)> = JoinSet::new();
    loop {
        while !drain.is_cancelled()
            && let Some((slot, work)) = queue.take(clock.now())
        {
            if dry_run {
                tracing::info!(%member, object = %slot, action = work.action.name(), change = work.summary.as_deref(),
                    "dry run: not written");
                // as what is refused: not again before it says something else
                queue.finish(&slot, Outcome::Rejected, clock.now());
                continue;
            }
            let sender = sender.clone();
            flights.spawn(async move {
                let outcome = sender.execute(&slot, &work.action).await;
                (slot, outcome, work.since)
            });
        }
        if drain.is_cancelled() && flights.is_empty() {
            return;
        }
        let due = queue.next_due();
        tokio::select! {
            Some(landed) = flights.join_next() => {
                // a panicked flight leaves its lane taken until the next session: nothing else is held up
                if let Ok((slot, outcome, since)) = landed {
                    let now = clock.now();
                    queue.finish(&slot, outcome, now);
                    if outcome == Outcome::Retry(Failure::Unauthorised) {
                        unauthorised.notify_one();
                    }
                    counters.patched(outcome.label());
                    if outcome == Outcome::Done && matches!(slot, Slot::Import(_)) {
                        metrics.propagated(now.since(since));
                    }
                }
            }
            () = queue.rung() => {}
            () = drain.cancelled(), if !drain.is_cancelled() => {}
            () = sleep_until(clock.instant(due.unwrap_or_default())), if due.is_some() && !drain.is_cancelled() => {}
        }
    }
}

#[cfg(test)]
mod tests;
