//! Whether an address is asked at all, decided by how the last calls went.

use std::time::Duration;

use moment::Moment;

/// Failures in a row that open it.
const FAILURES: u32 = 10;
/// How long an open one lets nothing through.
const OPEN: Duration = Duration::from_secs(5);
/// Probes in a row that close it.
const SUCCESSES: u32 = 3;

/// Opens after failures in a row. After a while it lets one call through at a time, and closes when those succeed.
#[derive(Debug)]
pub(crate) struct Breaker {
    state: State,
}

#[derive(Debug)]
enum State {
    Closed { failures: u32 },
    Open { until: Moment },
    HalfOpen { successes: u32, is_probing: bool },
}

/// As `epp_metadata_breaker_state` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    Closed = 0,
    HalfOpen = 1,
    Open = 2,
}

/// Whether a call may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// As any.
    Call,
    /// Alone: its end is to be recorded, or the next probe never comes.
    Probe,
    /// Not now.
    Refused,
}

// === impl Breaker ===

impl Breaker {
    pub(crate) const fn new() -> Self {
        Self {
            state: State::Closed { failures: 0 },
        }
    }

    pub(crate) fn position(&self) -> Position {
        match self.state {
            State::Closed { .. } => Position::Closed,
            State::HalfOpen { .. } => Position::HalfOpen,
            State::Open { .. } => Position::Open,
        }
    }

    /// Closed, and the last call succeeded.
    pub(crate) fn is_calm(&self) -> bool {
        matches!(self.state, State::Closed { failures: 0 })
    }

    pub(crate) fn admit(&mut self, now: Moment) -> Admission {
        match &mut self.state {
            State::Closed { .. } => Admission::Call,
            State::Open { until } if *until > now => Admission::Refused,
            State::Open { .. } => {
                self.state = State::HalfOpen {
                    successes: 0,
                    is_probing: true,
                };
                Admission::Probe
            }
            State::HalfOpen {
                is_probing: true, ..
            } => Admission::Refused,
            State::HalfOpen { is_probing, .. } => {
                *is_probing = true;
                Admission::Probe
            }
        }
    }

    /// A call succeeded. One that is no probe counts only while it is closed: others began before it opened.
    pub(crate) fn record_success(&mut self, is_probe: bool) {
        match &mut self.state {
            State::Closed { failures } => *failures = 0,
            State::HalfOpen {
                successes,
                is_probing,
            } if is_probe => {
                *is_probing = false;
                *successes += 1;
                if *successes >= SUCCESSES {
                    *self = Self::new();
                }
            }
            State::HalfOpen { .. } | State::Open { .. } => {}
        }
    }

    /// A call failed.
    pub(crate) fn record_failure(&mut self, is_probe: bool, now: Moment) {
        let opens = match &mut self.state {
            State::Closed { failures } => {
                *failures += 1;
                *failures >= FAILURES
            }
            State::HalfOpen { .. } => is_probe,
            State::Open { .. } => false,
        };
        if opens {
            self.state = State::Open { until: now + OPEN };
        }
    }

    /// Nobody knows how a probe would have ended: another may go.
    pub(crate) fn abandon_probe(&mut self) {
        if let State::HalfOpen { is_probing, .. } = &mut self.state {
            *is_probing = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(millis: u64) -> Moment {
        Moment::from_millis(millis)
    }

    fn mk_open() -> Breaker {
        let mut breaker = Breaker::new();
        for _ in 0..FAILURES {
            assert_eq!(breaker.admit(at(0)), Admission::Call);
            breaker.record_failure(false, at(0));
        }
        breaker
    }

    #[test]
    fn ten_failures_in_a_row_open_it_for_five_seconds() {
        let mut breaker = Breaker::new();
        for _ in 0..9 {
            breaker.record_failure(false, at(0));
        }
        breaker.record_success(false);
        assert!(breaker.is_calm());
        for _ in 0..9 {
            breaker.record_failure(false, at(0));
        }
        assert_eq!(breaker.admit(at(1)), Admission::Call);
        breaker.record_failure(false, at(1));
        let until = at(5001);
        assert_eq!(breaker.admit(at(5000)), Admission::Refused);
        assert_eq!(breaker.position(), Position::Open);
        assert_eq!(breaker.admit(until), Admission::Probe);
    }

    #[test]
    fn one_probe_goes_at_a_time_and_three_close_it() {
        let mut breaker = mk_open();
        for _ in 0..SUCCESSES {
            assert_eq!(breaker.admit(at(5000)), Admission::Probe);
            assert_eq!(breaker.admit(at(9000)), Admission::Refused);
            assert_eq!(breaker.position(), Position::HalfOpen);
            breaker.record_success(true);
        }
        assert!(breaker.is_calm());
    }

    #[test]
    fn a_failed_probe_opens_it_again() {
        let mut breaker = mk_open();
        breaker.admit(at(5000));
        breaker.record_success(true);
        breaker.admit(at(5000));
        breaker.record_failure(true, at(5100));
        assert_eq!(breaker.admit(at(10_099)), Admission::Refused);
        assert_eq!(breaker.admit(at(10_100)), Admission::Probe);
    }

    #[test]
    fn a_probe_that_is_given_up_makes_room_for_another() {
        let mut breaker = mk_open();
        breaker.admit(at(5000));
        breaker.abandon_probe();
        assert_eq!(breaker.admit(at(5000)), Admission::Probe);
    }

    #[test]
    fn calls_from_before_it_opened_decide_nothing() {
        let mut breaker = mk_open();
        breaker.record_success(false);
        breaker.record_failure(false, at(4000));
        assert_eq!(breaker.admit(at(5000)), Admission::Probe);
        breaker.record_failure(false, at(5000));
        breaker.record_success(false);
        breaker.record_success(false);
        breaker.record_success(false);
        assert_eq!(breaker.position(), Position::HalfOpen);
    }
}
