//! All that runs, until a part of it ends or the program is to end: then the drain.

use std::time::Duration;

use anyhow::{Context, anyhow};
use process::Shutdown;
use tokio::{
    task::{JoinError, JoinSet},
    time::{Instant, sleep_until, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{health::Readiness, leader::Election};

/// After SIGTERM, still ready: the only pod of a Deployment is asked on until the one in its place is ready, which takes
/// seconds. Where others are ready, Services and gateways leave this one meanwhile, as it is being deleted.
const HANDOVER: Duration = Duration::from_secs(10);

/// Then, not ready: until every proxy's health check has seen it (each 2 s, an answer within 1 s).
const LINGER: Duration = Duration::from_secs(4);

/// After the drain timeout: for the streams' last messages.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// After the streams' end: for the spans, the lines of the access log and the reports that are left.
const LAST_SPANS: Duration = Duration::from_secs(3);

/// The part that drains wait for.
pub(super) const EXT_PROC: &str = "ext_proc server";

/// The part that ends last.
pub(super) const SPANS: &str = "sender of spans";

/// The part that writes the access log.
pub(super) const ACCESS_LOG: &str = "access log";

/// The part that reports to a Metadata-Center.
pub(super) const REPORTS: &str = "client of the Metadata-Center";

/// The part that reports what becomes of bookings.
pub(super) const BOOKINGS: &str = "sender of reports to the Processor";

/// Parts by name.
pub(super) type Tasks = JoinSet<(&'static str, anyhow::Result<()>)>;

/// What ends in a drain, in this order.
#[derive(Default)]
pub(super) struct Ends {
    /// No new streams.
    pub(super) goaway: CancellationToken,
    /// The streams that are left.
    pub(super) drained: CancellationToken,
    /// Where spans are made: those that are left are sent.
    pub(super) spans: Option<CancellationToken>,
    /// What is left of the access log is written.
    pub(super) access_log: Option<CancellationToken>,
    /// The last ends of requests are reported, and the lease is given back.
    pub(super) reports: Option<CancellationToken>,
    /// The last ends of bookings are reported.
    pub(super) bookings: Option<CancellationToken>,
}

/// All that runs.
pub(super) struct Running {
    pub(super) tasks: Tasks,
    pub(super) election: Election,
    pub(super) readiness: Readiness,
    pub(super) ends: Ends,
    pub(super) drain_timeout: Duration,
}

// === impl Running ===

impl Running {
    /// Runs until a part ends, or until `shutdown`.
    pub(super) async fn until(mut self, shutdown: Shutdown) -> anyhow::Result<()> {
        let failed = tokio::select! {
            Some(ended) = self.tasks.join_next() => Some(unexpected(ended)),
            error = self.election.failed() => Some(error),
            () = shutdown.drain.cancelled() => None,
        };
        if let Some(error) = failed {
            self.readiness.fail(error.to_string());
            return Err(error);
        }
        self.election.release().await;
        tokio::select! {
            result = self.end() => result,
            () = shutdown.now.cancelled() => {
                warn!("ended at once: open streams are cut");
                Ok(())
            }
        }
    }

    /// Drains, sends what is left to tell, and waits for the lease, which was given back before.
    async fn end(mut self) -> anyhow::Result<()> {
        let result = self.drain().await;
        self.flush().await;
        self.election.released().await;
        result
    }

    /// Lets another take over, then proxies notice, then streams end, then ends them.
    async fn drain(&mut self) -> anyhow::Result<()> {
        let (start, limit) = (Instant::now(), self.drain_timeout);
        let (handover, linger) = phases(limit);
        info!(timeout = ?limit, ready_for = ?handover, "draining: new streams are still served for a while");
        sleep_until(start + handover).await;
        self.readiness.drain();
        info!("not ready any more");
        sleep_until(start + handover + linger).await;
        self.ends.goaway.cancel();
        if let Ok(result) = timeout_at(start + limit, self.served()).await {
            return result;
        }
        warn!("the drain timeout is over: ending the streams that are left");
        self.ends.drained.cancel();
        match timeout(LAST_WORDS, self.served()).await {
            Ok(result) => result,
            Err(_) => Ok(()),
        }
    }

    /// Waits for the end of the ext_proc server. Another part that ends first is an error, but cuts no stream.
    async fn served(&mut self) -> anyhow::Result<()> {
        let mut result = Ok(());
        while let Some(ended) = self.tasks.join_next().await {
            match ended {
                Ok((EXT_PROC, served)) => return result.and(served.context(EXT_PROC)),
                ended => {
                    let error = unexpected(ended);
                    warn!(%error, "still draining");
                    result = result.and(Err(error));
                }
            }
        }
        result
    }

    async fn flush(&mut self) {
        let Ends {
            spans,
            access_log,
            reports,
            bookings,
            ..
        } = &self.ends;
        let mut left = 0;
        for stop in [spans, access_log, reports, bookings].into_iter().flatten() {
            stop.cancel();
            left += 1;
        }
        let sent = async {
            while left > 0
                && let Some(ended) = self.tasks.join_next().await
            {
                if let Ok((SPANS | ACCESS_LOG | REPORTS | BOOKINGS, _)) = ended {
                    left -= 1;
                }
            }
        };
        if timeout(LAST_SPANS, sent).await.is_err() {
            warn!("spans, lines of the access log or reports are left that nobody took in time");
        }
    }
}

/// How long a drain of at most `limit` stays ready, and how long it then takes new streams. Half of the time is for the
/// end of streams; what is left goes to the proxies first.
fn phases(limit: Duration) -> (Duration, Duration) {
    let linger = LINGER.min(limit / 2);
    let handover = HANDOVER.min((limit / 2).saturating_sub(linger));
    (handover, linger)
}

fn unexpected(ended: Result<(&'static str, anyhow::Result<()>), JoinError>) -> anyhow::Error {
    match ended {
        Ok((part, Ok(()))) => anyhow!("the {part} ended"),
        Ok((part, Err(error))) => error.context(format!("the {part} ended")),
        Err(error) => anyhow!("a part died: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn streams_have_half_of_a_drain_and_proxies_come_before_the_handover() {
        assert_eq!(phases(secs(30)), (secs(10), secs(4)));
        assert_eq!(phases(secs(300)), (secs(10), secs(4)));
        assert_eq!(phases(secs(10)), (secs(1), secs(4)));
        assert_eq!(phases(secs(2)), (secs(0), secs(1)));
        assert_eq!(phases(secs(0)), (secs(0), secs(0)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_draining_epp_stays_ready_for_its_successor_and_then_for_proxies_takes_streams() {
        let readiness = Readiness::new();
        for part in [crate::Part::Discovery, crate::Part::Metrics] {
            readiness.set(part, true);
        }
        let (ends, mut tasks) = (Ends::default(), Tasks::new());
        let (goaway, stop) = (ends.goaway.clone(), ends.goaway.clone());
        tasks.spawn(async move {
            stop.cancelled().await;
            (EXT_PROC, Ok(()))
        });
        let start = Instant::now();
        let seen = async {
            while readiness.is_ready() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            let unready = start.elapsed();
            goaway.cancelled().await;
            (unready, start.elapsed())
        };
        let mut running = Running {
            tasks,
            election: Election::none(),
            readiness: readiness.clone(),
            ends,
            drain_timeout: secs(30),
        };
        let (result, (unready, went)) = tokio::join!(running.drain(), seen);
        result.expect("drains");
        assert!(unready >= secs(10) && unready < secs(11), "{unready:?}");
        assert_eq!(went, secs(14));
    }
}
