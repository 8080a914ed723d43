//! One task tree per member: connect, watch, probe, write. A slow or hostile member delays no other member.
//!
//! ```text
//!  Control (credentials, refusal) ──► run_member ── session: connect ─► watches ─► Updates ──► index
//!                                        ▲   │            └► probes, watches ─► SessionHealth ─► Live, Suspect, Lost
//!                                        └───┘ backoff    └► writer ◄── Queue
//! ```

mod connect;
mod health;
mod identity;
pub(crate) mod import_crd;
mod interner;
mod parents;
mod pools;
pub(crate) mod project;
mod relist;
mod session;
mod slices;
#[cfg(test)]
mod tests;
mod trial;
mod under_way;
mod watches;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use self::session::{End, Session};
use crate::{
    client::{MemberTurns, Ways},
    events::EventQueue,
    index::{
        interest::Interest,
        member::{Fault, Refusal},
        update::{AnyKind, Update},
    },
    metrics::Metrics,
    name::ClusterName,
    write::{Queue, WriterSettings},
};
use ::watch::backoff;
use mci_inventory::Credentials;
use moment::Moment;

/// What the supervisor sends to a member's tasks.
#[derive(Clone, Debug)]
pub(crate) struct Control {
    pub(crate) credentials: Credentials,
    /// Counts the credentials given so far.
    pub(crate) version: u64,
    /// The index refuses this member.
    pub(crate) refused: Option<Refusal>,
    /// Uid of the cluster that the index has accepted as this member: nothing is written to another one.
    pub(crate) accepted: Option<String>,
    /// Uid of a cluster that may take over the name of this member: new credentials that lead there are used.
    pub(crate) accepted_identity: Option<String>,
    /// What to watch there; none before its pools are known.
    pub(crate) interest: Option<Interest>,
    /// The kinds that are not kept in full: each is relisted from time to time.
    pub(crate) partial: BTreeSet<AnyKind>,
}

/// Credentials that have worked, and which cluster they led to.
#[derive(Clone, Debug)]
pub(crate) struct Proven {
    credentials: Credentials,
    version: u64,
    uid: String,
    clusterset: Option<String>,
}

/// An update, and when it arrived.
pub(crate) type Timed = (Update, Moment);

/// What a member's tasks work with.
pub(crate) struct MemberContext {
    pub(crate) name: ClusterName,
    pub(crate) control: watch::Receiver<Control>,
    /// The last credentials that worked: used while newer ones do not.
    pub(crate) proven: Option<Proven>,
    /// Why the next client replaces an earlier one; counted once it connects.
    pub(crate) rebuild: Option<&'static str>,
    pub(crate) updates: mpsc::Sender<Timed>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) events: Arc<EventQueue>,
    pub(crate) writer: WriterSettings,
    pub(crate) ours: project::Ours,
    pub(crate) interner: Interner,
    /// Limits its concurrent lists.
    pub(crate) turns: MemberTurns,
    pub(crate) metrics: Metrics,
    pub(crate) stop: CancellationToken,
}

pub(crate) use interner::Interner;
pub(crate) use project::Ours;

const RECONNECT_MIN: Duration = Duration::from_millis(500);
const RECONNECT_MAX: Duration = Duration::from_secs(30);
/// Period of checks of a refused member's identity: the other member with that identity may be gone.
const REFUSED_RETRY: Duration = Duration::from_secs(30);

/// Credentials that are not accepted are tried again at once, but at most once in this time.
const REBUILD_MIN: Duration = Duration::from_mins(1);

/// Keeps a member connected until stopped.
pub(crate) async fn run_member(mut context: MemberContext) {
    let stop = context.stop.clone();
    let mut failures = 0_u32;
    let mut rebuilt: Option<Instant> = None;
    loop {
        let end = tokio::select! {
            () = stop.cancelled() => return,
            end = one_session(&mut context) => end,
        };
        let wait = match end {
            End::IndexGone => return,
            End::Replaced => {
                context.rebuild.get_or_insert("NewCredentials");
                Duration::ZERO
            }
            // the credentials may have been renewed: retried once at once, then with the backoff
            End::Unauthorised if rebuilt.is_none_or(|at| at.elapsed() > REBUILD_MIN) => {
                context.rebuild.get_or_insert("Unauthorised");
                rebuilt = Some(Instant::now());
                Duration::ZERO
            }
            // the index decides about the new identity
            End::OtherCluster => {
                context.rebuild.get_or_insert("OtherCluster");
                Duration::ZERO
            }
            End::Refused | End::BadCredentials => REFUSED_RETRY,
            End::Lost { .. } | End::Unauthorised => {
                let (fault, was_live) = match end {
                    End::Lost { fault, was_live } => (fault, was_live),
                    _ => (Fault::AuthFailed, false),
                };
                failures = if was_live {
                    1
                } else {
                    failures.saturating_add(1)
                };
                // without an earlier connection it is the first client
                if was_live || context.proven.is_some() {
                    context.rebuild.get_or_insert(fault.reason());
                }
                let update = (Update::Lost(fault), context.writer.clock.now());
                if context.updates.send(update).await.is_err() {
                    return;
                }
                backoff(failures, RECONNECT_MIN, RECONNECT_MAX, &mut rand::rng())
            }
        };
        // the session has tried the credentials that arrived while it ran
        let tried = context.control.borrow().version;
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep(wait) => {}
            // new credentials are tried at once
            changed = context.control.wait_for(|control| control.version != tried), if end != End::Replaced => {
                if changed.is_err() {
                    return;
                }
            }
        }
    }
}

async fn one_session(context: &mut MemberContext) -> End {
    let Control {
        credentials,
        version,
        accepted_identity,
        ..
    } = context.control.borrow_and_update().clone();
    let proven = context.proven.clone();
    let older = proven.filter(|proven| proven.version != version);
    let newest = try_connect(context, &credentials).await;
    let elsewhere = match (&newest, &older) {
        (Ok((_, identity)), Some(proven)) => {
            identity.uid != proven.uid && accepted_identity.as_ref() != Some(&identity.uid)
        }
        _ => false,
    };
    if newest.is_ok() && !elsewhere {
        return run_session(context, newest, credentials, version).await;
    }
    if let Some(proven) = older {
        let fallback = try_connect(context, &proven.credentials).await;
        if fallback.is_ok() {
            tracing::warn!(member = %context.name, elsewhere, "the new credentials do not work: using the old ones");
            return run_session(context, fallback, proven.credentials, proven.version).await;
        }
    }
    // the index decides about an identity that differs
    run_session(context, newest, credentials, version).await
}

type Connected = (Ways, connect::Identity);

async fn try_connect(context: &MemberContext, credentials: &Credentials) -> Result<Connected, End> {
    let Ok(ways) = credentials.client(context.turns.clone()) else {
        tracing::warn!(member = %context.name, reason = Refusal::BadCredentials.reason(), "certificates or keys do not decode");
        return Err(End::BadCredentials);
    };
    match connect::connect(&ways.kube).await {
        Ok(identity) => {
            tracing::info!(member = %context.name, server = credentials.server(), version = identity.version, "connected");
            Ok((ways, identity))
        }
        Err(error) => {
            tracing::warn!(member = %context.name, server = credentials.server(), reason = error.fault().reason(), %error, "cannot connect");
            Err(End::Lost {
                fault: error.fault(),
                was_live: false,
            })
        }
    }
}

/// Runs a session on the connection, or reports why there is none.
async fn run_session(
    context: &mut MemberContext,
    connected: Result<Connected, End>,
    credentials: Credentials,
    version: u64,
) -> End {
    match connected {
        Ok((ways, identity)) => {
            if let Some(reason) = context.rebuild.take() {
                context.metrics.member(&context.name).client_rebuilt(reason);
            }
            let proven = Proven {
                credentials,
                version,
                uid: identity.uid,
                clusterset: identity.clusterset,
            };
            Session::new(context, ways, proven).run().await
        }
        Err(End::BadCredentials) => {
            let update = Update::Refused(Refusal::BadCredentials);
            let now = context.writer.clock.now();
            match context.updates.send((update, now)).await {
                Ok(()) => End::BadCredentials,
                Err(_) => End::IndexGone,
            }
        }
        Err(end) => end,
    }
}

/// The fault behind a failed call.
fn fault_of(status: Option<u16>) -> Fault {
    match status {
        Some(401 | 403) => Fault::AuthFailed,
        _ => Fault::ConnectionLost,
    }
}
