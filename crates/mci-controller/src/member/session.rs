//! One connection to a member, until it is lost or replaced.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use kube::Client;
use tokio::{
    sync::{Notify, mpsc},
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval_at, sleep_until},
};

use super::{
    Control, MemberContext, Proven, RECONNECT_MAX,
    connect::{self, ConnectError, Identity},
    health::{HealthChange, HealthEvent, SessionHealth},
    identity, parents, pools,
    relist::relisting,
    slices, trial,
    under_way::UnderWay,
    watches::{self, Gone, WatchContext},
};
use crate::{
    client::Ways,
    events::run_sender,
    index::{
        member::Fault,
        update::{Kind, Update},
    },
    write::run_writer,
};

use watch::backoff;

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Lost {
        fault: Fault,
        was_live: bool,
    },
    /// New credentials work: the next session uses them.
    Replaced,
    /// The server no longer accepts the credentials.
    Unauthorised,
    /// Another cluster answers at the address.
    OtherCluster,
    /// The index refuses the member.
    Refused,
    BadCredentials,
    /// The receiver of updates is gone.
    IndexGone,
}

/// One session.
pub(super) struct Session<'a> {
    context: &'a mut MemberContext,
    ways: Ways,
    watch_ctx: WatchContext,
    health_events: mpsc::Receiver<HealthEvent>,
    tasks: JoinSet<Result<(), Gone>>,
    health: SessionHealth,
    writing: bool,
    /// The hidden kinds, as last reported to the index.
    denied: Option<BTreeSet<Kind>>,
    /// Notified when a write fails because the credentials are not accepted.
    unauthorised: Arc<Notify>,
    /// The credentials and identity of this session.
    proven: Proven,
    /// Trials of newer credentials, run beside this session.
    trials: JoinSet<Trial>,
    failed_trials: u32,
    retry_at: Option<Instant>,
}

/// The version of newer credentials, and the result of their trial.
type Trial = (u64, Result<Identity, ConnectError>);

/// Shortest wait before newer credentials that failed are tried again; the longest is that of any reconnect.
const RETRY_MIN: Duration = Duration::from_secs(5);

/// Time between probes. A member that stops answering just after a probe is marked after 2 periods, the 3 s of a probe,
/// the 2 s before a flip and a tick: within 15 s, with half a second for a busy machine.
const PROBE_PERIOD: Duration = Duration::from_millis(4_600);
/// Events that may wait for the session, which never blocks for long: a few per watch.
const HEALTH_EVENTS: usize = 16;

// === impl Session ===

impl<'a> Session<'a> {
    pub(super) fn new(context: &'a mut MemberContext, ways: Ways, proven: Proven) -> Self {
        let (sender, health_events) = mpsc::channel(HEALTH_EVENTS);
        let watch_ctx = WatchContext {
            member: context.name.clone(),
            updates: context.updates.clone(),
            health_events: sender,
            clock: context.writer.clock,
            metrics: context.metrics.member(&context.name),
            ours: context.ours.clone(),
            interner: context.interner.clone(),
            under_way: UnderWay::default(),
        };
        Self {
            context,
            ways,
            watch_ctx,
            health_events,
            tasks: JoinSet::new(),
            health: SessionHealth::default(),
            writing: false,
            denied: None,
            unauthorised: Arc::new(Notify::new()),
            proven,
            trials: JoinSet::new(),
            failed_trials: 0,
            retry_at: None,
        }
    }

    /// Runs until the connection is lost or no longer wanted. Its tasks end with it.
    pub(super) async fn run(mut self) -> End {
        let connected = Update::Connected {
            uid: self.proven.uid.clone(),
            clusterset: self.proven.clusterset.clone(),
        };
        if self.watch_ctx.update(connected).await.is_err() {
            return End::IndexGone;
        }
        self.spawn();
        if self.context.control.borrow().version != self.proven.version {
            self.trial_failed();
        } else if self
            .watch_ctx
            .update(Update::NewCredentials(None))
            .await
            .is_err()
        {
            return End::IndexGone;
        }
        loop {
            let change = tokio::select! {
                Some(event) = self.health_events.recv() => {
                    let change = self.health.on(event, self.watch_ctx.clock.now());
                    if self.report_denied().await.is_err() {
                        return End::IndexGone;
                    }
                    change
                }
                () = self.unauthorised.notified() => Some(HealthChange::Unauthorised),
                Some(ended) = self.tasks.join_next() => match ended {
                    Ok(Err(Gone)) => return End::IndexGone,
                    // no task should end: one that did is restarted with the next session
                    Ok(Ok(())) => Some(HealthChange::Lost(Fault::ConnectionLost)),
                    Err(error) => {
                        tracing::error!(member = %self.context.name, %error, "a task of the member failed");
                        Some(HealthChange::Lost(Fault::ConnectionLost))
                    }
                },
                changed = self.context.control.changed() => {
                    if changed.is_err() {
                        return End::IndexGone;
                    }
                    match self.controlled() {
                        Some(end) => return end,
                        None => continue,
                    }
                }
                Some(tried) = self.trials.join_next() => match self.tried(tried.ok()) {
                    Ok(None) => continue,
                    Ok(Some(end)) => return end,
                    Err(why) => match self.watch_ctx.update(Update::NewCredentials(Some(why))).await {
                        Ok(()) => continue,
                        Err(Gone) => return End::IndexGone,
                    },
                },
                () = sleep_until(self.retry_at.unwrap_or_else(Instant::now)), if self.retry_at.is_some() => {
                    self.try_newer();
                    continue;
                }
            };
            let update = match change {
                None => continue,
                Some(HealthChange::Live) => {
                    self.context.proven = Some(self.proven.clone());
                    self.start_writer();
                    Update::Live
                }
                Some(HealthChange::Suspect) => Update::Suspect,
                Some(HealthChange::Unauthorised) => {
                    tracing::warn!(member = %self.context.name, "the credentials are not accepted any more");
                    return End::Unauthorised;
                }
                Some(HealthChange::OtherCluster) => {
                    tracing::warn!(member = %self.context.name, "another cluster answers at its address");
                    return End::OtherCluster;
                }
                Some(HealthChange::Lost(fault)) => {
                    let was_live = self.health.was_live();
                    tracing::warn!(member = %self.context.name, reason = fault.reason(), "contact lost: what it exports is kept");
                    return End::Lost { fault, was_live };
                }
            };
            if self.watch_ctx.update(update).await.is_err() {
                return End::IndexGone;
            }
        }
    }

    /// Reports the hidden kinds to the index: first when the session is live, then whenever they change.
    async fn report_denied(&mut self) -> Result<(), Gone> {
        let denied = self.health.denied();
        if self.health.was_live() && self.denied.as_ref() != Some(&denied) {
            self.denied = Some(denied.clone());
            self.watch_ctx.update(Update::Denied(denied)).await?;
        }
        Ok(())
    }

    fn spawn(&mut self) {
        let (ctx, client) = (self.watch_ctx.clone(), self.ways.kube.clone());
        let control = self.context.control.clone();
        self.spawn_watch(Kind::Pools, pools::pools);
        self.spawn_watch(Kind::Services, watches::services);
        self.spawn_watch(Kind::Namespaces, watches::namespaces);
        self.spawn_watch(Kind::Imports, watches::imports);
        let slices_control = control.clone();
        self.spawn_watch(Kind::Slices, move |ctx, client| {
            slices::slices(ctx, client, slices_control.clone())
        });
        self.tasks
            .spawn(parents::parents(ctx.clone(), client.clone(), control));
        self.tasks.spawn(identity::run_checks(
            ctx.clone(),
            client.clone(),
            self.proven.uid.clone(),
        ));
        self.tasks.spawn(probe(ctx.clone(), client.clone()));
    }

    /// Watches a kind, and relists it while the index does not keep all of it.
    fn spawn_watch<F, W>(&mut self, kind: Kind, watch: W)
    where
        W: Fn(WatchContext, Client) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), Gone>> + Send,
    {
        let (ctx, client) = (self.watch_ctx.clone(), self.ways.kube.clone());
        let control = self.context.control.clone();
        self.tasks.spawn(async move {
            let watch = || watch(ctx.clone(), client.clone());
            relisting(control, kind.into(), watch).await
        });
    }

    /// Starts the writer once all is listed and the index has accepted the cluster. It runs until the session ends.
    fn start_writer(&mut self) {
        let accepted = self.context.control.borrow().accepted.clone();
        if self.writing || !self.health.was_live() || accepted.as_ref() != Some(&self.proven.uid) {
            return;
        }
        self.writing = true;
        let writer = run_writer(
            self.context.name.clone(),
            self.context.queue.clone(),
            self.ways.direct.clone(),
            self.context.writer.clone(),
            self.unauthorised.clone(),
        );
        let events = run_sender(
            self.context.events.clone(),
            self.context.queue.clone(),
            self.ways.direct.clone(),
            self.context.name.to_string(),
            self.context.writer.claim.clone(),
            self.context.writer.clock,
        );
        self.tasks.spawn(async move {
            events.await;
            Ok(())
        });
        self.tasks.spawn(async move {
            writer.await;
            // drained: the session continues without it
            std::future::pending().await
        });
    }

    /// Handles a change of [`Control`].
    fn controlled(&mut self) -> Option<End> {
        let Control {
            version, refused, ..
        } = self.context.control.borrow_and_update().clone();
        if let Some(refusal) = refused {
            tracing::warn!(member = %self.context.name, reason = refusal.reason(), "not using this member");
            return Some(End::Refused);
        }
        if version == self.proven.version {
            self.start_writer();
        } else {
            self.failed_trials = 0;
            self.try_newer();
        }
        None
    }

    /// Starts a trial of newer credentials: they replace the old ones only if they work and lead to the same cluster.
    fn try_newer(&mut self) {
        self.retry_at = None;
        self.trials.abort_all();
        let Control {
            credentials,
            version,
            ..
        } = self.context.control.borrow().clone();
        if version == self.proven.version {
            return;
        }
        let newer = credentials.client(self.context.turns.clone());
        let (in_use, hidden) = (self.ways.kube.clone(), self.health.denied());
        self.trials.spawn(async move {
            let outcome = match newer {
                Ok(newer) => trial::trial(&newer.kube, &in_use, &hidden).await,
                Err(_) => Err(ConnectError::Undecodable),
            };
            (version, outcome)
        });
    }

    /// Ends the session if the trial of newer credentials succeeded; an aborted trial has no effect.
    /// # Errors
    /// Why the older credentials stay in use.
    fn tried(&mut self, trial: Option<Trial>) -> Result<Option<End>, String> {
        let Some((version, outcome)) = trial else {
            return Ok(None);
        };
        if version != self.context.control.borrow().version {
            return Ok(None);
        }
        let accepted = self.context.control.borrow().accepted_identity.clone();
        let accepts = |uid: &str| accepted.as_deref() == Some(uid);
        let why = match outcome {
            Ok(found) if found.uid == self.proven.uid || accepts(&found.uid) => {
                return Ok(Some(End::Replaced));
            }
            Ok(_) => {
                "they lead to another cluster; remove the member and add it again to change it"
                    .to_owned()
            }
            Err(error) => error.to_string(),
        };
        tracing::warn!(member = %self.context.name, %why, "the new credentials are not used: the old ones stay");
        self.trial_failed();
        Err(why)
    }

    fn trial_failed(&mut self) {
        self.failed_trials = self.failed_trials.saturating_add(1);
        let wait = backoff(
            self.failed_trials,
            RETRY_MIN,
            RECONNECT_MAX,
            &mut rand::rng(),
        );
        self.retry_at = Some(Instant::now() + wait);
    }
}

/// Probes the server periodically.
async fn probe(ctx: WatchContext, client: Client) -> Result<(), Gone> {
    let mut ticks = interval_at(Instant::now() + PROBE_PERIOD, PROBE_PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let event = match connect::probe(&client).await {
            Ok(()) => HealthEvent::ProbeOk,
            Err(error) if error.is_unauthorised() => HealthEvent::Unauthorised,
            Err(error) => {
                tracing::debug!(member = %ctx.member, %error, "probe failed");
                HealthEvent::ProbeFailed(error.fault())
            }
        };
        ctx.report(event).await?;
    }
}
