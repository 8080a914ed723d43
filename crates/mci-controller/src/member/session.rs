//! One connection to a member, from its first list to its loss.

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
    identity, parents, pools,
    relist::relisting,
    slices, trial,
    under_way::UnderWay,
    vigil::{Sign, Verdict, Vigil},
    watches::{self, Gone, Wires},
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
    /// The server does not accept the credentials any more.
    Unauthorised,
    /// Another cluster answers than did at the beginning.
    OtherCluster,
    /// The index does not want it.
    Refused,
    BadCredentials,
    /// Nobody listens any more.
    IndexGone,
}

/// A session that is about to run.
pub(super) struct Session<'a> {
    context: &'a mut MemberContext,
    ways: Ways,
    wires: Wires,
    signs: mpsc::Receiver<Sign>,
    tasks: JoinSet<Result<(), Gone>>,
    vigil: Vigil,
    writing: bool,
    /// Hidden from us, as the index was told.
    denied: Option<BTreeSet<Kind>>,
    /// Rung when a write finds the credentials not accepted.
    unauthorised: Arc<Notify>,
    /// What this session works with.
    proven: Proven,
    /// Newer credentials, being tried while this session goes on.
    trials: JoinSet<Trial>,
    failed_trials: u32,
    retry_at: Option<Instant>,
}

/// How newer credentials did.
type Trial = (u64, Result<Identity, ConnectError>);

/// Shortest wait before newer credentials that failed are tried again; the longest is that of any reconnect.
const RETRY_MIN: Duration = Duration::from_secs(5);

/// Time between probes. A member that falls silent just after one is marked 2 periods, a probe's 3 s, the 2 s before a
/// flip and a tick later: within 15 s, with half a second for a busy machine.
const PROBE_PERIOD: Duration = Duration::from_millis(4_600);
/// Signs wait for the session, which does nothing slow: a few per watch.
const SIGNS: usize = 16;

// === impl Session ===

impl<'a> Session<'a> {
    pub(super) fn new(context: &'a mut MemberContext, ways: Ways, proven: Proven) -> Self {
        let (sender, signs) = mpsc::channel(SIGNS);
        let wires = Wires {
            member: context.name.clone(),
            updates: context.updates.clone(),
            signs: sender,
            clock: context.writer.clock,
            metrics: context.metrics.member(&context.name),
            ours: context.ours.clone(),
            interner: context.interner.clone(),
            under_way: UnderWay::default(),
        };
        Self {
            context,
            ways,
            wires,
            signs,
            tasks: JoinSet::new(),
            vigil: Vigil::default(),
            writing: false,
            denied: None,
            unauthorised: Arc::new(Notify::new()),
            proven,
            trials: JoinSet::new(),
            failed_trials: 0,
            retry_at: None,
        }
    }

    /// Runs until the connection, or the wish for it, ends. Its tasks end with it.
    pub(super) async fn run(mut self) -> End {
        let connected = Update::Connected {
            uid: self.proven.uid.clone(),
            clusterset: self.proven.clusterset.clone(),
        };
        if self.wires.update(connected).await.is_err() {
            return End::IndexGone;
        }
        self.spawn();
        if self.context.control.borrow().version != self.proven.version {
            self.trial_failed();
        } else if self
            .wires
            .update(Update::NewCredentials(None))
            .await
            .is_err()
        {
            return End::IndexGone;
        }
        loop {
            let verdict = tokio::select! {
                Some(sign) = self.signs.recv() => {
                    let verdict = self.vigil.on(sign, self.wires.clock.now());
                    if self.tell_denied().await.is_err() {
                        return End::IndexGone;
                    }
                    verdict
                }
                () = self.unauthorised.notified() => Some(Verdict::Unauthorised),
                Some(ended) = self.tasks.join_next() => match ended {
                    Ok(Err(Gone)) => return End::IndexGone,
                    // a watch never ends of itself: a task that did is started again with the session
                    Ok(Ok(())) => Some(Verdict::Lost(Fault::ConnectionLost)),
                    Err(error) => {
                        tracing::error!(member = %self.context.name, %error, "a task of the member failed");
                        Some(Verdict::Lost(Fault::ConnectionLost))
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
                    Err(why) => match self.wires.update(Update::NewCredentials(Some(why))).await {
                        Ok(()) => continue,
                        Err(Gone) => return End::IndexGone,
                    },
                },
                () = sleep_until(self.retry_at.unwrap_or_else(Instant::now)), if self.retry_at.is_some() => {
                    self.try_newer();
                    continue;
                }
            };
            let update = match verdict {
                None => continue,
                Some(Verdict::Live) => {
                    self.context.proven = Some(self.proven.clone());
                    self.start_writer();
                    Update::Live
                }
                Some(Verdict::Suspect) => Update::Suspect,
                Some(Verdict::Unauthorised) => {
                    tracing::warn!(member = %self.context.name, "the credentials are not accepted any more");
                    return End::Unauthorised;
                }
                Some(Verdict::OtherCluster) => {
                    tracing::warn!(member = %self.context.name, "another cluster answers at its address");
                    return End::OtherCluster;
                }
                Some(Verdict::Lost(fault)) => {
                    let was_live = self.vigil.was_live();
                    tracing::warn!(member = %self.context.name, reason = fault.reason(), "contact lost: what it exports is kept");
                    return End::Lost { fault, was_live };
                }
            };
            if self.wires.update(update).await.is_err() {
                return End::IndexGone;
            }
        }
    }

    /// Tells the index what is hidden from us: first when the session is live, then whenever it changes.
    async fn tell_denied(&mut self) -> Result<(), Gone> {
        let denied = self.vigil.denied();
        if self.vigil.was_live() && self.denied.as_ref() != Some(&denied) {
            self.denied = Some(denied.clone());
            self.wires.update(Update::Denied(denied)).await?;
        }
        Ok(())
    }

    fn spawn(&mut self) {
        let (wires, client) = (self.wires.clone(), self.ways.kube.clone());
        let control = self.context.control.clone();
        self.spawn_watch(Kind::Pools, pools::pools);
        self.spawn_watch(Kind::Services, watches::services);
        self.spawn_watch(Kind::Namespaces, watches::namespaces);
        self.spawn_watch(Kind::Imports, watches::imports);
        let slices_control = control.clone();
        self.spawn_watch(Kind::Slices, move |wires, client| {
            slices::slices(wires, client, slices_control.clone())
        });
        self.tasks
            .spawn(parents::parents(wires.clone(), client.clone(), control));
        self.tasks.spawn(identity::look(
            wires.clone(),
            client.clone(),
            self.proven.uid.clone(),
        ));
        self.tasks.spawn(probe(wires.clone(), client.clone()));
    }

    /// Follows a kind, from its list again where the index does not keep all of it.
    fn spawn_watch<F, W>(&mut self, kind: Kind, watch: W)
    where
        W: Fn(Wires, Client) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), Gone>> + Send,
    {
        let (wires, client) = (self.wires.clone(), self.ways.kube.clone());
        let control = self.context.control.clone();
        self.tasks.spawn(async move {
            let watch = || watch(wires.clone(), client.clone());
            relisting(control, kind.into(), watch).await
        });
    }

    /// The writer runs from when all is listed and the index has accepted the cluster, until the session ends.
    fn start_writer(&mut self) {
        let accepted = self.context.control.borrow().accepted.clone();
        if self.writing || !self.vigil.was_live() || accepted.as_ref() != Some(&self.proven.uid) {
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
            // drained: the session goes on without it
            std::future::pending().await
        });
    }

    /// Something was decided about this member.
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

    /// New credentials replace the old only once they work, and only if they lead to the same cluster.
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
        let (in_use, hidden) = (self.ways.kube.clone(), self.vigil.denied());
        self.trials.spawn(async move {
            let outcome = match newer {
                Ok(newer) => trial::trial(&newer.kube, &in_use, &hidden).await,
                Err(_) => Err(ConnectError::Undecodable),
            };
            (version, outcome)
        });
    }

    /// Ends the session if newer credentials proved good; nothing follows where the trial was aborted.
    /// # Errors
    /// Why the older ones stay.
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

/// Asks the server for a sign of life, again and again.
async fn probe(wires: Wires, client: Client) -> Result<(), Gone> {
    let mut ticks = interval_at(Instant::now() + PROBE_PERIOD, PROBE_PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let sign = match connect::probe(&client).await {
            Ok(()) => Sign::ProbeOk,
            Err(error) if error.is_unauthorised() => Sign::Unauthorised,
            Err(error) => {
                tracing::debug!(member = %wires.member, %error, "probe failed");
                Sign::ProbeFailed(error.fault())
            }
        };
        wires.sign(sign).await?;
    }
}
