//! Leader mode: of several Routers of a pool the one that holds the Lease is ready; the others follow events meanwhile.
//!
//! One without workers does not contend, and gives up a Lease that it holds: it would keep those that have some from being
//! ready.

use std::time::Duration;

use discovery::Source;
use http_service::Parts;
use kube::Client;
use lease::{Claim, DURATION, Elector, identity};
use moment::Clock;
use process::{ConfigError, Health};
use prometheus_client::{metrics::gauge::Gauge, registry::Registry};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use xxhash_rust::xxh3::xxh3_64;

use crate::{calls::Calls, membership::Warm, service::Service};

/// A round of the election takes 5 s at most: one that takes longer hangs.
const ROUND_LIMIT: Duration = Duration::from_secs(10);

/// How long a leader may be without workers: as long as one that is gone keeps the lease.
const PATIENCE: Duration = DURATION;

/// The part of readiness that the lease is.
const LEADER: &str = "leader";

/// A Lease, by which Routers of one pool know each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaseName {
    namespace: String,
    name: String,
}

/// What this process does to lead.
pub(crate) struct Election {
    pub(crate) client: Client,
    pub(crate) lease: LeaseName,
    pub(crate) clock: Clock,
    pub(crate) follower: Follower,
}

/// What follows the lease.
#[derive(Clone)]
pub(crate) struct Follower {
    pub(crate) warm: Warm,
    pub(crate) health: Health,
    pub(crate) calls: Calls,
    pub(crate) service: Service,
    pub(crate) leads: Gauge,
}

// === impl LeaseName ===

impl LeaseName {
    /// The Lease of the Routers with this source.
    ///
    /// # Errors
    /// When it is a file, which needs no Kubernetes.
    pub(crate) fn of(source: &Source) -> Result<Self, ConfigError> {
        let (namespace, pool) = match source {
            Source::Pool { namespace, name } => (namespace, name.clone()),
            // Routers with other selectors are no rivals
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
                    "--ha-enable-leader-election with a file of workers",
                    "a pool or a selector: the Lease is an object of Kubernetes, which a file does without",
                    "--ha-enable-leader-election --pool-name llama",
                ));
            }
        };
        Ok(Self {
            namespace: namespace.clone(),
            name: format!("router-{namespace}-{pool}.isthmus.dev"),
        })
    }
}

// === impl Election ===

impl Election {
    /// Contends for the lease from now on; readiness follows. A drain gives it back at its begin: this Router serves those
    /// who still ask it until another is ready.
    pub(crate) fn spawn(self, parts: &mut Parts, drain: CancellationToken) {
        let Self {
            client,
            lease: LeaseName { namespace, name },
            clock,
            follower,
        } = self;
        let me = identity();
        info!(namespace, lease = name, identity = me, "leader mode");
        follower.health.set(LEADER, false);
        let health = follower.health.clone();
        let begin = move |stop: CancellationToken| {
            let (elector, claim) = Elector::new(client.clone(), &namespace, &name, &me, clock);
            let pulse = health.watch("lease", ROUND_LIMIT);
            let keeping = async move { elector.run(stop, || pulse.beat()).await };
            (keeping, claim)
        };
        parts.spawn("leader election", async move {
            Box::pin(contend(begin, &follower, &drain)).await;
            // A part that ends ends the program.
            std::future::pending().await
        });
    }
}

/// Contends while there are workers, until `stop`. `begin` makes each time a task that keeps a claim until it is told to
/// give it up.
async fn contend<K: Future<Output = ()>>(
    mut begin: impl FnMut(CancellationToken) -> (K, Claim),
    follower: &Follower,
    stop: &CancellationToken,
) {
    while stop
        .run_until_cancelled(follower.warm.until(true))
        .await
        .is_some()
    {
        let giving_up = stop.child_token();
        let (keeping, claim) = begin(giving_up.clone());
        let watching = async {
            until_cold(&follower.warm).await;
            warn!(after = ?PATIENCE, "giving the lease up until there are workers");
            giving_up.cancel();
        };
        tokio::select! {
            () = follower.follow(&claim) => {}
            () = async {
                tokio::join!(
                    async { keeping.await; giving_up.cancel(); },
                    giving_up.run_until_cancelled(watching),
                );
            } => {}
        }
        follower.lost();
    }
}

/// Waits until there were no workers for [`PATIENCE`].
async fn until_cold(warm: &Warm) {
    loop {
        warm.until(false).await;
        if timeout(PATIENCE, warm.until(true)).await.is_err() {
            return;
        }
    }
}

// === impl Follower ===

impl Follower {
    /// A follower that does not lead yet. Registers `router_leader`.
    pub(crate) fn new(
        warm: Warm,
        health: Health,
        calls: Calls,
        service: Service,
        registry: &mut Registry,
    ) -> Self {
        let leads = Gauge::default();
        registry.sub_registry_with_prefix("router").register(
            "leader",
            "1 while this Router holds the Lease of its pool",
            leads.clone(),
        );
        Self {
            warm,
            health,
            calls,
            service,
            leads,
        }
    }

    /// Never ends.
    async fn follow(&self, claim: &Claim) {
        loop {
            let tenure = claim.gained().await;
            // Whoever led before has bookings that are unknown here, and those from an earlier time are over.
            self.service.forget_bookings();
            self.calls.turn_away(false);
            self.leads.set(1);
            self.health.set(LEADER, true);
            tenure.ended().await;
            self.lost();
        }
    }

    fn lost(&self) {
        self.leads.set(0);
        self.health.set(LEADER, false);
        self.calls.turn_away(true);
    }
}

#[cfg(test)]
mod tests;
