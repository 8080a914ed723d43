//! Owns the planner and every member's task tree; what they tell each other passes here.

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

use self::{hearing::Told, members::Handle};
use super::{GATE_PART, LOOP_LIMIT};
use crate::{
    args::Settings, client::Turns, events::HomeRecorder, explain::Question, index::member::Link,
    member::Interner, metrics::Metrics, name::ClusterName, planner::Planner,
};
use mci_inventory::{InventoryEvent, Records, Reissue, Unused};
use moment::Clock;

mod hearing;
mod members;
mod reporting;

/// The supervisor.
pub(super) struct Supervisor {
    settings: Settings,
    planner: Planner,
    clock: Clock,
    metrics: Metrics,
    health: Health,
    /// Whether this controller may write.
    claim: Claim,
    /// Its term, as last planned for.
    term: u64,
    /// Reports of members to the operator; none without a home.
    home: Option<HomeRecorder>,
    /// What the admin port is asked to explain.
    questions: mpsc::Receiver<Question>,
    members: BTreeMap<ClusterName, Handle>,
    /// Members of a task, to know whose ended.
    tasks: JoinSet<ClusterName>,
    updates: SelectAll<BoxStream<'static, Told>>,
    /// Members whose pools changed: what is worth watching there may have.
    curious: BTreeSet<ClusterName>,
    /// Task trees begun so far.
    epochs: u64,
    /// At most 16 lists at once, over all members.
    turns: Turns,
    /// What imports of many members say alike.
    interner: Interner,
    /// Objects of the inventory that name no member.
    unused: Vec<Unused>,
    /// Where to write which clusters the members are.
    records: Option<watch::Sender<Option<Records>>>,
    /// Asks for new credentials of members whose server refuses those that they have.
    reissue: Option<Reissue>,
    /// Writers: begin nothing new.
    drain: CancellationToken,
}

/// Time moves states (flips, staleness, the gate) this often.
const TICK: Duration = Duration::from_millis(200);
/// Counts, the debug page and forgotten lanes.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// The slow pass that compares everything, with up to a fifth more or less.
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
            // nobody asks
            questions: mpsc::channel(1).1,
            members: BTreeMap::new(),
            tasks: JoinSet::new(),
            updates: SelectAll::new(),
            curious: BTreeSet::new(),
            epochs: 0,
            turns: Turns::default(),
            interner: Interner::default(),
            unused: Vec::new(),
            records: None,
            reissue: None,
            drain: CancellationToken::new(),
        }
    }

    /// Answers these from now on.
    pub(super) fn answer(&mut self, questions: mpsc::Receiver<Question>) {
        self.questions = questions;
    }

    /// Reports of members at home from now on.
    pub(super) fn report_at_home(&mut self, recorder: HomeRecorder) {
        self.home = Some(recorder);
    }

    /// Tells which clusters the members are, once that is known.
    pub(super) fn recording(mut self, records: watch::Sender<Option<Records>>) -> Self {
        self.records = Some(records);
        self
    }

    /// Asks there for credentials that replace refused ones.
    pub(super) fn renewing(mut self, reissue: Reissue) -> Self {
        self.reissue = Some(reissue);
        self
    }

    /// Runs until drained; then waits for the writes in flight.
    /// # Errors
    /// When the inventory ends: without it the members cannot be told from the removed.
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
                Some(told) = self.updates.next() => self.burst(told),
                Some(ended) = self.tasks.join_next_with_id() => self.ended(ended),
                _ = ticks.tick() => {
                    pulse.beat();
                    self.tick();
                }
                _ = housekeeping.tick() => self.housekeep(),
                Some(question) = self.questions.recv() => self.explain(question),
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
            member.is_some_and(|member| live(member.contact.link)) && handle.queue.is_flying()
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
