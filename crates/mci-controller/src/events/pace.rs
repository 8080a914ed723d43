//! When events may be sent to a server again that did not take one. Pure.

use std::time::Duration;

use moment::Moment;

use crate::write::{
    action::{Failure, Outcome},
    backoff, throttle,
};

/// Nothing is sent while it asks for silence, and ever less often while it does not answer.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// The server asked for it.
    silent_until: Moment,
    /// In a row.
    failures: u32,
    retry_at: Moment,
}

const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_mins(1);

// === impl Pace ===

impl Pace {
    /// Nothing is sent before.
    pub(super) fn not_before(&self) -> Moment {
        self.silent_until.max(self.retry_at)
    }

    /// An event ended like this.
    pub(super) fn heard(&mut self, outcome: Outcome, now: Moment, rng: &mut impl rand::Rng) {
        match outcome {
            Outcome::Retry(
                Failure::Timeout
                | Failure::Unconnected
                | Failure::GatewayTimeout
                | Failure::Unauthorised
                | Failure::Other,
            ) => {
                self.failures = self.failures.saturating_add(1);
                self.retry_at = now + backoff(self.failures, RETRY_MIN, RETRY_MAX, rng);
            }
            Outcome::Throttled(asked) => {
                self.failures = 0;
                self.silent_until = self.silent_until.max(now + throttle(asked));
            }
            // the server works, and what it thinks of one event says nothing of the next
            Outcome::Done
            | Outcome::Superseded
            | Outcome::Rejected
            | Outcome::Retry(
                Failure::Conflict | Failure::NotFound | Failure::NamespaceGone | Failure::Denied,
            ) => self.failures = 0,
        }
    }

    /// There is a new connection: one event may try at once, unless the server asked for silence.
    pub(super) fn try_now(&mut self, now: Moment) {
        self.retry_at = self.retry_at.min(now);
    }
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::StdRng};

    use super::*;

    const HANGS: Outcome = Outcome::Retry(Failure::Timeout);

    const fn at(seconds: u64) -> Moment {
        Moment::from_millis(seconds * 1000)
    }

    #[test]
    fn a_server_that_does_not_answer_is_asked_ever_less_often_but_within_a_minute() {
        let mut pace = Pace::default();
        let mut rng = StdRng::seed_from_u64(1);
        let waits: Vec<Duration> = (0..200)
            .map(|_| {
                let now = pace.not_before();
                pace.heard(HANGS, now, &mut rng);
                pace.not_before().since(now)
            })
            .collect();
        assert!(waits.iter().all(|wait| *wait >= RETRY_MIN), "{waits:?}");
        assert!(waits.iter().all(|wait| *wait <= RETRY_MAX), "{waits:?}");
        assert!(waits[0] <= RETRY_MIN * 2, "{waits:?}");
        let longest = waits.iter().max().expect("some");
        assert!(*longest > RETRY_MAX / 2, "{waits:?}");
        let now = pace.not_before();
        pace.heard(Outcome::Done, now, &mut rng);
        assert_eq!(pace.not_before(), now, "an answer ends the wait");
        pace.heard(HANGS, now, &mut rng);
        assert!(pace.not_before() <= now + RETRY_MIN * 2);
    }

    #[test]
    fn a_new_connection_ends_the_wait_and_no_silence_that_was_asked_for() {
        let mut pace = Pace::default();
        let mut rng = StdRng::seed_from_u64(1);
        pace.heard(HANGS, at(10), &mut rng);
        pace.try_now(at(10));
        assert_eq!(pace.not_before(), at(10));
        let asked = Some(Duration::from_secs(30));
        pace.heard(Outcome::Throttled(asked), at(20), &mut rng);
        pace.heard(Outcome::Done, at(21), &mut rng);
        pace.try_now(at(22));
        assert_eq!(pace.not_before(), at(50));
    }
}
