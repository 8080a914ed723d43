//! Whether this controller may write, and the task that renews its lease.

use std::time::Duration;

use lease::{Claim, Elector, identity};
use moment::Clock;
use process::Health;
use tokio::{task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;

use super::LOOP_LIMIT;
use mci_inventory::Home;
use mci_inventory::lease_name;

/// The leader election of this process, if any.
pub(super) struct Election {
    claim: Claim,
    task: JoinSet<()>,
    /// Cancelled after the last write.
    written: CancellationToken,
}

/// Timeout of the release of the lease; without a release, another controller takes over 15 s later.
const RELEASE: Duration = Duration::from_secs(3);

// === impl Election ===

impl Election {
    /// No election: only this process writes, or, with a dry run, none.
    pub(super) fn none(dry_run: bool, clock: Clock) -> Self {
        let claim = if dry_run {
            Claim::never(clock)
        } else {
            Claim::always()
        };
        Self {
            claim,
            task: JoinSet::new(),
            written: CancellationToken::new(),
        }
    }

    /// Starts leader election on the Lease of this ClusterSet at home.
    pub(super) fn begin(home: &Home, clusterset: &str, clock: Clock, health: &Health) -> Self {
        let name = lease_name(clusterset);
        let me = identity();
        tracing::info!(
            namespace = home.namespace,
            lease = name,
            identity = me,
            "standing for election"
        );
        let (elector, claim) =
            Elector::new(home.client.clone(), &home.namespace, &name, &me, clock);
        let written = CancellationToken::new();
        let stop = written.clone();
        let pulse = health.watch("lease", LOOP_LIMIT);
        let mut task = JoinSet::new();
        task.spawn(async move { elector.run(stop, || pulse.beat()).await });
        Self {
            claim,
            task,
            written,
        }
    }

    /// An election with this task in place of the renewal.
    #[cfg(test)]
    pub(super) fn kept_by(task: impl Future<Output = ()> + Send + 'static, clock: Clock) -> Self {
        let mut election = Self::none(false, clock);
        election.task.spawn(task);
        election
    }

    pub(super) fn claim(&self) -> Claim {
        self.claim.clone()
    }

    /// Waits for the unexpected end of the task.
    pub(super) async fn failed(&mut self) -> anyhow::Error {
        match self.task.join_next().await {
            Some(Err(error)) => anyhow::Error::new(error).context("the lease's task failed"),
            Some(Ok(())) => anyhow::anyhow!("the lease's task ended"),
            // there is no election
            None => std::future::pending().await,
        }
    }

    /// Releases the lease, so that another controller need not wait for it to expire. Call it after the last write.
    pub(super) async fn end(mut self) {
        self.written.cancel();
        if timeout(RELEASE, self.task.join_next()).await.is_err() {
            tracing::warn!("no answer from the home cluster: the lease is not given back");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn alone_it_may_write_and_in_a_dry_run_never() {
        let clock = Clock::start();
        for dry_run in [false, true] {
            let mut election = Election::none(dry_run, clock);
            assert_eq!(election.claim().is_valid(clock.now()), !dry_run);
            // no task, so none that fails or gives back
            let failed = timeout(Duration::from_mins(1), election.failed()).await;
            assert!(failed.is_err());
            election.end().await;
        }
    }
}
