//! The right to write, as whoever writes sees it.

use std::future::pending;

use moment::{Clock, Moment};
use tokio::{sync::watch, time::sleep_until};

/// Whether this process may write now. Cheap to clone; it says no by itself when time runs out, even if the task that
/// renews it hangs.
#[derive(Clone, Debug)]
pub struct Claim(Option<Contested>);

#[derive(Clone, Debug)]
struct Contested {
    clock: Clock,
    terms: watch::Receiver<Term>,
}

/// One time of leading without a gap: what is written is written under one. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Tenure {
    contested: Option<Contested>,
    /// As it was when it was gained.
    term: Term,
}

/// A tenure as its elector sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Term {
    /// Counts the terms of this process; 0: there was none yet.
    number: u64,
    since: Moment,
    until: Moment,
}

// === impl Claim ===

impl Claim {
    /// The claim of a process that has no rival: valid for ever.
    pub fn always() -> Self {
        Self(None)
    }

    /// The claim of a process that is not to write: never valid.
    pub fn never(clock: Clock) -> Self {
        Self::contested(clock).1
    }

    pub(crate) fn contested(clock: Clock) -> (watch::Sender<Term>, Self) {
        let (sender, terms) = watch::channel(Term::default());
        (sender, Self(Some(Contested { clock, terms })))
    }

    /// Whether a write may begin at `now`. Ask just before each.
    pub fn is_valid(&self, now: Moment) -> bool {
        self.0
            .as_ref()
            .is_none_or(|contested| contested.terms.borrow().is_valid(now))
    }

    /// Counts the times that the claim was gained; a change means that others may have written in between.
    pub fn term(&self) -> u64 {
        self.0
            .as_ref()
            .map_or(1, |contested| contested.terms.borrow().number)
    }

    /// Waits until the claim is valid; for ever if its elector is gone, which the elector's owner sees.
    pub async fn gained(&self) -> Tenure {
        let Some(Contested { clock, terms }) = &self.0 else {
            return Tenure {
                contested: None,
                term: Term::default(),
            };
        };
        let mut terms = terms.clone();
        loop {
            let term = *terms.borrow_and_update();
            if term.is_valid(clock.now()) {
                return Tenure {
                    contested: self.0.clone(),
                    term,
                };
            }
            if terms.changed().await.is_err() {
                pending::<()>().await;
            }
        }
    }
}

// === impl Tenure ===

impl Tenure {
    /// Whether a write may begin at `now`, as one of this term. Ask just before each.
    pub fn is_valid(&self, now: Moment) -> bool {
        self.contested.as_ref().is_none_or(|contested| {
            let current = *contested.terms.borrow();
            current.is_valid(now) && current.number == self.term.number
        })
    }

    /// When it began; the start of the program where there is no rival.
    pub fn since(&self) -> Moment {
        self.term.since
    }

    /// Waits until it is over; for ever where there is no rival. What is being sent then is to be cancelled.
    pub async fn ended(&self) {
        let Some(Contested { clock, terms }) = &self.contested else {
            return pending().await;
        };
        let mut terms = terms.clone();
        loop {
            let current = *terms.borrow_and_update();
            if current.number != self.term.number || !current.is_valid(clock.now()) {
                return;
            }
            tokio::select! {
                // renewed, or given up before its time
                Ok(()) = terms.changed() => {}
                () = sleep_until(clock.instant(current.until)) => {}
            }
        }
    }
}

// === impl Term ===

impl Term {
    /// Makes it last until `until`: the term there was goes on, unless it has ended. The clock is read while nobody can
    /// look at the term: who has seen it ended waits for its end, and would wait for ever if it then went on.
    /// Returns what it was, what it is, and when.
    pub(crate) fn extend(
        terms: &watch::Sender<Self>,
        clock: Clock,
        until: Moment,
    ) -> (Self, Self, Moment) {
        let mut seen = (Self::default(), Self::default(), Moment::START);
        terms.send_if_modified(|term| {
            let (now, before) = (clock.now(), *term);
            *term = before.extended(until, now);
            seen = (before, *term, now);
            before != *term
        });
        seen
    }

    /// This term, or the next if it had ended by `now`, lasting until `until`.
    fn extended(self, until: Moment, now: Moment) -> Self {
        if now < until && self.until <= now {
            Self {
                number: self.number + 1,
                since: now,
                until,
            }
        } else {
            Self { until, ..self }
        }
    }

    /// Whether it is not the same time of leading.
    pub(crate) fn is_another_than(self, other: Self) -> bool {
        self.number != other.number
    }

    pub(crate) fn is_valid(self, now: Moment) -> bool {
        now < self.until
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{Instant, advance, sleep, timeout};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn extend(terms: &watch::Sender<Term>, clock: Clock, by: Duration) {
        Term::extend(terms, clock, clock.now() + by);
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_runs_out_by_itself() {
        let clock = Clock::start();
        let (terms, claim) = Claim::contested(clock);
        assert!(!claim.is_valid(clock.now()));
        assert_eq!(claim.term(), 0);
        extend(&terms, clock, SECOND * 10);
        let tenure = claim.gained().await;
        advance(SECOND * 9).await;
        assert!(claim.is_valid(clock.now()) && tenure.is_valid(clock.now()));
        advance(SECOND).await;
        assert!(!claim.is_valid(clock.now()) && !tenure.is_valid(clock.now()));
        timeout(SECOND, tenure.ended()).await.expect("at once");
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_goes_on_with_the_tenure_and_a_gap_begins_another() {
        let clock = Clock::start();
        let (terms, claim) = Claim::contested(clock);
        advance(SECOND).await;
        extend(&terms, clock, SECOND * 10);
        let first = claim.gained().await;
        advance(SECOND * 9).await;
        extend(&terms, clock, SECOND * 10);
        let still = claim.gained().await;
        assert_eq!((claim.term(), still.since()), (1, first.since()));
        assert!(first.is_valid(clock.now()));
        advance(SECOND * 10).await;
        extend(&terms, clock, SECOND * 10);
        let second = claim.gained().await;
        assert_eq!(
            (claim.term(), second.since()),
            (2, Moment::from_millis(20_000))
        );
        // what was begun under the first is not of the second
        assert!(!first.is_valid(clock.now()) && second.is_valid(clock.now()));
        timeout(SECOND, first.ended()).await.expect("at once");
    }

    #[test]
    fn a_term_that_may_have_been_seen_to_end_does_not_go_on() {
        let clock = Clock::start();
        let (terms, claim) = Claim::contested(clock);
        let end = clock.now() + Duration::from_millis(200);
        Term::extend(&terms, clock, end);
        assert_eq!(claim.term(), 1);
        // somebody looks at it while it is renewed
        let looking = terms.borrow();
        std::thread::scope(|scope| {
            let renewal = scope.spawn(|| Term::extend(&terms, clock, end + SECOND * 10));
            while clock.now() < end {
                std::thread::yield_now();
            }
            assert!(!looking.is_valid(clock.now()));
            drop(looking);
            let (before, after, now) = renewal.join().expect("renewed");
            assert!(now >= end && after.is_another_than(before), "{after:?}");
        });
        assert_eq!(claim.term(), 2);
    }

    #[test]
    fn a_renewal_whose_answer_came_too_late_gains_nothing() {
        let now = Moment::from_millis(5);
        let late = Term::default().extended(now, now);
        assert_eq!((late.number, late.is_valid(now)), (0, false));
    }

    #[tokio::test(start_paused = true)]
    async fn loss_and_gain_are_awaited() {
        let clock = Clock::start();
        let (terms, claim) = Claim::contested(clock);
        let started = Instant::now();
        let keep = async {
            sleep(SECOND).await;
            extend(&terms, clock, SECOND * 10);
            sleep(SECOND * 8).await;
            extend(&terms, clock, SECOND * 10);
        };
        let watch = async {
            let tenure = claim.gained().await;
            assert_eq!(started.elapsed(), SECOND);
            tenure.ended().await;
            let held = started.elapsed();
            assert!(held >= SECOND * 19 && held < SECOND * 20, "{held:?}");
        };
        tokio::join!(keep, watch);
        // given up before its time
        extend(&terms, clock, SECOND * 10);
        let tenure = claim.gained().await;
        let give_up = async {
            sleep(SECOND).await;
            Term::extend(&terms, clock, Moment::START);
        };
        let ((), lost) = tokio::join!(give_up, timeout(SECOND * 2, tenure.ended()));
        lost.expect("at once");
        // without its elector it is not gained again
        drop(terms);
        assert!(timeout(SECOND * 60, claim.gained()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_never_to_write_waits_for_ever() {
        let claim = Claim::never(Clock::start());
        assert!(!claim.is_valid(Moment::START));
        assert!(timeout(SECOND * 3600, claim.gained()).await.is_err());
        assert_eq!(claim.term(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_rival_it_is_valid_for_ever() {
        let claim = Claim::always();
        assert!(claim.is_valid(Moment::START + Duration::MAX));
        let tenure = claim.gained().await;
        assert!(tenure.is_valid(Moment::START + Duration::MAX));
        assert!(timeout(SECOND * 3600, tenure.ended()).await.is_err());
        assert_eq!((claim.term(), tenure.since()), (1, Moment::START));
    }
}
