//! The election of a process from its start to its end.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::{Claim, Elector};

/// Timeout of the release of the lease; without a release, another process takes over 15 s later.
const RELEASE: Duration = Duration::from_secs(3);

/// Whether this process may write, and the task that renews its lease.
pub struct Election {
    claim: Claim,
    task: JoinSet<()>,
    /// Cancelled after the last write.
    written: CancellationToken,
}

// === impl Election ===

impl Election {
    /// No election: whether this process writes is settled.
    pub fn settled(claim: Claim) -> Self {
        Self {
            claim,
            task: JoinSet::new(),
            written: CancellationToken::new(),
        }
    }

    /// Stands for election once `after` has come. `beat` is called as by [`Elector::run`].
    pub fn begin(
        (elector, claim): (Elector, Claim),
        after: impl Future<Output = ()> + Send + 'static,
        beat: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let mut election = Self::settled(claim);
        let stop = election.written.clone();
        election.task.spawn(async move {
            tokio::select! {
                () = after => elector.run(stop, beat).await,
                () = stop.cancelled() => {}
            }
        });
        election
    }

    /// An election whose lease is renewed by this task.
    #[cfg(feature = "test-util")]
    pub fn kept_by(claim: Claim, task: impl Future<Output = ()> + Send + 'static) -> Self {
        let mut election = Self::settled(claim);
        election.task.spawn(task);
        election
    }

    /// Whether this process may write.
    pub fn claim(&self) -> Claim {
        self.claim.clone()
    }

    /// Waits for the unexpected end of the task.
    pub async fn failed(&mut self) -> anyhow::Error {
        match self.task.join_next().await {
            Some(Err(error)) => anyhow::Error::new(error).context("the lease's task failed"),
            Some(Ok(())) => anyhow::anyhow!("the lease's task ended"),
            // there is no election
            None => std::future::pending().await,
        }
    }

    /// Releases the lease, so that another process need not wait for it to expire. Call it after the last write. False: the API
    /// server does not answer.
    pub async fn end(mut self) -> bool {
        self.written.cancel();
        timeout(RELEASE, self.task.join_next()).await.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use moment::Clock;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_nobody_takes_back_is_waited_for_a_while() {
        for hangs in [false, true] {
            let mut election = Election::settled(Claim::never(Clock::start()));
            election.task.spawn(async move {
                if hangs {
                    std::future::pending::<()>().await;
                }
            });
            let ended = timeout(RELEASE * 2, election.end()).await;
            assert_eq!(ended.ok(), Some(!hangs));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn without_an_election_nothing_fails_and_nothing_is_given_back() {
        let clock = Clock::start();
        for (claim, may_write) in [(Claim::always(), true), (Claim::never(clock), false)] {
            let mut election = Election::settled(claim);
            assert_eq!(election.claim().is_valid(clock.now()), may_write);
            let failed = timeout(Duration::from_mins(1), election.failed()).await;
            assert!(failed.is_err());
            assert!(election.end().await);
        }
    }
}
