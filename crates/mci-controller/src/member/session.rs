//! One connection to a member, from its first list to its loss.

use std::time::Duration;

use kube::Client;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval_at},
};

use super::{
    Control, MemberContext,
    connect::{self, Identity},
    pools,
    vigil::{Sign, Verdict, Vigil},
    watches::{self, Gone, Wires},
};
use crate::{
    index::{member::Fault, update::Update},
    write::run_writer,
};

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Lost {
        fault: Fault,
        was_live: bool,
    },
    /// New credentials work: the next session uses them.
    Replaced,
    /// The index does not want it.
    Refused,
    BadCredentials,
    /// Nobody listens any more.
    IndexGone,
}

/// A session that is about to run.
pub(super) struct Session<'a> {
    context: &'a mut MemberContext,
    client: Client,
    wires: Wires,
    signs: mpsc::Receiver<Sign>,
    tasks: JoinSet<Result<(), Gone>>,
    vigil: Vigil,
    writing: bool,
}

/// Time between probes. A member that falls silent just after one is marked 2 periods, a probe's 3 s, the 2 s before a
/// flip and a tick later: within 15 s.
const PROBE_PERIOD: Duration = Duration::from_millis(4_800);
/// Signs wait for the session, which does nothing slow: a few per watch.
const SIGNS: usize = 16;

// === impl Session ===

impl<'a> Session<'a> {
    pub(super) fn new(context: &'a mut MemberContext, client: Client) -> Self {
        let (sender, signs) = mpsc::channel(SIGNS);
        let wires = Wires {
            member: context.name.clone(),
            updates: context.updates.clone(),
            signs: sender,
            clock: context.writer.clock,
            metrics: context.metrics.clone(),
            ours: context.ours.clone(),
        };
        Self {
            context,
            client,
            wires,
            signs,
            tasks: JoinSet::new(),
            vigil: Vigil::default(),
            writing: false,
        }
    }

    /// Runs until the connection, or the wish for it, ends. Its tasks end with it.
    pub(super) async fn run(mut self, identity: Identity) -> End {
        let connected = Update::Connected {
            uid: identity.uid.clone(),
        };
        if self.wires.update(connected).await.is_err() {
            return End::IndexGone;
        }
        self.spawn();
        loop {
            let verdict = tokio::select! {
                Some(sign) = self.signs.recv() => self.vigil.on(sign, self.wires.clock.now()),
                Some(ended) = self.tasks.join_next() => match ended {
                    Ok(Err(Gone)) => return End::IndexGone,
                    // a watch never ends of itself: a task that did is started anew with the session
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
                    match self.controlled(&identity).await {
                        Some(end) => return end,
                        None => continue,
                    }
                }
            };
            let update = match verdict {
                None => continue,
                Some(Verdict::Live) => {
                    self.start_writer();
                    Update::Live
                }
                Some(Verdict::Suspect) => Update::Suspect,
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

    fn spawn(&mut self) {
        let (wires, client) = (&self.wires, &self.client);
        self.tasks
            .spawn(pools::pools(wires.clone(), client.clone()));
        self.tasks
            .spawn(watches::services(wires.clone(), client.clone()));
        self.tasks
            .spawn(watches::slices(wires.clone(), client.clone()));
        self.tasks
            .spawn(watches::namespaces(wires.clone(), client.clone()));
        self.tasks
            .spawn(watches::imports(wires.clone(), client.clone()));
        self.tasks
            .spawn(watches::import_crd(wires.clone(), client.clone()));
        self.tasks.spawn(probe(wires.clone(), client.clone()));
    }

    /// The writer runs from the first time that all is listed until the session ends.
    fn start_writer(&mut self) {
        if self.writing {
            return;
        }
        self.writing = true;
        let writer = run_writer(
            self.context.name.clone(),
            self.context.queue.clone(),
            self.client.clone(),
            self.context.writer.clone(),
        );
        self.tasks.spawn(async move {
            writer.await;
            // drained: the session goes on without it
            std::future::pending().await
        });
    }

    /// Something was decided about this member. New credentials replace the old only once they work, and only if
    /// they lead to the same cluster.
    async fn controlled(&mut self, identity: &Identity) -> Option<End> {
        let Control {
            credentials,
            refused,
        } = self.context.control.borrow_and_update().clone();
        if let Some(refusal) = refused {
            tracing::warn!(member = %self.context.name, reason = refusal.reason(), "not using this member");
            return Some(End::Refused);
        }
        let Ok(client) = credentials.client() else {
            tracing::warn!(member = %self.context.name, "the new credentials do not decode: the old ones stay");
            return None;
        };
        match connect::connect(&client).await {
            Ok(found) if found.uid == identity.uid => Some(End::Replaced),
            Ok(_) => {
                tracing::warn!(member = %self.context.name, reason = "IdentityChanged",
                    "the new credentials lead to another cluster: the old ones stay; remove the member and add it again to change it");
                None
            }
            Err(error) => {
                tracing::warn!(member = %self.context.name, %error, "the new credentials do not work: the old ones stay");
                None
            }
        }
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
            Err(error) => {
                tracing::debug!(member = %wires.member, %error, "probe failed");
                Sign::ProbeFailed(error.fault())
            }
        };
        wires.sign(sign).await?;
    }
}
