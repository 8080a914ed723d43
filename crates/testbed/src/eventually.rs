//! Waiting for a condition with a deadline, and saying what was seen when it did not come.

use std::fmt::Display;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

/// First pause between two looks; doubled up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// Short enough not to be noticed in a test, long enough to leave the machine to what is waited for.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// What was waited for did not come in time.
#[derive(Debug, thiserror::Error)]
#[error("{what}: not within {limit:?}; last seen: {last}")]
pub struct NotInTime {
    /// What was waited for.
    pub what: String,
    /// How long.
    pub limit: Duration,
    /// What the last look saw.
    pub last: String,
}

/// Looks again and again until `look` returns `Ok`, for at most `limit`.
///
/// A look's `Err` says what it saw instead; it is for the person who reads the failure. A look that is still going on
/// at the deadline is abandoned.
///
/// # Errors
/// At the deadline, with what was seen last.
///
/// ```no_run
/// # async fn example(cluster: testbed::Cluster) -> Result<(), testbed::NotInTime> {
/// use std::time::Duration;
/// testbed::eventually("the pool's status", Duration::from_secs(2), async || {
///     cluster.kubectl(&["get", "inferencepools"]).await
/// })
/// .await?;
/// # Ok(()) }
/// ```
pub async fn eventually<T, E: Display>(
    what: &str,
    limit: Duration,
    mut look: impl AsyncFnMut() -> Result<T, E>,
) -> Result<T, NotInTime> {
    let deadline = Instant::now() + limit;
    let mut last = "nothing yet".to_owned();
    let mut pause = FIRST_PAUSE;
    loop {
        match timeout_at(deadline, look()).await {
            Ok(Ok(seen)) => return Ok(seen),
            Ok(Err(other)) => last = other.to_string(),
            // the deadline: what was seen before stays
            Err(_) => {}
        }
        if Instant::now() + pause >= deadline {
            return Err(NotInTime {
                what: what.to_owned(),
                limit,
                last,
            });
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn looks_again_until_it_is_there() {
        let mut looks = 0;
        let seen = eventually("three looks", Duration::from_secs(5), async || {
            looks += 1;
            if looks == 3 {
                Ok(looks)
            } else {
                Err("not yet")
            }
        })
        .await;
        assert_eq!(seen.unwrap(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn failure_says_what_was_seen_last() {
        let mut looks = 0;
        let error = eventually("a pod", Duration::from_secs(1), async || {
            looks += 1;
            Err::<(), _>(format!("{} pods", if looks == 1 { 9 } else { 0 }))
        })
        .await
        .unwrap_err();
        assert_eq!(error.to_string(), "a pod: not within 1s; last seen: 0 pods");
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_hangs_ends_at_the_deadline() {
        let before = Instant::now();
        let hang = async || std::future::pending::<Result<(), String>>().await;
        let error = eventually("nothing", Duration::from_secs(3), hang)
            .await
            .unwrap_err();
        assert_eq!(error.last, "nothing yet");
        assert_eq!(before.elapsed(), Duration::from_secs(3));
    }
}
