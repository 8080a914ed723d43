//! Circuit breaker for the writes to one member. Pure.
//!
//! ```text
//!  Closed ── 5 writes in a row without an answer ──► Open ── wait ──► Half open ── no answer ──► Open, longer
//!    ▲──────────────────────────── any answer ─────────────────────────────┘
//! ```

use std::time::Duration;

use moment::Moment;

use watch::backoff;

/// Opens when a server does not answer; any answer, also a failure, closes it.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    /// Writes in a row that were not answered.
    unanswered: u32,
    /// Nothing is sent before; none: closed.
    open_until: Option<Moment>,
}

/// Writes without an answer in a row that open it.
const OPENS_AFTER: u32 = 5;
const WAIT_MIN: Duration = Duration::from_millis(500);
const WAIT_MAX: Duration = Duration::from_secs(30);

// === impl Breaker ===

impl Breaker {
    /// How many writes may be in flight; none: the breaker sets no limit.
    pub(super) fn limit(&self) -> Option<usize> {
        self.open_until.map(|_| 1)
    }

    /// Nothing is sent before.
    pub(super) fn not_before(&self) -> Moment {
        self.open_until.unwrap_or_default()
    }

    pub(super) fn is_open(&self) -> bool {
        self.open_until.is_some()
    }

    pub(super) fn answered(&mut self) {
        *self = Self::default();
    }

    /// A write that started at `began` had no answer.
    pub(super) fn unanswered(&mut self, began: Moment, now: Moment, rng: &mut impl rand::Rng) {
        // writes in flight when it opened do not count
        if self.open_until.is_some_and(|until| began < until) {
            return;
        }
        self.unanswered = self.unanswered.saturating_add(1);
        if self.unanswered >= OPENS_AFTER {
            let times = self.unanswered - OPENS_AFTER + 1;
            self.open_until = Some(now + backoff(times, WAIT_MIN, WAIT_MAX, rng));
        }
    }

    /// Probes succeed again: one write may be tried at once.
    pub(super) fn try_now(&mut self, now: Moment) {
        if let Some(until) = &mut self.open_until {
            *until = now.min(*until);
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::StdRng};

    use super::*;

    const fn at(millis: u64) -> Moment {
        Moment::from_millis(millis)
    }

    fn fail(breaker: &mut Breaker, began: Moment, now: Moment) {
        breaker.unanswered(began, now, &mut StdRng::seed_from_u64(3));
    }

    #[test]
    fn five_without_an_answer_in_a_row_open_it() {
        let mut breaker = Breaker::default();
        for _ in 0..4 {
            fail(&mut breaker, at(0), at(10));
        }
        breaker.answered();
        for _ in 0..4 {
            fail(&mut breaker, at(20), at(30));
        }
        assert!(!breaker.is_open());
        assert_eq!(breaker.limit(), None);
        fail(&mut breaker, at(20), at(30));
        assert!(breaker.is_open());
        assert!(breaker.not_before() >= at(530));
        assert_eq!(breaker.limit(), Some(1));
    }

    #[test]
    fn half_open_it_lets_one_write_decide() {
        let mut breaker = Breaker::default();
        for _ in 0..5 {
            fail(&mut breaker, at(0), at(0));
        }
        let first = breaker.not_before();
        // stragglers change nothing
        fail(&mut breaker, at(0), at(1));
        assert_eq!(breaker.not_before(), first);
        fail(&mut breaker, first, first + Duration::from_secs(5));
        assert!(breaker.not_before() >= first + Duration::from_millis(5_500));
        breaker.answered();
        assert!(!breaker.is_open());
        assert_eq!(breaker.not_before(), Moment::START);
    }

    #[test]
    fn it_waits_at_most_half_a_minute() {
        let mut breaker = Breaker::default();
        let mut rng = StdRng::seed_from_u64(9);
        let mut now = at(0);
        for _ in 0..200 {
            now = now.max(breaker.not_before());
            breaker.unanswered(now, now, &mut rng);
            assert!(breaker.not_before().since(now) <= Duration::from_secs(30));
        }
    }

    #[test]
    fn new_contact_ends_the_wait_and_not_the_caution() {
        let mut breaker = Breaker::default();
        for _ in 0..5 {
            fail(&mut breaker, at(0), at(0));
        }
        breaker.try_now(at(100));
        assert_eq!(breaker.not_before(), at(100));
        assert_eq!(breaker.limit(), Some(1));
    }
}
