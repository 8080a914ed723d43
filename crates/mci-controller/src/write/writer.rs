//! The task that empties a member's queue while there is contact.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::{FutureExt, StreamExt, stream::FuturesUnordered};
use lease::{Claim, Tenure};
use tokio::{sync::Notify, time::sleep_until};
use tokio_util::sync::CancellationToken;

use super::{
    Queue,
    action::{Failure, Outcome, Slot},
    caller::Caller,
    send::Sender,
};
use crate::{client::Direct, metrics::Metrics, name::ClusterName};
use moment::Clock;

/// What writers of all members share.
#[derive(Clone)]
pub(crate) struct WriterSettings {
    pub(crate) controller_name: String,
    pub(crate) write_timeout: Duration,
    pub(crate) clock: Clock,
    pub(crate) metrics: Metrics,
    /// Nothing is sent without it.
    pub(crate) claim: Claim,
    /// Cancelled: begin nothing new, finish what is in flight.
    pub(crate) drain: CancellationToken,
    /// Log the planned writes, and send none.
    pub(crate) dry_run: bool,
}

/// Sends the writes that are due while we hold the claim, until drained; dropped with the session that owns it. Notifies
/// `unauthorised` when the server does not accept the credentials.
pub(crate) async fn run_writer(
    member: ClusterName,
    queue: Arc<Queue>,
    client: Direct,
    settings: WriterSettings,
    unauthorised: Arc<Notify>,
) {
    if settings.dry_run {
        return describe(&member, &queue, settings).await;
    }
    loop {
        let tenure = tokio::select! {
            tenure = settings.claim.gained() => tenure,
            () = settings.drain.cancelled() => return,
        };
        let writing = write(
            &member,
            &queue,
            client.clone(),
            settings.clone(),
            &unauthorised,
            &tenure,
        );
        tokio::select! {
            biased;
            // requests in flight are cancelled; their work stays in the queue
            () = tenure.ended() => {}
            () = writing => return,
        }
        queue.reopen(settings.clock.now());
    }
}

/// Logs the writes that are due, until drained, also without the claim.
async fn describe(member: &ClusterName, queue: &Queue, settings: WriterSettings) {
    let WriterSettings { clock, drain, .. } = settings;
    queue.reopen(clock.now());
    while !drain.is_cancelled() {
        while let Some((slot, work)) = queue.take(clock.now()) {
            tracing::info!(%member, object = %slot, action = work.action.name(), change = work.summary.as_deref(),
                "dry run: not written");
            // like refused content: not again before it changes
            queue.finish(&slot, Outcome::Rejected, clock.now());
        }
        let due = queue.next_due();
        tokio::select! {
            () = queue.offered() => {}
            () = drain.cancelled() => {}
            () = sleep_until(clock.instant(due.unwrap_or_default())), if due.is_some() => {}
        }
    }
}

/// Sends until drained, in one term of the claim.
async fn write(
    member: &ClusterName,
    queue: &Queue,
    client: Direct,
    settings: WriterSettings,
    unauthorised: &Notify,
    tenure: &Tenure,
) {
    let WriterSettings {
        controller_name,
        write_timeout,
        clock,
        metrics,
        claim: _,
        drain,
        dry_run: _,
    } = settings;
    let sender = Sender {
        caller: Caller {
            client,
            timeout: write_timeout,
            tenure: tenure.clone(),
            clock,
        },
        controller_name,
    };
    let counters = metrics.member(member);
    queue.reopen(clock.now());
    // a task for each write would cost more than the work that it does
    let mut flights = FuturesUnordered::new();
    loop {
        while !drain.is_cancelled()
            && let Some((slot, work)) = queue.take(clock.now())
        {
            let sender = &sender;
            flights.push(async move {
                let sending = AssertUnwindSafe(sender.execute(&slot, &work.action));
                // a bug in one write must not block its object's lane for ever
                let result = sending.catch_unwind().await;
                let outcome = result.unwrap_or(Outcome::Retry(Failure::Other));
                (slot, outcome, work.since)
            });
        }
        if drain.is_cancelled() && flights.is_empty() {
            return;
        }
        let due = queue.next_due();
        tokio::select! {
            Some((slot, outcome, since)) = flights.next() => {
                let now = clock.now();
                queue.finish(&slot, outcome, now);
                if outcome == Outcome::Retry(Failure::Unauthorised) {
                    unauthorised.notify_one();
                }
                counters.patched(outcome.label());
                if outcome == Outcome::Done && matches!(slot, Slot::Import(_)) {
                    // an event before our term was the former leader's to write
                    metrics.propagated(now.since(since.max(tenure.since())));
                }
            }
            () = queue.offered() => {}
            () = drain.cancelled(), if !drain.is_cancelled() => {}
            () = sleep_until(clock.instant(due.unwrap_or_default())), if due.is_some() && !drain.is_cancelled() => {}
        }
    }
}

#[cfg(test)]
mod tests;
