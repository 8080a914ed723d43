//! The task that holds the lease: it does what the contender says and publishes what comes of it.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use moment::Clock;
use rand::RngExt;
use tokio::{
    sync::watch,
    time::{sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    claim::{Claim, Term},
    contender::{Call, Contender, Draft, RETRY, Reply, Step},
    evaluate::{DURATION, Record},
};

/// Keeps one lease, or waits for it.
pub struct Elector {
    leases: Api<Lease>,
    name: String,
    clock: Clock,
    contender: Contender,
    terms: watch::Sender<Term>,
    /// The object as it was last read, so that a write keeps what is not ours.
    last: Option<Lease>,
    /// The last call failed: the next failure is no news.
    failing: bool,
    /// As last logged.
    leading: bool,
    /// Whether this process may have the lease at all.
    may_lead: Box<dyn Fn() -> bool + Send + Sync>,
}

/// Why a call on the lease led to nothing.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// The server did not answer.
    #[error("no answer within {CALL_TIMEOUT:?}")]
    Timeout,
    /// The lease changed since it was read: somebody else was faster.
    #[error("the lease has changed since it was read")]
    Conflict,
    /// 401 or 403.
    #[error("refused: {0} (expected: get, create and update on the Lease)")]
    Denied(String),
    /// Anything else.
    #[error("{0}")]
    Call(String),
}

/// One call. Three fit into the time from one renewal's due moment to the end of the claim, waits between them included.
const CALL_TIMEOUT: Duration = Duration::from_millis(2_500);
/// Reads and writes while giving back.
const RELEASE_TRIES: u32 = 2;

/// A name for this process that no other ever had: host name and 64 random bits. In Kubernetes the host is the pod.
pub fn identity() -> String {
    let host = nix::unistd::gethostname()
        .ok()
        .and_then(|name| name.into_string().ok())
        .unwrap_or_else(|| "unknown".to_owned());
    format!("{host}_{:016x}", rand::rng().random::<u64>())
}

// === impl Elector ===

impl Elector {
    /// An elector for the Lease `namespace/name`, and the claim that it keeps while [`Elector::run`] runs. `me` is of
    /// [`identity`].
    pub fn new(
        client: Client,
        namespace: &str,
        name: &str,
        me: &str,
        clock: Clock,
    ) -> (Self, Claim) {
        let (terms, claim) = Claim::contested(clock);
        let elector = Self {
            leases: Api::namespaced(client, namespace),
            name: name.to_owned(),
            clock,
            contender: Contender::new(me),
            terms,
            last: None,
            failing: false,
            leading: false,
            may_lead: Box::new(|| true),
        };
        (elector, claim)
    }

    /// Asks before each call whether this process may have the lease. While it may not, no call is made: the claim runs out, and
    /// another process takes over once the lease has.
    #[must_use]
    pub fn only_while(mut self, may_lead: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.may_lead = Box::new(may_lead);
        self
    }

    /// Contends until `stop`, then gives the lease back; it never ends otherwise. Cancel `stop` only when nothing is being
    /// written any more. `beat` is called in each round, of which none takes 10 s.
    pub async fn run(mut self, stop: CancellationToken, beat: impl Fn()) {
        loop {
            beat();
            let now = self.clock.now();
            let step = if (self.may_lead)() {
                self.contender.step(now, &mut rand::rng())
            } else {
                self.publish();
                Step::Wait(now + RETRY)
            };
            match step {
                Step::Wait(until) => tokio::select! {
                    () = stop.cancelled() => break,
                    () = sleep_until(self.clock.instant(until)) => {}
                },
                Step::Call(call) => tokio::select! {
                    () = stop.cancelled() => break,
                    () = self.obey(&call) => {}
                },
            }
        }
        self.release().await;
    }

    async fn obey(&mut self, call: &Call) {
        let started = self.clock.now();
        let outcome = timeout(CALL_TIMEOUT, self.call(call)).await;
        let outcome = outcome.unwrap_or(Err(LeaseError::Timeout));
        let now = self.clock.now();
        let reply = self.reply(outcome);
        self.contender
            .on(call, reply, started, now, &mut rand::rng());
        self.publish();
    }

    /// Remembers the object, and tells the contender what it needs to know.
    fn reply(&mut self, outcome: Result<Option<Lease>, LeaseError>) -> Reply {
        match outcome {
            Ok(lease) => {
                self.failing = false;
                let record = lease.as_ref().map(record_of);
                self.last = lease;
                Reply::Lease(record)
            }
            Err(LeaseError::Conflict) => Reply::Conflict,
            Err(error) => {
                let reason = error.reason();
                if std::mem::replace(&mut self.failing, true) {
                    tracing::debug!(lease = self.name, reason, %error, "the lease cannot be kept up");
                } else {
                    tracing::warn!(lease = self.name, reason, %error, "the lease cannot be kept up");
                }
                Reply::Failed
            }
        }
    }

    fn publish(&mut self) {
        let until = self.contender.valid_until();
        let (before, after, now) = Term::extend(&self.terms, self.clock, until);
        let leads = after.is_valid(now);
        if leads && (!self.leading || after.is_another_than(before)) {
            tracing::info!(lease = self.name, "leading");
        } else if self.leading && !leads {
            let holder = self.contender.holder();
            tracing::warn!(lease = self.name, holder, "no longer leading");
        }
        self.leading = leads;
    }

    async fn release(&mut self) {
        for _ in 0..RELEASE_TRIES {
            let call = self.contender.release();
            self.publish();
            let Some(call) = call else {
                return;
            };
            self.obey(&call).await;
            if self.contender.holder().is_none() {
                tracing::info!(lease = self.name, "released");
                return;
            }
            // a renewal that was under way may have changed it
            self.obey(&Call::Get).await;
        }
        tracing::warn!(
            lease = self.name,
            "not released: another takes over when it has run out"
        );
    }

    async fn call(&self, call: &Call) -> Result<Option<Lease>, LeaseError> {
        let params = PostParams::default();
        match call {
            Call::Get => self
                .leases
                .get_opt(&self.name)
                .await
                .map_err(LeaseError::from),
            Call::Put(draft) => {
                let lease = self.lease_of(draft);
                let written = if draft.replaces.is_some() {
                    self.leases.replace(&self.name, &params, &lease).await
                } else {
                    match self.leases.create(&params, &lease).await {
                        // not the lease is missing, which is why it is created
                        Err(kube::Error::Api(status)) if status.code == 404 => {
                            return Err(LeaseError::Call(status.message.clone()));
                        }
                        created => created,
                    }
                };
                Ok(Some(written.map_err(LeaseError::from)?))
            }
        }
    }

    /// The object to write: the one last read with our spec, or a new one.
    fn lease_of(&self, draft: &Draft) -> Lease {
        let known = self.last.clone().filter(|_| draft.replaces.is_some());
        let mut lease = known.unwrap_or_else(|| Lease {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                ..ObjectMeta::default()
            },
            ..Lease::default()
        });
        lease.metadata.resource_version.clone_from(&draft.replaces);
        lease.metadata.managed_fields = None;
        let spec = lease.spec.get_or_insert_default();
        stamp(spec, draft, Timestamp::now());
        lease
    }
}

/// Times are for people; only that they differ from the last matters, since a write that changes nothing keeps the version
/// and so would not show as a renewal.
fn stamp(spec: &mut LeaseSpec, draft: &Draft, wall: Timestamp) {
    let last = spec.renew_time.as_ref().map(|time| time.0);
    let time = if last == Some(wall) {
        wall.saturating_add(SignedDuration::from_micros(1))
            .unwrap_or(wall)
    } else {
        wall
    };
    if draft.acquires {
        spec.acquire_time = Some(MicroTime(time));
    }
    spec.renew_time = Some(MicroTime(time));
    spec.holder_identity = Some(draft.holder.clone()).filter(|holder| !holder.is_empty());
    spec.lease_duration_seconds = i32::try_from(DURATION.as_secs()).ok();
    spec.lease_transitions = Some(draft.transitions);
}

fn record_of(lease: &Lease) -> Record {
    let spec = lease.spec.as_ref();
    Record {
        holder: spec
            .and_then(|spec| spec.holder_identity.clone())
            .unwrap_or_default(),
        transitions: spec.and_then(|spec| spec.lease_transitions).unwrap_or(0),
        version: lease.metadata.resource_version.clone().unwrap_or_default(),
    }
}

// === impl LeaseError ===

impl LeaseError {
    /// Stable: for logs and metric labels.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Timeout => "Timeout",
            Self::Conflict => "Conflict",
            Self::Denied(_) => "Denied",
            Self::Call(_) => "Error",
        }
    }
}

impl From<kube::Error> for LeaseError {
    fn from(error: kube::Error) -> Self {
        if let kube::Error::Api(status) = &error {
            return match status.code {
                // another created it first, replaced it first, or deleted it
                409 | 404 => Self::Conflict,
                401 | 403 => Self::Denied(status.message.clone()),
                code => Self::Call(format!("{code} {}", status.message)),
            };
        }
        // the innermost cause says it best, and without repeating the outer ones
        Self::Call(anyhow::Error::from(error).root_cause().to_string())
    }
}

#[cfg(test)]
mod tests;
