//! When events may be sent to a server again that did not take one. Pure.

use std::time::Duration;

use moment::Moment;
use watch::backoff;

use crate::write::{
    action::{Failure, Outcome},
    throttle,
};

/// Nothing is sent while it asks for silence, and ever less often while it does not answer.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// The server asked for it.
    silent_until: Moment,
    /// Events in a row that it asked for silence by `Retry-After`, which writes keep too.
    hushes: u32,
    /// In a row.
    failures: u32,
    retry_at: Moment,
}

const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_mins(1);
/// After a silence that writes keep too, they have the server for themselves for so long, and twice as long each time that
/// the next event is answered so: at our rate 500 writes are sent in the first of these times. Somebody who limits events
/// alone would else leave no time to writes.
const WRITES_FIRST_MIN: Duration = Duration::from_secs(5);
/// As long as the longest silence: writes have half of the time.
const WRITES_FIRST_MAX: Duration = Duration::from_mins(5);

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
                let mut wait = throttle(asked);
                if asked.is_some() {
                    let doubled = 1_u32.checked_shl(self.hushes).unwrap_or(u32::MAX);
                    wait += WRITES_FIRST_MIN
                        .saturating_mul(doubled)
                        .min(WRITES_FIRST_MAX);
                    self.hushes = self.hushes.saturating_add(1);
                }
                self.silent_until = self.silent_until.max(now + wait);
            }
            // the server works, and what it thinks of one event says nothing of the next
            Outcome::Done
            | Outcome::Superseded
            | Outcome::Rejected
            | Outcome::Retry(
                Failure::Conflict | Failure::NotFound | Failure::NamespaceGone | Failure::Denied,
            ) => {
                self.failures = 0;
                self.hushes = 0;
            }
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
        let minute = Duration::from_mins(1);
        assert!(waits.iter().all(|wait| *wait <= minute), "{waits:?}");
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
        assert_eq!(pace.not_before(), at(55));
    }

    #[test]
    fn writes_have_ever_more_time_where_every_event_is_asked_for_silence() {
        let mut pace = Pace::default();
        let mut rng = StdRng::seed_from_u64(1);
        let mut wait = |outcome| {
            let now = pace.not_before();
            pace.heard(outcome, now, &mut rng);
            pace.not_before().since(now).as_secs()
        };
        let asked = Outcome::Throttled(Some(Duration::from_mins(5)));
        let waits: Vec<u64> = (0..40).map(|_| wait(asked)).collect();
        assert_eq!(waits[..8], [305, 310, 320, 340, 380, 460, 600, 600]);
        assert_eq!(waits[39], 600);
        // one that got through ends that
        assert_eq!(wait(Outcome::Done), 0);
        assert_eq!(wait(asked), 305);
        // without a time nothing is asked of writes
        assert_eq!(wait(Outcome::Throttled(None)), 1);
    }
}
