//! Owns the planner and every member's task tree, and passes messages between them.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use ::watch::jittered;
use anyhow::bail;
use futures::{
    StreamExt,
    stream::{BoxStream, SelectAll},
};
use jiff::Timestamp;
use lease::Claim;
use process::Health;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use self::{members::Handle, updates::MemberUpdate};
use super::{GATE_PART, LOOP_LIMIT};
use crate::{
    args::Settings, client::Turns, events::HomeRecorder, grid::Directory, index::member::Link,
    member::Interner, metrics::Metrics, name::ClusterName, planner::Planner, questions::Question,
};
use mci_inventory::{InventoryEvent, Records, Reissue, Unused};
use moment::Clock;

mod members;
mod reporting;
mod updates;

/// The supervisor.
pub(super) struct Supervisor {
    settings: Settings,
    planner: Planner,
    clock: Clock,
    metrics: Metrics,
    health: Health,
    /// Whether this controller may write.
    claim: Claim,
    /// The term of the claim that was last planned for.
    term: u64,
    /// Records events about members at home; none without a home cluster.
    home: Option<HomeRecorder>,
    /// Questions received by the admin port.
    questions: mpsc::Receiver<Question>,
    members: BTreeMap<ClusterName, Handle>,
    /// Each task returns the name of its member.
    tasks: JoinSet<ClusterName>,
    updates: SelectAll<BoxStream<'static, MemberUpdate>>,
    /// Members whose pools changed, so that their [`Interest`](crate::index::interest::Interest) may have changed.
    pools_changed: BTreeSet<ClusterName>,
    /// Task trees begun so far.
    epochs: u64,
    /// At most 16 lists at once, over all members.
    turns: Turns,
    /// Shares equal import statuses of all members.
    interner: Interner,
    /// Inventory objects that define no member.
    unused: Vec<Unused>,
    /// Where the identities of the members are recorded.
    records: Option<watch::Sender<Option<Records>>>,
    /// Requests new credentials for members whose server refuses the present ones.
    reissue: Option<Reissue>,
    /// Cancelled: the writers start no new writes.
    drain: CancellationToken,
}

/// Period of the checks that depend on time: flips, staleness, the gate.
const TICK: Duration = Duration::from_millis(200);
/// Period of metrics, the debug page and the pruning of lanes.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// Period of the full comparison of plans with live objects, plus or minus up to a fifth.
const COMPARE_ALL: Duration = Duration::from_mins(10);

// === impl Supervisor ===

impl Supervisor {
    pub(super) fn new(
        settings: Settings,
        clock: Clock,
        metrics: Metrics,
        health: Health,
        claim: Claim,
    ) -> Self {
        let planner = Planner::new(
            settings.policy.clone(),
            settings.rules,
            settings.initial_sync_timeout,
            metrics.clone(),
        )
        .with_dry_run(settings.dry_run);
        Self {
            settings,
            planner,
            clock,
            metrics,
            health,
            term: claim.term(),
            claim,
            home: None,
            // `set_questions` replaces it
            questions: mpsc::channel(1).1,
            members: BTreeMap::new(),
            tasks: JoinSet::new(),
            updates: SelectAll::new(),
            pools_changed: BTreeSet::new(),
            epochs: 0,
            turns: Turns::default(),
            interner: Interner::default(),
            unused: Vec::new(),
            records: None,
            reissue: None,
            drain: CancellationToken::new(),
        }
    }

    /// Sets the questions to answer.
    pub(super) fn set_questions(&mut self, questions: mpsc::Receiver<Question>) {
        self.questions = questions;
    }

    /// Sets where the planned keys are listed.
    pub(super) fn set_directory(&mut self, directory: Directory) {
        self.planner.set_directory(directory);
    }

    /// Sets the recorder of events about members.
    pub(super) fn set_home_recorder(&mut self, recorder: HomeRecorder) {
        self.home = Some(recorder);
    }

    /// Sets where the identities of the members are recorded.
    pub(super) fn with_records(mut self, records: watch::Sender<Option<Records>>) -> Self {
        self.records = Some(records);
        self
    }

    /// Sets where new credentials are requested.
    pub(super) fn with_reissue(mut self, reissue: Reissue) -> Self {
        self.reissue = Some(reissue);
        self
    }

    /// Runs until drained; then waits for the writes in flight.
    /// # Errors
    /// When the inventory ends: without it, present and removed members cannot be distinguished.
    pub(super) async fn run(
        mut self,
        mut inventory: mpsc::Receiver<InventoryEvent>,
        drain: CancellationToken,
    ) -> anyhow::Result<()> {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut housekeeping = interval(HOUSEKEEPING);
        housekeeping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut compare_at = Instant::now() + jittered(COMPARE_ALL);
        let pulse = self.health.watch("world", LOOP_LIMIT);
        loop {
            tokio::select! {
                () = drain.cancelled() => break,
                event = inventory.recv() => match event {
                    Some(event) => self.inventory(event),
                    None => bail!("the inventory ended"),
                },
                Some(update) = self.updates.next() => self.apply_updates(update),
                Some(ended) = self.tasks.join_next_with_id() => self.ended(ended),
                _ = ticks.tick() => {
                    pulse.beat();
                    self.tick();
                }
                _ = housekeeping.tick() => self.housekeep(),
                Some(question) = self.questions.recv() => self.answer_all(question),
                () = sleep_until(compare_at) => {
                    self.planner.compare_all();
                    compare_at = Instant::now() + jittered(COMPARE_ALL);
                }
                // the next slice, after whatever else is due
                () = tokio::task::yield_now(), if self.planner.is_behind() => {}
            }
            self.planner.publish(self.clock.now(), Timestamp::now());
        }
        drop(pulse);
        self.drain_writes().await;
        Ok(())
    }

    fn tick(&mut self) {
        let now = self.clock.now();
        let term = self.claim.term();
        if std::mem::replace(&mut self.term, term) != term {
            // another may have led and written since
            self.planner.plan_afresh();
        }
        self.planner
            .set_leading(self.claim.is_valid(now) && !self.settings.dry_run);
        self.planner.tick(now);
        self.begin_leaving(now);
        self.health.set(GATE_PART, self.planner.is_open());
        self.forget_gone(now);
    }

    /// Lets writes in flight finish; the caller limits the time.
    async fn drain_writes(mut self) {
        self.drain.cancel();
        let live = |link| matches!(link, Link::Live | Link::Suspect);
        let writing = |planner: &Planner, handle: &Handle, name: &ClusterName| {
            let member = planner.world().members.get(name);
            member.is_some_and(|member| live(member.contact.link)) && handle.queue.has_in_flight()
        };
        while self
            .members
            .iter()
            .any(|(name, handle)| writing(&self.planner, handle, name))
        {
            sleep(Duration::from_millis(20)).await;
        }
        for handle in self.members.values() {
            handle.stop.cancel();
        }
        while self.tasks.join_next().await.is_some() {}
    }
}

#[cfg(test)]
mod tests;
