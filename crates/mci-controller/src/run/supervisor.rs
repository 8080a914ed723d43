//! Owns the planner and every member's task tree; what they tell each other passes here.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use anyhow::bail;
use futures::{
    FutureExt, StreamExt,
    stream::{BoxStream, SelectAll},
};
use jiff::Timestamp;
use lease::Claim;
use process::Health;
use tokio::{
    sync::{mpsc, watch},
    task::{Id, JoinSet},
    time::{Instant, MissedTickBehavior, interval, sleep},
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

use super::{GATE_PART, LOOP_LIMIT};
use crate::{
    args::Settings,
    client::Turns,
    events::{HomeDesk, MemberTeller, Notice, Reason, Regarding},
    explain::Question,
    index::{
        member::{Fault, Link, Refusal},
        origin::Source,
        update::Update,
    },
    inventory::{Access, Credentials, InventoryEvent, Listing, Records, Refused, Reissue, Unused},
    member::{Control, MemberContext, Ours, Timed, run_member},
    metrics::Metrics,
    name::ClusterName,
    overview::{Overview, UnusedView},
    planner::Planner,
    write::{Queue, WriterSettings},
};
use moment::{Clock, Moment};

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
    teller: MemberTeller,
    /// Where the operator is told of members; none without a home.
    home: Option<HomeDesk>,
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
    /// Objects of the inventory that name no member.
    unused: Vec<Unused>,
    /// Those that were told of at home.
    unused_told: BTreeSet<(Source, &'static str)>,
    /// Where to write which clusters the members are.
    records: Option<watch::Sender<Option<Records>>>,
    /// Asks for new credentials of members whose server refuses those that they have.
    reissue: Option<Reissue>,
    /// Writers: begin nothing new.
    drain: CancellationToken,
}

/// What a task tree tells: of which member, and of which of its trees; an older tree's words no longer count.
struct Told {
    name: ClusterName,
    epoch: u64,
    timed: Timed,
}

/// A member's tasks, as seen from here.
struct Handle {
    epoch: u64,
    control: Option<watch::Sender<Control>>,
    queue: Arc<Queue>,
    stop: CancellationToken,
    task: Option<Id>,
    /// Removed from the inventory: until when its imports may take to go.
    leaving: Option<Moment>,
    /// What is wrong with its inventory object, for people.
    detail: Option<String>,
}

/// Updates of one member that wait for the planner: its watches block beyond, and nobody else's.
const UPDATES: usize = 64;
/// Taken in before a plan is made: a burst is planned once.
const BURST: usize = 1024;
/// Time moves states (flips, staleness, the gate) this often.
const TICK: Duration = Duration::from_millis(200);
/// Counts, the debug page and forgotten lanes.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// The slow pass that compares everything, with up to a fifth more or less.
const COMPARE_ALL: Duration = Duration::from_mins(10);
/// A removed member's imports are taken away for at most this long.
const LEAVING: Duration = Duration::from_secs(30);

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
            clock.now(),
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
            teller: MemberTeller::default(),
            home: None,
            // nobody asks
            questions: mpsc::channel(1).1,
            members: BTreeMap::new(),
            tasks: JoinSet::new(),
            updates: SelectAll::new(),
            curious: BTreeSet::new(),
            epochs: 0,
            turns: Turns::default(),
            unused: Vec::new(),
            unused_told: BTreeSet::new(),
            records: None,
            reissue: None,
            drain: CancellationToken::new(),
        }
    }

    /// Answers these from now on.
    pub(super) fn answer(&mut self, questions: mpsc::Receiver<Question>) {
        self.questions = questions;
    }

    /// Tells of members at home from now on.
    pub(super) fn tell_home(&mut self, desk: HomeDesk) {
        self.home = Some(desk);
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
                () = tokio::time::sleep_until(compare_at) => {
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

    fn inventory(&mut self, event: InventoryEvent) {
        match event {
            InventoryEvent::Recorded(recorded) => self.planner.recall(recorded),
            InventoryEvent::Upsert(name, listing) => self.upsert(&name, &listing),
            InventoryEvent::Gone(name) => self.remove(&name),
            InventoryEvent::Unused(unused) => self.unused = unused,
            InventoryEvent::Listed => self.planner.inventory_listed(self.clock.now()),
        }
    }

    fn upsert(&mut self, name: &ClusterName, listing: &Listing) {
        let accepted = listing.origin.accepted_identity.as_ref();
        match &listing.access {
            Access::Ready(credentials) => self.admit(name, credentials, accepted),
            Access::Pending => self.expect(name),
            Access::Refused(refused) => self.refuse(name, refused),
        }
        self.planner
            .describe(name, &listing.origin, self.clock.now());
    }

    /// A member that can be reached, or has new credentials, or may be another cluster now.
    fn admit(&mut self, name: &ClusterName, credentials: &Credentials, accepted: Option<&String>) {
        let now = self.clock.now();
        self.planner.keep_member(name);
        let staying = self
            .members
            .get_mut(name)
            .filter(|handle| handle.leaving.is_none());
        if let Some(handle) = staying {
            if handle.detail.take().is_some() {
                // as they were, or about to be tried
                let usable = Update::NewCredentials(None);
                self.planner.update(name, usable, now);
            }
            if let Some(control) = &mut handle.control {
                control.send_if_modified(|control| {
                    let same = control.credentials == *credentials
                        && control.accepted_identity.as_ref() == accepted;
                    if !same {
                        tracing::info!(member = %name, server = credentials.server(), "new credentials");
                        control.credentials = credentials.clone();
                        control.accepted_identity = accepted.cloned();
                        control.version += 1;
                        control.refused = None;
                    }
                    !same
                });
                return;
            }
        }
        tracing::info!(member = %name, server = credentials.server(), "member added");
        if let Some(old) = self.members.remove(name) {
            old.stop.cancel();
        }
        let queue = Arc::new(Queue::default());
        // first, so that its tasks know what is worth watching in the new one
        self.planner.add_member(name, queue.clone(), now);
        self.begin(name, credentials.clone(), accepted.cloned(), queue, None);
    }

    /// A member that cannot be reached yet, or any more: what it exports is kept.
    fn expect(&mut self, name: &ClusterName) {
        self.planner.keep_member(name);
        let known = self.members.get(name);
        if known.is_some_and(|handle| handle.leaving.is_none()) {
            return;
        }
        if let Some(old) = self.members.remove(name) {
            old.stop.cancel();
        }
        let queue = Arc::new(Queue::default());
        let handle = Handle {
            epoch: 0,
            control: None,
            queue: queue.clone(),
            stop: CancellationToken::new(),
            task: None,
            leaving: None,
            detail: None,
        };
        self.members.insert(name.clone(), handle);
        self.planner.add_member(name, queue, self.clock.now());
    }

    /// Begins a member's task tree.
    fn begin(
        &mut self,
        name: &ClusterName,
        credentials: Credentials,
        accepted_identity: Option<String>,
        queue: Arc<Queue>,
        leaving: Option<Moment>,
    ) {
        let (control, receiver) = watch::channel(Control {
            credentials,
            version: 0,
            refused: None,
            accepted: None,
            accepted_identity,
            interest: self.planner.interest(name),
        });
        // before its tasks begin to count
        self.metrics.add(name);
        let (sender, updates) = mpsc::channel(UPDATES);
        let stop = CancellationToken::new();
        let context = MemberContext {
            name: name.clone(),
            control: receiver,
            proven: None,
            rebuild: None,
            updates: sender,
            queue: queue.clone(),
            writer: WriterSettings {
                controller_name: self.settings.policy.controller_name.clone(),
                write_timeout: self.settings.write_timeout,
                clock: self.clock,
                metrics: self.metrics.clone(),
                claim: self.claim.clone(),
                drain: self.drain.clone(),
                dry_run: self.settings.dry_run,
            },
            ours: Ours {
                clusterset: self.settings.policy.clusterset.clone(),
                instance: self.settings.policy.instance.clone(),
                controller_name: self.settings.policy.controller_name.clone(),
            },
            turns: self.turns.member(),
            metrics: self.metrics.clone(),
            stop: stop.clone(),
        };
        let member = name.clone();
        let task = self.tasks.spawn(async move {
            run_member(context).await;
            member
        });
        let member = name.clone();
        self.epochs += 1;
        let epoch = self.epochs;
        self.updates.push(
            ReceiverStream::new(updates)
                .map(move |timed| Told {
                    name: member.clone(),
                    epoch,
                    timed,
                })
                .boxed(),
        );
        let handle = Handle {
            epoch,
            control: Some(control),
            queue,
            stop,
            task: Some(task.id()),
            leaving,
            detail: None,
        };
        self.members.insert(name.clone(), handle);
    }

    /// Bad credentials: a member that works keeps the ones that it has.
    fn refuse(&mut self, name: &ClusterName, refused: &Refused) {
        let Refused { refusal, detail } = refused;
        self.expect(name);
        let Some(handle) = self.members.get_mut(name) else {
            return;
        };
        handle.detail = Some(detail.clone());
        if handle.control.is_some() {
            tracing::warn!(member = %name, reason = refusal.reason(), detail, "keeping the old credentials");
            let unusable = Update::NewCredentials(Some(detail.clone()));
            self.planner.update(name, unusable, self.clock.now());
            return;
        }
        tracing::warn!(member = %name, reason = refusal.reason(), detail, "not using this member");
        let now = self.clock.now();
        self.planner.update(name, Update::Refused(*refusal), now);
    }

    fn remove(&mut self, name: &ClusterName) {
        let now = self.clock.now();
        if self.members.contains_key(name) {
            self.planner.remove_member(name, now);
            self.begin_leaving(now);
        }
    }

    /// Gives members that count as removed the time to be cleaned.
    fn begin_leaving(&mut self, now: Moment) {
        let mut strangers = Vec::new();
        for name in self.planner.removing() {
            match self.members.get_mut(name) {
                Some(handle) if handle.leaving.is_none() => {
                    tracing::info!(member = %name, "member removed: taking away what it exported and imported");
                    handle.leaving = Some(now + LEAVING);
                }
                Some(_) => {}
                // known from an earlier controller's record alone
                None => strangers.push(name.clone()),
            }
        }
        for name in strangers {
            self.planner.forget_member(&name, now);
        }
    }

    /// Takes in what has arrived, so that a burst is planned once.
    fn burst(&mut self, told: Told) {
        self.hear(told);
        for _ in 0..BURST {
            match self.updates.next().now_or_never().flatten() {
                Some(told) => self.hear(told),
                None => break,
            }
        }
        for name in std::mem::take(&mut self.curious) {
            self.tell_interest(&name);
        }
    }

    fn hear(&mut self, told: Told) {
        let Told {
            name,
            epoch,
            timed: (update, arrived),
        } = told;
        let current = self.members.get(&name).map(|handle| handle.epoch);
        if current != Some(epoch) {
            return;
        }
        let connected = match &update {
            Update::Connected { uid, .. } => Some(uid.clone()),
            _ => None,
        };
        if update.concerns_pools() {
            self.curious.insert(name.clone());
        }
        if let (Update::Lost(Fault::AuthFailed), Some(reissue)) = (&update, &self.reissue) {
            reissue.ask(&name);
        }
        let refusals = self.planner.update(&name, update, arrived);
        if let Some(uid) = connected
            && !refusals.iter().any(|(refused, _)| *refused == name)
        {
            self.tell_accepted(&name, uid);
        }
        for (refused, refusal) in refusals {
            self.tell_refused(&refused, refusal);
        }
    }

    /// The index knows the cluster as this member: it may be written into.
    fn tell_accepted(&mut self, name: &ClusterName, uid: String) {
        if let Some(handle) = self.members.get_mut(name)
            && let Some(control) = &mut handle.control
        {
            control.send_modify(|control| {
                control.refused = None;
                control.accepted = Some(uid);
            });
        }
    }

    fn tell_interest(&mut self, name: &ClusterName) {
        let interest = self.planner.interest(name);
        if let Some(handle) = self.members.get_mut(name)
            && let Some(control) = &mut handle.control
        {
            control.send_if_modified(|control| {
                let news = control.interest != interest;
                control.interest = interest;
                news
            });
        }
    }

    fn tell_refused(&mut self, name: &ClusterName, refusal: Refusal) {
        if let Some(handle) = self.members.get_mut(name)
            && let Some(control) = &mut handle.control
        {
            control.send_modify(|control| {
                control.refused = Some(refusal);
                control.accepted = None;
            });
        }
    }

    fn tick(&mut self) {
        let now = self.clock.now();
        let term = self.claim.term();
        if std::mem::replace(&mut self.term, term) != term {
            // another may have led and written since
            self.planner.plan_afresh();
        }
        self.planner
            .speak(self.claim.is_valid(now) && !self.settings.dry_run);
        self.planner.tick(now);
        self.begin_leaving(now);
        self.health.set(GATE_PART, self.planner.is_open());
        let gone: Vec<ClusterName> = self
            .members
            .iter()
            .filter(|(name, handle)| {
                handle.leaving.is_some_and(|until| {
                    // without credentials there is nothing that could be taken away
                    let clean = handle.control.is_none() || self.planner.is_clean(name);
                    until <= now || (self.planner.is_open() && clean)
                })
            })
            .map(|(name, _)| name.clone())
            .collect();
        for name in gone {
            let clean = self.planner.is_clean(&name);
            tracing::info!(member = %name, clean, "member forgotten");
            if let Some(handle) = self.members.remove(&name) {
                handle.stop.cancel();
            }
            self.planner.forget_member(&name, now);
        }
    }

    fn housekeep(&mut self) {
        let now = self.clock.now();
        let mut overview = self.planner.housekeep(now);
        overview.leader = self.claim.is_valid(now);
        for row in &mut overview.clusters {
            let handle = self.members.get(&row.name);
            row.detail = handle.and_then(|handle| handle.detail.clone());
        }
        overview.unused = self.unused.iter().map(UnusedView::of).collect();
        self.tell(&overview, now);
        self.metrics.show(Arc::new(overview));
        self.record();
    }

    /// Tells which clusters the members are, if that is news.
    fn record(&self) {
        let recorded = self.planner.world().recorded();
        if let Some(records) = self.records.as_ref().filter(|_| self.planner.is_open()) {
            records.send_if_modified(|told| {
                let news = told.as_ref() != Some(recorded);
                if news {
                    *told = Some(recorded.clone());
                }
                news
            });
        }
    }

    fn explain(&self, Question { key, answer }: Question) {
        let now = self.clock.now();
        let leader = self.claim.is_valid(now);
        // whoever asked may have given up
        let _ = answer.send(self.planner.explain(&key, leader, now));
    }

    /// Tells at home what became of members.
    fn tell(&mut self, overview: &Overview, now: Moment) {
        let speaking = overview.leader && !self.settings.dry_run;
        let untold = if speaking && self.home.is_some() {
            self.untold()
        } else {
            Vec::new()
        };
        let desk = self.home.as_ref().filter(|_| speaking);
        let members = &self.planner.world().members;
        let regarding = |name: Option<&ClusterName>| {
            let member = name.and_then(|name| members.get(name));
            let source = member.and_then(|member| Regarding::source(&member.origin.source));
            source.or_else(|| desk.map(|desk| desk.lease.clone()))
        };
        let mut notices = self.teller.look(overview, Timestamp::now(), regarding);
        notices.extend(untold);
        for notice in notices {
            tracing::debug!(reason = notice.reason.name(), note = notice.note, "event");
            if let Some(desk) = desk {
                desk.outbox.offer(notice, now);
            }
        }
    }

    /// What is to be told of objects that name no member; each once.
    fn untold(&mut self) -> Vec<Notice> {
        let place = |unused: &Unused| (unused.origin.source.clone(), unused.refusal.reason());
        let now: BTreeSet<_> = self.unused.iter().map(place).collect();
        let fresh = self.unused.iter();
        let fresh = fresh.filter(|one| !self.unused_told.contains(&place(one)));
        let notices = fresh.filter_map(|one| {
            Some(Notice {
                regarding: Regarding::source(&one.origin.source)?,
                subject: one.member.clone(),
                reason: Reason::Member(one.refusal.reason()),
                note: format!("not member {}: {}", one.member, one.detail),
                at: Timestamp::now(),
            })
        });
        let notices = notices.collect();
        self.unused_told = now;
        notices
    }

    /// A member's task tree ended: expected where it was stopped, else it is begun anew.
    fn ended(&mut self, ended: Result<(Id, ClusterName), tokio::task::JoinError>) {
        let id = match &ended {
            Ok((id, _)) => *id,
            Err(error) => error.id(),
        };
        let found = self
            .members
            .iter()
            .find(|(_, handle)| handle.task == Some(id))
            .map(|(name, _)| name.clone());
        let Some(name) = found else {
            return;
        };
        let error = ended.err().map(|error| error.to_string());
        tracing::error!(member = %name, error, "the member's tasks ended: beginning anew");
        let Some(old) = self.members.remove(&name) else {
            return;
        };
        if let Some(control) = old.control {
            let (credentials, accepted) = {
                let control = control.borrow();
                (
                    control.credentials.clone(),
                    control.accepted_identity.clone(),
                )
            };
            let lost = Update::Lost(crate::index::member::Fault::ConnectionLost);
            self.planner.update(&name, lost, self.clock.now());
            // one that leaves goes on leaving
            self.begin(&name, credentials, accepted, old.queue, old.leaving);
        }
    }

    /// Lets writes in flight finish; the caller limits the time.
    async fn drain_writes(mut self) {
        self.drain.cancel();
        let live = |link| matches!(link, Link::Live | Link::Suspect);
        let writing = |planner: &Planner, handle: &Handle, name: &ClusterName| {
            let member = planner.world().members.get(name);
            member.is_some_and(|member| live(member.link)) && handle.queue.is_flying()
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

/// Up to a fifth more or less, so that controllers started together do not compare together.
fn jittered(time: Duration) -> Duration {
    use rand::RngExt;
    time.mul_f64(rand::rng().random_range(0.8..1.2))
}

#[cfg(test)]
mod tests;
