//! One process in the contest, as a state machine: it is told answers and the time, and says what to ask next. Pure.

use std::time::Duration;

use moment::Moment;
use rand::{Rng, RngExt};

use crate::evaluate::{Decision, Record, Seen, evaluate};

/// How long a claim is believed in, from the start of the write that last renewed it.
pub const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// Between renewals, and the longest between looks at another's lease: five renewals to a deadline.
pub const RETRY: Duration = Duration::from_secs(2);
/// The shortest look-out is a tenth of [`RETRY`], so that a few hundred standbys are no load.
const EAGERNESS: f64 = 0.1;
/// Failures in a row: the first waits up to this, and twice as long each time.
const BACKOFF_MIN: Duration = Duration::from_millis(500);
/// Longest wait where nothing is to be lost; half of the 10 s after which a task counts as hung.
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// One process in the contest.
#[derive(Clone, Debug)]
pub struct Contender {
    me: String,
    seen: Option<Seen>,
    /// What was seen may be old: look before writing.
    look: bool,
    valid_until: Moment,
    /// Nothing is asked before.
    next_at: Moment,
    /// Calls in a row that led nowhere.
    failures: u32,
    /// The last write came too late.
    raced: bool,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing before then.
    Wait(Moment),
    /// One call; its [`Reply`] is awaited, within a deadline.
    Call(Call),
}

/// A call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// Read the lease.
    Get,
    /// Write it.
    Put(Draft),
}

/// The lease as it shall be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// Who shall have it; empty: nobody.
    pub holder: String,
    /// How often it went from one to another.
    pub transitions: i32,
    /// Whether the holder changes.
    pub acquires: bool,
    /// The version that is replaced and no other; none: it must not be there.
    pub replaces: Option<String>,
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The lease as it is now; none: there is none.
    Lease(Option<Record>),
    /// A write came too late: the lease is another than was thought.
    Conflict,
    /// No answer in time, or an error. A write may have taken effect all the same.
    Failed,
}

// === impl Contender ===

impl Contender {
    /// A process that has seen nothing yet. `me` is unique among all processes that there ever are.
    pub fn new(me: impl Into<String>) -> Self {
        Self {
            me: me.into(),
            seen: None,
            look: true,
            valid_until: Moment::START,
            next_at: Moment::START,
            failures: 0,
            raced: false,
        }
    }

    /// Until when this process may write; in the past: it may not.
    pub fn valid_until(&self) -> Moment {
        self.valid_until
    }

    /// Who has the lease, as far as is known.
    pub fn holder(&self) -> Option<&str> {
        let record = self.seen.as_ref()?.record.as_ref()?;
        Some(record.holder.as_str()).filter(|holder| !holder.is_empty())
    }

    /// What to do at `now`.
    pub fn step(&mut self, now: Moment, rng: &mut impl Rng) -> Step {
        if now < self.next_at {
            return Step::Wait(self.next_at);
        }
        let seen = match &self.seen {
            Some(seen) if !self.look => seen,
            _ => return Step::Call(Call::Get),
        };
        match evaluate(seen, &self.me, now) {
            Decision::Acquire => Step::Call(Call::Put(self.draft(true))),
            Decision::Renew => Step::Call(Call::Put(self.draft(false))),
            Decision::Follow { until } => {
                self.failures = 0;
                self.look = true;
                let wait = RETRY.mul_f64(rng.random_range(EAGERNESS..=1.0));
                self.next_at = (now + wait).min(until);
                Step::Wait(self.next_at)
            }
        }
    }

    /// Takes in how `call` ended, which began at `started` and was answered by `now`.
    pub fn on(
        &mut self,
        call: &Call,
        reply: Reply,
        started: Moment,
        now: Moment,
        rng: &mut impl Rng,
    ) {
        match (call, reply) {
            (Call::Get, Reply::Lease(record)) => {
                self.see(record, now);
                self.next_at = now;
            }
            (Call::Put(draft), Reply::Lease(Some(record)))
                if record.holder == draft.holder
                    && Some(&record.version) != draft.replaces.as_ref() =>
            {
                self.see(Some(record), now);
                self.failures = 0;
                self.raced = false;
                if draft.holder == self.me {
                    self.valid_until = started + RENEW_DEADLINE;
                    self.next_at = started + RETRY;
                }
            }
            (_, Reply::Conflict) => {
                self.look = true;
                self.fail(now, rng);
                // one may lose a race, or not have heard of an own write: that shows at once
                if !std::mem::replace(&mut self.raced, true) {
                    self.next_at = now;
                }
            }
            // a write that left the version as it was, or that shows another's name, renews nothing
            (call, Reply::Failed | Reply::Lease(_)) => {
                let renewing = matches!(call, Call::Put(draft) if !draft.acquires);
                self.look = !renewing;
                self.raced = false;
                self.fail(now, rng);
            }
        }
    }

    /// Ends the claim, and says what to write so that another need not wait; none: there is nothing to give back.
    pub fn release(&mut self) -> Option<Call> {
        self.valid_until = Moment::START;
        let record = self.seen.as_ref()?.record.as_ref()?;
        (record.holder == self.me).then(|| {
            Call::Put(Draft {
                holder: String::new(),
                transitions: record.transitions,
                acquires: false,
                replaces: Some(record.version.clone()),
            })
        })
    }

    fn see(&mut self, record: Option<Record>, now: Moment) {
        let seen = Seen::after(self.seen.take(), record, now);
        if seen
            .record
            .as_ref()
            .is_none_or(|record| record.holder != self.me)
        {
            self.valid_until = Moment::START;
        }
        self.seen = Some(seen);
        self.look = false;
    }

    fn draft(&self, acquires: bool) -> Draft {
        let record = self.seen.as_ref().and_then(|seen| seen.record.as_ref());
        let transitions = record.map_or(0, |record| {
            record.transitions.saturating_add(acquires.into())
        });
        Draft {
            holder: self.me.clone(),
            transitions,
            acquires,
            replaces: record.map(|record| record.version.clone()),
        }
    }

    /// Full jitter; while the claim can still be kept, never longer than between renewals.
    fn fail(&mut self, now: Moment, rng: &mut impl Rng) {
        let max = if now < self.valid_until {
            RETRY
        } else {
            BACKOFF_MAX
        };
        let span = BACKOFF_MIN
            .saturating_mul(1_u32.checked_shl(self.failures.min(16)).unwrap_or(u32::MAX))
            .min(max);
        self.failures = self.failures.saturating_add(1);
        self.next_at = now + span.mul_f64(rng.random_range(EAGERNESS..=1.0));
    }
}

#[cfg(test)]
mod tests;
