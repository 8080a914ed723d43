//! Sends what one shard has to report, of all clusters, one call after the other.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use metadata::{
    CompatOutbox, Outbox, Refusal, Reply, Write,
    wire::batch::{Applied, Batch},
};
use moment::Moment;
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::{
    answer::Unavailable,
    backoff::Backoff,
    calls::Named,
    client::Shared,
    metrics::FullCause,
    outboxes::{Reports, ShardSignal},
    transport::Transport,
};

/// The worker of one shard.
pub(crate) struct Worker<T: Transport> {
    shared: Arc<Shared<T>>,
    shard: u32,
    lanes: Vec<Lane>,
}

/// One cluster of it.
struct Lane {
    reports: Reports,
    backoff: Backoff,
    /// The last call failed: the next is not before this.
    retry_at: Option<Moment>,
    /// The last call failed or was refused.
    is_failing: bool,
    full: FullCauses,
}

/// Why batches are full, as far as answers tell.
#[derive(Debug, Default)]
struct FullCauses {
    /// Epoch and number of the last batch.
    last: Option<(u64, u64)>,
    /// The last answer makes the next batch full.
    next: Option<FullCause>,
    /// The life of the service that the last full batch was for; 0: not known yet.
    boot: u64,
}

/// What became of a look at an outbox.
enum Sent {
    /// There was something, and the service answered: there may be more.
    Answered,
    /// There is nothing before this, unless something changes.
    Nothing(Option<Moment>),
    /// The call failed.
    Failed(Unavailable),
}

// === impl Worker ===

impl<T: Transport> Worker<T> {
    pub(crate) fn new(shared: Arc<Shared<T>>, shard: u32) -> Self {
        Self {
            shared,
            shard,
            lanes: Vec::new(),
        }
    }

    /// Sends until `stop`, then what is left.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let shared = Arc::clone(&self.shared);
        let Some(signal) = shared.outboxes.shards.get(self.shard as usize) else {
            return;
        };
        loop {
            let next = self.send_all(signal).await;
            if next.is_some_and(|it| it <= shared.service.now()) {
                continue;
            }
            let waits = |lane: &Lane| lane.retry_at.is_some();
            if stop.is_cancelled() && !self.lanes.iter().any(waits) {
                return;
            }
            // Where all wait for their next try, changes only make it larger.
            let heeds_changes = self.lanes.is_empty() || !self.lanes.iter().all(waits);
            let far = tokio::time::Instant::now();
            let until = next.map_or(far, |next| shared.service.clock().instant(next));
            tokio::select! {
                () = signal.wake.notified(), if heeds_changes => {}
                () = sleep_until(until), if next.is_some() => {}
                () = stop.cancelled(), if !stop.is_cancelled() => {}
            }
        }
    }

    /// One call for each cluster that has something. Answers when there may be more; none: only after a change.
    async fn send_all(&mut self, signal: &ShardSignal) -> Option<Moment> {
        let all = self.shared.outboxes.all();
        let new = all.iter().skip(self.lanes.len());
        self.lanes.extend(new.cloned().map(Lane::new));
        signal.take_changed();
        let mut next = Vec::with_capacity(self.lanes.len());
        for lane in &mut self.lanes {
            next.push(lane.send(&self.shared, self.shard).await);
        }
        if self.lanes.iter().all(|lane| lane.retry_at.is_none()) {
            signal.settled();
        }
        let is_failing = self.lanes.iter().any(|lane| lane.is_failing);
        signal.is_failing.store(is_failing, Relaxed);
        next.into_iter().flatten().min()
    }
}

// === impl Lane ===

impl Lane {
    fn new(reports: Reports) -> Self {
        Self {
            reports,
            backoff: Backoff::new(),
            retry_at: None,
            is_failing: false,
            full: FullCauses::default(),
        }
    }

    /// One call, if there is something to send and it is time. Answers when to look again.
    async fn send<T: Transport>(&mut self, shared: &Shared<T>, shard: u32) -> Option<Moment> {
        let now = shared.service.now();
        if self.retry_at.is_some_and(|at| at > now) {
            return self.retry_at;
        }
        let reports = self.reports.clone();
        let sent = match &reports {
            Reports::Batches(outbox) => self.send_batch(shared, outbox, shard).await,
            Reports::Singles(outbox) => self.send_single(shared, outbox, shard).await,
        };
        self.retry_at = None;
        match sent {
            Sent::Answered => {
                self.backoff = Backoff::new();
                Some(Moment::START)
            }
            Sent::Nothing(until) => until,
            Sent::Failed(failed) => {
                self.is_failing = true;
                debug!(error = %failed, shard, "not reported: it is tried again");
                let wait = self.backoff.failed(&mut rand::rng());
                self.retry_at = Some(shared.service.now() + wait);
                self.retry_at
            }
        }
    }

    async fn send_batch<T: Transport>(
        &mut self,
        shared: &Shared<T>,
        outbox: &Outbox,
        shard: u32,
    ) -> Sent {
        let Some(batch) = outbox.take(shard, shared.service.now()) else {
            return Sent::Nothing(Some(outbox.due(shard)));
        };
        if let Some(cause) = self.full.cause(&batch, shared.service.last_boot()) {
            shared.full_batches.count(cause);
        }
        let named = match shared.reporter.call(&batch) {
            Ok(named) => named,
            Err(why) => return Sent::Failed(why),
        };
        let reply = match shared.write::<Applied>(named).await {
            Ok(Some(applied)) => Reply::Applied(applied),
            Ok(None) => {
                let why = Unavailable::Malformed("it has no data".to_owned());
                return Sent::Failed(why);
            }
            Err(Unavailable::Refused(call)) => {
                debug!(%call, shard, "a batch is refused");
                Reply::Refused(Refusal::new(&call.error.reason, &call.data))
            }
            Err(failed) => return Sent::Failed(failed),
        };
        let now = shared.service.now();
        outbox.settle(shard, &reply, now);
        self.full.settled(&reply, shared.service.last_boot());
        self.is_failing = matches!(reply, Reply::Refused(Refusal::Other));
        if let Reply::Refused(Refusal::StaleEpoch { current }) = reply
            && shared
                .reporter
                .is_shared(current.unwrap_or(batch.epoch), now)
        {
            shared.outboxes.reset();
        }
        Sent::Answered
    }

    async fn send_single<T: Transport>(
        &mut self,
        shared: &Shared<T>,
        outbox: &CompatOutbox,
        shard: u32,
    ) -> Sent {
        let Some(write) = outbox.take(shard) else {
            return Sent::Nothing(None);
        };
        let is_end = !matches!(write, Write::Add(_));
        let named = match write {
            Write::Add(add) => Named::add(&add),
            Write::PromptDone(of) => Named::prompt_done(&of),
            Write::Delete(of) => Named::remove(&of),
        };
        let named = match named {
            Ok(named) => named,
            Err(why) => return Sent::Failed(why),
        };
        match shared.write::<serde_json::Value>(named).await {
            Ok(_) => {
                outbox.settle(shard, true);
                self.is_failing = false;
            }
            // A charge that nobody ends stays for minutes: what refused may be a proxy, or a token that changes.
            Err(Unavailable::Refused(call))
                if is_end && !matches!(call.status.as_u16(), 400 | 404) =>
            {
                return Sent::Failed(Unavailable::Refused(call));
            }
            Err(Unavailable::Refused(call)) => {
                debug!(%call, shard, "a change is refused");
                outbox.settle(shard, false);
                self.is_failing = true;
            }
            Err(failed) => return Sent::Failed(failed),
        }
        Sent::Answered
    }
}

// === impl FullCauses ===

impl FullCauses {
    /// Of a batch that is sent for the first time.
    fn cause(&mut self, batch: &Batch, boot: u64) -> Option<FullCause> {
        let this = (batch.epoch, batch.seq);
        let last = self.last.replace(this);
        if !batch.full || last == Some(this) {
            return None;
        }
        let next = self.next.take();
        let is_other_boot = self.boot != 0 && self.boot != boot;
        self.boot = boot;
        Some(match (last, next) {
            (None, _) => FullCause::Start,
            (_, Some(cause)) => cause,
            // Another shard was refused.
            (Some((epoch, _)), None) if epoch != batch.epoch => FullCause::StaleEpoch,
            (_, None) if is_other_boot => FullCause::Boot,
            (_, None) => FullCause::Overflow,
        })
    }

    fn settled(&mut self, reply: &Reply, boot: u64) {
        if self.boot == 0 {
            self.boot = boot;
        }
        self.next = match reply {
            Reply::Applied(applied) => applied.resync.then_some(FullCause::Resync),
            Reply::Refused(Refusal::StaleSeq { applied: true, .. }) => None,
            Reply::Refused(Refusal::LeaseLost) => Some(FullCause::LeaseLost),
            Reply::Refused(Refusal::StaleEpoch { .. }) => Some(FullCause::StaleEpoch),
            Reply::Refused(_) => Some(FullCause::Refused),
        };
    }
}
