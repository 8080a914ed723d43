//! Leader mode: of several EPPs of a pool the one that holds the Lease is ready, the others are warm.
//!
//! One that could not answer requests if it led does not contend, and gives up a Lease that it holds: it would keep those
//! that could from being ready.

use std::time::Duration;

use discovery::Source;
use kube::Client;
use lease::{Claim, DURATION, Elector, identity};
use moment::Clock;
use process::ConfigError;
use prometheus_client::{metrics::gauge::Gauge, registry::Registry};
use tokio::{sync::watch, task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use xxhash_rust::xxh3::xxh3_64;

use crate::health::{Part, Readiness};

/// A round of the election takes 5 s at most: one that takes longer hangs.
const ROUND_LIMIT: Duration = Duration::from_secs(10);

/// How long a leader may be unable to answer: as long as one that is gone keeps the lease.
const PATIENCE: Duration = DURATION;

/// For giving the lease back; without it another takes over 15 s later.
const RELEASE: Duration = Duration::from_secs(3);

/// A Lease, by which EPPs of one pool know each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaseName {
    namespace: String,
    name: String,
}

/// What this process does to lead, if it is to.
pub(crate) struct Election {
    /// Holds the lease, or waits for it.
    keeping: JoinSet<()>,
    /// Makes readiness follow the lease.
    following: JoinSet<()>,
    stop: CancellationToken,
    leads: Gauge,
}

// === impl LeaseName ===

impl LeaseName {
    /// The Lease of the EPPs with this source.
    ///
    /// # Errors
    /// When it is a file, which needs no Kubernetes.
    pub(crate) fn of(source: &Source) -> Result<Self, ConfigError> {
        let (namespace, pool) = match source {
            Source::Pool { namespace, name } => (namespace, name.clone()),
            // EPPs with other selectors are no rivals
            Source::Selector {
                namespace,
                selector,
                ..
            } => {
                let hash = xxh3_64(selector.as_str().as_bytes());
                (namespace, format!("standalone-{hash:016x}"))
            }
            Source::File { .. } => {
                return Err(ConfigError::new(
                    "--ha-enable-leader-election with a file of endpoints",
                    "a pool or a selector: the Lease is an object of Kubernetes, which a file does without",
                    "--ha-enable-leader-election --pool-name llama",
                ));
            }
        };
        Ok(Self {
            namespace: namespace.clone(),
            name: format!("epp-{namespace}-{pool}.isthmus.dev"),
        })
    }
}

// === impl Election ===

impl Election {
    /// Nobody is elected: readiness is of other things alone.
    pub(crate) fn none() -> Self {
        Self {
            keeping: JoinSet::new(),
            following: JoinSet::new(),
            stop: CancellationToken::new(),
            leads: Gauge::default(),
        }
    }

    /// Contends for the lease from now on; `readiness` follows. Registers `epp_leader`.
    pub(crate) fn begin(
        client: Client,
        lease: &LeaseName,
        clock: Clock,
        readiness: &Readiness,
        registry: &mut Registry,
    ) -> Self {
        let LeaseName { namespace, name } = lease;
        let me = identity();
        info!(namespace, lease = name, identity = me, "leader mode");
        let (namespace, name) = (namespace.clone(), name.clone());
        let admin = readiness.admin();
        let begin = move |stop: CancellationToken| {
            let (elector, claim) = Elector::new(client.clone(), &namespace, &name, &me, clock);
            let pulse = admin.watch("lease", ROUND_LIMIT);
            let keeping = async move { elector.run(stop, || pulse.beat()).await };
            (keeping, claim)
        };
        Self::contending(begin, clock, readiness, registry)
    }

    /// Contends by what `begin` makes: each time a task that keeps a claim until it is told to give it up.
    fn contending<K: Future<Output = ()> + Send + 'static>(
        begin: impl FnMut(CancellationToken) -> (K, Claim) + Send + 'static,
        clock: Clock,
        readiness: &Readiness,
        registry: &mut Registry,
    ) -> Self {
        let (claims, following) = watch::channel(Claim::never(clock));
        let mut election = Self::following(following, readiness, registry);
        let (stop, readiness) = (election.stop.clone(), readiness.clone());
        election
            .keeping
            .spawn(async move { contend(begin, &claims, &readiness, &stop).await });
        election
    }

    /// Readiness follows the latest of these claims, which somebody else keeps.
    fn following(
        claims: watch::Receiver<Claim>,
        readiness: &Readiness,
        registry: &mut Registry,
    ) -> Self {
        let mut election = Self::none();
        registry.sub_registry_with_prefix("epp").register(
            "leader",
            "1 while this endpoint picker holds the Lease of its pool",
            election.leads.clone(),
        );
        readiness.set(Part::Leader, false);
        let (leads, readiness) = (election.leads.clone(), readiness.clone());
        election
            .following
            .spawn(async move { follow(claims, &readiness, &leads).await });
        election
    }

    /// Waits for the end of a task, which never ends by itself.
    pub(crate) async fn failed(&mut self) -> anyhow::Error {
        tokio::select! {
            Some(ended) = self.keeping.join_next() => task_error(ended.err()),
            Some(ended) = self.following.join_next() => task_error(ended.err()),
            // there is no election
            else => std::future::pending().await,
        }
    }

    /// Begins to give the lease back, so that another takes over. Readiness stays as it is from now on: until that one is
    /// ready, requests are for this one.
    pub(crate) async fn release(&mut self) {
        self.following.shutdown().await;
        self.leads.set(0);
        self.stop.cancel();
    }

    /// Waits until the lease is given back.
    pub(crate) async fn released(mut self) {
        if timeout(RELEASE, self.keeping.join_next()).await.is_err() {
            warn!("no answer from the API server: the lease is not given back");
        }
    }
}

/// Contends while requests could be answered here, until `stop`.
async fn contend<K: Future<Output = ()>>(
    mut begin: impl FnMut(CancellationToken) -> (K, Claim),
    claims: &watch::Sender<Claim>,
    readiness: &Readiness,
    stop: &CancellationToken,
) {
    while stop
        .run_until_cancelled(readiness.until_warm(true))
        .await
        .is_some()
    {
        let giving_up = stop.child_token();
        let (keeping, claim) = begin(giving_up.clone());
        claims.send_replace(claim);
        let watching = async {
            until_cold(readiness).await;
            warn!(after = ?PATIENCE, "giving the lease up until requests could be answered: see /readyz");
            giving_up.cancel();
        };
        let kept = async {
            keeping.await;
            giving_up.cancel();
        };
        tokio::join!(kept, giving_up.run_until_cancelled(watching));
    }
}

/// Waits until requests could not be answered for [`PATIENCE`].
async fn until_cold(readiness: &Readiness) {
    loop {
        readiness.until_warm(false).await;
        if timeout(PATIENCE, readiness.until_warm(true)).await.is_err() {
            return;
        }
    }
}

async fn follow(mut claims: watch::Receiver<Claim>, readiness: &Readiness, leads: &Gauge) {
    loop {
        let claim = claims.borrow_and_update().clone();
        tokio::select! {
            () = follow_one(&claim, readiness, leads) => {}
            changed = claims.changed() => if changed.is_err() {
                return; // who contends has ended
            },
        }
    }
}

/// Never ends.
async fn follow_one(claim: &Claim, readiness: &Readiness, leads: &Gauge) {
    loop {
        leads.set(0);
        readiness.set(Part::Leader, false);
        let tenure = claim.gained().await;
        leads.set(1);
        readiness.set(Part::Leader, true);
        tenure.ended().await;
    }
}

fn task_error(panicked: Option<tokio::task::JoinError>) -> anyhow::Error {
    match panicked {
        Some(error) => anyhow::Error::new(error).context("the leader election failed"),
        None => anyhow::anyhow!("the leader election ended"),
    }
}

#[cfg(test)]
mod tests;
