//! A claim without an election, for tests.

use std::time::Duration;

use moment::{Clock, Moment};
use tokio::sync::watch;

use crate::claim::{Claim, Term};

/// Gives and takes a [`Claim`].
#[derive(Debug)]
pub struct ByHand {
    clock: Clock,
    terms: watch::Sender<Term>,
}

// === impl ByHand ===

impl ByHand {
    /// A claim that is not held yet, and the hand on it.
    pub fn new(clock: Clock) -> (Self, Claim) {
        let (terms, claim) = Claim::contested(clock);
        (Self { clock, terms }, claim)
    }

    /// Valid for `time` from now: a new term, unless one goes on.
    pub fn hold(&self, time: Duration) {
        let now = self.clock.now();
        self.extend(now + time);
    }

    /// Not valid from now on.
    pub fn give_up(&self) {
        self.extend(Moment::START);
    }

    fn extend(&self, until: Moment) {
        Term::extend(&self.terms, self.clock, until);
    }
}
