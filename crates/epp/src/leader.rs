//! Leader mode: of several EPPs of a pool the one that holds the Lease is ready, the others are warm.

use std::time::Duration;

use kube::Client;
use lease::{Claim, Elector, identity};
use moment::Clock;
use process::ConfigError;
use prometheus_client::{metrics::gauge::Gauge, registry::Registry};
use tokio::{task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    discovery::Source,
    health::{Part, Readiness},
};

/// A round of the election takes 5 s at most: one that takes longer hangs.
const ROUND_LIMIT: Duration = Duration::from_secs(10);

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
        let (elector, claim) = Elector::new(client, namespace, name, &me, clock);
        let mut election = Self::following(claim, readiness, registry);
        let stop = election.stop.clone();
        let pulse = readiness.admin().watch("lease", ROUND_LIMIT);
        election
            .keeping
            .spawn(async move { elector.run(stop, || pulse.beat()).await });
        election
    }

    /// Readiness follows this claim, which somebody else keeps.
    fn following(claim: Claim, readiness: &Readiness, registry: &mut Registry) -> Self {
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
            .spawn(async move { follow(&claim, &readiness, &leads).await });
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

async fn follow(claim: &Claim, readiness: &Readiness, leads: &Gauge) {
    loop {
        let tenure = claim.gained().await;
        leads.set(1);
        readiness.set(Part::Leader, true);
        tenure.ended().await;
        leads.set(0);
        readiness.set(Part::Leader, false);
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
